//! Settings of how many nodes are in maintenance at once.

use clap::ArgAction;

use super::parse::{boolean, count, label_key, max_unavailable};
use crate::maintenance::policy::Limit;

const PACE: &str = "How many nodes at once";

/// How many nodes are in maintenance at once, and which come first.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct PaceSettings {
    /// Drain a node only after it is annotated with haulout.dev/approved, as `kubectl haulout approve` does (true, false)
    #[arg(long, env, value_name = "BOOL", help_heading = PACE, value_parser = boolean, default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub require_approval: bool,
    /// How many nodes may be between cordon and power-off at once (1 to 1000)
    #[arg(long, env, value_name = "NODES", help_heading = PACE, value_parser = count("nodes", 1, 1_000),
          default_value = "1")]
    pub max_concurrent_drains: u32,
    /// How many nodes may be between cordon and being back at once (1 to 10000, 1% to 100%, unlimited)
    #[arg(long, env, value_name = "NODES", help_heading = PACE, value_parser = max_unavailable,
          default_value = "unlimited")]
    pub max_unavailable: Limit,
    /// How many GPUs may be on nodes between cordon and being back at once (1 to 10000, 1% to 100%, unlimited)
    ///
    /// Counts what is in GPU_RESOURCES. A node with more GPUs than this goes when no other is away.
    #[arg(long, env, value_name = "GPUS", help_heading = PACE, value_parser = max_unavailable,
          default_value = "unlimited", hide_short_help = true)]
    pub max_unavailable_gpus: Limit,
    /// How many VMs may be powered off in an hour (1 to 10000, 1% to 100%, unlimited)
    ///
    /// A node waits in the queue, before its drain, until fewer were. A percentage is of the nodes. A new leader counts the VMs that are
    /// off, and not those that have come back.
    #[arg(long, env, value_name = "NODES", help_heading = PACE, value_parser = max_unavailable,
          default_value = "unlimited", hide_short_help = true)]
    pub max_power_offs_per_hour: Limit,
    /// Label by whose value nodes are grouped: the limits on how many may be away at once then apply to each group (a label key)
    ///
    /// Nodes without the label are a group of their own.
    #[arg(long, env, value_name = "LABEL", help_heading = PACE, value_parser = label_key, hide_short_help = true)]
    pub limit_group_label: Option<String>,
}
