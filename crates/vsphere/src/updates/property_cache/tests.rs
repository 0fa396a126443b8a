//! What the cache keeps, what it forgets, and which updates follow.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::decode::ActiveDevices;
use crate::decode::cluster::ClusterConfig;
use crate::fault::Fault;
use crate::update::{Drs, DrsBehavior, EndOutcome, MaintenanceEnd, PciDevice, PciIds, TaskState};
use haulout_core::ids::{DatastoreRef, VmUuid};

/// The task that puts a host into maintenance.
pub(in crate::updates) const ENTERS: &str = "HostSystem.enterMaintenanceMode";
pub(in crate::updates) const POWERS_OFF: &str = "VirtualMachine.powerOff";

pub(in crate::updates) fn text(value: &str) -> Option<Value> {
    Some(Value::Text(value.to_owned()))
}

pub(in crate::updates) fn object(
    moref: &Moref,
    properties: impl IntoIterator<Item = (&'static str, Option<Value>)>,
) -> ObjectProperties {
    let properties = properties.into_iter();
    ObjectProperties {
        moref: moref.clone(),
        missing: Vec::new(),
        properties: properties.map(|(path, value)| (path.to_owned(), value)).collect(),
    }
}

pub(in crate::updates) fn host(name: &str) -> Moref {
    Moref::new("HostSystem", name)
}

pub(in crate::updates) fn vm(name: &str) -> Moref {
    Moref::new("VirtualMachine", name)
}

fn cluster(name: &str) -> Moref {
    Moref::new("ClusterComputeResource", name)
}

pub(in crate::updates) fn task_ref(name: &str) -> TaskRef {
    TaskRef::new(name)
}

/// A host in a cluster that is not in maintenance, with these tasks in its list.
pub(in crate::updates) fn host_in(name: &str, compute: &str, tasks: &[&str]) -> ObjectProperties {
    let tasks = tasks.iter().map(|task| Moref::from(&task_ref(task))).collect();
    object(
        &host(name),
        [
            ("parent", Some(Value::Moref(cluster(compute)))),
            ("runtime.inMaintenanceMode", text("false")),
            ("recentTask", Some(Value::Morefs(tasks))),
        ],
    )
}

pub(in crate::updates) fn vm_on(name: &str, of: &str, power: &str) -> ObjectProperties {
    let properties = [
        ("runtime.host", Some(Value::Moref(host(of)))),
        ("runtime.powerState", text(power)),
    ];
    object(&vm(name), properties)
}

/// A task with the properties that are read of each.
#[derive(Clone)]
pub(in crate::updates) struct Reported {
    pub(in crate::updates) name: &'static str,
    pub(in crate::updates) what: &'static str,
    pub(in crate::updates) entity: Moref,
    /// `error` fails with a timeout.
    pub(in crate::updates) state: &'static str,
    pub(in crate::updates) cancelled: bool,
    /// The second of the queue time.
    pub(in crate::updates) queued: u32,
}

impl Reported {
    pub(in crate::updates) fn entering(name: &'static str, of: &str, queued: u32) -> Self {
        Self {
            name,
            what: ENTERS,
            entity: host(of),
            state: "running",
            cancelled: false,
            queued,
        }
    }

    pub(in crate::updates) fn of_vm(name: &'static str, of: &str) -> Self {
        Self {
            what: POWERS_OFF,
            entity: vm(of),
            ..Self::entering(name, of, 0)
        }
    }

    pub(in crate::updates) fn is(&self, state: &'static str) -> Self {
        Self {
            state,
            ..self.clone()
        }
    }

    pub(in crate::updates) fn object(&self) -> ObjectProperties {
        let timed_out = Fault::new(FaultKind::Other("Timedout".to_owned()), "too late");
        let error = (self.state == "error").then_some(Value::Fault(timed_out));
        let properties = [
            ("info.descriptionId", text(self.what)),
            ("info.entity", Some(Value::Moref(self.entity.clone()))),
            ("info.state", text(self.state)),
            ("info.cancelled", text(&self.cancelled.to_string())),
            ("info.error", error),
            ("info.reason", text("VSPHERE.LOCAL\\Operator")),
            (
                "info.queueTime",
                text(&format!("2026-11-21T09:57:{:02}Z", self.queued)),
            ),
        ];
        object(&Moref::from(&task_ref(self.name)), properties)
    }
}

pub(in crate::updates) fn set(objects: impl IntoIterator<Item = ObjectProperties>) -> Vec<Change> {
    objects.into_iter().map(Change::Upsert).collect()
}

fn page(tasks: impl IntoIterator<Item = ObjectProperties>) -> ObjectProperties {
    let tasks = tasks.into_iter().map(Ok).collect();
    object(
        &Moref::new("TaskHistoryCollector", "session[1]history-1"),
        [("latestPage", Some(Value::Tasks(tasks)))],
    )
}

/// A cache with two hosts in cluster `domain-c1` and our VM `vm-1` on the first one.
fn cache() -> PropertyCache {
    let mut cache = PropertyCache::new(None);
    cache.set_ours([VmRef::new("vm-1")].into());
    cache.apply(set([
        host_in("host-1", "domain-c1", &[]),
        host_in("host-2", "domain-c1", &[]),
        vm_on("vm-1", "host-1", "poweredOn"),
    ]));
    cache.take_updates();
    cache
}

fn tasks_of(cache: &PropertyCache) -> Vec<&str> {
    let mut tasks: Vec<&str> = cache.tasks.keys().map(TaskRef::as_str).collect();
    tasks.sort_unstable();
    tasks
}

fn hosts_in(updates: &[VsphereUpdate]) -> impl Iterator<Item = &Host> {
    updates.iter().filter_map(|update| {
        let VsphereUpdate::Host(host) = update else {
            return None;
        };
        Some(host.as_ref())
    })
}

/// Combinations of `true` and `false`.
fn combinations<const N: usize>() -> impl Iterator<Item = [bool; N]> {
    (0..1_usize << N).map(|bits| std::array::from_fn(|n| (bits >> n) & 1 == 1))
}

#[test]
fn every_cached_object_counts_towards_the_limit() {
    let named = |kind: &'static str, count: usize| {
        (0..count).map(move |n| object(&Moref::new(kind, format!("{kind}-{n}")), []))
    };
    let mut cache = PropertyCache::new(None);
    assert_eq!((cache.size(), cache.known_before_reread().has_hosts), (0, false));
    let tasks = ["t-1", "t-2", "t-3", "t-4", "t-5"].map(|name| Reported::of_vm(name, "vm-1").object());
    cache.apply(set(named("ComputeResource", 3)
        .chain(named("VirtualMachine", 4))
        .chain(tasks)));
    assert_eq!((cache.size(), cache.known_before_reread().has_hosts), (12, false));
    cache.apply(set(named("HostSystem", 2)));
    assert_eq!((cache.size(), cache.known_before_reread().has_hosts), (14, true));
}

#[test]
fn tasks_of_vms_maintenance_tasks_and_awaited_tasks_are_kept() {
    for (what, entity, is_awaited, is_kept) in [
        (POWERS_OFF, vm("vm-9"), false, true),
        (ENTERS, host("host-1"), false, true),
        ("HostSystem.reconnect", host("host-1"), false, false),
        ("HostSystem.reconnect", host("host-1"), true, true),
        (
            "Datacenter.powerOnVm",
            Moref::new("Datacenter", "d"),
            false,
            false,
        ),
        ("Datacenter.powerOnVm", Moref::new("Datacenter", "d"), true, true),
    ] {
        let mut cache = cache();
        if is_awaited {
            cache.set_awaited([task_ref("task-1")].into());
        }
        let task = Reported {
            what,
            entity,
            ..Reported::entering("task-1", "host-1", 1)
        };
        cache.apply(set([task.object()]));
        assert_eq!(cache.tasks.len(), usize::from(is_kept), "{what} {is_awaited}");
    }
}

#[test]
fn ended_task_stays_ended_and_a_repeated_report_changes_nothing() {
    let running = Reported::of_vm("task-1", "vm-1");
    for (then, is_reported) in [("running", false), ("success", true)] {
        let mut cache = cache();
        cache.apply(set([running.object()]));
        assert_eq!(cache.take_updates().len(), 1);
        cache.begin_reread();
        cache.apply_history_page(&page([running.is(then).object()]));
        assert_eq!(cache.newer.has(&Moref::from(&task_ref("task-1"))), is_reported);
        assert_eq!(cache.take_updates().len(), usize::from(is_reported));
        cache.apply(set([running.object()]));
        assert!(cache.take_updates().is_empty());
    }
}

/// `PowerOnMultiVM_Task` succeeds even if it started nothing.
#[test]
fn success_of_an_awaited_task_of_a_datacenter_waits_for_its_result() {
    for state in ["running", "success", "error"] {
        for [is_awaited, of_datacenter, was_read] in combinations() {
            let mut cache = cache();
            let awaited = if is_awaited { &["task-1"][..] } else { &[] };
            cache.set_awaited(awaited.iter().map(|task| task_ref(task)).collect());
            let mut task = Reported::of_vm("task-1", "vm-1").is(state);
            if of_datacenter {
                task.entity = Moref::new("Datacenter", "datacenter-1");
            }
            match was_read {
                true => cache.apply_tasks_read(&[task.object()]),
                false => cache.apply(set([task.object()])),
            }
            let waits = state == "success" && is_awaited && of_datacenter && !was_read;
            let matters = is_awaited || !of_datacenter;
            let case = format!("{state} {is_awaited} {of_datacenter} {was_read}");
            assert_eq!(cache.has_tasks_to_read(), waits, "{case}");
            assert_eq!(cache.tasks.len(), usize::from(matters && !waits), "{case}");
            let to_read = cache.take_tasks_to_read().awaited;
            assert_eq!(to_read.contains(&task_ref("task-1")), waits, "{case}");
            assert!(!cache.has_tasks_to_read());
        }
    }
}

#[test]
fn each_maintenance_task_is_counted_once() {
    let mut cache = cache();
    let first = Reported::entering("task-1", "host-1", 1);
    let cancelled = Reported {
        cancelled: true,
        ..first.clone()
    };
    for (report, seen) in [
        (Reported::of_vm("task-9", "vm-1"), 0),
        (first.clone(), 1),
        (first.clone(), 1),
        (cancelled, 1),
        (first.is("success"), 1),
        (Reported::entering("task-2", "host-1", 2), 2),
        (Reported::entering("task-3", "host-2", 3).is("success"), 3),
    ] {
        cache.apply(set([report.object()]));
        assert_eq!(cache.maintenance_tasks_seen(), seen);
    }
}

#[test]
fn maintenance_tasks_are_followed_while_they_are_under_way() {
    for state in ["queued", "running", "success", "error"] {
        for of_vm in [false, true] {
            let mut cache = cache();
            let task = match of_vm {
                true => Reported::of_vm("task-1", "vm-1"),
                false => Reported::entering("task-1", "host-1", 1),
            };
            cache.apply(set([task.is("queued").object(), task.is(state).object()]));
            let is_followed = !of_vm && (state == "queued" || state == "running");
            assert_eq!(
                cache.followed().count(),
                usize::from(is_followed),
                "{state} {of_vm}"
            );
        }
    }
}

#[test]
fn standby_task_of_a_host_is_reported_while_it_is_under_way() {
    for state in ["queued", "running", "success", "error"] {
        let mut cache = cache();
        let task = Reported {
            what: "HostSystem.enterStandbyMode",
            ..Reported::entering("task-1", "host-1", 1)
        };
        cache.apply(set([task.is("queued").object()]));
        let standby = |cache: &mut PropertyCache| {
            let updates = cache.take_updates();
            let hosts = hosts_in(&updates);
            hosts
                .map(|host| (host.entering_standby.clone(), host.entering.is_some()))
                .collect::<Vec<_>>()
        };
        assert_eq!(standby(&mut cache), [(Some(task_ref("task-1")), false)]);
        cache.apply(set([task.is(state).object()]));
        let has_ended = state == "success" || state == "error";
        let after = has_ended.then_some((None, false));
        assert_eq!(standby(&mut cache), Vec::from_iter(after), "{state}");
        assert_eq!(cache.followed().count(), usize::from(!has_ended), "{state}");
        assert_eq!(last_end(&cache), None, "it is no maintenance");
    }
}

#[test]
fn standby_task_is_over_if_a_reread_finds_it_nowhere() {
    let mut cache = cache();
    let task = Reported {
        what: "HostSystem.enterStandbyMode",
        ..Reported::entering("task-1", "host-1", 1)
    };
    cache.apply(set([task.object()]));
    cache.take_updates();
    cache.begin_reread();
    cache.merge_reread(&[host_in("host-1", "domain-c1", &[])]);
    let updates = cache.take_updates();
    let over: Vec<_> = hosts_in(&updates)
        .map(|host| host.entering_standby.clone())
        .collect();
    assert_eq!(over, [None]);
}

fn is_entering(cache: &PropertyCache, name: &str) -> bool {
    cache.entering_tasks(&host(name)).next().is_some()
}

/// Task and host are reported independently, in either order.
#[test]
fn host_is_entering_after_the_success_of_a_task_that_was_seen_running() {
    for state in ["success", "error"] {
        for [was_running, of_vm, in_maintenance] in combinations() {
            let mut cache = cache();
            let task = match of_vm {
                true => Reported::of_vm("task-1", "vm-1"),
                false => Reported::entering("task-1", "host-1", 1),
            };
            if was_running {
                cache.apply(set([task.object()]));
            }
            let maintenance = text(if in_maintenance { "true" } else { "false" });
            let reported = object(&host("host-1"), [("runtime.inMaintenanceMode", maintenance)]);
            cache.apply(set([reported, task.is(state).object()]));
            let arrives = state == "success" && was_running && !of_vm && !in_maintenance;
            let case = format!("{state} {was_running} {of_vm} {in_maintenance}");
            assert_eq!(is_entering(&cache, "host-1"), arrives, "{case}");
            assert_eq!(cache.arriving.len(), usize::from(arrives), "{case}");
        }
    }
}

#[test]
fn host_in_maintenance_says_when_that_was_asked_for_while_its_task_is_listed() {
    let asked_at = |cache: &mut PropertyCache| {
        let updates = cache.take_updates();
        let last = hosts_in(&updates).last();
        last.and_then(|host| host.maintenance_asked_at)
    };
    let task = Reported::entering("task-1", "host-1", 7);
    let in_maintenance = |value| object(&host("host-1"), [("runtime.inMaintenanceMode", text(value))]);
    let mut cache = cache();
    // A stream that begins after the end of the task sees no more than this.
    cache.apply(set([in_maintenance("true"), task.is("success").object()]));
    let first = asked_at(&mut cache);
    assert!(first.is_some());
    let later = Reported::entering("task-2", "host-1", 9);
    cache.apply(set([later.is("error").object()]));
    assert_eq!(asked_at(&mut cache), None, "nothing has changed");
    cache.apply(set([in_maintenance("false")]));
    assert_eq!(asked_at(&mut cache), None);
    cache.apply(set([in_maintenance("true")]));
    assert_eq!(asked_at(&mut cache), first);
    cache.begin_reread();
    cache.merge_reread(&[in_maintenance("true"), host_in("host-2", "domain-c1", &[])]);
    assert_eq!(
        asked_at(&mut cache),
        None,
        "vCenter does not list the task any more"
    );
}

#[test]
fn arrival_of_one_host_does_not_end_that_of_another() {
    let mut cache = cache();
    for (task, of) in [("task-1", "host-1"), ("task-2", "host-2")] {
        let task = Reported::entering(task, of, 1);
        cache.apply(set([task.object(), task.is("success").object()]));
    }
    assert!(is_entering(&cache, "host-1") && is_entering(&cache, "host-2"));
    let in_maintenance = [("runtime.inMaintenanceMode", text("true"))];
    cache.apply(set([object(&host("host-1"), in_maintenance)]));
    assert!(!is_entering(&cache, "host-1") && is_entering(&cache, "host-2"));
}

/// The task of a host that is not part of this re-read keeps its arrival.
#[test]
fn reread_settles_the_arrivals_of_the_hosts_that_it_returns() {
    let mut cache = cache();
    for (task, of) in [("task-1", "host-1"), ("task-2", "host-2")] {
        let task = Reported::entering(task, of, 1);
        cache.apply(set([task.object(), task.is("success").object()]));
    }
    cache.begin_reread();
    let lists = host_in("host-1", "domain-c1", &["task-1", "task-2"]);
    let tasks = [("task-1", "host-1"), ("task-2", "host-2")]
        .map(|(task, of)| Reported::entering(task, of, 1).is("success").object());
    cache.merge_reread(&[&[lists], &tasks[..]].concat());
    assert!(!is_entering(&cache, "host-1") && is_entering(&cache, "host-2"));
}

fn last_end(cache: &PropertyCache) -> Option<(&str, bool)> {
    let (_, end) = cache.hosts[&HostRef::new("host-1")].last_end.as_ref()?;
    let is_cancelled = end.outcome == EndOutcome::Cancelled;
    Some((end.task.as_str(), is_cancelled))
}

#[test]
fn outcome_of_the_newest_maintenance_task_is_reported() {
    let first = Reported::entering("task-1", "host-1", 1);
    let second = Reported::entering("task-2", "host-1", 2);
    let same_time = Reported::entering("task-3", "host-1", 1);
    let other_host = Reported::entering("task-4", "host-2", 9);
    let of_vm = Reported::of_vm("task-5", "vm-1");
    let cancelled = Reported {
        cancelled: true,
        ..first.is("error")
    };
    let failed = |task: &Reported| task.is("error");
    for (case, reports, expected) in [
        (
            "failed",
            vec![first.clone(), failed(&first)],
            Some(("task-1", false)),
        ),
        (
            "cancelled, whatever the fault is",
            vec![first.clone(), cancelled],
            Some(("task-1", true)),
        ),
        ("never seen running", vec![failed(&first)], None),
        ("succeeded", vec![first.clone(), first.is("success")], None),
        ("not of a host", vec![of_vm.clone(), failed(&of_vm)], None),
        (
            "of another host",
            vec![other_host.clone(), failed(&other_host)],
            None,
        ),
        (
            "failed while a newer one is under way",
            vec![first.clone(), second.clone(), failed(&first)],
            None,
        ),
        (
            "failed before a newer one",
            vec![first.clone(), failed(&first), second.clone()],
            None,
        ),
        (
            "failed after a newer one",
            vec![first.clone(), second.clone(), failed(&second), failed(&first)],
            Some(("task-2", false)),
        ),
        (
            "succeeded after a newer one failed",
            vec![
                first.clone(),
                second.clone(),
                failed(&second),
                first.is("success"),
            ],
            Some(("task-2", false)),
        ),
        (
            "an older one is seen late",
            vec![second.clone(), failed(&second), first.clone()],
            Some(("task-2", false)),
        ),
        (
            "queued at the same time",
            vec![
                first.clone(),
                same_time.clone(),
                failed(&first),
                failed(&same_time),
            ],
            Some(("task-3", false)),
        ),
    ] {
        let mut cache = cache();
        cache.apply(set(reports.iter().map(Reported::object)));
        assert_eq!(last_end(&cache), expected, "{case}");
    }
}

#[test]
fn host_in_maintenance_has_no_earlier_end() {
    let mut cache = cache();
    let first = Reported::entering("task-1", "host-1", 1);
    cache.apply(set([first.object(), first.is("error").object()]));
    let ended = hosts_in(&cache.take_updates()).find_map(|host| host.last_end.clone());
    let message = "Timedout: too late".to_owned();
    assert_eq!(
        ended,
        Some(MaintenanceEnd {
            task: task_ref("task-1"),
            outcome: EndOutcome::Failed { message }
        })
    );
    for (value, is_kept) in [("false", true), ("true", false), ("false", false)] {
        let reported = object(&host("host-1"), [("runtime.inMaintenanceMode", text(value))]);
        cache.apply(set([reported]));
        assert_eq!(last_end(&cache).is_some(), is_kept);
    }
}

/// What follows from a row of the task history alone, and from its task.
#[test]
fn row_of_the_history_starts_nothing_until_its_task_is_read() {
    let of_ours = Reported::of_vm("task-1", "vm-1");
    let of_others = Reported::of_vm("task-1", "vm-2");
    let of_host = Reported::entering("task-1", "host-1", 1);
    let host_task = |what| Reported {
        what,
        ..of_host.clone()
    };
    let standby = host_task("HostSystem.enterStandbyMode");
    let exit = host_task("HostSystem.exitMaintenanceMode");
    let other = host_task("HostSystem.reconnect");
    for (case, task, is_read, updates) in [
        ("ours, running", of_ours.clone(), true, 1),
        ("ours, ended", of_ours.is("success"), false, 0),
        ("another VM's, running", of_others.clone(), false, 0),
        ("another VM's, ended", of_others.is("error"), false, 0),
        ("a host's, running", of_host.clone(), true, 1),
        ("a host's, queued", of_host.is("queued"), true, 1),
        ("a host's, ended", of_host.is("error"), false, 0),
        ("standby", standby, true, 1),
        ("the exit of a user", exit, true, 1),
        ("another of a host", other, false, 0),
    ] {
        let mut cache = cache();
        cache.apply(set([page([task.object()])]));
        assert_eq!(cache.take_updates(), [], "{case}: the row alone");
        assert_eq!((cache.tasks.len(), cache.followed().count()), (0, 0), "{case}");
        assert_eq!(cache.has_tasks_to_read(), is_read, "{case}");
        assert_eq!(cache.take_tasks_to_read().claimed.len(), usize::from(is_read));
        if is_read {
            cache.apply_tasks_read(&[task.object()]);
        }
        assert_eq!(cache.take_updates().len(), updates, "{case}: the task was read");
    }
    for known in [of_ours, of_others, of_host] {
        let mut cache = cache();
        cache.apply(set([known.object(), page([known.is("success").object()])]));
        assert!(cache.tasks[&task_ref("task-1")].has_ended());
    }
}

/// Real vCenters keep rows of tasks that are `queued` for years.
#[test]
fn row_whose_task_was_not_found_is_not_asked_for_again_while_it_is_on_the_page() {
    let stale = Reported::entering("task-1", "host-1", 1).is("queued");
    let other = Reported::entering("task-2", "host-2", 2);
    let mut cache = cache();
    let asked = |cache: &mut PropertyCache, rows: &[&Reported]| {
        cache.apply(set([page(rows.iter().map(|row| row.object()))]));
        let asked = cache.take_tasks_to_read().claimed;
        asked
            .iter()
            .map(|task| task.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(asked(&mut cache, &[&stale]), ["task-1"]);
    for _ in 0..3 {
        assert_eq!(asked(&mut cache, &[&stale]), [""; 0]);
    }
    assert_eq!(asked(&mut cache, &[&stale, &other]), ["task-2"]);
    assert_eq!(
        asked(&mut cache, &[&other]),
        [""; 0],
        "it left the page and is forgotten"
    );
    assert_eq!(asked(&mut cache, &[&stale]), ["task-1"]);
    assert_eq!(cache.take_updates(), []);
    // What the host itself lists counts, whatever the history said before.
    cache.apply(set([stale.object()]));
    assert!(is_entering(&cache, "host-1"));
}

#[test]
fn task_that_is_pushed_before_its_row_was_checked_is_not_read() {
    let task = Reported::entering("task-1", "host-1", 1);
    let mut cache = cache();
    cache.apply(set([page([task.object()]), task.object()]));
    assert!(!cache.has_tasks_to_read());
    assert!(is_entering(&cache, "host-1"));
}

/// A page has a hundred rows; a vCenter that sends more does not fill the memory.
#[test]
fn at_most_a_thousand_rows_are_checked() {
    let rows = (0..1_200).map(|n| {
        let mut row = Reported::entering("task-1", "host-1", 1).object();
        row.moref = Moref::from(&task_ref(&format!("task-{n}")));
        row
    });
    let mut cache = cache();
    cache.apply(set([page(rows)]));
    assert_eq!(cache.take_tasks_to_read().claimed.len(), 1_000);
}

/// Hosts list ended tasks for ten minutes, and a list says nothing about the state.
#[test]
fn task_that_left_its_lists_is_read_if_awaited_and_forgotten_if_of_a_vm() {
    let of_vm = Reported::of_vm("task-1", "vm-1");
    let of_host = Reported::entering("task-1", "host-1", 1);
    for (case, task, is_awaited, is_kept, is_read, is_gone) in [
        ("of a VM", Some(of_vm.clone()), false, false, false, true),
        (
            "of a VM, ended",
            Some(of_vm.is("error")),
            false,
            false,
            false,
            false,
        ),
        ("maintenance", Some(of_host.clone()), false, true, false, false),
        ("awaited", Some(of_vm.clone()), true, true, true, false),
        ("awaited maintenance", Some(of_host), true, true, true, false),
        (
            "awaited, ended",
            Some(of_vm.is("success")),
            true,
            true,
            false,
            false,
        ),
        ("awaited, never seen", None, true, false, true, false),
        ("never seen", None, false, false, false, false),
    ] {
        let mut cache = cache();
        if is_awaited {
            cache.set_awaited([task_ref("task-1")].into());
        }
        cache.apply(set(task.iter().map(Reported::object)));
        cache.take_updates();
        cache.apply(vec![Change::Gone(Moref::from(&task_ref("task-1")))]);
        let gone = is_gone.then(|| VsphereUpdate::TaskGone(task_ref("task-1")));
        assert_eq!(cache.take_updates(), Vec::from_iter(gone), "{case}");
        assert_eq!(cache.tasks.len(), usize::from(is_kept), "{case}");
        assert_eq!(cache.has_tasks_to_read(), is_read, "{case}");
        assert!(cache.sent.tasks.len() <= cache.tasks.len(), "{case}");
    }
}

/// The end of such a task was missed. It must not count as running for ever.
#[test]
fn running_task_of_a_vm_that_a_reread_finds_nowhere_is_gone() {
    for [is_listed, is_read, is_newer, is_awaited] in combinations() {
        let mut cache = cache();
        let awaited = is_awaited.then(|| task_ref("task-1"));
        cache.set_awaited(awaited.into_iter().collect());
        let task = Reported::of_vm("task-1", "vm-1");
        if !is_newer {
            cache.apply(set([task.object()]));
        }
        cache.begin_reread();
        if is_newer {
            cache.apply(set([task.object()]));
        }
        cache.take_updates();
        let mut vm = vm_on("vm-1", "host-1", "poweredOn");
        let listed = is_listed.then(|| Moref::from(&task_ref("task-1")));
        let listed = Some(Value::Morefs(listed.into_iter().collect()));
        vm.properties.push(("recentTask".to_owned(), listed));
        let mut read = vec![vm];
        if is_read {
            read.push(task.object());
        }
        cache.merge_reread(&read);
        let case = format!("{is_listed} {is_read} {is_newer} {is_awaited}");
        let is_gone = !(is_listed || is_read || is_newer || is_awaited);
        let gone = is_gone.then(|| VsphereUpdate::TaskGone(task_ref("task-1")));
        assert_eq!(cache.take_updates(), Vec::from_iter(gone), "{case}");
        assert_eq!(cache.tasks.is_empty(), is_gone, "{case}");
    }
}

#[test]
fn ended_tasks_that_no_list_has_are_removed() {
    for [has_ended, is_awaited, is_listed, is_newer] in combinations() {
        let mut cache = cache();
        if is_awaited {
            cache.set_awaited([task_ref("task-1")].into());
        }
        let task = Reported::of_vm("task-1", "vm-1").is(if has_ended { "success" } else { "running" });
        if !is_newer {
            cache.begin_reread();
            cache.merge_reread(&[task.object(), host_in("host-1", "domain-c1", &["task-1"])]);
        }
        cache.begin_reread();
        if is_newer {
            cache.apply(set([task.object()]));
        }
        cache.take_updates();
        let listed = if is_listed { &["task-1"][..] } else { &[] };
        cache.merge_reread(&[host_in("host-1", "domain-c1", listed)]);
        let is_kept = !has_ended || is_awaited || is_listed || is_newer;
        let case = format!("{has_ended} {is_awaited} {is_listed} {is_newer}");
        assert_eq!(tasks_of(&cache).len(), usize::from(is_kept), "{case}");
        assert_eq!(cache.sent.tasks.len(), usize::from(is_kept), "{case}");
        assert_eq!(cache.reread.len(), usize::from(is_kept && !is_newer), "{case}");
    }
}

#[test]
fn maintenance_task_is_over_if_a_reread_finds_it_nowhere() {
    for [is_listed, is_read, is_newer, of_another] in combinations() {
        let mut cache = cache();
        let task = Reported::entering("task-1", if of_another { "host-2" } else { "host-1" }, 1);
        cache.apply(set([task.object()]));
        cache.begin_reread();
        if is_newer {
            let cancelled = Reported {
                cancelled: true,
                ..task.clone()
            };
            cache.apply(set([cancelled.object()]));
        }
        cache.take_updates();
        let listed = if is_listed { &["task-1"][..] } else { &[] };
        let mut read = vec![host_in("host-1", "domain-c1", listed)];
        if is_read {
            read.push(task.object());
        }
        cache.merge_reread(&read);
        let is_over = !(is_listed || is_read || is_newer || of_another);
        let case = format!("{is_listed} {is_read} {is_newer} {of_another}");
        assert_eq!(cache.tasks.is_empty(), is_over, "{case}");
        assert_eq!(cache.followed().count(), usize::from(!is_over), "{case}");
        let is_reported = hosts_in(&cache.take_updates()).any(|host| host.entering.is_none());
        assert_eq!(is_reported, is_over, "{case}");
    }
}

#[test]
fn host_is_not_entering_by_a_task_that_vcenter_does_not_know() {
    for is_awaited in [true, false] {
        let mut cache = cache();
        let awaited = is_awaited.then(|| task_ref("task-1"));
        cache.set_awaited(awaited.into_iter().collect());
        cache.apply(set([Reported::entering("task-1", "host-1", 1).object()]));
        assert!(hosts_in(&cache.take_updates()).any(|host| host.entering.is_some()));
        cache.tasks_not_found([task_ref("task-1")].into());
        assert!(hosts_in(&cache.take_updates()).any(|host| host.entering.is_none()));
        assert_eq!(cache.followed().count(), 0);
    }
}

#[test]
fn awaited_task_that_a_reread_misses_is_read_unless_its_end_is_known() {
    for (state, is_missed) in [("running", true), ("success", false), ("error", false)] {
        for is_read in [false, true] {
            let mut cache = cache();
            cache.set_awaited([task_ref("task-1")].into());
            let task = Reported::of_vm("task-1", "vm-1").is(state);
            cache.apply(set([task.object()]));
            cache.begin_reread();
            let read = is_read.then(|| task.object());
            cache.merge_reread(read.as_slice());
            assert_eq!(
                cache.has_tasks_to_read(),
                is_missed && !is_read,
                "{state} {is_read}"
            );
        }
    }
}

#[test]
fn task_that_vcenter_does_not_know_is_gone_if_it_was_not_ended() {
    for (state, is_awaited, is_gone) in [
        (Some("running"), true, true),
        (None, true, true),
        (Some("success"), true, false),
        (Some("running"), false, true),
        (None, false, false),
    ] {
        let mut cache = cache();
        if is_awaited {
            cache.set_awaited([task_ref("task-1")].into());
        }
        let task = Reported::of_vm("task-1", "vm-1");
        cache.apply(set(state.iter().map(|state| task.is(state).object())));
        cache.take_updates();
        for _ in 0..2 {
            cache.tasks_not_found([task_ref("task-1")].into());
        }
        let gone = is_gone.then(|| VsphereUpdate::TaskGone(task_ref("task-1")));
        assert_eq!(
            cache.take_updates(),
            Vec::from_iter(gone),
            "{state:?} {is_awaited}"
        );
        assert_eq!(cache.gone_tasks().len(), usize::from(is_gone && is_awaited));
        assert_eq!(cache.tasks.len(), usize::from(state.is_some() && !is_gone));

        // Nobody awaits it any more.
        cache.set_awaited(BTreeSet::new());
        assert!(cache.gone_tasks().is_empty());
    }
}

/// Paths below `info` are pushed only when they change, so a change alone describes no task.
#[test]
fn change_of_a_task_that_was_ignored_is_ignored() {
    let mut cache = cache();
    let moref = Moref::from(&task_ref("task-1"));
    cache.apply(set([object(&moref, [("info.state", text("success"))])]));
    assert!(cache.tasks.is_empty());
    cache.apply(set([
        Reported::of_vm("task-1", "vm-1").object(),
        object(&moref, [("info.state", text("success"))]),
    ]));
    assert_eq!(cache.tasks[&task_ref("task-1")].state, TaskState::Success);
}

#[test]
fn tasks_of_our_vms_and_awaited_tasks_are_reported() {
    for (of, is_awaited, is_reported) in [
        (vm("vm-1"), false, true),
        (vm("vm-2"), false, false),
        (vm("vm-2"), true, true),
        (host("host-1"), true, true),
        (host("host-1"), false, false),
    ] {
        for (user, by_us) in [
            (Some("vsphere.local\\operator"), true),
            (Some("VSPHERE.LOCAL\\other"), false),
            (None, false),
        ] {
            let mut cache = PropertyCache::new(user);
            cache.set_ours([VmRef::new("vm-1")].into());
            if is_awaited {
                cache.set_awaited([task_ref("task-1")].into());
            }
            let task = Reported {
                entity: of.clone(),
                ..Reported::entering("task-1", "host-1", 1)
            };
            cache.apply(set([task.object()]));
            let updates = cache.take_updates().into_iter().filter_map(|update| {
                let VsphereUpdate::Task(task) = update else {
                    return None;
                };
                Some((task.vm, task.by_us))
            });
            let reported: Vec<_> = updates.collect();
            let expected = is_reported.then(|| (of.vm(), by_us));
            assert_eq!(reported, Vec::from_iter(expected));
        }
    }
}

#[test]
fn vm_that_becomes_ours_is_reported_with_its_tasks() {
    let mut cache = cache();
    cache.apply(set([
        vm_on("vm-2", "host-2", "poweredOff"),
        Reported::of_vm("task-1", "vm-1").object(),
        Reported::of_vm("task-2", "vm-2").object(),
    ]));
    cache.take_updates();
    cache.set_ours([VmRef::new("vm-1"), VmRef::new("vm-2")].into());
    let updates = cache.take_updates();
    assert!(
        matches!(
            updates.as_slice(),
            [VsphereUpdate::Task(task), VsphereUpdate::Vm(vm)]
                if task.moref.as_str() == "task-2" && vm.moref.as_str() == "vm-2"
        ),
        "{updates:?}"
    );
    assert!(cache.has_all_vms());
    cache.set_ours([VmRef::new("vm-2"), VmRef::new("vm-3")].into());
    assert_eq!(cache.take_updates(), [VsphereUpdate::VmGone(VmRef::new("vm-1"))]);
    assert!(!cache.has_all_vms(), "vm-3 was not reported yet");
}

#[test]
fn candidates_are_the_hosts_of_the_clusters_of_our_vms() {
    let mut cache = cache();
    cache.apply(set([
        host_in("host-3", "domain-c2", &[]),
        object(&host("host-4"), []),
        vm_on("vm-2", "host-3", "poweredOn"),
    ]));
    let computes = cache.computes_of_ours();
    assert_eq!(computes, [ComputeRef::new("domain-c1")].into());
    let hosts = ["host-1", "host-2"].map(HostRef::new);
    assert_eq!(cache.hosts_of(&computes), hosts.into());
    cache.set_ours([VmRef::new("vm-2"), VmRef::new("vm-9")].into());
    assert_eq!(cache.computes_of_ours(), [ComputeRef::new("domain-c2")].into());
}

#[test]
fn object_that_leaves_is_reported_gone_once() {
    let mut cache = cache();
    let named = object(&cluster("domain-c1"), [("name", text("gpu"))]);
    cache.apply(set([named.clone(), named]));
    assert!(
        matches!(cache.take_updates().as_slice(), [VsphereUpdate::Compute(compute)]
        if compute.name.as_deref() == Some("gpu"))
    );
    let drs = Drs {
        enabled: true,
        behavior: DrsBehavior::Manual,
        overrides: BTreeMap::new(),
    };
    let config = ClusterConfig {
        drs: Some(drs.clone()),
        rules: Default::default(),
    };
    let changed = object(
        &cluster("domain-c1"),
        [("configurationEx", Some(Value::Cluster(config)))],
    );
    cache.apply(set([changed]));
    assert!(
        matches!(cache.take_updates().as_slice(), [VsphereUpdate::Compute(compute)]
        if compute.name.as_deref() == Some("gpu") && compute.drs.as_ref() == Some(&drs))
    );
    let (compute, vm_1, host_1) = (cluster("domain-c1"), vm("vm-1"), host("host-1"));
    for (moref, gone) in [
        (compute, VsphereUpdate::ComputeGone(ComputeRef::new("domain-c1"))),
        (vm_1, VsphereUpdate::VmGone(VmRef::new("vm-1"))),
        (host_1, VsphereUpdate::HostGone(HostRef::new("host-1"))),
    ] {
        cache.apply(vec![Change::Gone(moref.clone())]);
        assert_eq!(cache.take_updates(), [gone]);
        cache.apply(vec![Change::Gone(moref)]);
        assert_eq!(cache.take_updates(), []);
    }
}

/// The reply to the poll that was pending during re-reads may be older than the last of them, and show any state before it.
#[test]
fn late_poll_reply_undoes_neither_power_nor_host_of_a_reread() {
    let location = |cache: &PropertyCache| {
        let vm = &cache.vms[&VmRef::new("vm-1")];
        (vm.power, vm.host.clone())
    };
    let places = ["host-1", "host-2", "host-3"];
    let states = ["poweredOn", "poweredOff", "suspended"];
    let all = || {
        places
            .iter()
            .flat_map(|host| states.iter().map(move |power| vm_on("vm-1", host, power)))
    };
    for rereads in all().flat_map(|first| all().map(move |last| [first.clone(), last])) {
        for late in all() {
            let mut cache = cache();
            let before = location(&cache);
            let mut is_changed = false;
            for read in &rereads {
                cache.begin_reread();
                cache.merge_reread(std::slice::from_ref(read));
                is_changed |= location(&cache) != before;
            }
            let reread = location(&cache);
            cache.apply(set([late.clone()]));
            if is_changed {
                assert_eq!(location(&cache), reread, "{rereads:?} {late:?}");
            }

            // The reply may as well be newer, so the VM is read again.
            let mut other = self::cache();
            other.apply(set([late.clone()]));
            let late_at = location(&other);
            assert_eq!(cache.is_reread_due(), is_changed && late_at != reread);
            cache.begin_reread();
            assert!(!cache.is_reread_due());
            cache.merge_reread(std::slice::from_ref(&late));
            assert_eq!(location(&cache), late_at);

            // The next reply is newer than all of them.
            cache.poll_caught_up();
            cache.apply(set([vm_on("vm-1", "host-1", "poweredOff")]));
            assert_eq!(
                location(&cache),
                (Some(PowerState::Off), Some(HostRef::new("host-1")))
            );
        }
    }
}

#[test]
fn reread_does_not_replace_what_was_pushed_since_it_began() {
    let pushed = vm_on("vm-1", "host-1", "poweredOff");
    let read = vm_on("vm-1", "host-1", "poweredOn");
    for (begins_before, expected) in [(true, PowerState::Off), (false, PowerState::On)] {
        let mut cache = cache();
        if begins_before {
            cache.begin_reread();
        }
        cache.apply(set([pushed.clone()]));
        if !begins_before {
            cache.begin_reread();
        }
        cache.merge_reread(std::slice::from_ref(&read));
        assert_eq!(cache.vms[&VmRef::new("vm-1")].power, Some(expected));
    }
}

#[test]
fn reread_of_a_vm_that_was_never_pushed_reports_no_part_of_it() {
    let part = vm_on("vm-7", "host-1", "poweredOn");
    let mut whole = part.clone();
    let uuid = "42000000-0000-4000-8000-000000000007";
    whole.properties.push(("name".to_owned(), text("gpu7")));
    whole.properties.push(("config.uuid".to_owned(), text(uuid)));
    // By the stream, or by the next re-read.
    for is_pushed in [true, false] {
        let mut cache = cache();
        cache.set_ours([VmRef::new("vm-7")].into());
        cache.take_updates();
        cache.begin_reread();
        cache.merge_reread(std::slice::from_ref(&part));
        assert_eq!(cache.take_updates(), []);
        assert!(!cache.has_all_vms());
        assert_eq!(
            cache.known_before_reread().unreported,
            [VmRef::new("vm-7")].into()
        );

        if is_pushed {
            cache.apply(set([whole.clone()]));
        } else {
            cache.begin_reread();
            cache.merge_reread(&[part.clone(), whole.clone()]);
        }
        let updates = cache.take_updates();
        let [VsphereUpdate::Vm(vm)] = updates.as_slice() else {
            panic!("{updates:?}")
        };
        assert_eq!(vm.uuid, VmUuid::parse(uuid));
        assert!(cache.has_all_vms());
    }
}

#[test]
fn task_that_only_a_reread_found_is_marked() {
    let signal = |cache: &mut PropertyCache| {
        hosts_in(&cache.take_updates()).find_map(|host| Some(host.entering.as_ref()?.signal))
    };
    let task = Reported::entering("task-1", "host-1", 1).object();
    let read = [host_in("host-1", "domain-c1", &["task-1"]), task.clone()];
    let mut cache_1 = cache();
    cache_1.begin_reread();
    cache_1.merge_reread(&read);
    assert_eq!(signal(&mut cache_1), Some(DetectionSignal::Reread));
    let mut cache_2 = cache();
    cache_2.apply(set([task]));
    cache_2.begin_reread();
    cache_2.merge_reread(&read);
    assert_eq!(signal(&mut cache_2), Some(DetectionSignal::Push));
}

/// The lines of a log: whether each is about one object.
#[derive(Clone, Default)]
struct RecordedLog(Arc<Mutex<Vec<bool>>>);

impl Subscriber for RecordedLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let is_of_object = event.metadata().fields().field("object").is_some();
        self.0.lock().unwrap().push(is_of_object);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl RecordedLog {
    fn of(work: impl FnOnce()) -> Vec<bool> {
        let log = Self::default();
        tracing::subscriber::with_default(log.clone(), work);
        log.0.lock().unwrap().clone()
    }
}

#[test]
fn unreadable_object_is_logged_once_and_at_most_a_hundred_are() {
    let log = RecordedLog::of(|| {
        let mut unreadable = UnreadableObjects::default();
        let named = (1..=150).map(|n| Some(host(&format!("host-{n}"))));
        for moref in std::iter::once(None).chain(named) {
            unreadable.log_once(moref.as_ref(), "it is broken");
            unreadable.log_once(moref.as_ref(), "it is broken in another way");
        }
    });
    // The last line says that no more are logged.
    let expected: Vec<bool> = (0..=100).map(|n| n < 100).collect();
    assert_eq!(log, expected);
}

#[test]
fn unreadable_values_tasks_and_objects_are_logged() {
    let withheld = |kind: FaultKind| {
        let mut object = host_in("host-1", "domain-c1", &[]);
        let fault = Fault::new(kind, "too long");
        object.missing.push(("name".to_owned(), fault));
        object
    };
    let broken = || Unreadable {
        moref: Some(vm("vm-1")),
        why: "it is broken".to_owned(),
    };
    let without_state = Reported::of_vm("task-1", "vm-1").is("no state").object();
    let mut page_with_broken_task = page([]);
    page_with_broken_task.properties =
        vec![("latestPage".to_owned(), Some(Value::Tasks(vec![Err(broken())])))];
    for (changes, is_logged) in [
        (vec![], false),
        (vec![withheld(FaultKind::Unreadable)], true),
        (vec![withheld(FaultKind::NoPermission)], false),
        (vec![without_state.clone()], true),
        (vec![page([without_state])], true),
        (vec![page_with_broken_task], true),
    ] {
        let log = RecordedLog::of(|| cache().apply(set(changes)));
        assert_eq!(log.len(), usize::from(is_logged));
    }
    let log = RecordedLog::of(|| cache().note_unreadable(&[broken(), broken()]));
    assert_eq!(log, [true]);
}

/// An account with permissions on the datacenter only sees the tasks of its hosts, and none of their properties.
#[test]
fn tasks_that_vcenter_withholds_are_logged_once() {
    let withheld = |name: &str, kind: FaultKind| {
        let missing = ["info.descriptionId", "info.entity", "info.state"].map(|path| {
            let fault = Fault::new(kind.clone(), "[privilege System.Read] [on group-d1]");
            (path.to_owned(), fault)
        });
        ObjectProperties {
            moref: Moref::from(&task_ref(name)),
            missing: missing.into(),
            properties: Vec::new(),
        }
    };
    for (kind, is_logged) in [
        (FaultKind::NoPermission, true),
        (FaultKind::Other("SystemError".to_owned()), true),
        (FaultKind::NotAuthenticated, false),
        (FaultKind::ManagedObjectNotFound, false),
    ] {
        let tasks = [withheld("task-1", kind.clone()), withheld("task-2", kind)];
        let mut cache = cache();
        let log = RecordedLog::of(|| {
            cache.apply(set(tasks.clone()));
            cache.merge_reread(&tasks);
        });
        assert_eq!(log.len(), usize::from(is_logged));
        assert!(cache.tasks.is_empty());
    }
}

#[test]
fn passthrough_devices_are_those_with_an_active_address() {
    let ids = PciIds {
        vendor: 0x10de,
        device: 0x20b5,
        sub_vendor: 0x10de,
        sub_device: 0x1533,
    };
    let device = |address: &str| PciDevice {
        address: address.to_owned(),
        ids,
        label: Some("training".into()),
    };
    let devices = || {
        Some(Value::PciDevices(vec![
            ("0000:3b:00.0".to_owned(), ids),
            ("0000:5e:00.0".to_owned(), ids),
        ]))
    };
    let labels = [("0000:5e:00.0".to_owned(), Some("training".into()))];
    let active = || {
        Some(Value::ActiveDevices(ActiveDevices {
            passthrough: labels.clone().into(),
            ..ActiveDevices::default()
        }))
    };
    for (properties, expected) in [
        (vec![], None),
        (vec![("config.pciPassthruInfo", active())], None),
        (vec![("hardware.pciDevice", devices())], Some(vec![])),
        (
            vec![
                ("hardware.pciDevice", devices()),
                ("config.pciPassthruInfo", active()),
            ],
            Some(vec![device("0000:5e:00.0")]),
        ),
        (
            vec![
                ("config.pciPassthruInfo", active()),
                ("hardware.pciDevice", devices()),
            ],
            Some(vec![device("0000:5e:00.0")]),
        ),
    ] {
        let mut cache = cache();
        cache.apply(set([object(&host("host-1"), properties)]));
        let passthrough = cache.hosts[&HostRef::new("host-1")].passthrough.as_deref();
        assert_eq!(passthrough, expected.as_deref());
    }
}

#[test]
fn tools_run_and_datastores_are_those_that_vcenter_names() {
    let datastore = |name: &'static str| Moref::new("Datastore", name);
    let stores = || {
        Some(Value::Morefs(vec![
            datastore("ds-1"),
            datastore("ds-2"),
            vm("vm-1"),
        ]))
    };
    let names = [DatastoreRef::new("ds-1"), DatastoreRef::new("ds-2")];
    for (tools, expected) in [
        (text("guestToolsRunning"), Some(true)),
        (text("guestToolsNotRunning"), Some(false)),
        (text("guestToolsExecutingScripts"), Some(false)),
        (None, None),
    ] {
        let mut cache = cache();
        let read = [("guest.toolsRunningStatus", tools), ("datastore", stores())];
        cache.apply(set([
            object(&vm("vm-1"), read),
            object(&host("host-1"), [("datastore", stores())]),
        ]));
        let vm = &cache.vms[&VmRef::new("vm-1")];
        assert_eq!(vm.tools_running, expected);
        assert_eq!(*vm.datastores, names.clone().into());
        let host = &cache.hosts[&HostRef::new("host-1")];
        assert_eq!(*host.datastores, names.clone().into());
    }
}
