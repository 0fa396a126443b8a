//! Takes Kubernetes nodes with passthrough GPUs safely through ESXi host maintenance.
pub mod cli;
pub mod cluster;
pub mod config;
pub mod ids;
pub mod keys;
pub mod vsphere;
