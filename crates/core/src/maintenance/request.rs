//! Requests for one node.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use super::episode::{Episode, Phase};
use super::policy::DrainTimeoutAction;
pub use super::request_identity::RequestIdentity;
use super::waiting::WaitingOn;
use crate::facts::kubernetes::RequestAction;
use crate::facts::window::{Window, WindowError};
use crate::ids::{EpisodeId, RequestUid};

/// A request: a NodeMaintenance that is not fulfilled yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub identity: RequestIdentity,
    /// The user who created it, where the object says so.
    pub requested_by: Option<String>,
    /// When it was created, on the kube-apiserver's clock. It orders the queue.
    pub asked_at: Timestamp,
    pub action: RequestAction,
    /// Replaces `DRAIN_TIMEOUT_SECONDS` if it is longer.
    pub drain_timeout: Option<Duration>,
    /// Replaces `DRAIN_TIMEOUT_ACTION` if it is `Hold`.
    pub drain_timeout_action: Option<DrainTimeoutAction>,
    /// Replaces `GUEST_SHUTDOWN_TIMEOUT_SECONDS` if it is longer.
    pub guest_shutdown_timeout: Option<Duration>,
    /// When it may begin at the earliest, on the wall clock.
    pub not_before: Option<Timestamp>,
    /// The days and hours in which it may begin. With an invalid window it does not begin.
    pub window: Option<Result<Window, WindowError>>,
}

/// Why a request may not begin now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDue<'a> {
    /// It may begin at this time.
    NotBefore(Timestamp),
    /// Its window opens at this time.
    Window(Timestamp),
    InvalidWindow(&'a WindowError),
}

/// What a person has approved, in `haulout.dev/approved`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approval {
    /// The next drain of this episode.
    Episode(EpisodeId),
    /// The drain for this request, also before it begins. The maintenance of a host is no part of it.
    Request(RequestUid),
}

impl Approval {
    /// Parses an untrusted value: the id of an episode, or the UID of a NodeMaintenance.
    pub fn parse(text: &str) -> Option<Self> {
        let is_uid = || text.len() == 36 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        let episode = EpisodeId::parse(text).map(Self::Episode);
        episode.or_else(|| is_uid().then(|| Self::Request(RequestUid::new(text))))
    }
}

impl fmt::Display for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Episode(id) => write!(f, "the drain of episode {id}"),
            Self::Request(uid) => write!(f, "the drain for the NodeMaintenance with UID {uid}"),
        }
    }
}

impl Request {
    /// Why it may not begin now. One that has begun in `episode` goes on, also if a clock is set back or its window closes.
    pub fn not_due(&self, episode: Option<&Episode>, now: Timestamp) -> Option<NotDue<'_>> {
        let not_before = self.not_before.filter(|at| now < *at);
        match &self.window {
            Some(_) if episode.is_some_and(|episode| self.has_begun_in(episode)) => None,
            Some(Err(why)) => Some(NotDue::InvalidWindow(why)),
            Some(Ok(window)) => {
                let at = window.open_at(not_before.unwrap_or(now));
                (now < at).then_some(NotDue::Window(at))
            }
            None => not_before
                .filter(|_| !episode.is_some_and(|episode| self.is_served_by(episode)))
                .map(NotDue::NotBefore),
        }
    }

    /// What it waits for while it may not begin.
    pub fn awaits(&self, episode: Option<&Episode>, now: Timestamp) -> Option<WaitingOn> {
        let request = self.identity.clone();
        Some(match self.not_due(episode, now)? {
            NotDue::NotBefore(at) => WaitingOn::NotBefore { request, at },
            NotDue::Window(at) => WaitingOn::Window { request, at },
            NotDue::InvalidWindow(why) => WaitingOn::InvalidWindow {
                request,
                why: why.clone(),
            },
        })
    }

    /// Whether `episode` was begun by it, and nothing was done to the node yet.
    pub fn is_queued_in(&self, episode: &Episode) -> bool {
        let begun_by = episode.trigger.request.as_ref();
        *episode.phase.at_work() == Phase::Queued && begun_by.is_some_and(|it| it.uid == self.identity.uid)
    }

    /// When the result of [`Self::not_due`] changes with time.
    pub fn changes_at(&self, episode: Option<&Episode>, now: Timestamp) -> Option<Timestamp> {
        match self.not_due(episode, now) {
            Some(NotDue::NotBefore(at) | NotDue::Window(at)) => Some(at),
            Some(NotDue::InvalidWindow(_)) => None,
            None if episode.is_some_and(|episode| self.has_begun_in(episode)) => None,
            None => self.window.as_ref()?.as_ref().ok()?.closed_at(now),
        }
    }

    /// Whether `episode` was begun or is prolonged by it.
    pub(super) fn is_served_by(&self, episode: &Episode) -> bool {
        let served = [&episode.trigger.request, &episode.power_off_request];
        served.into_iter().flatten().any(|it| it.uid == self.identity.uid)
    }

    /// Whether something was done to the node for it. A queued episode may still wait for a slot when the window closes.
    fn has_begun_in(&self, episode: &Episode) -> bool {
        let phase = episode.phase.at_work();
        // A node that is drained already is kept drained for it, without a record of that.
        let is_kept_drained = || {
            let is_drain = *phase == Phase::Drained && !self.action.needs_power_off();
            is_drain && self.not_due(None, episode.since).is_none()
        };
        *phase != Phase::Queued && (self.is_served_by(episode) || is_kept_drained())
    }

    /// Whether it asks for a relocation to this host.
    pub fn is_met_on(&self, host: &str) -> bool {
        match &self.action {
            RequestAction::Relocate { to: Some(to) } => to == host,
            RequestAction::Relocate { to: None }
            | RequestAction::Drain
            | RequestAction::PowerOff
            | RequestAction::Reboot => false,
        }
    }
}
