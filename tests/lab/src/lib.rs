//! The real parts Haulout is tested against: a Kubernetes control plane and nodes that boot, on loopback only.
//!
//! | module | what it is |
//! |---|---|
//! | [`build`] | builds the Go parts into a cache outside `target/` |
//! | [`process`] | a child process that never outlives whoever started it |
//! | [`run_dir`], [`ports`] | a run's temporary directory, and loopback ports that no other run takes |
//! | [`wait`] | waits for a fact, with a deadline |
//! | [`kube`] | etcd, kube-apiserver and kube-controller-manager, with RBAC and an audit log |
//! | [`kubelet`] | ties a VM's power to a Node's life |

pub mod build;
pub mod kube;
pub mod kubelet;
pub mod ports;
pub mod process;
pub mod run_dir;
pub mod wait;
