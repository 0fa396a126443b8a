//! The texts, from the sentences of transitions and waits, and what makes a text a new one.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::events;
use crate::link::Links;
use crate::sink::Urgency;
use haulout_core::ids::{HostRef, NodeName, VmRef};
use haulout_core::maintenance::episode::Episode;
use haulout_core::maintenance::observed::{BoundVm, HostState, PowerState};
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::WaitKind;
use haulout_core::status::node_event::NodeEvent;
use haulout_vsphere::privileges::Entity;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoggedText {
    pub(super) text: String,
    pub(super) on: Vec<Entity>,
    pub(super) urgency: Urgency,
}

/// The last text about a node.
#[derive(Debug, Default)]
pub(crate) struct LastText {
    /// Texts with the same key are the same.
    key: String,
    /// What it waits for, and since when for something of this kind.
    wait: Option<(WaitKind, Timestamp)>,
}

/// The text for `event`; `None` if there is none, or it was the last one.
pub(super) fn logged_text(
    node: &NodeName,
    event: NodeEvent<'_>,
    last: &mut BTreeMap<NodeName, LastText>,
    links: &Links,
    now: Timestamp,
) -> Option<LoggedText> {
    match event {
        NodeEvent::Recorded {
            before, transition, ..
        } => {
            let episode = transition.record.episode().or(before.episode())?;
            if transition.is_bookkeeping(before) {
                return None;
            }
            let event = events::of_change(event, links, now);
            let note = event.map_or_else(|| transition.words(before), |event| event.note);
            let is_end = transition.ended.is_some();
            let urgency = if is_end {
                last.remove(node);
                Urgency::Final
            } else {
                last.insert(node.clone(), LastText::default());
                Urgency::Change
            };
            Some(post(episode, urgency, format!("Haulout, node {node}: {note}")))
        }
        NodeEvent::NotRecorded {
            before, transition, ..
        } => {
            let episode = transition.record.episode().or(before.episode())?;
            let event = events::of_change(event, links, now)?;
            let last = last.entry(node.clone()).or_default();
            last.is_new(event.key).then(|| {
                let text = format!("Haulout, node {node}: {}", event.note);
                post(episode, Urgency::Progress, text)
            })
        }
        NodeEvent::Waits { record, on, vm, .. } => {
            let Some(episode) = record.episode() else {
                return without_episode(node, vm, on, last);
            };
            let last = last.entry(node.clone()).or_default();
            let text = new_wait(node, episode, on, last, now)?;
            Some(post(episode, Urgency::Progress, text))
        }
        // It would take the place of the event before: there is one within some seconds.
        NodeEvent::Forecasts { .. } => None,
        NodeEvent::Asks { .. } => None,
    }
}

/// What an episode waits for, if people see it and it is another wait than the last one.
pub(crate) fn new_wait(
    node: &NodeName,
    episode: &Episode,
    on: &WaitingOn,
    last: &mut LastText,
    now: Timestamp,
) -> Option<String> {
    if is_brief(on.kind()) {
        return None;
    }
    let since = last.waits_since(on.kind(), now);
    let is_new = last.is_new(events::key_of_wait(episode, on, now));
    is_new.then(|| waits(node, episode, on, since))
}

/// The text for a node that cannot begin an episode, although its host cannot enter maintenance without it.
fn without_episode(
    node: &NodeName,
    vm: &BoundVm,
    on: &WaitingOn,
    last: &mut BTreeMap<NodeName, LastText>,
) -> Option<LoggedText> {
    let vm = vm.found().filter(|vm| vm.power == Some(PowerState::On))?;
    let HostState::Entering { task, .. } = &vm.host else {
        return None;
    };
    let needs_a_person = matches!(
        on.kind(),
        WaitKind::Skip | WaitKind::Parked | WaitKind::OtherRelease
    );
    if !needs_a_person {
        return None;
    }
    let key = format!("{} {task}", on.kind().name());
    let is_new = last.entry(node.clone()).or_default().is_new(key);
    is_new.then(|| LoggedText {
        text: format!("Haulout, node {node}: {}", on.sentence()),
        on: objects(vm.host_ref.as_ref(), Some(&vm.moref)),
        urgency: Urgency::Progress,
    })
}

fn waits(node: &NodeName, episode: &Episode, on: &WaitingOn, since: Timestamp) -> String {
    let phase = episode.phase.kind();
    let target = episode.phase.target().map(|host| format!(" to {host}"));
    let target = target.unwrap_or_default();
    format!("Haulout, node {node}, {phase}{target}: waits since {since:.0} for {on}")
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

/// Waits that end by themselves within seconds, or during which no event can be posted.
fn is_brief(kind: WaitKind) -> bool {
    matches!(
        kind,
        WaitKind::DrainRound | WaitKind::Survey | WaitKind::Takeover | WaitKind::VmLookup | WaitKind::Vcenter
    )
}

impl LastText {
    fn is_new(&mut self, key: String) -> bool {
        let is_new = self.key != key;
        self.key = key;
        is_new
    }

    fn waits_since(&mut self, kind: WaitKind, now: Timestamp) -> Timestamp {
        let (_, since) = self
            .wait
            .filter(|(before, _)| *before == kind)
            .unwrap_or((kind, now));
        self.wait = Some((kind, since));
        since
    }
}

#[cfg(test)]
mod tests;
