//! XML: replies are parsed into a tree under hard limits; requests are written with every value
//! escaped.
//!
//! Replies are untrusted. The cost of parsing is bounded by a small multiple of the size.

use std::borrow::Cow;

use super::moref::Moref;
use super::text;

mod read;
#[cfg(test)]
mod tests;
pub(crate) mod write;

/// Nesting depth. The deepest reply seen, nested fault causes of a task, is under 20.
pub(crate) const MAX_DEPTH: usize = 64;
/// Attributes per element. The captures have at most four.
const MAX_ATTRIBUTES: usize = 64;
/// Namespace declarations in scope. The captures have at most six.
const MAX_NAMESPACES: usize = 64;
/// Bytes of text per element. The longest texts are fault messages.
pub(crate) const MAX_TEXT: usize = 1 << 20;
/// Elements per reply: a page of 50 hosts with 250 PCI devices each has 250,000.
pub(crate) const MAX_ELEMENTS: usize = 500_000;

/// The namespace of the vSphere web services.
pub(crate) const VIM25: &str = "urn:vim25";
/// The namespace of SOAP 1.1.
pub(crate) const ENVELOPE: &str = "http://schemas.xmlsoap.org/soap/envelope/";
const XSI: &str = "http://www.w3.org/2001/XMLSchema-instance";

/// The namespace of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownNamespace {
    /// `urn:vim25`.
    Vim,
    /// The SOAP envelope.
    Envelope,
    /// Any other, or none, as of `faultcode` and `faultstring`.
    Other,
}

/// An element: name, the two relevant attributes, and text or children.
pub(crate) struct Element<'t> {
    name: Cow<'t, str>,
    space: KnownNamespace,
    types: Option<Box<Types<'t>>>,
    content: Content<'t>,
    breach: Option<LimitBreach>,
    size: usize,
}

/// Boxed: nine elements in ten have neither.
#[derive(Default)]
struct Types<'t> {
    plain: Option<Cow<'t, str>>,
    xsi: Option<Cow<'t, str>>,
}

enum Content<'t> {
    Text(Cow<'t, str>),
    Children(Vec<Element<'t>>),
}

/// Which parts of a document are dropped, and what is lost if a limit is exceeded, so that one
/// unbounded value does not affect the others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    /// Elements with this name keep only the children with these names.
    pub(crate) sparse: &'static [(&'static str, &'static [&'static str])],
    /// If a limit is exceeded, the innermost of these elements drops the child that exceeds it, and is
    /// [marked](Element::breach). Without such a parent the whole document is rejected.
    pub(crate) bulkheads: &'static [&'static str],
}

/// The limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitBreach {
    /// Levels of nesting.
    Depth,
    /// Elements of the document.
    Elements,
    /// Bytes of one text or attribute.
    Text,
    /// Attributes of one element.
    Attributes,
    /// Namespace declarations in scope.
    Namespaces,
    /// A character that XML does not allow, or an entity.
    Reference,
}

/// Why a reply cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XmlError {
    /// It is no well-formed XML, or has what SOAP 1.1 forbids.
    #[error("{0}")]
    Malformed(String),
    /// A limit is exceeded.
    #[error("it has {0}")]
    Beyond(LimitBreach),
}

impl LimitBreach {
    fn limit(self) -> usize {
        match self {
            Self::Depth => MAX_DEPTH,
            Self::Elements => MAX_ELEMENTS,
            Self::Text => MAX_TEXT,
            Self::Attributes => MAX_ATTRIBUTES,
            Self::Namespaces => MAX_NAMESPACES,
            Self::Reference => 0,
        }
    }

    /// Fails if `count` exceeds the limit.
    fn check(self, count: usize) -> Result<(), XmlError> {
        if count > self.limit() {
            return Err(XmlError::Beyond(self));
        }
        Ok(())
    }
}

impl std::fmt::Display for LimitBreach {
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

/// Parses a document, except what `shape` drops.
///
/// # Errors
/// If it is not one well-formed element within the limits, or has a DOCTYPE, a processing instruction
/// or its own entities; except for what a bulkhead of `shape` contains.
pub(crate) fn parse(bytes: &[u8], shape: Shape) -> Result<Element<'_>, XmlError> {
    let text = str::from_utf8(bytes).map_err(|error| {
        XmlError::Malformed(format!("it is not UTF-8 text (byte {})", error.valid_up_to()))
    })?;
    // `str::find` is vectorized, `position` on a slice is not.
    if let Some(at) = text.find('\0') {
        let what = format!("it contains a NUL character (byte {at})");
        return Err(XmlError::Malformed(what));
    }
    read::Builder::new(text, shape).document()
}

impl<'t> Element<'t> {
    pub(crate) fn space(&self) -> KnownNamespace {
        self.space
    }

    /// The local name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The limit that was exceeded inside: a part was dropped, so the value is unknown.
    pub(crate) fn breach(&self) -> Option<LimitBreach> {
        self.breach
    }

    /// Bytes of the document between the tags.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The text; empty if there are children.
    pub(crate) fn text(&self) -> &str {
        match &self.content {
            Content::Text(text) => text,
            Content::Children(_) => "",
        }
    }

    pub(crate) fn children(&self) -> impl Iterator<Item = &Self> {
        match &self.content {
            Content::Text(_) => [].iter(),
            Content::Children(children) => children.iter(),
        }
    }

    /// `xsi:type` without its prefix. The attribute is matched by namespace, because prefixes differ by
    /// server.
    pub(crate) fn xsi_type(&self) -> Option<&str> {
        let qualified = self.types.as_ref()?.xsi.as_deref()?;
        Some(qualified.rsplit_once(':').map_or(qualified, |(_, local)| local))
    }

    /// The element as a reference: its type is in the plain attribute `type`. `None` if type or value
    /// is missing.
    pub(crate) fn moref(&self) -> Option<Moref> {
        Moref::of_wire(self.types.as_ref()?.plain.as_deref()?, self.text())
    }

    /// Children with this name in the namespace of vSphere.
    pub(crate) fn children_named(&self, name: &str) -> impl Iterator<Item = &Self> {
        self.children()
            .filter(move |child| child.space == KnownNamespace::Vim && child.name == name)
    }

    /// The first child with this name in the namespace of vSphere.
    pub(crate) fn child(&self, name: &str) -> Option<&Self> {
        self.children_named(name).next()
    }

    /// The first child with this name in any namespace.
    pub(crate) fn child_of_any_space(&self, name: &str) -> Option<&Self> {
        self.children().find(|child| child.name == name)
    }

    /// The text of that child; `None` without such a child.
    pub(crate) fn text_of(&self, name: &str) -> Option<&str> {
        self.child(name).map(Self::text)
    }

    /// Adds text. Text between children is ignored.
    fn append(&mut self, more: Cow<'t, str>) -> Result<(), XmlError> {
        let Content::Text(text) = &mut self.content else {
            return Ok(());
        };
        if text.is_empty() {
            *text = more;
        } else {
            text.to_mut().push_str(&more);
        }
        LimitBreach::Text.check(text.len())
    }

    fn push(&mut self, child: Self) {
        match &mut self.content {
            Content::Children(children) => children.push(child),
            Content::Text(_) => self.content = Content::Children(vec![child]),
        }
    }
}
