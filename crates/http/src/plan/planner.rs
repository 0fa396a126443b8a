//! The leader's answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::durations::EpisodeDurations;
use super::node::of_node;
use super::view::{LeaderView, PlanProgress, PlanSources, not_looked_up};
use super::wave::{self, WaveMembers, WavePlan};
use super::{NAMES_MAX, Plan, PlannedObject};
use haulout_controller::event_loop::InventoryRequest;
use haulout_controller::nodemaintenance::{self, api};
use haulout_core::ids::{HostRef, NodeName};
use haulout_core::inventory::{Forecast, Inventory};
use haulout_core::maintenance::clock::Now;
use haulout_kubernetes::answer::plain;

/// How many answers are made at the same time: each has a copy of the inventory.
pub const ANSWERS: usize = 2;

/// How long a request waits for others to end. With the next two it stays below the time in which the server closes a connection.
const TURN_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the first complete set of vCenter is waited for.
const COMPLETE_WITHIN: Duration = Duration::from_secs(3);

/// The pause between two looks for it.
const COPY_PAUSE: Duration = Duration::from_millis(250);

/// Limit for a copy, which the event loop makes between two facts.
const COPY_TIMEOUT: Duration = Duration::from_secs(2);

/// Limit for one answer: a report reads the pods of each node.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// Answers what a maintenance would do.
pub struct Planner {
    pub inventory: mpsc::Sender<InventoryRequest>,
    pub sources: Arc<PlanSources>,
    pub clock: fn() -> Now,
    /// One for each of the [`ANSWERS`].
    pub turns: Arc<Semaphore>,
}

/// Why this replica makes no plan now.
#[derive(Debug, Error)]
pub(crate) enum NoPlan {
    #[error("other plans are being made; try again later")]
    Busy,
    #[error("this replica is a standby, and only the leader follows vCenter")]
    Standby,
    #[error("the leader is not synced: {0}")]
    NotSynced(String),
    #[error("the controller is overloaded or stopping; try again")]
    NoAnswer,
}

impl Planner {
    /// Takes a copy of the inventory, to answer one question.
    ///
    /// # Errors
    /// If this replica is no leader that is synced, or is busy.
    pub(crate) async fn begin(&self) -> Result<LeaderView, NoPlan> {
        let turn = Arc::clone(&self.turns).acquire_owned();
        let turn = tokio::time::timeout(TURN_TIMEOUT, turn).await;
        let turn = turn.map_err(|_elapsed| NoPlan::Busy)?;
        let turn = turn.map_err(|_closed| NoPlan::NoAnswer)?;
        let until = Instant::now() + COMPLETE_WITHIN;
        let inventory = loop {
            let inventory = self.copy().await?;
            // An unreadable object affects its own node only.
            let is_whole = inventory.is_complete() && !inventory.awaits_devices();
            if is_whole || Instant::now() >= until {
                break inventory;
            }
            tokio::time::sleep(COPY_PAUSE).await;
        };
        if let Some(why) = inventory.unsynced_reason() {
            return Err(NoPlan::NotSynced(why));
        }
        Ok(LeaderView {
            now: (self.clock)(),
            sources: Arc::clone(&self.sources),
            inventory,
            _turn: turn,
        })
    }

    /// The names of all hosts.
    ///
    /// # Errors
    /// If this replica is no leader.
    pub(crate) async fn hosts(&self) -> Result<Vec<String>, NoPlan> {
        Ok(self.copy().await?.host_names())
    }

    /// A copy of the inventory of the event loop of a leader.
    async fn copy(&self) -> Result<Inventory, NoPlan> {
        let copy = async {
            let (sender, copy) = oneshot::channel();
            self.inventory.send(sender).await.ok()?;
            copy.await.ok()
        };
        let copy = tokio::time::timeout(COPY_TIMEOUT, copy).await;
        let inventory = copy.ok().flatten().ok_or(NoPlan::NoAnswer)?;
        if inventory.is_acting() {
            Ok(inventory)
        } else {
            Err(NoPlan::Standby)
        }
    }
}

impl LeaderView {
    /// The plan of hosts and nodes whose maintenance begins at the same time.
    ///
    /// # Errors
    /// If there is none of a name, or something cannot be read.
    pub(crate) async fn wave(self, names: &[String], progress: &PlanProgress) -> anyhow::Result<WavePlan> {
        if names.len() > NAMES_MAX {
            bail!(
                "a plan has at most {NAMES_MAX} names, and these are {}",
                names.len()
            );
        }
        let mut targets = find(&self, names)?;
        let with_host: BTreeSet<NodeName> = targets
            .iter()
            .filter(|target| target.host.is_some())
            .flat_map(|target| target.nodes.clone())
            .collect();
        // A node on a host that is named as well is part of that host's plan.
        targets.retain(|target| {
            target.host.is_some() || !target.nodes.iter().any(|name| with_host.contains(name))
        });
        let leaving: BTreeSet<HostRef> = targets
            .iter()
            .filter_map(|target| Some(target.host.as_ref()?.0.clone()))
            .collect();
        let nodes: Vec<NodeName> = targets.iter().flat_map(|target| target.nodes.clone()).collect();
        let forecast = move |inventory: &mut Inventory| inventory.forecast(&nodes, &leaving);
        let (view, forecasts) = self.forecast(forecast).await?;
        let budgets = view.budgets().await?;
        let durations = view.durations().await?;
        let mut plans = Vec::new();
        for (index, target) in targets.iter().enumerate() {
            progress.tell(format!("{index} of {} plans", targets.len()));
            let is_its = |forecast: &&Forecast| target.nodes.contains(&forecast.node);
            let its: Vec<Forecast> = forecasts.iter().filter(is_its).cloned().collect();
            plans.push(of_target(&view, target, &its, &budgets).await?);
        }
        let of_wave = forecasts.clone();
        let (view, groups) = view.compute(move |inventory| inventory.wave(&of_wave)).await?;
        let members = WaveMembers {
            groups,
            hosts: targets
                .iter()
                .filter(|target| target.host.is_some())
                .map(|target| target.nodes.clone())
                .collect(),
            forecasts,
        };
        let gpus = |nodes: &BTreeSet<NodeName>| {
            let nodes: Vec<NodeName> = nodes.iter().cloned().collect();
            view.inventory.gpus_of(&nodes)
        };
        Ok(WavePlan {
            wave: wave::summary(&members, &plans, gpus, &durations),
            plans,
        })
    }

    /// How long ended episodes took.
    async fn durations(&self) -> anyhow::Result<EpisodeDurations> {
        let objects = nodemaintenance::read::all(&self.sources.client).await?;
        let selector = &self.sources.settings.selector;
        let concerning = objects.iter().filter(|object| api::concerns(object, selector));
        Ok(EpisodeDurations::of(concerning))
    }
}

/// A host or a node of the plan.
#[derive(Clone, Debug, PartialEq)]
struct PlanTarget {
    name: String,
    /// The host, with the words for its state; `None` for a node.
    host: Option<(HostRef, String)>,
    nodes: Vec<NodeName>,
}

/// Finds the hosts and nodes of these names.
fn find(view: &LeaderView, names: &[String]) -> anyhow::Result<Vec<PlanTarget>> {
    let known: BTreeSet<NodeName> = view.inventory.nodes().into_iter().collect();
    let mut targets = Vec::new();
    let mut unknown = Vec::new();
    for name in names {
        let node = NodeName::new(name.as_str());
        let (host, nodes) = if known.contains(&node) {
            (None, vec![node])
        } else if let Some(reach) = view.inventory.reach(name) {
            (Some((reach.host, reach.state.words().to_owned())), reach.nodes)
        } else {
            unknown.push(plain(name));
            continue;
        };
        targets.push(PlanTarget {
            name: name.clone(),
            host,
            nodes,
        });
    }
    match unknown.as_slice() {
        [] => Ok(targets),
        [name] => {
            bail!("{name} is neither a node that GPU_NODE_LABEL selects nor a host that vCenter shows us")
        }
        names => bail!(
            "{} are neither nodes that GPU_NODE_LABEL selects nor hosts that vCenter shows us",
            names.join(", ")
        ),
    }
}

async fn of_target(
    view: &LeaderView,
    target: &PlanTarget,
    forecasts: &[Forecast],
    budgets: &[PodDisruptionBudget],
) -> anyhow::Result<Plan> {
    let mut nodes = Vec::new();
    for forecast in forecasts {
        let (pods, policies) = view.pods(&forecast.node).await?;
        nodes.push(of_node(
            forecast,
            (&pods, &policies),
            budgets,
            view.sources.settings.limits,
        ));
    }
    Ok(Plan {
        about: if target.host.is_some() {
            PlannedObject::Host
        } else {
            PlannedObject::Node
        },
        name: target.name.clone(),
        state: target.host.as_ref().map(|(_, state)| state.clone()),
        gpus_missing: view.inventory.gpus_of(&target.nodes),
        nodes,
        not_checked: not_looked_up(view)
            .filter(|_| target.host.is_some())
            .into_iter()
            .collect(),
    })
}
