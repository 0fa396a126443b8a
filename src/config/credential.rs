//! A part of the login: given itself, or as a file.

use std::path::PathBuf;

use secrecy::{ExposeSecret as _, SecretString};

use super::setting::{self, Found};

/// A part of the login, given itself or as a file that is read again whenever it is needed.
#[derive(Clone, Debug)]
pub enum Credential {
    /// Itself.
    Value(SecretString),
    /// The file that holds it.
    File(PathBuf),
}

impl Credential {
    /// `name` as a value or as the path in `{name}_FILE`, and exactly one of them.
    pub(super) fn read_args(
        name: &'static str,
        value: Option<SecretString>,
        file: Option<String>,
        found: &mut Found,
    ) -> Self {
        let value = value.filter(|value| !value.expose_secret().is_empty());
        match (value, setting::given(file)) {
            (Some(value), None) => return Self::Value(value),
            (None, Some(path)) => return Self::File(PathBuf::from(path)),
            (Some(_), Some(path)) => found.wrong(
                name,
                "***",
                format!("it stands beside {name}_FILE={path}; one of the two is expected"),
            ),
            (None, None) => found.missing(name, format!("it or {name}_FILE is expected")),
        }
        Self::File(PathBuf::new())
    }

    /// The credential as `show` shows it, or where it is.
    pub(super) fn describe(&self, show: impl FnOnce(&str) -> String) -> String {
        match self {
            Self::Value(value) => show(value.expose_secret()),
            Self::File(path) => format!("(in {})", path.display()),
        }
    }
}
