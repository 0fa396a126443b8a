use std::collections::BTreeSet;
use std::time::Duration;

use super::pushes::{PushRecord, SeenBy, SeenTask};
use super::read::{self, InstanceIds};
use super::{ListedTask, ProductInfo, PushTally, TaskOrigin, WatchStep};
use crate::fault::FaultKind;
use crate::soap::{self, SoapAnswer};
use crate::xml;
use haulout_core::ids::{HostRef, TaskRef};

const SETTLE: Duration = Duration::from_secs(15);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn task(number: u32, has_ended: bool) -> SeenTask {
    let step = if number % 2 == 1 {
        WatchStep::Enter
    } else {
        WatchStep::Exit
    };
    SeenTask {
        task: TaskRef::new(format!("task-{number}")),
        step,
        host: Some(HostRef::new("host-1")),
        has_ended,
        has_succeeded: has_ended,
    }
}

fn page(numbers: &[u32]) -> BTreeSet<TaskRef> {
    numbers
        .iter()
        .map(|number| TaskRef::new(format!("task-{number}")))
        .collect()
}

const PUSHED: PushTally = PushTally { pushed: 1, missed: 0 };
const MISSED: PushTally = PushTally { pushed: 0, missed: 1 };

#[test]
fn change_counts_as_missed_only_after_it_could_have_been_pushed() {
    let mut record = PushRecord::default();
    record.page(page(&[]), &[], at(0));
    record.task(&task(1, false), SeenBy::Reread, at(10));
    record.task(&task(1, true), SeenBy::Reread, at(20));
    let early = record.conclude(at(24), SETTLE);
    assert_eq!(early.recent_task, PushTally::default());
    let late = record.conclude(at(26), SETTLE);
    assert_eq!((late.recent_task, late.history_begin), (MISSED, MISSED));
    assert_eq!((late.task_end, late.entered), (PushTally::default(), 1));
    assert_eq!(record.conclude(at(35), SETTLE).task_end, MISSED);
}

#[test]
fn push_counts_by_the_way_it_came() {
    let mut record = PushRecord::default();
    record.page(page(&[]), &[], at(0));
    record.host_list(page(&[1]).into_iter());
    record.task(&task(1, false), SeenBy::Push, at(1));
    record.page(page(&[1]), &[task(1, false)], at(1));
    record.task(&task(1, true), SeenBy::Push, at(9));
    let seen = record.conclude(at(60), SETTLE);
    assert_eq!(
        (seen.recent_task, seen.task_end, seen.history_begin),
        (PUSHED, PUSHED, PUSHED)
    );
    assert_eq!(seen.history_end, MISSED);
    record.page(page(&[1]), &[task(1, true)], at(10));
    assert_eq!(record.conclude(at(60), SETTLE).history_end, PUSHED);
}

#[test]
fn end_on_a_page_with_another_new_task_shows_nothing() {
    let mut record = PushRecord::default();
    record.page(page(&[]), &[], at(0));
    record.page(page(&[1]), &[task(1, false)], at(1));
    record.task(&task(1, true), SeenBy::Push, at(5));
    record.page(page(&[1, 2]), &[task(1, true), task(2, false)], at(6));
    assert_eq!(record.conclude(at(60), SETTLE).history_end, PushTally::default());
}

#[test]
fn tasks_from_before_the_watch_are_left_out() {
    let mut record = PushRecord::default();
    record.known(TaskRef::new("task-1"));
    record.page(page(&[3]), &[task(3, false)], at(0));
    for number in [1, 3] {
        record.task(&task(number, true), SeenBy::Reread, at(1));
    }
    assert_eq!(record.conclude(at(60), SETTLE), Default::default());
}

#[test]
fn mode_without_a_task_is_counted() {
    let mut record = PushRecord::default();
    let host = HostRef::new("host-1");
    record.known_mode(host.clone(), false);
    record.mode(&host, true, SeenBy::Reread, at(1));
    let seen = record.conclude(at(60), SETTLE);
    assert_eq!((seen.mode, seen.entered_without_task), (MISSED, 1));
    // A push that follows the reading counts.
    record.mode(&host, true, SeenBy::Push, at(2));
    record.task(&task(1, true), SeenBy::Push, at(3));
    let seen = record.conclude(at(60), SETTLE);
    assert_eq!((seen.mode, seen.entered_without_task), (PUSHED, 0));
}

#[test]
fn watch_is_complete_when_a_host_was_in_maintenance_and_is_out() {
    let mut record = PushRecord::default();
    record.task(&task(1, true), SeenBy::Push, at(1));
    assert!(!record.is_complete(at(60), SETTLE));
    record.task(&task(2, false), SeenBy::Push, at(61));
    assert!(!record.is_complete(at(100), SETTLE));
    record.task(&task(2, true), SeenBy::Push, at(101));
    assert!(!record.is_complete(at(115), SETTLE));
    assert!(record.is_complete(at(116), SETTLE));
}

fn parse(text: &str) -> xml::Element<'_> {
    xml::parse(
        text.as_bytes(),
        xml::Shape {
            bulkheads: &["propSet"],
            ..xml::Shape::default()
        },
    )
    .unwrap()
}

fn response(property: &str, value: &str) -> String {
    format!(
        r#"<r xmlns="urn:vim25" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><returnval><objects>
        <obj type="Task">task-1</obj><propSet><name>{property}</name>{value}</propSet></objects></returnval></r>"#
    )
}

#[test]
fn size_of_a_result_is_known_even_beyond_the_limit() {
    let size = |value: &str| read::result_size(&parse(&response("info.result", value)));
    assert_eq!(size(""), Some((0, false)));
    assert!(matches!(size("<val>0123456789</val>"), Some((10..40, false))));
    let (bytes, is_beyond) = size(&format!("<val>{}</val>", "x".repeat(3 << 20))).unwrap();
    assert!(is_beyond && bytes >= 3 << 20, "{bytes}");
    // The task is gone, or its result may not be read.
    let objects = |content: &str| {
        let text = format!(r#"<r xmlns="urn:vim25"><returnval>{content}</returnval></r>"#);
        read::result_size(&parse(&text))
    };
    assert_eq!(objects(""), None);
    let denied = "<objects><missingSet><path>info.result</path></missingSet></objects>";
    assert_eq!(objects(denied), None);
}

#[test]
fn listed_task_tells_its_origin_and_no_name() {
    let info = r#"<val><TaskInfo><task type="Task">task-1</task><descriptionId>HostSystem.enterMaintenanceMode</descriptionId>
        <entityName>esx-secret</entityName><state>error</state><cancelable>true</cancelable>
        <error><fault xsi:type="Timedout"/><localizedMessage>esx-secret</localizedMessage></error>
        <reason xsi:type="TaskReasonSystem"/><parentTaskKey>task-0</parentTaskKey></TaskInfo><TaskInfo/></val>"#;
    let tasks = read::listed_tasks(&parse(&response("latestPage", info)));
    assert_eq!(tasks.len(), 2);
    let expected = ListedTask {
        description_id: "HostSystem.enterMaintenanceMode".to_owned(),
        origin: TaskOrigin::System,
        has_parent: true,
        is_cancelable: true,
        failed_with: Some(FaultKind::Timedout),
    };
    assert_eq!(tasks[0], expected);
    assert!(!format!("{tasks:?}").contains("secret"));
    assert_eq!(tasks[1].origin, TaskOrigin::Unknown);
}

#[test]
fn form_of_an_instance_id_has_none_of_its_content() {
    let value = |id: &str| {
        format!(
            "<val><HostAssignableHardwareBinding><instanceId>{id}</instanceId></HostAssignableHardwareBinding></val>"
        )
    };
    let mut ids = InstanceIds::default();
    for id in ["0000:3b:00.0", "pcip:0000:3b:00.0", "uuid-esx-secret"] {
        ids.take(&parse(&response(read::BINDINGS, &value(id))));
    }
    assert_eq!((ids.all, ids.with_address), (3, 2));
    let forms: Vec<&str> = ids.forms.iter().map(String::as_str).collect();
    assert_eq!(forms, ["hhhh:hh:hh.h", "xhxx:hhhh:hh:hh.h", "xxxh-hxx-xhhxhx"]);
}

#[test]
fn versions_are_cut_to_their_characters() {
    let about = r#"<r xmlns="urn:vim25"><returnval><about><version>8.0.3</version><build>24322831 &lt;b&gt;
        secret.example</build><productLineId>vpx</productLineId></about></returnval></r>"#;
    let product = read::product(&parse(about), "8.0.3.0".to_owned());
    let expected = ProductInfo {
        negotiated: "8.0.3.0".to_owned(),
        api_version: String::new(),
        version: "8.0.3".to_owned(),
        build: "24322831".to_owned(),
        product_line: "vpx".to_owned(),
    };
    assert_eq!(product, expected);
}

#[test]
fn versions_are_those_of_the_capture() {
    let capture = include_bytes!("../../../../../proto-notes/captures/service-content.xml");
    let read = |response: &xml::Element<'_>| Ok(read::product(response, "8.0.3.0".to_owned()));
    let SoapAnswer::Returned(product) = soap::read_answer("RetrieveServiceContent", capture, read).unwrap()
    else {
        panic!("a fault");
    };
    assert_eq!(
        (&*product.product_line, &*product.api_version),
        ("vpx", "8.0.3.0"),
        "{product:?}"
    );
}
