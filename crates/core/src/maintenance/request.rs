//! What a person asks of one node, and what calls a node out of service: such a request, its host's maintenance, or both.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::clock::{Deadline, Now, whole_second};
use super::episode::Episode;
use super::observed::{HostState, ObservedVm};
use super::policy::DrainTimeoutAction;
use crate::ids::RequestUid;

/// A person's request: a NodeMaintenance object that has not been fulfilled yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which object.
    pub mark: RequestIdentity,
    /// When it was created, on the kube-apiserver's clock: its place in the queue.
    pub asked_at: Timestamp,
    /// What is asked for.
    pub action: RequestAction,
    /// In the place of `DRAIN_TIMEOUT_SECONDS`, where it is longer.
    pub drain_timeout: Option<Duration>,
    /// In the place of `DRAIN_TIMEOUT_ACTION`, where it is to hold.
    pub drain_timeout_action: Option<DrainTimeoutAction>,
    /// In the place of `GUEST_SHUTDOWN_TIMEOUT_SECONDS`, where it is longer.
    pub guest_shutdown_timeout: Option<Duration>,
}

/// A request as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestIdentity {
    /// The name of the object.
    pub name: String,
    /// Which of the objects of that name.
    pub uid: RequestUid,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestAction {
    /// Cordon and drain, and keep it so until the request is deleted.
    Drain,
    /// Drain, shut down, and keep the VM off until the request is deleted.
    PowerOff,
    /// Drain, shut down, move the VM to another host, and bring the node back.
    Relocate {
        /// To this host, by name; any that fits otherwise.
        to: Option<String>,
    },
    /// Drain, shut down, power on, and bring the node back on another boot.
    Reboot,
}

impl Request {
    /// Whether more has to be done for it in an episode whose VM is on its way back, or would have to be begun at all.
    pub fn is_unmet(&self, episode: &Episode) -> bool {
        match &self.action {
            RequestAction::Drain => false,
            RequestAction::PowerOff | RequestAction::Reboot => !episode.powered_off,
            RequestAction::Relocate { to } => {
                let moved = episode.moved_to.as_ref().is_some_and(|moved| match to {
                    Some(to) => *moved.name == **to,
                    None => true,
                });
                !moved && episode.gave_up.is_none()
            }
        }
    }

    /// Whether it asks for a VM that runs on the host of this name to be there.
    pub fn is_met_on(&self, host: &str) -> bool {
        match &self.action {
            RequestAction::Relocate { to: Some(to) } => to == host,
            RequestAction::Relocate { to: None }
            | RequestAction::Drain
            | RequestAction::PowerOff
            | RequestAction::Reboot => false,
        }
    }
}

impl RequestAction {
    /// Whether the VM has to be off for it.
    pub fn needs_power_off(&self) -> bool {
        match self {
            Self::Drain => false,
            Self::PowerOff | Self::Relocate { .. } | Self::Reboot => true,
        }
    }
}

impl fmt::Display for RequestAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drain => f.write_str("drained"),
            Self::PowerOff => f.write_str("kept off"),
            Self::Relocate { to: None } => f.write_str("relocated"),
            Self::Relocate { to: Some(host) } => write!(f, "relocated to {host}"),
            Self::Reboot => f.write_str("rebooted"),
        }
    }
}

/// What calls a node out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredState<'a> {
    /// Its VM has to be off, or away: its host leaves, or a person asks for what needs it.
    Down,
    /// A person wants it drained, and nothing more.
    Drained(&'a Request),
    /// Nothing does at this moment, but its host's maintenance failed a short while ago and is likely to be tried again: the
    /// node is to stay as it is until then.
    Interrupted {
        /// How long.
        until: Deadline,
        /// What vCenter said when it failed.
        said: &'a str,
    },
    /// Nothing does.
    Nothing,
    /// Its host is not to be seen: whether it leaves is unknown, and a VM there is better not touched.
    Unclear,
}

impl<'a> DesiredState<'a> {
    /// What calls a node whose VM stands on a host in this state.
    pub fn of(host: &HostState, request: Option<&'a Request>) -> Self {
        match request {
            _ if host.is_leaving() => Self::Down,
            Some(request) if !request.action.needs_power_off() => Self::Drained(request),
            _ if !host.is_out() => Self::Unclear,
            Some(_) => Self::Down,
            None => Self::Nothing,
        }
    }

    /// The same for a node that is on its way out of service, `grace` after its host's maintenance failed at the most.
    pub fn of_underway(vm: &'a ObservedVm, request: Option<&'a Request>, grace: Duration, now: Now) -> Self {
        let call = Self::of(&vm.host, request);
        let Some(interrupted) = vm.interrupted.as_ref().filter(|_| call == Self::Nothing) else {
            return call;
        };
        let end = interrupted.at.after(grace);
        if now.monotonic >= end.monotonic {
            return call;
        }
        Self::Interrupted {
            until: Deadline {
                at: end.monotonic,
                shown: whole_second(end.wall),
            },
            said: &interrupted.said,
        }
    }

    /// Whether the node is to be cordoned and drained.
    pub fn is_out_of_service(self) -> bool {
        match self {
            Self::Down | Self::Drained(_) => true,
            Self::Interrupted { .. } | Self::Nothing | Self::Unclear => false,
        }
    }
}
