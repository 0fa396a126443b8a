//! The annotation of the last ended episode, which stays on the Node until the next one begins.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::validate::{host_is_sound, requested, time_is_sound};
use super::{unversioned, versioned};
use crate::ids::{EpisodeId, is_traceparent_of};
use crate::maintenance::episode::{Episode, EpisodeResult, HostIdentity, InFlight, Record};

/// An episode that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastEpisode {
    /// Its result; `None` if another episode replaced it.
    pub ended: Option<EpisodeResult>,
    /// When it ended.
    pub at: Timestamp,
    pub episode: EndedEpisode,
}

/// The part of an ended episode that later decisions and traces need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndedEpisode {
    pub id: EpisodeId,
    /// The W3C traceparent of its root span: the next episode on the same host links to it.
    pub traceparent: Arc<str>,
    /// When it began.
    pub begun_at: Timestamp,
    /// When its last phase began.
    pub since: Timestamp,
    /// The host whose maintenance it handled.
    pub host: HostIdentity,
    /// The requests to vCenter that may still take effect.
    #[serde(default, skip_serializing_if = "InFlight::is_empty")]
    pub in_flight: InFlight,
}

impl LastEpisode {
    /// The ended episode of a change from `before` to `after` at `at`; `None` if none ended.
    pub fn of(before: &Record, after: &Record, ended: Option<EpisodeResult>, at: Timestamp) -> Option<Self> {
        let episode = before.episode()?;
        let goes_on = after.episode().is_some_and(|next| next.id == episode.id);
        (!goes_on).then(|| Self {
            ended,
            at,
            episode: EndedEpisode::of(episode),
        })
    }
}

impl EndedEpisode {
    /// The relevant part of `episode`.
    pub fn of(episode: &Episode) -> Self {
        Self {
            id: episode.id.clone(),
            traceparent: episode.traceparent.clone(),
            begun_at: episode.begun_at,
            since: episode.since,
            host: episode.host.clone(),
            in_flight: episode.in_flight,
        }
    }

    /// Whether its values are valid.
    fn is_sound(&self) -> bool {
        let own = [("of the beginning", self.begun_at), ("of the phase", self.since)];
        let mut times = own.into_iter().chain(requested(&self.in_flight));
        host_is_sound(&self.host).is_ok()
            && is_traceparent_of(&self.traceparent, &self.id)
            && times.all(|(what, at)| time_is_sound(what, at).is_ok())
    }
}

/// Renders the annotation.
pub fn write_last(last: &LastEpisode) -> String {
    versioned(last)
}

/// Reads the annotation; `None` if it is invalid.
pub fn read_last(json: &str) -> Option<LastEpisode> {
    let last = LastEpisode::deserialize(unversioned(json).ok()?).ok()?;
    last.episode.is_sound().then_some(last)
}
