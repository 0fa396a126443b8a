//! Lines of `NAME=value` as the settings of the controller.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| haulout::fuzz::settings(text));
