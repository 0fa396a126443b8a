//! All the vSphere that Haulout speaks: SOAP, one session, the update stream, power and relocate.

pub mod fault;
pub mod update;
