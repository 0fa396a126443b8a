//! Which VMs may be acted on: those below one of some folders, clusters, resource pools or datacenters, or with a custom attribute.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::moref::Moref;
use super::property::{ObjectProperties, PropertySpec, TraversalStep, Value};
use super::text::for_people;
use haulout_core::ids::VmRef;

/// The types between a VM and the root folder.
const ANCESTORS: [&str; 6] = [
    "Folder",
    "Datacenter",
    "ResourcePool",
    "VirtualApp",
    "ClusterComputeResource",
    "ComputeResource",
];

/// The largest depth that is followed upwards. vCenter's inventories have about ten levels.
const MAX_DEPTH: usize = 64;

/// The largest number of entries, and of bytes in one.
const MAX_ENTRIES: usize = 64;
const MAX_BYTES: usize = 2048;

/// What a VM must be below or have: one entry is enough. Without any, all VMs are in scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmScope(Vec<ScopeEntry>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ScopeEntry {
    /// The names from the root folder on, as `govc find` prints them: `/dc1/vm/tenant-a`, `/dc1/host/cluster1/Resources/pool-a`.
    Path(Vec<String>),
    /// The value of a managed object reference, such as `group-v123`.
    Moref(String),
    /// A custom attribute of the VM itself, and its value.
    Attribute { name: String, value: String },
}

/// A scope that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{entry:?} is neither an inventory path (/dc1/vm/tenant-a), nor a managed object id (group-v123), \
     nor a custom attribute with its value (cluster=tenant-a)"
)]
pub struct ScopeError {
    /// The invalid entry.
    pub entry: String,
}

impl FromStr for VmScope {
    type Err = ScopeError;

    /// Reads a comma-separated list. Spaces around the entries are ignored.
    fn from_str(list: &str) -> Result<Self, ScopeError> {
        let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let entries: Vec<ScopeEntry> = entries.map(ScopeEntry::parse).collect::<Result<_, _>>()?;
        if entries.len() > MAX_ENTRIES {
            let entry = format!("more than {MAX_ENTRIES} entries");
            return Err(ScopeError { entry });
        }
        Ok(Self(entries))
    }
}

impl ScopeEntry {
    fn parse(text: &str) -> Result<Self, ScopeError> {
        let wrong = || ScopeError {
            entry: text.to_owned(),
        };
        if text.len() > MAX_BYTES {
            return Err(wrong());
        }
        let Some(path) = text.strip_prefix('/') else {
            if let Some((name, value)) = text.split_once('=') {
                let (name, value) = (name.trim(), value.trim());
                let is_whole = |text: &str| !text.is_empty() && for_people(text) == text;
                let attribute = || Self::Attribute {
                    name: name.to_owned(),
                    value: value.to_owned(),
                };
                return (is_whole(name) && is_whole(value))
                    .then(attribute)
                    .ok_or_else(wrong);
            }
            let is_id = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            return is_id.then(|| Self::Moref(text.to_owned())).ok_or_else(wrong);
        };
        let names: Vec<String> = path.trim_end_matches('/').split('/').map(str::to_owned).collect();
        let is_path = names.iter().all(|name| !name.is_empty());
        is_path.then_some(Self::Path(names)).ok_or_else(wrong)
    }
}

impl fmt::Display for VmScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, entry) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match entry {
                ScopeEntry::Path(names) => write!(f, "{comma}/{}", names.join("/"))?,
                ScopeEntry::Moref(id) => write!(f, "{comma}{id}")?,
                ScopeEntry::Attribute { name, value } => write!(f, "{comma}{name}={value}")?,
            }
        }
        Ok(())
    }
}

impl VmScope {
    /// Whether every VM is in scope.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the custom attributes of `vms`, and what is above them: the folders, and the resource pools and clusters.
    pub(super) fn spec<'a>(vms: impl IntoIterator<Item = &'a VmRef>) -> PropertySpec {
        let own = [
            "parent",
            "parentVApp",
            "resourcePool",
            "availableField",
            "customValue",
        ];
        let mut spec = PropertySpec::default().read_properties("VirtualMachine", &own);
        for kind in ANCESTORS {
            spec = spec.read_properties(kind, &["name", "parent"]);
        }
        for vm in vms {
            let pools = TraversalStep::new("VirtualMachine", "resourcePool", [TraversalStep::again()]);
            let vapps = TraversalStep::new("VirtualMachine", "parentVApp", [TraversalStep::again()]);
            spec = spec.select_object(&vm.into(), [TraversalStep::up(), pools, vapps]);
        }
        spec
    }

    /// The VMs of `vms` that are in scope by what was read with [`Self::spec`]. One whose place cannot be read is not.
    pub(super) fn contains(&self, vms: &BTreeSet<VmRef>, read: &[ObjectProperties]) -> BTreeSet<VmRef> {
        let objects: BTreeMap<&Moref, &ObjectProperties> =
            read.iter().map(|object| (&object.moref, object)).collect();
        let is_in = |vm: &&VmRef| {
            let Some(own) = objects.get(&Moref::from(*vm)) else {
                return false;
            };
            let above = ["parent", "parentVApp", "resourcePool"];
            let mut above = above.iter().filter_map(|path| own.moref(path));
            self.has_attribute(own) || above.any(|first| self.is_above(first, &objects))
        };
        vms.iter().filter(is_in).cloned().collect()
    }

    /// Whether `first` or an object above it is in scope.
    fn is_above(&self, first: &Moref, objects: &BTreeMap<&Moref, &ObjectProperties>) -> bool {
        let mut names: Vec<&str> = Vec::new();
        let mut next = Some(first);
        let mut is_whole = false;
        for _ in 0..MAX_DEPTH {
            let Some(moref) = next else { break };
            if self.has(&moref.value) {
                return true;
            }
            let Some(object) = objects.get(moref) else { break };
            next = object.moref("parent");
            match (next, object.text("name")) {
                // The root folder, whose name is in no path.
                (None, _) => is_whole = object.denied("parent").is_none(),
                (Some(_), Some(name)) => names.push(name),
                (Some(_), None) => break,
            }
        }
        names.reverse();
        is_whole && self.0.iter().any(|entry| entry.is_prefix_of(&names))
    }

    fn has(&self, id: &str) -> bool {
        self.0.iter().any(|entry| match entry {
            ScopeEntry::Moref(own) => own == id,
            ScopeEntry::Path(_) | ScopeEntry::Attribute { .. } => false,
        })
    }

    fn has_attribute(&self, vm: &ObjectProperties) -> bool {
        let fields = vm
            .get("availableField")
            .and_then(Value::fields)
            .unwrap_or_default();
        let Some(values) = vm.get("customValue").and_then(Value::custom_values) else {
            return false;
        };
        self.0.iter().any(|entry| match entry {
            ScopeEntry::Attribute { name, value } => fields
                .iter()
                .any(|field| field.name == *name && values.get(&field.definition.key) == Some(value)),
            ScopeEntry::Path(_) | ScopeEntry::Moref(_) => false,
        })
    }
}

impl ScopeEntry {
    fn is_prefix_of(&self, names: &[&str]) -> bool {
        match self {
            Self::Path(own) => {
                own.len() <= names.len() && own.iter().zip(names).all(|(own, name)| own == name)
            }
            Self::Moref(_) | Self::Attribute { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests;
