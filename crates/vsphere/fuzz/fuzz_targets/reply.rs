//! Any bytes as an answer of vCenter: the SOAP envelope, the values in it, and what the property cache makes of them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| haulout_vsphere::fuzz::reply(bytes));
