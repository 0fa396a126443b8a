//! The command line of `haulout` and `kubectl haulout`.
//!
//! Each subcommand reads, makes plain data, and renders it; rendering reads nothing.
//!
//! ```text
//! subcommands ─▶ leader (the API of its status page) ───────▶ plan, report ─┐
//!             ├▶ check::inventory (vCenter and Kubernetes) ─▶ check ────────┤
//!             └▶ reading (Nodes, NodeMaintenances) ─────────▶ nodes ────────┴─▶ table, tree, JSON, YAML ─▶ out
//! ```

mod args;
mod check;
pub mod completion;
mod controller_settings;
mod export;
mod follow;
mod history;
mod leader;
mod nodes;
mod out;
mod overrides;
mod plan;
mod question;
mod reading;
mod report;
mod request;
mod resume;
mod selection;
mod status;
mod subcommands;
mod table;

use std::ffi::OsString;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use kube::CustomResourceExt as _;

use crate::config::{self, Config, ConfigError};
use crate::nodemaintenance::kind::NodeMaintenance;
use crate::sentinel::SentinelArgs;

use args::RequestDryRun;
pub use args::{
    CheckArgs, DrainArgs, ExportArgs, Format, ListArgs, NodeArgs, NodeFlags, NodeSettingsArgs, NodesArgs,
    OutputArgs, PauseArgs, PlanArgs, ReportArgs, ResumeArgs, StatusArgs, UnpauseArgs,
};
pub use out::StdoutClosed;
pub use subcommands::perform;

/// The plugin name that kubectl searches on PATH.
const PLUGIN: &str = "kubectl-haulout";

/// What `-h` leaves out.
const MORE_HELP: &str = "Options that select the cluster and the controller: --help";

/// Takes Kubernetes nodes with passthrough GPUs safely through ESXi host maintenance.
///
/// An operator clicks Enter Maintenance Mode in vCenter; a VM with a passthrough device cannot be moved
/// while it runs, so the host would wait forever. Haulout drains the node, shuts its VM down, moves it
/// to another host or waits for its own, powers it on, and returns the node to service.
#[derive(Debug, Parser)]
#[command(name = "haulout", version, arg_required_else_help = true)]
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
    List(ListArgs),
    /// Show the state of nodes as a tree
    ///
    /// Exit code 0: in service; 3: in maintenance; 4: a person has to act. Of several nodes, the highest counts.
    Status(StatusArgs),
    /// Show what a maintenance of these hosts or nodes would do, without changes
    ///
    /// With several names, all of it begins at once: first come the rounds in which the nodes go, the GPUs that are missing
    /// meanwhile, and how many hosts' VMs find another host; then each node. -o wide shows each plan in full.
    ///
    /// The leader makes it, from what it knows of vCenter and with its own settings. It is asked by a port-forward to its pod.
    /// Exit code 0: nothing blocks it; 4: something does.
    Plan(PlanArgs),
    /// Report which nodes would get through a maintenance by themselves, and what stands against the others
    ///
    /// For the day before a patch night. The leader makes it, as for `plan`, and reads the pods of each node. Exit code 0: no node
    /// is blocked; 4: some are.
    Report(ReportArgs),
    /// Take nodes out of service: cordon and drain them, and keep them so until `resume`
    ///
    /// It creates a NodeMaintenance for each node, and shows the progress. The controller decides how many nodes are drained at a
    /// time. Stopping this command does not delete the requests; `resume` does.
    Drain(DrainArgs),
    /// Cancel your requests for these nodes, which `drain` created
    ///
    /// The controller brings the nodes back, in every phase. Requests of other users stay, and are named: the user may stand before
    /// the machine. Delete them by name or with --all. The maintenance of an ESXi host is cancelled in vCenter only.
    #[command(visible_alias = "cancel")]
    Resume(ResumeArgs),
    /// Allow the drains for which nodes wait to begin, if the controller requires an approval
    Approve(NodesArgs),
    /// Take nodes back with the GPUs they have, if fewer are back than before their maintenance
    ///
    /// It annotates each Node with the present counts. Fewer than these do not count as back.
    Accept(NodesArgs),
    /// Leave nodes alone: no maintenance begins for them until `unpause`
    ///
    /// It annotates each Node with haulout.dev/skip. A maintenance that is under way stops where it is, and a VM that is off
    /// stays off. So the command asks first for such a node.
    Pause(PauseArgs),
    /// Take the pause from nodes
    Unpause(UnpauseArgs),
    /// List the ended maintenances of nodes, newest first
    History(NodesArgs),
    /// Print the id and the address of the trace of a node's latest episode
    Trace(NodeArgs),
    /// Check the requirements of Haulout: vCenter, Kubernetes, rights, nodes and their VMs
    ///
    /// It logs in to vCenter by itself, also where no controller runs yet, so it needs the controller's settings. Exit code 0: nothing is missing; 4: something is.
    Check(Box<CheckArgs>),
    /// Write data for support into a directory, without secrets
    Export(Box<ExportArgs>),
    /// Print the CustomResourceDefinition of NodeMaintenance, for `kubectl apply -f -`
    Crd,
    /// Print a completion script
    ///
    /// It completes names of nodes and hosts as well. For `kubectl haulout`, link this program as kubectl_complete-haulout on the
    /// PATH.
    Completion {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Print the version
    Version(OutputArgs),
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
        let (matches, mut problems) = config::read_arguments(&command, args)?;
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
                Subcommand::Check(args) => Some(&mut args.settings),
                Subcommand::Export(args) => Some(&mut args.settings),
                Subcommand::List(_)
                | Subcommand::Plan(_)
                | Subcommand::Report(_)
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
    let command = short_help(Cli::command());
    if plugin {
        command.bin_name("kubectl haulout")
    } else {
        command
    }
}

/// Leaves the settings of the controller and the flags that select a cluster out of `-h`: they would bury the few of the subcommand.
fn short_help(command: clap::Command) -> clap::Command {
    command.mut_subcommands(|subcommand| {
        let has_own = matches!(subcommand.get_name(), "run" | "sentinel");
        let subcommand = subcommand.mut_args(|arg| {
            let is_common = arg.get_help_heading().is_some() && !has_own;
            if is_common { arg.hide_short_help(true) } else { arg }
        });
        if has_own {
            subcommand
        } else {
            subcommand.after_help(MORE_HELP).after_long_help("")
        }
    })
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
