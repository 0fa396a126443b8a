//! The Kubernetes client with a real kube-apiserver and its disruption controller.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "kubernetes/schema.rs"]
mod schema;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use haulout::fence::{Permit, WriteFence, WriteKind};
use haulout::ids::{NodeName, NodeUid};
use haulout::keys;
use haulout::kubernetes::client;
use haulout::kubernetes::drain::{self, DrainOrder, DrainSettings, RoundReport};
use haulout::kubernetes::facts::GpuResources;
use haulout::kubernetes::lease::ElectionStatus;
use haulout::kubernetes::node::{self, NodeError, NodeErrorKind, NodePatch};
use haulout::kubernetes::pods::SkipReason;
use haulout::kubernetes::update::{KubernetesUpdate, NodeAnnotations, NodeFacts};
use haulout::kubernetes::watch::{self, Selection, Settings, WatchContext};
use haulout::maintenance::clock::Now;
use haulout::maintenance::effect::DrainBegan;
use haulout::maintenance::node_guard::GuardChanges;
use haulout::maintenance::observed::PendingReason;
use haulout::maintenance::policy::Releases;
use haulout_lab::kube::{Kube, KubeOptions, User};
use haulout_lab::kubelet::{EXITS_AFTER_MS, Kubelet, Machine, STUCK, VmFacts};
use haulout_lab::wait::until;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
const DEADLINE: Duration = Duration::from_secs(10);
const UUID: &str = "42160f2c-7a0f-4e2c-9d4e-000000000001";

fn permit() -> Permit {
    WriteFence::without_election().permit(WriteKind::Effect).unwrap()
}

fn releases() -> Releases {
    Releases {
        own: "ops/haulout".into(),
        adopted: Arc::default(),
    }
}

/// A lab with one Node, and a client with Haulout's own rights.
struct NodeFixture {
    kube: Kube,
    _kubelet: Kubelet,
    _vm: tokio::sync::watch::Sender<VmFacts>,
    haulout: kube::Client,
    gpus: GpuResources,
    name: NodeName,
}

impl NodeFixture {
    async fn start() -> Self {
        let kube = Kube::start(&KubeOptions::default()).await.unwrap();
        kube.create_namespace("shop").await.unwrap();
        let (vm, facts) = tokio::sync::watch::channel(VmFacts::ON);
        let machine = Machine::new("gpu-1", UUID, 4).label("gpu", "true");
        let kubelet = Kubelet::start(kube.client(), machine, facts);
        let path = kube.kubeconfig(&User::haulout("haulout-1")).unwrap();
        let kubeconfig = Kubeconfig::read_from(path).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .unwrap();
        let haulout = client::client(config).unwrap();
        let fixture = Self {
            kube,
            _kubelet: kubelet,
            _vm: vm,
            haulout,
            gpus: GpuResources::parse("nvidia.com/*").unwrap(),
            name: NodeName::new("gpu-1"),
        };
        until("the node to be ready with its GPUs", WAIT_TIMEOUT, async || {
            let node = fixture.get().await?;
            Ok((node.ready.is_true && node.gpus.contains_key("nvidia.com/gpu")).then_some(()))
        })
        .await
        .unwrap();
        fixture
    }

    fn watches(&self, out: mpsc::Sender<KubernetesUpdate>, stop: &CancellationToken) -> WatchContext {
        WatchContext {
            client: self.haulout.clone(),
            settings: Settings::default(),
            out,
            stop: stop.clone(),
        }
    }

    async fn get(&self) -> Result<NodeFacts, NodeError> {
        node::get(&self.haulout, (None, &self.gpus), &self.name, DEADLINE).await
    }

    async fn patch(&self, patch: &NodePatch) -> Result<NodeFacts, NodeError> {
        node::patch(
            &permit(),
            &self.haulout,
            (None, &self.gpus),
            &self.name,
            patch,
            DEADLINE,
        )
        .await
    }

    /// Cordons the newest version; a kubelet may write the status in between.
    async fn cordon(&self) -> NodeFacts {
        until("the cordon to be accepted", WAIT_TIMEOUT, async || {
            let seen = self.get().await?;
            Ok(self.patch(&cordon(&seen)).await.ok())
        })
        .await
        .unwrap()
    }

    async fn round(&self) -> RoundReport {
        let now = Now::at(Timestamp::UNIX_EPOCH, 0);
        drain::round(
            &permit(),
            &self.haulout,
            &self.name,
            &DrainSettings::default(),
            DrainOrder {
                known: None,
                began: DrainBegan {
                    elapsed: Duration::ZERO,
                    at: now.wall,
                },
                now,
                in_turn: false,
                deferred: &BTreeMap::new(),
                on_evicted: &|_| {},
            },
        )
        .await
        .unwrap()
    }

    async fn create<K>(&self, object: Value)
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.kube.client(), "shop");
        let object: K = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn run_pods(&self, names: &[String], exits_after_ms: &str) {
        for name in names {
            self.create::<core::Pod>(json!({
                "metadata": {"name": name, "labels": {"app": name}, "annotations": {EXITS_AFTER_MS: exits_after_ms}},
                "spec": {"nodeName": "gpu-1", "terminationGracePeriodSeconds": 20,
                    "containers": [{"name": "main", "image": "lab.invalid/none"}]},
            }))
            .await;
        }
        let pods: Api<core::Pod> = Api::namespaced(self.kube.client(), "shop");
        until("the pods to run", WAIT_TIMEOUT, async || {
            let running = pods.list(&Default::default()).await?;
            let is_running = |pod: &core::Pod| {
                pod.status
                    .as_ref()
                    .is_some_and(|status| status.phase.as_deref() == Some("Running"))
            };
            Ok(running.iter().all(is_running).then_some(()))
        })
        .await
        .unwrap();
    }

    /// Creates a budget of `min` pods and waits until it is observed.
    async fn guard(&self, name: &str, app: &str) {
        self.create::<PodDisruptionBudget>(json!({
            "metadata": {"name": name},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
        }))
        .await;
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.kube.client(), "shop");
        until("the budget to count its pod", WAIT_TIMEOUT, async || {
            let status = budgets.get(name).await?.status.unwrap_or_default();
            Ok((status.current_healthy == Some(1)).then_some(()))
        })
        .await
        .unwrap();
    }
}

fn cordon(seen: &NodeFacts) -> NodePatch {
    NodePatch {
        uid: seen.uid.clone(),
        resource_version: seen.resource_version,
        annotations: NodeAnnotations {
            state: Some("draining".to_owned()),
            episode: Some("{\"v\":1}".to_owned()),
            ..NodeAnnotations::default()
        },
        is_adoption: false,
        is_end: false,
        ends_approval: false,
        unschedulable: Some(true),
        guards: GuardChanges::default(),
        taints: seen.taints.clone(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transition_is_accepted_once_and_on_the_newest_view_only() {
    let fixture = NodeFixture::start().await;
    let nodes: Api<core::Node> = Api::all(fixture.kube.client());

    let first = fixture.get().await.unwrap();
    let node = fixture.cordon().await;
    assert!(node.unschedulable && node.resource_version > first.resource_version);
    assert_eq!(node.cordoned_by.as_deref(), Some("haulout"));
    assert_eq!(node.annotations.state.as_deref(), Some("draining"));
    let stale = fixture.patch(&cordon(&first)).await.unwrap_err();
    assert_eq!(stale.kind, NodeErrorKind::Conflict, "{stale}");

    // A person's annotation is not changed.
    let key = keys::KEEP_CORDONED;
    let wish = Patch::Merge(json!({"metadata": {"annotations": {key: "true"}}}));
    nodes
        .patch("gpu-1", &PatchParams::default(), &wish)
        .await
        .unwrap();
    let node = until("the end to be accepted", WAIT_TIMEOUT, async || {
        let seen = fixture.get().await?;
        let end = NodePatch {
            annotations: NodeAnnotations::default(),
            unschedulable: Some(false),
            ..cordon(&seen)
        };
        Ok(fixture.patch(&end).await.ok())
    })
    .await
    .unwrap();
    assert!(!node.unschedulable && node.cordoned_by.is_none());
    assert_eq!(
        node.annotations,
        NodeAnnotations {
            keep_cordoned: Some("true".to_owned()),
            ..NodeAnnotations::default()
        }
    );
    let spec = nodes.get("gpu-1").await.unwrap().spec.unwrap();
    assert_eq!(spec.unschedulable, None);
    let by_person = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    let as_kubectl = PatchParams::apply("kubectl-cordon");
    nodes.patch("gpu-1", &as_kubectl, &by_person).await.unwrap();
    assert_eq!(
        fixture.get().await.unwrap().cordoned_by.as_deref(),
        Some("kubectl-cordon")
    );

    // Another Node with this name, and no Node.
    let other = until("an answer about the UID", WAIT_TIMEOUT, async || {
        let seen = fixture.get().await?;
        let other = NodePatch {
            uid: NodeUid::new("00000000-0000-0000-0000-000000000000"),
            ..cordon(&seen)
        };
        let error = fixture.patch(&other).await.unwrap_err();
        let is_raced = error.to_string().contains("object has been modified");
        Ok((!is_raced).then_some(error))
    })
    .await
    .unwrap();
    assert!(
        matches!(other.kind, NodeErrorKind::Gone | NodeErrorKind::Conflict),
        "{other}"
    );
    let nowhere = NodeName::new("gpu-9");
    let gone = node::patch(
        &permit(),
        &fixture.haulout,
        (None, &fixture.gpus),
        &nowhere,
        &cordon(&first),
        DEADLINE,
    )
    .await
    .unwrap_err();
    assert_eq!(gone.kind, NodeErrorKind::Gone, "{gone}");
    let gone = node::get(&fixture.haulout, (None, &fixture.gpus), &nowhere, DEADLINE)
        .await
        .unwrap_err();
    assert_eq!(gone.kind, NodeErrorKind::Gone, "{gone}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_names_what_holds_it_and_ends_on_a_list_without_pods() {
    let fixture = NodeFixture::start().await;
    let names = ["free", "guarded", "twice", "done"].map(str::to_owned);
    fixture.run_pods(&names, "50").await;
    fixture.guard("keep-guarded", "guarded").await;
    fixture.guard("keep-twice-a", "twice").await;
    fixture.guard("keep-twice-b", "twice").await;
    let pods: Api<core::Pod> = Api::namespaced(fixture.kube.client(), "shop");
    let done = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    pods.patch_status("done", &PatchParams::default(), &done)
        .await
        .unwrap();
    fixture.cordon().await;

    let report = fixture.round().await;
    assert_eq!(report.listed, 4);
    assert_eq!(report.skipped.get(&SkipReason::Finished), Some(&1));
    let why = |name: &str| {
        report
            .left
            .iter()
            .find(|left| left.name == name)
            .map(|left| left.why.clone())
    };
    assert_eq!(why("free"), Some(PendingReason::Leaving));
    let Some(PendingReason::Budget { names, message }) = why("guarded") else {
        panic!("{report:?}");
    };
    assert_eq!(names, ["keep-guarded"]);
    assert!(
        message.contains("needs 1 healthy pods and has 1 currently"),
        "{message}"
    );
    let Some(PendingReason::Refused { message }) = why("twice") else {
        panic!("{report:?}");
    };
    assert!(message.contains("more than one PodDisruptionBudget"), "{message}");

    // The text of a conflict with another pod of the same name.
    let namesake = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "guarded"},
        "deleteOptions": {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}});
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(fixture.kube.client(), "shop");
    for budget in ["keep-guarded", "keep-twice-a", "keep-twice-b"] {
        budgets.delete(budget, &DeleteParams::default()).await.unwrap();
    }
    let refused = until("the budget to be gone", WAIT_TIMEOUT, async || {
        let answer: kube::Result<Value> = pods
            .create_subresource("eviction", "guarded", &PostParams::default(), &namesake)
            .await;
        match answer {
            Err(kube::Error::Api(status)) if status.code != 429 => Ok(Some(status)),
            other => Err(anyhow::anyhow!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert_eq!(refused.code, 409);
    assert!(
        refused.message.contains("the UID in the precondition"),
        "{refused:?}"
    );

    let report = until("the drain", WAIT_TIMEOUT, async || {
        Ok(Some(fixture.round().await).filter(|report| report.left.is_empty()))
    })
    .await
    .unwrap();
    assert_eq!((report.listed, report.skipped.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_led_by_the_pod_watch_costs_little_more_than_its_evictions() {
    let fixture = NodeFixture::start().await;
    let names: Vec<_> = (0..60).map(|n| format!("web-{n}")).collect();
    fixture.run_pods(&names, "500").await;
    fixture.cordon().await;

    let (out, mut updates) = mpsc::channel(16);
    let (_draining, nodes) = tokio::sync::watch::channel(BTreeSet::from([fixture.name.clone()]));
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(watch::pods::run(nodes, fixture.watches(out, &stop)));
    let began = Instant::now();
    let mut rounds = 1;
    while !fixture.round().await.left.is_empty() {
        let update = tokio::time::timeout(WAIT_TIMEOUT, updates.recv())
            .await
            .expect("a change in time");
        assert_eq!(update, Some(KubernetesUpdate::PodsChanged(fixture.name.clone())));
        rounds += 1;
    }
    let took = began.elapsed();
    stop.cancel();
    tasks.join_all().await;
    let audit = fixture.kube.audit().await.unwrap();
    let evictions = audit
        .iter()
        .filter(|event| event.user == "haulout-1" && event.subresource.as_deref() == Some("eviction"))
        .count();
    assert_eq!(evictions, 60);
    assert!(rounds <= 5, "{rounds} lists");
    println!("60 pods with half a second of grace: {took:?}, {rounds} lists, {evictions} evictions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_its_label_is_followed_by_name_and_found_by_the_scan() {
    let fixture = NodeFixture::start().await;
    // It puts an episode on the Node.
    fixture.cordon().await;
    let nodes: Api<core::Node> = Api::all(fixture.kube.client());
    let change = async |metadata: Value| {
        let patch = json!({ "metadata": metadata });
        nodes
            .patch(
                fixture.name.as_str(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await
            .unwrap()
    };
    change(json!({"labels": {"gpu": null}, "annotations": {keys::EPISODE: "{\"version\":1}"}})).await;

    let (out, mut updates) = mpsc::channel(16);
    let stop = CancellationToken::new();
    let selection = Selection {
        selector: "gpu=true".to_owned(),
        limit_group: None,
        gpu_resources: fixture.gpus.clone(),
        releases: releases(),
    };
    let (_followed, names) =
        tokio::sync::watch::channel(BTreeSet::from([fixture.name.clone(), NodeName::new("nobody")]));
    let (_election, election) = tokio::sync::watch::channel(ElectionStatus::alone());
    let mut tasks = JoinSet::new();
    let context = fixture.watches(out, &stop);
    tasks.spawn(watch::followed::run(names, selection.clone(), context.clone()));
    tasks.spawn(watch::scan::run(selection, election, context));
    let mut is_seen = [false; 3];
    while is_seen != [true; 3] {
        let update = tokio::time::timeout(WAIT_TIMEOUT, updates.recv()).await;
        let update = update.expect("an update in time").unwrap();
        if let KubernetesUpdate::Followed(node) | KubernetesUpdate::FollowedListed(node) = &update {
            assert_eq!(node.name, fixture.name);
            assert!(node.annotations.episode.is_some() && node.unschedulable);
            is_seen[0] = true;
        } else if let KubernetesUpdate::FollowedAbsent { name } = &update {
            assert_eq!(name.as_str(), "nobody");
            is_seen[1] = true;
        } else if let KubernetesUpdate::Scanned { stranded } = &update {
            let [node] = &stranded[..] else {
                panic!("{stranded:?}");
            };
            assert_eq!(node.name, fixture.name);
            assert!(!node.is_selected);
            is_seen[2] = true;
        } else {
            panic!("{update:?}");
        }
    }
    let uid = change(json!({})).await.metadata.uid.unwrap();
    nodes
        .delete(fixture.name.as_str(), &DeleteParams::default())
        .await
        .unwrap();
    let gone = KubernetesUpdate::FollowedGone {
        name: fixture.name.clone(),
        uid: NodeUid::new(uid),
    };
    let reported = async { while updates.recv().await.unwrap() != gone {} };
    tokio::time::timeout(WAIT_TIMEOUT, reported).await.unwrap();
    stop.cancel();
    tasks.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_followed_over_a_restart_of_the_kube_apiserver() {
    let fixture = NodeFixture::start().await;
    let (out, mut updates) = mpsc::channel(16);
    let stop = CancellationToken::new();
    let selection = Selection {
        selector: "gpu in (true),!spare".to_owned(),
        limit_group: None,
        gpu_resources: fixture.gpus.clone(),
        releases: releases(),
    };
    let settings = Settings {
        backoff_min: Duration::from_millis(200),
        ..Settings::default()
    };
    let mut tasks = JoinSet::new();
    let context = WatchContext {
        settings,
        ..fixture.watches(out, &stop)
    };
    tasks.spawn(watch::nodes::run(selection, context));
    let mut next = async || {
        tokio::time::timeout(WAIT_TIMEOUT, updates.recv())
            .await
            .expect("an update in time")
            .unwrap()
    };
    assert_eq!(next().await, KubernetesUpdate::Reset);
    let KubernetesUpdate::Node(node) = next().await else {
        panic!("a node")
    };
    assert_eq!(
        (node.name.as_str(), node.gpus.get("nvidia.com/gpu")),
        ("gpu-1", Some(&4))
    );
    assert_eq!(node.provider_uuid, node.system_uuid);
    assert_eq!(next().await, KubernetesUpdate::Settled);

    fixture
        .kube
        .restart_apiserver(Duration::from_secs(1))
        .await
        .unwrap();
    while !matches!(next().await, KubernetesUpdate::Lost { .. }) {}
    while next().await != KubernetesUpdate::Reset {}
    while next().await != KubernetesUpdate::Settled {}

    // A Node that the selector no longer matches counts as gone.
    let spare = Patch::Merge(json!({"metadata": {"labels": {"spare": ""}}}));
    let nodes: Api<core::Node> = Api::all(fixture.kube.client());
    nodes
        .patch("gpu-1", &PatchParams::default(), &spare)
        .await
        .unwrap();
    loop {
        if let KubernetesUpdate::NodeGone { name, uid } = next().await {
            assert_eq!((name, uid), (fixture.name.clone(), node.uid.clone()));
            break;
        }
    }
    stop.cancel();
    tasks.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusal_by_admission_carries_the_message_of_the_webhook() {
    let fixture = NodeFixture::start().await;
    fixture.run_pods(&["web".to_owned()], "50").await;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(fixture.kube.client());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(fixture.kube.client());
    let rule = |group: &str, resource: &str, operation: &str| json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": [operation], "resources": [resource]});
    let policy = json!({
        "metadata": {"name": "freeze"},
        "spec": {
            "matchConstraints": {"resourceRules": [rule("", "nodes", "UPDATE"), rule("", "pods/eviction", "CREATE")]},
            "validations": [{"expression": "request.userInfo.username != 'haulout-1'", "message": "the change freeze lasts until Monday"}],
        },
    });
    let binding = json!({
        "metadata": {"name": "freeze"},
        "spec": {"policyName": "freeze", "validationActions": ["Deny"]},
    });
    let params = PostParams::default();
    policies
        .create(&params, &serde_json::from_value(policy).unwrap())
        .await
        .unwrap();
    bindings
        .create(&params, &serde_json::from_value(binding).unwrap())
        .await
        .unwrap();
    let refused = until("the policy to be in force", WAIT_TIMEOUT, async || {
        let seen = fixture.get().await?;
        let error = fixture.patch(&cordon(&seen)).await.err();
        Ok(error.filter(|error| error.kind != NodeErrorKind::Conflict))
    })
    .await
    .unwrap();
    assert_eq!(refused.kind, NodeErrorKind::Rejected, "{refused}");
    assert!(
        refused
            .to_string()
            .contains("the change freeze lasts until Monday"),
        "{refused}"
    );
    let report = fixture.round().await;
    assert!(
        matches!(&report.left[0].why, PendingReason::Refused { message } if message.contains("the change freeze lasts until Monday")),
        "{report:?}"
    );
    bindings.delete("freeze", &DeleteParams::default()).await.unwrap();

    // A namespace that is being deleted refuses evictions with another message.
    fixture
        .create::<core::Pod>(json!({
            "metadata": {"name": "stuck", "annotations": {STUCK: "true"}},
            "spec": {"nodeName": "gpu-1", "containers": [{"name": "main", "image": "lab.invalid/none"}]},
        }))
        .await;
    let namespaces: Api<core::Namespace> = Api::all(fixture.kube.client());
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    let pods: Api<core::Pod> = Api::namespaced(fixture.kube.client(), "shop");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "stuck"}});
    let refused = until("the namespace to refuse", WAIT_TIMEOUT, async || {
        let answer: kube::Result<Value> = pods
            .create_subresource("eviction", "stuck", &params, &eviction)
            .await;
        match answer {
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(Some(status)),
            other => Err(anyhow::anyhow!("{other:?}")),
        }
    })
    .await
    .unwrap();
    let causes = refused.details.unwrap().causes;
    assert!(
        causes.iter().any(|cause| cause.reason == "NamespaceTerminating"),
        "{causes:?}"
    );
}
