//! The stream with a task history that is large, invalid or refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haulout_vsphere::update::VsphereUpdate;

use super::server::{Fake, Reply, Request, change, follow, host};

/// A first set with one host, which establishes the stream.
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

fn page(tasks: &str) -> String {
    format!(
        r#"<objectSet><kind>enter</kind><obj type="TaskHistoryCollector">session[1]history-1</obj>{}</objectSet>"#,
        change("latestPage", tasks)
    )
}

fn entering(result: &str) -> String {
    format!(
        r#"<TaskInfo><task type="Task">task-7</task><descriptionId>HostSystem.enterMaintenanceMode</descriptionId>
           <entity type="HostSystem">host-1</entity><state>running</state><cancelled>false</cancelled><result>{result}</result>
           <reason/><queueTime>2026-11-21T09:57:02Z</queueTime></TaskInfo>"#
    )
}

/// Whether it reads this task by itself.
fn is_read_of(call: &Request, task: &str) -> bool {
    call.method() == "RetrievePropertiesEx"
        && call.body.contains(&format!(r#"<obj type="Task">{task}</obj>"#))
}

/// The reply to a read of the maintenance task `task-7`.
fn task_7() -> Reply {
    let property = |path: &str, value: &str| format!("<propSet><name>info.{path}</name>{value}</propSet>");
    let properties = [
        property("descriptionId", "<val>HostSystem.enterMaintenanceMode</val>"),
        property("entity", r#"<val type="HostSystem">host-1</val>"#),
        property("state", "<val>running</val>"),
        property("cancelled", "<val>false</val>"),
        property("queueTime", "<val>2026-11-21T09:57:02Z</val>"),
    ];
    let object = format!(
        r#"<objects><obj type="Task">task-7</obj>{}</objects>"#,
        properties.concat()
    );
    Reply::of(
        "RetrievePropertiesEx",
        &format!("<returnval>{object}</returnval>"),
    )
}

#[tokio::test]
async fn maintenance_of_the_history_counts_once_its_task_was_read() {
    let (fake, vcenter, _server) =
        Fake::start(|call: &Request| is_read_of(call, "task-7").then(task_7)).await;
    fake.push(1, &first_set());
    fake.push(2, &page(&entering("")));
    let mut stream = follow(&vcenter, Default::default());
    stream.settled().await;
    let entering = stream.host(|host| host.entering.clone()).await;
    assert_eq!(entering.task.as_str(), "task-7");
    let reads = fake.calls("RetrievePropertiesEx");
    let reads: Vec<_> = reads.iter().filter(|call| is_read_of(call, "task-7")).collect();
    assert_eq!(reads.len(), 1);
    assert!(!reads[0].body.contains("info.result"), "{}", reads[0].body);
    stream.stop().await;
}

/// A real vCenter listed tasks as `queued` that were years old. After a restart of vCenter their `Task` objects do not exist.
#[tokio::test]
async fn row_of_a_task_that_does_not_exist_starts_no_maintenance() {
    let (fake, vcenter, _server) = Fake::start_with(
        |call: &Request| {
            let unresolved = r#"<returnval type="Task">task-7</returnval>"#;
            let lists = call.method() == "ModifyListView" && call.body.contains("task-7");
            lists.then(|| Reply::of("ModifyListView", unresolved))
        },
        |settings| settings.reread_every = std::time::Duration::from_millis(50),
    )
    .await;
    let entered = Arc::new(AtomicBool::new(false));
    fake.push(1, &first_set());
    let mut stream = follow(&vcenter, Default::default());
    stream.settled().await;
    for round in 0..2 {
        fake.push(2, &page(&entering("").replace("running", "queued")));
        fake.counted_where(is_poll_of_history, round + 2).await;
        let reads = fake.calls("RetrievePropertiesEx").len();
        fake.counted("RetrievePropertiesEx", reads + 3).await;
    }
    fake.push(1, &host("modify", "host-1", &change("name", "renamed")));
    let noticed = Arc::clone(&entered);
    stream
        .until(move |update| {
            let VsphereUpdate::Host(host) = update else {
                return None;
            };
            noticed.fetch_or(host.entering.is_some(), Ordering::SeqCst);
            (host.name.as_deref() == Some("renamed")).then_some(())
        })
        .await;
    assert!(
        !entered.load(Ordering::SeqCst),
        "the row alone began a maintenance"
    );
    let reads = fake.calls("RetrievePropertiesEx");
    assert_eq!(reads.iter().filter(|call| is_read_of(call, "task-7")).count(), 1);
    stream.stop().await;
}

fn is_poll_of_history(call: &Request) -> bool {
    call.method() == "WaitForUpdatesEx" && call.value("_this") == Some("session[1]pc-2")
}

#[tokio::test]
async fn large_task_result_on_a_page_does_not_break_the_stream() {
    let (fake, vcenter, _server) =
        Fake::start(|call: &Request| is_read_of(call, "task-7").then(task_7)).await;
    fake.push(1, &first_set());
    fake.push(2, &page(&entering(&"x".repeat(3 << 19))));
    let mut stream = follow(&vcenter, Default::default());
    stream.settled().await;
    stream.host(|host| host.entering.clone()).await;
    stream.stop().await;
}

#[tokio::test]
async fn page_that_cannot_be_read_costs_the_history_alone() {
    let too_large = Reply::of("WaitForUpdatesEx", &" ".repeat(33 << 20));
    let without_version = Reply::of("WaitForUpdatesEx", "<returnval/>");
    for reply in [too_large, without_version, Reply::new(200, "<html>")] {
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
            let is_history =
                call.method() == "WaitForUpdatesEx" && call.value("_this") == Some("session[1]pc-2");
            is_history.then(|| reply.clone())
        })
        .await;
        fake.push(1, &first_set());
        let mut stream = follow(&vcenter, Default::default());
        stream.settled().await;
        fake.called(|call| call.method() == "DestroyCollector").await;
        fake.push(
            1,
            &host("modify", "host-1", &change("runtime.inMaintenanceMode", "true")),
        );
        stream
            .host(|host| (host.in_maintenance == Some(true)).then_some(()))
            .await;
        assert_eq!(fake.calls("Login").len(), 1);
        stream.stop().await;
    }
}

#[tokio::test]
async fn history_that_vcenter_cannot_give_now_costs_the_history_alone_and_is_tried_again() {
    let is_poll = |call: &Request| is_poll_of_history(call);
    let is_create = |call: &Request| call.method() == "CreateCollectorForTasks";
    let is_size = |call: &Request| call.method() == "SetCollectorPageSize";
    let calls: [fn(&Request) -> bool; 3] = [is_poll, is_create, is_size];
    for is_failing in calls {
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| match call.method() {
            "CreateCollectorWithInfoFilterForTasks" => Some(Reply::fault("MethodNotFound", "")),
            _ => is_failing(call).then(|| Reply::fault("SystemError", "the database is slow")),
        })
        .await;
        fake.push(1, &first_set());
        let mut stream = follow(&vcenter, Default::default());
        stream.settled().await;
        fake.called(is_failing).await;
        // A stream that breaks is told before this change.
        tokio::time::sleep(Duration::from_millis(300)).await;
        fake.push(
            1,
            &host("modify", "host-1", &change("runtime.inMaintenanceMode", "true")),
        );
        stream
            .host(|host| (host.in_maintenance == Some(true)).then_some(()))
            .await;
        stream.stop().await;
    }
}

#[tokio::test]
async fn history_leaves_results_out_where_the_api_can() {
    let (fake, vcenter, _server) = Fake::start(|_| None).await;
    fake.push(1, &first_set());
    let mut stream = follow(&vcenter, Default::default());
    stream.settled().await;
    let call = fake
        .called(|call| call.method() == "CreateCollectorWithInfoFilterForTasks")
        .await;
    assert!(call.body.contains(
        "<filter><entity><entity type=\"Folder\">group-d1</entity><recursion>all</recursion></entity></filter>\
         <infoFilter><filterTaskResults><removeAll>true</removeAll></filterTaskResults></infoFilter>"
    ));
    fake.called(|call| call.method() == "SetCollectorPageSize").await;
    assert!(fake.calls("CreateCollectorForTasks").is_empty());
    stream.stop().await;
}

#[tokio::test]
async fn history_with_results_is_read_where_none_without_exists() {
    for (old_api, with_filter) in [(true, 0), (false, 1)] {
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| match call.method() {
            "" if old_api => {
                let versions = "<namespaces><namespace><name>urn:vim25</name><version>8.0.2.0</version></namespace></namespaces>";
                Some(Reply::new(200, versions))
            }
            "CreateCollectorWithInfoFilterForTasks" => Some(Reply::fault("MethodNotFound", "")),
            _ => None,
        })
        .await;
        fake.push(1, &first_set());
        let mut stream = follow(&vcenter, Default::default());
        stream.settled().await;
        fake.called(|call| call.method() == "CreateCollectorForTasks")
            .await;
        assert_eq!(
            fake.calls("CreateCollectorWithInfoFilterForTasks").len(),
            with_filter,
            "an API of before 8.0.3: {old_api}"
        );
        stream.stop().await;
    }
}

/// A connection that breaks, or a vCenter that ends the poll, concerns more than the history.
#[tokio::test]
async fn history_poll_that_fails_otherwise_breaks_the_stream() {
    for reply in [Reply::Close, Reply::fault("RequestCanceled", "")] {
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
            let is_history =
                call.method() == "WaitForUpdatesEx" && call.value("_this") == Some("session[1]pc-2");
            is_history.then(|| reply.clone())
        })
        .await;
        fake.push(1, &first_set());
        let mut stream = follow(&vcenter, Default::default());
        stream.settled().await;
        stream.lost().await;
        stream.stop().await;
    }
}
