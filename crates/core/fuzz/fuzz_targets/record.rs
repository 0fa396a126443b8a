//! Any text as the episode of a Node: it is read, decided from, and written.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|json: &str| haulout_core::fuzz::record(json));
