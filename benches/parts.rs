//! The parts of the data flow: decoding an update set, updating the inventory, deciding, and the record in
//! annotations.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a bench is a program for a person at a prompt"
)]

use std::alloc::System;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use criterion::{Criterion, Throughput};
use haulout::inventory::{Fact, Inventory};
use haulout::maintenance::clock::Now;
use haulout::maintenance::decide::decide;
use haulout::maintenance::episode::{Phase, Record};
use haulout::maintenance::observed::{HostState, LeadershipEpoch, PowerState};
use haulout::maintenance::policy::DrainTimeoutAction;
use haulout::maintenance::record;
use haulout::vsphere::fuzz::{Decoded, update_set};
use haulout::vsphere::update::VsphereUpdate;
use haulout_core::fixtures;
use haulout_lab::figures::{FigureTable, Samples, is_quick};
use quick_xml::Reader;
use quick_xml::events::Event;
use quick_xml::reader::NsReader;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[path = "support/large_inventory.rs"]
mod large_inventory;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const CAPTURE: &str = include_str!("../proto-notes/captures/hosts-first-set.xml");

/// vCenter's limit of objects in one set has this size.
const OBJECTS: usize = 100;

/// A vCenter's published maximum of hosts, and the number of hosts with a node.
const HOSTS: usize = 2_500;
const OURS: usize = 1_000;

const CASE: &str = "100 objects";
const FLEET: &str = "2,500 hosts, 1,000 nodes";
const TIME: &str = "us";

fn main() -> anyhow::Result<()> {
    // `cargo test --benches` runs a bench without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let text = repeated()?;
    let set = decoded(&text)?;
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("criterion");
    let mut criterion = Criterion::default().output_directory(&home).without_plots();
    if is_quick() {
        criterion = criterion
            .sample_size(20)
            .warm_up_time(std::time::Duration::from_millis(300))
            .measurement_time(std::time::Duration::from_secs(1));
    }
    let mut parts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut measure = |name: &'static str, bytes: Option<usize>, part: &mut dyn FnMut()| {
        let region = Region::new(ALLOCATOR);
        part();
        let change = region.change();
        parts.insert(
            name,
            u64::try_from(change.allocations + change.reallocations).unwrap(),
        );
        let mut group = criterion.benchmark_group("parts");
        if let Some(bytes) = bytes {
            group.throughput(Throughput::Bytes(u64::try_from(bytes).unwrap()));
        }
        group.bench_function(name, |bencher| bencher.iter(&mut *part));
        group.finish();
    };

    measure("walk", Some(text.len()), &mut || {
        black_box(walk(black_box(&text)));
    });
    measure("walk_resolved", Some(text.len()), &mut || {
        black_box(walk_resolved(black_box(&text)));
    });
    measure("decode", Some(text.len()), &mut || {
        black_box(decoded(black_box(&text)).unwrap());
    });
    measure("fold", None, &mut || {
        black_box(folded(black_box(&set)));
    });
    // One property of a host changes, and the snapshots of all nodes are built.
    let mut inventory = inventory();
    large_inventory::fill(&mut inventory, HOSTS, OURS, now());
    let mut host = fixtures::host(0);
    measure("changed_host", None, &mut || {
        host.in_quarantine = host.in_quarantine.map(|is| !is);
        let host = VsphereUpdate::Host(host.clone().into());
        black_box(inventory.advance(
            [Fact::Vsphere(host), Fact::Vsphere(VsphereUpdate::Settled)],
            now(),
        ));
    });
    let policy = fixtures::policy(DrainTimeoutAction::PowerOff);
    let episode = fixtures::episode(Phase::Draining, 0);
    let records = [Record::InService, fixtures::record(episode)];
    let observed = fixtures::observed(
        fixtures::node(),
        fixtures::vm(Some(PowerState::On), HostState::InService),
    );
    let leaving = fixtures::observed(
        fixtures::node(),
        fixtures::vm(Some(PowerState::On), fixtures::entering()),
    );
    measure("decide_at_rest", None, &mut || {
        black_box(decide(
            &records[0],
            black_box(&observed),
            &policy,
            fixtures::moment(10),
        ));
    });
    measure("decide_draining", None, &mut || {
        black_box(decide(
            &records[1],
            black_box(&leaving),
            &policy,
            fixtures::moment(10),
        ));
    });
    measure("record_write", None, &mut || {
        black_box(record::write(black_box(&records[1]), fixtures::at(10)));
    });
    let written = record::write(&records[1], fixtures::at(10));
    measure("record_read", None, &mut || {
        black_box(record::read_record(black_box(&written)));
    });

    let mut table = FigureTable::new("parts");
    for (name, allocations) in parts {
        let samples = samples(&home, name)?;
        let case = if name.contains("host") { FLEET } else { CASE };
        table.row(case, name, TIME, &samples);
        let counted = f64::from(u32::try_from(allocations)?);
        table.row(case, name, "allocations", &[counted].into_iter().collect());
        if ["walk", "walk_resolved", "decode"].contains(&name) {
            let megabytes = f64::from(u32::try_from(text.len())?) / 1e6;
            let speed = samples.median().map(|median| megabytes / (median / 1e6));
            table.row(CASE, name, "MB/s", &speed.into_iter().collect());
        }
    }
    let base = table
        .rows
        .iter()
        .find(|row| row.who == "walk" && row.what == TIME)
        .and_then(|row| row.median);
    for row in &mut table.rows {
        if ["decode", "walk_resolved"].contains(&&*row.who) && row.what == TIME {
            row.ratio = row.median.zip(base).map(|(median, base)| median / base);
            row.target = (row.who == "decode").then_some(3.0);
        }
        if row.who.starts_with("decide") && row.what == TIME {
            row.target = Some(1.0);
        }
    }
    table.note(format!(
        "{} bytes: the objects of proto-notes/captures/hosts-first-set.xml, repeated until there are {OBJECTS}.",
        text.len()
    ));
    table.note("walk is quick-xml reading every event of the same bytes and doing nothing with it; walk_resolved also finds out the namespace of each element, which no reader of SOAP can do without.");
    println!("{}", table.markdown());
    table.keep(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("figures"))?;
    Ok(())
}

/// The captured set with its objects repeated.
fn repeated() -> anyhow::Result<String> {
    const CLOSE: &str = "</objectSet>";
    let from = CAPTURE.find("<objectSet>").context("the capture has no object")?;
    let to = CAPTURE.rfind(CLOSE).context("the capture has no object")? + CLOSE.len();
    let (head, rest) = CAPTURE.split_at(from);
    let (objects, tail) = rest.split_at(to - from);
    let objects: String = objects.split_inclusive(CLOSE).cycle().take(OBJECTS).collect();
    Ok(format!("{head}{objects}{tail}"))
}

fn walk(text: &str) -> usize {
    let mut reader = Reader::from_str(text);
    let mut events = 0;
    loop {
        match reader.read_event() {
            Ok(Event::Eof) | Err(_) => return events,
            Ok(event) => {
                black_box(&event);
                events += 1;
            }
        }
    }
}

/// The same with namespace resolution by quick-xml.
fn walk_resolved(text: &str) -> usize {
    let mut reader = NsReader::from_str(text);
    let mut events = 0;
    loop {
        match reader.read_event() {
            Ok(Event::Eof) | Err(_) => return events,
            Ok(event) => {
                if let Event::Start(start) | Event::Empty(start) = &event {
                    black_box(reader.resolver().resolve_element(start.name()));
                }
                black_box(&event);
                events += 1;
            }
        }
    }
}

fn decoded(text: &str) -> anyhow::Result<Decoded> {
    update_set(text.as_bytes())?.context("nothing happened in it")
}

fn folded(set: &Decoded) -> usize {
    let mut inventory = inventory();
    let updates = set.updates().into_iter().chain([VsphereUpdate::Settled]);
    let changes = inventory.advance(updates.map(Fact::Vsphere), now());
    changes.built.map_or(0, |built| built.snapshots.len())
}

fn inventory() -> Inventory {
    let mut inventory = Inventory::new(fixtures::inventory_settings(), fixtures::at(0));
    inventory.advance([Fact::Leadership(Some(LeadershipEpoch::ALONE))], now());
    inventory
}

fn now() -> Now {
    fixtures::moment(0)
}

/// Criterion's samples in microseconds per iteration.
fn samples(home: &Path, name: &str) -> anyhow::Result<Samples> {
    #[derive(serde::Deserialize)]
    struct Sample {
        iters: Vec<f64>,
        times: Vec<f64>,
    }
    let path: PathBuf = home.join("parts").join(name).join("new/sample.json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let sample: Sample = serde_json::from_str(&text)?;
    Ok(sample
        .times
        .iter()
        .zip(&sample.iters)
        .map(|(time, iters)| time / iters / 1e3)
        .collect())
}
