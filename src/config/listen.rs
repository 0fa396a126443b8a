//! Listen addresses.

use std::net::SocketAddr;

/// A listen address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Not served.
    Off,
    /// The address; port 0 selects a free port, which is logged.
    At(SocketAddr),
}

/// Parses an address; `example_port` is used in the error message.
pub(super) fn listen(example_port: u16) -> impl Fn(&str) -> Result<Listen, String> + Clone {
    move |text| match text.trim() {
        off if off.eq_ignore_ascii_case("off") => Ok(Listen::Off),
        address => address.parse().map(Listen::At).map_err(|_| {
            format!(
                "an IP address and a port from 0 to 65535 are expected, as in 0.0.0.0:{example_port} or \
                 [::]:{example_port}, or off"
            )
        }),
    }
}
