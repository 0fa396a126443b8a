//! The privileges of our user, as vCenter reports them.

use std::collections::{BTreeMap, BTreeSet};

use super::call::SoapCall;
use super::client::Vcenter;
use super::decode;
use super::error::Error;
use super::moref::Moref;
use super::property::PropertySpec;
use super::session::Session;
use super::soap::ReplyError;
use super::xml::Element;
use super::xml::write::XmlWriter;
use haulout_core::ids::{HostRef, VmRef};

/// A privilege that Haulout needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Privilege {
    /// The id, such as `VirtualMachine.Interact.PowerOn`.
    pub id: &'static str,
    /// The objects that need it.
    pub on: On,
    /// The purpose.
    pub why: &'static str,
    /// When it is needed.
    pub need: Need,
}

/// When a privilege is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Always,
    /// Only by VMs whose files are encrypted, which includes those with a vTPM.
    Encrypted,
    /// Only where `STATIC_DEVICES` is `repoint` ([`Vcenter::reconfigure_devices`]).
    StaticDevices,
    /// Only for events in vCenter ([`Vcenter::log_event`]). Maintenance works without it.
    Events,
    /// Only for the custom attribute in vCenter ([`Vcenter::set_attribute`]). Maintenance works without it.
    Attribute,
    /// Only to define the custom attribute, where nobody has ([`Vcenter::define_attribute`]).
    AttributeDefinition,
}

/// The objects that need a privilege.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The root folder of the inventory.
    Root,
    /// The VMs of nodes.
    Vms,
    /// The hosts of the clusters of these VMs.
    Hosts,
}

/// The privileges that Haulout uses.
pub const NEEDED: [Privilege; 13] = [
    privilege(
        "System.View",
        On::Root,
        "following hosts, VMs, clusters and tasks",
    ),
    privilege("System.Read", On::Root, "looking a VM up by UUID"),
    privilege(POWER_OFF, On::Vms, "shutting the guest down, cutting the power"),
    privilege("VirtualMachine.Interact.PowerOn", On::Vms, "powering on"),
    privilege(
        "Resource.ColdMigrate",
        On::Vms,
        "moving a VM that is off to another host",
    ),
    Privilege {
        need: Need::StaticDevices,
        ..privilege(
            "VirtualMachine.Config.EditDevice",
            On::Vms,
            "giving a VM the passthrough devices of another host",
        )
    },
    Privilege {
        need: Need::Encrypted,
        ..privilege(
            "Cryptographer.Migrate",
            On::Vms,
            "moving an encrypted VM to another host",
        )
    },
    Privilege {
        need: Need::Encrypted,
        ..privilege(
            "Cryptographer.RegisterHost",
            On::Hosts,
            "moving an encrypted VM to a host that holds no keys yet",
        )
    },
    Privilege {
        need: Need::Events,
        ..privilege(
            LOG_EVENT,
            On::Vms,
            "showing a maintenance in the events of the VM",
        )
    },
    Privilege {
        need: Need::Events,
        ..privilege(
            LOG_EVENT,
            On::Hosts,
            "showing a maintenance in the events of the host",
        )
    },
    Privilege {
        need: Need::Attribute,
        ..privilege(
            SET_ATTRIBUTE,
            On::Vms,
            "showing the present state of a maintenance in a custom attribute of the VM",
        )
    },
    Privilege {
        need: Need::Attribute,
        ..privilege(
            SET_ATTRIBUTE,
            On::Hosts,
            "showing the present state of a maintenance in a custom attribute of the host",
        )
    },
    Privilege {
        need: Need::AttributeDefinition,
        ..privilege(
            "Global.ManageCustomFields",
            On::Root,
            "defining the custom attribute haulout, which nobody has defined",
        )
    },
];

const METHOD: &str = "HasPrivilegeOnEntities";

/// To power off a VM, and to shut its guest down.
pub(super) const POWER_OFF: &str = "VirtualMachine.Interact.PowerOff";

const LOG_EVENT: &str = "Global.LogEvent";

const SET_ATTRIBUTE: &str = "Global.SetCustomField";

const fn privilege(id: &'static str, on: On, why: &'static str) -> Privilege {
    Privilege {
        id,
        on,
        why,
        need: Need::Always,
    }
}

/// An object for a privilege check or an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entity {
    /// The root folder.
    Root,
    Host(HostRef),
    Vm(VmRef),
}

impl Entity {
    /// Objects of its kind, in a sentence.
    pub fn kind_words(&self) -> &'static str {
        match self {
            Self::Root => "the root folder",
            Self::Host(_) => "hosts",
            Self::Vm(_) => "VMs",
        }
    }

    pub(super) fn moref(&self, session: &Session) -> Moref {
        match self {
            Self::Root => session.content.root_folder.clone(),
            Self::Host(host) => host.into(),
            Self::Vm(vm) => vm.into(),
        }
    }
}

impl Vcenter {
    /// Those of `vms` whose files are encrypted (`config.keyId`).
    ///
    /// # Errors
    /// Those of a read.
    pub async fn encrypted(&self, vms: &BTreeSet<VmRef>) -> Result<BTreeSet<VmRef>, Error> {
        let mut spec = PropertySpec::default().read_properties("VirtualMachine", &["config.keyId"]);
        for vm in vms {
            spec = spec.select_object(&vm.into(), []);
        }
        if vms.is_empty() {
            return Ok(BTreeSet::new());
        }
        let objects = self.retrieve(spec).await?;
        let encrypted = objects
            .iter()
            .filter(|object| object.get("config.keyId").is_some());
        Ok(encrypted.filter_map(|object| object.moref.vm()).collect())
    }

    /// The `entities` on which this session lacks the privilege `id`
    /// (`AuthorizationManager.HasPrivilegeOnEntities`, which every session may call about itself).
    /// `None` if the server has no such manager.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn lacks(&self, id: &str, entities: &[Entity]) -> Result<Option<Vec<Entity>>, Error> {
        let session = self.sessions.get().await?;
        let (Some(manager), Some(key)) = (&session.content.authorization_manager, &session.key) else {
            return Ok(None);
        };
        let mut lacking = Vec::new();
        let moref = |entity: &Entity| entity.moref(&session);
        let mut call = SoapCall::to(METHOD, manager);
        for entity in entities {
            call = call.with(XmlWriter::moref("entity", &moref(entity)));
        }
        call = call
            .with(XmlWriter::text("sessionId", key.clone()))
            .with(XmlWriter::text("privId", id));
        if entities.is_empty() {
            return Ok(Some(lacking));
        }
        let granted = self.call_in(&session, &call, |response| Ok(read_granted(response, id)));
        let granted = granted.await?;
        for entity in entities {
            match granted.get(&moref(entity)) {
                Some(true) => {}
                Some(false) => lacking.push(entity.clone()),
                None => {
                    let what = format!("the answer about {id} on {}", moref(entity));
                    return Err(call.unreadable(ReplyError::value(what, "an EntityPrivilege")));
                }
            }
        }
        Ok(Some(lacking))
    }
}

/// The entities of the response, and whether `id` is granted on them.
fn read_granted(response: &Element<'_>, id: &str) -> BTreeMap<Moref, bool> {
    let granted = |entity: &Element<'_>| {
        let mut all = entity.children_named("privAvailability");
        let about = all.find(|it| it.text_of("privId") == Some(id))?;
        let is_granted = decode::boolean(about.text_of("isGranted")?)?;
        Some((entity.child("entity")?.moref()?, is_granted))
    };
    response.children_named("returnval").filter_map(granted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml;

    #[test]
    fn a_privilege_counts_as_had_only_where_vcenter_says_so() {
        let reply = br#"<r xmlns="urn:vim25"><returnval><entity type="VirtualMachine">vm-71</entity>
            <privAvailability><privId>System.Read</privId><isGranted>true</isGranted></privAvailability>
            <privAvailability><privId>Resource.ColdMigrate</privId><isGranted>false</isGranted></privAvailability>
            </returnval></r>"#;
        let reply = xml::parse(reply, xml::Shape::default()).unwrap();
        let vm = Moref::new("VirtualMachine", "vm-71");
        for (id, granted) in [
            ("System.Read", Some(true)),
            ("Resource.ColdMigrate", Some(false)),
            ("System.View", None),
        ] {
            assert_eq!(read_granted(&reply, id).get(&vm).copied(), granted, "{id}");
        }
    }
}
