use haulout_core::fixtures::{self, at, host_named, host_ref, node, transition, vm_ref};

use super::*;
use haulout_core::ids::TaskRef;
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::effect::EffectKind;
use haulout_core::maintenance::episode::{Detection, EpisodeResult, HostIdentity, Phase, Record};
use haulout_core::maintenance::observed::{PendingEviction, PendingReason};
use haulout_core::status::story::NodeStory;

/// An episode in `phase` since `since`.
fn record(phase: Phase, since: i64) -> Record {
    fixtures::record(Episode {
        host: HostIdentity {
            moref: Some(host_ref(1)),
            ..host_named("esx-1")
        },
        vm: Some(vm_ref(1)),
        begun_at: at(10),
        ..fixtures::episode(phase, since)
    })
}

/// What is texts about gpu-1, as seconds since the fixed time go by.
#[derive(Default)]
struct Texts(NodeStory);

impl Texts {
    fn recorded(&mut self, before: &Record, transition: &Transition, now: i64) -> Option<LoggedText> {
        let node = node();
        let event = NodeEvent::Recorded {
            node: Some(&node),
            vm: &BoundVm::NotLookedUp,
            before,
            transition,
            wrote: (at(now), at(now)),
        };
        self.of(event, now)
    }

    fn waits(&mut self, record: &Record, on: &WaitingOn, now: i64) -> Option<String> {
        let event = NodeEvent::Waits {
            node: None,
            vm: &BoundVm::NotLookedUp,
            record,
            on,
        };
        self.of(event, now).map(|it| it.text)
    }

    /// A wait of a node in service, whose VM runs on a host in this state.
    fn waits_on(&mut self, host: HostState, on: &WaitingOn) -> Option<LoggedText> {
        let event = NodeEvent::Waits {
            node: None,
            vm: &BoundVm::Found(fixtures::vm(Some(PowerState::On), host)),
            record: &Record::InService,
            on,
        };
        self.of(event, 30)
    }

    fn of(&mut self, event: NodeEvent<'_>, now: i64) -> Option<LoggedText> {
        let beat = self.0.tell(event, at(now));
        logged_text(&NodeName::new("gpu-1"), &beat, &Links::default())
    }
}

fn held(by: &str) -> WaitingOn {
    WaitingOn::Pods {
        left: vec![PendingEviction {
            name: "ml/train-0".to_owned(),
            why: PendingReason::Budget {
                names: vec![by.to_owned()],
                message: format!("The disruption budget {by} needs 1 healthy pods and has 1 currently"),
            },
        }],
        timeout: None,
    }
}

fn leaving() -> WaitingOn {
    WaitingOn::Pods {
        left: vec![PendingEviction {
            name: "ml/train-0".to_owned(),
            why: PendingReason::Leaving,
        }],
        timeout: None,
    }
}

#[test]
fn change_has_the_text_of_its_event_for_host_and_vm() {
    let mut texts = Texts::default();
    let (drained, off) = (record(Phase::Drained, 50), record(Phase::AwaitingHost, 90));
    let post = texts.recorded(&drained, &transition(off), 90).unwrap();
    assert_eq!(
        post.text,
        "Haulout, node gpu-1: The VM was found powered off in Drained"
    );
    assert_eq!(post.on, [Entity::Host(host_ref(1)), Entity::Vm(vm_ref(1))]);
    assert_eq!(post.urgency, Urgency::Change);
}

#[test]
fn change_without_an_event_names_the_phases_and_the_target() {
    let mut texts = Texts::default();
    let waits = record(Phase::AwaitingHost, 90);
    let to = Phase::Relocating {
        to: host_named("esx-2"),
    };
    let moves = record(to, 100);
    let post = texts.recorded(&waits, &transition(moves.clone()), 100).unwrap();
    assert_eq!(
        post.text,
        "Haulout, node gpu-1: AwaitingHost -> Relocating to esx-2"
    );
    assert_eq!(
        texts
            .waits(
                &moves,
                &WaitingOn::Task {
                    effect: EffectKind::Relocate
                },
                101
            )
            .as_deref(),
        Some(
            "Haulout, node gpu-1, Relocating to esx-2: waits since 2026-11-18T11:08:21Z for vCenter's task to relocate"
        )
    );
}

#[test]
fn end_is_marked_and_names_the_result() {
    let mut texts = Texts::default();
    let before = record(Phase::Rejoining, 90);
    let ended = Transition {
        record: Record::InService,
        unschedulable: Some(false),
        ended: Some(EpisodeResult::Succeeded),
        fulfilled: None,
    };
    let post = texts.recorded(&before, &ended, 100).unwrap();
    assert_eq!(post.urgency, Urgency::Final);
    assert!(
        post.text
            .starts_with("Haulout, node gpu-1: Back in service after 1m30s; uncordoned"),
        "{}",
        post.text
    );
    assert_eq!(post.on.len(), 2);
}

#[test]
fn wait_names_pod_budget_and_since_when_and_is_posted_once() {
    let mut texts = Texts::default();
    let draining = record(Phase::Draining, 20);
    assert_eq!(
        texts.waits(&draining, &held("pdb"), 30).as_deref(),
        Some(
            "Haulout, node gpu-1, Draining: waits since 2026-11-18T11:07:10Z for 1 pod to go; ml/train-0: held by \
             PodDisruptionBudget pdb, which needs 1 healthy pods and has 1 currently"
        )
    );
    assert_eq!(texts.waits(&draining, &WaitingOn::DrainRound, 31), None);
    assert_eq!(texts.waits(&draining, &held("pdb"), 32), None);
    let other = texts.waits(&draining, &held("other"), 40).unwrap();
    assert!(other.contains("since 2026-11-18T11:07:10Z"), "{other}");
    let leaving = texts.waits(&draining, &leaving(), 50).unwrap();
    assert!(
        leaving.contains("since 2026-11-18T11:07:30Z for 1 pod to go"),
        "{leaving}"
    );
}

#[test]
fn same_wait_is_posted_again_in_another_phase() {
    let mut texts = Texts::default();
    let (draining, drained) = (record(Phase::Draining, 20), record(Phase::Drained, 60));
    assert!(texts.waits(&draining, &leaving(), 30).is_some());
    let change = transition(drained.clone());
    assert!(texts.recorded(&draining, &change, 60).is_some());
    let again = texts.waits(&drained, &leaving(), 70).unwrap();
    assert!(again.contains("since 2026-11-18T11:07:50Z"), "{again}");
}

#[test]
fn bookkeeping_and_waits_without_a_known_vm_are_not_posted() {
    let mut texts = Texts::default();
    let draining = record(Phase::Draining, 20);
    assert_eq!(texts.recorded(&draining, &transition(draining.clone()), 30), None);
    assert_eq!(texts.waits(&Record::InService, &WaitingOn::Skip, 30), None);
}

#[test]
fn node_without_an_episode_is_posted_once_for_each_maintenance() {
    let entering = |task: &str| HostState::Entering {
        task: TaskRef::new(task),
        clicked_at: at(0),
        user: None,
        detection: Detection::Pushed,
    };
    let mut texts = Texts::default();
    let post = texts.waits_on(entering("task-1"), &WaitingOn::Skip).unwrap();
    assert_eq!(
        post.text,
        "Haulout, node gpu-1: waits for a person to remove haulout.dev/skip from the Node; until then Haulout leaves it alone"
    );
    assert_eq!(post.on, [Entity::Host(fixtures::home()), Entity::Vm(vm_ref(1))]);
    assert_eq!(texts.waits_on(entering("task-1"), &WaitingOn::Skip), None);
    assert!(texts.waits_on(entering("task-2"), &WaitingOn::Skip).is_some());
    assert_eq!(texts.waits_on(HostState::InService, &WaitingOn::Skip), None);
    assert_eq!(texts.waits_on(entering("task-3"), &WaitingOn::PowerState), None);
}

#[test]
fn write_that_fails_repeatedly_is_posted_once() {
    let mut texts = Texts::default();
    let (before, after) = (record(Phase::Draining, 20), record(Phase::Drained, 30));
    let transition = transition(after);
    let mut fails = |message| {
        let event = NodeEvent::NotRecorded {
            before: &before,
            transition: &transition,
            message,
            attempts: 1,
        };
        texts.of(event, 31).map(|it| it.text)
    };
    assert_eq!(
        fails("refused; trying again in 1s").as_deref(),
        Some("Haulout, node gpu-1: Could not write Drained to the Node: refused; trying again in 1s")
    );
    assert_eq!(fails("refused; trying again in 2s"), None);
}

#[test]
fn episode_without_known_references_is_posted_nowhere() {
    let python = fixtures::record(Episode {
        host: HostIdentity {
            moref: None,
            ..host_named("esx-1")
        },
        vm: None,
        ..fixtures::episode(Phase::Draining, 20)
    });
    let mut texts = Texts::default();
    let text = texts.of(
        NodeEvent::Waits {
            node: None,
            vm: &BoundVm::NotLookedUp,
            record: &python,
            on: &leaving(),
        },
        30,
    );
    assert!(text.unwrap().on.is_empty());
}
