//! The states that the page shows with a colour, a hatching and a sign.

use serde::{Serialize, Serializer};

use haulout_core::status::{HostKind, PhaseKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShownState {
    Phase(PhaseKind),
    Host(HostKind),
    Waiting,
}

impl ShownState {
    /// A host in service has the same look as a node in service.
    pub(crate) fn of_host(kind: HostKind) -> Self {
        if kind == HostKind::InService {
            Self::IN_SERVICE
        } else {
            Self::Host(kind)
        }
    }

    pub(crate) const IN_SERVICE: Self = Self::Phase(PhaseKind::InService);

    /// All states, in the order of a node's and then a host's maintenance.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let phases = PhaseKind::ALL.iter().map(|kind| Self::Phase(*kind));
        let hosts = HostKind::ALL.iter().filter(|kind| **kind != HostKind::InService);
        phases
            .chain(hosts.map(|kind| Self::Host(*kind)))
            .chain([Self::Waiting])
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Phase(kind) => kind.name(),
            Self::Host(kind) => kind.name(),
            Self::Waiting => "Waiting",
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Phase(kind) => kind.words(),
            Self::Host(HostKind::InService) => "in service",
            Self::Host(HostKind::EnteringMaintenance) => "entering maintenance",
            Self::Host(HostKind::InMaintenance) => "in maintenance",
            Self::Host(HostKind::Settling) => "settling",
            Self::Host(HostKind::Quarantined) => "quarantined",
            Self::Host(HostKind::Unreachable) => "unreachable",
            Self::Host(HostKind::Unknown) => "unknown",
            Self::Waiting => "waiting",
        }
    }

    /// The sign beside the name, for readers who cannot distinguish the colours.
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Self::Phase(PhaseKind::InService) | Self::Host(HostKind::InService) => "\u{25cb}",
            Self::Phase(PhaseKind::Queued) | Self::Host(HostKind::Settling | HostKind::Quarantined) => {
                "\u{25d4}"
            }
            Self::Phase(PhaseKind::Draining) | Self::Host(HostKind::EnteringMaintenance) => "\u{25bd}",
            Self::Phase(PhaseKind::Drained) => "\u{25bc}",
            Self::Phase(PhaseKind::ShuttingDown) => "\u{25e9}",
            Self::Phase(PhaseKind::Relocating) => "\u{25b6}",
            Self::Phase(PhaseKind::AwaitingHost) | Self::Host(HostKind::InMaintenance) => "\u{25a0}",
            Self::Phase(PhaseKind::PoweringOn) => "\u{25b3}",
            Self::Phase(PhaseKind::Rejoining) => "\u{25b2}",
            Self::Phase(PhaseKind::Parked) | Self::Host(HostKind::Unreachable) => "\u{2716}",
            Self::Phase(PhaseKind::Adopting) => "\u{25c7}",
            Self::Host(HostKind::Unknown) => "?",
            Self::Waiting => "\u{25ab}",
        }
    }
}

impl Serialize for ShownState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
