//! Replies that are broken, foreign or made to hurt: each is one clear error, soon.

use haulout::vsphere::error::chain;
use haulout::vsphere::property::{read_page, read_update_set};
use haulout::vsphere::soap::{Answer, read_answer};
use haulout::vsphere::xml::Part;

const HEAD: &str = r#"<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><s:Body>"#;
const TAIL: &str = "</s:Body></s:Envelope>";

fn reply(content: &str) -> String {
    format!("{HEAD}{content}{TAIL}")
}

fn error_of(bytes: &[u8]) -> Option<String> {
    match read_answer("WaitForUpdatesEx", bytes) {
        Err(error) => Some(chain(&error)),
        Ok(Answer::Fault { fault, .. }) => Some(fault.to_string()),
        Ok(Answer::Returned(response)) => read_update_set(&response).err().map(|error| chain(&error)),
    }
}

#[test]
fn every_hostile_reply_is_one_clear_error() {
    let response = |inner: &str| {
        reply(&format!(
            r#"<WaitForUpdatesExResponse xmlns="urn:vim25"><returnval>{inner}</returnval></WaitForUpdatesExResponse>"#
        ))
    };
    let object = |inner: &str| {
        response(&format!(
            "<version>1</version><filterSet><objectSet>{inner}</objectSet></filterSet>"
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
            "namespaces that hold in one place",
        ),
        (
            "namespaces within namespaces",
            reply(&few_namespaces.repeat(20)).into(),
            "namespaces that hold in one place",
        ),
        (
            "long text",
            reply(&format!("<a>{long}</a>")).into(),
            "bytes of text",
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
            "Y: vCenter gave no words",
        ),
        ("no version", response("<filterSet/>").into(), "version"),
        (
            "unknown kind",
            object(r#"<kind>explode</kind><obj type="Task">t</obj>"#).into(),
            "enter, modify or leave",
        ),
        ("no object", object("<kind>enter</kind>").into(), "obj is missing"),
        (
            "empty moref",
            object(r#"<kind>leave</kind><obj type="Task"></obj>"#).into(),
            "obj is missing",
        ),
        (
            "no property name",
            object(r#"<kind>enter</kind><obj type="Task">t</obj><changeSet><val>1</val></changeSet>"#).into(),
            "property name",
        ),
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
    let Answer::Returned(response) = read_answer("RetrievePropertiesEx", empty.as_bytes()).unwrap() else {
        panic!("a fault");
    };
    assert!(read_page(&response).unwrap().objects.is_empty());
}

#[test]
fn an_element_has_the_words_of_its_own_whatever_stands_between_them() {
    let text = "<a>\n  one<b>t<!-- a comment -->w<![CDATA[<o>]]>&amp;&#x21;</b>two<c/><d> </d>three</a>";
    let part = Part::parse(text.as_bytes()).unwrap();
    let told = part
        .element()
        .children()
        .map(|child| (child.name(), child.text()));
    let told: Vec<_> = [("a", part.element().text())].into_iter().chain(told).collect();
    assert_eq!(told, [("a", ""), ("b", "tw<o>&!"), ("c", ""), ("d", " ")]);
}

/// Every prefix of a real reply, and the reply with each stretch of bytes blotted out.
#[test]
fn no_damage_to_a_real_reply_makes_a_panic() {
    let whole = include_bytes!("../../proto-notes/captures/entering.xml");
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
