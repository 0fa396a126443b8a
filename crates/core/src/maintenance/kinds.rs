//! The stable names of phases, triggers, waits, states of hosts and pods, and outcomes.

named_enum! {
    /// The phases, in the order of an episode.
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
    /// What a node waits for.
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
        Vmotion = "vmotion",
        Slot = "slot",
        DisruptionBudget = "disruption-budget",
        Pods = "pods",
        DrainRound = "drain-round",
        DrainHeld = "drain-held",
        Volumes = "volumes",
        GuestShutdown = "guest-shutdown",
        GuestShutdownAfterCancel = "guest-shutdown-after-cancel",
        Task = "task",
        Retry = "retry",
        HostVisible = "host-visible",
        HostSettling = "host-settling",
        HostExit = "host-exit",
        HostEntry = "host-entry",
        Request = "request",
        NotBefore = "not-before",
        Window = "window",
        InvalidWindow = "invalid-window",
        Approval = "approval",
        Hook = "hook",
        Skip = "skip",
        PoweredOn = "powered-on",
        AlreadyThere = "already-there",
        Place = "place",
        Survey = "survey",
        Question = "question",
        PowerState = "power-state",
        NodeReady = "node-ready",
        Gpus = "gpus",
        MachineGuards = "machine-guards",
        Parked = "parked",
    }
}

impl WaitKind {
    /// The wait in words that follow "waits for".
    pub fn words(self) -> &'static str {
        match self {
            Self::Vcenter => "vCenter",
            Self::Kubernetes => "Kubernetes",
            Self::Takeover => "the end of the previous leader",
            Self::NodeObject => "its Node object",
            Self::OtherRelease => "another release",
            Self::MaintenanceRetry => "a retry of the maintenance",
            Self::PowerOnPause => "a pause before the next power-on",
            Self::WritePace => "a pause in writes to the Node",
            Self::VmLookup => "its VM to be found",
            Self::Vmotion => "a vMotion",
            Self::Slot => "a slot",
            Self::DisruptionBudget => "a PodDisruptionBudget",
            Self::Pods => "pods to end",
            Self::DrainRound => "the list of pods",
            Self::DrainHeld => "a person, with pods left",
            Self::Volumes => "volumes to be detached",
            Self::GuestShutdown => "the guest to shut down",
            Self::GuestShutdownAfterCancel => "a guest that may still shut down",
            Self::Task => "a task in vCenter",
            Self::Retry => "the next attempt",
            Self::HostVisible => "its host to be connected",
            Self::HostSettling => "its host to stay",
            Self::HostExit => "its host to leave maintenance mode",
            Self::HostEntry => "its host to enter maintenance mode",
            Self::Request => "its request to be deleted",
            Self::NotBefore => "the time of its request",
            Self::Window => "the window of its request",
            Self::InvalidWindow => "a window to be corrected",
            Self::Approval => "an approval",
            Self::Hook => "a hook",
            Self::Skip => "the skip annotation to be removed",
            Self::PoweredOn => "its VM to be powered on",
            Self::AlreadyThere => "a request that is done to be deleted",
            Self::Place => "a host to relocate to",
            Self::Survey => "a survey of devices",
            Self::Question => "an answer to vCenter's question",
            Self::PowerState => "the power state of its VM",
            Self::NodeReady => "the node to be Ready",
            Self::Gpus => "its GPUs",
            Self::MachineGuards => "guards on its Machine",
            Self::Parked => "a person",
        }
    }

    /// The maintenance goes on only after a person acts. Hooks are left out: most of them are removed by a program.
    pub fn needs_person(self) -> bool {
        match self {
            Self::OtherRelease
            | Self::NodeObject
            | Self::DrainHeld
            | Self::InvalidWindow
            | Self::Approval
            | Self::Skip
            | Self::PoweredOn
            | Self::AlreadyThere
            | Self::Question
            | Self::Parked => true,
            Self::Vcenter
            | Self::Kubernetes
            | Self::Takeover
            | Self::MaintenanceRetry
            | Self::PowerOnPause
            | Self::WritePace
            | Self::VmLookup
            | Self::Vmotion
            | Self::Slot
            | Self::DisruptionBudget
            | Self::Pods
            | Self::DrainRound
            | Self::Volumes
            | Self::GuestShutdown
            | Self::GuestShutdownAfterCancel
            | Self::Task
            | Self::Retry
            | Self::HostVisible
            | Self::HostSettling
            | Self::HostExit
            | Self::HostEntry
            | Self::Request
            | Self::NotBefore
            | Self::Window
            | Self::Hook
            | Self::Place
            | Self::Survey
            | Self::PowerState
            | Self::NodeReady
            | Self::Gpus
            | Self::MachineGuards => false,
        }
    }

    /// The runbook of the alert about such a wait, by its name in `docs/runbooks`.
    pub fn runbook(self) -> Option<&'static str> {
        match self {
            Self::Vcenter => Some("HauloutVCenterUnreachable"),
            Self::Kubernetes => Some("HauloutKubernetesUnreachable"),
            Self::OtherRelease | Self::Parked => Some("HauloutNodeParked"),
            Self::NodeObject
            | Self::DrainHeld
            | Self::InvalidWindow
            | Self::Approval
            | Self::Hook
            | Self::Skip
            | Self::PoweredOn
            | Self::AlreadyThere
            | Self::Question => Some("HauloutWaitsForPerson"),
            Self::DisruptionBudget | Self::Pods => Some("HauloutDrainStuck"),
            Self::Volumes | Self::GuestShutdown => Some("HauloutShutdownStuck"),
            Self::NodeReady | Self::Gpus => Some("HauloutNodeNotBackAfterPowerOn"),
            Self::Takeover
            | Self::MaintenanceRetry
            | Self::PowerOnPause
            | Self::WritePace
            | Self::VmLookup
            | Self::Vmotion
            | Self::Slot
            | Self::DrainRound
            | Self::GuestShutdownAfterCancel
            | Self::Task
            | Self::Retry
            | Self::HostVisible
            | Self::HostSettling
            | Self::HostExit
            | Self::HostEntry
            | Self::Request
            | Self::NotBefore
            | Self::Window
            | Self::Place
            | Self::Survey
            | Self::PowerState
            | Self::MachineGuards => None,
        }
    }
}

named_enum! {
    /// The kinds of triggers.
    pub enum TriggerKind {
        /// A maintenance task of its host.
        Task = "task",
        /// Its host is in maintenance mode, and no task was observed.
        HostState = "host_state",
        /// A NodeMaintenance.
        Request = "request",
        /// A power-off of an ended episode that took effect late.
        Stray = "stray",
        /// An adopted episode of the Python controller.
        Adopted = "adopted",
    }
}

named_enum! {
    /// The state of an ESXi host.
    pub enum HostKind {
        EnteringMaintenance = "EnteringMaintenance",
        InMaintenance = "InMaintenance",
        /// Back by itself, for a short time so far.
        Settling = "Settling",
        Quarantined = "Quarantined",
        Unreachable = "Unreachable",
        Unknown = "Unknown",
        InService = "InService",
    }
}

named_enum! {
    /// The state of a pod that blocks a drain.
    pub enum PodState {
        /// Its eviction was accepted, or it was terminating already.
        Terminating = "Terminating",
        /// A PodDisruptionBudget allows no disruption.
        HeldByBudget = "HeldByBudget",
        /// Its virtual machine is being migrated live.
        Migrating = "Migrating",
        /// Its eviction was refused.
        Refused = "Refused",
        /// Its eviction has not been requested yet.
        NotAsked = "NotAsked",
        /// It may end by itself until a time.
        Waiting = "Waiting",
    }
}

named_enum! {
    /// The outcome of an episode.
    pub enum EpisodeOutcome {
        Succeeded = "Succeeded",
        Failed = "Failed",
        Cancelled = "Cancelled",
        /// No process observed the end.
        NotSeen = "NotSeen",
    }
}

impl PhaseKind {
    /// The phase in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::InService => "in service",
            Self::Queued => "queued",
            Self::Adopting => "adopting",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::ShuttingDown => "shutting down",
            Self::Relocating => "relocating",
            Self::AwaitingHost => "off, waiting for its host",
            Self::PoweringOn => "powering on",
            Self::Rejoining => "rejoining",
            Self::Parked => "parked",
        }
    }

    /// Whether the VM was seen off and is not known to be on again.
    pub const fn vm_is_off(self) -> bool {
        matches!(self, Self::Relocating | Self::AwaitingHost | Self::PoweringOn)
    }

    /// Whether the node takes one of `MAX_CONCURRENT_DRAINS`: from the cordon until the VM is off. A drained node takes none.
    pub const fn is_draining(self) -> bool {
        matches!(self, Self::Draining | Self::ShuttingDown)
    }

    /// Whether the VM is off and not being powered on: it is relocated, or waits for a host.
    pub const fn is_waiting_for_host(self) -> bool {
        matches!(self, Self::Relocating | Self::AwaitingHost)
    }

    /// Whether the node is coming back.
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
