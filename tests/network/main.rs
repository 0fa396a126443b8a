//! How the program reaches others in the network of an enterprise: through proxies, by every form of address, and with the
//! certificates that are in use. The peers are small servers on loopback.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test fails by panicking, and is used by no other crate"
)]

mod addresses;
mod certificates;
mod endpoints;
mod peers;
mod proxies;
mod receivers;
