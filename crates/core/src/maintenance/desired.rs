//! The desired state of a node, from its host and its request.

use std::time::Duration;

use super::clock::{Deadline, Now, whole_second};
use super::episode::Episode;
use super::observed::ObservedVm;
use super::request::Request;

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
    InService,
    /// The state of its host cannot be read, so nothing is done to the VM.
    Unknown,
}

impl<'a> DesiredState<'a> {
    /// The desired state of a node with this VM.
    pub fn of(vm: &ObservedVm, episode: Option<&Episode>, request: Option<&'a Request>) -> Self {
        match request {
            _ if vm.has_to_leave(episode) => Self::Down,
            Some(request) if !request.action.needs_power_off() => Self::Drained(request),
            _ if !vm.host.is_out() && !vm.is_moved_by_vcenter(episode) => Self::Unknown,
            Some(_) => Self::Down,
            None => Self::InService,
        }
    }

    /// The desired state of a node in an episode, which outlasts a failed maintenance by at most `grace`.
    pub fn in_episode(
        vm: &'a ObservedVm,
        episode: &Episode,
        request: Option<&'a Request>,
        grace: Duration,
        now: Now,
    ) -> Self {
        let desired = Self::of(vm, Some(episode), request);
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

impl ObservedVm {
    /// Whether the maintenance of its host takes it down. A VM that is left to vCenter is not, also where a request asks for its node.
    pub fn has_to_leave(&self, episode: Option<&Episode>) -> bool {
        self.host.is_leaving() && !self.is_moved_by_vcenter(episode)
    }

    /// Whether vCenter moves it from its host, which enters maintenance. An episode that began for the maintenance of a host goes on,
    /// whatever the settings are by now.
    pub fn is_moved_by_vcenter(&self, episode: Option<&Episode>) -> bool {
        let is_of_host = episode.is_some_and(|episode| episode.trigger.task.is_some());
        self.is_left_to_vcenter && self.host.is_leaving() && !is_of_host
    }
}
