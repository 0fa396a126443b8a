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

/// In the message of such a condition, between its cause and the id of the episode.
pub const OF_EPISODE: &str = ", episode ";

/// In the message of `MaintenancePlanned` before an episode begins, between the time and the name of the request.
pub const OF_REQUEST: &str = ", requested by NodeMaintenance ";

/// Whether a condition with this message is one of Haulout. Other controllers may set conditions of the same types, with messages
/// of their own.
pub fn is_ours(message: &str) -> bool {
    [OF_EPISODE, OF_REQUEST].iter().any(|mark| message.contains(mark))
}
