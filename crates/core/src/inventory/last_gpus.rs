//! The GPUs that a node had last.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::maintenance::clock::Monotonic;

/// How long a count is remembered after its resource is gone. A device plugin that restarts is back sooner; a resource that is gone
/// for longer was taken away on purpose, as by another MIG profile.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The maximum number of remembered resources: a kubelet may report others each time.
const MAX_RESOURCES: usize = 64;

/// The count of each resource when it was last allocatable.
#[derive(Clone, Debug, Default)]
pub(super) struct LastGpus(BTreeMap<String, (u64, Monotonic)>);

impl LastGpus {
    /// Notes the GPUs of a node.
    pub(super) fn record_gpus(&mut self, gpus: &BTreeMap<String, u64>, now: Monotonic) {
        self.0.retain(|_, (_, at)| now.since(*at) <= REMEMBERED);
        for (resource, count) in gpus {
            if self.0.len() < MAX_RESOURCES || self.0.contains_key(resource) {
                self.0.insert(resource.clone(), (*count, now));
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there were counts, and none is remembered any more.
    pub(super) fn has_lapsed(&self, now: Monotonic) -> bool {
        !self.is_empty() && self.0.values().all(|(_, at)| now.since(*at) > REMEMBERED)
    }

    /// The GPUs of the healthy node, which has `gpus` now. A resource that it does not have now counts as it was last seen, or else
    /// by its capacity.
    ///
    /// Counts are forgotten by [`Self::record_gpus`] alone, so that a snapshot changes only with a fact.
    pub(super) fn expected(
        &self,
        gpus: &Arc<BTreeMap<String, u64>>,
        capacity: &BTreeMap<String, u64>,
    ) -> Arc<BTreeMap<String, u64>> {
        let remembered = self.0.iter().map(|(resource, (count, _))| (resource, *count));
        let capacity = capacity.iter().map(|(resource, count)| (resource, *count));
        let mut lacking = capacity
            .chain(remembered)
            .filter(|(resource, _)| !gpus.contains_key(*resource))
            .peekable();
        if lacking.peek().is_none() {
            return Arc::clone(gpus);
        }
        let mut expected = BTreeMap::clone(gpus);
        // What was allocatable goes before the capacity.
        expected.extend(lacking.map(|(resource, count)| (resource.clone(), count)));
        Arc::new(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{GPU, gpus, moment};

    fn of(count: u64) -> Arc<BTreeMap<String, u64>> {
        Arc::new(if count == 0 { BTreeMap::new() } else { gpus(count) })
    }

    fn expected(last: &LastGpus, allocatable: u64, capacity: u64) -> Option<u64> {
        last.expected(&of(allocatable), &of(capacity)).get(GPU).copied()
    }

    #[test]
    fn resource_that_is_not_allocatable_counts_as_it_was_last_for_an_hour() {
        let mut last = LastGpus::default();
        let at = |seconds| moment(seconds).monotonic;
        assert_eq!(expected(&last, 0, 0), None);
        last.record_gpus(&of(8), at(0));
        assert_eq!(expected(&last, 8, 8), Some(8));
        assert_eq!(expected(&last, 7, 8), Some(7), "one was unhealthy before");
        last.record_gpus(&of(0), at(3600));
        assert_eq!(expected(&last, 0, 0), Some(8));
        last.record_gpus(&of(0), at(3601));
        assert_eq!(expected(&last, 0, 0), None);
    }

    #[test]
    fn capacity_counts_for_a_process_that_has_seen_no_gpu() {
        assert_eq!(expected(&LastGpus::default(), 0, 8), Some(8));
    }

    #[test]
    fn remembered_resources_are_limited() {
        let mut last = LastGpus::default();
        for round in 0..10 {
            let name = |n: u64| (format!("nvidia.com/mig-{round}-{n}"), 1);
            last.record_gpus(&(0..20).map(name).collect(), moment(round).monotonic);
        }
        assert_eq!(last.0.len(), MAX_RESOURCES);
    }
}
