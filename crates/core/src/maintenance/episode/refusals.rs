//! The hosts that refused the VM of an episode.

use serde::{Deserialize, Serialize};

use super::Episode;
use crate::ids::HostRef;

/// The most refusals that are remembered. With that many, the VM is moved to no other host any more and waits for its own, so
/// that a record stays small and an episode does not walk through a whole cluster of 96 hosts.
pub const MAX_REFUSALS: usize = 32;

/// The longest words of a refusal that are kept, in characters, for the same reason.
const MAX_SAID: usize = 160;

/// A host that refused a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostRefusal {
    /// The host.
    pub host: HostRef,
    /// What it refused.
    pub what: RefusedMove,
    /// What vCenter said.
    pub said: String,
}

/// What a host may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefusedMove {
    /// To take the VM.
    Relocate,
    /// To power it on.
    PowerOn,
}

impl Episode {
    /// Notes that `host` refused the VM. Each is noted once for each thing that it can refuse.
    pub fn refused(&mut self, host: &HostRef, what: RefusedMove, said: &str) {
        let is_known = |it: &HostRefusal| it.host == *host && it.what == what;
        if self.refusals.iter().any(is_known) || self.refusals.len() >= MAX_REFUSALS {
            return;
        }
        self.refusals.push(HostRefusal {
            host: host.clone(),
            what,
            said: said.chars().take(MAX_SAID).collect(),
        });
    }

    /// What `host` refused of the VM first, if it did.
    pub fn refusal_of(&self, host: &HostRef) -> Option<&HostRefusal> {
        self.refusals.iter().find(|refusal| refusal.host == *host)
    }
}
