//! Any bytes as XML: the limits hold, and names are in the namespaces in which `NsReader` finds them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| haulout_vsphere::fuzz::xml(bytes));
