//! What a VM may be told to do, on whose behalf, and what comes of it.

use haulout_core::ids::{HostRef, TaskRef};

/// What asks for a VM's power to be cut. It is looked at once more right before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceCause {
    /// The host that is on its way into maintenance, or there. Without a host and a task a person asks, and there is nothing
    /// to look at.
    pub host: Option<HostRef>,
    /// The task that puts it there.
    pub task: Option<TaskRef>,
}

/// What came of a call that starts a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartedTask {
    /// Nothing was to do: the VM is in the wanted state.
    AlreadyThere,
    /// This task does it, started by this call or found at work. It ends in [`super::update::Update::Task`].
    Running(TaskRef),
}

/// What came of asking a guest to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestShutdown {
    /// The guest was asked. The end shows in the VM's power state, or never.
    Sent,
    /// The VM is off; nothing was sent.
    AlreadyOff,
}

/// Who chooses the host on which a VM starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PowerOnBy {
    /// Nobody: it starts on this host, on which it is registered (`PowerOnVM_Task` with its `host`).
    Host(HostRef),
    /// DRS (`PowerOnMultiVM_Task` on the VM's datacenter).
    Drs,
}
