//! Any text as the window of a request.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| haulout_core::fuzz::window(text));
