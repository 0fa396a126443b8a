//! Arguments and results of calls on VMs.

use haulout_core::ids::TaskRef;

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
