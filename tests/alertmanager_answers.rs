//! An Alertmanager that answers with something else.

use std::alloc::System;

use haulout::telemetry::silences::silences_in;
use serde_json::Value;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Below the limit of an answer.
const ANSWER_BYTES: usize = 8 * 1024 * 1024 - 64;

/// This program has no other test, because all allocations count.
const ALLOCATED_MAX: usize = 100 * 1024 * 1024;

#[test]
fn list_of_other_things_takes_little_memory_beside_its_bytes() {
    for begin in ["[", "[["] {
        let mut body = begin.to_owned();
        while body.len() < ANSWER_BYTES {
            body.push_str("[],");
        }
        body.push_str("[]");
        body.push_str(&"]".repeat(begin.len()));
        // The limit is one that such a list can break.
        let region = Region::new(ALLOCATOR);
        let values: Vec<Value> = serde_json::from_str(&body).unwrap();
        let allocated = region.change().bytes_allocated;
        assert!(allocated > ALLOCATED_MAX, "{allocated} bytes as values");
        drop(values);

        let region = Region::new(ALLOCATOR);
        assert!(silences_in(body.as_bytes()).unwrap().is_empty());
        let allocated = region.change().bytes_allocated;
        assert!(allocated < ALLOCATED_MAX, "{allocated} bytes for {begin}[],");
    }
}
