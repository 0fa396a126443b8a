//! Watches the PodDisruptionBudgets that block a drain, so that the drain continues as soon as one allows a disruption.
//!
//! A budget allows it when a pod on another node becomes Ready, which no fact of the drained Node shows. Without the right to watch
//! budgets, evictions are retried periodically.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use super::keyed::watch_each;
use super::{Backoff, WatchBroke, WatchContext, WatchHandler, watcher_config};
use crate::update::{Budget, BudgetState, KubernetesUpdate};

/// Sends the state of the budgets in `blocking` until `stop`.
pub async fn run(blocking: watch::Receiver<BTreeSet<Budget>>, context: WatchContext) {
    watch_each("budgets", blocking, &context, one).await;
}

async fn one(budget: Budget, context: WatchContext) {
    let api = Api::namespaced(context.client.clone(), &budget.namespace);
    let by_name = format!("metadata.name={}", budget.name);
    let config = watcher_config().fields(&by_name);
    let handler = BlockingBudget {
        budget,
        listed: BudgetState::Allows,
        is_logged: false,
    };
    context.watch(api, config, handler).await;
}

struct BlockingBudget {
    budget: Budget,
    /// The state in the list that is being read.
    listed: BudgetState,
    is_logged: bool,
}

impl BlockingBudget {
    fn update(&self, state: BudgetState) -> Vec<KubernetesUpdate> {
        let budget = self.budget.clone();
        vec![KubernetesUpdate::Budget { budget, state }]
    }
}

impl WatchHandler for BlockingBudget {
    type Object = PodDisruptionBudget;

    fn event(&mut self, event: Event<PodDisruptionBudget>) -> Vec<KubernetesUpdate> {
        match event {
            // A budget that does not exist blocks no pod.
            Event::Init => self.listed = BudgetState::Allows,
            Event::InitApply(object) => self.listed = state(&object),
            Event::InitDone => return self.update(self.listed),
            Event::Apply(object) => return self.update(state(&object)),
            Event::Delete(_) => return self.update(BudgetState::Allows),
        }
        Vec::new()
    }

    fn broke(&mut self, broke: &WatchBroke, backoff: &mut Backoff) -> (Vec<KubernetesUpdate>, Duration) {
        // A missing right stays missing, so this is logged once.
        if !std::mem::replace(&mut self.is_logged, true) {
            let Budget { namespace, name } = &self.budget;
            tracing::warn!(
                namespace,
                budget = name,
                why = %broke.refusal,
                "the watch of a PodDisruptionBudget broke; until it is rebuilt, evictions are retried periodically"
            );
        }
        (self.update(BudgetState::Unknown), backoff.next_wait())
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
    use crate::stand_in::{RequestLog, ScriptedReply, refusal};
    use crate::watch::tests::{event, scripted, updates_of};

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
    async fn states(
        lists: Vec<ScriptedReply>,
        watches: Vec<ScriptedReply>,
    ) -> (Vec<BudgetState>, RequestLog) {
        let (client, log) = scripted(lists, watches);
        let web = Budget {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let (_blocking, budgets) = watch::channel(BTreeSet::from([web.clone()]));
        let run = |context| run(budgets, context);
        let updates = updates_of(client, usize::MAX, Duration::from_secs(10), run).await;
        let state = |update| {
            let KubernetesUpdate::Budget { budget, state } = update else {
                panic!("{update:?}");
            };
            assert_eq!(budget, web);
            state
        };
        (
            updates.into_iter().map(|(_, update)| state(update)).collect(),
            log,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn budget_state_is_reported_and_allows_once_deleted() {
        let changes = [
            ("MODIFIED", budget(1)),
            ("MODIFIED", budget(0)),
            ("DELETED", budget(0)),
        ];
        let events = changes.iter().map(|(kind, budget)| event(kind, budget)).collect();
        let (states, log) = states(vec![list(&[budget(0)])], vec![ScriptedReply::Events(events)]).await;
        use BudgetState::{Allows, Blocks};
        assert_eq!(states, [Blocks, Allows, Blocks, Allows]);
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
        let (states, _) = states(vec![list(&[])], vec![]).await;
        assert_eq!(states, [BudgetState::Allows]);
    }

    #[tokio::test(start_paused = true)]
    async fn budget_that_may_not_be_watched_is_unknown_and_retried() {
        let refused = || refusal(403, "Forbidden", "poddisruptionbudgets is forbidden", Value::Null);
        let (states, _) = states(vec![refused(), refused(), list(&[budget(0)])], vec![]).await;
        use BudgetState::{Blocks, Unknown};
        assert_eq!(states, [Unknown, Unknown, Blocks]);
    }
}
