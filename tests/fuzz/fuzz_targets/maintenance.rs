//! Any bytes as a NodeMaintenance object.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|json: &[u8]| haulout::fuzz::maintenance(json));
