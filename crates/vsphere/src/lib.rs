//! All the vSphere that Haulout speaks: SOAP, one session, the update stream, power and relocate.
//!
//! Where do I …
//! - … start something in vCenter? [`client::Vcenter`]: power, shutdown, relocate, and the survey of devices.
//! - … hear what happens? [`updates::run`], which tells [`update::Update`]s.
//! - … learn what a refusal asks of me? [`fault::Fault::retry`].
//! - … change how bytes are read or written? `xml`, then `decode` and `fault`, then `soap`, then `property` and `task`. XML elements
//!   do not leave these modules: a call gives typed values.
//!
//! What is known of the wire, with captures, is in `proto-notes/`.

#![deny(unreachable_pub)]

mod call;
pub mod client;
mod commands;
mod decode;
mod endpoint;
mod error;
pub mod fault;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod moref;
mod power;
mod preflight;
pub mod privileges;
mod property;
mod reading;
mod relocate;
mod session;
mod settings;
mod soap;
mod survey;
mod task;
#[cfg(test)]
mod tests;
mod text;
mod tls;
mod transport;
pub mod updates;
mod xml;

pub use haulout_core::facts::vsphere as update;

/// What allows a call that changes something: who acts, of which leadership.
pub trait Permit: Sync {
    /// Of which leadership it is; 0 without an election.
    fn epoch(&self) -> u64;
}
