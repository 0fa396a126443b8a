//! What to do next for one node. Pure: the same record, facts and time give the same decision.
//!
//! A phase is a list of rules: read [`rules`] first. A rule reads a [`PhaseContext`] and may return a [`PhaseStep`]; [`decide`] turns
//! that into a [`Decision`] and handles parking for all phases. [`begin`] has what comes before an episode, [`drain`] the rules until
//! the VM is off, [`away`] those while it is off, [`back`] those until the node is back. [`adopt`] takes over episodes of the Python
//! controller, [`gone`] handles a deleted Node.

mod adopt;
mod approval;
mod away;
mod back;
mod begin;
mod checkpoint;
mod claims;
mod context;
mod cordon;
mod drain;
mod gone;
mod gpu_counts;
mod guards;
mod hook;
mod machine_guard;
mod parked;
mod power_on;
mod power_on_again;
mod replaced;
mod rounds;
mod rules;
mod scheduled;
mod static_devices;
mod vmotion;

use std::borrow::Cow;
use std::sync::Arc;

use super::clock::{Elapsed, Monotonic, Now};
use super::effect::Effect;
use super::episode::{CordonOwner, Episode, EpisodeResult, HeldStep, HostIdentity, Phase, Record};
use super::hook::HookPoint;
use super::observed::{
    Admission, BoundVm, HostState, LeadershipEpoch, Observed, ObservedNode, ObservedVm, PowerState,
    SourceState,
};
use super::policy::Policy;
use super::request::{Request, RequestIdentity};
use super::waiting::{ParkReason, WaitingOn};
use crate::facts::kubernetes::RequestAction;
pub use begin::wants_place;
pub use claims::dead_node;
use context::{PhaseContext, PhaseStep};
use cordon::is_unrecorded_foreign_cordon;
use guards::{guards_first, with_guards};
use parked::in_episode;
pub use replaced::is_replaced;
use rounds::DrainTime;
use rules::PhaseRules;
pub use rules::{OTHERWISE, PHASES};
use scheduled::before_its_time;
pub use vmotion::vmotion_grace;

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Write this record to the Node, then decide again. An effect is only decided from a record that is already on the
    /// Node, so it cannot run before its record is written.
    Write(Box<Transition>),
    /// Run this effect; decide again when a fact changes or at `recheck`.
    Act {
        effect: Effect,
        /// What the node waits for meanwhile.
        waiting_on: WaitingOn,
        /// When to decide again at the latest.
        recheck: Option<Monotonic>,
    },
    /// Do nothing; decide again when a fact changes or at `recheck`.
    Wait {
        /// What the node waits for.
        waiting_on: WaitingOn,
        /// When to decide again at the latest.
        recheck: Option<Monotonic>,
    },
    /// The node is in service, and neither its host nor a request asks for anything.
    Idle,
}

/// A change of the record: one PATCH.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    pub record: Record,
    /// The new `spec.unschedulable`, set in the same PATCH; `None` leaves it as it is.
    pub unschedulable: Option<bool>,
    pub ended: Option<EpisodeResult>,
    /// The request that this transition fulfils. It is recorded so that no later episode serves it again.
    pub fulfilled: Option<RequestIdentity>,
}

impl Transition {
    /// Whether phase, `spec.unschedulable` and a failed relocation stay the same. Anything else may change: the leader, the elapsed time,
    /// a request to vCenter, guards, the owner of the cordon.
    pub fn is_bookkeeping(&self, before: &Record) -> bool {
        match (before, &self.record) {
            (Record::Episode(before), Record::Episode(after)) => {
                self.unschedulable.is_none()
                    && (
                        &before.id,
                        &before.phase,
                        before.since,
                        &before.relocation_failure,
                    ) == (&after.id, &after.phase, after.since, &after.relocation_failure)
            }
            (Record::InService | Record::Episode(_) | Record::Python(_) | Record::Unreadable { .. }, _) => {
                false
            }
        }
    }
}

/// Decides what to do next for one node.
///
/// A new leader first writes its epoch to an open episode. That changes the `resourceVersion`, so every later write of the
/// previous leader is refused. At most one effect per node can then still arrive from it, and the quarantine waits for that. Only a
/// record that continues on a Node that was registered again is written before that: it goes with the cordon of that Node.
pub fn decide(record: &Record, seen: &Observed, policy: &Policy, now: Now) -> Decision {
    decide_noting(record, seen, policy, now, &|_, _| {})
}

/// Told the phase and the rule that decided, each as [`PHASES`] names it.
pub type Noted<'a> = dyn Fn(&'static str, &'static str) + 'a;

/// The same; `noted` is told which rule decided, if one did.
pub fn decide_noting(
    record: &Record,
    seen: &Observed,
    policy: &Policy,
    now: Now,
    noted: &Noted<'_>,
) -> Decision {
    let decision = match &seen.sources {
        SourceState::Synced => before_its_time(record, seen, policy, now)
            .unwrap_or_else(|| of_record(record, seen, policy, now, noted)),
        SourceState::NoVcenter { why } => cordon::record_without_vcenter(record, seen, policy, now)
            .unwrap_or_else(|| wait(WaitingOn::Vcenter { why: why.clone() })),
        SourceState::NoKubernetes { why } => wait(WaitingOn::Kubernetes { why: why.clone() }),
    };
    let decision = with_guards(decision, record, seen, policy);
    with_revision(unless_quarantined(decision, seen.leadership, now), record)
}

fn of_record(record: &Record, seen: &Observed, policy: &Policy, now: Now, noted: &Noted<'_>) -> Decision {
    match (record, &seen.node) {
        (Record::Unreadable { why }, _) => wait(WaitingOn::Parked(ParkReason::UnreadableRecord {
            why: why.clone(),
        })),
        (Record::InService, None) => Decision::Idle,
        (Record::InService, Some(node)) => begin::in_service(node, seen, policy, now),
        (Record::Episode(episode), _) => of_episode(episode, seen, policy, now, noted),
        (Record::Python(_), None) => wait(WaitingOn::NodeObject),
        (Record::Python(_), Some(node)) if node.overrides.skip => wait(WaitingOn::Skip),
        (Record::Python(python), Some(node)) => adopt::adopt(python, node, seen, policy),
    }
}

/// Sets the revision of the record to one more than that of the current record.
fn with_revision(mut decision: Decision, before: &Record) -> Decision {
    if let Decision::Write(transition) = &mut decision
        && let Record::Episode(next) = &mut transition.record
    {
        let before = before.episode().map_or(0, |before| before.revision);
        Arc::make_mut(next).revision = before.saturating_add(1);
    }
    decision
}

fn of_episode(episode: &Episode, seen: &Observed, policy: &Policy, now: Now, noted: &Noted<'_>) -> Decision {
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
        return gone::without_node(&aged, aged_by, seen, policy, now, noted);
    };
    if node.overrides.skip {
        return wait(WaitingOn::Skip);
    }
    if aged.node_uid != node.uid {
        return gone::onto_another_node(&aged, node, seen, policy, now);
    }
    let older = cordon::of_older_copy(&aged, node, seen);
    let episode = older.as_ref().unwrap_or(&aged);
    if is_to_be_taken_over(episode, seen.leadership, policy) {
        return take_over(episode, seen.leadership, policy);
    }
    if seen.is_only_remembered {
        return write(episode.clone());
    }
    if let Some(decision) = cordon::record_foreign_cordon(episode, node) {
        return decision;
    }
    let decision = in_episode(episode, aged_by, node, seen, policy, now, noted);
    let decision = guards::unless_unwanted(decision, episode, policy);
    guards_first(decision, episode, node, seen, now)
}

/// Whether another leader or another release wrote the record last. Any different epoch counts, not only a lower one: the
/// Lease may have been deleted and created again.
fn is_to_be_taken_over(episode: &Episode, leadership: LeadershipEpoch, policy: &Policy) -> bool {
    (leadership.epoch != 0 && leadership.epoch != episode.epoch) || episode.release != policy.releases.own
}

fn take_over(episode: &Episode, leadership: LeadershipEpoch, policy: &Policy) -> Decision {
    write(Episode {
        epoch: if leadership.epoch == 0 {
            episode.epoch
        } else {
            leadership.epoch
        },
        release: policy.releases.own.clone(),
        ..episode.clone()
    })
}

/// Delays effects that change something until the quarantine after a takeover is over.
fn unless_quarantined(decision: Decision, leadership: LeadershipEpoch, now: Now) -> Decision {
    match (decision, leadership.acts_from) {
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

/// Whether a host for the VM has to be found before the node is touched: a request asks for a relocation, and the host of the VM
/// does not enter maintenance.
fn needs_host_first(host: &HostState, request: Option<&Request>) -> bool {
    let is_asked = request.is_some_and(|request| matches!(request.action, RequestAction::Relocate { .. }));
    is_asked && !host.is_leaving()
}

fn not_visible(vm: &ObservedVm) -> WaitingOn {
    awaited(vm.host_name.clone(), &vm.host)
}

/// The wait for a host that is not known to be out of maintenance.
fn awaited(host: String, state: &HostState) -> WaitingOn {
    if let HostState::Settling { until } = state {
        let until = until.shown;
        return WaitingOn::HostSettling { host, until };
    }
    let state = state.words();
    WaitingOn::HostVisible { host, state }
}

fn host_of(vm: &ObservedVm) -> HostIdentity {
    HostIdentity {
        moref: vm.host_ref.clone(),
        name: vm.host_name.as_str().into(),
    }
}

/// Cordons and begins to drain in one write, with the full drain timeout. Hooks hold the first eviction.
fn start_draining(episode: &Episode, node: &ObservedNode, time: DrainTime, now: Now) -> Transition {
    let point = HookPoint::PreDrain;
    let is_held = node.hooks.contains_key(&point);
    cordoned(
        Episode {
            held: is_held.then(|| HeldStep::begin(point, now)),
            recordoned: 0,
            drained_for: Elapsed::ZERO,
            limited_from: Elapsed::ZERO,
            drain_limit: Some(time.limit),
            drain_timeout: time.timeout,
            drained_boot: node.boot_id.clone(),
            ..episode.enter(Phase::Draining, now)
        },
        node,
    )
}

/// Records `episode` and cordons the Node in the same PATCH.
fn cordoned(mut episode: Episode, node: &ObservedNode) -> Transition {
    episode.cordon = match (&episode.cordon, node.unschedulable) {
        (_, true) if is_unrecorded_foreign_cordon(&episode.cordon, node) => CordonOwner::Theirs,
        (owner, true) => owner.clone(),
        (_, false) => CordonOwner::Ours,
    };
    Transition {
        record: Record::Episode(Arc::new(episode)),
        unschedulable: (!node.unschedulable).then_some(true),
        ended: None,
        fulfilled: None,
    }
}

fn write(episode: Episode) -> Decision {
    Decision::Write(Box::new(transition_to(episode)))
}

/// A transition that leaves `spec.unschedulable` as it is.
fn transition_to(episode: Episode) -> Transition {
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
    context: impl FnOnce(&'a Episode, &'a ObservedVm) -> PhaseContext<'a>,
) -> PhaseStep {
    let vm = match seen.vm.or_wait() {
        Ok(vm) => vm,
        // The node may belong to another vCenter, so the episode is not parked.
        Err(waiting_on) if matches!(seen.vm, BoundVm::Missing { was_known: false } | BoundVm::NoVm) => {
            return PhaseStep::wait(waiting_on);
        }
        Err(WaitingOn::Parked(reason)) => return PhaseStep::park(reason),
        Err(waiting_on) => return PhaseStep::wait(waiting_on),
    };
    if let Some(reason) = is_replaced(episode, vm) {
        return PhaseStep::park(reason);
    }
    let is_on = match vm.power {
        None => return PhaseStep::wait(WaitingOn::PowerState),
        Some(PowerState::Suspended) => return PhaseStep::park(ParkReason::VmSuspended),
        Some(PowerState::On) => true,
        Some(PowerState::Off) => false,
    };
    let context = context(episode, vm);
    let is_away = episode.phase.vm_is_off() || episode.phase == Phase::Rejoining;
    if is_away && let Some(step) = context.restore_cordon() {
        return step;
    }
    let rules = PhaseRules::of(&episode.phase, is_on);
    let (step, rule) = rules.step(context);
    (context.noted)(rules.name, rule);
    // A queued node has no guards, and no GPUs of an earlier boot to forget.
    if episode.phase == Phase::Queued {
        return step;
    }
    context.guarded(context.without_old_gpus(step))
}

impl PhaseContext<'_> {
    /// An approval of the queued request is not one of the maintenance of its host, which needs an episode of its own.
    fn end_request_when_host_enters(self) -> Option<PhaseStep> {
        let is_for_request = self.episode.trigger.request.is_some();
        let is_entering = matches!(self.vm.host, HostState::Entering { .. });
        (self.policy.require_approval && is_for_request && is_entering).then(|| self.end(None))
    }

    fn find_host_when_admitted(self) -> Option<PhaseStep> {
        let is_admitted = self.seen.admission == Admission::Granted;
        is_admitted.then(|| self.find_host_first()).flatten()
    }

    /// Queued, and the VM went off. If vCenter did that for the maintenance of its host, or a power-off of an earlier episode took
    /// effect, it is brought back. Otherwise a person did it, and it stays off, as without an episode.
    fn powered_off_in_queue(self) -> Option<PhaseStep> {
        let is_by_us = self.episode.powered_off
            || self.episode.cordon_is_ours()
            || self.seen.late_power_off_of.is_some()
            || !self.in_flight().is_empty();
        // Without its Node nothing shows that a person wants it off.
        let is_deleted = self.seen.node.is_none();
        let is_evacuated = begin::is_evacuated(self.node, self.vm);
        (is_deleted || is_by_us || is_evacuated).then(|| self.powered_off())
    }

    /// Haulout never writes such a record.
    fn parked_twice(self) -> PhaseStep {
        PhaseStep::park(ParkReason::UnreadableRecord {
            why: "a parked phase that resumes a parked phase".to_owned(),
        })
    }

    /// Begins to drain once it is approved and there is a slot.
    fn drain_when_admitted(self, episode: Episode) -> PhaseStep {
        if let Some(step) = self.await_approval() {
            return step;
        }
        // A dead node has no place in the queue of drains (`wants_place`), so it would wait for ever.
        if let Some(step) = self.park_if_dead() {
            return step;
        }
        match &self.seen.admission {
            Admission::Granted => {
                let time = self.drain_time();
                // vCenter may have moved the VM while the node was queued. One that is pinned was restarted there.
                let is_at_home = self.episode.powered_off || self.vm.is_pinned;
                let host = if is_at_home {
                    episode.host.clone()
                } else {
                    host_of(self.vm)
                };
                let here = Episode { host, ..episode };
                PhaseStep::record(start_draining(&here, self.node, time, self.now))
            }
            Admission::Queued {
                ahead,
                position,
                limit,
            } => PhaseStep::wait(WaitingOn::Slot {
                ahead: ahead.clone(),
                position: *position,
                limit: *limit,
            }),
        }
    }

    /// Ends the episode. The Node is uncordoned only if the cordon still is Haulout's own.
    fn end(self, fulfilled: Option<RequestIdentity>) -> PhaseStep {
        if let Some(step) = self.remove_machine_guards() {
            return step;
        }
        let is_foreign = is_unrecorded_foreign_cordon(&self.episode.cordon, self.node);
        let uncordon = self.episode.cordon_is_ours() && !is_foreign && !self.node.keep_cordoned;
        PhaseStep::record(Transition {
            record: Record::InService,
            unschedulable: (uncordon && self.node.unschedulable).then_some(false),
            ended: Some(if self.episode.relocation_failure.is_some() {
                EpisodeResult::Failed
            } else if self.episode.powered_off || *self.episode.phase.at_work() == Phase::Drained {
                EpisodeResult::Succeeded
            } else if self.vm.host_ref.is_some() && !self.is_at_home() {
                EpisodeResult::Vmotioned
            } else {
                EpisodeResult::Cancelled
            }),
            fulfilled,
        })
    }
}
