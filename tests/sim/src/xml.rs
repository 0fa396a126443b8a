//! The elements of a SOAP request, as a tree.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// An element, without namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its local name.
    pub name: String,
    attributes: Vec<(String, String)>,
    pub text: String,
    pub children: Vec<Element>,
}

impl Element {
    /// The first child of this name.
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The children of this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// The text of the first child of this name.
    pub fn text_of(&self, name: &str) -> &str {
        self.child(name).map_or("", |child| child.text.as_str())
    }

    /// The value of an attribute, by its local name.
    pub fn attribute(&self, name: &str) -> &str {
        let mut found = self.attributes.iter().filter(|(key, _)| key == name);
        found.next().map_or("", |(_, value)| value.as_str())
    }
}

/// Parses a request.
pub fn parse(text: &[u8]) -> Option<Element> {
    let mut reader = Reader::from_reader(text);
    let mut open: Vec<Element> = vec![Element::default()];
    let mut buffer = Vec::new();
    loop {
        match reader.read_event_into(&mut buffer).ok()? {
            Event::Start(start) => open.push(element(&start)?),
            Event::Empty(start) => {
                let element = element(&start)?;
                open.last_mut()?.children.push(element);
            }
            Event::End(_) => {
                let element = open.pop()?;
                open.last_mut()?.children.push(element);
            }
            Event::Text(text) => open.last_mut()?.text.push_str(&text),
            Event::GeneralRef(reference) => {
                let known = match &*reference {
                    "lt" => "<",
                    "gt" => ">",
                    "amp" => "&",
                    "quot" => "\"",
                    "apos" => "'",
                    _ => "",
                };
                open.last_mut()?.text.push_str(known);
            }
            Event::Eof => return open.pop()?.children.pop(),
            Event::CData(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
        buffer.clear();
    }
}

fn element(start: &BytesStart<'_>) -> Option<Element> {
    let local = |name: &str| Some(name.rsplit(':').next()?.to_owned());
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute.ok()?;
        let value = attribute.value.to_string();
        attributes.push((local(attribute.key.as_ref())?, value));
    }
    Some(Element {
        name: local(start.name().as_ref())?,
        attributes,
        ..Element::default()
    })
}
