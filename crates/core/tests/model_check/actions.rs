//! What can happen next in a state, and what follows from it.

use std::sync::Arc;
use std::time::Duration;

use haulout_core::facts::fault::{Fault, FaultKind};
use haulout_core::facts::vsphere::{EndOutcome, MaintenanceEnd, TaskState};
use haulout_core::fixtures::{drain_report, name, vm_ref};
use haulout_core::ids::TaskRef;
use haulout_core::inventory::Fact;
use haulout_core::maintenance::clock::Monotonic;
use haulout_core::maintenance::decide::{Decision, Transition, decide};
use haulout_core::maintenance::effect::{Effect, EffectKind};
use haulout_core::maintenance::effect_report::{EffectReport, EffectResult};
use haulout_core::maintenance::episode::{DrainEnd, Episode, Phase, Record};
use haulout_core::maintenance::node_guard::GuardChanges;
use haulout_core::maintenance::observed::{
    AttemptOutcome, EffectRefusal, NodeSnapshot, PendingEviction, PendingReason, RetryAdvice,
};
use haulout_core::maintenance::record::{LastEpisode, write, write_last};
use jiff::SignedDuration;

use crate::world::{NODES, NodeTruth, Patch, Request, Sent, State, Work};
use crate::{Limits, policy};

/// One step of the world or of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    // The usual course of a maintenance.
    Enters(usize),
    IsInMaintenance(usize),
    Exits(usize),
    Decides(usize),
    Arrives(usize),
    NodesAreSeen,
    VcenterIsSeen,
    PodEnds(usize),
    PodComes(usize),
    GuestStops(usize),
    TaskEnds(usize),
    KubeletReports(usize),
    TimePasses,
    ListsAgain,
    // Faults, and acts of persons.
    Cancels(usize),
    Crashes,
    LosesLeadership,
    NodeEventIsLost,
    VcenterEventIsLost,
    PodSlipsIn(usize),
    PersonCordons(usize),
    PersonUncordons(usize),
    ClockIsStepped,
}

/// Most steps of one continuation without faults; more is a loop.
const STEPS_TO_REST: usize = 2_000;

/// Nothing has changed for this long: longer than any timeout of the settings.
const REST: Duration = Duration::from_secs(1_200);

fn refused(message: &str) -> AttemptOutcome {
    AttemptOutcome::Refused(EffectRefusal {
        advice: RetryAdvice::Retry,
        message: message.to_owned(),
    })
}

fn is_away(record: &Record) -> bool {
    let episode = record.episode();
    episode.is_some_and(|it| it.phase.vm_is_off() || *it.phase.at_work() == Phase::Rejoining)
}

impl State {
    fn decision(&self, n: usize) -> Option<(Arc<NodeSnapshot>, Decision)> {
        let snapshot = self.replicas[self.leader].snapshots.get(&name(n))?;
        let decision = decide(&snapshot.record, &snapshot.observed, &policy(), self.now());
        Some((Arc::clone(snapshot), decision))
    }

    /// What can happen next.
    pub fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut next: Option<Monotonic> = None;
        let mut is_busy = false;
        for n in 0..NODES {
            let is_awaiting_reply = |sent: &Sent| sent.node == n && self.is_of_leader(sent);
            if self.in_transit.iter().any(is_awaiting_reply) {
                is_busy = true;
                continue;
            }
            match self.decision(n).map(|(_, decision)| decision) {
                Some(Decision::Write(_) | Decision::Act { .. }) => {
                    is_busy = true;
                    actions.push(Action::Decides(n));
                }
                Some(Decision::Wait { recheck, .. }) => next = next.into_iter().chain(recheck).min(),
                Some(Decision::Idle) | None => {}
            }
        }
        self.program(&mut actions);
        for n in 0..NODES {
            self.usual(n, &mut actions);
        }
        // What takes milliseconds comes before what takes seconds. An event that comes later is one that was lost.
        let leader = &self.replicas[self.leader];
        let is_entering = |action: &Action| matches!(action, Action::IsInMaintenance(_));
        is_busy |= leader.nodes_behind || leader.vcenter_behind || actions.iter().any(is_entering);
        if !is_busy && self.used.waits < self.limits.waits && self.time_after(next).is_some() {
            actions.push(Action::TimePasses);
        }
        if self.may_fail() {
            self.faults(&mut actions);
        }
        actions
    }

    fn program(&self, actions: &mut Vec<Action>) {
        actions.extend((0..self.in_transit.len()).map(Action::Arrives));
        let leader = &self.replicas[self.leader];
        if leader.nodes_behind {
            actions.push(Action::NodesAreSeen);
        }
        if leader.vcenter_behind {
            actions.push(Action::VcenterIsSeen);
        }
        if (leader.nodes_lost || leader.vcenter_lost) && self.controls.healing {
            actions.push(Action::ListsAgain);
        }
    }

    fn usual(&self, n: usize, actions: &mut Vec<Action>) {
        let node = &self.nodes[n];
        // The two nodes are alike, so the first maintenance is that of the first.
        let may_enter =
            node.takes_vms() && self.used.enters < self.limits.enters && (n == 0 || self.used.enters > 0);
        let may_schedule =
            node.pods == 0 && node.is_on && node.object.ready.is_true && !node.object.unschedulable;
        let can = [
            (may_enter, Action::Enters(n)),
            (node.entering.is_some() && !node.is_on, Action::IsInMaintenance(n)),
            (node.in_maintenance, Action::Exits(n)),
            (node.leaving > 0, Action::PodEnds(n)),
            (
                may_schedule && self.used.pods < self.limits.pods,
                Action::PodComes(n),
            ),
            (node.is_on && node.going_down.is_some(), Action::GuestStops(n)),
            (node.running.is_some(), Action::TaskEnds(n)),
            (node.is_kubelet_late(), Action::KubeletReports(n)),
        ];
        actions.extend(can.into_iter().filter(|(can, _)| *can).map(|(_, action)| action));
    }

    fn faults(&self, actions: &mut Vec<Action>) {
        let (used, leader) = (self.used, &self.replicas[self.leader]);
        // Before the first maintenance nothing can go wrong.
        if used.enters == 0 {
            return;
        }
        for (n, node) in self.nodes.iter().enumerate() {
            let is_cordoned = node.object.unschedulable;
            if node.entering.is_none() && node.record == Record::InService && !self.is_cut_on_its_way(n) {
                continue;
            }
            let may_slip = is_cordoned && node.is_on && node.record.episode().is_some();
            // A person's uncordon of a node that is away cannot be distinguished from a controller's.
            let may_uncordon = is_cordoned && !is_away(&node.record);
            let can = [
                (
                    node.entering.is_some() && used.cancels < self.limits.cancels,
                    Action::Cancels(n),
                ),
                (may_slip && used.slips < self.limits.slips, Action::PodSlipsIn(n)),
                (
                    !is_cordoned && used.cordons < self.limits.cordons,
                    Action::PersonCordons(n),
                ),
                (
                    may_uncordon && used.uncordons < self.limits.cordons,
                    Action::PersonUncordons(n),
                ),
            ];
            actions.extend(can.into_iter().filter(|(can, _)| *can).map(|(_, action)| action));
        }
        let may_lose = used.losses < self.limits.losses;
        let may_crash = used.crashes < self.limits.crashes;
        let can = [
            (may_crash, Action::Crashes),
            (may_crash, Action::LosesLeadership),
            (may_lose && leader.nodes_behind, Action::NodeEventIsLost),
            (may_lose && leader.vcenter_behind, Action::VcenterEventIsLost),
            (used.clock_steps < self.limits.clock_steps, Action::ClockIsStepped),
        ];
        actions.extend(can.into_iter().filter(|(can, _)| *can).map(|(_, action)| action));
    }

    /// The time of the next decision that waits for time to pass. Requests of the previous leader arrive before they are too late.
    fn time_after(&self, next: Option<Monotonic>) -> Option<Duration> {
        let soonest = self.elapsed + Duration::from_secs(1);
        let at = next?.uptime().max(soonest);
        let has_old = self.in_transit.iter().any(|sent| !self.is_of_leader(sent));
        if !has_old {
            return Some(at);
        }
        let latest = at.min(soonest);
        (latest < self.old_requests_until).then_some(latest)
    }

    /// The state after `action`, or what went wrong.
    pub fn after(&self, action: Action) -> Result<Self, String> {
        let mut state = self.clone();
        // No two events have the same time.
        state.elapsed += Duration::from_millis(1);
        state.perform(action)?;
        Ok(state)
    }

    fn perform(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Decides(n) => return self.decides(n),
            Action::Arrives(index) => {
                let sent = self.in_transit.remove(index);
                return self.arrives(&sent);
            }
            Action::GuestStops(n) => return self.guest_stops(n),
            Action::TaskEnds(n) => return self.task_ends(n),
            Action::Enters(_) | Action::IsInMaintenance(_) | Action::Exits(_) | Action::Cancels(_) => {
                self.host_changes(action);
            }
            Action::NodesAreSeen => self.deliver_nodes(),
            Action::VcenterIsSeen => self.deliver_vcenter(),
            Action::ListsAgain => {
                self.deliver_nodes();
                self.deliver_vcenter();
            }
            Action::PodEnds(n) => {
                let node = self.node(n);
                node.leaving -= 1;
                if node.pods > 0 {
                    node.pods -= 1;
                } else {
                    node.late_pods -= 1;
                }
                self.pods_changed(n);
            }
            Action::PodComes(n) => {
                self.used.pods += 1;
                self.pod_comes(n, false);
            }
            Action::PodSlipsIn(n) => {
                self.used.slips += 1;
                self.pod_comes(n, true);
            }
            Action::KubeletReports(n) => {
                let boot = self.nodes[n].boot_id();
                self.change_node(n, |node| {
                    node.boot_id = Some(boot);
                    node.ready.is_true = true;
                });
            }
            Action::TimePasses => {
                self.used.waits += 1;
                self.wait();
            }
            Action::Crashes | Action::LosesLeadership => {
                self.used.crashes += 1;
                self.take_over(action == Action::Crashes);
            }
            Action::NodeEventIsLost => {
                self.used.losses += 1;
                let leader = &mut self.replicas[self.leader];
                (leader.nodes_behind, leader.nodes_lost) = (false, true);
            }
            Action::VcenterEventIsLost => {
                self.used.losses += 1;
                let leader = &mut self.replicas[self.leader];
                (leader.vcenter_behind, leader.vcenter_lost) = (false, true);
            }
            Action::PersonCordons(n) => {
                self.used.cordons += 1;
                self.person_cordons(n, true);
            }
            Action::PersonUncordons(n) => {
                self.used.uncordons += 1;
                self.person_cordons(n, false);
            }
            Action::ClockIsStepped => {
                self.used.clock_steps += 1;
                self.offset = SignedDuration::from_hours(-1);
            }
        }
        Ok(())
    }

    fn person_cordons(&mut self, n: usize, cordons: bool) {
        let node = self.node(n);
        node.is_cordoned_by_person = cordons;
        node.is_uncordoned_by_person = !cordons;
        self.change_node(n, |node| {
            node.unschedulable = cordons;
            node.cordoned_by = cordons.then(|| "kubectl-cordon".to_owned());
        });
    }

    fn host_changes(&mut self, action: Action) {
        let at = self.true_time();
        let enters = self.used.enters;
        match action {
            Action::Enters(n) => {
                self.used.enters += 1;
                let node = self.node(n);
                node.entering = Some((TaskRef::new(format!("enter-{enters}")), at));
                node.last_end = None;
            }
            Action::IsInMaintenance(n) => {
                let node = self.node(n);
                node.entering = None;
                node.in_maintenance = true;
            }
            Action::Exits(n) => {
                let node = self.node(n);
                node.in_maintenance = false;
                node.last_exit = Some(TaskRef::new(format!("exit-{enters}")));
            }
            Action::Cancels(n) => {
                self.used.cancels += 1;
                let node = self.node(n);
                node.last_end = node.entering.take().map(|(task, _)| MaintenanceEnd {
                    task,
                    outcome: EndOutcome::Cancelled,
                });
            }
            other => unreachable!("{other:?} changes no host"),
        }
        self.vcenter_changed();
    }

    /// Passes the time until the next decision is due. Meanwhile kubelets of VMs that are off are missed.
    fn wait(&mut self) {
        let decisions = (0..NODES).filter_map(|n| self.decision(n));
        let next = decisions.filter_map(|(_, decision)| match decision {
            Decision::Wait { recheck, .. } => recheck,
            Decision::Write(_) | Decision::Act { .. } | Decision::Idle => None,
        });
        if let Some(at) = self.time_after(next.min()) {
            self.pass_until(at);
        }
    }

    fn pass_until(&mut self, at: Duration) {
        self.elapsed = self.elapsed.max(at);
        for n in 0..NODES {
            if !self.nodes[n].is_on && self.nodes[n].object.ready.is_true {
                self.change_node(n, |node| node.ready.is_true = false);
            }
        }
        self.tell(self.leader, Vec::new());
    }

    // The program.

    fn decides(&mut self, n: usize) -> Result<(), String> {
        self.tell(self.leader, Vec::new());
        let Some((snapshot, decision)) = self.decision(n) else {
            return Ok(());
        };
        let leader = self.leader;
        let sent = |state: &Self, request| Sent {
            replica: leader,
            process: state.replicas[leader].process,
            node: n,
            at: state.now(),
            request,
        };
        match decision {
            Decision::Write(transition) => {
                let patch = self.patch(n, &snapshot, *transition);
                let sent = sent(self, Request::Patch(Arc::new(patch)));
                self.in_transit.push(sent);
            }
            Decision::Act { effect, .. } => {
                let (kind, reply) = (effect.kind(), self.act(n, &snapshot, &effect)?);
                match reply {
                    Reply::Now(outcome) => {
                        let sent = sent(self, Request::PowerOn);
                        self.report(&sent, outcome, kind);
                    }
                    Reply::Later(request) => {
                        let sent = sent(self, request);
                        self.in_transit.push(sent);
                    }
                }
            }
            Decision::Wait { .. } | Decision::Idle => {}
        }
        Ok(())
    }

    fn patch(&self, n: usize, snapshot: &NodeSnapshot, transition: Transition) -> Patch {
        let seen = snapshot.observed.node.as_ref().expect("no Node is deleted here");
        let (before, after, wall) = (&snapshot.record, &transition.record, self.now().wall);
        assert_eq!(seen.uid, self.nodes[n].object.uid, "the Node of another name");
        Patch {
            resource_version: seen.resource_version,
            episode: write(after, wall).episode,
            last_episode: LastEpisode::of(before, after, transition.ended, wall)
                .map(|last| write_last(&last)),
            unschedulable: transition.unschedulable,
            guards: GuardChanges::of(before, after, seen),
            record: transition.record,
        }
    }

    /// The part of an effect before its request is on the way: the last reads, and what only reads.
    fn act(&mut self, n: usize, snapshot: &NodeSnapshot, effect: &Effect) -> Result<Reply, String> {
        let own = vm_ref(n);
        let is_own = |vm: &_| {
            if *vm == own {
                Ok(())
            } else {
                Err(format!("{effect:?} of node {n} is about another VM"))
            }
        };
        let node = &self.nodes[n];
        let phase = snapshot.record.phase().map(Phase::at_work);
        let may_have_pods = matches!(phase, Some(Phase::ShuttingDown(DrainEnd::TimedOut)));
        match effect {
            Effect::DrainRound { pods_revision, .. } => {
                let is_proof = matches!(phase, Some(Phase::ShuttingDown(_)));
                self.drain_round(n, *pods_revision, is_proof && !self.controls.drain_proof);
                Ok(Reply::Now(AttemptOutcome::Done))
            }
            Effect::ShutdownGuest { vm, asked_by, .. } | Effect::PowerOff { vm, asked_by, .. } => {
                is_own(vm)?;
                if !node.still_asks(n, asked_by) {
                    return Ok(Reply::Now(refused(
                        "the host is not entering maintenance mode any more",
                    )));
                }
                let kind = effect.kind();
                Ok(match (&node.running, node.is_on, kind) {
                    (_, false, EffectKind::ShutdownGuest) => Reply::Now(AttemptOutcome::Asked),
                    (_, false, _) => Reply::Now(AttemptOutcome::Done),
                    _ => Reply::Later(Request::Cut { kind, may_have_pods }),
                })
            }
            Effect::PowerOn { vm, .. } => {
                is_own(vm)?;
                Ok(match node.is_on {
                    true => Reply::Now(AttemptOutcome::Done),
                    false => Reply::Later(Request::PowerOn),
                })
            }
            Effect::Survey { .. } | Effect::ListVolumes => Ok(Reply::Now(AttemptOutcome::Done)),
            Effect::Relocate { .. }
            | Effect::Reconfigure { .. }
            | Effect::SetMachineGuards { .. }
            | Effect::RemoveMachineGuards { .. }
            | Effect::ClearGpus { .. } => Err(format!("{effect:?} is not part of this model")),
        }
    }

    /// Evicts all pods, or reports an empty list without a look at them.
    fn drain_round(&mut self, n: usize, pods_revision: u64, is_blind: bool) {
        let node = self.node(n);
        let count = if is_blind { 0 } else { node.pods + node.late_pods };
        if !is_blind {
            node.leaving = count;
        }
        let left = (0..count).map(|pod| PendingEviction {
            name: format!("ml/{pod}"),
            why: PendingReason::Leaving,
        });
        let mut report = drain_report(self.now().monotonic, left.collect());
        report.pods_revision = pods_revision;
        let found = EffectResult::Drain(report);
        self.tell(
            self.leader,
            vec![Fact::Effect(EffectReport { node: name(n), found })],
        );
    }

    fn arrives(&mut self, sent: &Sent) -> Result<(), String> {
        match &sent.request {
            Request::Patch(patch) => self.write(sent, patch),
            Request::Cut { kind, may_have_pods } => {
                let outcome = self.cut(sent.node, *kind, *may_have_pods)?;
                self.report(sent, outcome, *kind);
                Ok(())
            }
            Request::PowerOn => {
                let node = &self.nodes[sent.node];
                let outcome = match &node.running {
                    Some((task, Work::PowerOn)) => AttemptOutcome::Running(task.clone()),
                    Some((_, Work::PowerOff)) => refused("another task is in progress"),
                    None if node.is_on => AttemptOutcome::Done,
                    None => AttemptOutcome::Running(self.start(sent.node, Work::PowerOn)),
                };
                self.report(sent, outcome, EffectKind::PowerOn);
                Ok(())
            }
        }
    }

    fn cut(&mut self, n: usize, kind: EffectKind, may_have_pods: bool) -> Result<AttemptOutcome, String> {
        let at = self.elapsed;
        let node = &self.nodes[n];
        if node.is_on {
            node.loses_power(n, may_have_pods)?;
        }
        Ok(match (&node.running, kind) {
            (_, EffectKind::ShutdownGuest) => {
                if node.is_on {
                    let node = self.node(n);
                    node.going_down = Some(at);
                    node.may_have_pods = may_have_pods;
                    self.vcenter_changed();
                }
                AttemptOutcome::Asked
            }
            (Some((task, Work::PowerOff)), _) => AttemptOutcome::Running(task.clone()),
            (Some((_, Work::PowerOn)), _) => refused("another task is in progress"),
            (None, _) if !node.is_on => AttemptOutcome::Done,
            (None, _) => {
                self.node(n).may_have_pods = may_have_pods;
                AttemptOutcome::Running(self.start(n, Work::PowerOff))
            }
        })
    }

    fn guest_stops(&mut self, n: usize) -> Result<(), String> {
        let node = &self.nodes[n];
        let policy = policy();
        let expected = policy.guest_shutdown_timeout + policy.node_monitor_grace;
        // A guest that takes longer than anybody waits for it is brought back when it has stopped.
        if node
            .going_down
            .is_some_and(|asked| self.elapsed < asked + expected)
        {
            node.loses_power(n, node.may_have_pods)?;
        }
        self.node(n).goes_off();
        self.vcenter_changed();
        Ok(())
    }

    fn task_ends(&mut self, n: usize) -> Result<(), String> {
        let node = &self.nodes[n];
        let Some((moref, work)) = node.running.clone() else {
            return Ok(());
        };
        let fault = match work {
            Work::PowerOff if !node.is_on => Some(FaultKind::InvalidPowerState),
            Work::PowerOff => {
                node.loses_power(n, node.may_have_pods)?;
                None
            }
            Work::PowerOn => (!node.takes_vms()).then_some(FaultKind::InvalidHostState),
        };
        let node = self.node(n);
        node.running = None;
        let state = match fault {
            Some(kind) => TaskState::Error(Fault {
                kind,
                message: "no".to_owned(),
            }),
            None if work == Work::PowerOff => {
                node.goes_off();
                TaskState::Success
            }
            None => {
                node.is_on = true;
                node.boots += 1;
                TaskState::Success
            }
        };
        let task = node.tasks.iter_mut().find(|task| task.moref == moref);
        task.expect("it is the latest").state = state;
        self.vcenter_changed();
        Ok(())
    }

    // The end.

    /// Whether only time can change something, and nothing is about to be seen or decided.
    pub fn is_quiet(actions: &[Action]) -> bool {
        actions.iter().all(|action| {
            let is_fault = matches!(
                action,
                Action::Cancels(_)
                    | Action::Crashes
                    | Action::LosesLeadership
                    | Action::NodeEventIsLost
                    | Action::VcenterEventIsLost
                    | Action::PodSlipsIn(_)
                    | Action::PersonCordons(_)
                    | Action::PersonUncordons(_)
                    | Action::ClockIsStepped
            );
            let is_waiting = matches!(
                action,
                Action::TimePasses | Action::Exits(_) | Action::Enters(_) | Action::PodComes(_)
            );
            is_fault || is_waiting
        })
    }

    /// No more faults: all maintenances end, and time passes until nothing changes. Then each node has to be in service, or parked.
    /// Returns whether one is parked.
    pub fn comes_to_rest(mut self, trace: &mut Vec<String>) -> Result<bool, String> {
        self.limits = Limits::CALM;
        let mut quiet_since = self.elapsed;
        for _ in 0..STEPS_TO_REST {
            let actions = self.actions();
            let next = actions.iter().copied().find(|action| {
                !matches!(
                    action,
                    Action::TimePasses | Action::Enters(_) | Action::PodComes(_)
                )
            });
            let ended = (0..NODES).find(|n| self.nodes[*n].entering.is_some());
            let is_stuck = self.elapsed - quiet_since > REST / 2;
            let action = match (next, ended) {
                (Some(action), _) => action,
                // A maintenance that does not get on is cancelled.
                (None, Some(n)) if is_stuck => Action::Cancels(n),
                (None, _) if self.elapsed - quiet_since > REST => return self.is_at_rest(),
                (None, _) => {
                    let leader = &self.replicas[self.leader];
                    let at = leader.next_at().map_or(self.elapsed + REST, Monotonic::uptime);
                    let at = match self.due() {
                        Some(due) => at.min(due),
                        None => at,
                    };
                    let at = at.clamp(self.elapsed + Duration::from_millis(20), self.elapsed + REST);
                    self.pass_until(at);
                    continue;
                }
            };
            trace.push(self.words(action));
            self = self.after(action)?;
            if !matches!(action, Action::Decides(_) | Action::Arrives(_)) {
                quiet_since = self.elapsed;
            }
        }
        Err("it does not come to rest".to_owned())
    }

    fn due(&self) -> Option<Duration> {
        let decisions = (0..NODES).filter_map(|n| self.decision(n));
        let due = decisions.filter_map(|(_, decision)| match decision {
            Decision::Wait { recheck, .. } => recheck,
            Decision::Write(_) | Decision::Act { .. } | Decision::Idle => None,
        });
        due.min().map(Monotonic::uptime)
    }

    fn is_at_rest(&self) -> Result<bool, String> {
        let mut is_parked = false;
        for (n, node) in self.nodes.iter().enumerate() {
            if matches!(node.record.phase(), Some(Phase::Parked { .. })) {
                is_parked = true;
                continue;
            }
            if !node.is_on {
                return Err(format!("the VM of node {n} stays off"));
            }
            if node.record != Record::InService {
                return Err(format!("node {n} stays in {}", node.record.phase_name()));
            }
            if node.object.unschedulable != node.is_cordoned_by_person {
                let is = if node.object.unschedulable {
                    "cordoned"
                } else {
                    "schedulable"
                };
                return Err(format!("node {n} stays {is}, which is not as a person left it"));
            }
        }
        Ok(is_parked)
    }

    /// What `action` does here, in words.
    pub fn words(&self, action: Action) -> String {
        let at = (self.elapsed - Duration::from_secs(1_000)).as_secs();
        let what = match action {
            Action::Decides(n) => match self.decision(n) {
                Some((snapshot, Decision::Write(transition))) => {
                    let before = snapshot.record.phase_name();
                    let after = transition.record.phase_name();
                    let cordon = match transition.unschedulable {
                        Some(true) => " and cordons",
                        Some(false) => " and uncordons",
                        None => "",
                    };
                    format!(
                        "node {n}: replica {} sends the record {before} -> {after}{cordon}",
                        self.leader
                    )
                }
                Some((_, Decision::Act { effect, .. })) => {
                    format!(
                        "node {n}: replica {} starts {}",
                        self.leader,
                        effect.kind().name()
                    )
                }
                _ => format!("node {n}: nothing"),
            },
            Action::Arrives(index) => {
                let sent = &self.in_transit[index];
                let what = match &sent.request {
                    Request::Patch(patch) => format!("the record {}", patch.record.phase_name()),
                    Request::Cut { kind, .. } => kind.name().to_owned(),
                    Request::PowerOn => EffectKind::PowerOn.name().to_owned(),
                };
                let is_late = if self.is_of_leader(sent) {
                    ""
                } else {
                    " of the deposed leader"
                };
                format!("node {}: {what}{is_late} arrives", sent.node)
            }
            Action::Crashes => format!("replica {} crashes and the other one leads", self.leader),
            Action::LosesLeadership => format!("replica {} loses the leadership", self.leader),
            other => format!("{other:?}"),
        };
        format!("{at:>5} s  {what}")
    }
}

/// When the reply to an effect comes.
enum Reply {
    Now(AttemptOutcome),
    Later(Request),
}

impl NodeTruth {
    fn loses_power(&self, n: usize, may_have_pods: bool) -> Result<(), String> {
        if self.pods > 0 && !may_have_pods {
            return Err(format!(
                "the power of node {n} is cut with {} pods that were not drained",
                self.pods
            ));
        }
        Ok(())
    }
}

/// The phase, for the count of what was reached.
pub fn phase_of(node: &NodeTruth) -> String {
    node.record
        .episode()
        .map_or("inService".to_owned(), |episode: &Episode| {
            episode.phase.name().to_owned()
        })
}
