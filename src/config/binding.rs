//! Settings of how nodes are bound to VMs.

use clap::ArgAction;

use super::WrongSetting;
use super::parse::{boolean, scope};
use crate::vsphere::scope::VmScope;

const NODES: &str = "Nodes";

/// Which VM a node is bound to.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct BindingSettings {
    /// Bind each node to the VM of the same name, whatever UUID it reports (true, false)
    #[arg(long, env, value_name = "BOOL", help_heading = NODES, value_parser = boolean, default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub bind_by_name: bool,
    /// Bind nodes by spec.providerID alone, and not by the UUID that the kubelet reports (true, false)
    ///
    /// A kubelet may write the UUID of another VM, and a cloud provider writes the providerID. A node without one is left alone.
    #[arg(long, env, value_name = "BOOL", help_heading = NODES, value_parser = boolean, default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub require_provider_id: bool,
    /// Leave VMs without a passthrough device to vCenter, which can move them by vMotion (true, false)
    ///
    /// Passthrough devices are PCI devices, vGPUs and network cards by SR-IOV. The maintenance of a host does not drain the nodes of
    /// such VMs; requests do.
    #[arg(long, env, value_name = "BOOL", help_heading = NODES, value_parser = boolean, default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub leave_unpinned_vms: bool,
    /// Which VMs exist for Haulout: those below folders, clusters, resource pools or datacenters (inventory paths or managed object
    /// ids), and those with a custom attribute (name=value); separated by commas
    ///
    /// Paths are those of govc, such as /dc1/vm/tenant-a or /dc1/host/cluster1/Resources/pool-a. One entry that fits is enough. If
    /// unset, all VMs that the account sees.
    #[arg(long, env, value_name = "LIST", help_heading = NODES, value_parser = scope)]
    pub vcenter_scope: Option<VmScope>,
}

impl BindingSettings {
    /// The problems of combinations of settings.
    pub(super) fn check(&self) -> Option<WrongSetting> {
        let contradicts = self.bind_by_name && self.require_provider_id;
        contradicts.then(|| {
            let expected = "BIND_BY_NAME=true is set as well; one of the two is expected".to_owned();
            WrongSetting::new("REQUIRE_PROVIDER_ID", "true", expected)
        })
    }
}
