//! A part of the login: given itself, or as a file.

use std::path::PathBuf;

use secrecy::{ExposeSecret as _, SecretString};
use thiserror::Error;

use super::setting::{self, Found};

/// A part of the login, given itself or as a file that is read again whenever it is needed.
#[derive(Clone, Debug)]
pub enum Credential {
    /// Itself.
    Value(SecretString),
    /// The file that holds it.
    File(PathBuf),
}

/// A credential's file that cannot be used.
#[derive(Debug, Error)]
pub enum CredentialError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It holds nothing.
    #[error("{} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl Credential {
    /// The credential as it is at this moment. A file's last line end is not part of it.
    pub fn read(&self) -> Result<SecretString, CredentialError> {
        let path = match self {
            Self::Value(value) => return Ok(value.clone()),
            Self::File(path) => path,
        };
        let text = std::fs::read_to_string(path).map_err(|source| CredentialError::Unreadable {
            path: path.clone(),
            source,
        })?;
        let text = SecretString::from(text);
        let line = text.expose_secret().trim_end_matches(['\r', '\n']);
        if line.is_empty() {
            return Err(CredentialError::Empty { path: path.clone() });
        }
        Ok(SecretString::from(line))
    }

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
