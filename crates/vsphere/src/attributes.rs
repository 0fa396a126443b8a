//! Custom attributes of hosts and VMs, which people see in vCenter.

use super::call::SoapCall;
use super::client::Vcenter;
use super::decode::custom_fields::AttributeDefinition;
use super::error::Error;
use super::fault::{Fault, FaultKind};
use super::moref::Moref;
use super::privileges::Entity;
use super::property::{PropertySpec, Value};
use super::reading::PAGE;
use super::session::Session;
use super::soap::{self, ReplyError};
use super::text::for_people;
use super::xml::Element;
use super::xml::write::XmlWriter;
use crate::WritePermit;

impl AttributeDefinition {
    /// Whether objects like `entity` have the attribute.
    pub fn fits(&self, entity: &Entity) -> bool {
        let kind = match entity {
            Entity::Root => "Folder",
            Entity::Host(_) => "HostSystem",
            Entity::Vm(_) => "VirtualMachine",
        };
        self.on.as_deref().is_none_or(|on| on == kind)
    }
}

/// The calls below are not worth a login: without a live session they send nothing and return [`Error::Login`]. Fault kinds of
/// [`super::fault::FaultKind`]: `NoPermission`, and `NotSupported` if the server has no custom attributes.
impl Vcenter {
    /// The definitions of the attribute `name`, which differ in the type of their objects.
    ///
    /// # Errors
    /// Those of a read.
    pub async fn attribute_definitions(&self, name: &str) -> Result<Vec<AttributeDefinition>, Error> {
        let session = self.sessions.live_or_error()?;
        let manager = manager(&session, "RetrievePropertiesEx")?;
        let spec = PropertySpec::default()
            .read_properties("CustomFieldsManager", &["field"])
            .select_object(manager, []);
        let read = self.retrieve_in(&session, spec, PAGE).await?;
        let Some(found) = read.iter().find(|object| object.moref == *manager) else {
            return Ok(Vec::new());
        };
        if let Some(fault) = found.denied("field") {
            return Err(Error::refused("RetrievePropertiesEx", manager, fault.clone()));
        }
        let all = found.get("field").and_then(Value::fields).unwrap_or_default();
        let named = all.iter().filter(|field| field.name == name);
        Ok(named.map(|field| field.definition.clone()).collect())
    }

    /// Defines the attribute `name` for all types of objects (`AddCustomFieldDef`, privilege `Global.ManageCustomFields`).
    ///
    /// # Errors
    /// Those of a call: `Other("DuplicateName")` if it exists.
    pub async fn define_attribute(
        &self,
        permit: &impl WritePermit,
        name: &str,
    ) -> Result<AttributeDefinition, Error> {
        const METHOD: &str = "AddCustomFieldDef";
        let session = self.sessions.live_or_error()?;
        let call =
            SoapCall::under(permit, METHOD, manager(&session, METHOD)?).with(XmlWriter::text("name", name));
        let read = |response: &Element<'_>| {
            let defined = response.child("returnval").and_then(AttributeDefinition::read);
            defined.ok_or_else(|| ReplyError::value("returnval", "a CustomFieldDef"))
        };
        self.call_in(&session, &call, read).await
    }

    /// Gives `entity` a value (`SetField`, privilege `Global.SetCustomField` on it). An empty value clears it.
    ///
    /// # Errors
    /// Those of a call: `InvalidArgument` if the definition is gone.
    pub async fn set_attribute(
        &self,
        permit: &impl WritePermit,
        definition: &AttributeDefinition,
        entity: &Entity,
        value: &str,
    ) -> Result<(), Error> {
        const METHOD: &str = "SetField";
        let session = self.sessions.live_or_error()?;
        let call = SoapCall::under(permit, METHOD, manager(&session, METHOD)?)
            .with(XmlWriter::moref("entity", &entity.moref(&session)))
            .with(XmlWriter::text("key", definition.key.to_string()))
            .with(XmlWriter::text("value", for_people(value)));
        self.call_in(&session, &call, soap::nothing).await
    }

    /// The values of these definitions on `entities`, sanitized. An object without a value, or that cannot be read, is left out.
    ///
    /// # Errors
    /// Those of a read.
    pub async fn attribute_values(
        &self,
        definitions: &[AttributeDefinition],
        entities: &[Entity],
    ) -> Result<Vec<(Entity, String)>, Error> {
        let session = self.sessions.live_or_error()?;
        if entities.is_empty() {
            return Ok(Vec::new());
        }
        let mut spec = PropertySpec::default().read_properties("ManagedEntity", &["customValue"]);
        for entity in entities {
            spec = spec.select_object(&entity.moref(&session), []);
        }
        let read = self.retrieve_in(&session, spec, PAGE).await?;
        let value = |entity: &Entity| {
            let moref = entity.moref(&session);
            let found = read.iter().find(|object| object.moref == moref)?;
            let values = found.get("customValue").and_then(Value::custom_values)?;
            let definition = definitions.iter().find(|it| it.fits(entity))?;
            let value = values.get(&definition.key).filter(|value| !value.is_empty())?;
            Some((entity.clone(), value.clone()))
        };
        Ok(entities.iter().filter_map(value).collect())
    }
}

fn manager<'s>(session: &'s Session, method: &'static str) -> Result<&'s Moref, Error> {
    session.content.custom_fields_manager.as_ref().ok_or_else(|| {
        let fault = Fault::new(FaultKind::NotSupported, "the server has no custom attributes");
        Error::refused(method, &session.content.root_folder, fault)
    })
}
