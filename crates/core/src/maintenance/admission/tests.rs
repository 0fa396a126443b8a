use jiff::SignedDuration;

use super::*;

const ONE: AdmissionLimits = AdmissionLimits {
    concurrent_drains: 1,
    unavailable: None,
    unavailable_gpus: None,
    power_offs: None,
};

const NOW: Monotonic = Monotonic::since_boot(Duration::from_secs(1000));

fn node(name: &str) -> NodeName {
    NodeName::new(name)
}

fn nodes(names: &[&str]) -> BTreeSet<NodeName> {
    names.iter().map(|name| node(name)).collect()
}

fn queued_node(name: &str, clicked: i64) -> QueuedNode {
    QueuedNode {
        clicked_at: Timestamp::UNIX_EPOCH + SignedDuration::from_secs(clicked),
        node: node(name),
    }
}

fn granted(queue: &AdmissionQueue, names: &[&str], limits: AdmissionLimits) -> Vec<bool> {
    names
        .iter()
        .map(|name| queue.admission(&node(name), limits) == Admission::Granted)
        .collect()
}

#[test]
fn the_first_to_be_clicked_is_the_first_to_be_drained() {
    let mut queue = AdmissionQueue {
        queued: BTreeSet::from([queued_node("a", 20), queued_node("b", 10)]),
        ..AdmissionQueue::default()
    };
    queue.grant(ONE, NOW);
    assert_eq!(granted(&queue, &["a", "b"], ONE), [false, true]);
    let behind = Admission::Queued {
        ahead: vec![node("b")],
        position: 1,
        limit: SlotLimit::ConcurrentDrains(1),
    };
    assert_eq!(queue.admission(&node("a"), ONE), behind);
}

#[test]
fn nobody_is_ahead_of_a_node_that_drains_unless_it_wants_to_begin_anew() {
    let mut queue = AdmissionQueue {
        draining: nodes(&["a", "b"]),
        unavailable: nodes(&["a", "b"]),
        ..AdmissionQueue::default()
    };
    assert_eq!(granted(&queue, &["a", "b", "c"], ONE), [true, true, false]);
    queue.queued.insert(queued_node("a", 5));
    assert_eq!(granted(&queue, &["a", "b"], ONE), [false, true]);
    queue.grant(ONE, NOW);
    assert_eq!(granted(&queue, &["a"], ONE), [true], "it has its slot already");
}

#[test]
fn granted_slot_is_not_granted_again_before_its_record_is_seen() {
    let mut queue = AdmissionQueue {
        queued: BTreeSet::from([queued_node("b", 10)]),
        ..AdmissionQueue::default()
    };
    queue.grant(ONE, NOW);
    // An earlier trigger is reported only after the slot was granted.
    queue.queued.insert(queued_node("a", 5));
    queue.grant(ONE, NOW);
    assert_eq!(granted(&queue, &["a", "b"], ONE), [false, true]);
}

#[test]
fn a_grant_lapses_when_its_node_no_longer_applies() {
    let mut queue = AdmissionQueue {
        queued: BTreeSet::from([queued_node("a", 20), queued_node("b", 10)]),
        ..AdmissionQueue::default()
    };
    queue.grant(ONE, NOW);
    queue.queued.remove(&queued_node("b", 10));
    queue.grant(ONE, NOW);
    assert_eq!(granted(&queue, &["a"], ONE), [true]);
}

#[test]
fn recorded_drain_holds_its_slot() {
    let mut queue = AdmissionQueue {
        draining: nodes(&["b"]),
        unavailable: nodes(&["b"]),
        queued: BTreeSet::from([queued_node("a", 20)]),
        ..AdmissionQueue::default()
    };
    queue.grant(ONE, NOW);
    assert_eq!(granted(&queue, &["a"], ONE), [false]);
    // Its VM is off: the drain slot is free, and the node is still unavailable.
    queue.draining.clear();
    queue.grant(ONE, NOW);
    assert_eq!(granted(&queue, &["a"], ONE), [true]);
}

#[test]
fn max_unavailable_counts_until_a_node_is_back() {
    let limits = AdmissionLimits {
        concurrent_drains: 9,
        unavailable: Some(2),
        unavailable_gpus: None,
        power_offs: None,
    };
    let mut queue = AdmissionQueue {
        unavailable: nodes(&["x"]),
        queued: BTreeSet::from([queued_node("a", 1), queued_node("b", 2)]),
        ..AdmissionQueue::default()
    };
    queue.grant(limits, NOW);
    assert_eq!(granted(&queue, &["a", "b"], limits), [true, false]);
    let behind = Admission::Queued {
        ahead: vec![node("a"), node("x")],
        position: 1,
        limit: SlotLimit::Unavailable(2),
    };
    assert_eq!(queue.admission(&node("b"), limits), behind);
}

#[test]
fn max_unavailable_gpus_counts_the_gpus_of_nodes_that_are_away() {
    let limits = AdmissionLimits {
        concurrent_drains: 9,
        unavailable: None,
        unavailable_gpus: Some(12),
        power_offs: None,
    };
    let with = |away: &[&str]| {
        let mut queue = AdmissionQueue {
            unavailable: nodes(away),
            queued: BTreeSet::from([queued_node("a", 1), queued_node("b", 2), queued_node("c", 3)]),
            gpus: [("x", 4), ("a", 8), ("b", 4), ("c", 16)]
                .map(|(name, gpus)| (node(name), gpus))
                .into(),
            ..AdmissionQueue::default()
        };
        queue.grant(limits, NOW);
        queue
    };
    // (away, which of a, b and c have a slot)
    for (away, expected) in [
        (&["x"][..], [true, false, false]),
        (&["x", "unknown"], [false, false, false]),
        (&[], [true, true, false]),
    ] {
        assert_eq!(
            granted(&with(away), &["a", "b", "c"], limits),
            expected,
            "{away:?}"
        );
    }
    let behind = Admission::Queued {
        ahead: vec![node("a"), node("x")],
        position: 1,
        limit: SlotLimit::UnavailableGpus(12),
    };
    assert_eq!(with(&["x"]).admission(&node("b"), limits), behind);
    let mut last = with(&[]);
    last.queued = BTreeSet::from([queued_node("c", 3)]);
    last.grant(limits, NOW);
    assert_eq!(
        granted(&last, &["c"], limits),
        [true],
        "it has more than the limit, and goes alone"
    );
}

#[test]
fn power_offs_of_the_last_hour_count_with_those_to_come() {
    let limits = AdmissionLimits {
        concurrent_drains: 9,
        power_offs: Some(3),
        ..ONE
    };
    let mut queue = AdmissionQueue {
        // x is drained and not off yet, y is being shut down.
        draining: nodes(&["x", "y"]),
        power_offs: [(node("y"), 1)].into(),
        drain_only: nodes(&["y"]),
        queued: BTreeSet::from([queued_node("a", 1), queued_node("b", 2)]),
        ..AdmissionQueue::default()
    };
    queue.grant(limits, NOW);
    assert_eq!(granted(&queue, &["a", "b"], limits), [true, false]);
    queue.granted.clear();
    queue.power_offs.insert(node("z"), 1);
    queue.grant(limits, NOW);
    assert_eq!(granted(&queue, &["a", "b"], limits), [false, false]);
    let behind = Admission::Queued {
        ahead: vec![node("x"), node("y"), node("z"), node("a")],
        position: 2,
        limit: SlotLimit::PowerOffs(3),
    };
    assert_eq!(queue.admission(&node("b"), limits), behind);
}

#[test]
fn nodes_drain_one_at_a_time_in_the_order_of_their_requests() {
    let names: Vec<String> = (0..20).map(|index| format!("gpu-{index:02}")).collect();
    let mut queue = AdmissionQueue {
        queued: names
            .iter()
            .enumerate()
            .map(|(at, name)| queued_node(name, i64::try_from(at).unwrap()))
            .collect(),
        ..AdmissionQueue::default()
    };
    let mut served = Vec::new();
    while let Some(first) = queue.queued.first().cloned() {
        queue.grant(ONE, NOW);
        assert_eq!(queue.granted, BTreeMap::from([(first.node.clone(), NOW)]));
        served.push(first.node.to_string());
        queue.queued.remove(&first);
    }
    assert_eq!(served, names);
}

#[test]
fn a_grant_that_is_not_used_lapses_and_the_next_node_is_served() {
    let mut queue = AdmissionQueue {
        queued: BTreeSet::from([queued_node("a", 1), queued_node("b", 2)]),
        ..AdmissionQueue::default()
    };
    queue.grant(ONE, NOW);
    let lapse = NOW.after(GRANT_LASTS);
    assert_eq!(queue.next_lapse(), Some(lapse));
    queue.grant(ONE, lapse);
    assert_eq!(granted(&queue, &["a", "b"], ONE), [false, true]);
    // While it is deferred, a later node comes first.
    queue.queued.remove(&queued_node("b", 2));
    queue.queued.insert(queued_node("c", 3));
    queue.grant(ONE, lapse.after(Duration::from_secs(1)));
    assert_eq!(granted(&queue, &["a", "c"], ONE), [false, true]);
    queue.queued.remove(&queued_node("c", 3));
    queue.queued.insert(queued_node("d", 4));
    queue.grant(ONE, lapse.after(DEFERRED_FOR));
    assert_eq!(granted(&queue, &["a", "d"], ONE), [true, false]);
}

#[test]
fn a_deferred_node_is_served_again_when_nobody_else_waits() {
    let mut queue = AdmissionQueue {
        queued: BTreeSet::from([queued_node("a", 1)]),
        ..AdmissionQueue::default()
    };
    queue.grant(ONE, NOW);
    let lapse = NOW.after(GRANT_LASTS);
    queue.grant(ONE, lapse);
    assert_eq!(granted(&queue, &["a"], ONE), [true]);
    assert_eq!(queue.granted.get(&node("a")), Some(&lapse));
}

#[test]
fn a_node_that_applies_no_more_is_deferred_no_longer() {
    let mut queue = AdmissionQueue {
        queued: BTreeSet::from([queued_node("a", 1), queued_node("b", 2)]),
        ..AdmissionQueue::default()
    };
    queue.grant(ONE, NOW);
    queue.grant(ONE, NOW.after(GRANT_LASTS));
    queue.queued.clear();
    queue.grant(ONE, NOW.after(GRANT_LASTS));
    queue.queued.extend([queued_node("a", 1), queued_node("b", 2)]);
    queue.grant(ONE, NOW.after(GRANT_LASTS));
    assert_eq!(granted(&queue, &["a", "b"], ONE), [true, false]);
}
