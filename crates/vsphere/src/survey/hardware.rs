//! The hardware versions of VMs that hosts run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::call::SoapCall;
use crate::client::Vcenter;
use crate::decode::{boolean, hardware_version};
use crate::moref::Moref;
use crate::property::ObjectProperties;
use crate::session::Session;
use crate::xml::Element;
use haulout_core::ids::HostRef;

/// The most hardware versions that are read of a cluster. There have been about twenty.
const MAX_VERSIONS: usize = 200;
/// The most hosts of one version. A cluster has at most 96 hosts.
const MAX_HOSTS: usize = 1_000;

pub(crate) type HardwareVersions = BTreeMap<HostRef, BTreeSet<Arc<str>>>;

impl Vcenter {
    /// Asks the environment browser of each cluster in `objects`. A cluster that does not answer is left out: placement goes on
    /// without its versions, and vCenter refuses what a host cannot run.
    pub(super) async fn hardware_versions(
        &self,
        session: &Session,
        objects: &[ObjectProperties],
    ) -> HardwareVersions {
        let browsers: BTreeSet<&Moref> = objects
            .iter()
            .filter_map(|object| object.moref("environmentBrowser"))
            .collect();
        let mut versions = HardwareVersions::new();
        for browser in browsers {
            let call = SoapCall::to("QueryConfigOptionDescriptor", browser);
            match self
                .call_in(session, &call, |response| Ok(read_versions(response)))
                .await
            {
                Ok(of_cluster) => versions.extend(of_cluster),
                Err(error) => {
                    tracing::debug!(
                        error = error.chain(),
                        "the hardware versions of hosts are not known"
                    );
                }
            }
        }
        versions
    }
}

/// Decodes a response of `QueryConfigOptionDescriptor`, which has an element for each version with the hosts to which it applies.
pub(crate) fn read_versions(response: &Element<'_>) -> HardwareVersions {
    let mut versions = HardwareVersions::new();
    let descriptors = response.children().filter(|it| it.name() == "returnval");
    for descriptor in descriptors.take(MAX_VERSIONS) {
        let runs = descriptor.text_of("runSupported").and_then(boolean);
        let Some(key) = descriptor.text_of("key").filter(|key| !key.is_empty()) else {
            continue;
        };
        let version = hardware_version(key);
        let hosts = descriptor.children_named("host");
        let hosts = hosts.filter_map(|host| host.moref()?.host()).take(MAX_HOSTS);
        for host in hosts {
            let of_host = versions.entry(host).or_default();
            if runs != Some(false) {
                of_host.insert(Arc::clone(&version));
            }
        }
    }
    versions
}
