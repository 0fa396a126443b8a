//! Posts the queued texts: several nodes at once, those of one node one after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Outbox;
use super::queue::LoggedText;
use crate::fence::{WriteFence, WriteKind};
use crate::ids::NodeName;
use crate::vsphere::WritePermit;
use crate::vsphere::client::{LoggedEvent, Vcenter};
use crate::vsphere::fault::FaultKind;
use crate::vsphere::privileges::Entity;

/// Nodes whose texts are posted at once, so that an object for which vCenter does not answer holds up few
/// others.
const NODES_AT_ONCE: usize = 4;

/// How long events on objects of one kind are left out after vCenter refused one for good. An
/// administrator who then grants the privilege needs no restart.
const LEFT_OUT_FOR: Duration = Duration::from_secs(60 * 60);

/// Logs one event in vCenter.
pub trait LogEvent: Sync {
    /// Logs `text` on `entity`, within a deadline.
    fn log(&self, node: &NodeName, entity: &Entity, text: &str) -> impl Future<Output = PostOutcome> + Send;
}

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostOutcome {
    /// vCenter has the event, or the object is gone.
    Done,
    /// It may work later.
    Later(String),
    /// It does not work for objects of this kind, until a person changes something.
    Refused(String),
}

/// Logs events while this replica leads.
#[derive(Debug)]
pub struct LeaderLog {
    pub vcenter: Vcenter,
    pub fence: WriteFence,
}

/// The leadership in which an event is logged. It is not held during the call: nothing depends on an event, so
/// a late one is harmless, and a call without an answer must not hold up the release of the Lease.
#[derive(Debug)]
pub(in crate::telemetry) struct EventPermit {
    epoch: u64,
}

impl EventPermit {
    pub(in crate::telemetry) fn of(permit: &impl WritePermit) -> Self {
        Self {
            epoch: permit.epoch(),
        }
    }
}

impl WritePermit for EventPermit {
    fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl LogEvent for LeaderLog {
    async fn log(&self, node: &NodeName, entity: &Entity, text: &str) -> PostOutcome {
        let permit = match self.fence.permit(WriteKind::Effect) {
            Ok(permit) => EventPermit::of(&permit),
            Err(closed) => return PostOutcome::Later(closed.to_string()),
        };
        let vcenter = self.vcenter.about(node.as_str());
        let error = match vcenter.log_event(&permit, entity, text).await {
            Ok(LoggedEvent::Logged) => return PostOutcome::Done,
            Ok(LoggedEvent::NoSession) => return PostOutcome::Later("there is no session".to_owned()),
            Err(error) => error,
        };
        let kind = error.fault().map(|fault| &fault.kind);
        if kind == Some(&FaultKind::ManagedObjectNotFound) {
            return PostOutcome::Done;
        }
        let is_final = matches!(
            kind,
            Some(FaultKind::NoPermission | FaultKind::NotSupported | FaultKind::MethodDisabled)
        );
        if is_final {
            PostOutcome::Refused(error.chain())
        } else {
            PostOutcome::Later(error.chain())
        }
    }
}

/// Posts what is in `outbox` until `stop`. Lost texts are added to `lost`.
pub async fn run(log: impl LogEvent, outbox: Outbox, lost: Counter, stop: CancellationToken) {
    let mut refusals = EventRefusals::default();
    let mut posting = FuturesUnordered::new();
    loop {
        while posting.len() < NODES_AT_ONCE
            && let Some((node, mut post)) = outbox.with(|queue| queue.take(Instant::now()))
        {
            post.on.retain(|entity| refusals.allow(entity, Instant::now()));
            posting.push(send(&log, node, post));
        }
        let due = match posting.len() < NODES_AT_ONCE {
            true => outbox.with(|queue| queue.next_due()),
            false => None,
        };
        let due = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        // Priority: shutdown, results, new texts.
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some((node, post, refused)) = posting.next() => {
                refusals.note(refused, Instant::now());
                let newly_lost = outbox.with(|queue| {
                    queue.sent(&node, post, Instant::now());
                    queue.take_lost()
                });
                if newly_lost > 0 {
                    lost.inc_by(newly_lost);
                    warn!(%node, "an event was not logged in vCenter and is not tried again; what happens is in the log");
                }
            }
            () = outbox.0.queued.notified() => {}
            () = due => {}
        }
    }
}

/// Logs `post` on each of its objects. Returns it with the objects that are left, and the refusals.
async fn send(
    log: &impl LogEvent,
    node: NodeName,
    mut post: LoggedText,
) -> (NodeName, LoggedText, Vec<(Entity, String)>) {
    let (mut left, mut refused) = (Vec::new(), Vec::new());
    for entity in std::mem::take(&mut post.on) {
        match log.log(&node, &entity, &post.text).await {
            PostOutcome::Done => {}
            PostOutcome::Later(why) => {
                debug!(%node, "an event was not logged in vCenter and is tried again: {why}");
                left.push(entity);
            }
            PostOutcome::Refused(why) => refused.push((entity, why)),
        }
    }
    post.on = left;
    (node, post, refused)
}

/// The kinds of objects on which vCenter refuses events.
#[derive(Debug, Default)]
struct EventRefusals {
    until: BTreeMap<&'static str, Instant>,
    was_logged: bool,
}

impl EventRefusals {
    fn allow(&self, entity: &Entity, now: Instant) -> bool {
        self.until
            .get(entity.kind_words())
            .is_none_or(|until| *until <= now)
    }

    fn note(&mut self, refused: Vec<(Entity, String)>, now: Instant) {
        for (entity, why) in refused {
            let kind = entity.kind_words();
            self.until.insert(kind, now + LEFT_OUT_FOR);
            if !self.was_logged {
                self.was_logged = true;
                warn!(
                    "events are not logged in vCenter on {kind}: {why}; maintenance continues without them. Grant Global.LogEvent, or \
                     leave events out of VCENTER_REPORT"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
