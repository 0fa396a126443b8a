//! Settings of the status page.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::parse::path;
use super::{Listen, OPERATION, listen::listen};

/// Where the status page is served, and to whom.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct StatusSettings {
    /// Address of the status page (IP:PORT, or off)
    #[arg(long, env, value_name = "ADDRESS", help_heading = OPERATION, value_parser = listen(8082),
          default_value = "off")]
    pub status_address: Listen,
    /// Names by which browsers may ask for the status page (host names, separated by commas)
    ///
    /// IP addresses, localhost, names without a dot and names of Services are permitted without it. A request for another name is
    /// refused, because a page of another site could have sent it (DNS rebinding).
    #[arg(long, env, value_name = "NAMES", help_heading = OPERATION, value_parser = names, hide_short_help = true)]
    pub status_hosts: Option<HostNames>,
    /// File with a token that a client of the status page has to send, as Bearer token or as password of any user (16 to 4096
    /// characters)
    ///
    /// It is read again at each request. If unset, everybody who reaches the page may read it.
    #[arg(long, env, value_name = "FILE", help_heading = OPERATION, value_parser = path, hide_short_help = true)]
    pub status_token_file: Option<PathBuf>,
}

/// Names of hosts in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNames(pub BTreeSet<String>);

fn names(text: &str) -> Result<HostNames, String> {
    let is_name = |name: &str| {
        let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        name.len() <= 253
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(is_legal)
    };
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let names: BTreeSet<String> = names.map(str::to_ascii_lowercase).collect();
    match names.iter().find(|name| !is_name(name)) {
        Some(wrong) => Err(format!(
            "{wrong:?} is not a host name; names without a port are expected"
        )),
        None => Ok(HostNames(names)),
    }
}
