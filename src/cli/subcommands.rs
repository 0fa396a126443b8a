//! Runs the subcommands.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::CommandFactory as _;
use serde::Serialize;
use tokio::time::Instant;

use super::cluster_view::ClusterView;
use super::nodes::{self, ExitState, ListedNode, read_nodes};
use super::out::Output;
use super::plan::{self, Plan};
use super::show::{self, Items};
use super::{Cli, Format, ListArgs, NodeArgs, PlanArgs, StatusArgs, Subcommand, VersionArgs};
use super::{check, crd_yaml, export, request, status};
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
        Subcommand::Drain(args) => request::drain(args, out).await,
        Subcommand::Resume(args) => request::resume(args, out).await,
        Subcommand::Approve(args) => request::approve(args, out).await,
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

async fn list(args: ListArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&(&args.access).into()).await?;
    let states = read_nodes(&client, &args.marks, None).await?.states();
    let format = args.output.output;
    if let Some(text) = show::for_programs(format, &Items { items: &states })? {
        out.result(&text)?;
    } else if format == Format::Name {
        let names: Vec<String> = states
            .iter()
            .map(|state| format!("node/{}", plain(&state.node)))
            .collect();
        if !names.is_empty() {
            out.result(&names.join("\n"))?;
        }
    } else if states.is_empty() {
        out.progress(&format!(
            "No nodes found that match {}.",
            plain(&args.marks.gpu_node_label)
        ));
    } else {
        let is_wide = format == Format::Wide;
        out.result(&nodes::table(&states, is_wide, !args.output.no_headers, clock()))?;
    }
    Ok(0)
}

async fn show_status(args: StatusArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&(&args.access).into()).await?;
    let until = (args.timeout > 0).then(|| Instant::now() + Duration::from_secs(args.timeout));
    let mut shown: Option<ListedNode> = None;
    loop {
        let read = read_nodes(&client, &args.marks, Some(&args.node)).await;
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
    let format = args.output.output;
    let is_redrawn = args.watch && out.is_terminal();
    match show::for_programs(format, state)? {
        Some(text) if changed => out.result(&text),
        Some(_) => Ok(()),
        None if format == Format::Name && changed => out.result(&format!("node/{}", plain(&state.node))),
        None if format == Format::Name => Ok(()),
        None if is_redrawn => out.redraw(&status::tree(state, out.paint(), clock())),
        None if changed => out.result(&status::tree(state, out.paint(), clock())),
        None => Ok(()),
    }
}

async fn show_plan(args: PlanArgs, out: Output) -> anyhow::Result<u8> {
    let config = args.settings;
    let client = connect_by(&(&args.access).into()).await?;
    let mut view = ClusterView::read(&config, client).await?;
    let plan = make_plan(&mut view, &args.name).await;
    view.close().await;
    let plan = plan?;
    let format = args.output.output;
    let names = || {
        let names = plan
            .nodes
            .iter()
            .map(|node| format!("node/{}", plain(&node.node)));
        names.collect::<Vec<_>>().join("\n")
    };
    match show::for_programs(format, &plan)? {
        Some(text) => out.result(&text)?,
        None if format == Format::Name => out.result(&names())?,
        None => out.result(&plan::render(&plan, format == Format::Wide, out.paint()))?,
    }
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
        let pods = view.pods(&forecast.node).await?;
        nodes.push(plan::of_node(forecast, &pods, &budgets));
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
    let client = connect_by(&(&args.access).into()).await?;
    let states = read_nodes(&client, &args.marks, Some(&args.node)).await?.states();
    let state = states.into_iter().next().context("the node does not exist")?;
    let Some(trace) = state.trace else {
        bail!("node/{} has had no episode that is kept", args.node);
    };
    match show::for_programs(args.output.output, &trace)? {
        Some(text) => out.result(&text)?,
        None => {
            out.result(&plain(&trace.trace_id))?;
            match &trace.url {
                Some(url) => out.result(&plain(url))?,
                None => out.progress("TRACE_UI_URL_TEMPLATE is not set, so the address is unknown"),
            }
        }
    }
    Ok(0)
}

#[derive(Debug, Serialize)]
struct VersionInfo {
    haulout: &'static str,
}

fn version(args: VersionArgs, out: Output) -> anyhow::Result<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let text = show::for_programs(args.output.output, &VersionInfo { haulout: version })?;
    out.result(&text.unwrap_or_else(|| format!("haulout {version}")))?;
    Ok(0)
}
