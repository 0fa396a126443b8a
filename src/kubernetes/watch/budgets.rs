//! Watches the PodDisruptionBudgets that block a drain, so that the drain continues as soon as one allows a disruption.
//!
//! A budget allows it when a pod on another node becomes Ready, which no fact of the drained Node shows. Without the right to watch
//! budgets, evictions are retried periodically.

use std::collections::BTreeSet;
use std::pin::{Pin, pin};

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::steered::steered;
use super::{Backoff, Settings, WatchEnded, pause, said, tell};
use crate::kubernetes::update::{Budget, BudgetState, KubernetesUpdate};

/// Sends the state of the budgets in `blocking` until `stop`.
pub async fn run(
    client: kube::Client,
    blocking: watch::Receiver<BTreeSet<Budget>>,
    settings: Settings,
    out: mpsc::Sender<KubernetesUpdate>,
    stop: CancellationToken,
) {
    let follow = |budget: Budget, token| one(client.clone(), budget, settings.clone(), out.clone(), token);
    steered("budgets", blocking, settings.backoff_min, &stop, follow).await;
}

/// Watches one budget until `stop`, and rebuilds the watch after a break.
async fn one(
    client: kube::Client,
    budget: Budget,
    settings: Settings,
    out: mpsc::Sender<KubernetesUpdate>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new(&settings);
    let mut is_logged = false;
    loop {
        let api: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), &budget.namespace);
        let config = settings
            .watcher()
            .fields(&format!("metadata.name={}", budget.name));
        let events = pin!(watcher(api, config));
        let WatchEnded::Broke(why) = follow(events, &budget, &out, &stop, &mut backoff).await else {
            return;
        };
        // A missing right stays missing, so this is logged once.
        if !std::mem::replace(&mut is_logged, true) {
            let Budget { namespace, name } = &budget;
            tracing::warn!(
                namespace,
                budget = name,
                why,
                "the watch of a PodDisruptionBudget broke; until it is rebuilt, evictions are retried periodically"
            );
        }
        let unknown = KubernetesUpdate::Budget {
            budget: budget.clone(),
            state: BudgetState::Unknown,
        };
        if !tell(&out, &stop, unknown).await || !pause(&stop, backoff.next()).await {
            return;
        }
    }
}

/// Sends the state of one budget until its watch breaks or stops.
async fn follow(
    mut events: Pin<&mut impl Stream<Item = watcher::Result<Event<PodDisruptionBudget>>>>,
    budget: &Budget,
    out: &mpsc::Sender<KubernetesUpdate>,
    stop: &CancellationToken,
    backoff: &mut Backoff,
) -> WatchEnded {
    // A budget that does not exist blocks no pod.
    let mut listed = BudgetState::Allows;
    loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => return WatchEnded::Stopped,
            event = events.next() => event,
        };
        let state = match event {
            Some(Ok(Event::Init)) => {
                listed = BudgetState::Allows;
                continue;
            }
            Some(Ok(Event::InitApply(object))) => {
                listed = state(&object);
                continue;
            }
            Some(Ok(Event::InitDone)) => {
                backoff.settled();
                listed
            }
            Some(Ok(Event::Apply(object))) => state(&object),
            Some(Ok(Event::Delete(_))) => BudgetState::Allows,
            Some(Err(error)) => return WatchEnded::Broke(said(&error)),
            None => return WatchEnded::Broke("it ended".to_owned()),
        };
        let update = KubernetesUpdate::Budget {
            budget: budget.clone(),
            state,
        };
        if !tell(out, stop, update).await {
            return WatchEnded::Stopped;
        }
    }
}

fn state(budget: &PodDisruptionBudget) -> BudgetState {
    match &budget.status {
        Some(status) if status.disruptions_allowed.unwrap_or(0) > 0 => BudgetState::Allows,
        Some(_) | None => BudgetState::Blocks,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::kubernetes::stand_in::{RequestLog, ScriptedReply, refusal};
    use crate::kubernetes::watch::tests::{event, scripted};

    fn budget(allowed: i32) -> Value {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "web", "namespace": "shop", "uid": "uid-web", "resourceVersion": "5"},
            "status": {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 3},
        })
    }

    fn list(budgets: &[Value]) -> ScriptedReply {
        ScriptedReply::Json(
            200,
            json!({"kind": "PodDisruptionBudgetList", "apiVersion": "policy/v1", "metadata": {"resourceVersion": "9"}, "items": budgets}),
        )
    }

    /// Watches the budget `shop/web` for ten seconds and returns its states.
    async fn told(lists: Vec<ScriptedReply>, watches: Vec<ScriptedReply>) -> (Vec<BudgetState>, RequestLog) {
        let (client, log) = scripted(lists, watches);
        let (out, mut updates) = mpsc::channel(8);
        let web = Budget {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let (_blocking, budgets) = watch::channel(BTreeSet::from([web.clone()]));
        let stop = CancellationToken::new();
        let watching = run(client, budgets, Settings::default(), out, stop.clone());
        let ten_seconds = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            stop.cancel();
        };
        futures::join!(watching, ten_seconds);
        let mut told = Vec::new();
        while let Ok(update) = updates.try_recv() {
            let KubernetesUpdate::Budget { budget, state } = update else {
                panic!("{update:?}");
            };
            assert_eq!(budget, web);
            told.push(state);
        }
        (told, log)
    }

    #[tokio::test(start_paused = true)]
    async fn budget_state_is_reported_and_allows_once_deleted() {
        let changes = [
            ("MODIFIED", budget(1)),
            ("MODIFIED", budget(0)),
            ("DELETED", budget(0)),
        ];
        let events = changes.iter().map(|(kind, budget)| event(kind, budget)).collect();
        let (told, log) = told(vec![list(&[budget(0)])], vec![ScriptedReply::Events(events)]).await;
        use BudgetState::{Allows, Blocks};
        assert_eq!(told, [Blocks, Allows, Blocks, Allows]);
        let first = &log.all()[0];
        assert_eq!(
            first.line,
            "GET /apis/policy/v1/namespaces/shop/poddisruptionbudgets"
        );
        assert!(
            first.query.contains("fieldSelector=metadata.name%3Dweb"),
            "{}",
            first.query
        );
    }

    #[tokio::test(start_paused = true)]
    async fn budget_deleted_before_the_watch_allows() {
        let (told, _) = told(vec![list(&[])], vec![]).await;
        assert_eq!(told, [BudgetState::Allows]);
    }

    #[tokio::test(start_paused = true)]
    async fn budget_that_may_not_be_watched_is_unknown_and_retried() {
        let refused = || refusal(403, "Forbidden", "poddisruptionbudgets is forbidden", Value::Null);
        let (told, _) = told(vec![refused(), refused(), list(&[budget(0)])], vec![]).await;
        use BudgetState::{Blocks, Unknown};
        assert_eq!(told, [Unknown, Unknown, Blocks]);
    }
}
