//! Any bytes as several replies of the update stream, one after the other.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| haulout_vsphere::fuzz::stream(bytes));
