//! The story of a node: what is told of each thing that happens to it. Log, Events, page, vCenter and notifications are formats of
//! the same sentences.

mod parts;
mod reasons;
mod transitions;
mod waits;

use jiff::Timestamp;

use super::WaitKind;
use super::node_event::NodeEvent;
use crate::maintenance::episode::{Episode, Record};
use crate::maintenance::observed::{BoundVm, HostState};
use crate::maintenance::placement::PlacementForecast;
use crate::maintenance::waiting::{ParkReason, WaitingOn};
pub use reasons::{Reason, Severity};

/// One thing that happened to a node.
#[derive(Debug)]
pub struct Beat<'a> {
    pub event: NodeEvent<'a>,
    /// `None` if it matters to nobody, or if its phase or its wait says all.
    pub told: Option<Told>,
    /// When it happened. Of a wait: since when the node waits for something of this kind.
    pub at: Timestamp,
    /// It says something else than the beat before. Details that keep changing do not count.
    pub is_new: bool,
    /// The episode needs a person now, for another reason than before.
    pub calls_person: bool,
}

/// What is told to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub reason: Reason,
    pub sentence: String,
    /// The trace of the episode follows the sentence.
    pub names_trace: bool,
    /// Sentences with the same key say the same.
    pub key: String,
}

/// What was told of a node since its actor began. It distinguishes what is new; a restart loses it.
#[derive(Debug, Default)]
pub struct NodeStory {
    /// The key of the beat before.
    key: String,
    /// What the node waits for, and since when, beside brief waits in between.
    wait: Option<(WaitKind, Timestamp)>,
    brief_wait: Option<(WaitKind, Timestamp)>,
    /// The deadline of the guest shutdown.
    guest_until: Option<Timestamp>,
    /// Why the episode needs a person.
    person: Option<WaitKind>,
}

impl NodeStory {
    /// Tells `event`, which happened at `now`.
    pub fn tell<'a>(&mut self, event: NodeEvent<'a>, now: Timestamp) -> Beat<'a> {
        let mut beat = Beat {
            event,
            told: None,
            at: now,
            is_new: true,
            calls_person: false,
        };
        match event {
            NodeEvent::Recorded {
                before,
                transition,
                wrote: (began, accepted),
                ..
            } => {
                beat.at = accepted;
                beat.told = transitions::transition_text(before, transition, began);
                if transition.record.phase_name() != before.phase_name() {
                    self.guest_until = None;
                }
                beat.is_new = !transition.is_bookkeeping(before);
                if beat.is_new {
                    self.rests();
                    self.person = None;
                }
            }
            NodeEvent::NotRecorded {
                transition,
                message,
                attempts,
                ..
            } => {
                let told = not_recorded(transition.record.phase_name(), message, attempts);
                beat.is_new = self.is_new(&told.key);
                beat.told = Some(told);
            }
            NodeEvent::Asks { .. } => {}
            NodeEvent::Forecasts { placement, .. } => beat.told = Some(forecast(placement)),
            NodeEvent::Waits { vm, record, on, .. } => self.waits(&mut beat, vm, record, on),
        }
        beat
    }

    /// The node waits for nothing.
    pub fn rests(&mut self) {
        self.key.clear();
        self.wait = None;
        self.brief_wait = None;
    }

    fn waits(&mut self, beat: &mut Beat<'_>, vm: &BoundVm, record: &Record, on: &WaitingOn) {
        let kind = on.kind();
        if let WaitingOn::GuestShutdown { until } = on {
            self.guest_until = Some(*until);
        }
        beat.told = match (record.episode(), on) {
            (Some(episode), _) => waits::wait_text(episode, on, self.guest_until, beat.at),
            (None, WaitingOn::Parked(reason)) if concerns_person(reason) => Some(waits::parked(reason)),
            (None, _) => None,
        };
        beat.at = self.since(kind, beat.at);
        let key = match (record.episode(), &beat.told) {
            (Some(_), Some(told)) => told.key.clone(),
            (Some(_), None) => kind.name().to_owned(),
            // Another task asks anew.
            (None, _) => format!("{} {}", kind.name(), task_of(vm)),
        };
        beat.is_new = !is_brief(kind) && self.is_new(&key);
        if record.episode().is_some() && !is_cut(kind) {
            let person = kind.needs_person().then_some(kind);
            beat.calls_person = person.is_some() && person != self.person;
            self.person = person;
        }
    }

    /// Since when the node waits for something of this kind. A brief wait in between does not count.
    fn since(&mut self, kind: WaitKind, now: Timestamp) -> Timestamp {
        let wait = if is_brief(kind) {
            &mut self.brief_wait
        } else {
            self.brief_wait = None;
            &mut self.wait
        };
        let (_, since) = wait.filter(|(before, _)| *before == kind).unwrap_or((kind, now));
        *wait = Some((kind, since));
        since
    }

    fn is_new(&mut self, key: &str) -> bool {
        let is_new = self.key != key;
        key.clone_into(&mut self.key);
        is_new
    }
}

impl Beat<'_> {
    /// The episode that it is about, also if it has ended.
    pub fn episode(&self) -> Option<&Episode> {
        self.event.episode()
    }

    /// One line, as the log and the page show it.
    pub fn line(&self) -> String {
        let told = self.told.as_ref().map(|told| told.sentence.as_str());
        match self.event {
            NodeEvent::Recorded {
                before, transition, ..
            } => {
                let words = transition.words(before);
                match told {
                    Some(told) if transition.is_bookkeeping(before) => told.to_owned(),
                    Some(told) => format!("{words}: {told}"),
                    None => words,
                }
            }
            NodeEvent::Asks { effect, .. } => format!("starting to {}", effect.kind().words()),
            NodeEvent::Waits { on, .. } => format!("waiting for {on}"),
            NodeEvent::NotRecorded { .. } | NodeEvent::Forecasts { .. } => {
                told.unwrap_or_default().to_owned()
            }
        }
    }

    /// What is told of the begin of an episode in which vCenter itself shuts the VM down.
    pub fn evacuation(&self) -> Option<Told> {
        match self.event {
            NodeEvent::Recorded {
                vm,
                before: Record::InService,
                transition,
                ..
            } => transitions::evacuation(vm, transition.record.episode()?),
            NodeEvent::Recorded { .. }
            | NodeEvent::NotRecorded { .. }
            | NodeEvent::Asks { .. }
            | NodeEvent::Waits { .. }
            | NodeEvent::Forecasts { .. } => None,
        }
    }
}

/// Waits that end by themselves within seconds, or during which vCenter takes nothing.
fn is_brief(kind: WaitKind) -> bool {
    matches!(
        kind,
        WaitKind::DrainRound | WaitKind::Survey | WaitKind::Takeover | WaitKind::VmLookup | WaitKind::Vcenter
    )
}

/// Whether Haulout cannot see what the node waits for.
fn is_cut(kind: WaitKind) -> bool {
    matches!(
        kind,
        WaitKind::Vcenter | WaitKind::Kubernetes | WaitKind::Takeover | WaitKind::VmLookup
    )
}

/// Whether a person is told of a Node that cannot begin an episode. Not for a VM that vCenter does not know: a label that selects too
/// many nodes would put a warning on each of them.
fn concerns_person(reason: &ParkReason) -> bool {
    !matches!(
        reason,
        ParkReason::VmMissing | ParkReason::VmOutOfScope | ParkReason::NoUuid
    )
}

/// The task that asks for the maintenance of the host of a VM; empty without one.
fn task_of(vm: &BoundVm) -> String {
    match vm.found().map(|vm| &vm.host) {
        Some(HostState::Entering { task, .. }) => task.to_string(),
        Some(_) | None => String::new(),
    }
}

fn not_recorded(phase: &str, message: &str, attempts: u32) -> Told {
    let attempts = match attempts {
        0 | 1 => String::new(),
        many => format!(" in {many} attempts"),
    };
    let sentence = format!("Could not write {phase} to the Node{attempts}: {message}");
    // The sentence contains the growing pause before the next attempt.
    Told::new(Reason::NodeWriteFailed, sentence, phase)
}

fn forecast(placement: &PlacementForecast) -> Told {
    let reason = match placement {
        PlacementForecast::Drs | PlacementForecast::Host(_) | PlacementForecast::OneOf(_) => {
            Reason::PlacementExpected
        }
        PlacementForecast::Home { .. } => Reason::NoOtherHostExpected,
    };
    Told::once(reason, format!("After the drain: {placement}"))
}

impl Told {
    /// With `detail` as what distinguishes it from others of its reason.
    fn new(reason: Reason, sentence: String, detail: &str) -> Self {
        Self {
            reason,
            sentence,
            names_trace: false,
            key: format!("{} {detail}", reason.name()),
        }
    }

    /// Another sentence says something else.
    fn once(reason: Reason, sentence: String) -> Self {
        let key = format!("{} {sentence}", reason.name());
        Self {
            reason,
            sentence,
            names_trace: false,
            key,
        }
    }

    fn with_trace(self) -> Self {
        Self {
            names_trace: true,
            ..self
        }
    }
}
