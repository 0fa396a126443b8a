//! Which ended episodes are too many to be kept. Pure: what is known and the time are arguments.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::ids::NodeName;
use crate::kubernetes::update::NodeMaintenanceFacts;

/// How long the history of a node is kept that is gone. Whoever asks what became of a node asks within weeks: for a
/// monthly report, or when its replacement fails as well. Without an end, a fleet whose nodes are replaced under other
/// names would fill etcd with the episodes of nodes that nobody remembers.
const GONE_KEPT: SignedDuration = SignedDuration::from_hours(30 * 24);

/// How many ended episodes are kept of all nodes together that are gone. An object is 2 to 8 KiB, so these are 4 MiB at
/// the most, of the 2 GiB that etcd holds by default; a fleet that loses more within a month is being rebuilt.
pub(super) const GONE_MAX: usize = 500;

/// Whether a node is one of ours at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is.
    There,
    /// Its Node object is not there, or does not carry our label.
    Gone,
    /// Not all Nodes have been told.
    Unknown,
}

/// Those of the `ended` episodes that are not to be kept: of each node all but the youngest `keep`, and of those that are
/// gone what has been over for long and what is more than a bound. Where it is not known whether a node is gone, all stay.
pub(super) fn beyond<'a>(
    ended: impl Iterator<Item = &'a NodeMaintenanceFacts>,
    presence: impl Fn(&NodeName) -> Presence,
    keep: usize,
    now: Timestamp,
) -> Vec<&'a NodeMaintenanceFacts> {
    let mut of_nodes: BTreeMap<&NodeName, Vec<&NodeMaintenanceFacts>> = BTreeMap::new();
    for object in ended {
        of_nodes.entry(&object.node).or_default().push(object);
    }
    let mut beyond = Vec::new();
    let mut of_the_gone = Vec::new();
    for (node, mut objects) in of_nodes {
        objects.sort_by_key(|object| std::cmp::Reverse((object.created_at, &object.name)));
        match presence(node) {
            Presence::Unknown => {}
            Presence::There => beyond.extend(objects.into_iter().skip(keep)),
            Presence::Gone => {
                beyond.extend(objects.iter().skip(keep));
                objects.truncate(keep);
                of_the_gone.extend(objects);
            }
        }
    }
    let is_recent = |object: &&NodeMaintenanceFacts| now.duration_since(ended_at(object)) < GONE_KEPT;
    let (mut recent, old): (Vec<_>, Vec<_>) = of_the_gone.into_iter().partition(is_recent);
    beyond.extend(old);
    recent.sort_by_key(|object| std::cmp::Reverse((ended_at(object), &object.name)));
    beyond.extend(recent.into_iter().skip(GONE_MAX));
    beyond
}

/// When an episode ended; one that does not tell so in a way that can be read ended no earlier than it was made.
fn ended_at(object: &NodeMaintenanceFacts) -> Timestamp {
    let told = object.status.ended_at.as_deref();
    told.and_then(|at| at.parse().ok()).unwrap_or(object.created_at)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use haulout_core::fixtures::at;

    use super::*;
    use crate::ids::RequestUid;
    use crate::kubernetes::update::NodeMaintenanceRole;

    const HOUR: i64 = 3600;
    const DAY: i64 = 24 * HOUR;

    /// An episode of `node` that ended `ago` seconds before [`now`].
    fn over(node: &str, number: usize, ago: i64) -> NodeMaintenanceFacts {
        let ended_at = now() - SignedDuration::from_secs(ago);
        let mut object = NodeMaintenanceFacts {
            name: format!("{node}-{number:04}"),
            uid: RequestUid::new(format!("uid-of-{node}-{number}")),
            resource_version: 1,
            generation: 1,
            created_at: ended_at - SignedDuration::from_secs(60),
            node: NodeName::new(node),
            role: NodeMaintenanceRole::Episode { record: None },
            is_over: true,
            status: Box::default(),
        };
        object.status.ended_at = Some(ended_at.to_string());
        object
    }

    fn now() -> Timestamp {
        at(100 * DAY)
    }

    fn names(objects: Vec<&NodeMaintenanceFacts>) -> BTreeSet<String> {
        let count = objects.len();
        let names: BTreeSet<String> = objects.into_iter().map(|object| object.name.clone()).collect();
        assert_eq!(names.len(), count, "nothing is deleted twice");
        names
    }

    #[test]
    fn whatever_is_known_and_however_many_there_are_the_youngest_stay_and_those_of_the_gone_have_an_end() {
        let ages = [0, HOUR, 29 * DAY, 30 * DAY - 1, 30 * DAY, 31 * DAY, 99 * DAY];
        let mut cases = 0;
        // Every choice of these ages, for each presence and each setting.
        for chosen in 0..1_u32 << ages.len() {
            let objects: Vec<NodeMaintenanceFacts> = (0..ages.len())
                .filter(|index| chosen & (1 << index) != 0)
                .map(|index| over("gpu1", index, ages[index]))
                .collect();
            for presence in [Presence::There, Presence::Gone, Presence::Unknown] {
                for keep in [0, 1, 2, ages.len()] {
                    cases += 1;
                    let expected: BTreeSet<String> = objects
                        .iter()
                        .enumerate()
                        .filter(|(place, object)| match presence {
                            Presence::Unknown => false,
                            Presence::There => *place >= keep,
                            Presence::Gone => {
                                let is_old = ended_at(object) <= now() - SignedDuration::from_hours(30 * 24);
                                *place >= keep || is_old
                            }
                        })
                        .map(|(_, object)| object.name.clone())
                        .collect();
                    let beyond = beyond(objects.iter().rev(), |_| presence, keep, now());
                    assert_eq!(names(beyond), expected, "{presence:?}, {keep} kept");
                }
            }
        }
        println!("{cases} cases");
    }

    #[test]
    fn of_many_nodes_that_are_gone_the_latest_episodes_stay_and_none_of_a_node_that_is_there_makes_room() {
        let gone: Vec<NodeMaintenanceFacts> = (0..GONE_MAX + 3)
            .map(|index| {
                let ago = i64::try_from(index).unwrap() + 10;
                over(&format!("old-{index:04}"), 0, ago)
            })
            .collect();
        let there = over("gpu1", 0, 90 * DAY);
        let presence = |node: &NodeName| match node.as_str() {
            "gpu1" => Presence::There,
            _ => Presence::Gone,
        };
        let beyond = beyond(gone.iter().chain([&there]), presence, 20, now());
        let oldest = gone[GONE_MAX..].iter().map(|object| object.name.clone());
        assert_eq!(names(beyond), oldest.collect());
    }

    #[test]
    fn an_end_that_cannot_be_read_is_taken_for_the_beginning() {
        let mut object = over("gpu1", 0, HOUR);
        object.status.ended_at = Some("yesterday".to_owned());
        let kept = |object: &NodeMaintenanceFacts| {
            beyond([object].into_iter(), |_| Presence::Gone, 1, now()).is_empty()
        };
        assert!(kept(&object));
        object.created_at = at(0);
        assert!(!kept(&object));
    }
}
