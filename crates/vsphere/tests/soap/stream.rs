//! How the stream begins, fails, resumes and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use haulout_core::ids::{VmRef, VmUuid};
use haulout_vsphere::update::{VmKey, VsphereUpdate, WatchSet};
use tokio::time::Instant;

use super::server::{Fake, Reply, Request, change, follow, host, is_reread};

fn first_set() -> String {
    host("enter", "host-1", &change("name", "esx1"))
}

#[tokio::test]
async fn nothing_is_reported_between_the_parts_of_a_set() {
    let (fake, vcenter, _server) = Fake::start(|_| None).await;
    let part = |content: &str| format!("<filterSet>{content}</filterSet><truncated>true</truncated>");
    fake.push_raw(1, &part(&first_set()));
    fake.push(1, &host("enter", "host-2", &change("name", "esx2")));
    let mut stream = follow(&vcenter, WatchSet::default());
    let mut first_updates = Vec::new();
    loop {
        let update = stream.until(|update| Some(update.clone())).await;
        if update == VsphereUpdate::Settled {
            break;
        }
        first_updates.push(update);
    }
    assert_eq!(first_updates.remove(0), VsphereUpdate::Reset);
    assert!(
        matches!(first_updates.as_slice(), [VsphereUpdate::Host(one), VsphereUpdate::Host(two)]
            if one.name.as_deref() == Some("esx1") && two.name.as_deref() == Some("esx2")),
        "{first_updates:?}"
    );

    // The same for a later set: its first part alone shows the host in maintenance.
    let in_maintenance = |value: &str| host("modify", "host-1", &change("runtime.inMaintenanceMode", value));
    fake.push_raw(1, &part(&in_maintenance("true")));
    fake.push(1, &in_maintenance("false"));
    let next = stream.host(|host| Some(host.in_maintenance)).await;
    assert_eq!(next, Some(false));
    stream.stop().await;
}

#[tokio::test]
async fn stream_that_vcenter_ends_is_rebuilt_at_once_but_not_twice_in_a_row() {
    const PAUSE: Duration = Duration::from_millis(400);
    let asked = AtomicUsize::new(0);
    let (_fake, vcenter, _server) = Fake::start_with(
        move |call: &Request| {
            let polls = call.method() == "WaitForUpdatesEx";
            // Each stream sends its first set and is then ended by vCenter.
            polls.then(|| match asked.fetch_add(1, Ordering::SeqCst) % 2 {
                0 => {
                    let set = format!(
                        "<returnval><version>1</version><filterSet>{}</filterSet></returnval>",
                        first_set()
                    );
                    Reply::of("WaitForUpdatesEx", &set)
                }
                _ => Reply::fault("RequestCanceled", ""),
            })
        },
        |settings| settings.retry_min = PAUSE,
    )
    .await;
    let mut stream = follow(&vcenter, WatchSet::default());
    let mut took = Vec::new();
    for _ in 0..2 {
        stream.lost().await;
        let began = Instant::now();
        stream.settled().await;
        took.push(began.elapsed());
    }
    assert!(took[0] < PAUSE && took[1] >= PAUSE, "{took:?}");
    stream.stop().await;
}

#[tokio::test]
async fn poll_that_is_never_answered_breaks_the_stream() {
    let (_fake, vcenter, _server) = Fake::start_with(
        |call: &Request| (call.method() == "WaitForUpdatesEx").then_some(Reply::Never),
        |settings| {
            settings.long_poll = Duration::from_secs(1);
            settings.call_deadline = Duration::from_secs(1);
        },
    )
    .await;
    let mut stream = follow(&vcenter, WatchSet::default());
    let why = stream.lost().await;
    assert!(why.contains("no whole answer within 2 s"), "{why}");
    stream.stop().await;
}

#[tokio::test]
async fn reread_that_finds_no_host_ends_the_session() {
    let (fake, vcenter, _server) = Fake::start_with(
        |call: &Request| is_reread(call).then(|| Reply::of("RetrievePropertiesEx", "<returnval/>")),
        |settings| settings.reread_every = Duration::from_millis(50),
    )
    .await;
    fake.push(1, &first_set());
    let mut stream = follow(&vcenter, WatchSet::default());
    stream.settled().await;
    let why = stream.lost().await;
    assert!(why.contains("our view has no hosts any more"), "{why}");
    fake.counted("Login", 2).await;
    stream.stop().await;
}

/// The objects created and destroyed in the session.
fn made_and_destroyed(fake: &Fake) -> [(usize, usize); 3] {
    [
        (
            ["CreateContainerView", "CreateListView"].as_slice(),
            "DestroyView",
        ),
        (&["CreatePropertyCollector"], "DestroyPropertyCollector"),
        (
            &["CreateCollectorForTasks", "CreateCollectorWithInfoFilterForTasks"],
            "DestroyCollector",
        ),
    ]
    .map(|(made, destroyed)| {
        let made = made.iter().map(|method| fake.calls(method).len()).sum();
        (made, fake.calls(destroyed).len())
    })
}

#[tokio::test]
async fn what_was_made_in_the_session_is_destroyed() {
    let breaks = Arc::new(AtomicUsize::new(0));
    let broken = breaks.clone();
    let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
        let polls = call.method() == "WaitForUpdatesEx" && call.value("version") != Some("");
        (polls && broken.load(Ordering::SeqCst) == 1).then(|| Reply::new(503, ""))
    })
    .await;
    fake.push(1, &first_set());
    let mut stream = follow(&vcenter, WatchSet::default());
    stream.settled().await;
    fake.called(|call| call.method() == "SetCollectorPageSize").await;
    fake.called(|call| call.method() == "WaitForUpdatesEx" && call.value("_this") == Some("session[1]pc-2"))
        .await;
    // The stream fails and the session stays.
    breaks.store(1, Ordering::SeqCst);
    fake.push(1, &host("modify", "host-1", &change("name", "renamed")));
    stream.lost().await;
    breaks.store(0, Ordering::SeqCst);
    fake.push(3, &first_set());
    stream.settled().await;
    for (made, destroyed) in made_and_destroyed(&fake) {
        assert!(
            destroyed >= 1 && made > destroyed - 1,
            "{:?}",
            made_and_destroyed(&fake)
        );
    }
    assert_eq!(fake.calls("Login").len(), 1);
    stream.stop().await;
    for (made, destroyed) in made_and_destroyed(&fake) {
        assert_eq!(made, destroyed, "{:?}", made_and_destroyed(&fake));
    }
    assert_eq!(fake.calls("Logout").len(), 1);
    // A pending poll is cancelled before its collector is destroyed.
    let on = |method: &str| -> Vec<String> {
        let calls = fake.calls(method);
        let on = calls.iter().filter_map(|call| call.value("_this"));
        on.map(str::to_owned).collect()
    };
    let cancelled = on("CancelWaitForUpdates");
    assert!(!cancelled.is_empty());
    assert_eq!(cancelled, on("DestroyPropertyCollector"));
}

const EVACUATION: &str = "maintenance.vm.evacuation.poweroff";

fn one_node() -> WatchSet {
    let uuid = VmUuid::parse("42160000-0000-4000-8000-0000000000a1").unwrap();
    WatchSet {
        vms: Arc::new([VmKey::Uuid(uuid)].into()),
        ..WatchSet::default()
    }
}

fn finds_the_vm(call: &Request) -> Option<Reply> {
    let found = r#"<returnval type="VirtualMachine">vm-7</returnval>"#;
    (call.method() == "FindAllByUuid").then(|| Reply::of("FindAllByUuid", found))
}

#[tokio::test]
async fn mark_for_evacuation_by_power_off_is_read_where_vcenter_knows_it() {
    for is_known in [true, false] {
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
            let asks = call.method() == "CreateFilter" && call.body.contains(EVACUATION);
            match asks && !is_known {
                true => Some(Reply::fault("InvalidProperty", "<name>config.extraConfig</name>")),
                false => finds_the_vm(call),
            }
        })
        .await;
        let mark = r#"<changeSet><name>config.extraConfig["maintenance.vm.evacuation.poweroff"]</name><op>assign</op>
            <val i:type="OptionValue"><key>maintenance.vm.evacuation.poweroff</key><value>TRUE</value></val></changeSet>"#;
        let mark = if is_known { mark } else { "" };
        let vm = format!(
            r#"<objectSet><kind>enter</kind><obj type="VirtualMachine">vm-7</obj>{}{mark}</objectSet>"#,
            change("name", "gpu-1")
        );
        fake.push(1, &[first_set(), vm].concat());
        let mut stream = follow(&vcenter, one_node());
        let marked = stream.until(|update| {
            let VsphereUpdate::Vm(vm) = update else {
                return None;
            };
            Some(vm.evacuation_power_off)
        });
        assert_eq!(marked.await, is_known);
        let filters = fake.calls("CreateFilter");
        let of_vms: Vec<bool> = filters
            .iter()
            .filter(|call| call.body.contains("<type>VirtualMachine</type><pathSet>"))
            .map(|call| call.body.contains(EVACUATION))
            .collect();
        assert_eq!(of_vms, if is_known { vec![true] } else { vec![true, false] });
        stream.stop().await;
    }
}

const PARTIAL: &str = "runtime.partialMaintenanceMode";

/// Without them, the stream would go on for weeks.
#[tokio::test]
async fn optional_properties_are_asked_for_again_after_a_fault_that_may_pass() {
    for property in [EVACUATION, PARTIAL] {
        let mut is_up = false;
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
            let fails = call.method() == "CreateFilter"
                && call.body.contains(property)
                && !std::mem::replace(&mut is_up, true);
            match fails {
                true => Some(Reply::fault("SystemError", "")),
                false => finds_the_vm(call),
            }
        })
        .await;
        fake.push(1, &first_set());
        let mut stream = follow(&vcenter, one_node());
        stream.settled().await;
        let kind = "<pathSet>runtime.inMaintenanceMode";
        let kind = if property == EVACUATION {
            "<type>VirtualMachine</type><pathSet>"
        } else {
            kind
        };
        let filters = fake.calls("CreateFilter");
        let asked: Vec<bool> = filters
            .iter()
            .filter(|call| call.body.contains(kind))
            .map(|call| call.body.contains(property))
            .collect();
        assert_eq!(asked, [true, true], "{property}");
        stream.stop().await;
    }
}

#[tokio::test]
async fn partial_maintenance_is_read_where_vcenter_knows_it() {
    for (old_api, is_refused) in [(false, false), (false, true), (true, false)] {
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| match call.method() {
            "" if old_api => {
                let versions = "<namespaces><namespace><name>urn:vim25</name><version>8.0.2.0</version></namespace></namespaces>";
                Some(Reply::new(200, versions))
            }
            "CreateFilter" if is_refused && call.body.contains(PARTIAL) => {
                Some(Reply::fault("InvalidProperty", "<name>partialMaintenanceMode</name>"))
            }
            _ => None,
        })
        .await;
        let is_known = !old_api && !is_refused;
        let mode = |key: &str, status: &str| {
            format!(
                "<HostPartialMaintenanceModeRuntimeInfo><key>{key}</key><hostStatus>{status}</hostStatus></HostPartialMaintenanceModeRuntimeInfo>"
            )
        };
        let modes = [
            mode("other", "notInPartialMM"),
            mode("quickPatchPartialMM", "inPartialMM"),
        ]
        .concat();
        let modes = if is_known {
            change(PARTIAL, &modes)
        } else {
            String::new()
        };
        fake.push(
            1,
            &host("enter", "host-1", &[change("name", "esx1"), modes].concat()),
        );
        let mut stream = follow(&vcenter, Default::default());
        let mode = stream.until(|update| {
            let VsphereUpdate::Host(host) = update else {
                return None;
            };
            Some(host.partial_maintenance.clone())
        });
        let expected = is_known.then(|| "quickPatchPartialMM".to_owned());
        assert_eq!(mode.await, expected, "{old_api} {is_refused}");
        let filters = fake.calls("CreateFilter");
        let of_hosts: Vec<bool> = filters
            .iter()
            .filter(|call| call.body.contains("<pathSet>runtime.inMaintenanceMode"))
            .map(|call| call.body.contains(PARTIAL))
            .collect();
        let expected: &[bool] = match (old_api, is_refused) {
            (true, _) => &[false],
            (false, true) => &[true, false],
            (false, false) => &[true],
        };
        assert_eq!(of_hosts, expected, "{old_api} {is_refused}");
        stream.stop().await;
    }
}

#[tokio::test]
async fn uuid_is_asked_for_in_both_byte_orders() {
    let (fake, vcenter, _server) = Fake::start(|call: &Request| {
        let is_swapped = call.value("uuid") == Some("00001642-0000-0040-8000-0000000000a1");
        finds_the_vm(call).filter(|_| is_swapped)
    })
    .await;
    fake.push(
        1,
        &[
            first_set(),
            r#"<objectSet><kind>enter</kind><obj type="VirtualMachine">vm-7</obj></objectSet>"#.to_owned(),
        ]
        .concat(),
    );
    let mut stream = follow(&vcenter, one_node());
    let found = stream.until(|update| {
        let VsphereUpdate::Found { vms, .. } = update else {
            return None;
        };
        Some(vms.len())
    });
    assert_eq!(found.await, 1);
    let mut asked: Vec<_> = fake
        .calls("FindAllByUuid")
        .iter()
        .map(|call| call.value("uuid").unwrap().to_owned())
        .collect();
    asked.sort();
    assert_eq!(
        asked,
        [
            "00001642-0000-0040-8000-0000000000a1",
            "42160000-0000-4000-8000-0000000000a1"
        ]
    );
    stream.stop().await;
}

/// The place of the VM is not read, so it is in no folder of the scope.
#[tokio::test]
async fn vm_that_an_episode_keeps_off_is_found_outside_the_scope() {
    for kept_off in [false, true] {
        let script = |call: &Request| {
            let is_place = call.method() == "RetrievePropertiesEx" && call.body.contains("parentVApp");
            match is_place {
                true => Some(Reply::of("RetrievePropertiesEx", "")),
                false => finds_the_vm(call),
            }
        };
        let (fake, vcenter, _server) =
            Fake::start_with(script, |settings| settings.scope = "group-v9".parse().unwrap()).await;
        fake.push(
            1,
            &[
                first_set(),
                r#"<objectSet><kind>enter</kind><obj type="VirtualMachine">vm-7</obj></objectSet>"#
                    .to_owned(),
            ]
            .concat(),
        );
        let watch_set = WatchSet {
            kept_off: kept_off.then(|| VmRef::new("vm-7")).into_iter().collect(),
            ..one_node()
        };
        let mut stream = follow(&vcenter, watch_set);
        let found = stream.until(|update| {
            let VsphereUpdate::Found { vms, .. } = update else {
                return None;
            };
            Some(vms.len())
        });
        assert_eq!(found.await, usize::from(kept_off));
        stream.stop().await;
    }
}

/// Inventory names are not in the search index, and `/` is escaped in them.
#[tokio::test]
async fn vms_are_looked_up_by_name_in_a_list_of_all_names() {
    let named = |vm: &str, name: &str| {
        format!(
            r#"<objects><obj type="VirtualMachine">{vm}</obj><propSet><name>name</name><val>{name}</val></propSet></objects>"#
        )
    };
    let all = [
        named("vm-7", "gpu%2f1"),
        named("vm-8", "gpu-2"),
        named("vm-9", "gpu%2f1"),
    ]
    .concat();
    let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
        let lists_names = call.method() == "RetrievePropertiesEx"
            && call
                .body
                .contains("<type>VirtualMachine</type><pathSet>name</pathSet></propSet>");
        lists_names.then(|| Reply::of(call.method(), &format!("<returnval>{all}</returnval>")))
    })
    .await;
    fake.push(1, &first_set());
    let names = ["gpu/1", "gpu-3"].map(|name| VmKey::Name(name.to_owned()));
    let watch_set = WatchSet {
        vms: Arc::new(names.into()),
        ..WatchSet::default()
    };
    let mut stream = follow(&vcenter, watch_set);
    let found = |update: &VsphereUpdate| {
        let VsphereUpdate::Found { key, vms } = update else {
            return None;
        };
        Some((key.clone(), vms.clone()))
    };
    let clones = ["vm-7", "vm-9"].map(VmRef::new).into();
    let [with_slash, absent] = ["gpu/1", "gpu-3"].map(|name| VmKey::Name(name.to_owned()));
    assert_eq!(stream.until(found).await, (absent, [].into()));
    assert_eq!(stream.until(found).await, (with_slash, clones));
    let views_of_vms = |call: &&Request| call.value("type") == Some("VirtualMachine");
    let views = fake.calls("CreateContainerView");
    assert_eq!(views.iter().filter(views_of_vms).count(), 1);
    assert_eq!(fake.calls("DestroyView").len(), 1, "the view of VMs is temporary");
    assert!(fake.calls("FindAllByUuid").is_empty());
    stream.stop().await;
}

/// Reading all names costs vCenter more than a search.
#[tokio::test]
async fn names_are_not_listed_for_a_lookup_by_uuid() {
    let (fake, vcenter, _server) = Fake::start(finds_the_vm).await;
    fake.push(1, &first_set());
    let mut stream = follow(&vcenter, one_node());
    let is_found = |update: &VsphereUpdate| matches!(update, VsphereUpdate::Found { .. }).then_some(());
    stream.until(is_found).await;
    let views = fake.calls("CreateContainerView");
    assert!(
        views.iter().all(|call| call.value("type") == Some("HostSystem")),
        "{views:?}"
    );
    stream.stop().await;
}

/// It was deleted after the search.
#[tokio::test]
async fn vm_that_the_list_view_does_not_resolve_is_not_found() {
    let (fake, vcenter, _server) = Fake::start(|call: &Request| {
        let vm = |name: &str| format!(r#"<returnval type="VirtualMachine">{name}</returnval>"#);
        match call.method() {
            "FindAllByUuid" => Some(Reply::of(call.method(), &[vm("vm-7"), vm("vm-8")].concat())),
            "ModifyListView" => Some(Reply::of(call.method(), &vm("vm-8"))),
            _ => None,
        }
    })
    .await;
    fake.push(1, &first_set());
    let mut stream = follow(&vcenter, one_node());
    let found = stream.until(|update| {
        let VsphereUpdate::Found { vms, .. } = update else {
            return None;
        };
        Some(vms.clone())
    });
    assert_eq!(found.await, [VmRef::new("vm-7")].into());
    stream.stop().await;
}

/// A busy vCenter pushes changes all the time.
#[tokio::test]
async fn task_history_is_read_although_changes_never_pause() {
    let (fake, vcenter, _server) = Fake::start(|call: &Request| {
        let polls = call.method() == "WaitForUpdatesEx" && call.value("_this") == Some("session[1]pc-1");
        polls.then(|| {
            let seen: u64 = call.value("version").unwrap().parse().unwrap_or(0);
            let renamed = host("modify", "host-1", &change("name", &format!("esx{seen}")));
            let set = format!(
                "<returnval><version>{}</version><filterSet>{renamed}</filterSet></returnval>",
                seen + 1
            );
            let pause = Duration::from_millis(50 * seen.min(1));
            Reply::of("WaitForUpdatesEx", &set).after(pause)
        })
    })
    .await;
    let mut stream = follow(&vcenter, WatchSet::default());
    stream.settled().await;
    let history = fake.called(|call| call.method() == "CreateCollectorWithInfoFilterForTasks");
    tokio::pin!(history);
    loop {
        tokio::select! {
            _ = &mut history => break,
            update = stream.updates.recv() => assert!(update.is_some(), "the stream ended"),
        }
    }
    stream.stop().await;
}

#[tokio::test]
async fn filter_of_hosts_reads_their_state_and_their_tasks() {
    let (fake, vcenter, _server) = Fake::start(|_| None).await;
    fake.push(1, &first_set());
    let mut stream = follow(&vcenter, WatchSet::default());
    stream.settled().await;
    let filter = &fake.calls("CreateFilter")[0];
    for part in [
        "<propSet><type>HostSystem</type><pathSet>name</pathSet>",
        "<pathSet>runtime.inMaintenanceMode</pathSet>",
        "<pathSet>recentTask</pathSet>",
        "<propSet><type>Task</type><pathSet>info.descriptionId</pathSet>",
        r#"<obj type="ContainerView">session[1]hosts-1</obj><skip>true</skip>"#,
        "<type>ContainerView</type><path>view</path>",
        "<type>HostSystem</type><path>recentTask</path>",
    ] {
        assert!(filter.body.contains(part), "{part}: {}", filter.body);
    }
    assert_eq!(filter.value("_this"), Some("session[1]pc-1"));
    stream.stop().await;
}
