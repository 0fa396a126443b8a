//! What observes the controller: log, metrics, Events, status page and others. An observer changes nothing that a decision reads.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use haulout_core::ids::NodeName;
use haulout_core::inventory::{Fact, Inventory};
use haulout_core::status::NodeStatuses;
use haulout_core::status::node_event::ReconcileOutcome;
use haulout_core::status::story::Beat;
use haulout_kubernetes::lease::ElectionStatus;
use haulout_kubernetes::update::KubernetesUpdate;
use haulout_vsphere::update::VsphereUpdate;

/// Observes the event loop and the actors, which wait for it: no method may block, so slow work is queued, or dropped if the queue
/// is full.
pub trait Observer: Debug + Send + Sync + 'static {
    /// A node's actor has decided or done something.
    fn observe(&self, _node: &NodeName, _beat: &Beat<'_>) {}

    /// A decision was made and carried out, which took this long.
    fn reconciled(&self, _outcome: ReconcileOutcome, _took: Duration) {}

    /// The actor of `node` has ended; there are no more events until a new one begins.
    fn actor_ended(&self, _node: &NodeName) {}

    /// The event loop begins a turn.
    fn turned(&self) {}

    /// The state of the election by this Lease has changed. Without leader election it is never called.
    fn election(&self, _lease: &str, _status: &ElectionStatus) {}

    /// The connection to an API has changed, or is still lost.
    fn connection(&self, _api: WatchedApi, _state: ConnectionState<'_>) {}

    /// The event loop has received a fact, and has not applied it yet.
    fn fact(&self, _fact: &Fact) {}

    /// Facts were applied; snapshots are not built yet.
    fn applied(&self, _inventory: &Inventory) {}

    /// Snapshots were built, on the leader or on a standby.
    fn built(&self, _statuses: &NodeStatuses) {}

    /// Snapshots were built on the leader.
    fn built_by_leader(&self, _statuses: &Arc<NodeStatuses>, _inventory: &Inventory) {}

    /// Every [`LIVENESS_TICK`](super::event_loop::LIVENESS_TICK), on the leader.
    fn leader_tick(&self, _inventory: &Inventory) {}
}

/// An API whose objects are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchedApi {
    Vcenter,
    Kubernetes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState<'a> {
    /// All objects are known.
    Synced,
    /// All objects are being read again.
    Reading {
        why: &'a str,
    },
    Lost {
        why: &'a str,
    },
}

impl WatchedApi {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Vcenter => "vCenter",
            Self::Kubernetes => "Kubernetes",
        }
    }
}

impl<'a> ConnectionState<'a> {
    /// # Errors
    /// Why not all objects are known.
    pub fn synced(self) -> Result<(), &'a str> {
        match self {
            Self::Synced => Ok(()),
            Self::Reading { why } | Self::Lost { why } => Err(why),
        }
    }

    /// What `fact` says of the connection to an API, if anything.
    pub(crate) fn of_fact(fact: &'a Fact) -> Option<(WatchedApi, Self)> {
        let (api, state) = match fact {
            Fact::Vsphere(VsphereUpdate::Settled) => (WatchedApi::Vcenter, Self::Synced),
            Fact::Vsphere(VsphereUpdate::Reset) => {
                let why = "vCenter is sending its whole inventory again";
                (WatchedApi::Vcenter, Self::Reading { why })
            }
            Fact::Vsphere(VsphereUpdate::Lost { why }) => (WatchedApi::Vcenter, Self::Lost { why }),
            Fact::Kubernetes(KubernetesUpdate::Settled) => (WatchedApi::Kubernetes, Self::Synced),
            Fact::Kubernetes(KubernetesUpdate::Reset) => {
                let why = "the Nodes are being listed again";
                (WatchedApi::Kubernetes, Self::Reading { why })
            }
            Fact::Kubernetes(KubernetesUpdate::Lost { why }) => (WatchedApi::Kubernetes, Self::Lost { why }),
            Fact::Vsphere(_) | Fact::Kubernetes(_) | Fact::Effect(_) | Fact::Leadership(_) => return None,
        };
        Some((api, state))
    }
}

/// All observers, in the order in which they are told.
#[derive(Clone, Debug, Default)]
pub struct Observers(Arc<[Arc<dyn Observer>]>);

impl FromIterator<Arc<dyn Observer>> for Observers {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Observer>>>(observers: I) -> Self {
        Self(observers.into_iter().collect())
    }
}

impl Observers {
    pub(crate) fn tell(&self, mut tell: impl FnMut(&dyn Observer)) {
        for observer in &*self.0 {
            tell(observer.as_ref());
        }
    }
}
