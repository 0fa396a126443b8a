//! An episode: one maintenance of one node, from the trigger until the node is back in service.
//!
//! This is the durable record on the Node. Only facts, which are in [`super::observed`], change the phase.

mod history;
mod in_flight;
mod phase;
mod refusals;
mod trigger;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::clock::{Elapsed, Now};
pub use super::drain::{DrainEnd, DrainLimit};
use super::hook;
pub use super::hook::HeldStep;
pub use super::host::Detection;
pub use super::kinds::TriggerKind;
use super::kinds::{EpisodeOutcome, PhaseKind};
use super::machine_guard::MachineGuards;
use super::request_identity::RequestIdentity;
use super::volumes::VolumeWait;
use crate::facts::kubernetes::RequestAction;
use crate::facts::node_guard::{NodeGuard, read_node_guards};
use crate::facts::vsphere::StaticDevice;
use crate::ids::{BootId, EpisodeId, HostRef, NodeUid, TaskRef, VmRef, VmUuid};
use crate::is_default;
pub use history::{
    EpisodeOrigin, FinishedPhase, Incident, PhaseHistory, PhaseOutcome, PhaseStats, PodCounts, QueuePosition,
    RefusedHost,
};
pub(super) use history::{MAX_FINISHED, MAX_INCIDENTS};
pub use in_flight::InFlight;
pub use phase::Phase;
pub use refusals::{HostRefusal, MAX_REFUSALS, RefusedMove};
pub use trigger::Trigger;

/// The record on a Node.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// No episode.
    InService,
    /// An episode in progress.
    Episode(Arc<Episode>),
    /// An episode of the Python controller, to be adopted.
    Python(PythonEpisode),
    /// A record that this version cannot read. It is never overwritten.
    Unreadable {
        /// What is wrong with it.
        why: String,
    },
}

impl Record {
    pub fn phase(&self) -> Option<&Phase> {
        self.episode().map(|episode| &episode.phase)
    }

    pub fn episode(&self) -> Option<&Episode> {
        self.shared().map(|episode| &**episode)
    }

    pub fn shared(&self) -> Option<&Arc<Episode>> {
        match self {
            Self::Episode(episode) => Some(episode),
            Self::InService | Self::Python(_) | Self::Unreadable { .. } => None,
        }
    }

    /// The stable name of its phase.
    pub fn phase_name(&self) -> &'static str {
        self.kind().name()
    }

    /// The kind of its phase. A record that cannot be read counts as parked.
    pub fn kind(&self) -> PhaseKind {
        match self {
            Self::InService => PhaseKind::InService,
            Self::Python(_) => PhaseKind::Adopting,
            Self::Episode(episode) => episode.phase.kind(),
            Self::Unreadable { .. } => PhaseKind::Parked,
        }
    }
}

/// The annotations of the Python controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonEpisode {
    pub state: PythonState,
    pub host: String,
    pub migrated_to_host: Option<String>,
    /// Its `transition-time`.
    pub since: Timestamp,
}

/// The states of the Python controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PythonState {
    Draining,
    PoweredOff,
    Migrated,
}

/// One maintenance of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Episode {
    /// Its id, which is also its trace id.
    pub id: EpisodeId,
    /// The W3C traceparent of its root span, fixed when it begins, so that all processes contribute to one trace.
    pub traceparent: Arc<str>,
    pub trigger: Trigger,
    /// The UID of the Node. A Node that is deleted and recreated has another one.
    pub node_uid: NodeUid,
    /// The BIOS UUID of the VM, where it is known. It is fixed for the episode: no other VM is touched.
    pub vm_uuid: Option<VmUuid>,
    /// The moref of the VM, also fixed for the episode. Old records have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmRef>,
    /// The host whose maintenance it handles.
    pub host: HostIdentity,
    /// When it began, on our clock.
    pub begun_at: Timestamp,
    /// Who cordoned the Node.
    pub cordon: CordonOwner,
    /// The guards on the Node that this episode has set, and removes.
    #[serde(
        default,
        deserialize_with = "read_node_guards",
        skip_serializing_if = "BTreeSet::is_empty"
    )]
    pub guards: BTreeSet<NodeGuard>,
    /// The guards on the Machine of the node.
    #[serde(default, skip_serializing_if = "MachineGuards::is_empty")]
    pub machine_guards: MachineGuards,
    /// The step that hooks hold.
    #[serde(
        default,
        deserialize_with = "hook::read_held_step",
        skip_serializing_if = "Option::is_none"
    )]
    pub held: Option<HeldStep>,
    /// The power-on is asked for again while the VM awaits its host, so the out-of-service taint is off the Node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub power_on_due: bool,
    /// How many times the Node was cordoned again after another client uncordoned it, since the drain or the power-off.
    #[serde(default)]
    pub recordoned: u8,
    /// The boot id before the power cycle: the node counts as back only on another boot.
    pub boot_before: Option<BootId>,
    /// The boot id at the last drain. Another one means that the guest restarted instead of shutting down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained_boot: Option<BootId>,
    /// The allocatable GPUs before, by resource name.
    #[serde(default)]
    pub gpus_before: Arc<BTreeMap<String, u64>>,
    /// When the newest ResourceSlice before the power cycle was created. Only newer ones count as back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices_before: Option<Timestamp>,
    /// The resources of `gpus_before` that `GPU_RESOURCES` does not match any more, so that they were not awaited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched_gpus: Vec<String>,
    /// The GPUs that were not back, and with which a person took the node back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_gpus: Option<String>,
    /// The Node has shown none of these resources since its VM went off, so that a count on it is of a later boot.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gpus_cleared: bool,
    /// The VM has been seen powered off in this episode.
    #[serde(default)]
    pub powered_off: bool,
    /// The host to which the VM was relocated.
    pub moved_to: Option<HostIdentity>,
    /// Why the requested relocation was given up.
    #[serde(default, rename = "gaveUp", skip_serializing_if = "Option::is_none")]
    pub relocation_failure: Option<String>,
    /// The pods that were left when the drain timed out or the VM went off before its end, as `namespace/name`, and those that did not
    /// block it, also with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
    /// The end of the wait for the volumes of the pods that are gone; `None` before it, and where no volume was waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<VolumeWait>,
    /// The requests to vCenter that may still stop the VM. They cannot be cancelled, so they outlive their phase.
    #[serde(default, skip_serializing_if = "InFlight::is_empty")]
    pub in_flight: InFlight,
    /// How long the drain had taken when it was interrupted.
    #[serde(default, skip_serializing_if = "Elapsed::is_zero")]
    pub drained_for: Elapsed,
    /// How long the drain may last, as the settings and the request were when that was last decided. Old records have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_limit: Option<DrainLimit>,
    /// The drain timeout at that time, without the time in which pods may be waited for. Old records have none.
    #[serde(default, skip_serializing_if = "Elapsed::is_zero")]
    pub drain_timeout: Elapsed,
    /// How long the drain had taken when one of them became shorter: the drain timeout counts from then.
    #[serde(default, skip_serializing_if = "Elapsed::is_zero")]
    pub limited_from: Elapsed,
    /// How long the guest that was asked to shut down has for it.
    #[serde(default, skip_serializing_if = "Elapsed::is_zero")]
    pub guest_timeout: Elapsed,
    /// The hosts that refused the VM in this episode, oldest first. They are not tried again, except for the VM's own host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<HostRefusal>,
    /// The devices at fixed addresses that the VM has on its own host, once its configuration may name those of another host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub home_devices: Vec<StaticDevice>,
    /// How many times the VM went off again before its node was back.
    #[serde(default, skip_serializing_if = "is_default")]
    pub power_losses: u8,
    /// The VM is to wait for its own host, as its Node said when the record was last written. A deleted Node says nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_home: bool,
    /// The request that keeps the VM off, for processes that cannot read requests; while the node rejoins, the request against which a
    /// person powered the VM on.
    #[serde(default, rename = "keptOffBy", skip_serializing_if = "Option::is_none")]
    pub power_off_request: Option<RequestIdentity>,
    /// The release of Haulout that handles the episode; empty in old records.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub release: Arc<str>,
    /// The leadership epoch of the last write; 0 without leader election.
    #[serde(default)]
    pub epoch: u64,
    /// The number of writes. Of two copies, the one with the higher number is newer.
    #[serde(default)]
    pub revision: u64,
    pub phase: Phase,
    /// When the phase began, on the writer's wall clock. For display, and to identify this stay in the phase.
    pub since: Timestamp,
    /// The time in the phase at the last write. Deadlines count this plus the time since then on the monotonic clock.
    #[serde(default, skip_serializing_if = "Elapsed::is_zero")]
    pub elapsed: Elapsed,
    /// The finished phases and incidents. Nothing is decided from it.
    #[serde(
        default,
        deserialize_with = "PhaseHistory::read",
        skip_serializing_if = "is_default"
    )]
    pub history: PhaseHistory,
}

/// A host in a record: the moref decides, the name is for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIdentity {
    /// Its moref; `None` in an episode of the Python controller, which records names only.
    pub moref: Option<HostRef>,
    pub name: Arc<str>,
}

impl fmt::Display for HostIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The owner of the cordon. Only our own is removed at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CordonOwner {
    /// The episode has not cordoned this Node: it is queued, or the Node was registered again.
    NotYet,
    /// This episode cordoned the Node.
    Ours,
    /// Another client wrote our cordon, with this field manager if one is named: the Python controller, or who put the Node back
    /// from a manifest. It is removed at the end.
    Adopted(Option<String>),
    /// Somebody else cordoned the Node.
    Theirs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EpisodeResult {
    /// The request could not be fulfilled; the node is back.
    Failed,
    /// The maintenance took place, and the node is back.
    Succeeded,
    /// The maintenance was cancelled before the VM was off or the node was drained.
    Cancelled,
    /// vCenter moved the running VM to another host, so there is nothing left to do.
    Vmotioned,
}

impl From<Option<EpisodeResult>> for EpisodeOutcome {
    fn from(ended: Option<EpisodeResult>) -> Self {
        match ended {
            Some(EpisodeResult::Succeeded | EpisodeResult::Vmotioned) => Self::Succeeded,
            Some(EpisodeResult::Failed) => Self::Failed,
            Some(EpisodeResult::Cancelled) => Self::Cancelled,
            None => Self::NotSeen,
        }
    }
}

impl Episode {
    /// The id of an episode and its traceparent. Both are a digest of Node and trigger, so that a repeated decision gives the same id.
    pub fn name(node: &NodeUid, trigger: &Trigger, begun_at: Timestamp) -> (EpisodeId, Arc<str>) {
        let task = trigger.task.as_ref().map_or("", TaskRef::as_str);
        let task = trigger
            .request
            .as_ref()
            .map_or(task, |request| request.uid.as_str());
        let digest = Sha256::digest(format!("{node}\n{task}\n{}\n{begun_at}", trigger.clicked_at));
        let hex: String = digest.iter().take(24).map(|byte| format!("{byte:02x}")).collect();
        let (trace, span) = hex.split_at(32);
        (EpisodeId::new(trace), format!("00-{trace}-{span}-01").into())
    }

    /// An episode that `trigger` begins at `at` in `phase`; all else is empty.
    pub fn new(node_uid: NodeUid, trigger: Trigger, host: HostIdentity, phase: Phase, at: Timestamp) -> Self {
        let (id, traceparent) = Self::name(&node_uid, &trigger, at);
        Self {
            id,
            traceparent,
            trigger,
            node_uid,
            vm_uuid: None,
            vm: None,
            host,
            begun_at: at,
            cordon: CordonOwner::NotYet,
            guards: BTreeSet::new(),
            machine_guards: MachineGuards::default(),
            held: None,
            power_on_due: false,
            recordoned: 0,
            boot_before: None,
            drained_boot: None,
            gpus_before: Arc::default(),
            slices_before: None,
            unmatched_gpus: Vec::new(),
            accepted_gpus: None,
            gpus_cleared: false,
            powered_off: false,
            moved_to: None,
            relocation_failure: None,
            left_behind: Vec::new(),
            volumes: None,
            in_flight: InFlight::default(),
            drained_for: Elapsed::ZERO,
            drain_limit: None,
            drain_timeout: Elapsed::ZERO,
            limited_from: Elapsed::ZERO,
            guest_timeout: Elapsed::ZERO,
            refusals: Vec::new(),
            home_devices: Vec::new(),
            power_losses: 0,
            waits_for_home: false,
            power_off_request: None,
            release: "".into(),
            epoch: 0,
            revision: 0,
            phase,
            since: at,
            elapsed: Elapsed::ZERO,
            history: PhaseHistory::default(),
        }
    }

    /// The trace id of the traceparent; empty if that is malformed.
    pub fn trace_id(&self) -> &str {
        self.traceparent.split('-').nth(1).unwrap_or_default()
    }

    pub fn trigger_kind(&self) -> TriggerKind {
        if self.history.origin.adopted {
            TriggerKind::Adopted
        } else {
            self.trigger.kind()
        }
    }

    /// When its phase began, or for a parked episode the phase that it resumes.
    pub fn worked_since(&self) -> Timestamp {
        self.phase
            .parked()
            .map_or(self.since, |(_, resume_since)| resume_since)
    }

    /// The same episode in another phase, from `now`. No hook holds it yet, unless it is the same phase again, or parked.
    pub fn enter(&self, phase: Phase, now: Now) -> Self {
        let is_same = phase.at_work() == self.phase.at_work();
        Self {
            phase,
            since: now.wall,
            elapsed: Elapsed::ZERO,
            held: self.held.filter(|_| is_same),
            power_on_due: false,
            ..self.clone()
        }
    }

    /// The same episode `span` later: all elapsed times are increased.
    #[must_use]
    pub fn aged(&self, span: Duration) -> Self {
        Self {
            elapsed: self.elapsed.plus(span),
            in_flight: self.in_flight.plus(span),
            held: self.held.map(|held| held.plus(span)),
            ..self.clone()
        }
    }

    /// After which time a ResourceSlice must have been created to be of the boot after the power cycle.
    pub fn slices_after(&self) -> Option<Timestamp> {
        self.slices_before.filter(|_| self.powered_off)
    }

    /// Whether `action` is more than was done in this episode so far.
    pub fn needs_more_for(&self, action: &RequestAction) -> bool {
        match action {
            RequestAction::Drain => false,
            RequestAction::PowerOff | RequestAction::Reboot => !self.powered_off,
            RequestAction::Relocate { to } => {
                let is_moved = self
                    .moved_to
                    .as_ref()
                    .is_some_and(|moved| to.as_ref().is_none_or(|to| *moved.name == **to));
                !is_moved && self.relocation_failure.is_none()
            }
        }
    }

    /// The volumes that are not waited for any more, where this is the record after `before`, in which they were.
    pub fn gave_up_volumes(&self, before: &Self) -> Option<&[String]> {
        let volumes = self.volumes.as_ref().filter(|_| before.volumes.is_none())?;
        (!volumes.left.is_empty()).then_some(&volumes.left)
    }

    /// Whether the record allows to uncordon the Node at the end.
    pub fn cordon_is_ours(&self) -> bool {
        match self.cordon {
            CordonOwner::Ours | CordonOwner::Adopted(_) => true,
            CordonOwner::NotYet | CordonOwner::Theirs => false,
        }
    }
}
