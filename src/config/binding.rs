//! Settings of how nodes are bound to VMs.

use super::parse::one_of;
use crate::maintenance::policy::NodeBinding;
use crate::vsphere::scope::VmScope;

const NODES: &str = "Nodes";

/// Which VM a node is bound to.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct BindingSettings {
    /// By what a node is bound to its VM
    ///
    /// uuid is the UUID that the kubelet reports, or that in spec.providerID. provider-id is the latter alone: a kubelet may report the
    /// UUID of another VM, and a cloud provider writes the providerID; a node without one is left alone. name is the VM of the same
    /// name, whatever UUID the node reports.
    #[arg(long, env, value_name = "BY", help_heading = NODES, value_parser = one_of(NodeBinding::ALL, NodeBinding::name),
          ignore_case = true, default_value = NodeBinding::Uuid.name(), hide_short_help = true)]
    pub node_binding: NodeBinding,
    /// Which VMs exist for Haulout: those below folders, clusters, resource pools or datacenters (inventory paths or managed object
    /// ids), and those with a custom attribute (name=value); separated by commas
    ///
    /// Paths are those of govc, such as /dc1/vm/tenant-a or /dc1/host/cluster1/Resources/pool-a. One entry that fits is enough. If
    /// unset, all VMs that the account sees.
    #[arg(long, env, value_name = "LIST", help_heading = NODES)]
    pub vcenter_scope: Option<VmScope>,
}
