//! A setting that cannot be checked when the command line is read.

use std::fmt;

use thiserror::Error;

/// A setting that is found to be wrong at the start: exit code 2, like every wrong value.
#[derive(Debug, Error)]
#[error("{name}={value:?}: {why}")]
pub struct Misconfigured {
    name: &'static str,
    value: String,
    why: String,
}

impl Misconfigured {
    pub fn new(name: &'static str, value: &str, why: impl fmt::Display) -> Self {
        Self {
            name,
            value: value.to_owned(),
            why: why.to_string(),
        }
    }
}
