//! vCenter for several replicas: the leader logs in, and standbys probe it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::http::health::Health;
use crate::kubernetes::lease::{ElectionStatus, LoginNote, RefusedLogin};
use crate::telemetry::metrics::Metrics;
use crate::vsphere::client::{Callback, LoginOutcome, Vcenter};
use crate::vsphere::update::{VsphereUpdate, WatchSet};
use crate::vsphere::updates;

/// Several probes within the 30 s after which a leader without vCenter yields.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Waits until this replica leads, then logs in and follows vCenter until `stop`.
pub(super) async fn follow(
    vcenter: Vcenter,
    election: watch::Receiver<ElectionStatus>,
    clock: fn() -> Timestamp,
    watch_set: watch::Receiver<WatchSet>,
    out: mpsc::Sender<VsphereUpdate>,
    stop: CancellationToken,
) {
    let leads = stand_by(&vcenter, election, clock);
    tokio::select! {
        biased;
        () = stop.cancelled() => return,
        () = leads => {}
    }
    updates::run(vcenter, watch_set, out, stop).await;
}

/// Returns when this replica leads. Until then it follows the note of a refused login on the Lease.
async fn stand_by(
    vcenter: &Vcenter,
    mut election: watch::Receiver<ElectionStatus>,
    clock: fn() -> Timestamp,
) {
    let mut noted: Option<RefusedLogin> = None;
    loop {
        let ElectionStatus {
            leadership, refused, ..
        } = election.borrow_and_update().clone();
        if refused != noted {
            match &refused {
                Some(refused) => vcenter.login_was_refused(&refused.user, refused.ago(clock())),
                None => vcenter.login_was_accepted(),
            }
            noted = refused;
        }
        if leadership.is_some() {
            return;
        }
        if election.changed().await.is_err() {
            // The election ended, and the process exits.
            std::future::pending::<()>().await;
        }
    }
}

/// Probes vCenter while its stream is not synced.
pub(super) async fn probe(
    vcenter: Vcenter,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let mut synced = health.vcenter_synced();
    loop {
        let pause = if *synced.borrow_and_update() {
            None
        } else {
            let answer = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                answer = vcenter.probe() => answer.map_err(|error| error.chain()),
            };
            let why = answer.clone().err();
            if health.vcenter_probed(answer) {
                match why {
                    None => info!("vCenter answers the probe"),
                    Some(why) => warn!("vCenter does not answer the probe: {why}"),
                }
            }
            Some(PROBE_INTERVAL)
        };
        metrics.set_vcenter_reachable(*health.vcenter_reachable().borrow());
        let pause = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            // Its sender lives as long as `health`.
            _ = synced.changed() => {}
            () = pause => {}
        }
    }
}

/// Writes the result of logins to `note`, for the Lease.
pub(super) fn on_login(note: watch::Sender<LoginNote>, clock: fn() -> Timestamp) -> Callback<LoginOutcome> {
    Callback::new(move |outcome| {
        note.send_replace(match outcome {
            LoginOutcome::Accepted => LoginNote::Remove,
            LoginOutcome::Refused { user } => LoginNote::Write(RefusedLogin { at: clock(), user }),
        });
    })
}
