//! A real kubelet with containerd: the guest of a VM is a set of namespaces, which end when its power is cut.
//!
//! The program `guest` (`tests/lab/go/kubelet/guest`) is the machine: it makes the namespaces, the control groups and a root of the
//! guest's own inside the VM's directory, and removes all of it when our end of its stdin closes. So nothing is left of a test that
//! was killed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;

use crate::build;
use crate::cloud_provider::CloudProvider;
use crate::kube::{GATEWAY, KUBERNETES_SERVICE, Kube, User};
use crate::kubelet::{GPU, Kubelet, Machine, Manners, VmFacts};
use crate::ports::Port;
use crate::run_dir::RunDir;
use crate::tools;
use crate::vcenter::Guest;

/// The image of the pods of scenarios. A real kubelet has one of this name, and pulls no other.
pub const IMAGE: &str = "lab.invalid/none";

/// `shutdownGracePeriod` of a kubelet that has one, in seconds; a third of it is for critical pods.
const GRACE: u32 = 15;

/// The timeout of a command to a machine, which may be busy with the end of a guest.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether `test` is skipped because this machine cannot run a real kubelet.
///
/// # Errors
/// If `CI` is set and a program or control groups are missing. Without root it is skipped there too: a workflow runs it as root.
pub fn is_skipped(test: &str) -> anyhow::Result<bool> {
    if !rustix::process::geteuid().is_root() {
        tools::record_skip(test, "only root runs a real kubelet");
        return Ok(true);
    }
    let Some(missing) = missing() else {
        return Ok(false);
    };
    tools::skip(test, &missing)?;
    Ok(true)
}

/// What a real kubelet needs that this machine lacks.
fn missing() -> Option<String> {
    let programs = ["runc", "mount", "ip", "dbus-daemon"];
    if let Some(program) = programs.iter().find(|it| tools::on_path(&[it]).is_none()) {
        return Some(format!("a real kubelet needs {program}, which is not on PATH"));
    }
    let unified = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers");
    let version = if unified.is_ok() { 2 } else { 1 };
    let groups = unified
        .or_else(|_| std::fs::read_to_string("/proc/self/cgroup"))
        .unwrap_or_default();
    let mut controllers = ["cpu", "cpuset", "memory", "pids"].iter();
    let missing = controllers.find(|it| !groups.split([':', ',', ' ', '\n']).any(|word| word == **it))?;
    Some(format!(
        "a real kubelet needs control groups with {missing}, and those of version {version} here have none"
    ))
}

/// Starts a VM with a real kubelet. It boots at once if the VM is on. Its pods reach these ports of our loopback at [`GATEWAY`].
///
/// # Errors
/// If a part cannot be built, or the VM's directory cannot be written.
pub async fn start(
    kube: &Kube,
    machine: Machine,
    guest: Guest,
    vm: watch::Receiver<VmFacts>,
    reaches: &[u16],
) -> anyhow::Result<Kubelet> {
    let programs = build::part("kubelet").await?;
    let containerd = build::part("containerd").await?;
    let runc = tools::on_path(&["runc"]).context("runc is not on PATH")?;
    let port = Port::reserve()?;
    let dir = RunDir::create()?;
    let etc = dir.join("root/etc/kubernetes");
    std::fs::create_dir_all(&etc).with_context(|| format!("making the directory {}", etc.display()))?;
    write_identity(kube, &machine, &etc)?;
    std::fs::write(
        etc.join("kubelet.json"),
        kubelet_config(&machine, &port).to_string(),
    )?;
    let groups = dir.path().file_name().context("the directory has no name")?;
    let config = json!({
        "name": machine.name, "dir": dir.path(), "groups": groups.to_string_lossy(),
        "kubelet": programs, "containerd": containerd, "runc": runc,
        "resource": GPU, "image": format!("{IMAGE}:latest"), "kubeletArgs": kubelet_args(&machine),
        "network": {
            "gateway": GATEWAY, "service": KUBERNETES_SERVICE, "apiserver": kube.port(), "reaches": reaches,
            "kubelet": port.number(),
        },
    });
    let config = dir.write("config.json", config.to_string())?;
    let host = MachineProcess::start(&programs.join("guest"), &config, &dir)?;
    let path = dir.path().to_owned();
    // From here on, the machine removes it.
    dir.leave();
    let provider = CloudProvider::new(kube, &machine.name)?;
    Ok(Kubelet::run_by(&machine, |manners| {
        let follower = GuestFollower {
            host,
            guest,
            vm,
            manners,
            dir: path,
            running: None,
            ended: None,
            asked_to_stop: false,
            is_booted: false,
            _port: port,
        };
        async { tokio::join!(follower.run(), provider.run()).0 }
    }))
}

/// Writes the kubelet's kubeconfig with its certificate into the guest.
fn write_identity(kube: &Kube, machine: &Machine, etc: &Path) -> anyhow::Result<()> {
    let path = kube.kubeconfig(&User::kubelet(&machine.name))?;
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut config: Value = serde_json::from_str(&text).context("reading the kubelet's kubeconfig")?;
    for (pointer, name) in [
        ("/clusters/0/cluster/certificate-authority", "ca.crt"),
        ("/users/0/user/client-certificate", "client.crt"),
        ("/users/0/user/client-key", "client.key"),
    ] {
        let file = config
            .pointer_mut(pointer)
            .with_context(|| format!("the kubeconfig has no {pointer}"))?;
        let source = file.as_str().unwrap_or_default();
        std::fs::copy(source, etc.join(name)).with_context(|| format!("copying {source}"))?;
        *file = json!(format!("/etc/kubernetes/{name}"));
    }
    std::fs::write(etc.join("kubeconfig"), config.to_string()).context("writing the kubelet's kubeconfig")
}

fn kubelet_args(machine: &Machine) -> Vec<String> {
    let labels: Vec<String> = machine
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    vec![
        "--config=/etc/kubernetes/kubelet.json".to_owned(),
        "--kubeconfig=/etc/kubernetes/kubeconfig".to_owned(),
        "--cert-dir=/var/lib/kubelet/pki".to_owned(),
        format!("--hostname-override={}", machine.name),
        format!("--node-labels={}", labels.join(",")),
        // A kubelet takes no loopback address of its own choice.
        "--cloud-provider=external".to_owned(),
        "--v=2".to_owned(),
    ]
}

fn kubelet_config(machine: &Machine, port: &Port) -> Value {
    let little = json!({"memory.available": "1Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi"});
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1", "port": port.number(), "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": false}, "webhook": {"enabled": false},
            "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs", "failCgroupV1": false, "failSwapOn": false, "resolvConf": "",
        "evictionHard": little, "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "makeIPTablesUtilChains": false,
        // The lab's node monitor grace is 4 s: see `KubeOptions`.
        "nodeLeaseDurationSeconds": 4,
        "nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "10s",
    });
    if let Some(id) = &machine.provider_id {
        config["providerID"] = json!(id);
    }
    config
}

/// How the guest behaves from now on, as `guest` reads it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Settings {
    runs_kubelet: bool,
    gpus: u32,
    gpus_after_ms: u128,
    grace: u32,
    system_uuid: String,
    loses_checkpoint: bool,
    shutdown_ms: u32,
}

/// What the machine tells.
#[derive(Debug, Deserialize)]
struct MachineEvent {
    event: String,
    #[serde(default)]
    detail: String,
}

/// The machine's process. It cuts the power off, removes all that it has made, and ends when its stdin closes.
struct MachineProcess {
    stdin: ChildStdin,
    events: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl MachineProcess {
    fn start(program: &Path, config: &Path, dir: &RunDir) -> anyhow::Result<Self> {
        let log = std::fs::File::create(dir.join("host.log")).context("making the machine's log")?;
        let mut child = Command::new(program)
            .arg("host")
            .arg(config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // A Ctrl-C at the terminal goes to the whole foreground group; the machine has to clean up.
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let stdin = child.stdin.take().context("the machine has no stdin")?;
        let stdout = child.stdout.take().context("the machine has no stdout")?;
        Ok(Self {
            stdin,
            events: BufReader::new(stdout).lines(),
            _child: child,
        })
    }

    async fn send(&mut self, what: &str, settings: &Settings) -> anyhow::Result<()> {
        let line = format!("{}\n", json!({"do": what, "settings": settings}));
        tokio::time::timeout(WAIT_TIMEOUT, self.stdin.write_all(line.as_bytes()))
            .await
            .with_context(|| format!("the machine did not take {what:?} within {WAIT_TIMEOUT:?}"))?
            .with_context(|| format!("telling the machine {what:?}"))
    }
}

struct GuestFollower {
    host: MachineProcess,
    guest: Guest,
    vm: watch::Receiver<VmFacts>,
    manners: watch::Receiver<Manners>,
    dir: PathBuf,
    /// The boot of vCenter that the guest runs.
    running: Option<u64>,
    /// The boot that the guest has ended by itself.
    ended: Option<u64>,
    /// Whether the guest of this boot was asked to shut down.
    asked_to_stop: bool,
    /// Whether the kubelet of this boot was not held, or is not any more.
    is_booted: bool,
    _port: Port,
}

impl GuestFollower {
    async fn run(mut self) {
        let mut source_lives = true;
        loop {
            if let Err(error) = self.follow().await {
                build::say(&format!("{}: {error:#}", self.dir.display()));
                return;
            }
            tokio::select! {
                // Without a source the machine keeps its last state.
                changed = self.vm.changed(), if source_lives => source_lives = changed.is_ok(),
                // Its sender is dropped with the task.
                Ok(()) = self.manners.changed() => {
                    let settings = self.settings();
                    if let Err(error) = self.host.send("set", &settings).await {
                        build::say(&format!("{}: {error:#}", self.dir.display()));
                    }
                }
                line = self.host.events.next_line() => match line {
                    Ok(Some(line)) => self.hear(&line).await,
                    Ok(None) | Err(_) => {
                        build::say(&format!("the machine {} has ended:\n{}", self.dir.display(), self.tail("host.log")));
                        return;
                    }
                },
            }
        }
    }

    /// Follows the VM's power.
    async fn follow(&mut self) -> anyhow::Result<()> {
        let VmFacts {
            on,
            boots,
            is_stopping,
            shutdown_ms: _,
        } = *self.vm.borrow_and_update();
        if on && self.running != Some(boots) && self.ended != Some(boots) {
            self.is_booted = false;
            self.asked_to_stop = false;
            self.running = Some(boots);
            let settings = self.settings();
            self.host.send("on", &settings).await?;
        }
        if !on {
            // A VM that is removed and registered again counts from the beginning.
            self.ended = None;
            if self.running.take().is_some() {
                let settings = self.settings();
                self.host.send("off", &settings).await?;
            }
        }
        if is_stopping && self.running == Some(boots) && !self.asked_to_stop {
            self.asked_to_stop = true;
            let settings = self.settings();
            self.host.send("shutdown", &settings).await?;
        }
        Ok(())
    }

    fn settings(&mut self) -> Settings {
        let manners = self.manners.borrow_and_update();
        self.is_booted |= !manners.is_boot_held;
        Settings {
            runs_kubelet: self.is_booted && !manners.is_stopped,
            gpus: manners.gpus,
            gpus_after_ms: manners.gpus_after.as_millis(),
            grace: if manners.is_graceful { GRACE } else { 0 },
            system_uuid: manners.system_uuid.clone(),
            loses_checkpoint: manners.loses_checkpoint,
            shutdown_ms: self.vm.borrow().shutdown_ms,
        }
    }

    async fn hear(&mut self, line: &str) {
        let Ok(MachineEvent { event, detail }) = serde_json::from_str(line) else {
            build::say(&format!("the machine said {line:?}"));
            return;
        };
        match event.as_str() {
            "off" => {
                let Some(boots) = self.running.take() else { return };
                self.ended = Some(boots);
                if !self.asked_to_stop {
                    build::say(&format!(
                        "the guest in {} ended by itself: {detail}\n{}",
                        self.dir.display(),
                        self.tail("console.log")
                    ));
                }
                if let Err(error) = self.guest.ended(boots).await {
                    // vCenter may be gone by now.
                    tracing::debug!(
                        error = format!("{error:#}"),
                        "telling vCenter that a guest has ended"
                    );
                }
            }
            "failed" => build::say(&format!(
                "{}: {detail}\n{}",
                self.dir.display(),
                self.tail("console.log")
            )),
            _ => {}
        }
    }

    /// The end of one of the machine's logs.
    fn tail(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}
