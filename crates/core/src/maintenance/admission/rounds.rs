//! In which rounds the nodes of a queue would be admitted, by the rules of the queue itself.

use std::collections::BTreeSet;

use super::{AdmissionLimits, AdmissionQueue, SlotLimit};
use crate::ids::NodeName;
use crate::maintenance::clock::Monotonic;

named_enum! {
    /// When a round begins.
    pub enum RoundStart {
        /// It has begun already.
        UnderWay = "under-way",
        /// At once.
        Now = "now",
        /// When the VMs of the nodes before it are off, which frees their drain slots.
        VmsOff = "vms-off",
        /// When the nodes before it that move to another host are back.
        NodesBack = "nodes-back",
        /// When the hosts of the nodes before it are back.
        HostsBack = "hosts-back",
        /// An hour after the power-offs before it.
        NextHour = "next-hour",
    }
}

impl RoundStart {
    pub fn words(self) -> &'static str {
        match self {
            Self::UnderWay => "under way",
            Self::Now => "at once",
            Self::VmsOff => "when the VMs before are off",
            Self::NodesBack => "when the nodes before are back",
            Self::HostsBack => "when the hosts before are back",
            Self::NextHour => "an hour later",
        }
    }
}

/// Nodes that are admitted at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRound {
    /// When it begins.
    pub start: RoundStart,
    /// The nodes that are admitted.
    pub nodes: Vec<NodeName>,
    /// All nodes that are unavailable then, including those of rounds before.
    pub away: BTreeSet<NodeName>,
}

impl AdmissionQueue {
    /// The rounds in which the queued nodes are admitted, and the nodes that never are.
    ///
    /// A node in `movers` finds another host. It is back while the round after its own drains; any other node is away until
    /// its host is back.
    pub fn rounds(
        mut self,
        limits: AdmissionLimits,
        movers: &BTreeSet<NodeName>,
    ) -> (Vec<AdmissionRound>, Vec<NodeName>) {
        // All of it happens at one moment, so that no grant expires.
        let now = Monotonic::default();
        self.granted.clear();
        self.deferred.clear();
        let mut rounds = Vec::new();
        let is_queued = |name: &&NodeName| self.queued.iter().any(|it| it.node == **name);
        let begun: BTreeSet<NodeName> = self
            .draining
            .union(&self.unavailable)
            .filter(|name| !is_queued(name))
            .cloned()
            .collect();
        // The movers of the last round.
        let mut coming_back: Vec<NodeName> = Vec::new();
        if !begun.is_empty() {
            coming_back.extend(begun.intersection(movers).cloned());
            rounds.push(AdmissionRound {
                start: RoundStart::UnderWay,
                nodes: begun.iter().cloned().collect(),
                away: begun,
            });
        }
        while !self.queued.is_empty() {
            let Some(start) = self.next_round(limits, movers, now) else {
                break;
            };
            let nodes: Vec<NodeName> = self
                .in_turn()
                .filter(|name| self.granted.contains_key(*name))
                .cloned()
                .collect();
            self.admit(&nodes);
            rounds.push(AdmissionRound {
                start,
                away: self.unavailable.clone(),
                nodes: nodes.clone(),
            });
            for name in std::mem::replace(&mut coming_back, nodes) {
                self.unavailable.remove(&name);
            }
            coming_back.retain(|name| movers.contains(name));
        }
        let left = self.in_turn().cloned().collect();
        (rounds, left)
    }

    /// Grants slots to at least one node, and says what that needed; `None` if no node can ever get one.
    fn next_round(
        &mut self,
        limits: AdmissionLimits,
        movers: &BTreeSet<NodeName>,
        now: Monotonic,
    ) -> Option<RoundStart> {
        self.grant(limits, now);
        let mut start = RoundStart::Now;
        while self.granted.is_empty() {
            // The first may wait for a node behind it, which is away already and has to leave again.
            let waiting: Vec<NodeName> = self.in_turn().cloned().collect();
            let relief = waiting
                .iter()
                .find_map(|name| self.relieve(self.full(name, limits)?, movers))?;
            start = start.max(relief);
            self.grant(limits, now);
        }
        Some(start)
    }

    /// Frees what is counted against `limit`; `None` if nothing is.
    fn relieve(&mut self, limit: SlotLimit, movers: &BTreeSet<NodeName>) -> Option<RoundStart> {
        let queued: BTreeSet<NodeName> = self.queued.iter().map(|it| it.node.clone()).collect();
        // A node that has to leave again is back only after that.
        let is_mover = |name: &NodeName| movers.contains(name) && !queued.contains(name);
        match limit {
            SlotLimit::ConcurrentDrains(_) => {
                let before = std::mem::take(&mut self.draining);
                (!before.is_empty()).then_some(RoundStart::VmsOff)
            }
            SlotLimit::Unavailable(_) | SlotLimit::UnavailableGpus(_) => {
                if self.unavailable.iter().any(is_mover) {
                    self.unavailable.retain(|name| !is_mover(name));
                    return Some(RoundStart::NodesBack);
                }
                let before = self.unavailable.len();
                self.unavailable.retain(|name| queued.contains(name));
                (self.unavailable.len() < before).then_some(RoundStart::HostsBack)
            }
            SlotLimit::PowerOffs(_) => {
                let made = std::mem::take(&mut self.power_offs);
                let due = std::mem::take(&mut self.draining);
                self.drain_only.retain(|name| queued.contains(name));
                self.unavailable.retain(|name| !is_mover(name));
                (!made.is_empty() || !due.is_empty()).then_some(RoundStart::NextHour)
            }
        }
    }

    /// Replaces the grants of `nodes` by what their records show later.
    fn admit(&mut self, nodes: &[NodeName]) {
        self.queued.retain(|it| !nodes.contains(&it.node));
        self.granted.clear();
        self.draining.extend(nodes.iter().cloned());
        self.unavailable.extend(nodes.iter().cloned());
        for name in nodes {
            if self.drain_only.insert(name.clone()) {
                *self.power_offs.entry(name.clone()).or_default() += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::super::{Admission, QueuedNode};
    use super::*;

    const ONE: AdmissionLimits = AdmissionLimits {
        concurrent_drains: 1,
        unavailable: None,
        unavailable_gpus: None,
        power_offs: None,
    };

    fn names(text: &str) -> BTreeSet<NodeName> {
        text.split_whitespace().map(NodeName::new).collect()
    }

    /// The nodes in `queued` in this order, with two GPUs each.
    fn queue(queued: &str) -> AdmissionQueue {
        let queued = queued.split_whitespace().zip(1_i64..);
        AdmissionQueue {
            queued: queued
                .map(|(node, second)| QueuedNode {
                    clicked_at: Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second),
                    node: NodeName::new(node),
                })
                .collect(),
            gpus: names("a b c d e f").into_iter().map(|name| (name, 2)).collect(),
            ..AdmissionQueue::default()
        }
    }

    /// As in `now: a b (a b)`.
    fn shown(rounds: &[AdmissionRound]) -> Vec<String> {
        let list = |names: &mut dyn Iterator<Item = &NodeName>| {
            names.map(NodeName::as_str).collect::<Vec<_>>().join(" ")
        };
        rounds
            .iter()
            .map(|round| {
                let (nodes, away) = (list(&mut round.nodes.iter()), list(&mut round.away.iter()));
                format!("{}: {nodes} ({away})", round.start)
            })
            .collect()
    }

    #[test]
    fn rounds_follow_the_limits() {
        let two = AdmissionLimits {
            concurrent_drains: 2,
            ..ONE
        };
        let unavailable = |limit| AdmissionLimits {
            unavailable: Some(limit),
            ..two
        };
        let gpus = AdmissionLimits {
            unavailable_gpus: Some(4),
            concurrent_drains: 9,
            ..ONE
        };
        let power_offs = AdmissionLimits {
            power_offs: Some(2),
            ..two
        };
        // (queued, movers, limits, rounds)
        let table: [(&str, &str, AdmissionLimits, &[&str]); 10] = [
            ("", "", ONE, &[]),
            ("b a", "", ONE, &["now: b (b)", "vms-off: a (a b)"]),
            // Nodes that move are back while the next round drains.
            (
                "a b c d",
                "a b c",
                ONE,
                &[
                    "now: a (a)",
                    "vms-off: b (a b)",
                    "vms-off: c (b c)",
                    "vms-off: d (c d)",
                ],
            ),
            // Nodes that do not move stay away.
            (
                "a b c d e",
                "b c d e",
                two,
                &["now: a b (a b)", "vms-off: c d (a b c d)", "vms-off: e (a c d e)"],
            ),
            (
                "a b c",
                "a b c",
                unavailable(1),
                &["now: a (a)", "nodes-back: b (b)", "nodes-back: c (c)"],
            ),
            (
                "a b c",
                "a",
                unavailable(1),
                &["now: a (a)", "nodes-back: b (b)", "hosts-back: c (c)"],
            ),
            (
                "a b c",
                "a b c",
                unavailable(3),
                &["now: a b (a b)", "vms-off: c (a b c)"],
            ),
            ("a b c", "", gpus, &["now: a b (a b)", "hosts-back: c (c)"]),
            (
                "a b c",
                "a b c",
                power_offs,
                &["now: a b (a b)", "next-hour: c (c)"],
            ),
            (
                "a b c",
                "a",
                power_offs,
                &["now: a b (a b)", "next-hour: c (b c)"],
            ),
        ];
        for (queued, movers, limits, expected) in table {
            let (rounds, left) = queue(queued).rounds(limits, &names(movers));
            assert_eq!(shown(&rounds), expected, "{queued:?} with {limits:?}");
            assert!(left.is_empty(), "{queued:?} with {limits:?}");
        }
    }

    #[test]
    fn nodes_under_way_come_first_and_hold_their_slots() {
        let begun = AdmissionQueue {
            draining: names("a"),
            unavailable: names("a b"),
            ..queue("c d")
        };
        let limits = AdmissionLimits {
            concurrent_drains: 2,
            ..ONE
        };
        let (rounds, _) = begun.clone().rounds(limits, &names("a"));
        assert_eq!(
            shown(&rounds),
            ["under-way: a b (a b)", "now: c (a b c)", "vms-off: d (b c d)"]
        );
        let (rounds, _) = begun.rounds(ONE, &names("a"));
        assert_eq!(
            shown(&rounds),
            ["under-way: a b (a b)", "vms-off: c (a b c)", "vms-off: d (b c d)"]
        );
    }

    /// One event of those that a full limit waits for, in the order in which the rounds expect them; `false` if there is none.
    fn world_goes_on(queue: &mut AdmissionQueue, movers: &BTreeSet<NodeName>) -> bool {
        let queued: BTreeSet<NodeName> = queue.queued.iter().map(|it| it.node.clone()).collect();
        let are_off = !std::mem::take(&mut queue.draining).is_empty();
        queue.drain_only.retain(|name| queued.contains(name));
        let before = queue.unavailable.len();
        queue
            .unavailable
            .retain(|name| queued.contains(name) || are_off || !movers.contains(name));
        if are_off || queue.unavailable.len() < before {
            return true;
        }
        queue.unavailable.retain(|name| queued.contains(name));
        queue.unavailable.len() < before || !std::mem::take(&mut queue.power_offs).is_empty()
    }

    #[test]
    fn rounds_admit_first_whom_the_queue_grants_and_nobody_waits_for_ever() {
        let limits = |drains, unavailable, gpus, power_offs| AdmissionLimits {
            concurrent_drains: drains,
            unavailable,
            unavailable_gpus: gpus,
            power_offs,
        };
        let all = [
            limits(1, None, None, None),
            limits(2, Some(1), None, None),
            limits(1, Some(2), None, None),
            limits(9, None, Some(2), None),
            limits(9, Some(1), Some(4), Some(1)),
            limits(2, None, None, Some(1)),
        ];
        // Each of four nodes waits, is away, is away and waits, or drains.
        for states in 0..4_usize.pow(4) {
            let state = |node: usize| states / 4_usize.pow(u32::try_from(node).unwrap()) % 4;
            let of = |wanted: &[usize]| {
                let nodes = (0..4).filter(|node| wanted.contains(&state(*node)));
                nodes
                    .map(|node| ["d", "c", "b", "a"][node])
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            let start = AdmissionQueue {
                unavailable: names(&of(&[1, 2, 3])),
                draining: names(&of(&[3])),
                ..queue(&of(&[0, 2]))
            };
            for (limits, movers) in all.iter().flat_map(|limits| [(limits, ""), (limits, "a b c d")]) {
                let movers = names(movers);
                let case = format!("{start:?} with {limits:?}, movers {movers:?}");
                let (rounds, left) = start.clone().rounds(*limits, &movers);
                assert!(left.is_empty(), "{case}");
                let mut world = start.clone();
                world.grant(*limits, Monotonic::default());
                let granted: BTreeSet<NodeName> = world.granted.keys().cloned().collect();
                let now = rounds.iter().find(|round| round.start == RoundStart::Now);
                let planned: Option<BTreeSet<NodeName>> =
                    now.map(|round| round.nodes.iter().cloned().collect());
                assert_eq!(planned.unwrap_or_default(), granted, "{case}");
                while !world.queued.is_empty() {
                    world.grant(*limits, Monotonic::default());
                    for node in world.queued.iter().map(|it| &it.node) {
                        if let Admission::Queued { ahead, .. } = world.admission(node, *limits) {
                            let each: BTreeSet<&NodeName> = ahead.iter().collect();
                            assert!(
                                !each.contains(node) && each.len() == ahead.len(),
                                "{node}: {ahead:?} in {case}"
                            );
                        }
                    }
                    let granted: Vec<NodeName> = world.granted.keys().cloned().collect();
                    world.admit(&granted);
                    assert!(
                        !granted.is_empty() || world_goes_on(&mut world, &movers),
                        "{case}"
                    );
                }
            }
        }
    }

    #[test]
    fn nodes_that_no_limit_admits_are_left() {
        let none = AdmissionLimits {
            concurrent_drains: 0,
            ..ONE
        };
        let (rounds, left) = queue("a b").rounds(none, &names(""));
        assert!(rounds.is_empty());
        assert_eq!(left, [NodeName::new("a"), NodeName::new("b")]);
    }
}
