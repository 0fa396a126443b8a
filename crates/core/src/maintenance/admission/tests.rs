use jiff::SignedDuration;

use super::*;

const ONE: AdmissionLimits = AdmissionLimits {
    concurrent_drains: 1,
    unavailable: None,
};

const NOW: Monotonic = Monotonic::since_boot(Duration::from_secs(1000));

fn node(name: &str) -> NodeName {
    NodeName::new(name)
}

fn nodes(names: &[&str]) -> BTreeSet<NodeName> {
    names.iter().map(|name| node(name)).collect()
}

fn applicant(name: &str, clicked: i64) -> QueuedNode {
    QueuedNode {
        clicked_at: Timestamp::UNIX_EPOCH + SignedDuration::from_secs(clicked),
        node: node(name),
    }
}

fn granted(ledger: &AdmissionQueue, names: &[&str], limits: AdmissionLimits) -> Vec<bool> {
    names
        .iter()
        .map(|name| ledger.admission(&node(name), limits) == Admission::Granted)
        .collect()
}

#[test]
fn the_first_to_be_clicked_is_the_first_to_be_drained() {
    let mut ledger = AdmissionQueue {
        applicants: BTreeSet::from([applicant("a", 20), applicant("b", 10)]),
        ..AdmissionQueue::default()
    };
    ledger.grant(ONE, NOW);
    assert_eq!(granted(&ledger, &["a", "b"], ONE), [false, true]);
    let behind = Admission::Queued {
        ahead: vec![node("b")],
        limit: SlotLimit::ConcurrentDrains(1),
    };
    assert_eq!(ledger.admission(&node("a"), ONE), behind);
}

#[test]
fn nobody_is_ahead_of_a_node_that_drains_unless_it_wants_to_begin_anew() {
    let mut ledger = AdmissionQueue {
        draining: nodes(&["a", "b"]),
        unavailable: nodes(&["a", "b"]),
        ..AdmissionQueue::default()
    };
    assert_eq!(granted(&ledger, &["a", "b", "c"], ONE), [true, true, false]);
    ledger.applicants.insert(applicant("a", 5));
    assert_eq!(granted(&ledger, &["a", "b"], ONE), [false, true]);
}

#[test]
fn granted_slot_is_not_granted_again_before_its_record_is_seen() {
    let mut ledger = AdmissionQueue {
        applicants: BTreeSet::from([applicant("b", 10)]),
        ..AdmissionQueue::default()
    };
    ledger.grant(ONE, NOW);
    // An earlier trigger is reported only after the slot was granted.
    ledger.applicants.insert(applicant("a", 5));
    ledger.grant(ONE, NOW);
    assert_eq!(granted(&ledger, &["a", "b"], ONE), [false, true]);
}

#[test]
fn a_grant_lapses_when_its_node_no_longer_applies() {
    let mut ledger = AdmissionQueue {
        applicants: BTreeSet::from([applicant("a", 20), applicant("b", 10)]),
        ..AdmissionQueue::default()
    };
    ledger.grant(ONE, NOW);
    ledger.applicants.remove(&applicant("b", 10));
    ledger.grant(ONE, NOW);
    assert_eq!(granted(&ledger, &["a"], ONE), [true]);
}

#[test]
fn recorded_drain_holds_its_slot() {
    let mut ledger = AdmissionQueue {
        draining: nodes(&["b"]),
        unavailable: nodes(&["b"]),
        applicants: BTreeSet::from([applicant("a", 20)]),
        ..AdmissionQueue::default()
    };
    ledger.grant(ONE, NOW);
    assert_eq!(granted(&ledger, &["a"], ONE), [false]);
    // Its VM is off: the drain slot is free, and the node is still unavailable.
    ledger.draining.clear();
    ledger.grant(ONE, NOW);
    assert_eq!(granted(&ledger, &["a"], ONE), [true]);
}

#[test]
fn max_unavailable_counts_until_a_node_is_back() {
    let limits = AdmissionLimits {
        concurrent_drains: 9,
        unavailable: Some(2),
    };
    let mut ledger = AdmissionQueue {
        unavailable: nodes(&["x"]),
        applicants: BTreeSet::from([applicant("a", 1), applicant("b", 2)]),
        ..AdmissionQueue::default()
    };
    ledger.grant(limits, NOW);
    assert_eq!(granted(&ledger, &["a", "b"], limits), [true, false]);
    let behind = Admission::Queued {
        ahead: vec![node("a"), node("x")],
        limit: SlotLimit::Unavailable(2),
    };
    assert_eq!(ledger.admission(&node("b"), limits), behind);
}

#[test]
fn nodes_drain_one_at_a_time_in_the_order_of_their_requests() {
    let names: Vec<String> = (0..20).map(|index| format!("gpu-{index:02}")).collect();
    let mut ledger = AdmissionQueue {
        applicants: names
            .iter()
            .enumerate()
            .map(|(at, name)| applicant(name, i64::try_from(at).unwrap()))
            .collect(),
        ..AdmissionQueue::default()
    };
    let mut served = Vec::new();
    while let Some(first) = ledger.applicants.first().cloned() {
        ledger.grant(ONE, NOW);
        assert_eq!(ledger.granted, BTreeMap::from([(first.node.clone(), NOW)]));
        served.push(first.node.to_string());
        ledger.applicants.remove(&first);
    }
    assert_eq!(served, names);
}

#[test]
fn a_grant_that_is_not_used_lapses_and_the_next_node_is_served() {
    let mut ledger = AdmissionQueue {
        applicants: BTreeSet::from([applicant("a", 1), applicant("b", 2)]),
        ..AdmissionQueue::default()
    };
    ledger.grant(ONE, NOW);
    let lapse = NOW.after(GRANT_LASTS);
    assert_eq!(ledger.next_lapse(), Some(lapse));
    ledger.grant(ONE, lapse);
    assert_eq!(granted(&ledger, &["a", "b"], ONE), [false, true]);
    // While it is deferred, a later node comes first.
    ledger.applicants.remove(&applicant("b", 2));
    ledger.applicants.insert(applicant("c", 3));
    ledger.grant(ONE, lapse.after(Duration::from_secs(1)));
    assert_eq!(granted(&ledger, &["a", "c"], ONE), [false, true]);
    ledger.applicants.remove(&applicant("c", 3));
    ledger.applicants.insert(applicant("d", 4));
    ledger.grant(ONE, lapse.after(DEFERRED_FOR));
    assert_eq!(granted(&ledger, &["a", "d"], ONE), [true, false]);
}

#[test]
fn a_deferred_node_is_served_again_when_nobody_else_waits() {
    let mut ledger = AdmissionQueue {
        applicants: BTreeSet::from([applicant("a", 1)]),
        ..AdmissionQueue::default()
    };
    ledger.grant(ONE, NOW);
    let lapse = NOW.after(GRANT_LASTS);
    ledger.grant(ONE, lapse);
    assert_eq!(granted(&ledger, &["a"], ONE), [true]);
    assert_eq!(ledger.granted.get(&node("a")), Some(&lapse));
}

#[test]
fn a_node_that_applies_no_more_is_deferred_no_longer() {
    let mut ledger = AdmissionQueue {
        applicants: BTreeSet::from([applicant("a", 1), applicant("b", 2)]),
        ..AdmissionQueue::default()
    };
    ledger.grant(ONE, NOW);
    ledger.grant(ONE, NOW.after(GRANT_LASTS));
    ledger.applicants.clear();
    ledger.grant(ONE, NOW.after(GRANT_LASTS));
    ledger.applicants.extend([applicant("a", 1), applicant("b", 2)]);
    ledger.grant(ONE, NOW.after(GRANT_LASTS));
    assert_eq!(granted(&ledger, &["a", "b"], ONE), [true, false]);
}
