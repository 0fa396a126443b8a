//! Entries of the fuzz targets in `crates/core/fuzz/`. A kubelet may write any text into the annotations of its Node, and everybody who
//! may create a NodeMaintenance any window.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::facts::kubernetes::NodeAnnotations;
use crate::facts::window::Window;
use crate::fixtures;
use crate::ids::VmRef;
use crate::maintenance::decide::{Decision, decide};
use crate::maintenance::effect::Effect;
use crate::maintenance::episode::Record;
use crate::maintenance::observed::{BoundVm, HostState, Observed, PowerState};
use crate::maintenance::policy::DrainTimeoutAction;
use crate::maintenance::record::{read_record, write};

/// The files below `folder` that are not the seeds of this name and content. Writes them if `HAULOUT_WRITE_REFERENCE` is set.
///
/// # Errors
/// If a file cannot be written.
pub fn outdated_seeds<S: AsRef<[u8]>>(folder: &Path, seeds: &[(String, S)]) -> io::Result<Vec<String>> {
    let mut outdated = Vec::new();
    for (name, content) in seeds {
        let file = folder.join(name);
        if std::env::var_os("HAULOUT_WRITE_REFERENCE").is_some() {
            std::fs::create_dir_all(file.parent().unwrap_or(folder))?;
            std::fs::write(&file, content)?;
        }
        if !std::fs::read(&file).is_ok_and(|kept| kept == content.as_ref()) {
            outdated.push(name.clone());
        }
    }
    Ok(outdated)
}

/// The most bytes that a written record has more than the one that was read: each write adds to the history at most one phase.
const GROWTH_MAX: usize = 4 * 1024;

/// The seconds at which is decided: before the record was written, soon after, and after every deadline.
const MOMENTS: [i64; 3] = [0, 100, 10_000_000];

/// Reads `json` as the episode of a Node, and decides from it.
///
/// # Panics
/// If a record that is read is written differently, grows, or leads to an effect on a VM that is not the node's own.
pub fn record(json: &str) {
    let record = read_record(&annotations(json));
    if let Record::Episode(_) = &record {
        let written = write_again(&record, json.len());
        assert_eq!(
            read_record(&annotations(&written)),
            read_record(&annotations(&write_again(
                &read_record(&annotations(&written)),
                written.len()
            ))),
            "what is written is read back"
        );
    }
    for (vm, at) in vms().iter().flat_map(|vm| MOMENTS.map(|at| (vm, at))) {
        decide_from(&record, vm, at, json.len());
    }
}

fn annotations(json: &str) -> NodeAnnotations {
    NodeAnnotations {
        episode: Some(json.to_owned()),
        ..NodeAnnotations::default()
    }
}

/// What is written for a record whose JSON had `length` bytes.
fn write_again(record: &Record, length: usize) -> String {
    let written = write(record, fixtures::at(0)).episode.unwrap_or_default();
    assert!(
        written.len() <= length.saturating_mul(2) + GROWTH_MAX,
        "{length} bytes became {}",
        written.len()
    );
    written
}

/// The VM of a node in each state, and a node without one.
fn vms() -> Vec<BoundVm> {
    let hosts = [
        fixtures::entering(),
        HostState::InMaintenance,
        HostState::InService,
    ];
    let powers = [
        Some(PowerState::On),
        Some(PowerState::Off),
        Some(PowerState::Suspended),
    ];
    let mut vms: Vec<BoundVm> = hosts
        .iter()
        .flat_map(|host| powers.map(|power| BoundVm::Found(fixtures::vm(power, host.clone()))))
        .collect();
    vms.push(BoundVm::Missing { was_known: true });
    vms.push(BoundVm::NoVm);
    vms.push(BoundVm::NotLookedUp);
    vms
}

fn decide_from(record: &Record, vm: &BoundVm, at: i64, length: usize) {
    let mut now = fixtures::moment(at);
    for node in [Some(fixtures::node()), None] {
        let seen = Observed::of(node, vm.clone(), fixtures::moment(0));
        let mut record = record.clone();
        // A decision writes a record first, and then acts.
        for _ in 0..8 {
            match decide(
                &record,
                &seen,
                &fixtures::policy(DrainTimeoutAction::PowerOff),
                now,
            ) {
                Decision::Write(transition) => {
                    if matches!(transition.record, Record::Episode(_)) {
                        write_again(&transition.record, length);
                    }
                    record = transition.record;
                }
                Decision::Act { effect, .. } => {
                    let own = vm.found().map(|vm| &vm.moref);
                    let acts_on = vm_of(&effect);
                    assert!(
                        acts_on.is_none() || acts_on == own,
                        "{effect:?} on a VM that is not that of the node: {own:?}"
                    );
                    break;
                }
                Decision::Wait { .. } | Decision::Idle => break,
            }
        }
        now.monotonic = now.monotonic.after(Duration::from_secs(1));
    }
}

/// The VM that an effect changes.
fn vm_of(effect: &Effect) -> Option<&VmRef> {
    match effect {
        Effect::ShutdownGuest { vm, .. }
        | Effect::PowerOff { vm, .. }
        | Effect::Relocate { vm, .. }
        | Effect::Reconfigure { vm, .. }
        | Effect::PowerOn { vm, .. } => Some(vm),
        Effect::DrainRound { .. }
        | Effect::ListVolumes
        | Effect::Survey { .. }
        | Effect::SetMachineGuards { .. }
        | Effect::RemoveMachineGuards { .. }
        | Effect::ClearGpus { .. } => None,
    }
}

/// Reads `text` as a window.
///
/// # Panics
/// If a window that is read is shown differently, or opens or closes in the past.
pub fn window(text: &str) {
    let Ok(window) = text.parse::<Window>() else {
        return;
    };
    let shown = window.to_string();
    assert_eq!(shown.parse::<Window>().as_ref(), Ok(&window), "{shown}");
    for seconds in [0, 1_000_000_000, 1_900_000_000, 4_000_000_000] {
        let from = fixtures::at(seconds);
        let opens = window.open_at(from);
        assert!(opens >= from && window.closed_at(from).is_none_or(|closes| closes >= from));
    }
}

#[cfg(test)]
mod tests;
