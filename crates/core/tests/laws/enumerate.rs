//! Every phase with every combination of facts: some millions of cases, each checked against the laws.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use haulout_core::facts::kubernetes::RequestAction;
use haulout_core::maintenance::clock::{Deadline, Now};
use haulout_core::maintenance::decide::{
    Decision, OTHERWISE, PHASES, Transition, decide, decide_noting, is_replaced,
};
use haulout_core::maintenance::effect::{Effect, EffectKind, PowerOnTarget};
use haulout_core::maintenance::episode::{CordonOwner, DrainEnd, Episode, EpisodeResult, Phase, Record};
use haulout_core::maintenance::observed::{
    Admission, AttemptOutcome, BoundVm, CordonedBy, HostState, LeadershipEpoch, Observed, ObservedVm,
    PowerState, RetryAdvice, SourceState,
};
use haulout_core::maintenance::policy::{DrainTimeoutAction, Policy};
use haulout_core::maintenance::waiting::WaitingOn;

use crate::cases::*;
use crate::facts::*;

fn found(seen: &Observed) -> Option<&ObservedVm> {
    match &seen.vm {
        BoundVm::Found(vm) => Some(vm),
        _ => None,
    }
}

/// The states of a host, defined independently of the code under test.
fn leaving(host: &HostState) -> bool {
    matches!(host, HostState::Entering { .. } | HostState::InMaintenance)
}

fn out(host: &HostState) -> bool {
    matches!(host, HostState::InService | HostState::Quarantined)
}

fn in_service(host: &HostState) -> bool {
    matches!(host, HostState::InService)
}

/// Whether host or request ask for the VM to be off, defined independently.
fn down(seen: &Observed, vm: &ObservedVm) -> bool {
    let asked = match seen.request.as_ref().map(|request| &request.action) {
        None | Some(RequestAction::Drain) => false,
        Some(RequestAction::PowerOff | RequestAction::Relocate { .. } | RequestAction::Reboot) => true,
    };
    leaving(&vm.host) || (asked && out(&vm.host))
}

/// Whether vCenter itself stopped a VM that ran until its host began to leave.
fn is_evacuated(seen: &Observed) -> bool {
    let was_running = seen.node.as_ref().is_some_and(|node| node.ready);
    found(seen).is_some_and(|vm| vm.evacuation_power_off && leaving(&vm.host)) && was_running
}

/// Whether only a relocation is requested: a target is needed before anything is done.
fn placed_first(seen: &Observed, vm: &ObservedVm) -> bool {
    asks(seen, &RequestAction::Relocate { to: None }) && !leaving(&vm.host)
}

/// Whether host or request ask for a drain.
fn wants_drained(seen: &Observed, vm: &ObservedVm) -> bool {
    let drain = matches!(&seen.request, Some(request) if request.action == RequestAction::Drain);
    down(seen, vm) || drain
}

fn asks(seen: &Observed, action: &RequestAction) -> bool {
    asks_for(&seen.request, action)
}

/// Panics with the whole case when a law does not hold.
fn hold(law: &str, holds: bool, record: &Record, seen: &Observed, decision: &Decision) {
    assert!(
        holds,
        "{law}\nrecord: {record:#?}\nseen: {seen:#?}\ndecision: {decision:#?}"
    );
}

#[test]
fn every_law_holds_in_every_phase_with_every_combination_of_facts() {
    let decided = RefCell::new(BTreeMap::new());
    let noted = |phase, rule| *decided.borrow_mut().entry((phase, rule)).or_insert(0_u64) += 1;
    let cases = each_case(1, |record, seen, policy, now| {
        let decision = decide_noting(record, seen, policy, now, &noted);
        match &decision {
            Decision::Act { effect, .. } => effect_laws(record, seen, policy, now, effect, &decision),
            Decision::Write(transition) => transition_laws(record, seen, policy, now, transition, &decision),
            Decision::Wait { .. } => {}
            Decision::Idle => {
                hold(
                    "10: no episode is forgotten",
                    *record == Record::InService,
                    record,
                    seen,
                    &decision,
                );
            }
        }
    });
    println!("{cases} cases");
    assert!(cases > 500_000, "the enumeration has shrunk to {cases} cases");
    report_rules(&decided.into_inner());
}

/// Prints how often each rule decided.
fn report_rules(decided: &BTreeMap<(&str, &str), u64>) {
    let mut missed = Vec::new();
    for phase in PHASES {
        println!("{}", phase.name);
        for when in phase.rules.iter().map(|rule| rule.when).chain([OTHERWISE]) {
            let count = decided.get(&(phase.name, when)).copied().unwrap_or_default();
            println!("{count:>10}  {when}");
            if count == 0 {
                missed.push((phase.name, when));
            }
        }
    }
    assert_eq!(missed, OTHERWISE_TRIED, "the rules that no case reaches");
}

/// The rules about facts that are not combined here, because each would double the cases. Tables and histories try them.
const OTHERWISE_TRIED: [(&str, &str); 20] = [
    (
        "Queued",
        "it is queued for a request, its host enters maintenance mode, and approvals are required",
    ),
    ("Queued", "no host takes the VM that is to be relocated"),
    ("Queued", "vCenter can move the VM by vMotion"),
    ("Queued", "a person has to approve the drain"),
    ("Draining", "no host takes the VM that is to be relocated"),
    ("Draining", "hooks hold the first eviction"),
    (
        "Draining",
        "the settings or the request have changed the drain timeout",
    ),
    ("ShuttingDown", "the VM has a question"),
    (
        "ShuttingDown",
        "another Node with the VM was registered a moment ago",
    ),
    ("ShuttingDown", "vCenter is moving the VM by vMotion"),
    ("ShuttingDown", "volumes are attached"),
    ("AwaitingHost", "a maintenance that failed may be tried again"),
    ("AwaitingHost", "the VM has gone off again"),
    ("PoweringOn", "the VM has a question"),
    (
        "PoweringOn",
        "devices at fixed addresses are those of another host",
    ),
    (
        "Rejoining",
        "a person has powered on a VM that a request keeps off",
    ),
    (
        "Rejoining",
        "the Node still shows the GPU counts of the boot before the power-off",
    ),
    ("Rejoining", "a person has accepted fewer GPUs"),
    (
        "Rejoining",
        "GPU_RESOURCES does not match a resource any more that the node had",
    ),
    ("Rejoining", "hooks hold the uncordon"),
];

fn effect_laws(
    record: &Record,
    seen: &Observed,
    policy: &Policy,
    now: Now,
    effect: &Effect,
    decision: &Decision,
) {
    let law = |name: &str, holds: bool| hold(name, holds, record, seen, decision);
    let at_work = record.phase().map(Phase::at_work);
    let cordoned = seen.node.as_ref().is_some_and(|node| node.unschedulable);
    let vm = found(seen);
    law(
        "11: nothing is done to a VM that is not exactly one",
        vm.is_some(),
    );
    let Some(vm) = vm else { return };
    let episode = record.episode().expect("an effect without an episode");
    law(
        "11: nothing is done to another VM than the episode's",
        is_replaced(episode, vm).is_none(),
    );
    let is_without_record = seen.node.is_none() && !seen.has_copy;
    law(
        "3: without a record nothing is done but to power on what is off",
        !is_without_record
            || matches!(
                effect,
                Effect::PowerOn {
                    place: PowerOnTarget::Host(_),
                    ..
                }
            ),
    );
    let stops = matches!(effect, Effect::ShutdownGuest { .. } | Effect::PowerOff { .. });
    let is_ready = seen.node.as_ref().is_some_and(|node| node.ready);
    law(
        "6: no VM is stopped for a Node that is not Ready while another one has it",
        !stops || is_ready || vm.other_claimants.is_empty(),
    );
    match effect {
        Effect::DrainRound { .. } => {
            law(
                "only a node that drains, is kept drained or is about to be shut down is drained",
                matches!(
                    at_work,
                    Some(Phase::Draining | Phase::Drained | Phase::ShuttingDown(_))
                ) && cordoned,
            );
            law(
                "a node without host maintenance or request is not drained",
                wants_drained(seen, vm),
            );
        }
        Effect::ShutdownGuest { .. } => {
            may_go_down(seen, episode, vm, now, &law);
            law(
                "5: a guest is not asked again after a request that vCenter has confirmed",
                episode.in_flight.confirmed_guest_shutdown().is_none(),
            );
        }
        Effect::PowerOff { .. } => {
            may_go_down(seen, episode, vm, now, &law);
            law(
                "5: a power-off is recorded before it is requested",
                episode.in_flight.power_off.is_some(),
            );
            let tried = seen.attempt(EffectKind::ShutdownGuest);
            law(
                "5: no power is cut while nobody knows whether the guest was asked",
                !episode.in_flight.is_assumed
                    || tried.is_some_and(|attempt| match &attempt.outcome {
                        AttemptOutcome::Refused(refusal) => refusal.advice != RetryAdvice::Unanswered,
                        AttemptOutcome::Asked | AttemptOutcome::Running(_) | AttemptOutcome::Done => true,
                    }),
            );
        }
        Effect::ListVolumes => law(
            "volumes are waited for in the shutdown alone",
            matches!(at_work, Some(Phase::ShuttingDown(_))),
        ),
        Effect::Survey { hosts } => law("a survey names a host", !hosts.is_empty()),
        Effect::Relocate { to, .. } => {
            law(
                "8: only a VM that is off is relocated",
                vm.power == Some(PowerState::Off),
            );
            law(
                "8: the target takes VMs",
                in_service(&seen.target) && *to == spare(),
            );
            law(
                "8: no VM leaves a home that is back, except by a request",
                vm.host_ref != Some(home())
                    || !in_service(&seen.home)
                    || asks(seen, &RequestAction::Relocate { to: None }),
            );
        }
        Effect::Reconfigure { host, .. } => {
            law(
                "8: only a VM that is off is reconfigured, on a host that takes VMs",
                vm.power == Some(PowerState::Off)
                    && in_service(&vm.host)
                    && vm.host_ref.as_ref() == Some(host),
            );
            law(
                "its own devices are recorded before a VM gets others",
                !episode.home_devices.is_empty(),
            );
        }
        Effect::SetMachineGuards { .. } => law(
            "guards are set where they are due",
            episode.machine_guards.is_due && policy.guards.machines,
        ),
        Effect::RemoveMachineGuards { guards, .. } => {
            law("guards that may be there are removed", !guards.is_empty())
        }
        Effect::ClearGpus { node, resources, .. } => {
            let seen_node = seen.node.as_ref();
            law(
                "7: counts are removed after the VM was off, and from its own Node",
                (episode.powered_off || episode.phase.at_work().vm_is_off())
                    && seen_node.is_some_and(|seen| seen.uid == *node),
            );
            let is_shown = |resource: &String| {
                let shown = seen_node.and_then(|node| node.gpus.get(resource));
                resource.contains('/') && shown.is_some_and(|count| *count > 0)
            };
            law(
                "7: only counts of GPUs that are there are removed",
                !resources.is_empty() && resources.iter().all(is_shown),
            );
        }
        Effect::PowerOn { place, .. } => {
            let shows_gpus = seen.node.as_ref().is_some_and(|node| !node.gpus.is_empty());
            law(
                "7: no VM is powered on while its Node shows the GPUs of the last boot",
                !shows_gpus
                    || episode.gpus_before.is_empty()
                    || !episode.phase.vm_is_off()
                    || seen.attempts.contains_key(&EffectKind::ClearGpus),
            );
            law(
                "8: powered on only where VMs may run, or where DRS chooses",
                match place {
                    PowerOnTarget::Host(host) => in_service(&vm.host) && vm.host_ref.as_ref() == Some(host),
                    PowerOnTarget::Drs => vm.drs,
                },
            );
            law(
                "only a VM that is off is powered on",
                vm.power == Some(PowerState::Off),
            );
            law(
                "what a person asks to be kept off is not powered on",
                !asks(seen, &RequestAction::PowerOff),
            );
        }
    }
    let paced = seen
        .attempts
        .get(&effect.kind())
        .is_some_and(|attempt| now.monotonic < attempt.at.after(policy.retry_min).monotonic);
    law(
        "13: nothing is tried again before its backoff is over",
        effect.kind() == EffectKind::DrainRound || !paced,
    );
}

/// Checks of a guest shutdown or a power-off.
fn may_go_down(seen: &Observed, episode: &Episode, vm: &ObservedVm, now: Now, law: &dyn Fn(&str, bool)) {
    let Phase::ShuttingDown(end) = episode.phase.at_work() else {
        return law("6: the end of the drain is on record", false);
    };
    let cordoned = seen.node.as_ref().is_some_and(|node| node.unschedulable);
    law("6: the cordon holds", cordoned);
    law(
        "6: the VM is on, and its host leaves or a person asks for it to be off",
        vm.power == Some(PowerState::On) && down(seen, vm),
    );
    let is_current = seen.drain.as_ref().is_some_and(|list| {
        let age = now.monotonic.since(list.listed_at);
        age <= Duration::from_secs(10)
            && list.pods_revision == seen.pods_revision
            && (list.left.is_empty() || *end == DrainEnd::TimedOut)
    });
    law("6: the proof of the drain is of this moment", is_current);
}

fn transition_laws(
    record: &Record,
    seen: &Observed,
    policy: &Policy,
    now: Now,
    transition: &Transition,
    decision: &Decision,
) {
    let law = |name: &str, holds: bool| hold(name, holds, record, seen, decision);
    law(
        "a written record differs from the current one",
        transition.record != *record,
    );
    law(
        "12: what cannot be read is not written over",
        !matches!(record, Record::Unreadable { .. }),
    );
    law(
        "3: a record is written only if it can be stored",
        seen.node.is_some() || seen.has_copy,
    );
    let before = record.episode();
    if let Some(before) = before
        && let Some(after) = transition.record.episode()
    {
        law(
            "each write has a number, one higher than the one before",
            after.revision == before.revision + 1,
        );
        law(
            "11: the VM of an episode is fixed",
            (&after.vm, after.vm_uuid) == (&before.vm, before.vm_uuid),
        );
        law(
            "5: what is in flight is cleared only with the VM off, or found on after that",
            !after.in_flight.is_empty()
                || before.in_flight.is_empty()
                || found(seen)
                    .is_some_and(|vm| vm.power == Some(PowerState::Off) || before.phase.vm_is_off()),
        );
        law(
            "7: a cordon that was a person's stays theirs, also when it is removed while the VM is off",
            before.cordon != CordonOwner::Theirs
                || after.cordon == CordonOwner::Theirs
                || (seen.node.as_ref().is_some_and(|node| !node.unschedulable) && !before.phase.vm_is_off()),
        );
    }
    if *record == Record::InService {
        begin_laws(seen, transition, &law);
    }
    // A deleted Node counts as cordoned and not Ready.
    let cordoned_by = seen.node.as_ref().map(|node| &node.cordoned_by);
    if transition.unschedulable == Some(false) {
        let ours = before.is_some_and(|before| match &before.cordon {
            CordonOwner::Ours => !matches!(cordoned_by, Some(CordonedBy::Other(_))),
            CordonOwner::Adopted(manager) => match cordoned_by {
                Some(CordonedBy::Other(by)) => manager.as_ref() == Some(by),
                _ => true,
            },
            CordonOwner::NotYet | CordonOwner::Theirs => false,
        });
        law("7: only our own cordon is taken away", ours);
        law(
            "7: only at the end of an episode",
            transition.record == Record::InService,
        );
    }
    match &transition.record {
        Record::InService => end_laws(seen, before, policy, now, transition, &law),
        Record::Episode(next) => way_laws(record, seen, next, policy, now, transition, &law),
        Record::Python(_) | Record::Unreadable { .. } => law("only our own records are written", false),
    }
}

fn begin_laws(seen: &Observed, transition: &Transition, law: &dyn Fn(&str, bool)) {
    let node = seen.node.as_ref().unwrap();
    let is = |power| found(seen).is_some_and(|vm| vm.power == power);
    let begins = is(Some(PowerState::On)) && found(seen).is_some_and(|vm| wants_drained(seen, vm));
    let is_late = seen.late_power_off_of.is_some();
    let makes_up = is(Some(PowerState::Off)) && seen.request.is_none() && (is_late || is_evacuated(seen));
    law(
        "an episode begins for a powered-on VM that is to go out of service, or for one that we or vCenter stopped",
        begins || makes_up,
    );
    let granted = seen.admission == Admission::Granted;
    let phase = transition.record.phase();
    let is_placed_first = found(seen).is_some_and(|vm| placed_first(seen, vm));
    law(
        "it drains with a slot, is queued without one, and a host is searched first for a relocation",
        makes_up || (phase == Some(&Phase::Draining)) == (granted && !is_placed_first),
    );
    let cordons = node.unschedulable || transition.unschedulable == Some(true);
    let next = transition.record.episode();
    let another_boot = next.is_some_and(|next| next.powered_off && next.boot_before == node.boot_id);
    law(
        "7: what was off is cordoned, and back on another boot only",
        !makes_up || (phase == Some(&Phase::AwaitingHost) && cordons && another_boot),
    );
    let vm = found(seen);
    law(
        "11: the VM is fixed when the episode begins",
        next.is_some_and(|next| {
            next.vm.as_ref() == vm.map(|vm| &vm.moref) && next.vm_uuid == vm.and_then(|vm| vm.uuid)
        }),
    );
}

/// Checks at the end of an episode.
fn end_laws(
    seen: &Observed,
    before: Option<&Episode>,
    policy: &Policy,
    now: Now,
    transition: &Transition,
    law: &dyn Fn(&str, bool),
) {
    let vm = found(seen);
    if let Some(before) = before
        && *before.phase.at_work() == Phase::Queued
        && vm.is_some_and(|vm| vm.power == Some(PowerState::Off))
    {
        law(
            "a VM that a person powered off while its node was queued stays off, and its request stands",
            !before.powered_off
                && before.in_flight.is_empty()
                && seen.node.is_some()
                && transition.fulfilled.is_none()
                && transition.unschedulable.is_none(),
        );
        return;
    }
    law(
        "the end needs a VM that is on and a host that is out",
        vm.is_some_and(|vm| vm.power == Some(PowerState::On) && out(&vm.host)),
    );
    law(
        "what a person asks to be kept drained or off is not ended",
        !asks(seen, &RequestAction::Drain) && !asks(seen, &RequestAction::PowerOff),
    );
    let request = seen.request.as_ref().map(|request| &request.identity);
    law(
        "a request that is there at the end is fulfilled by it, and no other",
        transition.fulfilled.as_ref() == request,
    );
    law(
        "a restart that is asked for has been one",
        !asks(seen, &RequestAction::Reboot) || before.is_some_and(|before| before.powered_off),
    );
    let Some(before) = before else { return };
    let since = now.monotonic.since(seen.record_seen.at.monotonic);
    let guest = before.in_flight.guest_shutdown.as_ref();
    let guest_may_go = guest.is_some_and(|asked| {
        asked.elapsed.span() + since < policy.guest_shutdown_timeout + policy.node_monitor_grace
    });
    law(
        "5: no episode ends while a guest may be on its way down",
        !guest_may_go,
    );
    let cut_may_land = before
        .in_flight
        .power_off
        .as_ref()
        .is_some_and(|cut| cut.elapsed.span() + since < policy.unanswered_for);
    law(
        "5: no episode ends while a power-off may land",
        !cut_may_land && !vm.is_some_and(|vm| before.in_flight.power_off.is_some() && vm.is_being_cut),
    );
    if matches!(before.phase.at_work(), Phase::ShuttingDown(_)) {
        let tried = seen.attempts.get(&EffectKind::ShutdownGuest);
        let may_be_asked = tried.is_some_and(|attempt| match &attempt.outcome {
            AttemptOutcome::Asked | AttemptOutcome::Running(_) | AttemptOutcome::Done => true,
            AttemptOutcome::Refused(refusal) => refusal.advice == RetryAdvice::Unanswered,
        });
        law(
            "5: an episode ends from the shutdown only where this process knows that no guest was asked",
            seen.record_seen.from_the_start && !may_be_asked,
        );
    }
    let is_other_boot = seen.node.as_ref().is_some_and(|node| {
        node.boot_id.is_some() && before.boot_before.is_some() && node.boot_id != before.boot_before
    });
    law(
        "7: a boot that nobody saw counts as a power cycle",
        before.powered_off || !is_other_boot || *before.phase.at_work() == Phase::Queued,
    );
    if before.powered_off {
        let node = seen.node.as_ref().expect("an episode ends on a Node");
        law("7: ready", node.ready);
        law(
            "7: on another boot",
            node.boot_id.is_some() && node.boot_id != before.boot_before,
        );
        law("7: with its GPUs", node.gpus.get(GPU).copied().unwrap_or(0) >= 2);
        let relocation_failure = before.relocation_failure.is_some();
        law(
            "it is a success, unless the request was given up",
            transition.ended
                == Some(if relocation_failure {
                    EpisodeResult::Failed
                } else {
                    EpisodeResult::Succeeded
                }),
        );
    }
}

/// Checks of an episode that continues.
fn way_laws(
    record: &Record,
    seen: &Observed,
    next: &Episode,
    policy: &Policy,
    now: Now,
    transition: &Transition,
    law: &dyn Fn(&str, bool),
) {
    let before = record.episode();
    let from = before.map(|before| before.phase.at_work());
    let is_unmet = before.is_some_and(|it| it.moved_to.is_none() && it.relocation_failure.is_none());
    if let Some(vm) = found(seen).filter(|vm| is_unmet && placed_first(seen, vm)) {
        let fits = seen.offer.fits.is_some();
        let is_answered = seen
            .attempts
            .get(&EffectKind::Survey)
            .is_some_and(|attempt| attempt.outcome != AttemptOutcome::Asked);
        let goes_down = match (from, next.phase.at_work()) {
            (Some(Phase::Queued), Phase::Draining) | (Some(Phase::Draining), Phase::ShuttingDown(_)) => {
                vm.power == Some(PowerState::On)
            }
            _ => false,
        };
        let is_same_node = seen.node.as_ref().is_some_and(|node| node.uid == next.node_uid);
        law(
            "a requested relocation continues with the VM on only if there is a target",
            !goes_down || (fits && is_answered) || !is_same_node,
        );
        law(
            "a requested relocation is given up with the VM on only if there is no target",
            next.relocation_failure.is_none()
                || vm.power != Some(PowerState::On)
                || (!fits && seen.offer.survey.is_empty()),
        );
    }
    let is_cordoned =
        seen.node.as_ref().is_none_or(|node| node.unschedulable) || transition.unschedulable == Some(true);
    match &next.phase {
        Phase::Draining if from != Some(&Phase::Draining) && !matches!(record, Record::Python(_)) => {
            law("3: cordon and begin are one write", is_cordoned);
        }
        Phase::ShuttingDown(end) if !matches!(from, Some(Phase::ShuttingDown(_))) => {
            law(
                "6: only a draining node goes on to be shut down",
                from == Some(&Phase::Draining),
            );
            let since = seen.record_seen.phase_at;
            // Defined independently of the code under test.
            let empty = is_cordoned
                && seen.drain.as_ref().is_some_and(|list| {
                    list.left.is_empty()
                        && list.listed_at >= since.after(Duration::from_secs(1))
                        && list.pods_revision == seen.pods_revision
                });
            let has_had_its_time = now.monotonic.since(seen.record_seen.at.monotonic) >= policy.drain_timeout;
            match end {
                DrainEnd::Complete => law("6: a complete list shows no pod", empty),
                DrainEnd::TimedOut => {
                    law(
                        "6: the drain timeout has passed, and power may be cut then",
                        has_had_its_time && policy.drain_timeout_action == DrainTimeoutAction::PowerOff,
                    );
                    law(
                        "6: the pods left behind are named",
                        !next.left_behind.is_empty()
                            || seen.drain.as_ref().is_some_and(|report| report.left.is_empty()),
                    );
                }
            }
        }
        Phase::Relocating { to } if !matches!(from, Some(Phase::Relocating { .. })) => {
            law(
                "8: only to the host that is reserved for it",
                seen.offer.fits.as_ref().map(|(host, _)| host) == to.moref.as_ref(),
            );
        }
        Phase::Relocating { .. } | Phase::AwaitingHost | Phase::PoweringOn { .. } | Phase::Rejoining => {
            let is_wish = before.is_some_and(|before| before.recordoned >= 3);
            let is_known = |vm: &ObservedVm| {
                matches!(vm.power, Some(PowerState::On) | Some(PowerState::Off))
                    && before.is_none_or(|before| is_replaced(before, vm).is_none())
            };
            let is_known = found(seen).is_some_and(is_known);
            law(
                "7: a node whose VM is away or boots is cordoned",
                is_cordoned || is_wish || !is_known || matches!(record, Record::Python(_)),
            );
        }
        _ => {}
    }
}

#[test]
fn vm_that_went_off_late_by_our_power_off_is_brought_back() {
    let mut brought_back = 0;
    for power in [
        None,
        Some(PowerState::On),
        Some(PowerState::Off),
        Some(PowerState::Suspended),
    ] {
        for late_power_off_of in [None, Some(ended())] {
            for host in [
                HostState::Unknown,
                HostState::InService,
                HostState::InMaintenance,
                entering(),
            ] {
                for skip in [false, true] {
                    for request in requests() {
                        let mut node = node();
                        node.overrides.skip = skip;
                        let mut seen = observed(node, vm(power, host.clone()));
                        seen.late_power_off_of.clone_from(&late_power_off_of);
                        seen.request.clone_from(&request);
                        let policy = policy(DrainTimeoutAction::PowerOff);
                        let decision = decide(&Record::InService, &seen, &policy, moment(2));
                        let is_brought_back = match &decision {
                            Decision::Write(transition) => {
                                transition.record.episode().is_some_and(|episode| {
                                    episode.trigger.late_power_off_of == late_power_off_of
                                        && late_power_off_of.is_some()
                                })
                            }
                            Decision::Act { .. } | Decision::Wait { .. } | Decision::Idle => false,
                        };
                        let ours = power == Some(PowerState::Off) && late_power_off_of.is_some();
                        assert_eq!(
                            is_brought_back,
                            ours && !skip && request.is_none(),
                            "{seen:#?}\n{decision:#?}"
                        );
                        brought_back += usize::from(is_brought_back);
                    }
                }
            }
        }
    }
    assert_eq!(brought_back, 4, "one for each state of the host");
}

#[test]
fn decisions_settle_when_the_facts_do_not_change() {
    // Enough for the longest chain: take over, adopt, resume, cordon again, drain again, park.
    const LONGEST: usize = 7;
    each_case(11, |record, seen, policy, now| {
        let mut record = record.clone();
        let mut seen = seen.clone();
        let mut chain = vec![record.phase_name()];
        for _ in 0..LONGEST {
            let Decision::Write(transition) = decide(&record, &seen, policy, now) else {
                return;
            };
            if let (Some(node), Some(unschedulable)) = (&mut seen.node, transition.unschedulable) {
                node.unschedulable = unschedulable;
                node.cordoned_by = CordonedBy::Haulout;
            }
            if transition.fulfilled.is_some() {
                seen.request = None;
            }
            if transition.record.phase() != record.phase() {
                seen.record_seen.phase_at = now.monotonic;
            }
            seen.record_seen.at = now;
            record = transition.record.clone();
            chain.push(record.phase_name());
        }
        panic!("no end to {chain:?} with {seen:#?}");
    });
}

#[test]
fn without_vcenter_or_kubernetes_nothing_begins() {
    for record in records() {
        for sources in [
            SourceState::NoVcenter {
                why: "down".to_owned(),
            },
            SourceState::NoKubernetes {
                why: "down".to_owned(),
            },
        ] {
            for vm in vms() {
                let mut seen = observed(node(), crate::facts::vm(Some(PowerState::On), entering()));
                seen.vm = vm.vm;
                seen.sources = sources.clone();
                let policy = policy(DrainTimeoutAction::PowerOff);
                let decision = decide(&record, &seen, &policy, moment(100_000));
                assert!(
                    matches!(decision, Decision::Wait { .. }),
                    "{record:?} {decision:?}"
                );
            }
        }
    }
}

#[test]
fn node_with_skip_is_left_alone_in_every_phase() {
    for record in records() {
        for vm in vms() {
            for request in requests() {
                let mut seen = observed(node(), crate::facts::vm(Some(PowerState::On), entering()));
                seen.node.as_mut().unwrap().overrides.skip = true;
                seen.vm = vm.vm.clone();
                seen.request = request;
                let policy = policy(DrainTimeoutAction::PowerOff);
                let decision = decide(&record, &seen, &policy, moment(2));
                assert!(
                    matches!(decision, Decision::Wait { .. } | Decision::Idle),
                    "{record:?} {decision:?}"
                );
                let is_reported = match &decision {
                    Decision::Wait { waiting_on, .. } => *waiting_on == WaitingOn::Skip,
                    _ => false,
                };
                assert!(
                    is_reported || record.episode().is_none(),
                    "{record:?} {decision:?}"
                );
            }
        }
    }
}

#[test]
fn without_its_node_object_an_episode_waits_or_brings_its_vm_back() {
    let mut brought_back = 0;
    for record in records() {
        for vm in vms() {
            for has_copy in [false, true] {
                let mut seen = observed(node(), crate::facts::vm(Some(PowerState::On), entering()));
                seen.node = None;
                seen.vm = vm.vm.clone();
                seen.has_copy = has_copy;
                let policy = policy(DrainTimeoutAction::PowerOff);
                let decision = decide(&record, &seen, &policy, moment(2));
                let rests = matches!(decision, Decision::Idle);
                assert_eq!(rests, record == Record::InService, "{record:?} {decision:?}");
                match &decision {
                    Decision::Write(transition) => {
                        assert!(has_copy && transition.record != Record::InService, "{decision:?}");
                        assert_eq!(transition.unschedulable, None, "there is no Node to cordon");
                    }
                    Decision::Act { effect, .. } => {
                        let brings_back = matches!(
                            effect.kind(),
                            EffectKind::PowerOn | EffectKind::Survey | EffectKind::Relocate
                        );
                        assert!(brings_back, "{record:?} {decision:?}");
                        brought_back += 1;
                    }
                    Decision::Wait { .. } | Decision::Idle => {}
                }
            }
        }
    }
    assert!(brought_back > 100, "{brought_back}");
}

#[test]
fn record_of_another_release_is_left_alone_unless_adopted() {
    for record in records() {
        let Record::Episode(episode) = &record else {
            continue;
        };
        let theirs = Record::Episode(
            Episode {
                release: "gpu/haulout".into(),
                ..Episode::clone(episode)
            }
            .into(),
        );
        for vm in vms() {
            let mut seen = observed(node(), crate::facts::vm(Some(PowerState::On), entering()));
            seen.vm = vm.vm;
            let mut policy = policy(DrainTimeoutAction::PowerOff);
            let decision = decide(&theirs, &seen, &policy, moment(2));
            assert!(
                matches!(
                    &decision,
                    Decision::Wait {
                        waiting_on: WaitingOn::OtherRelease { release },
                        recheck: None
                    } if release == "gpu/haulout"
                ),
                "{decision:?}"
            );
            policy.releases.adopted = std::sync::Arc::new(["gpu/haulout".to_owned()].into());
            let Decision::Write(adopted) = decide(&theirs, &seen, &policy, moment(2)) else {
                panic!("it is not adopted: {theirs:?}");
            };
            assert_eq!(adopted.record.episode().unwrap().release, policy.releases.own);
            assert!(adopted.is_bookkeeping(&theirs));
        }
    }
}

#[test]
fn takeover_writes_the_epoch_first_and_waits_for_the_quarantine() {
    let epoch = 7;
    let (mut written, mut held_back) = (0, 0);
    each_case(11, |record, seen, policy, now| {
        let alone = decide(record, seen, policy, now);
        let again = decide(record, seen, policy, now);
        let law = "1: the same case gives the same answer";
        hold(law, again == alone, record, seen, &alone);
        let end = now.after(Duration::from_secs(5));
        let until = Deadline {
            at: end.monotonic,
            shown: end.wall,
        };
        let leadership = LeadershipEpoch {
            epoch,
            acts_from: Some(until),
        };
        let mut seen = Observed {
            leadership,
            ..seen.clone()
        };
        let first = decide(record, &seen, policy, now);
        let is_to_be_written = seen.node.is_some() || !matches!(first, Decision::Wait { .. });
        let stamped = match (record, &first) {
            (Record::Episode(before), Decision::Write(transition)) => {
                let Record::Episode(after) = &transition.record else {
                    panic!("an episode that another leader wrote is written before it is ended: {first:#?}");
                };
                let since = now.monotonic.since(seen.record_seen.at.monotonic);
                let expected = Episode {
                    epoch,
                    revision: before.revision + 1,
                    ..before.aged(since)
                };
                hold(
                    "14: a takeover writes its epoch and changes nothing else",
                    **after == expected
                        && transition.unschedulable.is_none()
                        && transition.is_bookkeeping(record),
                    record,
                    &seen,
                    &first,
                );
                written += 1;
                transition.record.clone()
            }
            (Record::Episode(_), _) if is_to_be_written && seen.node.is_some() => {
                panic!("an open episode is taken over first: {first:#?}")
            }
            (_, Decision::Write(transition)) => {
                hold(
                    "14: an episode that begins under a leader has its epoch",
                    transition.record.episode().is_none_or(|it| it.epoch == epoch),
                    record,
                    &seen,
                    &first,
                );
                return;
            }
            _ => record.clone(),
        };
        let is_stamped = stamped != *record;
        if is_stamped {
            seen.record_seen.at = now;
        }
        let second = decide(&stamped, &seen, policy, now);
        match (&alone, &second) {
            (Decision::Act { effect, .. }, Decision::Act { effect: other, .. }) => hold(
                "14: in the quarantine effects only read",
                effect == other && !effect.changes_something(),
                record,
                &seen,
                &second,
            ),
            (Decision::Act { .. }, Decision::Wait { waiting_on, recheck }) => {
                hold(
                    "14: an effect waits for the end of the quarantine with that reason",
                    *waiting_on == WaitingOn::Takeover { until: until.shown } && *recheck == Some(until.at),
                    record,
                    &seen,
                    &second,
                );
                held_back += 1;
            }
            (Decision::Write(_), Decision::Write(other)) => hold(
                "14: records continue under the new epoch",
                other.record.episode().is_none_or(|it| it.epoch == epoch),
                record,
                &seen,
                &second,
            ),
            // The elapsed time was recorded with the epoch, so no checkpoint is due.
            (Decision::Write(alone), _) if alone.is_bookkeeping(record) => {}
            // The displayed deadline counts from the record that was seen last.
            (Decision::Wait { .. }, Decision::Wait { .. }) if is_stamped => {}
            (alone, second) => hold("14: nothing else changes", alone == second, record, &seen, second),
        }
        let after = decide(&stamped, &seen, policy, end);
        hold(
            "14: the quarantine ends",
            !matches!(
                &after,
                Decision::Wait {
                    waiting_on: WaitingOn::Takeover { .. },
                    ..
                }
            ),
            record,
            &seen,
            &after,
        );
    });
    println!("{written} takeovers, {held_back} effects held back");
    assert!(written > 0 && held_back > 0, "the enumeration has shrunk");
}
