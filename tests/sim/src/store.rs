//! The objects of the simulated kube-apiserver, their versions, and the history that watches read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::clock;

/// The changes that are kept for watches.
const HISTORY: usize = 2_000;

/// Resource, namespace and name of an object.
pub type Key = (String, String, String);

/// The key of an object without a namespace.
pub fn cluster_key(resource: &str, name: &str) -> Key {
    (resource.to_owned(), String::new(), name.to_owned())
}

/// A change of an object.
#[derive(Clone, Debug)]
pub struct Change {
    /// The version after it.
    pub version: u64,
    /// When the watch cache has it.
    pub visible_at: Duration,
    /// The resource.
    pub key: Key,
    /// The object before.
    pub before: Option<Arc<Value>>,
    /// The object after.
    pub after: Option<Arc<Value>>,
}

/// The objects.
#[derive(Debug)]
pub struct Store {
    version: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    log: VecDeque<Change>,
    /// Versions up to this one are not in the history any more.
    pub compacted: u64,
    /// Watches that began before this number of cuts have ended.
    pub cuts: u64,
    /// Until when the watch cache is behind by this much.
    pub lag: (Duration, Duration),
    /// It does not answer until then.
    pub down_until: Duration,
    /// Requests for this kind are refused until then.
    pub forbidden: (String, Duration),
    /// Wakes watches.
    pub changes: watch::Sender<u64>,
    created: u64,
}

/// A snapshot of etcd.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The version at which it was taken.
    pub version: u64,
    objects: BTreeMap<Key, Arc<Value>>,
}

/// Why a write is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// 409, another version.
    Conflict,
    /// 409, the object exists.
    Exists,
    NotFound,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            version: 100,
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            compacted: 0,
            cuts: 0,
            lag: (Duration::ZERO, Duration::ZERO),
            down_until: Duration::ZERO,
            forbidden: (String::new(), Duration::ZERO),
            changes: watch::Sender::new(0),
            created: 0,
        }
    }
}

impl Store {
    /// The current version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// An object.
    pub fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// The objects of a resource, in all namespaces.
    pub fn list<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> {
        let from = (resource.to_owned(), String::new(), String::new());
        self.objects
            .range(from..)
            .take_while(move |(key, _)| key.0 == resource)
    }

    /// The changes after a version that the watch cache has, oldest first, and when the next one is visible.
    pub fn since(&self, version: u64) -> (Vec<&Change>, Option<Duration>) {
        let now = clock::elapsed();
        let first = self.log.partition_point(|change| change.version <= version);
        let mut changes = Vec::new();
        for change in self.log.range(first..) {
            if change.visible_at > now {
                return (changes, Some(change.visible_at));
            }
            changes.push(change);
        }
        (changes, None)
    }

    /// Takes a snapshot.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            version: self.version,
            objects: self.objects.clone(),
        }
    }

    /// Goes back to a snapshot. Versions are used again after it.
    pub fn restore(&mut self, snapshot: Snapshot) {
        self.objects = snapshot.objects;
        self.version = snapshot.version;
        self.log.clear();
        self.compacted = self.version;
        self.cut();
    }

    /// Forgets the history.
    pub fn compact(&mut self) {
        self.compacted = self.version;
        self.cut();
    }

    /// Ends all watches.
    pub fn cut(&mut self) {
        self.cuts += 1;
        self.changes.send_modify(|count| *count += 1);
    }

    /// Creates an object, with uid and times.
    pub fn create(&mut self, key: &Key, mut object: Value, manager: &str) -> Result<Arc<Value>, Refused> {
        if self.objects.contains_key(key) {
            return Err(Refused::Exists);
        }
        self.created += 1;
        object["metadata"]["name"] = json!(key.2);
        if !key.1.is_empty() {
            object["metadata"]["namespace"] = json!(key.1);
        }
        object["metadata"]["uid"] = json!(format!("00000000-0000-4000-8000-{:012}", self.created));
        object["metadata"]["creationTimestamp"] = json!(format!("{:.0}", clock::true_time()));
        object["metadata"]["generation"] = json!(1);
        manage(&mut object, None, manager);
        Ok(self.put(key, Some(object)))
    }

    /// Replaces an object.
    pub fn update(&mut self, key: &Key, mut object: Value, manager: &str) -> Result<Arc<Value>, Refused> {
        let Some(before) = self.objects.get(key).cloned() else {
            return Err(Refused::NotFound);
        };
        let sent = object
            .pointer("/metadata/resourceVersion")
            .and_then(Value::as_str);
        if sent.is_some_and(|sent| Some(sent) != version_of(&before)) {
            return Err(Refused::Conflict);
        }
        for field in ["uid", "creationTimestamp", "managedFields", "generation"] {
            object["metadata"][field] = before["metadata"][field].clone();
        }
        object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        if object == *before {
            return Ok(before);
        }
        manage(&mut object, Some(&before), manager);
        Ok(self.put(key, Some(object)))
    }

    /// Merges a patch into an object.
    pub fn patch(&mut self, key: &Key, patch: &Value, manager: &str) -> Result<Arc<Value>, Refused> {
        let Some(before) = self.objects.get(key) else {
            return Err(Refused::NotFound);
        };
        let uid = patch.pointer("/metadata/uid");
        if uid.is_some_and(|uid| *uid != before["metadata"]["uid"]) {
            return Err(Refused::Conflict);
        }
        let mut object = (**before).clone();
        json_patch::merge(&mut object, patch);
        self.update(key, object, manager)
    }

    /// Changes an object as a controller of Kubernetes does.
    pub fn change(&mut self, key: &Key, manager: &str, change: impl FnOnce(&mut Value)) {
        let Some(before) = self.objects.get(key) else {
            return;
        };
        let mut object = (**before).clone();
        change(&mut object);
        // Nothing else has written it meanwhile.
        let _ = self.update(key, object, manager);
    }

    /// Deletes an object.
    pub fn delete(&mut self, key: &Key) -> Option<Arc<Value>> {
        let before = self.objects.get(key).cloned()?;
        self.put(key, None);
        Some(before)
    }

    fn put(&mut self, key: &Key, object: Option<Value>) -> Arc<Value> {
        self.version += 1;
        let before = self.objects.remove(key);
        let after = object.map(|mut object| {
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            Arc::new(object)
        });
        if let Some(after) = &after {
            self.objects.insert(key.clone(), Arc::clone(after));
        }
        let now = clock::elapsed();
        let (until, lag) = self.lag;
        let behind = if now < until { lag } else { Duration::ZERO };
        // The cache has changes in their order.
        let last = self.log.back().map_or(Duration::ZERO, |change| change.visible_at);
        let result = after.clone().or_else(|| before.clone()).unwrap_or_default();
        self.log.push_back(Change {
            version: self.version,
            visible_at: last.max(now + behind),
            key: key.clone(),
            before,
            after,
        });
        if self.log.len() > HISTORY
            && let Some(oldest) = self.log.pop_front()
        {
            self.compacted = oldest.version;
        }
        self.changes.send_modify(|count| *count += 1);
        result
    }
}

/// The `resourceVersion` of an object.
pub fn version_of(object: &Value) -> Option<&str> {
    object
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str)
}

pub fn is_cordoned(node: &Value) -> bool {
    node.pointer("/spec/unschedulable") == Some(&Value::Bool(true))
}

/// Notes in `managedFields` who has written the cordon, labels and annotations, as far as they have changed.
fn manage(object: &mut Value, before: Option<&Value>, manager: &str) {
    let mut changed: Vec<[String; 3]> = Vec::new();
    let of = |value: Option<&Value>, field: &str| {
        let found = value.and_then(|value| value["metadata"][field].as_object().cloned());
        found.unwrap_or_default()
    };
    for field in ["labels", "annotations"] {
        let (old, new) = (of(before, field), of(Some(object), field));
        let is_new = |(key, value): &(&String, &Value)| old.get(*key) != Some(*value);
        let keys = new.iter().filter(is_new).map(|(key, _)| key.clone());
        changed.extend(keys.map(|key| ["metadata".to_owned(), field.to_owned(), key]));
    }
    let was_cordoned = before.is_some_and(is_cordoned);
    if is_cordoned(object) && !was_cordoned {
        changed.push(["spec".to_owned(), "unschedulable".to_owned(), String::new()]);
    }
    if changed.is_empty() {
        return;
    }
    let mut entries = before.map_or(Value::Null, |before| before["metadata"]["managedFields"].clone());
    let entries_of = entries.as_array_mut();
    let mut entries: Vec<Value> = entries_of.map(std::mem::take).unwrap_or_default();
    for [part, field, key] in &changed {
        for entry in &mut entries {
            let fields = &mut entry["fieldsV1"][format!("f:{part}")];
            let fields = match key.is_empty() {
                true => fields,
                false => &mut fields[format!("f:{field}")],
            };
            let name = if key.is_empty() { field } else { key };
            if let Some(fields) = fields.as_object_mut() {
                fields.remove(&format!("f:{name}"));
            }
        }
    }
    let index = entries.iter().position(|entry| entry["manager"] == manager);
    let index = index.unwrap_or_else(|| {
        entries.push(json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}));
        entries.len() - 1
    });
    let entry = &mut entries[index];
    entry["time"] = json!(format!("{:.0}", clock::true_time()));
    for [part, field, key] in changed {
        let fields = &mut entry["fieldsV1"][format!("f:{part}")][format!("f:{field}")];
        match key.is_empty() {
            true => *fields = json!({}),
            false => fields[format!("f:{key}")] = json!({}),
        }
    }
    object["metadata"]["managedFields"] = Value::Array(entries);
}
