//! The account of a run: how often each fault fired, and which phases, waits and reasons to park were reached.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock;

/// Counts of one run, or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    counts: BTreeMap<(&'static str, String), u64>,
    disturbed: Duration,
}

impl Account {
    pub fn count(&mut self, kind: &'static str, name: impl Into<String>) {
        if kind == "fault" {
            self.disturbed = clock::elapsed();
        }
        *self.counts.entry((kind, name.into())).or_default() += 1;
    }

    /// When the last fault fired.
    pub fn disturbed(&self) -> Duration {
        self.disturbed
    }

    /// Adds another account.
    pub fn add(&mut self, other: &Self) {
        for (key, count) in &other.counts {
            *self.counts.entry(key.clone()).or_default() += count;
        }
    }

    /// The count of a name.
    pub fn of(&self, kind: &'static str, name: &str) -> u64 {
        self.counts.get(&(kind, name.to_owned())).copied().unwrap_or(0)
    }

    /// All counts, by kind and name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &str, u64)> {
        self.counts
            .iter()
            .map(|((kind, name), count)| (*kind, name.as_str(), *count))
    }
}
