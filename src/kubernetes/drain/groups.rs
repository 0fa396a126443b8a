//! How many evictions of pods that share their budgets are in flight at once. Pure.
//!
//! Of each group one pod is asked first, and with each acceptance two more: a free drain is soon at full concurrency, and
//! a budget that lets one pod go answers two requests and not one for each of its pods.

use std::collections::{BTreeMap, VecDeque};

use k8s_openapi::api::core::v1::Pod;

use super::Evictable;

/// What decides which budgets hold a pod. A PodDisruptionBudget selects by labels within a namespace, and counts pods that
/// are Ready: pods that agree in all three are held by the same budgets at any moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GroupKey {
    /// The Ready pods of a namespace with these labels.
    Ready(String, BTreeMap<String, String>),
    /// One pod that is not Ready, by its UID: its budget's `unhealthyPodEvictionPolicy` may let it go while it holds the others.
    Unready(String),
}

/// The pods that wait to be asked.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Vec<Group>,
    /// The group with which the next search begins, so that no group waits for another.
    next: usize,
    /// How many more of a group may be in flight when one of it was accepted.
    growth: usize,
}

#[derive(Debug)]
struct Group {
    waiting: VecDeque<Evictable>,
    /// How many more may be asked before an answer.
    window: usize,
}

impl GroupKey {
    pub(super) fn of(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        let conditions = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref());
        let is_ready = conditions
            .unwrap_or_default()
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        if is_ready {
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
    /// Groups `pods`; of each group one is asked after the other where `in_turn`.
    pub(super) fn of(pods: Vec<Evictable>, in_turn: bool) -> Self {
        let mut groups: BTreeMap<GroupKey, VecDeque<Evictable>> = BTreeMap::new();
        for pod in pods {
            groups.entry(pod.group.clone()).or_default().push_back(pod);
        }
        let groups = groups.into_values().map(|waiting| Group { waiting, window: 1 });
        Self {
            groups: groups.collect(),
            next: 0,
            growth: if in_turn { 1 } else { 2 },
        }
    }

    /// The next pod that may be asked, with the number of its group.
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

    /// An eviction of this group was refused for a reason that is its pod's own.
    pub(super) fn refused(&mut self, group: usize) {
        self.widen(group, 1);
    }

    /// A budget holds this group: gives the pods that need not be asked.
    pub(super) fn blocked(&mut self, group: usize) -> Vec<Evictable> {
        let group = self.groups.get_mut(group);
        group.map_or_else(Vec::new, |group| group.waiting.drain(..).collect())
    }

    /// Gives all pods that were not asked.
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
