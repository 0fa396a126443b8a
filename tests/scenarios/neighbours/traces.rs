//! The trace of an episode in a tracing backend.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use haulout::nodemaintenance::kind::{MaintenanceAction, NodeMaintenance};
use haulout_lab::fault_proxy::Moment;
use haulout_lab::fixture::{Fixture, Haulout, Member, WAIT_TIMEOUT, episode};
use haulout_lab::jaeger::{Jaeger, JaegerSpan};
use haulout_lab::otlp_proxy::{OtlpProxy, Point};
use haulout_lab::wait::until;
use kube::ResourceExt as _;
use tokio::sync::OnceCell;

use crate::fixture::{
    a40, fixture, gpu_vm, hosts, kube, one_node, run_scenario, start, trace_id, wait_scenario,
};
use crate::leader_election::{UNDEPOSED, replica_settings, wait_leader, wait_reachable, wait_synced};
use crate::requests;

/// One Jaeger for all scenarios; trace ids separate them.
static JAEGER: OnceCell<Jaeger> = OnceCell::const_new();

pub async fn jaeger() -> &'static Jaeger {
    JAEGER
        .get_or_init(async || Jaeger::start().await.expect("starting Jaeger"))
        .await
}

/// Starts Haulout with its traces to Jaeger over HTTP.
async fn start_traced(fixture: &Fixture<'_>) -> anyhow::Result<Haulout> {
    let endpoint = jaeger().await.otlp_http();
    start(fixture, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)])
}

/// The checked spans of a trace whose root has arrived.
async fn whole(id: &str, node: &str) -> anyhow::Result<Vec<JaegerSpan>> {
    let jaeger = jaeger().await;
    let spans = until(&format!("the root of the trace {id}"), WAIT_TIMEOUT, async || {
        let spans = jaeger.trace(id).await?;
        let is_whole = spans.iter().any(|span| span.parent.is_none());
        Ok(is_whole.then_some(spans))
    })
    .await?;
    check(&spans, node).with_context(|| format!("{spans:#?}"))?;
    // The node's only trace, however many processes sent it.
    let all = jaeger.find("haulout", "k8s.node.name", node).await?;
    let own = all.iter().filter(|span| spans.iter().any(|it| it.id == span.id));
    ensure!(
        own.count() == all.len(),
        "{node} is in more than one trace: {all:#?}"
    );
    Ok(spans)
}

/// The attributes of the resource of a trace.
async fn resource(id: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let url = format!("{}/api/traces/{id}", jaeger().await.query());
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(WAIT_TIMEOUT)
        .build()?;
    let text = client.get(url).send().await?.error_for_status()?.text().await?;
    let trace: serde_json::Value = serde_json::from_str(&text)?;
    let processes = trace["data"][0]["processes"].as_object().context("processes")?;
    let tags = processes
        .values()
        .filter_map(|process| process["tags"].as_array());
    let tags = tags.flatten().filter_map(|tag| {
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        Some((text(&tag["key"])?, text(&tag["value"])?))
    });
    Ok(tags.collect())
}

fn check(spans: &[JaegerSpan], node: &str) -> anyhow::Result<()> {
    let roots: Vec<&JaegerSpan> = spans.iter().filter(|span| span.parent.is_none()).collect();
    let [root] = roots[..] else {
        anyhow::bail!("there are {} roots", roots.len());
    };
    ensure!(root.name == "maintenance", "the root is {}", root.name);
    ensure!(spans.iter().any(|span| span.name == "announce"));
    for span in spans {
        let same = spans.iter().filter(|it| it.id == span.id).count();
        ensure!(same == 1, "{} stands {same} times", span.name);
        ensure!(span.tags.get("k8s.node.name").map(String::as_str) == Some(node));
        for key in ["haulout.episode", "vcenter.host.name"] {
            ensure!(span.tags.contains_key(key), "{} has no {key}", span.name);
        }
        if let Some(parent) = &span.parent {
            let parent = spans.iter().find(|it| it.id == *parent);
            let parent = parent.with_context(|| format!("the parent of {} is missing", span.name))?;
            ensure!(
                parent.start <= span.start && span.end <= parent.end,
                "{} is not inside of {}",
                span.name,
                parent.name
            );
        }
    }
    let mut at = root.start;
    for phase in phases(spans) {
        ensure!(
            phase.start == at,
            "{} µs between {} and what was before",
            phase.start.abs_diff(at),
            phase.name
        );
        at = phase.end;
    }
    ensure!(root.end == at, "the root outlasts its last phase");
    Ok(())
}

/// The children of the root, in order.
fn phases(spans: &[JaegerSpan]) -> Vec<&JaegerSpan> {
    let root = spans.iter().find(|span| span.parent.is_none()).unwrap();
    let mut phases: Vec<&JaegerSpan> = spans
        .iter()
        .filter(|span| span.parent.as_ref() == Some(&root.id) && span.name != "announce")
        .collect();
    phases.sort_by_key(|span| (span.start, span.end));
    phases
}

fn names(spans: &[JaegerSpan]) -> Vec<&str> {
    phases(spans).iter().map(|span| span.name.as_str()).collect()
}

fn named<'a>(spans: &'a [JaegerSpan], name: &str) -> anyhow::Result<&'a JaegerSpan> {
    let found = spans.iter().find(|span| span.name == name);
    found.with_context(|| format!("there is no {name} in {spans:#?}"))
}

#[test]
fn episode_that_waits_is_one_trace_from_trigger_to_uncordon() {
    run_scenario(async {
        let fixture = one_node("trace-wait").await?;
        let node = fixture.node_name("gpu1");
        let ui = "https://jaeger.example/trace/{trace_id}";
        let endpoint = jaeger().await.otlp_grpc();
        let haulout = start(
            &fixture,
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
                ("TRACE_UI_URL_TEMPLATE", ui),
            ],
        )?;
        let id = wait_scenario(&fixture).await?;
        let spans = whole(&id, &node).await?;
        let names = names(&spans);
        ensure!(
            names.starts_with(&["detect", "drain"]) && names.ends_with(&["uncordon"]),
            "{names:?}"
        );
        for name in [
            "cordon",
            "guest shutdown",
            "wait host exit",
            "power on",
            "wait node ready",
        ] {
            named(&spans, name)?;
        }
        let root = named(&spans, "maintenance")?;
        ensure!(root.tags.get("haulout.result").map(String::as_str) == Some("succeeded"));
        ensure!(root.tags.contains_key("vcenter.task.id"));
        ensure!(root.tags.get("haulout.trigger").map(String::as_str) == Some("task"));
        fixture
            .wait_for_log(&format!("https://jaeger.example/trace/{id}"))
            .await?;
        fixture.wait_for_log(&format!("trace_id=\"{id}\"")).await?;
        haulout.stop().await
    });
}

#[test]
fn episode_that_moves_is_one_trace_that_names_the_new_host() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)]), ("esx3", &[])]);
        spec.vms = vec![gpu_vm("trace-move", "gpu1", "esx1")];
        let fixture = fixture("trace-move", &spec).await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        fixture.add_pod("infer", &node, &[]).await?;
        let endpoint = jaeger().await.otlp_http();
        // A re-read that meets the click would be the source of the detection.
        let push_only = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
            ("POLL_INTERVAL_SECONDS", "3600"),
        ];
        let haulout = start(&fixture, &push_only)?;
        fixture.wait_for_log("vCenter synced").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let id = trace_id(&fixture, &node).await?;
        fixture.wait_in_service(&node).await?;
        let spans = whole(&id, &node).await?;
        let place = named(&spans, "place")?;
        ensure!(
            place.tags["haulout.placement.strategy"] == "relocate",
            "{place:#?}"
        );
        ensure!(place.events == ["host.refused"], "esx3 has no device: {place:#?}");
        let drain = named(&spans, "drain")?;
        for (pods, count) in [("total", "2"), ("evicted", "2"), ("ignored", "0")] {
            let shown = drain.tags.get(&format!("haulout.pods.{pods}"));
            ensure!(shown.map(String::as_str) == Some(count), "{pods}: {drain:#?}");
        }
        for name in ["maintenance", "announce", "detect"] {
            let tags = &named(&spans, name)?.tags;
            ensure!(tags.contains_key("vcenter.cluster.name"), "{name}: {tags:?}");
            let vm = tags.get("vcenter.vm.name").map(String::as_str);
            ensure!(vm == Some("gpu1"), "{name}: {tags:?}");
        }
        let detect = named(&spans, "detect")?;
        ensure!(
            detect.tags.get("haulout.detection.source").map(String::as_str) == Some("property_collector"),
            "{detect:#?}"
        );
        for name in ["relocate", "power on"] {
            let tags = &named(&spans, name)?.tags;
            let address = tags.get("server.address").map(String::as_str);
            ensure!(address == Some("127.0.0.1"), "{name}: {tags:?}");
            ensure!(tags.contains_key("vcenter.task.id"), "{name}: {tags:?}");
        }
        let relocate = named(&spans, "relocate")?;
        ensure!(relocate.tags.get("haulout.target.host").map(String::as_str) == Some("esx2"));
        ensure!(relocate.tags.get("peer.service").map(String::as_str) == Some("vcenter"));
        ensure!(relocate.tags.get("rpc.method").map(String::as_str) == Some("RelocateVM_Task"));
        ensure!(relocate.tags.get("rpc.system.name").map(String::as_str) == Some("soap"));
        let resource = resource(&id).await?;
        let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(fixture.client());
        let cluster = namespaces.get("kube-system").await?.metadata.uid;
        ensure!(
            resource.get("k8s.cluster.uid") == cluster.as_ref(),
            "{resource:?}"
        );
        ensure!(
            !resource.contains_key("k8s.pod.name"),
            "it runs in no pod: {resource:?}"
        );
        haulout.stop().await?;
        let log = fixture.log_text();
        ensure!(!log.contains("last spans") && !log.contains("were lost"), "{log}");
        Ok(())
    });
}

#[test]
fn cancelled_drain_is_one_trace_that_names_the_budget() {
    run_scenario(async {
        let fixture = one_node("trace-cancel").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = start_traced(&fixture).await?;
        fixture.wait_for_log("vCenter synced").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let id = trace_id(&fixture, &node).await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let spans = whole(&id, &node).await?;
        ensure!(names(&spans) == ["detect", "drain", "uncordon"], "{spans:#?}");
        let budget = named(&spans, "drain")?.tags.get("k8s.pdb.name").cloned();
        ensure!(
            budget.as_ref().is_some_and(|it| it.contains("held-budget")),
            "{budget:?}"
        );
        let result = named(&spans, "maintenance")?.tags.get("haulout.result").cloned();
        ensure!(result.as_deref() == Some("cancelled"), "{result:?}");
        let root = named(&spans, "maintenance")?;
        ensure!(root.events == ["operator.cancelled"], "{root:#?}");
        let evict = named(&spans, "evict pod")?;
        ensure!(evict.tags["k8s.pod.name"] == "held", "{evict:#?}");
        haulout.stop().await
    });
}

/// The root span of an episode that a request began, with that request in its attributes.
fn begun_by_request<'a>(
    spans: &'a [JaegerSpan],
    request: &NodeMaintenance,
) -> anyhow::Result<&'a JaegerSpan> {
    let uid = request.uid().context("a request without a UID")?;
    for name in ["maintenance", "announce", "detect"] {
        let tags = &named(spans, name)?.tags;
        ensure!(
            tags.get("haulout.request") == Some(&request.name_any()),
            "{name}: {tags:?}"
        );
        ensure!(tags.get("haulout.request.uid") == Some(&uid), "{name}: {tags:?}");
        ensure!(
            !tags.contains_key("vcenter.task.id"),
            "no task of vCenter began it: {name}: {tags:?}"
        );
    }
    let root = named(spans, "maintenance")?;
    let asked_at = request.creation_timestamp().context("a request without an age")?;
    ensure!(
        i128::from(root.start) * 1000 == asked_at.0.as_nanosecond(),
        "it begins when it was asked for: {root:#?}"
    );
    Ok(root)
}

#[test]
fn drain_request_is_one_trace_until_it_is_withdrawn() {
    run_scenario(async {
        let fixture = one_node("trace-ask").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let haulout = start_traced(&fixture).await?;
        fixture.wait_for_log("vCenter synced").await?;
        let request = requests::ask(&fixture, "drain", &node, MaintenanceAction::Drain).await?;
        let id = trace_id(&fixture, &node).await?;
        fixture.wait_phase(&node, "drained").await?;
        requests::withdraw(&fixture, "drain").await?;
        fixture.wait_in_service(&node).await?;

        let spans = whole(&id, &node).await?;
        ensure!(
            names(&spans) == ["detect", "drain", "drained", "uncordon"],
            "{spans:#?}"
        );
        let root = begun_by_request(&spans, &request)?;
        ensure!(
            root.tags.get("haulout.result").map(String::as_str) == Some("succeeded"),
            "{root:#?}"
        );
        let evict = named(&spans, "evict pod")?;
        ensure!(evict.tags["k8s.pod.name"] == "train", "{evict:#?}");
        haulout.stop().await
    });
}

#[test]
fn reboot_request_is_one_trace_even_when_haulout_is_killed() {
    run_scenario(async {
        let fixture = one_node("trace-reboot").await?;
        let node = fixture.node_name("gpu1");
        let haulout = start_traced(&fixture).await?;
        fixture.wait_for_log("vCenter synced").await?;
        let request = requests::ask(&fixture, "reboot", &node, MaintenanceAction::Reboot).await?;
        let id = trace_id(&fixture, &node).await?;
        haulout.kill().await?;
        let haulout = start_traced(&fixture).await?;
        fixture.wait_in_service(&node).await?;

        let spans = whole(&id, &node).await?;
        let names = names(&spans);
        ensure!(
            names.starts_with(&["detect", "drain"]) && names.ends_with(&["uncordon"]),
            "{names:?}"
        );
        for name in ["guest shutdown", "power on", "wait node ready"] {
            named(&spans, name)?;
        }
        ensure!(!names.contains(&"relocate"), "{names:?}");
        let root = begun_by_request(&spans, &request)?;
        ensure!(
            root.tags.get("haulout.result").map(String::as_str) == Some("succeeded"),
            "{root:#?}"
        );
        haulout.stop().await
    });
}

#[test]
fn trace_of_a_blocked_drain_shows_what_each_pod_waited_for() {
    run_scenario(async {
        let fixture = one_node("trace-pdb").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.add_pod("free", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = start_traced(&fixture).await?;
        fixture.wait_for_log("vCenter synced").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let id = trace_id(&fixture, &node).await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        fixture.set_budget("held", 1).await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let spans = whole(&id, &node).await?;
        let drain = named(&spans, "drain")?;
        let pods: Vec<&JaegerSpan> = spans.iter().filter(|span| span.name == "evict pod").collect();
        let names: BTreeSet<&str> = pods.iter().map(|pod| pod.tags["k8s.pod.name"].as_str()).collect();
        ensure!(names == ["free", "held"].into(), "{names:?}");
        for pod in &pods {
            ensure!(pod.parent.as_ref() == Some(&drain.id), "{pod:#?}");
            for key in ["k8s.namespace.name", "k8s.pod.uid", "haulout.evict.attempts"] {
                ensure!(pod.tags.contains_key(key), "{pod:#?} has no {key}");
            }
            let of_it = |name: &str| {
                spans
                    .iter()
                    .filter(|it| it.name == name && it.parent.as_ref() == Some(&pod.id))
                    .count()
            };
            let is_held = pod.tags["k8s.pod.name"] == "held";
            ensure!(of_it("wait pdb") == usize::from(is_held), "{spans:#?}");
            ensure!(of_it("wait termination") == 1, "{spans:#?}");
        }
        let wait = named(&spans, "wait pdb")?;
        ensure!(wait.tags["k8s.pdb.name"] == "held-budget", "{wait:#?}");
        // A second message exists only if the eviction was retried while the changed budget was being counted.
        let blocked = wait
            .events
            .iter()
            .filter(|event| *event == "eviction.blocked")
            .count();
        ensure!(
            (1..=2).contains(&blocked) && blocked == wait.events.len(),
            "each message has one event: {wait:#?}"
        );
        haulout.stop().await
    });
}

/// The phases in every trace of an episode that waits.
const WAIT_SCENARIO: [&str; 10] = [
    "announce",
    "detect",
    "cordon",
    "drain",
    "guest shutdown",
    "wait host exit",
    "power on",
    "wait node ready",
    "uncordon",
    "maintenance",
];

/// The phases before the node waits for its host.
const BEFORE_THE_WAIT: [&str; 4] = ["announce", "detect", "drain", "guest shutdown"];

/// Scenarios at once. Each one mostly waits.
const ABREAST: usize = 6;

/// The result of an episode whose spans went through the OTLP proxy.
#[derive(Debug)]
struct Passage {
    /// Requests to the proxy.
    requests: usize,
    /// Spans that Jaeger got more than once.
    sent_again: usize,
    has_root: bool,
}

/// An episode of a node with a pod whose spans go through the OTLP proxy. With `kill`, Haulout is killed there and
/// started again.
async fn through_a_proxy(name: &str, kill: Option<(Point, Moment)>) -> anyhow::Result<Passage> {
    let fixture = one_node(name).await?;
    let node = fixture.node_name("gpu1");
    fixture.add_pod("train", &node, &[]).await?;
    let proxy = OtlpProxy::start(&jaeger().await.otlp_http()).await?;
    if let Some((point, moment)) = kill {
        proxy.stop_at(point, moment);
    }
    let start = || start(&fixture, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &proxy.endpoint())]);
    let first = start()?;
    let mut trace = None;
    let killed = async {
        if kill.is_none() {
            return Ok((first, true));
        }
        proxy.stopped().await;
        first.kill().await?;
        // The record on the Node is what the next process takes over.
        let is_open = episode(&fixture.node(&node).await?).is_some();
        proxy.open();
        Ok((start()?, is_open))
    };
    let played = async {
        trace = Some(wait_scenario(&fixture).await?);
        anyhow::Ok(())
    };
    let both = async { tokio::try_join!(killed, played) };
    let ((haulout, was_open), ()) = tokio::time::timeout(WAIT_TIMEOUT * 2, both)
        .await
        .with_context(|| format!("after {} requests\n{}", proxy.requests(), fixture.log_text()))??;
    let id = trace.context("the scenario has a trace")?;
    if was_open {
        whole(&id, &node).await.with_context(|| fixture.log_text())?;
    }
    // Only a process that has read the Node can have taken over; an orderly exit sends the pending spans.
    let starts = 1 + usize::from(kill.is_some());
    until("each of them to see the Node", WAIT_TIMEOUT, async || {
        let seen = fixture.log_text().matches("Kubernetes synced").count();
        Ok((seen == starts).then_some(()))
    })
    .await?;
    haulout.stop().await?;
    let spans = jaeger().await.trace(&id).await?;
    let root = spans.iter().find(|span| span.parent.is_none());
    for name in WAIT_SCENARIO {
        let count = spans.iter().filter(|span| span.name == name).count();
        // The cordon is no phase. Spans of an ended episode are lost with their process.
        let is_kept = was_open && name != "cordon" || BEFORE_THE_WAIT.contains(&name);
        ensure!(
            count == 1 || count == 0 && kill.is_some() && !is_kept,
            "{name} is there {count} times: {spans:#?}"
        );
    }
    if was_open {
        check(&spans, &node).with_context(|| format!("{spans:#?}"))?;
    }
    let events = root.into_iter().flat_map(|root| &root.events);
    let restarts = events.filter(|it| *it == "controller.restarted").count();
    ensure!(restarts <= usize::from(kill.is_some()), "{root:#?}");
    let stored = jaeger().await.stored(&id).await?.len();
    Ok(Passage {
        requests: proxy.requests(),
        sent_again: stored - spans.len(),
        has_root: root.is_some(),
    })
}

#[test]
fn kill_at_any_export_leaves_one_trace_with_all_finished_phases() {
    run_scenario(async {
        let passage = through_a_proxy("toll-ref", None).await?;
        println!("without a kill: {passage:?}");
        let Passage {
            requests,
            sent_again: 0,
            has_root: true,
        } = passage
        else {
            anyhow::bail!("without a kill each span is sent once: {passage:?}");
        };
        ensure!(requests >= 6, "{requests} exports");
        // Spans that end at almost the same time may share a request in one run only, so the last numbers may never
        // come. The root, in the last request, is found by its result.
        let points = (1..requests)
            .map(Point::Number)
            .chain([Point::Words("haulout.result")])
            .flat_map(|point| [(point, Moment::Before), (point, Moment::After)]);
        let kills: Vec<Passage> = stream::iter(points)
            .map(|(point, moment)| async move {
                let at = match point {
                    Point::Number(number) => number.to_string(),
                    Point::Words(_) => "root".to_owned(),
                };
                let name = format!("toll-{at}-{moment:?}").to_lowercase();
                let passage = through_a_proxy(&name, Some((point, moment)))
                    .await
                    .with_context(|| name.clone())?;
                println!("killed {moment:?} export {at}: {passage:?}");
                let took_root = matches!(point, Point::Words(_)) && moment == Moment::After;
                ensure!(
                    passage.has_root || !took_root,
                    "{name}: a root that Jaeger took is gone"
                );
                anyhow::Ok(passage)
            })
            .buffer_unordered(ABREAST)
            .try_collect()
            .await?;
        // Jaeger merges spans that are identical to the last bit, and shows both otherwise.
        ensure!(
            kills.iter().any(|kill| kill.sent_again > 0),
            "nothing was sent again: {kills:?}"
        );
        Ok(())
    });
}

#[test]
fn queued_episode_links_to_the_one_whose_slot_it_waited_for() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![
            gpu_vm("trace-queue", "gpu1", "esx1"),
            gpu_vm("trace-queue", "gpu2", "esx2"),
        ];
        let fixture = fixture("trace-queue", &spec).await?;
        let (first, second) = (fixture.node_name("gpu1"), fixture.node_name("gpu2"));
        fixture.add_pod("held", &first, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = start_traced(&fixture).await?;
        fixture.wait_for_log("vCenter synced").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        let holder = trace_id(&fixture, &first).await?;
        fixture.vcenter.enter_maintenance("esx2").await?;
        let id = trace_id(&fixture, &second).await?;
        fixture.wait_for_log("waiting_on=\"slot\"").await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_in_service(&first).await?;
        fixture.wait_in_maintenance("esx2").await?;
        fixture.vcenter.exit_maintenance("esx2").await?;
        fixture.wait_in_service(&second).await?;
        let spans = whole(&id, &second).await?;
        let queue = named(&spans, "queue")?;
        ensure!(
            queue.links == [holder.clone()],
            "{queue:#?} does not link to {holder}"
        );
        ensure!(queue.tags["haulout.queue.position"] == "1", "{queue:#?}");
        ensure!(queue.tags["haulout.queue.limit"] == "1", "{queue:#?}");
        ensure!(
            queue.tags["haulout.queue.setting"] == "MAX_CONCURRENT_DRAINS",
            "{queue:#?}"
        );
        whole(&holder, &first).await?;
        haulout.stop().await
    });
}

#[test]
fn episode_links_to_the_one_before_on_its_host() {
    run_scenario(async {
        let fixture = one_node("trace-again").await?;
        let node = fixture.node_name("gpu1");
        let haulout = start_traced(&fixture).await?;
        let first = wait_scenario(&fixture).await?;
        // By another process, so that the link comes from the Node.
        haulout.stop().await?;
        let haulout = start_traced(&fixture).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let second = trace_id(&fixture, &node).await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let root = until("the second root", WAIT_TIMEOUT, async || {
            let spans = jaeger().await.trace(&second).await?;
            Ok(spans.into_iter().find(|span| span.parent.is_none()))
        })
        .await?;
        ensure!(
            root.links == [first.clone()],
            "{root:#?} does not link to {first}; Haulout's log:\n{}",
            fixture.log_text()
        );
        haulout.stop().await
    });
}

/// The start of the wait for the host in microseconds, once the spans of earlier phases have arrived.
async fn wait_for_the_shutdown_spans(fixture: &Fixture<'_>, node: &str, id: &str) -> anyhow::Result<u64> {
    fixture.wait_phase(node, "awaitingHost").await?;
    until("the spans of the shutdown", WAIT_TIMEOUT, async || {
        let spans = jaeger().await.trace(id).await?;
        Ok(spans.iter().any(|it| it.name == "guest shutdown").then_some(()))
    })
    .await?;
    let episode = episode(&fixture.node(node).await?).context("no episode")?;
    let since: jiff::Timestamp = episode["since"].as_str().context("no since")?.parse()?;
    Ok(u64::try_from(since.as_microsecond())?)
}

#[test]
fn kill_while_waiting_for_the_host_leaves_one_trace_with_one_root() {
    run_scenario(async {
        let fixture = one_node("trace-kill").await?;
        let node = fixture.node_name("gpu1");
        let first = start_traced(&fixture).await?;
        fixture.wait_for_log("vCenter synced").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let id = trace_id(&fixture, &node).await?;
        let began = wait_for_the_shutdown_spans(&fixture, &node, &id).await?;
        first.kill().await?;
        let second = start_traced(&fixture).await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let spans = whole(&id, &node).await?;
        let wait = named(&spans, "wait host exit")?;
        let root = named(&spans, "maintenance")?;
        ensure!(root.events == ["controller.restarted"], "{root:#?}");
        ensure!(
            wait.start == began,
            "the wait begins in the killed process: {wait:#?}"
        );
        second.stop().await
    });
}

#[test]
fn change_of_leader_leaves_one_trace_with_every_phase_whole() {
    run_scenario(async {
        let fixture = one_node("trace-lead").await?;
        let node = fixture.node_name("gpu1");
        let endpoint = jaeger().await.otlp_http();
        let start = |name| {
            let traced = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
            start(
                &fixture,
                &[&traced[..], &replica_settings(&fixture, name), &UNDEPOSED].concat(),
            )
        };
        let first = start("a")?;
        wait_leader(&fixture, "a").await?;
        let second = start("b")?;
        wait_synced(&fixture, 1).await?;
        wait_reachable(&fixture, 2).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let id = trace_id(&fixture, &node).await?;
        let began = wait_for_the_shutdown_spans(&fixture, &node, &id).await?;
        first.kill().await?;
        wait_leader(&fixture, "b").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        second.stop().await?;

        let spans = whole(&id, &node).await?;
        for name in WAIT_SCENARIO {
            let count = spans.iter().filter(|span| span.name == name).count();
            ensure!(count == 1, "{name} was sent {count} times: {spans:#?}");
        }
        let wait = named(&spans, "wait host exit")?;
        ensure!(
            wait.start == began,
            "the wait begins under the dead leader: {wait:#?}"
        );
        let root = named(&spans, "maintenance")?;
        ensure!(
            root.events.iter().any(|event| event == "leader.changed"),
            "{root:#?}"
        );
        Ok(())
    });
}

#[test]
fn node_with_two_maintenances_has_two_traces() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)])]);
        let vm = gpu_vm("trace-twice", "gpu1", "esx1");
        let members = vec![Member::new("trace-twice", "gpu1", &vm.uuid)];
        spec.vms = vec![vm];
        let fixture = Fixture::create(kube().await, "trace-twice", &spec, members, true).await?;
        let haulout = start_traced(&fixture).await?;
        let first = wait_scenario(&fixture).await?;
        let second = wait_scenario(&fixture).await?;
        ensure!(first != second);
        for id in [first, second] {
            until("both roots", WAIT_TIMEOUT, async || {
                let spans = jaeger().await.trace(&id).await?;
                let roots = spans.iter().filter(|it| it.parent.is_none()).count();
                Ok((roots == 1).then_some(()))
            })
            .await?;
        }
        haulout.stop().await
    });
}
