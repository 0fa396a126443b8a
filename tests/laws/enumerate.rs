//! Every phase with every combination of facts: some millions of cases, each checked against the laws.

use std::collections::BTreeMap;
use std::sync::Arc;

use haulout::ids::{BootId, EpisodeId, TaskRef};
use haulout::maintenance::decide::{Decision, Transition, decide};
use haulout::maintenance::effect::{Effect, EffectKind};
use haulout::maintenance::episode::{
    Cordon, DrainEnd, Ended, Episode, HostMark, Phase, PythonEpisode, PythonState, Record,
};
use haulout::maintenance::observed::{
    Admission, Advice, Attempt, CordonedBy, DrainReport, Hearing, HostState, Lead, Limit, NodeSeen, Observed,
    Outcome, PodLeft, PodLeftBecause, PowerSeen, Refusal, VmFacts, VmSeen,
};
use haulout::maintenance::placement::Offer;
use haulout::maintenance::policy::{DrainTimeoutAction, Policy};
use haulout::maintenance::request::{Action, Request};
use haulout::maintenance::waiting::{ParkReason, WaitingOn};
use jiff::Timestamp;

use crate::facts::*;

fn phases() -> Vec<Phase> {
    let to = HostMark {
        moref: Some(spare()),
        name: "esx-spare".into(),
    };
    let at_work = vec![
        Phase::Queued,
        Phase::Draining,
        Phase::Drained,
        Phase::ShuttingDown(DrainEnd::Complete),
        Phase::ShuttingDown(DrainEnd::TimedOut),
        Phase::Relocating { to },
        Phase::AwaitingHost,
        Phase::PoweringOn { by_drs: false },
        Phase::PoweringOn { by_drs: true },
        Phase::Rejoining,
    ];
    let parked = at_work.iter().map(|phase| Phase::Parked {
        reason: ParkReason::VmMissing,
        resume: Box::new(phase.clone()),
        resume_since: at(0),
    });
    at_work.iter().cloned().chain(parked).collect()
}

fn cordons() -> Vec<Cordon> {
    vec![
        Cordon::NotYet,
        Cordon::Ours,
        Cordon::Theirs,
        Cordon::Adopted(Some("python".to_owned())),
    ]
}

fn records() -> Vec<Record> {
    let mut records = vec![
        Record::InService,
        Record::Unreadable {
            why: "nonsense".to_owned(),
        },
    ];
    for state in [
        PythonState::Draining,
        PythonState::PoweredOff,
        PythonState::Migrated,
    ] {
        records.push(Record::Python(PythonEpisode {
            state,
            host: "esx-home".to_owned(),
            migrated_to_host: None,
            since: at(0),
        }));
    }
    for phase in phases() {
        for cordon in cordons() {
            let off = !matches!(
                phase.at_work(),
                Phase::Queued | Phase::Draining | Phase::Drained | Phase::ShuttingDown(_)
            );
            records.push(Record::Episode(Arc::new(episode(phase.clone(), cordon, off))));
        }
    }
    records
}

fn host_states() -> Vec<HostState> {
    vec![
        HostState::Unknown,
        HostState::Unreachable,
        entering(),
        HostState::InMaintenance,
        HostState::Quarantined,
        HostState::InService,
    ]
}

fn vms() -> Vec<VmSeen> {
    let mut vms = vec![
        VmSeen::NotLookedUp,
        VmSeen::Missing,
        VmSeen::Ambiguous([haulout::ids::VmRef::new("vm-1"), haulout::ids::VmRef::new("vm-2")].into()),
        VmSeen::Shared(vec![haulout::ids::NodeName::new("other")]),
        VmSeen::Found(vm(PowerSeen::Unknown, HostState::InService)),
        VmSeen::Found(vm(PowerSeen::Suspended, HostState::InService)),
    ];
    for host in host_states() {
        for drs in [false, true] {
            vms.push(VmSeen::Found(VmFacts {
                drs,
                ..vm(PowerSeen::On, host.clone())
            }));
            vms.push(VmSeen::Found(VmFacts {
                drs,
                ..vm(PowerSeen::Off, host.clone())
            }));
        }
    }
    vms
}

fn nodes() -> Vec<NodeSeen> {
    let mut nodes = Vec::new();
    for (ready, boot, count) in [
        (false, Some(old_boot()), 2),
        (true, Some(old_boot()), 2),
        (true, Some(BootId::new("boot-after")), 2),
        (true, Some(BootId::new("boot-after")), 1),
        (true, None, 2),
    ] {
        for (unschedulable, by) in [
            (false, CordonedBy::Unknown),
            (true, CordonedBy::Haulout),
            (true, CordonedBy::Other("kubectl-cordon".to_owned())),
        ] {
            nodes.push(NodeSeen {
                ready,
                boot_id: boot.clone(),
                gpus: gpus(count).into(),
                unschedulable,
                cordoned_by: by,
                ..node()
            });
        }
    }
    nodes
}

fn drains() -> Vec<Option<DrainReport>> {
    let report = |listed_at, pods_revision, left: Vec<PodLeft>| {
        Some(DrainReport {
            listed_at,
            pods_revision,
            left,
            moved_at: None,
            listed: 0,
            ignored: 0,
            evicted: 0,
        })
    };
    let held = PodLeft {
        name: "ml/train".to_owned(),
        why: PodLeftBecause::Budget {
            said: String::new(),
            names: vec!["b".to_owned()],
        },
    };
    vec![
        None,
        report(at(1), 0, vec![]),
        report(at(-1), 0, vec![]),
        report(at(1), 9, vec![]),
        report(at(1), 0, vec![held]),
    ]
}

fn attempts() -> Vec<BTreeMap<EffectKind, Attempt>> {
    let all = |outcome: Outcome| {
        [
            EffectKind::ShutdownGuest,
            EffectKind::PowerOff,
            EffectKind::Relocate,
            EffectKind::PowerOn,
            EffectKind::Survey,
        ]
        .into_iter()
        .map(|kind| {
            (
                kind,
                Attempt {
                    at: at(1),
                    host: None,
                    task: None,
                    refusals: 1,
                    outcome: outcome.clone(),
                },
            )
        })
        .collect()
    };
    let refused = |advice| {
        Outcome::Refused(Refusal {
            advice,
            said: "no".to_owned(),
        })
    };
    vec![
        BTreeMap::new(),
        all(Outcome::Asked),
        all(Outcome::Running(TaskRef::new("task-2"))),
        all(Outcome::Done),
        all(refused(Advice::OtherHost)),
        all(refused(Advice::NoTools)),
    ]
}

fn offers() -> Vec<Offer> {
    vec![
        Offer::default(),
        Offer {
            fits: Some((spare(), "esx-spare".to_owned())),
            ..Offer::default()
        },
        Offer {
            survey: vec![spare()],
            ..Offer::default()
        },
    ]
}

/// What a person may ask for beside whatever the host does.
fn requests() -> Vec<Option<Request>> {
    vec![
        None,
        Some(request(Action::Drain)),
        Some(request(Action::PowerOff)),
        Some(request(Action::Relocate { to: None })),
        Some(request(Action::Reboot)),
    ]
}

/// The episode before, where a power-off of it arrived after its end.
fn ended() -> EpisodeId {
    EpisodeId::new("ffeeddccbbaa99887766554433221100")
}

/// Calls `check` with every case.
fn each_case(mut check: impl FnMut(&Record, &Observed, &Policy, Timestamp)) -> usize {
    let policies = [
        policy(DrainTimeoutAction::PowerOff),
        policy(DrainTimeoutAction::Hold),
    ];
    let (vms, nodes, drains, attempts, offers) = (vms(), nodes(), drains(), attempts(), offers());
    let behind = Admission::Behind {
        ahead: vec![],
        limit: Limit::ConcurrentDrains(1),
    };
    let mut cases = 0;
    let requests = requests();
    for (record, request) in &of_requests(&records(), &requests) {
        for vm in &vms {
            let mut seen = observed(node(), self::vm(PowerSeen::On, HostState::Unknown));
            seen.vm = vm.clone();
            seen.request.clone_from(request);
            // Who cordoned matters at the end alone, and how a try was refused while something is tried: each is walked
            // through without a request, and half of them with one.
            let part = if request.is_some() { 2 } else { 1 };
            for node in nodes.iter().step_by(part) {
                seen.node = Some(node.clone());
                for (index, attempts) in attempts.iter().enumerate().step_by(part) {
                    seen.attempts = attempts.clone();
                    // What cannot matter together is not multiplied: drains matter while the VM is on, offers while it
                    // is off or is to be moved, and targets while it is being relocated.
                    let off = matches!(
                        vm,
                        VmSeen::Found(VmFacts {
                            power: PowerSeen::Off,
                            ..
                        })
                    );
                    let looked_at = if asks_for(request, &Action::Relocate { to: None }) {
                        offers.len()
                    } else {
                        1
                    };
                    let situations = if off {
                        offers.len() * 2
                    } else {
                        drains.len() * 2 * looked_at
                    };
                    for situation in 0..situations {
                        seen.stray_of = (off && situation % 2 == 1).then(ended);
                        if off {
                            seen.offer = offers[situation / 2].clone();
                            seen.target = if situation % 2 == 0 {
                                HostState::InService
                            } else {
                                entering()
                            };
                        } else {
                            seen.drain = drains[situation / 2 % drains.len()].clone();
                            seen.offer = offers[situation / 2 / drains.len()].clone();
                            seen.admission = if situation % 2 == 0 {
                                Admission::Granted
                            } else {
                                behind.clone()
                            };
                        }
                        let policy = &policies[(index / part) % 2];
                        for now in [at(2), at(100_000)] {
                            check(record, &seen, policy, now);
                            cases += 1;
                        }
                    }
                }
            }
        }
    }
    cases
}

fn found(seen: &Observed) -> Option<&VmFacts> {
    match &seen.vm {
        VmSeen::Found(vm) => Some(vm),
        _ => None,
    }
}

/// The states of a host in the laws' own words, so that the functions they are about are not asked about themselves.
fn leaving(host: &HostState) -> bool {
    matches!(host, HostState::Entering { .. } | HostState::InMaintenance)
}

fn out(host: &HostState) -> bool {
    matches!(host, HostState::InService | HostState::Quarantined)
}

fn in_service(host: &HostState) -> bool {
    matches!(host, HostState::InService)
}

/// Whether anything asks for the VM to be off, in the laws' own words: its host, or a person.
fn down(seen: &Observed, vm: &VmFacts) -> bool {
    let asked = match seen.request.as_ref().map(|request| &request.action) {
        None | Some(Action::Drain) => false,
        Some(Action::PowerOff | Action::Relocate { .. } | Action::Reboot) => true,
    };
    leaving(&vm.host) || (asked && out(&vm.host))
}

/// Whether a move is asked for, and nothing else calls the VM away: there is to be a place before anything is done.
fn placed_first(seen: &Observed, vm: &VmFacts) -> bool {
    asks(seen, &Action::Relocate { to: None }) && !leaving(&vm.host)
}

/// Whether anything asks for the node to be drained.
fn called(seen: &Observed, vm: &VmFacts) -> bool {
    let drain = matches!(&seen.request, Some(request) if request.action == Action::Drain);
    down(seen, vm) || drain
}

fn asks(seen: &Observed, action: &Action) -> bool {
    asks_for(&seen.request, action)
}

fn asks_for(request: &Option<Request>, action: &Action) -> bool {
    request.as_ref().is_some_and(|request| request.action == *action)
}

/// Each record with each request that matters to it: a parked phase is judged as the one that it resumes, so what a person
/// asks is walked through with that one.
fn of_requests<'a>(
    records: &'a [Record],
    requests: &'a [Option<Request>],
) -> Vec<(&'a Record, &'a Option<Request>)> {
    let matters = |record: &Record, request: &Option<Request>| {
        let is_parked = matches!(record.phase(), Some(Phase::Parked { .. }));
        request.is_none() || !is_parked || asks_for(request, &Action::PowerOff)
    };
    let mut pairs = Vec::new();
    for record in records {
        let those = requests.iter().filter(|request| matters(record, request));
        pairs.extend(those.map(|request| (record, request)));
    }
    pairs
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
    let cases = each_case(|record, seen, policy, now| {
        let decision = decide(record, seen, policy, now);
        match &decision {
            Decision::Act { effect, .. } => effect_laws(record, seen, effect, &decision),
            Decision::Record(transition) => transition_laws(record, seen, policy, now, transition, &decision),
            Decision::Wait { .. } => {}
            Decision::Rest => {
                hold(
                    "12: nobody with an episode is forgotten",
                    *record == Record::InService,
                    record,
                    seen,
                    &decision,
                );
            }
        }
        let again = decide(record, seen, policy, now);
        hold(
            "1: the same case gives the same answer",
            again == decision,
            record,
            seen,
            &decision,
        );
    });
    println!("{cases} cases");
    assert!(cases > 500_000, "the enumeration has shrunk to {cases} cases");
}

fn effect_laws(record: &Record, seen: &Observed, effect: &Effect, decision: &Decision) {
    let law = |name: &str, holds: bool| hold(name, holds, record, seen, decision);
    let at_work = record.phase().map(Phase::at_work);
    let cordoned = seen.node.as_ref().is_some_and(|node| node.unschedulable);
    let vm = found(seen);
    law(
        "13: nothing is done to a VM that is not exactly one",
        vm.is_some(),
    );
    let Some(vm) = vm else { return };
    match effect {
        Effect::DrainRound { .. } => {
            law(
                "only a draining node is drained, and one that is kept so",
                matches!(at_work, Some(Phase::Draining | Phase::Drained)) && cordoned,
            );
            law("a node that nothing calls is not drained", called(seen, vm));
        }
        Effect::ShutdownGuest { .. } | Effect::PowerOff { .. } => {
            law(
                "6: the end of the drain is on record",
                matches!(at_work, Some(Phase::ShuttingDown(_))),
            );
            law("6: the cordon holds", cordoned);
            law(
                "6: the VM is on, and its host leaves or a person asks for it to be off",
                vm.power == PowerSeen::On && down(seen, vm),
            );
        }
        Effect::Survey { hosts } => law("a survey asks somebody", !hosts.is_empty()),
        Effect::Relocate { to, .. } => {
            law(
                "9: only a VM that is off is relocated",
                vm.power == PowerSeen::Off,
            );
            law(
                "9: the target takes VMs",
                in_service(&seen.target) && *to == spare(),
            );
        }
        Effect::PowerOn { by_drs, .. } => {
            law(
                "9: powered on only where VMs may run, or where DRS chooses",
                in_service(&vm.host) || (*by_drs && vm.drs),
            );
            law("only a VM that is off is powered on", vm.power == PowerSeen::Off);
            law(
                "what a person asks to be kept off is not powered on",
                !asks(seen, &Action::PowerOff),
            );
        }
    }
}

fn transition_laws(
    record: &Record,
    seen: &Observed,
    policy: &Policy,
    now: Timestamp,
    transition: &Transition,
    decision: &Decision,
) {
    let law = |name: &str, holds: bool| hold(name, holds, record, seen, decision);
    law(
        "a record that is written differs from the one that stands",
        transition.record != *record,
    );
    law(
        "13: what cannot be read is not written over",
        !matches!(record, Record::Unreadable { .. }),
    );
    let before = record.episode();
    let node = seen.node.as_ref().unwrap();
    if *record == Record::InService {
        let is = |power| found(seen).is_some_and(|vm| vm.power == power);
        let begins = is(PowerSeen::On) && found(seen).is_some_and(|vm| called(seen, vm));
        let makes_up = is(PowerSeen::Off) && seen.stray_of.is_some() && seen.request.is_none();
        law(
            "an episode begins where a VM that is on is called out of service, or to make up for a power-off of ours",
            begins || makes_up,
        );
        let granted = seen.admission == Admission::Granted;
        let phase = transition.record.phase();
        let is_placed_first = found(seen).is_some_and(|vm| placed_first(seen, vm));
        law(
            "12: it drains with a place and is queued without one, and to be looked at first if it is to be moved",
            makes_up || (phase == Some(&Phase::Draining)) == (granted && !is_placed_first),
        );
        let cordons = node.unschedulable || transition.unschedulable == Some(true);
        let another_boot = transition
            .record
            .episode()
            .is_some_and(|next| next.powered_off && next.boot_before == node.boot_id);
        law(
            "8: what was off is cordoned, and back on another boot only",
            !makes_up || (phase == Some(&Phase::AwaitingHost) && cordons && another_boot),
        );
    }
    if transition.unschedulable == Some(false) {
        let ours = before.is_some_and(|before| match &before.cordon {
            Cordon::Ours => !matches!(node.cordoned_by, CordonedBy::Other(_)),
            Cordon::Adopted(manager) => match &node.cordoned_by {
                CordonedBy::Other(by) => manager.as_ref() == Some(by),
                _ => true,
            },
            Cordon::NotYet | Cordon::Theirs => false,
        });
        law("7: only our own cordon is taken away", ours);
        law(
            "7: only at the end of an episode",
            transition.record == Record::InService,
        );
    }
    match &transition.record {
        Record::InService => {
            let vm = found(seen);
            law(
                "the end needs a VM that is on and a host that is out",
                vm.is_some_and(|vm| vm.power == PowerSeen::On && out(&vm.host)),
            );
            law(
                "what a person asks to be kept drained or off is not ended",
                !asks(seen, &Action::Drain) && !asks(seen, &Action::PowerOff),
            );
            let request = seen.request.as_ref().map(|request| &request.mark);
            law(
                "a request that is there at the end is fulfilled by it, and no other",
                transition.fulfilled.as_ref() == request,
            );
            law(
                "a restart that is asked for has been one",
                !asks(seen, &Action::Reboot) || before.is_some_and(|before| before.powered_off),
            );
            if before.is_some_and(|before| before.powered_off) {
                law("8: ready", node.ready);
                let boot = node.boot_id.is_some()
                    && node.boot_id != before.and_then(|before| before.boot_before.clone());
                law("8: on another boot", boot);
                law("8: with its GPUs", node.gpus.get(GPU).copied().unwrap_or(0) >= 2);
                let gave_up = before.is_some_and(|before| before.gave_up.is_some());
                law(
                    "it is told as a success, unless what was asked for was given up",
                    transition.ended == Some(if gave_up { Ended::Failed } else { Ended::Succeeded }),
                );
            }
        }
        Record::Episode(next) => {
            let from = before.map(|before| &before.phase);
            let is_unmet = before.is_some_and(|it| it.moved_to.is_none() && it.gave_up.is_none());
            if let Some(vm) = found(seen).filter(|vm| is_unmet && placed_first(seen, vm)) {
                let fits = seen.offer.fits.is_some();
                let is_answered = seen
                    .attempts
                    .get(&EffectKind::Survey)
                    .is_some_and(|attempt| attempt.outcome != Outcome::Asked);
                let goes_down = match (from.map(Phase::at_work), next.phase.at_work()) {
                    (Some(Phase::Queued), Phase::Draining)
                    | (Some(Phase::Draining), Phase::ShuttingDown(_)) => vm.power == PowerSeen::On,
                    _ => false,
                };
                law(
                    "a move that is asked for goes on with the VM on only where there is a place",
                    !goes_down || (fits && is_answered),
                );
                law(
                    "a move that is asked for is given up with the VM on only where there is none",
                    next.gave_up.is_none()
                        || vm.power != PowerSeen::On
                        || (!fits && seen.offer.survey.is_empty()),
                );
            }
            match &next.phase {
                Phase::Draining
                    if from.map(Phase::at_work) != Some(&Phase::Draining)
                        && !matches!(record, Record::Python(_)) =>
                {
                    let cordons = node.unschedulable || transition.unschedulable == Some(true);
                    law("4: cordon and begin are one write", cordons);
                }
                Phase::ShuttingDown(end)
                    if !matches!(from.map(Phase::at_work), Some(Phase::ShuttingDown(_))) =>
                {
                    law(
                        "6: only a draining node goes on to be shut down",
                        from.map(Phase::at_work) == Some(&Phase::Draining),
                    );
                    let since = before.map_or(at(0), |before| before.since).min(at(0));
                    // Said here in its own words, so that the function it is about is not asked about itself.
                    let empty = node.unschedulable
                        && seen.drain.as_ref().is_some_and(|list| {
                            list.left.is_empty()
                                && list.listed_at >= since
                                && list.pods_revision == seen.pods_revision
                        });
                    let timed_out =
                        now >= at(600) && policy.drain_timeout_action == DrainTimeoutAction::PowerOff;
                    match end {
                        DrainEnd::Complete => law("6: a complete list shows no pod", empty),
                        DrainEnd::TimedOut => {
                            law(
                                "6: the drain timeout has passed, and power may be cut then",
                                timed_out,
                            );
                            law(
                                "6: the pods left behind are named",
                                !next.left_behind.is_empty()
                                    || seen.drain.as_ref().is_some_and(|report| report.left.is_empty()),
                            );
                        }
                    }
                }
                Phase::Relocating { to }
                    if !matches!(from.map(Phase::at_work), Some(Phase::Relocating { .. })) =>
                {
                    law(
                        "9: only to the host that is reserved for it",
                        seen.offer.fits.as_ref().map(|(host, _)| host) == to.moref.as_ref(),
                    );
                }
                _ => {}
            }
        }
        Record::Python(_) | Record::Unreadable { .. } => law("only our own records are written", false),
    }
}

#[test]
fn a_vm_that_is_off_without_an_episode_is_brought_back_if_that_was_a_late_power_off_of_ours_and_never_else() {
    let mut brought_back = 0;
    for power in [
        PowerSeen::Unknown,
        PowerSeen::On,
        PowerSeen::Off,
        PowerSeen::Suspended,
    ] {
        for stray_of in [None, Some(ended())] {
            for host in [
                HostState::Unknown,
                HostState::InService,
                HostState::InMaintenance,
                entering(),
            ] {
                for skip in [false, true] {
                    for request in requests() {
                        let mut node = node();
                        node.wishes.skip = skip;
                        let mut seen = observed(node, vm(power, host.clone()));
                        seen.stray_of.clone_from(&stray_of);
                        seen.request.clone_from(&request);
                        let policy = policy(DrainTimeoutAction::PowerOff);
                        let decision = decide(&Record::InService, &seen, &policy, at(2));
                        let is_brought_back = match &decision {
                            Decision::Record(transition) => {
                                transition.record.episode().is_some_and(|episode| {
                                    episode.trigger.stray_of == stray_of && stray_of.is_some()
                                })
                            }
                            Decision::Act { .. } | Decision::Wait { .. } | Decision::Rest => false,
                        };
                        let ours = power == PowerSeen::Off && stray_of.is_some();
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
fn with_the_facts_standing_still_decisions_settle() {
    // Enough for the longest chain there is: adopt, resume, redrain, park.
    const LONGEST: usize = 5;
    each_case(|record, seen, policy, now| {
        let mut record = record.clone();
        let mut seen = seen.clone();
        let mut chain = vec![record.phase_name()];
        for _ in 0..LONGEST {
            let Decision::Record(transition) = decide(&record, &seen, policy, now) else {
                return;
            };
            if let (Some(node), Some(unschedulable)) = (&mut seen.node, transition.unschedulable) {
                node.unschedulable = unschedulable;
                node.cordoned_by = CordonedBy::Haulout;
            }
            if transition.fulfilled.is_some() {
                seen.request = None;
            }
            record = transition.record.clone();
            chain.push(record.phase_name());
        }
        panic!("no end to {chain:?} with {seen:#?}");
    });
}

#[test]
fn without_both_worlds_nothing_is_done_and_nothing_is_written() {
    for record in records() {
        for silent in [
            Hearing::NoVcenter {
                why: "down".to_owned(),
            },
            Hearing::NoKubernetes {
                why: "down".to_owned(),
            },
        ] {
            for vm in vms() {
                let mut seen = observed(node(), self::vm(PowerSeen::On, entering()));
                seen.vm = vm;
                seen.hearing = silent.clone();
                let decision = decide(&record, &seen, &policy(DrainTimeoutAction::PowerOff), at(100_000));
                assert!(
                    matches!(decision, Decision::Wait { .. }),
                    "{record:?} {decision:?}"
                );
            }
        }
    }
}

#[test]
fn every_episode_waits_visibly_when_its_node_object_is_gone() {
    for record in records() {
        let mut seen = observed(node(), vm(PowerSeen::Off, entering()));
        seen.node = None;
        let decision = decide(&record, &seen, &policy(DrainTimeoutAction::PowerOff), at(2));
        let rests = record == Record::InService;
        assert_eq!(
            matches!(decision, Decision::Rest),
            rests,
            "{record:?} {decision:?}"
        );
        assert!(
            rests || matches!(decision, Decision::Wait { .. }),
            "{record:?} {decision:?}"
        );
    }
}

#[test]
fn after_a_takeover_the_epoch_is_written_first_and_no_effect_begins_in_the_quarantine() {
    let epoch = 7;
    let (mut written, mut held_back, mut turn) = (0, 0, 0_usize);
    let cases = each_case(|record, seen, policy, now| {
        // Each case is decided four times here. No dimension of the cases is a multiple of eleven, so that every
        // eleventh meets every value of each.
        turn += 1;
        if !turn.is_multiple_of(11) {
            return;
        }
        let alone = decide(record, seen, policy, now);
        let lead = Lead {
            epoch,
            acts_from: now + jiff::SignedDuration::from_secs(5),
        };
        let seen = Observed { lead, ..seen.clone() };
        let first = decide(record, &seen, policy, now);
        let stamped = match (record, &first) {
            (Record::Episode(before), Decision::Record(transition)) => {
                let Record::Episode(after) = &transition.record else {
                    panic!("an episode that another leader wrote is written before it is ended: {first:#?}");
                };
                let mut expected = Episode::clone(before);
                expected.epoch = epoch;
                hold(
                    "14: a takeover writes its epoch and changes nothing else",
                    **after == expected
                        && transition.unschedulable.is_none()
                        && transition.is_takeover(record),
                    record,
                    &seen,
                    &first,
                );
                written += 1;
                transition.record.clone()
            }
            (Record::Episode(_), _) => panic!("an open episode is taken over first: {first:#?}"),
            (_, Decision::Record(transition)) => {
                hold(
                    "14: what begins under a leader bears its epoch",
                    transition.record.episode().is_none_or(|it| it.epoch == epoch),
                    record,
                    &seen,
                    &first,
                );
                return;
            }
            _ => record.clone(),
        };
        let second = decide(&stamped, &seen, policy, now);
        match (&alone, &second) {
            (Decision::Act { effect, .. }, Decision::Act { effect: other, .. }) => hold(
                "14: in the quarantine is only read",
                effect == other && matches!(effect, Effect::Survey { .. }),
                record,
                &seen,
                &second,
            ),
            (Decision::Act { .. }, Decision::Wait { waiting_on, recheck }) => {
                let until = lead.acts_from;
                hold(
                    "14: an effect waits for the end of the quarantine, and says so",
                    *waiting_on == WaitingOn::Takeover { until } && *recheck == Some(until),
                    record,
                    &seen,
                    &second,
                );
                held_back += 1;
            }
            (Decision::Record(_), Decision::Record(other)) => hold(
                "14: records go on under the new epoch",
                other.record.episode().is_none_or(|it| it.epoch == epoch),
                record,
                &seen,
                &second,
            ),
            (alone, second) => hold("14: nothing else changes", alone == second, record, &seen, second),
        }
        let after = decide(&stamped, &seen, policy, lead.acts_from);
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
    println!("each eleventh of {cases} cases: {written} takeovers, {held_back} effects held back");
    assert!(written > 100_000 && held_back > 2_000);
}
