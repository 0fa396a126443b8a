//! Decodes `configurationEx` of a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::boolean;
use crate::moref::Moref;
use crate::text::for_people;
use crate::update::{AntiAffinityRule, ClusterRules, Drs, DrsBehavior, DrsOverride, VmHostRule};
use crate::xml::Element;
use haulout_core::ids::{HostRef, VmRef};

/// What is used of `configurationEx`.
#[derive(Clone, Debug)]
pub(crate) struct ClusterConfig {
    pub(crate) drs: Option<Drs>,
    pub(crate) rules: Arc<ClusterRules>,
}

/// Decodes `configurationEx`; `None` for the compute resource of a standalone host.
pub(crate) fn config(configuration: &Element<'_>) -> Option<ClusterConfig> {
    if configuration.xsi_type() != Some("ClusterConfigInfoEx") {
        return None;
    }
    let drs = drs(configuration);
    let mut rules = ClusterRules {
        failover_hosts: failover_hosts(configuration).unwrap_or_default(),
        ..ClusterRules::default()
    };
    let groups = ClusterGroups::of(configuration);
    let enabled = configuration
        .children_named("rule")
        .filter(|rule| flag(rule, "enabled") == Some(true));
    for rule in enabled {
        match rule.xsi_type() {
            Some("ClusterVmHostRuleInfo") if flag(rule, "mandatory") == Some(true) => {
                rules.vm_host.extend(vm_host_rule(rule, &groups));
            }
            Some("ClusterAntiAffinityRuleSpec") if drs.as_ref().is_some_and(|drs| drs.enabled) => {
                rules.anti_affinity.push(AntiAffinityRule {
                    name: name(rule),
                    vms: members(rule, "vm", Moref::vm),
                });
            }
            _ => {}
        }
    }
    Some(ClusterConfig {
        drs,
        rules: Arc::new(rules),
    })
}

fn flag(element: &Element<'_>, name: &str) -> Option<bool> {
    element.text_of(name).and_then(boolean)
}

fn name(element: &Element<'_>) -> Arc<str> {
    for_people(element.text_of("name").unwrap_or_default()).into()
}

fn members<T: Ord>(element: &Element<'_>, name: &str, to: fn(&Moref) -> Option<T>) -> BTreeSet<T> {
    let morefs = element.children_named(name).filter_map(Element::moref);
    morefs.filter_map(|moref| to(&moref)).collect()
}

/// The hosts that vSphere HA keeps for failover, where it enforces that.
fn failover_hosts(configuration: &Element<'_>) -> Option<BTreeSet<HostRef>> {
    let ha = configuration.child("dasConfig")?;
    let is_enforced = flag(ha, "enabled") == Some(true) && flag(ha, "admissionControlEnabled") == Some(true);
    let policy = ha.child("admissionControlPolicy").filter(|policy| {
        is_enforced && policy.xsi_type() == Some("ClusterFailoverHostAdmissionControlPolicy")
    })?;
    Some(members(policy, "failoverHosts", Moref::host))
}

/// The groups of VMs and of hosts, by name.
struct ClusterGroups<'t> {
    vms: BTreeMap<&'t str, Arc<BTreeSet<VmRef>>>,
    hosts: BTreeMap<&'t str, Arc<BTreeSet<HostRef>>>,
}

impl<'t> ClusterGroups<'t> {
    fn of(configuration: &'t Element<'_>) -> Self {
        let mut groups = Self {
            vms: BTreeMap::new(),
            hosts: BTreeMap::new(),
        };
        for group in configuration.children_named("group") {
            let name = group.text_of("name").unwrap_or_default();
            match group.xsi_type() {
                Some("ClusterVmGroup") => {
                    groups.vms.insert(name, Arc::new(members(group, "vm", Moref::vm)));
                }
                Some("ClusterHostGroup") => {
                    groups
                        .hosts
                        .insert(name, Arc::new(members(group, "host", Moref::host)));
                }
                _ => {}
            }
        }
        groups
    }
}

/// A VM-Host rule; `None` if it names no group of VMs that exists. A host group that does not exist says nothing.
fn vm_host_rule(rule: &Element<'_>, groups: &ClusterGroups<'_>) -> Option<VmHostRule> {
    let hosts = |part: &str| groups.hosts.get(rule.text_of(part)?).cloned();
    Some(VmHostRule {
        name: name(rule),
        vms: groups.vms.get(rule.text_of("vmGroupName")?)?.clone(),
        only_on: hosts("affineHostGroupName"),
        never_on: hosts("antiAffineHostGroupName").unwrap_or_default(),
    })
}

/// The DRS settings.
///
/// Defaults from the API reference: DRS off, fully automated, overrides allowed.
fn drs(configuration: &Element<'_>) -> Option<Drs> {
    let config = configuration.child("drsConfig")?;
    let mut overrides = BTreeMap::new();
    if flag(config, "enableVmBehaviorOverrides").unwrap_or(true) {
        for vm in configuration.children_named("drsVmConfig") {
            let Some(key) = vm.child("key").and_then(Element::moref).and_then(|key| key.vm()) else {
                continue;
            };
            let own = DrsOverride {
                enabled: flag(vm, "enabled").unwrap_or(true),
                behavior: vm.text_of("behavior").and_then(behavior),
            };
            overrides.insert(key, own);
        }
    }
    Some(Drs {
        enabled: flag(config, "enabled").unwrap_or(false),
        behavior: match config.text_of("defaultVmBehavior") {
            None => DrsBehavior::FullyAutomated,
            // An unknown automation level must not count as an automatic one.
            Some(text) => behavior(text).unwrap_or(DrsBehavior::Manual),
        },
        overrides,
    })
}

fn behavior(text: &str) -> Option<DrsBehavior> {
    match text {
        "manual" => Some(DrsBehavior::Manual),
        "partiallyAutomated" => Some(DrsBehavior::PartiallyAutomated),
        "fullyAutomated" => Some(DrsBehavior::FullyAutomated),
        _ => None,
    }
}
