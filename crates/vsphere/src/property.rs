//! The PropertyCollector: filter specifications, pages, and update sets.

use std::collections::{BTreeMap, BTreeSet};

use super::decode::cluster::ClusterConfig;
use super::decode::custom_fields::{self, NamedField};
use super::decode::{self, ActiveDevices, DecodedDevice, Hardware};
use super::fault::check_result::{self, CheckFindings};
use super::fault::{self, Fault, FaultKind};
use super::moref::Moref;
use super::soap::{ReplyError, TASK_INFO};
use super::update::{PciIds, VgpuProfile};
use super::xml::write::XmlWriter;
use super::xml::{Element, LimitBreach};
use haulout_core::ids::{HostRef, VmRef};

/// The error for a read in a dead session.
pub(super) const WITHHELD: &str = "every property was withheld for want of a session";
/// The devices of a VM.
pub(super) const DEVICES: &str = "config.hardware.device";
/// With this extraConfig key, vCenter powers the VM off itself when its host enters maintenance.
pub(super) const EVACUATION: &str = "config.extraConfig[\"maintenance.vm.evacuation.poweroff\"]";

/// The partial maintenance modes of a host, since 8.0.3.
pub(super) const PARTIAL_MAINTENANCE: &str = "runtime.partialMaintenanceMode";

/// A `PropertyFilterSpec`: properties by type, and the objects to start from.
#[derive(Clone, Default)]
pub(super) struct PropertySpec {
    properties: Vec<XmlWriter>,
    objects: Vec<XmlWriter>,
}

/// A `TraversalSpec`: a property that leads to further objects.
#[derive(Clone)]
pub(super) struct TraversalStep(XmlWriter);

impl PropertySpec {
    /// Reads `paths` of every selected object of type `kind` or a derived type.
    pub(super) fn read_properties(mut self, kind: &str, paths: &[&str]) -> Self {
        let spec = XmlWriter::new("propSet")
            .with(XmlWriter::text("type", kind))
            .with_all(paths.iter().map(|path| XmlWriter::text("pathSet", *path)));
        self.properties.push(spec);
        self
    }

    /// Selects `object`, and the objects that `steps` lead to.
    pub(super) fn select_object(
        self,
        object: &Moref,
        steps: impl IntoIterator<Item = TraversalStep>,
    ) -> Self {
        self.select(object, false, steps)
    }

    /// Selects only the objects that `steps` lead to from `object`.
    pub(super) fn select_beyond(
        self,
        object: &Moref,
        steps: impl IntoIterator<Item = TraversalStep>,
    ) -> Self {
        self.select(object, true, steps)
    }

    fn select(mut self, object: &Moref, skip: bool, steps: impl IntoIterator<Item = TraversalStep>) -> Self {
        let spec = XmlWriter::new("objectSet")
            .with(XmlWriter::moref("obj", object))
            .with(XmlWriter::text("skip", skip.to_string()))
            .with_all(steps.into_iter().map(|step| step.0));
        self.objects.push(spec);
        self
    }

    /// Renders as the element `name`. Without `reportMissingObjectsInResults` a stale reference would
    /// fail the whole call.
    pub(super) fn render(self, name: &'static str) -> XmlWriter {
        XmlWriter::new(name)
            .with_all(self.properties)
            .with_all(self.objects)
            .with(XmlWriter::text("reportMissingObjectsInResults", "true"))
    }
}

impl TraversalStep {
    /// From objects of type `kind` along `path`, then on by `steps`.
    pub(super) fn new(kind: &str, path: &str, steps: impl IntoIterator<Item = Self>) -> Self {
        Self::along(kind, path, false, steps)
    }

    /// Like [`Self::new`], without selecting the objects at `path` itself.
    pub(super) fn through(kind: &str, path: &str, steps: impl IntoIterator<Item = Self>) -> Self {
        Self::along(kind, path, true, steps)
    }

    fn along(kind: &str, path: &str, skip: bool, steps: impl IntoIterator<Item = Self>) -> Self {
        let spec = XmlWriter::new("selectSet")
            .attribute("xsi:type", "TraversalSpec")
            .with(XmlWriter::text("type", kind))
            .with(XmlWriter::text("path", path))
            .with(XmlWriter::text("skip", skip.to_string()));
        Self(spec.with_all(steps.into_iter().map(|step| step.0)))
    }

    /// The step [`Self::up`] again, which must be in the same object set.
    pub(super) fn again() -> Self {
        let again = XmlWriter::new("selectSet")
            .attribute("xsi:type", "SelectionSpec")
            .with(XmlWriter::text("name", "up"));
        Self(again)
    }

    /// From a managed entity to its parent, up to the root.
    pub(super) fn up() -> Self {
        let spec = XmlWriter::new("selectSet")
            .attribute("xsi:type", "TraversalSpec")
            .with(XmlWriter::text("name", "up"))
            .with(XmlWriter::text("type", "ManagedEntity"))
            .with(XmlWriter::text("path", "parent"))
            .with(XmlWriter::text("skip", "false"));
        Self(spec.with(Self::again().0))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ObjectProperties {
    pub(crate) moref: Moref,
    /// Paths that could not be read, with the fault.
    pub(crate) missing: Vec<(String, Fault)>,
    /// Path and value; `None` if the property is unset.
    pub(crate) properties: Vec<(String, Option<Value>)>,
}

/// The value of a property, reduced to what is used.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    Moref(Moref),
    Morefs(Vec<Moref>),
    /// The devices of a VM.
    Hardware(Hardware),
    /// The devices of a host with active passthrough or SR-IOV.
    ActiveDevices(ActiveDevices),
    PciDevices(Vec<(String, PciIds)>),
    /// The hosts that cannot access a datastore.
    InaccessibleOn(BTreeSet<HostRef>),
    /// The devices assigned to each VM of a host.
    Bindings(BTreeMap<VmRef, Option<BTreeSet<String>>>),
    /// The vGPU profiles of a host.
    VgpuProfiles(BTreeSet<VgpuProfile>),
    /// The memory of each GPU of a host that is shared as vGPUs, in GiB.
    SharedGpus(Vec<u64>),
    Cluster(ClusterConfig),
    /// The definitions of custom attributes.
    Fields(Vec<NamedField>),
    /// The custom attributes of an object, by the key of their definition.
    CustomValues(BTreeMap<i32, String>),
    /// Why a task failed or started nothing.
    Fault(Fault),
    /// What a check of a relocation found.
    Findings(CheckFindings),
    /// A page of the task history; each task has the properties of a `Task` object.
    Tasks(Vec<Result<ObjectProperties, Unreadable>>),
}

impl ObjectProperties {
    /// The value at `path`, if set and readable.
    pub(crate) fn get(&self, path: &str) -> Option<&Value> {
        self.properties.iter().find(|(name, _)| name == path)?.1.as_ref()
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.get(path).and_then(Value::text)
    }

    pub(crate) fn moref(&self, path: &str) -> Option<&Moref> {
        self.get(path).and_then(Value::moref)
    }

    /// The references at `path`; an unset list is empty.
    pub(crate) fn morefs(&self, path: &str) -> &[Moref] {
        self.get(path).map_or(&[], Value::morefs)
    }

    /// The fault for `path`, if it could not be read.
    pub(crate) fn denied(&self, path: &str) -> Option<&Fault> {
        let mut missing = self.missing.iter();
        Some(&missing.find(|(name, _)| name == path)?.1)
    }

    /// Whether any property has an empty name.
    fn has_nameless(&self) -> bool {
        let read = self.properties.iter().map(|(path, _)| path);
        read.chain(self.missing.iter().map(|(path, _)| path))
            .any(String::is_empty)
    }
}

impl Value {
    /// Decodes the property at `path`; `None` if the value has no information.
    fn decode(path: &str, value: &Element<'_>) -> Option<Self> {
        let text = |text: Option<&str>| Some(Self::Text(text.unwrap_or_default().to_owned()));
        match path {
            "parent" | "parentVApp" | "owner" | "resourcePool" | "runtime.host" | "info.entity"
            | "environmentBrowser" => value.moref().map(Self::Moref),
            "datastore" | "network" | "recentTask" | "vm" => Some(Self::Morefs(decode::morefs(value))),
            DEVICES => Some(Self::Hardware(decode::hardware(value))),
            "config.pciPassthruInfo" => Some(Self::ActiveDevices(decode::active_devices(value))),
            "hardware.pciDevice" => Some(Self::PciDevices(decode::pci_devices(value))),
            "config.assignableHardwareBinding" => Some(Self::Bindings(decode::bindings(value))),
            "config.sharedPassthruGpuTypes" => Some(Self::VgpuProfiles(decode::vgpu::types(value))),
            "config.sharedGpuCapabilities" => Some(Self::VgpuProfiles(decode::vgpu::capabilities(value))),
            "config.graphicsInfo" => Some(Self::SharedGpus(decode::vgpu::shared_gpus(value))),
            "host" => Some(Self::InaccessibleOn(decode::inaccessible_on(value))),
            "configurationEx" => decode::cluster::config(value).map(Self::Cluster),
            "field" | "availableField" => Some(Self::Fields(custom_fields::definitions(value))),
            "customValue" => Some(Self::CustomValues(custom_fields::values(value))),
            "info.error" => Some(Self::Fault(fault::read_localized(value))),
            "info.result" => check_result::findings(value)
                .map(Self::Findings)
                .or_else(|| fault::not_started(value).map(Self::Fault)),
            "info.reason" => text(value.text_of("userName")),
            "runtime.question" => text(value.text_of("text")),
            "latestPage" => Some(Self::Tasks(value.children().map(read_listed_task).collect())),
            EVACUATION => text(value.text_of("value")),
            PARTIAL_MAINTENANCE => decode::partial_maintenance(value).map(Self::Text),
            _ => text(Some(value.text())),
        }
    }

    /// The passthrough devices of a VM.
    pub(crate) fn devices(&self) -> Option<&[DecodedDevice]> {
        Some(&self.hardware()?.passthrough)
    }

    pub(crate) fn morefs(&self) -> &[Moref] {
        let Self::Morefs(morefs) = self else { return &[] };
        morefs
    }
}

/// Accessors: the content of a value of that kind.
macro_rules! accessors {
    ($($name:ident: $kind:ident -> $held:ty;)*) => {
        impl Value {
            $(pub(crate) fn $name(&self) -> Option<&$held> {
                let Self::$kind(held) = self else { return None };
                Some(held)
            })*
        }
    };
}

accessors! {
    text: Text -> str;
    moref: Moref -> Moref;
    hardware: Hardware -> Hardware;
    active_devices: ActiveDevices -> ActiveDevices;
    pci_devices: PciDevices -> [(String, PciIds)];
    bindings: Bindings -> BTreeMap<VmRef, Option<BTreeSet<String>>>;
    vgpu_profiles: VgpuProfiles -> BTreeSet<VgpuProfile>;
    shared_gpus: SharedGpus -> [u64];
    inaccessible_on: InaccessibleOn -> BTreeSet<HostRef>;
    cluster: Cluster -> ClusterConfig;
    fields: Fields -> [NamedField];
    custom_values: CustomValues -> BTreeMap<i32, String>;
    fault: Fault -> Fault;
    findings: Findings -> CheckFindings;
    tasks: Tasks -> [Result<ObjectProperties, Unreadable>];
}

/// One page of `RetrievePropertiesEx`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) objects: Vec<ObjectProperties>,
    /// Token of the next page; absent on the last one.
    pub(crate) token: Option<String>,
    pub(crate) unreadable: Vec<Unreadable>,
    /// In bytes.
    pub(crate) size: usize,
}

/// An object of a reply that cannot be read, unlike the others of the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// The reference, if readable.
    pub(crate) moref: Option<Moref>,
    pub(crate) why: String,
}

/// A reply of `WaitForUpdatesEx`.
#[derive(Clone, Debug)]
pub(crate) struct UpdateSet {
    /// The version to pass to the next call.
    pub(crate) version: String,
    /// The set is incomplete; the next call returns the rest at once.
    pub(crate) truncated: bool,
    pub(crate) changes: Vec<Change>,
    pub(crate) unreadable: Vec<Unreadable>,
}

/// The change of one object.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// The object was selected, or its properties changed.
    Upsert(ObjectProperties),
    /// The object is not selected any more, or does not exist.
    Gone(Moref),
}

/// Decodes a response of `RetrievePropertiesEx` or `ContinueRetrievePropertiesEx`. An object without a
/// reference, or with a nameless property, is returned as unreadable.
pub(crate) fn read_page(response: &Element<'_>) -> Result<Page, ReplyError> {
    let mut page = Page {
        size: response.size(),
        ..Page::default()
    };
    let value = response.child_of_any_space("returnval");
    for child in value.into_iter().flat_map(Element::children) {
        match child.name() {
            "token" => page.token = Some(child.text().to_owned()),
            "objects" => match read_object(child, "propSet") {
                Ok(object) => page.objects.push(object),
                Err(error) => page.unreadable.push(Unreadable::of(child, &error)),
            },
            _ => {}
        }
    }
    Ok(page)
}

/// Decodes a response of `WaitForUpdatesEx`; `None` means that nothing changed. A change of an unknown
/// kind, without a reference, or with a nameless property, is returned as unreadable.
///
/// # Errors
/// If the version is missing: the next call needs it.
pub(crate) fn read_update_set(response: &Element<'_>) -> Result<Option<UpdateSet>, ReplyError> {
    let Some(value) = response.child_of_any_space("returnval") else {
        return Ok(None);
    };
    let version = value.text_of("version").unwrap_or_default().to_owned();
    if version.is_empty() {
        return Err(ReplyError::value("UpdateSet.version", "a version"));
    }
    let mut set = UpdateSet {
        version,
        truncated: value.text_of("truncated") == Some("true"),
        changes: Vec::new(),
        unreadable: Vec::new(),
    };
    let filters = value.children().filter(|child| child.name() == "filterSet");
    for child in filters.flat_map(Element::children) {
        let change = match child.name() {
            "objectSet" => read_change(child).map(Some),
            "missingSet" => read_missing_object(child),
            _ => continue,
        };
        match change {
            Ok(change) => set.changes.extend(change),
            Err(error) => set.unreadable.push(Unreadable::of(child, &error)),
        }
    }
    Ok(Some(set))
}

fn read_change(update: &Element<'_>) -> Result<Change, ReplyError> {
    match update.text_of("kind") {
        Some("leave") => Ok(Change::Gone(object_ref(update)?)),
        Some("enter" | "modify") => Ok(Change::Upsert(read_object(update, "changeSet")?)),
        _ => Err(ReplyError::value("ObjectUpdate.kind", "enter, modify or leave")),
    }
}

/// Only an object that does not exist is gone; after another fault its state is unknown.
fn read_missing_object(missing: &Element<'_>) -> Result<Option<Change>, ReplyError> {
    let moref = object_ref(missing)?;
    let fault = missing.child("fault").map(fault::read_localized);
    let gone = fault.is_some_and(|fault| fault.kind == FaultKind::ManagedObjectNotFound);
    Ok(gone.then_some(Change::Gone(moref)))
}

impl Unreadable {
    fn of(element: &Element<'_>, error: &ReplyError) -> Self {
        let why = match element.breach() {
            Some(breach) => format!("{error} (it has {breach})"),
            None => error.to_string(),
        };
        Self {
            moref: object_ref(element).ok(),
            why,
        }
    }
}

fn object_ref(element: &Element<'_>) -> Result<Moref, ReplyError> {
    element
        .child("obj")
        .and_then(Element::moref)
        .ok_or_else(|| ReplyError::value("obj", "a managed object reference"))
}

/// Decodes an object whose properties are the elements `property`.
fn read_object(element: &Element<'_>, property: &str) -> Result<ObjectProperties, ReplyError> {
    let mut object = ObjectProperties {
        moref: object_ref(element)?,
        missing: Vec::new(),
        properties: Vec::new(),
    };
    for child in element.children() {
        let named = |name: &str| child.text_of(name).unwrap_or_default().to_owned();
        let (path, fault) = match child.name() {
            name if name == property => (named("name"), None),
            "missingSet" => (named("path"), child.child("fault")),
            _ => continue,
        };
        match (child.breach(), fault) {
            (Some(breach), _) => object.missing.push((path, beyond(breach))),
            (None, Some(fault)) => object.missing.push((path, fault::read_localized(fault))),
            (None, None) if child.name() == property => {
                let value = read_property(&path, child);
                object.properties.push((path, value));
            }
            (None, None) => {}
        }
    }
    if element.breach().is_some() || object.has_nameless() {
        let what = format!("a property name of {}", object.moref);
        return Err(ReplyError::value(what, "a path"));
    }
    Ok(object)
}

fn read_property(path: &str, property: &Element<'_>) -> Option<Value> {
    let is_removed = matches!(property.text_of("op"), Some("remove" | "indirectRemove"));
    let value = property.child_of_any_space("val").filter(|_| !is_removed)?;
    Value::decode(path, value)
}

/// Decodes a `TaskInfo` as if its fields were properties of the task.
fn read_listed_task(info: &Element<'_>) -> Result<ObjectProperties, Unreadable> {
    let moref = info.child("task").and_then(Element::moref);
    let unreadable = |why: String| Unreadable {
        moref: moref.clone(),
        why,
    };
    if let Some(breach) = info.breach() {
        return Err(unreadable(format!("it has {breach}")));
    }
    let Some(task) = moref.clone() else {
        return Err(unreadable(
            ReplyError::value("TaskInfo.task", "a Task").to_string(),
        ));
    };
    let fields = info.children().filter(|field| TASK_INFO.contains(&field.name()));
    let properties = fields.map(|field| {
        let path = format!("info.{}", field.name());
        let value = Value::decode(&path, field);
        (path, value)
    });
    Ok(ObjectProperties {
        moref: task,
        missing: Vec::new(),
        properties: properties.collect(),
    })
}

/// The fault for a value that exceeds a limit; it is treated like one without permission.
fn beyond(breach: LimitBreach) -> Fault {
    let message = format!("the value cannot be read: it has {breach}");
    Fault::new(FaultKind::Unreadable, message)
}

/// Whether the reply is that of a dead session: a read needs no session (`System.Anonymous`), so every
/// property is reported as missing with `NotAuthenticated`.
pub(crate) fn is_of_dead_session<'a>(objects: impl IntoIterator<Item = &'a ObjectProperties>) -> bool {
    let is_withheld = |object: &ObjectProperties| {
        let mut missing = object.missing.iter();
        object.properties.is_empty()
            && !object.missing.is_empty()
            && missing.all(|(_, fault)| fault.kind == FaultKind::NotAuthenticated)
    };
    let mut objects = objects.into_iter().peekable();
    objects.peek().is_some() && objects.all(is_withheld)
}
