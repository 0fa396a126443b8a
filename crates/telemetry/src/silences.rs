//! Silences in an Alertmanager for the alerts of a node, while it is in maintenance.
//!
//! Like the custom attribute in vCenter, a silence is a state: [`run`] compares what Alertmanager has with the nodes in
//! maintenance, and sets the difference. Nothing is kept in memory, so another process continues with the same silences. Each
//! one ends soon unless it is renewed, so none outlives Haulout for long. No maintenance waits for Alertmanager.

mod client;
pub mod matchers;
mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use haulout_controller::failure_log::FailureStreak;
use haulout_controller::observer::Observer;
use haulout_core::ids::{EpisodeId, NodeName};
use haulout_core::inventory::Inventory;
use haulout_core::maintenance::episode::Record;
use haulout_core::status::NodeStatuses;

pub use client::{AlertmanagerApi, AlertmanagerError, LeaderAlertmanager, silences_in};
pub use plan::{FoundSilence, PostedSilence, SilenceCall, SilenceRules};

/// The shortest time between two looks, so that the changes of many nodes are one.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The pause after a failure doubles up to this.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Requests at once, so that the silences of a rack are set within seconds.
const REQUESTS_AT_ONCE: usize = 4;

/// The known nodes, with the episode during which they are silent.
type SilentNodes = BTreeMap<NodeName, Option<SilentEpisode>>;

/// An episode during which the alerts of its node are silenced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentEpisode {
    pub id: EpisodeId,
    pub host: String,
}

/// The nodes, which the event loop changes and [`run`] reads. Nothing is known before the first complete set.
#[derive(Clone, Debug, Default)]
pub struct SilenceBoard(watch::Sender<Option<SilentNodes>>);

impl Observer for SilenceBoard {
    fn built_by_leader(&self, statuses: &Arc<NodeStatuses>, inventory: &Inventory) {
        self.update_statuses(statuses, inventory.is_synced());
    }
}

impl SilenceBoard {
    /// Updates the nodes. Before the first time that both sources are synced, nothing is known: a silence would be ended because its
    /// node was not listed yet.
    fn update_statuses(&self, statuses: &NodeStatuses, are_synced: bool) {
        self.0.send_if_modified(|known| {
            if known.is_none() && !are_synced {
                return false;
            }
            // What cannot be read says nothing about an episode.
            let nodes = statuses
                .iter()
                .filter(|(_, status)| !matches!(status.record, Record::Unreadable { .. }));
            let nodes = nodes.map(|(node, status)| (node.clone(), silent(&status.record)));
            let all = Some(nodes.collect());
            let is_changed = *known != all;
            *known = all;
            is_changed
        });
    }
}

/// The episode of a node whose alerts are expected: from the cordon until the node is back. While it is queued, the node works.
fn silent(record: &Record) -> Option<SilentEpisode> {
    let away = record.episode().filter(|episode| episode.phase.is_unavailable());
    away.map(|episode| SilentEpisode {
        id: episode.id.clone(),
        host: episode.host.name.to_string(),
    })
}

/// Sets the silences of the nodes on `board` until `stop`. Failed requests are added to `failed`.
pub async fn run(
    api: impl AlertmanagerApi,
    rules: SilenceRules,
    board: SilenceBoard,
    clock: fn() -> Timestamp,
    failed: Counter,
    stop: CancellationToken,
) {
    let mut nodes = board.0.subscribe();
    let mut outage = SilenceOutage::default();
    let work = async {
        // Its sender lives as long as `board`.
        while nodes.wait_for(Option::is_some).await.is_ok() {
            let known = nodes.borrow_and_update().clone().unwrap_or_default();
            let errors = reconcile(&api, &rules, &known, clock()).await;
            let requests = errors.iter().filter(|error| !error.is_of_leadership()).count();
            failed.inc_by(u64::try_from(requests).unwrap_or(u64::MAX));
            let pause = outage.log_result(&errors);
            sleep(pause).await;
            if errors.is_empty() {
                let renewal = async {
                    match known.values().any(Option::is_some) {
                        true => sleep(rules.renewed_every().saturating_sub(pause)).await,
                        false => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    _ = nodes.changed() => {}
                    () = renewal => {}
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = work => {}
    }
}

/// Sets what differs. Returns the errors.
async fn reconcile(
    api: &impl AlertmanagerApi,
    rules: &SilenceRules,
    nodes: &SilentNodes,
    now: Timestamp,
) -> Vec<AlertmanagerError> {
    let found = match api.silences().await {
        Ok(found) => found,
        Err(error) => return vec![error],
    };
    let calls = stream::iter(rules.calls(nodes, &found, now)).map(|call| async move {
        let result = match &call {
            SilenceCall::Post(silence) => api.post(silence).await,
            SilenceCall::Delete { id, .. } => api.delete(id).await,
        };
        if result.is_ok() {
            let node = call.node();
            debug!(%node, "Alertmanager: {}", call.words());
        }
        result.err()
    });
    calls
        .buffer_unordered(REQUESTS_AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await
}

/// Logs an outage and its end.
#[derive(Debug, Default)]
struct SilenceOutage {
    /// The last pause after a failure; zero without an outage.
    pause: Duration,
    failures: FailureStreak,
}

impl SilenceOutage {
    /// Notes the result of a look, and returns the pause after it.
    fn log_result(&mut self, errors: &[AlertmanagerError]) -> Duration {
        let Some(first) = errors.first() else {
            if let Some(count) = self.failures.ended() {
                info!("the silences in Alertmanager are set again, after {count} attempts that failed");
            }
            self.pause = Duration::ZERO;
            return PAUSE_MIN;
        };
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        if first.is_of_leadership() {
            debug!("the silences in Alertmanager are not set: {first}");
        } else if let Some(count) = self.failures.failed() {
            warn!(
                attempts = count,
                "the silences in Alertmanager are not set and are tried again: {first}; alerts of nodes in maintenance may be sent, \
                 and maintenance continues"
            );
        }
        self.pause
    }
}

#[cfg(test)]
mod tests;
