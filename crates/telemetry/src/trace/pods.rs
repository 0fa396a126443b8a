//! The spans of evicted pods.
//!
//! ```text
//!  evict pod ──────────────────────────────────────────┐
//!  └─ wait pdb (429 … 201) ─┬─ wait termination (… gone)
//! ```
//!
//! Hundreds of pods do not fit into a record, so their state is in this process only: the span of a pod
//! is sent when the pod is gone. After a restart it starts at the first eviction by the new process.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;

use super::spans::attributes::{count, number, text};
use super::spans::{EpisodeSpans, Span, SpanEvent};
use haulout_core::ids::NodeName;
use haulout_core::maintenance::effect_report::{Eviction, EvictionAnswer, EvictionRound};
use haulout_core::maintenance::episode::Episode;

/// Pods of a drain with a span of their own; the others share one span. A reader looks for the pod that
/// held up the drain.
pub(super) const PODS: usize = 200;

/// Limit of further pods that are counted by UID: a node has 110 by default, but a drain of days sees
/// more.
const MAX_COUNTED: usize = 4096;

/// Messages of a budget per pod.
const MESSAGES: usize = 10;

/// Length limit of a message.
const MESSAGE_CHARS: usize = 300;

/// The evictions of one drain.
#[derive(Debug)]
pub(super) struct TracedDrain {
    episode: Box<Episode>,
    /// The pods with an eviction request that are not gone yet, by UID.
    pods: BTreeMap<String, TracedPod>,
    /// Number of pods that ever were in `pods`.
    with_span: usize,
    shared: SharedPods,
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
struct SharedPods {
    uids: BTreeSet<String>,
    attempts: u64,
    blocked: u64,
    first: Option<Timestamp>,
}

impl TracedDrain {
    pub(super) fn of(episode: &Episode) -> Self {
        Self {
            episode: Box::new(episode.clone()),
            pods: BTreeMap::new(),
            with_span: 0,
            shared: SharedPods::default(),
        }
    }

    /// Whether `episode` is still in this drain.
    pub(super) fn belongs_to(&self, episode: &Episode) -> bool {
        (&self.episode.id, self.episode.since) == (&episode.id, episode.since)
    }

    /// Applies a round. Returns the spans of pods that are gone.
    pub(super) fn apply(&mut self, node: &NodeName, round: &EvictionRound) -> Vec<Span> {
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
                self.finish_pod(node, &uid, &pod, round.at, None, &mut spans);
            }
        }
        spans
    }

    /// The drain ended at `end`. Returns the spans of the remaining pods, and the shared span.
    pub(super) fn end(mut self, node: &NodeName, end: Timestamp) -> Vec<Span> {
        let mut spans = Vec::new();
        for (uid, pod) in std::mem::take(&mut self.pods) {
            self.finish_pod(node, &uid, &pod, end, Some(end), &mut spans);
        }
        let Some(builder) = EpisodeSpans::of(node, &self.episode) else {
            return spans;
        };
        if let Some(first) = self.shared.first {
            let mut shared = builder.span("evict pods", SpanKind::Internal, (first.min(end), end));
            shared.parent = Some(builder.phase_id());
            shared.attributes.extend([
                count("haulout.pods.count", self.shared.uids.len()),
                number("haulout.evict.attempts", self.shared.attempts),
                number("haulout.evict.blocked", self.shared.blocked),
            ]);
            spans.push(shared);
        }
        spans
    }

    fn ask(&mut self, asked: &Eviction) {
        let is_known = self.pods.contains_key(&asked.uid);
        if !is_known && self.with_span >= PODS {
            self.shared.ask(asked);
            return;
        }
        if !is_known {
            self.with_span += 1;
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
            EvictionAnswer::Blocked { budgets, message } => {
                pod.blocked.get_or_insert(asked.answered_at);
                pod.budgets.extend(budgets.iter().take(MESSAGES).cloned());
                let message: String = message.chars().take(MESSAGE_CHARS).collect();
                let is_known = pod.messages.last().is_some_and(|(_, before)| *before == message);
                if !is_known && pod.messages.len() < MESSAGES {
                    pod.messages.push((asked.answered_at, message));
                }
            }
            EvictionAnswer::Refused => {}
        }
    }

    /// `gone` is when the pod was seen gone, or when the drain ended (`left`).
    fn finish_pod(
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
        // A pod that leaves during a round is seen gone by that round, which has an earlier time.
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
            wait.events
                .extend(pod.messages.iter().map(|(at, message)| SpanEvent {
                    at: *at,
                    name: "eviction.blocked",
                    attributes: vec![text("message", message)],
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

impl SharedPods {
    fn ask(&mut self, asked: &Eviction) {
        self.first.get_or_insert(asked.asked_at);
        self.attempts = self.attempts.saturating_add(1);
        if matches!(asked.answer, EvictionAnswer::Blocked { .. }) {
            self.blocked = self.blocked.saturating_add(1);
        }
        if self.uids.len() < MAX_COUNTED {
            self.uids.insert(asked.uid.clone());
        }
    }
}

#[cfg(test)]
mod tests;
