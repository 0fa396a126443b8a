//! XML in and out. Replies are read into a tree under hard limits; requests are written with every value escaped.
//!
//! A reply is untrusted input: it is refused before it can cost more than a small multiple of its own size.

use std::borrow::Cow;

use super::moref::Moref;
use super::text;

mod read;
#[cfg(test)]
mod tests;
pub(crate) mod write;

/// Deepest nesting. The deepest reply seen, a task's nested fault causes, stays under 20.
pub(crate) const MAX_DEPTH: usize = 64;
/// Most attributes on one element. The captures have four at the most.
const MAX_ATTRIBUTES: usize = 64;
/// Most namespace declarations in scope at one place. The captures have six at the most.
const MAX_NAMESPACES: usize = 64;
/// Most bytes of text in one element. The longest that is asked for are names and fault messages.
pub(crate) const MAX_TEXT: usize = 1 << 20;
/// Most elements in one reply: a full page of 50 hosts with 250 PCI devices each is 250,000.
pub(crate) const MAX_ELEMENTS: usize = 500_000;

/// The namespace of every method and data object of vSphere's web services.
pub(crate) const VIM25: &str = "urn:vim25";
/// SOAP 1.1, the only envelope that vCenter speaks.
pub(crate) const ENVELOPE: &str = "http://schemas.xmlsoap.org/soap/envelope/";
const XSI: &str = "http://www.w3.org/2001/XMLSchema-instance";

/// The namespace of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownNamespace {
    /// `urn:vim25`.
    Vim,
    /// The SOAP envelope.
    Envelope,
    /// Any other, or none, as `faultcode` and `faultstring` have it.
    Other,
}

/// One element: its name, the two attributes that carry meaning, and either text or children.
pub(crate) struct Element<'t> {
    name: Cow<'t, str>,
    space: KnownNamespace,
    types: Option<Box<Types<'t>>>,
    content: Content<'t>,
    breach: Option<LimitBreach>,
    size: usize,
}

/// Nine elements in ten have neither.
#[derive(Default)]
struct Types<'t> {
    plain: Option<Cow<'t, str>>,
    xsi: Option<Cow<'t, str>>,
}

enum Content<'t> {
    Text(Cow<'t, str>),
    Children(Vec<Element<'t>>),
}

/// What of a document is not kept, and what is given up where a limit is exceeded, so that one value without bounds does not cost
/// all the others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    /// Elements of that name keep only the children of these names.
    pub(crate) sparse: &'static [(&'static str, &'static [&'static str])],
    /// Where a limit is exceeded, the innermost of these elements loses the child in which that happens, and is
    /// [marked](Element::breach). Without such an element around it the whole document is refused.
    pub(crate) bulkheads: &'static [&'static str],
}

/// Which limit was exceeded within an element.
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
        /// The innermost open element.
        element: String,
    },
    /// There is no element in it.
    #[error("it contains no XML element")]
    Empty,
    /// A construct that SOAP 1.1 forbids: a DOCTYPE or a processing instruction.
    #[error("it contains {what}, which SOAP forbids")]
    Forbidden {
        /// What was found.
        what: &'static str,
    },
    /// It exceeds one of the limits.
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

    /// Refuses more than the limit.
    fn unless(self, is: usize) -> Result<(), XmlError> {
        if is > self.limit() {
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

/// Reads a document whole, less what `shape` leaves out.
///
/// # Errors
/// For everything that is not one well-formed element under the limits, without DOCTYPE, processing instruction or own entities;
/// less what a bulkhead of `shape` contains.
pub(crate) fn parse(bytes: &[u8], shape: Shape) -> Result<Element<'_>, XmlError> {
    let text = str::from_utf8(bytes).map_err(|error| XmlError::Encoding {
        at: error.valid_up_to(),
    })?;
    // `find` on a text looks at many bytes at once, `position` on a slice at each.
    if let Some(at) = text.find('\0') {
        return Err(XmlError::Nul { at });
    }
    read::Builder::new(text, shape).document()
}

impl<'t> Element<'t> {
    /// The namespace of its name.
    pub(crate) fn space(&self) -> KnownNamespace {
        self.space
    }

    /// Its local name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The limit that was exceeded within it: a part of it was dropped, so that its value is not known.
    pub(crate) fn breach(&self) -> Option<LimitBreach> {
        self.breach
    }

    /// The bytes of the document between its tags.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The text, empty where there are children.
    pub(crate) fn text(&self) -> &str {
        match &self.content {
            Content::Text(text) => text,
            Content::Children(_) => "",
        }
    }

    /// The child elements, in order.
    pub(crate) fn children(&self) -> impl Iterator<Item = &Self> {
        match &self.content {
            Content::Text(_) => [].iter(),
            Content::Children(children) => children.iter(),
        }
    }

    /// `xsi:type` without its prefix. The attribute is found by namespace, because prefixes differ by server.
    pub(crate) fn xsi_type(&self) -> Option<&str> {
        let qualified = self.types.as_ref()?.xsi.as_deref()?;
        Some(qualified.rsplit_once(':').map_or(qualified, |(_, local)| local))
    }

    /// The reference that it is: its type stands in the plain attribute `type`. `None` where type or value is missing.
    pub(crate) fn moref(&self) -> Option<Moref> {
        Moref::of_wire(self.types.as_ref()?.plain.as_deref()?, self.text())
    }

    /// All children of that name in vSphere's namespace, in order.
    pub(crate) fn children_named(&self, name: &str) -> impl Iterator<Item = &Self> {
        self.children()
            .filter(move |child| child.space == KnownNamespace::Vim && child.name == name)
    }

    /// The first child of that name in vSphere's namespace.
    pub(crate) fn child(&self, name: &str) -> Option<&Self> {
        self.children_named(name).next()
    }

    /// The first child of that name in whatever namespace.
    pub(crate) fn child_of_any_space(&self, name: &str) -> Option<&Self> {
        self.children().find(|child| child.name == name)
    }

    /// The text of the first child of that name, `None` where there is no such child.
    pub(crate) fn text_of(&self, name: &str) -> Option<&str> {
        self.child(name).map(Self::text)
    }

    /// Adds text. What stands between children is passed over.
    fn append(&mut self, more: Cow<'t, str>) -> Result<(), XmlError> {
        let Content::Text(text) = &mut self.content else {
            return Ok(());
        };
        if text.is_empty() {
            *text = more;
        } else {
            text.to_mut().push_str(&more);
        }
        LimitBreach::Text.unless(text.len())
    }

    fn push(&mut self, child: Self) {
        match &mut self.content {
            Content::Children(children) => children.push(child),
            Content::Text(_) => self.content = Content::Children(vec![child]),
        }
    }
}
