//! Decoders without a server, for the targets in `crates/vsphere/fuzz/`, for tests with captures, and
//! for benches.

mod recording;
mod stream;
#[cfg(test)]
mod tests;

use quick_xml::events::Event;
use quick_xml::reader::NsReader;

use super::moref::Moref;
use super::property::{UpdateSet, read_page, read_update_set};
use super::soap::{ReplyError, SoapAnswer, read_answer};
use super::update::VsphereUpdate;
use super::updates::property_cache::PropertyCache;
use super::xml::write::XmlWriter;
use super::xml::{self, Element, KnownNamespace, Shape};
use super::{session, survey, text};

pub use recording::{RecordedReply, recording};
pub use stream::{RECORD_SEPARATOR, stream};

/// Decodes `body` as any of the known replies, and processes it like the program.
pub fn reply(body: &[u8]) {
    recording(body);
    stream(&[body, &[], body].join(&RECORD_SEPARATOR));
    if let Ok(SoapAnswer::Returned(page)) = read_answer("RetrievePropertiesEx", body, read_page) {
        let hosts = page.objects.iter().filter_map(|object| object.moref.host());
        survey::survey(&hosts.collect::<Vec<_>>(), &page.objects);
    }
    drop(session::choose_version(body));
}

/// Parses `document`.
///
/// # Panics
/// If the limits do not hold, or a namespace differs from that of quick-xml's own `NsReader`.
pub fn xml(document: &[u8]) {
    if let Ok(root) = xml::parse(document, Shape::default()) {
        let mut names = Vec::new();
        list_names(&root, &mut names);
        assert_eq!(names, names_by_ns_reader(document));
        let (elements, depth) = measured(&root);
        assert!(
            elements <= xml::MAX_ELEMENTS && depth <= xml::MAX_DEPTH,
            "{elements} elements, {depth} deep"
        );
    }
}

/// Shows `name` to people, and sends it to vCenter as a reference.
///
/// # Panics
/// If the text that is shown is long, controls a terminal, or changes when it is shown again; or if vCenter would read another
/// reference.
pub fn name(name: &str) {
    for shown in [text::for_people(name), text::inventory_name(name)] {
        assert!(shown.chars().count() <= text::LONGEST + 1, "{shown:?}");
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
        assert_eq!(text::for_people(&shown), shown);
    }
    assert!(text::unescaped(name).len() <= name.len());
    let (kind, value) = name.split_once('\n').unwrap_or(("VirtualMachine", name));
    // XML has no control characters, and spaces at the ends are formatting.
    let is_plain = |text: &str| text.trim() == text && !text.chars().any(char::is_control);
    let Some(moref) = Moref::of_wire(kind, value).filter(|_| is_plain(kind) && is_plain(value)) else {
        return;
    };
    let mut written = String::new();
    XmlWriter::moref("obj", &moref).render(&mut written);
    let element = xml::parse(written.as_bytes(), Shape::default());
    let read = element.ok().and_then(|element| element.moref());
    assert!(
        read.as_ref() == Some(&moref) || written.len() > xml::MAX_TEXT,
        "{read:?} of {written}"
    );
}

fn list_names(element: &Element<'_>, names: &mut Vec<(KnownNamespace, String)>) {
    names.push((element.space(), element.name().to_owned()));
    element.children().for_each(|child| list_names(child, names));
}

/// Names and namespaces as quick-xml resolves them.
fn names_by_ns_reader(document: &[u8]) -> Vec<(KnownNamespace, String)> {
    let mut reader = NsReader::from_reader(document);
    let (mut names, mut buffer) = (Vec::new(), Vec::new());
    loop {
        let Ok(event) = reader.read_event_into(&mut buffer) else {
            return names;
        };
        match &event {
            Event::Eof => return names,
            Event::Start(start) | Event::Empty(start) => {
                let (namespace, local) = reader.resolver().resolve_element(start.name());
                names.push((KnownNamespace::of(&namespace), local.into_inner().to_owned()));
            }
            Event::End(_)
            | Event::Text(_)
            | Event::CData(_)
            | Event::Comment(_)
            | Event::Decl(_)
            | Event::PI(_)
            | Event::DocType(_)
            | Event::GeneralRef(_) => {}
        }
        buffer.clear();
    }
}

/// Number of elements, and depth.
fn measured(element: &Element<'_>) -> (usize, usize) {
    assert!(
        element.text().len() <= xml::MAX_TEXT,
        "{} bytes of text",
        element.text().len()
    );
    let within = element.children().map(measured);
    let (elements, depth) = within.fold((0, 0), |(all, deepest), (elements, depth)| {
        (all + elements, deepest.max(depth))
    });
    (elements + 1, depth + 1)
}

#[derive(Debug)]
pub struct Decoded(UpdateSet);

/// Decodes a reply of `WaitForUpdatesEx`; `None` if nothing changed, or for a fault.
///
/// # Errors
/// If it cannot be understood.
pub fn update_set(body: &[u8]) -> Result<Option<Decoded>, impl std::error::Error + Send + Sync + use<>> {
    let answer = read_answer("WaitForUpdatesEx", body, read_update_set)?;
    Ok::<_, ReplyError>(match answer {
        SoapAnswer::Returned(set) => set.map(Decoded),
        SoapAnswer::Fault { .. } => None,
    })
}

impl Decoded {
    /// The updates from an empty property cache.
    pub fn updates(&self) -> Vec<VsphereUpdate> {
        let mut cache = PropertyCache::default();
        cache.apply(self.0.changes.clone());
        cache.take_updates()
    }
}
