//! Which objects of ended episodes are deleted. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use haulout_core::ids::NodeName;
use haulout_kubernetes::update::NodeMaintenanceFacts;

/// How long the history of a deleted node is kept. Without a limit, a cluster whose nodes are replaced under new names would fill
/// etcd.
const GONE_KEPT: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The maximum number of ended episodes of all deleted nodes together: at most 4 MiB, of the 2 GiB that etcd holds by default.
pub(super) const GONE_MAX: usize = 500;

/// Whether a node exists and is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It exists and is selected.
    There,
    /// It was deleted, or the label selector no longer matches it.
    Gone,
    /// The Nodes are not synced.
    Unknown,
}

/// The `ended` episodes to delete: of each node all but the newest `keep`, and of deleted nodes those that are too old or too many.
/// If it is unknown whether a node exists, all of its episodes stay.
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

/// When an episode ended; the creation time if the end is unreadable.
fn ended_at(object: &NodeMaintenanceFacts) -> Timestamp {
    let ended_at = object.status.ended_at.as_deref();
    ended_at
        .and_then(|at| at.parse().ok())
        .unwrap_or(object.created_at)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use haulout_core::fixtures::at;

    use super::*;
    use haulout_core::ids::RequestUid;
    use haulout_kubernetes::update::NodeMaintenanceRole;

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
    fn newest_episodes_stay_and_those_of_gone_nodes_expire() {
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
    fn latest_episodes_of_gone_nodes_stay_beside_those_of_present_nodes() {
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
    fn unreadable_end_counts_as_the_creation_time() {
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
