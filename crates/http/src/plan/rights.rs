//! What Haulout may not do: rights on Machines, and privileges on VMs in vCenter.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use haulout_core::ids::{VmRef, is_object_name};
use haulout_core::keys::NODE_CLUSTER_NAMESPACE;
use haulout_core::maintenance::policy::StaticDevices;
use haulout_kubernetes::machine_guard::MachineApi;
use haulout_kubernetes::rights::{self, Right};
use haulout_vsphere::client::{Error, Vcenter};
use haulout_vsphere::privileges::{Entity, NEEDED, Need, On, Privilege};

/// The number of namespaces of Machines that are checked. A workload cluster has its Machines in one.
const NAMESPACES_MAX: usize = 5;

/// The rights that guards on Machines need, and the cluster in which they are needed.
pub struct MachineRights {
    pub client: kube::Client,
    pub needed: Vec<(&'static Right, Option<String>)>,
}

/// The namespaces of the Machines of `nodes`, as their annotations say.
pub fn namespaces(nodes: &[Node]) -> BTreeSet<String> {
    let named = nodes
        .iter()
        .filter_map(|node| node.annotations().get(NODE_CLUSTER_NAMESPACE));
    // A kubelet may write any text there.
    named.filter(|name| is_object_name(name)).cloned().collect()
}

impl MachineRights {
    /// Those in the cluster of the nodes, for what it serves, or those in these namespaces of a management cluster.
    pub async fn needed(
        management: Option<&kube::Client>,
        client: &kube::Client,
        namespaces: &BTreeSet<String>,
    ) -> Self {
        let Some(management) = management else {
            let api = MachineApi::new(client.clone());
            let of_cluster_api = api.is_cluster_api().await.then_some(rights::MACHINES);
            let of_openshift = api.is_openshift().await.then_some(rights::OPENSHIFT);
            let needed = of_cluster_api.into_iter().chain(of_openshift).flatten();
            return Self {
                client: client.clone(),
                needed: needed.map(|right| (right, None)).collect(),
            };
        };
        let in_namespace = |namespace: &String| {
            let namespace = namespace.clone();
            rights::MACHINES
                .iter()
                .map(move |right| (right, Some(namespace.clone())))
        };
        Self {
            client: management.clone(),
            needed: namespaces
                .iter()
                .take(NAMESPACES_MAX)
                .flat_map(in_namespace)
                .collect(),
        }
    }

    /// Those that are missing, in words, and in `not_checked` what could not be asked.
    pub(super) async fn missing(&self, not_checked: &mut Vec<String>) -> Vec<String> {
        let mut missing = Vec::new();
        for (needed, namespace) in &self.needed {
            match rights::lacking(&self.client, needed, namespace.as_deref()).await {
                Ok(lacking) if lacking.is_empty() => {}
                Ok(lacking) => missing.push(format!(
                    "may not {} {} in {}",
                    lacking.join(", "),
                    needed.resource,
                    needed.group
                )),
                Err(error) => not_checked.push(format!(
                    "the right on {} in {}: {error}",
                    needed.resource, needed.group
                )),
            }
        }
        missing
    }
}

/// The privileges that a maintenance cannot do without and that are missing on `vms`. It costs a call for each privilege, whatever
/// the number of VMs. Empty if the server reports none.
pub(super) async fn missing_on_vms(
    vcenter: &Vcenter,
    vms: &BTreeSet<VmRef>,
    static_devices: StaticDevices,
) -> Result<BTreeMap<VmRef, Vec<String>>, Error> {
    let encrypted = vcenter.encrypted(vms).await?;
    let mut missing: BTreeMap<VmRef, Vec<String>> = BTreeMap::new();
    let on_vms = |needed: &&Privilege| needed.on == On::Vms;
    for needed in NEEDED.iter().filter(on_vms) {
        let vms = match needed.need {
            Need::Always => vms,
            Need::Encrypted => &encrypted,
            Need::StaticDevices if static_devices == StaticDevices::Repoint => vms,
            Need::StaticDevices | Need::Events | Need::Attribute | Need::AttributeDefinition => continue,
        };
        let entities: Vec<Entity> = vms.iter().cloned().map(Entity::Vm).collect();
        let Some(lacking) = vcenter.lacks(needed.id, &entities).await? else {
            break;
        };
        for entity in lacking {
            if let Entity::Vm(vm) = entity {
                missing.entry(vm).or_default().push(needed.id.to_owned());
            }
        }
    }
    Ok(missing)
}
