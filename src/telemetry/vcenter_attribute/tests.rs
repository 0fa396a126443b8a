use haulout_core::fixtures::{self, at, host_named, host_ref, name, node, transition, vm_ref};

use super::*;
use crate::ids::EpisodeId;
use crate::maintenance::decide::Transition;
use crate::maintenance::episode::{Episode, EpisodeResult, HostIdentity, Phase};
use crate::maintenance::observed::{BoundVm, HostState, ObservedVm, PowerState};
use crate::maintenance::waiting::WaitingOn;

fn episode(n: usize) -> Record {
    fixtures::record(Episode {
        host: HostIdentity {
            moref: Some(host_ref(n)),
            ..host_named("esx-1")
        },
        vm: Some(vm_ref(n)),
        ..fixtures::episode(Phase::Draining, 0)
    })
}

fn attribute() -> VcenterAttribute {
    VcenterAttribute::new(AttributeBoard::default(), || at(60))
}

fn recorded(attribute: &VcenterAttribute, before: &Record, transition: &Transition) {
    let event = NodeEvent::Recorded {
        node: Some(&node()),
        vm: &BoundVm::NotLookedUp,
        before,
        transition,
        wrote: (at(0), at(0)),
    };
    attribute.observe(&name(1), event);
}

fn waits(attribute: &VcenterAttribute, record: &Record, on: &WaitingOn) {
    let event = NodeEvent::Waits {
        node: None,
        vm: &BoundVm::NotLookedUp,
        record,
        on,
    };
    attribute.observe(&name(1), event);
}

/// What is to be set on the VM, as if it were set at once.
fn take(attribute: &VcenterAttribute) -> Option<String> {
    attribute.board.with(|values| {
        let far = Instant::now() + std::time::Duration::from_secs(3600);
        let mut found = None;
        while let Some((entity, value)) = values.take(far) {
            values.set(&entity, value.clone(), Instant::now());
            if entity == Entity::Vm(vm_ref(1)) {
                found = Some(value);
            }
        }
        found
    })
}

#[tokio::test]
async fn value_is_the_phase_and_then_the_wait_and_is_cleared_at_the_end() {
    let attribute = attribute();
    let record = episode(1);
    recorded(&attribute, &Record::InService, &transition(record.clone()));
    let node = name(1);
    assert_eq!(take(&attribute), Some(format!("Haulout, node {node}, Draining")));
    let approval = WaitingOn::Approval {
        episode: EpisodeId::new("00112233445566778899aabbccddeeff"),
    };
    waits(&attribute, &record, &approval);
    let value = take(&attribute).unwrap();
    assert!(
        value.starts_with(&format!("Haulout, node {node}, Draining: waits since ")),
        "{value}"
    );
    // The same wait, and one that is over in a moment.
    waits(&attribute, &record, &approval);
    waits(&attribute, &record, &WaitingOn::VmLookup);
    assert_eq!(take(&attribute), None);
    let end = Transition {
        ended: Some(EpisodeResult::Succeeded),
        ..transition(Record::InService)
    };
    recorded(&attribute, &record, &end);
    assert_eq!(take(&attribute).as_deref(), Some(""));
}

#[tokio::test]
async fn end_of_an_actor_clears_nothing() {
    let attribute = attribute();
    recorded(&attribute, &Record::InService, &transition(episode(1)));
    assert!(take(&attribute).is_some());
    attribute.gone(&name(1));
    assert_eq!(take(&attribute), None);
}

#[tokio::test]
async fn end_clears_a_value_of_an_earlier_process() {
    let attribute = attribute();
    let end = Transition {
        ended: Some(EpisodeResult::Succeeded),
        ..transition(Record::InService)
    };
    recorded(&attribute, &episode(1), &end);
    assert_eq!(take(&attribute).as_deref(), Some(""));
}

/// The status of a node with this record and this VM.
fn status(n: usize, record: &Record, is_known: bool) -> (NodeName, Arc<NodeStatus>) {
    let mut status = NodeStatus::of(&fixtures::snapshot(record.clone(), HostState::InService));
    status.vm = BoundVm::Found(ObservedVm {
        moref: vm_ref(n),
        ..fixtures::vm(Some(PowerState::On), HostState::InService)
    });
    status.is_known = is_known;
    (name(n), Arc::new(status))
}

fn statuses(nodes: Vec<(NodeName, Arc<NodeStatus>)>) -> NodeStatuses {
    nodes.into_iter().collect()
}

#[test]
fn leftovers_are_objects_without_an_episode_of_nodes_that_are_known() {
    let mut leftovers = Leftovers::default();
    let hosts = || [1, 2].map(host_ref).to_vec();
    let unknown = statuses(vec![status(2, &Record::InService, false)]);
    assert!(!leftovers.take(&unknown, || panic!("nothing is known")));
    let known = statuses(vec![
        status(1, &episode(1), true),
        status(2, &Record::InService, true),
    ]);
    assert!(leftovers.take(&known, hosts));
    let expected = [Entity::Host(host_ref(2)), Entity::Vm(vm_ref(2))];
    assert_eq!(leftovers.entities, expected.into());
    // Each node is looked at once.
    assert!(!leftovers.take(&known, || panic!("it was looked at")));
    for (value, is_ours) in [
        (format!("Haulout, node {}, Draining", name(1)), true),
        (
            format!(
                "Haulout, node {}, Draining: waits | Haulout, node x, Drained",
                name(2)
            ),
            true,
        ),
        (format!("Haulout, node {}0, Draining", name(1)), false),
        ("Haulout".to_owned(), false),
        (String::new(), false),
    ] {
        assert_eq!(leftovers.is_ours(&value), is_ours, "{value}");
    }
}
