//! A part of the credentials of vCenter.

use std::path::PathBuf;

use secrecy::SecretString;

/// A part of the credentials: a value, or a file that is read at each login.
#[derive(Clone, Debug)]
pub enum Credential {
    Value(SecretString),
    File(PathBuf),
}

/// One of the two is set; [`Config::check`](super::Config::check) verifies it.
pub(super) fn credential(value: Option<SecretString>, file: Option<&PathBuf>) -> Credential {
    value.map_or_else(
        || Credential::File(file.cloned().unwrap_or_default()),
        Credential::Value,
    )
}
