//! The property collector of the simulated vCenter: filter specifications, and what they select.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use crate::properties::{Moref, Value, is_a};
use crate::vcenter::Vcenter;
use crate::xml::Element;

/// The selected objects with their properties.
pub type Selected = BTreeMap<Moref, Vec<(String, Option<Value>)>>;

/// The views of a session, with their members by reference.
pub type Views = BTreeMap<String, View>;

/// A view of a session.
#[derive(Clone, Debug)]
pub enum View {
    /// All objects of a type.
    All(String),
    List(BTreeSet<Moref>),
}

/// A `PropertyFilterSpec`.
#[derive(Clone, Debug)]
pub struct Spec {
    properties: Vec<(String, Vec<String>)>,
    objects: Vec<ObjectSpec>,
}

#[derive(Clone, Debug)]
struct ObjectSpec {
    object: (String, String),
    skip: bool,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Step {
    name: String,
    kind: String,
    path: String,
    skip: bool,
    steps: Vec<Step>,
}

/// One collector of a session.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    pub filters: Vec<Spec>,
    /// The last version that the client has named, with what it selected.
    acknowledged: (u64, Vec<Selected>),
    /// The last version that was sent.
    sent: (u64, Vec<Selected>),
    /// The rest of a first set, in parts, and the version with which the next one is asked for.
    rest: Option<(String, VecDeque<String>)>,
}

/// Objects in each part of a first set. A vCenter 5.5 sent parts of 100 objects although the request named no limit.
const PART: usize = 5;

impl Spec {
    /// Reads `spec` or `specSet`.
    pub fn read(element: &Element) -> Self {
        let of_set = |set: &Element| {
            let paths = set.all("pathSet").map(|path| path.text.clone()).collect();
            (set.text_of("type").to_owned(), paths)
        };
        let of_object = |set: &Element| {
            let object = set.child("obj").cloned().unwrap_or_default();
            ObjectSpec {
                object: (object.attribute("type").to_owned(), object.text),
                skip: set.text_of("skip") == "true",
                steps: set.all("selectSet").map(Step::read).collect(),
            }
        };
        Self {
            properties: element.all("propSet").map(of_set).collect(),
            objects: element.all("objectSet").map(of_object).collect(),
        }
    }

    /// What it selects now.
    pub fn select(&self, vcenter: &Vcenter, views: &Views) -> Selected {
        let mut found: BTreeSet<(String, String)> = BTreeSet::new();
        for spec in &self.objects {
            if !spec.skip {
                found.insert(spec.object.clone());
            }
            let mut walk = Walk {
                vcenter,
                views,
                root: &spec.steps,
                found: &mut found,
                seen: BTreeSet::new(),
            };
            walk.go(&spec.object, &spec.steps);
        }
        let mut selected = Selected::new();
        for (kind, id) in found {
            let Some(moref) = vcenter.known(&kind, &id) else {
                continue;
            };
            let sets = self.properties.iter().filter(|(wanted, _)| is_a(&kind, wanted));
            let paths: BTreeSet<&String> = sets.flat_map(|(_, paths)| paths).collect();
            if paths.is_empty() {
                continue;
            }
            let properties = paths
                .into_iter()
                .map(|path| (path.clone(), vcenter.property(&moref, path)));
            selected.insert(moref.clone(), properties.collect());
        }
        selected
    }
}

impl Step {
    fn read(element: &Element) -> Self {
        Self {
            name: element.text_of("name").to_owned(),
            kind: element.text_of("type").to_owned(),
            path: element.text_of("path").to_owned(),
            skip: element.text_of("skip") == "true",
            steps: element.all("selectSet").map(Self::read).collect(),
        }
    }

    fn is_reference(&self) -> bool {
        self.path.is_empty()
    }
}

/// One walk along the steps of an object.
struct Walk<'a> {
    vcenter: &'a Vcenter,
    views: &'a Views,
    root: &'a [Step],
    found: &'a mut BTreeSet<(String, String)>,
    seen: BTreeSet<((String, String), String)>,
}

impl<'a> Walk<'a> {
    fn go(&mut self, from: &(String, String), steps: &'a [Step]) {
        for step in steps {
            let step = match step.is_reference() {
                true => match named(self.root, &step.name) {
                    Some(step) => step,
                    None => continue,
                },
                false => step,
            };
            if !is_a(&from.0, &step.kind) {
                continue;
            }
            if !step.name.is_empty() && !self.seen.insert((from.clone(), step.name.clone())) {
                continue;
            }
            for (kind, id) in self.references(from, &step.path) {
                let to = (kind.to_owned(), id);
                if !step.skip {
                    self.found.insert(to.clone());
                }
                self.go(&to, &step.steps);
            }
        }
    }

    fn references(&self, of: &(String, String), path: &str) -> Vec<Moref> {
        if path == "view" {
            return match self.views.get(&of.1) {
                Some(View::All(kind)) => self.vcenter.all(kind),
                Some(View::List(members)) => members.iter().cloned().collect(),
                None => Vec::new(),
            };
        }
        let known = self.vcenter.known(&of.0, &of.1);
        known.map_or_else(Vec::new, |moref| self.vcenter.references(&moref, path))
    }
}

fn named<'a>(steps: &'a [Step], name: &str) -> Option<&'a Step> {
    steps.iter().find_map(|step| {
        let is_it = step.name == name && !step.is_reference();
        if is_it {
            Some(step)
        } else {
            named(&step.steps, name)
        }
    })
}

/// The answer of a collector to a long poll.
pub enum PollAnswer {
    /// A set of updates.
    Set {
        /// Its content.
        xml: String,
        /// Whether it completes the first set of a collector.
        is_first: bool,
    },
    /// Nothing has changed.
    Nothing,
    /// The version is not one of this collector.
    UnknownVersion,
}

impl Collector {
    /// What has changed since `version`.
    pub fn poll(
        &mut self,
        version: &str,
        vcenter: &Vcenter,
        views: &Views,
        is_lost: &mut dyn FnMut() -> bool,
    ) -> PollAnswer {
        match self.rest.take() {
            // The version of a part is valid once.
            Some((expected, parts)) if expected == version => return self.next_part(&expected, parts),
            Some(_) if !version.is_empty() => return PollAnswer::UnknownVersion,
            Some(_) | None => {}
        }
        let version: u64 = match version {
            "" => 0,
            text => text.parse().unwrap_or(u64::MAX),
        };
        if version == 0 {
            self.acknowledged = (0, Vec::new());
            self.sent.1.clear();
        } else if version == self.sent.0 {
            self.acknowledged = self.sent.clone();
        } else if version != self.acknowledged.0 {
            return PollAnswer::UnknownVersion;
        }
        let now: Vec<Selected> = self
            .filters
            .iter()
            .map(|filter| filter.select(vcenter, views))
            .collect();
        let (mut sets, mut objects) = (String::new(), Vec::new());
        for (index, selected) in now.iter().enumerate() {
            let none = Selected::new();
            let before = self.acknowledged.1.get(index).unwrap_or(&none);
            let changes = changes(before, selected, is_lost);
            if !changes.is_empty() || self.acknowledged.1.get(index).is_none() {
                sets.push_str(&filter_set(index, &changes));
                objects.extend(changes.into_iter().map(|change| (index, change)));
            }
        }
        if sets.is_empty() && version != 0 {
            return PollAnswer::Nothing;
        }
        let next = self.sent.0.max(version) + 1;
        self.sent = (next, now);
        if version == 0 && objects.len() > PART {
            let parts = objects.chunks(PART).map(|part| {
                let objects = part
                    .iter()
                    .map(|(index, object)| filter_set(*index, std::slice::from_ref(object)));
                objects.collect::<String>()
            });
            return self.next_part("0_0", parts.collect());
        }
        PollAnswer::Set {
            xml: format!("<version>{next}</version>{sets}"),
            is_first: version == 0,
        }
    }

    /// The next part of a first set, after the one with this version.
    fn next_part(&mut self, after: &str, mut parts: VecDeque<String>) -> PollAnswer {
        let part = parts.pop_front().unwrap_or_default();
        if parts.is_empty() {
            let version = self.sent.0;
            return PollAnswer::Set {
                xml: format!("<version>{version}</version>{part}"),
                is_first: true,
            };
        }
        let number: usize = after.trim_start_matches("0_").parse().unwrap_or_default();
        let version = format!("0_{}", number + 1);
        let xml = format!("<version>{version}</version>{part}<truncated>true</truncated>");
        self.rest = Some((version, parts));
        PollAnswer::Set { xml, is_first: false }
    }
}

/// The changes as XML. Where `is_lost` says so, the change of a task is left out: the documentation of `recentTask` and of
/// `TaskManager` promises no updates for tasks in these lists.
fn changes(before: &Selected, now: &Selected, is_lost: &mut dyn FnMut() -> bool) -> Vec<String> {
    let mut objects = Vec::new();
    for (moref, properties) in now {
        let old = before.get(moref);
        let changed: Vec<_> = match old {
            None => properties.iter().collect(),
            Some(old) => properties
                .iter()
                .filter(|property| !old.contains(property))
                .collect(),
        };
        if changed.is_empty() || (moref.0 == "Task" && old.is_some() && is_lost()) {
            continue;
        }
        let kind = if old.is_some() { "modify" } else { "enter" };
        let mut xml = String::new();
        let _ = write!(xml, "<objectSet><kind>{kind}</kind>{}", object(moref));
        for (path, value) in changed {
            let value = value.as_ref().map(render).unwrap_or_default();
            let _ = write!(
                xml,
                "<changeSet><name>{}</name><op>assign</op>{value}</changeSet>",
                crate::properties::escaped(path)
            );
        }
        xml.push_str("</objectSet>");
        objects.push(xml);
    }
    for moref in before.keys().filter(|moref| !now.contains_key(*moref)) {
        objects.push(format!(
            "<objectSet><kind>leave</kind>{}</objectSet>",
            object(moref)
        ));
    }
    objects
}

fn filter_set(filter: usize, objects: &[String]) -> String {
    let objects = objects.concat();
    format!("<filterSet><filter type=\"PropertyFilter\">filter-{filter}</filter>{objects}</filterSet>")
}

fn object((kind, id): &Moref) -> String {
    format!("<obj type=\"{kind}\">{id}</obj>")
}

fn render((kind, inside): &Value) -> String {
    match kind.strip_prefix('@') {
        Some(of) => format!("<val type=\"{of}\" xsi:type=\"ManagedObjectReference\">{inside}</val>"),
        None => format!("<val xsi:type=\"{kind}\">{inside}</val>"),
    }
}

/// The objects of `RetrievePropertiesEx`.
pub fn page(selected: &Selected) -> String {
    let mut xml = String::new();
    for (moref, properties) in selected {
        let _ = write!(xml, "<objects>{}", object(moref));
        for (path, value) in properties {
            if let Some(value) = value {
                let path = crate::properties::escaped(path);
                let _ = write!(xml, "<propSet><name>{path}</name>{}</propSet>", render(value));
            }
        }
        xml.push_str("</objects>");
    }
    xml
}
