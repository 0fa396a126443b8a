//! A bench.
#![allow(missing_docs)]
fn main() {}
