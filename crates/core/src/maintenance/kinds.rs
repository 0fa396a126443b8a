//! The stable names of phases, triggers, states of hosts and pods, and outcomes.

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
