//! Those who look on while the hub works, and show it to whoever asks: the metrics and the health checks.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::admin::health::Health;
use crate::cluster::lease::Standing;
use crate::cluster::update as cluster;
use crate::ids::NodeName;
use crate::inventory::Fact;
use crate::maintenance::observed::Sight;
use crate::telemetry::metrics::{Came, Metrics};
use crate::telemetry::objects::Objects;
use crate::telemetry::trace::Traces;
use crate::vsphere;
use crate::vsphere::client::OnAnswer;
use crate::vsphere::update::Update;
use crate::world::OnEvictions;

/// The method whose answer says that vCenter was asked for updates, and had some or none.
const LONG_POLL: &str = "WaitForUpdatesEx";

/// Those who look on.
#[derive(Clone, Debug)]
pub(super) struct Onlookers {
    pub(super) metrics: Arc<Metrics>,
    pub(super) health: Arc<Health>,
    /// Where NodeMaintenance objects are kept.
    pub(super) objects: Option<Arc<Objects>>,
    /// The Lease's name, where there is an election.
    pub(super) lease: Option<String>,
    /// The one clock that decisions are made by.
    pub(super) clock: fn() -> Timestamp,
    /// Where the environment names a collector.
    pub(super) traces: Option<Arc<Traces>>,
}

impl Onlookers {
    pub(super) fn at(clock: fn() -> Timestamp, lease: Option<String>) -> Self {
        Self {
            metrics: Arc::new(Metrics::new(clock())),
            health: Arc::new(Health::of_a_beginner()),
            objects: None,
            lease,
            clock,
            traces: None,
        }
    }

    /// Looks at how the election stands.
    pub(super) fn stand(&self, standing: &Standing) {
        let Some(lease) = &self.lease else { return };
        self.metrics.leads(lease, standing.lead.is_some());
        self.health.leadership(match (&standing.lead, &standing.leader) {
            (Some(lead), _) => format!("this replica leads, epoch {}", lead.epoch),
            (None, Some(leader)) => format!("{leader} leads"),
            (None, None) => "nobody leads".to_owned(),
        });
    }

    /// Looks on while the hub folds `fact` in.
    pub(super) fn note(&self, fact: &Fact) {
        match fact {
            Fact::Vsphere(Update::Settled) => {
                self.metrics.vcenter_is(true);
                self.health.vcenter(Ok(()));
            }
            Fact::Vsphere(Update::Reset) => {
                self.metrics.vcenter_is(true);
                let why = "vCenter is telling its whole set anew";
                self.health.vcenter(Err(why.to_owned()));
            }
            Fact::Vsphere(Update::Lost { why }) => {
                self.metrics.vcenter_is(false);
                self.health.vcenter(Err(why.clone()));
            }
            Fact::Cluster(cluster::Update::Settled) => self.health.kubernetes(Ok(())),
            Fact::Cluster(cluster::Update::Reset) => {
                let why = "the kube-apiserver is listing the Nodes anew";
                self.health.kubernetes(Err(why.to_owned()));
            }
            Fact::Cluster(cluster::Update::Lost { why }) => self.health.kubernetes(Err(why.clone())),
            Fact::Cluster(cluster::Update::Maintenances(update)) => {
                if let Some(objects) = &self.objects {
                    objects.told(update);
                }
            }
            Fact::Cluster(cluster::Update::Node(node)) => {
                if let (Some(traces), Some(last)) = (&self.traces, &node.marks.last_episode) {
                    traces.left_behind(&node.name, last);
                }
            }
            Fact::Finding(finding) => {
                self.metrics.found(finding);
                if let Some(traces) = &self.traces {
                    traces.found(finding);
                }
            }
            Fact::Vsphere(_) | Fact::Cluster(_) => {}
        }
    }

    /// Looks at what actors are about to be shown.
    pub(super) fn show(&self, sights: &BTreeMap<NodeName, Sight>, free_gpu_hosts: BTreeMap<String, u32>) {
        self.metrics.show(sights);
        if let Some(objects) = &self.objects {
            objects.show(sights);
        }
        self.metrics.show_free_gpu_hosts(free_gpu_hosts);
    }

    /// Listens to the calls to vCenter.
    pub(super) fn on_answer(&self, clock: fn() -> Timestamp) -> OnAnswer {
        let metrics = Arc::clone(&self.metrics);
        OnAnswer::tell(move |method, came, took| {
            let came = match came {
                vsphere::client::Came::Returned => Came::Answer,
                vsphere::client::Came::Fault => Came::Fault,
                vsphere::client::Came::Nothing => Came::Nothing,
                vsphere::client::Came::Unreadable => Came::Unreadable,
            };
            metrics.vcenter_called(method, came, took);
            if method == LONG_POLL && came == Came::Answer {
                metrics.vcenter_answered(clock());
            }
        })
    }

    /// Listens to the evictions.
    pub(super) fn on_evictions(&self) -> OnEvictions {
        let metrics = Arc::clone(&self.metrics);
        Box::new(move |code, count| metrics.evictions(code, count))
    }
}
