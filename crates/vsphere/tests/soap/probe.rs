//! What a probe makes of proxies that cut long polls, and of large results.

use std::time::Duration;

use haulout_vsphere::updates::probe::PollEnd;

use super::server::{Fake, Reply, Request};

/// The wait of the poll under test.
const WAIT: Duration = Duration::from_secs(7);

/// The poll under test, and not the first set before it.
fn is_poll(call: &Request) -> bool {
    call.method() == "WaitForUpdatesEx" && call.value("maxWaitSeconds") == Some("7")
}

#[tokio::test]
async fn long_poll_tells_how_the_way_to_vcenter_ends_it() {
    for (reply, end) in [
        (Reply::of("WaitForUpdatesEx", ""), PollEnd::Answered),
        (Reply::Close, PollEnd::Closed),
        (Reply::new(504, "<html>"), PollEnd::Status(504)),
        (Reply::new(200, "<html>"), PollEnd::Refused),
        (Reply::fault("SystemError", ""), PollEnd::Refused),
    ] {
        let (fake, vcenter, _server) = Fake::start(move |call| is_poll(call).then(|| reply.clone())).await;
        fake.push(1, "");
        let poll = vcenter.try_long_poll(WAIT).await.unwrap();
        assert_eq!((poll.asked, poll.end), (WAIT, end));
        // What was made in the session is destroyed.
        fake.called(|call| call.method() == "DestroyPropertyCollector")
            .await;
    }
}

#[tokio::test]
async fn result_that_is_too_large_costs_only_itself() {
    let object = |task: &str, property: &str| {
        format!(r#"<returnval><objects><obj type="Task">{task}</obj>{property}</objects></returnval>"#)
    };
    let script = move |call: &Request| {
        if call.method() != "RetrievePropertiesEx" {
            return None;
        }
        let reply = |content: String| Some(Reply::of("RetrievePropertiesEx", &content));
        if call.body.contains("<path>recentTask</path>") {
            let state = "<propSet><name>info.state</name><val>success</val></propSet>";
            let others = [object("task-2", state), object("task-3", state)];
            let all = object("task-1", state) + &others.concat();
            return reply(all.replace("</returnval><returnval>", ""));
        }
        let result = |value: String| format!("<propSet><name>info.result</name>{value}</propSet>");
        let asks_for = |task: &str| call.body.contains(&format!(">{task}</obj>"));
        if asks_for("task-1") {
            return reply(object("task-1", &result("<val>12345</val>".to_owned())));
        }
        if asks_for("task-2") {
            return reply(" ".repeat(33 << 20));
        }
        reply(object("task-3", ""))
    };
    let (_fake, vcenter, _server) = Fake::start(script).await;
    let sizes = vcenter.task_results().await.unwrap();
    assert_eq!((sizes.tasks, sizes.with_result, sizes.beyond_limit), (3, 2, 1));
    assert_eq!(sizes.largest, 32 << 20);
}
