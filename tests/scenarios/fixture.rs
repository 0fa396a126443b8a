//! What every story begins with: the cluster that all share, and a small datacenter of its own.

use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context as _, ensure};
use haulout_lab::kube::{Kube, Options, User};
use haulout_lab::stage::{Haulout, Member, PATIENCE, Stage};
use haulout_lab::vcenter::{
    ClusterSpec, DeviceSpec, DrsBehavior, DrsSpec, Gpu, HostSpec, Spec, State, VmSpec,
};
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, RwLock};

/// The PCI id of the GPU that nodes have here: an NVIDIA A40.
pub const A40: u16 = 0x2235;

pub const BINARY: &str = env!("CARGO_BIN_EXE_haulout");

/// One runtime for all stories, because the client of the shared cluster belongs to the runtime it was made in.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("starting a runtime"));

/// The cluster ends with this process: its parts hang on our end of their stdin.
static KUBE: OnceCell<Kube> = OnceCell::const_new();

pub async fn kube() -> &'static Kube {
    KUBE.get_or_init(async || {
        Kube::start(&Options::default())
            .await
            .expect("starting the cluster")
    })
    .await
}

/// Held by one story alone, or by all others together.
static STAGES: RwLock<()> = RwLock::const_new(());

/// Tells a story, and fails with everything that led to its failure.
pub fn tell(story: impl Future<Output = anyhow::Result<()>>) {
    RUNTIME.block_on(async {
        let _beside_others = STAGES.read().await;
        if let Err(error) = story.await {
            panic!("{error:#}");
        }
    });
}

/// The same for a story that measures time, while no other is told: what those do to the machine is not what it is about.
pub fn tell_alone(story: impl Future<Output = anyhow::Result<()>>) {
    RUNTIME.block_on(async {
        let _alone = STAGES.write().await;
        if let Err(error) = story.await {
            panic!("{error:#}");
        }
    });
}

/// A cluster `c1` without DRS of hosts with one datastore in common, each with these devices.
pub fn hosts(hosts: &[(&str, &[DeviceSpec])]) -> Spec {
    let hosts = hosts.iter().map(|(name, devices)| HostSpec {
        name: (*name).to_owned(),
        devices: devices.to_vec(),
        datastores: vec!["ds1".to_owned()],
    });
    let drs = DrsSpec {
        enabled: false,
        behavior: DrsBehavior::Manual,
        ..DrsSpec::default()
    };
    Spec {
        clusters: vec![ClusterSpec {
            name: "c1".to_owned(),
            drs,
            hosts: hosts.collect(),
        }],
        ..Spec::default()
    }
}

/// A GPU at an address that is made of `slot`.
pub fn a40(slot: u8) -> DeviceSpec {
    DeviceSpec::gpu(format!("0000:{slot:02x}:00.0"), A40)
}

/// A UUID that is made of the two names, so that it differs from story to story.
pub fn uuid(stage: &str, vm: &str) -> String {
    // FNV-1a: names that differ in a letter must not meet in one UUID, or neither node is touched.
    let mixed = format!("{stage}/{vm}")
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
pub fn gpu_vm(stage: &str, name: &str, host: &str) -> VmSpec {
    VmSpec {
        name: name.to_owned(),
        uuid: uuid(stage, name),
        host: host.to_owned(),
        gpu: Gpu::nvidia(A40),
        ..VmSpec::default()
    }
}

/// A stage on which each VM of `spec` is a node.
pub async fn stage(name: &str, spec: &Spec) -> anyhow::Result<Stage<'static>> {
    let members = spec
        .vms
        .iter()
        .map(|vm| Member::new(name, &vm.name, &vm.uuid))
        .collect();
    Stage::set(kube().await, name, spec, members, true).await
}

/// The smallest stage: one node on one host, and nowhere else to go.
pub async fn one_node(name: &str) -> anyhow::Result<Stage<'static>> {
    let mut spec = hosts(&[("esx1", &[a40(1)])]);
    spec.vms = vec![gpu_vm(name, "gpu1", "esx1")];
    stage(name, &spec).await
}

pub fn start(stage: &Stage<'_>, changes: &[(&str, &str)]) -> anyhow::Result<Haulout> {
    stage.start(Path::new(BINARY), changes)
}

/// Starts Haulout, and waits until it has heard vCenter's complete set.
pub async fn run(stage: &Stage<'_>, changes: &[(&str, &str)]) -> anyhow::Result<Haulout> {
    let haulout = start(stage, changes)?;
    stage.wait_said("vCenter synced").await?;
    Ok(haulout)
}

/// Waits until `host` is in maintenance.
pub async fn in_maintenance(stage: &Stage<'_>, host: &str) -> anyhow::Result<()> {
    let is_in = |state: &State| state.host(host).is_some_and(|host| host.in_maintenance);
    stage
        .wait_vcenter(&format!("{host} is in maintenance"), is_in)
        .await?;
    Ok(())
}

/// What kubectl says.
pub async fn kubectl(stage: &Stage<'_>, args: &[&str]) -> anyhow::Result<String> {
    let kubeconfig = stage.kube.kubeconfig(&User::admin("asker"))?;
    let asked = tokio::process::Command::new(stage.kube.kubectl())
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .args(args)
        .env_remove("KUBECONFIG")
        .envs(["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"].map(|name| (name, "")))
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, asked)
        .await?
        .context("asking kubectl")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(said)
}
