//! Watches the PodDisruptionBudgets that hold a drain, so that it goes on in the moment in which one allows it.
//!
//! What a budget waits for, another pod that becomes Ready elsewhere, shows nowhere on the Node that is drained. Without the
//! right to watch budgets the drain asks for evictions from time to time, and is only later.

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
use crate::kubernetes::update::{Budget, BudgetStands, KubernetesUpdate};

/// Tells how the budgets in `holding` stand, until `stop`.
pub async fn run(
    client: kube::Client,
    holding: watch::Receiver<BTreeSet<Budget>>,
    settings: Settings,
    out: mpsc::Sender<KubernetesUpdate>,
    stop: CancellationToken,
) {
    let follow = |budget: Budget, token| one(client.clone(), budget, settings.clone(), out.clone(), token);
    steered("budgets", holding, settings.backoff_min, &stop, follow).await;
}

/// Follows one budget until `stop`, over breaks.
async fn one(
    client: kube::Client,
    budget: Budget,
    settings: Settings,
    out: mpsc::Sender<KubernetesUpdate>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new(&settings);
    let mut is_missed = false;
    loop {
        let api: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), &budget.namespace);
        let config = settings
            .watcher()
            .fields(&format!("metadata.name={}", budget.name));
        let events = pin!(watcher(api, config));
        let WatchEnded::Broke(why) = follow(events, &budget, &out, &stop, &mut backoff).await else {
            return;
        };
        // Where it is not allowed, it is not allowed the next time either: one line says so.
        if !std::mem::replace(&mut is_missed, true) {
            let Budget { namespace, name } = &budget;
            tracing::warn!(
                namespace,
                budget = name,
                why,
                "the watch of a PodDisruptionBudget broke; until it stands, evictions are asked for from time to time"
            );
        }
        let unheard = KubernetesUpdate::Budget {
            budget: budget.clone(),
            stands: BudgetStands::Unheard,
        };
        if !tell(&out, &stop, unheard).await || !pause(&stop, backoff.next()).await {
            return;
        }
    }
}

/// Tells how one budget stands until its watch breaks or stops.
async fn follow(
    mut events: Pin<&mut impl Stream<Item = watcher::Result<Event<PodDisruptionBudget>>>>,
    budget: &Budget,
    out: &mpsc::Sender<KubernetesUpdate>,
    stop: &CancellationToken,
    backoff: &mut Backoff,
) -> WatchEnded {
    // One that is not there holds nobody.
    let mut listed = BudgetStands::Allows;
    loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => return WatchEnded::Stopped,
            event = events.next() => event,
        };
        let stands = match event {
            Some(Ok(Event::Init)) => {
                listed = BudgetStands::Allows;
                continue;
            }
            Some(Ok(Event::InitApply(object))) => {
                listed = stands(&object);
                continue;
            }
            Some(Ok(Event::InitDone)) => {
                backoff.settled();
                listed
            }
            Some(Ok(Event::Apply(object))) => stands(&object),
            Some(Ok(Event::Delete(_))) => BudgetStands::Allows,
            Some(Err(error)) => return WatchEnded::Broke(said(&error)),
            None => return WatchEnded::Broke("it ended".to_owned()),
        };
        let update = KubernetesUpdate::Budget {
            budget: budget.clone(),
            stands,
        };
        if !tell(out, stop, update).await {
            return WatchEnded::Stopped;
        }
    }
}

fn stands(budget: &PodDisruptionBudget) -> BudgetStands {
    match &budget.status {
        Some(status) if status.disruptions_allowed.unwrap_or(0) > 0 => BudgetStands::Allows,
        Some(_) | None => BudgetStands::Holds,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::kubernetes::stand_in::{Log, Reply, refusal};
    use crate::kubernetes::watch::tests::{event, scripted};

    fn budget(allowed: i32) -> Value {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "web", "namespace": "shop", "uid": "uid-web", "resourceVersion": "5"},
            "status": {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 3},
        })
    }

    fn list(budgets: &[Value]) -> Reply {
        Reply::Json(
            200,
            json!({"kind": "PodDisruptionBudgetList", "apiVersion": "policy/v1", "metadata": {"resourceVersion": "9"}, "items": budgets}),
        )
    }

    /// Watches the budget `shop/web` on the script for ten seconds and gives what was told of it.
    async fn told(lists: Vec<Reply>, watches: Vec<Reply>) -> (Vec<BudgetStands>, Log) {
        let (client, log) = scripted(lists, watches);
        let (out, mut updates) = mpsc::channel(8);
        let web = Budget {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let (_holding, budgets) = watch::channel(BTreeSet::from([web.clone()]));
        let stop = CancellationToken::new();
        let watching = run(client, budgets, Settings::default(), out, stop.clone());
        let ten_seconds = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            stop.cancel();
        };
        futures::join!(watching, ten_seconds);
        let mut told = Vec::new();
        while let Ok(update) = updates.try_recv() {
            let KubernetesUpdate::Budget { budget, stands } = update else {
                panic!("{update:?}");
            };
            assert_eq!(budget, web);
            told.push(stands);
        }
        (told, log)
    }

    #[tokio::test(start_paused = true)]
    async fn a_budget_is_told_as_it_stands_and_allows_once_it_is_gone() {
        let changes = [
            ("MODIFIED", budget(1)),
            ("MODIFIED", budget(0)),
            ("DELETED", budget(0)),
        ];
        let events = changes.iter().map(|(kind, budget)| event(kind, budget)).collect();
        let (told, log) = told(vec![list(&[budget(0)])], vec![Reply::Events(events)]).await;
        use BudgetStands::{Allows, Holds};
        assert_eq!(told, [Holds, Allows, Holds, Allows]);
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
    async fn a_budget_that_was_deleted_before_anybody_looked_allows() {
        let (told, _) = told(vec![list(&[])], vec![]).await;
        assert_eq!(told, [BudgetStands::Allows]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_must_not_be_watched_is_unheard_and_is_tried_again() {
        let refused = || refusal(403, "Forbidden", "poddisruptionbudgets is forbidden", Value::Null);
        let (told, _) = told(vec![refused(), refused(), list(&[budget(0)])], vec![]).await;
        use BudgetStands::{Holds, Unheard};
        assert_eq!(told, [Unheard, Unheard, Holds]);
    }
}
