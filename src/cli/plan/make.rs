//! Reads what plans need, for one name or for several.

use std::collections::BTreeSet;

use anyhow::bail;

use super::wave::{self, WaveMembers, WavePlan};
use super::{Plan, of_node, render};
use crate::cli::cluster_view::ClusterView;
use crate::cli::out::Output;
use crate::cli::subcommands::{PROBLEM_FOUND, node_names};
use crate::cli::{Format, PlanArgs};
use crate::ids::{HostRef, NodeName};
use crate::inventory::Forecast;
use crate::kubernetes::answer::plain;
use crate::kubernetes::client::connect_by;

/// The names of one plan at most. A cluster of vSphere has up to 96 hosts.
pub(in crate::cli) const NAMES_MAX: usize = 100;

/// A host or a node of the plan.
#[derive(Clone, Debug, PartialEq)]
struct PlanTarget {
    name: String,
    /// The host, with the words for its state; `None` for a node.
    host: Option<(HostRef, String)>,
    nodes: Vec<NodeName>,
}

pub(in crate::cli) async fn perform(args: PlanArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    let mut view = ClusterView::read(&args.flags.settings, client).await?;
    let mut names = args.name;
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    let format = args.flags.output.output;
    let shown = match names.as_slice() {
        [name] => {
            let plan = make_plan(&mut view, name).await;
            plan.and_then(|plan| print_plan(&plan, format, out))
        }
        names => {
            let plan = make_wave(&mut view, names, out).await;
            plan.and_then(|plan| show_wave(&plan, format, out))
        }
    };
    view.close().await;
    Ok(if shown? { PROBLEM_FOUND } else { 0 })
}

/// Prints a plan; returns whether something blocks it.
fn print_plan(plan: &Plan, format: Format, out: Output) -> anyhow::Result<bool> {
    out.print_value(format, plan, || {
        if format == Format::Name {
            node_names(plan.nodes.iter().map(|node| &node.node))
        } else {
            render(plan, format == Format::Wide, out.paint())
        }
    })?;
    Ok(plan.is_blocked())
}

fn show_wave(plan: &WavePlan, format: Format, out: Output) -> anyhow::Result<bool> {
    out.print_value(format, plan, || {
        if format == Format::Name {
            node_names(plan.nodes().map(|node| &node.node))
        } else {
            wave::render(plan, format == Format::Wide, out.paint())
        }
    })?;
    Ok(plan.is_blocked())
}

/// The plan of the host or node `name`.
pub(in crate::cli) async fn make_plan(view: &mut ClusterView, name: &str) -> anyhow::Result<Plan> {
    let targets = find(view, &[name.to_owned()])?;
    let Some(target) = targets.first() else {
        bail!("a plan needs a name");
    };
    let forecasts = view.forecast(&target.nodes, &BTreeSet::new()).await?;
    let budgets = view.budgets().await?;
    of_target(view, target, &forecasts, &budgets).await
}

/// Progress is printed after this many names: each costs a list of pods for each node.
const PROGRESS_EVERY: usize = 10;

/// The plan of several hosts and nodes whose maintenance begins at the same time.
async fn make_wave(view: &mut ClusterView, names: &[String], out: Output) -> anyhow::Result<WavePlan> {
    let mut targets = find(view, names)?;
    let with_host: BTreeSet<NodeName> = targets
        .iter()
        .filter(|target| target.host.is_some())
        .flat_map(|target| target.nodes.clone())
        .collect();
    // A node on a host that is named as well is part of that host's plan.
    targets
        .retain(|target| target.host.is_some() || !target.nodes.iter().any(|name| with_host.contains(name)));
    let leaving: BTreeSet<HostRef> = targets
        .iter()
        .filter_map(|target| Some(target.host.as_ref()?.0.clone()))
        .collect();
    let nodes: Vec<NodeName> = targets.iter().flat_map(|target| target.nodes.clone()).collect();
    let forecasts = view.forecast(&nodes, &leaving).await?;
    let budgets = view.budgets().await?;
    let mut plans = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        if index > 0 && index % PROGRESS_EVERY == 0 {
            out.progress(&format!("{index} of {} plans", targets.len()));
        }
        let is_its = |forecast: &&Forecast| target.nodes.contains(&forecast.node);
        let its: Vec<Forecast> = forecasts.iter().filter(is_its).cloned().collect();
        plans.push(of_target(view, target, &its, &budgets).await?);
    }
    let members = WaveMembers {
        groups: view.inventory.wave(&forecasts),
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
        wave: wave::summary(&members, &plans, gpus, &view.durations),
        plans,
    })
}

/// Finds the hosts and nodes of these names.
fn find(view: &ClusterView, names: &[String]) -> anyhow::Result<Vec<PlanTarget>> {
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
    view: &ClusterView,
    target: &PlanTarget,
    forecasts: &[Forecast],
    budgets: &[k8s_openapi::api::policy::v1::PodDisruptionBudget],
) -> anyhow::Result<Plan> {
    let mut nodes = Vec::new();
    for forecast in forecasts {
        let (pods, policies) = view.pods(&forecast.node).await?;
        let shutdown_grace = view.shutdown_grace(&forecast.node).await;
        nodes.push(of_node(
            forecast,
            (&pods, &policies),
            &shutdown_grace,
            budgets,
            view.limits,
        ));
    }
    Ok(Plan {
        about: if target.host.is_some() { "host" } else { "node" },
        name: target.name.clone(),
        state: target.host.as_ref().map(|(_, state)| state.clone()),
        gpus_missing: view.inventory.gpus_of(&target.nodes),
        nodes,
    })
}
