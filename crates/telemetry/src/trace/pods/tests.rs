//! Drains as sequences of rounds, and the spans of their pods.

use haulout_core::fixtures::{at, episode};

use super::*;
use haulout_core::maintenance::episode::Phase;

fn draining() -> Episode {
    episode(Phase::Draining, 0)
}

fn asks(pod: &str, second: i64, answer: EvictionAnswer) -> Eviction {
    Eviction {
        namespace: "ml".to_owned(),
        pod: pod.to_owned(),
        uid: format!("uid-{pod}"),
        grace: Some(30),
        asked_at: at(second),
        answered_at: at(second + 1),
        answer,
    }
}

fn blocked(message: &str) -> EvictionAnswer {
    EvictionAnswer::Blocked {
        budgets: vec!["train".to_owned()],
        message: message.to_owned(),
    }
}

fn round(second: i64, asked: Vec<Eviction>, left: &[&str]) -> EvictionRound {
    EvictionRound {
        at: at(second),
        asked,
        left: left.iter().map(|pod| format!("uid-{pod}")).collect(),
    }
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|it| it.key.as_str() == key)?;
    Some(found.value.to_string())
}

#[test]
fn pod_blocked_by_a_budget_has_both_wait_spans() {
    let (node, episode) = (NodeName::new("gpu1"), draining());
    let mut drain = TracedDrain::of(&episode);
    for (second, message) in [(10, "needs 2"), (20, "needs 2"), (30, "needs 1")] {
        let asked = vec![asks("train-0", second, blocked(message))];
        assert_eq!(drain.apply(&node, &round(second, asked, &["train-0"])), []);
    }
    let asked = vec![asks("train-0", 40, EvictionAnswer::Accepted)];
    assert_eq!(drain.apply(&node, &round(40, asked, &["train-0"])), []);
    let spans = drain.apply(&node, &round(60, Vec::new(), &[]));
    let [evict, pdb, termination] = &spans[..] else {
        panic!("{spans:#?}");
    };
    assert_eq!(
        [evict.name, pdb.name, termination.name],
        ["evict pod", "wait pdb", "wait termination"]
    );
    assert_eq!((evict.start, evict.end), (at(10), at(60)));
    assert_eq!((pdb.start, pdb.end), (at(11), at(41)));
    assert_eq!((termination.start, termination.end), (at(41), at(60)));
    assert_eq!([pdb.parent, termination.parent], [Some(evict.id); 2]);
    assert_eq!(attribute(evict, "haulout.evict.attempts").as_deref(), Some("4"));
    assert_eq!(attribute(evict, "k8s.pod.uid").as_deref(), Some("uid-train-0"));
    assert_eq!(attribute(pdb, "k8s.pdb.name").as_deref(), Some("train"));
    let grace = attribute(termination, "haulout.pod.grace_period_s");
    assert_eq!(grace.as_deref(), Some("30"));
    let messages: Vec<Timestamp> = pdb.events.iter().map(|it| it.at).collect();
    assert_eq!(messages, [at(11), at(31)], "once for each change of the message");
    assert_eq!(drain.end(&node, at(61)), []);
}

#[test]
fn remaining_pod_is_an_error_span() {
    let (node, episode) = (NodeName::new("gpu1"), draining());
    let mut drain = TracedDrain::of(&episode);
    drain.apply(
        &node,
        &round(10, vec![asks("train-0", 10, blocked("no"))], &["train-0"]),
    );
    let spans = drain.end(&node, at(90));
    let names: Vec<&str> = spans.iter().map(|span| span.name).collect();
    assert_eq!(names, ["evict pod", "wait pdb"]);
    assert!(spans[0].failed.is_some() && spans.iter().all(|span| span.end == at(90)));
}

#[test]
fn pods_beyond_the_limit_share_a_span() {
    let (node, episode) = (NodeName::new("gpu1"), draining());
    let mut drain = TracedDrain::of(&episode);
    let pods: Vec<String> = (0..PODS + 50).map(|pod| format!("p{pod}")).collect();
    let ask = |answer: EvictionAnswer| pods.iter().map(|pod| asks(pod, 10, answer.clone())).collect();
    let left: Vec<&str> = pods.iter().map(String::as_str).collect();
    drain.apply(&node, &round(10, ask(blocked("no")), &left));
    let mut spans = drain.apply(&node, &round(20, ask(EvictionAnswer::Accepted), &[]));
    spans.extend(drain.end(&node, at(30)));
    let of = |name| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    assert_eq!(of("evict pod").len(), PODS);
    let [shared] = of("evict pods")[..] else {
        panic!("one span stands for all of them");
    };
    for (key, expected) in [
        ("haulout.pods.count", "50"),
        ("haulout.evict.attempts", "100"),
        ("haulout.evict.blocked", "50"),
    ] {
        assert_eq!(attribute(shared, key).as_deref(), Some(expected), "{key}");
    }
    assert_eq!((shared.start, shared.end), (at(10), at(30)));
}
