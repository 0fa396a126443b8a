//! What the page knows: how each node and host stands, and the story of each node's latest episode as this process saw it.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;

use super::view::{Leadership, Span, State, Step};
use crate::actor::tell::Told;
use crate::ids::{EpisodeId, HostRef, NodeName};
use crate::maintenance::decide::Transition;
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::{Ended, Episode, Phase, Record};
use crate::maintenance::observed::{Admission, Hearing, HostState, Pictures, PodLeft, Sight, VmSeen, Wishes};
use crate::maintenance::request::Request;
use crate::maintenance::waiting::WaitingOn;

/// How many phases, and how many waits, of one episode are kept: enough for one that goes back and forth for a day.
const SPANS: usize = 64;

/// How many steps of one episode are kept, the latest: what a person reads, not a log.
const STEPS: usize = 40;

/// How many changes of one host's state are kept.
const HOST_CHANGES: usize = 16;

/// Everything that is known.
#[derive(Debug)]
pub(super) struct Known {
    /// Why vCenter is not heard.
    pub(super) vcenter: Option<String>,
    /// Why Kubernetes is not heard.
    pub(super) kubernetes: Option<String>,
    pub(super) leadership: Leadership,
    pub(super) nodes: BTreeMap<NodeName, OfNode>,
    pub(super) hosts: BTreeMap<HostRef, OfHost>,
}

/// What is known of one node.
#[derive(Debug, Default)]
pub(super) struct OfNode {
    /// `None` until it has been looked at.
    pub(super) standing: Option<Standing>,
    pub(super) waits: Option<Wait>,
    pub(super) story: Option<Story>,
}

/// What of a node's sight is shown. Whatever else changes in it, as a heartbeat does, changes nothing here.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Standing {
    pub(super) record: Record,
    pub(super) node: Option<Marks>,
    pub(super) vm: VmSeen,
    pub(super) request: Option<Request>,
    pub(super) pods: Option<Vec<PodLeft>>,
    pub(super) admission: Admission,
    /// In service, and asks for nothing.
    is_at_rest: bool,
}

/// What of the Node object is shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Marks {
    pub(super) is_cordoned: bool,
    pub(super) is_ready: bool,
    pub(super) wishes: Wishes,
}

/// What a node waits for.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub(super) on: WaitingOn,
    pub(super) since: Timestamp,
}

/// One episode, as it was seen.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) episode: Box<Episode>,
    pub(super) phases: Vec<Span>,
    pub(super) waits: Vec<Span>,
    pub(super) steps: VecDeque<Step>,
    pub(super) ended: Option<(Ended, Timestamp)>,
    /// When it was seen to be gone from its node. Unless its end is told as well, nobody saw how it ended.
    pub(super) gone_at: Option<Timestamp>,
}

/// What is known of one host.
#[derive(Debug)]
pub(super) struct OfHost {
    pub(super) name: String,
    pub(super) state: HostState,
    /// Its states, each with the time from which it was seen.
    pub(super) past: VecDeque<(Timestamp, State)>,
}

impl Default for Known {
    fn default() -> Self {
        let unheard = |who: &str| Some(format!("{who} has not told its complete set yet"));
        Self {
            vcenter: unheard("vCenter"),
            kubernetes: unheard("Kubernetes"),
            leadership: Leadership::Leads,
            nodes: BTreeMap::new(),
            hosts: BTreeMap::new(),
        }
    }
}

/// Whether `place` had to be changed to hold `value`.
pub(super) fn set<T: PartialEq>(place: &mut T, value: T) -> bool {
    let is_changed = *place != value;
    *place = value;
    is_changed
}

impl Known {
    /// Whether this replica acts, and so follows vCenter.
    pub(super) fn leads(&self) -> bool {
        self.leadership == Leadership::Leads
    }

    /// Takes how nodes stand; gives whether that shows.
    pub(super) fn show(&mut self, pictures: &Pictures, now: Timestamp) -> bool {
        let before = self.nodes.len();
        self.nodes.retain(|name, _| pictures.keeps(name));
        let mut is_changed = before != self.nodes.len();
        for (name, sight) in &pictures.sights {
            let of_node = self.nodes.entry(name.clone()).or_default();
            let standing = Standing::of(sight);
            if of_node.standing.as_ref() == Some(&standing) {
                continue;
            }
            is_changed = true;
            if standing.is_at_rest {
                of_node.waits = None;
            }
            let before = of_node.standing.replace(standing.clone());
            if let Some(episode) = standing.record.episode() {
                of_node.follow(episode);
            }
            of_node.misses(before.as_ref(), &standing, now);
        }
        is_changed
    }

    /// Takes the state of all hosts that are to be shown; gives whether that shows.
    pub(super) fn show_hosts(
        &mut self,
        hosts: BTreeMap<HostRef, (String, HostState)>,
        now: Timestamp,
    ) -> bool {
        let before = self.hosts.len();
        self.hosts.retain(|moref, _| hosts.contains_key(moref));
        let mut is_changed = before != self.hosts.len();
        for (moref, (name, state)) in &hosts {
            self.hosts.entry(moref.clone()).or_insert_with(|| {
                is_changed = true;
                OfHost {
                    name: name.clone(),
                    state: state.clone(),
                    past: VecDeque::new(),
                }
            });
        }
        self.show_changes(hosts, now) || is_changed
    }

    /// Takes the state of some hosts; those that are not to be shown are passed over. Gives whether that shows.
    pub(super) fn show_changes(
        &mut self,
        hosts: BTreeMap<HostRef, (String, HostState)>,
        now: Timestamp,
    ) -> bool {
        let mut is_changed = false;
        for (moref, (name, state)) in hosts {
            let Some(host) = self.hosts.get_mut(&moref) else {
                continue;
            };
            is_changed |= set(&mut host.name, name);
            let shown = State::of_host(&state);
            is_changed |= set(&mut host.state, state);
            if host.past.back().is_none_or(|(_, last)| *last != shown) {
                if host.past.len() == HOST_CHANGES {
                    host.past.pop_front();
                }
                host.past.push_back((now, shown));
            }
        }
        is_changed
    }

    /// Takes what an actor tells of its node; gives whether that shows.
    pub(super) fn told(&mut self, node: &NodeName, told: Told<'_>, now: Timestamp) -> bool {
        let of_node = self.nodes.entry(node.clone()).or_default();
        match told {
            Told::Recorded {
                before,
                transition,
                wrote: (_, at),
                ..
            } => of_node.recorded(before, transition, at),
            Told::NotRecorded { transition, said, .. } => {
                let phase = transition.record.phase_name();
                of_node.step(now, format!("could not record {phase} on the Node: {said}"))
            }
            Told::Asks { effect, .. } => match effect.kind() {
                // They come again and again, and change little each.
                EffectKind::DrainRound | EffectKind::Survey => false,
                kind @ (EffectKind::ShutdownGuest
                | EffectKind::PowerOff
                | EffectKind::Relocate
                | EffectKind::PowerOn) => of_node.step(now, format!("asks to {}", kind.words())),
            },
            Told::Waits { on, .. } => of_node.waits_for(on, now),
        }
    }
}

impl OfNode {
    fn recorded(&mut self, before: &Record, transition: &Transition, at: Timestamp) -> bool {
        if transition.is_bookkeeping(before) {
            return false;
        }
        self.waits = None;
        if let Some(episode) = transition.record.episode().or(before.episode()) {
            self.follow(episode);
        }
        if let Some(story) = &mut self.story {
            close(&mut story.waits, at);
            if let Some(ended) = transition.ended {
                close(&mut story.phases, at);
                story.ended = Some((ended, at));
            }
        }
        let cordon = match transition.unschedulable {
            Some(true) => ", cordoned",
            Some(false) => ", uncordoned",
            None => "",
        };
        let whereto = transition.record.phase().map(Phase::whereto).unwrap_or_default();
        self.step(
            at,
            format!(
                "{} \u{2192} {}{whereto}{cordon}",
                before.phase_name(),
                transition.record.phase_name()
            ),
        );
        true
    }

    fn waits_for(&mut self, on: &WaitingOn, now: Timestamp) -> bool {
        let standing = self.waits.as_ref().filter(|wait| wait.on.kind() == on.kind());
        let is_same = standing.is_some();
        let since = standing.map_or(now, |wait| wait.since);
        self.waits = Some(Wait {
            on: on.clone(),
            since,
        });
        if let Some(story) = self.story.as_mut().filter(|story| story.ended.is_none()) {
            if !is_same {
                close(&mut story.waits, now);
                push(&mut story.waits, State::Waiting, on.kind(), now);
            }
            self.step(now, format!("waits for {on}"));
        }
        true
    }

    /// Notes where the episode that stood there before is gone.
    fn misses(&mut self, before: Option<&Standing>, standing: &Standing, now: Timestamp) {
        let Some(story) = &mut self.story else { return };
        let has_it = |standing: &Standing| standing.record.episode().is_some_and(|it| story.is(&it.id));
        if before.is_some_and(has_it) && !has_it(standing) {
            story.gone_at = Some(now);
        }
    }

    /// Takes where an episode stands.
    fn follow(&mut self, episode: &Episode) {
        let is_its = |story: &Story| story.episode.id == episode.id;
        if !self.story.as_ref().is_some_and(is_its) {
            self.story = Some(Story {
                episode: Box::new(episode.clone()),
                phases: Vec::new(),
                waits: Vec::new(),
                steps: VecDeque::new(),
                ended: None,
                gone_at: None,
            });
        }
        let Some(story) = &mut self.story else { return };
        // What is seen of a Node may be older than what was told of it.
        if story.ended.is_some() || story.episode.since > episode.since {
            return;
        }
        *story.episode = episode.clone();
        let name = episode.phase.name();
        if story.phases.last().is_none_or(|last| last.label != name) {
            close(&mut story.phases, episode.since);
            push(
                &mut story.phases,
                State::of_phase(&episode.phase),
                name,
                episode.since,
            );
        }
    }

    fn step(&mut self, at: Timestamp, text: String) -> bool {
        let Some(story) = &mut self.story else {
            return false;
        };
        if story.steps.len() == STEPS {
            story.steps.pop_front();
        }
        story.steps.push_back(Step { at, text });
        true
    }
}

fn push(spans: &mut Vec<Span>, state: State, label: &str, from: Timestamp) {
    if spans.len() < SPANS {
        spans.push(Span {
            state,
            label: label.to_owned(),
            from,
            to: None,
        });
    }
}

fn close(spans: &mut [Span], at: Timestamp) {
    if let Some(last) = spans.last_mut() {
        last.to.get_or_insert(at);
    }
}

impl Standing {
    fn of(sight: &Sight) -> Self {
        let Sight { record, seen } = sight;
        let is_found = matches!(seen.vm, VmSeen::Found(_));
        let is_draining = record
            .phase()
            .is_some_and(|phase| matches!(phase.at_work(), Phase::Draining | Phase::Drained));
        let pods = seen.drain.as_ref().filter(|_| is_draining);
        Self {
            record: record.clone(),
            node: seen.node.as_ref().map(|node| Marks {
                is_cordoned: node.unschedulable,
                is_ready: node.ready,
                wishes: node.wishes,
            }),
            vm: seen.vm.clone(),
            request: seen.request.clone(),
            pods: pods.map(|report| report.left.clone()),
            admission: seen.admission.clone(),
            is_at_rest: *record == Record::InService
                && seen.hearing == Hearing::Both
                && is_found
                && seen.request.is_none(),
        }
    }

    /// The name of its phase.
    pub(super) fn phase(&self) -> &'static str {
        self.record.phase_name()
    }

    /// Since when it is in its phase, where that is written down.
    pub(super) fn since(&self) -> Option<Timestamp> {
        match &self.record {
            Record::Episode(episode) => Some(episode.since),
            Record::Python(python) => Some(python.since),
            Record::InService | Record::Unreadable { .. } => None,
        }
    }
}

impl Story {
    /// Whether it is the one of this id.
    pub(super) fn is(&self, id: &EpisodeId) -> bool {
        self.episode.id == *id
    }
}
