//! The real parts Haulout is tested against.
