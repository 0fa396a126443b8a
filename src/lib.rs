//! Takes Kubernetes nodes with passthrough GPUs safely through ESXi host maintenance.
pub mod actor;
pub mod cluster;
pub mod ids;
pub mod inventory;
pub mod keys;
pub mod maintenance;
pub mod vsphere;
pub mod world;
