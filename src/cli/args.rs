//! The flags of the subcommands.

use std::path::PathBuf;

use super::completion;
use super::controller_settings::NodeSettings;
use super::leader::{LeaderAddress, LeaderArgs};
use super::out::Output;
use super::report;
use super::selection::{NodeSelection, NodeSelectionOrAll};
use crate::config::Config;
use crate::kubernetes::client::{Access, connect_by};
use crate::nodemaintenance::kind::MaintenanceAction;
use crate::plan::NAMES_MAX;
use crate::window::Window;

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
    pub(super) fn is_machine_readable(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }
}

/// Output flags.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct OutputArgs {
    /// Output format
    #[arg(short = 'o', long = "output", value_enum, default_value_t)]
    pub(super) output: Format,
    /// Print tables without headers
    #[arg(long)]
    pub(super) no_headers: bool,
}

/// Settings of the controller that are needed to read its state from Kubernetes. What is not set is read from the cluster.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Settings of the controller, read from its ConfigMap if unset")]
pub struct NodeSettingsArgs {
    /// Label selector of the nodes
    #[arg(long, env = "GPU_NODE_LABEL", value_name = "SELECTOR")]
    pub(super) gpu_node_label: Option<String>,
    /// The GPU resources, comma-separated
    #[arg(long, env = "GPU_RESOURCES", value_name = "LIST")]
    pub(super) gpu_resources: Option<String>,
    /// Address of a trace in the tracing UI, with {trace_id} as placeholder for its id
    #[arg(long, env = "TRACE_UI_URL_TEMPLATE", value_name = "URL")]
    pub(super) trace_ui_url_template: Option<String>,
}

/// The flags of subcommands that read the state of nodes.
#[derive(Clone, Debug, clap::Args)]
pub struct NodeFlags {
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) settings: NodeSettingsArgs,
    #[command(flatten)]
    pub(super) access: Access,
}

impl NodeFlags {
    /// Connects to the cluster, and completes the settings from it.
    pub(super) async fn connect(&self, out: Output) -> anyhow::Result<(kube::Client, NodeSettings)> {
        let client = connect_by(&self.access).await?;
        let settings = self.settings.complete(&client, out).await;
        Ok((client, settings))
    }
}

/// `check`.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) access: Access,
    #[command(flatten)]
    pub(super) settings: Config,
}

/// `list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Only nodes that this label selector matches as well
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(super) selector: Option<String>,
    /// Show each change, until Ctrl-C
    #[arg(short, long)]
    pub(super) watch: bool,
    #[command(flatten)]
    pub(super) flags: NodeFlags,
}

/// `status`.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub(super) nodes: NodeSelection,
    /// Show each change, until the nodes are in service
    #[arg(short, long)]
    pub(super) watch: bool,
    /// With --watch, the longest time to watch; 0 is no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(super) timeout: u64,
    #[command(flatten)]
    pub(super) flags: NodeFlags,
}

/// `plan`.
#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    /// The ESXi hosts or nodes, in the order in which their maintenance begins
    #[arg(required = true, num_args = 1..=NAMES_MAX, add = completion::nodes_and_hosts())]
    pub(super) name: Vec<String>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) leader: LeaderArgs,
}

/// `report`.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Output format
    #[arg(short = 'o', long = "output", value_enum, default_value_t)]
    pub(super) output: report::ReportFormat,
    #[command(flatten)]
    pub(super) leader: LeaderArgs,
}

/// `drain`.
#[derive(Debug, clap::Args)]
pub struct DrainArgs {
    #[command(flatten)]
    pub(super) nodes: NodeSelection,
    /// The reason, for other people
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,
    /// The requested action
    #[arg(long, value_enum, ignore_case = true, default_value = "Drain")]
    pub(super) action: MaintenanceAction,
    /// With --action Relocate, the ESXi host to move the VM to
    #[arg(long, value_name = "HOST", requires = "action", add = completion::hosts())]
    pub(super) target_host: Option<String>,
    /// When it may begin at the earliest, such as 2026-12-24T22:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(super) not_before: Option<jiff::Timestamp>,
    /// The days and hours in which it may begin, such as "Mon-Fri 22:00-04:00 Europe/Berlin"
    #[arg(long, value_name = "WINDOW")]
    pub(super) window: Option<Window>,
    /// Wait until the requests are fulfilled
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(super) wait: bool,
    /// The longest time to wait; 0 is no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(super) timeout: u64,
    /// Do not ask before a request that shuts VMs down; needed without a terminal
    #[arg(long, short)]
    pub(super) yes: bool,
    /// Create nothing: with client, print the object; with server, let the kube-apiserver check it
    #[arg(long, value_enum, value_name = "MODE", num_args = 0..=1, require_equals = true, default_value = "none",
          default_missing_value = "client")]
    pub(super) dry_run: RequestDryRun,
    #[command(flatten)]
    pub(super) flags: NodeFlags,
}

/// `--dry-run` of `drain`, as kubectl has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum RequestDryRun {
    None,
    Client,
    Server,
}

/// `resume`.
#[derive(Debug, clap::Args)]
pub struct ResumeArgs {
    #[command(flatten)]
    pub(super) nodes: NodeSelection,
    /// Delete only this request, also if another user created it
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    pub(super) request: Option<String>,
    /// Delete all requests for the nodes; asks before it deletes those of other users
    #[arg(long)]
    pub(super) all: bool,
    /// Do not ask; needed with --all without a terminal
    #[arg(long, short)]
    pub(super) yes: bool,
    #[command(flatten)]
    pub(super) flags: NodeFlags,
}

/// `approve`, `accept` and `history`.
#[derive(Debug, clap::Args)]
pub struct NodesArgs {
    #[command(flatten)]
    pub(super) nodes: NodeSelection,
    #[command(flatten)]
    pub(super) flags: NodeFlags,
}

/// `pause`.
#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    #[command(flatten)]
    pub(super) nodes: NodeSelectionOrAll,
    /// Do not ask; needed without a terminal for a node whose maintenance is under way
    #[arg(long, short)]
    pub(super) yes: bool,
    #[command(flatten)]
    pub(super) flags: NodeFlags,
}

/// `unpause`.
#[derive(Debug, clap::Args)]
pub struct UnpauseArgs {
    #[command(flatten)]
    pub(super) nodes: NodeSelectionOrAll,
    #[command(flatten)]
    pub(super) flags: NodeFlags,
}

/// `trace`.
#[derive(Debug, clap::Args)]
pub struct NodeArgs {
    /// The node
    #[arg(add = completion::nodes())]
    pub(super) node: String,
    #[command(flatten)]
    pub(super) flags: NodeFlags,
}

/// `export`.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    /// The directory to create; it must not exist
    #[arg(long, value_name = "DIRECTORY", default_value = "haulout-export")]
    pub(super) to: PathBuf,
    #[command(flatten)]
    pub(super) leader: LeaderAddress,
    #[command(flatten)]
    pub(super) settings: Config,
}
