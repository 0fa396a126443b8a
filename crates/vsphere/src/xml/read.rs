//! From events to a document: names are resolved, texts are kept where they stand, limits hold while it grows.

use std::borrow::Cow;

use quick_xml::XmlVersion;
use quick_xml::events::attributes::Attribute;
use quick_xml::events::{BytesStart, Event};

use super::{
    Breach, ENVELOPE, MAX_DEPTH, MAX_TEXT, Node, Shape, Space, Span, Types, VIM25, XSI, XmlError, narrow,
};
use crate::text;

/// A document while it grows, and which of its elements stand open, outermost first.
pub(super) struct Growing<'t> {
    read: &'t str,
    /// There is no carriage return in it; then a text means what stands there, and is not searched for one.
    is_literal: bool,
    meant: String,
    nodes: Vec<Node>,
    types: Vec<Types>,
    open: Vec<usize>,
    scopes: Scopes,
    shape: Shape,
    /// How many elements stand open around the children of a sparse one that stands open.
    sparse: Option<usize>,
    /// How many elements stand open whose content is dropped.
    dropped: usize,
}

/// Which namespaces the names of an element may be in. Few elements declare any, and nearly all names have no prefix, so the
/// answer for those is kept. quick-xml's own resolver reads the attributes once more for it, and looks each name up.
#[derive(Default)]
struct Scopes {
    declared: Vec<Declared>,
    /// Where element names without a prefix belong.
    unprefixed: Space,
}

struct Declared {
    /// How many elements stood open around the one that declares it.
    depth: usize,
    /// Empty for names without one.
    prefix: Span,
    space: Space,
}

impl Scopes {
    fn declare(&mut self, declared: Declared) {
        if declared.prefix.len() == 0 {
            self.unprefixed = declared.space;
        }
        self.declared.push(declared);
    }

    /// The element ends around which `depth` others stand open.
    fn leave(&mut self, depth: usize) {
        while self.declared.pop_if(|it| it.depth == depth).is_some() {
            let default = self.declared.iter().rev().find(|it| it.prefix.len() == 0);
            self.unprefixed = default.map_or(Space::Unbound, |it| it.space);
        }
    }
}

pub(super) fn space(name: &str) -> Space {
    match name {
        VIM25 => Space::Vim,
        ENVELOPE => Space::Envelope,
        XSI => Space::Instance,
        "" => Space::Unbound,
        _ => Space::Other,
    }
}

/// How many bytes of a reply there are to an element, at the least, in what vCenter tells most: a short text between two tags.
const BYTES_AN_ELEMENT: usize = 32;

/// The same for those that have a type: a reference in a list of them.
const BYTES_A_TYPE: usize = 64;

impl<'t> Growing<'t> {
    pub(super) fn of(read: &'t str, shape: Shape) -> Self {
        let mut types = Vec::with_capacity(read.len() / BYTES_A_TYPE);
        types.push(Types::default());
        Self {
            read,
            is_literal: !read.contains('\r'),
            meant: String::new(),
            nodes: Vec::with_capacity(read.len() / BYTES_AN_ELEMENT),
            types,
            open: Vec::with_capacity(MAX_DEPTH),
            scopes: Scopes::default(),
            shape,
            sparse: None,
            dropped: 0,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn take(&mut self, event: &Event<'_>, at: u64) -> Result<(), XmlError> {
        if self.dropped > 0 {
            return self.drop_on(event);
        }
        match self.keep(event, at) {
            Err(XmlError::Beyond(breach)) => self.contain(breach, matches!(event, Event::Start(_))),
            kept => kept,
        }
    }

    /// Passes over what is within a dropped element. It is still to be well-formed, which the reader sees to.
    fn drop_on(&mut self, event: &Event<'_>) -> Result<(), XmlError> {
        match event {
            Event::Start(_) => self.dropped += 1,
            Event::End(_) => self.dropped -= 1,
            Event::DocType(_) | Event::PI(_) => return self.keep(event, 0),
            Event::Empty(_)
            | Event::Text(_)
            | Event::CData(_)
            | Event::GeneralRef(_)
            | Event::Decl(_)
            | Event::Comment(_)
            | Event::Eof => {}
        }
        Ok(())
    }

    /// Drops what broke a limit, up to the innermost bulkhead; `begins` where it is an element that just began.
    fn contain(&mut self, breach: Breach, begins: bool) -> Result<(), XmlError> {
        let is_bulkhead = |at: &usize| {
            let node = &self.nodes[*at];
            node.space == Space::Vim
                && self
                    .shape
                    .bulkheads
                    .contains(&node.name.of(self.read, &self.meant))
        };
        let Some(level) = self.open.iter().rposition(is_bulkhead) else {
            return Err(XmlError::Beyond(breach));
        };
        let bulkhead = self.open[level];
        let within = level + 1;
        let from = self.open.get(within).copied().unwrap_or(self.nodes.len());
        // What the element declares that just began counts as if it stood open.
        for depth in (within..=self.open.len()).rev() {
            self.scopes.leave(depth);
        }
        self.dropped = self.open.len() - within + usize::from(begins);
        self.open.truncate(within);
        self.nodes.truncate(from);
        self.nodes[bulkhead].breach = Some(breach);
        self.nodes[bulkhead].text = Span::default();
        self.sparse = self.sparse.filter(|depth| *depth <= within);
        Ok(())
    }

    /// Whether a child of a sparse element is one that nobody reads.
    fn is_left_out(&self, name: &str) -> bool {
        let kept = self.shape.sparse.map_or(&[][..], |(_, kept)| kept);
        let local = name.split_once(':').map_or(name, |(_, local)| local);
        !kept.contains(&local)
    }

    fn keep(&mut self, event: &Event<'_>, at: u64) -> Result<(), XmlError> {
        match event {
            Event::Start(start) | Event::Empty(start) => self.start(start, at),
            Event::End(_) => {
                self.end();
                Ok(())
            }
            Event::Text(text) if self.is_literal => self.text(text, at),
            Event::Text(text) => self.text(&text.xml10_content(), at),
            Event::CData(text) => self.text(&text.xml10_content(), at),
            Event::GeneralRef(reference) => {
                let character = if reference.is_char_ref() {
                    reference.resolve_char_ref().ok().flatten()
                } else {
                    predefined(reference)
                };
                match character {
                    Some(character) => self.text(character.encode_utf8(&mut [0; 4]), at),
                    None => Err(XmlError::Beyond(Breach::Reference)),
                }
            }
            Event::DocType(_) => Err(XmlError::Forbidden { what: "a DOCTYPE" }),
            Event::PI(_) => Err(XmlError::Forbidden {
                what: "a processing instruction",
            }),
            Event::Decl(_) | Event::Comment(_) | Event::Eof => Ok(()),
        }
    }

    fn start(&mut self, start: &BytesStart<'_>, at: u64) -> Result<(), XmlError> {
        let begins = self.nodes.len();
        if !self.is_open() && begins > 0 {
            return Err(XmlError::Malformed {
                at,
                what: "a second root element".to_owned(),
            });
        }
        if self.sparse == Some(self.open.len()) && self.is_left_out(start.name().as_ref()) {
            self.dropped = 1;
            return Ok(());
        }
        Breach::Depth.unless(self.open.len() + 1)?;
        Breach::Elements.unless(begins + 1)?;
        let types = match start.attributes_raw() {
            "" => 0,
            _ => self.attributes(start, at)?,
        };
        let name = start.name();
        let (space, local) = match name.as_ref().split_once(':') {
            Some((prefix, local)) => (self.space_of(prefix), local),
            None => (self.scopes.unprefixed, name.as_ref()),
        };
        let name = self.say(local);
        self.nodes.push(Node {
            name,
            text: Span::default(),
            types,
            end: narrow(begins + 1),
            space,
            breach: None,
        });
        self.open.push(begins);
        if self.sparse.is_none() && self.shape.sparse.is_some_and(|(of, _)| of == local) {
            self.sparse = Some(self.open.len());
        }
        Ok(())
    }

    fn attributes(&mut self, start: &BytesStart<'_>, at: u64) -> Result<u32, XmlError> {
        let types = match self.plain_attributes(start.attributes_raw())? {
            Some(types) => types,
            None => {
                // What was declared on the way is declared anew.
                self.scopes.leave(self.open.len());
                self.any_attributes(start, at)?
            }
        };
        if types.plain.is_none() && types.xsi.is_none() {
            return Ok(0);
        }
        self.types.push(types);
        Ok(narrow(self.types.len() - 1))
    }

    /// Those that are written as all captures have them; `None` where one is not, and where there are more. To read all forms, once
    /// for the namespaces and once for the types, took a sixth of the instructions that the XML of a click takes, and more than a
    /// quarter of the code, which the processor seldom has at hand when a click comes.
    fn plain_attributes(&mut self, mut rest: &str) -> Result<Option<Types>, XmlError> {
        let mut types = Types::default();
        let mut prefixed = None;
        for _ in 0..PLAIN_ATTRIBUTES {
            let Some((name, value, after)) = plain(rest) else {
                return Ok(None);
            };
            match name.split_once(':') {
                // An attribute without a prefix is in no namespace, whatever the default is.
                None if name == "type" => types.plain = Some(self.say(value)),
                None if name == "xmlns" => self.declare("", value)?,
                Some(("xmlns", prefix)) if !prefix.is_empty() => self.declare(prefix, value)?,
                // The prefix may be declared behind it.
                Some((prefix, "type")) if prefixed.is_none() => prefixed = Some((prefix, value)),
                Some((_, "type")) => return Ok(None),
                Some(_) | None => {}
            }
            rest = after;
            if rest.is_empty() {
                if let Some((prefix, value)) = prefixed
                    && self.space_of(prefix) == Space::Instance
                {
                    types.xsi = Some(self.say(value));
                }
                return Ok(Some(types));
            }
        }
        Ok(None)
    }

    /// Those of a start tag, in every form that XML allows.
    fn any_attributes(&mut self, start: &BytesStart<'_>, at: u64) -> Result<Types, XmlError> {
        // The check for duplicates compares each attribute with all before it; the limit comes first.
        for (index, attribute) in start.attributes().with_checks(false).enumerate() {
            Breach::Attributes.unless(index + 1)?;
            let attribute = attribute.map_err(|error| malformed(at, &error))?;
            let prefix = match attribute.key.as_ref().split_once(':') {
                Some(("xmlns", prefix)) if !prefix.is_empty() => prefix,
                None if attribute.key.as_ref() == "xmlns" => "",
                Some(_) | None => continue,
            };
            self.declare(prefix, &normalized(&attribute, at)?)?;
        }
        let mut types = Types::default();
        for attribute in start.attributes().with_checks(false).flatten() {
            match attribute.key.as_ref().split_once(':') {
                None if attribute.key.as_ref() == "type" => {
                    types.plain = Some(self.say(&normalized(&attribute, at)?));
                }
                Some((prefix, "type")) if self.space_of(prefix) == Space::Instance => {
                    types.xsi = Some(self.say(&normalized(&attribute, at)?));
                }
                Some(_) | None => {}
            }
        }
        Ok(types)
    }

    fn declare(&mut self, prefix: &str, name: &str) -> Result<(), XmlError> {
        Breach::Namespaces.unless(self.scopes.declared.len() + 1)?;
        let declared = Declared {
            depth: self.open.len(),
            prefix: self.say(prefix),
            space: space(name),
        };
        self.scopes.declare(declared);
        Ok(())
    }

    /// Where names with this prefix belong. An empty one is none, and not the default.
    fn space_of(&self, prefix: &str) -> Space {
        if prefix.is_empty() {
            return Space::Other;
        }
        let is_it = |it: &&Declared| it.prefix.of(self.read, &self.meant) == prefix;
        match self.scopes.declared.iter().rev().find(is_it) {
            // What is declared to be nothing is no namespace that a prefix could stand for.
            Some(Declared {
                space: Space::Unbound,
                ..
            })
            | None => Space::Other,
            Some(declared) => declared.space,
        }
    }

    fn text(&mut self, text: &str, at: u64) -> Result<(), XmlError> {
        let Some(&innermost) = self.open.last() else {
            return if text.trim().is_empty() {
                Ok(())
            } else {
                Err(XmlError::Malformed {
                    at,
                    what: "text outside of the root element".to_owned(),
                })
            };
        };
        // Between children stands nothing that anybody reads.
        if self.nodes.len() > innermost + 1 {
            return Ok(());
        }
        let so_far = self.nodes[innermost].text;
        let text = if so_far == Span::default() {
            self.say(text)
        } else {
            self.go_on(so_far, text)
        };
        self.nodes[innermost].text = text;
        Breach::Text.unless(text.len())
    }

    /// Where `words` stand; they are written down where they do not stand in what was read.
    fn say(&mut self, words: &str) -> Span {
        // A part of a text lies at addresses of that text, and nothing else does.
        let from = words.as_ptr().addr().checked_sub(self.read.as_ptr().addr());
        match from.filter(|from| from + words.len() <= self.read.len()) {
            Some(from) => Span::new(from, from + words.len()),
            None => self.mean(words),
        }
    }

    fn mean(&mut self, words: &str) -> Span {
        let from = self.read.len() + self.meant.len();
        self.meant.push_str(words);
        Span::new(from, from + words.len())
    }

    /// The text `so_far` of the innermost element, and on with `words`.
    fn go_on(&mut self, so_far: Span, words: &str) -> Span {
        let whole = if (so_far.from as usize) < self.read.len() {
            let read = self.read;
            self.mean(so_far.of(read, ""))
        } else {
            // Of an element without children nothing else was said since its first words.
            so_far
        };
        let more = self.mean(words);
        Span {
            from: whole.from,
            to: more.to,
        }
    }

    fn end(&mut self) {
        let Some(ends) = self.open.pop() else { return };
        self.sparse = self.sparse.filter(|depth| *depth <= self.open.len());
        self.scopes.leave(self.open.len());
        let end = self.nodes.len();
        let node = &mut self.nodes[ends];
        node.end = narrow(end);
        if end > ends + 1 {
            node.text = Span::default();
        }
    }

    pub(super) fn finish(self) -> Result<(Vec<Node>, Vec<Types>, String), XmlError> {
        if let Some(&innermost) = self.open.last() {
            let name = self.nodes[innermost].name;
            return Err(XmlError::Truncated {
                element: text::for_people(name.of(self.read, &self.meant)),
            });
        }
        if self.nodes.is_empty() {
            return Err(XmlError::Empty);
        }
        Ok((self.nodes, self.types, self.meant))
    }
}

/// More are read as XML allows them. The captures have four on an envelope, and two at the most elsewhere.
const PLAIN_ATTRIBUTES: usize = 8;

/// Name and value of the next attribute, and what comes after it, where it is written so: one space, the name, `="`, a value that
/// means what stands there, `"`.
fn plain(attributes: &str) -> Option<(&str, &str, &str)> {
    let rest = attributes.strip_prefix(' ')?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_' | b'-' | b'.');
    let (name, rest) = rest.split_at(rest.bytes().position(|byte| !is_name(byte))?);
    let rest = rest.strip_prefix("=\"")?;
    let is_meant = |byte: u8| byte >= b' ' && !matches!(byte, b'"' | b'&' | b'<');
    let (value, rest) = rest.split_at(rest.bytes().position(|byte| !is_meant(byte))?);
    let is_whole = !name.is_empty() && value.len() <= MAX_TEXT;
    Some((name, value, rest.strip_prefix('"')?)).filter(|_| is_whole)
}

/// The value of an attribute as it is meant.
fn normalized<'a>(attribute: &'a Attribute<'_>, at: u64) -> Result<Cow<'a, str>, XmlError> {
    let value = attribute
        .normalized_value(XmlVersion::Implicit1_0)
        .map_err(|error| malformed(at, &error))?;
    Breach::Text.unless(value.len())?;
    Ok(value)
}

fn predefined(name: &str) -> Option<char> {
    match name {
        "lt" => Some('<'),
        "gt" => Some('>'),
        "amp" => Some('&'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => None,
    }
}

pub(super) fn malformed(at: u64, error: &dyn std::fmt::Display) -> XmlError {
    XmlError::Malformed {
        at,
        what: text::for_people(&error.to_string()),
    }
}
