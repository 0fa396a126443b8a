//! The texts, from the story of a node.

use jiff::Timestamp;

use crate::link::Links;
use crate::sink::Urgency;
use haulout_core::ids::{HostRef, NodeName, VmRef};
use haulout_core::maintenance::episode::Episode;
use haulout_core::maintenance::observed::{BoundVm, HostState, PowerState};
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::WaitKind;
use haulout_core::status::node_event::NodeEvent;
use haulout_core::status::story::Beat;
use haulout_vsphere::privileges::Entity;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoggedText {
    pub(super) text: String,
    pub(super) on: Vec<Entity>,
    pub(super) urgency: Urgency,
}

/// What each text begins with, before the name of the node.
pub(crate) const BEGINS: &str = "Haulout, node ";

/// The text for `beat`; `None` if it says nothing new.
pub(super) fn logged_text(node: &NodeName, beat: &Beat<'_>, links: &Links) -> Option<LoggedText> {
    if !beat.is_new {
        return None;
    }
    let told = || Some(links.note(beat, beat.told.as_ref()?));
    let (urgency, text) = match beat.event {
        NodeEvent::Recorded {
            before, transition, ..
        } => {
            let urgency = match transition.ended {
                Some(_) => Urgency::Final,
                None => Urgency::Change,
            };
            (urgency, told().unwrap_or_else(|| transition.words(before)))
        }
        NodeEvent::NotRecorded { .. } => (Urgency::Progress, told()?),
        NodeEvent::Waits { vm, on, .. } => {
            let Some(episode) = beat.episode() else {
                return without_episode(node, vm, on);
            };
            let text = wait_text(node, episode, on, beat.at);
            return Some(post(episode, Urgency::Progress, text));
        }
        // A forecast would take the place of the event before: there is one within some seconds.
        NodeEvent::Forecasts { .. } | NodeEvent::Asks { .. } => return None,
    };
    Some(post(beat.episode()?, urgency, format!("{BEGINS}{node}: {text}")))
}

/// What an episode waits for.
pub(crate) fn wait_text(node: &NodeName, episode: &Episode, on: &WaitingOn, since: Timestamp) -> String {
    format!("{}: waits since {since:.0} for {on}", place(node, episode))
}

/// The node, its phase and where its VM goes.
pub(crate) fn place(node: &NodeName, episode: &Episode) -> String {
    let target = episode.phase.target().map(|host| format!(" to {host}"));
    let target = target.unwrap_or_default();
    format!("{BEGINS}{node}, {}{target}", episode.phase.kind())
}

/// The text for a node that cannot begin an episode, although its host cannot enter maintenance without it.
fn without_episode(node: &NodeName, vm: &BoundVm, on: &WaitingOn) -> Option<LoggedText> {
    let vm = vm.found().filter(|vm| vm.power == Some(PowerState::On))?;
    let is_entering = matches!(vm.host, HostState::Entering { .. });
    let needs_a_person = matches!(
        on.kind(),
        WaitKind::Skip | WaitKind::Parked | WaitKind::OtherRelease
    );
    (is_entering && needs_a_person).then(|| LoggedText {
        text: format!("{BEGINS}{node}: {}", on.sentence()),
        on: objects(vm.host_ref.as_ref(), Some(&vm.moref)),
        urgency: Urgency::Progress,
    })
}

/// The host and the VM of an episode.
pub(crate) fn objects_of(episode: &Episode) -> Vec<Entity> {
    objects(episode.host.moref.as_ref(), episode.vm.as_ref())
}

fn post(episode: &Episode, urgency: Urgency, text: String) -> LoggedText {
    LoggedText {
        text,
        on: objects_of(episode),
        urgency,
    }
}

fn objects(host: Option<&HostRef>, vm: Option<&VmRef>) -> Vec<Entity> {
    let host = host.cloned().map(Entity::Host);
    host.into_iter().chain(vm.cloned().map(Entity::Vm)).collect()
}

#[cfg(test)]
mod tests;
