//! The dimensions of the enumeration: every record with every combination of facts that can matter together.

use std::collections::BTreeMap;
use std::sync::Arc;

use haulout_core::facts::kubernetes::RequestAction;
use haulout_core::ids::{BootId, EpisodeId, TaskRef, VmRef, VmUuid};
use haulout_core::maintenance::clock::{Elapsed, Monotonic, Now, Timer};
use haulout_core::maintenance::effect::EffectKind;
use haulout_core::maintenance::episode::{
    CordonOwner, DrainEnd, Episode, HostIdentity, InFlight, Phase, PythonEpisode, PythonState, Record,
};
use haulout_core::maintenance::observed::{
    Admission, AttemptOutcome, BoundVm, CordonedBy, DrainReport, EffectAttempt, EffectRefusal,
    FailedMaintenance, HostState, Observed, ObservedNode, ObservedVm, OtherClaimant, PendingEviction,
    PendingReason, PowerState, RetryAdvice, SlotLimit,
};
use haulout_core::maintenance::placement::PlacementOffer;
use haulout_core::maintenance::policy::{DrainTimeoutAction, Policy};
use haulout_core::maintenance::request::Request;
use haulout_core::maintenance::waiting::ParkReason;

use crate::facts::*;

pub fn phases_at_work() -> Vec<Phase> {
    let to = HostIdentity {
        moref: Some(spare()),
        name: "esx-spare".into(),
    };
    vec![
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
    ]
}

pub fn parked(phase: &Phase) -> Phase {
    Phase::Parked {
        reason: ParkReason::VmMissing,
        resume: Box::new(phase.clone()),
        resume_since: at(0),
    }
}

fn cordons() -> Vec<CordonOwner> {
    vec![
        CordonOwner::NotYet,
        CordonOwner::Ours,
        CordonOwner::Theirs,
        CordonOwner::Adopted(Some("python".to_owned())),
    ]
}

/// What may be in flight in vCenter when a record is read.
fn in_flights(phase: &Phase) -> Vec<InFlight> {
    let timer = |seconds: u64| {
        Some(Timer {
            since: at(0),
            elapsed: Elapsed::of(std::time::Duration::from_secs(seconds)),
        })
    };
    let of = |guest_shutdown, power_off| InFlight {
        guest_shutdown,
        power_off,
        is_assumed: false,
        earlier_guest_shutdown: None,
    };
    let mut all = vec![InFlight::default()];
    if matches!(phase, Phase::ShuttingDown(_) | Phase::Rejoining) {
        all.extend([of(timer(10), None), of(timer(1000), timer(0))]);
        all.push(InFlight {
            is_assumed: true,
            ..of(timer(10), None)
        });
    }
    if matches!(phase, Phase::Draining) {
        all.push(InFlight {
            earlier_guest_shutdown: Some(at(0)),
            ..InFlight::default()
        });
    }
    all
}

pub fn records() -> Vec<Record> {
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
            host: "esx1".to_owned(),
            migrated_to_host: None,
            since: at(0),
        }));
    }
    let of_vm = |episode: Episode| {
        Record::Episode(Arc::new(Episode {
            vm_uuid: Some(uuid(8)),
            vm: Some(VmRef::new("vm-1")),
            ..episode
        }))
    };
    for phase in phases_at_work() {
        for cordon in cordons() {
            for powered_off in [false, true] {
                for in_flight in in_flights(&phase) {
                    records.push(of_vm(Episode {
                        in_flight,
                        ..episode(phase.clone(), cordon.clone(), powered_off)
                    }));
                }
            }
        }
        let is_away = !phase.is_draining() && !matches!(phase, Phase::Queued | Phase::Drained);
        for cordon in [CordonOwner::Ours, CordonOwner::Theirs] {
            records.push(of_vm(episode(parked(&phase), cordon, is_away)));
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
        settling(),
        HostState::Quarantined,
        HostState::InService,
    ]
}

/// A VM with the state of its episode's host.
#[derive(Clone)]
pub struct VmCase {
    pub vm: BoundVm,
    pub home: HostState,
}

pub fn vms() -> Vec<VmCase> {
    let of = |vm| VmCase {
        vm,
        home: HostState::InService,
    };
    let known = |power, host: HostState| ObservedVm {
        uuid: Some(uuid(8)),
        ..vm(power, host)
    };
    let found = |vm: ObservedVm| VmCase {
        home: vm.host.clone(),
        vm: BoundVm::Found(vm),
    };
    let mut vms = vec![
        of(BoundVm::NotLookedUp),
        of(BoundVm::Missing { was_known: true }),
        of(BoundVm::Missing { was_known: false }),
        of(BoundVm::NoVm),
        of(BoundVm::OutOfScope),
        of(BoundVm::NoUuid),
        of(BoundVm::Ambiguous(
            [VmRef::new("vm-1"), VmRef::new("vm-2")].into(),
        )),
        of(BoundVm::Shared(vec![haulout_core::ids::NodeName::new("other")])),
        found(known(None, HostState::InService)),
        found(known(Some(PowerState::Suspended), HostState::InService)),
        found(ObservedVm {
            interrupted: Some(FailedMaintenance {
                at: moment(0),
                message: "a timeout".to_owned(),
            }),
            ..known(Some(PowerState::On), HostState::InService)
        }),
    ];
    for host in host_states() {
        for drs in [false, true] {
            for power in [Some(PowerState::On), Some(PowerState::Off)] {
                vms.push(found(ObservedVm {
                    drs,
                    ..known(power, host.clone())
                }));
            }
        }
    }
    vms.push(found(ObservedVm {
        other_claimants: vec![OtherClaimant {
            node: haulout_core::ids::NodeName::new("other"),
            ready: true,
            ready_since: None,
            registered_at: at(-1_000),
        }],
        ..known(Some(PowerState::On), entering())
    }));
    for host in [entering(), HostState::InMaintenance, HostState::InService] {
        for power in [Some(PowerState::On), Some(PowerState::Off)] {
            vms.push(found(ObservedVm {
                evacuation_power_off: true,
                ..known(power, host.clone())
            }));
        }
    }
    for power in [Some(PowerState::On), Some(PowerState::Off)] {
        // Another VM than the one that the episode began with.
        vms.push(found(ObservedVm {
            moref: VmRef::new("vm-other"),
            uuid: VmUuid::parse("4215e1a2-7c3d-9e4f-0102-0304050607ff"),
            ..known(power, entering())
        }));
        // On another host, while its own one is still entering maintenance or is back.
        for (host, home) in [
            (HostState::InService, HostState::InMaintenance),
            (HostState::InService, HostState::InService),
            (entering(), HostState::InService),
        ] {
            vms.push(VmCase {
                vm: BoundVm::Found(ObservedVm {
                    host_ref: Some(spare()),
                    host_name: "esx-spare".to_owned(),
                    ..known(power, host)
                }),
                home,
            });
        }
    }
    vms
}

pub fn nodes() -> Vec<ObservedNode> {
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
            nodes.push(ObservedNode {
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

pub fn held() -> PendingEviction {
    PendingEviction {
        name: "ml/train".to_owned(),
        why: PendingReason::Budget {
            message: String::new(),
            names: vec!["b".to_owned()],
        },
    }
}

pub fn report(listed_at: Monotonic, pods_revision: u64, left: Vec<PendingEviction>) -> DrainReport {
    DrainReport {
        pods_revision,
        ..drain_report(listed_at, left)
    }
}

/// A report with all budgets watched.
pub fn watched(mut report: DrainReport) -> DrainReport {
    report.follow(None, |_, _| true);
    report
}

fn drains() -> Vec<Option<DrainReport>> {
    let at = |seconds| moment(seconds).monotonic;
    vec![
        None,
        Some(report(at(1), 0, vec![])),
        Some(report(at(-1), 0, vec![])),
        Some(report(at(1), 9, vec![])),
        Some(report(at(1), 0, vec![held()])),
    ]
}

/// The last attempt of each kind, all with one outcome.
pub fn tried(kinds: &[EffectKind], outcome: &AttemptOutcome) -> BTreeMap<EffectKind, EffectAttempt> {
    let attempt = EffectAttempt {
        at: moment(1),
        host: None,
        task: None,
        refusals: 1,
        refused_since: moment(1),
        tries: 1,
        outcome: outcome.clone(),
    };
    kinds.iter().map(|kind| (*kind, attempt.clone())).collect()
}

pub fn refused(advice: RetryAdvice) -> AttemptOutcome {
    AttemptOutcome::Refused(EffectRefusal {
        advice,
        message: "no".to_owned(),
    })
}

pub const EFFECTS: [EffectKind; 5] = [
    EffectKind::ShutdownGuest,
    EffectKind::PowerOff,
    EffectKind::Relocate,
    EffectKind::PowerOn,
    EffectKind::Survey,
];

fn attempts() -> Vec<BTreeMap<EffectKind, EffectAttempt>> {
    let all = |outcome: AttemptOutcome| tried(&EFFECTS, &outcome);
    vec![
        BTreeMap::new(),
        all(AttemptOutcome::Asked),
        all(AttemptOutcome::Running(TaskRef::new("task-2"))),
        all(AttemptOutcome::Done),
        all(refused(RetryAdvice::OtherHost)),
        all(refused(RetryAdvice::NoTools)),
        all(refused(RetryAdvice::Unanswered)),
    ]
}

fn offers() -> Vec<PlacementOffer> {
    vec![
        PlacementOffer::default(),
        PlacementOffer {
            fits: Some((spare(), "esx-spare".to_owned())),
            ..PlacementOffer::default()
        },
        PlacementOffer {
            survey: vec![spare()],
            ..PlacementOffer::default()
        },
    ]
}

/// Requests of a person, independent of the host.
pub fn requests() -> Vec<Option<Request>> {
    vec![
        None,
        Some(request(RequestAction::Drain)),
        Some(request(RequestAction::PowerOff)),
        Some(request(RequestAction::Relocate { to: None })),
        Some(request(RequestAction::Reboot)),
    ]
}

pub fn asks_for(request: &Option<Request>, action: &RequestAction) -> bool {
    request.as_ref().is_some_and(|request| request.action == *action)
}

/// The previous episode, if its power-off took effect after its end.
pub fn ended() -> EpisodeId {
    EpisodeId::new("ffeeddccbbaa99887766554433221100")
}

/// Each record with the requests that matter to it. A parked phase is judged as the one that it resumes, so requests
/// and owners of the cordon are enumerated with that one.
fn of_requests<'a>(
    records: &'a [Record],
    requests: &'a [Option<Request>],
) -> Vec<(&'a Record, &'a Option<Request>)> {
    let matters = |record: &Record, request: &Option<Request>| {
        let is_parked = matches!(record.phase(), Some(Phase::Parked { .. }));
        let is_common = record.episode().is_none_or(|it| it.cordon == CordonOwner::Ours);
        request.is_none() || (!is_parked && is_common) || asks_for(request, &RequestAction::PowerOff)
    };
    let mut pairs = Vec::new();
    for record in records {
        let those = requests.iter().filter(|request| matters(record, request));
        pairs.extend(those.map(|request| (record, request)));
    }
    pairs
}

/// Whether one test run takes only a part of the cases: `HAULOUT_CASES_EVERY=13` takes every thirteenth, which `make mutants`
/// needs to end in a day. No dimension is a multiple of 11 or 13, so every such part covers all values.
fn cases_every() -> usize {
    let set = std::env::var("HAULOUT_CASES_EVERY").ok();
    set.and_then(|every| every.parse().ok()).unwrap_or(1)
}

/// Calls `check` with every case where `every` is 1, and with every eleventh where it is 11. Returns how many there are in all.
pub fn each_case(every: usize, mut check: impl FnMut(&Record, &Observed, &Policy, Now)) -> usize {
    let every = every * cases_every();
    let policies = [
        policy(DrainTimeoutAction::PowerOff),
        policy(DrainTimeoutAction::Hold),
    ];
    let (vms, nodes, drains, attempts, offers) = (vms(), nodes(), drains(), attempts(), offers());
    let behind = Admission::Queued {
        ahead: vec![],
        position: 1,
        limit: SlotLimit::ConcurrentDrains(1),
    };
    let mut cases = 0;
    let requests = requests();
    for (record, request) in &of_requests(&records(), &requests) {
        for vm in &vms {
            let mut seen = observed(node(), crate::facts::vm(Some(PowerState::On), HostState::Unknown));
            seen.vm = vm.vm.clone();
            seen.home = vm.home.clone();
            seen.request.clone_from(request);
            // The owner of the cordon matters only at the end, and the reason of a refusal only during attempts. Each
            // is enumerated without a request, and half of them with one.
            let part = if request.is_some() { 2 } else { 1 };
            // Once with a copy of the record and once without, because its index decides about that.
            let no_node = [None, None];
            let nodes = nodes.iter().step_by(part).map(Some).chain(no_node);
            for (index_of_node, node) in nodes.enumerate() {
                seen.node = node.cloned();
                seen.has_copy = index_of_node % 2 == 0;
                for (index, attempts) in attempts.iter().enumerate().step_by(part) {
                    seen.attempts = attempts.clone();
                    seen.record_seen.from_the_start = (index_of_node + index) % 3 != 0;
                    // Facts that cannot matter together are not combined: drains matter while the VM is on, offers
                    // while it is off or moving, and targets while it is being relocated.
                    let off = vm.vm.found().is_some_and(|vm| vm.power == Some(PowerState::Off));
                    let looked_at = if asks_for(request, &RequestAction::Relocate { to: None }) {
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
                        cases += 1;
                        if cases % every != 0 {
                            continue;
                        }
                        seen.late_power_off_of = (off && situation % 2 == 1).then(ended);
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
                        for now in [moment(2), moment(100_000)] {
                            check(record, &seen, policy, now);
                        }
                    }
                }
            }
        }
    }
    cases
}
