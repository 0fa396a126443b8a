//! Builds a tree from quick-xml's events, under the limits.

use std::borrow::Cow;

use quick_xml::events::attributes::Attribute;
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::name::{Namespace, NamespaceError, NamespaceResolver, ResolveResult};
use quick_xml::{Reader, XmlVersion};

use super::{
    Content, ENVELOPE, Element, KnownNamespace, LimitBreach, MAX_ATTRIBUTES, MAX_NAMESPACES, Shape, Types,
    VIM25, XSI, XmlError, text,
};

/// Builds the tree. Reader and resolver are used separately: when the limit of namespaces is exceeded,
/// `NsReader` does not return the start tag, which is needed to skip the element.
pub(super) struct Builder<'t> {
    text: &'t str,
    reader: Reader<&'t [u8]>,
    namespaces: NamespaceResolver,
    shape: Shape,
    depth: usize,
    elements: usize,
    /// Number of open bulkhead elements.
    bulkheads: usize,
}

impl KnownNamespace {
    pub(crate) fn of(namespace: &ResolveResult<'_>) -> Self {
        match namespace {
            ResolveResult::Bound(Namespace(VIM25)) => Self::Vim,
            ResolveResult::Bound(Namespace(ENVELOPE)) => Self::Envelope,
            ResolveResult::Bound(_) | ResolveResult::Unbound | ResolveResult::Unknown(_) => Self::Other,
        }
    }
}

impl<'t> Builder<'t> {
    pub(super) fn new(text: &'t str, shape: Shape) -> Self {
        let mut reader = Reader::from_str(text);
        reader.config_mut().expand_empty_elements = true;
        let mut namespaces = NamespaceResolver::default();
        namespaces.set_max_namespace_bindings(MAX_NAMESPACES);
        Self {
            text,
            reader,
            namespaces,
            shape,
            depth: 0,
            elements: 0,
            bulkheads: 0,
        }
    }

    pub(super) fn document(mut self) -> Result<Element<'t>, XmlError> {
        let mut root = None;
        loop {
            match self.event(None)? {
                Event::Start(_) if root.is_some() => return Err(self.malformed(&"a second root element")),
                Event::Start(start) => root = Some(self.element(&start)?),
                Event::Text(text) if text.trim().is_empty() => {}
                Event::Text(_) | Event::CData(_) | Event::GeneralRef(_) => {
                    return Err(self.malformed(&"text outside of the root element"));
                }
                Event::Eof => {
                    return root.ok_or_else(|| XmlError::Malformed("it contains no XML element".to_owned()));
                }
                Event::Decl(_)
                | Event::Comment(_)
                | Event::Empty(_)
                | Event::End(_)
                | Event::DocType(_)
                | Event::PI(_) => {}
            }
        }
    }

    /// The next event. `open` is the innermost open element, for the error of a truncated document.
    fn event(&mut self, open: Option<&str>) -> Result<Event<'t>, XmlError> {
        let forbidden = |what| XmlError::Malformed(format!("it contains {what}, which SOAP forbids"));
        match (self.reader.read_event(), open) {
            (Ok(Event::DocType(_)), _) => Err(forbidden("a DOCTYPE")),
            (Ok(Event::PI(_)), _) => Err(forbidden("a processing instruction")),
            (Ok(Event::Eof) | Err(quick_xml::Error::Syntax(_)), Some(open)) => Err(XmlError::Malformed(
                format!("it ends in the middle of <{}>", text::for_people(open)),
            )),
            (Ok(event), _) => Ok(event),
            (Err(error), _) => Err(self.malformed(&error)),
        }
    }

    /// Reads an element after its start tag. If it exceeds a limit inside a bulkhead, it is skipped to
    /// its end.
    fn element(&mut self, start: &BytesStart<'t>) -> Result<Element<'t>, XmlError> {
        let begins = self.reader.buffer_position();
        let (level, bulkheads) = (self.namespaces.level(), self.bulkheads);
        self.depth += 1;
        let read = self.begin(start).and_then(|mut element| {
            self.content(&mut element)?;
            Ok(element)
        });
        self.depth -= 1;
        self.bulkheads = bulkheads;
        self.namespaces.set_level(level);
        match read {
            Ok(mut element) => {
                element.size = usize::try_from(self.reader.buffer_position() - begins).unwrap_or(usize::MAX);
                Ok(element)
            }
            Err(error @ XmlError::Beyond(_)) if bulkheads > 0 => {
                self.skip(start)?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    fn begin(&mut self, start: &BytesStart<'t>) -> Result<Element<'t>, XmlError> {
        LimitBreach::Depth.check(self.depth)?;
        self.elements += 1;
        LimitBreach::Elements.check(self.elements)?;
        let types = match start.attributes_raw() {
            "" => None,
            _ => self.attributes(start)?,
        };
        let (namespace, local) = self.namespaces.resolve_element(start.name());
        let space = KnownNamespace::of(&namespace);
        Ok(Element {
            name: self.lent(local.into_inner()),
            space,
            types,
            content: Content::Text(Cow::Borrowed("")),
            breach: None,
            size: 0,
        })
    }

    fn content(&mut self, element: &mut Element<'t>) -> Result<(), XmlError> {
        let is_bulkhead =
            element.space == KnownNamespace::Vim && self.shape.bulkheads.contains(&&*element.name);
        self.bulkheads += usize::from(is_bulkhead);
        let sparse = self.shape.sparse.iter().find(|(of, _)| *of == element.name);
        loop {
            let elements = self.elements;
            let read = match self.event(Some(&element.name))? {
                Event::End(_) => return Ok(()),
                Event::Start(start) => match sparse {
                    Some((_, kept)) if !kept.contains(&start.local_name().into_inner()) => self.skip(&start),
                    Some(_) | None => self.element(&start).map(|child| element.push(child)),
                },
                Event::Text(text) => element.append(text.xml10_content()),
                Event::CData(text) => element.append(text.xml10_content()),
                Event::GeneralRef(reference) => {
                    character(&reference).and_then(|text| element.append(text.to_string().into()))
                }
                Event::Empty(_)
                | Event::Comment(_)
                | Event::Decl(_)
                | Event::PI(_)
                | Event::DocType(_)
                | Event::Eof => Ok(()),
            };
            match read {
                Err(XmlError::Beyond(breach)) if is_bulkhead => {
                    self.elements = elements;
                    element.breach = Some(breach);
                    if let Content::Text(text) = &mut element.content {
                        *text = Cow::Borrowed("");
                    }
                }
                read => read?,
            }
        }
    }

    /// Reads the relevant attributes and the namespace declarations.
    fn attributes(&mut self, start: &BytesStart<'t>) -> Result<Option<Box<Types<'t>>>, XmlError> {
        // The check for duplicates is quadratic, so it is off.
        let count = start
            .attributes()
            .with_checks(false)
            .take(MAX_ATTRIBUTES + 1)
            .count();
        LimitBreach::Attributes.check(count)?;
        if let Err(error) = self.namespaces.push(start) {
            let is_limit = matches!(error, NamespaceError::TooManyBindings(_));
            let beyond = XmlError::Beyond(LimitBreach::Namespaces);
            return Err(if is_limit { beyond } else { self.malformed(&error) });
        }
        let mut types = Types::default();
        for attribute in start.attributes().with_checks(false) {
            let attribute = attribute.map_err(|error| self.malformed(&error))?;
            let (namespace, local) = self.namespaces.resolve_attribute(attribute.key);
            if local.into_inner() != "type" {
                continue;
            }
            match namespace {
                ResolveResult::Unbound => types.plain = Some(self.value(&attribute)?),
                ResolveResult::Bound(Namespace(XSI)) => types.xsi = Some(self.value(&attribute)?),
                ResolveResult::Bound(_) | ResolveResult::Unknown(_) => {}
            }
        }
        let has_any = types.plain.is_some() || types.xsi.is_some();
        Ok(has_any.then(|| Box::new(types)))
    }

    fn value(&self, attribute: &Attribute<'_>) -> Result<Cow<'t, str>, XmlError> {
        let value = attribute.normalized_value(XmlVersion::Implicit1_0);
        let value = value.map_err(|error| self.malformed(&error))?;
        LimitBreach::Text.check(value.len())?;
        Ok(match value {
            Cow::Borrowed(value) => self.lent(value),
            Cow::Owned(value) => Cow::Owned(value),
        })
    }

    /// Skips the rest of an element, which still must be well-formed.
    fn skip(&mut self, start: &BytesStart<'t>) -> Result<(), XmlError> {
        let skipped = self.reader.read_to_end(start.name());
        skipped.map(drop).map_err(|error| self.malformed(&error))
    }

    /// `part` with the lifetime of the document. quick-xml returns names with the lifetime of the event
    /// although they are slices of the document: `part` is one iff its address range lies inside it.
    fn lent(&self, part: &str) -> Cow<'t, str> {
        let from = part.as_ptr().addr().checked_sub(self.text.as_ptr().addr());
        let same = from.and_then(|from| self.text.get(from..from + part.len()));
        same.map_or_else(|| Cow::Owned(part.to_owned()), Cow::Borrowed)
    }

    fn malformed(&self, error: &dyn std::fmt::Display) -> XmlError {
        let (at, what) = (
            self.reader.buffer_position(),
            text::for_people(&error.to_string()),
        );
        XmlError::Malformed(format!("it is not well-formed XML near byte {at}: {what}"))
    }
}

/// Resolves a reference. Only the five predefined entities exist.
fn character(reference: &BytesRef<'_>) -> Result<char, XmlError> {
    let character = if reference.is_char_ref() {
        reference.resolve_char_ref().ok().flatten()
    } else {
        match &**reference {
            "lt" => Some('<'),
            "gt" => Some('>'),
            "amp" => Some('&'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => None,
        }
    };
    character.ok_or(XmlError::Beyond(LimitBreach::Reference))
}
