//! Custom attributes of hosts and VMs, which people see in vCenter.

use std::collections::BTreeMap;

use super::call::SoapCall;
use super::client::Vcenter;
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

/// The definition of a custom attribute (`CustomFieldDef`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeDefinition {
    pub(crate) key: i32,
    /// The type of the objects that have it; `None` for all types.
    pub(crate) on: Option<String>,
}

/// A custom field definition with its name, as the list of all has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedField {
    pub(crate) name: String,
    pub(crate) definition: AttributeDefinition,
}

/// Definitions that are read. Administrators create them by hand.
const DEFINITIONS_MAX: usize = 1_000;

/// Values of one object that are read: one of each definition.
const VALUES_MAX: usize = DEFINITIONS_MAX;

impl AttributeDefinition {
    /// Whether objects like `entity` have the attribute.
    pub fn fits(&self, entity: &Entity) -> bool {
        let kind = match entity {
            Entity::Root => "Folder",
            Entity::Datacenter(_) => "Datacenter",
            Entity::Host(_) => "HostSystem",
            Entity::Vm(_) => "VirtualMachine",
        };
        self.on.as_deref().is_none_or(|on| on == kind)
    }

    /// Decodes a `CustomFieldDef`; `None` without a key.
    fn read(field: &Element<'_>) -> Option<Self> {
        let on = field.text_of("managedObjectType").filter(|on| !on.is_empty());
        Some(Self {
            key: field.text_of("key")?.parse().ok()?,
            on: on.map(str::to_owned),
        })
    }
}

/// Decodes an `ArrayOfCustomFieldDef`.
pub(crate) fn definitions(fields: &Element<'_>) -> Vec<NamedField> {
    let field = |field: &Element<'_>| {
        Some(NamedField {
            name: field.text_of("name")?.to_owned(),
            definition: AttributeDefinition::read(field)?,
        })
    };
    fields
        .children()
        .take(DEFINITIONS_MAX)
        .filter_map(field)
        .collect()
}

/// Decodes an `ArrayOfCustomFieldValue`: texts by their key.
pub(crate) fn values(values: &Element<'_>) -> BTreeMap<i32, String> {
    let value = |value: &Element<'_>| {
        let key = value.text_of("key")?.parse().ok()?;
        Some((key, for_people(value.text_of("value")?)))
    };
    values.children().take(VALUES_MAX).filter_map(value).collect()
}

/// The calls below are not worth a login: without a live session they send nothing and return `None`. Fault kinds of
/// [`super::fault::FaultKind`]: `NoPermission`, and `NotSupported` if the server has no custom attributes.
impl Vcenter {
    /// The definitions of the attribute `name`, which differ in the type of their objects.
    ///
    /// # Errors
    /// Those of a read.
    pub async fn attribute_definitions(&self, name: &str) -> Result<Option<Vec<AttributeDefinition>>, Error> {
        let Some(session) = self.sessions.live() else {
            return Ok(None);
        };
        let manager = manager(&session, "RetrievePropertiesEx")?;
        let spec = PropertySpec::default()
            .read_properties("CustomFieldsManager", &["field"])
            .select_object(manager, []);
        let read = self.retrieve_in(&session, spec, PAGE).await?;
        let Some(found) = read.iter().find(|object| object.moref == *manager) else {
            return Ok(Some(Vec::new()));
        };
        if let Some(fault) = found.denied("field") {
            return Err(Error::refused("RetrievePropertiesEx", manager, fault.clone()));
        }
        let all = found.get("field").and_then(Value::fields).unwrap_or_default();
        let named = all.iter().filter(|field| field.name == name);
        Ok(Some(named.map(|field| field.definition.clone()).collect()))
    }

    /// Defines the attribute `name` for all types of objects (`AddCustomFieldDef`, privilege `Global.ManageCustomFields`).
    ///
    /// # Errors
    /// Those of a call: `Other("DuplicateName")` if it exists.
    pub async fn define_attribute(
        &self,
        permit: &impl WritePermit,
        name: &str,
    ) -> Result<Option<AttributeDefinition>, Error> {
        const METHOD: &str = "AddCustomFieldDef";
        let Some(session) = self.sessions.live() else {
            return Ok(None);
        };
        let call =
            SoapCall::under(permit, METHOD, manager(&session, METHOD)?).with(XmlWriter::text("name", name));
        let read = |response: &Element<'_>| {
            let defined = response.child("returnval").and_then(AttributeDefinition::read);
            defined.ok_or_else(|| ReplyError::value("returnval", "a CustomFieldDef"))
        };
        self.call_in(&session, &call, read).await.map(Some)
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
    ) -> Result<Option<()>, Error> {
        const METHOD: &str = "SetField";
        let Some(session) = self.sessions.live() else {
            return Ok(None);
        };
        let call = SoapCall::under(permit, METHOD, manager(&session, METHOD)?)
            .with(XmlWriter::moref("entity", &entity.moref(&session)))
            .with(XmlWriter::text("key", definition.key.to_string()))
            .with(XmlWriter::text("value", for_people(value)));
        self.call_in(&session, &call, soap::nothing).await.map(Some)
    }

    /// The values of these definitions on `entities`, sanitized. An object without a value, or that cannot be read, is left out.
    ///
    /// # Errors
    /// Those of a read.
    pub async fn attribute_values(
        &self,
        definitions: &[AttributeDefinition],
        entities: &[Entity],
    ) -> Result<Option<Vec<(Entity, String)>>, Error> {
        let Some(session) = self.sessions.live() else {
            return Ok(None);
        };
        if entities.is_empty() {
            return Ok(Some(Vec::new()));
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
        Ok(Some(entities.iter().filter_map(value).collect()))
    }
}

fn manager<'s>(session: &'s Session, method: &'static str) -> Result<&'s Moref, Error> {
    session.content.custom_fields_manager.as_ref().ok_or_else(|| {
        let message = "the server has no custom attributes".to_owned();
        let kind = FaultKind::NotSupported;
        Error::refused(method, &session.content.root_folder, Fault { kind, message })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml;
    use haulout_core::ids::{HostRef, VmRef};

    fn parse(text: &str) -> xml::Element<'_> {
        xml::parse(text.as_bytes(), xml::Shape::default()).unwrap()
    }

    #[test]
    fn definition_fits_the_objects_of_its_type() {
        let fields = parse(
            r#"<val xmlns="urn:vim25"><CustomFieldDef><key>1</key><name>a</name><type>string</type></CustomFieldDef>
            <CustomFieldDef><key>2</key><name>b</name><managedObjectType>HostSystem</managedObjectType></CustomFieldDef>
            <CustomFieldDef><key>x</key><name>c</name></CustomFieldDef><CustomFieldDef><key>3</key></CustomFieldDef></val>"#,
        );
        let read = definitions(&fields);
        let names: Vec<&str> = read.iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let (host, vm) = (
            Entity::Host(HostRef::new("host-1")),
            Entity::Vm(VmRef::new("vm-1")),
        );
        let fits = |at: usize| (read[at].definition.fits(&host), read[at].definition.fits(&vm));
        assert_eq!((fits(0), fits(1)), ((true, true), (true, false)));
    }

    #[test]
    fn values_are_sanitized_and_bounded() {
        let many = "<x><key>7</key><value>a&#10;b</value></x><x><key>8</key></x>".to_owned()
            + &"<x><key>9</key><value>c</value></x>".repeat(VALUES_MAX);
        let text = format!(r#"<val xmlns="urn:vim25">{many}</val>"#);
        let read = values(&parse(&text));
        assert_eq!(read.get(&7).map(String::as_str), Some("a b"));
        assert_eq!(read.len(), 2);
    }
}
