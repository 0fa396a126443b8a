//! Takes Kubernetes nodes with passthrough GPUs safely through ESXi host maintenance.
pub mod cli;
pub mod cluster;
pub mod config;
pub mod ids;
pub mod keys;

pub mod cluster;
pub mod vsphere;

pub mod inventory;
pub mod maintenance;

pub mod actor;
pub mod world;

pub mod app;
pub mod cli;
pub mod config;
pub mod telemetry;
