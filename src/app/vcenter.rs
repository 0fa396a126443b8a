//! vCenter for one of several replicas: who stands by asks whether it answers, and the leader logs in.

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

/// How often vCenter is asked whether it answers while no stream stands: several times within the 30 s after which a leader
/// without vCenter yields.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// Waits until this replica leads, then logs in and follows vCenter until `stop`.
pub(super) async fn follow(
    vcenter: Vcenter,
    standing: watch::Receiver<ElectionStatus>,
    clock: fn() -> Timestamp,
    roster: watch::Receiver<WatchSet>,
    out: mpsc::Sender<VsphereUpdate>,
    stop: CancellationToken,
) {
    let leads = stand_by(&vcenter, standing, clock);
    tokio::select! {
        biased;
        () = stop.cancelled() => return,
        () = leads => {}
    }
    updates::run(vcenter, roster, out, stop).await;
}

/// Ends when this replica leads. Until then what the Lease says of a refused login is noted as it changes: credentials that
/// change after that are known to be others.
async fn stand_by(
    vcenter: &Vcenter,
    mut standing: watch::Receiver<ElectionStatus>,
    clock: fn() -> Timestamp,
) {
    let mut noted: Option<RefusedLogin> = None;
    loop {
        let ElectionStatus {
            leadership, refused, ..
        } = standing.borrow_and_update().clone();
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
        if standing.changed().await.is_err() {
            // The election is over, and with it this process.
            std::future::pending::<()>().await;
        }
    }
}

/// Asks vCenter again and again whether it answers, while its stream does not stand.
pub(super) async fn probe(
    vcenter: Vcenter,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let mut hears = health.vcenter_synced();
    loop {
        let pause = if *hears.borrow_and_update() {
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
            Some(PROBE_EVERY)
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
            _ = hears.changed() => {}
            () = pause => {}
        }
    }
}

/// Tells `note` how logins end, for the Lease.
pub(super) fn on_login(note: watch::Sender<LoginNote>, clock: fn() -> Timestamp) -> Callback<LoginOutcome> {
    Callback::new(move |outcome| {
        note.send_replace(match outcome {
            LoginOutcome::Accepted => LoginNote::Remove,
            LoginOutcome::Refused { user } => LoginNote::Write(RefusedLogin { at: clock(), user }),
        });
    })
}
