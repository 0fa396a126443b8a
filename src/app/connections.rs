//! Everything by which a controller sees or changes what is outside of its process.

use std::sync::Arc;

use anyhow::Context as _;
use jiff::Timestamp;

use super::identity::{identity, instance};
use super::writes::Writes;
use super::{clock, clocks};
use crate::config::Config;
use crate::fence::{self, BoottimeInstant};
use crate::kubernetes::client::{connect_other, connect_with_address};
use crate::maintenance::clock::Now;
use crate::vsphere::client::{Connector, TcpConnector};

/// The connections of one controller, its names, and its clocks.
#[derive(Clone)]
pub struct Connections {
    /// Connects to vCenter.
    pub vcenter: Arc<dyn Connector>,
    /// The cluster of the nodes.
    pub nodes: kube::Client,
    /// The address of that cluster, for people.
    pub address: String,
    /// The cluster of the Machines.
    pub machines: kube::Client,
    /// The cluster of the Lease.
    pub leases: kube::Client,
    /// The name of this replica, in Events and in vCenter's list of sessions.
    pub instance: String,
    /// The holder identity in the Lease. No other process may have it.
    pub identity: String,
    pub clocks: Clocks,
}

/// The clocks of one process.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    pub wall: fn() -> Timestamp,
    /// The clocks that cannot be set.
    pub boot: fn() -> BoottimeInstant,
    /// The two clocks of decisions: `wall`, and `since_boot` of `boot`.
    pub decisions: fn() -> Now,
}

impl Clocks {
    pub const MACHINE: Self = Self {
        wall: clock,
        boot: fence::now,
        decisions: clocks,
    };
}

impl Connections {
    /// The connections that `config` and the environment name. Creating them sends nothing.
    ///
    /// # Errors
    /// When a kubeconfig or the service account cannot be used.
    pub async fn of(config: &Config) -> anyhow::Result<Self> {
        let (nodes, address) = connect_with_address()
            .await
            .context("preparing the connection to Kubernetes")?;
        let machines = match &config.management_kubeconfig {
            Some(path) => connect_other("MANAGEMENT_KUBECONFIG", path)
                .await
                .context("preparing the connection to the management cluster")?,
            None => nodes.clone(),
        };
        let lease_kubeconfig = config.leadership.lease_kubeconfig.as_ref();
        let leases = match lease_kubeconfig.filter(|_| Writes::by(config).lease) {
            Some(path) => connect_other("LEASE_KUBECONFIG", path)
                .await
                .context("preparing the connection to the cluster of the Lease")?,
            None => nodes.clone(),
        };
        Ok(Self {
            vcenter: Arc::new(TcpConnector),
            nodes,
            address,
            machines,
            leases,
            instance: instance(),
            identity: identity(),
            clocks: Clocks::MACHINE,
        })
    }
}
