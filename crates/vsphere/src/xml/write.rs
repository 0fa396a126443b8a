//! Writes requests. Element names are constants and every value is escaped, so no value can become
//! markup.

use quick_xml::escape::escape;

use super::super::moref::Moref;

/// An element of a request.
#[derive(Clone)]
pub(crate) struct XmlWriter {
    name: &'static str,
    attributes: Vec<(&'static str, String)>,
    text: String,
    children: Vec<XmlWriter>,
}

impl XmlWriter {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            attributes: Vec::new(),
            text: String::new(),
            children: Vec::new(),
        }
    }

    pub(crate) fn text(name: &'static str, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::new(name)
        }
    }

    /// A managed object reference, with its type in the plain attribute `type`.
    pub(crate) fn moref(name: &'static str, moref: &Moref) -> Self {
        Self::text(name, &*moref.value).attribute("type", moref.kind.clone())
    }

    #[must_use]
    pub(crate) fn attribute(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.attributes.push((name, value.into()));
        self
    }

    /// Adds a child. vCenter validates that the order is that of the schema.
    #[must_use]
    pub(crate) fn with(mut self, child: Self) -> Self {
        self.children.push(child);
        self
    }

    #[must_use]
    pub(crate) fn with_all(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.children.extend(children);
        self
    }

    pub(crate) fn render(&self, into: &mut String) {
        into.push('<');
        into.push_str(self.name);
        for (name, value) in &self.attributes {
            into.push(' ');
            into.push_str(name);
            into.push_str("=\"");
            into.push_str(&escape(value.as_str()));
            into.push('"');
        }
        into.push('>');
        into.push_str(&escape(self.text.as_str()));
        for child in &self.children {
            child.render(into);
        }
        into.push_str("</");
        into.push_str(self.name);
        into.push('>');
    }
}
