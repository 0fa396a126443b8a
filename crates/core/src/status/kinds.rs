//! What there is to name: phases, triggers, waits, states of hosts and pods, outcomes.

use crate::maintenance::episode::{EpisodeResult, Phase, Record};
use crate::maintenance::observed::{HostState, PendingReason};
use crate::maintenance::waiting::WaitingOn;

pub use crate::maintenance::episode::TriggerKind;

named_enum! {
    /// Where a node stands, in the order of an episode.
    #[derive(Default)]
    pub enum PhaseKind {
        #[default]
        InService = "InService",
        Queued = "Queued",
        /// An episode of the Python controller that has not been adopted yet.
        Adopting = "Adopting",
        Draining = "Draining",
        Drained = "Drained",
        ShuttingDown = "ShuttingDown",
        Relocating = "Relocating",
        AwaitingHost = "AwaitingHost",
        PoweringOn = "PoweringOn",
        Rejoining = "Rejoining",
        Parked = "Parked",
    }
}

named_enum! {
    /// What a node waits for, as one word.
    pub enum WaitKind {
        Vcenter = "vcenter",
        Kubernetes = "kubernetes",
        Takeover = "takeover",
        NodeObject = "node-object",
        OtherRelease = "other-release",
        MaintenanceRetry = "maintenance-retry",
        PowerOnPause = "power-on-pause",
        WritePace = "write-pace",
        VmLookup = "vm-lookup",
        Slot = "slot",
        DisruptionBudget = "disruption-budget",
        Pods = "pods",
        DrainRound = "drain-round",
        DrainHeld = "drain-held",
        GuestShutdown = "guest-shutdown",
        GuestShutdownAfterCancel = "guest-shutdown-after-cancel",
        Task = "task",
        Retry = "retry",
        HostVisible = "host-visible",
        HostExit = "host-exit",
        Request = "request",
        Approval = "approval",
        Skip = "skip",
        PoweredOn = "powered-on",
        AlreadyThere = "already-there",
        Place = "place",
        Survey = "survey",
        Question = "question",
        PowerState = "power-state",
        NodeReady = "node-ready",
        Gpus = "gpus",
        Parked = "parked",
    }
}

named_enum! {
    /// The state of an ESXi host.
    pub enum HostKind {
        EnteringMaintenance = "EnteringMaintenance",
        InMaintenance = "InMaintenance",
        Quarantined = "Quarantined",
        Unreachable = "Unreachable",
        Unknown = "Unknown",
        InService = "InService",
    }
}

named_enum! {
    /// The state of a pod that a drain waits for.
    pub enum PodState {
        /// Its eviction was accepted, or it was leaving already.
        Terminating = "Terminating",
        /// A PodDisruptionBudget allows no disruption.
        HeldByBudget = "HeldByBudget",
        /// Its virtual machine is being migrated live.
        Migrating = "Migrating",
        /// Its eviction was refused.
        Refused = "Refused",
        /// Its eviction has not been asked for yet.
        NotAsked = "NotAsked",
    }
}

named_enum! {
    /// How an episode ended.
    pub enum EpisodeOutcome {
        Succeeded = "Succeeded",
        Failed = "Failed",
        Cancelled = "Cancelled",
        /// No process saw how.
        NotSeen = "NotSeen",
    }
}

impl PhaseKind {
    /// Whether the VM was seen off and is not known to be on again.
    pub const fn vm_is_off(self) -> bool {
        matches!(self, Self::Relocating | Self::AwaitingHost | Self::PoweringOn)
    }

    /// Whether the node takes one of `MAX_CONCURRENT_DRAINS`: from the cordon until the VM is off. A node that is drained and
    /// kept so takes none.
    pub const fn is_draining(self) -> bool {
        matches!(self, Self::Draining | Self::ShuttingDown)
    }

    /// Whether the VM is off without being powered on: it is moved, or waits for a host.
    pub const fn is_waiting_for_host(self) -> bool {
        matches!(self, Self::Relocating | Self::AwaitingHost)
    }

    /// Whether the node is on its way back.
    pub const fn is_coming_back(self) -> bool {
        matches!(self, Self::PoweringOn | Self::Rejoining)
    }

    /// Whether pods may still be evicted, now or later.
    pub const fn is_before_drained(self) -> bool {
        matches!(
            self,
            Self::InService | Self::Queued | Self::Adopting | Self::Draining | Self::Parked
        )
    }
}

impl Phase {
    /// Its kind.
    pub const fn kind(&self) -> PhaseKind {
        match self {
            Self::Queued => PhaseKind::Queued,
            Self::Draining => PhaseKind::Draining,
            Self::Drained => PhaseKind::Drained,
            Self::ShuttingDown(_) => PhaseKind::ShuttingDown,
            Self::Relocating { .. } => PhaseKind::Relocating,
            Self::AwaitingHost => PhaseKind::AwaitingHost,
            Self::PoweringOn { .. } => PhaseKind::PoweringOn,
            Self::Rejoining => PhaseKind::Rejoining,
            Self::Parked { .. } => PhaseKind::Parked,
        }
    }
}

impl Record {
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

impl HostState {
    /// Its kind.
    pub const fn kind(&self) -> HostKind {
        match self {
            Self::Unknown => HostKind::Unknown,
            Self::Unreachable => HostKind::Unreachable,
            Self::Entering { .. } => HostKind::EnteringMaintenance,
            Self::InMaintenance => HostKind::InMaintenance,
            Self::Quarantined => HostKind::Quarantined,
            Self::InService => HostKind::InService,
        }
    }
}

impl PendingReason {
    /// The state of the pod.
    pub const fn state(&self) -> PodState {
        match self {
            Self::Leaving => PodState::Terminating,
            Self::Budget { .. } => PodState::HeldByBudget,
            Self::Migrating { .. } => PodState::Migrating,
            Self::Refused { .. } => PodState::Refused,
            Self::NotReached => PodState::NotAsked,
        }
    }
}

impl WaitingOn {
    /// Its kind.
    pub fn kind(&self) -> WaitKind {
        match self {
            Self::Vcenter { .. } => WaitKind::Vcenter,
            Self::Kubernetes { .. } => WaitKind::Kubernetes,
            Self::Takeover { .. } => WaitKind::Takeover,
            Self::NodeObject => WaitKind::NodeObject,
            Self::OtherRelease { .. } => WaitKind::OtherRelease,
            Self::MaintenanceRetry { .. } => WaitKind::MaintenanceRetry,
            Self::PowerOnPause { .. } => WaitKind::PowerOnPause,
            Self::WritePace { .. } => WaitKind::WritePace,
            Self::VmLookup => WaitKind::VmLookup,
            Self::Slot { .. } => WaitKind::Slot,
            Self::Pods(pods) if pods.iter().any(|pod| pod.why.state() == PodState::HeldByBudget) => {
                WaitKind::DisruptionBudget
            }
            Self::Pods(_) => WaitKind::Pods,
            Self::DrainRound => WaitKind::DrainRound,
            Self::DrainHeld(_) => WaitKind::DrainHeld,
            Self::GuestShutdown { .. } => WaitKind::GuestShutdown,
            Self::GuestShutdownAfterCancel { .. } => WaitKind::GuestShutdownAfterCancel,
            Self::Task(_) => WaitKind::Task,
            Self::Retry { .. } => WaitKind::Retry,
            Self::HostVisible { .. } => WaitKind::HostVisible,
            Self::HostExit { .. } => WaitKind::HostExit,
            Self::Request { .. } => WaitKind::Request,
            Self::Approval => WaitKind::Approval,
            Self::Skip => WaitKind::Skip,
            Self::PoweredOn { .. } => WaitKind::PoweredOn,
            Self::AlreadyThere { .. } => WaitKind::AlreadyThere,
            Self::Place { .. } => WaitKind::Place,
            Self::Survey => WaitKind::Survey,
            Self::Question(_) => WaitKind::Question,
            Self::PowerState => WaitKind::PowerState,
            Self::NodeReady { .. } => WaitKind::NodeReady,
            Self::Gpus { .. } => WaitKind::Gpus,
            Self::Parked(_) => WaitKind::Parked,
        }
    }
}

impl From<Option<EpisodeResult>> for EpisodeOutcome {
    fn from(ended: Option<EpisodeResult>) -> Self {
        match ended {
            Some(EpisodeResult::Succeeded) => Self::Succeeded,
            Some(EpisodeResult::Failed) => Self::Failed,
            Some(EpisodeResult::Cancelled) => Self::Cancelled,
            None => Self::NotSeen,
        }
    }
}
