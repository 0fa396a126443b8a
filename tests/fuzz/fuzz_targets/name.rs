//! Any text as the names and ids of a node, an episode and a boot.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| haulout::fuzz::name(text));
