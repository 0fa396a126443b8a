//! The time from a maintenance request until a client knows, and the cost for vCenter: Haulout, other clients and the
//! baseline in one run. `QUICK=1` is a shorter run.
#![allow(
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a bench reads the clock, pauses between two requests, and is used by no other crate"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use haulout_lab::figures::{self, Samples as Sampled, figure};
use haulout_lab::kube::{AuditEvent, Kube, KubeOptions, User};
use haulout_lab::process::ProcessSpec;
use haulout_lab::text_table::TextTable;
use haulout_lab::vcenter::{Bulk, Collector, Delays, Spec, Tls, VcenterOptions, VcenterSimulator, VmSpec};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{sleep, timeout};

use self::detection::clients::{self, Watch};
use self::detection::process::{Kind, Programs, TestedClient};
use self::detection::report::{quantile, report, say};

#[path = "support/client.rs"]
mod client;
#[allow(dead_code, reason = "each bench uses its part")]
mod detection {
    pub mod clients;
    pub mod process;
    pub mod report;
    #[path = "../support/used.rs"]
    pub mod used;
}

/// Hosts, unless the command line has other sizes: one, a usual number, and a vCenter's published maximum.
const SIZES: &[usize] = &[1, 100, 2500];
/// VMs on each host.
const VMS_PER_HOST: usize = 10;
/// Changes of other objects per second under load.
const CHANGE_RATE: u32 = 500;
/// The length of `recentTask`. A vCenter lists the tasks of the last ten minutes; all requests of a bench would make
/// an unrealistic list whose reading dominates.
const RECENT_TASKS: usize = 5;
/// The node's VM. It runs on the host under test and keeps it from entering.
const NODE_UUID: &str = "4217a5b0-0000-4000-8000-00000000be9c";
const LABEL: &str = "lab.haulout/bench";
const NAMESPACE: &str = "bench";
/// The timeout for Haulout to write or to revert.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// More samples for the two rows whose ratio has a target, because 100 samples vary by 5 %.
const MORE_FOR_AN_AIM: usize = 3;

struct Plan {
    blocks: usize,
    /// Samples in each block for each client.
    clicks: usize,
    pollers: &'static [u32],
    poller_clicks: usize,
    idle: Duration,
}

const FULL: Plan = Plan {
    // Blocks. Each one restarts every client, which evens out the memory layout of a process.
    blocks: 12,
    clicks: 9,
    pollers: &[30, 5, 1],
    poller_clicks: 2,
    idle: Duration::from_secs(90),
};

const QUICK: Plan = Plan {
    blocks: 2,
    clicks: 10,
    pollers: &[1],
    poller_clicks: 2,
    idle: Duration::from_secs(60),
};

type Samples = BTreeMap<(bool, &'static str), Vec<f64>>;

fn main() -> anyhow::Result<()> {
    let began = Instant::now();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(ended) = clients::run(began, &words) {
        return ended;
    }
    let plan = if clients::is_quick(&words) { QUICK } else { FULL };
    let sizes: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    tokio::runtime::Runtime::new()?.block_on(measure(&plan, if sizes.is_empty() { SIZES } else { &sizes }))
}

async fn measure(plan: &Plan, sizes: &[usize]) -> anyhow::Result<()> {
    let programs = Programs::find().await?;
    // There is no kubelet: the bench writes the Node's status.
    let quiet = KubeOptions {
        node_monitor_grace: Duration::from_secs(86_400),
        ..KubeOptions::default()
    };
    let kube = Kube::start(&quiet).await?;
    kube.create_namespace(NAMESPACE).await?;
    let mut notes = vec![
        "One machine runs the vCenter, the cluster and the client: each figure holds the stand-in's own time, which the \
         baseline shows, and only ratios carry over to another machine. There is no network in between."
            .to_owned(),
        "The clients take turns, so none competes with another for the processor; the baseline follows one host and is \
         not woken by the load, in which every tenth change is one that all other clients receive. What the same program needs \
         that follows all hosts, the server takes and no tested can save."
            .to_owned(),
        "The vCenter is the lab's, with a collector of its own: a real one computes updates at a pace of its own.".to_owned(),
    ];
    if let Err(why) = &programs.python {
        notes.push(format!("pyVmomi was not measured: {why}."));
    }
    let mut latency = TextTable::new(&[
        "hosts",
        "",
        "client",
        "n",
        "median ms",
        "p99 ms",
        "x baseline",
        "x baseline p99",
    ]);
    let mut patch = TextTable::new(&[
        "hosts",
        "",
        "n",
        "to PATCH ms",
        "p99 ms",
        "baseline ms",
        "bare PATCH ms",
        "ratio",
    ]);
    let mut cost = TextTable::new(&[
        "hosts",
        "client",
        "calls per minute",
        "KiB per minute",
        "n",
        "median ms",
        "max ms",
    ]);
    let mut kept = figures::FigureTable::new("detection_latency");
    for &hosts in sizes {
        say(&format!("{hosts} hosts …"));
        let setup = Setup::create(&kube, hosts).await?;
        let samples = setup.clicks(plan, &programs).await?;
        for busy in [false, true] {
            setup.latency_rows(&mut latency, &samples, busy);
            setup.patch_row(&mut patch, &samples, busy);
            setup.keep(&mut kept, &samples, busy);
        }
        // A first result, because the next part is long.
        say(&latency.markdown());
        say(&patch.markdown());
        setup.idle(plan, &programs, &mut cost, &mut kept).await?;
        if programs.python.is_ok() {
            setup.pollers(plan, &programs, &mut cost, &mut kept).await?;
        }
        setup.clear().await?;
    }
    kube.stop().await?;
    let intro = format!(
        "From the moment vCenter accepts EnterMaintenanceMode_Task, by its own clock, to the moment a client knows. \
         {} clicks each, and {} for the baseline and the stream, in {} turns; {VMS_PER_HOST} VMs on each host; the load is \
         {CHANGE_RATE} foreign changes a second.",
        plan.blocks * plan.clicks,
        plan.blocks * plan.clicks * MORE_FOR_AN_AIM,
        plan.blocks
    );
    let tables = [
        ("From the click to knowing", &latency),
        ("From the click to the cordon's PATCH, by the audit log", &patch),
        ("What watching costs vCenter while nothing happens", &cost),
    ];
    report(&intro, &tables, &notes);
    kept.note(intro);
    notes.into_iter().for_each(|note| kept.note(note));
    kept.keep(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("figures"))?;
    Ok(())
}

/// A vCenter of one size, and the Node whose VM is on the host under test.
struct Setup<'a> {
    kube: &'a Kube,
    client: kube::Client,
    vcenter: VcenterSimulator,
    watch: Watch,
    hosts: usize,
    node: String,
}

const BASELINE: &str = "baseline";
const STREAM: &str = "haulout's stream";
/// The clients with a long poll, and their names in the table.
const STREAMS: &[(Kind, &str)] = &[
    (Kind::Baseline, BASELINE),
    (Kind::BaselineOfAll, "baseline, all hosts"),
    (Kind::BaselineOverReqwest, "baseline over reqwest"),
    (Kind::BaselineOverHyper, "baseline over hyper, XML walked"),
    (Kind::Stream, STREAM),
    (Kind::Govmomi, "govmomi"),
    (Kind::Pyvmomi, "pyvmomi"),
];
const CLICKED: &str = "bulk-0000";
const HAULOUT: &str = "Haulout to PATCH";
const BARE: &str = "bare PATCH";
const KNOWS: &str = "click to knowing ms";
const CALLS: &str = "calls per minute";
const KIB: &str = "KiB per minute";
const PATCHED: &str = "click to PATCH ms";

impl<'a> Setup<'a> {
    async fn create(kube: &'a Kube, hosts: usize) -> anyhow::Result<Self> {
        let (cert, key) = kube.server_certificate(&format!("vcenter-{hosts}"))?;
        let spec = Spec {
            bulk: Some(Bulk {
                hosts,
                vms: hosts * VMS_PER_HOST,
            }),
            vms: vec![VmSpec {
                name: "node".into(),
                uuid: NODE_UUID.into(),
                host: CLICKED.into(),
                ignore_shutdown: true,
                ..VmSpec::default()
            }],
            delays: Delays::default(),
            recent_tasks: RECENT_TASKS,
            ..Spec::default()
        };
        let options = VcenterOptions {
            tls: Some(Tls { cert, key }),
            collector: Collector::Own,
            ..VcenterOptions::default()
        };
        let program = haulout_lab::build::part("vcenter").await?;
        let vcenter = VcenterSimulator::start(&program, &spec, options).await?;
        let state = vcenter.state().await?;
        let clicked = state.host(CLICKED).context("the host to click on is not there")?;
        let watch = Watch {
            sdk: vcenter.sdk().to_owned(),
            ca: kube.authority().to_owned(),
            user: vcenter.user().to_owned(),
            password: vcenter.password().to_owned(),
            host: clicked.reference.clone(),
            ours: 0,
        };
        let setup = Self {
            kube,
            client: client::of(kube, &User::admin("bench")).await?,
            vcenter,
            watch,
            hosts,
            node: format!("bench-{hosts}"),
        };
        setup.register().await?;
        Ok(setup)
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// A pod that never ends: the drain lasts until the maintenance is cancelled.
    fn pod(&self) -> anyhow::Result<Pod> {
        Ok(serde_json::from_value(json!({
            "metadata": {"name": self.node},
            "spec": {
                "nodeName": self.node, "terminationGracePeriodSeconds": 86_400,
                "containers": [{"name": "main", "image": "lab.invalid/none"}],
            },
        }))?)
    }

    /// Writes the Node's Ready status.
    async fn register(&self) -> anyhow::Result<()> {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": self.node, "labels": {LABEL: "true"}},
            "spec": {"providerID": format!("vsphere://{NODE_UUID}")},
        }))?;
        self.nodes().create(&PostParams::default(), &node).await?;
        let status = json!({"status": {
            "capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"nvidia.com/gpu": "2"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "bench", "message": ""}],
        }});
        let params = PatchParams::default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        pods.create(&PostParams::default(), &self.pod()?).await?;
        self.nodes()
            .patch_status(&self.node, &params, &Patch::Merge(&status))
            .await?;
        Ok(())
    }

    async fn clear(self) -> anyhow::Result<()> {
        self.nodes().delete(&self.node, &DeleteParams::default()).await?;
        self.vcenter.stop().await
    }

    /// Measures each client in turn, repeatedly, idle and under load.
    async fn clicks(&self, plan: &Plan, programs: &Programs) -> anyhow::Result<Samples> {
        let mut samples = Samples::new();
        for block in 0..plan.blocks {
            for busy in [false, true] {
                self.vcenter
                    .set_change_rate(if busy { CHANGE_RATE } else { 0 })
                    .await?;
                // The order changes from block to block.
                for at in 0..STREAMS.len() {
                    let Some(&(kind, key)) = STREAMS.get((at + block) % STREAMS.len()) else {
                        continue;
                    };
                    if kind == Kind::Pyvmomi && programs.python.is_err() {
                        continue;
                    }
                    let taken = samples.entry((busy, key)).or_default();
                    let has_an_aim = [BASELINE, STREAM].contains(&key);
                    let clicks = plan.clicks * if has_an_aim { MORE_FOR_AN_AIM } else { 1 };
                    let mut tested = TestedClient::start(kind, &self.watch, programs).await?;
                    for click in 0..clicks {
                        pause(block * clicks + click).await;
                        taken.push(self.one(&mut tested).await.with_context(|| kind.name())?);
                    }
                    tested.end().await?;
                }
                self.to_patch(plan, busy, &mut samples).await?;
            }
        }
        self.vcenter.set_change_rate(0).await?;
        Ok(samples)
    }

    /// One maintenance request and its cancel, in milliseconds.
    async fn one(&self, tested: &mut TestedClient) -> anyhow::Result<f64> {
        let accepted = self.vcenter.click(CLICKED).await?;
        let known = tested.knows(true).await?;
        self.vcenter.cancel_maintenance(CLICKED).await?;
        tested.knows(false).await?;
        let accepted = i64::try_from(accepted.as_nanosecond())?;
        ensure!(known >= accepted, "known before it was accepted");
        Ok((known - accepted) as f64 / 1e6)
    }

    /// The real program: the time until the cordon is written. Each request is cancelled, with a bare PATCH in
    /// between.
    async fn to_patch(&self, plan: &Plan, busy: bool, samples: &mut Samples) -> anyhow::Result<()> {
        let user = User::haulout("haulout-bench");
        let log = self.kube.dir().join("haulout-bench.log");
        let _ = std::fs::remove_file(&log);
        let spec = ProcessSpec::new("haulout", env!("CARGO_BIN_EXE_haulout"), &log)
            .arg("run")
            .env("KUBECONFIG", self.kube.kubeconfig(&user)?)
            .env("VCENTER_HOST", &self.watch.sdk)
            .env("VCENTER_USER", &self.watch.user)
            .env("VCENTER_PASSWORD", &self.watch.password)
            .env("VCENTER_CA_BUNDLE", &self.watch.ca)
            .env("GPU_NODE_LABEL", LABEL)
            .env("METRICS_ADDRESS", "off")
            .env("HEALTH_ADDRESS", "off")
            .env("HTTPS_PROXY", "")
            .env("https_proxy", "");
        let mut process = spec.spawn()?;
        let has_logged = |words: &str| std::fs::read_to_string(&log).is_ok_and(|log| log.contains(words));
        let ready = async {
            while !(has_logged("vCenter synced") && has_logged("Kubernetes synced")) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(WAIT_TIMEOUT, ready)
            .await
            .with_context(|| format!("Haulout is not in sync: {}", process.tail()))?;
        for click in 0..plan.clicks {
            pause(click).await;
            let accepted = self.vcenter.click(CLICKED).await?;
            self.until("cordoned", is_cordoned)
                .await
                .with_context(|| process.tail())?;
            let (written, body) = self.written(&user, accepted).await?;
            let took = written.duration_since(accepted).as_secs_f64() * 1e3;
            samples.entry((busy, HAULOUT)).or_default().push(took);
            self.vcenter.cancel_maintenance(CLICKED).await?;
            self.until("back", |node| !is_cordoned(node) && has_no_episode(node))
                .await
                .with_context(|| process.tail())?;
            let took = self.bare_patch(&body).await?;
            samples.entry((busy, BARE)).or_default().push(took);
        }
        process.stop(WAIT_TIMEOUT).await?;
        Ok(())
    }

    /// The time in milliseconds of a PATCH of the same Node and size as Haulout's: the cordon, and annotations under
    /// other names. It is reverted.
    async fn bare_patch(&self, like: &serde_json::Value) -> anyhow::Result<f64> {
        let annotations = like
            .pointer("/metadata/annotations")
            .and_then(|it| it.as_object());
        let names = annotations.context("a cordon without annotations")?;
        let renamed = |value: &dyn Fn(&serde_json::Value) -> serde_json::Value| {
            let renamed = names
                .iter()
                .map(|(name, it)| (format!("bench.{name}"), value(it)));
            serde_json::Value::Object(renamed.collect())
        };
        let body =
            json!({"metadata": {"annotations": renamed(&Clone::clone)}, "spec": {"unschedulable": true}});
        let params = PatchParams::default();
        let began = Instant::now();
        self.nodes()
            .patch(&self.node, &params, &Patch::Merge(&body))
            .await?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        let back = json!({
            "metadata": {"annotations": renamed(&|_| serde_json::Value::Null)},
            "spec": {"unschedulable": null},
        });
        self.nodes()
            .patch(&self.node, &params, &Patch::Merge(&back))
            .await?;
        Ok(took)
    }

    /// The time of the response to the cordon's PATCH, and its body. The audit log may be later than the watch.
    async fn written(
        &self,
        user: &User,
        accepted: Timestamp,
    ) -> anyhow::Result<(Timestamp, serde_json::Value)> {
        let is_it = |event: &AuditEvent| {
            let cordons =
                |object: &serde_json::Value| object.pointer("/spec/unschedulable") == Some(&true.into());
            event.user == user.name()
                && event.verb == "patch"
                && event.code == 200
                && event.name.as_deref() == Some(&*self.node)
                && event.answered >= accepted
                && event.object.as_ref().is_some_and(cordons)
        };
        let look = async {
            loop {
                if let Some(event) = self.kube.audit().await?.into_iter().find(is_it) {
                    return anyhow::Ok((event.answered, event.object.unwrap_or_default()));
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(WAIT_TIMEOUT, look)
            .await
            .context("the audit log does not show the cordon's PATCH")?
    }

    async fn until(&self, what: &str, wanted: impl Fn(&Node) -> bool) -> anyhow::Result<()> {
        // After a pause, so that this read does not disturb the measurement.
        let look = async {
            loop {
                sleep(Duration::from_millis(20)).await;
                if wanted(&self.nodes().get(&self.node).await?) {
                    return anyhow::Ok(());
                }
            }
        };
        timeout(WAIT_TIMEOUT, look)
            .await
            .with_context(|| format!("the Node is never {what}"))?
    }

    fn latency_rows(&self, table: &mut TextTable, samples: &Samples, busy: bool) {
        let of = |key| samples.get(&(busy, key)).map_or(&[][..], Vec::as_slice);
        let baseline = of(BASELINE);
        for &(kind, key) in STREAMS {
            let taken = of(key);
            table.row(vec![
                self.hosts.to_string(),
                load(busy),
                kind.name(),
                taken.len().to_string(),
                figure(quantile(taken, 0.5)),
                figure(quantile(taken, 0.99)),
                figure(quantile(taken, 0.5) / quantile(baseline, 0.5)),
                figure(quantile(taken, 0.99) / quantile(baseline, 0.99)),
            ]);
        }
    }

    fn patch_row(&self, table: &mut TextTable, samples: &Samples, busy: bool) {
        let of = |key| samples.get(&(busy, key)).map_or(&[][..], Vec::as_slice);
        let (taken, baseline, bare) = (of(HAULOUT), quantile(of(BASELINE), 0.5), quantile(of(BARE), 0.5));
        table.row(vec![
            self.hosts.to_string(),
            load(busy),
            taken.len().to_string(),
            figure(quantile(taken, 0.5)),
            figure(quantile(taken, 0.99)),
            figure(baseline),
            figure(bare),
            figure(quantile(taken, 0.5) / (baseline + bare)),
        ]);
    }

    /// The rows for the table of all benches.
    fn keep(&self, kept: &mut figures::FigureTable, samples: &Samples, busy: bool) {
        let case = format!("{} hosts, {}", self.hosts, load(busy));
        let of = |key| samples.get(&(busy, key)).map_or(&[][..], Vec::as_slice);
        for &(_, who) in STREAMS {
            if !of(who).is_empty() {
                kept.row(&case, who, KNOWS, &of(who).iter().copied().collect());
            }
        }
        kept.compare(&case, KNOWS, BASELINE);
        kept.target(&case, KNOWS, STREAM, 1.2);
        let least = quantile(of(BASELINE), 0.5) + quantile(of(BARE), 0.5);
        kept.row(
            &case,
            "baseline and a bare PATCH",
            PATCHED,
            &Sampled::from_iter([least]),
        );
        kept.row(&case, "haulout", PATCHED, &of(HAULOUT).iter().copied().collect());
        kept.compare(&case, PATCHED, "baseline and a bare PATCH");
        kept.target(&case, PATCHED, "haulout", 1.5);
    }

    /// The cost of push clients while idle.
    async fn idle(
        &self,
        plan: &Plan,
        programs: &Programs,
        table: &mut TextTable,
        kept: &mut figures::FigureTable,
    ) -> anyhow::Result<()> {
        // Both at once: they only wait, and their calls are separated by User-Agent.
        let mut resting = Vec::new();
        for kind in [Kind::Stream, Kind::Govmomi] {
            let tested = TestedClient::start(kind, &self.watch, programs).await?;
            self.vcenter.rests(kind.agent()).await?;
            resting.push((kind, tested));
        }
        let mut before = Vec::new();
        for (kind, _) in &resting {
            before.push(self.vcenter.traffic(kind.agent()).await?);
        }
        sleep(plan.idle).await;
        for ((kind, tested), before) in resting.into_iter().zip(before) {
            let after = self.vcenter.traffic(kind.agent()).await?;
            tested.end().await?;
            let minutes = plan.idle.as_secs_f64() / 60.0;
            let bytes = (after.received + after.sent - before.received - before.sent) as f64;
            let calls = (after.calls - before.calls) as f64 / minutes;
            let case = format!("{} hosts, idle", self.hosts);
            let kib = bytes / 1024.0 / minutes;
            kept.row(&case, &kind.name(), KIB, &Sampled::from_iter([kib]));
            let row = kept.row(&case, &kind.name(), CALLS, &Sampled::from_iter([calls]));
            row.target = (kind == Kind::Stream).then_some(3.0);
            table.row(vec![
                self.hosts.to_string(),
                kind.name(),
                figure(calls),
                figure(kib),
                "0".into(),
                "-".into(),
                "-".into(),
            ]);
        }
        Ok(())
    }

    /// The cost and the latency of a poller. A request comes at a random time of the interval. A poller whose poll
    /// takes longer than its interval polls without a pause, as with any shorter interval, which is then skipped.
    async fn pollers(
        &self,
        plan: &Plan,
        programs: &Programs,
        table: &mut TextTable,
        kept: &mut figures::FigureTable,
    ) -> anyhow::Result<()> {
        let mut lasts = 0.0;
        for &every in plan.pollers {
            if lasts > f64::from(every) {
                continue;
            }
            let kind = Kind::Poller(every);
            let mut tested = TestedClient::start(kind, &self.watch, programs).await?;
            // The first line is from the first poll.
            tested.until("poll").await?;
            let before = self.vcenter.traffic(kind.agent()).await?;
            let poll = tested.until("poll").await?;
            let after = self.vcenter.traffic(kind.agent()).await?;
            lasts = poll
                .get("ms")
                .and_then(serde_json::Value::as_f64)
                .unwrap_or_default()
                / 1e3;
            let per_minute = 60.0 / lasts.max(f64::from(every));
            let bytes = (after.received + after.sent - before.received - before.sent) as f64;
            let mut taken = Vec::new();
            for click in 0..plan.poller_clicks {
                // The golden ratio distributes times evenly over the interval.
                sleep(Duration::from_secs_f64(
                    f64::from(every) * ((click as f64 * 0.618_034) % 1.0),
                ))
                .await;
                taken.push(self.one(&mut tested).await?);
            }
            tested.end().await?;
            let case = format!("{} hosts, idle", self.hosts);
            let (calls, kib) = (
                (after.calls - before.calls) as f64 * per_minute,
                bytes / 1024.0 * per_minute,
            );
            kept.row(&case, &kind.name(), CALLS, &Sampled::from_iter([calls]));
            kept.row(&case, &kind.name(), KIB, &Sampled::from_iter([kib]));
            kept.row(&case, &kind.name(), KNOWS, &taken.iter().copied().collect());
            table.row(vec![
                self.hosts.to_string(),
                kind.name(),
                figure(calls),
                figure(kib),
                taken.len().to_string(),
                figure(quantile(&taken, 0.5)),
                figure(quantile(&taken, 1.0)),
            ]);
        }
        Ok(())
    }
}

fn load(busy: bool) -> String {
    if busy { "busy" } else { "idle" }.to_owned()
}

/// Between 10 and 40 ms and varying, so that requests are not periodic.
async fn pause(nth: usize) {
    let share = (nth as f64 * 0.618_034) % 1.0;
    sleep(Duration::from_secs_f64(0.010 + 0.030 * share)).await;
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

fn has_no_episode(node: &Node) -> bool {
    let annotations = node.metadata.annotations.iter().flatten();
    !annotations.into_iter().any(|(key, _)| key.ends_with("/episode"))
}
