//! What is still to be posted: of each node the newest text, and the ends of its episodes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::ids::NodeName;
use crate::vsphere::privileges::Entity;

/// The shortest time between two posts of one node. vCenter keeps each event for a month.
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(3);

/// The pause doubles up to this with each wait in the same phase, because budgets and hosts may change
/// back and forth for hours, and with each failed attempt.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Half an hour of attempts. A restart of vCenter takes up to a quarter of an hour.
pub(super) const TRIES_MAX: u32 = 30;

/// The ends of episodes of one node that wait. Each episode takes minutes, so more are not expected
/// within half an hour.
pub(super) const ENDS_MAX: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoggedText {
    pub(super) text: String,
    /// The objects that do not have it yet.
    pub(super) on: Vec<Entity>,
    pub(super) kind: TextKind,
    /// How many attempts failed.
    pub(super) tries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextKind {
    /// A change of phase.
    Change,
    /// A wait, or a write that is tried again.
    Wait,
    /// The end of an episode. A newer text does not replace it.
    End,
}

/// The texts of all nodes.
#[derive(Debug, Default)]
pub(super) struct PostQueue {
    nodes: BTreeMap<NodeName, TextsOfNode>,
    /// Lost since they were counted last.
    lost: u64,
}

#[derive(Debug)]
struct TextsOfNode {
    /// Ends, and then at most one other text.
    waiting: VecDeque<LoggedText>,
    /// When the next one may be sent.
    due: Instant,
    /// When the last one was sent.
    last: Option<Instant>,
    /// The pause after the next wait.
    pause: Duration,
    is_sending: bool,
}

impl PostQueue {
    /// Queues `post`. It replaces the text of its node that waits, unless that is an end.
    pub(super) fn push(&mut self, node: &NodeName, post: LoggedText, now: Instant) {
        self.nodes
            .retain(|_, of_node| of_node.is_sending || !of_node.waiting.is_empty() || now < of_node.due);
        let of_node = self.nodes.entry(node.clone()).or_insert_with(|| TextsOfNode {
            waiting: VecDeque::new(),
            due: now,
            last: None,
            pause: PAUSE_MIN,
            is_sending: false,
        });
        if post.kind != TextKind::Wait {
            of_node.pause = PAUSE_MIN;
            let soonest = of_node.last.map_or(now, |last| last + PAUSE_MIN);
            of_node.due = of_node.due.min(soonest);
        }
        of_node
            .waiting
            .pop_back_if(|waiting| waiting.kind != TextKind::End);
        of_node.waiting.push_back(post);
        let ends = of_node.waiting.iter().filter(|it| it.kind == TextKind::End);
        if ends.count() > ENDS_MAX {
            of_node.waiting.pop_front();
            self.lost += 1;
        }
    }

    /// Takes the text that is due for the longest time. [`Self::sent`] must follow.
    pub(super) fn take(&mut self, now: Instant) -> Option<(NodeName, LoggedText)> {
        let (node, of_node) = self
            .nodes
            .iter_mut()
            .filter(|(_, of_node)| of_node.can_be_sent() && of_node.due <= now)
            .min_by_key(|(_, of_node)| of_node.due)?;
        let post = of_node.waiting.pop_front()?;
        of_node.is_sending = true;
        Some((node.clone(), post))
    }

    /// When [`Self::take`] returns the next one.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waiting = self.nodes.values().filter(|of_node| of_node.can_be_sent());
        waiting.map(|of_node| of_node.due).min()
    }

    /// Notes the result of sending `post`; `post.on` is what is left of it.
    pub(super) fn sent(&mut self, node: &NodeName, mut post: LoggedText, now: Instant) {
        let Some(of_node) = self.nodes.get_mut(node) else {
            return;
        };
        of_node.is_sending = false;
        of_node.last = Some(now);
        if post.on.is_empty() {
            of_node.due = now + of_node.pause;
            if post.kind == TextKind::Wait {
                of_node.pause = (of_node.pause * 2).min(PAUSE_MAX);
            }
            return;
        }
        of_node.due = now + (PAUSE_MIN * 2_u32.saturating_pow(post.tries.min(8))).min(PAUSE_MAX);
        post.tries += 1;
        let is_newest = of_node.waiting.is_empty();
        if post.tries == TRIES_MAX {
            self.lost += 1;
        } else if is_newest || post.kind == TextKind::End {
            of_node.waiting.push_front(post);
        }
    }

    /// How many texts were lost since the last call.
    pub(super) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

impl TextsOfNode {
    fn can_be_sent(&self) -> bool {
        !self.is_sending && !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests;
