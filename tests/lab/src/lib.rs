//! The parts that Haulout is tested against, on loopback: a Kubernetes control plane, a vCenter simulator with real
//! maintenance semantics, and simulated nodes.
//!
//! | module | what it is |
//! |---|---|
//! | [`build`] | builds the Go parts into a cache outside `target/` |
//! | [`python`] | third-party Python programs, installed into the same cache |
//! | [`tools`] | optional tools, and how a test is skipped without one |
//! | [`process`] | a child process that never outlives its parent |
//! | [`run_dir`], [`ports`] | a run's temporary directory, and loopback ports that no other run uses |
//! | [`wait`] | waits for a condition with a timeout |
//! | [`fault_proxy`] | proxies before both servers that stop at the k-th request that changes something |
//! | [`byte_proxy`] | a TLS proxy before one server that breaks single connections and replies |
//! | [`kube`] | etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with RBAC and an audit log |
//! | [`vcenter`] | govmomi's simulator, and what it lacks around host maintenance |
//! | [`kubelet`] | a simulated kubelet: a Node follows the power of a VM |
//! | [`real_kubelet`] | a real kubelet with containerd in namespaces that follow the power of a VM |
//! | `cloud_provider` | writes the addresses of Nodes with a real kubelet |
//! | [`cluster_api`] | Cluster API's controllers, with a stand-in for its vSphere provider |
//! | [`foreign_kinds`] | the NodeMaintenance kinds of other projects |
//! | [`stand_ins`] | stand-ins for other controllers that act on a Node in maintenance |
//! | [`kubelet_server`] | the server of a kubelet, for port-forward |
//! | [`volumes`] | volumes that kube-controller-manager and CSI's external-attacher attach and detach |
//! | [`jaeger`] | a tracing backend with its query API |
//! | [`zipkin`] | a tracing UI, fetched by Maven |
//! | [`clock`] | a wall clock for a program under test, which a test can step |
//! | [`figures`] | statistics and tables of the benches |
//! | [`text_table`] | tables as text |
//! | [`otlp_proxy`] | a proxy before a trace collector that stops at one request |
//! | [`fixture`] | a vCenter, its nodes in the cluster, and Haulout's real binary between them |
//! | [`scenario`] | runs the scenarios of a test program in one cluster |

// The demo needs them as well, and runs without the lab.
pub use haulout_show::{process, run_dir, wait};

pub mod build;
pub mod byte_proxy;
pub mod clock;
mod cloud_provider;
pub mod cluster_api;
pub mod fault_proxy;
pub mod figures;
pub mod fixture;
pub mod foreign_kinds;
pub mod jaeger;
pub mod kube;
pub mod kubelet;
pub mod kubelet_server;
pub mod otlp_proxy;
pub mod ports;
pub mod python;
pub mod real_kubelet;
pub mod scenario;
pub mod stand_ins;
pub mod text_table;
pub mod tools;
pub mod vcenter;
pub mod volumes;
pub mod zipkin;
