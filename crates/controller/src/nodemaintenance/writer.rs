//! Writes NodeMaintenance objects, one after the other. An object that is refused delays no other.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::api::{self, WriteError, WriteIf};
use super::due_write::{ObjectWrite, has_record};
use super::foreign;
use super::objects::StatusReconciler;
use super::refused::RefusedWrites;
use haulout_kubernetes::fence::{Permit, WriteFence, WriteKind};
use haulout_kubernetes::update::{KubernetesUpdate, NodeMaintenanceFacts, NodeMaintenanceUpdate};

/// The pause after a pass, in which changes are collected. A drain changes with each pod.
const GATHER: Duration = Duration::from_secs(1);

/// The pause if nothing can be written: another replica leads, or the kube-apiserver does not answer.
const AFTER_OUTAGE: Duration = Duration::from_secs(5);

/// The interval of passes without a change, because some writes become due by time alone.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// After this many writes in a row without a reply the pass ends. One object may have a webhook that hangs; after several, the
/// kube-apiserver itself does not answer, and each write costs a deadline.
const UNANSWERED_MAX: usize = 3;

/// Runs until `stop`. `count_refused` gets the number of writes that were refused or not answered.
pub async fn run(
    client: kube::Client,
    fence: WriteFence,
    objects: Arc<StatusReconciler>,
    count_refused: impl Fn(u64) + Send,
    out: mpsc::Sender<KubernetesUpdate>,
    stop: CancellationToken,
) {
    let mut refused = RefusedWrites::default();
    loop {
        let look_again = refused.next().min(Instant::now() + LOOK_AGAIN);
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = objects.changed() => {}
            () = tokio::time::sleep_until(look_again) => {}
        }
        let now = Instant::now();
        let due = objects.due(|name| refused.is_held(name, now));
        let mut pass = Pass::default();
        for write in due {
            let name = write.name().to_owned();
            let attempt = async {
                // Without a permit another replica leads, and writes.
                let permit = fence.permit(WriteKind::Record).ok()?;
                let writing = perform(&permit, &client, &objects, &out, write);
                permit.run(writing).await.ok()
            };
            // A write that is dropped at a stop is due again after the next start.
            let attempt = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                attempt = attempt => attempt,
            };
            if pass.add_result(name, attempt, &mut refused).is_break() {
                break;
            }
        }
        count_refused(pass.refused);
        let pause = if pass.is_cut_short {
            objects.wake();
            AFTER_OUTAGE
        } else {
            GATHER
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The result of one pass over the due writes.
#[derive(Debug, Default)]
struct Pass {
    /// The number of writes that were refused or not answered.
    refused: u64,
    /// The number of the latest writes in a row that were not answered.
    unanswered: usize,
    /// The pass ended early.
    is_cut_short: bool,
}

impl Pass {
    /// Processes the result of a write of `name`; `None` if this replica may not write. Breaks if the pass has to end.
    fn add_result(
        &mut self,
        name: String,
        attempt: Option<Result<(), WriteError>>,
        refused: &mut RefusedWrites,
    ) -> ControlFlow<()> {
        match attempt {
            None => self.is_cut_short = true,
            Some(Ok(())) => {
                self.unanswered = 0;
                refused.written(&name);
            }
            Some(Err(error)) => {
                self.refused += 1;
                let is_answered = match &error {
                    WriteError::Unreachable { .. } => false,
                    WriteError::Refused { .. } | WriteError::Gone { .. } => true,
                };
                refused.add(name, &error, is_answered, Instant::now());
                self.unanswered = if is_answered { 0 } else { self.unanswered + 1 };
                self.is_cut_short = self.unanswered == UNANSWERED_MAX;
            }
        }
        if self.is_cut_short {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

async fn perform(
    permit: &Permit,
    client: &kube::Client,
    objects: &StatusReconciler,
    out: &mpsc::Sender<KubernetesUpdate>,
    write: ObjectWrite,
) -> Result<(), WriteError> {
    let foreign_api = match &write {
        ObjectWrite::Foreign(write) => Some(write.origin.api),
        ObjectWrite::Create { .. } | ObjectWrite::Status { .. } | ObjectWrite::Delete { .. } => None,
    };
    let update = match write {
        ObjectWrite::Create { name, spec } => {
            let created = api::create(permit, client, &name, *spec).await?;
            created.map(|object| NodeMaintenanceUpdate::Seen(Box::new(object)))
        }
        ObjectWrite::Status {
            name,
            uid,
            version,
            changes,
        } => {
            // Without its Node an episode continues on the copy, which may have a newer record by now.
            let condition = match has_record(&changes) {
                true => WriteIf::Version(Some(version)),
                false => WriteIf::Uid(&uid),
            };
            answered(api::write_status(permit, client, &name, condition, &changes).await)?
        }
        ObjectWrite::Delete { name, uid } => {
            api::delete(permit, client, &name, &uid).await?;
            None
        }
        ObjectWrite::Foreign(write) => answered(foreign::write_status(permit, client, &write).await)?,
    };
    if let Some(update) = update {
        objects.wrote(foreign_api, update.clone());
        let update = match foreign_api {
            Some(api) => KubernetesUpdate::ForeignMaintenances(api, update),
            None => KubernetesUpdate::Maintenances(update),
        };
        // An error means that the process stops.
        let _ = out.send(update).await;
    }
    Ok(())
}

fn answered(
    reply: Result<NodeMaintenanceFacts, WriteError>,
) -> Result<Option<NodeMaintenanceUpdate>, WriteError> {
    match reply {
        Ok(object) => Ok(Some(NodeMaintenanceUpdate::Answered(Box::new(object)))),
        // The object was deleted meanwhile, which the watch will show.
        Err(WriteError::Gone { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
