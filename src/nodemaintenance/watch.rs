//! Watches NodeMaintenance objects and sends [`NodeMaintenanceUpdate`]s. If the kind is not installed there are no objects.

use std::pin::{Pin, pin};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::api::{concerns, facts};
use super::kept::{Kept, KeptAdmission};
use super::kind::NodeMaintenance;
use crate::ids::RequestUid;
use crate::kubernetes::update::{KubernetesUpdate, NodeMaintenanceUpdate};
use crate::kubernetes::watch::{Backoff, Settings, code, pause, said, tell};

/// How often to check whether the kind has been installed.
const LOOK_FOR_KIND: Duration = Duration::from_secs(60);

/// Objects per page of the list. An object may have 1.5 MiB; most have some KiB.
const PAGE: u32 = 100;

/// Sends updates of all requests, and of the episodes of nodes of `selector`, until `stop`.
pub async fn run(
    client: kube::Client,
    selector: String,
    settings: Settings,
    out: mpsc::Sender<KubernetesUpdate>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new(&settings);
    let mut kept = Kept::default();
    let mut is_missed = false;
    loop {
        let api: Api<NodeMaintenance> = Api::all(client.clone());
        let events = pin!(watcher(api, settings.watcher().page_size(PAGE)));
        let broke = match follow(events, &selector, &mut kept, &out, &stop, &mut backoff).await {
            Ok(()) => return,
            Err(broke) => broke,
        };
        let (update, wait) = match broke {
            WatchBroke::NoSuchKind => {
                if !std::mem::replace(&mut is_missed, true) {
                    info!(
                        "the kind NodeMaintenance (haulout.dev/v1alpha1) is not installed: there are no requests and no copies of records"
                    );
                }
                for update in [NodeMaintenanceUpdate::Reset, NodeMaintenanceUpdate::Settled] {
                    if !tell(&out, &stop, KubernetesUpdate::Maintenances(update)).await {
                        return;
                    }
                }
                (None, LOOK_FOR_KIND)
            }
            WatchBroke::Otherwise { why, refused } => {
                is_missed = false;
                let why = format!("the watch of NodeMaintenances broke: {why}");
                (Some(NodeMaintenanceUpdate::Lost { why, refused }), backoff.next())
            }
        };
        if let Some(update) = update
            && !tell(&out, &stop, KubernetesUpdate::Maintenances(update)).await
        {
            return;
        }
        if !pause(&stop, wait).await {
            return;
        }
    }
}

enum WatchBroke {
    NoSuchKind,
    Otherwise {
        why: String,
        /// The kube-apiserver answered 401 or 403.
        refused: bool,
    },
}

/// Sends updates until the watch breaks; `Ok` at `stop`.
async fn follow(
    mut events: Pin<&mut impl Stream<Item = watcher::Result<Event<NodeMaintenance>>>>,
    selector: &str,
    kept: &mut Kept,
    out: &mpsc::Sender<KubernetesUpdate>,
    stop: &CancellationToken,
    backoff: &mut Backoff,
) -> Result<(), WatchBroke> {
    let mut is_reset_due = false;
    loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            event = events.next() => event,
        };
        let mut displaced = None;
        let update = match event {
            Some(Ok(Event::Init)) => {
                is_reset_due = true;
                kept.clear();
                continue;
            }
            Some(Ok(Event::InitApply(object) | Event::Apply(object) | Event::Delete(object)))
                if !concerns(&object, selector) =>
            {
                continue;
            }
            Some(Ok(Event::InitApply(object) | Event::Apply(object))) => {
                let seen = facts(&object);
                match kept.seen(&seen) {
                    KeptAdmission::Kept => {}
                    KeptAdmission::InPlaceOf(name, uid) => {
                        displaced = Some(NodeMaintenanceUpdate::Gone { name, uid })
                    }
                    KeptAdmission::Ignored => continue,
                }
                NodeMaintenanceUpdate::Seen(Box::new(seen))
            }
            Some(Ok(Event::InitDone)) => {
                backoff.settled();
                NodeMaintenanceUpdate::Settled
            }
            Some(Ok(Event::Delete(object))) => {
                let name = object.metadata.name.unwrap_or_default();
                let uid = RequestUid::new(object.metadata.uid.unwrap_or_default());
                if !kept.gone(&name, &uid) {
                    continue;
                }
                NodeMaintenanceUpdate::Gone { name, uid }
            }
            Some(Err(watcher::Error::InitialListFailed(kube::Error::Api(status)))) if status.code == 404 => {
                return Err(WatchBroke::NoSuchKind);
            }
            Some(Err(error)) => {
                return Err(WatchBroke::Otherwise {
                    why: said(&error),
                    refused: matches!(code(&error), Some(401 | 403)),
                });
            }
            None => {
                return Err(WatchBroke::Otherwise {
                    why: "it ended".to_owned(),
                    refused: false,
                });
            }
        };
        let reset = std::mem::take(&mut is_reset_due).then_some(NodeMaintenanceUpdate::Reset);
        for update in reset.into_iter().chain(displaced).chain([update]) {
            if !tell(out, stop, KubernetesUpdate::Maintenances(update)).await {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests;
