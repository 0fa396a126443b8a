use quick_xml::events::Event;
use quick_xml::name::{QName, ResolveResult};
use quick_xml::reader::NsReader;

use super::read::space;
use super::*;

/// What may be declared, in the ways in which it may be written.
const DECLARED: &[&str] = &[
    "",
    r#" xmlns="urn:vim25""#,
    r#" xmlns="urn:other""#,
    r#" xmlns="""#,
    r#" xmlns:p="urn:vim25""#,
    r#" xmlns:p="urn:other""#,
    r#" xmlns:p="http://www.w3.org/2001/XMLSchema-instance""#,
    r#" xmlns="urn:vim25" xmlns:p="http://schemas.xmlsoap.org/soap/envelope/""#,
    "\n  xmlns:p = 'http://www.w3.org/2001/XMLSchema-instance'",
];

const TYPED: &[&str] = &[
    "",
    r#" type="T""#,
    r#" p:type="T""#,
    r#" p:type="x:T" type='U'"#,
    r#" other="a" q:type="T""#,
    r#" p:type="a&amp;b""#,
    r#" ptype="T" p:typed="T""#,
];

/// Where each element is, its two types, in the order of the document.
type Names = Vec<(Space, Option<String>, Option<String>)>;

fn by_us(text: &str) -> Names {
    let part = Part::parse(text).unwrap();
    let document = &part.document;
    let all = (0..document.nodes.len()).map(|at| Element { document, at });
    all.map(|it| {
        let [plain, xsi] = [it.type_attr(), it.xsi_type()].map(|kind| kind.map(str::to_owned));
        (it.space(), plain, xsi)
    })
    .collect()
}

fn by_quick_xml(text: &str) -> Names {
    let place = |found: ResolveResult<'_>| match found {
        ResolveResult::Bound(bound) => space(bound.as_ref()),
        ResolveResult::Unbound => Space::Unbound,
        ResolveResult::Unknown(_) => Space::Other,
    };
    let mut reader = NsReader::from_str(text);
    let mut names = Names::new();
    loop {
        let event = reader.read_event().unwrap();
        if matches!(event, Event::Eof) {
            return names;
        }
        let (Event::Start(start) | Event::Empty(start)) = &event else {
            continue;
        };
        let resolver = reader.resolver();
        let (found, _) = resolver.resolve_element(start.name());
        let (mut plain, mut xsi) = (None, None);
        for attribute in start.attributes() {
            let attribute = attribute.unwrap();
            let value = attribute
                .normalized_value(quick_xml::XmlVersion::Implicit1_0)
                .unwrap();
            let local = value
                .rsplit_once(':')
                .map_or(&*value, |(_, local)| local)
                .to_owned();
            let QName(name) = attribute.key;
            let place = place(resolver.resolve_attribute(attribute.key).0);
            if name == "type" {
                plain = Some(value.into_owned());
            } else if place == Space::Instance && name.ends_with(":type") {
                xsi = Some(local);
            }
        }
        names.push((place(found), plain, xsi));
    }
}

#[test]
fn names_are_in_the_namespaces_in_which_quick_xml_finds_them() {
    for outer in DECLARED {
        for inner in DECLARED {
            for typed in TYPED {
                for name in ["a", "p:a", "q:a"] {
                    // A prefix may be declared behind what has it, and holds no longer than its element.
                    let text = format!(
                        "<o{outer}><{name}{typed}{inner}><b/><p:b type=\"M\"></p:b></{name}><{name}{inner}{typed}/><p:c/><c/></o>"
                    );
                    assert_eq!(by_us(&text), by_quick_xml(&text), "{text}");
                }
            }
        }
    }
}

#[test]
fn a_prefix_that_is_empty_declares_no_default_and_stands_for_none() {
    let names = by_us(r#"<a xmlns="urn:vim25" xmlns:="urn:other"><:b/><c/></a>"#);
    let spaces: Vec<Space> = names.into_iter().map(|(space, _, _)| space).collect();
    assert_eq!(spaces, [Space::Vim, Space::Other, Space::Vim]);
}
