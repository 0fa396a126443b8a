//! The two texts in which metrics are asked for: OpenMetrics, and the older one of Prometheus for those who know no other.

/// Which text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// OpenMetrics 1.0, with exemplars.
    OpenMetrics,
    /// The text format of Prometheus 0.0.4, which knows neither exemplars nor units.
    Prometheus,
}

impl Text {
    /// The one to answer with, by the request's `Accept` header.
    pub fn accepted(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            Some(_) | None => Self::Prometheus,
        }
    }

    /// Its media type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Turns our OpenMetrics into the older text: there a counter is described under its whole name.
pub(super) fn older(open: &str) -> String {
    let mut older = String::with_capacity(open.len());
    let mut help = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // Which name it goes under is told by the type, which follows.
            help = rest.split_once(' ').map(|(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let total = if kind == "counter" { "_total" } else { "" };
            if let Some(help) = help.take() {
                older.push_str(&format!("# HELP {name}{total} {help}\n"));
            }
            older.push_str(&format!("# TYPE {name}{total} {kind}\n"));
        } else if !line.starts_with('#') {
            // Only buckets have exemplars, and their labels are words of ours.
            let sample = match line.split_once(" # ") {
                Some((sample, _exemplar)) if line.contains("_bucket{") => sample,
                Some(_) | None => line,
            };
            older.push_str(sample);
            older.push('\n');
        }
    }
    older
}
