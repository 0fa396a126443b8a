//! The data of the episode page and of lists of episodes, a pure function of state and time.

use std::collections::BTreeMap;
use std::fmt::Display;

use jiff::{SignedDuration, Timestamp};

use super::{
    EndLook, EpisodePage, EpisodeRow, LabelledFact, ShownState, Timeline, TimelineRow, TimelineSpan, View,
};
use haulout_core::ids::{EpisodeId, NodeName};
use haulout_core::maintenance::episode::Episode;
use haulout_core::status::{EpisodeHistory, EpisodeOutcome, EpisodeStep, NodeEntry, PhaseKind};
use haulout_kubernetes::update::NodeMaintenanceFacts;

/// The longest list of pods.
pub(super) const PODS: usize = 50;

impl View<'_> {
    /// `None` for an unknown episode.
    pub(in crate::status) fn episode(self, id: &str) -> Option<EpisodePage> {
        let View { settings, now, .. } = self;
        let id = EpisodeId::new(id);
        let seen = self.board.nodes.iter().find_map(|(name, entry)| {
            let latest = entry.latest.as_ref().filter(|latest| latest.episode.id == id)?;
            Some((name, entry, latest))
        });
        let object = self.object(id.as_str());
        let row = match seen {
            Some((name, entry, latest)) => row_of_seen(name, entry, latest),
            None => object.and_then(row_of_object)?,
        };
        let latest = seen.map(|(_, _, latest)| latest);
        let phases = phases(latest, object);
        let is_running = row.ended_at.is_none();
        let from = row
            .started_at
            .or_else(|| phases.first().map(|span| span.from))
            .unwrap_or(now);
        let waited: Vec<TimelineSpan> = latest.map_or_else(Vec::new, |latest| {
            let waits = latest.waits.iter();
            waits
                .map(|span| TimelineSpan::of(*span, span.kind.words(), ShownState::Waiting))
                .collect()
        });
        let timeline = Timeline {
            from,
            to: row.ended_at.unwrap_or(now).max(from),
            rows: rows(&phases, &waited),
        };
        let running = seen.filter(|_| is_running);
        let entry = running.map(|(_, entry, _)| entry);
        let trace = latest.map(|latest| latest.episode.trace_id().to_owned());
        let written_url = || object?.status.trace_url.clone().filter(|url| is_web(url));
        Some(EpisodePage {
            frame: self.frame(),
            is_running,
            trace_id: trace
                .or_else(|| object?.status.trace_id.clone())
                .unwrap_or_default(),
            trace_url: latest
                .and_then(|latest| settings.links.to(&latest.episode))
                .or_else(written_url),
            facts: match latest {
                Some(latest) => episode_facts(&latest.episode),
                None => object.map(object_facts).unwrap_or_default(),
            },
            waits_for: running.and_then(|(name, entry, _)| self.waits(name, entry)),
            phases,
            timeline,
            pods: entry.and_then(|entry| self.pods_of(entry)),
            steps: latest.map(newest_first).unwrap_or_default(),
            row,
        })
    }

    /// Active episodes first, then by start, newest first.
    pub(super) fn episodes(self) -> Vec<EpisodeRow> {
        let written = self.history.iter().filter_map(row_of_object);
        let mut rows: BTreeMap<String, EpisodeRow> = written.map(|row| (row.id.clone(), row)).collect();
        for (name, entry) in &self.board.nodes {
            if let Some(latest) = &entry.latest {
                let row = row_of_seen(name, entry, latest);
                rows.insert(row.id.clone(), row);
            }
        }
        let mut rows: Vec<EpisodeRow> = rows.into_values().collect();
        rows.sort_by_key(|row| (row.ended_at.is_some(), std::cmp::Reverse(row.started_at)));
        rows
    }
}

/// Anybody may write the status of an object, so only web addresses become links.
fn is_web(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("http://")
}

/// The steps of an episode.
pub(super) fn newest_first(latest: &EpisodeHistory) -> Vec<EpisodeStep> {
    latest.steps.iter().rev().cloned().collect()
}

fn row_of_seen(name: &NodeName, entry: &NodeEntry, latest: &EpisodeHistory) -> EpisodeRow {
    let episode = &latest.episode;
    let ended = entry.result_of(&episode.id);
    let gone = entry.gone_episode().filter(|(id, _)| **id == episode.id);
    let ended_at = ended.map(|(_, at)| at).or(gone.map(|(_, at)| at));
    let outcome = EpisodeOutcome::from(ended.map(|(how, _)| how));
    EpisodeRow {
        id: episode.id.to_string(),
        node: name.to_string(),
        host: Some(episode.host.name.to_string()),
        started_at: Some(episode.begun_at),
        ended_at,
        result: ended_at
            .map_or(episode.phase.name(), |_| outcome.name())
            .to_owned(),
        words: ended_at
            .map_or(episode.phase.kind().words(), |_| result_words(outcome))
            .to_owned(),
        end: ended_at.map(|_| end_look(outcome)),
    }
}

fn row_of_object(object: &NodeMaintenanceFacts) -> Option<EpisodeRow> {
    let status = &object.status;
    let ended_at = status.ended_at.as_deref().and_then(time);
    let result = status.result.as_deref().filter(|_| ended_at.is_some());
    let outcome = result.and_then(|result| result.parse::<EpisodeOutcome>().ok());
    let state = status.state.as_deref().unwrap_or_default();
    let words = match (outcome, result, state.parse::<PhaseKind>()) {
        (Some(outcome), _, _) => result_words(outcome),
        (None, Some(result), _) => result,
        (None, None, Ok(phase)) => phase.words(),
        (None, None, Err(_)) => state,
    }
    .to_owned();
    Some(EpisodeRow {
        id: status.episode.clone()?,
        node: object.node.to_string(),
        host: status.host.clone(),
        started_at: status.started_at.as_deref().and_then(time),
        ended_at,
        result: result.unwrap_or(state).to_owned(),
        words,
        end: ended_at.map(|_| outcome.map_or(EndLook::Neutral, end_look)),
    })
}

fn result_words(outcome: EpisodeOutcome) -> &'static str {
    match outcome {
        EpisodeOutcome::Succeeded => "succeeded",
        EpisodeOutcome::Failed => "failed",
        EpisodeOutcome::Cancelled => "cancelled",
        EpisodeOutcome::NotSeen => "ended unseen",
    }
}

fn end_look(outcome: EpisodeOutcome) -> EndLook {
    match outcome {
        EpisodeOutcome::Succeeded => EndLook::Good,
        EpisodeOutcome::Failed => EndLook::Bad,
        EpisodeOutcome::Cancelled | EpisodeOutcome::NotSeen => EndLook::Neutral,
    }
}

pub(super) fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// The phases that the record has, after the earlier ones from the object.
pub(super) fn phases(
    latest: Option<&EpisodeHistory>,
    object: Option<&NodeMaintenanceFacts>,
) -> Vec<TimelineSpan> {
    let seen = latest.map_or_else(Vec::new, |latest| latest.episode.phase_spans());
    let seen = seen.into_iter();
    let seen = seen.map(|span| TimelineSpan::of(span, span.kind.words(), ShownState::Phase(span.kind)));
    let written = object.into_iter().flat_map(|object| &object.status.phases);
    let written = written.filter_map(|phase| {
        let kind: PhaseKind = phase.phase.parse().ok()?;
        Some(TimelineSpan {
            state: ShownState::Phase(kind),
            label: kind.words().to_owned(),
            from: time(&phase.started_at)?,
            to: phase.ended_at.as_deref().and_then(time),
        })
    });
    let Some(first) = seen.clone().next() else {
        return written.collect();
    };
    // Objects have a resolution of milliseconds.
    let is_older = |span: &TimelineSpan| span.from.as_millisecond() < first.from.as_millisecond();
    let mut all: Vec<TimelineSpan> = written.filter(is_older).collect();
    if let Some(last) = all.last_mut() {
        last.to = Some(last.to.unwrap_or(first.from).min(first.from));
    }
    all.extend(seen);
    all
}

/// The shortest wait in a picture.
const SHORTEST_WAIT: SignedDuration = SignedDuration::from_millis(100);

/// One row for each phase, followed by one for each wait in it.
fn rows(phases: &[TimelineSpan], waits: &[TimelineSpan]) -> Vec<TimelineRow> {
    let mut rows: Vec<TimelineRow> = Vec::new();
    // Waits of some milliseconds say nothing.
    let lasted = |wait: &&TimelineSpan| {
        wait.to
            .is_none_or(|ended| ended.duration_since(wait.from) >= SHORTEST_WAIT)
    };
    let mut add = |name: String, span: &TimelineSpan| match rows.iter_mut().find(|row| row.name == name) {
        Some(row) => row.spans.push(span.clone()),
        None => rows.push(TimelineRow {
            name,
            spans: vec![span.clone()],
        }),
    };
    for phase in phases {
        add(phase.label.clone(), phase);
        let is_meanwhile =
            |wait: &&TimelineSpan| wait.from >= phase.from && phase.to.is_none_or(|ended| wait.from < ended);
        for wait in waits.iter().filter(is_meanwhile).filter(lasted) {
            add(format!("\u{21b3} waits for {}", wait.label), wait);
        }
    }
    rows
}

pub(super) fn episode_facts(episode: &Episode) -> Vec<LabelledFact> {
    let optional =
        |name, value: Option<&dyn Display>| value.map(|value| LabelledFact::new(name, value.to_string()));
    let left_behind: Vec<&str> = episode
        .left_behind
        .iter()
        .take(PODS)
        .map(String::as_str)
        .collect();
    let left_behind = left_behind.join(", ");
    let parked = episode.phase.parked();
    [
        Some(LabelledFact::new("Trigger", episode.trigger_sentence())),
        optional("Moving to", episode.phase.target().map(|to| to as _)),
        optional("Moved to", episode.moved_to.as_ref().map(|to| to as _)),
        optional("Gave up", episode.relocation_failure.as_ref().map(|why| why as _)),
        optional(
            "Accepted with",
            episode.accepted_gpus.as_ref().map(|fewer| fewer as _),
        ),
        optional(
            "Pods left behind",
            Some(&left_behind as _).filter(|_| !left_behind.is_empty()),
        ),
        optional("Parked", parked.as_ref().map(|(reason, _)| *reason as _)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn object_facts(object: &NodeMaintenanceFacts) -> Vec<LabelledFact> {
    let status = &object.status;
    let moved = status
        .target
        .as_ref()
        .map(|target| LabelledFact::new("Moved to", target));
    let error = status
        .last_error
        .as_ref()
        .map(|error| LabelledFact::new("Last error", error));
    moved.into_iter().chain(error).collect()
}
