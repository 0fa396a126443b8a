//! Tasks that the stream follows: which of their properties are read, and how their ends are told.

use haulout::ids::TaskRef;
use haulout::vsphere::fault::FaultKind;
use haulout::vsphere::update::{Roster, TaskState, Update};

use super::server::{Fake, Reply, Request, follow, host, told, told_ref};

fn first_set() -> String {
    host(
        "enter",
        "host-1",
        &[told("name", "esx1"), told("runtime.inMaintenanceMode", "false")].concat(),
    )
}

fn power_on_by_drs(state: &str) -> String {
    format!(
        r#"<objectSet><kind>enter</kind><obj type="Task">task-9</obj>{}{}{}{}{}</objectSet>"#,
        told("info.descriptionId", "Datacenter.powerOnVm"),
        told_ref("info.entity", "Datacenter", "datacenter-1"),
        told("info.state", state),
        told("info.cancelled", "false"),
        told("info.queueTime", "2026-11-21T09:57:02Z"),
    )
}

fn end_of_task(update: &Update) -> Option<TaskState> {
    let Update::Task(task) = update else { return None };
    (task.state != TaskState::Running).then(|| task.state.clone())
}

/// Whether a call asks for the whole `TaskInfo`, or for the result of a task.
fn asks_for_results(call: &Request) -> bool {
    call.body.contains("<pathSet>info</pathSet>") || call.body.contains("<pathSet>info.result</pathSet>")
}

#[tokio::test]
async fn result_is_read_only_of_a_task_of_ours_that_needs_it() {
    let (fake, vcenter, _server) = Fake::start(|call: &Request| {
        let asks_by_itself = call.method() == "RetrievePropertiesEx" && call.body.contains("task-9");
        asks_by_itself.then(|| {
            let refused = r#"<objects><obj type="Task">task-9</obj>
                <propSet><name>info.state</name><val>success</val></propSet>
                <propSet><name>info.result</name><val i:type="ClusterPowerOnVmResult"><notAttempted><vm type="VirtualMachine">vm-1</vm>
                <fault><fault i:type="NoCompatibleHost"/><localizedMessage>no host</localizedMessage></fault></notAttempted></val></propSet></objects>"#;
            Reply::of("RetrievePropertiesEx", &format!("<returnval>{refused}</returnval>"))
        })
    })
    .await;
    fake.push(1, &first_set());
    let roster = Roster {
        tasks: [TaskRef::new("task-9")].into(),
        ..Roster::default()
    };
    let mut stream = follow(&vcenter, roster);
    stream.settled().await;
    fake.push(1, &power_on_by_drs("running"));
    fake.push(1, &power_on_by_drs("success"));
    let TaskState::Error(fault) = stream.until(end_of_task).await else {
        panic!("DRS started nothing, and the task looks as if it had");
    };
    assert_eq!(fault.kind, FaultKind::NoCompatibleHost);
    for method in ["CreateFilter", "WaitForUpdatesEx"] {
        assert!(!fake.calls(method).iter().any(asks_for_results), "{method}");
    }
    assert_eq!(
        fake.calls("RetrievePropertiesEx")
            .iter()
            .filter(|call| asks_for_results(call))
            .count(),
        1
    );
    stream.stop().await;
}
