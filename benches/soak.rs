//! Many nodes under random clicks, cancels, edits by people, kills and restarts, for minutes or hours, and a check of the logs of
//! vCenter afterwards. `make soak` runs it.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a bench is a program for a person at a prompt, and reads the clock"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use fastrand::Rng;
use haulout_lab::fixture::{
    Fixture, Haulout, Member, WAIT_TIMEOUT, annotation, gpus, is_cordoned, is_ready, label, phase,
};
use haulout_lab::kube::{Kube, KubeOptions};
use haulout_lab::vcenter::{
    ClusterSpec, Collector, DeviceSpec, Down, Entry, EntryKind, Gpu, HostSpec, Spec, State, VmSpec, VmState,
};
use haulout_lab::wait::until;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

#[allow(dead_code, reason = "each bench uses its part")]
#[path = "support/used.rs"]
mod used;

const NAME: &str = "soak";
const REPLICAS: usize = 2;
/// A quarter of the node monitor grace, as in production.
const HEARTBEAT: Duration = Duration::from_secs(10);
const NODE_MONITOR_GRACE: Duration = Duration::from_secs(50);
/// For all nodes to come back after the last event.
const SETTLED_WITHIN: Duration = Duration::from_secs(900);
/// When the connections that are idle after the last event have been closed: kube's client keeps them for 90 s.
const IDLE_WITHIN: Duration = Duration::from_secs(150);
/// How much more a replica may use than at the first row after its start: memory in each row, and files at rest.
const MORE_MIB_MAX: f64 = 48.0;
const MORE_FILES_MAX: usize = 24;

/// A replica, with what it used at its first row.
struct SoakReplica {
    haulout: Haulout,
    name: String,
    first: Option<(f64, usize)>,
}

impl SoakReplica {
    /// Its resident memory in MiB, and its open files.
    fn used(&self) -> anyhow::Result<(f64, usize)> {
        let pid = self.haulout.pid().context("a running process has an id")?;
        Ok((used::used(pid)?.resident_mib, open_files(pid)))
    }
}

struct Soak<'a> {
    fixture: Fixture<'a>,
    replicas: Vec<SoakReplica>,
    started: usize,
    rng: Rng,
    /// The Nodes that a person has cordoned.
    cordoned: BTreeSet<String>,
    /// Kills since vCenter's sessions ended: a killed replica leaves its session behind.
    kills: usize,
    done: BTreeMap<&'static str, usize>,
    growth: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    // `cargo test --benches` runs a bench without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    tokio::runtime::Runtime::new()?.block_on(soak())
}

fn setting(name: &str, default: u64) -> anyhow::Result<u64> {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{name}={text} is no number")),
        Err(_) => Ok(default),
    }
}

async fn soak() -> anyhow::Result<()> {
    let minutes = setting("SOAK_MINUTES", 120)?;
    let nodes = usize::try_from(setting("SOAK_NODES", 200)?)?;
    let seed = setting(
        "SOAK_SEED",
        Timestamp::now().as_nanosecond().unsigned_abs() as u64,
    )?;
    println!("SOAK_SEED={seed} SOAK_MINUTES={minutes} SOAK_NODES={nodes}");
    let kube = Kube::start(&KubeOptions {
        node_monitor_grace: NODE_MONITOR_GRACE,
        ..KubeOptions::default()
    })
    .await?;
    let mut soak = Soak {
        fixture: datacenter(&kube, nodes).await?,
        replicas: Vec::new(),
        started: 0,
        rng: Rng::with_seed(seed),
        cordoned: BTreeSet::new(),
        kills: 0,
        done: BTreeMap::new(),
        growth: Vec::new(),
    };
    for _ in 0..REPLICAS {
        soak.start_replica()?;
    }
    soak.fixture.wait_for_log("vCenter synced").await?;
    println!(
        "| minute | events | nodes in an episode | hosts in maintenance | sessions | RSS MiB | files |\n|---|---|---|---|---|---|---|"
    );
    let begin = Instant::now();
    let mut minute = 0;
    while begin.elapsed() < Duration::from_secs(minutes * 60) {
        if begin.elapsed() >= Duration::from_secs(minute * 60) {
            soak.row(minute).await?;
            minute += 1;
        }
        let event = soak.event().await;
        event.with_context(|| format!("after {:?} of {:?}", begin.elapsed(), soak.done))?;
        let pause = soak.rng.u64(0..1_500);
        tokio::time::sleep(Duration::from_millis(200 + pause)).await;
    }
    soak.settle().await?;
    soak.row(minute).await?;
    soak.files_at_rest().await?;
    soak.check().await?;
    for replica in soak.replicas.drain(..) {
        replica.haulout.stop().await?;
    }
    drop(soak);
    kube.stop().await
}

/// Hosts with a node each, and with a GPU that no other host has, so that each VM waits for its own host.
async fn datacenter<'a>(kube: &'a Kube, nodes: usize) -> anyhow::Result<Fixture<'a>> {
    let device = |number: usize| u16::try_from(0x1000 + number).unwrap_or(u16::MAX);
    let hosts = (0..nodes).map(|number| HostSpec {
        name: format!("esx{number}"),
        devices: vec![DeviceSpec::gpu("0000:3b:00.0", device(number))],
        datastores: vec!["ds1".to_owned()],
        ..HostSpec::default()
    });
    let vms: Vec<VmSpec> = (0..nodes)
        .map(|number| VmSpec {
            name: format!("gpu{number}"),
            uuid: format!("50a50000-0000-4000-8000-{number:012x}"),
            host: format!("esx{number}"),
            gpu: Gpu::nvidia(device(number)),
            ..VmSpec::default()
        })
        .collect();
    let members = vms.iter().map(|vm| {
        let mut member = Member::new(NAME, &vm.name, &vm.uuid);
        member.machine.heartbeat = HEARTBEAT;
        member
    });
    let members = members.collect();
    let spec = Spec {
        clusters: vec![ClusterSpec {
            name: "c1".to_owned(),
            hosts: hosts.collect(),
            ..ClusterSpec::default()
        }],
        vms,
        ..Spec::default()
    };
    Fixture::create_with(kube, NAME, &spec, members, true, Collector::Own).await
}

fn vm_of(host: &str) -> String {
    host.replace("esx", "gpu")
}

fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

impl Soak<'_> {
    fn count(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    fn start_replica(&mut self) -> anyhow::Result<()> {
        self.started += 1;
        let name = format!("replica-{}", self.started);
        let changes = [
            ("LEADER_ELECTION", "true"),
            ("LEASE_NAME", NAME),
            ("LEASE_NAMESPACE", NAME),
            ("POD_NAME", &*name),
            ("POLL_INTERVAL_SECONDS", "10"),
            ("MAX_CONCURRENT_DRAINS", "20"),
            ("TEST_TIMINGS", "node_monitor_grace=60"),
            ("POWER_ON_TIMEOUT_SECONDS", "300"),
        ];
        let haulout = self
            .fixture
            .start(Path::new(env!("CARGO_BIN_EXE_haulout")), &changes)?;
        self.replicas.push(SoakReplica {
            haulout,
            name,
            first: None,
        });
        Ok(())
    }

    async fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let nodes: Api<Node> = Api::all(self.fixture.client());
        Ok(nodes.list(&ListParams::default()).await?.items)
    }

    /// Prints a row, and notes the replicas with more memory than at their first row.
    async fn row(&mut self, minute: u64) -> anyhow::Result<()> {
        let state = self.fixture.vcenter.state().await?;
        let episodes = self.nodes().await;
        let episodes = episodes.map(|all| all.iter().filter(|node| phase(node).is_some()).count());
        let (mut resident, mut files) = (String::new(), String::new());
        for replica in &mut self.replicas {
            let (mib, open) = replica.used()?;
            write!(resident, "{mib:.1} ")?;
            write!(files, "{open} ")?;
            match replica.first {
                None if minute > 0 => replica.first = Some((mib, open)),
                Some((first, _)) if mib > first + MORE_MIB_MAX => {
                    let name = &replica.name;
                    self.growth
                        .push(format!("{name}: {first:.1} MiB grew to {mib:.1} MiB"));
                }
                None | Some(_) => {}
            }
        }
        let events: usize = self.done.values().sum();
        let inside = state.hosts.iter().filter(|host| host.in_maintenance).count();
        let episodes = episodes.map_or_else(|_| "?".to_owned(), |count| count.to_string());
        println!(
            "| {minute} | {events} | {episodes} | {inside} | {} | {resident}| {files}|",
            state.sessions
        );
        Ok(())
    }

    /// What happens next. Requests to a server that restarts may fail; they are people's.
    async fn event(&mut self) -> anyhow::Result<()> {
        self.restart_deposed()?;
        let state = self.fixture.vcenter.state().await?;
        let hosts = |is_one: &dyn Fn(&haulout_lab::vcenter::SimulatedHost) -> bool| -> Vec<String> {
            state
                .hosts
                .iter()
                .filter(|host| is_one(host))
                .map(|host| host.name.clone())
                .collect()
        };
        let entering = hosts(&|host| host.entering.is_some());
        let inside = hosts(&|host| host.in_maintenance);
        let outside = hosts(&|host| host.entering.is_none() && !host.in_maintenance);
        match self.rng.u32(0..100) {
            0..40 => {
                // Most hosts stay in service.
                let is_full = (entering.len() + inside.len()) * 3 > state.hosts.len();
                if let Some(host) = self.rng.choice(&outside).filter(|_| !is_full) {
                    self.fixture.vcenter.enter_maintenance(host).await?;
                    self.count("clicks");
                }
            }
            40..50 => {
                if let Some(host) = self.rng.choice(&entering) {
                    // It may have ended meanwhile.
                    drop(self.fixture.vcenter.cancel_maintenance(host).await);
                    self.count("cancels");
                }
            }
            50..80 => {
                if let Some(host) = self.rng.choice(&inside) {
                    drop(self.fixture.vcenter.exit_maintenance(host).await);
                    self.count("exits");
                }
            }
            80..84 => self.person_cordons(&outside).await,
            84..88 => self.person_uncordons(&entering).await,
            88..92 => self.label_flaps(&[outside, entering].concat()).await?,
            92..94 => self.node_is_deleted(&inside).await,
            94..97 => self.kill().await?,
            97..98 => {
                self.fixture
                    .kube
                    .restart_apiserver(Duration::from_secs(2))
                    .await?;
                self.count("restarts of kube-apiserver");
            }
            98..99 => {
                self.fixture
                    .vcenter
                    .restart(Down::Refused, Duration::from_secs(3))
                    .await?;
                self.kills = 0;
                self.count("restarts of vCenter");
            }
            _ => {
                self.fixture.vcenter.kill_sessions().await?;
                self.kills = 0;
                self.count("ends of sessions");
            }
        }
        Ok(())
    }

    /// A person cordons a node in service, or uncordons one that is cordoned so.
    async fn person_cordons(&mut self, outside: &[String]) {
        if let Some(host) = self.rng.choice(outside) {
            let node = self.fixture.node_name(&vm_of(host));
            let idle = self.fixture.node(&node).await;
            let is_idle =
                idle.is_ok_and(|node| phase(&node).is_none() && annotation(&node, "state").is_none());
            let cordons = !self.cordoned.contains(&node);
            if is_idle && self.fixture.person_cordons(&node, cordons).await.is_ok() {
                if cordons {
                    self.cordoned.insert(node);
                } else {
                    self.cordoned.remove(&node);
                }
                self.count("cordons of people");
            }
        }
    }

    /// A person uncordons a node during its maintenance; it is theirs no longer.
    async fn person_uncordons(&mut self, entering: &[String]) {
        if let Some(host) = self.rng.choice(entering) {
            let node = self.fixture.node_name(&vm_of(host));
            if self.fixture.person_cordons(&node, false).await.is_ok() {
                self.cordoned.remove(&node);
                self.count("uncordons of people");
            }
        }
    }

    async fn label_flaps(&mut self, hosts: &[String]) -> anyhow::Result<()> {
        let Some(host) = self.rng.choice(hosts) else {
            return Ok(());
        };
        let nodes: Api<Node> = Api::all(self.fixture.client());
        let node = self.fixture.node_name(&vm_of(host));
        let set = async |value: Option<&str>| {
            let labels = BTreeMap::from([(label(NAME), value)]);
            let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
            nodes.patch(&node, &PatchParams::default(), &patch).await.is_ok()
        };
        if set(None).await {
            tokio::time::sleep(Duration::from_millis(500)).await;
            // The kube-apiserver may restart.
            until("the label", WAIT_TIMEOUT, async || {
                Ok(set(Some("true")).await.then_some(()))
            })
            .await?;
            self.count("label flaps");
        }
        Ok(())
    }

    /// The Node of a VM that is off is deleted; its kubelet registers it again at the next boot, without a person's cordon.
    async fn node_is_deleted(&mut self, inside: &[String]) {
        let Some(host) = self.rng.choice(inside) else {
            return;
        };
        let nodes: Api<Node> = Api::all(self.fixture.client());
        let node = self.fixture.node_name(&vm_of(host));
        if nodes.delete(&node, &DeleteParams::default()).await.is_ok() {
            self.cordoned.remove(&node);
            self.count("deletions of Nodes");
        }
    }

    /// A kubelet restarts a replica that has lost the leadership, as on a machine that stalls. It ends for no other reason.
    fn restart_deposed(&mut self) -> anyhow::Result<()> {
        for which in (0..self.replicas.len()).rev() {
            let Some(replica) = self.replicas.get_mut(which) else {
                continue;
            };
            let Err(ended) = replica.haulout.check_running() else {
                continue;
            };
            ensure!(ended.to_string().contains("lost the leadership"), ended);
            drop(self.replicas.swap_remove(which));
            self.kills += 1;
            self.count("lost leaderships");
            self.start_replica()?;
        }
        Ok(())
    }

    async fn kill(&mut self) -> anyhow::Result<()> {
        let which = self.rng.usize(..self.replicas.len());
        self.replicas.swap_remove(which).haulout.kill().await?;
        self.kills += 1;
        self.count("kills");
        self.start_replica()
    }

    /// Ends all maintenances, and waits until each node is as it was.
    async fn settle(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            self.restart_deposed()?;
            let state = self.fixture.vcenter.state().await?;
            for host in &state.hosts {
                if host.entering.is_some() {
                    drop(self.fixture.vcenter.cancel_maintenance(&host.name).await);
                } else if host.in_maintenance {
                    drop(self.fixture.vcenter.exit_maintenance(&host.name).await);
                }
            }
            let wrong = self.unsettled(&state).await?;
            if wrong.is_empty() {
                println!("settled after {:?}", begin.elapsed());
                return Ok(());
            }
            ensure!(
                begin.elapsed() < SETTLED_WITHIN,
                "not settled: {}",
                wrong.join("; ")
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// The VMs that are off, and the nodes that are not as they were.
    async fn unsettled(&self, state: &State) -> anyhow::Result<Vec<String>> {
        let off = state.vms.iter().filter(|vm| !vm.is_on());
        let mut wrong: Vec<String> = off.map(|vm| format!("{} is off", vm.name)).collect();
        let nodes = self.nodes().await?;
        let nodes: BTreeMap<_, _> = nodes
            .iter()
            .filter_map(|node| Some((node.metadata.name.clone()?, node)))
            .collect();
        for vm in &state.vms {
            let name = self.fixture.node_name(&vm.name);
            let Some(node) = nodes.get(&name) else {
                wrong.push(format!("{name} is not there"));
                continue;
            };
            let is_cordoned = is_cordoned(node);
            let is_wanted = self.cordoned.contains(&name);
            if phase(node).is_some() || !is_ready(node) || gpus(node) == 0 || is_cordoned != is_wanted {
                let phase = phase(node);
                wrong.push(format!(
                    "{name}: phase {phase:?}, cordoned {is_cordoned}, expected {is_wanted}"
                ));
            }
        }
        Ok(wrong)
    }

    /// Notes the replicas with more open files than at their first row, once they are at rest: each node in an episode has
    /// connections of its own, which stay open for a while.
    async fn files_at_rest(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        let more = loop {
            let mut more = Vec::new();
            for replica in &self.replicas {
                let (Some((_, least)), (_, open)) = (replica.first, replica.used()?) else {
                    continue;
                };
                let line = format!("{}: {least} files at first, {open} at rest", replica.name);
                println!("{line}");
                if open > least + MORE_FILES_MAX {
                    more.push(line);
                }
            }
            if more.is_empty() || begin.elapsed() > IDLE_WITHIN {
                break more;
            }
            tokio::time::sleep(Duration::from_secs(15)).await;
        };
        self.growth.extend(more);
        Ok(())
    }

    /// Checks vCenter's journal, and what the replicas used.
    async fn check(&self) -> anyhow::Result<()> {
        let journal = self.fixture.vcenter.journal().await?;
        let state = self.fixture.vcenter.state().await?;
        let mut wrong = self.growth.clone();
        let (mut cycles, mut completed) = (0, 0);
        for host in &state.hosts {
            let vm = state
                .vm(&vm_of(&host.name))
                .map(|vm: &VmState| vm.name.clone())
                .unwrap_or_default();
            match power_cycles(&journal, &host.name, &vm) {
                Ok((offs, entered)) => {
                    cycles += offs;
                    completed += entered;
                }
                Err(error) => wrong.push(error.to_string()),
            }
        }
        println!("events: {:?}", self.done);
        println!(
            "{completed} maintenances that needed a power cycle were completed, with {cycles} power cycles; {} sessions",
            state.sessions
        );
        if state.sessions > REPLICAS + self.kills {
            wrong.push(format!("{} sessions, after {} kills", state.sessions, self.kills));
        }
        if wrong.is_empty() {
            println!("nothing is wrong");
            return Ok(());
        }
        bail!("{}", wrong.join("\n"))
    }
}

/// The power-offs of a VM, and the completed maintenances of its host that needed one, in the order of the journal.
///
/// # Errors
/// If a maintenance was completed while the VM was on, if the VM went off without a maintenance since it was on, or more often than
/// it came back.
fn power_cycles(journal: &[Entry], host: &str, vm: &str) -> anyhow::Result<(usize, usize)> {
    let (mut is_on, mut offs, mut completed, mut asked, mut kept_off) = (true, 0, 0, 0, 0);
    let mut was_on = true;
    for entry in journal {
        match (entry.kind, entry.detail.as_str()) {
            (EntryKind::Maintenance, "entering") if entry.object == host => asked += 1,
            (EntryKind::Maintenance, "entered") if entry.object == host => {
                ensure!(
                    !is_on,
                    "{host} was in maintenance while {vm} was on, at {}",
                    entry.time
                );
                completed += 1;
                // The host was entered again before its VM was powered on.
                kept_off += usize::from(!std::mem::take(&mut was_on));
            }
            (EntryKind::Power, "poweredOff") if entry.object == vm => {
                ensure!(is_on, "{vm} went off twice, at {}", entry.time);
                is_on = false;
                offs += 1;
                ensure!(
                    offs <= asked,
                    "{vm} went off {offs} times for {asked} maintenances, at {}",
                    entry.time
                );
            }
            (EntryKind::Power, "poweredOn") if entry.object == vm && entry.user != "spec" => {
                ensure!(!is_on, "{vm} came back twice, at {}", entry.time);
                (is_on, was_on) = (true, true);
            }
            _ => {}
        }
    }
    ensure!(is_on, "{vm} is off");
    ensure!(
        completed <= offs + kept_off,
        "{host} was {completed} times in maintenance, {kept_off} of them right after another, and {vm} went off {offs} times"
    );
    Ok((offs, completed - kept_off))
}
