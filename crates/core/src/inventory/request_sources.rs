//! The state of the watches of NodeMaintenances: of Haulout's own, and of those of other projects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Source;
use crate::facts::foreign_maintenance::ForeignApi;
use crate::maintenance::clock::Monotonic;

/// How long a watch may be disconnected before maintenance continues without it: about the time that a restart of the kube-apiserver
/// takes.
const WITHOUT_AFTER: Duration = Duration::from_secs(30);

/// The watches in use, by the project of their kind; `None` is Haulout's own.
#[derive(Clone, Debug)]
pub(super) struct RequestSources(BTreeMap<Option<ForeignApi>, RequestSource>);

/// The state of one watch.
#[derive(Clone, Debug)]
pub(super) struct RequestSource {
    source: Source<String>,
    /// Since when it is disconnected.
    lost_at: Option<Monotonic>,
    /// It has been disconnected for so long that maintenance continues without it.
    is_ignored: bool,
}

impl RequestSources {
    /// Disconnected watches of `foreign`, and of Haulout's own unless it is not in use: then it counts as synced.
    pub(super) fn new(is_own_used: bool, foreign: &BTreeSet<ForeignApi>) -> Self {
        let mut own = RequestSource::disconnected("the watch of NodeMaintenances");
        own.source.disconnected.take_if(|_| !is_own_used);
        let foreign = foreign.iter().map(|api| {
            let name = format!("the watch of NodeMaintenances of {api}");
            (Some(*api), RequestSource::disconnected(&name))
        });
        Self([(None, own)].into_iter().chain(foreign).collect())
    }

    /// One in use.
    pub(super) fn get_mut(&mut self, api: Option<ForeignApi>) -> Option<&mut RequestSource> {
        self.0.get_mut(&api)
    }

    /// Notes the time. Returns whether this changed what maintenance continues without.
    pub(super) fn set_time(&mut self, now: Monotonic) -> bool {
        let mut is_changed = false;
        for it in self.0.values_mut() {
            let is_ignored = it
                .lost_at
                .is_some_and(|lost_at| now >= lost_at.after(WITHOUT_AFTER));
            is_changed |= std::mem::replace(&mut it.is_ignored, is_ignored) != is_ignored;
        }
        is_changed
    }

    /// When maintenance will continue without one of them, if it stays disconnected.
    pub(super) fn ignored_from(&self) -> Option<Monotonic> {
        let waited_for = self.0.values().filter(|it| !it.is_ignored);
        waited_for
            .filter_map(|it| Some(it.lost_at?.after(WITHOUT_AFTER)))
            .min()
    }

    /// Why one of them is disconnected, where maintenance waits for it.
    pub(super) fn disconnected(&self) -> Option<&str> {
        let waited_for = self.0.values().filter(|it| !it.is_ignored);
        waited_for
            .filter_map(|it| it.source.disconnected.as_deref())
            .next()
    }

    /// Why this one is disconnected, where maintenance continues without it.
    pub(super) fn ignored(&self, api: Option<ForeignApi>) -> Option<&str> {
        let it = self.0.get(&api).filter(|it| it.is_ignored)?;
        it.source.disconnected.as_deref()
    }

    /// Whether maintenance continues without one of them.
    pub(super) fn is_any_ignored(&self) -> bool {
        self.0.values().any(|it| it.is_ignored)
    }
}

impl RequestSource {
    fn disconnected(name: &str) -> Self {
        Self {
            source: Source::disconnected(name),
            lost_at: None,
            is_ignored: false,
        }
    }

    /// A new list begins.
    pub(super) fn reset(&mut self, why: &str) {
        self.source.disconnected = Some(why.to_owned());
        self.source.seen.clear();
    }

    /// Notes an object. Returns whether an earlier version of it is of the same list and its watch.
    pub(super) fn record_object(&mut self, name: &str) -> bool {
        if self.source.disconnected.is_none() {
            return true;
        }
        !self.source.seen.insert(name.to_owned())
    }

    /// The list is complete. Returns its objects, where a list was awaited.
    pub(super) fn settle(&mut self) -> Option<BTreeSet<String>> {
        self.lost_at = None;
        self.source.disconnected.take()?;
        Some(std::mem::take(&mut self.source.seen))
    }

    /// The watch broke.
    pub(super) fn lose(&mut self, why: String, now: Monotonic) {
        self.lost_at.get_or_insert(now);
        self.source.disconnected = Some(why);
    }
}
