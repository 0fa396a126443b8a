//! Runs the subcommands.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::CommandFactory as _;
use tokio::time::Instant;

use super::cluster_view::ClusterView;
use super::nodes::{self, ExitState, ListedNode, read_nodes};
use super::out::{Items, Output};
use super::plan::{self, Plan};
use super::{Cli, Format, NodeArgs, NodesArgs, OutputArgs, PlanArgs, StatusArgs, Subcommand};
use super::{check, crd_yaml, export, history, report, request, status};
use crate::app::clock;
use crate::ids::NodeName;
use crate::kubernetes::answer::plain;
use crate::kubernetes::client::connect_by;

/// Interval of `status --watch`.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Exit code of a subcommand that found a problem.
pub(super) const PROBLEM_FOUND: u8 = 4;

/// Runs `subcommand`; returns the exit code.
///
/// # Errors
/// If it could not complete: exit code 1, or 2 for a setting that cannot be validated earlier.
pub async fn perform(subcommand: Subcommand) -> anyhow::Result<u8> {
    let out = Output::new();
    match subcommand {
        Subcommand::List(args) => list(args, out).await,
        Subcommand::Status(args) => show_status(args, out).await,
        Subcommand::Plan(args) => show_plan(*args, out).await,
        Subcommand::Report(args) => report::perform(*args, out).await,
        Subcommand::Drain(args) => request::drain(args, out).await,
        Subcommand::Resume(args) => request::resume(args, out).await,
        Subcommand::Approve(args) => request::approve(args, out).await,
        Subcommand::Accept(args) => request::accept(args, out).await,
        Subcommand::Pause(args) => request::pause(args, out, true).await,
        Subcommand::Unpause(args) => request::pause(args, out, false).await,
        Subcommand::History(args) => history::perform(args, out).await,
        Subcommand::Trace(args) => trace(args, out).await,
        Subcommand::Check(args) => check::perform(*args, out).await,
        Subcommand::Export(args) => export::perform(*args, out).await,
        Subcommand::Crd => out.result(&crd_yaml()?).map(|()| 0),
        Subcommand::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "haulout", &mut script);
            out.result(&String::from_utf8_lossy(&script)).map(|()| 0)
        }
        Subcommand::Version(args) => version(args, out),
    }
}

async fn list(args: NodesArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.access).await?;
    let settings = args.settings.complete(&client, out).await;
    let states = read_nodes(&client, &settings, None).await?.states();
    let format = args.output.output;
    if states.is_empty() && matches!(format, Format::Table | Format::Wide) {
        let selector = plain(&settings.gpu_node_label);
        let hint = if settings.is_default_selector {
            " This is the default; name the label of your GPU nodes with --gpu-node-label."
        } else {
            ""
        };
        out.progress(&format!("No nodes found that match {selector}.{hint}"));
        return Ok(0);
    }
    out.show(format, &Items { items: &states }, || {
        if format == Format::Name {
            node_names(states.iter().map(|state| &state.node))
        } else {
            nodes::table(&states, format == Format::Wide, !args.output.no_headers, clock())
        }
    })?;
    Ok(0)
}

/// The nodes as `-o name` shows them.
fn node_names<'a>(nodes: impl Iterator<Item = &'a String>) -> String {
    let names = nodes.map(|node| format!("node/{}", plain(node)));
    names.collect::<Vec<_>>().join("\n")
}

async fn show_status(args: StatusArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    let settings = args.flags.settings.complete(&client, out).await;
    let until = (args.timeout > 0).then(|| Instant::now() + Duration::from_secs(args.timeout));
    let mut shown: Option<ListedNode> = None;
    loop {
        let read = read_nodes(&client, &settings, Some(&args.node)).await;
        let state = match read {
            Ok(reading) => {
                let mut states = reading.states();
                match states.pop() {
                    Some(state) => state,
                    None => bail!("node/{} does not exist", args.node),
                }
            }
            // Keeps watching while the kube-apiserver restarts.
            Err(error) if args.watch && shown.is_some() => {
                out.progress(&format!("{error:#}; retrying"));
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let changed = shown.as_ref() != Some(&state);
        print_status(&args, out, &state, changed)?;
        let is_late = until.is_some_and(|until| Instant::now() >= until);
        if !args.watch || state.exit_state == ExitState::InService || is_late {
            return Ok(state.exit_state.code());
        }
        shown = Some(state);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn print_status(args: &StatusArgs, out: Output, state: &ListedNode, changed: bool) -> anyhow::Result<()> {
    let format = args.flags.output.output;
    let is_tree = matches!(format, Format::Table | Format::Wide);
    let tree = || status::tree(state, out.paint(), clock());
    if is_tree && args.watch && out.is_terminal() {
        return out.redraw(&tree());
    }
    if !changed {
        return Ok(());
    }
    out.show(format, state, || {
        if is_tree {
            tree()
        } else {
            node_names([&state.node].into_iter())
        }
    })
}

async fn show_plan(args: PlanArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    let mut view = ClusterView::read(&args.flags.settings, client).await?;
    let plan = make_plan(&mut view, &args.name).await;
    view.close().await;
    let plan = plan?;
    let format = args.flags.output.output;
    out.show(format, &plan, || {
        if format == Format::Name {
            node_names(plan.nodes.iter().map(|node| &node.node))
        } else {
            plan::render(&plan, format == Format::Wide, out.paint())
        }
    })?;
    Ok(if plan.is_blocked() { PROBLEM_FOUND } else { 0 })
}

pub(super) async fn make_plan(view: &mut ClusterView, name: &str) -> anyhow::Result<Plan> {
    let node = NodeName::new(name);
    let (about, state, names) = if view.inventory.nodes().contains(&node) {
        ("node", None, vec![node])
    } else if let Some(reach) = view.inventory.reach(name) {
        ("host", Some(reach.state.words().to_owned()), reach.nodes)
    } else {
        bail!("{name} is neither a node that GPU_NODE_LABEL selects nor a host that vCenter shows us");
    };
    let forecasts = view.forecast(&names).await?;
    let budgets = view.budgets().await?;
    let mut nodes = Vec::new();
    for forecast in &forecasts {
        let (pods, policies) = view.pods(&forecast.node).await?;
        let shutdown_grace = view.shutdown_grace(&forecast.node).await;
        nodes.push(plan::of_node(
            forecast,
            (&pods, &policies),
            &shutdown_grace,
            &budgets,
            view.limits,
        ));
    }
    Ok(Plan {
        about,
        name: name.to_owned(),
        state,
        gpus_missing: view.inventory.gpus_of(&names),
        nodes,
    })
}

async fn trace(args: NodeArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    let settings = args.flags.settings.complete(&client, out).await;
    let reading = read_nodes(&client, &settings, Some(&args.node)).await?;
    let state = reading.states().into_iter().next();
    let Some(trace) = state.context("the node does not exist")?.trace else {
        bail!("node/{} has had no episode that is kept", args.node);
    };
    let format = args.flags.output.output;
    out.show(format, &trace, || {
        let lines = std::iter::once(&trace.trace_id).chain(&trace.url);
        lines.map(|line| plain(line)).collect::<Vec<_>>().join("\n")
    })?;
    if trace.url.is_none() && !format.is_machine_readable() {
        out.progress("TRACE_UI_URL_TEMPLATE is not set, so the address is unknown");
    }
    Ok(0)
}

fn version(args: OutputArgs, out: Output) -> anyhow::Result<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let value = serde_json::json!({ "haulout": version });
    out.show(args.output, &value, || format!("haulout {version}"))?;
    Ok(0)
}
