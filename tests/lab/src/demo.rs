//! Runs the main job before someone's eyes: two nodes are taken through maintenance, and every step is told as it
//! happens, from vCenter's side, from Kubernetes', and from Haulout's.

mod cast;
mod figures;
mod follow;
mod program;
mod teller;
mod waterfall;

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use haulout_lab::build;
use haulout_lab::jaeger::Jaeger;
use haulout_lab::kube::{Kube, Options};
use haulout_lab::stage::{
    ANNOTATIONS, Haulout, Stage, annotation, boot_id, episode, gpus, is_cordoned, is_ready, label, phase,
};
use haulout_lab::wait::until;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use self::follow::Phases;
use self::teller::{Line, Place, Teller, heading, paragraph, seconds_between};
use crate::say;
use crate::up;

/// How long one fact of the story may take to come true. None takes longer than a few seconds on an idle machine.
const DEADLINE: Duration = Duration::from_secs(45);
/// How often latency is measured.
const CLICKS: usize = 10;
/// For how long memory is watched.
const MEMORY_WINDOW: Duration = Duration::from_secs(1);
/// How often an eviction is refused before a person loosens the budget that refuses it.
const REFUSALS: usize = 3;
/// What the story counts on, whatever the shell that started the demo has set for a Haulout of its own.
const SETTINGS: [(&str, &str); 10] = [
    ("ANNOTATION_PREFIX", ANNOTATIONS),
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
/// Haulout's last words that stand beside a failure.
const LAST_WORDS: usize = 12;

/// How the demo is asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run, and measure, Haulout's release build; it takes minutes to make the first time.
    #[arg(long, env = "RELEASE", value_parser = clap::builder::FalseyValueParser::new())]
    release: bool,
    /// Leave everything running until Ctrl-C, and say how to look around.
    #[arg(long, env = "KEEP", value_parser = clap::builder::FalseyValueParser::new())]
    keep: bool,
}

/// Tells the whole story, and marks in `told` that it is over when it is only left running.
pub(crate) async fn run(arguments: &Arguments, told: &Cell<bool>) -> anyhow::Result<()> {
    let step = Instant::now();
    heading("Haulout: GPU nodes through ESXi host maintenance");
    let binary = program::build(arguments.release).await?;
    for part in build::parts() {
        build::part(part).await?;
    }
    let which = if arguments.release { "release" } else { "debug" };
    ready(&format!("haulout is built ({which} build)"), step);

    let started = Instant::now();
    let step = started;
    // Twice the heartbeat and more, so that a machine that is off is seen to be, and a busy one is not taken for one.
    let options = Options {
        node_monitor_grace: Duration::from_secs(3),
        ..Options::default()
    };
    let (kube, jaeger) = tokio::try_join!(Kube::start(&options), Jaeger::start())?;
    ready(
        &format!(
            "Kubernetes is up: etcd, kube-apiserver and kube-controller-manager, {}; and Jaeger",
            kube.url()
        ),
        step,
    );
    let step = Instant::now();
    let spec = cast::inventory();
    let stage = Stage::set(&kube, cast::STAGE, &spec, cast::members(&spec), true).await?;
    ready(
        &format!(
            "vCenter is up: {}; 8 hosts, 5 VMs, 3 of them Ready nodes",
            stage.vcenter.sdk()
        ),
        step,
    );
    let step = Instant::now();
    let (endpoint, link) = (jaeger.otlp_http(), address_of(&jaeger, "{trace_id}"));
    let traced = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("TRACE_UI_URL_TEMPLATE", link.as_str()),
    ];
    let mut haulout = stage.start(&binary, &[&SETTINGS[..], &traced].concat())?;
    let heard = wait_said(&stage, "vCenter has told its complete set");
    tokio::select! {
        heard = heard => heard?,
        ended = watch_over(&kube, &mut haulout) => ended?,
    }
    ready(
        "haulout runs as a user would start it, and has heard both sides",
        step,
    );

    let teller = Teller::start();
    let phases = Phases::default();
    let show = Show {
        kube: &kube,
        stage: &stage,
        jaeger: &jaeger,
        pid: haulout.pid().context("haulout has no process id")?,
        teller: teller.clone(),
        phases: phases.clone(),
        build: which,
    };
    let followers = async {
        let nodes = follow::nodes(stage.client(), label(stage.name()), teller.clone(), phases);
        let pods = follow::pods(stage.client(), stage.name().to_owned(), teller.clone());
        let log = follow::log(stage.log(), teller.clone());
        let journal = follow::journal(&stage.vcenter, stage.vcenter.user(), &teller);
        tokio::join!(nodes, pods, log, journal).3
    };
    let outcome = tokio::select! {
        outcome = show.tell(arguments.keep, started, told) => outcome,
        ended = watch_over(&kube, &mut haulout) => ended,
        lost = followers => lost.context("following vCenter's journal"),
    };
    if let Err(error) = outcome {
        teller.end().await;
        // One that ended by itself has its last words in the error already.
        if haulout.check_running().is_ok() {
            last_words(&stage);
        }
        return Err(error);
    }
    haulout.stop().await?;
    kube.stop().await
}

fn last_words(stage: &Stage<'_>) {
    heading("Haulout's last words");
    let said = stage.said();
    let lines: Vec<&str> = said.lines().collect();
    for line in lines.iter().skip(lines.len().saturating_sub(LAST_WORDS)) {
        say(&format!("  {line}"));
    }
}

/// Runs until a part of the demo ends that should not.
async fn watch_over(kube: &Kube, haulout: &mut Haulout) -> anyhow::Result<()> {
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        kube.check_running().await?;
        haulout.check_running()?;
    }
}

fn ready(what: &str, since: Instant) {
    say(&format!("{:>7.1} s  {what}", since.elapsed().as_secs_f64()));
}

/// What the stories are told with.
struct Show<'a> {
    kube: &'a Kube,
    stage: &'a Stage<'a>,
    jaeger: &'a Jaeger,
    pid: u32,
    teller: Teller,
    phases: Phases,
    build: &'static str,
}

impl Show<'_> {
    async fn tell(&self, keep: bool, started: Instant, told: &Cell<bool>) -> anyhow::Result<()> {
        self.introduce().await?;
        let fresh = figures::memory(self.pid, MEMORY_WINDOW).await?;
        self.moves().await?;
        let trace = self.waits().await?;
        self.measure(fresh).await?;
        self.trace(&trace, keep).await?;
        heading(&format!(
            "Everything came to pass, in {:.0} s. Nobody touched anything but the hosts and one budget.",
            started.elapsed().as_secs_f64()
        ));
        if keep {
            told.set(true);
            return self.stay().await;
        }
        Ok(())
    }

    async fn introduce(&self) -> anyhow::Result<()> {
        heading("The datacenter");
        let state = self.stage.vcenter.state().await?;
        let header = ["cluster", "host", "passthrough", "held by", "node"].map(str::to_owned);
        for [cluster, host, device, holder, node] in std::iter::once(header).chain(cast::rows(&state)) {
            say(format!("  {cluster:<9}{host:<7}{device:<14}{holder:<14}{node}").trim_end());
        }
        Ok(())
    }

    /// The first story: a node that moves.
    async fn moves(&self) -> anyhow::Result<()> {
        let (vm, home, target) = ("gpu1", "esx1", "esx4");
        let node = self.stage.node_name(vm);
        heading("1. A node that moves to another host");
        paragraph("esx1 needs maintenance. Only esx4 has a free GPU of the kind that gpu1 has.");
        say("");
        self.stage
            .add_pod(
                "training-0",
                &node,
                &[(haulout_lab::kubelet::EXITS_AFTER_MS, "900")],
            )
            .await?;
        let before = self.stage.node(&node).await?;
        self.teller.begin();
        let clicked = Timestamp::now();
        self.stage.vcenter.enter_maintenance(home).await?;
        self.expect_node(&node, "cordoned and draining", |node| {
            is_cordoned(node) && annotation(node, "state") == Some("draining")
        })
        .await?;
        self.expect_vcenter("gpu1 is powered off", |state| {
            state.vm(vm).is_some_and(|vm| !vm.is_on())
        })
        .await?;
        let left = self.stage.pods_on(&node).await?;
        ensure!(
            left.is_empty(),
            "{vm} was powered off with pods on {node}: {left:?}"
        );
        self.expect_node(&node, "on its way to another host", |node| {
            phase(node).as_deref() == Some("relocating") || annotation(node, "migrated-to-host").is_some()
        })
        .await?;
        let why = cast::candidates(&self.stage.vcenter.state().await?, home, vm);
        self.note(format!("why {target}? {}", why.join("; ")));
        self.expect_vcenter("gpu1 stands on esx4", |state| {
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
        self.teller.end().await;
        self.once_off_once_on(vm).await?;
        self.steps(&node, clicked, "choose a host").await
    }

    /// The second story: a node that waits. Tells the id of its trace.
    async fn waits(&self) -> anyhow::Result<String> {
        let (vm, home) = ("gpu2", "esx5");
        let node = self.stage.node_name(vm);
        heading("2. A node that waits for its own host, and a budget that holds it up");
        paragraph(
            "esx5 needs maintenance, and nothing in its cluster can take gpu2. The PodDisruptionBudget \"serving\" wants \
             the pod serving-0 to stay.",
        );
        say("");
        let quick = [(haulout_lab::kubelet::EXITS_AFTER_MS, "600")];
        self.stage.add_pod("serving-0", &node, &quick).await?;
        self.stage.add_pod("batch-0", &node, &quick).await?;
        self.set_budget("serving", "serving-0", 1).await?;
        let before = self.stage.node(&node).await?;
        self.teller.begin();
        let clicked = Timestamp::now();
        self.stage.vcenter.enter_maintenance(home).await?;
        self.blocked("serving-0", "serving").await?;
        let alone = format!("only the pod that its budget holds to be left on {node}");
        until(&alone, DEADLINE, async || {
            Ok((self.stage.pods_on(&node).await? == ["serving-0"]).then_some(()))
        })
        .await?;
        self.set_budget("serving", "serving-0", 0).await?;
        self.kubernetes("a person loosens PodDisruptionBudget serving: minAvailable 1 -> 0");
        self.expect_vcenter("esx5 is in maintenance mode", |state| {
            state.host(home).is_some_and(|host| host.in_maintenance)
        })
        .await?;
        wait_said(self.stage, "waiting for host esx5").await?;
        self.expect_node(&node, "seen to be off", |node| !is_ready(node))
            .await?;
        self.note("(hours may pass here: the host is patched and rebooted)".to_owned());
        let held = self.stage.node(&node).await?;
        ensure!(is_cordoned(&held), "{node} was uncordoned while its VM is off");
        let id = episode(&held).and_then(|it| it["id"].as_str().map(str::to_owned));
        let id = id.with_context(|| format!("there is no episode on {node}"))?;
        self.stage.vcenter.exit_maintenance(home).await?;
        let after = self.expect_in_service(&node).await?;
        ensure!(
            boot_id(&after) != boot_id(&before),
            "{node} is back in service without another boot"
        );
        self.teller.end().await;
        let state = self.stage.vcenter.state().await?;
        ensure!(
            state.vm(vm).is_some_and(|vm| vm.host == home),
            "{vm} was to come back on {home}"
        );
        self.once_off_once_on(vm).await?;
        self.steps(&node, clicked, "wait for the host").await?;
        Ok(id)
    }

    /// The second story once more, as the tracing backend tells it.
    async fn trace(&self, id: &str, keep: bool) -> anyhow::Result<()> {
        let spans = until(
            &format!("Jaeger to have the whole trace {id}"),
            DEADLINE,
            async || {
                let spans = self.jaeger.trace(id).await?;
                let is_whole = spans.iter().any(|span| span.parent.is_none());
                Ok(is_whole.then_some(spans))
            },
        )
        .await?;
        heading("The second maintenance as one trace, asked of Jaeger");
        for row in waterfall::draw(&spans) {
            say(row.trim_end());
        }
        let page = format!("{}/episodes/{id}", status_page(self.stage)?);
        let client = reqwest::Client::builder().no_proxy().build()?;
        let what = format!("the status page to draw the episode under {page}");
        until(&what, DEADLINE, async || {
            let answer = client.get(&page).send().await?;
            let is_there = answer.status().is_success();
            Ok((is_there && answer.text().await?.contains("<svg")).then_some(()))
        })
        .await?;
        say("");
        say(&format!("  trace id     {id}"));
        say(&format!("  for eyes     {page}"));
        say("               the same episode as a picture, on Haulout's status page");
        say(&format!("  for programs {}", address_of(self.jaeger, id)));
        say("               the trace as JSON: the lab's Jaeger has no pages");
        if keep {
            say("  Both stay up until Ctrl-C.");
        } else {
            say("  Both end with this demo: make demo KEEP=1 leaves them up.");
        }
        Ok(())
    }

    /// Waits until the budget has refused an eviction often enough, and Haulout has named it.
    async fn blocked(&self, pod: &str, budget: &str) -> anyhow::Result<()> {
        let mut told = 0;
        let what = format!("the eviction of {pod} to be refused {REFUSALS} times");
        until(&what, DEADLINE, async || {
            let audit = self.stage.audit().await?;
            let refused: Vec<_> = audit
                .iter()
                .filter(|event| {
                    event.subresource.as_deref() == Some("eviction")
                        && event.name.as_deref() == Some(pod)
                        && event.code == 429
                })
                .collect();
            for event in refused.iter().skip(told) {
                told += 1;
                self.teller.tell(Line::new(
                    event.answered,
                    Place::Kubernetes,
                    format!("pod {pod}: eviction refused, 429 Too Many Requests"),
                ));
            }
            Ok((refused.len() >= REFUSALS).then_some(()))
        })
        .await?;
        wait_said(self.stage, &format!("{pod}: held by PodDisruptionBudget")).await?;
        let said = self.stage.said();
        ensure!(
            said.lines()
                .any(|line| line.contains("held by PodDisruptionBudget") && line.contains(budget)),
            "Haulout says that a PodDisruptionBudget holds {pod}, but not that it is {budget}"
        );
        Ok(())
    }

    /// Latency and memory.
    async fn measure(&self, fresh: figures::Memory) -> anyhow::Result<()> {
        heading(&format!("Figures ({} build)", self.build));
        // A drain that cannot end keeps the machine from being power-cycled between two clicks. The cordon comes before it.
        self.stage
            .add_pod("held-0", &self.stage.node_name("gpu3"), &[])
            .await?;
        self.set_budget("held", "held-0", 1).await?;
        let figures = figures::latencies(self.stage, self.kube, "esx8", "gpu3", CLICKS).await?;
        let (median, worst) = figures::median_and_worst(&figures).context("no click was measured")?;
        let idle = figures::memory(self.pid, MEMORY_WINDOW).await?;
        paragraph(&format!(
            "{CLICKS} clicks on esx8, each cancelled once demo-gpu3 is cordoned; a budget holds its one pod, so that no \
             drain ends before"
        ));
        paragraph(&format!(
            "from a click until the cordon's PATCH is accepted: median {median:.0} ms, worst {worst:.0} ms"
        ));
        paragraph(&format!(
            "resident memory when idle: {:.1} MiB after the start, {:.1} MiB after 2 maintenances and {CLICKS} called off, \
             of which {:.1} MiB are the mapped code of this {} build",
            fresh.resident, idle.resident, idle.code, self.build
        ));
        Ok(())
    }

    /// How long each phase took, by the Node's own annotation.
    async fn steps(&self, node: &str, clicked: Timestamp, awaiting: &str) -> anyhow::Result<()> {
        let seen = self.phases.of(node, clicked);
        let journal = self.stage.vcenter.journal().await?;
        let click = journal
            .iter()
            .find(|entry| entry.method == "EnterMaintenanceMode_Task" && entry.time >= clicked)
            .map_or(clicked, |entry| entry.time);
        let end = match seen.last() {
            Some(last) if last.phase.is_none() => last.since,
            Some(_) | None => bail!("the annotations of {node} did not tell how its episode ended"),
        };
        say("");
        say(&format!("  {:<44}{:>10}", "step", "took"));
        let row = |what: &str, seconds: f64| say(&format!("  {what:<44}{seconds:>8.3} s"));
        let mut since = click;
        let mut what = "click until cordoned".to_owned();
        for step in &seen {
            row(&what, seconds_between(since, step.since));
            since = step.since;
            what = match step.phase.as_deref() {
                Some("draining") => "drain: evict the pods, wait until they left".to_owned(),
                Some("shuttingDown") => "guest shutdown until powered off".to_owned(),
                Some("awaitingHost") => awaiting.to_owned(),
                Some("relocating") => "relocate".to_owned(),
                Some("poweringOn") => "power on".to_owned(),
                Some("rejoining") => "boot until Ready with its GPU".to_owned(),
                Some(other) => other.to_owned(),
                None => String::new(),
            };
        }
        row("from click to back in service", seconds_between(click, end));
        Ok(())
    }

    async fn once_off_once_on(&self, vm: &str) -> anyhow::Result<()> {
        let (off, on) = self.stage.power_cycles(vm).await?;
        ensure!(
            (off, on) == (1, 1),
            "{vm} was to be powered off once and on once; vCenter's journal has {off} and {on}"
        );
        Ok(())
    }

    async fn expect_node(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&Node) -> bool,
    ) -> anyhow::Result<Node> {
        until(&format!("{name} to be {what}"), DEADLINE, async || {
            let node = self.stage.node(name).await?;
            Ok(wanted(&node).then_some(node))
        })
        .await
    }

    async fn expect_in_service(&self, name: &str) -> anyhow::Result<Node> {
        let back = |node: &Node| {
            annotation(node, "state").is_none() && !is_cordoned(node) && is_ready(node) && gpus(node) > 0
        };
        self.expect_node(name, "back in service", back).await
    }

    async fn expect_vcenter(
        &self,
        what: &str,
        wanted: impl Fn(&haulout_lab::vcenter::State) -> bool,
    ) -> anyhow::Result<haulout_lab::vcenter::State> {
        until(&format!("vCenter to show that {what}"), DEADLINE, async || {
            let state = self.stage.vcenter.state().await?;
            Ok(wanted(&state).then_some(state))
        })
        .await
    }

    /// Writes a budget over the pod of this name, as a person with kubectl does, and waits until it counts.
    async fn set_budget(&self, name: &str, app: &str, min_available: i32) -> anyhow::Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.stage.client(), self.stage.name());
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}},
        });
        let params = PatchParams::apply("person").force();
        budgets
            .patch(name, &params, &Patch::Apply(&budget))
            .await
            .with_context(|| format!("writing the PodDisruptionBudget {name}"))?;
        let what = format!("the PodDisruptionBudget {name} to be counted");
        until(&what, DEADLINE, async || {
            let seen = budgets.get(name).await?;
            let counted = seen.status.as_ref().is_some_and(|status| {
                status.observed_generation == seen.metadata.generation
                    && (status.disruptions_allowed > Some(0)) == (min_available == 0)
            });
            Ok(counted.then_some(()))
        })
        .await
    }

    fn kubernetes(&self, what: &str) {
        self.teller
            .tell(Line::new(Timestamp::now(), Place::Kubernetes, what));
    }

    fn note(&self, what: String) {
        self.teller.tell(Line::new(Timestamp::now(), Place::Note, what));
    }

    /// Keeps telling what happens until the program is ended.
    async fn stay(&self) -> anyhow::Result<()> {
        heading("Everything stays up until Ctrl-C. What happens from here on is told below.");
        // The node of the first story lives on esx4, and may move back.
        self.stage.vcenter.exit_maintenance("esx1").await?;
        up::look_around(self.stage, self.kube, "esx4")?;
        say(&format!("Haulout's log:      {}", self.stage.log().display()));
        say(&format!("Status page:        {}", status_page(self.stage)?));
        say(&format!("Jaeger, as JSON:    {}", self.jaeger.query()));
        say("");
        self.teller.begin();
        std::future::pending().await
    }
}

/// Where a person opens the trace of this id, as JSON: Jaeger's Go module, which the lab builds, has no UI in it.
fn address_of(jaeger: &Jaeger, id: &str) -> String {
    format!("{}/api/traces/{id}", jaeger.query())
}

/// Where Haulout says that its status page is.
fn status_page(stage: &Stage<'_>) -> anyhow::Result<String> {
    let said = stage.said();
    let address = said
        .split_once("serving the status page on ")
        .and_then(|(_, after)| after.split_whitespace().next());
    let address = address.context("Haulout does not say where its status page is")?;
    Ok(address.to_owned())
}

async fn wait_said(stage: &Stage<'_>, words: &str) -> anyhow::Result<()> {
    until(&format!("Haulout's log to say {words:?}"), DEADLINE, async || {
        Ok(stage.said().contains(words).then_some(()))
    })
    .await
}
