//! What the demo asks of the vCenter and of the cluster. Real programs answer, or simulated ones.

use std::time::Duration;

use jiff::Timestamp;

use crate::traces::Span;

/// A host with its GPU.
#[derive(Debug, Clone)]
pub struct Host {
    /// The cluster of vCenter.
    pub cluster: String,
    pub name: String,
    /// The model of its GPU.
    pub gpu: String,
    /// The VM that uses the GPU.
    pub holder: Option<String>,
    /// Whether it is in maintenance mode.
    pub in_maintenance: bool,
}

#[derive(Debug, Clone)]
pub struct Vm {
    pub name: String,
    /// The host on which it is registered.
    pub host: String,
    /// Whether it runs.
    pub on: bool,
}

/// What vCenter shows.
#[derive(Debug, Clone)]
pub struct Inventory {
    pub hosts: Vec<Host>,
    pub vms: Vec<Vm>,
}

impl Inventory {
    pub(crate) fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    pub(crate) fn vm(&self, name: &str) -> Option<&Vm> {
        self.vms.iter().find(|vm| vm.name == name)
    }
}

/// A node with its VM, on the host on which it is before the demo.
#[derive(Debug, Clone)]
pub struct Member {
    pub vm: String,
    pub node: String,
    /// The host.
    pub home: String,
}

/// The parts that the nodes of the demo play.
#[derive(Debug, Clone)]
pub struct Cast {
    /// What runs, in one or two sentences.
    pub datacenter: &'static str,
    /// The node that moves.
    pub mover: Member,
    /// The host that it moves to, the only one with a free GPU of its kind.
    pub target: String,
    /// The node that waits for its host.
    pub waiter: Member,
    /// The node whose maintenance is cancelled, again and again.
    pub clicked: Member,
    /// The label of the nodes.
    pub label: String,
    /// The namespace of their pods.
    pub namespace: String,
    /// What `KEEP=1` would leave running.
    pub kept: &'static str,
}

/// What the operator clicks on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Click {
    /// Enter Maintenance Mode.
    Enter,
    /// Cancel, on the task of it.
    Cancel,
    /// Exit Maintenance Mode.
    Exit,
}

/// An entry of vCenter's journal.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Counts from 1.
    pub seq: u64,
    /// When it happened.
    pub at: Timestamp,
    /// The line about it; `None` if another line says the same.
    pub line: Option<String>,
    /// The host on which the operator has clicked Enter Maintenance Mode.
    pub entered: Option<String>,
}

/// The vCenter, the cluster, and the collector of traces.
pub trait Peers {
    fn cast(&self) -> &Cast;

    /// An administrator's client of the kube-apiserver.
    fn client(&self) -> kube::Client;

    /// What vCenter shows now.
    fn inventory(&self) -> impl Future<Output = anyhow::Result<Inventory>>;

    /// The operator clicks.
    fn click(&self, what: Click, host: &str) -> impl Future<Output = anyhow::Result<()>>;

    /// The entries of vCenter's journal after one, which may be waited for.
    fn journal_after(&self, seq: u64) -> impl Future<Output = anyhow::Result<Vec<Entry>>>;

    /// How often a VM was powered off and on.
    fn power_cycles(&self, vm: &str) -> impl Future<Output = anyhow::Result<(usize, usize)>>;

    /// Creates a pod that takes about `ends` to end, and waits until it is Ready.
    fn add_pod(&self, name: &str, node: &str, ends: Duration) -> impl Future<Output = anyhow::Result<()>>;

    /// Creates or changes the budget of a pod. One that holds the pod is waited for until it has effect.
    fn set_budget(&self, name: &str, pod: &str, least: i32) -> impl Future<Output = anyhow::Result<()>>;

    /// When the kube-apiserver refused Haulout the eviction of a pod because of a budget.
    fn refusals(&self, pod: &str) -> impl Future<Output = anyhow::Result<Vec<Timestamp>>>;

    /// When the kube-apiserver had first answered a PATCH of the Node that Haulout sent after `from`.
    fn patched(&self, node: &str, from: Timestamp)
    -> impl Future<Output = anyhow::Result<Option<Timestamp>>>;

    /// The spans of a trace that have arrived.
    fn trace(&self, id: &str) -> impl Future<Output = anyhow::Result<Vec<Span>>>;

    /// Says how a person can look around while everything keeps running. `page` is the page of the second maintenance, with this
    /// trace id.
    fn say_how_to_look(&self, page: &str, trace_id: &str) -> impl Future<Output = anyhow::Result<()>>;
}
