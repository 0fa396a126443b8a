//! Observations for people who compare this vCenter with what Haulout assumes. Everything here only reads; it creates and
//! destroys objects of its own session.
//!
//! What is returned has no names, references or addresses. Texts of vCenter are cut to characters that versions consist of.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::fault::FaultKind;

mod calls;
mod pushes;
mod read;
mod watch;

#[cfg(test)]
mod tests;

pub use pushes::{PushTally, WatchStep, WatchedPushes};
pub use watch::WatchProgress;

/// What a vCenter says about itself (`ServiceContent.about`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProductInfo {
    /// The API version of our calls.
    pub negotiated: String,
    /// `apiVersion`.
    pub api_version: String,
    /// `version`.
    pub version: String,
    /// `build`.
    pub build: String,
    /// `productLineId`: `vpx` for a vCenter.
    pub product_line: String,
}

/// The sizes of the results of recent tasks. The results are not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultSizes {
    /// Tasks that were read.
    pub tasks: usize,
    /// Those with a result.
    pub with_result: usize,
    /// Bytes of the largest result, as XML.
    pub largest: usize,
    /// Results beyond a limit of our XML reader.
    pub beyond_limit: usize,
    /// Recent tasks that were left out, because there are so many.
    pub left_out: usize,
}

/// Who began a task (`TaskInfo.reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskOrigin {
    /// `TaskReasonUser`.
    User,
    /// `TaskReasonSystem`.
    System,
    /// `TaskReasonSchedule`.
    Schedule,
    /// `TaskReasonAlarm`.
    Alarm,
    /// Another one, or none.
    Unknown,
}

/// A task as a task history lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedTask {
    /// `descriptionId`, such as `HostSystem.enterMaintenanceMode`.
    pub description_id: String,
    /// Who began it.
    pub origin: TaskOrigin,
    /// Whether another task began it (`parentTaskKey`).
    pub has_parent: bool,
    /// Whether it can be cancelled, while it runs.
    pub is_cancelable: bool,
    /// Why it failed, if it did.
    pub failed_with: Option<FaultKind>,
}

/// The hosts and VMs of some clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InventoryTraits {
    /// Hosts that were read.
    pub hosts: usize,
    /// Hosts that were left out, because there are so many.
    pub hosts_left_out: usize,
    /// VMs on these hosts.
    pub vms: usize,
    /// VMs whose devices cannot be read.
    pub unreadable_vms: usize,
    /// VMs whose files vCenter cannot read (`connectionState` `inaccessible`, `orphaned` or `invalid`).
    pub inaccessible_vms: usize,
    /// Those that have a configuration all the same.
    pub inaccessible_with_config: usize,
    /// Entries of `assignableHardwareBinding`.
    pub bindings: usize,
    /// Those whose instance id has exactly one PCI address.
    pub bindings_with_address: usize,
    /// The forms of the instance ids: `h` stands for a hexadecimal digit, `x` for another letter.
    pub binding_forms: BTreeSet<String>,
    /// Running VMs with a device at a fixed address on hosts that have bindings.
    pub static_vms: usize,
    /// Those that a binding names.
    pub static_vms_bound: usize,
    /// Running VMs with a device that was chosen at power-on, on such hosts.
    pub dynamic_vms: usize,
    /// Those that a binding names.
    pub dynamic_vms_bound: usize,
    /// Versions of ESXi with their builds.
    pub builds: BTreeSet<(Vec<u32>, u64)>,
}

/// A long poll without a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongPoll {
    /// `maxWaitSeconds`.
    pub asked: Duration,
    /// How long it took.
    pub took: Duration,
    /// How it ended.
    pub end: PollEnd,
}

/// How a long poll ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollEnd {
    /// With an answer of vCenter.
    Answered,
    /// The connection was closed.
    Closed,
    /// Without an answer in time.
    Silent,
    /// With this HTTP status, which is not vCenter's.
    Status(u16),
    /// With a fault, or an answer that cannot be read.
    Refused,
}
