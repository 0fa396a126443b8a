//! Tasks that the stream follows: which properties are read, and how their ends are reported.

use haulout_core::ids::TaskRef;
use haulout_vsphere::fault::FaultKind;
use haulout_vsphere::update::{EndOutcome, Host, MaintenanceEnd, TaskState, VsphereUpdate, WatchSet};

use super::server::{
    Fake, Reply, Request, change, change_ref, entering, failed, follow, host, is_reread, recent, task_changed,
};

fn first_set() -> String {
    host(
        "enter",
        "host-1",
        &[
            change("name", "esx1"),
            change("runtime.inMaintenanceMode", "false"),
        ]
        .concat(),
    )
}

fn power_on_by_drs(state: &str) -> String {
    format!(
        r#"<objectSet><kind>enter</kind><obj type="Task">task-9</obj>{}{}{}{}{}</objectSet>"#,
        change("info.descriptionId", "Datacenter.powerOnVm"),
        change_ref("info.entity", "Datacenter", "datacenter-1"),
        change("info.state", state),
        change("info.cancelled", "false"),
        change("info.queueTime", "2026-11-21T09:57:02Z"),
    )
}

fn end_of_task(update: &VsphereUpdate) -> Option<TaskState> {
    let VsphereUpdate::Task(task) = update else {
        return None;
    };
    (task.state != TaskState::Running).then(|| task.state.clone())
}

/// Whether a call reads the whole `TaskInfo`, or the result of a task.
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
    let watch_set = WatchSet {
        tasks: [TaskRef::new("task-9")].into(),
        ..WatchSet::default()
    };
    let mut stream = follow(&vcenter, watch_set);
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

/// The morefs in elements of this name in a call.
fn named(call: &Request, element: &str) -> Vec<String> {
    let tag = format!("<{element} ");
    let parts = call.body.split(&*tag).skip(1);
    let value = |part: &str| Some(part.split_once('>')?.1.split_once('<')?.0.to_owned());
    parts.filter_map(value).collect()
}

#[tokio::test]
async fn cancel_pushed_only_by_the_list_view_is_noticed() {
    let (fake, vcenter, _server) = Fake::start(|_| None).await;
    fake.push(1, &first_set());
    let mut stream = follow(&vcenter, WatchSet::default());
    stream.settled().await;
    fake.push(1, &entering("task-7", "host-1", 2));
    stream.host(|host| host.entering.clone()).await;
    let listed = fake.called(|call| call.method() == "ModifyListView").await;
    assert_eq!(named(&listed, "add"), ["task-7"]);
    let filters = fake.calls("CreateFilter");
    assert!(
        filters
            .last()
            .unwrap()
            .body
            .contains("<pathSet>info.state</pathSet>")
    );

    fake.push(1, &task_changed("task-7", &failed("RequestCanceled")));
    stream.host(|host| host.entering.is_none().then_some(())).await;
    let unlisted = fake.called(|call| !named(call, "remove").is_empty()).await;
    assert_eq!(named(&unlisted, "remove"), ["task-7"]);
    stream.stop().await;
}

#[tokio::test]
async fn at_most_a_thousand_maintenance_tasks_are_followed() {
    let (fake, vcenter, _server) = Fake::start(|_| None).await;
    let tasks: String = (0..1_200)
        .map(|n| entering(&format!("task-{n}"), &format!("host-{n}"), 2))
        .collect();
    fake.push(1, &format!("{}{tasks}", first_set()));
    let mut stream = follow(&vcenter, WatchSet::default());
    stream.settled().await;
    let listed = fake.called(|call| call.method() == "ModifyListView").await;
    assert_eq!(named(&listed, "add").len(), 1_000);
    stream.stop().await;
}

/// A running task in the list view counts although its host does not list it.
#[tokio::test]
async fn maintenance_task_that_is_read_as_running_is_not_over() {
    let (fake, vcenter, _server) = Fake::start_with(
        |call: &Request| {
            is_reread(call).then(|| {
                let objects = r#"<objects><obj type="HostSystem">host-1</obj><propSet><name>recentTask</name></propSet></objects>
                    <objects><obj type="Task">task-7</obj><propSet><name>info.state</name><val>running</val></propSet></objects>"#;
                Reply::of("RetrievePropertiesEx", &format!("<returnval>{objects}</returnval>"))
            })
        },
        |settings| settings.reread_every = std::time::Duration::from_millis(50),
    )
    .await;
    fake.push(1, &[first_set(), entering("task-7", "host-1", 2)].concat());
    let mut stream = follow(&vcenter, WatchSet::default());
    stream.settled().await;
    for _ in 0..3 {
        let count = fake.calls("RetrievePropertiesEx").len();
        fake.counted("RetrievePropertiesEx", count + 1).await;
    }
    fake.push(1, &host("modify", "host-1", &change("name", "renamed")));
    let under_way =
        stream.host(|host| (host.name.as_deref() == Some("renamed")).then_some(host.entering.is_some()));
    assert!(under_way.await);
    stream.stop().await;
}

fn end_of(host: &Host) -> Option<MaintenanceEnd> {
    host.last_end.clone()
}

#[tokio::test]
async fn failed_maintenance_is_distinguished_from_a_cancelled_one() {
    let cancelled = change("info.cancelled", "true");
    for (end, outcome) in [
        (failed("RequestCanceled"), EndOutcome::Cancelled),
        ([cancelled, failed("SystemError")].concat(), EndOutcome::Cancelled),
        (
            failed("Timedout"),
            EndOutcome::Failed {
                message: "Timedout: no words".to_owned(),
            },
        ),
    ] {
        let (fake, vcenter, _server) = Fake::start(|_| None).await;
        fake.push(1, &first_set());
        let mut stream = follow(&vcenter, WatchSet::default());
        stream.settled().await;
        fake.push(1, &entering("task-7", "host-1", 2));
        fake.push(1, &task_changed("task-7", &end));
        let end = stream.host(end_of).await;
        assert_eq!(
            end,
            MaintenanceEnd {
                task: TaskRef::new("task-7"),
                outcome
            }
        );

        // Later facts count, not earlier ones.
        fake.push(1, &entering("task-8", "host-1", 3));
        stream
            .host(|host| (host.entering.is_some() && host.last_end.is_none()).then_some(()))
            .await;
        fake.push(1, &task_changed("task-8", &failed("Timedout")));
        stream.host(end_of).await;
        fake.push(
            1,
            &host("modify", "host-1", &change("runtime.inMaintenanceMode", "true")),
        );
        stream.host(|host| host.last_end.is_none().then_some(())).await;
        stream.stop().await;
    }
}

#[tokio::test]
async fn exit_that_a_user_started_is_reported_and_one_of_vcenter_is_not() {
    let (fake, vcenter, _server) = Fake::start(|_| None).await;
    let exiting = |task: &str, queued: u32| {
        entering(task, "host-1", queued).replace("enterMaintenanceMode", "exitMaintenanceMode")
    };
    let user = r#"<changeSet><name>info.reason</name><op>assign</op><val i:type="TaskReasonUser"><userName>operator</userName></val></changeSet>"#;
    let by_a_user = exiting("task-8", 3).replace("</objectSet>", &format!("{user}</objectSet>"));
    fake.push(1, &[first_set(), exiting("task-7", 2)].concat());
    let mut stream = follow(&vcenter, WatchSet::default());
    let last_exit = stream.host(|host| Some(host.last_exit.clone())).await;
    assert_eq!(last_exit, None);
    stream.settled().await;
    fake.push(1, &by_a_user);
    let last_exit = stream.host(|host| host.last_exit.clone()).await;
    assert_eq!(last_exit, TaskRef::new("task-8"));
    stream.stop().await;
}

#[tokio::test]
async fn end_of_a_task_that_is_not_followed_is_not_reported() {
    let (fake, vcenter, _server) = Fake::start(|_| None).await;
    let ended = entering("task-7", "host-1", 2).replace(">running<", ">error<");
    fake.push(1, &[first_set(), ended].concat());
    let mut stream = follow(&vcenter, WatchSet::default());
    let last_end = stream.host(|host| Some(host.last_end.clone())).await;
    assert_eq!(last_end, None);
    stream.settled().await;

    // A task that leaves the list of its host without a known end is neither.
    fake.push(
        1,
        &[
            entering("task-8", "host-1", 3),
            host("modify", "host-1", &recent(&["task-8"])),
        ]
        .concat(),
    );
    stream.host(|host| host.entering.clone()).await;
    fake.push(
        1,
        &[
            r#"<objectSet><kind>leave</kind><obj type="Task">task-8</obj></objectSet>"#.to_owned(),
            host("modify", "host-1", &change("name", "renamed")),
        ]
        .concat(),
    );
    let last_end =
        stream.host(|host| (host.name.as_deref() == Some("renamed")).then(|| host.last_end.clone()));
    assert_eq!(last_end.await, None);
    stream.stop().await;
}

fn awaits(task: &str) -> WatchSet {
    WatchSet {
        tasks: [TaskRef::new(task)].into(),
        ..WatchSet::default()
    }
}

fn task_gone(update: &VsphereUpdate) -> Option<TaskRef> {
    let VsphereUpdate::TaskGone(task) = update else {
        return None;
    };
    Some(task.clone())
}

#[tokio::test]
async fn awaited_task_not_resolved_by_the_list_view_is_reported_gone_once() {
    let (fake, vcenter, _server) = Fake::start_with(
        |call: &Request| {
            let unresolved = r#"<returnval type="Task">task-9</returnval>"#;
            (call.method() == "ModifyListView").then(|| Reply::of("ModifyListView", unresolved))
        },
        |settings| settings.reread_every = std::time::Duration::from_millis(50),
    )
    .await;
    fake.push(1, &first_set());
    let mut stream = follow(&vcenter, awaits("task-9"));
    assert_eq!(stream.until(task_gone).await, TaskRef::new("task-9"));
    let reads = fake.calls("RetrievePropertiesEx").len();
    fake.counted("RetrievePropertiesEx", reads + 3).await;
    fake.push(1, &host("modify", "host-1", &change("name", "renamed")));
    let next = stream.until(|update| {
        task_gone(update).map(|_| true).or_else(|| {
            let VsphereUpdate::Host(host) = update else {
                return None;
            };
            (host.name.as_deref() == Some("renamed")).then_some(false)
        })
    });
    assert!(!next.await, "it was reported twice");
    assert_eq!(fake.calls("ModifyListView").len(), 1);
    stream.stop().await;
}

#[tokio::test]
async fn awaited_task_that_left_is_reported_gone_only_if_not_found() {
    for exists in [true, false] {
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
            let looks = call.method() == "RetrievePropertiesEx" && call.body.contains("task-9");
            let ended = r#"<returnval><objects><obj type="Task">task-9</obj><propSet><name>info.state</name><val>error</val></propSet></objects></returnval>"#;
            looks.then(|| Reply::of("RetrievePropertiesEx", if exists { ended } else { "" }))
        })
        .await;
        fake.push(1, &[first_set(), power_on_by_drs("running")].concat());
        let mut stream = follow(&vcenter, awaits("task-9"));
        stream.settled().await;
        fake.push(
            1,
            r#"<objectSet><kind>leave</kind><obj type="Task">task-9</obj></objectSet>"#,
        );
        let gone = stream.until(|update| {
            task_gone(update)
                .map(|_| true)
                .or_else(|| end_of_task(update).map(|_| false))
        });
        assert_eq!(gone.await, !exists);
        stream.stop().await;
    }
}

#[tokio::test]
async fn awaited_task_that_a_reread_does_not_find_is_reported_gone() {
    let (fake, vcenter, _server) = Fake::start_with(
        |_| None,
        |settings| settings.reread_every = std::time::Duration::from_millis(50),
    )
    .await;
    fake.push(1, &[first_set(), power_on_by_drs("running")].concat());
    let mut stream = follow(&vcenter, awaits("task-9"));
    assert_eq!(stream.until(task_gone).await, TaskRef::new("task-9"));
    stream.stop().await;
}
