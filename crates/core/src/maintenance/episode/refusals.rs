//! The hosts that refused the VM of an episode.

use serde::{Deserialize, Serialize};

use super::Episode;
use crate::ids::HostRef;

/// The maximum number of recorded refusals. With that many, the VM waits for its own host instead of trying all of a cluster's up to
/// 96 hosts.
pub const MAX_REFUSALS: usize = 32;

/// The maximum length of a recorded message, in characters.
const MAX_MESSAGE: usize = 160;

/// A host that refused a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostRefusal {
    pub host: HostRef,
    pub what: RefusedMove,
    /// The fault.
    #[serde(rename = "said")]
    pub message: String,
}

/// An operation that a host may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefusedMove {
    /// A relocation of the VM to it.
    Relocate,
    PowerOn,
}

impl Episode {
    /// Records that `host` refused the VM, once per operation.
    pub fn refused(&mut self, host: &HostRef, what: RefusedMove, message: &str) {
        let is_known = |it: &HostRefusal| it.host == *host && it.what == what;
        if self.refusals.iter().any(is_known) || self.refusals.len() >= MAX_REFUSALS {
            return;
        }
        self.refusals.push(HostRefusal {
            host: host.clone(),
            what,
            message: message.chars().take(MAX_MESSAGE).collect(),
        });
    }

    /// Whether `host` refused this operation.
    pub fn has_refused(&self, host: &HostRef, what: RefusedMove) -> bool {
        self.refusals
            .iter()
            .any(|refusal| refusal.host == *host && refusal.what == what)
    }
}
