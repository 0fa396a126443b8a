//! The command line: what `haulout` can be asked to do, and what `kubectl haulout` can.
//!
//! Each verb reads, makes plain data of what it has read, and renders that; rendering reads nothing.
//!
//! ```text
//! verbs ─▶ picture (both worlds, once) ─▶ plan, check ─┐
//!       └▶ nodes (Nodes, NodeMaintenances) ────────────┴─▶ table, tree, JSON, YAML ─▶ out
//! ```

mod age;
mod check;
mod cluster_view;
mod export;
mod follow;
mod nodes;
mod out;
mod plan;
mod reading;
mod request;
mod show;
mod status;
mod subcommands;
mod table;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use kube::CustomResourceExt as _;

use crate::config::{self, Config, ConfigError};
use crate::keys;
use crate::kubernetes::client::Access;
use crate::nodemaintenance::kind::{MaintenanceAction, NodeMaintenance};

pub use subcommands::perform;

/// What kubectl looks for on PATH when it is asked for `kubectl haulout`.
const PLUGIN: &str = "kubectl-haulout";

/// Takes Kubernetes nodes with passthrough GPUs safely through ESXi host maintenance.
///
/// An operator clicks Enter Maintenance Mode in vCenter; a VM with a passthrough device cannot be moved while it runs, so
/// the host would wait for ever. Haulout drains the node, shuts its VM down, moves it to another host or waits for its
/// own, powers it on, and brings the node back into service.
#[derive(Debug, Parser)]
#[command(
    name = "haulout",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `haulout` can be asked to do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run the controller
    ///
    /// It watches vCenter and Kubernetes, and takes each GPU node through the maintenance of its ESXi host.
    ///
    /// Every setting can be given as a flag or in the environment; the flag goes first. Kubernetes is found by
    /// KUBECONFIG, or from inside the cluster. A wrong value ends the program with exit code 2 and names what would be
    /// right.
    // Boxed, both: settings and what else can be typed are many, and each is read once.
    Run(Box<Config>),
    /// A verb for people.
    #[command(flatten)]
    Verb(Box<Subcommand>),
}

/// What people ask for at a prompt.
#[derive(Debug, clap::Subcommand)]
pub enum Subcommand {
    /// List the GPU nodes and how each stands
    List(ListArgs),
    /// Show how a node stands, as a tree
    ///
    /// Exit code 0: in service; 3: in maintenance; 4: parked, a person has to look at it.
    Status(StatusArgs),
    /// Say what a maintenance of this host or node would do, and change nothing
    ///
    /// It reads vCenter and Kubernetes once and judges by the controller's own rules, so give it the controller's
    /// settings. Exit code 0: nothing would stand in the way; 4: something would.
    Plan(Box<PlanArgs>),
    /// Take a node out of service: cordon and drain it, and keep it so until `resume`
    ///
    /// It creates a NodeMaintenance, which the controller goes about, and tells how it goes. Ending this command early
    /// does not take the request back; `resume` does.
    Drain(DrainArgs),
    /// Take back what was asked for with `drain`: delete the requests for this node
    Resume(NodeArgs),
    /// Let the next drain of a node begin, where the controller requires an approval
    Approve(NodeArgs),
    /// Print the trace of a node's latest episode, and its address
    Trace(NodeArgs),
    /// Check all that Haulout needs: vCenter, Kubernetes, rights, nodes and their VMs
    ///
    /// Give it the controller's settings. Exit code 0: nothing is missing; 4: something is.
    Check(Box<CheckArgs>),
    /// Write what somebody who helps needs to see into a directory, without secrets
    Export(Box<ExportArgs>),
    /// Print the CustomResourceDefinition of NodeMaintenance, for `kubectl apply -f -`
    Crd,
    /// Print a completion script
    Completion {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Print the version
    Version(VersionArgs),
}

/// How kubectl is told which cluster is meant.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Which cluster")]
pub struct AccessArgs {
    /// The kubeconfig to use, in the place of KUBECONFIG, the cluster around us, or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Act as another user, such as system:serviceaccount:haulout:haulout
    #[arg(long = "as", value_name = "USER")]
    impersonate: Option<String>,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For people, with more columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Only the names, as `node/gpu-1`.
    Name,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct OutputArgs {
    /// How the result is printed
    #[arg(short = 'o', long = "output", value_enum, default_value_t)]
    output: Format,
    /// Print no line of headers above a table
    #[arg(long)]
    no_headers: bool,
}

/// Which settings of the controller matter for what stands in Kubernetes.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "As the controller is set")]
pub struct MarksArgs {
    /// Label selector of the nodes
    #[arg(long, env = "GPU_NODE_LABEL", value_name = "SELECTOR", default_value = keys::DEFAULT_NODE_SELECTOR)]
    gpu_node_label: String,
    /// Prefix of the annotations
    #[arg(long, env = "ANNOTATION_PREFIX", value_name = "DNS NAME", default_value = keys::DEFAULT_PREFIX)]
    annotation_prefix: String,
    /// The resources that are GPUs, comma-separated
    #[arg(long, env = "GPU_RESOURCES", value_name = "LIST", default_value = crate::config::DEFAULT_GPU_RESOURCES)]
    gpu_resources: String,
    /// Address of a trace in the tracing UI, with {trace_id} in the place of its id
    #[arg(long, env = "TRACE_UI_URL_TEMPLATE", value_name = "URL")]
    trace_ui_url_template: Option<String>,
}

/// `list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    marks: MarksArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// `status`.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// The node
    node: String,
    /// Show each change, until the node is in service
    #[arg(short, long)]
    watch: bool,
    /// With --watch, the longest time to watch; 0 is for ever
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    timeout: u64,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    marks: MarksArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// `plan`.
#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    /// The ESXi host or the node
    name: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    settings: Config,
}

/// `drain`.
#[derive(Debug, clap::Args)]
pub struct DrainArgs {
    /// The node
    node: String,
    /// Why, for whoever looks at it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// What is asked for
    #[arg(long, value_enum, ignore_case = true, default_value = "Drain")]
    action: DrainAction,
    /// With --action Relocate, the ESXi host to move the VM to
    #[arg(long, value_name = "HOST", requires = "action")]
    target_host: Option<String>,
    /// Wait until it is so
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    wait: bool,
    /// The longest time to wait; 0 is for ever
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    timeout: u64,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    marks: MarksArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// `spec.action` of a NodeMaintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DrainAction {
    /// Cordon and drain it, and keep it so until `resume`.
    #[value(name = "Drain")]
    Drain,
    /// Drain it, shut its VM down, and keep it off until `resume`.
    #[value(name = "PowerOff")]
    PowerOff,
    /// Drain it, move its VM to another host, and bring it back.
    #[value(name = "Relocate")]
    Relocate,
    /// Drain it, shut its VM down and power it on, and bring it back.
    #[value(name = "Reboot")]
    Reboot,
}

/// `resume`, `approve` and `trace`.
#[derive(Debug, clap::Args)]
pub struct NodeArgs {
    /// The node
    node: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    marks: MarksArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// `check`.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    settings: Config,
}

/// `export`.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    /// The directory to write; it must not be there yet
    #[arg(long, value_name = "DIRECTORY", default_value = "haulout-export")]
    to: PathBuf,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    settings: Config,
}

/// `version`.
#[derive(Debug, clap::Args)]
pub struct VersionArgs {
    #[command(flatten)]
    output: OutputArgs,
}

/// A command line that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum RefusedArgs {
    /// By clap, which also says so when only its help or the version is asked for.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// For the values of settings.
    #[error(transparent)]
    Settings(#[from] ConfigError),
}

impl Cli {
    /// Reads the command line as clap does; under the name of the plugin, help and completion say `kubectl haulout`.
    ///
    /// # Errors
    /// For a command line that cannot be followed.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, RefusedArgs> {
        let words: Vec<OsString> = words.into_iter().collect();
        let command = command_as(is_plugin(words.first()));
        let (matches, mut wrong) = config::read(&command, words)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        if let (Some(settings), Some((name, matches))) = (cli.settings(), matches.subcommand()) {
            if let Some(subcommand) = command.find_subcommand(name) {
                settings.keep_effective(subcommand, matches);
            }
            let missing = |found: &config::WrongSetting| wrong.iter().all(|known| known.name != found.name);
            let found: Vec<_> = settings.check().into_iter().filter(missing).collect();
            wrong.extend(found);
        }
        if wrong.is_empty() {
            Ok(cli)
        } else {
            Err(ConfigError { wrong }.into())
        }
    }

    /// The settings of the controller, where the subcommand takes them.
    fn settings(&mut self) -> Option<&mut Config> {
        match &mut self.command {
            Command::Run(settings) => Some(settings),
            Command::Verb(verb) => match &mut **verb {
                Subcommand::Plan(args) => Some(&mut args.settings),
                Subcommand::Check(args) => Some(&mut args.settings),
                Subcommand::Export(args) => Some(&mut args.settings),
                Subcommand::List(_)
                | Subcommand::Status(_)
                | Subcommand::Drain(_)
                | Subcommand::Resume(_)
                | Subcommand::Approve(_)
                | Subcommand::Trace(_)
                | Subcommand::Crd
                | Subcommand::Completion { .. }
                | Subcommand::Version(_) => None,
            },
        }
    }
}

/// Whether we were called by the name under which kubectl finds us.
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

/// The CustomResourceDefinition of NodeMaintenance, as YAML. `chart/files/crd.yaml` is this text.
///
/// # Errors
/// None that the type could give; whatever the YAML writer says.
pub fn definition() -> anyhow::Result<String> {
    let yaml = serde_saphyr::to_string(&NodeMaintenance::crd())?;
    Ok(format!("# Written by `haulout crd`.\n{yaml}"))
}

impl From<&AccessArgs> for Access {
    fn from(args: &AccessArgs) -> Self {
        let AccessArgs {
            kubeconfig,
            context,
            impersonate,
        } = args.clone();
        Self {
            kubeconfig,
            context,
            impersonate,
        }
    }
}

impl From<DrainAction> for MaintenanceAction {
    fn from(action: DrainAction) -> Self {
        match action {
            DrainAction::Drain => Self::Drain,
            DrainAction::PowerOff => Self::PowerOff,
            DrainAction::Relocate => Self::Relocate,
            DrainAction::Reboot => Self::Reboot,
        }
    }
}

#[cfg(test)]
mod tests;
