//! The stream with a task history that is large, invalid or refused.

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

#[tokio::test]
async fn large_task_result_on_a_page_does_not_break_the_stream() {
    let (fake, vcenter, _server) = Fake::start(|_| None).await;
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
