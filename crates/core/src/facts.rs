//! What both sides tell, as plain types.

pub mod fault;
pub mod kubernetes;
pub mod node_maintenance;
pub mod vsphere;
