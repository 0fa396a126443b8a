//! The conditions of a Node that show an episode (KEP-5683).

use std::collections::BTreeMap;

named_enum! {
    /// A condition that shows an episode.
    pub enum EpisodeCondition {
        MaintenancePlanned = "MaintenancePlanned",
        DrainInProgress = "DrainInProgress",
        Drained = "Drained",
        MaintenanceInProgress = "MaintenanceInProgress",
    }
}

/// The conditions of Haulout on a Node, and whether each is True.
pub type FoundConditions = BTreeMap<EpisodeCondition, bool>;

/// In the message of such a condition, between its cause and the id of the episode. Other controllers may set conditions of the same
/// types, with messages of their own.
pub const OF_EPISODE: &str = ", episode ";
