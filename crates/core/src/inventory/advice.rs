//! How each failure of a call to vCenter is handled.

use crate::facts::fault::{Failure, Fault, FaultKind};
use crate::maintenance::observed::{EffectRefusal, RetryAdvice};

impl From<Failure<'_>> for RetryAdvice {
    fn from(failure: Failure<'_>) -> Self {
        match failure {
            // A failed login or check says nothing about the call, the VM or the host.
            Failure::NotSent => Self::Retry,
            Failure::Unanswered => Self::Unanswered,
            Failure::Refused(fault) => Self::from(&fault.kind),
        }
    }
}

impl From<&FaultKind> for RetryAdvice {
    fn from(kind: &FaultKind) -> Self {
        match kind {
            FaultKind::ToolsUnavailable => Self::NoTools,
            // The session is gone, the object has changed, another operation is running on it, or the operation is not
            // possible at the moment.
            FaultKind::NotAuthenticated
            | FaultKind::ManagedObjectNotFound
            | FaultKind::InvalidState
            | FaultKind::InvalidPowerState
            | FaultKind::RequestCanceled
            | FaultKind::InvalidCollectorVersion
            | FaultKind::NotLeaving
            | FaultKind::TaskInProgress
            | FaultKind::ConcurrentAccess
            | FaultKind::MethodDisabled
            | FaultKind::Timedout
            | FaultKind::HostNotConnected
            | FaultKind::Unreadable => Self::Retry,
            FaultKind::InsufficientResources | FaultKind::FileLocked | FaultKind::GenericVmConfigFault => {
                Self::MayPass
            }
            FaultKind::InvalidHostState
            | FaultKind::DisallowedOperationOnFailoverHost
            | FaultKind::VmConfig
            | FaultKind::Migration
            | FaultKind::NoCompatibleHost
            | FaultKind::NotSupported
            | FaultKind::OnlyRecommended => Self::OtherHost,
            FaultKind::ClusterWide => Self::Cluster,
            FaultKind::InvalidLogin
            | FaultKind::NoPermission
            | FaultKind::QuestionPending
            | FaultKind::InvalidArgument => Self::Person,
            FaultKind::Other(_) => Self::Unknown,
        }
    }
}

impl From<&Fault> for EffectRefusal {
    fn from(fault: &Fault) -> Self {
        // The name of an unknown fault can be searched for.
        let message = if let FaultKind::Other(_) = &fault.kind {
            fault.to_string()
        } else {
            fault.message.clone()
        };
        Self {
            advice: RetryAdvice::from(&fault.kind),
            message,
        }
    }
}
