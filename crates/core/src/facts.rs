//! The facts of vCenter and Kubernetes, as plain types.

pub mod fault;
pub mod kubernetes;
pub mod node_maintenance;
pub mod vsphere;
