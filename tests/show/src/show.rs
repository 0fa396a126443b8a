//! The steps of the demo: one node moves, one waits for its host, latency and memory are measured.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use jiff::Timestamp;

use crate::figures;
use crate::follow::{self, Phases};
use crate::node::{annotation, boot_id, episode, is_cordoned, is_ready, phase};
use crate::peers::{Click, Host, Inventory, Peers};
use crate::printer::{Line, Place, Printer, heading, paragraph, say};
use crate::wait::until;

/// The timeout of one step. A step takes a few seconds on an idle machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(45);
/// The number of latency samples.
const CLICKS: usize = 10;
/// How long memory is measured.
const MEMORY_WINDOW: Duration = Duration::from_secs(1);
/// The refusals of an eviction before an administrator changes the budget.
const REFUSALS: usize = 3;
/// Lines of Haulout's log in the error of a failure.
const LOG_TAIL_LINES: usize = 12;

/// Settings that the demo relies on, whatever the shell has set.
pub const SETTINGS: [(&str, &str); 9] = [
    ("DRAIN_TIMEOUT_ACTION", "power-off"),
    ("DRY_RUN", "false"),
    ("LOG_FORMAT", "text"),
    ("MAX_CONCURRENT_DRAINS", "1"),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""),
    ("OTEL_SDK_DISABLED", "false"),
    ("OTEL_TRACES_EXPORTER", "otlp"),
    ("STATUS_ADDRESS", "127.0.0.1:0"),
];

/// The running Haulout.
#[derive(Debug)]
pub struct Program {
    pid: u32,
    log: PathBuf,
    /// The profile that it was built with.
    build: &'static str,
}

impl Program {
    /// Haulout as this process, of a `debug` or `release` build.
    pub fn new(pid: Option<u32>, log: PathBuf, build: &'static str) -> anyhow::Result<Self> {
        let pid = pid.context("haulout has no process id")?;
        Ok(Self { pid, log, build })
    }

    /// Its log so far.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The file of its log.
    pub fn log(&self) -> &std::path::Path {
        &self.log
    }
}

/// The running parts.
#[derive(Debug)]
pub struct Show<'a, P> {
    pub(crate) peers: &'a P,
    pub(crate) program: Program,
    pub(crate) printer: Printer,
    pub(crate) phases: Phases,
    pub(crate) started: Instant,
}

impl<'a, P: Peers> Show<'a, P> {
    /// A show that began to start its parts at `started`. Waits until Haulout watches both peers.
    pub async fn begin(peers: &'a P, program: Program, started: Instant) -> anyhow::Result<Self> {
        let show = Self {
            peers,
            program,
            printer: Printer::start(),
            phases: Phases::default(),
            started,
        };
        show.wait_for_log("vCenter synced").await?;
        Ok(show)
    }

    /// Shows everything, unless a part ends before. With `has_finished`, everything keeps running after that, and it is set then.
    pub async fn run(
        &self,
        part_ended: impl Future<Output = anyhow::Result<()>>,
        has_finished: Option<&Cell<bool>>,
    ) -> anyhow::Result<()> {
        let outcome = tokio::select! {
            outcome = self.print(has_finished) => outcome,
            ended = part_ended => ended,
            lost = self.follow() => lost.context("following vCenter's journal"),
        };
        if outcome.is_err() {
            self.printer.end().await;
            heading("The end of Haulout's log");
            let log = self.program.log_text();
            let lines: Vec<&str> = log.lines().collect();
            for line in lines.iter().skip(lines.len().saturating_sub(LOG_TAIL_LINES)) {
                say(&format!("  {line}"));
            }
        }
        outcome
    }

    async fn print(&self, has_finished: Option<&Cell<bool>>) -> anyhow::Result<()> {
        self.introduce().await?;
        let fresh = figures::memory(self.program.pid, MEMORY_WINDOW).await?;
        self.moves().await?;
        let trace_id = self.waits().await?;
        self.measure(fresh).await?;
        self.draw(&trace_id).await?;
        match has_finished {
            None => {
                self.end();
                Ok(())
            }
            Some(has_finished) => self.stay(&trace_id, has_finished).await,
        }
    }

    /// Follows all sources until vCenter ends.
    async fn follow(&self) -> anyhow::Result<()> {
        let (peers, cast, printer) = (self.peers, self.peers.cast(), &self.printer);
        let nodes = follow::nodes(
            peers.client(),
            cast.label.clone(),
            printer.clone(),
            self.phases.clone(),
        );
        let pods = follow::pods(peers.client(), cast.namespace.clone(), printer.clone());
        let log = follow::log(self.program.log.clone(), printer.clone());
        tokio::join!(nodes, pods, log, follow::journal(peers, printer)).3
    }

    async fn introduce(&self) -> anyhow::Result<()> {
        heading("The datacenter");
        paragraph(self.peers.cast().datacenter);
        say("");
        say(&format!(
            "  {:<9}{:<7}{:<14}{:<14}Kubernetes node",
            "cluster", "host", "GPU", "used by"
        ));
        for host in self.peers.inventory().await?.hosts {
            let holder = host.holder.as_deref();
            let user = holder.map_or_else(|| "(free)".to_owned(), |vm| format!("VM {vm}"));
            let node = holder.and_then(|vm| self.node_of(vm)).unwrap_or_default();
            let row = format!(
                "  {:<9}{:<7}{:<14}{user:<14}{node}",
                host.cluster, host.name, host.gpu
            );
            say(row.trim_end());
        }
        say("");
        paragraph(
            "Below, each line says when something happened, in seconds since Enter Maintenance Mode was clicked, and where \
             you would see it: in vCenter's client, with kubectl, or in Haulout's log.",
        );
        Ok(())
    }

    fn node_of(&self, vm: &str) -> Option<&str> {
        let cast = self.peers.cast();
        let mut members = [&cast.mover, &cast.waiter, &cast.clicked].into_iter();
        members.find(|member| member.vm == vm).map(|it| it.node.as_str())
    }

    /// The first maintenance: a node that moves.
    async fn moves(&self) -> anyhow::Result<()> {
        let cast = self.peers.cast();
        let (vm, node, home, target) = (&cast.mover.vm, &cast.mover.node, &cast.mover.home, &cast.target);
        heading("1. A node moves to another host");
        paragraph(&format!(
            "{home} is to be patched. VM {vm} on it uses an NVIDIA A40 and cannot be moved by vMotion. In its cluster, only \
             {target} has a free A40.",
        ));
        say("");
        self.peers
            .add_pod("training-0", node, Duration::from_millis(900))
            .await?;
        let before = self.node(node).await?;
        self.printer.begin();
        let clicked = Timestamp::now();
        self.peers.click(Click::Enter, home).await?;
        self.expect_node(node, "cordoned and draining", |node| {
            is_cordoned(node) && annotation(node, "state") == Some("draining")
        })
        .await?;
        self.expect_vcenter(&format!("{vm} is powered off"), |seen| {
            seen.vm(vm).is_some_and(|vm| !vm.on)
        })
        .await?;
        let left = self.pods_on(node).await?;
        ensure!(
            left.is_empty(),
            "{vm} was powered off with pods on {node}: {left:?}"
        );
        self.expect_node(node, "on its way to another host", |node| {
            phase(node).as_deref() == Some("relocating") || annotation(node, "migrated-to-host").is_some()
        })
        .await?;
        let why = candidates(&self.peers.inventory().await?, home, vm);
        self.note(format!("why {target}? {}", why.join("; ")));
        self.expect_vcenter(&format!("{vm} is on {target}"), |seen| {
            seen.vm(vm).is_some_and(|vm| vm.host == *target)
        })
        .await?;
        let after = self.expect_in_service(node).await?;
        ensure!(
            boot_id(&after) != boot_id(&before),
            "{node} is back in service without another boot"
        );
        self.expect_in_maintenance(home).await?;
        self.printer.end().await;
        self.once_off_once_on(vm).await?;
        self.steps(node, clicked, "choose a host").await
    }

    /// The second maintenance: a node that waits. Returns the trace id.
    async fn waits(&self) -> anyhow::Result<String> {
        let waiter = &self.peers.cast().waiter;
        let (vm, node, home) = (&waiter.vm, &waiter.node, &waiter.home);
        heading("2. A PodDisruptionBudget blocks a drain, and a node waits for its own host");
        paragraph(&format!(
            "{home} is to be patched. No other host of its cluster has a free A40, so VM {vm} has to wait for {home}. The \
             PodDisruptionBudget \"serving\" does not allow the eviction of pod serving-0.",
        ));
        say("");
        let quick = Duration::from_millis(600);
        self.peers.add_pod("serving-0", node, quick).await?;
        self.peers.add_pod("batch-0", node, quick).await?;
        self.peers.set_budget("serving", "serving-0", 1).await?;
        let before = self.node(node).await?;
        self.printer.begin();
        let clicked = Timestamp::now();
        self.peers.click(Click::Enter, home).await?;
        self.blocked("serving-0", "serving").await?;
        let alone = format!("only the pod that its budget holds to be left on {node}");
        until(&alone, DEADLINE, async || {
            Ok((self.pods_on(node).await? == ["serving-0"]).then_some(()))
        })
        .await?;
        self.kubernetes("an administrator changes PodDisruptionBudget serving: minAvailable 1 -> 0");
        self.peers.set_budget("serving", "serving-0", 0).await?;
        self.expect_in_maintenance(home).await?;
        self.wait_for_log(&format!("waiting for host {home}")).await?;
        self.expect_node(node, "seen to be off", |node| !is_ready(node))
            .await?;
        self.note("(in production, hours pass here: the host is patched and rebooted)".to_owned());
        let held = self.node(node).await?;
        ensure!(is_cordoned(&held), "{node} was uncordoned while its VM is off");
        let id = episode(&held).and_then(|it| it["id"].as_str().map(str::to_owned));
        let id = id.with_context(|| format!("there is no episode on {node}"))?;
        self.peers.click(Click::Exit, home).await?;
        let after = self.expect_in_service(node).await?;
        ensure!(
            boot_id(&after) != boot_id(&before),
            "{node} is back in service without another boot"
        );
        self.printer.end().await;
        let seen = self.peers.inventory().await?;
        ensure!(
            seen.vm(vm).is_some_and(|vm| vm.host == *home),
            "{vm} was to come back on {home}"
        );
        self.once_off_once_on(vm).await?;
        self.steps(node, clicked, "wait for the host").await?;
        Ok(id)
    }

    async fn expect_in_maintenance(&self, host: &str) -> anyhow::Result<()> {
        let is_in = |seen: &Inventory| seen.host(host).is_some_and(|host| host.in_maintenance);
        self.expect_vcenter(&format!("{host} is in maintenance mode"), is_in)
            .await?;
        Ok(())
    }

    /// Waits until the budget has refused enough evictions and Haulout's log names it.
    async fn blocked(&self, pod: &str, budget: &str) -> anyhow::Result<()> {
        let mut printed = 0;
        let what = format!("the eviction of {pod} to be refused {REFUSALS} times");
        until(&what, DEADLINE, async || {
            let refused = self.peers.refusals(pod).await?;
            for at in refused.iter().skip(printed) {
                printed += 1;
                self.printer.print(Line::new(
                    *at,
                    Place::Kubernetes,
                    format!("pod {pod}: eviction refused, 429 Too Many Requests"),
                ));
            }
            Ok((refused.len() >= REFUSALS).then_some(()))
        })
        .await?;
        self.wait_for_log(&format!("{pod}: held by PodDisruptionBudget"))
            .await?;
        let log = self.program.log_text();
        ensure!(
            log.lines()
                .any(|line| line.contains("held by PodDisruptionBudget") && line.contains(budget)),
            "the log says that a PodDisruptionBudget holds {pod}, but not that it is {budget}"
        );
        Ok(())
    }

    /// Latency and memory.
    async fn measure(&self, fresh: figures::Memory) -> anyhow::Result<()> {
        let clicked = &self.peers.cast().clicked;
        heading(&format!("Latency and memory ({} build)", self.program.build));
        // A blocked drain keeps the VM on between two requests. The cordon comes before it.
        self.peers
            .add_pod("held-0", &clicked.node, Duration::from_millis(100))
            .await?;
        self.peers.set_budget("held", "held-0", 1).await?;
        let latencies = self.latencies(clicked, CLICKS).await?;
        let median = latencies.get(latencies.len() / 2);
        let (median, worst) = median.zip(latencies.last()).context("no click was measured")?;
        let idle = figures::memory(self.program.pid, MEMORY_WINDOW).await?;
        paragraph(&format!(
            "From Enter Maintenance Mode to the cordon: median {median:.0} ms, slowest {worst:.0} ms. Measured {CLICKS} times on {}, \
             whose task is cancelled as soon as {} is cordoned.",
            clicked.home, clicked.node
        ));
        paragraph(&format!(
            "Memory in use when idle: {:.1} MiB after the start, {:.1} MiB after 2 maintenances and {CLICKS} cancelled ones. Of \
             that, {:.1} MiB are the program's own code.",
            fresh.resident, idle.resident, idle.code
        ));
        Ok(())
    }

    fn kubernetes(&self, what: &str) {
        self.printer
            .print(Line::new(Timestamp::now(), Place::Kubernetes, what));
    }

    fn note(&self, what: String) {
        self.printer.print(Line::new(Timestamp::now(), Place::Note, what));
    }
}

/// A line on each other host of the cluster of `home`, for a VM that needs a GPU like that of `home`.
fn candidates(seen: &Inventory, home: &str, vm: &str) -> Vec<String> {
    let Some(home) = seen.host(home) else {
        return Vec::new();
    };
    let others = seen
        .hosts
        .iter()
        .filter(|host| host.cluster == home.cluster && host.name != home.name);
    let judge = |host: &Host| {
        let (name, gpu) = (&host.name, &host.gpu);
        match &host.holder {
            _ if *gpu != home.gpu => format!("{name} has another GPU, an {gpu}"),
            Some(holder) if holder != vm => format!("{name}'s {gpu} is used by VM {holder}"),
            Some(_) | None => format!("{name}'s {gpu} is free"),
        }
    };
    others.map(judge).collect()
}
