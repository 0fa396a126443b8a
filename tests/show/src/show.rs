//! The steps of the demo: one node moves, one waits for its host, latency and memory are measured.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, annotation, boot_id, episode, is_cordoned, is_ready, label, phase};
use haulout_lab::jaeger::Jaeger;
use haulout_lab::kube::Kube;
use haulout_lab::kubelet::EXITS_AFTER_MS;
use haulout_lab::wait::until;
use jiff::Timestamp;

use super::follow::{self, Phases};
use super::printer::{Line, Place, Printer, heading, paragraph};
use super::{DEADLINE, datacenter, figures, wait_for_log};
use crate::say;
use crate::tracing_ui::TracingUi;

/// The number of latency samples.
const CLICKS: usize = 10;
/// How long memory is measured.
const MEMORY_WINDOW: Duration = Duration::from_secs(1);
/// The refusals of an eviction before an administrator changes the budget.
const REFUSALS: usize = 3;

/// The running parts.
pub(crate) struct Show<'a> {
    pub(crate) kube: &'a Kube,
    pub(crate) fixture: &'a Fixture<'a>,
    pub(crate) jaeger: &'a Jaeger,
    /// Haulout's program.
    pub(crate) binary: &'a Path,
    /// Its process id.
    pub(crate) pid: u32,
    pub(crate) printer: Printer,
    pub(crate) phases: Phases,
    /// The profile that Haulout was built with.
    pub(crate) build: &'static str,
    pub(crate) started: Instant,
}

impl Show<'_> {
    pub(crate) async fn print(&self, ui: Option<TracingUi>, has_finished: &Cell<bool>) -> anyhow::Result<()> {
        self.introduce().await?;
        let fresh = figures::memory(self.pid, MEMORY_WINDOW).await?;
        self.moves().await?;
        let trace_id = self.waits().await?;
        self.measure(fresh).await?;
        self.draw(&trace_id).await?;
        match ui {
            None => {
                self.end();
                Ok(())
            }
            Some(ui) => self.stay(ui, &trace_id, has_finished).await,
        }
    }

    /// Follows all sources until vCenter ends.
    pub(crate) async fn follow(&self) -> anyhow::Result<()> {
        let (fixture, printer) = (self.fixture, &self.printer);
        let nodes = follow::nodes(
            fixture.client(),
            label(fixture.name()),
            printer.clone(),
            self.phases.clone(),
        );
        let pods = follow::pods(fixture.client(), fixture.name().to_owned(), printer.clone());
        let log = follow::log(fixture.log(), printer.clone());
        let journal = follow::journal(&fixture.vcenter, fixture.vcenter.user(), printer);
        tokio::join!(nodes, pods, log, journal).3
    }

    async fn introduce(&self) -> anyhow::Result<()> {
        heading("The datacenter");
        paragraph(
            "8 ESXi hosts in three clusters. Each has one GPU, which one VM can use by passthrough. Hosts and guests of this lab \
             take seconds where real ones take minutes.",
        );
        say("");
        let state = self.fixture.vcenter.state().await?;
        let header = ["cluster", "host", "GPU", "used by", "Kubernetes node"].map(str::to_owned);
        for [cluster, host, device, holder, node] in std::iter::once(header).chain(datacenter::rows(&state)) {
            say(format!("  {cluster:<9}{host:<7}{device:<14}{holder:<14}{node}").trim_end());
        }
        say("");
        paragraph(
            "Below, each line says when something happened, in seconds since Enter Maintenance Mode was clicked, and where \
             you would see it: in vCenter's client, with kubectl, or in Haulout's log.",
        );
        Ok(())
    }

    /// The first maintenance: a node that moves.
    async fn moves(&self) -> anyhow::Result<()> {
        let (vm, home, target) = ("gpu1", "esx1", "esx4");
        let node = self.fixture.node_name(vm);
        heading("1. A node moves to another host");
        paragraph(
            "esx1 is to be patched. VM gpu1 on it uses an NVIDIA A40 and cannot be moved by vMotion. In its cluster, only \
             esx4 has a free A40.",
        );
        say("");
        self.fixture
            .add_pod("training-0", &node, &[(EXITS_AFTER_MS, "900")])
            .await?;
        let before = self.fixture.node(&node).await?;
        self.printer.begin();
        let clicked = Timestamp::now();
        self.fixture.vcenter.enter_maintenance(home).await?;
        self.expect_node(&node, "cordoned and draining", |node| {
            is_cordoned(node) && annotation(node, "state") == Some("draining")
        })
        .await?;
        self.expect_vcenter("gpu1 is powered off", |state| {
            state.vm(vm).is_some_and(|vm| !vm.is_on())
        })
        .await?;
        let left = self.fixture.pods_on(&node).await?;
        ensure!(
            left.is_empty(),
            "{vm} was powered off with pods on {node}: {left:?}"
        );
        self.expect_node(&node, "on its way to another host", |node| {
            phase(node).as_deref() == Some("relocating") || annotation(node, "migrated-to-host").is_some()
        })
        .await?;
        let why = datacenter::candidates(&self.fixture.vcenter.state().await?, home, vm);
        self.note(format!("why {target}? {}", why.join("; ")));
        self.expect_vcenter("gpu1 is on esx4", |state| {
            state.vm(vm).is_some_and(|vm| vm.host == target)
        })
        .await?;
        let after = self.expect_in_service(&node).await?;
        ensure!(
            boot_id(&after) != boot_id(&before),
            "{node} is back in service without another boot"
        );
        self.expect_vcenter("esx1 is in maintenance mode", |state| {
            state.host(home).is_some_and(|host| host.in_maintenance)
        })
        .await?;
        self.printer.end().await;
        self.once_off_once_on(vm).await?;
        self.steps(&node, clicked, "choose a host").await
    }

    /// The second maintenance: a node that waits. Returns the trace id.
    async fn waits(&self) -> anyhow::Result<String> {
        let (vm, home) = ("gpu2", "esx5");
        let node = self.fixture.node_name(vm);
        heading("2. A PodDisruptionBudget blocks a drain, and a node waits for its own host");
        paragraph(
            "esx5 is to be patched. No other host of its cluster has a free A40, so VM gpu2 has to wait for esx5. The \
             PodDisruptionBudget \"serving\" does not allow the eviction of pod serving-0.",
        );
        say("");
        let quick = [(EXITS_AFTER_MS, "600")];
        self.fixture.add_pod("serving-0", &node, &quick).await?;
        self.fixture.add_pod("batch-0", &node, &quick).await?;
        self.set_budget("serving", "serving-0", 1).await?;
        let before = self.fixture.node(&node).await?;
        self.printer.begin();
        let clicked = Timestamp::now();
        self.fixture.vcenter.enter_maintenance(home).await?;
        self.blocked("serving-0", "serving").await?;
        let alone = format!("only the pod that its budget holds to be left on {node}");
        until(&alone, DEADLINE, async || {
            Ok((self.fixture.pods_on(&node).await? == ["serving-0"]).then_some(()))
        })
        .await?;
        self.set_budget("serving", "serving-0", 0).await?;
        self.kubernetes("an administrator changes PodDisruptionBudget serving: minAvailable 1 -> 0");
        self.expect_vcenter("esx5 is in maintenance mode", |state| {
            state.host(home).is_some_and(|host| host.in_maintenance)
        })
        .await?;
        wait_for_log(self.fixture, "waiting for host esx5").await?;
        self.expect_node(&node, "seen to be off", |node| !is_ready(node))
            .await?;
        self.note("(in production, hours pass here: the host is patched and rebooted)".to_owned());
        let held = self.fixture.node(&node).await?;
        ensure!(is_cordoned(&held), "{node} was uncordoned while its VM is off");
        let id = episode(&held).and_then(|it| it["id"].as_str().map(str::to_owned));
        let id = id.with_context(|| format!("there is no episode on {node}"))?;
        self.fixture.vcenter.exit_maintenance(home).await?;
        let after = self.expect_in_service(&node).await?;
        ensure!(
            boot_id(&after) != boot_id(&before),
            "{node} is back in service without another boot"
        );
        self.printer.end().await;
        let state = self.fixture.vcenter.state().await?;
        ensure!(
            state.vm(vm).is_some_and(|vm| vm.host == home),
            "{vm} was to come back on {home}"
        );
        self.once_off_once_on(vm).await?;
        self.steps(&node, clicked, "wait for the host").await?;
        Ok(id)
    }

    /// Waits until the budget has refused enough evictions and Haulout's log names it.
    async fn blocked(&self, pod: &str, budget: &str) -> anyhow::Result<()> {
        let mut printed = 0;
        let what = format!("the eviction of {pod} to be refused {REFUSALS} times");
        until(&what, DEADLINE, async || {
            let audit = self.fixture.audit().await?;
            let refused: Vec<_> = audit
                .iter()
                .filter(|event| {
                    event.subresource.as_deref() == Some("eviction")
                        && event.name.as_deref() == Some(pod)
                        && event.code == 429
                })
                .collect();
            for event in refused.iter().skip(printed) {
                printed += 1;
                self.printer.print(Line::new(
                    event.answered,
                    Place::Kubernetes,
                    format!("pod {pod}: eviction refused, 429 Too Many Requests"),
                ));
            }
            Ok((refused.len() >= REFUSALS).then_some(()))
        })
        .await?;
        wait_for_log(self.fixture, &format!("{pod}: held by PodDisruptionBudget")).await?;
        let log = self.fixture.log_text();
        ensure!(
            log.lines()
                .any(|line| line.contains("held by PodDisruptionBudget") && line.contains(budget)),
            "the log says that a PodDisruptionBudget holds {pod}, but not that it is {budget}"
        );
        Ok(())
    }

    /// Latency and memory.
    async fn measure(&self, fresh: figures::Memory) -> anyhow::Result<()> {
        heading(&format!("Latency and memory ({} build)", self.build));
        // A blocked drain keeps the VM on between two requests. The cordon comes before it.
        self.fixture
            .add_pod("held-0", &self.fixture.node_name("gpu3"), &[])
            .await?;
        self.set_budget("held", "held-0", 1).await?;
        let figures = figures::latencies(self.fixture, self.kube, "esx8", "gpu3", CLICKS).await?;
        let of = |share| figures.quantile(share).context("no click was measured");
        let (median, worst) = (of(0.5)?, of(1.0)?);
        let idle = figures::memory(self.pid, MEMORY_WINDOW).await?;
        paragraph(&format!(
            "From Enter Maintenance Mode to the cordon: median {median:.0} ms, slowest {worst:.0} ms. Measured {CLICKS} times on esx8, whose \
             task is cancelled as soon as demo-gpu3 is cordoned."
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
