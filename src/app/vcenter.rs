//! vCenter for several replicas: the leader logs in, and standbys probe it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::Controller;
use super::outputs::Outputs;
use crate::http::health::Health;
use crate::kubernetes::lease::{ElectionStatus, LoginNote, RefusedLogin};
use crate::telemetry::metrics::Metrics;
use crate::vsphere::client::{Callback, LoginOutcome, Vcenter};
use crate::vsphere::policies::EvacuationPolicy;
use crate::vsphere::update::{VsphereUpdate, WatchSet};
use crate::vsphere::updates;

/// Several probes within the 30 s after which a leader without vCenter yields.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Policies rarely change, and each reading is a login in vCenter's events.
const POLICIES_INTERVAL: Duration = Duration::from_secs(3600);

/// When they are read again while vCenter starts: its REST API is there later than SOAP. A VM that a policy shuts down meanwhile looks
/// as if a person had powered it off.
const POLICIES_RETRY: Duration = Duration::from_secs(60);

/// The inputs of what reads vCenter.
pub(super) struct VcenterReads {
    pub(super) vcenter: Vcenter,
    pub(super) election_status: watch::Receiver<ElectionStatus>,
    pub(super) clock: fn() -> Timestamp,
    pub(super) watch_set: watch::Receiver<WatchSet>,
    pub(super) out: mpsc::Sender<VsphereUpdate>,
}

impl Controller {
    /// Starts the stream and the reads of compute policies.
    pub(super) fn read_vcenter(&mut self, reads: VcenterReads, outputs: &Outputs) {
        let stop = self.streams_stop.clone();
        let synced = outputs.health.vcenter_synced();
        let policies = policies(reads.vcenter.clone(), synced, reads.out.clone(), stop.clone());
        self.spawn("compute policies", policies);
        self.spawn("vCenter stream", follow(reads, stop));
    }

    /// Probes vCenter, so that a leader without vCenter can yield to a standby that reaches it.
    pub(super) fn probe_vcenter(&mut self, vcenter: &Vcenter, outputs: &Outputs) {
        let probe = probe(
            vcenter.clone(),
            Arc::clone(&outputs.health),
            Arc::clone(&outputs.metrics),
            self.streams_stop.clone(),
        );
        self.spawn("vCenter probe", probe);
    }
}

/// Waits until this replica leads, then logs in and follows vCenter until `stop`.
async fn follow(reads: VcenterReads, stop: CancellationToken) {
    let leads = stand_by(&reads.vcenter, reads.election_status, reads.clock);
    tokio::select! {
        biased;
        () = stop.cancelled() => return,
        () = leads => {}
    }
    updates::run(reads.vcenter, reads.watch_set, reads.out, stop).await;
}

/// Returns when this replica leads. Until then it follows the note of a refused login on the Lease.
async fn stand_by(
    vcenter: &Vcenter,
    mut election: watch::Receiver<ElectionStatus>,
    clock: fn() -> Timestamp,
) {
    let mut notes = LoginNotes::default();
    loop {
        let status = election.borrow_and_update().clone();
        match notes.changed(&status, clock()) {
            Some(Some((user, ago))) => vcenter.login_was_refused(&user, ago),
            Some(None) => vcenter.login_was_accepted(),
            None => {}
        }
        if status.leadership.is_some() {
            return;
        }
        if election.changed().await.is_err() {
            // The election ended, and the process exits.
            std::future::pending::<()>().await;
        }
    }
}

/// The notes of refused logins on the Lease, as a standby reads them.
#[derive(Debug, Default)]
struct LoginNotes {
    last: Option<RefusedLogin>,
    /// The Lease was read before, so that a new note is one of a moment ago.
    is_watched: bool,
}

impl LoginNotes {
    /// Returns a note that has changed: the user who was refused, and how long ago. A note that is there when the Lease is read for the
    /// first time may be old, so its age is the difference of the clocks of two machines, of which one may be wrong. A later note is of
    /// this moment.
    fn changed(&mut self, status: &ElectionStatus, now: Timestamp) -> Option<Option<(String, Duration)>> {
        let is_watched = self.is_watched;
        self.is_watched |= status.leader.is_some() || status.refused.is_some();
        if status.refused == self.last {
            return None;
        }
        self.last.clone_from(&status.refused);
        Some(status.refused.as_ref().map(|refused| {
            let ago = if is_watched {
                Duration::ZERO
            } else {
                refused.ago(now)
            };
            (refused.user.clone(), ago)
        }))
    }
}

/// Probes vCenter while its stream is not synced.
async fn probe(vcenter: Vcenter, health: Arc<Health>, metrics: Arc<Metrics>, stop: CancellationToken) {
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

/// Reads the compute policies of vCenter when its stream is synced, and then once an hour.
async fn policies(
    vcenter: Vcenter,
    mut synced: watch::Receiver<bool>,
    out: mpsc::Sender<VsphereUpdate>,
    stop: CancellationToken,
) {
    let mut known = Vec::new();
    // An account without the right to read them, or a proxy without the REST API, is reported once.
    let mut is_told = false;
    let work = async {
        // Its sender lives as long as the process.
        while synced.wait_for(|synced| *synced).await.is_ok() {
            let mut pause = POLICIES_INTERVAL;
            match vcenter.evacuation_policies().await {
                Ok(policies) => {
                    let vms = policies.iter().flat_map(|policy| policy.vms.iter().cloned());
                    let update = VsphereUpdate::EvacuationPolicies { vms: vms.collect() };
                    if out.send(update).await.is_err() {
                        return;
                    }
                    if policies != known {
                        log_policies(&policies);
                    }
                    (known, is_told) = (policies, false);
                }
                Err(error) if error.is_not_there() => debug!("this vCenter has no compute policies"),
                Err(error) => {
                    if error.may_pass() {
                        pause = POLICIES_RETRY;
                    }
                    if std::mem::replace(&mut is_told, true) {
                        debug!("the compute policies cannot be read: {}", error.chain());
                    } else {
                        info!(
                            "the compute policies of vCenter cannot be read, so it is not known whether one of them shuts VMs down: {}",
                            error.chain()
                        );
                    }
                }
            }
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = work => {}
    }
}

fn log_policies(policies: &[EvacuationPolicy]) {
    for policy in policies {
        info!(
            policy = policy.name,
            vms = policy.vms.len(),
            "a compute policy makes vCenter shut VMs down when their hosts enter maintenance"
        );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_that_a_standby_sees_is_of_that_moment_whatever_the_clocks_say() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let status = |second: Option<i64>| ElectionStatus {
            leader: Some("another".to_owned()),
            refused: second.map(|second| RefusedLogin {
                at: at(second),
                user: "haulout".to_owned(),
            }),
            ..ElectionStatus::default()
        };
        let refused = |seconds| Some(Some(("haulout".to_owned(), Duration::from_secs(seconds))));
        let mut notes = LoginNotes::default();
        assert_eq!(notes.changed(&ElectionStatus::default(), at(1_000)), None);
        assert_eq!(notes.changed(&status(Some(900)), at(1_000)), refused(100));
        assert_eq!(notes.changed(&status(Some(900)), at(1_010)), None);
        // The clock of the leader was set back by an hour.
        assert_eq!(notes.changed(&status(Some(-2_600)), at(1_020)), refused(0));
        assert_eq!(notes.changed(&status(None), at(1_030)), Some(None));
    }
}
