//! The cost of the update stream by inventory size: from start to in sync, and idle; beside govmomi's waiter.
//! `QUICK=1` is a shorter run, and sizes (in hosts) may be arguments.
#![allow(
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a bench reads the clock, and is used by no other crate"
)]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use haulout_lab::figures::{self, Samples, figure};
use haulout_lab::kube::{Kube, KubeOptions};
use haulout_lab::text_table::TextTable;
use haulout_lab::vcenter::{Bulk, Collector, Spec, Tls, VcenterOptions, VcenterSimulator};
use tokio::time::sleep;

use self::detection::clients::{self, Watch};
use self::detection::process::{Kind, Programs, TestedClient};
use self::detection::report::{report, say};

#[allow(dead_code, reason = "each bench uses its part")]
mod detection {
    pub mod clients;
    pub mod process;
    pub mod report;
    #[path = "../support/used.rs"]
    pub mod used;
}

/// Hosts, VMs, and VMs of our nodes. The last row is a vCenter's published maximum; in the others, one of the three
/// grows.
const SIZES: &[(usize, usize, usize)] = &[
    (10, 100, 10),
    (100, 1_000, 0),
    (100, 1_000, 100),
    (1_000, 10_000, 0),
    (1_000, 10_000, 1_000),
    (2_500, 2_500, 0),
    (2_500, 40_000, 0),
    (2_500, 40_000, 100),
    (2_500, 40_000, 1_000),
];

/// Starts of each client, for a stable median.
const STARTS: usize = 15;

fn main() -> anyhow::Result<()> {
    let began = Instant::now();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(ended) = clients::run(began, &words) {
        return ended;
    }
    // An idle stream rereads every 30 s, so a shorter time shows nothing.
    let quick = clients::is_quick(&words);
    let rest = Duration::from_secs(if quick { 35 } else { 65 });
    let wanted: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    tokio::runtime::Runtime::new()?.block_on(measure(rest, &wanted))
}

async fn measure(rest: Duration, wanted: &[usize]) -> anyhow::Result<()> {
    let programs = Programs::find().await?;
    // Only its CA is needed, for the simulator's certificate.
    let kube = Kube::start(&KubeOptions::default()).await?;
    let mut columns = vec!["hosts", "VMs", "ours", "client"];
    columns.extend(WHAT);
    let mut table = TextTable::new(&columns);
    let mut kept = figures::FigureTable::new("watching");
    for &(hosts, vms, ours) in SIZES {
        if !wanted.is_empty() && !wanted.contains(&hosts) {
            continue;
        }
        say(&format!("{hosts} hosts, {vms} VMs, {ours} of them ours …"));
        let (cert, key) = kube.server_certificate(&format!("vcenter-{hosts}-{vms}-{ours}"))?;
        let spec = Spec {
            bulk: Some(Bulk { hosts, vms }),
            ..Spec::default()
        };
        let options = VcenterOptions {
            tls: Some(Tls { cert, key }),
            collector: Collector::Own,
            ..VcenterOptions::default()
        };
        let program = haulout_lab::build::part("vcenter").await?;
        let vcenter = VcenterSimulator::start(&program, &spec, options).await?;
        let host = vcenter
            .state()
            .await?
            .host(&Bulk::host(0))
            .map(|host| host.reference.clone());
        let watch = Watch {
            sdk: vcenter.sdk().to_owned(),
            ca: kube.authority().to_owned(),
            user: vcenter.user().to_owned(),
            password: vcenter.password().to_owned(),
            host: host.context("the bulk has no host")?,
            ours,
        };
        let mut kinds = vec![Kind::Stream];
        if ours == 0 {
            // The other clients follow hosts only, so they are compared where Haulout does too.
            kinds.push(Kind::Govmomi);
            kinds.extend(programs.python.is_ok().then_some(Kind::Pyvmomi));
        }
        let started = Started::in_turn(&vcenter, &kinds, &watch, &programs).await?;
        let case = format!("{hosts} hosts, {vms} VMs, {ours} of them ours");
        for (kind, figures) in at_rest(&vcenter, started, rest).await? {
            let mut cells: Vec<String> = [hosts, vms, ours].map(|size| size.to_string()).to_vec();
            cells.push(kind.name());
            for (what, samples) in WHAT.iter().zip(&figures) {
                cells.push(figure(samples.median().unwrap_or(f64::NAN)));
                kept.row(&case, &kind.name(), what, samples);
            }
            table.row(cells);
        }
        aim(&mut kept, hosts, vms, ours);
        vcenter.stop().await?;
    }
    kube.stop().await?;
    let intro = format!(
        "From the start of a program to all hosts and VMs of ours known, {STARTS} starts each, the median; then at rest for \
         {} s. `ours` are VMs that Haulout finds by UUID and follows.",
        rest.as_secs()
    );
    let notes = [
        "Time holds the stand-in's own: it writes each host's properties once and then again from memory, which a vCenter's \
         database does at a pace of its own. The first start of a size pays for it, the median does not.",
        "CPU is counted in hundredths of a second: an idle program that shows 0 used less than that.",
        "The peers follow five properties of a host and the tasks; Haulout also datastores, and where VMs of ours \
         stand, the DRS settings of their clusters and the PCI devices of those clusters' hosts, which is most of its bytes.",
    ];
    let mut notes = notes.map(str::to_owned).to_vec();
    if let Err(why) = &programs.python {
        notes.push(format!("pyVmomi was not measured: {why}."));
    }
    report(&intro, &[("What following costs", &table)], &notes);
    kept.note(intro);
    notes.into_iter().for_each(|note| kept.note(note));
    kept.keep(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("figures"))?;
    Ok(())
}

/// Sets the targets: govmomi's time and calls where Haulout follows hosts only.
fn aim(kept: &mut figures::FigureTable, hosts: usize, vms: usize, ours: usize) {
    let case = format!("{hosts} hosts, {vms} VMs, {ours} of them ours");
    let us = Kind::Stream.name();
    if ours == 0 {
        for what in ["in sync ms", "calls"] {
            kept.compare(&case, what, &Kind::Govmomi.name());
            kept.target(&case, what, &us, 1.0);
        }
    }
    kept.target(&case, "idle MiB", &us, if hosts <= 100 { 32.0 } else { 64.0 });
    kept.target(&case, "idle CPU %", &us, 0.2);
    kept.target(&case, "idle calls/min", &us, 3.0);
}

/// The quantities.
const WHAT: [&str; 8] = [
    "in sync ms",
    "calls",
    "KiB",
    "CPU s",
    "peak MiB",
    "idle MiB",
    "idle CPU %",
    "idle calls/min",
];

/// A client in sync, and the cost of its starts.
struct Started {
    kind: Kind,
    tested: TestedClient,
    taken: [Samples; 8],
}

impl Started {
    /// Starts each of `kinds` in turn, repeatedly, and keeps the last of each running.
    async fn in_turn(
        vcenter: &VcenterSimulator,
        kinds: &[Kind],
        watch: &Watch,
        programs: &Programs,
    ) -> anyhow::Result<Vec<Self>> {
        let mut taken = vec![<[Samples; 8]>::default(); kinds.len()];
        for _ in 1..STARTS {
            for (&kind, taken) in kinds.iter().zip(&mut taken) {
                // Its remaining calls must not count for the next one.
                Self::once(vcenter, kind, watch, programs, taken)
                    .await?
                    .end()
                    .await?;
            }
        }
        let mut started = Vec::new();
        for (&kind, mut taken) in kinds.iter().zip(taken) {
            let tested = Self::once(vcenter, kind, watch, programs, &mut taken).await?;
            started.push(Self { kind, tested, taken });
        }
        Ok(started)
    }

    /// Starts a client once.
    async fn once(
        vcenter: &VcenterSimulator,
        kind: Kind,
        watch: &Watch,
        programs: &Programs,
        taken: &mut [Samples; 8],
    ) -> anyhow::Result<TestedClient> {
        let before = vcenter.traffic(kind.agent()).await?;
        let tested = TestedClient::start(kind, watch, programs)
            .await
            .with_context(|| kind.name())?;
        let after = vcenter.traffic(kind.agent()).await?;
        let calls = vcenter.calls_until(kind.agent(), tested.sync_ns).await?;
        let used = tested.used()?;
        let figures = [
            tested.sync_ms,
            (calls - before.calls) as f64,
            (after.received + after.sent - before.received - before.sent) as f64 / 1024.0,
            used.cpu_seconds,
            used.peak_mib,
        ];
        for (samples, figure) in taken.iter_mut().zip(figures) {
            samples.add(figure);
        }
        Ok(tested)
    }
}

/// The idle cost of each client, measured concurrently: they only wait, and are separated by process and User-Agent.
async fn at_rest(
    vcenter: &VcenterSimulator,
    started: Vec<Started>,
    rest: Duration,
) -> anyhow::Result<Vec<(Kind, [Samples; 8])>> {
    for it in &started {
        vcenter.rests(it.kind.agent()).await?;
    }
    let mut before = Vec::new();
    for it in &started {
        let traffic = vcenter.traffic(it.kind.agent()).await?;
        before.push((it.tested.used()?, traffic));
    }
    sleep(rest).await;
    let mut rows = Vec::new();
    for (it, (began, traffic)) in started.into_iter().zip(before) {
        let (ended, after) = (it.tested.used()?, vcenter.traffic(it.kind.agent()).await?);
        it.tested.end().await?;
        let seconds = rest.as_secs_f64();
        let figures = [
            ended.resident_mib,
            (ended.cpu_seconds - began.cpu_seconds) / seconds * 100.0,
            (after.calls - traffic.calls) as f64 * 60.0 / seconds,
        ];
        let mut taken = it.taken;
        for (samples, figure) in taken.iter_mut().skip(5).zip(figures) {
            samples.add(figure);
        }
        rows.push((it.kind, taken));
    }
    Ok(rows)
}
