//! What each object should have as its value, what it has, and when it may be set.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::ids::NodeName;
use crate::maintenance::clock::doubled;
use crate::vsphere::privileges::Entity;

/// The shortest time between two values of one object: vCenter logs an event for each.
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(3);

/// The pause doubles up to this with each value in the same phase, and with each failed attempt.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How long objects of one kind are left out after vCenter refused a value for good. An administrator who then grants the
/// privilege needs no restart.
pub(super) const LEFT_OUT_FOR: Duration = Duration::from_secs(60 * 60);

/// Characters of a value: what a column of a list shows, with some more in its tooltip. The longest that vCenter keeps is not known.
const CHARACTERS_MAX: usize = 200;

/// The values of all objects.
#[derive(Debug, Default)]
pub(super) struct AttributeValues {
    nodes: BTreeMap<NodeName, ShownText>,
    objects: BTreeMap<Entity, ObjectValue>,
    refused_until: BTreeMap<&'static str, Instant>,
}

#[derive(Debug)]
struct ShownText {
    text: String,
    on: Vec<Entity>,
}

#[derive(Debug)]
struct ObjectValue {
    /// What it has; `None` if it is not known.
    has: Option<String>,
    /// When the next value may be set.
    due: Instant,
    /// When the last one was set.
    last: Option<Instant>,
    /// The pause after the next one.
    pause: Duration,
    /// How many attempts failed.
    tries: u32,
    is_sending: bool,
}

impl AttributeValues {
    /// Shows `text` of `node` on these objects, in place of what it showed before.
    pub(super) fn show(
        &mut self,
        node: &NodeName,
        text: String,
        on: Vec<Entity>,
        is_change: bool,
        now: Instant,
    ) {
        self.drop_cleared(now);
        let touched = on.clone();
        let before = self.nodes.insert(node.clone(), ShownText { text, on });
        let before = before.into_iter().flat_map(|before| before.on);
        for entity in before.chain(touched) {
            self.touch(entity, is_change, now);
        }
    }

    /// Clears what `node` shows: its episode on the objects `on` ended. They may have a value of an earlier process.
    pub(super) fn hide(&mut self, node: &NodeName, on: Vec<Entity>, now: Instant) {
        let before = self.nodes.remove(node);
        let before = before.into_iter().flat_map(|before| before.on);
        for entity in before.chain(on) {
            self.touch(entity, true, now);
        }
    }

    /// An object has a value of ours that no process has set since the start.
    pub(super) fn found(&mut self, entity: Entity, value: String, now: Instant) {
        self.objects.entry(entity).or_insert(ObjectValue {
            has: Some(value),
            ..ObjectValue::new(now)
        });
    }

    /// Takes the value that is due for the longest time. [`Self::set`] or [`Self::failed`] or [`Self::refused`] must follow.
    pub(super) fn take(&mut self, now: Instant) -> Option<(Entity, String)> {
        let due = self.waiting().filter(|(_, due)| *due <= now);
        let entity = due.min_by_key(|(_, due)| *due)?.0.clone();
        let value = self.wanted(&entity);
        self.objects.get_mut(&entity)?.is_sending = true;
        Some((entity, value))
    }

    /// When [`Self::take`] returns the next one.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting().map(|(_, due)| due).min()
    }

    /// The object has `value`.
    pub(super) fn set(&mut self, entity: &Entity, value: String, now: Instant) {
        let Some(object) = self.objects.get_mut(entity) else {
            return;
        };
        object.has = Some(value);
        object.is_sending = false;
        object.tries = 0;
        object.last = Some(now);
        object.due = now + object.pause;
        object.pause = (object.pause * 2).min(PAUSE_MAX);
    }

    /// It may work later.
    pub(super) fn failed(&mut self, entity: &Entity, now: Instant) {
        let Some(object) = self.objects.get_mut(entity) else {
            return;
        };
        object.is_sending = false;
        object.last = Some(now);
        object.due = now + doubled(PAUSE_MIN, object.tries, PAUSE_MAX);
        object.tries = object.tries.saturating_add(1);
    }

    /// It does not work for objects of this kind, until a person changes something.
    pub(super) fn refused(&mut self, entity: &Entity, now: Instant) {
        self.failed(entity, now);
        self.refused_until.insert(entity.kind_words(), now + LEFT_OUT_FOR);
    }

    /// The objects whose value is to be set, and when.
    fn waiting(&self) -> impl Iterator<Item = (&Entity, Instant)> {
        let objects = self.objects.iter().filter(|(entity, object)| {
            !object.is_sending && object.has.as_deref() != Some(self.wanted(entity).as_str())
        });
        objects.map(|(entity, object)| {
            let refused = self.refused_until.get(entity.kind_words()).copied();
            (entity, refused.map_or(object.due, |until| until.max(object.due)))
        })
    }

    /// The texts of all nodes that show something on `entity`; empty if none does.
    fn wanted(&self, entity: &Entity) -> String {
        let texts = self.nodes.values().filter(|shown| shown.on.contains(entity));
        let texts: Vec<&str> = texts.map(|shown| shown.text.as_str()).collect();
        cut(&texts.join(" | "))
    }

    fn touch(&mut self, entity: Entity, is_change: bool, now: Instant) {
        let object = self
            .objects
            .entry(entity)
            .or_insert_with(|| ObjectValue::new(now));
        if is_change {
            object.pause = PAUSE_MIN;
            let soonest = object.last.map_or(now, |last| last + PAUSE_MIN);
            object.due = object.due.min(soonest);
        }
    }

    /// Forgets objects without a value.
    fn drop_cleared(&mut self, now: Instant) {
        let shown: Vec<&Entity> = self.nodes.values().flat_map(|shown| &shown.on).collect();
        self.objects.retain(|entity, object| {
            let is_cleared = object.has.as_deref() == Some("") && !shown.contains(&entity);
            object.is_sending || !is_cleared || now < object.due
        });
    }
}

impl ObjectValue {
    fn new(now: Instant) -> Self {
        Self {
            has: None,
            due: now,
            last: None,
            pause: PAUSE_MIN,
            tries: 0,
            is_sending: false,
        }
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some(_) => text.chars().take(CHARACTERS_MAX - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
