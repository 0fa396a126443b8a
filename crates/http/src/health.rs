//! Liveness and readiness, each as a list of checks.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use haulout_controller::observer::{ConnectionState, Observer, WatchedApi};
use haulout_core::inventory::Inventory;
use haulout_kubernetes::lease::ElectionStatus;
use haulout_telemetry::metrics::Degraded;

/// The event loop counts as stalled after this time without progress. It needs a second for thousands
/// of nodes, and does not recover from a longer stall.
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// The state of the checks.
#[derive(Debug)]
pub struct Health {
    state: Mutex<HealthState>,
    vcenter_synced: watch::Sender<bool>,
    /// vCenter is synced, or answered the latest probe.
    vcenter_reachable: watch::Sender<bool>,
}

#[derive(Debug)]
struct HealthState {
    last_progress: Instant,
    vcenter: Result<(), String>,
    /// The result of the latest probe, if any.
    probe: Option<Result<(), String>>,
    kubernetes: Result<(), String>,
    leadership: Option<String>,
    is_standby: bool,
    /// Parts without which the controller works, with the reason.
    degraded: BTreeMap<Degraded, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthCheck {
    pub name: &'static str,
    /// The reason of a failure.
    pub failure: Option<String>,
    /// Details if it passes.
    pub detail: Option<String>,
}

impl HealthCheck {
    fn new(name: &'static str, failure: Option<String>, detail: Option<String>) -> Self {
        Self {
            name,
            failure,
            detail,
        }
    }
}

/// The health of a new process: nothing is synced.
impl Default for Health {
    fn default() -> Self {
        let not_synced = |who: &str| Err(format!("{who} has not synced yet"));
        let state = HealthState {
            last_progress: Instant::now(),
            vcenter: not_synced("vCenter"),
            probe: None,
            kubernetes: not_synced("Kubernetes"),
            leadership: None,
            is_standby: false,
            degraded: BTreeMap::new(),
        };
        Self {
            state: Mutex::new(state),
            vcenter_synced: watch::Sender::new(false),
            vcenter_reachable: watch::Sender::new(false),
        }
    }
}

impl Health {
    pub fn vcenter_synced(&self) -> watch::Receiver<bool> {
        self.vcenter_synced.subscribe()
    }

    /// Whether vCenter is synced, or answered the latest probe.
    pub fn vcenter_reachable(&self) -> watch::Receiver<bool> {
        self.vcenter_reachable.subscribe()
    }

    /// Sets the sync state of vCenter, or why it is not synced.
    fn vcenter(&self, synced: Result<(), String>) {
        let is_synced = synced.is_ok();
        self.state.lock().vcenter = synced;
        set(&self.vcenter_synced, is_synced);
        self.update_reachable();
    }

    /// Sets the result of a probe. Returns whether success or failure changed.
    pub fn vcenter_probed(&self, answered: Result<(), String>) -> bool {
        let is_answered = answered.is_ok();
        let before = self.state.lock().probe.replace(answered);
        self.update_reachable();
        before.is_none_or(|before| before.is_ok() != is_answered)
    }

    fn update_reachable(&self) {
        let state = self.state.lock();
        let is_reachable = state.vcenter.is_ok() || state.probe == Some(Ok(()));
        drop(state);
        set(&self.vcenter_reachable, is_reachable);
    }

    /// Sets the sync state of Kubernetes, or why it is not synced.
    fn kubernetes(&self, synced: Result<(), String>) {
        self.state.lock().kubernetes = synced;
    }

    /// With leader election: sets who leads, as text, and whether this replica is a standby.
    fn leadership(&self, who: String, is_standby: bool) {
        let mut state = self.state.lock();
        state.leadership = Some(who);
        state.is_standby = is_standby;
    }

    /// Sets the reason why `part` is degraded, or clears it. `/readyz?verbose` shows it; the controller
    /// stays ready.
    fn degraded(&self, part: Degraded, reason: Option<String>) {
        let degraded = &mut self.state.lock().degraded;
        match reason {
            Some(reason) => degraded.insert(part, reason),
            None => degraded.remove(&part),
        };
    }

    /// Liveness: a failure means that a restart would help. vCenter is not part of it.
    pub(crate) fn live(&self) -> Vec<HealthCheck> {
        let stalled = self.state.lock().last_progress.elapsed();
        let failure = (stalled > STALL_LIMIT)
            .then(|| format!("the event loop has made no progress for {} s", stalled.as_secs()));
        vec![HealthCheck::new("event-loop", failure, None)]
    }

    /// Readiness: the controller knows enough to decide. Leadership is shown only: a standby that is
    /// synced with Kubernetes and reaches vCenter is ready to take over, and a rollout must not wait
    /// until it leads.
    pub(crate) fn ready(&self) -> Vec<HealthCheck> {
        let mut checks = self.live();
        let state = self.state.lock();
        let not_probed = Err("vCenter has not been probed yet".to_owned());
        let vcenter = if state.is_standby {
            state.probe.as_ref().unwrap_or(&not_probed)
        } else {
            &state.vcenter
        };
        for (name, synced) in [("vcenter", vcenter), ("kubernetes", &state.kubernetes)] {
            let failure = synced.as_ref().err().cloned();
            checks.push(HealthCheck::new(name, failure, None));
        }
        if let Some(who) = &state.leadership {
            checks.push(HealthCheck::new("leadership", None, Some(who.clone())));
        }
        for (part, reason) in &state.degraded {
            let detail = format!("degraded: {reason}");
            checks.push(HealthCheck::new(part.name(), None, Some(detail)));
        }
        checks
    }
}

impl Observer for Health {
    fn turned(&self) {
        self.state.lock().last_progress = Instant::now();
    }

    fn election(&self, _lease: &str, status: &ElectionStatus) {
        let who = match (&status.leadership, &status.leader) {
            (Some(leadership), _) if leadership.yields => format!(
                "this replica leads, epoch {}, and yields to one that reaches vCenter",
                leadership.epoch
            ),
            (Some(leadership), _) => format!("this replica leads, epoch {}", leadership.epoch),
            (None, Some(leader)) => format!("{leader} leads"),
            (None, None) => "no replica leads".to_owned(),
        };
        self.leadership(who, status.leadership.is_none());
    }

    fn connection(&self, api: WatchedApi, state: ConnectionState<'_>) {
        let synced = state.synced().map_err(str::to_owned);
        match api {
            WatchedApi::Vcenter => self.vcenter(synced),
            WatchedApi::Kubernetes => self.kubernetes(synced),
        }
    }

    fn applied(&self, inventory: &Inventory) {
        for (part, reason) in Degraded::parts(inventory) {
            self.degraded(part, reason);
        }
    }
}

fn set(sender: &watch::Sender<bool>, value: bool) {
    sender.send_if_modified(|current| std::mem::replace(current, value) != value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(checks: &[HealthCheck]) -> Vec<&'static str> {
        let failing = checks.iter().filter(|check| check.failure.is_some());
        failing.map(|check| check.name).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_event_loop_is_not_alive_until_it_recovers() {
        let health = Health::default();
        assert!(failing(&health.live()).is_empty());
        tokio::time::advance(STALL_LIMIT + Duration::from_secs(1)).await;
        assert_eq!(
            health.live()[0].failure.as_deref(),
            Some("the event loop has made no progress for 31 s")
        );
        health.turned();
        assert!(failing(&health.live()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn ready_needs_vcenter_and_kubernetes_and_alive_neither() {
        let health = Health::default();
        assert_eq!(failing(&health.ready()), ["vcenter", "kubernetes"]);
        health.kubernetes(Ok(()));
        assert_eq!(failing(&health.ready()), ["vcenter"]);
        health.vcenter(Ok(()));
        assert!(failing(&health.ready()).is_empty());
        assert!(*health.vcenter_synced().borrow());
        health.vcenter(Err("connection refused".to_owned()));
        assert!(!*health.vcenter_synced().borrow());
        assert_eq!(failing(&health.ready()), ["vcenter"]);
        assert!(failing(&health.live()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn standby_that_reaches_vcenter_is_ready() {
        let health = Health::default();
        health.kubernetes(Ok(()));
        health.leadership("haulout-0 leads".to_owned(), true);
        assert_eq!(failing(&health.ready()), ["vcenter"]);
        assert!(
            health.vcenter_probed(Err("no route".to_owned())),
            "the first answer is a change"
        );
        assert!(!health.vcenter_probed(Err("timed out".to_owned())));
        assert_eq!(failing(&health.ready()), ["vcenter"]);
        assert!(health.vcenter_probed(Ok(())));
        let checks = health.ready();
        assert!(failing(&checks).is_empty());
        let details: Vec<_> = checks
            .iter()
            .filter_map(|check| check.detail.as_deref())
            .collect();
        assert_eq!(details, ["haulout-0 leads"]);
    }

    #[tokio::test(start_paused = true)]
    async fn leader_is_ready_when_vcenter_is_synced() {
        let health = Health::default();
        health.kubernetes(Ok(()));
        health.vcenter_probed(Ok(()));
        health.leadership("this replica leads".to_owned(), false);
        assert_eq!(failing(&health.ready()), ["vcenter"]);
        health.vcenter(Ok(()));
        health.vcenter_probed(Err("no route".to_owned()));
        assert!(failing(&health.ready()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn vcenter_is_reachable_by_stream_or_probe() {
        let health = Health::default();
        let update_reachable = health.vcenter_reachable();
        let lost = || Err("cut off".to_owned());
        for (stream, probe, expected) in [
            (lost(), lost(), false),
            (lost(), Ok(()), true),
            (Ok(()), Ok(()), true),
            (Ok(()), lost(), true),
            (lost(), lost(), false),
        ] {
            health.vcenter(stream);
            health.vcenter_probed(probe);
            assert_eq!(*update_reachable.borrow(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn degraded_part_is_shown_and_stays_ready() {
        let health = Health::default();
        health.kubernetes(Ok(()));
        health.vcenter(Ok(()));
        let degraded =
            |reason: Option<&str>| health.degraded(Degraded::NodeMaintenances, reason.map(str::to_owned));
        degraded(Some("gone"));
        degraded(Some("refused"));
        let checks = health.ready();
        assert!(failing(&checks).is_empty());
        let check = checks
            .iter()
            .find(|check| check.name == "node-maintenances")
            .unwrap();
        assert_eq!(check.detail.as_deref(), Some("degraded: refused"));
        degraded(None);
        assert_eq!(health.ready().len(), 3);
    }
}
