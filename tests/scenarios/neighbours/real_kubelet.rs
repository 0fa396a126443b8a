//! Maintenances of nodes with a real kubelet.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;
use haulout_lab::fixture::{
    Fixture, Haulout, Member, WAIT_TIMEOUT, annotation, boot_id, container, gpus, is_cordoned, is_ready,
    label,
};
use haulout_lab::kubelet::{EXITS_AFTER_MS, GPU};
use haulout_lab::real_kubelet;
use haulout_lab::vcenter::{Down, GuestPatch, State, VmState};
use haulout_lab::wait::until;
use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::assertions::{ensure_brought_back, wait_for_call};
use crate::fixture::{a40, gpu_vm, hosts, kube, run, run_scenario, run_scenario_alone, start};
use crate::graceful_shutdown::{cancel_while_its_guest_stops, says_that_it_shuts_down};
use crate::leader_election::{UNDEPOSED, replica_settings, wait_leader, wait_synced};
use crate::requests::copy_says;

/// Longer than any scenario: the device plugin waits until a test changes it.
const NEVER: Duration = Duration::from_secs(3600);

/// Runs a scenario with a node on the only host whose kubelet is a real one, or skips it.
fn run_real(name: &'static str, scenario: impl AsyncFnOnce(Fixture<'static>) -> anyhow::Result<()>) {
    run_scenario(with_real_kubelet(name, scenario));
}

async fn with_real_kubelet(
    name: &str,
    scenario: impl AsyncFnOnce(Fixture<'static>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let test = std::thread::current().name().unwrap_or(name).to_owned();
    if real_kubelet::is_skipped(&test)? {
        return Ok(());
    }
    let mut spec = hosts(&[("esx1", &[a40(1)])]);
    spec.vms = vec![gpu_vm(name, "gpu1", "esx1")];
    let member = Member::new(name, "gpu1", &spec.vms[0].uuid).with_real_kubelet();
    let fixture = Fixture::create(kube().await, name, &spec, vec![member], true).await?;
    scenario(fixture).await
}

/// Takes the Node to maintenance: its VM is off, and its host is in maintenance.
async fn take_off(fixture: &Fixture<'_>) -> anyhow::Result<Node> {
    let node = fixture.node_name("gpu1");
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_state(&node, Some("powered-off")).await?;
    fixture.wait_in_maintenance("esx1").await?;
    fixture.node(&node).await
}

/// Waits until a kubelet of another boot says that the Node is Ready with so many GPUs.
async fn wait_boot(fixture: &Fixture<'_>, before: &Node, wanted: u32) -> anyhow::Result<Node> {
    let boot_before = boot_id(before);
    let what = format!("is Ready on another boot with {wanted} GPUs");
    fixture
        .wait_node(&before.name_any(), &what, |node| {
            boot_id(node) != boot_before && is_ready(node) && gpus(node) == wanted
        })
        .await
}

/// Reboots the guest without a maintenance, so that a change of it counts.
async fn reboot(fixture: &Fixture<'_>, wanted: u32) -> anyhow::Result<Node> {
    let before = fixture.node(&fixture.node_name("gpu1")).await?;
    fixture.vcenter.reset_vm("gpu1").await?;
    wait_boot(fixture, &before, wanted).await
}

/// The end of a scenario: the node is in service on another boot with its GPUs, after one power cycle.
async fn is_back(fixture: &Fixture<'_>, before: &Node) -> anyhow::Result<()> {
    let back = fixture.wait_in_service(&before.name_any()).await?;
    ensure!(boot_id(&back) != boot_id(before));
    ensure!(gpus(&back) == 2);
    ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
    Ok(())
}

#[test]
fn node_with_a_real_kubelet_goes_through_a_maintenance() {
    run_real("real-plain", async |fixture| {
        let node = fixture.node_name("gpu1");
        let before = fixture.node(&node).await?;
        let info = before.status.as_ref().and_then(|it| it.node_info.as_ref());
        ensure!(info.is_some_and(|it| it.container_runtime_version.starts_with("containerd://2.")));
        fixture.add_pod("train", &node, &[]).await?;
        let haulout = run(&fixture, &[]).await?;

        let off = take_off(&fixture).await?;
        ensure!(is_cordoned(&off));
        ensure!(fixture.pods_on(&node).await?.is_empty());
        fixture.vcenter.exit_maintenance("esx1").await?;
        is_back(&fixture, &before).await?;
        ensure!(fixture.calls("ShutdownGuest", "gpu1").await? == 1);
        ensure!(fixture.calls("PowerOffVM_Task", "gpu1").await? == 0);
        haulout.stop().await
    });
}

/// The directories and the control groups on this machine that have this name.
fn places_of(name: &OsStr) -> Vec<PathBuf> {
    let mut found = vec![std::env::temp_dir().join(name)];
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let inner = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        for path in inner.map(|entry| entry.path()) {
            if path.file_name() == Some(name) {
                found.push(path);
            } else {
                folders.push(path);
            }
        }
    }
    found.retain(|path| path.exists());
    found
}

/// The directory of the VM of this Node.
fn directory_of(node: &str) -> anyhow::Result<PathBuf> {
    let entries = std::fs::read_dir(std::env::temp_dir())?.flatten();
    let mut directories = entries.map(|entry| entry.path());
    let named = format!("\"name\":\"{node}\"");
    let is_its = |path: &PathBuf| {
        std::fs::read_to_string(path.join("config.json")).is_ok_and(|config| config.contains(&named))
    };
    directories
        .find(is_its)
        .with_context(|| format!("no VM of {node} has a directory"))
}

#[test]
fn nothing_is_left_of_a_vm_with_a_real_kubelet() {
    run_real("real-ends", async |fixture| {
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let directory = directory_of(&node)?;
        let name = directory.file_name().context("it has a name")?;
        ensure!(places_of(name).len() > 1, "it has control groups");

        drop(fixture);
        until("all of it to be removed", WAIT_TIMEOUT, async || {
            let left = places_of(name);
            ensure!(left.is_empty(), "{left:?}");
            Ok(Some(()))
        })
        .await?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        ensure!(!mounts.contains(&*name.to_string_lossy()));
        Ok(())
    });
}

/// A StatefulSet of one pod with these annotations, which runs on the node of the fixture; the pod is Ready.
async fn add_set(fixture: &Fixture<'_>, annotations: serde_json::Value) -> anyhow::Result<()> {
    let set: StatefulSet = serde_json::from_value(json!({
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db", "replicas": 1, "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {"labels": {"app": "db"}, "annotations": annotations},
                "spec": {
                    "nodeSelector": {label(fixture.name()): "true"},
                    "terminationGracePeriodSeconds": 5, "containers": [container()],
                },
            },
        },
    }))?;
    let sets: Api<StatefulSet> = Api::namespaced(fixture.client(), fixture.name());
    sets.create(&PostParams::default(), &set).await?;
    set_is_ready(fixture).await
}

async fn set_is_ready(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let sets: Api<StatefulSet> = Api::namespaced(fixture.client(), fixture.name());
    until("db-0 to be Ready", WAIT_TIMEOUT, async || {
        let status = sets.get("db").await?.status.unwrap_or_default();
        Ok((status.ready_replicas == Some(1)).then_some(()))
    })
    .await
}

#[test]
fn stateful_pod_that_ends_last_is_replaced_while_its_node_is_away() {
    run_real("real-stateful", async |fixture| {
        let node = fixture.node_name("gpu1");
        let before = fixture.node(&node).await?;
        // Without an annotation it ignores SIGTERM.
        add_set(&fixture, json!({})).await?;
        let pods: Api<Pod> = Api::namespaced(fixture.client(), fixture.name());
        let ends_last = pods.get("db-0").await?.uid();
        fixture.add_pod("quick", &node, &[]).await?;
        let haulout = run(&fixture, &[]).await?;

        take_off(&fixture).await?;
        ensure!(
            fixture.pods_on(&node).await?.is_empty(),
            "its kubelet has deleted its pods before the VM went off"
        );
        until("the replacement of db-0", WAIT_TIMEOUT, async || {
            let pod = pods.get_opt("db-0").await?;
            Ok(pod.filter(|pod| pod.uid() != ends_last))
        })
        .await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        is_back(&fixture, &before).await?;
        haulout.stop().await
    });
}

#[test]
fn node_waits_for_a_device_plugin_that_comes_late() {
    run_real("real-plugin", async |fixture| {
        let node = fixture.node_name("gpu1");
        let before = fixture.node(&node).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.kubelet("gpu1")?.set_gpus_after(NEVER);

        take_off(&fixture).await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        wait_boot(&fixture, &before, 0).await?;
        fixture
            .wait_for_log("nvidia.com/gpu to be allocatable again: 0 of 2")
            .await?;
        ensure!(is_cordoned(&fixture.node(&node).await?));
        fixture.kubelet("gpu1")?.set_gpus_after(Duration::ZERO);
        is_back(&fixture, &before).await?;
        haulout.stop().await
    });
}

#[test]
fn guest_with_a_real_kubelet_that_ignores_the_shutdown_is_powered_off() {
    run_real("real-deaf", async |fixture| {
        let node = fixture.node_name("gpu1");
        let before = fixture.node(&node).await?;
        fixture.add_pod("train", &node, &[]).await?;
        let deaf = GuestPatch {
            ignore_shutdown: Some(true),
            ..GuestPatch::default()
        };
        fixture.vcenter.patch_vm("gpu1", deaf).await?;
        let haulout = run(&fixture, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "2")]).await?;

        take_off(&fixture).await?;
        ensure!(fixture.pods_on(&node).await?.is_empty());
        ensure!(fixture.calls("ShutdownGuest", "gpu1").await? == 1);
        ensure!(fixture.calls("PowerOffVM_Task", "gpu1").await? == 1);
        fixture.vcenter.exit_maintenance("esx1").await?;
        is_back(&fixture, &before).await?;
        haulout.stop().await
    });
}

#[test]
fn gpus_of_the_last_boot_do_not_count_where_a_real_kubelet_lost_its_checkpoint() {
    run_real("real-checkpoint", async |fixture| {
        let node = fixture.node_name("gpu1");
        let before = fixture.node(&node).await?;
        let haulout = run(&fixture, &[]).await?;
        let kubelet = fixture.kubelet("gpu1")?;
        kubelet.lose_checkpoint();
        kubelet.set_gpus_after(NEVER);

        take_off(&fixture).await?;
        fixture
            .wait_node(&node, "has no GPUs of the last boot", |node| gpus(node) == 0)
            .await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        wait_boot(&fixture, &before, 0).await?;
        fixture
            .wait_for_log("nvidia.com/gpu to be allocatable again: 0 of 2")
            .await?;
        ensure!(is_cordoned(&fixture.node(&node).await?));
        kubelet.set_gpus_after(Duration::ZERO);
        is_back(&fixture, &before).await?;
        haulout.stop().await
    });
}

#[test]
fn real_kubelet_shows_gpus_of_the_last_boot_if_it_lost_its_checkpoint() {
    run_real("real-stale", async |fixture| {
        let kubelet = fixture.kubelet("gpu1")?;
        kubelet.set_gpus_after(NEVER);
        reboot(&fixture, 0).await?;
        kubelet.set_gpus_after(Duration::ZERO);
        fixture
            .wait_node(&fixture.node_name("gpu1"), "has its GPUs", |node| gpus(node) == 2)
            .await?;

        kubelet.lose_checkpoint();
        kubelet.set_gpus_after(NEVER);
        reboot(&fixture, 2).await?;
        Ok(())
    });
}

#[test]
fn node_deleted_while_its_vm_is_off_is_registered_by_a_real_kubelet() {
    run_real("real-recreated", async |fixture| {
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let off = take_off(&fixture).await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        copy_says(&fixture, &node, &["awaitingHost"]).await?;
        let nodes: Api<Node> = Api::all(fixture.client());
        nodes.delete(&node, &DeleteParams::default()).await?;

        fixture.vcenter.exit_maintenance("esx1").await?;
        let back = fixture
            .wait_node(&node, "is registered again and in service", |node| {
                node.uid() != off.uid() && annotation(node, "episode").is_none() && is_ready(node)
            })
            .await?;
        ensure!(!is_cordoned(&back));
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn node_with_33_pods_is_empty_before_its_vm_is_off() {
    // The start of so many containers takes all processors of a small machine.
    run_scenario_alone(with_real_kubelet("real-many", async |fixture| {
        let node = fixture.node_name("gpu1");
        let before = fixture.node(&node).await?;
        let names: Vec<String> = (0..33).map(|number| format!("pod-{number}")).collect();
        try_join_all(names.iter().map(|name| fixture.add_pod(name, &node, &[]))).await?;
        let haulout = run(&fixture, &[]).await?;

        take_off(&fixture).await?;
        let left = fixture.pods_on(&node).await?;
        ensure!(left.is_empty(), "{left:?}");
        fixture.vcenter.exit_maintenance("esx1").await?;
        is_back(&fixture, &before).await?;
        haulout.stop().await
    }));
}

#[test]
fn node_is_back_when_its_kubelet_starts_late() {
    run_real("real-late", async |fixture| {
        let node = fixture.node_name("gpu1");
        let before = fixture.node(&node).await?;
        let haulout = run(&fixture, &[]).await?;
        let kubelet = fixture.kubelet("gpu1")?;
        kubelet.hold_boot();

        take_off(&fixture).await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        let is_on = |state: &State| state.vm("gpu1").is_some_and(VmState::is_on);
        fixture.wait_vcenter("gpu1 is on", is_on).await?;
        let unknown = fixture
            .wait_node(&node, "is not Ready", |node| !is_ready(node))
            .await?;
        ensure!(is_cordoned(&unknown) && boot_id(&unknown) == boot_id(&before));
        kubelet.release_boot();
        is_back(&fixture, &before).await?;
        haulout.stop().await
    });
}

/// A DaemonSet on the only node of the fixture; its pod is Ready.
async fn add_daemons(fixture: &Fixture<'_>, pod: serde_json::Value) -> anyhow::Result<()> {
    let mut pod = pod;
    pod["nodeSelector"] = json!({label(fixture.name()): "true"});
    pod["tolerations"] = json!([{"operator": "Exists"}]);
    let set: DaemonSet = serde_json::from_value(json!({
        "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {"metadata": {"labels": {"app": "agent"}}, "spec": pod},
        },
    }))?;
    let sets: Api<DaemonSet> = Api::namespaced(fixture.client(), fixture.name());
    sets.create(&PostParams::default(), &set).await?;
    until("the pod of the DaemonSet to be Ready", WAIT_TIMEOUT, async || {
        let status = sets.get("agent").await?.status.unwrap_or_default();
        let is_ready = status.desired_number_scheduled == 1 && status.number_ready == 1;
        Ok(is_ready.then_some(()))
    })
    .await
}

#[test]
fn cancel_during_the_graceful_shutdown_of_a_real_kubelet_brings_the_node_back() {
    run_real("real-graceful", async |fixture| {
        let node = fixture.node_name("gpu1");
        fixture.kubelet("gpu1")?.shut_down_gracefully();
        let before = reboot(&fixture, 2).await?;
        // It ignores SIGTERM, so the shutdown takes all the time that is not for critical pods.
        let pod = json!({"terminationGracePeriodSeconds": 60, "containers": [container()]});
        add_daemons(&fixture, pod).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_for_call(&fixture, "ShutdownGuest", "gpu1").await?;
        fixture
            .wait_node(&node, "says that it shuts down", says_that_it_shuts_down)
            .await?;
        cancel_while_its_guest_stops(&fixture).await?;
        ensure_brought_back(&fixture, "gpu1").await?;
        is_back(&fixture, &before).await?;
        ensure!(fixture.calls("PowerOffVM_Task", "gpu1").await? == 0);
        haulout.stop().await
    });
}

#[test]
fn node_waits_for_a_device_plugin_that_is_a_daemon_set() {
    run_real("real-plugin-pod", async |fixture| {
        fixture.kubelet("gpu1")?.set_gpus(0);
        reboot(&fixture, 0).await?;
        let mut plugin = container();
        plugin["args"] = json!(["plugin", GPU, "2"]);
        plugin["volumeMounts"] = json!([{"name": "plugins", "mountPath": "/var/lib/kubelet/device-plugins"}]);
        let folder = json!({"path": "/var/lib/kubelet/device-plugins", "type": "DirectoryOrCreate"});
        let pod = json!({"containers": [plugin], "volumes": [{"name": "plugins", "hostPath": folder}]});
        add_daemons(&fixture, pod).await?;
        let node = fixture.node_name("gpu1");
        let before = fixture
            .wait_node(&node, "has the GPUs of the plugin", |node| gpus(node) == 2)
            .await?;
        let haulout = run(&fixture, &[]).await?;

        take_off(&fixture).await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        is_back(&fixture, &before).await?;
        haulout.stop().await
    });
}

/// How many maintenances follow each other.
const MAINTENANCES: usize = 10;

/// What happens in a maintenance besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The leader is killed while its node is drained.
    KilledWhileDraining,
    /// The leader is killed while the VM is off.
    KilledWhileAway,
    /// The leader is killed when the host is back.
    KilledWhileBack,
    /// vCenter is restarted while the VM is off.
    VcenterRestarts,
}

impl Trouble {
    fn of(maintenance: usize) -> Option<Self> {
        match maintenance {
            2 => Some(Self::KilledWhileDraining),
            4 => Some(Self::VcenterRestarts),
            6 => Some(Self::KilledWhileAway),
            8 => Some(Self::KilledWhileBack),
            _ => None,
        }
    }
}

/// Two replicas, of which the first leads.
struct Replicas<'f, 'k> {
    fixture: &'f Fixture<'k>,
    /// Of the replicas that are started later: one for each that is killed.
    names: std::array::IntoIter<&'static str, 3>,
    leader: Haulout,
    standby: Haulout,
    standby_name: &'static str,
}

impl<'f, 'k> Replicas<'f, 'k> {
    async fn start(fixture: &'f Fixture<'k>) -> anyhow::Result<Self> {
        let leader = Self::replica(fixture, "a")?;
        wait_leader(fixture, "a").await?;
        wait_synced(fixture, 1).await?;
        Ok(Self {
            fixture,
            names: ["c", "d", "e"].into_iter(),
            leader,
            standby: Self::replica(fixture, "b")?,
            standby_name: "b",
        })
    }

    fn replica(fixture: &Fixture<'_>, name: &str) -> anyhow::Result<Haulout> {
        let settings = [&replica_settings(fixture, name)[..], &UNDEPOSED[..]].concat();
        start(fixture, &settings)
    }

    /// Kills the leader. The other one leads, and a new one stands by.
    async fn kill_leader(self) -> anyhow::Result<Self> {
        let mut names = self.names;
        let name = names.next().context("there are names for all replicas")?;
        self.leader.kill().await?;
        wait_leader(self.fixture, self.standby_name).await?;
        Ok(Self {
            fixture: self.fixture,
            names,
            leader: self.standby,
            standby: Self::replica(self.fixture, name)?,
            standby_name: name,
        })
    }

    /// Takes the node through a maintenance.
    async fn maintain(self, trouble: Option<Trouble>) -> anyhow::Result<Self> {
        let fixture = self.fixture;
        let node = fixture.node_name("gpu1");
        let before = fixture.node(&node).await?;
        let mut replicas = self;
        fixture.vcenter.enter_maintenance("esx1").await?;
        if trouble == Some(Trouble::KilledWhileDraining) {
            fixture.wait_node(&node, "is cordoned", is_cordoned).await?;
            replicas = replicas.kill_leader().await?;
        }
        fixture.wait_in_maintenance("esx1").await?;
        match trouble {
            Some(Trouble::KilledWhileAway) => replicas = replicas.kill_leader().await?,
            Some(Trouble::VcenterRestarts) => {
                fixture
                    .vcenter
                    .restart(Down::Unavailable, Duration::from_secs(3))
                    .await?;
            }
            Some(Trouble::KilledWhileDraining | Trouble::KilledWhileBack) | None => {}
        }
        fixture.vcenter.exit_maintenance("esx1").await?;
        if trouble == Some(Trouble::KilledWhileBack) {
            replicas = replicas.kill_leader().await?;
        }
        let back = fixture.wait_in_service(&node).await?;
        ensure!(boot_id(&back) != boot_id(&before));
        set_is_ready(fixture).await?;
        Ok(replicas)
    }
}

#[test]
fn ten_maintenances_with_kills_and_a_vcenter_restart_leave_nothing_behind() {
    run_real("real-ten", async |fixture| {
        let node = fixture.node_name("gpu1");
        add_set(&fixture, json!({EXITS_AFTER_MS: "100"})).await?;
        let directory = directory_of(&node)?;
        let name = directory.file_name().context("it has a name")?;
        let places = places_of(name);
        let mut replicas = Replicas::start(&fixture).await?;
        for maintenance in 1..=MAINTENANCES {
            let trouble = Trouble::of(maintenance);
            replicas = replicas.maintain(trouble).await.with_context(|| {
                format!(
                    "maintenance {maintenance} with {trouble:?}; Haulout's log:\n{}",
                    fixture.log_text()
                )
            })?;
            let cycles = fixture.power_cycles("gpu1").await?;
            ensure!(
                cycles == (maintenance, maintenance),
                "{cycles:?} after maintenance {maintenance} with {trouble:?}; Haulout's log:\n{}",
                fixture.log_text()
            );
        }
        let Replicas { leader, standby, .. } = replicas;
        standby.stop().await?;
        leader.stop().await?;

        let back = fixture.node(&node).await?;
        let taints = back
            .spec
            .as_ref()
            .and_then(|it| it.taints.clone())
            .unwrap_or_default();
        ensure!(taints.is_empty(), "{taints:?}");
        ensure!(fixture.pods_on(&node).await? == ["db-0"]);
        ensure!(places_of(name) == places);
        // Those of the leaders that were killed after the restart of vCenter, which ends them when they have been idle.
        let sessions = fixture.vcenter.state().await?.sessions;
        ensure!(sessions == 2, "{sessions} sessions");
        Ok(())
    });
}
