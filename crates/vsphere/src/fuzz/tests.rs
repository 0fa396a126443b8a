//! The seeds of `stream` and `name`, whole and cut. `crates/vsphere/src/tests/corpus.rs` damages captures for the other entries.

use std::path::Path;

use haulout_core::fuzz::outdated_seeds;

use super::*;

/// Captures that follow one another in a stream; `-` is the beginning of a re-read.
const STREAMS: &[(&str, &[&str])] = &[
    (
        "enter-and-cancel",
        &[
            "hosts-first-set",
            "entering",
            "entering-cancelled",
            "wait-cancelled",
        ],
    ),
    (
        "reread",
        &["hosts-first-set", "-", "entering", "survey", "entering-cancelled"],
    ),
    (
        "reread-after-outage",
        &[
            "-",
            "page-with-token",
            "hosts-truncated",
            "-",
            "survey",
            "task-power-off",
        ],
    ),
    (
        "tasks",
        &[
            "vm-dynamic",
            "task-power-off",
            "task-power-on-drs",
            "task-relocate",
            "-",
            "task-relocate",
        ],
    ),
    (
        "objects-vanish",
        &[
            "vm-static",
            "vm-unknown",
            "dead-session-wait",
            "object-not-found",
            "dead-session-read",
        ],
    ),
    (
        "clusters",
        &["cluster", "hosts-first-set", "-", "cluster", "survey"],
    ),
];

/// Names as vCenter has them, and such as it must not have.
const NAMES: &[(&str, &str)] = &[
    ("vm", "gpu%2fnode %25 1"),
    ("session", "session[52a0]52b1 of session[] and session["),
    ("terminal", "gpu\u{1b}[2J\u{202e}-1\nx"),
    ("moref", "VirtualMachine\nvm-71 & <\"'>"),
];

fn folder(of: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(of)
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let capture = |name: &&str| match *name {
        "-" => Vec::new(),
        name => std::fs::read(folder(&format!("../../proto-notes/captures/{name}.xml"))).unwrap(),
    };
    let streams = STREAMS.iter().map(|(name, parts)| {
        let parts: Vec<Vec<u8>> = parts.iter().map(capture).collect();
        (format!("stream/{name}.bin"), parts.join(&RECORD_SEPARATOR))
    });
    let names = NAMES
        .iter()
        .map(|(name, text)| (format!("name/{name}.txt"), text.as_bytes().to_vec()));
    streams.chain(names).collect()
}

#[test]
fn seeds_are_handled_and_the_fuzzer_has_them() {
    assert_eq!(
        outdated_seeds(&folder("fuzz/seeds"), &seeds()).unwrap(),
        [] as [&str; 0],
        "not current: HAULOUT_WRITE_REFERENCE=1 cargo test -p haulout-vsphere fuzz"
    );
    for (_, bytes) in seeds() {
        stream(&bytes);
        name(&String::from_utf8_lossy(&bytes));
    }
}

/// Each order of the captures is a stream, and each beginning of a seed is a name.
#[test]
fn captures_in_any_order_are_handled() {
    let seeds = seeds();
    let streams = seeds.iter().filter(|(name, _)| name.starts_with("stream/"));
    let parts: Vec<&[u8]> = streams
        .flat_map(|(_, bytes)| bytes.split(|byte| *byte == RECORD_SEPARATOR))
        .collect();
    for (first, one) in parts.iter().enumerate() {
        for two in &parts {
            let third = parts[(first * 7 + two.len()) % parts.len()];
            stream(&[*one, *two, &[], third, *one].join(&RECORD_SEPARATOR));
        }
    }
    for (_, bytes) in &seeds {
        let text = String::from_utf8_lossy(bytes);
        let ends = (0..text.len().min(300)).filter(|end| text.is_char_boundary(*end));
        ends.for_each(|end| name(&text[..end]));
    }
}
