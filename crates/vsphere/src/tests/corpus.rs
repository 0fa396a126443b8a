//! What the fuzz targets read, without a fuzzer: the captures, whole and damaged.

use std::path::Path;

use fastrand::Rng;

use crate::fuzz;

/// What damage writes: what means something to a reader of XML or SOAP.
const TOKENS: &[&str] = &[
    "<",
    ">",
    "/>",
    "</",
    "<a>",
    "&",
    "&amp;",
    "&x;",
    "&#0;",
    "\"",
    "=",
    " ",
    ":",
    "-->",
    "<!--",
    "<![CDATA[",
    "]]>",
    "<?",
    "<!DOCTYPE",
    " xmlns=\"\"",
    " type=\"Task\"",
    " xsi:type=\"x\"",
    "\u{fffd}",
    "-1",
    "99999999999999999999",
    "[",
    "session[",
];

fn captures() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto-notes/captures");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Replaces, removes, repeats or writes over a few stretches of `bytes`.
fn damaged(bytes: &[u8], others: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=rng.usize(..4) {
        let at = rng.usize(..bytes.len() + 1);
        let end = (at + rng.usize(..200)).min(bytes.len());
        match rng.usize(..4) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let stretch = bytes[at..end].to_vec();
                bytes.splice(at..at, stretch);
            }
            2 => {
                let token = TOKENS[rng.usize(..TOKENS.len())];
                bytes.splice(at..end.min(at + token.len()), token.bytes());
            }
            _ => {
                let other = &others[rng.usize(..others.len())];
                let from = rng.usize(..other.len());
                let to = (from + rng.usize(..400)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
        }
    }
    bytes
}

#[test]
fn captures_and_damaged_captures_do_not_panic() {
    let captures = captures();
    assert!(captures.len() > 30, "{} captures", captures.len());
    let mut rng = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    for capture in &captures {
        fuzz::reply(capture);
        fuzz::xml(capture);
        for _ in 0..60 {
            let damaged = damaged(capture, &captures, &mut rng);
            fuzz::reply(&damaged);
            fuzz::xml(&damaged);
        }
    }
}
