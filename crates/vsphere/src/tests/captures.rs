//! The captures beside `proto-notes/`: a note that is wrong about the wire fails here.

use crate::fault::FaultKind;
use crate::moref::Moref;
use crate::property::{
    Change, ObjectProperties, Page, UpdateSet, Value, is_of_dead_session, read_page, read_update_set,
};
use crate::session::choose_version;
use crate::soap::{self, SoapAnswer, read_answer, returned_moref};
use crate::survey;
use crate::task::{self, TaskInfo};
use crate::update::{
    Claim, ClaimedDevice, DrsBehavior, HostSurvey, Passthrough, PowerState, TaskState, VsphereUpdate,
};
use crate::updates::property_cache::PropertyCache;
use haulout_core::ids::{HostRef, TaskRef, VmRef};

macro_rules! capture {
    ($name:literal) => {
        include_bytes!(concat!("../../../../proto-notes/captures/", $name, ".xml")).as_slice()
    };
}
pub(super) use capture;

fn page(bytes: &[u8]) -> Page {
    match read_answer("RetrievePropertiesEx", bytes, read_page).unwrap() {
        SoapAnswer::Returned(page) => page,
        SoapAnswer::Fault { fault, .. } => panic!("{fault}"),
    }
}

fn set(bytes: &[u8]) -> Option<UpdateSet> {
    match read_answer("WaitForUpdatesEx", bytes, read_update_set).unwrap() {
        SoapAnswer::Returned(set) => set,
        SoapAnswer::Fault { fault, .. } => panic!("{fault}"),
    }
}

fn fault(method: &str, bytes: &[u8]) -> (crate::fault::Fault, Option<PowerState>) {
    match read_answer(method, bytes, soap::nothing).unwrap() {
        SoapAnswer::Fault { fault, existing } => (fault, existing),
        SoapAnswer::Returned(()) => panic!("no fault"),
    }
}

fn task(bytes: &[u8]) -> TaskInfo {
    task::read_task(&page(bytes).objects[0], None).unwrap()
}

fn vm(bytes: &[u8]) -> (ObjectProperties, VsphereUpdate) {
    let object = page(bytes).objects.remove(0);
    let mut cache = PropertyCache::default();
    cache.set_ours([object.moref.vm().unwrap()].into());
    cache.apply(vec![Change::Upsert(object.clone())]);
    (object, cache.take_updates().remove(0))
}

#[test]
fn the_newest_version_both_sides_know_is_chosen() {
    assert_eq!(choose_version(capture!("versions")).unwrap(), "8.0.3.0");
    let newer = br#"<namespaces><namespace><name>urn:vim25</name><version>11.0.0.0</version>
        <priorVersions><version>10.0</version><version>8.0.1.0</version><version>7.0</version></priorVersions></namespace></namespaces>"#;
    assert_eq!(choose_version(newer).unwrap(), "8.0.1.0");
    assert!(choose_version(b"<namespaces/>").is_err());
}

#[test]
fn refused_login_and_dead_session_differ() {
    let (refused, _) = fault("Login", capture!("login-refused"));
    assert_eq!(refused.kind, FaultKind::InvalidLogin);
    let (dead, _) = fault("CreatePropertyCollector", capture!("dead-session-call"));
    assert_eq!(dead.kind, FaultKind::NotAuthenticated);
    assert!(dead.message.contains("System.View"), "{dead}");
    let (dead, _) = fault("WaitForUpdatesEx", capture!("dead-session-wait"));
    assert_eq!(dead.kind, FaultKind::NotAuthenticated);
}

#[test]
fn read_in_a_dead_session_reports_all_as_missing() {
    let dead = page(capture!("dead-session-read"));
    assert!(is_of_dead_session(&dead.objects));
    assert!(!is_of_dead_session(&page(capture!("vm-dynamic")).objects));
    assert!(
        !is_of_dead_session(&[]),
        "nothing found is not the same as nothing shown"
    );
}

#[test]
fn missing_session_object_ends_the_session() {
    let (fault_of_view, _) = fault("DestroyView", capture!("session-object-not-found"));
    let view = Moref::new(
        "ContainerView",
        "session[00000000-0000-0000-0000-000000000000]52f0",
    );
    assert!(crate::fault::ends_session(&fault_of_view, &view));
    assert!(
        !fault_of_view.message.contains("session[0000"),
        "the key may be the cookie: {fault_of_view}"
    );
    let (fault_of_vm, _) = fault("PowerOffVM_Task", capture!("object-not-found"));
    assert!(!crate::fault::ends_session(
        &fault_of_vm,
        &Moref::new("VirtualMachine", "vm-99999")
    ));
    assert_eq!(fault_of_vm.kind, FaultKind::ManagedObjectNotFound);
}

#[test]
fn empty_poll_reply_is_none_and_cancelled_poll_a_fault() {
    assert!(set(capture!("nothing-happened")).is_none());
    let (fault, _) = fault("WaitForUpdatesEx", capture!("wait-cancelled"));
    assert_eq!(fault.kind, FaultKind::RequestCanceled);
}

#[test]
fn truncated_set_is_marked_and_page_has_a_token() {
    assert!(set(capture!("hosts-truncated")).unwrap().truncated);
    assert!(!set(capture!("hosts-first-set")).unwrap().truncated);
    let page = page(capture!("page-with-token"));
    assert_eq!(page.objects.len(), 2);
    assert!(page.token.is_some());
}

#[test]
fn host_is_entering_until_the_task_is_cancelled() {
    let mut cache = PropertyCache::default();
    cache.apply(set(capture!("hosts-first-set")).unwrap().changes);
    let first = cache.take_updates();
    let hosts = first
        .iter()
        .filter(|update| matches!(update, VsphereUpdate::Host(_)));
    assert_eq!(hosts.count(), 3);
    cache.apply(set(capture!("entering")).unwrap().changes);
    let entering = cache.take_updates();
    let [VsphereUpdate::Host(host)] = entering.as_slice() else {
        panic!("{entering:?}");
    };
    assert_eq!(
        host.in_maintenance,
        Some(false),
        "the flag is not set while a host is entering"
    );
    let click = host.entering.as_ref().unwrap();
    assert_eq!(click.user.as_deref(), Some("operator"));
    let devices = host.passthrough.clone().unwrap();
    assert_eq!(devices.len(), 1);
    assert_eq!((devices[0].ids.vendor, devices[0].ids.device), (0x10de, 0x20b5));
    cache.apply(set(capture!("entering-cancelled")).unwrap().changes);
    let cancelled = cache.take_updates();
    let [VsphereUpdate::Host(host)] = cancelled.as_slice() else {
        panic!("{cancelled:?}");
    };
    assert_eq!(host.entering, None);
}

#[test]
fn task_that_has_ended_does_not_run_again() {
    let mut cache = PropertyCache::default();
    for bytes in [
        capture!("hosts-first-set"),
        capture!("entering"),
        capture!("entering-cancelled"),
    ] {
        cache.apply(set(bytes).unwrap().changes);
    }
    cache.take_updates();
    // The report of another filter is late.
    cache.apply(set(capture!("entering")).unwrap().changes);
    let updates = cache.take_updates();
    assert!(
        !updates
            .iter()
            .any(|update| matches!(update, VsphereUpdate::Host(host) if host.entering.is_some())),
        "{updates:?}"
    );
}

/// The same task, reported as successful.
fn task_succeeded() -> Vec<Change> {
    let running = String::from_utf8(capture!("entering").to_vec()).unwrap();
    let ended = running.replace(">running</val>", ">success</val>");
    assert_ne!(ended, running);
    let tasks = set(ended.as_bytes()).unwrap().changes.into_iter();
    tasks
        .filter(|change| matches!(change, Change::Upsert(object) if object.moref.task().is_some()))
        .collect()
}

/// An object with paths and values; an empty value is unset.
fn reported(moref: &Moref, properties: &[(&str, &str)]) -> ObjectProperties {
    let property = |(path, value): &(&str, &str)| match *value {
        "" => format!("<changeSet><name>{path}</name><op>assign</op></changeSet>"),
        value => format!("<changeSet><name>{path}</name><op>assign</op><val>{value}</val></changeSet>"),
    };
    let properties: String = properties.iter().map(property).collect();
    let updates = format!(
        r#"<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body><WaitForUpdatesExResponse xmlns="urn:vim25">
           <returnval><version>1</version><filterSet><objectSet><kind>modify</kind><obj type="{}">{}</obj>{properties}</objectSet></filterSet></returnval>
           </WaitForUpdatesExResponse></s:Body></s:Envelope>"#,
        moref.kind, moref.value
    );
    match set(updates.as_bytes()).unwrap().changes.remove(0) {
        Change::Upsert(object) => object,
        Change::Gone(moref) => panic!("{moref} is gone"),
    }
}

/// The host of the maintenance task.
fn host_reported(in_maintenance: bool) -> ObjectProperties {
    let properties = [
        ("runtime.inMaintenanceMode", &*in_maintenance.to_string()),
        ("recentTask", ""),
    ];
    reported(&Moref::from(&HostRef::new("host-35")), &properties)
}

#[test]
fn host_is_entering_until_it_reports_maintenance() {
    let entered = || {
        let mut cache = PropertyCache::default();
        cache.apply(set(capture!("hosts-first-set")).unwrap().changes);
        cache.apply(set(capture!("entering")).unwrap().changes);
        cache.take_updates();
        cache.begin_reread();
        cache.apply(task_succeeded());
        assert_eq!(cache.take_updates(), [], "no update is sent yet");
        cache
    };
    let updates = |cache: &mut PropertyCache| {
        let updates = cache.take_updates();
        let [VsphereUpdate::Host(host)] = updates.as_slice() else {
            panic!("{updates:?}")
        };
        (host.in_maintenance, host.entering.is_some())
    };
    let mut cache = entered();
    cache.apply(vec![Change::Upsert(host_reported(true))]);
    assert_eq!(updates(&mut cache), (Some(true), false));

    // The host entered and left maintenance unseen: a re-read that began after the end of the task
    // shows it.
    let mut cache = entered();
    cache.merge_reread(&[host_reported(false)]);
    assert_eq!(
        cache.take_updates(),
        [],
        "this re-read began before the end of the task"
    );
    cache.begin_reread();
    cache.merge_reread(&[host_reported(false)]);
    assert_eq!(updates(&mut cache), (Some(false), false));
}

#[test]
fn reread_keeps_newer_state_and_ends_unlisted_tasks() {
    let entering = set(capture!("entering")).unwrap().changes;
    let host = entering.iter().find_map(|change| match change {
        Change::Upsert(object) => object.moref.host(),
        Change::Gone(_) => None,
    });
    let host = host.unwrap_or_else(|| HostRef::new("host-17"));
    let without_tasks = reported(&Moref::from(&host), &[("recentTask", "")]);
    let mut cache = PropertyCache::default();
    cache.apply(set(capture!("hosts-first-set")).unwrap().changes);
    cache.take_updates();
    cache.begin_reread();
    cache.apply(entering);
    assert_eq!(cache.take_updates().len(), 1);
    cache.merge_reread(std::slice::from_ref(&without_tasks));
    assert_eq!(
        cache.take_updates(),
        [],
        "the stream reported the click after the re-read began"
    );
    cache.begin_reread();
    cache.merge_reread(&[without_tasks]);
    let over = cache.take_updates();
    assert!(
        matches!(over.as_slice(), [VsphereUpdate::Host(host)] if host.entering.is_none()),
        "{over:?}"
    );
}

/// A re-read leaves out what is unset, and names what may not be read.
#[test]
fn omitted_recent_tasks_are_none_unless_denied() {
    let denied = r#"<missingSet><path>recentTask</path><fault><fault xsi:type="NoPermission"/><localizedMessage/></fault></missingSet>"#;
    for (missing, is_over) in [("", true), (denied, false)] {
        let mut cache = PropertyCache::default();
        cache.apply(set(capture!("hosts-first-set")).unwrap().changes);
        cache.apply(set(capture!("entering")).unwrap().changes);
        cache.take_updates();
        cache.begin_reread();
        let read = page(
            format!(
                r#"<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><s:Body>
                   <RetrievePropertiesExResponse xmlns="urn:vim25"><returnval><objects><obj type="HostSystem">host-35</obj>
                   <propSet><name>runtime.inMaintenanceMode</name><val>false</val></propSet>{missing}</objects></returnval>
                   </RetrievePropertiesExResponse></s:Body></s:Envelope>"#
            )
            .as_bytes(),
        );
        cache.merge_reread(&read.objects);
        let updates = cache.take_updates();
        let ended = matches!(updates.as_slice(), [VsphereUpdate::Host(host)] if host.entering.is_none());
        assert_eq!(ended, is_over, "{updates:?}");
    }
}

fn vm_reported(power: &str) -> ObjectProperties {
    reported(
        &Moref::from(&VmRef::new("vm-7")),
        &[("runtime.powerState", power)],
    )
}

#[test]
fn late_poll_reply_does_not_undo_a_reread() {
    let powers = |cache: &mut PropertyCache| -> Vec<Option<PowerState>> {
        let updates = cache.take_updates().into_iter();
        let updates = updates.filter_map(|update| {
            let VsphereUpdate::Vm(vm) = update else {
                return None;
            };
            Some(vm.power)
        });
        updates.collect()
    };
    let mut cache = PropertyCache::default();
    cache.set_ours([VmRef::new("vm-7")].into());
    cache.apply(vec![Change::Upsert(vm_reported("poweredOff"))]);
    cache.poll_caught_up();
    assert_eq!(powers(&mut cache), [Some(PowerState::Off)]);
    cache.begin_reread();
    cache.merge_reread(&[vm_reported("poweredOn")]);
    assert_eq!(powers(&mut cache), [Some(PowerState::On)]);

    // The reply to the pending poll is older than the power-on.
    cache.apply(vec![Change::Upsert(vm_reported("poweredOff"))]);
    cache.poll_caught_up();
    assert_eq!(powers(&mut cache), [], "a VM that is on does not look off");

    // The next reply is newer.
    cache.apply(vec![Change::Upsert(vm_reported("poweredOff"))]);
    assert_eq!(powers(&mut cache), [Some(PowerState::Off)]);
}

#[test]
fn vms_are_read_with_their_devices() {
    let (_, dynamic) = vm(capture!("vm-dynamic"));
    let VsphereUpdate::Vm(dynamic) = dynamic else {
        panic!("{dynamic:?}")
    };
    assert_eq!(
        (dynamic.name.as_deref(), dynamic.power),
        (Some("gpu-1"), Some(PowerState::On))
    );
    let Some([Passthrough::Dynamic(requirement)]) = dynamic.passthrough.as_deref() else {
        panic!("{dynamic:?}")
    };
    let allowed: Vec<_> = requirement
        .allowed
        .iter()
        .map(|it| (it.vendor, it.device))
        .collect();
    assert_eq!(allowed, [(0x10de, 0x20b5)]);
    assert_eq!(requirement.label, None);
    assert!(!dynamic.evacuation_power_off);
    let (_, fixed) = vm(capture!("vm-static"));
    let VsphereUpdate::Vm(fixed) = fixed else {
        panic!("{fixed:?}")
    };
    assert!(fixed.evacuation_power_off);
    assert!(
        matches!(fixed.passthrough.as_deref(), Some([Passthrough::Static { address, vendor: 0x10de, .. }]) if address == "0000:3b:00.0"),
        "{fixed:?}"
    );
}

#[test]
fn cluster_drs_settings_are_read() {
    let objects = page(capture!("cluster")).objects;
    let config = objects[0]
        .get("configurationEx")
        .and_then(Value::cluster)
        .unwrap();
    let drs = config.drs.as_ref().unwrap();
    assert_eq!((drs.enabled, drs.behavior), (true, DrsBehavior::FullyAutomated));
    let (vm, own) = drs.overrides.iter().next().unwrap();
    assert_eq!(own.behavior, Some(DrsBehavior::Manual));
    assert!(!drs.fully_automated_for(vm) && drs.fully_automated_for(&VmRef::new("vm-1")));
}

#[test]
fn survey_lists_held_devices_and_unreadable_vms() {
    let objects = page(capture!("survey")).objects;
    let host = objects.iter().find_map(|object| object.moref.host()).unwrap();
    let surveyed = survey::survey(std::slice::from_ref(&host), &objects);
    assert!(
        matches!(surveyed[&host].claims(), [Claim { device: ClaimedDevice::Address(address), .. }] if address.starts_with("0000:"))
    );
    let text = std::str::from_utf8(capture!("survey")).unwrap();
    let withheld = text.replace("config.hardware.device", "config.hardware.memoryMB");
    let surveyed = survey::survey(std::slice::from_ref(&host), &page(withheld.as_bytes()).objects);
    assert!(matches!(surveyed[&host], HostSurvey::Unreadable(_)));
}

#[test]
fn tasks_are_returned_and_end() {
    let off = read_answer("PowerOffVM_Task", capture!("power-off"), returned_moref);
    let SoapAnswer::Returned(off) = off.unwrap() else {
        panic!("a fault");
    };
    assert!(off.task().is_some());
    let off = task(capture!("task-power-off"));
    assert_eq!(
        (&*off.description_id, &off.state),
        ("VirtualMachine.powerOff", &TaskState::Success)
    );
    assert_eq!(
        task(capture!("task-relocate")).description_id,
        "VirtualMachine.relocate"
    );
    assert_eq!(task(capture!("task-power-on-drs")).state, TaskState::Success);
    assert_ne!(off.moref, TaskRef::new("task-0"));
}

#[test]
fn what_is_made_or_started_is_returned_by_reference() {
    for (method, bytes, kind) in [
        ("CreateContainerView", capture!("container-view"), "ContainerView"),
        ("PowerOffVM_Task", capture!("power-off-again"), "Task"),
        ("PowerOnMultiVM_Task", capture!("power-on-drs"), "Task"),
        ("RelocateVM_Task", capture!("relocate"), "Task"),
    ] {
        let SoapAnswer::Returned(moref) = read_answer(method, bytes, returned_moref).unwrap() else {
            panic!("{method}: a fault");
        };
        assert_eq!(
            (&*moref.kind, moref.is_of_session()),
            (kind, kind == "ContainerView")
        );
    }
    assert!(
        page(capture!("vm-unknown")).objects.is_empty(),
        "it does not exist, and fails nothing else"
    );
    assert_eq!(page(capture!("datacenter")).objects[0].moref.kind, "Datacenter");
}

#[test]
fn an_off_vm_refuses_in_the_task_or_at_once() {
    let TaskState::Error(refused) = task(capture!("task-power-off-again")).state else {
        panic!("no error");
    };
    assert_eq!(refused.kind, FaultKind::InvalidPowerState);
    let (at_once, existing) = fault("ShutdownGuest", capture!("shutdown-guest-off"));
    assert_eq!(
        (at_once.kind, existing),
        (FaultKind::InvalidPowerState, Some(PowerState::Off))
    );
}

#[test]
fn drs_recommendation_is_not_a_started_vm() {
    let TaskState::Error(recommended) = task(capture!("task-power-on-drs-manual")).state else {
        panic!("no error");
    };
    assert_eq!(recommended.kind, FaultKind::OnlyRecommended);
}

#[test]
fn missing_privileges_are_named() {
    let reply = br#"<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/"><e:Body><e:Fault><faultcode>ServerFaultCode</faultcode>
        <faultstring>Permission to perform this operation was denied.</faultstring><detail><NoPermissionFault xmlns="urn:vim25"
        xmlns:x="http://www.w3.org/2001/XMLSchema-instance" x:type="NoPermission"><object type="VirtualMachine">vm-36</object>
        <privilegeId>VirtualMachine.Interact.PowerOff</privilegeId></NoPermissionFault></detail></e:Fault></e:Body></e:Envelope>"#;
    let (denied, _) = fault("PowerOffVM_Task", reply);
    assert_eq!(denied.kind, FaultKind::NoPermission);
    assert!(
        denied.message.contains("VirtualMachine.Interact.PowerOff") && denied.message.contains("vm-36"),
        "{denied}"
    );
}

#[test]
fn lookup_returns_all_matches() {
    for (bytes, count) in [
        (capture!("find-all-by-uuid"), 1),
        (capture!("find-all-by-uuid-none"), 0),
    ] {
        let SoapAnswer::Returned(found) = read_answer("FindAllByUuid", bytes, soap::returned_morefs).unwrap()
        else {
            panic!("a fault");
        };
        assert_eq!(found.len(), count);
    }
}
