//! Replies that no honest server sends: cut, empty, or of another request. A broken proxy or a hostile server may send them.

use std::collections::BTreeMap;

use crate::world::{Peer, World};

/// The latest reply of each peer that was garbled: the kind of its request, and what it was.
#[derive(Debug, Default)]
pub struct GarbledReplies {
    latest: BTreeMap<Peer, (String, String)>,
}

impl World {
    /// What arrives instead of the reply `body` to a request of this kind.
    pub(crate) fn garbled(&mut self, peer: Peer, kind: &str, mut body: String) -> String {
        let mine = (kind.to_owned(), body.clone());
        let latest = self.garbled.latest.insert(peer, mine);
        // Nothing tells apart two replies to requests of one kind.
        let of_another = latest.filter(|(other, _)| other != kind).map(|(_, body)| body);
        match (self.rng.u32(0..3), of_another) {
            (0, _) => String::new(),
            (1, Some(other)) => other,
            _ => {
                let at = self.rng.usize(0..=body.len());
                body.truncate(body.floor_char_boundary(at));
                body
            }
        }
    }
}
