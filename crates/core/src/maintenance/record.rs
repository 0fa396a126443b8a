//! Writes and reads the record on the Node: four plain annotations for scripts, and one versioned JSON, which decides.

mod last;
mod validate;

use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::episode::{Episode, Phase, PhaseHistory, PythonEpisode, PythonState, Record};
use crate::facts::kubernetes::NodeAnnotations;
pub use last::{EndedEpisode, LastEpisode, read_last, write_last};

/// The version of the JSON that this program writes, and the only one it reads.
const VERSION: u32 = 1;

/// The longest JSON that is read. Ours has at most 16 KiB; the kube-apiserver allows 256 KiB of annotations, which everybody who may
/// write the Node can use.
const MAX_JSON: usize = 64 * 1024;

/// The maximum number of recorded pods that were left behind.
const MAX_LEFT_BEHIND: usize = 50;

#[derive(Serialize)]
struct WrittenAnnotations<'a, T> {
    version: u32,
    #[serde(flatten)]
    what: &'a T,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Renders `record` as the five annotations of a record; `now` is its transition time. `None` of these means that the annotation has to
/// be removed.
///
/// The four plain annotations have the values of the Python controller, because scripts read them. It has no value for a queued
/// node, which therefore has the JSON only.
pub fn write(record: &Record, now: Timestamp) -> NodeAnnotations {
    let Record::Episode(episode) = record else {
        return NodeAnnotations::default();
    };
    let state = match episode.phase.at_work() {
        Phase::Queued | Phase::Parked { .. } => None,
        Phase::Draining | Phase::Drained | Phase::ShuttingDown(_) => Some("draining"),
        Phase::Relocating { .. } | Phase::AwaitingHost => Some("powered-off"),
        Phase::PoweringOn { .. } | Phase::Rejoining if episode.moved_to.is_some() => Some("migrated"),
        Phase::PoweringOn { .. } | Phase::Rejoining => Some("powered-off"),
    };
    let bounded = bounded(episode);
    NodeAnnotations {
        state: state.map(str::to_owned),
        host: state.map(|_| episode.host.name.to_string()),
        migrated_to_host: episode
            .moved_to
            .as_ref()
            .filter(|_| state == Some("migrated"))
            .map(|host| host.name.to_string()),
        transition_time: state.map(|_| format!("{now:.0}")),
        episode: Some(versioned(&bounded)),
        ..NodeAnnotations::default()
    }
}

/// Whether `python` is what [`write()`] writes for `record` besides the JSON, whenever that was.
pub fn is_written_for(record: &Record, python: &PythonEpisode) -> bool {
    let written = NodeAnnotations {
        episode: None,
        ..write(record, python.since)
    };
    matches!(read_record(&written), Record::Python(written) if written == *python)
}

/// Reads the record of a Node. Never fails: an invalid record is [`Record::Unreadable`] with the reason.
pub fn read_record(annotations: &NodeAnnotations) -> Record {
    let read = match (&annotations.episode, &annotations.state) {
        (Some(json), _) => read_json(json).map(|episode| Record::Episode(Arc::new(episode))),
        (None, Some(state)) => read_python(state, annotations).map(Record::Python),
        (None, None) => Ok(Record::InService),
    };
    read.unwrap_or_else(|why| Record::Unreadable { why })
}

/// Reads the copy of a record. A copy that cannot be read is none.
pub fn read_copy(json: &str) -> Option<Arc<Episode>> {
    read_json(json).ok().map(Arc::new)
}

fn bounded(episode: &Episode) -> Episode {
    let mut bounded = episode.clone();
    bounded.left_behind.truncate(MAX_LEFT_BEHIND);
    bounded
}

/// Serialising these structs cannot fail. If it did, a record with the error is better than none, because the node is then parked.
fn versioned<T: Serialize>(what: &T) -> String {
    let version = VERSION;
    serde_json::to_string(&WrittenAnnotations { version, what })
        .unwrap_or_else(|error| format!("not serialisable: {error}"))
}

/// Parses the JSON, checks its version, and cleans its texts.
fn unversioned(json: &str) -> Result<Value, String> {
    if json.len() > MAX_JSON {
        return Err(format!(
            "the episode is {} bytes long, and none of ours is longer than {MAX_JSON}",
            json.len()
        ));
    }
    let no_json = |error| format!("the episode is no JSON of ours: {error}");
    let mut value: Value = serde_json::from_str(json).map_err(no_json)?;
    let Version { version } = Version::deserialize(&value).map_err(no_json)?;
    if version != VERSION {
        return Err(format!(
            "the episode is of version {version}, and this program reads version {VERSION}"
        ));
    }
    validate::clean(&mut value);
    Ok(value)
}

fn read_json(json: &str) -> Result<Episode, String> {
    let value = unversioned(json)?;
    let not_sound = |why: String| format!("the episode does not read as version {VERSION}: {why}");
    let mut episode = Episode::deserialize(value).map_err(|error| not_sound(error.to_string()))?;
    validate::check(&episode).map_err(not_sound)?;
    // Nothing is decided from the history, so an invalid one is dropped.
    if !validate::is_history(&episode.history) {
        episode.history = PhaseHistory::default();
    }
    Ok(episode)
}

fn read_python(state: &str, annotations: &NodeAnnotations) -> Result<PythonEpisode, String> {
    let state = match state {
        "draining" => PythonState::Draining,
        "powered-off" => PythonState::PoweredOff,
        "migrated" => PythonState::Migrated,
        other => {
            return Err(format!(
                "state is {other:?}, and not draining, powered-off or migrated"
            ));
        }
    };
    let host = annotations.host.clone().ok_or("there is a state but no host")?;
    // A guess could cut power too early, because the drain timeout counts from this time.
    let time = annotations
        .transition_time
        .as_deref()
        .ok_or("there is a state but no transition-time")?;
    let since =
        read_time(time).ok_or_else(|| format!("transition-time is {time:?}, and no ISO 8601 time"))?;
    Ok(PythonEpisode {
        state,
        host,
        migrated_to_host: annotations.migrated_to_host.clone(),
        since,
    })
}

/// Python's `isoformat()` omits the offset of a naive time; those of the controller are UTC.
fn read_time(text: &str) -> Option<Timestamp> {
    text.parse::<Timestamp>().ok().or_else(|| {
        Some(
            text.parse::<DateTime>()
                .ok()?
                .to_zoned(TimeZone::UTC)
                .ok()?
                .timestamp(),
        )
    })
}

#[cfg(test)]
mod tests;
