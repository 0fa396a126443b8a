use std::sync::Arc;
use std::time::Duration;

use haulout_core::fixtures::{self, at, host_named as mark, node, transition as to};
use jiff::SignedDuration;

use super::*;
use haulout_core::facts::node_condition::FoundConditions;
use haulout_core::ids::{EpisodeId, TaskRef};
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::effect::EffectKind;
use haulout_core::maintenance::episode::{
    CordonOwner, DrainEnd, Episode, EpisodeResult, FinishedPhase, Phase, PhaseOutcome, PhaseStats, Record,
    Trigger,
};
use haulout_core::maintenance::observed::{
    BoundVm, HostState, PendingEviction, PendingReason, PowerState, SlotLimit,
};
use haulout_core::maintenance::placement::{RejectedHost, RejectionReason};
use haulout_core::maintenance::waiting::{ParkReason, WaitingOn};
use haulout_core::status::statuses;
use haulout_core::status::story::{NodeStory, Severity};

/// An episode that began at 10 s and is in `phase` since `since`.
fn episode(phase: Phase, since: i64) -> Episode {
    Episode {
        id: EpisodeId::new("4bf9"),
        traceparent: "".into(),
        trigger: Trigger {
            task: Some(TaskRef::new("task-9")),
            clicked_at: at(10) - SignedDuration::from_millis(400),
            user: Some("ops".to_owned()),
            detection: None,
            ..fixtures::trigger()
        },
        host: mark("esx-1"),
        begun_at: at(10),
        ..fixtures::episode(phase, since)
    }
}

fn record(phase: Phase, since: i64) -> Record {
    fixtures::record(episode(phase, since))
}

fn parked(reason: ParkReason, resume: Phase, resume_since: i64) -> Phase {
    Phase::Parked {
        reason,
        resume: Box::new(resume),
        resume_since: at(resume_since),
    }
}

fn overdue(phase: &Phase) -> ParkReason {
    ParkReason::Overdue {
        phase: phase.name().to_owned(),
        waiting_on: "the node: it is not Ready".to_owned(),
    }
}

fn ending(ended: EpisodeResult, unschedulable: Option<bool>) -> Transition {
    Transition {
        record: Record::InService,
        unschedulable,
        ended: Some(ended),
        fulfilled: None,
    }
}

fn relocating() -> Phase {
    Phase::Relocating { to: mark("esx-2") }
}

fn powering_on() -> Phase {
    Phase::PoweringOn { by_drs: false }
}

/// The Events about one node, as seconds since the fixed time go by.
#[derive(Debug, Default)]
struct EventsOfNode {
    story: NodeStory,
    memory: EventMemory,
    links: Links,
}

/// Reports a change of record at 100 s. Returns the Event as `Type Reason: note`.
fn recorded(of: &mut EventsOfNode, before: &Record, transition: &Transition) -> String {
    let node = node();
    let event = NodeEvent::Recorded {
        node: Some(&node),
        vm: &BoundVm::NotLookedUp,
        before,
        transition,
        wrote: (at(100), at(100)),
    };
    shown(of, event, 100)
}

fn waits(of: &mut EventsOfNode, record: &Record, on: &WaitingOn, now: i64) -> String {
    let node = node();
    let event = NodeEvent::Waits {
        node: Some(&node),
        vm: &BoundVm::NotLookedUp,
        record,
        on,
    };
    shown(of, event, now)
}

fn shown(of: &mut EventsOfNode, event: NodeEvent<'_>, now: i64) -> String {
    let beat = of.story.tell(event, at(now));
    match of.memory.due(&NodeName::new("gpu-1"), &beat, at(now)) {
        Some(told) => format!("{}: {}", event_type(told), of.links.note(&beat, told)),
        None => "-".to_owned(),
    }
}

fn event_type(told: &Told) -> String {
    let severity = match told.reason.severity() {
        Severity::Normal => "",
        Severity::Warning => "! ",
    };
    format!("{severity}{}", told.reason.name())
}

#[test]
fn transition_creates_at_most_one_event() {
    let adopted = Record::Python(haulout_core::maintenance::episode::PythonEpisode {
        state: haulout_core::maintenance::episode::PythonState::PoweredOff,
        host: "esx-1".to_owned(),
        migrated_to_host: None,
        since: at(0),
    });
    let theirs = Record::Episode(Arc::new(Episode {
        cordon: CordonOwner::Theirs,
        ..episode(Phase::Draining, 10)
    }));
    let recordoned = Record::Episode(Arc::new(Episode {
        recordoned: 1,
        ..episode(Phase::Draining, 100)
    }));
    let left = Record::Episode(Arc::new(Episode {
        left_behind: ["a", "b", "c", "d", "e"].map(|name| format!("ml/{name}")).into(),
        ..episode(Phase::ShuttingDown(DrainEnd::TimedOut), 100)
    }));
    let moved = |phase| {
        Record::Episode(Arc::new(Episode {
            moved_to: Some(mark("esx-2")),
            ..episode(phase, 100)
        }))
    };
    let rebooted = |record: Record| {
        let episode = record.episode().unwrap().clone();
        Record::Episode(Arc::new(Episode {
            drained_boot: Some(haulout_core::ids::BootId::new("another")),
            ..episode
        }))
    };
    let shutting = || Phase::ShuttingDown(DrainEnd::Complete);
    let late = || parked(overdue(&Phase::Rejoining), Phase::Rejoining, 20);
    let table = [
        (
            Record::InService,
            to(record(Phase::Draining, 10)),
            "HostMaintenanceDetected: ESXi host esx-1 is entering maintenance (task-9 by ops); detected after 0.4s; cordoned, pods are being evicted; trace 4bf9",
        ),
        (
            Record::InService,
            to(theirs),
            "HostMaintenanceDetected: ESXi host esx-1 is entering maintenance (task-9 by ops); detected after 0.4s; was cordoned already, pods are being evicted; trace 4bf9",
        ),
        (
            Record::InService,
            to(record(Phase::Queued, 10)),
            "HostMaintenanceDetected: ESXi host esx-1 is entering maintenance (task-9 by ops); detected after 0.4s; waits for a slot; trace 4bf9",
        ),
        (
            adopted,
            to(record(Phase::AwaitingHost, 10)),
            "MaintenanceAdopted: Took over the maintenance of ESXi host esx-1 from the Python controller, in AwaitingHost; trace 4bf9",
        ),
        (
            record(Phase::Queued, 10),
            to(record(Phase::Draining, 100)),
            "DrainStarted: Cordoned after 1m30s in the queue; pods are being evicted for the maintenance of ESXi host esx-1",
        ),
        (
            record(Phase::Rejoining, 10),
            to(record(Phase::Draining, 100)),
            "DrainStarted: Cordoned; pods are being evicted for the maintenance of ESXi host esx-1",
        ),
        (
            record(Phase::Draining, 10),
            to(recordoned),
            "! CordonRestored: The node was uncordoned during the drain; it is cordoned again and the drain starts over",
        ),
        (
            record(shutting(), 10),
            to(rebooted(record(Phase::Draining, 100))),
            "! GuestRestarted: The guest rebooted instead of shutting down; the node is drained again",
        ),
        (
            record(shutting(), 10),
            to(record(Phase::Draining, 100)),
            "DrainStarted: Pods may have started after the drain; they are evicted before the VM is shut down",
        ),
        (
            record(Phase::Draining, 10),
            to(record(shutting(), 100)),
            "DrainSucceeded: Drained in 1m30s; the guest is being shut down",
        ),
        (
            record(Phase::Draining, 10),
            to(left),
            "! DrainTimedOut: Not drained within 1m30s; the guest is being shut down with 5 pods left: ml/a, ml/b, ml/c, 2 more",
        ),
        (
            record(shutting(), 98),
            to(record(Phase::AwaitingHost, 100)),
            "VMPoweredOff: The VM is powered off after 2.0s",
        ),
        (
            record(Phase::Draining, 10),
            to(record(relocating(), 100)),
            "VMPoweredOff: The VM was found powered off in Draining",
        ),
        (
            record(Phase::AwaitingHost, 10),
            to(record(relocating(), 100)),
            "-",
        ),
        (
            record(relocating(), 10),
            to(record(Phase::AwaitingHost, 100)),
            "-",
        ),
        (
            record(Phase::AwaitingHost, 10),
            to(record(powering_on(), 100)),
            "-",
        ),
        (
            record(relocating(), 58),
            to(moved(powering_on())),
            "VMRelocated: The VM was moved from ESXi host esx-1 to esx-2 in 42s",
        ),
        (
            record(powering_on(), 10),
            to(record(Phase::Rejoining, 100)),
            "VMPoweredOn: The VM is powered on, on ESXi host esx-1",
        ),
        (
            record(powering_on(), 10),
            to(moved(Phase::Rejoining)),
            "VMPoweredOn: The VM is powered on, on ESXi host esx-2",
        ),
        (record(shutting(), 10), to(record(Phase::Rejoining, 100)), "-"),
        (
            record(Phase::Rejoining, 20),
            to(record(late(), 100)),
            "! NodeNotReadyAfterPowerOn: Not back in service in time after the power-on, still waiting for the node: it is not Ready",
        ),
        (
            record(Phase::Draining, 20),
            to(record(parked(ParkReason::Uncordoned, Phase::Draining, 20), 100)),
            "! MaintenanceParked: Waiting for a person or a change: the Node is uncordoned again and again; cordon it to continue the drain",
        ),
        (
            record(late(), 40),
            to(record(Phase::Rejoining, 100)),
            "MaintenanceResumed: Rejoining continues after 1m parked",
        ),
        (
            record(parked(ParkReason::VmSuspended, Phase::AwaitingHost, 20), 40),
            to(record(Phase::Rejoining, 100)),
            "VMPoweredOn: The VM is powered on, on ESXi host esx-1",
        ),
        (
            record(Phase::Draining, 10),
            ending(EpisodeResult::Cancelled, Some(false)),
            "MaintenanceCancelled: The maintenance of ESXi host esx-1 was cancelled after 1m30s; uncordoned; trace 4bf9",
        ),
        (
            record(Phase::Rejoining, 10),
            ending(EpisodeResult::Succeeded, None),
            "MaintenanceSucceeded: Back in service after 1m30s; its cordon is kept; trace 4bf9",
        ),
    ];
    for (before, transition, event) in table {
        assert_eq!(
            recorded(&mut EventsOfNode::default(), &before, &transition),
            event,
            "{before:?} -> {transition:?}"
        );
    }
}

#[test]
fn relevant_wait_creates_one_event() {
    let budget = |name: &str, budget: &str| PendingEviction {
        name: format!("ml/{name}"),
        why: PendingReason::Budget {
            names: vec![budget.to_owned()],
            message: format!("The disruption budget {budget} needs 1 healthy pods and has 1 currently"),
        },
    };
    let leaving = PendingEviction {
        name: "ml/gone".to_owned(),
        why: PendingReason::Leaving,
    };
    let webhook = PendingEviction {
        name: "ml/kept".to_owned(),
        why: PendingReason::Refused {
            message: "admission webhook \"keep\" denied the request".to_owned(),
        },
    };
    let exit = |refused| WaitingOn::HostExit {
        host: "esx-1".to_owned(),
        state: "in maintenance mode",
        refused,
    };
    let retry = |effect| WaitingOn::Retry {
        effect,
        message: "NoPermission".to_owned(),
        at: at(200),
    };
    let shutting = || Phase::ShuttingDown(DrainEnd::Complete);
    let table = [
        (
            Phase::Queued,
            WaitingOn::Slot {
                ahead: vec![NodeName::new("gpu-7")],
                position: 1,
                limit: SlotLimit::ConcurrentDrains(1),
            },
            "MaintenanceQueued: Waiting for a slot: at most 1 drained at once, and gpu-7 comes first",
        ),
        (
            Phase::Draining,
            WaitingOn::Pods {
                left: vec![leaving.clone(), budget("trainer-0", "trainer"), webhook.clone()],
                timeout: None,
            },
            "! EvictionBlocked: Cannot evict pod as it would violate the pod's disruption budget. The disruption budget trainer needs 1 healthy pods and has 1 currently: ml/trainer-0",
        ),
        (
            Phase::Draining,
            WaitingOn::Pods {
                left: (0..9)
                    .map(|n| budget(&format!("t-{n}"), if n == 0 { "x" } else { "y" }))
                    .collect(),
                timeout: None,
            },
            "! EvictionBlocked: Cannot evict pods as it would violate the pod's disruption budget. The disruption budget x needs 1 healthy pods and has 1 currently. The disruption budget y needs 1 healthy pods and has 1 currently: ml/t-0, ml/t-1, ml/t-2, 6 more",
        ),
        (
            Phase::Draining,
            WaitingOn::Pods {
                left: vec![leaving],
                timeout: None,
            },
            "-",
        ),
        (
            Phase::Draining,
            WaitingOn::Pods {
                left: vec![webhook],
                timeout: None,
            },
            "! EvictionRefused: Cannot evict ml/kept: admission webhook \"keep\" denied the request",
        ),
        (
            Phase::Draining,
            WaitingOn::DrainHeld {
                left: vec![budget("trainer-0", "trainer")],
            },
            "! DrainTimedOut: Waiting for a person, because the drain timeout passed and DRAIN_TIMEOUT_ACTION is hold: 1 pod to go; ml/trainer-0: held by PodDisruptionBudget trainer, which needs 1 healthy pods and has 1 currently",
        ),
        (shutting(), WaitingOn::GuestShutdown { until: at(200) }, "-"),
        (
            shutting(),
            WaitingOn::Task {
                effect: EffectKind::PowerOff,
            },
            "! GuestShutdownTimedOut: The guest did not shut down within 1m30s; its power is being cut",
        ),
        (
            Phase::AwaitingHost,
            exit(Vec::new()),
            "WaitingForHost: Waiting for ESXi host esx-1 to be back in service",
        ),
        (
            Phase::AwaitingHost,
            exit(vec![RejectedHost {
                host: "esx-2".to_owned(),
                why: RejectionReason::DevicesTaken,
            }]),
            "! NoCompatibleHost: No other host can take the VM: esx-2 has no matching device free. Waiting for ESXi host esx-1 to be back in service",
        ),
        (
            Phase::Draining,
            retry(EffectKind::DrainRound),
            "! EvictionRefused: Could not drain: NoPermission; the next attempt is at 2026-11-18T11:10:00Z",
        ),
        (
            powering_on(),
            retry(EffectKind::PowerOn),
            "! VCenterRequestFailed: Could not power on: NoPermission; the next attempt is at 2026-11-18T11:10:00Z",
        ),
        (
            Phase::AwaitingHost,
            WaitingOn::HostVisible {
                host: "esx-1".to_owned(),
                state: "unreachable",
            },
            "! HostNotVisible: Waiting for host esx-1, which is unreachable",
        ),
        (
            Phase::AwaitingHost,
            WaitingOn::HostSettling {
                host: "esx-1".to_owned(),
                until: at(200),
            },
            "HostSettling: Waiting for host esx-1 to stay until 2026-11-18T11:10:00Z: it came back by itself and may be under repair",
        ),
        (
            powering_on(),
            WaitingOn::Question("I copied it?".to_owned()),
            "! VMQuestionPending: Waiting for a person to answer vCenter's question about the VM: I copied it?",
        ),
        (
            Phase::Rejoining,
            WaitingOn::NodeReady {
                missing: "it is not Ready",
            },
            "-",
        ),
        (
            Phase::Draining,
            WaitingOn::Vcenter {
                why: "down".to_owned(),
            },
            "-",
        ),
    ];
    for (phase, on, event) in table {
        let shown = waits(&mut EventsOfNode::default(), &record(phase, 10), &on, 100);
        assert_eq!(shown, event, "{on:?}");
    }
}

#[test]
fn guest_without_tools_is_not_reported_as_late() {
    let of = &mut EventsOfNode::default();
    let record = record(Phase::ShuttingDown(DrainEnd::Complete), 10);
    waits(of, &record, &WaitingOn::GuestShutdown { until: at(130) }, 11);
    assert_eq!(
        waits(
            of,
            &record,
            &WaitingOn::Task {
                effect: EffectKind::PowerOff
            },
            12
        ),
        "! GuestShutdownUnavailable: The guest cannot be shut down, because VMware Tools do not run; its power is being cut"
    );
}

#[test]
fn repeated_event_is_suppressed_until_the_end() {
    let of = &mut EventsOfNode::default();
    let draining = record(Phase::Draining, 10);
    let held = |pods: &[&str]| {
        let pods = pods.iter().map(|name| PendingEviction {
            name: (*name).to_owned(),
            why: PendingReason::Budget {
                names: vec!["train".to_owned()],
                message: String::new(),
            },
        });
        WaitingOn::Pods {
            left: pods.collect(),
            timeout: None,
        }
    };
    assert_ne!(waits(of, &draining, &held(&["ml/a", "ml/b"]), 20), "-");
    assert_eq!(waits(of, &draining, &held(&["ml/a"]), 21), "-", "the same budget");
    assert_eq!(waits(of, &draining, &held(&["ml/a", "ml/b"]), 619), "-");
    assert_ne!(waits(of, &draining, &held(&["ml/a", "ml/b"]), 620), "-");
    assert_ne!(
        waits(of, &draining, &held(&["ml/a", "ml/b"]), 20 - 7_200),
        "-",
        "the clock was set back"
    );
    recorded(of, &draining, &ending(EpisodeResult::Cancelled, Some(false)));
    assert!(of.memory.sent.is_empty(), "{of:?}");
}

#[test]
fn budget_event_repeats_when_pods_become_too_few() {
    let of = &mut EventsOfNode::default();
    let draining = record(Phase::Draining, 10);
    let held = |words: &str| WaitingOn::Pods {
        left: vec![PendingEviction {
            name: "ml/a".to_owned(),
            why: PendingReason::Budget {
                names: vec!["train".to_owned()],
                message: format!("The disruption budget train {words}"),
            },
        }],
        timeout: None,
    };
    let event = [
        ("needs 3 healthy pods and has 4 currently", true),
        ("needs 3 healthy pods and has 3 currently", false),
        ("is still being processed by the server.", false),
        ("needs 3 healthy pods and has 2 currently", true),
        ("needs 3 healthy pods and has 1 currently", false),
        ("needs 3 healthy pods and has 3 currently", false),
    ];
    for (words, is_sent) in event {
        let shown = waits(of, &draining, &held(words), 20);
        assert_eq!(shown != "-", is_sent, "{words}: {shown}");
        assert!(!is_sent || shown.contains(words), "{shown}");
    }
}

#[test]
fn budget_without_name_or_counts_has_an_event() {
    let draining = record(Phase::Draining, 10);
    let held = |names: &[&str], message: &str| WaitingOn::Pods {
        left: vec![PendingEviction {
            name: "ml/a".to_owned(),
            why: PendingReason::Budget {
                names: names.iter().map(|name| (*name).to_owned()).collect(),
                message: message.to_owned(),
            },
        }],
        timeout: None,
    };
    let table = [
        (held(&[], "no"), "It allows no disruption: ml/a"),
        (
            held(&["train"], "try later"),
            "The disruption budget train allows no disruption: ml/a",
        ),
    ];
    for (on, end) in table {
        let shown = waits(&mut EventsOfNode::default(), &draining, &on, 20);
        assert!(shown.ends_with(end), "{shown}");
    }
}

#[test]
fn node_that_cannot_begin_has_an_event() {
    let unreadable = Record::Unreadable {
        why: "version 9".to_owned(),
    };
    let why = ParkReason::UnreadableRecord {
        why: "version 9".to_owned(),
    };
    assert_eq!(
        waits(
            &mut EventsOfNode::default(),
            &unreadable,
            &WaitingOn::Parked(why),
            20
        ),
        "! MaintenanceParked: Waiting for a person or a change: the episode on the Node cannot be read and is left alone: version 9"
    );
    let of = &mut EventsOfNode::default();
    let two = WaitingOn::Parked(ParkReason::VmAmbiguous { count: 2 });
    assert_eq!(
        waits(of, &Record::InService, &two, 20),
        "! MaintenanceParked: Waiting for a person or a change: 2 VMs match this node; none is changed"
    );
    assert_eq!(waits(of, &Record::InService, &two, 21), "-");
    let none = WaitingOn::Parked(ParkReason::VmMissing);
    assert_eq!(waits(of, &Record::InService, &none, 22), "-");
    assert_eq!(waits(of, &Record::InService, &WaitingOn::VmLookup, 23), "-");
}

#[test]
fn first_and_last_event_link_to_the_trace() {
    let of = &mut EventsOfNode {
        links: Links::new(Some("https://jaeger.example/trace/{trace_id}".to_owned())),
        ..EventsOfNode::default()
    };
    let traced = |phase| {
        Record::Episode(Arc::new(Episode {
            traceparent: "00-4bf9-00f0-01".into(),
            ..episode(phase, 10)
        }))
    };
    let draining = traced(Phase::Draining);
    let link = "; trace https://jaeger.example/trace/4bf9";
    let first = recorded(of, &Record::InService, &to(draining.clone()));
    assert!(first.ends_with(link), "{first}");
    let last = recorded(of, &draining, &ending(EpisodeResult::Cancelled, None));
    assert!(last.ends_with(link), "{last}");
}

#[test]
fn parked_node_has_one_event() {
    let of = &mut EventsOfNode::default();
    let phase = parked(ParkReason::VmSuspended, Phase::Draining, 10);
    let unchanged = record(phase, 100);
    assert_ne!(
        recorded(of, &record(Phase::Draining, 10), &to(unchanged.clone())),
        "-"
    );
    let wait = WaitingOn::Parked(ParkReason::VmSuspended);
    assert_eq!(waits(of, &unchanged, &wait, 101), "-");
    // A restart loses the sent Events.
    assert_ne!(waits(&mut EventsOfNode::default(), &unchanged, &wait, 101), "-");
}

#[test]
fn last_event_has_durations_if_the_history_is_complete() {
    let finished = |phase: Phase, since, until| FinishedPhase {
        phase,
        host: "esx-1".into(),
        since: at(since),
        until: at(until),
        outcome: PhaseOutcome::Passed,
        stats: PhaseStats::default(),
    };
    let history = [
        finished(Phase::Queued, 10, 730),
        finished(Phase::Draining, 730, 1_870),
        finished(Phase::ShuttingDown(DrainEnd::Complete), 1_870, 1_880),
        finished(Phase::AwaitingHost, 1_880, 11_240),
        finished(Phase::Rejoining, 11_240, 11_600),
    ];
    let end = |skip: usize| {
        let Record::Episode(mut episode) = record(Phase::Rejoining, 11_240) else {
            panic!("it is an episode");
        };
        Arc::make_mut(&mut episode).history.finished = history[skip..].to_vec();
        let node = node();
        let event = NodeEvent::Recorded {
            node: Some(&node),
            vm: &BoundVm::NotLookedUp,
            before: &Record::Episode(episode),
            transition: &ending(EpisodeResult::Succeeded, Some(false)),
            wrote: (at(11_600), at(11_600)),
        };
        shown(&mut EventsOfNode::default(), event, 11_600)
    };
    assert_eq!(
        end(0),
        "MaintenanceSucceeded: Back in service after 3h13m (queue 12m, drain 19m10s, host 2h36m, boot 6m); uncordoned; trace 4bf9"
    );
    assert_eq!(
        end(2),
        "MaintenanceSucceeded: Back in service after 3h13m; uncordoned; trace 4bf9"
    );
}

#[test]
fn event_times_are_unique() {
    let memory = &mut EventMemory::default();
    let moments = [memory.moment(at(1)), memory.moment(at(1)), memory.moment(at(0))];
    assert!(moments.is_sorted() && moments[0] < moments[1] && moments[1] < moments[2]);
}

#[test]
fn reasons_and_actions_are_valid() {
    for reason in Reason::ALL {
        for word in [reason.name(), reason.action()] {
            assert!(!word.is_empty() && word.len() <= 128 && word.chars().all(|c| c.is_ascii_alphanumeric()));
        }
        assert_eq!(format!("{reason:?}"), reason.name());
    }
}

/// A Node, and what is written to it as seconds go by.
struct ConditionsOfGpu1 {
    conditions: NodeConditions,
    found: FoundConditions,
    begun: Instant,
}

impl ConditionsOfGpu1 {
    fn new() -> Self {
        Self {
            conditions: NodeConditions::default(),
            found: FoundConditions::default(),
            begun: Instant::now(),
        }
    }

    /// The changes that are written at `seconds` for this record, which the Node does not show yet.
    fn due(&mut self, record: &Record, seconds: u64) -> Vec<String> {
        let mut snapshot = fixtures::snapshot(record.clone(), HostState::InService);
        if let Some(node) = &mut snapshot.observed.node {
            node.conditions = self.found.clone();
        }
        let statuses = statuses(&fixtures::snapshots([(NodeName::new("gpu-1"), snapshot)]));
        let now = self.begun + Duration::from_secs(seconds);
        self.conditions
            .update_statuses(&statuses, &Links::default(), (at(0), now));
        let due = self.conditions.take_due(now).into_iter();
        due.flat_map(|due| due.changes)
            .map(|change| match change.to {
                None => format!("-{}", change.kind),
                Some(state) => format!("{}={}", change.kind, state.is_true),
            })
            .collect()
    }

    /// The Node shows what was written.
    fn shows(&mut self, changes: &[String]) {
        for change in changes {
            match change.split_once('=') {
                Some((kind, is_true)) => self.found.insert(kind.parse().unwrap(), is_true == "true"),
                None => self.found.remove(&change[1..].parse().unwrap()),
            };
        }
    }
}

#[test]
fn conditions_follow_the_phase_and_only_what_changes_is_written() {
    let shutting = || Phase::ShuttingDown(DrainEnd::Complete);
    let table = [
        (record(Phase::Queued, 0), vec!["MaintenancePlanned=true"]),
        (
            record(Phase::Draining, 1),
            vec![
                "DrainInProgress=true",
                "Drained=false",
                "MaintenanceInProgress=false",
            ],
        ),
        (
            record(shutting(), 2),
            vec!["DrainInProgress=false", "Drained=true"],
        ),
        (
            record(Phase::AwaitingHost, 3),
            vec!["MaintenancePlanned=false", "MaintenanceInProgress=true"],
        ),
        (record(powering_on(), 4), vec![]),
        (
            record(parked(overdue(&powering_on()), powering_on(), 0), 5),
            vec![],
        ),
        (
            Record::InService,
            vec![
                "-MaintenancePlanned",
                "-DrainInProgress",
                "-Drained",
                "-MaintenanceInProgress",
            ],
        ),
        (Record::InService, vec![]),
    ];
    let mut node = ConditionsOfGpu1::new();
    for (record, expected) in table {
        let written = node.due(&record, 0);
        assert_eq!(written, expected, "{record:?}");
        node.shows(&written);
    }
}

#[test]
fn conditions_that_a_node_does_not_show_are_written_again_ever_more_rarely() {
    let mut node = ConditionsOfGpu1::new();
    let (queued, draining) = (record(Phase::Queued, 0), record(Phase::Draining, 1));
    let writes = |node: &mut ConditionsOfGpu1, record: &Record, seconds| node.due(record, seconds).len();
    let due = [0, 1, 9, 10, 29, 30, 69, 70].map(|seconds| writes(&mut node, &queued, seconds));
    assert_eq!(due, [1, 0, 0, 1, 0, 1, 0, 1]);
    assert_eq!(
        writes(&mut node, &draining, 71),
        4,
        "something else is to be shown"
    );
    assert_eq!(writes(&mut node, &draining, 72), 0);
}

#[test]
fn conditions_are_left_as_they_are_while_the_record_cannot_be_read() {
    let mut node = ConditionsOfGpu1::new();
    let queued = record(Phase::Queued, 0);
    assert_eq!(node.due(&queued, 0), ["MaintenancePlanned=true"]);
    let unreadable = Record::Unreadable {
        why: "a defect".into(),
    };
    assert_eq!(node.due(&unreadable, 10), [""; 0]);
    assert_eq!(node.due(&queued, 11), ["MaintenancePlanned=true"]);
}

#[test]
fn begin_with_an_evacuation_policy_creates_a_warning_of_its_own() {
    let begins = |power: Option<PowerState>, host: HostState, phase: Phase, is_marked: bool| {
        let mut vm = fixtures::vm(power, host);
        vm.evacuation_power_off = is_marked;
        let (node, vm) = (node(), BoundVm::Found(vm));
        let begun = Episode {
            powered_off: power == Some(PowerState::Off),
            ..episode(phase, 100)
        };
        let transition = to(fixtures::record(begun));
        let event = NodeEvent::Recorded {
            node: Some(&node),
            vm: &vm,
            before: &Record::InService,
            transition: &transition,
            wrote: (at(100), at(100)),
        };
        let more = NodeStory::default().tell(event, at(100)).evacuation();
        let more = more.map(|told| (event_type(&told), told.sentence));
        (shown(&mut EventsOfNode::default(), event, 100), more)
    };
    let entering = fixtures::entering;
    let (begin, more) = begins(Some(PowerState::On), entering(), Phase::Draining, true);
    assert!(begin.contains("cordoned, pods are being evicted"), "{begin}");
    let (what, note) = more.expect("a second Event");
    assert_eq!(what, "! EvacuationPolicy");
    assert!(note.contains("vCenter itself shuts down the VM"), "{note}");

    let (begin, more) = begins(Some(PowerState::Off), entering(), Phase::AwaitingHost, true);
    assert!(begin.contains("cordoned, the VM is off already"), "{begin}");
    let (_, note) = more.expect("a second Event");
    assert!(note.contains("its pods were not evicted"), "{note}");

    for (host, is_marked) in [(entering(), false), (HostState::InService, true)] {
        let (_, more) = begins(Some(PowerState::On), host, Phase::Draining, is_marked);
        assert_eq!(more, None);
    }
}
