//! In which order pods are asked to leave, and how many at once: those that share their budgets in step. Pure.

use std::collections::{BTreeMap, VecDeque};

use k8s_openapi::api::core::v1::Pod;

use super::Standing;

/// What decides which budgets hold a pod: a PodDisruptionBudget selects by labels within a namespace, and counts pods
/// that are Ready. Pods that are the same in all three are held by the same budgets at any moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alike {
    /// With all of this namespace and these labels that are Ready.
    With(String, BTreeMap<String, String>),
    /// With nobody: whether a budget lets a pod go that is not Ready is a matter of its
    /// `unhealthyPodEvictionPolicy`, and it may be let go while the others are held.
    Nobody(String),
}

/// The pods that wait to be asked.
#[derive(Debug, Default)]
pub(super) struct Steps {
    kinds: Vec<Kind>,
    /// With which kind the next search begins, so that none is kept waiting by another.
    turn: usize,
    /// How many more of a kind may be asked when one of it goes.
    more: usize,
}

#[derive(Debug)]
struct Kind {
    waiting: VecDeque<Standing>,
    /// How many more of this kind may be asked before an answer.
    window: usize,
}

impl Alike {
    pub(super) fn of(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        let conditions = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref());
        let is_ready = conditions
            .unwrap_or_default()
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        if is_ready {
            Self::With(
                metadata.namespace.clone().unwrap_or_default(),
                metadata.labels.clone().unwrap_or_default(),
            )
        } else {
            Self::Nobody(metadata.uid.clone().unwrap_or_default())
        }
    }
}

impl Steps {
    /// One of a kind at first, and one more at once with each that goes.
    pub(super) fn growing(standing: Vec<Standing>) -> Self {
        Self::of(standing, 2)
    }

    /// One of a kind at a time.
    pub(super) fn in_turn(standing: Vec<Standing>) -> Self {
        Self::of(standing, 1)
    }

    fn of(standing: Vec<Standing>, more: usize) -> Self {
        let mut kinds: BTreeMap<Alike, VecDeque<Standing>> = BTreeMap::new();
        for pod in standing {
            kinds.entry(pod.alike.clone()).or_default().push_back(pod);
        }
        let kinds = kinds.into_values().map(|waiting| Kind { waiting, window: 1 });
        Self {
            kinds: kinds.collect(),
            turn: 0,
            more,
        }
    }

    /// Who may be asked at this moment, with the number of its kind.
    pub(super) fn next(&mut self) -> Option<(usize, Standing)> {
        let count = self.kinds.len();
        let mut turns = (self.turn..count).chain(0..self.turn.min(count));
        let kind = turns.find(|kind| self.kinds.get(*kind).is_some_and(Kind::may_ask))?;
        self.turn = kind + 1;
        let pod = self.kinds.get_mut(kind)?.ask()?;
        Some((kind, pod))
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.kinds.iter().map(|kind| kind.waiting.len()).sum()
    }

    /// One of this kind goes, so more may be asked.
    pub(super) fn went(&mut self, kind: usize) {
        if let Some(kind) = self.kinds.get_mut(kind) {
            kind.window = kind.window.saturating_add(self.more);
        }
    }

    /// One of this kind stays for a reason of its own, so another may be asked.
    pub(super) fn stays(&mut self, kind: usize) {
        if let Some(kind) = self.kinds.get_mut(kind) {
            kind.window = kind.window.saturating_add(1);
        }
    }

    /// A budget holds this kind: gives those that need not be asked.
    pub(super) fn hold(&mut self, kind: usize) -> Vec<Standing> {
        let kind = self.kinds.get_mut(kind);
        kind.map_or_else(Vec::new, |kind| kind.waiting.drain(..).collect())
    }

    /// Gives all that were not asked.
    pub(super) fn drop_all(&mut self) -> Vec<Standing> {
        self.kinds
            .iter_mut()
            .flat_map(|kind| kind.waiting.drain(..))
            .collect()
    }
}

impl Kind {
    fn may_ask(&self) -> bool {
        self.window > 0 && !self.waiting.is_empty()
    }

    fn ask(&mut self) -> Option<Standing> {
        self.window = self.window.checked_sub(1)?;
        self.waiting.pop_front()
    }
}
