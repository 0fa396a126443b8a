//! XML in and out: a small element tree, read under hard limits and written with escaping by construction.
//!
//! What arrives is hostile until it is parsed: a reply is refused before it can cost more than its own size.

use compact_str::CompactString;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::{LocalName, NamespaceResolver, QName, ResolveResult};
use quick_xml::{Reader, XmlVersion};

pub mod write;

/// Deepest nesting. The deepest reply seen, a task's nested fault causes, stays under 20.
pub const MAX_DEPTH: usize = 64;
/// Most attributes on one element. vCenter writes at most three.
pub const MAX_ATTRIBUTES: usize = 64;
/// Most bytes of text in one element. The longest that is asked for are names and fault messages.
pub const MAX_TEXT: usize = 1 << 20;
/// Most elements in one reply: a full page of 50 hosts with 250 PCI devices each is 250,000.
pub const MAX_ELEMENTS: usize = 500_000;

/// The namespace of every method and data object of vSphere's web services.
pub const VIM25: &str = "urn:vim25";
/// SOAP 1.1, the only envelope that vCenter speaks.
pub const ENVELOPE: &str = "http://schemas.xmlsoap.org/soap/envelope/";
const XSI: &str = "http://www.w3.org/2001/XMLSchema-instance";

/// Which namespace an element is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// `urn:vim25`.
    Vim,
    /// The SOAP envelope.
    Envelope,
    /// None at all, as `faultcode` and `faultstring` have it.
    Unbound,
    /// Any other.
    Other,
}

/// One element: its name, the two attributes that carry meaning, and either text or children.
#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    /// Where its name belongs.
    pub space: Space,
    /// Its local name.
    pub name: CompactString,
    /// The plain attribute `type`, which a managed object reference carries.
    pub type_attr: Option<CompactString>,
    /// `xsi:type` without its prefix. The attribute is found by namespace, because prefixes differ by server.
    pub xsi_type: Option<CompactString>,
    /// The text, empty where there are children.
    pub text: CompactString,
    /// The child elements, in order.
    pub children: Vec<Element>,
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
    #[error("it has more than {limit} {what}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// How much is allowed.
        limit: usize,
    },
}

impl Element {
    /// Reads a document.
    ///
    /// # Errors
    /// For everything that is not one well-formed element under the limits, without DOCTYPE, processing instruction
    /// or own entities.
    pub fn parse(bytes: &[u8]) -> Result<Self, XmlError> {
        let text = std::str::from_utf8(bytes).map_err(|error| XmlError::Encoding {
            at: error.valid_up_to(),
        })?;
        // `find` on a text looks at many bytes at once, `position` on a slice at each.
        if let Some(at) = text.find('\0') {
            return Err(XmlError::Nul { at });
        }
        let mut reader = Reader::from_str(text);
        reader.config_mut().expand_empty_elements = true;
        let mut tree = Growing::default();
        loop {
            let event = match reader.read_event() {
                Ok(Event::Eof) => return tree.finish(),
                Ok(event) => event,
                Err(quick_xml::Error::Syntax(_)) if tree.is_open() => return tree.finish(),
                Err(error) => {
                    return Err(XmlError::Malformed {
                        at: reader.buffer_position(),
                        what: super::text::for_people(&error.to_string()),
                    });
                }
            };
            let at = reader.buffer_position();
            tree.take(event, at)?;
        }
    }

    /// The first child of that name in vSphere's namespace.
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children
            .iter()
            .find(|child| child.space == Space::Vim && &*child.name == name)
    }

    /// All children of that name in vSphere's namespace, in order.
    pub fn children_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.children
            .iter()
            .filter(move |child| child.space == Space::Vim && &*child.name == name)
    }

    /// The descendant along a path of names.
    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |element, name| element.child(name))
    }

    /// The text of the first child of that name, `None` where there is no such child.
    pub fn text_of(&self, name: &str) -> Option<&str> {
        self.child(name).map(|child| &*child.text)
    }
}

/// The tree while it grows: the elements that stand open, outermost first, and what was counted.
#[derive(Default)]
struct Growing {
    open: Vec<Open>,
    /// The elements that have ended and whose parents stand open. The children of one are the last of them, so that they are
    /// moved into a list of just their length when it ends.
    ended: Vec<Element>,
    root: Option<Element>,
    count: usize,
    scopes: Scopes,
}

/// An element that stands open, and how many had ended before it began.
struct Open {
    element: Element,
    ended_before: usize,
}

/// Which namespaces the names of an element may be in. Few elements declare any, and nearly all names have no prefix, so the
/// answer for those is kept; quick-xml's own reader looks each name up, which took a tenth of the reading.
struct Scopes {
    resolver: NamespaceResolver,
    /// How many elements stood open around each that declares.
    declared_at: Vec<usize>,
    /// Where element names without a prefix belong.
    unprefixed: Space,
}

impl Default for Scopes {
    fn default() -> Self {
        Self {
            resolver: NamespaceResolver::default(),
            declared_at: Vec::new(),
            unprefixed: Space::Unbound,
        }
    }
}

impl Scopes {
    fn enter(&mut self, start: &BytesStart<'_>, depth: usize, at: u64) -> Result<(), XmlError> {
        // More than the declarations contain the word, which costs time and harms nothing.
        let attributes = start.attributes_raw();
        if !attributes.is_empty() && attributes.contains("xmlns") {
            self.resolver.push(start).map_err(|error| malformed(at, &error))?;
            self.declared_at.push(depth);
            self.unprefixed = space(&self.resolver.resolve_prefix(None, true));
        }
        Ok(())
    }

    fn leave(&mut self, depth: usize) {
        if self.declared_at.last() == Some(&depth) {
            self.declared_at.pop();
            self.resolver.pop();
            self.unprefixed = space(&self.resolver.resolve_prefix(None, true));
        }
    }

    fn of_element<'n>(&self, name: QName<'n>) -> (Space, LocalName<'n>) {
        match name.decompose() {
            (local, None) => (self.unprefixed, local),
            (local, prefix) => (space(&self.resolver.resolve_prefix(prefix, true)), local),
        }
    }
}

fn space(found: &ResolveResult<'_>) -> Space {
    match found {
        ResolveResult::Bound(bound) if bound.as_ref() == VIM25 => Space::Vim,
        ResolveResult::Bound(bound) if bound.as_ref() == ENVELOPE => Space::Envelope,
        ResolveResult::Bound(_) | ResolveResult::Unknown(_) => Space::Other,
        ResolveResult::Unbound => Space::Unbound,
    }
}

impl Growing {
    fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    fn take(&mut self, event: Event<'_>, at: u64) -> Result<(), XmlError> {
        match event {
            Event::Start(start) | Event::Empty(start) => self.start(&start, at),
            Event::End(_) => {
                self.end();
                Ok(())
            }
            Event::Text(text) => self.text(&text.xml10_content(), at),
            Event::CData(text) => self.text(&text.xml10_content(), at),
            Event::GeneralRef(reference) => {
                let character = if reference.is_char_ref() {
                    reference.resolve_char_ref().ok().flatten()
                } else {
                    predefined(&reference)
                };
                match character {
                    Some(character) => self.text(character.encode_utf8(&mut [0; 4]), at),
                    None => Err(XmlError::Forbidden {
                        what: "an entity of its own or an illegal character reference",
                    }),
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
        self.count += 1;
        if self.root.is_some() {
            return Err(XmlError::Malformed {
                at,
                what: "a second root element".to_owned(),
            });
        }
        limit(self.open.len() + 1, MAX_DEPTH, "levels of nesting")?;
        limit(self.count, MAX_ELEMENTS, "elements")?;
        self.scopes.enter(start, self.open.len(), at)?;
        let (space, local) = self.scopes.of_element(start.name());
        let mut element = Element {
            space,
            name: local.as_ref().into(),
            type_attr: None,
            xsi_type: None,
            text: CompactString::default(),
            children: Vec::new(),
        };
        // Nine elements in ten have none.
        if !start.attributes_raw().is_empty() {
            self.attributes(start, &mut element, at)?;
        }
        self.open.push(Open {
            element,
            ended_before: self.ended.len(),
        });
        Ok(())
    }

    fn attributes(&self, start: &BytesStart<'_>, element: &mut Element, at: u64) -> Result<(), XmlError> {
        // The check for duplicates compares each attribute with all before it; the limit comes first.
        for (index, attribute) in start.attributes().with_checks(false).enumerate() {
            limit(index + 1, MAX_ATTRIBUTES, "attributes on one element")?;
            let attribute = attribute.map_err(|error| malformed(at, &error))?;
            let (local, prefix) = attribute.key.decompose();
            if local.as_ref() != "type" {
                continue;
            }
            // An attribute without a prefix is in no namespace, whatever the default is.
            let is_xsi = match self.scopes.resolver.resolve_prefix(prefix, false) {
                ResolveResult::Unbound => false,
                ResolveResult::Bound(bound) if bound.as_ref() == XSI => true,
                ResolveResult::Bound(_) | ResolveResult::Unknown(_) => continue,
            };
            let value = attribute
                .normalized_value(XmlVersion::Implicit1_0)
                .map_err(|error| malformed(at, &error))?;
            limit(value.len(), MAX_TEXT, "bytes in one attribute")?;
            if is_xsi {
                let local = value.rsplit_once(':').map_or(&*value, |(_, local)| local);
                element.xsi_type = Some(local.into());
            } else {
                element.type_attr = Some(value.as_ref().into());
            }
        }
        Ok(())
    }

    fn text(&mut self, text: &str, at: u64) -> Result<(), XmlError> {
        match self.open.last_mut() {
            Some(Open { element, .. }) => {
                let so_far = &mut element.text;
                limit(
                    so_far.len() + text.len(),
                    MAX_TEXT,
                    "bytes of text in one element",
                )?;
                if so_far.is_empty() {
                    *so_far = text.into();
                } else {
                    so_far.push_str(text);
                }
                Ok(())
            }
            None if text.trim().is_empty() => Ok(()),
            None => Err(XmlError::Malformed {
                at,
                what: "text outside of the root element".to_owned(),
            }),
        }
    }

    fn end(&mut self) {
        let Some(Open {
            mut element,
            ended_before,
        }) = self.open.pop()
        else {
            return;
        };
        self.scopes.leave(self.open.len());
        if self.ended.len() > ended_before {
            element.children = self.ended.drain(ended_before..).collect();
            element.text = CompactString::default();
        }
        if self.open.is_empty() {
            self.root = Some(element);
        } else {
            self.ended.push(element);
        }
    }

    fn finish(self) -> Result<Element, XmlError> {
        if let Some(open) = self.open.last() {
            return Err(XmlError::Truncated {
                element: super::text::for_people(&open.element.name),
            });
        }
        self.root.ok_or(XmlError::Empty)
    }
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

fn limit(is: usize, limit: usize, what: &'static str) -> Result<(), XmlError> {
    if is > limit {
        return Err(XmlError::TooMuch { what, limit });
    }
    Ok(())
}

fn malformed(at: u64, error: &dyn std::fmt::Display) -> XmlError {
    XmlError::Malformed {
        at,
        what: super::text::for_people(&error.to_string()),
    }
}
