//! Scenarios of the real binary against a real kube-apiserver and a vCenter simulator with real maintenance semantics.
//!
//! They run in parallel in one cluster, each with its own fixture.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    unreachable_pub,
    reason = "a test fails by panicking, asks about its one case, and is used by no other crate"
)]

mod admission;
mod approvals;
mod assertions;
mod busy_vm;
mod byte_faults;
mod cancel;
mod clock_steps;
mod crash_recovery;
mod drain;
mod drain_policy;
mod drain_proof;
mod drives;
mod dry_run;
mod end_by_hand;
mod evacuation;
mod events;
mod fixture;
mod foreign_maintenances;
mod graceful_shutdown;
mod guards;
mod hooks;
mod host_lifecycle;
mod host_maintenance;
mod in_flight;
mod kubectl_plugin;
mod kubevirt;
mod lagging_apiserver;
mod leader_api;
mod leader_election;
mod leadership;
mod logging;
mod metrics;
mod neighbours;
mod node_boot;
mod node_edits;
mod notifications;
mod nvsentinel;
mod openshift;
mod otlp_outage;
mod physical_nodes;
mod placement;
mod pod_cleanup;
mod proxies;
mod python_migration;
mod reconnects;
mod requests;
mod rolling_upgrade;
mod sentinel;
mod server_restarts;
mod silences;
mod stand_ins;
mod static_devices;
mod status_page;
mod task_history;
mod tolerant_pods;
mod unhandled_modes;
mod untrusted_input;
mod user_cordon;
mod vcenter_attribute;
mod vcenter_events;
mod vcenter_session;
mod vgpu;
mod vm_identity;
mod vmotion;
mod volumes;
mod windows;
