//! Arguments and results of calls on VMs.

use haulout_core::ids::{HostRef, TaskRef};

/// The cause for cutting the power of a VM. It is checked again right before the call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceCause {
    /// The host that enters, or is in, maintenance. Without host and task a person asked, and nothing
    /// is checked.
    pub host: Option<HostRef>,
    /// The task that puts the host into maintenance.
    pub task: Option<TaskRef>,
}

/// Result of a call that starts a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartedTask {
    /// The VM already is in the requested state.
    AlreadyThere,
    /// The task, started by this call or already running. It ends with
    /// [`super::update::VsphereUpdate::Task`].
    Running(TaskRef),
}

/// Result of a guest shutdown request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestShutdown {
    /// The request was sent. The VM powers off later, or never.
    Sent,
    /// The VM is off already; nothing was sent.
    AlreadyOff,
}

/// Who chooses the host on which a VM starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PowerOnBy {
    /// This host, on which the VM is registered (`PowerOnVM_Task` with `host`).
    Host(HostRef),
    /// DRS (`PowerOnMultiVM_Task` on the VM's datacenter).
    Drs,
}
