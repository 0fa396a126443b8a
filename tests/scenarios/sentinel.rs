//! Sentinels ask for reboots of their nodes; Haulout reboots one after the other.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout::nodemaintenance::kind::{MaintenanceAction, MaintenanceOrigin, NodeMaintenance};
use haulout_lab::fixture::{Fixture, boot_id, is_cordoned};
use haulout_lab::kube::{User, rule};
use haulout_lab::process::{Process, ProcessSpec};
use haulout_lab::run_dir::RunDir;
use haulout_lab::wait::until;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use crate::fixture::{BINARY, a40, fixture, gpu_vm, hosts, one_node, run, run_scenario};
use crate::requests::{ask, withdraw};
use crate::windows::closed_at;

const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// The sentinel of a node, and the file that it looks for.
struct Sentinel {
    spec: ProcessSpec,
    process: Process,
    file: PathBuf,
    _dir: RunDir,
}

impl Sentinel {
    async fn start(fixture: &Fixture<'_>, node: &str, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let user = User::stranger(format!("sentinel-of-{node}"));
        let rules = vec![
            rule("", "nodes", &["get"]),
            rule("haulout.dev", "nodemaintenances", &["list", "create", "delete"]),
        ];
        fixture.kube.grant(&user, rules).await?;
        let dir = RunDir::create()?;
        let file = dir.join("reboot-required");
        let mut spec = ProcessSpec::leashed("sentinel", BINARY, dir.join("log"))
            .args(["sentinel"])
            .env("KUBECONFIG", fixture.kube.kubeconfig(&user)?)
            .env("NODE_NAME", node)
            .env("REBOOT_REQUIRED_FILE", &file)
            .env("SENTINEL_INTERVAL_SECONDS", "1");
        for (name, value) in settings {
            spec = spec.env(name, value);
        }
        Ok(Self {
            process: spec.spawn()?,
            spec,
            file,
            _dir: dir,
        })
    }

    fn requires(&self, is_required: bool) -> anyhow::Result<()> {
        if is_required {
            std::fs::write(&self.file, "")?;
        } else {
            std::fs::remove_file(&self.file)?;
        }
        Ok(())
    }

    /// Returns once the new process has said that it starts: until then SIGTERM would end it with an error.
    async fn crash_and_restart(&mut self) -> anyhow::Result<()> {
        self.process.kill().await?;
        let before = self.starts();
        self.process = self.spec.spawn()?;
        until("the sentinel to start again", WAIT_TIMEOUT, async || {
            Ok((self.starts() > before).then_some(()))
        })
        .await
        .with_context(|| self.log())
    }

    fn starts(&self) -> usize {
        self.log().matches("starting the sentinel").count()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.process.log()).unwrap_or_default()
    }

    async fn says(&self, text: &str) -> anyhow::Result<()> {
        until(&format!("the sentinel to say {text}"), WAIT_TIMEOUT, async || {
            Ok(self.log().contains(text).then_some(()))
        })
        .await
        .with_context(|| self.log())
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        let status = self.process.stop(Duration::from_secs(5)).await?;
        ensure!(status.success(), "{status}: {}", self.log());
        Ok(())
    }
}

/// The requests of the sentinel of `node`.
async fn asked(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<Vec<NodeMaintenance>> {
    let objects: Api<NodeMaintenance> = Api::all(fixture.client());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let mut all = objects.list(&of_node).await?.items;
    all.retain(|it| it.spec.origin == MaintenanceOrigin::Request && !it.labels().is_empty());
    Ok(all)
}

async fn has_asked(fixture: &Fixture<'_>, node: &str, times: usize) -> anyhow::Result<()> {
    until(
        &format!("{times} requests for {node}"),
        WAIT_TIMEOUT,
        async || Ok((asked(fixture, node).await?.len() == times).then_some(())),
    )
    .await
}

#[test]
fn two_nodes_that_need_a_reboot_are_rebooted_once_and_in_turn() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![
            gpu_vm("sentinel-turns", "gpu1", "esx1"),
            gpu_vm("sentinel-turns", "gpu2", "esx2"),
        ];
        let fixture = fixture("sentinel-turns", &spec).await?;
        let (first, second) = (fixture.node_name("gpu1"), fixture.node_name("gpu2"));
        fixture.add_pod("held", &first, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let before = [fixture.node(&first).await?, fixture.node(&second).await?];
        let haulout = run(&fixture, &[("MAX_UNAVAILABLE", "1")]).await?;
        let mut sentinels = [
            Sentinel::start(&fixture, &first, &[]).await?,
            Sentinel::start(&fixture, &second, &[]).await?,
        ];
        sentinels[0].says("no reboot is required").await?;

        sentinels[0].requires(true)?;
        fixture.wait_phase(&first, "draining").await?;
        sentinels[1].requires(true)?;
        fixture.wait_phase(&second, "queued").await?;
        for sentinel in &mut sentinels {
            sentinel.crash_and_restart().await?;
        }
        sentinels[1].says("asks for it and has not begun").await?;
        ensure!(!is_cordoned(&fixture.node(&second).await?));
        fixture.set_budget("held", 1).await?;
        // The reboot does not remove the files, and must not be repeated for that.
        for sentinel in &mut sentinels {
            sentinel.says("is not asked for before").await?;
            sentinel.crash_and_restart().await?;
        }
        for (before, node) in before.iter().zip([&first, &second]) {
            let after = fixture.wait_in_service(node).await?;
            ensure!(boot_id(&after) != boot_id(before), "{node} was not rebooted");
            ensure!(asked(&fixture, node).await?.len() == 1, "{node}");
        }
        for sentinel in sentinels {
            let again = sentinel.log().matches("creating NodeMaintenance").count();
            ensure!(again == 1, "{}", sentinel.log());
            sentinel.stop().await?;
        }
        for vm in ["gpu1", "gpu2"] {
            ensure!(fixture.power_cycles(vm).await? == (1, 1), "{vm}");
        }
        // By the audit log, the second was cordoned only when the first was back.
        let mut cordons = Vec::new();
        for event in fixture.audit().await? {
            let change = event
                .object
                .and_then(|it| it.pointer("/spec/unschedulable").cloned());
            if let (200, "nodes", Some(change)) = (event.code, event.resource.as_str(), change) {
                cordons.push((event.name.unwrap_or_default(), change == true));
            }
        }
        let expected = [(&first, true), (&first, false), (&second, true), (&second, false)];
        ensure!(
            cordons.iter().map(|(node, is)| (node, *is)).eq(expected),
            "{cordons:?}"
        );
        haulout.stop().await
    });
}

/// A sentinel of a node that needs a reboot, while its window is closed.
async fn outside_its_window(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<Sentinel> {
    let now = fixture
        .node(node)
        .await?
        .creation_timestamp()
        .context("no creation time")?;
    let window = closed_at(now.0);
    let sentinel = Sentinel::start(fixture, node, &[("SENTINEL_WINDOW", &window)]).await?;
    sentinel.requires(true)?;
    Ok(sentinel)
}

#[test]
fn sentinel_outside_its_window_waits_and_withdraws_its_request() {
    run_scenario(async {
        let fixture = one_node("reboot-window").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let sentinel = outside_its_window(&fixture, &node).await?;
        fixture
            .wait_for_log("T12:00:00Z, when the window of NodeMaintenance")
            .await?;
        sentinel.requires(false)?;
        sentinel.says("no reboot is required any more").await?;
        has_asked(&fixture, &node, 0).await?;
        ensure!(!is_cordoned(&fixture.node(&node).await?));

        // The need of this boot may come back.
        sentinel.requires(true)?;
        has_asked(&fixture, &node, 1).await?;
        sentinel.stop().await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn request_of_a_person_comes_before_that_of_a_sentinel() {
    run_scenario(async {
        let fixture = one_node("by-person").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let sentinel = outside_its_window(&fixture, &node).await?;
        has_asked(&fixture, &node, 1).await?;

        // Of two requests the older counts, so it would wait for the window.
        ask(&fixture, "fan", &node, MaintenanceAction::Drain).await?;
        fixture.wait_phase(&node, "drained").await?;
        sentinel
            .says("is asked for when NodeMaintenance by-person-fan")
            .await?;
        ensure!(asked(&fixture, &node).await?.is_empty());
        withdraw(&fixture, "fan").await?;
        fixture.wait_in_service(&node).await?;
        has_asked(&fixture, &node, 1).await?;
        sentinel.stop().await?;
        haulout.stop().await
    });
}
