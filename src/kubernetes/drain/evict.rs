//! The evictions of one round, and how their answers are read.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use kube::api::PostParams;
use kube::core::Status;
use tokio::time::Instant;

use super::groups::Groups;
use super::{DrainOrder, DrainSettings, Evictable, EvictionRequested, PodPendingReason, RoundReport};
use crate::fence::Permit;
use crate::kubernetes::answer::{self, ApiRefusal, Posted};

/// What all evictions of one round share.
pub(super) struct EvictionPass<'r> {
    pub(super) permit: &'r Permit,
    pub(super) client: &'r kube::Client,
    pub(super) settings: &'r DrainSettings,
    pub(super) order: DrainOrder<'r>,
    pub(super) begun: Instant,
    /// Until when evictions may begin.
    pub(super) ends: Instant,
}

/// How the answer to one eviction is read.
#[derive(Debug, PartialEq, Eq)]
struct EvictionReply {
    /// Why the pod is still there; `None` where the pod that was meant is gone.
    why: Option<PodPendingReason>,
    /// When it may be asked for again, where the kube-apiserver says so.
    retry_at: Option<Instant>,
    /// The HTTP status, 0 where there was none.
    code: u16,
    /// When it was asked for.
    asked: Instant,
}

impl EvictionPass<'_> {
    /// Evicts `pods`, a bounded number at once, until all were asked or spoken for, the round ends, or the kube-apiserver
    /// is overloaded.
    pub(super) async fn evict_all(&self, pods: Vec<Evictable>, report: &mut RoundReport) {
        let mut groups = Groups::of(pods, self.order.in_turn);
        let mut flying = FuturesUnordered::new();
        loop {
            while flying.len() < self.settings.evictions.limit
                && let Some((group, pod)) = groups.next()
            {
                flying.push(async move {
                    let answer = ask(self.permit, self, &pod).await;
                    (group, pod, answer)
                });
            }
            let Some((group, pod, answer)) = flying.next().await else {
                break;
            };
            let Some(answer) = answer else {
                // The round is over for all that wait.
                report.leave(groups.drop_all(), &PodPendingReason::NotReached, None);
                report.leave(vec![pod], &PodPendingReason::NotReached, None);
                continue;
            };
            self.take(&mut groups, group, pod, answer, report);
        }
        report.leave(groups.drop_all(), &PodPendingReason::NotReached, None);
    }

    /// Takes one answer into the report, and what follows from it for the pods that wait.
    fn take(
        &self,
        groups: &mut Groups,
        group: usize,
        pod: Evictable,
        answer: EvictionReply,
        report: &mut RoundReport,
    ) {
        *report.answers.entry(answer.code).or_default() += 1;
        report.asked.push(EvictionRequested {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            grace: pod.grace,
            asked: answer.asked.saturating_duration_since(self.begun),
            answered: self.begun.elapsed(),
            why: answer.why.clone(),
        });
        let retry_at = answer.retry_at;
        match &answer.why {
            None | Some(PodPendingReason::Evicted) => groups.accepted(group),
            Some(why @ PodPendingReason::Budget { .. }) => report.leave(groups.blocked(group), why, retry_at),
            // It is about the kube-apiserver and no pod, so all wait that long.
            Some(PodPendingReason::TooManyRequests) => {
                report.leave(groups.drop_all(), &PodPendingReason::NotReached, retry_at)
            }
            Some(
                PodPendingReason::Terminating { .. }
                | PodPendingReason::ServerError { .. }
                | PodPendingReason::NamespaceTerminating
                | PodPendingReason::Forbidden { .. }
                | PodPendingReason::Unreachable { .. }
                | PodPendingReason::NotReached
                | PodPendingReason::Migrating { .. }
                | PodPendingReason::OwnPod
                | PodPendingReason::Deferred
                | PodPendingReason::Standing,
            ) => groups.refused(group),
        }
        if let Some(why) = answer.why {
            let left = pod.left(why, retry_at);
            if left.why == PodPendingReason::Evicted {
                (self.order.on_evicted)(&left);
            }
            report.left.push(left);
        }
    }
}

/// Asks for one eviction when it is its turn; `None` if the round ended before that.
async fn ask(permit: &Permit, round: &EvictionPass<'_>, pod: &Evictable) -> Option<EvictionReply> {
    let EvictionPass { settings, ends, .. } = *round;
    // The semaphore is never closed; were it, nothing would be asked.
    let slot = settings.evictions.semaphore.acquire();
    let _slot = tokio::time::timeout_at(ends, slot).await.ok()?.ok()?;
    let asked = Instant::now();
    if asked >= ends {
        return None;
    }
    // It keeps its slot until it is answered, also past the end of its round: the kube-apiserver goes on with a request
    // that was given up, and the limit counts what it works on.
    let posted = evict(permit, round.client, pod, settings.eviction_deadline).await;
    let Posted {
        result,
        code,
        retry_after,
    } = posted;
    let why = match result {
        Ok(()) => Some(PodPendingReason::Evicted),
        Err(ApiRefusal::Status(status)) => why(&status),
        Err(ApiRefusal::Unreachable(said)) => Some(PodPendingReason::Unreachable { said }),
    };
    Some(EvictionReply {
        why,
        retry_at: retry_after.map(|after| Instant::now() + after),
        code,
        asked,
    })
}

/// Asks for one eviction. The UID makes sure that it meets the pod that was listed and no namesake; the grace is the
/// pod's own.
async fn evict(_permit: &Permit, client: &kube::Client, pod: &Evictable, deadline: Duration) -> Posted {
    let eviction = Eviction {
        metadata: ObjectMeta {
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.clone()),
                resource_version: None,
            }),
            ..DeleteOptions::default()
        }),
    };
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let request = serde_json::to_vec(&eviction)
        .map_err(kube::Error::SerdeError)
        .and_then(|body| {
            kube::core::Request::new(api.resource_url())
                .create_subresource("eviction", &pod.name, &PostParams::default(), body)
                .map_err(kube::Error::BuildRequest)
        });
    answer::post(client, request, deadline).await
}

/// Why the pod is still there after this refusal; `None` where the pod that was meant is gone.
fn why(status: &Status) -> Option<PodPendingReason> {
    let said = answer::said(status);
    Some(match status.code {
        404 => return None,
        409 if is_about_uid(status) => return None,
        429 => match budgets(status) {
            Some(names) => PodPendingReason::Budget {
                names,
                said: answer::causes(status, "DisruptionBudget")
                    .map(answer::plain)
                    .find(|cause| !cause.is_empty())
                    .unwrap_or(said),
            },
            None if status.message.contains(EVACUATION) => PodPendingReason::Migrating { said },
            // It speaks for one pod, and not for the kube-apiserver.
            None if status.message.contains("admission webhook") => PodPendingReason::ServerError { said },
            None => PodPendingReason::TooManyRequests,
        },
        403 if answer::causes(status, "NamespaceTerminating").next().is_some() => {
            PodPendingReason::NamespaceTerminating
        }
        // 422 is how an admission policy refuses unless it asks for another code.
        401 | 403 | 422 => PodPendingReason::Forbidden { said },
        _ => PodPendingReason::ServerError { said },
    })
}

/// What KubeVirt's webhook says, with a 429, of an eviction that it turns into a live migration, and again for as long as
/// that lasts (`pkg/virt-api/webhooks/validating-webhook/admitters/pod-eviction-admitter.go`, which calls the format one
/// that others rely on).
const EVACUATION: &str = "Eviction triggered evacuation of VMI";

/// Whether a 409 says that the pod of that name is another one. Only the words tell, and Kubernetes has two wordings:
/// `the UID in the precondition (…) does not match the UID in record (…)` and `Precondition failed: UID in precondition:
/// …`. A 409 in other words is a budget that changed under the kube-apiserver's hands; the pod counts as still there.
fn is_about_uid(status: &Status) -> bool {
    status.message.contains("UID") && status.message.to_lowercase().contains("precondition")
}

/// The budgets that a 429 names, or `None` if it speaks of no budget.
///
/// The name stands only in the words of the cause: `The disruption budget web needs 2 healthy pods and has 2 currently`.
/// Words that do not read so leave the list empty; the words themselves are passed on anyway.
fn budgets(status: &Status) -> Option<Vec<String>> {
    let causes: Vec<_> = answer::causes(status, "DisruptionBudget").collect();
    if causes.is_empty() {
        return None;
    }
    let mut names: Vec<String> = causes
        .iter()
        .filter_map(|cause| cause.strip_prefix("The disruption budget "))
        .filter_map(|rest| rest.split_once(' '))
        .map(|(name, _)| answer::plain(name))
        .collect();
    names.sort();
    names.dedup();
    Some(names)
}
