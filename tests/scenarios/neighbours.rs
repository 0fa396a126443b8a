//! Scenarios that need more of the lab than the cluster and the vCenter, or a program of the machine: `make test-neighbours`
//! runs them, and `make test` does not.

mod alertmanager;
mod browser;
mod cluster_api;
mod csi;
mod events;
mod memory;
mod page_states;
mod probe;
mod promtool;
mod real_kubelet;
mod screenshots;
mod status_page;
mod traces;
