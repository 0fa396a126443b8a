//! The privileges of our user in vCenter.

use std::collections::{BTreeMap, BTreeSet};

use super::Section;
use super::inventory::ClusterView;
use crate::config::{Config, StaticDevices};
use crate::ids::{HostRef, VmRef};
use crate::telemetry::vcenter_attribute::ATTRIBUTE;
use crate::vsphere::client::Error;
use crate::vsphere::privileges::{Entity, NEEDED, Need, On, Privilege};

/// The number of names in a list.
const NAMES_MAX: usize = 10;

/// The objects of vCenter on which privileges are needed, with their names.
struct Objects {
    hosts: BTreeMap<HostRef, String>,
    vms: BTreeMap<VmRef, String>,
    encrypted: BTreeSet<VmRef>,
}

/// Asks for each privilege on each object that needs it.
pub(super) async fn check(view: &ClusterView, config: &Config, section: &mut Section) {
    let objects = match Objects::read(view).await {
        Ok(objects) => objects,
        Err(error) => {
            section.warn(
                error.chain(),
                "compare the user's roles with docs/install/vcenter-role.md",
            );
            return;
        }
    };
    let is_attribute_used = config.vcenter_report.attribute && !config.dry_run;
    let is_undefined = is_attribute_used && is_undefined(view).await;
    for needed in NEEDED {
        let is_used = match needed.need {
            Need::Always => true,
            Need::Encrypted => !objects.encrypted.is_empty(),
            Need::StaticDevices => config.static_devices == StaticDevices::Repoint,
            Need::Events => config.vcenter_report.events && !config.dry_run,
            Need::Attribute => is_attribute_used,
            Need::AttributeDefinition => is_undefined,
        };
        if !is_used {
            continue;
        }
        let entities = objects.that_need(&needed);
        let on = words(needed.on);
        if entities.is_empty() {
            section.warn(
                format!("{} on {on}: nothing to check", needed.id),
                "see the nodes below",
            );
            continue;
        }
        match view.vcenter.lacks(needed.id, &entities).await {
            Ok(Some(lacking)) if lacking.is_empty() => section.good(format!("{} on {on}", needed.id)),
            Ok(Some(lacking)) => objects.report(&needed, &lacking, section),
            Ok(None) => {
                section.warn(
                    "this server does not report privileges",
                    "compare them with docs/install/vcenter-role.md",
                );
                return;
            }
            Err(error) => section.warn(
                error.chain(),
                "compare the user's roles with docs/install/vcenter-role.md",
            ),
        }
    }
}

/// Lists the VMs of others that the account may power off. For a hosted cluster that is an error, because its administrators
/// could have Haulout act on such a VM.
pub(super) async fn beyond(view: &ClusterView, config: &Config, section: &mut Section) {
    let own = view.inventory.vms_of_ours().into_keys().collect();
    let reached = match view.vcenter.vms_of_others(&own).await {
        Ok(Some(reached)) => reached,
        // The privileges above say so already.
        Ok(None) => return,
        Err(error) => {
            section.warn(
                error.chain(),
                "compare the user's roles with docs/install/vcenter-role.md",
            );
            return;
        }
    };
    if reached.is_empty() {
        section.good("the account may power off no VM of others");
        return;
    }
    let mut names: Vec<&str> = reached.values().map(String::as_str).collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(NAMES_MAX);
    names.truncate(NAMES_MAX);
    let mut list = names.join(", ");
    if more > 0 {
        list.push_str(&format!(", and {more} more"));
    }
    let what = format!(
        "the account may power off VMs that are no nodes of this cluster ({}): {list}",
        reached.len()
    );
    let hint = "give each cluster its own account, with rights on its folder only, or set VCENTER_SCOPE";
    section.problem(config.leadership.lease_kubeconfig.is_some(), what, hint);
}

/// Whether nobody has defined the custom attribute.
async fn is_undefined(view: &ClusterView) -> bool {
    let definitions = view.vcenter.attribute_definitions(ATTRIBUTE).await;
    matches!(definitions, Ok(definitions) if definitions.is_empty())
}

fn words(on: On) -> &'static str {
    match on {
        On::Root => "the root folder",
        On::Vms => "the VMs of our nodes",
        On::Hosts => "the hosts of their clusters",
    }
}

impl Objects {
    async fn read(view: &ClusterView) -> Result<Self, Error> {
        let vms = view.inventory.vms_of_ours();
        let hosts = view.inventory.hosts_of_ours();
        let hosts: BTreeMap<HostRef, String> =
            hosts.into_iter().map(|(host, (name, _))| (host, name)).collect();
        Ok(Self {
            encrypted: view.vcenter.encrypted(&vms.keys().cloned().collect()).await?,
            hosts,
            vms,
        })
    }

    fn that_need(&self, needed: &Privilege) -> Vec<Entity> {
        let is_concerned = |vm: &&VmRef| match needed.need {
            Need::Always
            | Need::Events
            | Need::StaticDevices
            | Need::Attribute
            | Need::AttributeDefinition => true,
            Need::Encrypted => self.encrypted.contains(*vm),
        };
        match needed.on {
            On::Root => vec![Entity::Root],
            On::Vms => self
                .vms
                .keys()
                .filter(is_concerned)
                .cloned()
                .map(Entity::Vm)
                .collect(),
            On::Hosts => self.hosts.keys().cloned().map(Entity::Host).collect(),
        }
    }

    fn report(&self, needed: &Privilege, lacking: &[Entity], section: &mut Section) {
        let names: Vec<String> = lacking.iter().map(|entity| self.name(entity)).collect();
        let (id, why, names) = (needed.id, needed.why, names.join(", "));
        match needed.need {
            Need::Always | Need::Encrypted => section.missing(
                format!("{id} is missing on {names} (needed for {why})"),
                "give the user the roles in docs/install/vcenter-role.md, propagated",
            ),
            Need::StaticDevices => section.missing(
                format!("{id} is missing on {names} (needed for {why})"),
                "give the user the roles in docs/install/vcenter-role.md, propagated, or set STATIC_DEVICES=wait",
            ),
            Need::Events => section.warn(
                format!("{id} is missing on {names} (needed for {why})"),
                "give the user the roles in docs/install/vcenter-role.md, or leave events out of VCENTER_REPORT",
            ),
            Need::Attribute => section.warn(
                format!("{id} is missing on {names} (needed for {why})"),
                "give the user the roles in docs/install/vcenter-role.md, or leave attribute out of VCENTER_REPORT",
            ),
            Need::AttributeDefinition => section.warn(
                format!("{id} is missing on {names} (needed for {why})"),
                "define the attribute in vCenter for all types of objects, see docs/how-to/vcenter-events.md",
            ),
        }
    }

    fn name(&self, entity: &Entity) -> String {
        let named = |name: Option<&String>, moref: String| match name {
            Some(name) => format!("{name} ({moref})"),
            None => moref,
        };
        match entity {
            Entity::Root => words(On::Root).to_owned(),
            Entity::Host(host) => named(self.hosts.get(host), host.to_string()),
            Entity::Vm(vm) => named(self.vms.get(vm), vm.to_string()),
        }
    }
}
