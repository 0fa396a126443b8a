//! NodeMaintenance objects of other projects, in their own kinds, as requests for drains.
//!
//! The scenarios of medik8s and KubeVirt follow their `test/e2e/node_maintenance_test.go` and
//! `controllers/nodemaintenance_controller_test.go`. They have a cluster of their own, because all kinds have the same names.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, Member, WAIT_TIMEOUT, is_cordoned};
use haulout_lab::foreign_kinds::{ForeignKind, KUBEVIRT, MEDIK8S, NVIDIA};
use haulout_lab::kube::{Kube, KubeOptions, User};
use haulout_lab::wait::until;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::fixture::{a40, gpu_vm, hosts, run, run_scenario};
use crate::kubectl_plugin::types_with;

/// The setting for all kinds.
const ALL: (&str, &str) = ("FOREIGN_NODE_MAINTENANCES", "medik8s,kubevirt,nvidia");

/// How long a kind that is installed later may go unnoticed.
const NOTICED: Duration = Duration::from_secs(90);

/// The cluster of these scenarios, in which all kinds are installed.
async fn kube() -> anyhow::Result<&'static Kube> {
    static KUBE: OnceCell<Kube> = OnceCell::const_new();
    KUBE.get_or_try_init(async || {
        let kube = Kube::start(&KubeOptions::default()).await?;
        for kind in [MEDIK8S, KUBEVIRT, NVIDIA] {
            kind.install(&kube.client()).await?;
        }
        Ok(kube)
    })
    .await
}

/// A node `gpu1` on each of these hosts' VMs.
async fn nodes<'a>(kube: &'a Kube, name: &str, vms: &[&str]) -> anyhow::Result<Fixture<'a>> {
    let devices = [a40(1)];
    let names: Vec<String> = (1..=vms.len()).map(|n| format!("esx{n}")).collect();
    let all: Vec<_> = names.iter().map(|host| (host.as_str(), &devices[..])).collect();
    let mut spec = hosts(&all);
    spec.vms = vms
        .iter()
        .zip(&names)
        .map(|(vm, host)| gpu_vm(name, vm, host))
        .collect();
    let members = spec
        .vms
        .iter()
        .map(|vm| Member::new(name, &vm.name, &vm.uuid))
        .collect();
    Fixture::create(kube, name, &spec, members, true).await
}

/// The object of this kind that asks for the fixture's node, named after the fixture.
struct Asked<'a> {
    fixture: &'a Fixture<'a>,
    kind: ForeignKind,
    name: String,
    namespace: Option<String>,
}

impl<'a> Asked<'a> {
    /// Creates it with this spec.
    async fn create(
        fixture: &'a Fixture<'a>,
        kind: ForeignKind,
        name: &str,
        spec: Value,
        finalizers: &[&str],
    ) -> anyhow::Result<Self> {
        let namespace = spec.get("requestorID").map(|_| fixture.name().to_owned());
        let asked = Self {
            fixture,
            kind,
            name: format!("{}-{name}", fixture.name()),
            namespace,
        };
        let resource = kind.resource();
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": {"name": asked.name, "finalizers": finalizers},
            "spec": spec,
        }))?;
        asked.api().create(&PostParams::default(), &object).await?;
        Ok(asked)
    }

    fn api(&self) -> kube::Api<DynamicObject> {
        self.kind
            .objects(&self.fixture.client(), self.namespace.as_deref())
    }

    async fn get(&self) -> anyhow::Result<DynamicObject> {
        Ok(self.api().get(&self.name).await?)
    }

    async fn status(&self) -> anyhow::Result<Value> {
        Ok(self.get().await?.data.get("status").cloned().unwrap_or_default())
    }

    /// Waits until `is` holds for its status.
    async fn wait(&self, what: &str, is: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let seen = std::cell::RefCell::new(Value::Null);
        until(&format!("{} {what}", self.name), WAIT_TIMEOUT, async || {
            let status = self.status().await?;
            seen.replace(status.clone());
            Ok(is(&status).then_some(status))
        })
        .await
        .with_context(|| format!("the status was {:#}\n{}", seen.borrow(), self.fixture.log_text()))
    }

    async fn delete(&self) -> anyhow::Result<()> {
        self.api().delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }
}

/// The reason of the condition `Ready`, and its status.
fn ready(status: &Value) -> Option<(&str, &str)> {
    let conditions = status.get("conditions")?.as_array()?;
    let ready = conditions.iter().find(|it| it["type"] == "Ready")?;
    Some((ready["reason"].as_str()?, ready["status"].as_str()?))
}

/// As NVIDIA's network operator asks for the maintenance of a node.
fn nvidia_spec(node: &str, requestor: &str) -> Value {
    json!({
        "nodeName": node, "requestorID": requestor,
        "drainSpec": {"force": true, "deleteEmptyDir": true, "timeoutSeconds": 300, "podSelector": ""},
    })
}

/// A drain that a budget holds for a while, as the operators of both kinds show it.
async fn drained_until_deleted(kind: ForeignKind, name: &str, has_progress: bool) -> anyhow::Result<()> {
    let fixture = nodes(kube().await?, name, &["gpu1"]).await?;
    let node = fixture.node_name("gpu1");
    fixture.add_pod("free", &node, &[]).await?;
    fixture.add_pod("held", &node, &[]).await?;
    fixture.set_budget("held", 0).await?;
    let haulout = run(&fixture, &[ALL]).await?;

    let spec = json!({"nodeName": node, "reason": "a new power supply"});
    let asked = Asked::create(&fixture, kind, "psu", spec, &[]).await?;
    let status = asked
        .wait("shows the pod that is left", |status| {
            status["phase"] == "Running" && status["pendingPods"] == json!(["held"])
        })
        .await?;
    ensure!(
        status["totalpods"] == 2 && status["evictionPods"] == 2,
        "{status:#}"
    );
    ensure!(
        status["lastError"].as_str().is_some_and(|it| it.contains("held")),
        "{status:#}"
    );
    if has_progress {
        ensure!(status["drainProgress"] == 50, "{status:#}");
        ensure!(
            status["pendingPodsRefs"] == json!([{"namespace": name, "name": "held"}]),
            "{status:#}"
        );
    }
    ensure!(is_cordoned(&fixture.node(&node).await?));

    fixture.set_budget("held", 1).await?;
    let status = asked
        .wait("has succeeded", |status| status["phase"] == "Succeeded")
        .await?;
    let mut expected = json!({"phase": "Succeeded", "totalpods": 2, "evictionPods": 2});
    if has_progress {
        expected["drainProgress"] = json!(100);
        expected["lastUpdate"] = status["lastUpdate"].clone();
        ensure!(expected["lastUpdate"].is_string(), "{status:#}");
    }
    ensure!(status == expected, "{status:#}");
    ensure!(fixture.pods_on(&node).await?.is_empty());
    ensure!(
        asked.get().await?.finalizers().is_empty(),
        "Haulout sets no finalizer"
    );

    asked.delete().await?;
    fixture.wait_in_service(&node).await?;
    ensure!(
        fixture.power_cycles("gpu1").await? == (0, 0),
        "its VM was left alone"
    );
    haulout.stop().await
}

#[test]
fn medik8s_maintenance_keeps_its_node_drained_until_it_is_deleted() {
    run_scenario(drained_until_deleted(MEDIK8S, "of-medik8s", true));
}

#[test]
fn kubevirt_maintenance_keeps_its_node_drained_until_it_is_deleted() {
    run_scenario(drained_until_deleted(KUBEVIRT, "of-kubevirt", false));
}

#[test]
fn nvidia_maintenance_is_ready_for_each_requestor_in_turn() {
    run_scenario(async {
        let fixture = nodes(kube().await?, "of-nvidia", &["gpu1"]).await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[ALL]).await?;

        let network = nvidia_spec(&node, "network.nvidia.com");
        let first = Asked::create(&fixture, NVIDIA, "network", network, &[]).await?;
        let status = first
            .wait("is draining", |it| {
                ready(it) == Some(("Draining", "False")) && it["drain"].is_object()
            })
            .await?;
        let drain = json!({"totalPods": 1, "evictionPods": 1, "drainProgress": 0, "waitForEviction": ["of-nvidia/held"]});
        ensure!(status["drain"] == drain, "{status:#}");

        let gpu = nvidia_spec(&node, "gpu.nvidia.com");
        let second = Asked::create(&fixture, NVIDIA, "other", gpu, &[]).await?;
        second
            .wait("is pending", |it| ready(it) == Some(("Pending", "False")))
            .await?;
        fixture.set_budget("held", 1).await?;
        let status = first
            .wait("is ready", |it| ready(it) == Some(("Ready", "True")))
            .await?;
        let drain = json!({"totalPods": 1, "evictionPods": 1, "drainProgress": 100});
        ensure!(status["drain"] == drain, "{status:#}");

        // The requestor reports a failure in a condition of its own.
        let failed = json!({"apiVersion": NVIDIA.resource().api_version, "kind": "NodeMaintenance", "status": {"conditions": [{
            "type": "RequestorFailed", "status": "True", "reason": "FailedMaintenance", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        let params = PatchParams::apply("network-operator");
        first
            .api()
            .patch_status(&first.name, &params, &Patch::Apply(&failed))
            .await?;
        first
            .wait("has failed", |it| ready(it) == Some(("RequestorFailed", "False")))
            .await?;

        first.delete().await?;
        second
            .wait("is ready", |it| ready(it) == Some(("Ready", "True")))
            .await?;
        ensure!(is_cordoned(&fixture.node(&node).await?));
        second.delete().await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn foreign_request_and_host_maintenance_are_one_episode() {
    run_scenario(async {
        let fixture = nodes(kube().await?, "of-both", &["gpu1"]).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[ALL]).await?;
        let spec = nvidia_spec(&node, "network.nvidia.com");
        let asked = Asked::create(&fixture, NVIDIA, "network", spec, &[]).await?;
        asked
            .wait("is ready", |it| ready(it) == Some(("Ready", "True")))
            .await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        asked
            .wait("is not ready", |it| ready(it) == Some(("Cordon", "False")))
            .await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        asked
            .wait("is ready again", |it| ready(it) == Some(("Ready", "True")))
            .await?;
        ensure!(is_cordoned(&fixture.node(&node).await?));
        // A new process finds the request, and the node stays as it is.
        haulout.kill().await?;
        let haulout = run(&fixture, &[ALL]).await?;
        asked.delete().await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn foreign_requests_that_cannot_be_served_delay_no_other() {
    run_scenario(async {
        let fixture = nodes(kube().await?, "of-the-odd", &["gpu1", "gpu2"]).await?;
        let [odd, good] = ["gpu1", "gpu2"].map(|vm| fixture.node_name(vm));
        let haulout = run(&fixture, &[ALL]).await?;

        let unnamed = json!({"nodeName": "../nodes/x", "reason": "x".repeat(100_000)});
        let unnamed = Asked::create(&fixture, MEDIK8S, "unnamed", unnamed, &[]).await?;
        let unknown = json!({"nodeName": "nowhere"});
        let unknown = Asked::create(&fixture, KUBEVIRT, "unknown", unknown, &[]).await?;
        let mut careful = nvidia_spec(&odd, "gpu.nvidia.com");
        careful["waitForPodCompletion"] = json!({"podSelector": "app=train"});
        careful["drainSpec"]["force"] = json!(false);
        let careful = Asked::create(&fixture, NVIDIA, "careful", careful, &[]).await?;
        let asked = Asked::create(&fixture, MEDIK8S, "good", json!({"nodeName": good}), &[]).await?;

        asked
            .wait("has succeeded", |it| it["phase"] == "Succeeded")
            .await?;
        let error = |it: &Value| it["lastError"].as_str().unwrap_or_default().to_owned();
        let status = unnamed.wait("has failed", |it| it["phase"] == "Failed").await?;
        ensure!(
            error(&status) == "spec.nodeName is not the name of a Node",
            "{status:#}"
        );
        let status = unknown.wait("has failed", |it| it["phase"] == "Failed").await?;
        ensure!(error(&status).contains("no Node nowhere"), "{status:#}");
        let status = careful
            .wait("is pending", |it| ready(it) == Some(("Pending", "False")))
            .await?;
        let message = status["conditions"][0]["message"].as_str().unwrap_or_default();
        ensure!(message.contains("waitForPodCompletion is set"), "{status:#}");
        ensure!(message.contains("drainSpec.force is not true"), "{status:#}");
        ensure!(!is_cordoned(&fixture.node(&odd).await?));
        haulout.stop().await
    });
}

#[test]
fn status_of_a_foreign_request_is_left_to_an_operator_that_runs() {
    run_scenario(async {
        let fixture = nodes(kube().await?, "of-another", &["gpu1"]).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[ALL]).await?;
        let finalizer = "foregroundDeleteNodeMaintenance";
        let spec = json!({"nodeName": node});
        let asked = Asked::create(&fixture, MEDIK8S, "psu", spec, &[finalizer]).await?;
        fixture.wait_phase(&node, "drained").await?;
        fixture
            .wait_for_log("is handled by the operator of its project, too")
            .await?;
        ensure!(asked.status().await? == Value::Null, "its status was written");

        // Its operator removes the finalizer later than the node is back.
        asked.delete().await?;
        fixture.wait_in_service(&node).await?;
        let left = asked.get().await?;
        ensure!(
            left.finalizers() == [finalizer] && left.data.get("status").is_none(),
            "{left:#?}"
        );
        let none = json!({"metadata": {"finalizers": null}});
        asked
            .api()
            .patch(&asked.name, &PatchParams::default(), &Patch::Merge(&none))
            .await?;
        haulout.stop().await
    });
}

#[test]
fn foreign_kind_may_come_and_go_while_haulout_runs() {
    run_scenario(async {
        let kube = Kube::start(&KubeOptions::default()).await?;
        let fixture = nodes(&kube, "kind-comes", &["gpu1"]).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[ALL]).await?;
        for version in [
            "nodemaintenance.medik8s.io/v1beta1",
            "nodemaintenance.kubevirt.io/v1beta1",
            "maintenance.nvidia.com/v1alpha1",
        ] {
            fixture
                .wait_for_log(&format!("the kind NodeMaintenance ({version}) is not installed"))
                .await?;
        }

        MEDIK8S.install(&kube.client()).await?;
        let asked = Asked::create(&fixture, MEDIK8S, "psu", json!({"nodeName": node}), &[]).await?;
        until("the kind to be noticed", NOTICED, async || {
            let status = asked.status().await?;
            Ok((status["phase"] == "Succeeded").then_some(()))
        })
        .await
        .with_context(|| fixture.log_text())?;
        ensure!(
            fixture
                .log_text()
                .contains("the kind NodeMaintenance (nodemaintenance.medik8s.io/v1beta1) is installed now")
        );

        // With the kind go its objects, and with them their requests.
        MEDIK8S.remove(&kube.client()).await?;
        fixture.wait_in_service(&node).await?;
        // The other watches are not held up.
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

/// The kubeconfig of a user with the documented rights except those on NVIDIA's kind.
async fn without_nvidia(fixture: &Fixture<'_>) -> anyhow::Result<String> {
    let mut rules = KubeOptions::default().haulout_rules;
    let is_nvidia = |rule: &PolicyRule| {
        rule.api_groups
            .iter()
            .flatten()
            .any(|group| group == "maintenance.nvidia.com")
    };
    rules.retain(|rule| !is_nvidia(rule));
    let user = User::stranger(fixture.name());
    fixture.kube.grant(&user, rules).await?;
    let config = fixture.kube.kubeconfig(&user)?;
    Ok(config.to_str().context("a path")?.to_owned())
}

#[test]
fn missing_right_on_a_foreign_kind_holds_up_only_its_requests() {
    run_scenario(async {
        let fixture = nodes(kube().await?, "of-the-forbidden", &["gpu1", "gpu2"]).await?;
        let [clicked, asked] = ["gpu1", "gpu2"].map(|vm| fixture.node_name(vm));
        let config = without_nvidia(&fixture).await?;
        let haulout = run(
            &fixture,
            &[ALL, ("KUBECONFIG", &config), ("MAX_CONCURRENT_DRAINS", "2")],
        )
        .await?;
        let spec = json!({"nodeName": asked});
        let asked = Asked::create(&fixture, MEDIK8S, "psu", spec, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&clicked).await?;
        asked
            .wait("has succeeded", |status| status["phase"] == "Succeeded")
            .await?;
        fixture
            .wait_for_log("the NodeMaintenance objects of nvidia cannot be watched")
            .await?;
        haulout.stop().await
    });
}

#[test]
fn check_names_missing_rights_on_a_foreign_kind() {
    run_scenario(async {
        let fixture = nodes(kube().await?, "foreign-check", &["gpu1"]).await?;
        let config = without_nvidia(&fixture).await?;
        let checked = async |projects: &str| {
            let settings = [
                ("KUBECONFIG", config.as_str()),
                ("FOREIGN_NODE_MAINTENANCES", projects),
            ];
            types_with(&fixture, &["check"], &settings).await
        };
        // The kube-apiserver sees a role binding with a delay.
        let answer = until("the binding to count", WAIT_TIMEOUT, async || {
            let answer = checked("medik8s,nvidia").await?;
            Ok(answer
                .stdout
                .contains("√ may list, watch pods\n")
                .then_some(answer))
        })
        .await?;
        for line in [
            "√ may list, watch nodemaintenances in nodemaintenance.medik8s.io\n",
            "√ the kind NodeMaintenance of nodemaintenance.medik8s.io is installed\n",
            "‼ may not list, watch nodemaintenances in maintenance.nvidia.com",
            "‼ may not patch nodemaintenances/status in maintenance.nvidia.com",
            "‼ the NodeMaintenances of nvidia: the read failed",
        ] {
            ensure!(answer.stdout.contains(line), "{line}: {answer}");
        }
        ensure!(answer.code == 0, "{answer}");
        let none = checked("none").await?;
        ensure!(
            !none.stdout.contains("nvidia") && !none.stdout.contains("medik8s"),
            "{none}"
        );
        Ok(())
    });
}
