//! What a sentinel does in one round. Pure.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};

use crate::ids::{BootId, NAME_BYTES_MAX, NodeName, RequestUid};

/// The number of digits at the end of a request's name.
const NAME_DIGITS: usize = 12;

/// What is between the name of the Node and the digits.
const NAME_INFIX: &str = "-reboot-";

/// Whether the node has to be rebooted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RebootNeed {
    Required(String),
    NotRequired,
    /// It cannot be found out. Nothing is changed.
    Unknown(String),
}

/// What is known in one round.
#[derive(Clone, Debug)]
pub(super) struct RebootFacts {
    pub(super) now: Timestamp,
    pub(super) node: NodeName,
    pub(super) boot: BootId,
    pub(super) need: RebootNeed,
    /// All requests for the node.
    pub(super) requests: Vec<KnownRequest>,
}

/// A request for the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownRequest {
    pub(super) id: StoredRequestId,
    /// A sentinel has created it.
    pub(super) is_ours: bool,
    pub(super) progress: RequestProgress,
}

/// The version of an object that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredRequestId {
    pub(super) name: String,
    pub(super) uid: RequestUid,
    pub(super) version: String,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestProgress {
    /// Nothing was done to the node for it.
    NotBegun,
    Begun,
    Ended {
        at: Timestamp,
        succeeded: bool,
    },
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SentinelStep {
    /// Create the request of this boot.
    Ask {
        name: String,
        reason: String,
    },
    Delete(StoredRequestId),
    Rest,
}

/// What is logged when it differs from the round before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SentinelState {
    NotRequired,
    Unknown {
        why: String,
    },
    Asks {
        request: String,
        reason: String,
    },
    Waits {
        request: String,
        reason: String,
    },
    UnderWay {
        request: String,
    },
    Answered {
        request: String,
        succeeded: bool,
    },
    TooSoon {
        request: String,
        until: Timestamp,
        reason: String,
    },
    GivesWay {
        request: String,
        reason: String,
    },
    Withdraws {
        request: String,
        why: &'static str,
    },
    Forgets {
        request: String,
    },
}

impl SentinelState {
    /// Whether it is logged as a warning.
    pub(super) fn needs_person(&self) -> bool {
        match self {
            Self::Unknown { .. } | Self::TooSoon { .. } | Self::Answered { succeeded: false, .. } => true,
            Self::NotRequired
            | Self::Asks { .. }
            | Self::Waits { .. }
            | Self::UnderWay { .. }
            | Self::Answered { succeeded: true, .. }
            | Self::GivesWay { .. }
            | Self::Withdraws { .. }
            | Self::Forgets { .. } => false,
        }
    }
}

impl fmt::Display for SentinelState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRequired => f.write_str("no reboot is required"),
            Self::Unknown { why } => write!(
                f,
                "it is unknown whether a reboot is required, and nothing is changed: {why}"
            ),
            Self::Asks { request, reason } => {
                write!(
                    f,
                    "a reboot is required: {reason}; creating NodeMaintenance {request}"
                )
            }
            Self::Waits { request, reason } => write!(
                f,
                "a reboot is required: {reason}; NodeMaintenance {request} asks for it and has not begun"
            ),
            Self::UnderWay { request } => write!(f, "NodeMaintenance {request} is under way"),
            Self::Answered {
                request,
                succeeded: true,
            } => write!(
                f,
                "NodeMaintenance {request} has succeeded, and the Node has not reported its new boot"
            ),
            Self::Answered {
                request,
                succeeded: false,
            } => write!(
                f,
                "NodeMaintenance {request} has not succeeded; it is asked for again on the next boot, or when that object is \
                 deleted"
            ),
            Self::TooSoon {
                request,
                until,
                reason,
            } => write!(
                f,
                "a reboot is required: {reason}; after the reboot for NodeMaintenance {request}, it is not asked for before \
                 {until:.0}. If that reboot did not remove the reason, remove it by hand"
            ),
            Self::GivesWay { request, reason } => write!(
                f,
                "a reboot is required: {reason}; it is asked for when NodeMaintenance {request}, which is not from a sentinel, \
                 is over"
            ),
            Self::Withdraws { request, why } => write!(f, "deleting NodeMaintenance {request}: {why}"),
            Self::Forgets { request } => write!(
                f,
                "deleting NodeMaintenance {request}, which has ended and is not the latest"
            ),
        }
    }
}

pub(super) fn request_name(node: &NodeName, boot: &BootId) -> String {
    let digest = Sha256::digest(format!("{node}\n{}", boot.as_str()));
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let room = NAME_BYTES_MAX - NAME_INFIX.len() - NAME_DIGITS;
    let shown = node.as_str().get(..room).unwrap_or(node.as_str());
    let digits = digits.get(..NAME_DIGITS).unwrap_or_default();
    format!("{}{NAME_INFIX}{digits}", shown.trim_end_matches(['.', '-']))
}

/// What to do, and what is logged. `pause` is the shortest time between two reboots.
pub(super) fn decide(facts: &RebootFacts, pause: Duration) -> (SentinelStep, SentinelState) {
    let name = request_name(&facts.node, &facts.boot);
    let ours = || facts.requests.iter().filter(|request| request.is_ours);
    if let Some(begun) = ours().find(|it| it.progress == RequestProgress::Begun) {
        let request = begun.id.name.clone();
        return (SentinelStep::Rest, SentinelState::UnderWay { request });
    }
    let is_open = |it: &&KnownRequest| it.progress == RequestProgress::NotBegun;
    if let Some(earlier) = ours().filter(is_open).find(|it| it.id.name != name) {
        return withdraw(earlier, "it is from an earlier boot of the node");
    }
    if let Some(outdated) = outdated(facts) {
        let request = outdated.id.name.clone();
        let step = SentinelStep::Delete(outdated.id.clone());
        return (step, SentinelState::Forgets { request });
    }
    let own = ours().find(|it| it.id.name == name);
    let reason = match &facts.need {
        RebootNeed::Required(reason) => reason.clone(),
        RebootNeed::NotRequired => {
            return match own.filter(is_open) {
                Some(own) => withdraw(own, "no reboot is required any more"),
                None => (SentinelStep::Rest, SentinelState::NotRequired),
            };
        }
        RebootNeed::Unknown(why) => {
            let why = why.clone();
            return (SentinelStep::Rest, SentinelState::Unknown { why });
        }
    };
    let is_other = |it: &&KnownRequest| !it.is_ours && !matches!(it.progress, RequestProgress::Ended { .. });
    if let Some(other) = facts.requests.iter().find(is_other) {
        if let Some(own) = own.filter(is_open) {
            return withdraw(own, "a request that is not from a sentinel comes first");
        }
        let request = other.id.name.clone();
        return (SentinelStep::Rest, SentinelState::GivesWay { request, reason });
    }
    if let Some(own) = own {
        let request = own.id.name.clone();
        let state = match own.progress {
            RequestProgress::NotBegun | RequestProgress::Begun => SentinelState::Waits { request, reason },
            RequestProgress::Ended { succeeded, .. } => SentinelState::Answered { request, succeeded },
        };
        return (SentinelStep::Rest, state);
    }
    if let Some((request, until)) = too_soon(facts, pause) {
        let state = SentinelState::TooSoon {
            request,
            until,
            reason,
        };
        return (SentinelStep::Rest, state);
    }
    let state = SentinelState::Asks {
        request: name.clone(),
        reason: reason.clone(),
    };
    (SentinelStep::Ask { name, reason }, state)
}

fn withdraw(request: &KnownRequest, why: &'static str) -> (SentinelStep, SentinelState) {
    let state = SentinelState::Withdraws {
        request: request.id.name.clone(),
        why,
    };
    (SentinelStep::Delete(request.id.clone()), state)
}

/// The requests of sentinels that have ended, with their ends.
fn ended(facts: &RebootFacts) -> impl Iterator<Item = (&KnownRequest, Timestamp, bool)> {
    facts.requests.iter().filter_map(|it| match it.progress {
        RequestProgress::Ended { at, succeeded } if it.is_ours => Some((it, at, succeeded)),
        RequestProgress::Ended { .. } | RequestProgress::NotBegun | RequestProgress::Begun => None,
    })
}

/// An ended request that is not needed: neither that of this boot, nor the latest that has succeeded.
fn outdated(facts: &RebootFacts) -> Option<&KnownRequest> {
    let name = request_name(&facts.node, &facts.boot);
    let latest = latest_success(facts).map(|(request, _)| &request.id.name);
    let mut all = ended(facts).map(|(request, _, _)| request);
    all.find(|it| it.id.name != name && Some(&it.id.name) != latest)
}

fn latest_success(facts: &RebootFacts) -> Option<(&KnownRequest, Timestamp)> {
    let succeeded = ended(facts).filter(|(_, _, succeeded)| *succeeded);
    let times = succeeded.map(|(request, at, _)| (request, at));
    times.max_by_key(|(request, at)| (*at, request.id.name.clone()))
}

/// The latest reboot for a sentinel, and when the pause after it ends, if that is in the future.
fn too_soon(facts: &RebootFacts, pause: Duration) -> Option<(String, Timestamp)> {
    let (request, at) = latest_success(facts)?;
    let pause = SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX);
    let until = at.checked_add(pause).unwrap_or(Timestamp::MAX);
    (facts.now < until).then(|| (request.id.name.clone(), until))
}

#[cfg(test)]
mod tests;
