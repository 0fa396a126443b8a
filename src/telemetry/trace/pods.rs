//! The evictions of a drain, told for each pod as it goes.
//!
//! ```text
//!  evict pod ──────────────────────────────────────────┐
//!  └─ wait pdb (429 … 201) ─┬─ wait termination (… gone)
//! ```
//!
//! Hundreds of pods do not fit into a record, so what is known of them is in this process alone: a pod is told once, when
//! it is gone, and one that was being evicted when the process died is told from its first eviction by the next.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;

use super::spans::attributes::{count, number, text};
use super::spans::{EpisodeSpans, Span, SpanEvent};
use crate::ids::NodeName;
use crate::maintenance::effect_report::{Eviction, EvictionAnswer, EvictionRound};
use crate::maintenance::episode::Episode;

/// The pods of one drain that are told each by a span of its own. The others are told by one span together: a reader
/// looks for the pod that held the drain up, not through a thousand that did not.
pub const PODS: usize = 200;

/// The pods that are counted beyond that, by UID: a node has 110 by default, and a drain that lasts for days meets others.
const COUNTED: usize = 4096;

/// The different messages of a refusing budget that are told of one pod.
const MESSAGES: usize = 10;

/// The longest message that is told.
const MESSAGE_CHARS: usize = 300;

/// The evictions of one drain.
#[derive(Debug)]
pub(super) struct TracedDrain {
    episode: Box<Episode>,
    /// The pods that are asked to leave and not seen gone, by UID.
    pods: BTreeMap<String, TracedPod>,
    /// How many have had a place in `pods`.
    places: usize,
    others: Others,
}

#[derive(Debug)]
struct TracedPod {
    namespace: String,
    name: String,
    grace: Option<i64>,
    asked: Timestamp,
    attempts: u32,
    blocked: Option<Timestamp>,
    budgets: BTreeSet<String>,
    messages: Vec<(Timestamp, String)>,
    accepted: Option<Timestamp>,
}

#[derive(Debug, Default)]
struct Others {
    uids: BTreeSet<String>,
    attempts: u64,
    blocked: u64,
    first: Option<Timestamp>,
}

impl TracedDrain {
    /// The evictions of the drain that `episode` is in.
    pub(super) fn of(episode: &Episode) -> Self {
        Self {
            episode: Box::new(episode.clone()),
            pods: BTreeMap::new(),
            places: 0,
            others: Others::default(),
        }
    }

    /// Whether `episode` is still in this drain.
    pub(super) fn is_that_of(&self, episode: &Episode) -> bool {
        (&self.episode.id, self.episode.since) == (&episode.id, episode.since)
    }

    /// Takes a round in. Gives the spans of the pods that have gone.
    pub(super) fn take(&mut self, node: &NodeName, round: &EvictionRound) -> Vec<Span> {
        for asked in &round.asked {
            self.ask(asked);
        }
        let gone: Vec<String> = self
            .pods
            .keys()
            .filter(|uid| !round.left.contains(*uid))
            .cloned()
            .collect();
        let mut spans = Vec::new();
        for uid in gone {
            if let Some(pod) = self.pods.remove(&uid) {
                self.tell(node, &uid, &pod, round.at, None, &mut spans);
            }
        }
        spans
    }

    /// The drain ended at `end`. Gives the spans of the pods that were left, and of those beyond the limit.
    pub(super) fn end(mut self, node: &NodeName, end: Timestamp) -> Vec<Span> {
        let mut spans = Vec::new();
        for (uid, pod) in std::mem::take(&mut self.pods) {
            self.tell(node, &uid, &pod, end, Some(end), &mut spans);
        }
        let Some(builder) = EpisodeSpans::of(node, &self.episode) else {
            return spans;
        };
        if let Some(first) = self.others.first {
            let mut others = builder.span("evict pods", SpanKind::Internal, (first.min(end), end));
            others.parent = Some(builder.phase_id());
            others.attributes.extend([
                count("haulout.pods.count", self.others.uids.len()),
                number("haulout.evict.attempts", self.others.attempts),
                number("haulout.evict.blocked", self.others.blocked),
            ]);
            spans.push(others);
        }
        spans
    }

    fn ask(&mut self, asked: &Eviction) {
        let is_known = self.pods.contains_key(&asked.uid);
        if !is_known && self.places >= PODS {
            self.others.ask(asked);
            return;
        }
        if !is_known {
            self.places += 1;
        }
        let pod = self.pods.entry(asked.uid.clone()).or_insert_with(|| TracedPod {
            namespace: asked.namespace.clone(),
            name: asked.pod.clone(),
            grace: asked.grace,
            asked: asked.asked_at,
            attempts: 0,
            blocked: None,
            budgets: BTreeSet::new(),
            messages: Vec::new(),
            accepted: None,
        });
        pod.attempts = pod.attempts.saturating_add(1);
        match &asked.answer {
            EvictionAnswer::Accepted => {
                pod.accepted.get_or_insert(asked.answered_at);
            }
            EvictionAnswer::Blocked { budgets, said } => {
                pod.blocked.get_or_insert(asked.answered_at);
                pod.budgets.extend(budgets.iter().take(MESSAGES).cloned());
                let said: String = said.chars().take(MESSAGE_CHARS).collect();
                let is_said = pod.messages.last().is_some_and(|(_, before)| *before == said);
                if !is_said && pod.messages.len() < MESSAGES {
                    pod.messages.push((asked.answered_at, said));
                }
            }
            EvictionAnswer::Refused => {}
        }
    }

    /// `gone` is when the pod was seen gone, or given up in `left`.
    fn tell(
        &self,
        node: &NodeName,
        uid: &str,
        pod: &TracedPod,
        gone: Timestamp,
        left: Option<Timestamp>,
        spans: &mut Vec<Span>,
    ) {
        let Some(builder) = EpisodeSpans::of(node, &self.episode) else {
            return;
        };
        // A pod that goes while its round is still at work is seen gone by that round, which began before.
        let end = gone.max(pod.accepted.unwrap_or(pod.asked));
        let end = left.unwrap_or(end);
        let about = |name, parent, (start, end): (Timestamp, Timestamp)| {
            let mut span = builder.span(name, SpanKind::Internal, (start.min(end), end));
            span.id = builder.id_of(name, uid, start);
            span.parent = Some(parent);
            span.attributes.extend([
                text("k8s.pod.name", &pod.name),
                text("k8s.namespace.name", &pod.namespace),
                text("k8s.pod.uid", uid),
            ]);
            span
        };
        let mut evict = about("evict pod", builder.phase_id(), (pod.asked, end));
        evict
            .attributes
            .push(number("haulout.evict.attempts", pod.attempts.into()));
        if left.is_some() {
            evict.failed = Some("the drain ended before the pod was gone".to_owned());
        }
        let parent = evict.id;
        spans.push(evict);
        if let Some(blocked) = pod.blocked {
            let until = pod.accepted.unwrap_or(end).max(blocked);
            let mut wait = about("wait pdb", parent, (blocked, until.min(end)));
            let budgets: Vec<&str> = pod.budgets.iter().map(String::as_str).collect();
            wait.attributes.push(text("k8s.pdb.name", &budgets.join(", ")));
            wait.moments
                .extend(pod.messages.iter().map(|(at, said)| SpanEvent {
                    at: *at,
                    name: "eviction.blocked",
                    attributes: vec![text("message", said)],
                }));
            spans.push(wait);
        }
        if let Some(accepted) = pod.accepted {
            let mut wait = about("wait termination", parent, (accepted, end));
            let grace = pod
                .grace
                .map(|grace| KeyValue::new("haulout.pod.grace_period_s", grace));
            wait.attributes.extend(grace);
            spans.push(wait);
        }
    }
}

impl Others {
    fn ask(&mut self, asked: &Eviction) {
        self.first.get_or_insert(asked.asked_at);
        self.attempts = self.attempts.saturating_add(1);
        if matches!(asked.answer, EvictionAnswer::Blocked { .. }) {
            self.blocked = self.blocked.saturating_add(1);
        }
        if self.uids.len() < COUNTED {
            self.uids.insert(asked.uid.clone());
        }
    }
}

#[cfg(test)]
mod tests;
