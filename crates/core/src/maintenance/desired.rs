//! The desired state of a node, from its host and its request.

use std::time::Duration;

use super::clock::{Deadline, Now, whole_second};
use super::host::HostState;
use super::observed::ObservedVm;
use super::request::Request;

/// The desired state of a node, from its host and its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredState<'a> {
    /// The VM has to be off or on another host.
    Down,
    /// A request asks for a drained node and nothing more.
    Drained(&'a Request),
    /// The maintenance of its host failed recently and is likely to be retried. Until then the node stays as it is.
    RetryExpected {
        /// The end of `MAINTENANCE_RETRY_GRACE_SECONDS`.
        until: Deadline,
        /// The fault of the failed task.
        message: &'a str,
    },
    /// In service.
    InService,
    /// The state of its host cannot be read, so nothing is done to the VM.
    Unknown,
}

impl<'a> DesiredState<'a> {
    /// The desired state of a node in service, whose VM is on a host in this state.
    pub fn of(host: &HostState, request: Option<&'a Request>) -> Self {
        match request {
            _ if host.is_leaving() => Self::Down,
            Some(request) if !request.action.needs_power_off() => Self::Drained(request),
            _ if !host.is_out() => Self::Unknown,
            Some(_) => Self::Down,
            None => Self::InService,
        }
    }

    /// The desired state of a node in an episode, which outlasts a failed maintenance by at most `grace`.
    pub fn in_episode(vm: &'a ObservedVm, request: Option<&'a Request>, grace: Duration, now: Now) -> Self {
        let desired = Self::of(&vm.host, request);
        let Some(failed) = vm.interrupted.as_ref().filter(|_| desired == Self::InService) else {
            return desired;
        };
        let end = failed.at.after(grace);
        if now.monotonic >= end.monotonic {
            return desired;
        }
        Self::RetryExpected {
            until: Deadline {
                at: end.monotonic,
                shown: whole_second(end.wall),
            },
            message: &failed.message,
        }
    }

    /// Whether the node has to be cordoned and drained.
    pub fn is_out_of_service(self) -> bool {
        match self {
            Self::Down | Self::Drained(_) => true,
            Self::RetryExpected { .. } | Self::InService | Self::Unknown => false,
        }
    }
}
