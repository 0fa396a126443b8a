//! The evictions of one round and their replies.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use kube::api::PostParams;
use kube::core::Status;
use tokio::time::Instant;

use super::groups::Groups;
use super::{DrainOrder, DrainSettings, Evictable, RoundReport};
use crate::answer::{self, ApiRefusal, Posted};
use crate::fence::Permit;
use crate::maintenance::clock::wall_after;
use crate::maintenance::effect_report::{Eviction, EvictionAnswer};
use crate::maintenance::observed::PendingReason;
use crate::maintenance::waiting::BUDGET;

/// The common input of the evictions of one round.
pub(super) struct EvictionPass<'r> {
    pub(super) permit: &'r Permit,
    pub(super) client: &'r kube::Client,
    pub(super) settings: &'r DrainSettings,
    pub(super) order: DrainOrder<'r>,
    pub(super) begun: Instant,
    /// Until when evictions may begin.
    pub(super) ends: Instant,
}

/// What the kube-apiserver said to an eviction.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    /// The pod is gone.
    Gone,
    Accepted,
    Refused(PendingReason),
    /// It has too much to do. This concerns no pod, so all evictions wait.
    Overloaded,
}

/// The result of one eviction.
#[derive(Debug, PartialEq, Eq)]
struct EvictionReply {
    reply: Reply,
    /// When the eviction may be retried, where the kube-apiserver sets a time.
    retry_at: Option<Instant>,
    /// The HTTP status; 0 if there was none.
    code: u16,
    /// When it was requested.
    asked: Instant,
}

impl EvictionPass<'_> {
    /// Evicts `pods` with limited concurrency, until all are done, the round ends, or the kube-apiserver is overloaded.
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
                // The round has ended, or the process stops.
                report.leave(groups.drop_all(), &PendingReason::NotReached, None);
                report.leave(vec![pod], &PendingReason::NotReached, None);
                continue;
            };
            self.take(&mut groups, group, pod, answer, report);
        }
        report.leave(groups.drop_all(), &PendingReason::NotReached, None);
    }

    /// Adds one reply to the report, and removes the pods that need no request after it.
    fn take(
        &self,
        groups: &mut Groups,
        group: usize,
        pod: Evictable,
        answer: EvictionReply,
        report: &mut RoundReport,
    ) {
        *report.answers.entry(answer.code).or_default() += 1;
        let at = |when: Instant| {
            let since = when.saturating_duration_since(self.begun);
            wall_after(self.order.now.wall, since)
        };
        report.asked.push(Eviction {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            grace: pod.grace,
            asked_at: at(answer.asked),
            answered_at: at(Instant::now()),
            answer: match &answer.reply {
                Reply::Gone | Reply::Accepted => EvictionAnswer::Accepted,
                Reply::Refused(PendingReason::Budget { names, message }) => EvictionAnswer::Blocked {
                    budgets: names.clone(),
                    message: message.clone(),
                },
                Reply::Refused(_) | Reply::Overloaded => EvictionAnswer::Refused,
            },
        });
        let retry_at = answer.retry_at.map(|at| {
            let since = at.saturating_duration_since(self.begun);
            self.order.now.monotonic.after(since)
        });
        let why = match answer.reply {
            Reply::Gone => return groups.accepted(group),
            Reply::Accepted => {
                groups.accepted(group);
                report.evicted += 1;
                PendingReason::Leaving
            }
            Reply::Refused(why @ PendingReason::Budget { .. }) => {
                report.leave(groups.blocked(group), &why, retry_at);
                why
            }
            Reply::Refused(why) => {
                groups.refused(group);
                why
            }
            Reply::Overloaded => {
                report.leave(groups.drop_all(), &PendingReason::NotReached, retry_at);
                PendingReason::Refused {
                    message: "the kube-apiserver has too much to do".to_owned(),
                }
            }
        };
        let left = pod.left(why, retry_at);
        if left.why == PendingReason::Leaving {
            (self.order.on_evicted)(&left);
        }
        report.left.push(left);
    }
}

/// Requests one eviction when there is a free slot; `None` if the round or the process ends before.
async fn ask(permit: &Permit, round: &EvictionPass<'_>, pod: &Evictable) -> Option<EvictionReply> {
    let EvictionPass { settings, ends, .. } = *round;
    // The semaphore is never closed.
    let slot = settings.evictions.semaphore.acquire();
    let _slot = tokio::time::timeout_at(ends, slot).await.ok()?.ok()?;
    let asked = Instant::now();
    if asked >= ends || permit.is_closed() {
        return None;
    }
    // The slot is held until the reply, also past the end of the round: the kube-apiserver continues an aborted request, and the
    // limit counts its work.
    let posted = evict(permit, round.client, pod, settings.eviction_deadline).await;
    let Posted {
        result,
        code,
        retry_after,
    } = posted;
    let reply = match result {
        Ok(()) => Reply::Accepted,
        Err(ApiRefusal::Status(status)) => reply(&status),
        Err(ApiRefusal::Unreachable(message)) => Reply::Refused(PendingReason::Refused { message }),
    };
    Some(EvictionReply {
        reply,
        retry_at: retry_after.map(|after| Instant::now() + after),
        code,
        asked,
    })
}

/// Requests one eviction of the pod with this UID, with the pod's own grace period.
async fn evict(_permit: &Permit, client: &kube::Client, pod: &Evictable, deadline: Duration) -> Posted {
    let eviction = v1::Eviction {
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

/// What this refusal means.
fn reply(status: &Status) -> Reply {
    let message = answer::message(status);
    let refused = |message: String| Reply::Refused(PendingReason::Refused { message });
    match status.code {
        404 => Reply::Gone,
        409 if is_about_uid(status) => Reply::Gone,
        429 => match budgets(status) {
            Some(names) => Reply::Refused(PendingReason::Budget {
                names,
                message: answer::causes(status, "DisruptionBudget")
                    .map(answer::plain)
                    .find(|cause| !cause.is_empty())
                    .unwrap_or(message),
            }),
            None if status.message.contains(EVACUATION) => {
                Reply::Refused(PendingReason::Migrating { message })
            }
            // A webhook refuses one pod; the kube-apiserver is not overloaded.
            None if status.message.contains("admission webhook") => refused(message),
            None => Reply::Overloaded,
        },
        403 if answer::causes(status, "NamespaceTerminating").next().is_some() => {
            refused("its namespace is being deleted".to_owned())
        }
        _ => refused(message),
    }
}

/// The message of KubeVirt's webhook, with a 429, while it migrates the virtual machine live instead
/// (`pkg/virt-api/webhooks/validating-webhook/admitters/pod-eviction-admitter.go`, which keeps this format stable).
const EVACUATION: &str = "Eviction triggered evacuation of VMI";

/// Whether a 409 means that the pod of that name is another one. Only the message shows it, and Kubernetes has two: `the UID in the
/// precondition (…) does not match the UID in record (…)` and `Precondition failed: UID in precondition: …`. Any other 409 is a
/// concurrent change of a budget.
fn is_about_uid(status: &Status) -> bool {
    status.message.contains("UID") && status.message.to_lowercase().contains("precondition")
}

/// The budgets that a 429 names, or `None` if it concerns no budget.
///
/// The name is only in the message of the cause: `The disruption budget web needs 2 healthy pods and has 2 currently`. The list is
/// empty for other messages.
fn budgets(status: &Status) -> Option<Vec<String>> {
    let causes: Vec<_> = answer::causes(status, "DisruptionBudget").collect();
    if causes.is_empty() {
        return None;
    }
    let mut names: Vec<String> = causes
        .iter()
        .filter_map(|cause| cause.strip_prefix(BUDGET))
        .filter_map(|rest| rest.split_once(' '))
        .map(|(name, _)| answer::plain(name))
        .collect();
    names.sort();
    names.dedup();
    Some(names)
}
