//! A small datacenter for each scenario.

use std::path::Path;

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use haulout_lab::fixture::{Fixture, Haulout, Member, WAIT_TIMEOUT, episode};
use haulout_lab::kube::{Kube, User};
pub use haulout_lab::scenario::{kube, run_scenario, run_scenario_alone};
use haulout_lab::vcenter::{ClusterSpec, DeviceSpec, DrsAutomation, DrsSpec, Gpu, HostSpec, Spec, VmSpec};
use haulout_lab::wait;
use tokio::sync::Semaphore;

/// The PCI device id of an NVIDIA A40.
pub const A40: u16 = 0x2235;

pub const BINARY: &str = env!("CARGO_BIN_EXE_haulout");

/// Runs of [`run_all`] at once, of all tests together. Each one mostly waits, but with many more the other scenarios time out.
static RUNS: Semaphore = Semaphore::const_new(6);

/// Runs all of these, and stops at the first error.
pub async fn run_all<R>(runs: impl Iterator<Item = R>) -> anyhow::Result<()>
where
    R: Future<Output = anyhow::Result<()>>,
{
    stream::iter(runs)
        .map(Ok)
        .try_for_each_concurrent(None, async |run| {
            let _permit = RUNS.acquire().await?;
            run.await
        })
        .await
}

/// A cluster `c1` without DRS, of hosts with a common datastore and these devices.
pub fn hosts(hosts: &[(&str, &[DeviceSpec])]) -> Spec {
    let hosts = hosts.iter().map(|(name, devices)| HostSpec {
        name: (*name).to_owned(),
        devices: devices.to_vec(),
        datastores: vec!["ds1".to_owned()],
        ..HostSpec::default()
    });
    let drs = DrsSpec {
        enabled: false,
        behavior: DrsAutomation::Manual,
        ..DrsSpec::default()
    };
    Spec {
        clusters: vec![ClusterSpec {
            name: "c1".to_owned(),
            drs,
            hosts: hosts.collect(),
            ..ClusterSpec::default()
        }],
        ..Spec::default()
    }
}

/// A GPU at PCI bus `slot`.
pub fn a40(slot: u8) -> DeviceSpec {
    DeviceSpec::gpu(format!("0000:{slot:02x}:00.0"), A40)
}

/// A UUID from both names, different in each scenario.
pub fn uuid(fixture: &str, vm: &str) -> String {
    // FNV-1a: equal UUIDs would bind neither node.
    let mixed = format!("{fixture}/{vm}")
        .bytes()
        .fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |sum, byte| {
            (sum ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        });
    let digits = format!("{mixed:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..]
    )
}

/// A GPU worker's VM on `host`.
pub fn gpu_vm(fixture: &str, name: &str, host: &str) -> VmSpec {
    VmSpec {
        name: name.to_owned(),
        uuid: uuid(fixture, name),
        host: host.to_owned(),
        gpu: Gpu::nvidia(A40),
        ..VmSpec::default()
    }
}

/// A fixture in which each VM of `spec` is a node.
pub async fn fixture(name: &str, spec: &Spec) -> anyhow::Result<Fixture<'static>> {
    fixture_in(kube().await, name, spec).await
}

/// The same in this cluster. The memory that Haulout needs depends on all that is in a cluster, and the common one grows.
pub async fn fixture_in<'k>(kube: &'k Kube, name: &str, spec: &Spec) -> anyhow::Result<Fixture<'k>> {
    let members = spec
        .vms
        .iter()
        .map(|vm| Member::new(name, &vm.name, &vm.uuid))
        .collect();
    Fixture::create(kube, name, spec, members, true).await
}

/// A fixture with one node on the only host.
pub async fn one_node(name: &str) -> anyhow::Result<Fixture<'static>> {
    let mut spec = hosts(&[("esx1", &[a40(1)])]);
    spec.vms = vec![gpu_vm(name, "gpu1", "esx1")];
    fixture(name, &spec).await
}

pub fn start(fixture: &Fixture<'_>, changes: &[(&str, &str)]) -> anyhow::Result<Haulout> {
    fixture.start(Path::new(BINARY), changes)
}

/// Starts Haulout and waits until vCenter is synced.
pub async fn run(fixture: &Fixture<'_>, changes: &[(&str, &str)]) -> anyhow::Result<Haulout> {
    // A process before this one may have written it too.
    let count = || fixture.log_text().matches("vCenter synced").count();
    let before = count();
    let haulout = start(fixture, changes)?;
    wait::until("vCenter to be synced", WAIT_TIMEOUT, async || {
        Ok((count() > before).then_some(()))
    })
    .await
    .with_context(|| fixture.log_text())?;
    Ok(haulout)
}

/// Logs each attempt to connect to vCenter. At info level an outage is logged once.
pub const LOG_EACH_ATTEMPT: (&str, &str) = ("LOG_LEVEL", "info,haulout_vsphere=debug");

/// Waits until the log holds `count` failed attempts to connect to vCenter for which `why` was a reason.
/// The program logs them with [`LOG_EACH_ATTEMPT`]. In the lab one attempt per second is due.
pub async fn wait_for_failed_attempts(fixture: &Fixture<'_>, why: &str, count: usize) -> anyhow::Result<()> {
    let what = format!("{count} attempts that failed with {why:?}");
    let is_attempt = |line: &&str| line.contains("the vCenter stream failed") && line.contains(why);
    wait::until(&what, WAIT_TIMEOUT, async || {
        let attempts = fixture.log_text().lines().filter(is_attempt).count();
        Ok((attempts >= count).then_some(()))
    })
    .await
    .with_context(|| fixture.log_text())
}

/// The trace id of the episode on the Node.
pub async fn trace_id(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<String> {
    let node = fixture
        .wait_node(node, "is in an episode", |node| episode(node).is_some())
        .await?;
    let traceparent = episode(&node).and_then(|it| it["traceparent"].as_str().map(str::to_owned));
    let id = traceparent.and_then(|it| it.split('-').nth(1).map(str::to_owned));
    id.context("the episode has no traceparent")
}

/// Runs a maintenance in which the only node waits for its host. Returns the trace id.
pub async fn wait_scenario(fixture: &Fixture<'_>) -> anyhow::Result<String> {
    let node = fixture.node_name("gpu1");
    fixture.wait_for_log("vCenter synced").await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    let id = trace_id(fixture, &node).await?;
    fixture.wait_phase(&node, "awaitingHost").await?;
    fixture.wait_in_maintenance("esx1").await?;
    fixture.vcenter.exit_maintenance("esx1").await?;
    fixture.wait_in_service(&node).await?;
    Ok(id)
}

/// Waits until `kubectl describe` shows `words` on a node. An Event is written after the line of the log that says the same.
pub async fn wait_described(fixture: &Fixture<'_>, node: &str, words: &str) -> anyhow::Result<()> {
    wait::until(
        &format!("kubectl describe to show {words:?}"),
        WAIT_TIMEOUT,
        async || {
            let described = kubectl(fixture, &["describe", "node", node]).await?;
            Ok(described.contains(words).then_some(()))
        },
    )
    .await
}

/// The output of kubectl.
pub async fn kubectl(fixture: &Fixture<'_>, args: &[&str]) -> anyhow::Result<String> {
    let kubeconfig = fixture.kube.kubeconfig(&User::admin("asker"))?;
    let asked = tokio::process::Command::new(fixture.kube.kubectl())
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .args(args)
        .env_remove("KUBECONFIG")
        .envs(["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"].map(|name| (name, "")))
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(WAIT_TIMEOUT, asked)
        .await?
        .context("asking kubectl")?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(stdout)
}
