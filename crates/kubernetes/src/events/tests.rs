use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::stand_in::{ScriptedReply, SeenRequest, refusal, server};

fn event(note: &str) -> Event {
    Event {
        regarding: Regarding::Node {
            name: NodeName::new("gpu-1"),
            uid: NodeUid::new("uid-1"),
        },
        at: "2026-03-01T03:14:00.123456Z".parse().unwrap(),
        severity: Severity::Warning,
        reason: "EvictionBlocked",
        action: "Drain",
        note: note.to_owned(),
    }
}

/// The two ends of a queue, and how many were lost.
fn counted_queue() -> (Publisher, EventQueue, Arc<AtomicUsize>) {
    let lost = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&lost);
    let (publisher, queue) = queue(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    (publisher, queue, lost)
}

fn alone() -> WriteFence {
    WriteFence::without_election()
}

/// Publishes `events` to a kube-apiserver that replies with `answer`, then stops. Returns the requests.
async fn published(events: Vec<Event>, answer: fn(&SeenRequest) -> ScriptedReply) -> Vec<SeenRequest> {
    let (client, log) = server(answer);
    let (publisher, queue, _) = counted_queue();
    for event in events {
        assert!(publisher.event(event));
    }
    let stop = CancellationToken::new();
    stop.cancel();
    run(client, alone(), "haulout-0".to_owned(), queue, stop).await;
    log.all()
}

#[tokio::test(start_paused = true)]
async fn event_of_a_node_has_its_uid_and_the_form_of_events_k8s_io() {
    let seen = published(vec![event("why")], |_| {
        ScriptedReply::Json(201, json!({"regarding": {}}))
    })
    .await;
    assert_eq!(seen.len(), 1);
    assert_eq!(
        seen[0].line,
        "POST /apis/events.k8s.io/v1/namespaces/default/events"
    );
    let body = &seen[0].body;
    assert_eq!(
        body["regarding"],
        json!({"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "uid-1"})
    );
    assert_eq!(body["type"], "Warning");
    assert_eq!(body["eventTime"], "2026-03-01T03:14:00.123456Z");
    assert_eq!(body["reportingController"], REPORTING_CONTROLLER);
    assert_eq!(body["reportingInstance"], "haulout-0");
    let name = body["metadata"]["name"].as_str().unwrap();
    assert!(
        name.starts_with("gpu-1.") && name.len() == "gpu-1.".len() + 16,
        "{name}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_note_cannot_write_to_a_terminal_and_is_no_longer_than_the_api_allows() {
    let nasty = format!("\u{1b}[31m\u{202e}red\n{}", "ü".repeat(2_000));
    let seen = published(vec![event(&nasty)], |_| {
        ScriptedReply::Json(201, json!({"regarding": {}}))
    })
    .await;
    let note = seen[0].body["note"].as_str().unwrap();
    assert!(note.len() <= NOTE_BYTES_MAX, "{} bytes", note.len());
    assert!(note.starts_with("[31m red ü"), "{note}");
    assert!(note.ends_with('…'));
}

#[tokio::test(start_paused = true)]
async fn a_refused_event_is_counted_and_not_tried_again_and_the_next_one_is() {
    let (client, log) = server(|_| {
        let details = json!({"retryAfterSeconds": 1});
        refusal(503, "ServiceUnavailable", "later", details)
    });
    let (publisher, queue, lost) = counted_queue();
    assert!(publisher.event(event("one")) && publisher.event(event("two")));
    let stop = CancellationToken::new();
    stop.cancel();
    run(client, alone(), "haulout-0".to_owned(), queue, stop).await;
    let seen = log.all();
    let notes: Vec<&str> = seen
        .iter()
        .map(|seen| seen.body["note"].as_str().unwrap())
        .collect();
    assert_eq!(notes, ["one", "two"]);
    assert_eq!(lost.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn hanging_apiserver_delays_neither_senders_nor_shutdown() {
    let begun = Instant::now();
    let events = (0..20).map(|n| event(&n.to_string())).collect();
    published(events, |_| ScriptedReply::Silence).await;
    assert!(begun.elapsed() <= SHUTDOWN_GRACE + Duration::from_millis(1));

    let (publisher, _queue, lost) = counted_queue();
    let taken = (0..2 * QUEUE).filter(|_| publisher.event(event("x"))).count();
    assert_eq!((taken, lost.load(Ordering::Relaxed)), (QUEUE, QUEUE));
}

fn conditions() -> Conditions {
    Conditions {
        node: NodeName::new("gpu-1"),
        uid: NodeUid::new("uid-1"),
        at: "2026-03-01T03:14:00.123456Z".parse().unwrap(),
        changes: vec![
            ConditionChange {
                kind: "DrainInProgress",
                to: Some(ConditionState {
                    is_true: true,
                    reason: "AdminRequested",
                    message: "host esx-1".to_owned(),
                }),
            },
            ConditionChange {
                kind: "Drained",
                to: None,
            },
        ],
    }
}

#[test]
fn conditions_are_merged_by_their_type_and_removed_by_it() {
    assert_eq!(
        conditions().body(),
        json!({"metadata": {"uid": "uid-1"}, "status": {"conditions": [
            {
                "type": "DrainInProgress", "status": "True", "reason": "AdminRequested", "message": "host esx-1",
                "lastTransitionTime": "2026-03-01T03:14:00Z", "lastHeartbeatTime": "2026-03-01T03:14:00Z",
            },
            {"$patch": "delete", "type": "Drained"},
        ]}})
    );
}

#[test]
fn the_name_of_an_event_fits_whatever_the_name_of_the_node() {
    let mut long = event("x");
    long.regarding = Regarding::Node {
        name: NodeName::new(format!("{}.{}", "a".repeat(235), "b".repeat(17))),
        uid: NodeUid::new("uid-1"),
    };
    let name = long.into_body("haulout-0").metadata.name.unwrap();
    assert_eq!(name.len(), 252);
    assert!(name.contains("a.1"), "{name}");
}

fn of_a_pod(note: &str) -> Event {
    let regarding = Regarding::Pod {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "uid-web".to_owned(),
    };
    Event {
        regarding,
        ..event(note)
    }
}

/// How long it takes until `count` Events about pods are written to a kube-apiserver that takes `each` for one.
async fn takes(count: usize, each: Duration) -> Duration {
    let (client, log) = server(move |_| ScriptedReply::Late(each, 201, json!({"regarding": {}})));
    let (publisher, queue, _) = counted_queue();
    for _ in 0..count {
        assert!(publisher.event(of_a_pod("why")));
    }
    let stop = CancellationToken::new();
    let began = Instant::now();
    let writing = run(client, alone(), "haulout-0".to_owned(), queue, stop.clone());
    let reading = async {
        while log.count() < count {
            tokio::time::sleep(POD_EVENT_PAUSE / 4).await;
        }
        stop.cancel();
        began.elapsed()
    };
    futures::join!(writing, reading).1
}

#[tokio::test(start_paused = true)]
async fn events_about_pods_are_spread_unless_their_queue_fills() {
    let few = takes(11, Duration::ZERO).await;
    assert!(
        few >= 10 * POD_EVENT_PAUSE && few < 12 * POD_EVENT_PAUSE,
        "{few:?}"
    );
    let many = takes(POD_QUEUE, Duration::ZERO).await;
    let of_a_half = POD_EVENT_PAUSE * u32::try_from(POD_QUEUE / 2).unwrap();
    assert!(many >= of_a_half && many < of_a_half + of_a_half / 4, "{many:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_about_a_node_does_not_wait_for_events_about_pods() {
    let (client, log) = server(|_| ScriptedReply::Json(201, json!({"regarding": {}})));
    let (publisher, queue, _) = counted_queue();
    let stop = CancellationToken::new();
    let queued = async {
        for _ in 0..5 {
            assert!(publisher.event(of_a_pod("pod")));
        }
        // In the middle of a pause between two of them, and once when all is quiet.
        for wait in [POD_EVENT_PAUSE / 2, 10 * POD_EVENT_PAUSE] {
            tokio::time::sleep(wait).await;
            let written = log.count();
            assert!(publisher.event(event("node")));
            tokio::time::sleep(Duration::from_millis(5)).await;
            let seen = log.all();
            assert_eq!(seen.len(), written + 1);
            assert_eq!(seen[written].body["note"], "node");
        }
        stop.cancel();
    };
    futures::join!(
        run(client, alone(), "haulout-0".to_owned(), queue, stop.clone()),
        queued
    );
    assert_eq!(log.count(), 7);
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_writes_conditions() {
    let closed = alone();
    closed.close();
    for (fence, written) in [(alone(), 1), (closed, 0)] {
        let (client, log) = server(|_| ScriptedReply::Json(200, json!({"metadata": {}})));
        let (publisher, queue, lost) = counted_queue();
        assert!(publisher.conditions(conditions()));
        let stop = CancellationToken::new();
        stop.cancel();
        run(client, fence, "haulout-0".to_owned(), queue, stop).await;
        assert_eq!(log.count(), written);
        assert_eq!(lost.load(Ordering::Relaxed), 0, "the next leader writes them");
    }
}
