//! The real parts Haulout is tested against: a Kubernetes control plane, a vCenter that hangs as a real one does, and
//! nodes that boot, on loopback only.
//!
//! | module | what it is |
//! |---|---|
//! | [`build`] | builds the Go parts into a cache outside `target/` |
//! | [`python`] | Python programs of others, installed into the same cache |
//! | [`tools`] | tools that the machine may lack, and what a test does without one |
//! | [`process`] | a child process that never outlives whoever started it |
//! | [`run_dir`], [`ports`] | a run's temporary directory, and loopback ports that no other run takes |
//! | [`wait`] | waits for a fact, with a deadline |
//! | [`fault_proxy`] | stops what passes to either server at the k-th request that changes something |
//! | [`kube`] | etcd, kube-apiserver and kube-controller-manager, with RBAC and an audit log |
//! | [`vcenter`] | govmomi's simulator, and what it lacks around host maintenance |
//! | [`kubelet`] | ties a VM's power to a Node's life |
//! | [`jaeger`] | a tracing backend, asked by its own query API |
//! | [`zipkin`] | pages for traces, made by a tracing UI that Maven fetches |
//! | [`clock`] | a wall clock for a program under test, which a test can step |
//! | [`figures`] | the arithmetic of what benches measure, and the table that shows it |
//! | [`table`] | tables as text |
//! | [`otlp_proxy`] | stops what passes to a collector of traces at one request |
//! | [`fixture`] | a vCenter, its nodes in the cluster, and Haulout's real binary between them |

pub mod build;
pub mod clock;
pub mod fault_proxy;
pub mod figures;
pub mod fixture;
pub mod jaeger;
pub mod kube;
pub mod kubelet;
pub mod otlp_proxy;
pub mod ports;
pub mod process;
pub mod python;
pub mod run_dir;
pub mod text_table;
pub mod tools;
pub mod vcenter;
pub mod wait;
pub mod zipkin;
