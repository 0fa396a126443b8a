//! The command line of `haulout` and `kubectl haulout`.
//!
//! Each subcommand reads, makes plain data, and renders it; rendering reads nothing.
//!
//! ```text
//! subcommands ─▶ cluster_view (vCenter and Kubernetes) ─▶ plan, check ─┐
//!             └▶ reading (Nodes, NodeMaintenances) ────▶ nodes ────────┴─▶ table, tree, JSON, YAML ─▶ out
//! ```

mod check;
mod cluster_view;
mod controller_settings;
mod export;
mod follow;
mod history;
mod nodes;
mod out;
mod plan;
pub mod probes;
mod question;
mod reading;
mod report;
mod request;
mod status;
mod subcommands;
mod table;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use kube::CustomResourceExt as _;

use crate::config::{self, Config, ConfigError};
use crate::kubernetes::client::Access;
use crate::nodemaintenance::kind::{MaintenanceAction, NodeMaintenance};
use crate::sentinel::SentinelArgs;
use crate::window::Window;

pub use check::probe::ProbeArgs;
pub use subcommands::perform;

/// The plugin name that kubectl searches on PATH.
const PLUGIN: &str = "kubectl-haulout";

/// Takes Kubernetes nodes with passthrough GPUs safely through ESXi host maintenance.
///
/// An operator clicks Enter Maintenance Mode in vCenter; a VM with a passthrough device cannot be moved
/// while it runs, so the host would wait forever. Haulout drains the node, shuts its VM down, moves it
/// to another host or waits for its own, powers it on, and returns the node to service.
#[derive(Debug, Parser)]
#[command(
    name = "haulout",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run the controller
    ///
    /// It watches vCenter and Kubernetes, and takes each GPU node through the maintenance of its ESXi
    /// host.
    ///
    /// Every setting is a flag or an environment variable; the flag takes precedence. Kubernetes is
    /// found by KUBECONFIG, or from inside the cluster. A wrong value ends the program with exit code 2
    /// and the valid range.
    // Boxed because both are large, and read once.
    Run(Box<Config>),
    /// Ask for a reboot of this node where one is required: the program of the chart's DaemonSet
    ///
    /// It creates a NodeMaintenance with the action Reboot, at most one for each boot of the node. The
    /// controller takes one node after the other.
    Sentinel(Box<SentinelArgs>),
    /// A subcommand for people.
    #[command(flatten)]
    Subcommand(Box<Subcommand>),
}

/// The subcommands for people.
#[derive(Debug, clap::Subcommand)]
pub enum Subcommand {
    /// List the GPU nodes and their state
    List(NodesArgs),
    /// Show the state of a node as a tree
    ///
    /// Exit code 0: in service; 3: in maintenance; 4: a person has to act.
    Status(StatusArgs),
    /// Show what a maintenance of this host or node would do, without changes
    ///
    /// It reads vCenter and Kubernetes once and applies the controller's own rules, so it needs the
    /// controller's settings. Exit code 0: nothing blocks it; 4: something does.
    Plan(Box<PlanArgs>),
    /// Report which nodes would get through a maintenance by themselves, and what stands against the others
    ///
    /// For the day before a patch night. It reads vCenter and Kubernetes once, and the pods of each node, without
    /// changes. It needs the controller's settings. Exit code 0: no node is blocked; 4: some are.
    Report(Box<ReportArgs>),
    /// Take a node out of service: cordon and drain it, and keep it so until `resume`
    ///
    /// It creates a NodeMaintenance for the controller, and shows its progress. Stopping this command
    /// does not delete the request; `resume` does.
    Drain(DrainArgs),
    /// Delete your requests for this node, which `drain` created
    ///
    /// Requests of other users stay, and are named: the user may stand before the machine. Delete them by name or with --all.
    Resume(ResumeArgs),
    /// Allow the drain for which a node waits to begin, if the controller requires an approval
    Approve(NodeArgs),
    /// Take a node back with the GPUs it has, if fewer are back than before its maintenance
    ///
    /// It annotates the Node with the present counts. Fewer than these do not count as back.
    Accept(NodeArgs),
    /// Leave a node alone: no maintenance begins for it until `unpause`
    ///
    /// It annotates the Node with haulout.dev/skip. A maintenance that runs is finished first.
    Pause(NodeArgs),
    /// Take the pause from a node
    Unpause(NodeArgs),
    /// List the ended maintenances of a node, newest first
    History(NodeArgs),
    /// Print the id and the address of the trace of a node's latest episode
    Trace(NodeArgs),
    /// Check the requirements of Haulout: vCenter, Kubernetes, rights, nodes and their VMs
    ///
    /// It needs the controller's settings. Exit code 0: nothing is missing; 4: something is.
    Check(Box<CheckArgs>),
    /// Write data for support into a directory, without secrets
    Export(Box<ExportArgs>),
    /// Print the CustomResourceDefinition of NodeMaintenance, for `kubectl apply -f -`
    Crd,
    /// Print a completion script
    Completion {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Print the version
    Version(OutputArgs),
}

/// Output formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A table.
    #[default]
    Table,
    /// A table with more columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Names only, such as `node/gpu-1`.
    Name,
}

impl Format {
    /// Whether a program reads it.
    fn is_machine_readable(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }
}

/// Output flags.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct OutputArgs {
    /// Output format
    #[arg(short = 'o', long = "output", value_enum, default_value_t)]
    output: Format,
    /// Print tables without headers
    #[arg(long)]
    no_headers: bool,
}

/// Settings of the controller that are needed to read its state from Kubernetes. What is not set is read from the cluster.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Settings of the controller, read from its ConfigMap if unset")]
pub struct NodeSettingsArgs {
    /// Label selector of the nodes
    #[arg(long, env = "GPU_NODE_LABEL", value_name = "SELECTOR")]
    gpu_node_label: Option<String>,
    /// Prefix of the annotations
    #[arg(long, env = "ANNOTATION_PREFIX", value_name = "DNS NAME")]
    annotation_prefix: Option<String>,
    /// The GPU resources, comma-separated
    #[arg(long, env = "GPU_RESOURCES", value_name = "LIST")]
    gpu_resources: Option<String>,
    /// Address of a trace in the tracing UI, with {trace_id} as placeholder for its id
    #[arg(long, env = "TRACE_UI_URL_TEMPLATE", value_name = "URL")]
    trace_ui_url_template: Option<String>,
}

/// The flags of subcommands that read the state of nodes.
#[derive(Clone, Debug, clap::Args)]
pub struct NodesArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    settings: NodeSettingsArgs,
    #[command(flatten)]
    access: Access,
}

/// The flags of subcommands that have the settings of the controller.
#[derive(Clone, Debug, clap::Args)]
pub struct ControllerArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    settings: Config,
}

/// `check`.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    probe: ProbeArgs,
    #[command(flatten)]
    flags: ControllerArgs,
}

/// `status`.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// The node
    node: String,
    /// Show each change, until the node is in service
    #[arg(short, long)]
    watch: bool,
    /// With --watch, the longest time to watch; 0 is no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    timeout: u64,
    #[command(flatten)]
    flags: NodesArgs,
}

/// `plan`.
#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    /// The ESXi host or the node
    name: String,
    #[command(flatten)]
    flags: ControllerArgs,
}

/// `report`.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Output format
    #[arg(short = 'o', long = "output", value_enum, default_value_t)]
    output: report::ReportFormat,
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    settings: Config,
}

/// `drain`.
#[derive(Debug, clap::Args)]
pub struct DrainArgs {
    /// The node
    node: String,
    /// The reason, for other people
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The requested action
    #[arg(long, value_enum, ignore_case = true, default_value = "Drain")]
    action: MaintenanceAction,
    /// With --action Relocate, the ESXi host to move the VM to
    #[arg(long, value_name = "HOST", requires = "action")]
    target_host: Option<String>,
    /// When it may begin at the earliest, such as 2026-12-24T22:00:00Z
    #[arg(long, value_name = "TIME")]
    not_before: Option<jiff::Timestamp>,
    /// The days and hours in which it may begin, such as "Mon-Fri 22:00-04:00 Europe/Berlin"
    #[arg(long, value_name = "WINDOW")]
    window: Option<Window>,
    /// Wait until the request is fulfilled
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    wait: bool,
    /// The longest time to wait; 0 is no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    timeout: u64,
    /// Do not ask before a request that shuts the VM down; needed without a terminal
    #[arg(long, short)]
    yes: bool,
    /// Create nothing: with client, print the object; with server, let the kube-apiserver check it
    #[arg(long, value_enum, value_name = "MODE", num_args = 0..=1, require_equals = true, default_value = "none",
          default_missing_value = "client")]
    dry_run: RequestDryRun,
    #[command(flatten)]
    flags: NodesArgs,
}

/// `--dry-run` of `drain`, as kubectl has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum RequestDryRun {
    None,
    Client,
    Server,
}

/// `resume`.
#[derive(Debug, clap::Args)]
pub struct ResumeArgs {
    /// The node
    node: String,
    /// Delete only this request, also if another user created it
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    request: Option<String>,
    /// Delete all requests for the node; asks before it deletes those of other users
    #[arg(long)]
    all: bool,
    /// Do not ask; needed with --all without a terminal
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    flags: NodesArgs,
}

/// `approve`, `accept`, `pause`, `unpause`, `history` and `trace`.
#[derive(Debug, clap::Args)]
pub struct NodeArgs {
    /// The node
    node: String,
    #[command(flatten)]
    flags: NodesArgs,
}

/// `export`.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    /// The directory to create; it must not exist
    #[arg(long, value_name = "DIRECTORY", default_value = "haulout-export")]
    to: PathBuf,
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    settings: Config,
}

/// An invalid command line.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// From clap, which also reports requests for help and version this way.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// Invalid values of settings.
    #[error(transparent)]
    Settings(#[from] ConfigError),
}

impl Cli {
    /// Parses the command line. Under the plugin name, help and completion use `kubectl haulout`.
    ///
    /// # Errors
    /// For an invalid command line.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, ArgsError> {
        let args: Vec<OsString> = args.into_iter().collect();
        let command = command_as(is_plugin(args.first()));
        let (matches, mut problems) = config::read(&command, args)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        if let (Some(settings), Some((name, matches))) = (cli.settings(), matches.subcommand()) {
            if let Some(subcommand) = command.find_subcommand(name) {
                settings.keep_effective(subcommand, matches);
            }
            let missing =
                |found: &config::WrongSetting| problems.iter().all(|known| known.name != found.name);
            let found: Vec<_> = settings.check().into_iter().filter(missing).collect();
            problems.extend(found);
        }
        if problems.is_empty() {
            Ok(cli)
        } else {
            Err(ConfigError { problems }.into())
        }
    }

    /// The settings of the controller, if the subcommand has them.
    fn settings(&mut self) -> Option<&mut Config> {
        match &mut self.command {
            Command::Run(settings) => Some(settings),
            Command::Sentinel(_) => None,
            Command::Subcommand(subcommand) => match &mut **subcommand {
                Subcommand::Plan(args) => Some(&mut args.flags.settings),
                Subcommand::Check(args) => Some(&mut args.flags.settings),
                Subcommand::Export(args) => Some(&mut args.settings),
                Subcommand::Report(args) => Some(&mut args.settings),
                Subcommand::List(_)
                | Subcommand::Status(_)
                | Subcommand::Drain(_)
                | Subcommand::Resume(_)
                | Subcommand::Approve(_)
                | Subcommand::Accept(_)
                | Subcommand::Trace(_)
                | Subcommand::Pause(_)
                | Subcommand::Unpause(_)
                | Subcommand::History(_)
                | Subcommand::Crd
                | Subcommand::Completion { .. }
                | Subcommand::Version(_) => None,
            },
        }
    }
}

/// Whether the program was called by its plugin name.
fn is_plugin(first: Option<&OsString>) -> bool {
    first
        .map(std::path::Path::new)
        .and_then(|path| path.file_stem())
        .is_some_and(|name| name == PLUGIN)
}

fn command_as(plugin: bool) -> clap::Command {
    if plugin {
        Cli::command().bin_name("kubectl haulout")
    } else {
        Cli::command()
    }
}

/// The CustomResourceDefinition of NodeMaintenance as YAML, the same as `chart/files/crd.yaml`.
///
/// # Errors
/// Those of the YAML writer.
pub fn crd_yaml() -> anyhow::Result<String> {
    let yaml = serde_saphyr::to_string(&NodeMaintenance::crd())?;
    Ok(format!("# Written by `haulout crd`.\n{yaml}"))
}

#[cfg(test)]
mod tests;
