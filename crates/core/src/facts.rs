//! The facts of vCenter and Kubernetes, as plain types.

pub mod device_slice;
pub mod fault;
pub mod foreign_maintenance;
pub mod gpu_resources;
pub mod hook;
pub mod known_pods;
pub mod kubernetes;
pub mod node_condition;
pub mod node_guard;
pub mod node_maintenance;
pub mod permit;
pub mod requested_maintenance;
pub mod vsphere;
pub mod window;
