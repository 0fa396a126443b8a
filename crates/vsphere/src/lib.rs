//! All the vSphere that Haulout speaks: SOAP, one session, the update stream, power and relocate.
//!
//! Where do I …
//! - … start something in vCenter? [`client::Vcenter`]: power, shutdown, relocate, and the survey of devices.
//! - … hear what happens? [`updates::run`], which tells [`update::Update`]s.
//! - … learn what a refusal asks of me? [`fault::Fault::retry`].
//! - … change how bytes are read or written? [`xml`], then [`soap`] and [`property`] above it, [`decode`] on top.
//!
//! What is known of the wire, with captures, is in `proto-notes/`.

pub mod client;
mod commands;
pub mod decode;
pub mod endpoint;
pub mod error;
pub mod fault;
pub mod look;
pub mod power;
pub mod privileges;
pub mod property;
mod reading;
pub mod relocate;
pub mod session;
pub mod settings;
pub mod soap;
pub mod survey;
pub mod task;
pub mod text;
pub mod tls;
pub mod transport;
pub mod updates;
pub mod xml;

pub use haulout_core::facts::vsphere as update;

/// What allows a call that changes something: who acts, of which leadership.
pub trait Permit: Sync {
    /// Of which leadership it is; 0 without an election.
    fn epoch(&self) -> u64;
}
