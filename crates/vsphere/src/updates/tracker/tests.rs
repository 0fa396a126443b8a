//! What a subscription looks up, refreshes and sends, without a server.

use std::time::Duration;

use super::super::property_cache::tests::{Reported, host, host_in, object, set, task_ref, text, vm, vm_on};
use super::*;
use crate::property::{Change, ObjectProperties, Unreadable};
use crate::reading::BoundedRead;
use crate::update::PowerState;
use haulout_core::ids::{VmRef, VmUuid};

const USER: &str = "VSPHERE.LOCAL\\Operator";

fn key(n: usize) -> VmKey {
    VmKey::Name(format!("node-{n:04}"))
}

fn keys(numbers: impl IntoIterator<Item = usize>) -> BTreeSet<VmKey> {
    numbers.into_iter().map(key).collect()
}

fn watched(keys: BTreeSet<VmKey>) -> WatchSet {
    WatchSet {
        vms: Arc::new(keys),
        ..WatchSet::default()
    }
}

fn update_set(version: &str, changes: Vec<Change>) -> UpdateSet {
    UpdateSet {
        version: version.to_owned(),
        truncated: false,
        changes,
        unreadable: Vec::new(),
    }
}

/// The result of `plan` if the VMs of its keys are `vm_of`.
fn done(plan: Refresh, vms_of: impl Fn(&VmKey) -> Vec<&'static str>) -> RefreshDone {
    let mut lookups = plan.lookups;
    lookups.retain(|key, _| plan.watch_set.vms.contains(key));
    for key in &plan.keys {
        let vms = vms_of(key).into_iter().map(VmRef::new).collect();
        lookups.insert(key.clone(), vms);
    }
    RefreshDone {
        outside: BTreeSet::new(),
        looked_up: plan.keys,
        urgency: plan.watch_set.urgent,
        lookups,
        listed: BTreeSet::new(),
        tasks_read: BoundedRead::default(),
        gone: BTreeSet::new(),
        reread: None,
    }
}

/// A subscription in which key `n` was looked up and has the VMs `vms_of(n)`.
struct Followed {
    tracker: Tracker,
    synced: bool,
}

impl Followed {
    fn new() -> Self {
        Self {
            tracker: Tracker::new(Subscription::unconnected(Some(USER))),
            synced: false,
        }
    }

    fn refresh(
        &mut self,
        watch_set: &WatchSet,
        scope: Scope,
        vms_of: impl Fn(&VmKey) -> Vec<&'static str>,
    ) -> BTreeSet<VmKey> {
        let plan = self.tracker.begin_refresh(watch_set.clone(), scope);
        let looked_up = plan.keys.clone();
        let done = done(plan, vms_of);
        self.tracker.apply_refresh(done, &watch_set.urgent);
        looked_up
    }

    fn reread(&mut self, watch_set: &WatchSet, objects: Vec<ObjectProperties>) {
        let plan = self.tracker.begin_refresh(watch_set.clone(), Scope::Reread);
        let mut done = done(plan, |_| Vec::new());
        done.reread = Some(BoundedRead {
            objects,
            unreadable: Vec::new(),
        });
        self.tracker.apply_refresh(done, &watch_set.urgent);
    }

    fn push(&mut self, objects: impl IntoIterator<Item = ObjectProperties>) -> Vec<VsphereUpdate> {
        self.set(update_set("1", set(objects)))
    }

    fn set(&mut self, set: UpdateSet) -> Vec<VsphereUpdate> {
        self.tracker.apply_set(Some(set), &mut self.synced).unwrap()
    }
}

/// The subscription of one node, whose VM `vm-1` is on host-1, after its first set.
fn one_node() -> (Followed, WatchSet) {
    let mut followed = Followed::new();
    let watch_set = watched(keys([1]));
    followed.refresh(&watch_set, Scope::AllKeys, |_| vec!["vm-1"]);
    followed.push([host_in("host-1", "domain-c1", &[]), vm_of_node_1("host-1")]);
    // The devices of the hosts of its cluster.
    assert!(followed.tracker.needs_refresh());
    followed.refresh(&watch_set, Scope::Changed, |_| Vec::new());
    assert!(!followed.synced);
    followed.push([]);
    assert!(followed.synced && !followed.tracker.needs_refresh());
    (followed, watch_set)
}

/// Our VM, whose name is the key.
fn vm_of_node_1(of: &str) -> ObjectProperties {
    let mut vm = vm_on("vm-1", of, "poweredOn");
    vm.properties.push(("name".to_owned(), text("node-0001")));
    vm
}

/// What is looked up in each scope: keys without a lookup result, stale ones, ambiguous ones, and urgent
/// ones.
#[tokio::test(start_paused = true)]
async fn keys_are_looked_up_again_if_new_stale_urgent_or_ambiguous() {
    use LookupUrgency::{Maintenance, PowerCut};
    // Number of matches (`None` for a new key), earlier and present urgency, whether the VM was deleted.
    let cases = [
        (Some(1), None, None, false),
        (Some(0), None, None, false),
        (Some(2), None, None, false),
        (Some(1), None, None, true),
        (Some(1), None, Some(Maintenance), false),
        (Some(1), Some(Maintenance), Some(Maintenance), false),
        (Some(1), Some(Maintenance), Some(PowerCut), false),
        (Some(1), Some(PowerCut), Some(Maintenance), false),
        (Some(1), Some(Maintenance), None, false),
        (None, None, None, false),
        (None, None, Some(PowerCut), false),
    ];
    let only = |is: &dyn Fn(usize) -> bool| keys((0..cases.len()).filter(|n| is(*n)));
    let vms_of = |key: &VmKey| {
        let (n, _) = (0..cases.len())
            .map(|n| (n, ()))
            .find(|(n, ())| self::key(*n) == *key)
            .unwrap();
        match (cases[n].0, cases[n].3) {
            (Some(0) | None, _) => Vec::new(),
            (Some(1), true) => vec!["vm-deleted"],
            (Some(1), false) => vec!["vm-1"],
            (Some(_), _) => vec!["vm-1", "vm-2"],
        }
    };
    let at_once = [3, 4, 6, 9, 10];
    let in_turn = [1, 2, 5, 7];
    for (scope, expected) in [
        (Scope::Changed, keys(at_once)),
        (Scope::Reread, keys(at_once.into_iter().chain(in_turn))),
        (Scope::AllKeys, keys(0..cases.len())),
    ] {
        let mut followed = Followed::new();
        let mut watch_set = watched(only(&|n| cases[n].0.is_some()));
        watch_set.urgent = (0..cases.len())
            .filter_map(|n| Some((key(n), cases[n].1?)))
            .collect();
        followed.refresh(&watch_set, Scope::AllKeys, vms_of);
        followed.push([object(&vm("vm-1"), []), object(&vm("vm-deleted"), [])]);
        followed.set(update_set("2", vec![Change::Gone(vm("vm-deleted"))]));
        watch_set.vms = Arc::new(keys(0..cases.len()));
        watch_set.urgent = (0..cases.len())
            .filter_map(|n| Some((key(n), cases[n].2?)))
            .collect();
        let looked_up = followed.refresh(&watch_set, scope, vms_of);
        assert_eq!(looked_up, expected);
        assert_eq!(followed.tracker.deferred_keys_due(), None, "none waits");
        let again = followed.refresh(&watch_set, Scope::Changed, vms_of);
        assert!(again.is_empty(), "{again:?}");
    }
}

/// Nothing says that a VM is gone which was not ours yet.
#[tokio::test(start_paused = true)]
async fn key_of_a_vm_that_is_deleted_during_its_first_lookup_is_looked_up_again() {
    let (mut followed, _) = one_node();
    let watch_set = watched(keys([1, 2]));
    let plan = followed.tracker.begin_refresh(watch_set.clone(), Scope::Reread);
    assert_eq!(plan.keys, keys([2]));
    followed.push([object(&vm("vm-2"), [])]);
    followed.set(update_set("3", vec![Change::Gone(vm("vm-2"))]));
    let done = done(plan, |_| vec!["vm-2"]);
    followed.tracker.apply_refresh(done, &watch_set.urgent);
    let looked_up = followed.refresh(&watch_set, Scope::Reread, |_| vec!["vm-3"]);
    assert_eq!(looked_up, keys([2]));
    // It is registered again, and known now.
    followed.push([object(&vm("vm-3"), [])]);
    assert!(
        followed
            .refresh(&watch_set, Scope::Reread, |_| Vec::new())
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn new_keys_beyond_the_pace_wait_and_take_turns() {
    let mut followed = Followed::new();
    let now = Instant::now();
    let waits = |followed: &Followed| followed.tracker.deferred_keys_due();
    assert_eq!(waits(&followed), None);

    // Exactly the burst.
    let first = watched(keys(1_000..2_000));
    let looked_up = followed.refresh(&first, Scope::Changed, |_| Vec::new());
    assert_eq!((looked_up.len(), waits(&followed)), (1_000, None));

    let more = watched(keys(1_000..2_003));
    let looked_up = followed.refresh(&more, Scope::Changed, |_| Vec::new());
    assert!(looked_up.is_empty());
    let next = now + Duration::from_millis(100);
    assert_eq!(waits(&followed), Some(next));

    // A key before those that wait does not overtake them.
    let before = watched(keys((0..1).chain(1_000..2_003)));
    for turn in [keys([2_000]), keys([2_001]), keys([2_002]), keys([0])] {
        tokio::time::advance(Duration::from_millis(100)).await;
        let looked_up = followed.refresh(&before, Scope::Changed, |_| Vec::new());
        assert_eq!(looked_up, turn);
    }
    assert_eq!(waits(&followed), None);
}

#[test]
fn keys_in_turn_begin_after_the_last_one() {
    let all: Vec<VmKey> = (1..=4).map(key).collect();
    let all: Vec<&VmKey> = all.iter().collect();
    for (count, last, expected, then) in [
        (2, None, vec![1, 2], Some(2)),
        (2, Some(2), vec![3, 4], Some(4)),
        (2, Some(3), vec![1, 4], Some(1)),
        (3, Some(4), vec![1, 2, 3], Some(3)),
        (9, Some(1), vec![1, 2, 3, 4], Some(1)),
        (4, Some(9), vec![1, 2, 3, 4], Some(4)),
        (0, Some(1), vec![], Some(1)),
    ] {
        let mut last = last.map(key);
        assert_eq!(next_in_turn(&all, count, &mut last), keys(expected));
        assert_eq!(last, then.map(key));
    }
}

#[tokio::test(start_paused = true)]
async fn reread_rechecks_thirty_ambiguous_keys_in_turn() {
    let mut followed = Followed::new();
    let watch_set = watched(keys(0..70));
    let two = |_: &VmKey| vec!["vm-1", "vm-2"];
    followed.refresh(&watch_set, Scope::AllKeys, two);
    for turn in [keys(0..30), keys(30..60), keys((60..70).chain(0..20))] {
        assert_eq!(followed.refresh(&watch_set, Scope::Reread, two), turn);
    }
}

/// The history pauses while hosts push their own maintenance tasks.
#[tokio::test(start_paused = true)]
async fn hosts_push_until_another_source_is_first_with_a_maintenance_task() {
    let mut followed = Followed::new();
    let watch_set = WatchSet::default();
    let task = |name| Reported::entering(name, "host-1", 1).object();
    followed.push([host_in("host-1", "domain-c1", &[]), task("task-1")]);
    assert!(!followed.tracker.hosts_push, "a first set lists tasks that exist");
    let renamed = |name| object(&host("host-1"), [("name", text(name))]);
    followed.push([renamed("esx1")]);
    assert!(!followed.tracker.hosts_push, "no task was pushed");

    let page = |followed: &mut Followed, tasks: Vec<ObjectProperties>| {
        let page = object(
            &Moref::new("TaskHistoryCollector", "session[1]history-1"),
            [(
                "latestPage",
                Some(crate::property::Value::Tasks(tasks.into_iter().map(Ok).collect())),
            )],
        );
        let set = update_set("7", set([page]));
        followed.tracker.apply_history_page(Some(set));
        assert_eq!(followed.tracker.history_version, "7");
    };
    let read = |task| vec![host_in("host-1", "domain-c1", &["task-1"]), task];
    page(&mut followed, vec![task("task-1")]);
    followed.reread(&watch_set, read(task("task-1")));
    assert!(!followed.tracker.hosts_push, "neither shows that hosts push");

    followed.push([task("task-2")]);
    assert!(followed.tracker.hosts_push);
    followed.push([renamed("esx2")]);
    followed.tracker.apply_history_page(None);
    page(&mut followed, vec![task("task-2")]);
    followed.reread(&watch_set, read(task("task-2")));
    followed.refresh(&watch_set, Scope::Changed, |_| Vec::new());
    assert!(followed.tracker.hosts_push, "the host was first");

    // A row whose task does not exist is no sign that hosts do not push.
    page(&mut followed, vec![task("task-0")]);
    let plan = followed.tracker.begin_refresh(watch_set.clone(), Scope::Changed);
    assert_eq!(plan.claimed, [task_ref("task-0")].into());
    followed
        .tracker
        .apply_refresh(done(plan, |_| Vec::new()), &BTreeMap::new());
    assert!(followed.tracker.hosts_push && !followed.tracker.cache.has_tasks_to_read());

    page(&mut followed, vec![task("task-3")]);
    let plan = followed.tracker.begin_refresh(watch_set.clone(), Scope::Changed);
    let mut finished = done(plan, |_| Vec::new());
    finished.tasks_read.objects.push(task("task-3"));
    followed.tracker.apply_refresh(finished, &BTreeMap::new());
    assert!(!followed.tracker.hosts_push, "the history was first");
    followed.push([task("task-4")]);
    assert!(followed.tracker.hosts_push);
    followed.reread(&watch_set, read(task("task-5")));
    assert!(!followed.tracker.hosts_push, "the re-read was first");
}

#[tokio::test(start_paused = true)]
async fn push_during_a_reread_is_newer_than_the_reread() {
    let power = |updates: &[VsphereUpdate]| {
        updates.iter().find_map(|update| {
            let VsphereUpdate::Vm(vm) = update else {
                return None;
            };
            vm.power
        })
    };
    let (mut followed, watch_set) = one_node();
    // Every re-read begins anew.
    followed.reread(&watch_set, vec![host_in("host-1", "domain-c1", &[])]);
    let plan = followed.tracker.begin_refresh(watch_set, Scope::Reread);
    assert!(plan.known.has_hosts);
    let pushed = followed.push([vm_on("vm-1", "host-1", "poweredOff")]);
    assert_eq!(power(&pushed), Some(PowerState::Off));
    let mut done = done(plan, |_| Vec::new());
    let read = vec![
        host_in("host-1", "domain-c1", &[]),
        vm_on("vm-1", "host-1", "poweredOn"),
    ];
    done.reread = Some(BoundedRead {
        objects: read,
        unreadable: Vec::new(),
    });
    followed.tracker.apply_refresh(done, &BTreeMap::new());
    assert_eq!(followed.tracker.updates_outside_poll(true), []);
}

/// Without hosts an empty re-read is no sign of a dead session.
#[tokio::test(start_paused = true)]
async fn reread_expects_hosts_only_if_some_are_known() {
    let mut followed = Followed::new();
    for (objects, knows_hosts) in [
        (vec![], false),
        (vec![vm_on("vm-1", "host-1", "poweredOn")], false),
        (vec![host_in("host-1", "domain-c1", &[])], true),
    ] {
        followed.push(objects);
        let plan = followed.tracker.begin_refresh(WatchSet::default(), Scope::Reread);
        assert_eq!(plan.known.has_hosts, knows_hosts);
    }
}

#[tokio::test(start_paused = true)]
async fn refresh_is_due_for_device_hosts_stale_keys_and_tasks() {
    let (mut followed, mut watch_set) = one_node();
    let refresh = |followed: &mut Followed, watch_set: &WatchSet| {
        assert!(followed.tracker.needs_refresh());
        let plan = followed.tracker.begin_refresh(watch_set.clone(), Scope::Changed);
        let added = (
            plan.device_hosts.clone(),
            plan.listed_maintenances.clone(),
            plan.tasks.clone(),
        );
        followed
            .tracker
            .apply_refresh(done(plan, |_| vec!["vm-1"]), &watch_set.urgent);
        assert!(!followed.tracker.needs_refresh());
        added
    };
    let none = BTreeSet::new;

    // A host joins the cluster of our VM; one in another cluster is none of its device hosts.
    followed.push([host_in("host-9", "domain-c9", &[])]);
    assert!(!followed.tracker.needs_refresh());
    followed.push([host_in("host-2", "domain-c1", &[])]);
    let host_2 = [HostRef::new("host-2")].into();
    assert_eq!(refresh(&mut followed, &watch_set), (host_2, none(), none()));
    let renamed = object(&host("host-2"), [("name", text("esx2"))]);
    followed.push([renamed]);
    assert!(!followed.tracker.needs_refresh(), "it is a device host already");

    // Our VM moves, within the cluster and then to another one.
    followed.push([vm_of_node_1("host-2")]);
    assert!(!followed.tracker.needs_refresh());
    followed.push([vm_of_node_1("host-9")]);
    let host_9 = [HostRef::new("host-9")].into();
    assert_eq!(refresh(&mut followed, &watch_set), (host_9, none(), none()));

    // A host leaves, as when the account loses its permission, and comes back.
    followed.set(update_set("2", vec![Change::Gone(host("host-9"))]));
    followed.push([host_in("host-9", "domain-c9", &[])]);
    assert_eq!(
        refresh(&mut followed, &watch_set),
        ([HostRef::new("host-9")].into(), none(), none())
    );

    // A maintenance task begins and ends.
    let task = Reported::entering("task-1", "host-9", 1);
    followed.push([task.object()]);
    let task_1: BTreeSet<TaskRef> = [task_ref("task-1")].into();
    assert_eq!(
        refresh(&mut followed, &watch_set),
        (none_of(), task_1.clone(), none())
    );
    followed.push([task.is("error").object()]);
    assert_eq!(refresh(&mut followed, &watch_set), (none_of(), none(), none()));

    // An awaited task leaves all lists.
    watch_set.tasks = [task_ref("task-2")].into();
    followed.refresh(&watch_set, Scope::Changed, |_| Vec::new());
    followed.set(update_set(
        "3",
        vec![Change::Gone(Moref::from(&task_ref("task-2")))],
    ));
    let task_2: BTreeSet<TaskRef> = [task_ref("task-2")].into();
    assert_eq!(refresh(&mut followed, &watch_set), (none_of(), none(), task_2));

    // Our VM is deleted.
    followed.set(update_set("4", vec![Change::Gone(vm("vm-1"))]));
    assert_eq!(refresh(&mut followed, &watch_set), (none_of(), none(), none()));
}

fn none_of() -> BTreeSet<HostRef> {
    BTreeSet::new()
}

#[tokio::test(start_paused = true)]
async fn key_is_stale_once_its_vm_has_another_uuid_and_name() {
    let uuid = |n: u32| format!("42160000-0000-4000-8000-{n:012x}");
    let swapped = VmUuid::parse(&uuid(2)).unwrap().swapped().to_string();
    let by_uuid = VmKey::Uuid(VmUuid::parse(&uuid(2)).unwrap());
    for (name, uuid, is_stale) in [
        ("node-0001", Some(uuid(9)), false),
        ("another", Some(uuid(9)), true),
        ("another", Some(uuid(2)), false),
        ("another", Some(swapped), false),
        ("another", None, false),
    ] {
        let mut followed = Followed::new();
        let watch_set = watched([key(1), by_uuid.clone(), key(3)].into());
        followed.refresh(&watch_set, Scope::AllKeys, |key| match key {
            VmKey::Name(name) if name == "node-0003" => vec!["vm-3"],
            VmKey::Name(_) | VmKey::Uuid(_) => vec!["vm-1"],
        });
        followed.push([]);
        let properties = [
            ("name", text(name)),
            ("config.uuid", uuid.as_deref().and_then(text)),
        ];
        followed.push([object(&vm("vm-1"), properties)]);
        let plan = followed.tracker.begin_refresh(watch_set, Scope::Changed);
        let stale: BTreeSet<VmKey> = match is_stale {
            true => [key(1), by_uuid.clone()].into(),
            false => BTreeSet::new(),
        };
        assert_eq!(plan.keys, stale, "{name} {uuid:?}");
    }
}

fn found_in(updates: &[VsphereUpdate]) -> Vec<(&VmKey, usize)> {
    let found = updates.iter().filter_map(|update| {
        let VsphereUpdate::Found { key, vms } = update else {
            return None;
        };
        Some((key, vms.len()))
    });
    found.collect()
}

/// A result of the same urgency is sent even if it did not change: somebody waits for a current one.
#[tokio::test(start_paused = true)]
async fn lookup_is_sent_again_if_its_urgency_is_still_current() {
    use LookupUrgency::{Maintenance, PowerCut};
    for (at_begin, at_end, vms, is_sent) in [
        (None, None, vec!["vm-1"], false),
        (None, None, vec!["vm-1", "vm-2"], true),
        (Some(Maintenance), Some(Maintenance), vec!["vm-1"], true),
        (Some(Maintenance), Some(PowerCut), vec!["vm-1"], false),
        (Some(Maintenance), Some(PowerCut), vec!["vm-1", "vm-2"], true),
        (Some(PowerCut), None, vec!["vm-1"], false),
        (None, Some(Maintenance), vec!["vm-1"], false),
    ] {
        let (mut followed, mut watch_set) = one_node();
        let urgent = |urgency: Option<LookupUrgency>| urgency.map(|it| (key(1), it)).into_iter().collect();
        watch_set.urgent = urgent(at_begin);
        let plan = followed.tracker.begin_refresh(watch_set, Scope::AllKeys);
        let done = done(plan, |_| vms.clone());
        followed.tracker.apply_refresh(done, &urgent(at_end));
        let updates = followed.tracker.updates_outside_poll(true);
        let expected = is_sent.then(|| (key(1), vms.len()));
        let found: Vec<_> = found_in(&updates)
            .into_iter()
            .map(|(key, vms)| (key.clone(), vms))
            .collect();
        assert_eq!(found, Vec::from_iter(expected), "{at_begin:?} {at_end:?} {vms:?}");
    }
}

/// An urgency that was not looked up, such as that of a key which came during the refresh, is none.
#[tokio::test(start_paused = true)]
async fn urgent_key_that_was_not_looked_up_is_not_sent_again() {
    let (mut followed, mut watch_set) = one_node();
    watch_set.urgent = [(key(1), LookupUrgency::Maintenance)].into();
    followed.refresh(&watch_set, Scope::Changed, |_| vec!["vm-1"]);
    assert_eq!(found_in(&followed.tracker.updates_outside_poll(true)).len(), 1);
    followed.refresh(&watch_set, Scope::Changed, |_| vec!["vm-1"]);
    assert_eq!(followed.tracker.updates_outside_poll(true), []);
}

#[tokio::test(start_paused = true)]
async fn complete_sets_end_with_settled_and_the_first_begins_with_reset() {
    let mut followed = Followed::new();
    let part = |objects: Vec<ObjectProperties>| UpdateSet {
        truncated: true,
        ..update_set("1", set(objects))
    };
    assert_eq!(followed.tracker.updates_outside_poll(false), []);
    assert_eq!(followed.set(part(vec![host_in("host-1", "domain-c1", &[])])), []);
    assert!(!followed.synced && !followed.tracker.initial_set_received);
    let first = followed.push([host_in("host-2", "domain-c1", &[])]);
    assert!(
        matches!(
            first.as_slice(),
            [
                VsphereUpdate::Reset,
                VsphereUpdate::Host(_),
                VsphereUpdate::Host(_),
                VsphereUpdate::Settled
            ]
        ),
        "{first:?}"
    );
    assert!(followed.synced && followed.tracker.initial_set_received);
    assert_eq!(followed.push([]), []);
    assert_eq!(followed.tracker.updates_outside_poll(true), []);
    let empty = followed.tracker.apply_set(None, &mut followed.synced).unwrap();
    assert_eq!(empty, []);
    let renamed = |name| object(&host("host-1"), [("name", text(name))]);
    let next = followed.push([renamed("esx1")]);
    assert!(
        matches!(next.as_slice(), [VsphereUpdate::Host(_), VsphereUpdate::Settled]),
        "{next:?}"
    );
}

/// A VM that was found is completed by the poll.
#[tokio::test(start_paused = true)]
async fn updates_outside_of_the_poll_settle_once_all_our_vms_are_known() {
    let mut followed = Followed::new();
    followed.push([host_in("host-1", "domain-c1", &[])]);
    let watch_set = watched(keys([1]));
    followed.refresh(&watch_set, Scope::Changed, |_| vec!["vm-1"]);
    assert_eq!(followed.tracker.updates_outside_poll(false), []);
    let found = followed.tracker.updates_outside_poll(true);
    assert!(
        matches!(found.as_slice(), [VsphereUpdate::Found { .. }]),
        "{found:?}"
    );
    assert_eq!(followed.tracker.updates_outside_poll(true), []);

    // An empty set leaves nothing more to wait for.
    assert_eq!(followed.push([]), [VsphereUpdate::Settled]);
    assert_eq!(followed.push([]), []);

    followed.push([vm_of_node_1("host-1")]);
    followed.reread(&watch_set, vec![host_in("host-1", "domain-c2", &[])]);
    let read = followed.tracker.updates_outside_poll(true);
    assert!(matches!(read.last(), Some(VsphereUpdate::Settled)), "{read:?}");
    assert_eq!(followed.tracker.updates_outside_poll(true), []);
}

#[tokio::test(start_paused = true)]
async fn first_set_waits_for_the_devices_of_the_hosts() {
    let mut followed = Followed::new();
    let watch_set = watched(keys([1]));
    followed.refresh(&watch_set, Scope::AllKeys, |_| vec!["vm-1"]);
    let first = followed.push([host_in("host-1", "domain-c1", &[]), vm_of_node_1("host-1")]);
    assert_eq!(first, []);
    assert!(followed.tracker.needs_refresh() && !followed.synced);
    let plan = followed.tracker.begin_refresh(watch_set, Scope::Changed);
    assert_eq!(plan.device_hosts, [HostRef::new("host-1")].into());
    let done = done(plan, |_| Vec::new());
    followed.tracker.apply_refresh(done, &BTreeMap::new());
    assert!(followed.push([]).len() > 1 && followed.synced);

    // Later sets do not wait.
    let joined = followed.push([host_in("host-2", "domain-c1", &[])]);
    assert!(
        matches!(joined.last(), Some(VsphereUpdate::Settled)),
        "{joined:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn parts_of_a_set_and_their_objects_are_limited_together() {
    let part = |unreadable: usize| UpdateSet {
        truncated: true,
        unreadable: vec![
            Unreadable {
                moref: None,
                why: "it is broken".to_owned(),
            };
            unreadable
        ],
        ..update_set("1", set([host_in("host-1", "domain-c1", &[])]))
    };
    let apply = |followed: &mut Followed, set| followed.tracker.apply_set(Some(set), &mut followed.synced);
    let mut parts = Followed::new();
    for _ in 0..1_000 {
        apply(&mut parts, part(0)).unwrap();
    }
    let error = apply(&mut parts, part(0)).unwrap_err();
    assert!(error.chain().contains("1000 parts"), "{}", error.chain());

    let mut objects = Followed::new();
    for _ in 0..2 {
        apply(&mut objects, part(99_999)).unwrap();
    }
    let error = apply(&mut objects, part(0)).unwrap_err();
    assert!(error.chain().contains("200000 objects"), "{}", error.chain());

    // A complete set begins anew.
    let mut complete = Followed::new();
    for _ in 0..3 {
        apply(&mut complete, part(99_998)).unwrap();
        complete.push([]);
    }
}

#[tokio::test(start_paused = true)]
async fn task_of_the_user_of_the_session_is_by_us() {
    let (mut followed, _) = one_node();
    let updates = followed.push([Reported::of_vm("task-1", "vm-1").object()]);
    let by_us = updates.iter().find_map(|update| {
        let VsphereUpdate::Task(task) = update else {
            return None;
        };
        Some(task.by_us)
    });
    assert_eq!(by_us, Some(true), "{updates:?}");
}

#[tokio::test(start_paused = true)]
async fn vm_is_looked_up_again_when_it_counts_outside_the_scope_or_no_longer_does() {
    let mut followed = Followed::new();
    let mut watch_set = watched(keys([1, 2]));
    let in_scope = |key: &VmKey| {
        if *key == self::key(1) {
            Vec::new()
        } else {
            vec!["vm-2"]
        }
    };
    let mut done = done(
        followed.tracker.begin_refresh(watch_set.clone(), Scope::AllKeys),
        in_scope,
    );
    done.outside = keys([1]);
    followed.tracker.apply_refresh(done, &watch_set.urgent);
    followed.push([]);
    watch_set.kept_off = BTreeSet::from([VmRef::new("vm-1")]);
    let looked_up = followed.refresh(&watch_set, Scope::Changed, |_| vec!["vm-1"]);
    assert_eq!(looked_up, keys([1]));
    assert!(
        followed
            .refresh(&watch_set, Scope::Changed, |_| Vec::new())
            .is_empty()
    );
    watch_set.kept_off.clear();
    let looked_up = followed.refresh(&watch_set, Scope::Changed, |_| Vec::new());
    assert_eq!(looked_up, keys([1]));
}
