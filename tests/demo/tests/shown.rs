//! The demo as a person runs it: the real program, on the simulated cluster and vCenter.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

/// What has to be shown, in this order. Names and times differ from run to run, and so do the lines between.
const SHOWN: [&str; 14] = [
    "Cluster and vCenter are simulated",
    "haulout run is started, and its watches of vCenter and Kubernetes are synced",
    "1. A node moves to another host",
    "the operator clicks Enter Maintenance Mode on esx-0",
    "why esx-3?",
    "from Enter Maintenance Mode until back in service",
    "2. A PodDisruptionBudget blocks a drain",
    "eviction refused, 429 Too Many Requests",
    "an administrator changes PodDisruptionBudget serving",
    "waiting for host esx-1",
    "From Enter Maintenance Mode to the cordon: median",
    "Memory in use when idle",
    "The second maintenance as a trace",
    "and Haulout did the rest",
];

#[test]
fn demo_shows_two_maintenances_and_the_trace_that_was_sent() {
    let demo = Path::new(env!("CARGO_BIN_EXE_demo"));
    let haulout = demo.with_file_name("haulout");
    assert!(
        haulout.is_file(),
        "build it first, as a test of the whole workspace does: cargo build --bin haulout"
    );
    let output = Command::new(demo)
        .arg("--haulout")
        .arg(haulout)
        .env_remove("KEEP")
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}\n{shown}");
    let mut rest = shown.as_str();
    for words in SHOWN {
        let Some((_, after)) = rest.split_once(words) else {
            panic!("{words:?} is missing or comes too early:\n{shown}");
        };
        rest = after;
    }
    let (_, trace) = shown.split_once("The second maintenance as a trace").unwrap();
    for phase in ["drain", "guest shutdown", "power on"] {
        assert!(trace.contains(phase), "no span {phase:?}:\n{trace}");
    }
}
