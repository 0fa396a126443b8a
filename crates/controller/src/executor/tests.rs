use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use haulout_core::fixtures;
use http::{Request, Response};
use kube::client::Body;
use secrecy::SecretString;
use tokio::sync::mpsc;

use super::*;
use haulout_core::maintenance::decide::{Decision, decide};
use haulout_core::maintenance::effect::DrainBegan;
use haulout_core::maintenance::episode::Phase;
use haulout_core::maintenance::observed::{
    BoundVm, HostState, Observed, ObservedNode, PendingReason, PowerState,
};
use haulout_core::maintenance::policy::{DrainTimeoutAction, Policy};
use haulout_kubernetes::drain::{PodPending, RoundReport};
use haulout_kubernetes::stand_in::{refusal, server};
use haulout_vsphere::client::{CredentialPart, CredentialSource, Endpoint, Settings, Trust};

/// How long the kube-apiserver takes for a list.
const SLOW: Duration = Duration::from_secs(7);

/// An executor whose kube-apiserver takes its time and lists no pods, and its reports.
fn executor() -> (Executor, mpsc::Receiver<EffectReport>) {
    executor_on(kube::Client::new(
        tower::service_fn(|_: Request<Body>| async {
            tokio::time::sleep(SLOW).await;
            Ok::<_, Infallible>(answer(200, &pod_list(&[])))
        }),
        "default",
    ))
}

fn answer(code: u16, body: &serde_json::Value) -> Response<Body> {
    let body = Body::from(body.to_string().into_bytes());
    Response::builder().status(code).body(body).unwrap()
}

fn pod_list(pods: &[serde_json::Value]) -> serde_json::Value {
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})
}

fn executor_on(client: kube::Client) -> (Executor, mpsc::Receiver<EffectReport>) {
    let given = || CredentialPart::Given(SecretString::from("nobody"));
    let credentials = CredentialSource {
        user: given(),
        password: given(),
    };
    let endpoint = Endpoint::parse("https://vcenter.test/sdk").unwrap();
    let (reports, received) = mpsc::channel(8);
    let (nodes, _) = mpsc::channel(8);
    let executor = Executor {
        fence: WriteFence::without_election(),
        vcenter: Vcenter::new(Settings::new(endpoint, credentials, Trust::Nothing)).unwrap(),
        machines: Arc::new(MachineApi::new(client.clone())),
        client,
        limit_group: None,
        gpu_resources: GpuResources::parse("nvidia.com/*").unwrap(),
        drain: DrainSettings::default(),
        events: haulout_kubernetes::events::queue(|| {}).0,
        on_evictions: Box::new(|_, _| {}),
        refusals: RefusalLog::default(),
        reports,
        nodes,
    };
    (executor, received)
}

#[tokio::test(start_paused = true)]
async fn a_list_of_pods_is_no_younger_than_the_beginning_of_its_round() {
    let (executor, mut reports) = executor();
    let begun = Now::at(Timestamp::UNIX_EPOCH, 1_000);
    let effect = Effect::DrainRound {
        pods_revision: 5,
        in_turn: false,
        deferred: BTreeMap::new(),
        known: None,
        began: DrainBegan {
            elapsed: Duration::ZERO,
            at: Timestamp::UNIX_EPOCH,
        },
    };
    let (name, began) = (NodeName::new("gpu-1"), Instant::now());
    executor.perform(&name, &Record::InService, &effect, begun).await;
    assert_eq!(began.elapsed(), SLOW);
    let mut report = None;
    while let Ok(sent) = reports.try_recv() {
        if let EffectResult::Drain(drain) = sent.found {
            report = Some(drain);
        }
    }
    let report = report.unwrap();
    assert_eq!(report.listed_at, begun.monotonic);
    assert_eq!(report.pods_revision, 5, "that of the beginning as well");
}

/// An eviction may be accepted long after it was asked for.
#[test]
fn grace_period_of_a_pod_counts_from_the_end_of_its_round() {
    let began = Now::at(Timestamp::UNIX_EPOCH, 1_000);
    let leaving = PodPending {
        namespace: "ml".to_owned(),
        name: "train".to_owned(),
        uid: "uid".to_owned(),
        grace: Some(30),
        why: PendingReason::Leaving,
        retry_at: None,
    };
    let round = RoundReport {
        left: vec![leaving],
        ..RoundReport::default()
    };
    let report = report::of_round(round, 5, (began, SLOW));
    assert_eq!(report.terminating["ml/train"].since, began.monotonic.after(SLOW));
    assert_eq!(report.listed_at, began.monotonic);
}

/// When evictions of a pod are asked for, in seconds from the first, while the pods of the Node change four times a second and
/// the first eviction is answered with this.
async fn asked_at(first: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static) -> Vec<u64> {
    let begun = Instant::now();
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let is_list = request.method() == http::Method::GET;
        if !is_list {
            log.lock().unwrap().push(begun.elapsed().as_secs());
        }
        let response = if is_list {
            let pod = json!({
                "metadata": {"name": "web-1", "namespace": "shop", "uid": "uid-web-1"},
                "spec": {"nodeName": "gpu-1", "containers": []},
            });
            answer(200, &pod_list(&[pod]))
        } else if log.lock().unwrap().len() == 1 {
            first()
        } else {
            answer(
                201,
                &json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
            )
        };
        async { Ok::<_, Infallible>(response) }
    });
    let (executor, mut reports) = executor_on(kube::Client::new(service, "default"));
    let name = NodeName::new("gpu-1");
    let mut record = fixtures::record(fixtures::episode(Phase::Draining, 1));
    let mut seen = draining(Now::at(Timestamp::UNIX_EPOCH, 1_000));
    for quarter in 0..100 {
        let now = Now::at(Timestamp::UNIX_EPOCH, 1_000).after(begun.elapsed());
        match decide(&record, &seen, &policy(), now) {
            Decision::Act { effect, .. } => executor.perform(&name, &record, &effect, now).await,
            Decision::Write(transition) => record = transition.record,
            Decision::Wait { .. } | Decision::Idle => {}
        }
        while let Ok(sent) = reports.try_recv() {
            if let EffectResult::Drain(mut report) = sent.found {
                report.follow(seen.drain.as_ref(), |_, _| false);
                seen.drain = Some(report);
            }
        }
        seen.pods_revision = quarter;
        tokio::time::advance(Duration::from_millis(250)).await;
    }
    let asked = asked.lock().unwrap();
    asked.clone()
}

/// A cordoned Node that is asked to be in maintenance by its host.
fn draining(now: Now) -> Observed {
    let node = ObservedNode {
        unschedulable: true,
        ..fixtures::node()
    };
    let vm = fixtures::vm(Some(PowerState::On), HostState::InMaintenance);
    Observed::of(Some(node), BoundVm::Found(vm), now)
}

fn policy() -> Policy {
    Policy {
        drain_timeout: Duration::from_secs(3600),
        ..fixtures::policy(DrainTimeoutAction::Hold)
    }
}

/// A refused eviction, as the kube-apiserver answers it where a budget's status is older than the budget.
fn budget_is_new() -> Response<Body> {
    let cause = "The disruption budget web is still being processed by the server.";
    let details = json!({
        "retryAfterSeconds": 10, "causes": [{"reason": "DisruptionBudget", "message": cause}],
    });
    answer(
        429,
        &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429,
            "reason": "TooManyRequests", "message": "Cannot evict pod.", "details": details}),
    )
}

/// What API priority and fairness answers where too much is asked: no `Status`, and the time in a header alone.
fn too_much_is_asked() -> Response<Body> {
    let mut response = answer(429, &json!("Too many requests, please try again later."));
    let header = http::HeaderValue::from_static("7");
    response.headers_mut().insert(http::header::RETRY_AFTER, header);
    response
}

#[tokio::test(start_paused = true)]
async fn drain_waits_as_long_as_retry_after_says() {
    assert_eq!(asked_at(budget_is_new).await[..2], [0, 10]);
    assert_eq!(asked_at(too_much_is_asked).await[..2], [0, 7]);
}

#[tokio::test]
async fn record_of_a_deleted_node_is_written_to_the_copy_that_was_decided_on() {
    let (client, log) = server(|_| refusal(409, "Conflict", "the object has been modified", json!(null)));
    let (executor, _reports) = executor_on(client);
    let before = fixtures::record(fixtures::episode(Phase::AwaitingHost, 1));
    let transition = Transition {
        record: before.clone(),
        unschedulable: None,
        ended: None,
        fulfilled: None,
    };
    let now = Now::at(Timestamp::UNIX_EPOCH, 1_000);
    let seen = Observed {
        copy_version: Some(77),
        ..Observed::of(None, BoundVm::NotLookedUp, now)
    };
    let name = NodeName::new("gpu-1");
    let written = executor.record(&name, &seen, &before, &transition, now).await;
    assert!(matches!(written, Err(NotRecorded::Refused(_))), "{written:?}");
    let asked = log.all();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].body["metadata"], json!({"resourceVersion": "77"}));
}
