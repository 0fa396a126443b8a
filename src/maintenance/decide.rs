//! What to do next for one node. Pure: the same record, the same facts, the same hour give the same answer.
//!
//! One function per phase, in the order of an episode: here what comes before the cordon, in [`adopt`] the episodes of
//! the Python controller, in [`drain`] the way down, in [`away`] what happens while the VM is off, in [`back`] the way
//! back. A phase function looks at a [`Scene`] and gives a [`Step`]; [`decide`] turns it into a [`Decision`] and knows
//! about parking, so that no phase has to.

mod adopt;
mod away;
mod back;
mod drain;
mod scene;

use std::sync::Arc;

use jiff::Timestamp;

use super::effect::Effect;
use super::episode::{Cordon, Ended, Episode, HostMark, Phase, Record, Trigger};
use super::observed::{
    Admission, CordonedBy, Hearing, HostState, Lead, NodeSeen, Observed, PowerSeen, VmFacts, VmSeen, Wishes,
};
use super::policy::Policy;
use super::request::{Action, Call, Request, RequestMark};
use super::waiting::{ParkReason, WaitingOn};
use crate::ids::EpisodeId;
use scene::{Scene, Step};

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Write this to the Node, then look again. An effect never comes with a change of record: it is decided from the
    /// record that stands on the Node, so it cannot run before the record does.
    Record(Box<Transition>),
    /// Do this, and look again when a fact changes or at `recheck`.
    Act {
        /// What to do.
        effect: Effect,
        /// What the node waits for meanwhile.
        waiting_on: WaitingOn,
        /// When to look again at the latest.
        recheck: Option<Timestamp>,
    },
    /// Do nothing, and look again when a fact changes or at `recheck`.
    Wait {
        /// What the node waits for.
        waiting_on: WaitingOn,
        /// When to look again at the latest.
        recheck: Option<Timestamp>,
    },
    /// The node is in service and nothing asks for anything.
    Rest,
}

/// A change of the record: one PATCH.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// What is to stand on the Node.
    pub record: Record,
    /// What `spec.unschedulable` is to become in the same PATCH; `None` leaves it.
    pub unschedulable: Option<bool>,
    /// How the episode ended, when it does.
    pub ended: Option<Ended>,
    /// The request that is fulfilled with its end, so that it is never gone about again.
    pub fulfilled: Option<RequestMark>,
}

impl Transition {
    /// Whether it only says that another leader goes on with the episode.
    pub fn is_takeover(&self, before: &Record) -> bool {
        match (before, &self.record) {
            (Record::Episode(before), Record::Episode(after)) => {
                before.epoch != after.epoch
                    && (&before.id, &before.phase, before.since, before.recordoned)
                        == (&after.id, &after.phase, after.since, after.recordoned)
            }
            (Record::InService | Record::Episode(_) | Record::Python(_) | Record::Unreadable { .. }, _) => {
                false
            }
        }
    }
}

/// Decides what to do next for one node.
///
/// The first thing that a leader does with an open episode is to put its epoch on it. From that write on, what a
/// predecessor still means to record is refused, because it was decided on an older Node; so at most one effect of it
/// for each node can be under way, and no effect of ours begins before that one has arrived.
pub fn decide(record: &Record, seen: &Observed, policy: &Policy, now: Timestamp) -> Decision {
    match &seen.hearing {
        Hearing::Both => {}
        Hearing::NoVcenter { why } => return wait(WaitingOn::Vcenter { why: why.clone() }),
        Hearing::NoKubernetes { why } => return wait(WaitingOn::Kubernetes { why: why.clone() }),
    }
    let decision = match (record, &seen.node) {
        (Record::Unreadable { why }, _) => wait(WaitingOn::Parked(ParkReason::UnreadableRecord {
            why: why.clone(),
        })),
        (Record::InService, None) => Decision::Rest,
        (Record::InService, Some(node)) => in_service(node, seen, policy, now),
        (Record::Episode(episode), None) => without_node(episode, seen, policy, now),
        (Record::Python(_), None) => wait(WaitingOn::NodeObject),
        (Record::Episode(_) | Record::Python(_), Some(node)) if node.wishes.skip => wait(WaitingOn::Skip),
        (Record::Python(python), Some(node)) => adopt::adopt(python, node, seen),
        (Record::Episode(episode), Some(node)) if episode.node_uid != node.uid => {
            onto_another_node(episode, node, seen, now)
        }
        (Record::Episode(episode), Some(_)) if is_anothers(episode, seen.lead) => write(Episode {
            epoch: seen.lead.epoch,
            ..(**episode).clone()
        }),
        (Record::Episode(episode), Some(node)) => in_episode(episode, node, seen, policy, now),
    };
    unless_quarantined(decision, seen.lead, now)
}

/// Whether another leader wrote the record last. The epoch goes down where a Lease was deleted and made anew, so it is
/// compared for being another one, not for being older.
fn is_anothers(episode: &Episode, lead: Lead) -> bool {
    lead.epoch != 0 && lead.epoch != episode.epoch
}

/// Holds effects back that would begin too soon after a takeover. What only reads may begin.
fn unless_quarantined(decision: Decision, lead: Lead, now: Timestamp) -> Decision {
    match decision {
        Decision::Act { effect, .. } if now < lead.acts_from && effect.changes_something() => {
            let until = lead.acts_from;
            Decision::Wait {
                waiting_on: WaitingOn::Takeover { until },
                recheck: Some(until),
            }
        }
        Decision::Record(_) | Decision::Act { .. } | Decision::Wait { .. } | Decision::Rest => decision,
    }
}

/// The Node object was deleted in mid-episode. While its VM is off nobody else brings it back, and the kubelet registers
/// the Node again only once it runs: so the episode goes on by its copy. A running VM's kubelet is waited for.
fn without_node(episode: &Episode, seen: &Observed, policy: &Policy, now: Timestamp) -> Decision {
    let off = match &seen.vm {
        VmSeen::Found(vm) => vm.power == PowerSeen::Off,
        VmSeen::NotLookedUp | VmSeen::Missing | VmSeen::Ambiguous(_) | VmSeen::Shared(_) => false,
    };
    let comes_on = match episode.phase.at_work() {
        Phase::Relocating { .. } | Phase::AwaitingHost | Phase::PoweringOn { .. } => true,
        Phase::Queued
        | Phase::Draining
        | Phase::Drained
        | Phase::ShuttingDown(_)
        | Phase::Rejoining
        | Phase::Parked { .. } => false,
    };
    if !seen.has_copy || !(off || comes_on) {
        return wait(WaitingOn::NodeObject);
    }
    if is_anothers(episode, seen.lead) {
        return write(Episode {
            epoch: seen.lead.epoch,
            ..episode.clone()
        });
    }
    // A Node that is gone says nothing: it is not Ready, and nothing is scheduled there.
    let nobody = NodeSeen {
        uid: episode.node_uid.clone(),
        resource_version: 0,
        unschedulable: true,
        cordoned_by: CordonedBy::Unknown,
        keep_cordoned: false,
        wishes: Wishes::default(),
        ready: false,
        heartbeat: None,
        boot_id: None,
        gpus: Arc::default(),
    };
    in_episode(episode, &nobody, seen, policy, now)
}

/// The Node was deleted and registered again. If it is the same machine, the episode goes on with it: cordoned in the
/// same write, and drained anew if its power is still to be cut.
fn onto_another_node(episode: &Episode, node: &NodeSeen, seen: &Observed, now: Timestamp) -> Decision {
    let vm = match &seen.vm {
        VmSeen::NotLookedUp => return wait(WaitingOn::VmLookup),
        VmSeen::Found(vm) if vm.uuid.is_some() && vm.uuid == episode.vm_uuid => vm,
        VmSeen::Found(_) | VmSeen::Missing | VmSeen::Ambiguous(_) | VmSeen::Shared(_) => {
            return wait(WaitingOn::Parked(ParkReason::AnotherNode));
        }
    };
    let phase = match episode.phase.at_work() {
        Phase::Drained | Phase::ShuttingDown(_) if vm.power == PowerSeen::On => Phase::Draining,
        Phase::Queued
        | Phase::Draining
        | Phase::Drained
        | Phase::ShuttingDown(_)
        | Phase::Relocating { .. }
        | Phase::AwaitingHost
        | Phase::PoweringOn { .. }
        | Phase::Rejoining
        | Phase::Parked { .. } => episode.phase.at_work().clone(),
    };
    let queued = phase == Phase::Queued;
    let here = Episode {
        node_uid: node.uid.clone(),
        cordon: Cordon::NotYet,
        ..episode.enter(phase, now)
    };
    Decision::Record(Box::new(if queued { go(here) } else { cordoned(here, node) }))
}

fn wait(waiting_on: WaitingOn) -> Decision {
    Decision::Wait {
        waiting_on,
        recheck: None,
    }
}

fn in_service(node: &NodeSeen, seen: &Observed, policy: &Policy, now: Timestamp) -> Decision {
    let vm = match &seen.vm {
        VmSeen::NotLookedUp => return wait(WaitingOn::VmLookup),
        VmSeen::Missing => return wait(WaitingOn::Parked(ParkReason::VmMissing)),
        VmSeen::Ambiguous(vms) => {
            return wait(WaitingOn::Parked(ParkReason::VmAmbiguous { count: vms.len() }));
        }
        VmSeen::Shared(nodes) => {
            return wait(WaitingOn::Parked(ParkReason::VmShared { nodes: nodes.clone() }));
        }
        VmSeen::Found(vm) => vm,
    };
    let request = seen.request.as_ref();
    if let Some(ended) = &seen.stray_of
        && vm.power == PowerSeen::Off
        && request.is_none()
        && !node.wishes.skip
    {
        return make_up_for(ended, node, vm, seen.lead, now);
    }
    match Call::of(&vm.host, request) {
        Call::Nothing => return Decision::Rest,
        Call::Unclear if request.is_none() => return Decision::Rest,
        Call::Unclear => return wait(not_visible(vm)),
        Call::Down | Call::Drained(_) => {}
    }
    if node.wishes.skip {
        return wait(WaitingOn::Skip);
    }
    match (vm.power, request) {
        (PowerSeen::On, _) => {}
        // A VM that is off without an episode was powered off by somebody who knows why; it does not hold its host up.
        (_, None) => return Decision::Rest,
        (PowerSeen::Unknown, Some(_)) => return wait(WaitingOn::PowerState),
        (PowerSeen::Off | PowerSeen::Suspended, Some(request)) => {
            let request = request.mark.clone();
            return wait(WaitingOn::PoweredOn { request });
        }
    }
    if let Some(request) = request
        && !vm.host.is_leaving()
        && request.is_met_on(&vm.on_name)
    {
        return wait(WaitingOn::AlreadyThere {
            request: request.mark.clone(),
            host: vm.on_name.clone(),
        });
    }
    let queued = begin(node, vm, request, seen.lead, now);
    let may_drain = !is_to_be_placed_first(&vm.host, request)
        && seen.admission == Admission::Granted
        && is_approved(node, policy.require_approval);
    Decision::Record(Box::new(if may_drain {
        start_draining(&queued, node, now)
    } else {
        go(queued)
    }))
}

/// Whether a VM is to be moved for no other reason than that a person asks for it: then there is to be a place for it
/// before anything is done to its node. One whose host leaves has to go in any case.
fn is_to_be_placed_first(host: &HostState, request: Option<&Request>) -> bool {
    let is_asked = request.is_some_and(|request| matches!(request.action, Action::Relocate { .. }));
    is_asked && !host.is_leaving()
}

fn is_approved(node: &NodeSeen, require_approval: bool) -> bool {
    node.wishes.approved || !require_approval
}

/// Since when a node wants a place under the limits, if it does: what [`decide`] makes of it when it is granted one.
pub fn wants_place(
    record: &Record,
    node: &NodeSeen,
    vm: &VmFacts,
    request: Option<&Request>,
    require_approval: bool,
) -> Option<Timestamp> {
    let called = Call::of(&vm.host, request).is_out_of_service();
    if vm.power != PowerSeen::On || !called || node.wishes.skip || !is_approved(node, require_approval) {
        return None;
    }
    let asked = || asked_at(&vm.host, request);
    match record {
        Record::InService => {
            let met = request.is_some_and(|request| request.is_met_on(&vm.on_name));
            (vm.host.is_leaving() || !met).then(asked)
        }
        Record::Episode(episode) => match episode.phase.at_work() {
            Phase::Queued => Some(episode.trigger.clicked_at),
            Phase::Drained => (Call::of(&vm.host, request) == Call::Down).then(asked),
            Phase::Rejoining => back::is_to_leave_again(episode, vm, request).then(asked),
            Phase::Draining
            | Phase::ShuttingDown(_)
            | Phase::Relocating { .. }
            | Phase::AwaitingHost
            | Phase::PoweringOn { .. }
            | Phase::Parked { .. } => None,
        },
        Record::Python(_) | Record::Unreadable { .. } => None,
    }
}

/// When a node was called out of service. A host that is in maintenance already was asked for earlier than anybody can
/// tell, and none of its VMs can run: it comes last.
fn asked_at(host: &HostState, request: Option<&Request>) -> Timestamp {
    match host {
        HostState::Entering { clicked_at, .. } => *clicked_at,
        HostState::Unknown
        | HostState::Unreachable
        | HostState::InMaintenance
        | HostState::Quarantined
        | HostState::InService => request.map_or(Timestamp::MAX, |request| request.asked_at),
    }
}

/// A new episode of a node that is called out of service, with all that has to be known of the time before it.
fn begin(node: &NodeSeen, vm: &VmFacts, request: Option<&Request>, lead: Lead, now: Timestamp) -> Episode {
    let trigger = match (&vm.host, request) {
        (
            HostState::Entering {
                task,
                clicked_at,
                user,
                detection,
            },
            _,
        ) => Trigger {
            task: Some(task.clone()),
            clicked_at: *clicked_at,
            user: user.clone(),
            detection: Some(*detection),
            request: None,
            stray_of: None,
        },
        (_, request) => Trigger {
            task: None,
            clicked_at: request.map_or(now, |request| request.asked_at),
            user: None,
            detection: None,
            request: request.map(|request| request.mark.clone()),
            stray_of: None,
        },
    };
    begun(node, vm, trigger, lead, now)
}

/// The VM went off by a power-off of ours that arrived after its episode had ended. Nobody else knows of it, so it is
/// brought back as from any maintenance: on another boot, with its GPUs.
fn make_up_for(ended: &EpisodeId, node: &NodeSeen, vm: &VmFacts, lead: Lead, now: Timestamp) -> Decision {
    let trigger = Trigger {
        task: None,
        clicked_at: now,
        user: None,
        detection: None,
        request: None,
        stray_of: Some(ended.clone()),
    };
    let episode = Episode {
        powered_off: true,
        phase: Phase::AwaitingHost,
        ..begun(node, vm, trigger, lead, now)
    };
    Decision::Record(Box::new(cordoned(episode, node)))
}

fn begun(node: &NodeSeen, vm: &VmFacts, trigger: Trigger, lead: Lead, now: Timestamp) -> Episode {
    let (id, traceparent) = Episode::name(&node.uid, &trigger, now);
    Episode {
        id,
        traceparent,
        trigger,
        node_uid: node.uid.clone(),
        vm_uuid: vm.uuid,
        host: stands_on(vm),
        begun_at: now,
        cordon: Cordon::NotYet,
        recordoned: 0,
        boot_before: node.boot_id.clone(),
        gpus_before: node.gpus.clone(),
        powered_off: false,
        moved_to: None,
        gave_up: None,
        left_behind: Vec::new(),
        epoch: lead.epoch,
        trail: Default::default(),
        phase: Phase::Queued,
        since: now,
    }
}

fn not_visible(vm: &VmFacts) -> WaitingOn {
    WaitingOn::HostVisible {
        host: vm.on_name.clone(),
        state: vm.host.words(),
    }
}

fn stands_on(vm: &VmFacts) -> HostMark {
    HostMark {
        moref: vm.on.clone(),
        name: vm.on_name.as_str().into(),
    }
}

/// Cordons and begins to drain, in one write.
fn start_draining(episode: &Episode, node: &NodeSeen, now: Timestamp) -> Transition {
    cordoned(
        Episode {
            recordoned: 0,
            ..episode.enter(Phase::Draining, now)
        },
        node,
    )
}

/// Writes `episode`, and cordons the Node in the same PATCH unless it is cordoned already.
fn cordoned(mut episode: Episode, node: &NodeSeen) -> Transition {
    episode.cordon = match (&episode.cordon, node.unschedulable) {
        (Cordon::NotYet, true) => Cordon::Theirs,
        (standing, true) => standing.clone(),
        (_, false) => Cordon::Ours,
    };
    Transition {
        record: Record::Episode(Arc::new(episode)),
        unschedulable: (!node.unschedulable).then_some(true),
        ended: None,
        fulfilled: None,
    }
}

fn in_episode(
    episode: &Episode,
    node: &NodeSeen,
    seen: &Observed,
    policy: &Policy,
    now: Timestamp,
) -> Decision {
    let Phase::Parked {
        reason,
        resume,
        resume_since,
    } = &episode.phase
    else {
        return match step(episode, node, seen, policy, now) {
            Step::Go(transition) => Decision::Record(Box::new(transition)),
            Step::Do {
                effect,
                waiting_on,
                recheck,
            } => Decision::Act {
                effect,
                waiting_on,
                recheck,
            },
            Step::Wait { waiting_on, recheck } => Decision::Wait { waiting_on, recheck },
            Step::Park { reason, .. } => write(park(episode, reason, now)),
        };
    };
    // A parked episode is asked what it would do if it were not: when it would be parked again, it stays.
    let resumed = Episode {
        phase: (**resume).clone(),
        since: *resume_since,
        ..episode.clone()
    };
    match step(&resumed, node, seen, policy, now) {
        Step::Go(transition) => Decision::Record(Box::new(transition)),
        Step::Park {
            reason: again,
            effect,
            recheck,
        } if same_kind(&again, reason) => {
            let waiting_on = WaitingOn::Parked(again);
            match effect {
                Some(effect) => Decision::Act {
                    effect,
                    waiting_on,
                    recheck,
                },
                None => Decision::Wait { waiting_on, recheck },
            }
        }
        Step::Park { reason: other, .. } => write(park(&resumed, other, now)),
        // Its clock starts anew: what it waited for was not the phase's own work, and a drain that was parked for an
        // hour has had no hour to drain.
        Step::Do { .. } | Step::Wait { .. } => write(resumed.enter((**resume).clone(), now)),
    }
}

/// Whether two reasons differ at most in their details. A detail that changes is told, but costs no write.
fn same_kind(a: &ParkReason, b: &ParkReason) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

fn write(episode: Episode) -> Decision {
    Decision::Record(Box::new(go(episode)))
}

fn park(episode: &Episode, reason: ParkReason, now: Timestamp) -> Episode {
    let resume = Box::new(episode.phase.clone());
    episode.enter(
        Phase::Parked {
            reason,
            resume,
            resume_since: episode.since,
        },
        now,
    )
}

/// A transition that leaves `spec.unschedulable` as it is.
fn go(episode: Episode) -> Transition {
    Transition {
        record: Record::Episode(Arc::new(episode)),
        unschedulable: None,
        ended: None,
        fulfilled: None,
    }
}

fn step(episode: &Episode, node: &NodeSeen, seen: &Observed, policy: &Policy, now: Timestamp) -> Step {
    let parked = |reason| Step::Park {
        reason,
        effect: None,
        recheck: None,
    };
    let vm = match &seen.vm {
        VmSeen::NotLookedUp => {
            return Step::Wait {
                waiting_on: WaitingOn::VmLookup,
                recheck: None,
            };
        }
        VmSeen::Missing => return parked(ParkReason::VmMissing),
        VmSeen::Ambiguous(vms) => return parked(ParkReason::VmAmbiguous { count: vms.len() }),
        VmSeen::Shared(nodes) => return parked(ParkReason::VmShared { nodes: nodes.clone() }),
        VmSeen::Found(vm) => vm,
    };
    let on = match vm.power {
        PowerSeen::Unknown => {
            return Step::Wait {
                waiting_on: WaitingOn::PowerState,
                recheck: None,
            };
        }
        PowerSeen::Suspended => return parked(ParkReason::VmSuspended),
        PowerSeen::On => true,
        PowerSeen::Off => false,
    };
    let scene = Scene {
        episode,
        node,
        vm,
        seen,
        policy,
        now,
    };
    match &episode.phase {
        Phase::Queued if on => scene.queued(),
        Phase::Draining if on => scene.draining(),
        Phase::Drained if on => scene.drained(),
        Phase::ShuttingDown(end) if on => scene.shutting_down(end),
        Phase::Drained => scene.drained_and_off(),
        Phase::Queued | Phase::Draining | Phase::ShuttingDown(_) => scene.went_off(),
        Phase::Relocating { .. } | Phase::AwaitingHost if on => scene.found_running(),
        Phase::Relocating { to } => scene.relocating(to),
        Phase::AwaitingHost => scene.awaiting_host(),
        Phase::PoweringOn { .. } if on => scene.found_running(),
        Phase::PoweringOn { by_drs } => scene.powering_on(*by_drs),
        Phase::Rejoining if on => scene.rejoining(),
        Phase::Rejoining => scene.went_off(),
        // A parked phase resumes a phase that is at work, never a parked one; a record that says otherwise was not
        // written by us.
        Phase::Parked { .. } => parked(ParkReason::UnreadableRecord {
            why: "a parked phase that resumes a parked phase".to_owned(),
        }),
    }
}

impl Scene<'_> {
    /// Queued, VM on: wait for approval and a place, or for whatever called to be called off.
    fn queued(self) -> Step {
        match self.call() {
            Call::Nothing => return self.end(None),
            Call::Unclear => return self.host_not_visible(),
            Call::Down | Call::Drained(_) => {}
        }
        if let Some(step) = self.given_up() {
            return step;
        }
        if !is_approved(self.node, self.policy.require_approval) {
            return Step::Wait {
                waiting_on: WaitingOn::Approval,
                recheck: None,
            };
        }
        if self.seen.admission == Admission::Granted
            && let Some(step) = self.place_first()
        {
            return step;
        }
        self.drain_in_turn(self.episode.clone())
    }

    /// Begins to drain once there is a place.
    fn drain_in_turn(self, episode: Episode) -> Step {
        match &self.seen.admission {
            Admission::Granted => Step::Go(start_draining(&episode, self.node, self.now)),
            Admission::Behind { ahead, limit } => Step::Wait {
                waiting_on: WaitingOn::Slot {
                    ahead: ahead.clone(),
                    limit: *limit,
                },
                recheck: None,
            },
        }
    }

    /// The end of the episode. The Node is uncordoned if the cordon is ours and no person has made it theirs since.
    fn end(self, fulfilled: Option<RequestMark>) -> Step {
        let person = match (&self.episode.cordon, &self.node.cordoned_by) {
            (Cordon::Ours, CordonedBy::Other(_)) => true,
            (Cordon::Adopted(manager), CordonedBy::Other(by)) => manager.as_ref() != Some(by),
            (Cordon::Ours | Cordon::Adopted(_) | Cordon::NotYet | Cordon::Theirs, _) => false,
        };
        let uncordon = self.episode.cordon_is_ours() && !person && !self.node.keep_cordoned;
        Step::Go(Transition {
            record: Record::InService,
            unschedulable: (uncordon && self.node.unschedulable).then_some(false),
            ended: Some(if self.episode.gave_up.is_some() {
                Ended::Failed
            } else if self.episode.powered_off || *self.episode.phase.at_work() == Phase::Drained {
                Ended::Succeeded
            } else {
                Ended::Cancelled
            }),
            fulfilled,
        })
    }
}
