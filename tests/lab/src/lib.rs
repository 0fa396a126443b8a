//! The real parts Haulout is tested against.
pub mod vcenter;
