//! The log: one line per fact, for a terminal or as JSON.

use tracing::{debug, info, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::actor::tell::{Tell, Told};
use crate::config::{Config, LogFormat, TRACE_ID};
use crate::ids::NodeName;
use crate::maintenance::decide::Transition;
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::{Ended, Episode, Phase, Record};
use crate::maintenance::waiting::WaitingOn;

/// Libraries that report each failed connection by themselves: our own code tells the same once, with what follows from
/// it. Quieter unless the level names them.
const QUIET: &str = "kube_client=off,hyper_util=warn,hyper=warn,h2=warn,tower=warn,rustls=warn,reqwest=warn";

/// Writes what actors tell to the log.
#[derive(Debug)]
pub struct Log {
    trace_ui: Option<String>,
}

impl Log {
    /// A log that links traces where `config` tells how.
    pub fn new(config: &Config) -> Self {
        Self {
            trace_ui: config.trace_ui_url_template.clone(),
        }
    }

    /// The address of an episode's trace, for the lines of its begin and its end.
    fn trace_url(&self, before: &Record, after: &Record) -> Option<String> {
        let (was, is) = (before.episode(), after.episode());
        let goes_on = was.zip(is).is_some_and(|(was, is)| was.id == is.id);
        let episode = is.or(was).filter(|_| !goes_on)?;
        let template = self.trace_ui.as_ref()?;
        Some(template.replace(TRACE_ID, episode.trace_id()))
    }
}

/// Starts logging to stdout.
///
/// # Errors
/// For a `LOG_LEVEL` that is no filter.
pub fn start(config: &Config) -> Result<(), ParseError> {
    let filter = EnvFilter::try_new(format!("{QUIET},{}", config.log_level))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    match config.log_format {
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).init(),
        // Colours are for terminals: in a file or a log collector they are noise.
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stdout());
            log.with_ansi(colours).with_target(false).init();
        }
    }
    Ok(())
}

impl Tell for Log {
    fn tell(&self, node: &NodeName, told: Told<'_>) {
        match told {
            Told::Recorded {
                before, transition, ..
            } => recorded(
                node,
                before,
                transition,
                self.trace_url(before, &transition.record),
            ),
            Told::NotRecorded {
                before,
                transition,
                said,
            } => warn!(
                %node,
                trace_id = before.episode().map(Episode::trace_id),
                phase = before.phase_name(),
                "could not record {} on the Node: {said}",
                transition.record.phase_name(),
            ),
            Told::Asks { record, effect } => asks(node, record, effect),
            Told::Waits { record, on } => waits(node, record, on),
        }
    }
}

fn recorded(node: &NodeName, before: &Record, transition: &Transition, trace_url: Option<String>) {
    let episode = transition.record.episode().or(before.episode());
    if let Some(episode) = episode.filter(|_| transition.is_takeover(before)) {
        info!(
            %node,
            host = episode.host.name.as_str(),
            episode = episode.id.as_str(),
            trace_id = episode.trace_id(),
            phase = episode.phase.name(),
            epoch = episode.epoch,
            "{} goes on under another leader",
            episode.phase.name(),
        );
        return;
    }
    let cordon = match transition.unschedulable {
        Some(true) => ", cordoned",
        Some(false) => ", uncordoned",
        None => "",
    };
    let ended = match transition.ended {
        Some(Ended::Succeeded) => ": the episode ended well",
        Some(Ended::Cancelled) => ": the episode was called off",
        None => "",
    };
    info!(
        %node,
        host = episode.map(|episode| episode.host.name.as_str()),
        episode = episode.map(|episode| episode.id.as_str()),
        trace_id = episode.map(Episode::trace_id),
        phase = transition.record.phase_name(),
        trace = trace_url,
        from = before.phase_name(),
        "{} -> {}{}{cordon}{ended}",
        before.phase_name(),
        transition.record.phase_name(),
        transition.record.phase().map(Phase::whereto).unwrap_or_default(),
    );
    let left = transition
        .record
        .episode()
        .map_or(&[][..], |episode| &episode.left_behind);
    let were_left = before.episode().map_or(&[][..], |episode| &episode.left_behind);
    if !left.is_empty() && were_left.is_empty() {
        warn!(
            %node,
            episode = episode.map(|episode| episode.id.as_str()),
            trace_id = episode.map(Episode::trace_id),
            "the drain timeout passed; {} pods are left behind: {}",
            left.len(),
            left.join(", ")
        );
    }
}

/// Drain rounds and surveys come again and again and change little each, so they are for those who look closer.
fn asks(node: &NodeName, record: &Record, effect: &Effect) {
    let kind = effect.kind();
    let phase = record.phase_name();
    let trace_id = record.episode().map(Episode::trace_id);
    match kind {
        EffectKind::DrainRound | EffectKind::Survey => {
            debug!(%node, trace_id, phase, "asking to {}", kind.words())
        }
        EffectKind::ShutdownGuest | EffectKind::PowerOff | EffectKind::Relocate | EffectKind::PowerOn => {
            info!(%node, trace_id, phase, "asking to {}", kind.words());
        }
    }
}

fn waits(node: &NodeName, record: &Record, on: &WaitingOn) {
    let episode = record.episode();
    info!(
        %node,
        host = episode.map(|episode| episode.host.name.as_str()),
        episode = episode.map(|episode| episode.id.as_str()),
        trace_id = episode.map(Episode::trace_id),
        phase = record.phase_name(),
        waiting_on = on.kind(),
        "waiting for {on}"
    );
}
