//! The command line: what `haulout` can be asked to do.

use clap::{Parser, Subcommand};

use crate::config::Args;

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
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controller
    ///
    /// It watches vCenter and Kubernetes, and takes each GPU node through the maintenance of its ESXi host.
    ///
    /// Every setting can be given as a flag or in the environment; the flag goes first. Kubernetes is found by
    /// KUBECONFIG, or from inside the cluster. A wrong value ends the program with exit code 2 and names what would be
    /// right.
    // Boxed: the settings are many times the size of the other variants.
    Run(Box<Args>),
    /// Print the version
    Version,
}
