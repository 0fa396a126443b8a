//! The log: one line per event, as text or JSON.

mod level;

use std::path::PathBuf;

use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, reload};

pub use level::{Level, log_level};

use crate::link::Links;
use haulout_controller::failure_log::is_logged_again;
use haulout_controller::log_node;
use haulout_controller::observer::Observer;
use haulout_core::ids::NodeName;
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::episode::{Episode, Record};
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::WaitKind;
use haulout_core::status::node_event::NodeEvent;
use haulout_core::status::story::{Beat, Severity};

/// Libraries that log each failed connection: our code logs the same once, with its consequences.
/// `LOG_LEVEL` can name them.
const QUIET: &str = "kube_client=off,hyper_util=warn,hyper=warn,h2=warn,tower=warn,rustls=warn,reqwest=warn";

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text lines.
    Text,
    /// One JSON object a line.
    Json,
}

/// Logs the story of each node.
#[derive(Debug)]
pub struct Log {
    links: Links,
}

impl Log {
    pub fn new(links: Links) -> Self {
        Self { links }
    }

    /// The link to the trace, for the first and the last line of an episode.
    fn trace_url(&self, beat: &Beat<'_>) -> Option<String> {
        let told = beat.told.as_ref().filter(|told| told.names_trace);
        told.and_then(|_| self.links.to(beat.episode()?))
    }
}

/// Starts logging to stdout. The returned value can change the level, and follows `level_file`.
///
/// # Errors
/// For a `LOG_LEVEL` that is not a filter.
pub fn start(level: &str, format: LogFormat, level_file: Option<PathBuf>) -> Result<Level, ParseError> {
    let (reloadable, handle) = reload::Layer::new(filter(level)?);
    let log = tracing_subscriber::registry().with(reloadable);
    let lines = tracing_subscriber::fmt::layer();
    match format {
        LogFormat::Json => log
            .with(lines.json().flatten_event(true).with_current_span(false))
            .init(),
        // Colours are for terminals only.
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stdout());
            log.with(lines.with_ansi(colours).with_target(false)).init();
        }
    }
    let apply = move |level: &str| {
        let filter = filter(level).map_err(|error| error.to_string())?;
        handle.reload(filter).map_err(|error| error.to_string())
    };
    let mut level = Level::new(level, level_file, Box::new(apply));
    level.read_file();
    Ok(level)
}

fn filter(level: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::try_new(format!("{QUIET},{level}"))
}

impl Observer for Log {
    fn observe(&self, node: &NodeName, beat: &Beat<'_>) {
        match beat.event {
            NodeEvent::Recorded {
                before, transition, ..
            } => self.recorded(node, beat, before, transition),
            NodeEvent::NotRecorded { before, attempts, .. } => {
                if beat.is_new || is_logged_again(attempts.into()) {
                    log_node!(warn, node, before, "{}", beat.line());
                }
            }
            // The transition or the wait is logged at info level.
            NodeEvent::Asks { record, .. } => log_node!(debug, node, record, "{}", beat.line()),
            NodeEvent::Waits { record, on, .. } => waiting(node, record, on, &beat.line()),
            NodeEvent::Forecasts { record, .. } => log_node!(info, node, record, "{}", beat.line()),
        }
    }
}

impl Log {
    fn recorded(&self, node: &NodeName, beat: &Beat<'_>, before: &Record, transition: &Transition) {
        // The last line is about the episode that ended.
        let after = &transition.record;
        let of = if after.episode().is_some() { after } else { before };
        let from = before.phase_name();
        let trace = self.trace_url(beat);
        match (beat.told.as_ref(), before.episode(), after.episode()) {
            (None, Some(was), Some(is)) if transition.is_bookkeeping(before) => kept(node, before, was, is),
            (Some(told), _, _) if told.reason.severity() == Severity::Warning => {
                log_node!(warn, node, of, trace, from, "{}", beat.line());
            }
            (_, _, _) => log_node!(info, node, of, trace, from, "{}", beat.line()),
        }
    }
}

/// A write in the same phase.
fn kept(node: &NodeName, before: &Record, was: &Episode, is: &Episode) {
    let phase = is.phase.name();
    if is.unmatched_gpus != was.unmatched_gpus {
        let names = is.unmatched_gpus.join(", ");
        log_node!(
            warn,
            node,
            before,
            "GPU_RESOURCES does not match {names} any more, so the node is back without a look at them"
        );
    } else if (was.epoch, &was.release) == (is.epoch, &is.release) {
        log_node!(
            debug,
            node,
            before,
            "{phase} continues; the record on the Node is up to date"
        );
    } else {
        log_node!(
            info,
            node,
            before,
            epoch = is.epoch,
            "{phase} continues under another leader"
        );
    }
}

/// Waits that are brief, and those of nodes in service for a source or a lookup, are logged at debug level: the latter
/// concern all nodes, and the change of the connection is logged once. What needs a person is a warning.
fn waiting(node: &NodeName, record: &Record, on: &WaitingOn, line: &str) {
    let kind = on.kind();
    let is_list = matches!(on, WaitingOn::Volumes { volumes, .. } if volumes.is_empty());
    let is_brief = is_list || matches!(kind, WaitKind::DrainRound | WaitKind::Survey);
    let is_of_all = matches!(
        kind,
        WaitKind::Vcenter | WaitKind::Kubernetes | WaitKind::VmLookup
    );
    let waiting_on = kind.name();
    let until = on.deadline().map(|deadline| format!("{:.0}", deadline.at));
    let until = until.as_deref();
    if is_brief || is_of_all && *record == Record::InService {
        log_node!(debug, node, record, waiting_on, until, "{line}");
    } else if kind.needs_person() {
        log_node!(warn, node, record, waiting_on, until, "{line}");
    } else {
        log_node!(info, node, record, waiting_on, until, "{line}");
    }
}
