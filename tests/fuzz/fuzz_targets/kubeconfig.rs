//! Any text as a kubeconfig.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| haulout::fuzz::kubeconfig(text));
