//! The peers of the demo: the cluster and the vCenter of the simulation.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use fastrand::Rng;
use haulout_show::peers::{Cast, Click, Entry, Host, Inventory, Member, Peers, Vm};
use haulout_show::printer::say;
use haulout_show::run_dir::RunDir;
use haulout_show::traces::{Span, TraceReceiver};
use haulout_sim::clock;
use haulout_sim::cluster::{LABEL, node_name};
use haulout_sim::people::Deed;
use haulout_sim::plan::Plan;
use haulout_sim::story::{Story, Telling, Told};
use haulout_sim::world::{Shared, World, lock};
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::certificate::Certificate;
use crate::serve::{self, Audit};

/// The nodes, each on a host of its own.
const NODES: usize = 3;
/// How long the journal is waited for, and how often it is looked at.
const POLL: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

/// The simulated parts. They end when this is dropped.
pub(crate) struct Simulated {
    world: Shared,
    audit: Audit,
    journal: Mutex<Journal>,
    traces: TraceReceiver,
    client: kube::Client,
    cast: Cast,
    apiserver: SocketAddr,
    vcenter: SocketAddr,
    /// What a person does in vCenter's client.
    clicks: SocketAddr,
    kubeconfig: PathBuf,
    authority: PathBuf,
    /// The folder of kubectl's plugin.
    plugin: PathBuf,
    _servers: JoinSet<()>,
}

struct Journal {
    told: UnboundedReceiver<Told>,
    entries: Vec<Entry>,
}

impl Simulated {
    pub(crate) async fn start(dir: &RunDir, binary: &Path) -> anyhow::Result<Self> {
        clock::begin_at(Timestamp::now());
        let mut world = World::new(
            Plan::of_demo(NODES),
            Rng::new(),
            Story::new(Telling::Nothing, None),
        );
        for host in &mut world.vcenter.hosts {
            host.name = host.name.split('.').next().unwrap_or_default().to_owned();
        }
        // So that Haulout chooses the host.
        world.vcenter.has_drs = false;
        let (listener, told) = mpsc::unbounded_channel();
        world.story.listener = Some(listener);
        let world: Shared = Arc::new(Mutex::new(world));

        let certificate = Certificate::create()?;
        let audit = Audit::default();
        let mut servers = JoinSet::new();
        servers.spawn(serve::drive(Arc::clone(&world)));
        let tls = &certificate.acceptor;
        let apiserver = serve::kubernetes(&world, &audit, tls, &mut servers).await?;
        let vcenter = serve::vcenter(&world, tls, &mut servers).await?;
        let clicks = serve::client(&world, &mut servers).await?;

        let authority = dir.write("ca.crt", &certificate.pem)?;
        let kubeconfig = dir.write("kubeconfig", kubeconfig(apiserver, &authority).to_string())?;
        let plugin = dir.join("bin");
        std::fs::create_dir(&plugin).with_context(|| format!("making {}", plugin.display()))?;
        std::os::unix::fs::symlink(binary, plugin.join("kubectl-haulout"))
            .context("linking kubectl-haulout")?;
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = Kubeconfig::read_from(&kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        Ok(Self {
            world,
            audit,
            journal: Mutex::new(Journal {
                told,
                entries: Vec::new(),
            }),
            traces: TraceReceiver::start().await?,
            client: kube::Client::try_from(config)?,
            cast: cast(),
            apiserver,
            vcenter,
            clicks,
            kubeconfig,
            authority,
            plugin,
            _servers: servers,
        })
    }

    pub(crate) fn apiserver(&self) -> String {
        format!("https://{}", self.apiserver)
    }

    pub(crate) fn vcenter(&self) -> String {
        format!("https://{}/sdk", self.vcenter)
    }

    /// Haulout's settings of its peers.
    pub(crate) fn settings(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("KUBECONFIG", self.kubeconfig.clone().into()),
            ("VCENTER_HOST", self.vcenter.to_string().into()),
            ("VCENTER_USER", "haulout".into()),
            ("VCENTER_PASSWORD", "simulated".into()),
            ("VCENTER_CA_BUNDLE", self.authority.clone().into()),
            ("GPU_NODE_LABEL", format!("{LABEL}=true").into()),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", self.traces.endpoint().into()),
        ]
    }
}

/// A kubeconfig with the one context that there is, as JSON, which is YAML as well.
fn kubeconfig(apiserver: SocketAddr, authority: &Path) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "demo",
        "clusters": [{"name": "demo", "cluster": {
            "server": format!("https://{apiserver}"), "certificate-authority": authority,
        }}],
        "users": [{"name": "demo", "user": {"token": "simulated"}}],
        "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "demo"}}],
    })
}

fn cast() -> Cast {
    let member = |node: usize| Member {
        vm: node_name(node),
        node: node_name(node),
        home: format!("esx-{node}"),
    };
    Cast {
        datacenter: "4 ESXi hosts in a cluster. Each has one GPU, which one VM can use by passthrough. Simulated hosts, guests and \
                     kubelets are ten times as fast as real ones.",
        mover: member(0),
        target: format!("esx-{NODES}"),
        waiter: member(1),
        clicked: member(2),
        label: LABEL.to_owned(),
        namespace: "shop".to_owned(),
        kept: "make demo KEEP=1 leaves everything running: open Haulout's status page, use kubectl haulout, and put hosts into \
               maintenance yourself. make demo REAL=1 has a real kube-apiserver.",
    }
}

fn number_of(name: &str) -> anyhow::Result<usize> {
    let number = name.rsplit('-').next().and_then(|number| number.parse().ok());
    number.with_context(|| format!("{name} has no number"))
}

/// The operator clicks.
pub(crate) fn click(world: &Shared, what: Click, host: &str) -> anyhow::Result<()> {
    let mut world = lock(world);
    let index = world.vcenter.hosts.iter().position(|it| it.name == host);
    let index = index.with_context(|| format!("there is no host {host}"))?;
    match what {
        Click::Enter => {
            ensure!(
                world.vcenter.hosts[index].takes_vms(),
                "{host} is in maintenance mode already"
            );
            world.enters(index);
        }
        Click::Cancel => world.cancel(index),
        Click::Exit => world.deed(Deed::Exits(index)),
    }
    Ok(())
}

impl Peers for Simulated {
    fn cast(&self) -> &Cast {
        &self.cast
    }

    fn client(&self) -> kube::Client {
        self.client.clone()
    }

    async fn inventory(&self) -> anyhow::Result<Inventory> {
        let world = lock(&self.world);
        let (hosts, vms) = (&world.vcenter.hosts, &world.vcenter.vms);
        let host = |(index, host): (usize, &haulout_sim::vcenter::Host)| Host {
            cluster: "gpu".to_owned(),
            name: host.name.clone(),
            gpu: "NVIDIA A40".to_owned(),
            holder: vms.iter().find(|vm| vm.host == index).map(|vm| vm.name.clone()),
            in_maintenance: host.in_maintenance,
        };
        let vm = |vm: &haulout_sim::vcenter::Vm| Vm {
            name: vm.name.clone(),
            host: hosts[vm.host].name.clone(),
            on: vm.on,
        };
        Ok(Inventory {
            hosts: hosts.iter().enumerate().map(host).collect(),
            vms: vms.iter().map(vm).collect(),
        })
    }

    async fn click(&self, what: Click, host: &str) -> anyhow::Result<()> {
        click(&self.world, what, host)
    }

    async fn journal_after(&self, seq: u64) -> anyhow::Result<Vec<Entry>> {
        let until = Instant::now() + POLL;
        loop {
            let entries = self
                .journal
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .after(seq);
            if !entries.is_empty() || Instant::now() >= until {
                return Ok(entries);
            }
            sleep(LOOK).await;
        }
    }

    async fn power_cycles(&self, vm: &str) -> anyhow::Result<(usize, usize)> {
        let effects = lock(&self.world).oracle.nodes[number_of(vm)?].effects;
        Ok((effects.offs as usize, effects.ons as usize))
    }

    // A simulated pod takes as long as it draws.
    async fn add_pod(&self, name: &str, node: &str, _ends: Duration) -> anyhow::Result<()> {
        let app = name.trim_end_matches("-0");
        lock(&self.world).add_single_pod(name, app, number_of(node)?);
        Ok(())
    }

    async fn set_budget(&self, name: &str, _pod: &str, least: i32) -> anyhow::Result<()> {
        lock(&self.world).set_budget(name, usize::try_from(least)?);
        Ok(())
    }

    async fn refusals(&self, pod: &str) -> anyhow::Result<Vec<Timestamp>> {
        let audit = self.audit.lock().unwrap_or_else(PoisonError::into_inner);
        let of_pod = format!("/pods/{pod}/eviction");
        let refused = audit
            .iter()
            .filter(|it| it.line.ends_with(&of_pod) && it.code == 429);
        Ok(refused.map(|it| it.answered).collect())
    }

    async fn patched(&self, node: &str, from: Timestamp) -> anyhow::Result<Option<Timestamp>> {
        let audit = self.audit.lock().unwrap_or_else(PoisonError::into_inner);
        let of_node = format!("PATCH /api/v1/nodes/{node}");
        let mut patches = audit.iter().filter(|it| it.line == of_node && it.code == 200);
        Ok(patches.find(|it| it.received >= from).map(|it| it.answered))
    }

    async fn trace(&self, id: &str) -> anyhow::Result<Vec<Span>> {
        Ok(self.traces.trace(id))
    }

    async fn say_how_to_look(&self, page: &str, _trace_id: &str) -> anyhow::Result<()> {
        say("");
        say(&format!("The second maintenance, in a browser: {page}"));
        say("");
        say(
            "Haulout's kubectl plugin, in a shell with these variables. Without kubectl, call kubectl-haulout:",
        );
        say(&format!("  export KUBECONFIG={}", self.kubeconfig.display()));
        say(&format!("  export PATH={}:$PATH", self.plugin.display()));
        if let Some((address, _)) = page.split_once("/episodes/") {
            say(&format!("  export STATUS_URL={address}"));
            say(&format!("  kubectl haulout plan {}", self.cast.mover.node));
        }
        say("  kubectl haulout list");
        say(&format!("  kubectl haulout status {}", self.cast.mover.node));
        say("");
        say("What an operator clicks in vCenter's client:");
        for (verb, what) in [
            (
                "enter",
                "Enter Maintenance Mode; the task runs on until no VM is powered on there",
            ),
            ("cancel", "cancel that task"),
            ("exit", "Exit Maintenance Mode"),
        ] {
            let host = &self.cast.target;
            say(&format!(
                "  curl -sX POST http://{}/hosts/{host}/{verb:<8} # {what}",
                self.clicks
            ));
        }
        Ok(())
    }
}

impl Journal {
    fn after(&mut self, seq: u64) -> Vec<Entry> {
        while let Ok(told) = self.told.try_recv() {
            let entry = entry(self.entries.len() as u64 + 1, &told);
            self.entries.push(entry);
        }
        let new = self.entries.iter().filter(|entry| entry.seq > seq);
        new.cloned().collect()
    }
}

/// What the story of the simulation tells about vCenter. The rest is in Kubernetes or in Haulout's log.
fn entry(seq: u64, told: &Told) -> Entry {
    let entered = told
        .what
        .strip_prefix("puts ")
        .and_then(|rest| rest.strip_suffix(" into maintenance mode"));
    let line = match told.who.as_str() {
        "operator" => Some(match entered {
            Some(host) => format!(
                "the operator clicks Enter Maintenance Mode on {host}; its task waits until no VM is powered on there"
            ),
            None => format!("the operator {}", told.what),
        }),
        "vCenter" => Some(match told.what.split_once(": ") {
            Some((task, state)) => format!("task \"{task}\": {state}"),
            None => format!("VM {}", told.what),
        }),
        who if who.starts_with("replica-") => told.what.split_once(" of ").map(|(method, vm)| match method {
            "ShutdownGuest" => format!("Haulout asks the guest of VM {vm} to shut down"),
            method => format!("Haulout calls {method} of VM {vm}"),
        }),
        _ => None,
    };
    Entry {
        seq,
        at: clock::wall_at(told.at),
        line,
        entered: entered.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use haulout_sim::story::Told;

    use super::entry;

    #[test]
    fn click_of_the_operator_names_its_host() {
        let told = |who: &str, what: &str| Told {
            at: Duration::ZERO,
            who: who.to_owned(),
            what: what.to_owned(),
        };
        let click = entry(1, &told("operator", "puts esx-0 into maintenance mode"));
        assert_eq!(click.entered.as_deref(), Some("esx-0"));
        let shutdown = entry(2, &told("replica-0", "ShutdownGuest of gpu-0"));
        assert_eq!(
            shutdown.line.as_deref(),
            Some("Haulout asks the guest of VM gpu-0 to shut down")
        );
        assert_eq!(entry(3, &told("Event", "Draining: …")).line, None);
    }
}
