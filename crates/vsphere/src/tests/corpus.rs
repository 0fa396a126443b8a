//! What the fuzz targets read, without a fuzzer: the captures, whole and damaged.

use std::path::Path;

use crate::fuzz;

/// Makes the same numbers in every run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }
}

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
fn damaged(bytes: &[u8], others: &[Vec<u8>], numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(bytes.len() + 1);
        let end = (at + numbers.below(200)).min(bytes.len());
        match numbers.below(4) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let stretch = bytes[at..end].to_vec();
                bytes.splice(at..at, stretch);
            }
            2 => {
                let token = TOKENS[numbers.below(TOKENS.len())];
                bytes.splice(at..end.min(at + token.len()), token.bytes());
            }
            _ => {
                let other = &others[numbers.below(others.len())];
                let from = numbers.below(other.len());
                let to = (from + numbers.below(400)).min(other.len());
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
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for capture in &captures {
        fuzz::reply(capture);
        fuzz::xml(capture);
        for _ in 0..60 {
            let damaged = damaged(capture, &captures, &mut numbers);
            fuzz::reply(&damaged);
            fuzz::xml(&damaged);
        }
    }
}
