//! Custom attributes that people see in vCenter.

use haulout_core::ids::{HostRef, VmRef};
use haulout_vsphere::client::{Error, Vcenter};
use haulout_vsphere::fault::FaultKind;
use haulout_vsphere::privileges::Entity;

use super::server::{CONTENT, Fake, Reply, Request, permit};

/// Nothing to check, so this only logs in.
async fn log_in(vcenter: &Vcenter) {
    vcenter.lacks("System.View", &[]).await.unwrap();
}

fn field(key: i32, name: &str, kind: &str) -> String {
    format!("<CustomFieldDef><key>{key}</key><name>{name}</name><type>string</type>{kind}</CustomFieldDef>")
}

/// Definitions of `haulout` for hosts alone, and of another attribute; one VM has values.
fn script(call: &Request) -> Option<Reply> {
    let reply = |object: &str, property: &str, value: &str| {
        let content = format!(
            "<returnval><objects>{object}<propSet><name>{property}</name><val>{value}</val></propSet></objects></returnval>"
        );
        Some(Reply::of("RetrievePropertiesEx", &content))
    };
    match call.method() {
        "RetrievePropertiesEx" if call.body.contains("<pathSet>field</pathSet>") => {
            let fields = field(7, "haulout", "<managedObjectType>HostSystem</managedObjectType>")
                + &field(8, "owner", "");
            let manager = r#"<obj type="CustomFieldsManager">CustomFieldsManager</obj>"#;
            reply(manager, "field", &fields)
        }
        "RetrievePropertiesEx" if call.body.contains("<pathSet>customValue</pathSet>") => {
            let values = "<x><key>7</key><value>a</value></x><x><key>8</key><value>b</value></x>";
            reply(r#"<obj type="HostSystem">host-1</obj>"#, "customValue", values)
        }
        "AddCustomFieldDef" => Some(Reply::of(
            "AddCustomFieldDef",
            "<returnval><key>9</key><name>haulout</name><type>string</type></returnval>",
        )),
        "SetField" => Some(Reply::of("SetField", "")),
        _ => None,
    }
}

#[tokio::test]
async fn attribute_is_set_by_the_key_of_its_definition() {
    let (fake, vcenter, _server) = Fake::start(script).await;
    log_in(&vcenter).await;
    let (host, vm) = (
        Entity::Host(HostRef::new("host-1")),
        Entity::Vm(VmRef::new("vm-7")),
    );
    let found = vcenter.attribute_definitions("haulout").await.unwrap();
    let [definition] = found.as_slice() else {
        panic!("one of this name: {found:?}");
    };
    assert!(definition.fits(&host) && !definition.fits(&vm));
    let set = vcenter.set_attribute(&permit(), definition, &host, "<a>").await;
    set.unwrap();
    let call = &fake.calls("SetField")[0].body;
    // The order is that of the schema.
    let arguments = r#"<entity type="HostSystem">host-1</entity><key>7</key><value>&lt;a&gt;</value>"#;
    assert!(call.contains(arguments), "{call}");
    let values = vcenter
        .attribute_values(&found, &[host.clone(), vm.clone()])
        .await;
    assert_eq!(values.unwrap(), [(host, "a".to_owned())]);
    let defined = vcenter.define_attribute(&permit(), "haulout").await;
    assert!(defined.unwrap().fits(&vm));
}

#[tokio::test]
async fn attribute_without_a_session_is_not_set_and_does_not_log_in() {
    let (fake, vcenter, _server) = Fake::start(|_| None).await;
    let read = vcenter.attribute_definitions("haulout").await.map(drop);
    let defined = vcenter.define_attribute(&permit(), "haulout").await.map(drop);
    for sent in [read, defined] {
        assert!(matches!(sent, Err(Error::Login { .. })), "{sent:?}");
    }
    assert!(fake.all_calls().is_empty());
}

#[tokio::test]
async fn attribute_of_a_server_without_custom_attributes_is_refused() {
    let content = String::from_utf8_lossy(CONTENT).replace("customFieldsManager", "other");
    let script = move |call: &Request| {
        (call.method() == "RetrieveServiceContent").then(|| Reply::new(200, content.clone()))
    };
    let (_fake, vcenter, _server) = Fake::start(script).await;
    log_in(&vcenter).await;
    let error = vcenter.attribute_definitions("haulout").await.unwrap_err();
    assert_eq!(error.fault().unwrap().kind, FaultKind::NotSupported);
}

#[tokio::test]
async fn definitions_that_may_not_be_read_are_not_taken_for_none() {
    let script = |call: &Request| {
        let denied = r#"<returnval><objects><obj type="CustomFieldsManager">CustomFieldsManager</obj><missingSet>
            <path>field</path><fault><fault i:type="NoPermission"/><localizedMessage>no</localizedMessage></fault>
            </missingSet></objects></returnval>"#;
        (call.method() == "RetrievePropertiesEx").then(|| Reply::of("RetrievePropertiesEx", denied))
    };
    let (_fake, vcenter, _server) = Fake::start(script).await;
    log_in(&vcenter).await;
    let error = vcenter.attribute_definitions("haulout").await.unwrap_err();
    assert_eq!(error.fault().unwrap().kind, FaultKind::NoPermission);
}
