//! The log: one line per event, as text or JSON.

mod level;

use std::path::PathBuf;

use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, reload};

pub use level::Level;

use crate::config::{Config, LogFormat};
use crate::ids::NodeName;
use crate::log_node::log_node;
use crate::maintenance::decide::Transition;
use crate::maintenance::episode::{DrainEnd, EpisodeResult, Phase, Record};
use crate::maintenance::waiting::WaitingOn;
use crate::status::WaitKind;
use crate::status::observer::{NodeEvent, Observer};
use crate::telemetry::link::Links;

/// Libraries that log each failed connection: our code logs the same once, with its consequences.
/// `LOG_LEVEL` can name them.
const QUIET: &str = "kube_client=off,hyper_util=warn,hyper=warn,h2=warn,tower=warn,rustls=warn,reqwest=warn";

/// Logs the events of actors.
#[derive(Debug)]
pub struct Log {
    links: Links,
}

impl Log {
    pub fn new(config: &Config) -> Self {
        Self {
            links: Links::new(config),
        }
    }

    /// The link to the trace, for the first and the last line of an episode.
    fn trace_url(&self, before: &Record, after: &Record) -> Option<String> {
        let (was, is) = (before.episode(), after.episode());
        let goes_on = was.zip(is).is_some_and(|(was, is)| was.id == is.id);
        let episode = is.or(was).filter(|_| !goes_on)?;
        self.links.to(episode)
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
    fn observe(&self, node: &NodeName, event: NodeEvent<'_>) {
        match event {
            NodeEvent::Recorded {
                before, transition, ..
            } => recorded(
                node,
                before,
                transition,
                self.trace_url(before, &transition.record),
            ),
            NodeEvent::NotRecorded {
                before,
                transition,
                message,
            } => log_node!(
                warn,
                node,
                before,
                "could not write {} to the Node: {message}",
                transition.record.phase_name(),
            ),
            NodeEvent::Asks { record, effect } => {
                // The transition or the wait is logged at info level.
                log_node!(debug, node, record, "starting to {}", effect.kind().words());
            }
            NodeEvent::Waits { record, on, .. } => waiting(node, record, on),
            NodeEvent::Forecasts {
                record, placement, ..
            } => log_node!(info, node, record, "{placement}"),
        }
    }
}

fn recorded(node: &NodeName, before: &Record, transition: &Transition, trace_url: Option<String>) {
    if let (Some(was), Some(episode)) = (before.episode(), transition.record.episode())
        && transition.is_bookkeeping(before)
    {
        let phase = episode.phase.name();
        if let Some(left) = episode.gave_up_volumes(was) {
            let (count, names) = (left.len(), left.join(", "));
            log_node!(
                warn,
                node,
                before,
                "{count} volumes are still attached and are not waited for any more: {names}"
            );
        }
        if (was.epoch, &was.release) == (episode.epoch, &episode.release) {
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
                epoch = episode.epoch,
                "{phase} continues under another leader"
            );
        }
        return;
    }
    let ended = match transition.ended {
        Some(EpisodeResult::Succeeded) => ": the episode succeeded",
        Some(EpisodeResult::Failed) => ": the episode failed",
        Some(EpisodeResult::Cancelled) => ": the episode was cancelled",
        Some(EpisodeResult::Vmotioned) => ": vCenter moved the VM to another host by vMotion",
        None => "",
    };
    // The last line is about the episode that ended.
    let of = if transition.record.episode().is_some() {
        &transition.record
    } else {
        before
    };
    log_node!(
        info,
        node,
        of,
        trace = trace_url,
        from = before.phase_name(),
        "{}{ended}",
        transition.words(before),
    );
    let accepted = before
        .episode()
        .and_then(|episode| episode.accepted_gpus.as_ref());
    if let (Some(fewer), Some(_)) = (accepted, transition.ended) {
        log_node!(info, node, of, "a person accepted it with fewer GPUs: {fewer}");
    }
    let left = transition
        .record
        .episode()
        .map_or(&[][..], |episode| &episode.left_behind);
    let were_left = before.episode().map_or(&[][..], |episode| &episode.left_behind);
    if !left.is_empty() && were_left.is_empty() {
        let phase = transition.record.phase().map(Phase::at_work);
        let (count, names) = (left.len(), left.join(", "));
        let words = if phase == Some(&Phase::ShuttingDown(DrainEnd::Complete)) {
            format!("{count} pods do not hold the drain and end with the VM: {names}")
        } else {
            format!("the drain timeout passed; {count} pods are left behind: {names}")
        };
        log_node!(warn, node, transition.record, "{words}");
    }
}

/// Waits that are brief, and those of nodes in service for a source or a lookup, are logged at debug level: the latter
/// concern all nodes, and the change of the connection is logged once. What needs a person is a warning.
fn waiting(node: &NodeName, record: &Record, on: &WaitingOn) {
    let kind = on.kind();
    let is_list = matches!(on, WaitingOn::Volumes { volumes, .. } if volumes.is_empty());
    let is_brief = is_list || matches!(kind, WaitKind::DrainRound | WaitKind::Survey);
    let is_of_all = matches!(
        kind,
        WaitKind::Vcenter | WaitKind::Kubernetes | WaitKind::VmLookup
    );
    let until = on.deadline().map(|deadline| format!("{:.0}", deadline.at));
    let until = until.as_deref();
    if is_brief || is_of_all && *record == Record::InService {
        log_node!(
            debug,
            node,
            record,
            waiting_on = kind.name(),
            until,
            "waiting for {on}"
        );
    } else if kind.needs_person() {
        log_node!(
            warn,
            node,
            record,
            waiting_on = kind.name(),
            until,
            "waiting for {on}"
        );
    } else {
        log_node!(
            info,
            node,
            record,
            waiting_on = kind.name(),
            until,
            "waiting for {on}"
        );
    }
}
