//! The lab's Kubernetes half behaves as the real thing where Haulout's tests rely on it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use haulout_lab::fixture::WAIT_TIMEOUT;
use haulout_lab::kube::{Kube, KubeOptions, User};
use haulout_lab::kubelet::{EXITS_AFTER_MS, GPU, Kubelet, Machine, STUCK, VmFacts};
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::watch;

const UUID: &str = "42160f2c-7a0f-4e2c-9d4e-000000000001";

/// What of a Node these tests look at.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    ready: String,
    boot_id: String,
    gpus: String,
}

async fn look(nodes: &Api<Node>, name: &str) -> anyhow::Result<Option<Seen>> {
    let Some(status) = nodes.get_opt(name).await?.and_then(|node| node.status) else {
        return Ok(None);
    };
    let ready = status
        .conditions
        .iter()
        .flatten()
        .find(|it| it.type_ == "Ready")
        .map(|it| it.status.clone());
    let gpus = status
        .allocatable
        .as_ref()
        .and_then(|all| all.get(GPU))
        .map(|it| it.0.clone());
    let (Some(ready), Some(gpus), Some(info)) = (ready, gpus, status.node_info) else {
        return Ok(None);
    };
    Ok(Some(Seen {
        ready,
        boot_id: info.boot_id,
        gpus,
    }))
}

async fn wait_node(nodes: &Api<Node>, name: &str, what: &str, is_so: impl Fn(&Seen) -> bool) -> Seen {
    until(&format!("{name} {what}"), WAIT_TIMEOUT, async || {
        Ok(look(nodes, name).await?.filter(|seen| is_so(seen)))
    })
    .await
    .unwrap()
}

fn pod(name: &str, node: &str, annotations: &[(&str, &str)]) -> Pod {
    let annotations: std::collections::BTreeMap<_, _> = annotations.iter().copied().collect();
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 20,
            "containers": [{"name": "main", "image": "lab.invalid/none"}],
        },
    }))
    .unwrap()
}

async fn wait_pod(pods: &Api<Pod>, name: &str, what: &str, is_so: impl Fn(Option<&Pod>) -> bool) {
    until(&format!("the pod {name} {what}"), WAIT_TIMEOUT, async || {
        let pod = pods.get_opt(name).await?;
        Ok(is_so(pod.as_ref()).then_some(()))
    })
    .await
    .unwrap();
}

async fn wait_running(pods: &Api<Pod>, name: &str) {
    wait_pod(pods, name, "to run", |pod| {
        pod.and_then(|pod| pod.status.as_ref())
            .is_some_and(|status| status.phase.as_deref() == Some("Running"))
    })
    .await;
}

/// The HTTP status of an eviction's answer.
async fn evict(pods: &Api<Pod>, name: &str) -> u16 {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let answer: kube::Result<serde_json::Value> = pods
        .create_subresource("eviction", name, &PostParams::default(), &eviction)
        .await;
    match answer {
        Ok(_) => 201,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("evicting {name}: {error}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_lives_as_its_vm_does() {
    let kube = Kube::start(&KubeOptions::default()).await.unwrap();
    let nodes: Api<Node> = Api::all(kube.client());
    let (vm, facts) = watch::channel(VmFacts::ON);
    let machine = Machine {
        gpus_after: Duration::from_secs(1),
        ..Machine::new("gpu-1", UUID, 4).label("nvidia.com/gpu.present", "true")
    };
    let kubelet = Kubelet::start(kube.client(), machine, facts);

    let first = wait_node(&nodes, "gpu-1", "to be Ready with its GPUs", |it| {
        it.ready == "True" && it.gpus == "4"
    })
    .await;
    let node = nodes.get("gpu-1").await.unwrap();
    assert_eq!(
        node.spec.as_ref().unwrap().provider_id.as_deref(),
        Some(format!("vsphere://{UUID}").as_str())
    );
    assert_eq!(node.status.unwrap().node_info.unwrap().system_uuid, UUID);
    assert_eq!(node.metadata.labels.unwrap()["nvidia.com/gpu.present"], "true");

    // A reboot faster than the node monitor: Ready stays true, and only the boot id and the GPUs change.
    vm.send_modify(|vm| *vm = vm.booted());
    let rebooted = wait_node(&nodes, "gpu-1", "to have booted", |it| {
        it.boot_id != first.boot_id
    })
    .await;
    assert_eq!((rebooted.ready.as_str(), rebooted.gpus.as_str()), ("True", "0"));
    wait_node(&nodes, "gpu-1", "to have its GPUs again", |it| it.gpus == "4").await;

    // Off for long: the node monitor marks it Unknown, and nothing else changes.
    vm.send_modify(|vm| *vm = vm.off());
    let silent = wait_node(&nodes, "gpu-1", "to be marked Unknown", |it| {
        it.ready == "Unknown"
    })
    .await;
    assert_eq!(silent.boot_id, rebooted.boot_id);
    vm.send_modify(|vm| *vm = vm.booted());
    let back = wait_node(&nodes, "gpu-1", "to be Ready again", |it| it.ready == "True").await;
    assert_ne!(back.boot_id, rebooted.boot_id);
    wait_node(&nodes, "gpu-1", "to have its GPUs again", |it| it.gpus == "4").await;

    // Off, but it goes on saying that it is well for longer than the monitor's patience.
    let lies = Duration::from_secs(6);
    kubelet.set_lies(lies);
    let off = Instant::now();
    vm.send_modify(|vm| *vm = vm.off());
    wait_node(&nodes, "gpu-1", "to be marked Unknown", |it| {
        it.ready == "Unknown"
    })
    .await;
    assert!(
        off.elapsed() > lies,
        "the lie was seen through after {:?}",
        off.elapsed()
    );
    kube.check_running().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_evicted_as_budgets_and_rights_allow() {
    let kube = Kube::start(&KubeOptions::default()).await.unwrap();
    kube.create_namespace("work").await.unwrap();
    let (vm, facts) = watch::channel(VmFacts::ON);
    let _kubelet = Kubelet::start(kube.client(), Machine::new("gpu-1", UUID, 1), facts);
    let pods: Api<Pod> = Api::namespaced(kube.client(), "work");
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(kube.client(), "work");
    let params = PostParams::default();
    for pod in [
        pod("quick", "gpu-1", &[(EXITS_AFTER_MS, "50")]),
        pod("guarded", "gpu-1", &[(EXITS_AFTER_MS, "50")]),
        pod("stuck", "gpu-1", &[(STUCK, "true")]),
    ] {
        pods.create(&params, &pod).await.unwrap();
    }
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": "keep-one"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }))
    .unwrap();
    budgets.create(&params, &budget).await.unwrap();
    for name in ["quick", "guarded", "stuck"] {
        wait_running(&pods, name).await;
    }
    until("the budget to count its pod", WAIT_TIMEOUT, async || {
        let status = budgets.get("keep-one").await?.status.unwrap_or_default();
        Ok((status.current_healthy == Some(1)).then_some(()))
    })
    .await
    .unwrap();

    // The rights of Haulout are exactly the documented ones.
    let haulout = kube.client_for(&User::haulout("haulout-7")).unwrap();
    let its_pods: Api<Pod> = Api::namespaced(haulout.clone(), "work");
    let refused = its_pods
        .delete("quick", &DeleteParams::default())
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.code == 403),
        "{refused}"
    );
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    Api::<Node>::all(haulout)
        .patch("gpu-1", &PatchParams::default(), &cordon)
        .await
        .unwrap();

    assert_eq!(evict(&its_pods, "quick").await, 201);
    wait_pod(&pods, "quick", "to vanish", |pod| pod.is_none()).await;
    assert_eq!(evict(&its_pods, "guarded").await, 429);
    let open = Patch::Merge(json!({"spec": {"minAvailable": 0}}));
    budgets
        .patch("keep-one", &PatchParams::default(), &open)
        .await
        .unwrap();
    until("the eviction to be allowed", WAIT_TIMEOUT, async || {
        Ok((evict(&its_pods, "guarded").await == 201).then_some(()))
    })
    .await
    .unwrap();
    wait_pod(&pods, "guarded", "to vanish", |pod| pod.is_none()).await;
    assert_eq!(evict(&its_pods, "stuck").await, 201);

    // The audit log has Haulout's requests and their responses.
    let audit = kube.audit().await.unwrap();
    let its = kube.audit_of(&User::haulout("haulout-7")).await.unwrap();
    let of_all = audit.iter().filter(|event| event.user == "haulout-7");
    assert!(its.iter().eq(of_all));
    let mut its = its.iter();
    let mut next = || {
        let event = its.next().unwrap();
        let sub = event.subresource.as_deref().unwrap_or("-");
        (
            event.verb.as_str(),
            event.resource.as_str(),
            sub,
            event.name.as_deref().unwrap_or("-"),
            event.code,
        )
    };
    assert_eq!(next(), ("delete", "pods", "-", "quick", 403));
    assert_eq!(next(), ("patch", "nodes", "-", "gpu-1", 200));
    assert_eq!(next(), ("create", "pods", "eviction", "quick", 201));
    assert_eq!(next(), ("create", "pods", "eviction", "guarded", 429));
    let patch = audit
        .iter()
        .find(|event| event.user == "haulout-7" && event.verb == "patch")
        .unwrap();
    assert_eq!(patch.object, Some(json!({"spec": {"unschedulable": true}})));
    assert!(patch.received <= patch.answered);

    // The API server goes away for a while; clients, controllers, the node and its pods go on afterwards.
    kube.restart_apiserver(Duration::from_secs(1)).await.unwrap();
    kube.check_running().await.unwrap();
    pods.create(&params, &pod("late", "gpu-1", &[(EXITS_AFTER_MS, "50")]))
        .await
        .unwrap();
    wait_running(&pods, "late").await;
    assert!(kube.audit().await.unwrap().len() > audit.len());

    // With its VM off, a node ends nothing; its next boot ends what was terminating, also what had hung.
    let terminating = pods.get("stuck").await.unwrap();
    assert!(terminating.metadata.deletion_timestamp.is_some());
    vm.send_modify(|vm| *vm = vm.off());
    assert_eq!(evict(&its_pods, "late").await, 201);
    assert!(pods.get_opt("late").await.unwrap().is_some());
    vm.send_modify(|vm| *vm = vm.booted());
    for name in ["late", "stuck"] {
        wait_pod(&pods, name, "to vanish", |pod| pod.is_none()).await;
    }
    let dir = kube.dir().to_owned();
    drop(kube);
    assert!(!dir.exists(), "{} is left", dir.display());
}

/// The reason in a pod's status.
fn reason(pod: Option<&Pod>) -> Option<&str> {
    pod?.status.as_ref()?.reason.as_deref()
}

/// How often the containers of a pod that is Ready were started again.
fn restarts(pod: Option<&Pod>) -> Option<i32> {
    let status = pod?.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let is_ready = conditions.any(|it| it.type_ == "Ready" && it.status == "True");
    let containers = status.container_statuses.as_ref().filter(|_| is_ready)?;
    Some(containers.iter().map(|it| it.restart_count).sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_follow_a_boot_and_a_graceful_shutdown() {
    let kube = Kube::start(&KubeOptions::default()).await.unwrap();
    kube.create_namespace("work").await.unwrap();
    let nodes: Api<Node> = Api::all(kube.client());
    let (vm, facts) = watch::channel(VmFacts::ON);
    let kubelet = Kubelet::start(kube.client(), Machine::new("gpu-1", UUID, 2), facts);
    let pods: Api<Pod> = Api::namespaced(kube.client(), "work");
    let params = PostParams::default();
    let mut train = pod("train", "gpu-1", &[]);
    let resources = json!({"limits": {GPU: "1"}});
    train.spec.as_mut().unwrap().containers[0].resources = Some(serde_json::from_value(resources).unwrap());
    for pod in [pod("agent", "gpu-1", &[(EXITS_AFTER_MS, "50")]), train] {
        pods.create(&params, &pod).await.unwrap();
    }
    for name in ["agent", "train"] {
        wait_running(&pods, name).await;
    }

    // What was left on the Node starts again with the next boot, and a pod with GPUs does not.
    vm.send_modify(|vm| *vm = vm.booted());
    wait_pod(&pods, "agent", "to be started again", |pod| {
        restarts(pod) == Some(1)
    })
    .await;
    wait_pod(&pods, "train", "to be refused", |pod| {
        reason(pod) == Some("UnexpectedAdmissionError")
    })
    .await;

    // With a shutdown grace period the Node is not Ready at once. Its pods end, and new ones are rejected.
    kubelet.shut_down_gracefully();
    vm.send_modify(|vm| *vm = vm.stopping());
    wait_node(&nodes, "gpu-1", "to shut down", |it| it.ready == "False").await;
    wait_pod(&pods, "agent", "to be ended", |pod| {
        reason(pod) == Some("Terminated")
    })
    .await;
    pods.create(&params, &pod("late", "gpu-1", &[])).await.unwrap();
    wait_pod(&pods, "late", "to be rejected", |pod| {
        reason(pod) == Some("NodeShutdown")
    })
    .await;
    vm.send_modify(|vm| *vm = vm.booted());
    wait_node(&nodes, "gpu-1", "to be Ready again", |it| it.ready == "True").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_part_outlives_its_starter() {
    let (mut lab, dir) = lab_up().await;
    lab.start_kill().unwrap();
    lab.wait().await.unwrap();
    until(
        "the killed run's processes and files to be gone",
        WAIT_TIMEOUT,
        async || Ok((!dir.exists() && processes_of(&dir).is_empty()).then_some(())),
    )
    .await
    .unwrap();

    let (mut lab, dir) = lab_up().await;
    let pid = lab.id().unwrap().to_string();
    assert!(
        std::process::Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert!(lab.wait().await.unwrap().success());
    assert!(!dir.exists() && processes_of(&dir).is_empty());
}

/// Starts the command a person would and waits until it says where its files are.
async fn lab_up() -> (tokio::process::Child, PathBuf) {
    let mut lab = tokio::process::Command::new(env!("CARGO_BIN_EXE_lab"))
        .arg("up")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(lab.stdout.take().unwrap()).lines();
    let where_its_logs_are = async {
        loop {
            let line = lines
                .next_line()
                .await
                .unwrap()
                .expect("lab up ended before it was up");
            let logs = line.trim().strip_prefix("Kubernetes' logs:").map(str::trim);
            if let Some(dir) = logs.and_then(|logs| logs.strip_suffix("/*.log")) {
                return PathBuf::from(dir);
            }
        }
    };
    let dir = tokio::time::timeout(WAIT_TIMEOUT, where_its_logs_are)
        .await
        .expect("lab up did not say where its logs are");
    // etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and the vCenter, whose certificate is from the same
    // place.
    assert_eq!(processes_of(&dir).len(), 5);
    // A reader that stops reading must not block it with a full pipe.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (lab, dir)
}

/// The ids of the processes whose arguments name this directory.
fn processes_of(dir: &std::path::Path) -> Vec<String> {
    let needle = dir.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(arguments) = std::fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        if arguments.windows(needle.len()).any(|window| window == needle) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_etcd_takes_resource_versions_back() {
    let kube = Kube::start(&KubeOptions::default()).await.unwrap();
    let nodes: Api<Node> = Api::all(kube.client());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "kept"}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let version = |node: &Node| -> u64 { node.metadata.resource_version.as_ref().unwrap().parse().unwrap() };
    let annotate = async |value: u32| {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"lab": value.to_string()}}}));
        nodes
            .patch("kept", &PatchParams::default(), &patch)
            .await
            .unwrap()
    };
    annotate(0).await;
    let snapshot = kube.snapshot_etcd().await.unwrap();
    for value in 1..20 {
        annotate(value).await;
    }
    let last = nodes.get("kept").await.unwrap();
    let later: Node = serde_json::from_value(json!({"metadata": {"name": "later"}})).unwrap();
    nodes.create(&PostParams::default(), &later).await.unwrap();

    kube.restore_etcd(&snapshot).await.unwrap();
    let restored = nodes.get("kept").await.unwrap();
    assert_eq!(restored.metadata.annotations.as_ref().unwrap()["lab"], "0");
    assert_eq!(restored.metadata.uid, last.metadata.uid);
    assert!(version(&restored) < version(&last));
    assert!(nodes.get_opt("later").await.unwrap().is_none());
    let next = annotate(100).await;
    assert!(
        version(&next) < version(&last),
        "what is written next is older too"
    );
    kube.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_may_change_its_own_node_and_no_other() {
    let kube = Kube::start(&KubeOptions::default()).await.unwrap();
    let nodes: Api<Node> = Api::all(kube.client());
    for name in ["a", "b"] {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }
    let of_a: Api<Node> = Api::all(kube.client_for(&User::kubelet("a")).unwrap());
    let annotate = async |name: &str| {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"lab": "forged"}}}));
        of_a.patch(name, &PatchParams::default(), &patch).await
    };
    // The authorizer learns of new Nodes from a watch.
    until("the kubelet to be known", WAIT_TIMEOUT, async || {
        Ok(annotate("a").await.ok())
    })
    .await
    .unwrap();
    match annotate("b").await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "{status:?}"),
        other => panic!("it was not refused: {other:?}"),
    }
    kube.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_may_be_given_rights_of_their_own() {
    let kube = Kube::start(&KubeOptions::default()).await.unwrap();
    let reader = User::stranger("reader");
    let nodes: Api<Node> = Api::all(kube.client_for(&reader).unwrap());
    assert!(nodes.list(&kube::api::ListParams::default()).await.is_err());
    kube.grant(&reader, vec![haulout_lab::kube::rule("", "nodes", &["list"])])
        .await
        .unwrap();
    until("the rights to be known", WAIT_TIMEOUT, async || {
        Ok(nodes.list(&kube::api::ListParams::default()).await.ok())
    })
    .await
    .unwrap();
    kube.stop().await.unwrap();
}
