//! Runs the whole controller in simulated time against a simulated vCenter and kube-apiserver.
//!
//! ```text
//! plan (what a seed decides) ─▶ run ─┬─▶ Controller, one for each replica ─▶ soap, kube_api (bytes) ─┐
//!                                    └─▶ world: queue of events ◀─ people, faults, vcenter, cluster ◀─┘
//!                                          └─▶ oracle (rules), account (how often), story (what happened)
//! ```
//!
//! Nothing of the controller is replaced but its connections and clocks. Each run has one thread and a runtime whose time is
//! paused: the time moves to the next timer whenever all tasks wait. The same seed gives the same run.

// The rules of the simulation are its tests.
#![allow(clippy::missing_errors_doc, reason = "the only error is a wrong plan")]

pub mod account;
pub mod adversary;
pub mod clock;
pub mod cluster;
pub mod cluster_faults;
pub mod collector;
pub mod faults;
pub mod garbled;
pub mod holds;
pub mod incidents;
pub mod kube_api;
pub mod kubelets;
pub mod late;
pub mod oracle;
pub mod outage;
pub mod overrides;
pub mod people;
pub mod plan;
pub mod properties;
pub mod rest;
pub mod run;
pub mod said;
pub mod sentinels;
pub mod soap;
pub mod store;
pub mod story;
pub mod twin;
pub mod vcenter;
pub mod vcenter_faults;
pub mod world;
pub mod xml;
