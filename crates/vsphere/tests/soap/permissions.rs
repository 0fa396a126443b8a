//! What is said of tasks that the account may not read.

use haulout_core::ids::VmRef;
use haulout_core::maintenance::effect::PowerOffCause;
use haulout_vsphere::fault::FaultKind;

use super::server::{Fake, Reply, Request, permit};

/// A VM that is on and has a task, whose properties vCenter withholds.
fn vm_with_withheld_task() -> Reply {
    let withheld = |path: &str| {
        format!(
            r#"<missingSet><path>info.{path}</path><fault><fault i:type="NoPermission"><object type="Folder">group-d1</object>
               <privilegeId>System.Read</privilegeId></fault><localizedMessage></localizedMessage></fault></missingSet>"#
        )
    };
    let task = ["descriptionId", "entity", "state", "queueTime"]
        .map(withheld)
        .concat();
    let vm = r#"<propSet><name>runtime.powerState</name><val>poweredOn</val></propSet>
        <propSet><name>recentTask</name><val><ManagedObjectReference type="Task">task-3</ManagedObjectReference></val></propSet>"#;
    let objects = format!(
        r#"<objects><obj type="VirtualMachine">vm-7</obj>{vm}</objects><objects><obj type="Task">task-3</obj>{task}</objects>"#
    );
    Reply::of(
        "RetrievePropertiesEx",
        &format!("<returnval>{objects}</returnval>"),
    )
}

#[tokio::test]
async fn check_before_a_call_names_the_privilege_for_a_task_that_cannot_be_read() {
    let (fake, vcenter, _server) =
        Fake::start(|call: &Request| (call.method() == "RetrievePropertiesEx").then(vm_with_withheld_task))
            .await;
    let vm = VmRef::new("vm-7");
    let asked = vcenter
        .shutdown_guest(&permit(), &vm, &PowerOffCause::Request(None))
        .await;
    let error = asked.unwrap_err();
    assert_eq!(
        error.fault().map(|fault| &fault.kind),
        Some(&FaultKind::NoPermission),
        "{}",
        error.chain()
    );
    let text = error.chain();
    for words in ["task-3", "System.Read", "group-d1"] {
        assert!(text.contains(words), "{text}");
    }
    assert!(fake.calls("ShutdownGuest").is_empty());
}
