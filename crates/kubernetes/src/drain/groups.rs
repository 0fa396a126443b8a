//! Limits concurrent evictions of pods that share their budgets. Pure.
//!
//! Each group starts with one eviction, and every accepted one allows two more. So a drain without budgets soon has full
//! concurrency, and a budget that allows one disruption gets two requests and not one per pod.

use std::collections::{BTreeMap, VecDeque};

use k8s_openapi::api::core::v1::Pod;

use super::Evictable;
use crate::budgets::is_ready;

/// Pods with the same key are blocked by the same budgets: a PodDisruptionBudget selects by labels in a namespace and counts Ready
/// pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GroupKey {
    /// The Ready pods of a namespace with these labels.
    Ready(String, BTreeMap<String, String>),
    /// One pod that is not Ready, by its UID: `unhealthyPodEvictionPolicy` may allow its eviction while the others are blocked.
    Unready(String),
}

/// The pods whose eviction was not requested yet.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Vec<Group>,
    /// The group with which the next search begins (round robin).
    next: usize,
    /// How many more evictions of a group each accepted one allows.
    growth: usize,
}

#[derive(Debug)]
struct Group {
    waiting: VecDeque<Evictable>,
    /// How many more evictions may be requested now.
    window: usize,
}

impl GroupKey {
    pub(super) fn of(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        if is_ready(pod) {
            Self::Ready(
                metadata.namespace.clone().unwrap_or_default(),
                metadata.labels.clone().unwrap_or_default(),
            )
        } else {
            Self::Unready(metadata.uid.clone().unwrap_or_default())
        }
    }
}

impl Groups {
    /// Groups `pods`; evictions of a group are sequential where `in_turn`.
    pub(super) fn of(pods: Vec<Evictable>, in_turn: bool) -> Self {
        let mut groups: BTreeMap<GroupKey, VecDeque<Evictable>> = BTreeMap::new();
        // The pods of the lowest priority are asked first.
        let mut pods = pods;
        pods.sort_by_key(|pod| pod.priority);
        for pod in pods {
            groups.entry(pod.group.clone()).or_default().push_back(pod);
        }
        let mut groups: Vec<Group> = groups
            .into_values()
            .map(|waiting| Group { waiting, window: 1 })
            .collect();
        groups.sort_by_key(|group| group.waiting.front().map(|pod| pod.priority));
        Self {
            groups,
            next: 0,
            growth: if in_turn { 1 } else { 2 },
        }
    }

    /// The next pod to evict, with the number of its group.
    pub(super) fn next(&mut self) -> Option<(usize, Evictable)> {
        // `next` is the number of a group plus one, so at most their count.
        let (before, after) = self.groups.split_at_mut(self.next);
        let numbered = (self.next..).zip(after).chain((0..).zip(before));
        for (number, group) in numbered {
            if group.window > 0
                && let Some(pod) = group.waiting.pop_front()
            {
                group.window -= 1;
                self.next = number + 1;
                return Some((number, pod));
            }
        }
        None
    }

    /// An eviction of this group was accepted.
    pub(super) fn accepted(&mut self, group: usize) {
        self.widen(group, self.growth);
    }

    /// An eviction of this group was refused for a reason that only concerns its pod.
    pub(super) fn refused(&mut self, group: usize) {
        self.widen(group, 1);
    }

    /// A budget blocks this group: returns the pods that need no request.
    pub(super) fn blocked(&mut self, group: usize) -> Vec<Evictable> {
        let group = self.groups.get_mut(group);
        group.map_or_else(Vec::new, |group| group.waiting.drain(..).collect())
    }

    /// Returns all pods whose eviction was not requested.
    pub(super) fn drop_all(&mut self) -> Vec<Evictable> {
        let waiting = self.groups.iter_mut().map(|group| &mut group.waiting);
        waiting.flat_map(|waiting| waiting.drain(..)).collect()
    }

    fn widen(&mut self, group: usize, by: usize) {
        if let Some(group) = self.groups.get_mut(group) {
            group.window = group.window.saturating_add(by);
        }
    }
}
