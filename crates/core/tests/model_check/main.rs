//! A model check: every order of events within the limits, through the real inventory and the real `decide`.
//!
//! The world has two nodes, each with its host and its VM, and two replicas. A replica decides on what it has seen, which may be out
//! of date. What it sends arrives later, also after another replica leads. In every state:
//! - the power is not cut while there are pods that have to be drained, unless the drain has timed out;
//! - a cordon that a person has set is not removed;
//! - only the VM of the node itself is touched.
//!
//! From every state in which only time can change something, a continuation without faults is run until nothing changes. Each node
//! then is in service with its VM on and cordoned as a person left it, or it is parked.
//!
//! Each negative control takes one guarantee of the environment away, and a violation has to be found. The program stays the same.
//!
//! What the model leaves out: placement on other hosts (the nodes wait for their own), requests, deleted Nodes and copies of records;
//! the random histories of the laws have these. The watch of pods is never behind, because no check can close the milliseconds between
//! its event and a cut. A guest that stops later than anybody waits for it may stop with pods; its VM has to come back.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    unreachable_pub,
    reason = "a test fails by panicking, asks about its one case, and is used by no other crate"
)]

mod actions;
mod search;
mod world;

use std::time::Duration;

use haulout_core::fixtures;
use haulout_core::maintenance::policy::{DrainTimeoutAction, Policy};

use search::{Found, search};

/// How often each event may happen on one path.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Hosts enter maintenance.
    pub enters: u8,
    /// Time passes until the next decision is due.
    pub waits: u8,
    /// Pods are scheduled.
    pub pods: u8,
    /// All of the following together.
    pub faults: u8,
    pub cancels: u8,
    /// Crashes and losses of the leadership.
    pub crashes: u8,
    /// Lost events.
    pub losses: u8,
    /// Cordons by persons, and as many uncordons.
    pub cordons: u8,
    /// Bindings in flight at the cordon.
    pub slips: u8,
    pub clock_steps: u8,
}

/// What the environment guarantees.
#[derive(Clone, Copy, Debug)]
pub struct Controls {
    /// The kube-apiserver refuses a write to another version than the current one.
    pub compare_and_set: bool,
    /// A new leader waits until the requests of the previous one have arrived.
    pub quarantine: bool,
    /// After a lost event, everything is listed again.
    pub healing: bool,
    /// The list right before a cut shows the pods that are there.
    pub drain_proof: bool,
}

impl Limits {
    /// Nothing happens but what has begun.
    pub const CALM: Self = Self {
        enters: 0,
        waits: 0,
        pods: 0,
        faults: 0,
        cancels: 0,
        crashes: 0,
        losses: 0,
        cordons: 0,
        slips: 0,
        clock_steps: 0,
    };

    /// One maintenance, with this many faults of any kind.
    fn with_faults(faults: u8) -> Self {
        Self {
            enters: 1,
            // With two faults and two waits there are more than 850,000 states, which need several GB.
            waits: if faults > 1 { 1 } else { 2 },
            pods: 1,
            faults,
            cancels: 2,
            crashes: 2,
            losses: 1,
            cordons: 1,
            slips: 1,
            clock_steps: 1,
        }
    }
}

impl Controls {
    const ALL: Self = Self {
        compare_and_set: true,
        quarantine: true,
        healing: true,
        drain_proof: true,
    };
}

/// The usual settings with short timeouts, so that a few waits pass each of them.
pub fn policy() -> Policy {
    Policy {
        drain_timeout: Duration::from_secs(20),
        guest_shutdown_timeout: Duration::from_secs(10),
        power_off_timeout: Duration::from_secs(20),
        power_on_timeout: Duration::from_secs(60),
        node_monitor_grace: Duration::from_secs(10),
        unanswered_for: Duration::from_secs(10),
        ..fixtures::policy(DrainTimeoutAction::PowerOff)
    }
}

/// `HAULOUT_MODEL_CHECK_FAULTS` for a longer search.
fn faults() -> u8 {
    let set = std::env::var("HAULOUT_MODEL_CHECK_FAULTS").ok();
    set.and_then(|count| count.parse().ok()).unwrap_or(1)
}

fn holds(found: &Found) {
    println!("{found}");
    if let Some(violation) = &found.violation {
        panic!("{violation}");
    }
    // A search that does not get this far shows nothing.
    for phase in [
        "inService",
        "Draining",
        "ShuttingDown",
        "AwaitingHost",
        "PoweringOn",
        "Rejoining",
    ] {
        assert!(found.phases.contains_key(phase), "{phase} was not reached");
    }
    assert!(found.rests > 0, "no state is at rest");
}

/// A negative control: the search has to find this violation.
fn finds(what: &str, limits: Limits, controls: Controls) {
    let found = search(limits, controls);
    println!("{found}");
    let violation = found.violation.expect("the control finds nothing");
    println!("{violation}");
    assert!(violation.what.contains(what), "another violation: {violation}");
}

#[test]
fn every_order_of_events_and_faults_is_safe_and_comes_to_rest() {
    holds(&search(Limits::with_faults(faults()), Controls::ALL));
}

#[test]
fn maintenances_of_two_hosts_are_safe_in_every_order() {
    let limits = Limits {
        enters: 2,
        waits: 1,
        ..Limits::with_faults(faults().saturating_sub(1))
    };
    holds(&search(limits, Controls::ALL));
}

#[test]
fn without_compare_and_set_a_cordon_of_a_person_is_lost() {
    let controls = Controls {
        compare_and_set: false,
        ..Controls::ALL
    };
    finds("the cordon of a person", Limits::with_faults(1), controls);
}

#[test]
fn without_quarantine_a_late_request_stops_a_node_with_pods() {
    let limits = Limits {
        crashes: 1,
        faults: 1,
        enters: 1,
        waits: 2,
        pods: 1,
        ..Limits::CALM
    };
    let controls = Controls {
        quarantine: false,
        ..Controls::ALL
    };
    finds("pods that were not drained", limits, controls);
}

#[test]
fn without_healing_a_lost_event_leaves_a_vm_off() {
    let controls = Controls {
        healing: false,
        ..Controls::ALL
    };
    finds("stays off", Limits::with_faults(1), controls);
}

#[test]
fn without_the_drain_proof_a_node_is_stopped_with_pods() {
    let controls = Controls {
        drain_proof: false,
        ..Controls::ALL
    };
    finds("pods that were not drained", Limits::with_faults(1), controls);
}
