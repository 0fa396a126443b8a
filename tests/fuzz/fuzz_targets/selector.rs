//! Any text as a label selector and as other short settings.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| haulout::fuzz::selector(text));
