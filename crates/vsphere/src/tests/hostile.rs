//! Replies that are broken, foreign or made to hurt: each is one clear error, soon.

use crate::error::chain;
use crate::property::{Change, ObjectProperties, UpdateSet, Value, read_page, read_update_set};
use crate::soap::{SoapAnswer, read_answer};
use crate::task;

const HEAD: &str = r#"<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><s:Body>"#;
const TAIL: &str = "</s:Body></s:Envelope>";

fn reply(content: &str) -> String {
    format!("{HEAD}{content}{TAIL}")
}

fn error_of(bytes: &[u8]) -> Option<String> {
    match read_answer("WaitForUpdatesEx", bytes, read_update_set) {
        Err(error) => Some(chain(&error)),
        Ok(SoapAnswer::Fault { fault, .. }) => Some(fault.to_string()),
        Ok(SoapAnswer::Returned(_)) => None,
    }
}

#[test]
fn every_hostile_reply_is_one_clear_error() {
    let response = |inner: &str| {
        reply(&format!(
            r#"<WaitForUpdatesExResponse xmlns="urn:vim25"><returnval>{inner}</returnval></WaitForUpdatesExResponse>"#
        ))
    };
    let attributes: String = (0..100_000).map(|n| format!(" a{n}=\"\"")).collect();
    let few_namespaces = r#"<a xmlns:a="u" xmlns:b="u" xmlns:c="u" xmlns:d="u">"#;
    let namespaces: String = (0..100_000).map(|n| format!(" xmlns:n{n}=\"u\"")).collect();
    let bomb = r#"<!DOCTYPE lolz [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>"#;
    let long = "x".repeat((1 << 20) + 1);
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", Vec::new(), "no XML element"),
        ("truncated", HEAD.into(), "ends in the middle of"),
        (
            "truncated in a tag",
            reply("<a")[..HEAD.len() + 1].into(),
            "ends in the middle of",
        ),
        (
            "html",
            b"<html><body><h1>503</h1></body></html>".to_vec(),
            "no SOAP envelope",
        ),
        (
            "loose html",
            b"<html><br><p>hi</html>".to_vec(),
            "not well-formed",
        ),
        ("json", br#"{"error":1}"#.to_vec(), "outside of the root"),
        (
            "not utf-8",
            [HEAD.as_bytes(), b"\xff\xfe", TAIL.as_bytes()].concat(),
            "UTF-8",
        ),
        (
            "utf-16",
            "<a/>".encode_utf16().flat_map(u16::to_le_bytes).collect(),
            "NUL",
        ),
        ("nul", reply("<a>\0</a>").into(), "NUL"),
        (
            "nul by reference",
            reply("<a>&#0;</a>").into(),
            "illegal character reference",
        ),
        (
            "depth bomb",
            reply(&"<a>".repeat(1_000_000)).into(),
            "levels of nesting",
        ),
        (
            "doctype",
            format!("{bomb}{}", reply("<a>&b;</a>")).into(),
            "DOCTYPE",
        ),
        ("entity", reply("<a>&b;</a>").into(), "entity"),
        (
            "instruction",
            format!("<?php x?>{}", reply("<a/>")).into(),
            "processing instruction",
        ),
        (
            "attributes",
            reply(&format!("<a{attributes}/>")).into(),
            "attributes on one element",
        ),
        (
            "namespaces",
            reply(&format!("<a{namespaces}/>")).into(),
            "attributes on one element",
        ),
        (
            "namespaces within namespaces",
            reply(&few_namespaces.repeat(20)).into(),
            "namespaces that hold in one place",
        ),
        (
            "long text",
            reply(&format!("<a>{long}</a>")).into(),
            "bytes in one text",
        ),
        ("elements", reply(&"<a/>".repeat(600_000)).into(), "elements"),
        (
            "two roots",
            format!("{0}{0}", reply("<a/>")).into(),
            "second root",
        ),
        ("empty body", reply("").into(), "Body is missing"),
        (
            "soap 1.2",
            reply("<a/>")
                .replace(
                    "schemas.xmlsoap.org/soap/envelope/",
                    "www.w3.org/2003/05/soap-envelope",
                )
                .into(),
            "no SOAP envelope",
        ),
        (
            "wrong namespace",
            reply(r#"<WaitForUpdatesExResponse xmlns="urn:other"/>"#).into(),
            "no SOAP envelope",
        ),
        (
            "another answer",
            reply(r#"<LoginResponse xmlns="urn:vim25"/>"#).into(),
            "no SOAP envelope",
        ),
        (
            "fault without detail",
            reply("<s:Fault><faultstring>boom</faultstring></s:Fault>").into(),
            "boom",
        ),
        (
            "fault of an unknown type",
            reply(r#"<s:Fault><detail><XFault xmlns="urn:vim25" i:type="Y"/></detail></s:Fault>"#).into(),
            "Y: vCenter gave no message",
        ),
        ("no version", response("<filterSet/>").into(), "version"),
    ];
    for (name, bytes, words) in cases {
        let error = error_of(&bytes).unwrap_or_else(|| panic!("{name}: it was accepted"));
        assert!(error.contains(words), "{name}: {error}");
        assert!(error.len() < 3_000 && !error.contains('\0'), "{name}: {error}");
    }
}

#[test]
fn what_is_only_unknown_is_no_error() {
    for inner in [
        r#"<changeSet><name>name</name><op>assign</op><val i:type="xsd:hologram"><deep><er/></deep></val></changeSet>"#,
        r#"<changeSet><name>some.other.path</name><op>assign</op></changeSet>"#,
        "<novelty/>",
        "<!-- a comment --><changeSet><name>name</name><val><![CDATA[<&>]]></val></changeSet>",
    ] {
        let text = reply(&format!(
            r#"<WaitForUpdatesExResponse xmlns="urn:vim25"><returnval><version>1</version><filterSet><objectSet><kind>enter</kind>
               <obj type="HostSystem">host-1</obj>{inner}</objectSet></filterSet></returnval></WaitForUpdatesExResponse>"#
        ));
        assert_eq!(error_of(text.as_bytes()), None, "{inner}");
    }
    let empty = reply(r#"<RetrievePropertiesExResponse xmlns="urn:vim25"/>"#);
    let SoapAnswer::Returned(page) =
        read_answer("RetrievePropertiesEx", empty.as_bytes(), read_page).unwrap()
    else {
        panic!("a fault");
    };
    assert!(page.objects.is_empty());
}

/// Every prefix of a real reply, and the reply with each stretch of bytes blotted out.
#[test]
fn damaged_replies_do_not_panic() {
    let whole = include_bytes!("../../../../proto-notes/captures/entering.xml");
    for length in 0..whole.len() {
        assert!(
            error_of(&whole[..length]).is_some() || length + 2 > whole.len(),
            "{length} bytes were accepted"
        );
    }
    for at in (0..whole.len() - 8).step_by(3) {
        let mut damaged = whole.to_vec();
        damaged[at..at + 5].copy_from_slice(b"<&>\"=");
        let _ = error_of(&damaged);
    }
}

fn update_set(objects: &str) -> UpdateSet {
    let text = reply(&format!(
        r#"<WaitForUpdatesExResponse xmlns="urn:vim25"><returnval><version>1</version><filterSet>{objects}</filterSet></returnval></WaitForUpdatesExResponse>"#
    ));
    match read_answer("WaitForUpdatesEx", text.as_bytes(), read_update_set).unwrap() {
        SoapAnswer::Returned(set) => set.unwrap(),
        SoapAnswer::Fault { fault, .. } => panic!("{fault}"),
    }
}

fn upserted(set: &UpdateSet) -> Vec<&ObjectProperties> {
    let mut objects = Vec::new();
    for change in &set.changes {
        match change {
            Change::Upsert(object) => objects.push(object),
            Change::Gone(_) => {}
        }
    }
    objects
}

/// Contents that break one of the limits of the reader each.
fn oversized() -> Vec<(&'static str, String)> {
    vec![
        ("1.5 MiB of text", "x".repeat(3 << 19)),
        ("70 levels", format!("{}{}", "<a>".repeat(70), "</a>".repeat(70))),
        (
            "a million levels",
            format!("{}{}", "<a>".repeat(1_000_000), "</a>".repeat(1_000_000)),
        ),
        ("600,000 elements", "<a/>".repeat(600_000)),
        (
            "100 attributes",
            format!(
                "<a{}/>",
                (0..100).map(|n| format!(" a{n}=\"\"")).collect::<String>()
            ),
        ),
        ("an illegal character reference", "<a>&#0;</a>".to_owned()),
    ]
}

#[test]
fn task_result_of_any_size_is_passed_over() {
    for (what, result) in oversized() {
        let task = |n, result: &str| {
            format!(
                r#"<TaskInfo><key>{n}</key><task type="Task">task-{n}</task><descriptionId>HostSystem.scan</descriptionId><state>success</state>
                   <cancelled>false</cancelled><result i:type="xsd:string">{result}</result><queueTime>2026-11-21T09:57:02Z</queueTime></TaskInfo>"#
            )
        };
        let set = update_set(&format!(
            r#"<objectSet><kind>modify</kind><obj type="TaskHistoryCollector">session[1]2</obj><changeSet><name>latestPage</name><op>assign</op>
               <val i:type="ArrayOfTaskInfo">{}{}</val></changeSet></objectSet>"#,
            task(1, &result),
            task(2, "ok"),
        ));
        let page = upserted(&set)[0].get("latestPage").and_then(Value::tasks);
        let tasks = page
            .unwrap()
            .iter()
            .map(|listed| task::read_task(listed.as_ref().unwrap(), None));
        let tasks: Vec<_> = tasks.map(|task| task.unwrap().moref.to_string()).collect();
        assert_eq!(tasks, ["task-1", "task-2"], "{what}");
    }
}

#[test]
fn property_beyond_the_limits_is_unreadable_and_others_are_not() {
    for (what, value) in oversized() {
        let set = update_set(&format!(
            r#"<objectSet><kind>modify</kind><obj type="HostSystem">host-1</obj><changeSet><name>name</name><op>assign</op><val>a</val></changeSet>
               <changeSet><name>hardware.pciDevice</name><op>assign</op><val xmlns="urn:other" xmlns:p="urn:other">{value}</val></changeSet>
               <changeSet><name>guest.hostName</name><op>assign</op><val>b</val></changeSet></objectSet>
               <objectSet><kind>modify</kind><obj type="HostSystem">host-2</obj><changeSet><name>name</name><op>assign</op><val>c</val></changeSet></objectSet>"#
        ));
        let objects = upserted(&set);
        let names: Vec<_> = objects
            .iter()
            .map(|object| object.text("name").unwrap())
            .collect();
        assert_eq!(names, ["a", "c"], "{what}");
        assert_eq!(objects[0].text("guest.hostName"), Some("b"), "{what}");
        assert!(objects[0].get("hardware.pciDevice").is_none(), "{what}");
        let denied = objects[0]
            .denied("hardware.pciDevice")
            .unwrap_or_else(|| panic!("{what}"));
        assert!(denied.message.contains("cannot be read"), "{what}: {denied}");
    }
}

#[test]
fn object_that_cannot_be_read_costs_itself_alone() {
    for (broken, words) in [
        (
            r#"<kind>explode</kind><obj type="Task">t</obj>"#,
            "enter, modify or leave",
        ),
        ("<kind>enter</kind>", "obj is missing"),
        (r#"<kind>leave</kind><obj type="Task"></obj>"#, "obj is missing"),
        (
            r#"<kind>enter</kind><obj type="Task">t</obj><changeSet><val>1</val></changeSet>"#,
            "property name",
        ),
    ] {
        let set = update_set(&format!(
            r#"<objectSet>{broken}</objectSet><objectSet><kind>enter</kind><obj type="Task">task-2</obj></objectSet>"#
        ));
        assert_eq!(upserted(&set).len(), 1, "{broken}");
        let [unreadable] = set.unreadable.as_slice() else {
            panic!("{broken}: {:?}", set.unreadable);
        };
        assert!(unreadable.why.contains(words), "{broken}: {unreadable:?}");
    }
}

#[test]
fn only_an_object_that_does_not_exist_is_gone() {
    for (fault, is_gone) in [
        ("ManagedObjectNotFound", true),
        ("NoPermission", false),
        ("SystemError", false),
    ] {
        let set = update_set(&format!(
            r#"<filter type="PropertyFilter">f</filter><missingSet><obj type="HostSystem">host-1</obj><fault><fault i:type="{fault}"/>
               <localizedMessage>no</localizedMessage></fault></missingSet>"#
        ));
        let gone = set
            .changes
            .iter()
            .filter(|change| matches!(change, Change::Gone(_)));
        assert_eq!(gone.count(), usize::from(is_gone), "{fault}");
        assert_eq!(set.unreadable, [], "{fault}");
    }
}
