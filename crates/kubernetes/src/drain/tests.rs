use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::groups::Groups;
use super::*;
use crate::fence::{WriteFence, WriteKind};
use crate::known_pods::ReturnedPod;
use crate::pods::SkipReason;
use crate::stand_in::{RequestLog, ScriptedReply, SeenRequest, pod, pod_list, refusal, server};

const LIST: &str = "GET /api/v1/pods";

fn permit() -> Permit {
    WriteFence::without_election().permit(WriteKind::Effect).unwrap()
}

fn node() -> NodeName {
    NodeName::new("gpu-1")
}

fn evicted(name: &str) -> String {
    format!("POST /api/v1/namespaces/shop/pods/{name}/eviction")
}

/// The namespace of [`pod`] has no annotations.
fn settings() -> DrainSettings {
    DrainSettings {
        namespaces: Namespaces::plain(&["shop", "lab"]),
        ..DrainSettings::default()
    }
}

const NOW: Now = Now {
    wall: Timestamp::UNIX_EPOCH,
    monotonic: Monotonic::since_boot(Duration::ZERO),
};

/// A round in which every pod may be asked, at the beginning of a drain.
const ORDER: DrainOrder<'static> = DrainOrder {
    in_turn: false,
    deferred: &BTreeMap::new(),
    known: None,
    began: DrainBegan {
        elapsed: Duration::ZERO,
        at: NOW.wall,
    },
    now: NOW,
    on_evicted: &|_| {},
};

fn accepted() -> ScriptedReply {
    ScriptedReply::Json(
        201,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}),
    )
}

/// Lists `pods`, and answers evictions with `evict`.
fn cluster(
    pods: impl IntoIterator<Item = Value>,
    mut evict: impl FnMut(&SeenRequest) -> ScriptedReply + Send + 'static,
) -> impl FnMut(&SeenRequest) -> ScriptedReply + Send + 'static {
    let pods: Vec<Value> = pods.into_iter().collect();
    move |seen| match seen.line.as_str() {
        LIST => pod_list(&pods, ""),
        _ => evict(seen),
    }
}

async fn evict_round(
    answer: impl FnMut(&SeenRequest) -> ScriptedReply + Send + 'static,
) -> (Result<RoundReport, DrainError>, RequestLog) {
    let (client, log) = server(answer);
    let report = round(&permit(), &client, &node(), &settings(), ORDER).await;
    (report, log)
}

/// One round on one pod whose eviction is answered with `reply`; the pod is still listed afterwards.
async fn why(reply: impl Fn() -> ScriptedReply + Send + 'static) -> (PendingReason, RoundReport) {
    let (report, _) = evict_round(cluster([pod("web-1")], move |_| reply())).await;
    let report = report.unwrap();
    assert_eq!(report.left.len(), 1);
    (report.left[0].why.clone(), report)
}

#[tokio::test]
async fn an_empty_node_is_drained_after_one_list() {
    let (report, log) = evict_round(|_| pod_list(&[], "")).await;
    assert!(report.unwrap().left.is_empty());
    assert_eq!(log.lines(), [LIST]);
    assert_eq!(
        log.all()[0].query,
        "&fieldSelector=spec.nodeName%3Dgpu-1&limit=500"
    );
}

#[tokio::test]
async fn eviction_has_the_uid_of_the_pod_and_no_grace_period() {
    let (report, log) = evict_round(cluster([pod("web-1")], move |_| accepted())).await;
    let report = report.unwrap();
    assert_eq!(report.left[0].why, PendingReason::Leaving);
    assert_eq!(log.lines(), [LIST.to_owned(), evicted("web-1")]);
    assert_eq!(
        log.all()[1].body,
        json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "web-1", "namespace": "shop"},
            "deleteOptions": {"preconditions": {"uid": "uid-web-1"}},
        })
    );
    assert_eq!(log.all()[1].query, "");
}

#[tokio::test]
async fn an_eviction_refused_by_a_budget_names_the_budget() {
    let (why, report) = why(|| {
        refusal(
            429,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
            json!({"causes": [{"reason": "DisruptionBudget",
                "message": "The disruption budget web-pdb needs 2 healthy pods and has 2 currently"}]}),
        )
    })
    .await;
    assert_eq!(
        why,
        PendingReason::Budget {
            names: vec!["web-pdb".to_owned()],
            message: "The disruption budget web-pdb needs 2 healthy pods and has 2 currently".to_owned(),
        }
    );
    assert_eq!(report.left[0].retry_at, None);
}

/// How long the only pod that was asked is left alone, in seconds.
async fn retry_after_s(reply: impl Fn() -> ScriptedReply + Send + 'static) -> Option<u64> {
    let (_, report) = why(reply).await;
    let retry_at = report.left[0].retry_at?;
    Some(retry_at.since(NOW.monotonic).as_secs())
}

#[tokio::test(start_paused = true)]
async fn retry_time_of_a_refusal_is_read_from_body_and_header() {
    let budget = || {
        refusal(
            429,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
            json!({"retryAfterSeconds": 10, "causes": [{"reason": "DisruptionBudget",
                "message": "The disruption budget web-pdb is still being processed by the server."}]}),
        )
    };
    assert_eq!(retry_after_s(budget).await, Some(10));
    let conflicts = || refusal(504, "Timeout", "conflicts", json!({"retryAfterSeconds": 7}));
    assert_eq!(retry_after_s(conflicts).await, Some(7));
    // The filter of API priority and fairness answers with a header and a plain text.
    let too_many = || ScriptedReply::RetryAfter(429, "3", "Too many requests, please try again later.");
    assert_eq!(retry_after_s(too_many).await, Some(3));
    let absurd = || ScriptedReply::RetryAfter(429, "4000000000", "no");
    assert_eq!(retry_after_s(absurd).await, Some(600));
    for meaningless in ["0", "-1", "soon", "99999999999", "Mon, 23 Nov 2026 20:00:00 GMT"] {
        let reply = move || ScriptedReply::RetryAfter(429, meaningless, "no");
        assert_eq!(retry_after_s(reply).await, None, "{meaningless}");
    }
}

#[tokio::test]
async fn budget_with_an_unknown_message_is_still_a_budget() {
    let (why, _) = why(|| {
        refusal(
            429,
            "TooManyRequests",
            "no",
            json!({"causes": [{"reason": "DisruptionBudget", "message": "Budget says no"}]}),
        )
    })
    .await;
    assert_eq!(
        why,
        PendingReason::Budget {
            names: vec![],
            message: "Budget says no".to_owned()
        }
    );
}

#[tokio::test]
async fn each_refusal_has_its_own_meaning() {
    type Case = (fn() -> ScriptedReply, PendingReason);
    let message = |text: &str| text.to_owned();
    let cases: [Case; 8] = [
        (
            || {
                refusal(
                    422,
                    "Invalid",
                    "ValidatingAdmissionPolicy 'calm' denied request: not today",
                    Value::Null,
                )
            },
            PendingReason::Refused {
                message: message("ValidatingAdmissionPolicy 'calm' denied request: not today (HTTP 422)"),
            },
        ),
        (
            || {
                refusal(
                    500,
                    "InternalError",
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                    Value::Null,
                )
            },
            PendingReason::Refused {
                message: message(
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support. (HTTP 500)",
                ),
            },
        ),
        (
            || {
                refusal(
                    403,
                    "Forbidden",
                    "unable to create new content in namespace shop because it is being terminated",
                    json!({"causes": [{"reason": "NamespaceTerminating", "message": "namespace shop is being terminated"}]}),
                )
            },
            PendingReason::Refused {
                message: message("its namespace is being deleted"),
            },
        ),
        (
            || {
                refusal(
                    403,
                    "Forbidden",
                    "admission webhook \"guard\" denied the request: not today",
                    Value::Null,
                )
            },
            PendingReason::Refused {
                message: message("admission webhook \"guard\" denied the request: not today (HTTP 403)"),
            },
        ),
        (
            || {
                refusal(
                    429,
                    "TooManyRequests",
                    "admission webhook \"virt-launcher-eviction-interceptor.kubevirt.io\" denied the request: Eviction triggered evacuation of VMI \"ml/vm\"",
                    Value::Null,
                )
            },
            PendingReason::Migrating {
                message: message(
                    "admission webhook \"virt-launcher-eviction-interceptor.kubevirt.io\" denied the request: Eviction triggered evacuation of VMI \"ml/vm\" (HTTP 429)",
                ),
            },
        ),
        (
            || {
                refusal(
                    429,
                    "TooManyRequests",
                    "too many requests, please try again later",
                    Value::Null,
                )
            },
            PendingReason::Refused {
                message: message("the kube-apiserver has too much to do"),
            },
        ),
        (
            || {
                refusal(
                    409,
                    "Conflict",
                    "Operation cannot be fulfilled on poddisruptionbudgets",
                    Value::Null,
                )
            },
            PendingReason::Refused {
                message: message("Operation cannot be fulfilled on poddisruptionbudgets (HTTP 409)"),
            },
        ),
        (
            || ScriptedReply::Text(502, "<html>Bad gateway</html>"),
            PendingReason::Refused {
                message: message("<html>Bad gateway</html> (HTTP 502)"),
            },
        ),
    ];
    for (reply, expected) in cases {
        let (why, _) = why(reply).await;
        assert_eq!(why, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_without_an_answer_ends_at_our_deadline() {
    let (why, _) = why(|| ScriptedReply::Silence).await;
    assert_eq!(
        why,
        PendingReason::Refused {
            message: "no answer within 20 s".to_owned()
        }
    );
}

#[tokio::test]
async fn a_pod_that_is_gone_when_evicted_counts_as_gone_only_after_another_list() {
    for (code, message) in [
        (404, "pods \"web-1\" not found"),
        (
            409,
            "Operation cannot be fulfilled on Pod \"web-1\": the UID in the precondition (uid-web-1) does not match the UID in record (other). The object might have been deleted and then recreated",
        ),
        (
            409,
            "Operation cannot be fulfilled on Pod \"web-1\": Precondition failed: UID in precondition: uid-web-1, UID in object meta: other",
        ),
    ] {
        let lists = AtomicUsize::new(0);
        let (report, log) = evict_round(move |seen| match seen.line.as_str() {
            LIST if lists.fetch_add(1, Ordering::Relaxed) == 0 => pod_list(&[pod("web-1")], ""),
            LIST => pod_list(&[], ""),
            _ => refusal(code, "", message, Value::Null),
        })
        .await;
        assert!(report.unwrap().left.is_empty());
        assert_eq!(log.lines(), [LIST.to_owned(), evicted("web-1"), LIST.to_owned()]);
    }
}

#[tokio::test]
async fn contradicting_lists_and_evictions_never_complete_a_drain() {
    let (report, log) = evict_round(cluster([pod("web-1")], move |_| {
        refusal(404, "NotFound", "not found", Value::Null)
    }))
    .await;
    assert!(matches!(report, Err(DrainError::Unlisted { .. })));
    assert_eq!(log.lines().len(), 2 * PASSES_MAX);
}

#[tokio::test]
async fn all_pages_of_a_list_are_read_before_anything_is_decided() {
    let (report, log) = evict_round(|seen| match seen.line.as_str() {
        LIST if seen.query.contains("continue=next") => pod_list(&[pod("web-2")], ""),
        LIST => pod_list(&[], "next"),
        _ => accepted(),
    })
    .await;
    let report = report.unwrap();
    assert_eq!(report.left[0].name, "web-2");
    assert_eq!(log.lines(), [LIST.to_owned(), LIST.to_owned(), evicted("web-2")]);
}

#[tokio::test]
async fn an_expired_continue_token_lists_from_the_start() {
    let expired = AtomicUsize::new(0);
    let (report, log) = evict_round(move |seen| {
        if !seen.query.contains("continue=") {
            pod_list(&[], "next")
        } else if expired.fetch_add(1, Ordering::Relaxed) == 0 {
            refusal(
                410,
                "Expired",
                "The provided continue parameter is too old",
                Value::Null,
            )
        } else {
            pod_list(&[], "")
        }
    })
    .await;
    assert!(report.unwrap().left.is_empty());
    assert_eq!(log.lines().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_never_completes_a_drain() {
    type Case = (fn() -> ScriptedReply, &'static str);
    let cases: [Case; 7] = [
        (
            || refusal(500, "InternalError", "etcdserver: request timed out", Value::Null),
            "the pods of node gpu-1 could not be listed: etcdserver: request timed out (HTTP 500); the drain waits and lists them again",
        ),
        (
            || ScriptedReply::Silence,
            "the pods of node gpu-1 could not be listed: no answer within 30 s; the drain waits and lists them again",
        ),
        (
            || refusal(410, "Expired", "too old", Value::Null),
            "the pods of node gpu-1 could not be listed: its continue token expired in each of 3 tries; the drain waits and lists them again",
        ),
        (
            || refusal(403, "Forbidden", "pods is forbidden", Value::Null),
            "Haulout may not list the pods of node gpu-1: pods is forbidden (HTTP 403); allow its service account `list` on pods, the drain waits until then",
        ),
        (
            || ScriptedReply::Json(200, json!({"kind": "PodList", "metadata": {}, "items": "none"})),
            "",
        ),
        // Replies to other requests.
        (
            || ScriptedReply::Json(200, json!({"kind": "NodeList", "apiVersion": "v1", "items": []})),
            "a NodeList where a PodList was asked for",
        ),
        (
            || {
                let mut other = pod("elsewhere");
                other["spec"]["nodeName"] = json!("gpu-2");
                pod_list(&[other], "")
            },
            "the pods of node gpu-1 could not be listed: the list holds a pod of another node; the drain waits and lists them again",
        ),
    ];
    for (reply, words) in cases {
        let (report, _) = evict_round(move |_| reply()).await;
        let error = report.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn terminating_pods_are_not_evicted_again() {
    let (report, log) = evict_round(|_| {
        let mut leaving = pod("web-1");
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
        let mut finished = pod("job-1");
        finished["status"]["phase"] = json!("Succeeded");
        pod_list(&[finished, leaving], "")
    })
    .await;
    let report = report.unwrap();
    assert_eq!(log.lines(), [LIST]);
    assert_eq!(report.listed, 2);
    assert_eq!(report.skipped, BTreeMap::from([(SkipReason::Finished, 1)]));
    assert_eq!(report.left[0].why, PendingReason::Leaving);
    assert_eq!(report.evicted, 0);
}

#[tokio::test]
async fn pods_of_one_name_in_two_namespaces_are_two_pods() {
    let (report, log) = evict_round(|seen| match seen.line.as_str() {
        LIST => {
            let mut other = pod("web-1");
            other["metadata"]["namespace"] = json!("lab");
            other["metadata"]["uid"] = json!("uid-other");
            pod_list(&[pod("web-1"), other], "")
        }
        _ => accepted(),
    })
    .await;
    let left = report.unwrap().left;
    assert_eq!(
        left.iter()
            .map(|left| left.namespace.as_str())
            .collect::<Vec<_>>(),
        ["lab", "shop"]
    );
    assert_eq!(log.lines().len(), 3);
}

#[tokio::test]
async fn list_only_sends_no_eviction() {
    let (client, log) = server(|_| pod_list(&[pod("web-1")], ""));
    let report = list_only(&client, &node(), &settings(), NOW).await.unwrap();
    assert_eq!(report.left[0].why, PendingReason::NotReached);
    assert_eq!(log.lines(), [LIST]);
}

#[tokio::test]
async fn two_hundred_pods_cost_one_list_and_one_eviction_each() {
    let (report, log) = evict_round(cluster((0..200).map(|n| pod(&format!("web-{n:03}"))), |_| {
        accepted()
    }))
    .await;
    assert_eq!(report.unwrap().left.len(), 200);
    assert_eq!(log.lines().len(), 201);
}

#[tokio::test(start_paused = true)]
async fn a_round_ends_at_its_deadline_and_names_the_pods_it_did_not_reach() {
    let (client, log) = server(cluster((0..5).map(|n| pod(&format!("web-{n}"))), |_| {
        ScriptedReply::Silence
    }));
    let settings = DrainSettings {
        eviction_deadline: Duration::from_secs(20),
        round_deadline: Duration::from_secs(30),
        evictions: Concurrency::of(2),
        ..settings()
    };
    let report = round(&permit(), &client, &node(), &settings, ORDER)
        .await
        .unwrap();
    let count = |is: fn(&PendingReason) -> bool| report.left.iter().filter(|left| is(&left.why)).count();
    assert_eq!(count(|why| matches!(why, PendingReason::Refused { .. })), 4);
    assert_eq!(count(|why| *why == PendingReason::NotReached), 1);
    assert_eq!(log.lines().len(), 5);
}

#[tokio::test]
async fn no_eviction_begins_when_the_fence_is_closed() {
    let fence = WriteFence::without_election();
    let permit = fence.permit(WriteKind::Effect).unwrap();
    let (client, log) = server(cluster(["web-1", "web-2", "web-3"].map(pod), move |_| {
        fence.close();
        accepted()
    }));
    let settings = DrainSettings {
        evictions: Concurrency::of(1),
        ..settings()
    };
    let report = round(&permit, &client, &node(), &settings, ORDER).await.unwrap();
    assert_eq!(log.lines(), [LIST.to_owned(), evicted("web-1")]);
    let unreached = report
        .left
        .iter()
        .filter(|it| it.why == PendingReason::NotReached);
    assert_eq!(unreached.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_has_begun_is_not_cut_short_by_the_end_of_its_round() {
    let (client, _) = server(cluster([pod("web-1"), pod("web-2")], move |_| {
        ScriptedReply::Silence
    }));
    let settings = DrainSettings {
        eviction_deadline: Duration::from_secs(20),
        round_deadline: Duration::from_secs(30),
        evictions: Concurrency::of(1),
        ..settings()
    };
    let begin = Instant::now();
    let report = round(&permit(), &client, &node(), &settings, ORDER)
        .await
        .unwrap();
    assert_eq!(report.answers, BTreeMap::from([(0, 2)]));
    assert_eq!(
        begin.elapsed().as_secs(),
        40,
        "it counts against the concurrency for as long as the kube-apiserver may work on it"
    );
}

#[tokio::test(start_paused = true)]
async fn overloaded_kube_apiserver_gets_no_further_eviction() {
    let (client, log) = server(cluster((0..50).map(|n| pod(&format!("web-{n:02}"))), |_| {
        ScriptedReply::RetryAfter(429, "3", "slow down")
    }));
    let settings = DrainSettings {
        evictions: Concurrency::of(1),
        ..settings()
    };
    let again = NOW.monotonic.after(Duration::from_secs(3));
    let report = round(&permit(), &client, &node(), &settings, ORDER)
        .await
        .unwrap();
    assert_eq!(log.lines().len(), 2);
    assert_eq!(report.left.len(), 50);
    assert!(report.left.iter().all(|left| left.retry_at == Some(again)));
    let not_reached = report
        .left
        .iter()
        .filter(|left| left.why == PendingReason::NotReached);
    assert_eq!(not_reached.count(), 49);
}

#[tokio::test(start_paused = true)]
async fn webhook_with_retry_after_delays_only_its_pod() {
    let (report, _) = evict_round(|seen| match seen.line.as_str() {
        LIST => pod_list(&[pod("web-1"), pod("web-2")], ""),
        line if line.contains("web-1") => refusal(
            429,
            "TooManyRequests",
            "admission webhook \"guard\" denied the request: later",
            json!({"retryAfterSeconds": 60}),
        ),
        _ => accepted(),
    })
    .await;
    let left = report.unwrap().left;
    assert!(matches!(&left[0].why, PendingReason::Refused { message } if message.contains("later")));
    let pause = left[0].retry_at.unwrap().since(NOW.monotonic);
    assert_eq!(pause.as_secs(), 60);
    assert_eq!((&left[1].why, left[1].retry_at), (&PendingReason::Leaving, None));
}

#[tokio::test]
async fn deferred_pods_are_listed_and_not_evicted() {
    let (client, log) = server(cluster([pod("web-1"), pod("web-2")], move |_| accepted()));
    let budget = PendingReason::Budget {
        names: vec!["web-pdb".to_owned()],
        message: "no".to_owned(),
    };
    let deferred = ["shop/web-1", "lab/web-2"].map(|name| (name.to_owned(), budget.clone()));
    let deferred = BTreeMap::from(deferred);
    let order = DrainOrder {
        deferred: &deferred,
        ..ORDER
    };
    let report = round(&permit(), &client, &node(), &settings(), order)
        .await
        .unwrap();
    assert_eq!(log.lines(), [LIST.to_owned(), evicted("web-2")]);
    let left = report.left.iter().map(|left| (left.name.as_str(), &left.why));
    assert_eq!(
        left.collect::<Vec<_>>(),
        [("web-1", &budget), ("web-2", &PendingReason::Leaving)]
    );
    assert_eq!(report.deferred, BTreeSet::from(["shop/web-1".to_owned()]));
    assert_eq!(report.evicted, 1);
}

#[tokio::test]
async fn own_pod_is_evicted_last() {
    let settings = DrainSettings {
        own_pod: Some(OwnPod {
            namespace: "shop".to_owned(),
            name: "haulout-1".to_owned(),
        }),
        ..settings()
    };
    let answer = |pods: Vec<Value>| {
        move |seen: &SeenRequest| match seen.line.as_str() {
            LIST => pod_list(&pods, ""),
            _ => accepted(),
        }
    };
    let (client, log) = server(answer(vec![pod("haulout-1"), pod("web-1")]));
    let report = round(&permit(), &client, &node(), &settings, ORDER)
        .await
        .unwrap();
    assert_eq!(report.left[0].why, PendingReason::Last);
    assert_eq!(log.lines(), [LIST.to_owned(), evicted("web-1")]);
    let (client, log) = server(answer(vec![pod("haulout-1")]));
    let report = round(&permit(), &client, &node(), &settings, ORDER)
        .await
        .unwrap();
    assert_eq!(report.left[0].why, PendingReason::Leaving);
    assert_eq!(log.lines(), [LIST.to_owned(), evicted("haulout-1")]);
}

/// A pod with this `spec.priority`.
fn of_priority(name: &str, priority: i32) -> Value {
    let mut pod = pod(name);
    pod["spec"]["priority"] = json!(priority);
    pod
}

#[tokio::test]
async fn critical_pods_are_evicted_when_all_others_are_gone() {
    let settings = DrainSettings {
        own_pod: Some(OwnPod {
            namespace: "shop".to_owned(),
            name: "haulout-1".to_owned(),
        }),
        ..settings()
    };
    let mut leaving = pod("web-1");
    leaving["metadata"]["deletionTimestamp"] = json!("2026-11-20T12:00:00Z");
    let dns = || of_priority("dns-1", 2_000_000_000);
    let own = || of_priority("haulout-1", 2_000_001_000);
    for (pods, evicted_pod) in [
        (
            vec![dns(), own(), of_priority("web-2", 1_999_999_999)],
            Some("web-2"),
        ),
        (vec![dns(), own(), leaving.clone()], None),
        (vec![dns(), own()], Some("dns-1")),
        (vec![own()], Some("haulout-1")),
    ] {
        let count = pods.len();
        let (client, log) = server(move |seen: &SeenRequest| match seen.line.as_str() {
            LIST => pod_list(&pods, ""),
            _ => accepted(),
        });
        let report = round(&permit(), &client, &node(), &settings, ORDER)
            .await
            .unwrap();
        let expected = std::iter::once(LIST.to_owned()).chain(evicted_pod.map(evicted));
        assert_eq!(log.lines(), expected.collect::<Vec<_>>());
        let last = report.left.iter().filter(|left| left.why == PendingReason::Last);
        assert_eq!(last.count(), count - 1, "{:?}", report.left);
    }
}

#[tokio::test]
async fn pods_of_the_lowest_priority_are_asked_first() {
    let settings = DrainSettings {
        evictions: Concurrency::of(1),
        ..settings()
    };
    let pods = [("web-a", 100), ("web-b", -5), ("web-c", 7), ("web-d", 100)];
    let listed: Vec<Value> = pods
        .iter()
        .map(|(name, priority)| of_priority(name, *priority))
        .collect();
    let (client, log) = server(move |seen: &SeenRequest| match seen.line.as_str() {
        LIST => pod_list(&listed, ""),
        _ => accepted(),
    });
    round(&permit(), &client, &node(), &settings, ORDER)
        .await
        .unwrap();
    let order = ["web-b", "web-c", "web-a", "web-d"].map(evicted);
    assert_eq!(log.lines()[1..], order);
}

/// A pod that tolerates the cordon.
fn tolerant(name: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    pod
}

#[tokio::test]
async fn pod_that_tolerates_the_cordon_is_evicted_once_and_its_successor_does_not_block() {
    let (first, log) = round_after(None, vec![tolerant("web-1"), pod("web-2")]).await;
    assert_eq!(log.lines().len(), 3, "both are evicted");
    assert!(first.returned.is_empty());

    // A pod without the toleration was bound before the cordon.
    let later = vec![tolerant("web-1"), tolerant("web-3"), pod("web-4")];
    let (second, log) = round_after(Some(&first.known), later).await;
    let asked: BTreeSet<String> = log.lines().into_iter().skip(1).collect();
    assert_eq!(asked, ["web-1", "web-4"].map(evicted).into());
    let returned = ReturnedPod {
        name: "shop/web-3".to_owned(),
        tolerates_cordon: true,
    };
    assert_eq!(second.returned, [returned]);
    assert_eq!(second.left.len(), 2);

    let (last, log) = round_after(Some(&second.known), vec![tolerant("web-3")]).await;
    assert!(last.left.is_empty(), "{:?}", last.left);
    assert_eq!(log.lines(), [LIST]);
    assert_eq!(last.skipped[&SkipReason::Returned], 1);
}

/// A round of a cluster with these pods.
async fn round_after(known: Option<&KnownPods>, pods: Vec<Value>) -> (RoundReport, RequestLog) {
    let (client, log) = server(move |seen: &SeenRequest| match seen.line.as_str() {
        LIST => pod_list(&pods, ""),
        _ => accepted(),
    });
    let order = DrainOrder { known, ..ORDER };
    let report = round(&permit(), &client, &node(), &settings(), order).await;
    (report.unwrap(), log)
}

/// How many evictions are requested in 20 rounds, each with another pod. The last one has to be complete.
async fn evictions_of(pod: impl Fn(usize) -> Value) -> usize {
    let mut known = None;
    let mut evictions = 0;
    let mut left = 0;
    for n in 0..20 {
        let (report, log) = round_after(known.as_ref(), vec![pod(n)]).await;
        evictions += log.lines().len() - 1;
        left = report.left.len();
        known = Some(report.known);
    }
    assert_eq!(left, 0, "the drain does not end");
    evictions
}

#[tokio::test]
async fn pod_that_a_cordon_does_not_keep_away_is_evicted_a_few_times_and_then_named() {
    // A controller sets spec.nodeName.
    assert_eq!(evictions_of(|n| pod(&format!("web-{n}"))).await, 4);
    // No controller owns it: somebody applies the same manifest again.
    let bare = |name: &str, uid: usize| {
        let mut pod = pod(name);
        pod["metadata"]["uid"] = json!(format!("uid-{uid}"));
        pod["metadata"]["ownerReferences"] = json!([]);
        pod
    };
    assert_eq!(evictions_of(|n| bare("agent", n)).await, 4);
    let generated = |n: usize| {
        let mut pod = bare(&format!("agent-{n}"), n);
        pod["metadata"]["generateName"] = json!("agent-");
        pod
    };
    assert_eq!(evictions_of(generated).await, 4);
    // A webhook adds a toleration.
    assert_eq!(evictions_of(|n| tolerant(&format!("web-{n}"))).await, 1);
    // It terminates by itself each time.
    let terminating = |n: usize| {
        let mut pod = pod(&format!("web-{n}"));
        pod["metadata"]["deletionTimestamp"] = json!("2026-11-27T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        pod
    };
    assert_eq!(evictions_of(terminating).await, 0);
}

/// A Ready pod of `app`.
fn ready(name: &str, app: &str) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["labels"] = json!({"app": app});
    pod["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    pod
}

fn held_by(budget: &str) -> ScriptedReply {
    refusal(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        json!({"causes": [{"reason": "DisruptionBudget",
            "message": format!("The disruption budget {budget} needs 2 healthy pods and has 2 currently")}]}),
    )
}

#[tokio::test]
async fn blocking_budget_skips_all_pods_of_its_group_and_no_others() {
    let (report, log) = evict_round(|seen| match seen.line.as_str() {
        LIST => {
            let mut pods: Vec<_> = (0..50).map(|n| ready(&format!("web-{n:02}"), "web")).collect();
            pods.push(ready("api-1", "api"));
            let mut starting = ready("web-starting", "web");
            starting["status"]["conditions"] = json!([]);
            pods.push(starting);
            pod_list(&pods, "")
        }
        line if line.contains("web-starting") || line.contains("api-1") => accepted(),
        _ => held_by("web-pdb"),
    })
    .await;
    let report = report.unwrap();
    let held = |left: &&PodPending| matches!(&left.why, PendingReason::Budget { names, .. } if names == &["web-pdb"]);
    assert_eq!(report.left.iter().filter(held).count(), 50);
    assert_eq!(report.left.len(), 52);
    assert_eq!(report.answers, BTreeMap::from([(201, 2), (429, 1)]));
    assert_eq!(log.lines().len(), 4);
}

#[tokio::test]
async fn all_pods_of_a_group_without_a_budget_are_evicted() {
    let (report, log) = evict_round(cluster(
        (0..200).map(|n| ready(&format!("web-{n:03}"), "web")),
        |_| accepted(),
    ))
    .await;
    assert!(
        report
            .unwrap()
            .left
            .iter()
            .all(|left| left.why == PendingReason::Leaving)
    );
    assert_eq!(log.lines().len(), 201);
}

#[tokio::test(start_paused = true)]
async fn rounds_of_two_nodes_share_the_eviction_limit() {
    let (client, log) = server(cluster((0..5).map(|n| pod(&format!("web-{n}"))), |_| {
        ScriptedReply::Silence
    }));
    let settings = DrainSettings {
        round_deadline: Duration::from_secs(10),
        evictions: Concurrency::of(3),
        ..settings()
    };
    let node = node();
    let permit = permit();
    let one = round(&permit, &client, &node, &settings, ORDER);
    let other = round(&permit, &client, &node, &settings, ORDER);
    let (one, other) = tokio::join!(one, other);
    let asked = [one, other].map(|report| report.unwrap().answers.values().sum::<u64>());
    assert_eq!(asked.iter().sum::<u64>(), 3);
    assert_eq!(log.lines().len(), 2 + 3);
}

#[tokio::test(start_paused = true)]
async fn accepted_eviction_is_reported_before_the_round_ends() {
    let silent = evicted("web-2");
    let (client, _) = server(move |seen| match seen.line.as_str() {
        LIST => {
            let pods: Vec<_> = (0..4).map(|n| pod(&format!("web-{n}"))).collect();
            pod_list(&pods, "")
        }
        line if line == silent => ScriptedReply::Silence,
        _ => accepted(),
    });
    let begun = Instant::now();
    let reported = std::sync::Mutex::new(Vec::new());
    let permit = permit();
    let order = DrainOrder {
        on_evicted: &|left| {
            reported
                .lock()
                .unwrap()
                .push((left.name.clone(), begun.elapsed().as_secs()))
        },
        ..ORDER
    };
    let report = round(&permit, &client, &node(), &settings(), order)
        .await
        .unwrap();
    assert_eq!(
        begun.elapsed().as_secs(),
        20,
        "the silent one has its own deadline"
    );
    let mut reported = reported.into_inner().unwrap();
    reported.sort();
    assert_eq!(
        reported,
        ["web-0", "web-1", "web-3"].map(|name| (name.to_owned(), 0))
    );
    assert_eq!(
        report
            .left
            .iter()
            .filter(|left| left.why == PendingReason::Leaving)
            .count(),
        3
    );
}

#[tokio::test(start_paused = true)]
async fn rounds_of_two_nodes_share_the_list_limit() {
    let (client, log) = server(|_| ScriptedReply::Silence);
    let first = DrainSettings {
        lists: Concurrency::of(1),
        ..settings()
    };
    let second = DrainSettings {
        list_deadline: first.list_deadline / 2,
        ..first.clone()
    };
    let node = node();
    let one = list_only(&client, &node, &first, NOW);
    let other = list_only(&client, &node, &second, NOW);
    let (one, other) = tokio::join!(one, other);
    assert!(
        one.is_err() && other.is_err(),
        "a list that had no turn says nothing of the pods"
    );
    assert_eq!(log.lines().len(), 1, "the second never had its turn");
}

#[tokio::test(start_paused = true)]
async fn lists_of_many_nodes_wait_for_the_limit_and_all_complete() {
    let (client, _) = server(|_| {
        let ScriptedReply::Json(code, pods) = pod_list(&[], "") else {
            panic!("a list");
        };
        ScriptedReply::Late(Duration::from_millis(100), code, pods)
    });
    let (settings, node, begun) = (settings(), node(), Instant::now());
    let rounds = (0..1000).map(|_| list_only(&client, &node, &settings, NOW));
    let reports = futures::future::join_all(rounds).await;
    assert!(reports.iter().all(Result::is_ok));
    assert_eq!(begun.elapsed().as_millis(), 1000 / 8 * 100);
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_list_does_not_shorten_the_round() {
    let (client, log) = server(|seen| match seen.line.as_str() {
        LIST => {
            let ScriptedReply::Json(code, pods) = pod_list(&[pod("web-1")], "") else {
                panic!("a list");
            };
            ScriptedReply::Late(Duration::from_secs(1), code, pods)
        }
        _ => accepted(),
    });
    let settings = DrainSettings {
        round_deadline: Duration::from_secs(1),
        lists: Concurrency::of(1),
        ..settings()
    };
    let (node, permit) = (node(), permit());
    let rounds = (0..4).map(|_| round(&permit, &client, &node, &settings, ORDER));
    let reports = futures::future::join_all(rounds).await;
    assert!(reports.iter().all(|report| {
        let left = &report.as_ref().unwrap().left;
        left.iter().all(|left| left.why == PendingReason::Leaving)
    }));
    assert_eq!(log.lines().len(), 2 * 4);
}

#[test]
fn evictions_of_a_group_grow_or_are_sequential() {
    let pods = || -> Vec<Evictable> {
        let pods = (0..9).map(|n| {
            let mut pod = pod(&format!("web-{n}"));
            pod["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
            serde_json::from_value(pod).unwrap()
        });
        pods.map(|pod: Pod| Evictable::new(&pod)).collect()
    };
    // How many are asked at once, each time after all that were have gone.
    let at_once = |mut groups: Groups| {
        let mut counts = Vec::new();
        loop {
            let asked: Vec<usize> = std::iter::from_fn(|| groups.next().map(|(group, _)| group)).collect();
            if asked.is_empty() {
                return counts;
            }
            counts.push(asked.len());
            asked.into_iter().for_each(|group| groups.accepted(group));
        }
    };
    assert_eq!(at_once(Groups::of(pods(), false)), [1, 2, 4, 2]);
    assert_eq!(at_once(Groups::of(pods(), true)), [1; 9]);
}

/// A pod with these annotations.
fn annotated(name: &str, annotations: Value) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["annotations"] = annotations;
    pod
}

/// What a round after `elapsed` seconds reports of these pods, in a namespace with this annotation `haulout.dev/drain`.
async fn policies_in(
    namespace: Option<&'static str>,
    pods: Vec<Value>,
    elapsed: u64,
) -> (RoundReport, Vec<String>) {
    let (client, log) = server(move |seen: &SeenRequest| match seen.line.as_str() {
        LIST => pod_list(&pods, ""),
        "GET /api/v1/namespaces/shop" => ScriptedReply::Json(
            200,
            json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"name": "shop", "annotations": namespace.map(|value| json!({"haulout.dev/drain": value}))},
            }),
        ),
        _ => accepted(),
    });
    let order = DrainOrder {
        began: DrainBegan {
            elapsed: Duration::from_secs(elapsed),
            at: NOW.wall,
        },
        ..ORDER
    };
    let settings = DrainSettings {
        wait_max: Duration::from_secs(100),
        ..DrainSettings::default()
    };
    let report = round(&permit(), &client, &node(), &settings, order).await;
    (report.unwrap(), log.lines())
}

#[tokio::test]
async fn pod_is_waited_for_until_its_time_or_the_longest_has_passed() {
    let pods = || {
        let wait =
            |seconds: &str| json!({"haulout.dev/drain": "wait", "haulout.dev/drain-wait-seconds": seconds});
        vec![
            annotated("short", wait("60")),
            annotated("long", wait("7200")),
            pod("web-1"),
        ]
    };
    for (elapsed, asked) in [
        (0, vec!["web-1"]),
        (59, vec!["web-1"]),
        (60, vec!["short", "web-1"]),
        (99, vec!["short", "web-1"]),
        (100, vec!["long", "short", "web-1"]),
    ] {
        let (report, _) = policies_in(None, pods(), elapsed).await;
        let of = |is_waiting: bool| -> Vec<String> {
            let left = report.left.iter();
            let left = left.filter(|left| matches!(left.why, PendingReason::Waits { .. }) == is_waiting);
            left.map(|left| left.name.clone()).collect()
        };
        assert_eq!(of(false), asked, "after {elapsed} s");
        assert_eq!(of(true).len(), 3 - asked.len());
        assert_eq!(report.longest_wait, Duration::from_secs(100));
    }
    // It terminates after its wait, and the drain timeout begins only then.
    let mut leaving = annotated("short", json!({"haulout.dev/drain": "wait"}));
    leaving["metadata"]["deletionTimestamp"] = json!("2026-11-20T12:00:00Z");
    let (report, _) = policies_in(None, vec![leaving], 100).await;
    assert_eq!(report.longest_wait, Duration::from_secs(100));
    assert_eq!(report.left[0].why, PendingReason::Leaving);
    assert_eq!(report.evicted, 0);
}

#[tokio::test]
async fn pod_with_skip_does_not_block_and_is_named() {
    let own = annotated("evicted", json!({"haulout.dev/drain": "evict"}));
    let (report, asked) = policies_in(Some("skip"), vec![pod("stays"), own], 0).await;
    assert_eq!(report.left_alone, ["shop/stays"]);
    assert_eq!(report.skipped[&SkipReason::Policy], 1);
    let namespace = "GET /api/v1/namespaces/shop".to_owned();
    assert_eq!(asked, [LIST.to_owned(), namespace, evicted("evicted")]);
}

#[tokio::test]
async fn pod_with_an_unreadable_annotation_is_evicted_and_told_once() {
    let settings = settings();
    let odd = annotated("odd", json!({"haulout.dev/drain": "never"}));
    let (client, log) = server(cluster([odd], |_| accepted()));
    for told in [1, 0] {
        let report = round(&permit(), &client, &node(), &settings, ORDER)
            .await
            .unwrap();
        assert_eq!(report.unreadable.len(), told);
        assert_eq!(report.left[0].why, PendingReason::Leaving);
    }
    let asked = log.lines();
    let once = || [LIST.to_owned(), evicted("odd")];
    assert_eq!(asked, [once(), once()].concat());
}

#[tokio::test]
async fn pod_whose_namespace_cannot_be_read_is_not_evicted_unless_that_is_forbidden() {
    for (code, evicts) in [(500, false), (403, true), (404, true)] {
        let settings = DrainSettings::default();
        let (client, log) = server(move |seen: &SeenRequest| match seen.line.as_str() {
            LIST => pod_list(
                &[
                    pod("web-1"),
                    annotated("own", json!({"haulout.dev/drain": "evict"})),
                ],
                "",
            ),
            line if line.starts_with("GET") => refusal(code, "Odd", "no", json!({})),
            _ => accepted(),
        });
        let report = round(&permit(), &client, &node(), &settings, ORDER)
            .await
            .unwrap();
        let of_web = report.left.iter().find(|left| left.name == "web-1").unwrap();
        assert_eq!(
            of_web.why == PendingReason::Leaving,
            evicts,
            "{code}: {:?}",
            of_web.why
        );
        round(&permit(), &client, &node(), &settings, ORDER)
            .await
            .unwrap();
        let reads = log
            .lines()
            .iter()
            .filter(|line| line.contains("namespaces/shop") && line.starts_with("GET"))
            .count();
        assert_eq!(
            reads,
            if code == 500 { 2 } else { 1 },
            "{code}: kept, or not asked again"
        );
    }
}
