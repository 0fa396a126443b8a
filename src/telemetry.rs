//! What Haulout tells of itself. Everything here renders what actors tell; nothing here decides.

pub mod log;
