//! vCenter and the kube-apiserver restart during an episode.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, Member, is_cordoned};
use haulout_lab::kube::{Kube, KubeOptions, User};
use haulout_lab::vcenter::{Delays, DeviceSpec, Down, Gpu, RestartEffects, VmSpec};

use crate::fixture::{a40, gpu_vm, hosts, kube, one_node, run, run_scenario};

/// Breaks something in each phase of an episode that waits, and expects the end of an undisturbed one.
async fn break_in_each_phase(
    fixture: &Fixture<'_>,
    mut harm: impl AsyncFnMut(&Fixture<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let node = fixture.node_name("gpu1");
    fixture.add_pod("held", &node, &[]).await?;
    fixture.set_budget("held", 0).await?;
    let slow = haulout_lab::vcenter::GuestPatch {
        shutdown_ms: Some(1500),
        ..Default::default()
    };
    fixture.vcenter.patch_vm("gpu1", slow).await?;
    let haulout = run(fixture, &[]).await?;
    harm(fixture).await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_phase(&node, "draining").await?;
    harm(fixture).await?;
    fixture.set_budget("held", 1).await?;
    fixture.wait_phase(&node, "shuttingDown").await?;
    harm(fixture).await?;
    fixture.wait_phase(&node, "awaitingHost").await?;
    harm(fixture).await?;
    fixture.wait_in_maintenance("esx1").await?;
    fixture.vcenter.exit_maintenance("esx1").await?;
    fixture.wait_phase(&node, "rejoining").await?;
    harm(fixture).await?;
    fixture.wait_in_service(&node).await?;
    ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
    haulout.stop().await
}

/// As [`break_in_each_phase`], for an episode that moves, including its time in the queue.
async fn break_in_each_phase_of_a_move(
    name: &str,
    mut harm: impl AsyncFnMut(&Fixture<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let flex = DeviceSpec {
        vendor: 0x8086,
        device: 0x56c0,
        ..a40(1)
    };
    let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)]), ("esx3", &[flex])]);
    let first = VmSpec {
        gpu: Gpu::dynamic(0x8086, 0x56c0),
        ..gpu_vm(name, "first", "esx3")
    };
    spec.vms = vec![gpu_vm(name, "gpu1", "esx1"), first];
    // Long enough to be interrupted.
    spec.delays = Delays {
        relocate_ms: 1500,
        power_on_ms: 1500,
        ..Delays::default()
    };
    let fixture = crate::fixture::fixture(name, &spec).await?;
    let (node, first) = (fixture.node_name("gpu1"), fixture.node_name("first"));
    fixture.add_pod("held", &first, &[]).await?;
    fixture.set_budget("held", 0).await?;
    let haulout = run(&fixture, &[]).await?;
    fixture.vcenter.enter_maintenance("esx3").await?;
    fixture.wait_phase(&first, "draining").await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_phase(&node, "queued").await?;
    harm(&fixture).await?;
    fixture.vcenter.cancel_maintenance("esx3").await?;
    fixture.wait_phase(&node, "relocating").await?;
    harm(&fixture).await?;
    fixture.wait_phase(&node, "poweringOn").await?;
    harm(&fixture).await?;
    fixture.wait_in_service(&node).await?;
    fixture.wait_in_service(&first).await?;
    ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
    ensure!(fixture.power_cycles("first").await? == (0, 0));
    ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 1, "moved once");
    ensure!(
        fixture.calls("PowerOnVM_Task", "gpu1").await? == 1,
        "powered on once"
    );
    haulout.stop().await
}

#[test]
fn rotated_kubeconfig_ends_the_program_in_order() {
    run_scenario(async {
        for (name, setting) in [
            ("new-kubeconfig", "KUBECONFIG"),
            ("new-management-kubeconfig", "MANAGEMENT_KUBECONFIG"),
        ] {
            let fixture = one_node(name).await?;
            let kubeconfig = kube().await.kubeconfig(&User::haulout(name))?;
            let copy = kubeconfig.with_file_name(format!("{name}-copy"));
            std::fs::copy(&kubeconfig, &copy)?;
            let path = copy.to_str().context("a path that is no text")?.to_owned();
            let settings = [(setting, path.as_str()), ("KUBERNETES_SERVICE_HOST", "127.0.0.1")];
            let haulout = run(&fixture, &settings).await?;
            let mut text = std::fs::read_to_string(&copy)?;
            text.push_str("# rotated\n");
            std::fs::write(&copy, text)?;
            fixture.wait_for_log("has changed; exiting").await?;
            ensure!(haulout.ended().await? == Some(0), "an orderly end");
        }
        Ok(())
    });
}

#[test]
fn session_killed_in_each_phase_of_a_move() {
    run_scenario(async {
        break_in_each_phase_of_a_move("move-killed", async |fixture| {
            fixture.vcenter.kill_sessions().await
        })
        .await
    });
}

#[test]
fn vcenter_restarts_in_each_phase_of_a_move() {
    run_scenario(async {
        let restart = async |fixture: &Fixture<'_>| {
            fixture
                .vcenter
                .restart(Down::Refused, Duration::from_millis(400))
                .await
        };
        break_in_each_phase_of_a_move("move-refused", restart).await
    });
}

#[test]
fn session_killed_in_each_phase_costs_one_login_each() {
    run_scenario(async {
        let fixture = one_node("killed").await?;
        break_in_each_phase(&fixture, async |fixture| fixture.vcenter.kill_sessions().await).await?;
        let journal = fixture.vcenter.journal().await?;
        let logins = journal.iter().filter(|it| it.detail == "login").count();
        ensure!(logins <= 6, "five sessions were killed, and {logins} logins seen");
        Ok(())
    });
}

#[test]
fn session_lost_without_an_error_is_noticed_in_each_phase() {
    run_scenario(async {
        let fixture = one_node("vanished").await?;
        break_in_each_phase(&fixture, async |fixture| {
            fixture.vcenter.kill_sessions_silently().await
        })
        .await
    });
}

#[test]
fn vcenter_restarts_with_refused_connections_in_each_phase() {
    run_scenario(async {
        let fixture = one_node("refused").await?;
        let restart = async |fixture: &Fixture<'_>| {
            fixture
                .vcenter
                .restart(Down::Refused, Duration::from_millis(400))
                .await
        };
        break_in_each_phase(&fixture, restart).await
    });
}

#[test]
fn vcenter_restarts_behind_503_in_each_phase() {
    run_scenario(async {
        let fixture = one_node("s503").await?;
        let restart = async |fixture: &Fixture<'_>| {
            fixture
                .vcenter
                .restart(Down::Unavailable, Duration::from_millis(400))
                .await
        };
        break_in_each_phase(&fixture, restart).await
    });
}

/// A vCenter that restarts forgets the task, and the host goes on entering by itself. The node stays cordoned for the grace of a
/// failed maintenance; if it is tried again meanwhile, the drain goes on.
#[test]
fn node_stays_cordoned_when_a_restart_of_vcenter_loses_the_task() {
    run_scenario(async {
        let fixture = one_node("task-lost").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[("MAINTENANCE_RETRY_GRACE_SECONDS", "5")]).await?;
        let lose_task = async || {
            fixture.vcenter.enter_maintenance("esx1").await?;
            fixture.wait_phase(&node, "draining").await?;
            let effects = RestartEffects {
                lose_tasks: true,
                ..RestartEffects::default()
            };
            let away = Duration::from_millis(400);
            fixture.vcenter.restart_with(Down::Refused, away, effects).await
        };
        lose_task().await?;
        fixture
            .wait_for_log("a retry of its host's maintenance, which failed")
            .await?;
        fixture.wait_for_log("does not list its task any more").await?;
        ensure!(is_cordoned(&fixture.node(&node).await?));
        // Nobody tries it again.
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.pods_on(&node).await? == ["held"]);
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn kube_apiserver_restarts_during_a_drain() {
    run_scenario(async {
        // Its own cluster: the restart would disturb the other scenarios.
        let kube = Kube::start(&KubeOptions::default()).await?;
        let mut spec = hosts(&[("esx1", &[a40(1)])]);
        let vm = gpu_vm("apiserver", "gpu1", "esx1");
        let members = vec![Member::new("apiserver", "gpu1", &vm.uuid)];
        spec.vms = vec![vm];
        let fixture = Fixture::create(&kube, "apiserver", &spec, members, true).await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        kube.restart_apiserver(Duration::from_millis(300)).await?;
        fixture.set_budget("held", 1).await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}
