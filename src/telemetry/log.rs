//! The log: one line per fact, for a terminal or as JSON.

use tracing::{debug, info, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::actor::tell::{Tell, Told};
use crate::config::{Config, LogFormat};
use crate::ids::NodeName;
use crate::maintenance::decide::Transition;
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::{Ended, Phase, Record};
use crate::maintenance::waiting::WaitingOn;

/// Libraries that report each failed connection by themselves: our own code tells the same once, with what follows from
/// it. Quieter unless the level names them.
const QUIET: &str = "kube_client=off,hyper_util=warn,hyper=warn,h2=warn,tower=warn,rustls=warn,reqwest=warn";

/// Writes what actors tell to the log.
#[derive(Debug)]
pub struct Log;

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
            } => recorded(node, before, transition),
            Told::NotRecorded {
                before,
                transition,
                said,
            } => warn!(
                %node,
                phase = before.phase_name(),
                "could not record {} on the Node: {said}",
                transition.record.phase_name(),
            ),
            Told::Asks { record, effect } => asks(node, record, effect),
            Told::Waits { record, on } => waits(node, record, on),
        }
    }
}

fn recorded(node: &NodeName, before: &Record, transition: &Transition) {
    let episode = transition.record.episode().or(before.episode());
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
        phase = transition.record.phase_name(),
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
    match kind {
        EffectKind::DrainRound | EffectKind::Survey => debug!(%node, phase, "asking to {}", kind.words()),
        EffectKind::ShutdownGuest | EffectKind::PowerOff | EffectKind::Relocate | EffectKind::PowerOn => {
            info!(%node, phase, "asking to {}", kind.words());
        }
    }
}

fn waits(node: &NodeName, record: &Record, on: &WaitingOn) {
    let episode = record.episode();
    info!(
        %node,
        host = episode.map(|episode| episode.host.name.as_str()),
        episode = episode.map(|episode| episode.id.as_str()),
        phase = record.phase_name(),
        waiting_on = on.kind(),
        "waiting for {on}"
    );
}
