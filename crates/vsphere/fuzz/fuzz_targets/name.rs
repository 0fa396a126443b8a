//! Any text as a name or a managed object reference.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| haulout_vsphere::fuzz::name(text));
