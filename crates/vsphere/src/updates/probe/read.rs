//! Decodes what a probe reads. Nothing of it names an object.

use std::collections::BTreeSet;

use super::{InventoryTraits, ListedTask, ProductInfo, TaskOrigin};
use crate::decode;
use crate::fault;
use crate::moref::Moref;
use crate::property::{ObjectProperties, Value};
use crate::task;
use crate::update::{Passthrough, PowerState};
use crate::xml::Element;

/// Tasks on the page that is read once: half of what a history has at most. Without results it has half a MiB.
pub(super) const LISTED_TASKS: u32 = 500;
/// Different forms of an instance id that are kept. Two or three are expected.
const FORMS_MAX: usize = 8;
/// Characters of a version, build or setting that are kept. `8.0.3.00500-24322831` has 20.
const VERSION_MAX: usize = 40;
/// Characters of the form of an instance id that are kept.
const FORM_MAX: usize = 64;

pub(super) const BINDINGS: &str = "config.assignableHardwareBinding";
pub(super) const DEVICES: &str = "config.hardware.device";

/// What a version, build or number can be at the beginning of `text`.
pub(super) fn version(text: &str) -> String {
    let is_allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    text.chars().take_while(is_allowed).take(VERSION_MAX).collect()
}

pub(super) fn product(response: &Element<'_>, negotiated: String) -> ProductInfo {
    let about = response
        .child("returnval")
        .and_then(|content| content.child("about"));
    let text = |name: &str| {
        about
            .and_then(|about| about.text_of(name))
            .map(version)
            .unwrap_or_default()
    };
    ProductInfo {
        negotiated,
        api_version: text("apiVersion"),
        version: text("version"),
        build: text("build"),
        product_line: text("productLineId"),
    }
}

fn objects<'e, 't>(response: &'e Element<'t>) -> impl Iterator<Item = &'e Element<'t>> {
    let value = response.child_of_any_space("returnval").into_iter();
    value
        .flat_map(Element::children)
        .filter(|child| child.name() == "objects")
}

/// The properties `name` of the objects of a response, as elements with their value.
fn properties<'e, 't>(
    response: &'e Element<'t>,
    name: &'static str,
) -> impl Iterator<Item = &'e Element<'t>> {
    let all = objects(response).flat_map(|object| object.children_named("propSet"));
    all.filter(move |property| property.text_of("name") == Some(name))
}

/// The bytes of a result, and whether it is beyond a limit of the XML reader. `None` if it cannot be read, or the task is gone.
pub(super) fn result_size(response: &Element<'_>) -> Option<(usize, bool)> {
    let object = objects(response).next()?;
    if object.children_named("missingSet").next().is_some() {
        return None;
    }
    let Some(property) = properties(response, task::RESULT).next() else {
        return Some((0, false));
    };
    Some(match (property.breach(), property.child_of_any_space("val")) {
        (Some(_), _) => (property.size(), true),
        (None, value) => (value.map_or(0, Element::size), false),
    })
}

pub(super) fn listed_tasks(response: &Element<'_>) -> Vec<ListedTask> {
    let pages = properties(response, "latestPage").filter_map(|page| page.child_of_any_space("val"));
    let tasks = pages.flat_map(Element::children).take(LISTED_TASKS as usize);
    tasks.map(listed_task).collect()
}

fn listed_task(info: &Element<'_>) -> ListedTask {
    let origin = match info.child("reason").and_then(Element::xsi_type) {
        Some("TaskReasonUser") => TaskOrigin::User,
        Some("TaskReasonSystem") => TaskOrigin::System,
        Some("TaskReasonSchedule") => TaskOrigin::Schedule,
        Some("TaskReasonAlarm") => TaskOrigin::Alarm,
        Some(_) | None => TaskOrigin::Unknown,
    };
    ListedTask {
        description_id: version(info.text_of("descriptionId").unwrap_or_default()),
        origin,
        has_parent: info.text_of("parentTaskKey").is_some_and(|key| !key.is_empty()),
        is_cancelable: info.text_of("cancelable").and_then(decode::boolean) == Some(true),
        failed_with: info.child("error").map(|error| fault::read_localized(error).kind),
    }
}

/// What the instance ids of bindings look like.
#[derive(Debug, Default)]
pub(super) struct InstanceIds {
    pub(super) all: usize,
    pub(super) with_address: usize,
    pub(super) forms: BTreeSet<String>,
}

impl InstanceIds {
    pub(super) fn take(&mut self, response: &Element<'_>) {
        let values = properties(response, BINDINGS).filter_map(|property| property.child_of_any_space("val"));
        for id in values
            .flat_map(Element::children)
            .filter_map(|it| it.text_of("instanceId"))
        {
            self.all += 1;
            self.with_address += usize::from(decode::address_within(id).is_some());
            if self.forms.len() < FORMS_MAX {
                self.forms.insert(form(id));
            }
        }
    }
}

/// The form of an id, without its content.
fn form(id: &str) -> String {
    let masked = id.chars().take(FORM_MAX).map(|c| match c {
        c if c.is_ascii_hexdigit() => 'h',
        c if c.is_ascii_punctuation() || c == ' ' => c,
        _ => 'x',
    });
    masked.collect()
}

impl InventoryTraits {
    pub(super) fn count(&mut self, objects: &[ObjectProperties]) {
        let with_bindings = |host: &&ObjectProperties| {
            let bindings = host.get(BINDINGS).and_then(Value::bindings);
            bindings.is_some_and(|bindings| !bindings.is_empty())
        };
        let hosts = || objects.iter().filter(|object| object.moref.host().is_some());
        let bound: BTreeSet<_> = hosts()
            .filter_map(|host| host.get(BINDINGS).and_then(Value::bindings))
            .flat_map(|bindings| bindings.keys())
            .collect();
        let on_such_hosts: BTreeSet<&Moref> = hosts()
            .filter(with_bindings)
            .flat_map(|host| host.morefs("vm"))
            .collect();
        self.hosts = hosts().count();
        self.builds = hosts().filter_map(build).collect();
        for vm in objects.iter() {
            let Some(reference) = vm.moref.vm() else { continue };
            self.vms += 1;
            let state = vm.text("runtime.connectionState").unwrap_or_default();
            let is_inaccessible = matches!(state, "inaccessible" | "orphaned" | "invalid");
            let has_config = vm.get("config.uuid").is_some();
            self.inaccessible_vms += usize::from(is_inaccessible);
            self.inaccessible_with_config += usize::from(is_inaccessible && has_config);
            let Some(devices) = vm.get(DEVICES).and_then(Value::devices) else {
                self.unreadable_vms += 1;
                continue;
            };
            let power = vm.text("runtime.powerState").and_then(decode::power);
            if power != Some(PowerState::On) || !on_such_hosts.contains(&vm.moref) {
                continue;
            }
            let has = |is: fn(&Passthrough) -> bool| devices.iter().any(|device| is(&device.what));
            let is_static = has(|what| matches!(what, Passthrough::Static { .. }));
            let is_dynamic = has(|what| matches!(what, Passthrough::Dynamic(_)));
            let is_bound = bound.contains(&reference);
            self.static_vms += usize::from(is_static);
            self.static_vms_bound += usize::from(is_static && is_bound);
            self.dynamic_vms += usize::from(is_dynamic);
            self.dynamic_vms_bound += usize::from(is_dynamic && is_bound);
        }
    }
}

fn build(host: &ObjectProperties) -> Option<(Vec<u32>, u64)> {
    let parts = host
        .text("summary.config.product.version")?
        .split('.')
        .map(str::parse);
    let parts = parts.collect::<Result<Vec<u32>, _>>().ok()?;
    let build = host.text("summary.config.product.build")?.parse().ok()?;
    Some((parts, build))
}
