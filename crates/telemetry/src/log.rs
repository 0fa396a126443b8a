//! The log: one line per event, as text or JSON.

mod level;

use std::collections::BTreeMap;
use std::path::PathBuf;

use parking_lot::Mutex;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, reload};

pub use level::{Level, log_level};

use crate::link::Links;
use haulout_controller::failure_log::FailureStreak;
use haulout_controller::log_node;
use haulout_controller::observer::Observer;
use haulout_core::ids::NodeName;
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::episode::{DrainEnd, Episode, EpisodeResult, Phase, Record};
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::WaitKind;
use haulout_core::status::node_event::NodeEvent;

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

/// Logs the events of actors.
#[derive(Debug)]
pub struct Log {
    links: Links,
    /// The nodes whose last transition was not written.
    not_recorded: Mutex<BTreeMap<NodeName, FailureStreak>>,
}

impl Log {
    pub fn new(links: Links) -> Self {
        Self {
            links,
            not_recorded: Mutex::default(),
        }
    }

    fn not_recorded(&self, node: &NodeName, before: &Record, transition: &Transition, message: &str) {
        let Some(count) = self.not_recorded.lock().entry(node.clone()).or_default().failed() else {
            return;
        };
        let phase = transition.record.phase_name();
        match count {
            1 => log_node!(
                warn,
                node,
                before,
                "could not write {phase} to the Node: {message}"
            ),
            _ => log_node!(
                warn,
                node,
                before,
                "could not write {phase} to the Node in {count} attempts: {message}"
            ),
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
            } => {
                self.not_recorded.lock().remove(node);
                let trace_url = self.trace_url(before, &transition.record);
                recorded(node, before, transition, trace_url);
            }
            NodeEvent::NotRecorded {
                before,
                transition,
                message,
            } => self.not_recorded(node, before, transition, message),
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

    fn actor_ended(&self, node: &NodeName) {
        self.not_recorded.lock().remove(node);
    }
}

fn recorded(node: &NodeName, before: &Record, transition: &Transition, trace_url: Option<String>) {
    if let (Some(was), Some(episode)) = (before.episode(), transition.record.episode())
        && transition.is_bookkeeping(before)
    {
        bookkept(node, before, was, episode);
        return;
    }
    let ended = match transition.ended {
        Some(EpisodeResult::Succeeded) => ": the episode succeeded",
        Some(EpisodeResult::Failed) => ": the episode failed",
        Some(EpisodeResult::Cancelled) => ": the episode was cancelled",
        Some(EpisodeResult::Vmotioned) => ": vCenter moved the VM to another host by vMotion",
        None => "",
    };
    let step = step(before, &transition.record).map_or_else(String::new, |step| format!(": {step}"));
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
        "{}{step}{ended}",
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
        } else if phase.is_some_and(Phase::vm_is_off) {
            format!("the VM went off during the drain; {count} pods are left behind: {names}")
        } else {
            format!("the drain timeout passed; {count} pods are left behind: {names}")
        };
        log_node!(warn, node, transition.record, "{words}");
    }
}

/// A write in the same phase.
fn bookkept(node: &NodeName, before: &Record, was: &Episode, episode: &Episode) {
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
    if let Some(left) = episode.machine_guards.left_behind()
        && was.machine_guards.left.is_none()
    {
        log_node!(warn, node, before, "{left}");
    }
    if episode.unmatched_gpus != was.unmatched_gpus {
        let names = episode.unmatched_gpus.join(", ");
        log_node!(
            warn,
            node,
            before,
            "GPU_RESOURCES does not match {names} any more, so the node is back without a look at them"
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
}

/// What was done with the VM before this transition, in the words that people search for.
fn step(before: &Record, after: &Record) -> Option<String> {
    let (was, is) = (before.episode()?, after.episode()?);
    if was.id != is.id {
        return None;
    }
    match (was.phase.vm_is_off(), is.phase.vm_is_off()) {
        (false, true) => Some("the VM is powered off".to_owned()),
        (true, false) => Some("the VM is powered on".to_owned()),
        (true, true) if matches!(is.phase, Phase::PoweringOn { .. }) => {
            let target = was.phase.target()?;
            Some(format!("the VM was moved to host {target}"))
        }
        (true, true) | (false, false) => None,
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use haulout_core::fixtures;

    use super::*;
    use haulout_core::maintenance::episode::HostIdentity;

    #[test]
    fn each_step_of_the_vm_is_named_once() {
        let to = HostIdentity {
            moref: Some(fixtures::host_ref(2)),
            name: "esx2".into(),
        };
        let walk = [
            (Phase::Queued, None),
            (Phase::Draining, None),
            (Phase::ShuttingDown(DrainEnd::Complete), None),
            (Phase::AwaitingHost, Some("the VM is powered off")),
            (Phase::Relocating { to }, None),
            (
                Phase::PoweringOn { by_drs: false },
                Some("the VM was moved to host esx2"),
            ),
            (Phase::Rejoining, Some("the VM is powered on")),
        ];
        let record = |phase: &Phase| Record::Episode(Arc::new(fixtures::episode(phase.clone(), 1)));
        for ((before, _), (after, words)) in walk.iter().zip(&walk[1..]) {
            let shown = step(&record(before), &record(after));
            assert_eq!(shown.as_deref(), *words, "{before:?} -> {after:?}");
        }
        let home = step(
            &record(&Phase::AwaitingHost),
            &record(&Phase::PoweringOn { by_drs: false }),
        );
        assert_eq!(home, None, "it was not moved");
        assert_eq!(step(&record(&Phase::Rejoining), &Record::InService), None);
    }
}
