//! Which pods of a drain are evicted, and which came back. A cordon keeps a pod away only if a scheduler chooses its node: one with
//! `spec.nodeName`, or one that tolerates the cordon, is there again after each eviction.

use std::collections::{BTreeMap, BTreeSet};

/// How many lists of a drain may show new pods of one owner that are evicted. The first list is one of them; the others are for pods
/// that were bound before the scheduler saw the cordon, and for those that a person adds.
const LISTS_OF_OWNER: u32 = 4;

/// The same for pods that tolerate the cordon: the scheduler binds their successors for certain.
const LISTS_OF_TOLERANT_OWNER: u32 = 1;

/// How many lists after the first may show new pods that are evicted, whatever their owners: a controller may give each pod another
/// owner, or none.
const LATER_LISTS: u32 = 32;

/// The maximum number of owners. A node has a few hundred pods.
const OWNERS_MAX: usize = 4_096;

/// A pod of a list that blocks the drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPod {
    /// `metadata.uid`.
    pub uid: String,
    /// What creates it again: its controller, or else its name.
    pub owner: String,
    pub tolerates_cordon: bool,
}

/// A pod that came back. It does not block the drain, which would never end; it ends with the VM.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReturnedPod {
    /// `namespace/name`.
    pub name: String,
    pub tolerates_cordon: bool,
}

/// What the lists of one drain showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownPods {
    /// The UIDs of the pods in the latest list that are evicted.
    evicted: BTreeSet<String>,
    /// How many lists showed new pods of an owner that are evicted.
    lists: BTreeMap<String, u32>,
    /// How many lists after the first showed new pods that are evicted.
    later_lists: u32,
}

impl KnownPods {
    /// What is known after a list of `pods`; `before` is what was known before it, `None` for the first list of a drain.
    pub fn after(before: Option<&Self>, pods: &[ListedPod]) -> Self {
        let mut known = before.cloned().unwrap_or_default();
        let is_first = before.is_none();
        let may_be_evicted = |pod: &&ListedPod| {
            if known.evicted.contains(&pod.uid) {
                return true;
            }
            let most = if pod.tolerates_cordon {
                LISTS_OF_TOLERANT_OWNER
            } else {
                LISTS_OF_OWNER
            };
            let has_room = known.lists.contains_key(&pod.owner) || known.lists.len() < OWNERS_MAX;
            let lists = known.lists.get(&pod.owner).copied().unwrap_or(0);
            is_first || has_room && lists < most && known.later_lists < LATER_LISTS
        };
        let evicted: Vec<&ListedPod> = pods.iter().filter(may_be_evicted).collect();
        let new = evicted.iter().filter(|pod| !known.evicted.contains(&pod.uid));
        let owners: BTreeSet<String> = new.map(|pod| pod.owner.clone()).collect();
        known.later_lists += u32::from(!is_first && !owners.is_empty());
        for owner in owners {
            if known.lists.contains_key(&owner) || known.lists.len() < OWNERS_MAX {
                *known.lists.entry(owner).or_default() += 1;
            }
        }
        known.evicted = evicted.into_iter().map(|pod| pod.uid.clone()).collect();
        known
    }

    /// Whether the pod is evicted. Otherwise it came back.
    pub fn is_evicted(&self, uid: &str) -> bool {
        self.evicted.contains(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, owner: &str) -> ListedPod {
        ListedPod {
            uid: uid.to_owned(),
            owner: owner.to_owned(),
            tolerates_cordon: false,
        }
    }

    /// How many pods are evicted if each list shows one new pod, which `pod` makes of its number.
    fn evicted(lists: usize, pod: impl Fn(usize) -> ListedPod) -> usize {
        let mut known = None;
        let mut count = 0;
        for n in 0..lists {
            let pod = pod(n);
            let next = KnownPods::after(known.as_ref(), std::slice::from_ref(&pod));
            count += usize::from(next.is_evicted(&pod.uid));
            assert!(next.evicted.len() <= 1, "pods that are gone are forgotten");
            known = Some(next);
        }
        count
    }

    #[test]
    fn pod_that_comes_back_is_evicted_a_bounded_number_of_times() {
        assert_eq!(evicted(100, |n| pod(&n.to_string(), "agent")), 4);
        let tolerant = |n: usize| ListedPod {
            tolerates_cordon: true,
            ..pod(&n.to_string(), "agent")
        };
        assert_eq!(evicted(100, tolerant), 1);
        // A controller that gives each pod another owner.
        assert_eq!(evicted(100, |n| pod(&n.to_string(), &n.to_string())), 33);
    }

    #[test]
    fn pods_that_slip_in_together_are_all_evicted() {
        let first = KnownPods::after(None, &[pod("a", "web")]);
        let late: Vec<ListedPod> = (0..50).map(|n| pod(&n.to_string(), "web")).collect();
        let second = KnownPods::after(Some(&first), &late);
        assert!(late.iter().all(|pod| second.is_evicted(&pod.uid)));
        // They are still evicted in later lists, where a budget holds them.
        let mut known = second;
        for _ in 0..50 {
            known = KnownPods::after(Some(&known), &late);
        }
        assert!(late.iter().all(|pod| known.is_evicted(&pod.uid)));
    }

    #[test]
    fn tolerant_pod_of_an_owner_without_another_pod_is_evicted_once() {
        let first = KnownPods::after(None, &[pod("a", "web")]);
        let agent = |uid: &str| ListedPod {
            tolerates_cordon: true,
            ..pod(uid, "agent")
        };
        let second = KnownPods::after(Some(&first), &[agent("b")]);
        assert!(second.is_evicted("b"));
        let third = KnownPods::after(Some(&second), &[agent("c")]);
        assert!(!third.is_evicted("c"));
    }
}
