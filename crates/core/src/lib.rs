//! The pure part of Haulout: the facts of vCenter and Kubernetes, the inventory that builds one snapshot per node from them, and
//! the decision what to do next.
//!
//! Nothing here reads a clock, opens a connection or writes a log.

// A test may list many cases.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]
#![deny(unreachable_pub)]

#[macro_use]
pub mod named;

pub mod facts;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod ids;
pub mod inventory;
pub mod keys;
pub mod maintenance;
pub mod status;
pub mod tls_errors;

/// Whether a field has its default, and so is not written.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
