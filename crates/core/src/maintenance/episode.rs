//! One episode: what is kept of a node's way through maintenance, from the cordon until it is back in service.
//!
//! This is the durable record, as it stands on the Node. Facts are in [`super::observed`], and only facts move a phase.

mod history;
mod in_flight;
mod refusals;
mod trigger;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::clock::{Elapsed, Now};
use super::request::RequestIdentity;
use super::waiting::ParkReason;
use crate::ids::{BootId, EpisodeId, HostRef, NodeUid, TaskRef, VmRef, VmUuid};
pub use history::{
    EpisodeOrigin, FinishedPhase, Incident, PhaseHistory, PhaseOutcome, PhaseStats, PodCounts, QueuePosition,
    RefusedHost,
};
pub(super) use history::{MAX_FINISHED, MAX_INCIDENTS};
pub use in_flight::InFlight;
pub use refusals::{HostRefusal, MAX_REFUSALS, RefusedMove};
pub use trigger::{Detection, Trigger, TriggerKind};

/// What stands on a Node.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// No episode.
    InService,
    /// An episode in progress.
    Episode(Arc<Episode>),
    /// An episode of the Python controller, to be adopted.
    Python(PythonEpisode),
    /// Something is written there that this version cannot read. Nothing is guessed from it and nothing written over it.
    Unreadable {
        /// What is wrong with it, for people.
        why: String,
    },
}

impl Record {
    /// The phase, where there is an episode.
    pub fn phase(&self) -> Option<&Phase> {
        self.episode().map(|episode| &episode.phase)
    }

    /// The episode, where there is one.
    pub fn episode(&self) -> Option<&Episode> {
        self.shared().map(|episode| &**episode)
    }

    /// The episode, to be kept.
    pub fn shared(&self) -> Option<&Arc<Episode>> {
        match self {
            Self::Episode(episode) => Some(episode),
            Self::InService | Self::Python(_) | Self::Unreadable { .. } => None,
        }
    }

    /// The name of the phase as people read it.
    pub fn phase_name(&self) -> &'static str {
        self.kind().name()
    }
}

/// What the Python controller keeps of an episode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonEpisode {
    /// Its `state`.
    pub state: PythonState,
    /// Its `host`, by name.
    pub host: String,
    /// Its `migrated-to-host`, by name.
    pub migrated_to_host: Option<String>,
    /// Its `transition-time`.
    pub since: Timestamp,
}

/// The states of the Python controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PythonState {
    /// `draining`.
    Draining,
    /// `powered-off`.
    PoweredOff,
    /// `migrated`.
    Migrated,
}

/// A node's way through one maintenance of its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Episode {
    /// Its name, and its trace id.
    pub id: EpisodeId,
    /// The W3C traceparent of its root span, fixed at detection so that every process that works on it adds to one trace.
    pub traceparent: Arc<str>,
    /// What set it off.
    pub trigger: Trigger,
    /// Which Node: one that was deleted and recreated under the same name is another.
    pub node_uid: NodeUid,
    /// The BIOS UUID of the VM, where it is known. It is fixed for the episode: nothing is done to a VM of another one.
    pub vm_uuid: Option<VmUuid>,
    /// The VM's moref, fixed for the episode as well. Records of version 1 before it was kept have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmRef>,
    /// The host it was about when it began.
    pub host: HostIdentity,
    /// When it began, on our clock.
    pub begun_at: Timestamp,
    /// Who cordoned the Node.
    pub cordon: CordonOwner,
    /// How many times somebody uncordoned the Node and it was cordoned again, since it was drained or its VM went off.
    #[serde(default)]
    pub recordoned: u8,
    /// The boot before the power cycle: Ready counts only on another one.
    pub boot_before: Option<BootId>,
    /// The boot that was drained last; a guest that is on another one has restarted instead of stopping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained_boot: Option<BootId>,
    /// What the Node had allocatable of each GPU resource before.
    #[serde(default)]
    pub gpus_before: Arc<BTreeMap<String, u64>>,
    /// The VM has been seen powered off in this episode.
    #[serde(default)]
    pub powered_off: bool,
    /// The host the VM was moved to, once it has been.
    pub moved_to: Option<HostIdentity>,
    /// Why the relocation that was asked for could not be had, once it was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gave_up: Option<String>,
    /// Pods that were still there when the power was cut on the drain timeout, as `namespace/name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
    /// What was requested of vCenter to bring the VM down and has not been seen to take effect. A request cannot be taken
    /// back, so it outlives the phase it was made in.
    #[serde(default, skip_serializing_if = "InFlight::is_empty")]
    pub in_flight: InFlight,
    /// How long the drain had taken when it was interrupted to be gone on with.
    #[serde(default, skip_serializing_if = "Elapsed::is_zero")]
    pub drained_for: Elapsed,
    /// The hosts that refused the VM in this episode, oldest first: none of them is tried again but the VM's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<HostRefusal>,
    /// How many times the VM went off again before its node was back.
    #[serde(default, skip_serializing_if = "is_none")]
    pub power_losses: u8,
    /// The request that keeps the VM off, so that it is known where requests cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_off_by: Option<RequestIdentity>,
    /// The release of Haulout whose episode it is; empty in records from before it was kept.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub release: Arc<str>,
    /// The leadership under which the record was last written. 0 without leader election.
    #[serde(default)]
    pub epoch: u64,
    /// How many times the record has been written: of two copies of it, the one with more is the younger.
    #[serde(default)]
    pub revision: u64,
    /// Where it stands.
    pub phase: Phase,
    /// When it came to stand there, on the writer's wall clock: for people, and to tell one stay in a phase from the next.
    pub since: Timestamp,
    /// How long it had stood there when the record was written last. Every deadline of the phase counts this, and what has
    /// passed since by the clock of the process that counts.
    #[serde(default, skip_serializing_if = "Elapsed::is_zero")]
    pub elapsed: Elapsed,
    /// Its finished phases, and what happened beside them. Nothing is decided from it.
    #[serde(
        default,
        deserialize_with = "PhaseHistory::read",
        skip_serializing_if = "PhaseHistory::is_empty"
    )]
    pub history: PhaseHistory,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_none(count: &u8) -> bool {
    *count == 0
}

/// A host as it was known when something was written down: the moref decides, the name is for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIdentity {
    /// Its moref; `None` in an episode adopted from the Python controller, which writes names only.
    pub moref: Option<HostRef>,
    /// Its name.
    pub name: Arc<str>,
}

impl fmt::Display for HostIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Whose the cordon on the Node is. Only our own is taken away at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CordonOwner {
    /// The episode is queued; nothing is cordoned yet.
    NotYet,
    /// This episode cordoned it, in the PATCH that began the drain.
    Ours,
    /// The Python controller cordoned it, writing as this field manager, if any is named. It is ours to take away.
    Adopted(Option<String>),
    /// It was cordoned before the episode.
    Theirs,
}

/// Where an episode stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Over the limit of nodes that may be drained or unavailable at once: it waits its turn, untouched.
    Queued,
    /// Cordoned; its pods are being evicted.
    Draining,
    /// Drained at a person's request, and kept so: cordoned and empty, its VM on.
    Drained,
    /// Drained; the guest is asked to shut down, and powered off hard after its deadline.
    ShuttingDown(DrainEnd),
    /// Off; being relocated cold.
    Relocating {
        /// To this host, reserved for it.
        to: HostIdentity,
    },
    /// Off; waits for its host to come back, and keeps looking for another one.
    AwaitingHost,
    /// Being powered on.
    PoweringOn {
        /// DRS picks the host; otherwise it is powered on where it stands.
        by_drs: bool,
    },
    /// On; waits for the Node to be Ready on another boot with its GPUs.
    Rejoining,
    /// Stuck for a reason that a person can see, and that may go away by itself.
    Parked {
        /// Why.
        reason: ParkReason,
        /// The phase that goes on when the reason goes away.
        resume: Box<Phase>,
        /// When that phase began: its deadlines still count from there.
        resume_since: Timestamp,
    },
}

impl Phase {
    /// The name of the phase as people read it.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Where the phase leads, in words that follow its name; empty where its name says all.
    pub fn whereto(&self) -> String {
        if let Self::Relocating { to } = self {
            format!(" to {to}")
        } else if let Self::PoweringOn { by_drs: true } = self {
            ", placed by DRS".to_owned()
        } else if let Self::Parked { reason, .. } = self {
            format!(": {reason}")
        } else {
            String::new()
        }
    }

    /// The host that the VM is being moved to.
    pub fn target(&self) -> Option<&HostIdentity> {
        if let Self::Relocating { to } = self.at_work() {
            Some(to)
        } else {
            None
        }
    }

    /// Why the node is parked, and since when the phase that it resumes has been going on.
    pub fn parked(&self) -> Option<(&ParkReason, Timestamp)> {
        if let Self::Parked {
            reason, resume_since, ..
        } = self
        {
            Some((reason, *resume_since))
        } else {
            None
        }
    }

    /// The phase that is really being worked on: what a parked one will resume.
    pub fn at_work(&self) -> &Self {
        if let Self::Parked { resume, .. } = self {
            resume.at_work()
        } else {
            self
        }
    }

    /// Whether the VM was seen off and is not known to be on again.
    pub fn vm_is_off(&self) -> bool {
        self.at_work().kind().vm_is_off()
    }

    /// Whether it takes one of `MAX_CONCURRENT_DRAINS`: from the cordon until the VM is off or away.
    pub fn is_draining(&self) -> bool {
        self.at_work().kind().is_draining()
    }

    /// Whether it takes one of `MAX_UNAVAILABLE`: from the cordon until the node is back.
    pub fn is_unavailable(&self) -> bool {
        !matches!(self.at_work(), Self::Queued)
    }
}

/// How a drain ended, written down before the power may be cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DrainEnd {
    /// A complete list after the cordon showed no pod to evict.
    Complete,
    /// The drain timeout passed, and the configuration says to go on then. The pods left are in [`Episode::left_behind`].
    TimedOut,
}

/// How an episode ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EpisodeResult {
    /// What was asked for could not be had; the node is back all the same.
    Failed,
    /// The node went through what it was called out of service for, and is back.
    Succeeded,
    /// What it was called out of service for was called off before it was reached.
    Cancelled,
}

impl Episode {
    /// The name of the episode of one Node that one click sets off, and its traceparent.
    ///
    /// Both are a digest of what the episode is about, so that no randomness enters the decision and a decision made
    /// twice gives one name.
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

    /// An episode of this Node and host that `trigger` begins at `at`, in `phase`. Nothing has been done and nothing is known of
    /// what was before.
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
            recordoned: 0,
            boot_before: None,
            drained_boot: None,
            gpus_before: Arc::default(),
            powered_off: false,
            moved_to: None,
            gave_up: None,
            left_behind: Vec::new(),
            in_flight: InFlight::default(),
            drained_for: Elapsed::ZERO,
            refusals: Vec::new(),
            power_losses: 0,
            kept_off_by: None,
            release: "".into(),
            epoch: 0,
            revision: 0,
            phase,
            since: at,
            elapsed: Elapsed::ZERO,
            history: PhaseHistory::default(),
        }
    }

    /// The trace id, as the traceparent has it; empty for one that is none.
    pub fn trace_id(&self) -> &str {
        self.traceparent.split('-').nth(1).unwrap_or_default()
    }

    /// What set it off.
    pub fn trigger_kind(&self) -> TriggerKind {
        if self.history.origin.adopted {
            TriggerKind::Adopted
        } else {
            self.trigger.kind()
        }
    }

    /// Since when the phase that is at work has been: one that is parked goes on counting.
    pub fn worked_since(&self) -> Timestamp {
        self.phase
            .parked()
            .map_or(self.since, |(_, resume_since)| resume_since)
    }

    /// The same episode in another phase, from `now`.
    pub fn enter(&self, phase: Phase, now: Now) -> Self {
        Self {
            phase,
            since: now.wall,
            elapsed: Elapsed::ZERO,
            ..self.clone()
        }
    }

    /// The same episode `span` later: everything that counts elapsed time has counted it.
    #[must_use]
    pub fn aged(&self, span: Duration) -> Self {
        Self {
            elapsed: self.elapsed.plus(span),
            in_flight: self.in_flight.plus(span),
            ..self.clone()
        }
    }

    /// Whether the Node is to be uncordoned at the end, as far as this record tells.
    pub fn cordon_is_ours(&self) -> bool {
        match self.cordon {
            CordonOwner::Ours | CordonOwner::Adopted(_) => true,
            CordonOwner::NotYet | CordonOwner::Theirs => false,
        }
    }
}
