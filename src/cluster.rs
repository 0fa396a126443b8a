//! All the Kubernetes that Haulout speaks: watches, the Node's PATCH, pods and their eviction.

pub mod update;
