//! Runs a Job on each node that is back, before it is uncordoned.
//!
//! The executor sets the hook [`VALIDATION_HOOK`] on the Node before the power is cut. When the node waits for it alone to be
//! uncordoned, this module creates the Job, and removes the hook once the Job has succeeded. A Job that fails leaves the hook, so
//! that the node is held as by every other hook. Nothing is remembered: the name of the Job follows from the episode and the boot.

mod job;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::answer::{self, ApiRefusal};
use crate::fence::{Permit, WriteFence, WriteKind};
use crate::ids::{NodeName, NodeUid};
use crate::keys::{FIELD_MANAGER, VALIDATION_HOOK};
use crate::maintenance::hook::HookPoint;
use crate::maintenance::observed::{NodeSnapshot, SnapshotBatch};

pub use job::ValidationTemplate;
pub(crate) use job::job_name;
use job::{JobState, state_of};

/// The deadline of one call.
const DEADLINE: Duration = Duration::from_secs(10);

/// The interval in which Jobs are read while a node waits for one.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The maximum number of nodes that are processed in one pass. The others follow in the next one.
const NODES_MAX: usize = 100;

/// The maximum number of remembered messages.
const TOLD_MAX: usize = 1_000;

/// The nodes that wait for their validation.
#[derive(Debug, Default)]
pub struct ValidationBoard {
    due: Mutex<BTreeMap<NodeName, DueValidation>>,
    wake: Notify,
}

/// A node that waits for its validation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DueValidation {
    uid: NodeUid,
    /// The name of its Job.
    job: String,
}

impl ValidationBoard {
    /// Processes new snapshots.
    pub(crate) fn show(&self, batch: &SnapshotBatch) {
        let mut due = self.due();
        due.retain(|name, _| batch.keeps(name));
        for (name, snapshot) in &batch.snapshots {
            match validation(snapshot) {
                Some(validation) => {
                    if due.insert(name.clone(), validation.clone()) != Some(validation) {
                        self.wake.notify_one();
                    }
                }
                None => {
                    due.remove(name);
                }
            }
        }
    }

    fn due(&self) -> MutexGuard<'_, BTreeMap<NodeName, DueValidation>> {
        // Ignores poisoning: no change leaves inconsistent state.
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn first(&self, count: usize) -> Vec<(NodeName, DueValidation)> {
        let due = self.due();
        let first = due.iter().take(count);
        first.map(|(name, due)| (name.clone(), due.clone())).collect()
    }
}

/// The validation that the node waits for: its uncordon is held, and the hook is on the Node.
fn validation(snapshot: &NodeSnapshot) -> Option<DueValidation> {
    let episode = snapshot.record.episode()?;
    let node = snapshot.observed.node.as_ref()?;
    let (point, hook) = HookPoint::of_key(VALIDATION_HOOK)?;
    let is_held = episode.held.is_some_and(|held| held.point == point);
    let is_set = node.hooks.get(&point).is_some_and(|names| names.contains(hook));
    (is_held && is_set).then(|| DueValidation {
        uid: node.uid.clone(),
        job: job_name(&episode.id, node.boot_id.as_ref()),
    })
}

/// Runs until `stop`.
pub(crate) async fn run(
    client: kube::Client,
    fence: WriteFence,
    template: ValidationTemplate,
    board: std::sync::Arc<ValidationBoard>,
    stop: CancellationToken,
) {
    let mut runner = ValidationRunner {
        jobs: Api::namespaced(client.clone(), template.namespace()),
        nodes: Api::all(client),
        template,
        told: BTreeSet::new(),
    };
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = board.wake.notified() => {}
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        for (node, due) in board.first(NODES_MAX) {
            // Without a permit another replica leads, and does it.
            let Ok(permit) = fence.permit(WriteKind::Effect) else {
                break;
            };
            let step = permit.run(runner.step(&permit, &node, &due));
            let done = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                done = step => done,
            };
            match done {
                Ok(Ok(())) => {}
                Ok(Err(refusal)) => {
                    let is_answered = refusal.code().is_some();
                    runner.tell(&due.job, || {
                        warn!(
                            "the validation Job {} of node {node}: {refusal}; it is tried again",
                            due.job
                        );
                    });
                    // Each further node would cost a deadline.
                    if !is_answered {
                        break;
                    }
                }
                Err(_closed) => break,
            }
        }
    }
}

struct ValidationRunner {
    jobs: Api<Job>,
    nodes: Api<Node>,
    template: ValidationTemplate,
    /// The Jobs of which a problem was logged.
    told: BTreeSet<String>,
}

impl ValidationRunner {
    /// Does the next step for a node.
    async fn step(
        &mut self,
        _permit: &Permit,
        node: &NodeName,
        due: &DueValidation,
    ) -> Result<(), ApiRefusal> {
        let found = answer::within(DEADLINE, self.jobs.get_opt(&due.job)).await?;
        let Some(job) = found else {
            let job = self.template.job(&due.job, node);
            let params = PostParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            answer::within(DEADLINE, self.jobs.create(&params, &job)).await?;
            info!(
                "node {node} is validated by Job {}/{}",
                self.template.namespace(),
                due.job
            );
            self.told.remove(&due.job);
            return Ok(());
        };
        match state_of(&job) {
            JobState::Running => Ok(()),
            JobState::Failed(why) => {
                let namespace = self.template.namespace().to_owned();
                self.tell(&due.job, || {
                    warn!(
                        "the validation of node {node} failed: Job {namespace}/{}: {why}; the node stays cordoned. Delete the Job to \
                         repeat it, or remove {VALIDATION_HOOK} from the Node",
                        due.job
                    );
                });
                Ok(())
            }
            JobState::Succeeded => {
                let patch = json!({"metadata": {
                    "uid": due.uid.as_str(),
                    "annotations": {VALIDATION_HOOK: null},
                }});
                let params = PatchParams::apply(FIELD_MANAGER);
                let patch = Patch::Merge(&patch);
                answer::within(DEADLINE, self.nodes.patch(node.as_str(), &params, &patch)).await?;
                info!("the validation of node {node} has succeeded");
                Ok(())
            }
        }
    }

    /// Logs a problem of a Job once.
    fn tell(&mut self, job: &str, message: impl FnOnce()) {
        if self.told.len() >= TOLD_MAX {
            self.told.clear();
        }
        if self.told.insert(job.to_owned()) {
            message();
        }
    }
}

#[cfg(test)]
mod tests;
