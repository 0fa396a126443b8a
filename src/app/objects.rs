//! Writes what is due to NodeMaintenance objects, one after the other, and never holds anybody up.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cluster::maintenances::{self, WriteError};
use crate::cluster::update::{Maintenance, Maintenances, Update};
use crate::gate::{Errand, Gate, Permit};
use crate::telemetry::objects::{Objects, Write};

/// How long changes are gathered after a write. A drain changes with each pod that leaves, and whoever looks reads once a
/// second at most; what comes after a quiet second is written at once.
const GATHER: Duration = Duration::from_secs(1);

/// How long to wait after a refusal. What is due is found anew then, so nothing piles up.
const AFTER_REFUSAL: Duration = Duration::from_secs(5);

/// How often it is looked whether something is due by the mere passing of time.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Runs until `stop`.
pub(super) async fn run(
    client: kube::Client,
    gate: Gate,
    objects: Arc<Objects>,
    told: mpsc::Sender<Update>,
    stop: CancellationToken,
) {
    let mut is_refused = false;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = objects.changed() => {}
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        let mut pause = GATHER;
        for write in objects.due() {
            // Another replica leads, and writes.
            let Ok(permit) = gate.pass(Errand::Record) else {
                pause = AFTER_REFUSAL;
                break;
            };
            // Dropped at a stop in the middle: it is due again at the next start.
            let written = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                written = permit.carry(perform(&permit, &client, &objects, &told, write)) => written,
            };
            let Ok(written) = written else { break };
            if let Err(refusal) = written {
                if !std::mem::replace(&mut is_refused, true) {
                    warn!("{refusal}; episodes go on without, and the record on each Node stands");
                }
                pause = AFTER_REFUSAL;
                objects.look_again();
                break;
            }
            if std::mem::take(&mut is_refused) {
                info!("NodeMaintenance objects are written again");
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn perform(
    permit: &Permit,
    client: &kube::Client,
    objects: &Objects,
    told: &mpsc::Sender<Update>,
    write: Write,
) -> Result<(), WriteError> {
    let written = match write {
        Write::Create { name, spec } => maintenances::create(permit, client, &name, *spec).await,
        Write::Status { name, uid, changes } => {
            match maintenances::write_status(permit, client, &name, Some(&uid), &changes).await {
                // Deleted meanwhile; the watch tells, and what is due then is found anew.
                Err(WriteError::Gone { .. }) => Ok(None),
                written => written.map(Some),
            }
        }
        Write::Delete { name, uid } => maintenances::delete(permit, client, &name, &uid)
            .await
            .map(|()| None),
    }?;
    if let Some(written) = written {
        objects.wrote(&written);
        tell(told, written).await;
    }
    Ok(())
}

/// The hub ends only with the house, and then nobody needs to know.
async fn tell(told: &mpsc::Sender<Update>, written: Maintenance) {
    let seen = Maintenances::Seen(Box::new(written));
    let _ = told.send(Update::Maintenances(seen)).await;
}
