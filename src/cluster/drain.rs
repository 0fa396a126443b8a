//! One bounded round of a drain: a complete list of the Node's pods, and an eviction for each that has to leave.
//!
//! A round starts departures and reports; it waits for none. The caller comes back when pods have changed or when a
//! refused eviction is worth another try, so that a crash between two rounds loses nothing.
//!
//! Pods that are alike share their budgets, so they are asked in step: one at first, and with every yes one more at
//! once, so that a free drain is soon in full flight, and a budget that lets one pod go answers two questions, not one
//! for each of its pods. Once a budget has held some, they are asked one after the other.

mod pace;
mod report;
mod step;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use kube::api::{ListParams, PostParams};
use kube::core::Status;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub use pace::Pace;
pub use report::{Asked, Left, Report, Why};
use step::{Alike, Steps};

use super::answer::{self, Refusal};
use super::pods::{Verdict, verdict};
use crate::gate::Permit;
use crate::ids::NodeName;

/// After this many complete lists a round ends, though pods that were gone when they were to be evicted may have been
/// followed by others: each pass is a list of its own, and the caller comes back anyway.
const PASSES_MAX: usize = 3;

/// A continue token expires when the list outlives etcd's compaction (5 minutes); a list that expires three times is no
/// matter of bad luck.
const LISTS_MAX: usize = 3;

/// The bounds of one round.
#[derive(Clone, Debug)]
pub struct DrainSettings {
    /// For one eviction. The kube-apiserver itself retries a contended budget for up to 10 seconds before it answers.
    pub eviction_deadline: Duration,
    /// For one complete list, all its pages together, and its turn among others.
    pub list_deadline: Duration,
    /// How long evictions may begin in one round, counted from its first list; pods not reached by then are reported as such.
    /// One that has begun keeps its own deadline.
    pub round_deadline: Duration,
    /// Evictions in flight at once, in all rounds with these settings together.
    pub flight: Flight,
    /// How fast evictions follow each other, likewise.
    pub pace: Pace,
    /// Lists in flight at once, likewise: what is listed is large.
    pub lists: Flight,
    /// How fast lists follow each other, likewise.
    pub list_pace: Pace,
    /// Pods in one page of a list.
    pub page_size: u32,
    /// The pod that Haulout itself runs in, where that is known. It is evicted last, when no other pod is left: the
    /// drain survives Haulout's own move to another Node, because its state is on the Node.
    pub own_pod: Option<OwnPod>,
}

/// How many requests of a kind may be in flight at once. Clones share the places.
#[derive(Clone, Debug)]
pub struct Flight {
    places: Arc<Semaphore>,
    of: usize,
}

impl Flight {
    /// A flight of `of` places, and at least one.
    pub fn of(of: usize) -> Self {
        let of = of.max(1);
        Self {
            places: Arc::new(Semaphore::new(of)),
            of,
        }
    }
}

/// A pod's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Whether a round may change anything.
#[derive(Clone, Copy, Debug)]
pub enum Mode<'p> {
    /// Evict, ever more at once.
    Evict(&'p Permit),
    /// Evict pods that are alike one after the other. Evictions that contend for one budget wait for each other in the
    /// kube-apiserver, half a second each time (`EvictionsRetry` in `pkg/registry/core/pod/storage/eviction.go`): where a
    /// budget lets one go at a time, two that are asked for at once can take longer than twenty in a row.
    EvictInTurn(&'p Permit),
    /// Only look: each pod that would be evicted is reported as [`Why::Standing`].
    ListOnly,
}

/// What is asked of a round.
#[derive(Clone, Copy)]
pub struct Order<'o> {
    /// Whether it may change anything.
    pub mode: Mode<'o>,
    /// How long the drain lasts that it is a round of. Its pods are asked faster than the pace has it where they would else not
    /// all have been asked by then.
    pub until: Instant,
    /// Told of each pod that is evicted, when the kube-apiserver has said so: a round may last for a minute, and those of a fleet
    /// end together.
    pub on_evicted: &'o (dyn Fn(&Left) + Send + Sync),
}

/// Why a round could not even look. Nothing is known about the pods then; least of all that there are none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DrainError {
    /// Haulout may not list pods.
    #[error(
        "Haulout may not list the pods of node {node}: {said}; allow its service account `list` on pods, the drain waits until then"
    )]
    Forbidden {
        /// The Node.
        node: NodeName,
        /// What Kubernetes said.
        said: String,
    },
    /// No complete list was to be had.
    #[error("the pods of node {node} could not be listed: {said}; the drain waits and lists them again")]
    Unlisted {
        /// The Node.
        node: NodeName,
        /// What went wrong.
        said: String,
    },
}

/// How the answer to one eviction is read.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The pod that was meant is gone.
    Gone,
    /// It is still there.
    Here { why: Why, retry_after: Option<Duration> },
}

/// Looks once at the pods of `node`, and asks those to leave that have to, if `order` has it.
pub async fn round(
    client: &kube::Client,
    node: &NodeName,
    settings: &DrainSettings,
    order: Order<'_>,
) -> Result<Report, DrainError> {
    let begun = Instant::now();
    let mut asked = Vec::new();
    let mut passes = 0;
    let mut ends = None;
    loop {
        passes += 1;
        // The pods themselves are let go before the evictions begin: rounds of 200 nodes with 100 pods each last for minutes,
        // and with their pods held, and lists without a bound, the program took 830 MiB.
        let (mut report, standing) = judge(&list(client, node, settings).await?, node, settings);
        // From here, and not from the round's beginning: rounds that wait for their lists in turn then end in turn as well.
        let ends = *ends.get_or_insert_with(|| Instant::now() + settings.round_deadline);
        report.asked = std::mem::take(&mut asked);
        if standing.is_empty() {
            return Ok(report.sorted());
        }
        match order.mode {
            Mode::ListOnly => report
                .left
                .extend(standing.into_iter().map(|pod| pod.left(Why::Standing))),
            Mode::Evict(_permit) => {
                let steps = Steps::growing(standing);
                evict_all(client, steps, settings, (begun, ends), order, &mut report).await;
            }
            Mode::EvictInTurn(_permit) => {
                let steps = Steps::in_turn(standing);
                evict_all(client, steps, settings, (begun, ends), order, &mut report).await;
            }
        }
        // Every pod was gone when it was to be evicted: only another list may say that none is left.
        let is_open = report.left.is_empty();
        if !is_open || passes == PASSES_MAX {
            return if is_open {
                Err(DrainError::Unlisted {
                    node: node.clone(),
                    said: format!("the pods changed during each of {PASSES_MAX} lists"),
                })
            } else {
                Ok(report.sorted())
            };
        }
        asked = report.asked;
    }
}

impl OwnPod {
    /// The pod that this process runs in, if its manifest tells by the downward API in `POD_NAMESPACE` and `POD_NAME`.
    pub fn from_environment() -> Option<Self> {
        let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Some(Self {
            namespace: read("POD_NAMESPACE")?,
            name: read("POD_NAME")?,
        })
    }
}

impl Default for DrainSettings {
    fn default() -> Self {
        Self {
            eviction_deadline: Duration::from_secs(20),
            list_deadline: Duration::from_secs(30),
            round_deadline: Duration::from_secs(60),
            // In the whole process, however many Nodes are drained: the kube-apiserver gives all service accounts
            // together 245 places at once by default (priority level `workload-low`: 100 of 245 shares of 600
            // requests), and an eighth of that leaves the others theirs. For one Node it is plenty: 110 pods, a Node's
            // default maximum, are through in four turns.
            flight: Flight::of(32),
            // A bucket that a Node of 250 pods, the most that is usual, does not empty: one Node is not slowed. A fleet is, for as long
            // as its drains have time: 25 a second are an eighth to a third of what a kube-apiserver on two cores did with 4,000 pods, and
            // the rest is for its other clients.
            pace: Pace::of(25, 250),
            // A hundred pods are half a megabyte on the wire, and several while they are read. The drain of
            // 200 nodes took no longer with eight at once than with as many as there were nodes (579 s and 590 s).
            lists: Flight::of(8),
            // One Node is not slowed: where its pods go one after the other it is listed four times a second, and with a budget that
            // lets twelve go in a second the bucket lasts for 120 pods. Rounds of a fleet that begin together end together, and nothing
            // but the places would keep their next lists apart.
            list_pace: Pace::of(10, 20),
            // kubectl's and client-go's own page.
            page_size: 500,
            own_pod: None,
        }
    }
}

/// A pod to be evicted.
#[derive(Clone, Debug)]
struct Standing {
    namespace: String,
    name: String,
    uid: String,
    /// Its `terminationGracePeriodSeconds`.
    grace: Option<i64>,
    /// With whom it shares its budgets.
    alike: Alike,
}

impl Standing {
    fn new(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            grace: pod
                .spec
                .as_ref()
                .and_then(|spec| spec.termination_grace_period_seconds),
            alike: Alike::of(pod),
        }
    }

    fn is(&self, own: &OwnPod) -> bool {
        self.namespace == own.namespace && self.name == own.name
    }

    fn left(self, why: Why) -> Left {
        let Self {
            namespace,
            name,
            uid,
            grace: _,
            alike: _,
        } = self;
        Left {
            namespace,
            name,
            uid,
            why,
        }
    }
}

/// Lists the Node's pods completely: no `resourceVersion`, so that the read is consistent, page by page.
///
/// # Errors
/// When no complete list is to be had.
pub async fn list(
    client: &kube::Client,
    node: &NodeName,
    settings: &DrainSettings,
) -> Result<Vec<Pod>, DrainError> {
    let unlisted = |said| DrainError::Unlisted {
        node: node.clone(),
        said,
    };
    let deadline = settings.list_deadline;
    let complete = async {
        let waits = settings.list_pace.due(Instant::now() + deadline);
        waits.are(1);
        settings.list_pace.turn().await;
        drop(waits);
        // The places are never closed; were they, nobody would list.
        let _place = settings.lists.places.acquire().await;
        for _ in 0..LISTS_MAX {
            if let Some(pods) = list_pages(client, node, settings).await? {
                return Ok(pods);
            }
        }
        Err(unlisted(format!(
            "its continue token expired in each of {LISTS_MAX} tries"
        )))
    };
    match tokio::time::timeout(deadline, complete).await {
        Ok(listed) => listed,
        Err(_elapsed) => Err(unlisted(format!(
            "no complete list within {} s",
            deadline.as_secs_f32()
        ))),
    }
}

/// One try at a complete list; `None` if its continue token expired on the way.
async fn list_pages(
    client: &kube::Client,
    node: &NodeName,
    settings: &DrainSettings,
) -> Result<Option<Vec<Pod>>, DrainError> {
    let api: Api<Pod> = Api::all(client.clone());
    let mut params = ListParams::default()
        .fields(&format!("spec.nodeName={node}"))
        .limit(settings.page_size);
    let mut pods = Vec::new();
    loop {
        let page = match answer::within(settings.list_deadline, api.list(&params)).await {
            Ok(page) => page,
            Err(Refusal::Status(status)) if status.code == 410 => return Ok(None),
            Err(refusal) => return Err(DrainError::new(node, &refusal)),
        };
        pods.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(Some(pods)),
        }
    }
}

impl DrainError {
    fn new(node: &NodeName, refusal: &Refusal) -> Self {
        let (node, said) = (node.clone(), refusal.said());
        match refusal {
            Refusal::Status(status) if matches!(status.code, 401 | 403) => Self::Forbidden { node, said },
            Refusal::Status(_) | Refusal::Unreachable(_) => Self::Unlisted { node, said },
        }
    }
}

/// Sorts the pods into those that leave, those that do not stand in the way (both into the report), and those to evict.
fn judge(pods: &[Pod], node: &NodeName, settings: &DrainSettings) -> (Report, Vec<Standing>) {
    let mut report = Report {
        listed: pods.len(),
        ..Report::default()
    };
    let mut standing = Vec::new();
    let mut own = None;
    for pod in pods {
        match verdict(pod, node) {
            Verdict::Skip(reason) => *report.skipped.entry(reason).or_default() += 1,
            Verdict::Wait { since } => report
                .left
                .push(Standing::new(pod).left(Why::Terminating { since })),
            Verdict::Evict => {
                let pod = Standing::new(pod);
                if settings.own_pod.as_ref().is_some_and(|own| pod.is(own)) {
                    own = Some(pod);
                } else {
                    standing.push(pod);
                }
            }
        }
    }
    if let Some(own) = own {
        if standing.is_empty() && report.left.is_empty() {
            standing.push(own);
        } else {
            report.left.push(own.left(Why::OwnPod));
        }
    }
    (report, standing)
}

/// Evicts those in `steps`, a bounded number at once, until all were asked or spoken for, the round ends, or the
/// kube-apiserver asks for quiet. The round's times are its beginning and until when evictions may begin in it.
async fn evict_all(
    client: &kube::Client,
    mut steps: Steps,
    settings: &DrainSettings,
    (begun, ends): (Instant, Instant),
    order: Order<'_>,
    report: &mut Report,
) {
    let due = settings.pace.due(order.until);
    let mut flying = FuturesUnordered::new();
    loop {
        while flying.len() < settings.flight.of
            && let Some((kind, pod)) = steps.next()
        {
            flying.push(async move {
                let answer = ask(client, &pod, settings, ends).await;
                (kind, pod, answer)
            });
        }
        // Some of those in flight have had their turn; a place is had before it, so there are few of these.
        due.are(steps.len() + flying.len());
        let Some((kind, pod, answer)) = flying.next().await else {
            break;
        };
        let Some((answer, code, asked)) = answer else {
            // Nobody else's turn comes either.
            report.leave(steps.drop_all(), &Why::NotReached);
            report.left.push(pod.left(Why::NotReached));
            continue;
        };
        *report.answers.entry(code).or_default() += 1;
        let grace = pod.grace;
        let Left {
            namespace,
            name,
            uid,
            why: _,
        } = pod.clone().left(Why::Evicted);
        report.asked.push(Asked {
            namespace,
            name,
            uid,
            grace,
            asked: asked.saturating_duration_since(begun),
            answered: begun.elapsed(),
            why: match &answer {
                Answer::Gone => None,
                Answer::Here { why, .. } => Some(why.clone()),
            },
        });
        match answer {
            Answer::Gone => steps.went(kind),
            Answer::Here { why, retry_after } => {
                match &why {
                    Why::Evicted => steps.went(kind),
                    Why::Budget { .. } => report.leave(steps.hold(kind), &why),
                    Why::TooManyRequests => report.leave(steps.drop_all(), &Why::NotReached),
                    Why::Terminating { .. }
                    | Why::ServerError { .. }
                    | Why::NamespaceTerminating
                    | Why::Forbidden { .. }
                    | Why::Unreachable { .. }
                    | Why::NotReached
                    | Why::Migrating { .. }
                    | Why::OwnPod
                    | Why::Standing => steps.stays(kind),
                }
                report.retry_after = report.retry_after.max(retry_after);
                let left = pod.left(why);
                if left.why == Why::Evicted {
                    (order.on_evicted)(&left);
                }
                report.left.push(left);
            }
        }
    }
    report.leave(steps.drop_all(), &Why::NotReached);
}

/// Asks for one eviction in its turn; `None` if the round ended before that.
async fn ask(
    client: &kube::Client,
    pod: &Standing,
    settings: &DrainSettings,
    ends: Instant,
) -> Option<(Answer, u16, Instant)> {
    // The places are never closed; were they, nobody would be asked.
    let turn = async {
        let place = settings.flight.places.acquire().await;
        settings.pace.turn().await;
        place
    };
    let _place = tokio::time::timeout_at(ends, turn).await.ok()?.ok()?;
    let asked = Instant::now();
    if asked >= ends {
        return None;
    }
    // One that is cut short by the end of its round goes on in the kube-apiserver, and its place would be given to another:
    // 200 nodes whose rounds ended together had 151 evictions in flight, and 287 were asked for twice.
    let (answer, code) = evict(client, pod, settings.eviction_deadline).await;
    Some((answer, code, asked))
}

/// Asks for one eviction. The UID makes sure that it meets the pod that was listed and no namesake; the grace is the
/// pod's own. Gives the HTTP status of the answer too, 0 where there was none.
async fn evict(client: &kube::Client, pod: &Standing, deadline: Duration) -> (Answer, u16) {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
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
    let params = PostParams::default();
    let call = api.create_subresource::<_, serde_json::Value>("eviction", &pod.name, &params, &eviction);
    match answer::within(deadline, call).await {
        // The kube-apiserver answers an accepted eviction with 201 Created; the client does not pass the status on.
        Ok(_accepted) => (Answer::here(Why::Evicted), 201),
        Err(Refusal::Status(status)) => (Answer::to(&status), status.code),
        Err(Refusal::Unreachable(said)) => (Answer::here(Why::Unreachable { said }), 0),
    }
}

impl Answer {
    fn here(why: Why) -> Self {
        Self::Here {
            why,
            retry_after: None,
        }
    }

    /// Reads the refusal of an eviction.
    fn to(status: &Status) -> Self {
        let said = answer::said(status);
        let why = match status.code {
            404 => return Self::Gone,
            409 if is_about_uid(status) => return Self::Gone,
            429 => match budgets(status) {
                Some(names) => Why::Budget {
                    names,
                    said: answer::causes(status, "DisruptionBudget")
                        .map(answer::plain)
                        .find(|cause| !cause.is_empty())
                        .unwrap_or(said),
                },
                None if status.message.contains(EVACUATION) => Why::Migrating { said },
                None => Why::TooManyRequests,
            },
            403 if answer::causes(status, "NamespaceTerminating").next().is_some() => {
                Why::NamespaceTerminating
            }
            // 422 is how an admission policy refuses unless it asks for another code.
            401 | 403 | 422 => Why::Forbidden { said },
            _ => Why::ServerError { said },
        };
        Self::Here {
            why,
            retry_after: status
                .details
                .as_ref()
                .map(|details| details.retry_after_seconds)
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Duration::from_secs(seconds.into())),
        }
    }
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

#[cfg(test)]
mod tests;
