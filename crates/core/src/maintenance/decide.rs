//! What to do next for one node. Pure: the same record, the same facts, the same moment give the same answer.
//!
//! One function per phase, in the order of an episode: in [`begin`] what comes before the cordon, in [`adopt`] the episodes of
//! the Python controller, in [`drain`] the way down, in [`away`] what happens while the VM is off, in [`back`] the way
//! back, in [`gone`] what happens to the episode of a Node that was deleted. A phase function looks at a [`Scene`] and gives a
//! [`Step`]; [`decide`] turns it into a [`Decision`] and knows about parking, so that no phase has to.

mod adopt;
mod away;
mod back;
mod begin;
mod checkpoint;
mod context;
mod drain;
mod gone;
mod power_on;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::clock::{Elapsed, Monotonic, Now};
use super::effect::Effect;
use super::episode::{CordonOwner, Episode, EpisodeResult, HostIdentity, Phase, Record};
use super::observed::{
    Admission, BoundVm, CordonedBy, HostState, LeadershipTerm, Observed, ObservedNode, ObservedPower,
    ObservedVm, SourceState,
};
use super::policy::Policy;
use super::request::{DesiredState, Request, RequestAction, RequestIdentity};
use super::waiting::{ParkReason, WaitingOn};
pub use begin::wants_place;
use checkpoint::checkpoint;
use context::{PhaseContext, PhaseStep};

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
        recheck: Option<Monotonic>,
    },
    /// Do nothing, and look again when a fact changes or at `recheck`.
    Wait {
        /// What the node waits for.
        waiting_on: WaitingOn,
        /// When to look again at the latest.
        recheck: Option<Monotonic>,
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
    pub ended: Option<EpisodeResult>,
    /// The request that is fulfilled with its end, so that it is never gone about again.
    pub fulfilled: Option<RequestIdentity>,
}

impl Transition {
    /// Whether the episode stays in its phase and nothing changes for people: another leader goes on with it, the time that
    /// has elapsed is written down, or something that was requested of vCenter.
    pub fn is_bookkeeping(&self, before: &Record) -> bool {
        match (before, &self.record) {
            (Record::Episode(before), Record::Episode(after)) => {
                self.unschedulable.is_none()
                    && (
                        &before.id,
                        &before.phase,
                        before.since,
                        before.recordoned,
                        &before.gave_up,
                    ) == (
                        &after.id,
                        &after.phase,
                        after.since,
                        after.recordoned,
                        &after.gave_up,
                    )
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
pub fn decide(record: &Record, seen: &Observed, policy: &Policy, now: Now) -> Decision {
    match &seen.hearing {
        SourceState::Both => {}
        SourceState::NoVcenter { why } => return wait(WaitingOn::Vcenter { why: why.clone() }),
        SourceState::NoKubernetes { why } => return wait(WaitingOn::Kubernetes { why: why.clone() }),
    }
    let decision = match (record, &seen.node) {
        (Record::Unreadable { why }, _) => wait(WaitingOn::Parked(ParkReason::UnreadableRecord {
            why: why.clone(),
        })),
        (Record::InService, None) => Decision::Rest,
        (Record::InService, Some(node)) => begin::in_service(node, seen, policy, now),
        (Record::Episode(episode), _) => of_episode(episode, seen, policy, now),
        (Record::Python(_), None) => wait(WaitingOn::NodeObject),
        (Record::Python(_), Some(node)) if node.wishes.skip => wait(WaitingOn::Skip),
        (Record::Python(python), Some(node)) => adopt::adopt(python, node, seen, policy),
    };
    numbered(unless_quarantined(decision, seen.lead, now), record)
}

/// Numbers what is to be written, one higher than what stands there.
fn numbered(mut decision: Decision, before: &Record) -> Decision {
    if let Decision::Record(transition) = &mut decision
        && let Record::Episode(next) = &mut transition.record
    {
        let before = before.episode().map_or(0, |before| before.revision);
        Arc::make_mut(next).revision = before.saturating_add(1);
    }
    decision
}

fn of_episode(episode: &Episode, seen: &Observed, policy: &Policy, now: Now) -> Decision {
    if !policy.releases.has(&episode.release) {
        let release = episode.release.to_string();
        return wait(WaitingOn::OtherRelease { release });
    }
    let aged_by = now.monotonic.since(seen.record_seen.at.monotonic);
    let aged = if aged_by.is_zero() {
        Cow::Borrowed(episode)
    } else {
        Cow::Owned(episode.aged(aged_by))
    };
    let Some(node) = &seen.node else {
        return gone::without_node(&aged, aged_by, seen, policy, now);
    };
    if node.wishes.skip {
        return wait(WaitingOn::Skip);
    }
    if aged.node_uid != node.uid {
        return gone::onto_another_node(&aged, node, seen, policy, now);
    }
    if is_to_be_taken_over(&aged, seen.lead, policy) {
        return take_over(&aged, seen.lead, policy);
    }
    in_episode(&aged, aged_by, node, seen, policy, now)
}

/// Whether another leader, or another release, wrote the record last. Epochs are compared for being others, not for being older:
/// the Lease may have been deleted and made anew.
fn is_to_be_taken_over(episode: &Episode, lead: LeadershipTerm, policy: &Policy) -> bool {
    (lead.epoch != 0 && lead.epoch != episode.epoch) || episode.release != policy.releases.own
}

fn take_over(episode: &Episode, lead: LeadershipTerm, policy: &Policy) -> Decision {
    write(Episode {
        epoch: if lead.epoch == 0 {
            episode.epoch
        } else {
            lead.epoch
        },
        release: policy.releases.own.clone(),
        ..episode.clone()
    })
}

/// Holds effects back that would begin too soon after a takeover. What only reads may begin.
fn unless_quarantined(decision: Decision, lead: LeadershipTerm, now: Now) -> Decision {
    match (decision, lead.acts_from) {
        (Decision::Act { effect, .. }, Some(from))
            if now.monotonic < from.at && effect.changes_something() =>
        {
            Decision::Wait {
                waiting_on: WaitingOn::Takeover { until: from.shown },
                recheck: Some(from.at),
            }
        }
        (decision, _) => decision,
    }
}

fn wait(waiting_on: WaitingOn) -> Decision {
    Decision::Wait {
        waiting_on,
        recheck: None,
    }
}

/// Whether a VM is to be moved for no other reason than that a person asks for it: then there is to be a place for it
/// before anything is done to its node. One whose host leaves has to go in any case.
fn is_to_be_placed_first(host: &HostState, request: Option<&Request>) -> bool {
    let is_asked = request.is_some_and(|request| matches!(request.action, RequestAction::Relocate { .. }));
    is_asked && !host.is_leaving()
}

fn is_approved(node: &ObservedNode, require_approval: bool) -> bool {
    node.wishes.approved || !require_approval
}

fn not_visible(vm: &ObservedVm) -> WaitingOn {
    WaitingOn::HostVisible {
        host: vm.on_name.clone(),
        state: vm.host.words(),
    }
}

fn stands_on(vm: &ObservedVm) -> HostIdentity {
    HostIdentity {
        moref: vm.on.clone(),
        name: vm.on_name.as_str().into(),
    }
}

/// Cordons and begins to drain, in one write. The drain has all its time.
fn start_draining(episode: &Episode, node: &ObservedNode, now: Now) -> Transition {
    cordoned(
        Episode {
            recordoned: 0,
            drained_for: Elapsed::ZERO,
            drained_boot: node.boot_id.clone(),
            ..episode.enter(Phase::Draining, now)
        },
        node,
    )
}

/// Writes `episode`, and cordons the Node in the same PATCH unless it is cordoned already.
fn cordoned(mut episode: Episode, node: &ObservedNode) -> Transition {
    episode.cordon = match (&episode.cordon, node.unschedulable) {
        (_, true) if is_anothers(&episode.cordon, node) => CordonOwner::Theirs,
        (standing, true) => standing.clone(),
        (_, false) => CordonOwner::Ours,
    };
    Transition {
        record: Record::Episode(Arc::new(episode)),
        unschedulable: (!node.unschedulable).then_some(true),
        ended: None,
        fulfilled: None,
    }
}

/// Whether the cordon that stands there is not the one that the episode is to take away: a person has made it theirs since.
fn is_anothers(cordon: &CordonOwner, node: &ObservedNode) -> bool {
    node.unschedulable
        && match (cordon, &node.cordoned_by) {
            (CordonOwner::NotYet, _) | (CordonOwner::Ours, CordonedBy::Other(_)) => true,
            (CordonOwner::Adopted(manager), CordonedBy::Other(by)) => manager.as_ref() != Some(by),
            (CordonOwner::Theirs | CordonOwner::Ours | CordonOwner::Adopted(_), _) => false,
        }
}

fn in_episode(
    episode: &Episode,
    aged_by: Duration,
    node: &ObservedNode,
    seen: &Observed,
    policy: &Policy,
    now: Now,
) -> Decision {
    let scene = |episode, vm| PhaseContext {
        episode,
        aged_by,
        node,
        vm,
        seen,
        policy,
        now,
    };
    let Phase::Parked {
        reason,
        resume,
        resume_since,
    } = &episode.phase
    else {
        return match checkpoint(episode, aged_by, policy, now, step(episode, seen, scene)) {
            PhaseStep::Go(transition) => Decision::Record(Box::new(transition)),
            PhaseStep::Do {
                effect,
                waiting_on,
                recheck,
            } => Decision::Act {
                effect,
                waiting_on,
                recheck,
            },
            PhaseStep::Wait { waiting_on, recheck } => Decision::Wait { waiting_on, recheck },
            PhaseStep::Park { reason, .. } => write(park(episode, reason, now)),
        };
    };
    // A parked episode is asked what it would do if it were not: when it would be parked again, it stays.
    let resumed = Episode {
        phase: (**resume).clone(),
        since: *resume_since,
        ..episode.clone()
    };
    match step(&resumed, seen, scene) {
        PhaseStep::Go(transition) => Decision::Record(Box::new(transition)),
        PhaseStep::Park {
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
        PhaseStep::Park { reason: other, .. } => write(park(&resumed, other, now)),
        // Its clock starts anew: what it waited for was not the phase's own work, and a drain that was parked for an
        // hour has had no hour to drain.
        PhaseStep::Do { .. } | PhaseStep::Wait { .. } => write(Episode {
            drained_for: Elapsed::ZERO,
            ..resumed.enter((**resume).clone(), now)
        }),
    }
}

/// Whether two reasons differ at most in their details. A detail that changes is told, but costs no write.
fn same_kind(a: &ParkReason, b: &ParkReason) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

fn write(episode: Episode) -> Decision {
    Decision::Record(Box::new(go(episode)))
}

/// Parks the episode. What its phase has lasted goes on counting: it is compared with the phase's deadline while it is parked.
fn park(episode: &Episode, reason: ParkReason, now: Now) -> Episode {
    let parked = Phase::Parked {
        reason,
        resume: Box::new(episode.phase.clone()),
        resume_since: episode.since,
    };
    Episode {
        elapsed: episode.elapsed,
        ..episode.enter(parked, now)
    }
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

fn step<'a>(
    episode: &'a Episode,
    seen: &'a Observed,
    scene: impl FnOnce(&'a Episode, &'a ObservedVm) -> PhaseContext<'a>,
) -> PhaseStep {
    let vm = match &seen.vm {
        BoundVm::NotLookedUp => return PhaseStep::wait(WaitingOn::VmLookup),
        // A vCenter that has never known the VM may have nothing to do with it: another instance may.
        BoundVm::Missing { was_known: false } => {
            return PhaseStep::wait(WaitingOn::Parked(ParkReason::VmMissing));
        }
        BoundVm::Missing { was_known: true } => return PhaseStep::park(ParkReason::VmMissing),
        BoundVm::NoUuid => return PhaseStep::park(ParkReason::NoUuid),
        BoundVm::Ambiguous(vms) => return PhaseStep::park(ParkReason::VmAmbiguous { count: vms.len() }),
        BoundVm::Shared(nodes) => return PhaseStep::park(ParkReason::VmShared { nodes: nodes.clone() }),
        BoundVm::Found(vm) => vm,
    };
    if let Some(reason) = is_replaced(episode, vm) {
        return PhaseStep::park(reason);
    }
    let on = match vm.power {
        ObservedPower::Unknown => return PhaseStep::wait(WaitingOn::PowerState),
        ObservedPower::Suspended => return PhaseStep::park(ParkReason::VmSuspended),
        ObservedPower::On => true,
        ObservedPower::Off => false,
    };
    let scene = scene(episode, vm);
    let is_away = episode.phase.vm_is_off() || episode.phase == Phase::Rejoining;
    if is_away && let Some(step) = scene.cordon_again() {
        return step;
    }
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
        Phase::Parked { .. } => PhaseStep::park(ParkReason::UnreadableRecord {
            why: "a parked phase that resumes a parked phase".to_owned(),
        }),
    }
}

/// Why `vm` is not the VM that the episode began with, where it is not. One that is off and has been registered anew under its
/// old UUID is that VM: nobody else would bring it back.
pub fn is_replaced(episode: &Episode, vm: &ObservedVm) -> Option<ParkReason> {
    let is_other_uuid = match (&episode.vm_uuid, &vm.uuid) {
        (Some(was), Some(is)) => !was.same_machine(*is),
        (None, _) | (_, None) => false,
    };
    let is_other_moref = episode.vm.as_ref().is_some_and(|was| *was != vm.moref);
    let is_registered_anew = episode.powered_off && episode.vm_uuid.is_some() && !is_other_uuid;
    if !is_other_uuid && (!is_other_moref || is_registered_anew) {
        return None;
    }
    let name = |moref: Option<String>, uuid: Option<String>| {
        let moref = moref.unwrap_or_else(|| "a VM".to_owned());
        uuid.map_or(moref.clone(), |uuid| format!("{moref} ({uuid})"))
    };
    Some(ParkReason::VmReplaced {
        was: name(
            episode.vm.as_ref().map(ToString::to_string),
            episode.vm_uuid.map(|uuid| uuid.to_string()),
        ),
        is: name(Some(vm.moref.to_string()), vm.uuid.map(|uuid| uuid.to_string())),
    })
}

impl PhaseContext<'_> {
    /// Queued, VM on: wait for approval and a place, or for whatever called to be called off.
    fn queued(self) -> PhaseStep {
        match self.call() {
            DesiredState::Nothing => return self.finish(),
            DesiredState::Unclear => return self.host_not_visible(),
            DesiredState::Interrupted { until, said } => return Self::interrupted(until, said),
            DesiredState::Down | DesiredState::Drained(_) => {}
        }
        if let Some(step) = self.given_up() {
            return step;
        }
        if !is_approved(self.node, self.policy.require_approval) {
            return PhaseStep::wait(WaitingOn::Approval);
        }
        if self.seen.admission == Admission::Granted
            && let Some(step) = self.place_first()
        {
            return step;
        }
        self.drain_in_turn(self.episode.clone())
    }

    /// Begins to drain once there is a place.
    fn drain_in_turn(self, episode: Episode) -> PhaseStep {
        match &self.seen.admission {
            Admission::Granted => PhaseStep::Go(start_draining(&episode, self.node, self.now)),
            Admission::Behind { ahead, limit } => PhaseStep::wait(WaitingOn::Slot {
                ahead: ahead.clone(),
                limit: *limit,
            }),
        }
    }

    /// The end of the episode. The Node is uncordoned if the cordon is ours and no person has made it theirs since.
    fn end(self, fulfilled: Option<RequestIdentity>) -> PhaseStep {
        let is_anothers = is_anothers(&self.episode.cordon, self.node);
        let uncordon = self.episode.cordon_is_ours() && !is_anothers && !self.node.keep_cordoned;
        PhaseStep::Go(Transition {
            record: Record::InService,
            unschedulable: (uncordon && self.node.unschedulable).then_some(false),
            ended: Some(if self.episode.gave_up.is_some() {
                EpisodeResult::Failed
            } else if self.episode.powered_off || *self.episode.phase.at_work() == Phase::Drained {
                EpisodeResult::Succeeded
            } else {
                EpisodeResult::Cancelled
            }),
            fulfilled,
        })
    }
}
