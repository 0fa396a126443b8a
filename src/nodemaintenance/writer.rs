//! Writes what is due to NodeMaintenance objects, one after the other, and never holds anybody up. An object that is
//! refused delays no other.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::api::{self, WriteError};
use super::objects::{ObjectWrite, StatusReconciler};
use super::refused::RefusedWrites;
use crate::fence::{Permit, WriteFence, WriteKind};
use crate::kubernetes::update::{KubernetesUpdate, NodeMaintenanceFacts, NodeMaintenanceUpdate};

/// How long changes are gathered after a write. A drain changes with each pod that leaves, and whoever looks reads once a
/// second at most; what comes after a quiet second is written at once.
const GATHER: Duration = Duration::from_secs(1);

/// How long to wait where nothing can be written at all: another replica leads, or the kube-apiserver does not answer.
/// What is due is found anew then, so nothing piles up.
const AFTER_OUTAGE: Duration = Duration::from_secs(5);

/// How often it is looked whether something is due by the mere passing of time.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// After how many writes in a row without any answer the rest of them is put off. One object may have a webhook that
/// hangs; a kube-apiserver that does not answer does so for all, and each costs a deadline.
const UNANSWERED_MAX: usize = 3;

/// Runs until `stop`. `count_refused` takes how many writes were refused or not answered.
pub async fn run(
    client: kube::Client,
    fence: WriteFence,
    objects: Arc<StatusReconciler>,
    count_refused: impl Fn(u64) + Send,
    told: mpsc::Sender<KubernetesUpdate>,
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
                // Another replica leads, and writes.
                let permit = fence.permit(WriteKind::Record).ok()?;
                let writing = perform(&permit, &client, &objects, &told, write);
                permit.run(writing).await.ok()
            };
            // Dropped at a stop in the middle: it is due again at the next start.
            let attempt = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                attempt = attempt => attempt,
            };
            if pass.note(name, attempt, &mut refused).is_break() {
                break;
            }
        }
        count_refused(pass.refused);
        let pause = if pass.is_cut_short {
            objects.look_again();
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

/// What came of one pass over what was due.
#[derive(Debug, Default)]
struct Pass {
    /// How many writes were refused, or not answered.
    refused: u64,
    /// How many of the latest in a row were not answered.
    unanswered: usize,
    /// Not everything was tried.
    is_cut_short: bool,
}

impl Pass {
    /// Takes what came of the attempt to write `name`; `None` where this replica may not write. Breaks where the rest
    /// is not to be tried.
    fn note(
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
    told: &mpsc::Sender<KubernetesUpdate>,
    write: ObjectWrite,
) -> Result<(), WriteError> {
    let written = match write {
        ObjectWrite::Create { name, spec } => api::create(permit, client, &name, *spec).await,
        ObjectWrite::Status { name, uid, changes } => {
            match api::write_status(permit, client, &name, Some(&uid), &changes).await {
                // Deleted meanwhile; the watch tells, and what is due then is found anew.
                Err(WriteError::Gone { .. }) => Ok(None),
                written => written.map(Some),
            }
        }
        ObjectWrite::Delete { name, uid } => api::delete(permit, client, &name, &uid).await.map(|()| None),
    }?;
    if let Some(written) = written {
        objects.wrote(&written);
        tell(told, written).await;
    }
    Ok(())
}

/// The hub ends only with the house, and then nobody needs to know.
async fn tell(told: &mpsc::Sender<KubernetesUpdate>, written: NodeMaintenanceFacts) {
    let seen = NodeMaintenanceUpdate::Seen(Box::new(written));
    let _ = told.send(KubernetesUpdate::Maintenances(seen)).await;
}

#[cfg(test)]
mod tests;
