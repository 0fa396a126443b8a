//! What a sentinel does in one round. Pure.

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

impl KnownRequest {
    fn is_open(&self) -> bool {
        self.progress == RequestProgress::NotBegun
    }
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
pub(super) struct SentinelNote {
    pub(super) text: String,
    /// It is logged as a warning.
    pub(super) needs_person: bool,
}

impl SentinelNote {
    fn info(text: String) -> Self {
        Self {
            text,
            needs_person: false,
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
pub(super) fn decide(facts: &RebootFacts, pause: Duration) -> (SentinelStep, SentinelNote) {
    let name = request_name(&facts.node, &facts.boot);
    let ours = || facts.requests.iter().filter(|request| request.is_ours);
    if let Some(begun) = ours().find(|it| it.progress == RequestProgress::Begun) {
        return rest(format!("NodeMaintenance {} is under way", begun.id.name));
    }
    if let Some(earlier) = ours().find(|it| it.is_open() && it.id.name != name) {
        return delete(earlier, "it is from an earlier boot of the node");
    }
    if let Some(outdated) = outdated(facts) {
        return delete(outdated, "it has ended and is not the latest");
    }
    let own = ours().find(|it| it.id.name == name);
    match &facts.need {
        RebootNeed::Required(reason) => when_required(facts, own, reason, pause),
        RebootNeed::NotRequired => match own.filter(|own| own.is_open()) {
            Some(own) => delete(own, "no reboot is required any more"),
            None => rest("no reboot is required".to_owned()),
        },
        RebootNeed::Unknown(why) => warn(format!(
            "it is unknown whether a reboot is required, and nothing is changed: {why}"
        )),
    }
}

/// What to do where a reboot is required. `own` is the request of this boot.
fn when_required(
    facts: &RebootFacts,
    own: Option<&KnownRequest>,
    reason: &str,
    pause: Duration,
) -> (SentinelStep, SentinelNote) {
    let required = format!("a reboot is required: {reason}");
    let is_other = |it: &&KnownRequest| !it.is_ours && !matches!(it.progress, RequestProgress::Ended { .. });
    if let Some(other) = facts.requests.iter().find(is_other) {
        if let Some(own) = own.filter(|own| own.is_open()) {
            return delete(own, "a request that is not from a sentinel comes first");
        }
        let other = &other.id.name;
        return rest(format!(
            "{required}; it is asked for when NodeMaintenance {other}, which is not from a sentinel, is over"
        ));
    }
    if let Some(own) = own {
        let name = &own.id.name;
        return match own.progress {
            RequestProgress::NotBegun | RequestProgress::Begun => rest(format!(
                "{required}; NodeMaintenance {name} asks for it and has not begun"
            )),
            RequestProgress::Ended { succeeded: true, .. } => rest(format!(
                "NodeMaintenance {name} has succeeded, and the Node has not reported its new boot"
            )),
            RequestProgress::Ended { succeeded: false, .. } => warn(format!(
                "NodeMaintenance {name} has not succeeded; it is asked for again on the next boot, or when that object is deleted"
            )),
        };
    }
    if let Some((latest, until)) = too_soon(facts, pause) {
        return warn(format!(
            "{required}; after the reboot for NodeMaintenance {latest}, it is not asked for before {until:.0}. If that reboot \
             did not remove the reason, remove it by hand"
        ));
    }
    let name = request_name(&facts.node, &facts.boot);
    let text = format!("{required}; creating NodeMaintenance {name}");
    let reason = reason.to_owned();
    (SentinelStep::Ask { name, reason }, SentinelNote::info(text))
}

fn rest(text: String) -> (SentinelStep, SentinelNote) {
    (SentinelStep::Rest, SentinelNote::info(text))
}

/// Nothing is done before a person acts, or some time has passed.
fn warn(text: String) -> (SentinelStep, SentinelNote) {
    let needs_person = true;
    (SentinelStep::Rest, SentinelNote { text, needs_person })
}

fn delete(request: &KnownRequest, why: &str) -> (SentinelStep, SentinelNote) {
    let text = format!("deleting NodeMaintenance {}: {why}", request.id.name);
    (SentinelStep::Delete(request.id.clone()), SentinelNote::info(text))
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
fn too_soon(facts: &RebootFacts, pause: Duration) -> Option<(&str, Timestamp)> {
    let (request, at) = latest_success(facts)?;
    let pause = SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX);
    let until = at.checked_add(pause).unwrap_or(Timestamp::MAX);
    (facts.now < until).then_some((request.id.name.as_str(), until))
}

#[cfg(test)]
mod tests;
