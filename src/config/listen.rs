//! Where something is served: an address of this machine, or nowhere.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use super::setting::{Found, given};

/// Where something is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// Here; port 0 lets the system pick one, which is logged.
    At(SocketAddr),
}

/// A setting that says where something is served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    name: &'static str,
    default_port: u16,
    /// Served at all where nothing is set.
    is_on: bool,
}

impl Address {
    pub(super) const fn new(name: &'static str, default_port: u16) -> Self {
        Self {
            name,
            default_port,
            is_on: true,
        }
    }

    /// One that is off where nothing is set; the port is that of the example.
    pub(super) const fn off(name: &'static str, example_port: u16) -> Self {
        Self {
            is_on: false,
            ..Self::new(name, example_port)
        }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn read(&self, text: Option<String>, found: &mut Found) -> Listen {
        let default = if self.is_on {
            Listen::At(SocketAddr::from((Ipv4Addr::UNSPECIFIED, self.default_port)))
        } else {
            Listen::Off
        };
        let Some(text) = given(text) else {
            return default;
        };
        if text.eq_ignore_ascii_case("off") {
            return Listen::Off;
        }
        match text.parse() {
            Ok(address) => Listen::At(address),
            Err(_) => {
                let expected = format!(
                    "an IP address and a port from 0 to 65535 are expected, as in 0.0.0.0:{} or [::]:{0}, or off",
                    self.default_port
                );
                found.wrong(self.name, &text, expected);
                default
            }
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => write!(f, "{address}"),
        }
    }
}
