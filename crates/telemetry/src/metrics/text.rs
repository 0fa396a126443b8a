//! The two formats of metrics: OpenMetrics, and the older text format of Prometheus.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// OpenMetrics 1.0, with exemplars.
    OpenMetrics,
    /// The text format of Prometheus 0.0.4, without exemplars and units.
    Prometheus,
}

impl Text {
    /// Selects the format by the `Accept` header of the request.
    pub fn accepted(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            Some(_) | None => Self::Prometheus,
        }
    }

    /// The media type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Converts OpenMetrics to the older format, in which the description of a counter has its full name.
pub(super) fn to_prometheus(text: &str) -> String {
    let mut converted = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // The name depends on the type, which follows.
            help = rest.split_once(' ').map(|(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let total = if kind == "counter" { "_total" } else { "" };
            if let Some(help) = help.take() {
                converted.push_str(&format!("# HELP {name}{total} {help}\n"));
            }
            converted.push_str(&format!("# TYPE {name}{total} {kind}\n"));
        } else if !line.starts_with('#') {
            // Only buckets have exemplars, and our label values contain no ` # `.
            let sample = match line.split_once(" # ") {
                Some((sample, _exemplar)) if line.contains("_bucket{") => sample,
                Some(_) | None => line,
            };
            converted.push_str(sample);
            converted.push('\n');
        }
    }
    converted
}
