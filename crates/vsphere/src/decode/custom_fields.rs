//! Decodes definitions and values of custom attributes.

use std::collections::BTreeMap;

use crate::text::for_people;
use crate::xml::Element;

/// Definitions that are read. Administrators create them by hand.
const DEFINITIONS_MAX: usize = 1_000;

/// Values of one object that are read: one of each definition.
const VALUES_MAX: usize = DEFINITIONS_MAX;

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

impl AttributeDefinition {
    /// Decodes a `CustomFieldDef`; `None` without a key.
    pub(crate) fn read(field: &Element<'_>) -> Option<Self> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privileges::Entity;
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
