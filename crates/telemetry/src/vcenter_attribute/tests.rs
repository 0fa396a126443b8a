use haulout_core::fixtures::{self, at, host_named, host_ref, name, node, transition, vm_ref};

use super::leftovers::{ReadValues, clear};
use super::*;
use crate::sink::Delivery;
use haulout_core::ids::EpisodeId;
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::episode::Record;
use haulout_core::maintenance::episode::{Episode, EpisodeResult, HostIdentity, Phase};
use haulout_core::maintenance::observed::{BoundVm, HostState, ObservedVm, PowerState};
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::NodeStatus;
use haulout_core::status::story::NodeStory;

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

/// The attribute, as the actor of node 1 changes it.
#[derive(Default)]
struct Attribute {
    board: AttributeBoard,
    story: Mutex<NodeStory>,
}

fn attribute() -> Attribute {
    Attribute::default()
}

impl Attribute {
    fn tell(&self, event: NodeEvent<'_>) {
        let beat = self.story.lock().tell(event, at(60));
        self.board.observe(&name(1), &beat);
    }
}

fn recorded(attribute: &Attribute, before: &Record, transition: &Transition) {
    let event = NodeEvent::Recorded {
        node: Some(&node()),
        vm: &BoundVm::NotLookedUp,
        before,
        transition,
        wrote: (at(0), at(0)),
    };
    attribute.tell(event);
}

fn waits(attribute: &Attribute, record: &Record, on: &WaitingOn) {
    let event = NodeEvent::Waits {
        node: None,
        vm: &BoundVm::NotLookedUp,
        record,
        on,
    };
    attribute.tell(event);
}

/// What is to be set on the VM, as if it were set at once.
fn take(attribute: &Attribute) -> Option<String> {
    let set = attribute.board.0.outbox.deliver_all().into_iter();
    let on_vm = set.filter(|(entity, _)| *entity == Entity::Vm(vm_ref(1)));
    on_vm.map(|(_, value)| value).last()
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

/// A process that starts knows the copy of a record before it knows the Node, which says that the episode has ended.
#[tokio::test]
async fn episode_that_may_have_ended_is_not_shown() {
    let attribute = attribute();
    let why = || "the kube-apiserver has not synced yet".to_owned();
    for on in [
        WaitingOn::Kubernetes { why: why() },
        WaitingOn::Vcenter { why: why() },
        WaitingOn::OtherRelease { release: why() },
    ] {
        waits(&attribute, &episode(1), &on);
        assert_eq!(take(&attribute), None, "{on}");
    }
}

/// As where a person removes the record, or the Node is deleted.
#[tokio::test]
async fn episode_that_ends_without_a_transition_is_cleared() {
    let statuses = |record: &Record| -> NodeStatuses {
        let snapshot = fixtures::snapshot(record.clone(), HostState::InService);
        [(name(1), Arc::new(NodeStatus::of(&snapshot)))].into()
    };
    for after in [statuses(&Record::InService), NodeStatuses::new()] {
        let (attribute, record) = (attribute(), episode(1));
        recorded(&attribute, &Record::InService, &transition(record.clone()));
        assert!(take(&attribute).is_some());
        attribute.board.hide_gone(&statuses(&Record::InService));
        assert_eq!(take(&attribute), None, "an older status");
        attribute.board.hide_gone(&statuses(&record));
        assert_eq!(take(&attribute), None, "it goes on");
        attribute.board.hide_gone(&after);
        assert_eq!(take(&attribute).as_deref(), Some(""));
    }
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
    assert!(!leftovers.add(&unknown, || panic!("nothing is known")));
    let known = statuses(vec![
        status(1, &episode(1), true),
        status(2, &Record::InService, true),
    ]);
    assert!(leftovers.add(&known, hosts));
    let expected = [Entity::Host(host_ref(2)), Entity::Vm(vm_ref(2))];
    assert_eq!(leftovers.entities, expected.into());
    // Each node is looked at once.
    assert!(!leftovers.add(&known, || panic!("it was looked at")));
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

fn host(n: usize) -> Entity {
    Entity::Host(host_ref(n))
}

fn vm(n: usize) -> Entity {
    Entity::Vm(vm_ref(n))
}

/// Shows this text of a node, as a change.
fn show(board: &AttributeBoard, n: usize, text: &str, on: Entity) {
    board.set_text(&name(n), text.to_owned(), vec![on], Urgency::Change);
}

/// What is set, in the order of the objects.
fn set(board: &AttributeBoard) -> Vec<(Entity, String)> {
    let mut values = board.0.outbox.deliver_all();
    values.sort();
    values
}

fn values(of: &[(Entity, &str)]) -> Vec<(Entity, String)> {
    let values = of
        .iter()
        .map(|(entity, value)| (entity.clone(), (*value).to_owned()));
    values.collect()
}

#[tokio::test]
async fn host_shows_each_of_its_nodes() {
    let board = AttributeBoard::default();
    for n in [1, 2] {
        show(&board, n, &format!("text {n}"), host(1));
    }
    assert_eq!(set(&board), values(&[(host(1), "text 1 | text 2")]));
    board.hide(&name(1), Vec::new());
    assert_eq!(set(&board), values(&[(host(1), "text 2")]));
}

#[tokio::test]
async fn episode_on_another_host_clears_the_first_one() {
    let board = AttributeBoard::default();
    show(&board, 1, "a", host(1));
    assert_eq!(set(&board), values(&[(host(1), "a")]));
    show(&board, 1, "a", host(2));
    let both = set(&board);
    assert_eq!(both, values(&[(host(1), ""), (host(2), "a")]));
}

#[tokio::test]
async fn value_has_at_most_200_characters() {
    let board = AttributeBoard::default();
    for (characters, end) in [(200, 'ä'), (201, '…')] {
        show(&board, 1, &"ä".repeat(characters), vm(1));
        let (_, value) = set(&board).remove(0);
        assert_eq!(value.chars().count(), 200);
        assert!(value.ends_with(end));
    }
}

/// Answers that these are the values, at the second question.
struct Values(Vec<(Entity, String)>, std::sync::Mutex<u32>);

impl ReadValues for Values {
    async fn values(&self, entities: &[Entity]) -> Result<Vec<(Entity, String)>, Delivery> {
        let mut questions = self.1.lock().unwrap();
        *questions += 1;
        if *questions == 1 {
            return Err(Delivery::Later("no session".to_owned()));
        }
        let mut has = self.0.clone();
        has.retain(|(entity, _)| entities.contains(entity));
        Ok(has)
    }
}

#[tokio::test(start_paused = true)]
async fn leftovers_of_ours_are_cleared_and_others_stay() {
    let ours = |n: usize| (vm(n), format!("Haulout, node {}, Draining", name(n)));
    let has = vec![
        ours(1),
        // Another release's, and a person's.
        (vm(2), "Haulout, node other, Draining".to_owned()),
        (vm(3), "do not touch".to_owned()),
        // It has an episode again.
        ours(4),
    ];
    let board = AttributeBoard::default();
    show(&board, 4, "Draining", vm(4));
    let nodes = (1..=4).map(|n| status(n, &Record::InService, true)).collect();
    board.look_for_leftovers(&statuses(nodes), Vec::new);
    let port = Values(has, std::sync::Mutex::default());
    let clearing = clear(&port, &board);
    // The first question fails, and is repeated.
    let two_minutes = Duration::from_secs(120);
    assert!(tokio::time::timeout(two_minutes, clearing).await.is_err());
    assert_eq!(set(&board), values(&[(vm(1), ""), (vm(4), "Draining")]));
    assert_eq!(*port.1.lock().unwrap(), 2);
}
