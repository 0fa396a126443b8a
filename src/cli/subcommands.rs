//! Runs the subcommands.

use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::Instant;

use super::controller_settings::NodeSettings;
use super::nodes::{self, ExitState, ListedNode};
use super::out::{Items, Output, node_names};
use super::reading::{WantedNodes, read_nodes};
use super::selection::show_values;
use super::{Format, ListArgs, NodeArgs, OutputArgs, StatusArgs, Subcommand};
use super::{check, completion, crd_yaml, export, history, overrides, plan, report, request, resume, status};
use crate::app::clock;
use crate::kubernetes::answer::plain;
use crate::kubernetes::reads::ReadError;

/// Interval of `status --watch`.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Runs `subcommand`; returns the exit code.
///
/// # Errors
/// If it could not complete: exit code 1, or 2 for a setting that cannot be validated earlier.
pub async fn perform(subcommand: Subcommand) -> anyhow::Result<u8> {
    let out = Output::new();
    match subcommand {
        Subcommand::List(args) => list(args, out).await,
        Subcommand::Status(args) => show_status(args, out).await,
        Subcommand::Plan(args) => plan::perform(args, out).await,
        Subcommand::Report(args) => report::perform(args, out).await,
        Subcommand::Drain(args) => request::drain(args, out).await,
        Subcommand::Resume(args) => resume::perform(args, out).await,
        Subcommand::Approve(args) => overrides::approve(args, out).await,
        Subcommand::Accept(args) => overrides::accept(args, out).await,
        Subcommand::Pause(args) => overrides::pause(args, out).await,
        Subcommand::Unpause(args) => overrides::unpause(args, out).await,
        Subcommand::History(args) => history::perform(args, out).await,
        Subcommand::Trace(args) => trace(args, out).await,
        Subcommand::Check(args) => check::perform(*args, out).await,
        Subcommand::Export(args) => export::perform(*args, out).await,
        Subcommand::Crd => out.result(&crd_yaml()?).map(|()| 0),
        Subcommand::Completion { shell } => out.result(&completion::script(shell)?).map(|()| 0),
        Subcommand::Version(args) => version(args, out),
    }
}

async fn list(args: ListArgs, out: Output) -> anyhow::Result<u8> {
    let (client, settings) = args.flags.connect(out).await?;
    let wanted = args
        .selector
        .as_deref()
        .map_or(WantedNodes::All, WantedNodes::Matching);
    let mut shown: Vec<ListedNode> = Vec::new();
    let mut is_first = true;
    loop {
        let states = match read_nodes(&client, &settings, wanted).await {
            Ok(reading) => reading.states(),
            // Keeps watching while the kube-apiserver restarts.
            Err(error) if !is_first && may_pass(&error) => {
                retry_soon(&error, out).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        if is_first && states.is_empty() && matches!(args.flags.output.output, Format::Table | Format::Wide) {
            out.progress(&nothing_found(&settings, args.selector.as_deref()));
        }
        if is_first || states != shown || is_redrawn(&args, out) {
            show_list(&args, out, &states, (!is_first).then_some(&shown))?;
        }
        if !args.watch {
            return Ok(0);
        }
        (shown, is_first) = (states, false);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Whether the whole table is shown again, with its durations.
fn is_redrawn(args: &ListArgs, out: Output) -> bool {
    args.watch && out.is_terminal() && matches!(args.flags.output.output, Format::Table | Format::Wide)
}

/// Prints the nodes. As with kubectl, a watch prints only those that changed since `shown`, unless it redraws a terminal.
fn show_list(
    args: &ListArgs,
    out: Output,
    states: &[ListedNode],
    shown: Option<&Vec<ListedNode>>,
) -> anyhow::Result<()> {
    let output = args.flags.output;
    let format = output.output;
    let is_wide = format == Format::Wide;
    if is_redrawn(args, out) {
        return out.redraw(&nodes::table(states, is_wide, !output.no_headers, clock()));
    }
    let is_new = |state: &&ListedNode| shown.is_none_or(|shown| !shown.contains(state));
    let changed: Vec<ListedNode> = states.iter().filter(is_new).cloned().collect();
    if changed.is_empty() && !format.is_machine_readable() {
        return Ok(());
    }
    out.print_value(format, &Items { items: &changed }, || {
        if format == Format::Name {
            node_names(changed.iter().map(|state| &state.node))
        } else {
            let has_headers = !output.no_headers && shown.is_none();
            nodes::table(&changed, is_wide, has_headers, clock())
        }
    })
}

fn nothing_found(settings: &NodeSettings, selector: Option<&str>) -> String {
    let selector = selector.map_or_else(
        || settings.gpu_node_label.clone(),
        |selector| settings.with_selector(selector),
    );
    let hint = if settings.is_default_selector {
        " This is the default; name the label of your GPU nodes with --gpu-node-label."
    } else {
        ""
    };
    format!("No nodes found that match {}.{hint}", plain(&selector))
}

fn may_pass(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_none_or(ReadError::may_pass)
}

async fn retry_soon(error: &anyhow::Error, out: Output) {
    out.progress(&format!("{error:#}; retrying"));
    tokio::time::sleep(POLL_INTERVAL).await;
}

async fn show_status(args: StatusArgs, out: Output) -> anyhow::Result<u8> {
    let (client, settings) = args.flags.connect(out).await?;
    let names = args.nodes.names(&client, &settings).await?;
    let until = (args.timeout > 0).then(|| Instant::now() + Duration::from_secs(args.timeout));
    let mut shown: Vec<ListedNode> = Vec::new();
    loop {
        let reading = read_nodes(&client, &settings, WantedNodes::Named(&names)).await;
        let is_late = until.is_some_and(|until| Instant::now() >= until);
        let states = match reading {
            Ok(reading) => reading.states(),
            // Keeps watching while the kube-apiserver restarts.
            Err(error) if args.watch && !shown.is_empty() && !is_late && may_pass(&error) => {
                retry_soon(&error, out).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Some(name) = names
            .iter()
            .find(|name| !states.iter().any(|it| it.node == **name))
        {
            bail!("node/{} does not exist", plain(name));
        }
        print_status(&args, out, &states, &shown, names.len())?;
        let code = states.iter().map(|state| state.exit_state.code()).max();
        let is_done = states
            .iter()
            .all(|state| state.exit_state == ExitState::InService);
        if !args.watch || is_done || is_late {
            return Ok(code.unwrap_or_default());
        }
        shown = states;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Prints what differs from `shown`.
fn print_status(
    args: &StatusArgs,
    out: Output,
    states: &[ListedNode],
    shown: &[ListedNode],
    asked: usize,
) -> anyhow::Result<()> {
    let format = args.flags.output.output;
    let trees = |states: &[&ListedNode]| {
        let trees = states
            .iter()
            .map(|state| status::tree(state, out.paint(), clock()));
        trees.collect::<Vec<_>>().join("\n")
    };
    let all: Vec<&ListedNode> = states.iter().collect();
    let is_tree = matches!(format, Format::Table | Format::Wide);
    if is_tree && args.watch && out.is_terminal() {
        return out.redraw(&trees(&all));
    }
    let changed: Vec<&ListedNode> = all.into_iter().filter(|it| !shown.contains(it)).collect();
    if changed.is_empty() {
        return Ok(());
    }
    match format {
        Format::Table | Format::Wide => out.result(&trees(&changed)),
        Format::Name => out.result(&node_names(changed.iter().map(|state| &state.node))),
        Format::Json | Format::Yaml => show_values(&changed, asked, (format, out)),
    }
}

async fn trace(args: NodeArgs, out: Output) -> anyhow::Result<u8> {
    let (client, settings) = args.flags.connect(out).await?;
    let reading = read_nodes(
        &client,
        &settings,
        WantedNodes::Named(std::slice::from_ref(&args.node)),
    )
    .await?;
    let state = reading.states().into_iter().next();
    let Some(trace) = state.context("the node does not exist")?.trace else {
        bail!("node/{} has had no episode that is kept", args.node);
    };
    let format = args.flags.output.output;
    out.print_value(format, &trace, || {
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
    out.print_value(args.output, &value, || format!("haulout {version}"))?;
    Ok(0)
}
