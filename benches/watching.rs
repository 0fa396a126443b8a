//! What following costs, and how it grows: from start to in sync, and then at rest, in hosts, in the vCenter's VMs and in
//! our own, beside govmomi's waiter over the same hosts. `QUICK=1` rests for less long.
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::time::{Duration, Instant};

use anyhow::Context as _;
use haulout_lab::kube::{Kube, Options as KubeOptions};
use haulout_lab::vcenter::{Collector, Crowd, Options, Spec, Tls, Vcenter};
use tokio::time::sleep;

use self::detection::contender::{self, Watch};
use self::detection::peer::{Contender, Kind, Programs};
use self::detection::table::{Table, figure, quantile, report, say};

#[allow(dead_code, reason = "each bench uses its part")]
mod detection {
    pub mod contender;
    pub mod peer;
    pub mod table;
}

/// Hosts, VMs of the vCenter, and VMs of ours. The last is a vCenter's published maximum of hosts and of VMs; beside it,
/// each of the three grows while the others stand.
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

/// Starts of each; the median is told.
const STARTS: usize = 5;

fn main() -> anyhow::Result<()> {
    let began = Instant::now();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(ended) = contender::run(began, &words) {
        return ended;
    }
    // An idle stream reads again each half minute; less than that shows nothing.
    let quick = contender::is_quick(&words);
    let rest = Duration::from_secs(if quick { 35 } else { 300 });
    tokio::runtime::Runtime::new()?.block_on(measure(rest))
}

async fn measure(rest: Duration) -> anyhow::Result<()> {
    let programs = Programs::find().await?;
    // Only its authority is needed here, for the stand-in's certificate.
    let kube = Kube::start(&KubeOptions::default()).await?;
    let mut table = Table::new(&[
        "hosts",
        "VMs",
        "ours",
        "contender",
        "in sync ms",
        "calls",
        "KiB",
        "CPU s",
        "peak MiB",
        "idle MiB",
        "idle CPU %",
        "idle calls/min",
    ]);
    for &(hosts, vms, ours) in SIZES {
        say(&format!("{hosts} hosts, {vms} VMs, {ours} of them ours …"));
        let (cert, key) = kube.server_certificate(&format!("vcenter-{hosts}-{vms}-{ours}"))?;
        let spec = Spec {
            crowd: Some(Crowd { hosts, vms }),
            ..Spec::default()
        };
        let options = Options {
            tls: Some(Tls { cert, key }),
            collector: Collector::Own,
            ..Options::default()
        };
        let program = haulout_lab::build::part("vcenter").await?;
        let vcenter = Vcenter::start(&program, &spec, options).await?;
        let host = vcenter
            .state()
            .await?
            .host(&Crowd::host(0))
            .map(|host| host.reference.clone());
        let watch = Watch {
            sdk: vcenter.sdk().to_owned(),
            ca: kube.authority().to_owned(),
            user: vcenter.user().to_owned(),
            password: vcenter.password().to_owned(),
            host: host.context("the crowd has no host")?,
            ours,
        };
        for kind in [Kind::Stream, Kind::Govmomi, Kind::Pyvmomi] {
            // The peers follow hosts alone; they stand beside Haulout where Haulout does too.
            let there = kind != Kind::Pyvmomi || programs.python.is_ok();
            if kind == Kind::Stream || ours == 0 && there {
                table.row(row(&vcenter, kind, &watch, &programs, rest, &[hosts, vms, ours]).await?);
            }
        }
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
        "The peers follow five properties of a host and the tasks; Haulout also datastores and PCI devices, and the \
         clusters' DRS settings, which is most of its bytes.",
    ];
    let mut notes = notes.map(str::to_owned).to_vec();
    if let Err(why) = &programs.python {
        notes.push(format!("pyVmomi was not measured: {why}."));
    }
    report("watching", &intro, &[("What following costs", &table)], &notes)
}

async fn row(
    vcenter: &Vcenter,
    kind: Kind,
    watch: &Watch,
    programs: &Programs,
    rest: Duration,
    sizes: &[usize],
) -> anyhow::Result<Vec<String>> {
    let (mut sync, mut calls, mut kib, mut cpu, mut peak) = (vec![], vec![], vec![], vec![], vec![]);
    let mut last = None;
    for _ in 0..STARTS {
        let before = vcenter.traffic(kind.agent()).await?;
        let contender = Contender::start(kind, watch, programs)
            .await
            .with_context(|| kind.name())?;
        let after = vcenter.traffic(kind.agent()).await?;
        let used = contender.used()?;
        sync.push(contender.sync_ms);
        calls.push((after.calls - before.calls) as f64);
        kib.push((after.received + after.sent - before.received - before.sent) as f64 / 1024.0);
        cpu.push(used.cpu_seconds);
        peak.push(used.peak_mib);
        if let Some(previous) = last.replace(contender) {
            let previous: Contender = previous;
            previous.end().await?;
        }
    }
    let contender = last.context("no start")?;
    let (began, traffic) = (contender.used()?, vcenter.traffic(kind.agent()).await?);
    sleep(rest).await;
    let (ended, now) = (contender.used()?, vcenter.traffic(kind.agent()).await?);
    contender.end().await?;
    let seconds = rest.as_secs_f64();
    let mut cells: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    cells.push(kind.name());
    cells.extend([&sync, &calls, &kib, &cpu, &peak].map(|taken| figure(quantile(taken, 0.5))));
    cells.push(figure(ended.resident_mib));
    cells.push(figure((ended.cpu_seconds - began.cpu_seconds) / seconds * 100.0));
    cells.push(figure((now.calls - traffic.calls) as f64 * 60.0 / seconds));
    Ok(cells)
}
