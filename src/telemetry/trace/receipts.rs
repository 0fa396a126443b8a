//! Which spans this process has told, and which of them a collector has taken.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::trace::SpanId;

/// How many spans are remembered. They are asked for until the next change of record of their episode, so this is a
/// thousand episodes that are in progress at once; one forgotten is told again by the next process.
const REMEMBERED: usize = 8 * 1024;

/// Receipts, shared between those who tell and the one that sends.
#[derive(Clone, Debug, Default)]
pub struct Receipts(Arc<Mutex<Spans>>);

#[derive(Debug, Default)]
struct Spans {
    arrived: BTreeMap<[u8; 8], bool>,
    in_order: VecDeque<[u8; 8]>,
}

impl Receipts {
    /// Whether `span` is told here for the first time; from then on it has been.
    pub fn is_first(&self, span: SpanId) -> bool {
        let id = span.to_bytes();
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.arrived.contains_key(&id) {
            return false;
        }
        spans.arrived.insert(id, false);
        spans.in_order.push_back(id);
        if spans.in_order.len() > REMEMBERED
            && let Some(oldest) = spans.in_order.pop_front()
        {
            spans.arrived.remove(&oldest);
        }
        true
    }

    /// A collector has taken `span`.
    pub fn arrives(&self, span: SpanId) {
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(arrived) = spans.arrived.get_mut(&span.to_bytes()) {
            *arrived = true;
        }
    }

    /// Whether a collector has taken `span` from this process.
    pub fn has_arrived(&self, span: SpanId) -> bool {
        let spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spans.arrived.get(&span.to_bytes()) == Some(&true)
    }
}
