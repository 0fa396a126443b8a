//! Which pods of a list are evicted in a round. Pure.

use k8s_openapi::api::core::v1::Pod;

use super::policies::{NamespacePolicies, PodPolicy};
use super::report::UnreadablePod;
use super::{DrainSettings, Evictable, RoundReport};
use crate::known_pods::{KnownPods, ListedPod, ReturnedPod};
use crate::maintenance::clock::{Deadline, Now, wall_after};
use crate::maintenance::effect::DrainBegan;
use crate::maintenance::observed::PendingReason;
use crate::pods::{PodVerdict, SkipReason, owner, tolerates_cordon, verdict};
use crate::policy::DrainPolicy;

/// The input of a sorting.
pub(super) struct Sorting<'s> {
    pub(super) settings: &'s DrainSettings,
    pub(super) policies: &'s NamespacePolicies,
    /// As in [`DrainOrder`](super::DrainOrder).
    pub(super) known: Option<&'s KnownPods>,
    pub(super) began: DrainBegan,
    /// When the round begins.
    pub(super) now: Now,
}

impl Sorting<'_> {
    /// A report with the pods that are not evicted in this round, and those to evict.
    pub(super) fn sort(&self, pods: &[Pod]) -> (RoundReport, Vec<Evictable>) {
        let blocking = pods.iter().filter(|pod| verdict(pod).blocks_drain());
        let blocking: Vec<ListedPod> = blocking.map(listed_pod).collect();
        let mut report = RoundReport {
            listed: pods.len(),
            known: KnownPods::after(self.known, &blocking),
            ..RoundReport::default()
        };
        let own = self.settings.own_pod.as_ref();
        let mut evictable = Vec::new();
        let mut turns = Vec::new();
        for pod in pods {
            let action = self.action(pod, &mut report);
            let tolerates_cordon = tolerates_cordon(pod);
            let pod = Evictable::new(pod);
            if let Action::Skip(reason) = action {
                *report.skipped.entry(reason).or_default() += 1;
                match reason {
                    SkipReason::Returned => report.returned.push(ReturnedPod {
                        name: pod.full_name(),
                        tolerates_cordon,
                    }),
                    SkipReason::Policy => report.left_alone.push(pod.full_name()),
                    SkipReason::Finished | SkipReason::Mirror | SkipReason::DaemonSet => {}
                }
                continue;
            }
            turns.push(pod.turn(own));
            if let Action::Leave(why) = action {
                report.left.push(pod.left(why, None));
            } else {
                evictable.push(pod);
            }
        }
        let turn = turns.into_iter().min();
        let (evictable, later) = evictable.into_iter().partition(|pod| Some(pod.turn(own)) == turn);
        report.leave(later, &PendingReason::Last, None);
        (report, evictable)
    }

    fn action(&self, pod: &Pod, report: &mut RoundReport) -> Action {
        let is_terminating = match verdict(pod) {
            PodVerdict::Skip(reason) => return Action::Skip(reason),
            PodVerdict::Wait => true,
            PodVerdict::Evict => false,
        };
        let uid = || pod.metadata.uid.clone().unwrap_or_default();
        if !report.known.is_evicted(&uid()) {
            return Action::Skip(SkipReason::Returned);
        }
        let policy = match self.policies.policy(pod) {
            PodPolicy::Read(DrainPolicy::Skip) => return Action::Skip(SkipReason::Policy),
            PodPolicy::Read(policy) => policy,
            PodPolicy::Unread(_) if is_terminating => DrainPolicy::Evict,
            PodPolicy::Unread(message) => {
                let message = format!("its namespace could not be read: {message}");
                return Action::Leave(PendingReason::Refused { message });
            }
            PodPolicy::Unreadable(why) => {
                if !is_terminating && self.settings.namespaces.is_first(&uid()) {
                    report.unreadable.push(UnreadablePod {
                        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                        name: pod.metadata.name.clone().unwrap_or_default(),
                        uid: uid(),
                        why,
                    });
                }
                DrainPolicy::Evict
            }
        };
        let wait = policy.wait(self.settings.wait_max);
        // Also of a pod that terminates after its wait: it gets the whole drain timeout.
        report.longest_wait = report.longest_wait.max(wait);
        if is_terminating {
            return Action::Leave(PendingReason::Leaving);
        }
        match wait
            .checked_sub(self.began.elapsed)
            .filter(|left| !left.is_zero())
        {
            Some(left) => Action::Leave(PendingReason::Waits {
                until: Deadline {
                    at: self.now.monotonic.after(left),
                    shown: wall_after(self.began.at, wait),
                },
            }),
            None => Action::Evict,
        }
    }
}

fn listed_pod(pod: &Pod) -> ListedPod {
    ListedPod {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        owner: owner(pod),
        tolerates_cordon: tolerates_cordon(pod),
    }
}

/// What is done with a pod in a round.
enum Action {
    Skip(SkipReason),
    Leave(PendingReason),
    Evict,
}
