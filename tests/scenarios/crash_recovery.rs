//! SIGKILL before and after every request that changes something: the story ends as if nothing had happened.

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use haulout_lab::gate::{Gate, Moment};
use haulout_lab::kube::AuditEvent;
use haulout_lab::stage::{Haulout, Member, PATIENCE, Stage, boot_id, episode};

use crate::fixture::{a40, gpu_vm, hosts, in_maintenance, kube, start, tell};

/// How many of these stories run at once. Each is mostly waiting, and the machine has two cores for all.
const ABREAST: usize = 6;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Story {
    Wait,
    Migrate,
}

impl Story {
    pub async fn set(self, name: &str) -> anyhow::Result<Stage<'static>> {
        let mut spec = match self {
            Self::Wait => hosts(&[("esx1", &[a40(1)])]),
            Self::Migrate => hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]),
        };
        let vm = gpu_vm(name, "gpu1", "esx1");
        let members = vec![Member::new(name, "gpu1", &vm.uuid)];
        spec.vms = vec![vm];
        // The gate reads what passes, so the vCenter behind it speaks plain HTTP on loopback.
        let stage = Stage::set(kube().await, name, &spec, members, false).await?;
        stage.add_pod("train", &stage.node_name("gpu1"), &[]).await?;
        Ok(stage)
    }

    /// What the operator does and sees, whatever happens to Haulout meanwhile.
    pub async fn play(self, stage: &Stage<'_>) -> anyhow::Result<()> {
        let node = stage.node_name("gpu1");
        let boot_before = boot_id(&stage.node(&node).await?);
        stage.vcenter.enter_maintenance("esx1").await?;
        in_maintenance(stage, "esx1").await?;
        if self == Self::Wait {
            // An exit before the wait is on record would spare the story one of its changes.
            stage.wait_phase(&node, "awaitingHost").await?;
            stage.vcenter.exit_maintenance("esx1").await?;
        }
        stage
            .wait_node(&node, "is on another boot", |node| boot_id(node) != boot_before)
            .await?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.pods_on(&node).await?.is_empty(), "the pod was evicted");
        let stands_on = stage.vcenter.state().await?.vm("gpu1").unwrap().host.clone();
        ensure!(
            stands_on == if self == Self::Wait { "esx1" } else { "esx2" },
            "the VM is on {stands_on}"
        );
        let cycles = stage.power_cycles("gpu1").await?;
        ensure!(
            cycles == (1, 1),
            "off {} times and on {} times",
            cycles.0,
            cycles.1
        );
        for method in ["PowerOffVM_Task", "PowerOnVM_Task", "RelocateVM_Task"] {
            let calls = stage.calls(method, "gpu1").await?;
            ensure!(calls <= 1, "{method} was accepted {calls} times");
        }
        Ok(())
    }
}

pub async fn through(stage: &Stage<'_>, replica: &str) -> anyhow::Result<(Gate, String)> {
    let client = stage.kube.client_for(&stage.user())?;
    let gate = Gate::start(client, stage.vcenter.sdk()).await?;
    let kubeconfig = format!("gate-{}{replica}.kubeconfig", stage.name());
    let kubeconfig = stage.kube.dir().join(kubeconfig);
    gate.write_kubeconfig(&kubeconfig)?;
    Ok((gate, kubeconfig.to_string_lossy().into_owned()))
}

fn start_behind(stage: &Stage<'_>, gate: &Gate, kubeconfig: &str) -> anyhow::Result<Haulout> {
    start(
        stage,
        &[("VCENTER_HOST", &gate.vcenter_sdk()), ("KUBECONFIG", kubeconfig)],
    )
}

/// The story undisturbed; gives what it changed, in order.
pub async fn undisturbed(story: Story, name: &str) -> anyhow::Result<Vec<String>> {
    let stage = story.set(name).await?;
    let (gate, kubeconfig) = through(&stage, "").await?;
    let haulout = start_behind(&stage, &gate, &kubeconfig)?;
    stage.wait_said("vCenter synced").await?;
    story.play(&stage).await?;
    haulout.stop().await?;
    let crossings = gate.crossings().into_iter();
    let mut changes: Vec<String> = crossings.map(|crossing| crossing.what).collect();
    // A PATCH that met a Node which the kubelet had just written was refused and sent again. The story has one change
    // less than requests then, and nothing shall wait for a number that another run does not come to.
    let patch = format!("PATCH nodes/{}", stage.node_name("gpu1"));
    for _ in 0..refused_patches(&stage).await? {
        let at = changes.iter().rposition(|what| *what == patch);
        changes.remove(at.context("a PATCH in the audit log that did not pass the gate")?);
    }
    Ok(changes)
}

/// How many PATCHes of Haulout's were refused because the Node had changed.
async fn refused_patches(stage: &Stage<'_>) -> anyhow::Result<usize> {
    let audit = stage.kube.audit().await?;
    let user = stage.user();
    let is_refused = |it: &&AuditEvent| it.user == user.name() && it.resource == "nodes" && it.code == 409;
    Ok(audit.iter().filter(is_refused).count())
}

async fn killed(story: Story, name: &str, number: usize, moment: Moment) -> anyhow::Result<()> {
    let stage = story.set(name).await?;
    let (gate, kubeconfig) = through(&stage, "").await?;
    gate.stop_at(number, moment);
    let haulout = start_behind(&stage, &gate, &kubeconfig)?;
    stage.wait_said("vCenter synced").await?;
    let kill = async {
        let crossing = tokio::time::timeout(PATIENCE, gate.stopped())
            .await
            .with_context(|| format!("the story never came to its change number {number}"))?;
        haulout.kill().await?;
        gate.open();
        let successor = start_behind(&stage, &gate, &kubeconfig)?;
        anyhow::Ok((crossing, successor))
    };
    let (played, killed) = tokio::join!(story.play(&stage), kill);
    let (crossing, successor) = killed?;
    played.with_context(|| {
        format!(
            "killed {moment:?} {}; the changes were {:#?}\n{}",
            crossing.what,
            gate.crossings(),
            stage.said()
        )
    })?;
    // It may have been started a moment ago, with nothing left to do.
    successor.kill().await?;
    let left = stage.node(&stage.node_name("gpu1")).await?;
    ensure!(
        episode(&left).is_none(),
        "nothing of the episode is left on the Node"
    );
    Ok(())
}

fn survives_a_kill_at_every_change(story: Story, name: &'static str) {
    tell(async move {
        let changes = undisturbed(story, &format!("{name}-ref")).await?;
        println!("{} changes: {changes:#?}", changes.len());
        ensure!(
            changes.len() >= 8,
            "the story has lost some of its changes: {changes:#?}"
        );
        let points =
            (1..=changes.len()).flat_map(|number| [(number, Moment::Before), (number, Moment::After)]);
        stream::iter(points)
            .map(|(number, moment)| {
                let at = match moment {
                    Moment::Before => "before",
                    Moment::After => "after",
                };
                let name = format!("{name}-{number}-{at}");
                async move {
                    killed(story, &name, number, moment)
                        .await
                        .with_context(|| name.clone())
                }
            })
            .buffer_unordered(ABREAST)
            .try_collect::<Vec<()>>()
            .await
            .map(|_| ())
    });
}

#[test]
fn kill_at_every_change_of_an_episode_that_waits() {
    survives_a_kill_at_every_change(Story::Wait, "kill-wait");
}

#[test]
fn kill_at_every_change_of_an_episode_that_moves() {
    survives_a_kill_at_every_change(Story::Migrate, "kill-move");
}
