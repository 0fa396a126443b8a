//! Events that people see in vCenter.

use haulout_core::ids::{HostRef, VmRef};
use haulout_vsphere::client::{Error, Vcenter};
use haulout_vsphere::fault::FaultKind;
use haulout_vsphere::privileges::Entity;

use super::server::{CONTENT, DEAD, Fake, Reply, Request, permit};

const METHOD: &str = "LogUserEvent";

fn logs(call: &Request) -> bool {
    call.method() == METHOD
}

/// Nothing to check, so this only logs in.
async fn log_in(vcenter: &Vcenter) {
    vcenter.lacks("System.View", &[]).await.unwrap();
}

#[tokio::test]
async fn event_is_logged_on_its_entity_with_an_escaped_and_bounded_message() {
    let script = |call: &Request| logs(call).then(|| Reply::of(METHOD, ""));
    let (fake, vcenter, _server) = Fake::start(script).await;
    log_in(&vcenter).await;
    let text = format!("<b>&\u{1b}[2J {}", "x".repeat(2_000));
    for entity in [
        Entity::Host(HostRef::new("host-1")),
        Entity::Vm(VmRef::new("vm-7")),
    ] {
        let logged = vcenter
            .for_subject("gpu-1")
            .log_event(&permit(), &entity, &text)
            .await;
        logged.unwrap();
    }
    let calls = fake.calls(METHOD);
    let [host, vm] = calls.as_slice() else {
        panic!("one call for each: {calls:?}");
    };
    assert!(
        host.body
            .contains(r#"<_this type="EventManager">EventManager</_this>"#)
    );
    assert!(
        host.body
            .contains(r#"<entity type="HostSystem">host-1</entity><msg>"#)
    );
    assert!(
        vm.body
            .contains(r#"<entity type="VirtualMachine">vm-7</entity><msg>"#)
    );
    let message = host.value("msg").unwrap();
    assert!(message.starts_with("&lt;b&gt;&amp;\u{fffd}[2J xxx"), "{message}");
    assert_eq!(message.matches('x').count(), 1_000 - "<b>&?[2J ".len());
    assert!(message.ends_with('…'), "{message}");
    assert!(host.value("operationID").unwrap().contains("gpu-1"));
}

#[tokio::test]
async fn event_without_a_session_is_not_sent_and_does_not_log_in() {
    let (fake, vcenter, _server) = Fake::start(|_| None).await;
    let entity = Entity::Vm(VmRef::new("vm-7"));
    let logged = vcenter.log_event(&permit(), &entity, "text").await;
    assert!(matches!(logged, Err(Error::Login { .. })), "{logged:?}");
    assert!(fake.all_calls().is_empty());
}

#[tokio::test]
async fn refused_event_names_the_reason_and_is_sent_once() {
    let missing = r#"<object type="HostSystem">host-1</object><privilegeId>Global.LogEvent</privilegeId>"#;
    for (reply, kind) in [
        (Reply::fault("NoPermission", missing), FaultKind::NoPermission),
        (Reply::new(500, DEAD), FaultKind::NotAuthenticated),
    ] {
        let script = move |call: &Request| logs(call).then(|| reply.clone());
        let (fake, vcenter, _server) = Fake::start(script).await;
        log_in(&vcenter).await;
        let entity = Entity::Host(HostRef::new("host-1"));
        let refused = vcenter.log_event(&permit(), &entity, "text").await;
        let error = refused.unwrap_err();
        assert_eq!(error.fault().map(|fault| &fault.kind), Some(&kind), "{error:?}");
        assert_eq!(fake.calls(METHOD).len(), 1);
    }
}

#[tokio::test]
async fn server_without_an_event_manager_gets_no_event() {
    let manager = r#"<eventManager type="EventManager">EventManager</eventManager>"#;
    let content = String::from_utf8(CONTENT.to_vec()).unwrap();
    let without = content.replace(manager, "");
    assert_ne!(content, without);
    let script = move |call: &Request| {
        (call.method() == "RetrieveServiceContent").then(|| Reply::new(200, without.clone()))
    };
    let (fake, vcenter, _server) = Fake::start(script).await;
    log_in(&vcenter).await;
    let entity = Entity::Vm(VmRef::new("vm-7"));
    let refused = vcenter.log_event(&permit(), &entity, "text").await;
    let error = refused.unwrap_err();
    assert_eq!(
        error.fault().map(|fault| &fault.kind),
        Some(&FaultKind::NotSupported)
    );
    assert!(fake.calls(METHOD).is_empty());
}
