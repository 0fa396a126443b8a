//! The properties of the stream. One entry says where a property is, when it is read and what it sets.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::facts::HostProperties;
use crate::decode;
use crate::moref::Moref;
use crate::property::{DEVICES, EVACUATION, PARTIAL_MAINTENANCE, Value};
use crate::text;
use crate::update::{Compute, DatastoreState, Vm};
use haulout_core::ids::{DatastoreRef, VmUuid};

use ReadBy::{DeviceFilter, Filter, FilterAndReread, IfKnown};

/// A property of an object that is read into a `T`.
pub(super) struct Property<T: 'static> {
    /// The path in the API.
    pub(super) path: &'static str,
    pub(super) read: ReadBy,
    /// Sets the value; `None` if it is unset or unreadable.
    set: fn(&mut T, Option<&Value>),
}

/// Which requests name a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadBy {
    /// The filter of all objects.
    Filter,
    /// The same, and the re-read: the API does not guarantee that `recentTask` is pushed.
    FilterAndReread,
    /// The filter of hosts that could take one of our VMs. These properties are most of a host's bytes.
    DeviceFilter,
    /// The filter of all objects, where vCenter knows the property. A filter with an unknown property is refused as a whole.
    IfKnown,
}

impl<T> Property<T> {
    const fn of(path: &'static str, read: ReadBy, set: fn(&mut T, Option<&Value>)) -> Self {
        Self { path, read, set }
    }
}

/// The paths of the properties that are read by one of `by`.
pub(super) fn paths<T>(properties: &[Property<T>], by: &[ReadBy]) -> Vec<&'static str> {
    let read = properties.iter().filter(|property| by.contains(&property.read));
    read.map(|property| property.path).collect()
}

/// Sets the property at `path`. One that was not requested says nothing.
pub(super) fn set<T>(object: &mut T, properties: &[Property<T>], path: &str, value: Option<&Value>) {
    if let Some(property) = properties.iter().find(|property| property.path == path) {
        (property.set)(object, value);
    }
}

pub(super) const HOST: &[Property<HostProperties>] = &[
    Property::of("name", Filter, |host, value| host.name = name(value)),
    Property::of("parent", Filter, |host, value| {
        host.compute = value.and_then(Value::moref).and_then(Moref::compute);
    }),
    Property::of("runtime.connectionState", FilterAndReread, |host, value| {
        host.connection = text(value).and_then(decode::connection);
    }),
    Property::of("runtime.inMaintenanceMode", FilterAndReread, |host, value| {
        host.in_maintenance = boolean(value);
    }),
    Property::of("runtime.inQuarantineMode", FilterAndReread, |host, value| {
        host.in_quarantine = boolean(value);
    }),
    Property::of("summary.config.product.build", Filter, |host, value| {
        host.build = text(value).and_then(|build| build.parse().ok());
    }),
    // Tasks are objects of their own.
    Property::of("recentTask", FilterAndReread, |_, _| {}),
    Property::of("datastore", Filter, |host, value| {
        host.datastores = datastores(value)
    }),
    Property::of(PARTIAL_MAINTENANCE, IfKnown, |host, value| {
        host.partial_maintenance = text(value).map(text::for_people);
    }),
    Property::of("config.pciPassthruInfo", DeviceFilter, |host, value| {
        host.set_active(value.and_then(Value::active_devices));
    }),
    Property::of("hardware.pciDevice", DeviceFilter, |host, value| {
        host.set_devices(value.and_then(Value::pci_devices));
    }),
];

pub(super) const VM: &[Property<Vm>] = &[
    Property::of("name", Filter, |vm, value| vm.name = name(value)),
    Property::of("config.uuid", Filter, |vm, value| {
        vm.uuid = text(value).and_then(VmUuid::parse);
    }),
    Property::of("config.template", Filter, |vm, value| {
        vm.template = boolean(value).unwrap_or(false);
    }),
    Property::of(DEVICES, Filter, |vm, value| {
        let devices = value.and_then(Value::devices);
        vm.passthrough = devices.map(|devices| devices.iter().map(|device| device.what.clone()).collect());
    }),
    Property::of("config.hardware.memoryMB", Filter, |vm, value| {
        vm.memory_mib = text(value).and_then(|mib| mib.parse().ok());
    }),
    Property::of("config.version", Filter, |vm, value| {
        vm.hardware_version = text(value).map(decode::hardware_version);
    }),
    Property::of("runtime.powerState", FilterAndReread, |vm, value| {
        vm.power = text(value).and_then(decode::power);
    }),
    Property::of("runtime.host", FilterAndReread, |vm, value| {
        vm.host = value.and_then(Value::moref).and_then(Moref::host);
    }),
    Property::of("runtime.question", Filter, |vm, value| {
        vm.question = text(value).map(text::for_people);
    }),
    Property::of("guest.toolsRunningStatus", Filter, |vm, value| {
        vm.tools_running = text(value).map(|text| text == "guestToolsRunning");
    }),
    Property::of("datastore", Filter, |vm, value| vm.datastores = datastores(value)),
    Property::of("network", Filter, |vm, value| {
        let morefs = value.map_or(&[][..], Value::morefs).iter();
        let unnamed = morefs.filter_map(Moref::network).map(|network| (network, None));
        vm.networks = Arc::new(unnamed.collect());
    }),
    // Tasks are objects of their own.
    Property::of("recentTask", FilterAndReread, |_, _| {}),
    Property::of(EVACUATION, IfKnown, |vm, value| {
        vm.evacuation_power_off = text(value).is_some_and(|mark| mark.eq_ignore_ascii_case("true"));
    }),
];

/// The datastores of our VMs.
pub(super) const DATASTORE: &[Property<DatastoreState>] = &[
    Property::of("name", Filter, |datastore, value| {
        datastore.name = name(value).map(Into::into);
    }),
    Property::of("summary.maintenanceMode", Filter, |datastore, value| {
        datastore.in_maintenance = text(value) == Some("inMaintenance");
    }),
    Property::of("host", Filter, |datastore, value| {
        let hosts = value.and_then(Value::inaccessible_on).cloned();
        datastore.inaccessible_on = hosts.unwrap_or_default();
    }),
];

/// The clusters of our VMs, and hosts without one.
pub(super) const COMPUTE: &[Property<Compute>] = &[
    Property::of("name", Filter, |compute, value| compute.name = name(value)),
    // `configuration.drsConfig` is deprecated, and a path below `configurationEx` is not valid on its declared type.
    Property::of("configurationEx", Filter, |compute, value| {
        let config = value.and_then(Value::cluster);
        compute.drs = config.and_then(|config| config.drs.clone());
        compute.rules = config.map(|config| Arc::clone(&config.rules)).unwrap_or_default();
    }),
];

fn text(value: Option<&Value>) -> Option<&str> {
    value.and_then(Value::text)
}

fn name(value: Option<&Value>) -> Option<String> {
    text(value).map(text::inventory_name)
}

fn boolean(value: Option<&Value>) -> Option<bool> {
    text(value).and_then(decode::boolean)
}

fn datastores(value: Option<&Value>) -> Arc<BTreeSet<DatastoreRef>> {
    let morefs = value.map_or(&[][..], Value::morefs);
    Arc::new(morefs.iter().filter_map(Moref::datastore).collect())
}
