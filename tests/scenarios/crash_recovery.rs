//! SIGKILL before and after every request that changes something. The scenario ends as an undisturbed one.

use anyhow::{Context as _, ensure};
use haulout_lab::fault_proxy::{FaultProxy, Moment};
use haulout_lab::fixture::{Fixture, Haulout, Member, WAIT_TIMEOUT, boot_id, episode};
use haulout_lab::kube::AuditEvent;

use crate::fixture::{a40, gpu_vm, hosts, kube, run_all, run_scenario, start};
use crate::requests::all_ended;
use crate::static_devices::static_vm;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    Wait,
    Migrate,
    /// As `Migrate`, with a device at a fixed address.
    Repoint,
}

impl Scenario {
    pub async fn create(self, name: &str) -> anyhow::Result<Fixture<'static>> {
        let mut spec = match self {
            Self::Wait => hosts(&[("esx1", &[a40(1)])]),
            Self::Migrate | Self::Repoint => hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]),
        };
        let vm = match self {
            Self::Wait | Self::Migrate => gpu_vm(name, "gpu1", "esx1"),
            Self::Repoint => static_vm(name, "gpu1", "esx1", 1),
        };
        let members = vec![Member::new(name, "gpu1", &vm.uuid)];
        spec.vms = vec![vm];
        // The proxy reads the requests, so the vCenter behind it speaks plain HTTP.
        let fixture = Fixture::create(kube().await, name, &spec, members, false).await?;
        fixture.add_pod("train", &fixture.node_name("gpu1"), &[]).await?;
        Ok(fixture)
    }

    /// The operator's actions and what must be seen, whatever happens to Haulout.
    pub async fn play(self, fixture: &Fixture<'_>) -> anyhow::Result<()> {
        let node = fixture.node_name("gpu1");
        let boot_before = boot_id(&fixture.node(&node).await?);
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        if self == Self::Wait {
            // An exit before the wait is recorded would leave out one change.
            fixture.wait_phase(&node, "awaitingHost").await?;
            fixture.vcenter.exit_maintenance("esx1").await?;
        }
        fixture
            .wait_node(&node, "is on another boot", |node| boot_id(node) != boot_before)
            .await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.pods_on(&node).await?.is_empty(), "the pod was evicted");
        let stands_on = fixture.vcenter.state().await?.vm("gpu1").unwrap().host.clone();
        ensure!(
            stands_on == if self == Self::Wait { "esx1" } else { "esx2" },
            "the VM is on {stands_on}"
        );
        let cycles = fixture.power_cycles("gpu1").await?;
        ensure!(
            cycles == (1, 1),
            "off {} times and on {} times",
            cycles.0,
            cycles.1
        );
        for method in [
            "PowerOffVM_Task",
            "PowerOnVM_Task",
            "RelocateVM_Task",
            "ReconfigVM_Task",
        ] {
            let calls = fixture.calls(method, "gpu1").await?;
            ensure!(calls <= 1, "{method} was accepted {calls} times");
        }
        Ok(())
    }
}

pub async fn through_proxy(fixture: &Fixture<'_>, replica: &str) -> anyhow::Result<(FaultProxy, String)> {
    let client = fixture.kube.client_for(&fixture.user())?;
    let proxy = FaultProxy::start(client, fixture.vcenter.sdk()).await?;
    let kubeconfig = format!("proxy-{}{replica}.kubeconfig", fixture.name());
    let kubeconfig = fixture.kube.dir().join(kubeconfig);
    proxy.write_kubeconfig(&kubeconfig)?;
    Ok((proxy, kubeconfig.to_string_lossy().into_owned()))
}

fn start_behind(fixture: &Fixture<'_>, proxy: &FaultProxy, kubeconfig: &str) -> anyhow::Result<Haulout> {
    start(
        fixture,
        &[
            ("VCENTER_HOST", &proxy.vcenter_sdk()),
            ("KUBECONFIG", kubeconfig),
            // It concerns only VMs with a device at a fixed address.
            ("STATIC_DEVICES", "repoint"),
        ],
    )
}

/// Runs the scenario undisturbed and returns its changes in order.
pub async fn undisturbed(scenario: Scenario, name: &str) -> anyhow::Result<Vec<String>> {
    let fixture = scenario.create(name).await?;
    let (proxy, kubeconfig) = through_proxy(&fixture, "").await?;
    let haulout = start_behind(&fixture, &proxy, &kubeconfig)?;
    fixture.wait_for_log("vCenter synced").await?;
    scenario.play(&fixture).await?;
    haulout.stop().await?;
    let forwarded = proxy.forwarded().into_iter();
    let mut changes: Vec<String> = forwarded.map(|request| request.what).collect();
    // A PATCH that conflicts with a write of the kubelet is sent again. It is no change of its own, and another run
    // may not have it.
    let patch = format!("PATCH nodes/{}", fixture.node_name("gpu1"));
    for _ in 0..refused_patches(&fixture).await? {
        let at = changes.iter().rposition(|what| *what == patch);
        changes.remove(at.context("a PATCH in the audit log that did not pass the proxy")?);
    }
    Ok(changes)
}

/// The number of Haulout's PATCHes that were refused with a conflict.
async fn refused_patches(fixture: &Fixture<'_>) -> anyhow::Result<usize> {
    let audit = fixture.audit().await?;
    let is_refused = |it: &&AuditEvent| it.resource == "nodes" && it.code == 409;
    Ok(audit.iter().filter(is_refused).count())
}

async fn killed(scenario: Scenario, name: &str, number: usize, moment: Moment) -> anyhow::Result<()> {
    let fixture = scenario.create(name).await?;
    let (proxy, kubeconfig) = through_proxy(&fixture, "").await?;
    proxy.stop_at(number, moment);
    let haulout = start_behind(&fixture, &proxy, &kubeconfig)?;
    fixture.wait_for_log("vCenter synced").await?;
    let kill = async {
        let request = tokio::time::timeout(WAIT_TIMEOUT, proxy.stopped())
            .await
            .with_context(|| format!("the scenario never came to its change number {number}"))?;
        haulout.kill().await?;
        proxy.open();
        let successor = start_behind(&fixture, &proxy, &kubeconfig)?;
        anyhow::Ok((request, successor))
    };
    let (played, killed) = tokio::join!(scenario.play(&fixture), kill);
    let (request, successor) = killed?;
    played.with_context(|| {
        format!(
            "killed {moment:?} {}; the changes were {:#?}\n{}",
            request.what,
            proxy.forwarded(),
            fixture.log_text()
        )
    })?;
    let node = fixture.node_name("gpu1");
    for object in all_ended(&fixture, &node).await? {
        let result = object.status.and_then(|status| status.result);
        ensure!(
            result.as_deref() == Some("Succeeded"),
            "killed {moment:?} {}: the NodeMaintenance says {result:?}",
            request.what
        );
    }
    successor.kill().await?;
    let left = fixture.node(&node).await?;
    ensure!(
        episode(&left).is_none(),
        "nothing of the episode is left on the Node"
    );
    Ok(())
}

pub fn survives_a_kill_at_every_change(scenario: Scenario, name: &'static str) {
    run_scenario(async move {
        let changes = undisturbed(scenario, &format!("{name}-ref")).await?;
        println!("{} changes: {changes:#?}", changes.len());
        ensure!(
            changes.len() >= 8,
            "the scenario has lost some of its changes: {changes:#?}"
        );
        let points =
            (1..=changes.len()).flat_map(|number| [(number, Moment::Before), (number, Moment::After)]);
        let runs = points.map(|(number, moment)| {
            let at = match moment {
                Moment::Before => "before",
                Moment::After => "after",
            };
            let name = format!("{name}-{number}-{at}");
            async move {
                let result = killed(scenario, &name, number, moment).await;
                result.context(name)
            }
        });
        run_all(runs).await
    });
}

#[test]
fn kill_at_every_change_of_an_episode_that_waits() {
    survives_a_kill_at_every_change(Scenario::Wait, "kill-wait");
}

#[test]
fn kill_at_every_change_of_an_episode_that_moves() {
    survives_a_kill_at_every_change(Scenario::Migrate, "kill-move");
}
