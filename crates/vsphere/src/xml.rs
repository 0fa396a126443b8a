//! XML in and out: read under hard limits into one list of elements, and written with escaping by construction.
//!
//! What arrives is hostile until it is parsed: a reply is refused before it can cost more than its own size.

use std::ops::Range;
use std::sync::Arc;

use quick_xml::Reader;
use quick_xml::events::Event;

use self::read::{Growing, malformed};

mod read;
#[cfg(test)]
mod tests;
pub mod write;

/// Deepest nesting. The deepest reply seen, a task's nested fault causes, stays under 20.
pub const MAX_DEPTH: usize = 64;
/// Most attributes on one element. The captures have four at the most.
pub const MAX_ATTRIBUTES: usize = 64;
/// Most namespaces that hold in one place. The captures have six at the most; each prefix is looked for among them.
pub const MAX_DECLARED: usize = 64;
/// Most bytes of text in one element. The longest that is asked for are names and fault messages.
pub const MAX_TEXT: usize = 1 << 20;
/// Most elements in one reply: a full page of 50 hosts with 250 PCI devices each is 250,000.
pub const MAX_ELEMENTS: usize = 500_000;
/// Most bytes: what is read and what is meant by it are counted together in 32 bits. [`super::transport::MAX_REPLY`] is a
/// sixtieth of it.
const MAX_BYTES: usize = (u32::MAX / 2) as usize;

/// The namespace of every method and data object of vSphere's web services.
pub const VIM25: &str = "urn:vim25";
/// SOAP 1.1, the only envelope that vCenter speaks.
pub const ENVELOPE: &str = "http://schemas.xmlsoap.org/soap/envelope/";
const XSI: &str = "http://www.w3.org/2001/XMLSchema-instance";

/// Which namespace an element is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Space {
    /// `urn:vim25`.
    Vim,
    /// The SOAP envelope.
    Envelope,
    /// That of `xsi:type`, in which no element of vSphere is.
    Instance,
    /// None at all, as `faultcode` and `faultstring` have it.
    #[default]
    Unbound,
    /// Any other.
    Other,
}

/// A document that was read: its elements in the order in which they begin, and the bytes in which their words stand. No
/// element is an allocation of its own, so that a page of a hundred thousand costs few of them, and freeing it too.
#[derive(Debug)]
struct Document {
    nodes: Vec<Node>,
    words: Words,
    /// What types elements have. Nine elements in ten have none, which is the first entry.
    types: Vec<Types>,
}

/// The names, types and texts of all elements. Nearly all stand in the document as they are meant, and are not copied.
#[derive(Debug)]
struct Words {
    /// The document.
    read: String,
    /// What does not stand in it as it is meant: it holds an escape, a line's end of two characters, or a comment within.
    meant: String,
}

/// Small, because a reply has up to [`MAX_ELEMENTS`] of them, and they are read as often as written.
#[derive(Debug)]
struct Node {
    name: Span,
    /// Empty where there are children.
    text: Span,
    /// Which of the types are its own.
    types: u32,
    /// The first node after all that are within it.
    end: u32,
    space: Space,
    /// Why a part of it was dropped.
    breach: Option<Breach>,
}

/// What of a document is not kept, and what is given up where a limit is broken, so that one value without bounds does not cost
/// all the others. What is dropped costs no memory beside its bytes, and no stack, however deep it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Elements of that name keep only the children of these names.
    pub sparse: Option<(&'static str, &'static [&'static str])>,
    /// Where a limit is broken, the child of the innermost of these elements in which that happens is dropped, and the element is
    /// [marked](Element::breach). Without such an element around it the whole document is refused.
    pub bulkheads: &'static [&'static str],
}

/// Which limit was broken within an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// [`MAX_DEPTH`].
    Depth,
    /// [`MAX_ELEMENTS`].
    Elements,
    /// [`MAX_TEXT`].
    Text,
    /// [`MAX_ATTRIBUTES`].
    Attributes,
    /// [`MAX_DECLARED`].
    Namespaces,
    /// A character that XML does not allow, or an entity.
    Reference,
}

/// The two attributes that carry meaning.
#[derive(Clone, Copy, Debug, Default)]
struct Types {
    plain: Option<Span>,
    xsi: Option<Span>,
}

/// Some of the words, by bytes: in what was read, or, counted on from its end, in what is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    from: u32,
    to: u32,
}

/// One element: its name, the two attributes that carry meaning, and either text or children.
#[derive(Clone, Copy)]
pub struct Element<'d> {
    document: &'d Document,
    at: usize,
}

/// An element that keeps its document, to be passed on.
#[derive(Clone)]
pub struct Part {
    document: Arc<Document>,
    at: usize,
}

/// Why a reply is not the XML it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XmlError {
    /// Not UTF-8.
    #[error("it is not UTF-8 text (byte {at})")]
    Encoding {
        /// Offset of the first bad byte.
        at: usize,
    },
    /// A byte that XML forbids.
    #[error("it contains a NUL character (byte {at})")]
    Nul {
        /// Its offset.
        at: usize,
    },
    /// Not well-formed.
    #[error("it is not well-formed XML near byte {at}: {what}")]
    Malformed {
        /// Offset where reading stopped.
        at: u64,
        /// What the reader said.
        what: String,
    },
    /// It ends before its root element does.
    #[error("it ends in the middle of <{element}>")]
    Truncated {
        /// The innermost element that stands open.
        element: String,
    },
    /// There is no element in it.
    #[error("it contains no XML element")]
    Empty,
    /// A construct that SOAP 1.1 forbids: DOCTYPE, processing instruction, a general entity.
    #[error("it contains {what}, which SOAP forbids")]
    Forbidden {
        /// What was found.
        what: &'static str,
    },
    /// It exceeds one of the limits.
    #[error("it has {0}")]
    Beyond(Breach),
}

impl Breach {
    fn limit(self) -> usize {
        match self {
            Self::Depth => MAX_DEPTH,
            Self::Elements => MAX_ELEMENTS,
            Self::Text => MAX_TEXT,
            Self::Attributes => MAX_ATTRIBUTES,
            Self::Namespaces => MAX_DECLARED,
            Self::Reference => 0,
        }
    }

    /// Refuses more than the limit.
    fn unless(self, is: usize) -> Result<(), XmlError> {
        if is > self.limit() {
            return Err(XmlError::Beyond(self));
        }
        Ok(())
    }
}

impl std::fmt::Display for Breach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self {
            Self::Depth => "levels of nesting",
            Self::Elements => "elements",
            Self::Text => "bytes in one text or attribute",
            Self::Attributes => "attributes on one element",
            Self::Namespaces => "namespaces that hold in one place",
            Self::Reference => return f.write_str("an entity of its own or an illegal character reference"),
        };
        write!(f, "more than {} {what}", self.limit())
    }
}

impl Part {
    /// Reads a document whole; the part is its root element.
    ///
    /// # Errors
    /// For everything that is not one well-formed element under the limits, without DOCTYPE, processing instruction
    /// or own entities.
    pub fn parse(bytes: impl Into<Vec<u8>>) -> Result<Self, XmlError> {
        Self::parse_as(bytes, Shape::default())
    }

    /// As [`Part::parse`], without what `shape` leaves out.
    ///
    /// # Errors
    /// As [`Part::parse`], less what a bulkhead of `shape` contains.
    pub fn parse_as(bytes: impl Into<Vec<u8>>, shape: Shape) -> Result<Self, XmlError> {
        let text = String::from_utf8(bytes.into()).map_err(|error| XmlError::Encoding {
            at: error.utf8_error().valid_up_to(),
        })?;
        if text.len() > MAX_BYTES {
            return Err(XmlError::Beyond(Breach::Text));
        }
        // `find` on a text looks at many bytes at once, `position` on a slice at each.
        if let Some(at) = text.find('\0') {
            return Err(XmlError::Nul { at });
        }
        let mut reader = Reader::from_str(&text);
        reader.config_mut().expand_empty_elements = true;
        let mut growing = Growing::of(&text, shape);
        loop {
            match &reader.read_event() {
                Ok(Event::Eof) => break,
                Ok(event) => growing.take(event, reader.buffer_position())?,
                Err(quick_xml::Error::Syntax(_)) if growing.is_open() => break,
                Err(error) => return Err(malformed(reader.buffer_position(), error)),
            }
        }
        let (nodes, types, meant) = growing.finish()?;
        let words = Words { read: text, meant };
        let document = Arc::new(Document { nodes, words, types });
        Ok(Self { document, at: 0 })
    }

    /// The element.
    pub fn element(&self) -> Element<'_> {
        Element {
            document: &self.document,
            at: self.at,
        }
    }

    /// The bytes of the whole document.
    pub fn size(&self) -> usize {
        self.document.words.read.len()
    }

    /// The first child for which `is` says so.
    pub fn find(&self, is: impl FnMut(&Element<'_>) -> bool) -> Option<Self> {
        let at = self.element().children().find(is)?.at;
        Some(self.part(at))
    }

    /// All children, in order.
    pub fn children(&self) -> impl Iterator<Item = Self> + '_ {
        self.element().children().map(|child| self.part(child.at))
    }

    fn part(&self, at: usize) -> Self {
        Self {
            document: Arc::clone(&self.document),
            at,
        }
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.element().fmt(f)
    }
}

impl std::fmt::Debug for Element<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.text().is_empty() {
            write!(f, "<{}>", self.name())?;
            f.debug_list().entries(self.children()).finish()
        } else {
            write!(f, "<{}>{:?}", self.name(), self.text())
        }
    }
}

impl<'d> Element<'d> {
    /// Where its name belongs.
    pub fn space(self) -> Space {
        self.node().space
    }

    /// Its local name.
    pub fn name(self) -> &'d str {
        self.words(self.node().name)
    }

    /// The limit that was broken within it: a part of it was dropped, so that its value is not known.
    pub fn breach(self) -> Option<Breach> {
        self.node().breach
    }

    /// The text, empty where there are children.
    pub fn text(self) -> &'d str {
        self.words(self.node().text)
    }

    /// The plain attribute `type`, which a managed object reference carries.
    pub fn type_attr(self) -> Option<&'d str> {
        self.types().plain.map(|span| self.words(span))
    }

    /// `xsi:type` without its prefix. The attribute is found by namespace, because prefixes differ by server.
    pub fn xsi_type(self) -> Option<&'d str> {
        let words = self.words(self.types().xsi?);
        Some(words.rsplit_once(':').map_or(words, |(_, local)| local))
    }

    /// The child elements, in order.
    pub fn children(self) -> impl Iterator<Item = Self> {
        let document = self.document;
        let Range { mut start, end } = self.at + 1..self.node().end as usize;
        std::iter::from_fn(move || {
            let child = (start < end).then_some(Self { document, at: start })?;
            start = child.node().end as usize;
            Some(child)
        })
    }

    /// The first child of that name in vSphere's namespace.
    pub fn child(self, name: &str) -> Option<Self> {
        self.children_named(name).next()
    }

    /// All children of that name in vSphere's namespace, in order.
    pub fn children_named<'n>(self, name: &'n str) -> impl Iterator<Item = Self> + use<'d, 'n> {
        self.children()
            .filter(move |child| child.space() == Space::Vim && child.name() == name)
    }

    /// The descendant along a path of names.
    pub fn at(self, path: &[&str]) -> Option<Self> {
        path.iter().try_fold(self, |element, name| element.child(name))
    }

    /// The text of the first child of that name, `None` where there is no such child.
    pub fn text_of(self, name: &str) -> Option<&'d str> {
        self.child(name).map(Self::text)
    }

    fn node(self) -> &'d Node {
        &self.document.nodes[self.at]
    }

    fn types(self) -> &'d Types {
        &self.document.types[self.node().types as usize]
    }

    fn words(self, span: Span) -> &'d str {
        let Words { read, meant } = &self.document.words;
        span.of(read, meant)
    }
}

impl Span {
    /// From there to there. Both are at most twice [`MAX_BYTES`], which is the most that 32 bits hold.
    fn new(from: usize, to: usize) -> Self {
        Self {
            from: narrow(from),
            to: narrow(to),
        }
    }

    fn of<'w>(self, read: &'w str, meant: &'w str) -> &'w str {
        let (from, to) = (self.from as usize, self.to as usize);
        match from.checked_sub(read.len()) {
            Some(beyond) => &meant[beyond..to - read.len()],
            None => &read[from..to],
        }
    }

    fn len(self) -> usize {
        (self.to - self.from) as usize
    }
}

fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
