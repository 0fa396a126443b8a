//! Calls that change something: the reads before them, and how often they are sent.

use haulout_core::facts::vsphere::DeviceChange;
use haulout_core::ids::{HostRef, TaskRef, VmRef};
use haulout_core::maintenance::effect::{PowerOffCause, PowerOnTarget};
use haulout_vsphere::StartedTask;
use haulout_vsphere::client::{Error, Vcenter};
use haulout_vsphere::fault::{Failure, FaultKind};

use super::server::{DEAD, Fake, Reply, Request, login, permit};

fn vm() -> VmRef {
    VmRef::new("vm-7")
}

fn property(path: &str, value: &str) -> String {
    format!("<propSet><name>{path}</name><val>{value}</val></propSet>")
}

fn reference(path: &str, kind: &str, value: &str) -> String {
    format!(r#"<propSet><name>{path}</name><val type="{kind}">{value}</val></propSet>"#)
}

fn object(kind: &str, name: &str, properties: &str) -> String {
    format!(r#"<objects><obj type="{kind}">{name}</obj>{properties}</objects>"#)
}

/// The response to the read of the VM.
fn seen(power: &str, beside: &str) -> Reply {
    let properties = [
        property("runtime.powerState", power),
        reference("runtime.host", "HostSystem", "host-1"),
        reference("resourcePool", "ResourcePool", "resgroup-8"),
        reference("parent", "Folder", "group-v3"),
        property("config.changeVersion", "version-1"),
        property("config.hardware.device", DEVICE),
    ];
    let vm = object("VirtualMachine", "vm-7", &properties.concat());
    Reply::of(
        "RetrievePropertiesEx",
        &format!("<returnval>{vm}{beside}</returnval>"),
    )
}

/// The reads for the VM's datacenter, or for the target host's resource pool.
fn above() -> String {
    [
        object("Datacenter", "datacenter-1", &property("name", "DC0")),
        object(
            "HostSystem",
            "host-2",
            &reference("parent", "ClusterComputeResource", "domain-c9"),
        ),
        object(
            "ClusterComputeResource",
            "domain-c9",
            &reference("environmentBrowser", "EnvironmentBrowser", "envbrowser-9"),
        ),
        object(
            "ResourcePool",
            "resgroup-8",
            &reference("owner", "ClusterComputeResource", "domain-c9"),
        ),
    ]
    .concat()
}

fn looks(call: &Request) -> bool {
    call.method() == "RetrievePropertiesEx"
}

/// The calls that change something, with the power state in which each is sent.
const ACTS: [(&str, &str); 6] = [
    ("ShutdownGuest", "poweredOn"),
    ("PowerOffVM_Task", "poweredOn"),
    ("PowerOnVM_Task", "poweredOff"),
    ("PowerOnMultiVM_Task", "poweredOff"),
    ("RelocateVM_Task", "poweredOff"),
    ("ReconfigVM_Task", "poweredOff"),
];

/// The device of the VM is at the same address of another host.
const DEVICE: &str = r#"<VirtualDevice i:type="VirtualPCIPassthrough"><key>13000</key><backing i:type="VirtualPCIPassthroughDeviceBackingInfo"><deviceName></deviceName><id>0000:3b:00.0</id><deviceId>2235</deviceId><systemId>elsewhere</systemId><vendorId>4318</vendorId></backing></VirtualDevice>"#;

/// What a read before a call is answered with.
fn reads(call: &Request, power: &str) -> Option<Reply> {
    let device = "<pciPassthrough><name></name><pciDevice><id>0000:3b:00.0</id><vendorId>4318</vendorId><deviceId>8757</deviceId><deviceName>A40</deviceName></pciDevice><systemId>here</systemId></pciPassthrough>";
    match call.method() {
        "QueryConfigTarget" => Some(Reply::of(
            "QueryConfigTarget",
            &format!("<returnval>{device}</returnval>"),
        )),
        _ => looks(call).then(|| seen(power, &above())),
    }
}

async fn act(vcenter: &Vcenter, method: &str) -> Result<(), Error> {
    let (permit, vm, person) = (permit(), vm(), PowerOffCause::Request(None));
    match method {
        "ShutdownGuest" => vcenter.shutdown_guest(&permit, &vm, &person).await.map(|_| ()),
        "PowerOffVM_Task" => vcenter.power_off(&permit, &vm, &person).await.map(|_| ()),
        "PowerOnVM_Task" => vcenter
            .power_on(&permit, &vm, &PowerOnTarget::Host(HostRef::new("host-1")))
            .await
            .map(|_| ()),
        "PowerOnMultiVM_Task" => vcenter
            .power_on(&permit, &vm, &PowerOnTarget::Drs)
            .await
            .map(|_| ()),
        "RelocateVM_Task" => vcenter
            .relocate(&permit, &vm, &HostRef::new("host-2"))
            .await
            .map(|_| ()),
        "ReconfigVM_Task" => {
            let change = DeviceChange {
                from: "0000:3b:00.0".to_owned(),
                to: "0000:3b:00.0".to_owned(),
            };
            let here = HostRef::new("host-1");
            let changed = vcenter.reconfigure_devices(&permit, &vm, &here, &[change]).await;
            changed.map(|_| ())
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn relocation_names_the_folder_of_the_vm() {
    let started = |call: &Request| match call.method() {
        "RelocateVM_Task" => Some(Reply::of(
            "RelocateVM_Task",
            r#"<returnval type="Task">task-1</returnval>"#,
        )),
        _ => looks(call).then(|| seen("poweredOff", &above())),
    };
    let (fake, vcenter, _server) = Fake::start(started).await;
    act(&vcenter, "RelocateVM_Task").await.unwrap();
    let call = &fake.calls("RelocateVM_Task")[0];
    assert_eq!(call.value("folder"), Some("group-v3"), "{}", call.body);
    // vCenter validates the order of the elements.
    let (_, after) = call.body.split_once("<folder").unwrap();
    assert!(after.contains("<host"), "{}", call.body);
}

#[tokio::test]
async fn act_is_not_sent_again_in_another_session() {
    for (method, power) in ACTS {
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| match call.method() {
            it if it == method => Some(Reply::new(500, DEAD)),
            _ => reads(call, power),
        })
        .await;
        let error = act(&vcenter, method).await.unwrap_err();
        assert_eq!(error.fault().unwrap().kind, FaultKind::NotAuthenticated);
        assert_eq!(fake.calls(method).len(), 1, "{method}");
        assert_eq!(fake.calls("Login").len(), 1, "{method}");
    }
}

#[tokio::test]
async fn act_is_not_sent_in_a_session_that_came_after_the_look() {
    for (method, power) in ACTS {
        let mut logins = 0;
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
            if call.method() == "Login" {
                logins += 1;
                return Some(login(logins));
            }
            let is_first = call.head.contains("vmware_soap_session=\"1\"");
            match call.method() {
                "Logout" => None,
                // The response to the read is late, and the session has ended.
                _ if looks(call) && call.body.contains("vm-7") => {
                    Some(seen(power, &above()).after(std::time::Duration::from_millis(300)))
                }
                _ if is_first => Some(Reply::new(500, DEAD)),
                _ => reads(call, power),
            }
        })
        .await;
        let other = [HostRef::new("host-9")];
        let (acted, read) = tokio::join!(act(&vcenter, method), vcenter.survey(&other));
        read.unwrap();
        assert_eq!(fake.calls("Login").len(), 2);
        assert_eq!(kind_of(acted), FaultKind::NotAuthenticated, "{method}");
        let in_second = |call: &Request| call.head.contains("vmware_soap_session=\"2\"");
        assert!(!fake.calls(method).iter().any(in_second), "{method}");
    }
}

#[tokio::test]
async fn act_is_not_sent_again_over_another_connection() {
    for (method, power) in ACTS {
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| match call.method() {
            it if it == method => Some(Reply::Close),
            _ => reads(call, power),
        })
        .await;
        let error = act(&vcenter, method).await.unwrap_err();
        assert!(
            matches!(error, Error::Transport { .. }),
            "{method}: {}",
            error.chain()
        );
        assert_eq!(fake.calls(method).len(), 1, "{method}");
    }
}

fn kind_of<T: std::fmt::Debug>(answer: Result<T, Error>) -> FaultKind {
    answer.unwrap_err().fault().unwrap().kind.clone()
}

/// A task in the response to a read. The VM lists its own tasks.
fn task(name: &str, what: &str, entity: (&str, &str), state: &str) -> String {
    let properties = [
        property("info.descriptionId", what),
        reference("info.entity", entity.0, entity.1),
        property("info.state", state),
        property("info.cancelled", "false"),
        property("info.queueTime", "2026-11-21T09:57:02Z"),
    ];
    object("Task", name, &properties.concat())
}

/// VM vm-7 with the task task-3.
fn vm_with_task(power: &str) -> String {
    let own = r#"<ManagedObjectReference type="Task">task-3</ManagedObjectReference>"#;
    let vm = [
        property("runtime.powerState", power),
        reference("runtime.host", "HostSystem", "host-1"),
        property("recentTask", own),
    ];
    object("VirtualMachine", "vm-7", &vm.concat())
}

fn seen_at_work(power: &str, what: &str, state: &str) -> Reply {
    let vm = vm_with_task(power);
    let task = task("task-3", what, ("VirtualMachine", "vm-7"), state);
    Reply::of(
        "RetrievePropertiesEx",
        &format!("<returnval>{vm}{task}</returnval>"),
    )
}

#[tokio::test]
async fn nothing_is_sent_while_another_task_is_at_work_on_the_vm() {
    for (method, power) in ACTS {
        for (state, is_at_work) in [("running", true), ("queued", true), ("success", false)] {
            let (fake, vcenter, _server) = Fake::start(move |call: &Request| match call.method() {
                it if it == method => Some(Reply::fault("SystemError", "")),
                _ => looks(call).then(|| seen_at_work(power, "VirtualMachine.createSnapshot", state)),
            })
            .await;
            let answer = act(&vcenter, method).await;
            if is_at_work {
                assert_eq!(kind_of(answer), FaultKind::TaskInProgress, "{method}");
            }
            assert!(!is_at_work || fake.calls(method).is_empty(), "{method}, {state}");
        }
    }
}

/// A VM with an unfinished task of these properties, beside those that every task has.
fn busy_vm(power: &str, queued_at: &str, more: &str) -> Reply {
    let vm = vm_with_task(power);
    let task = [
        property("info.descriptionId", "VirtualMachine.createSnapshot"),
        reference("info.entity", "VirtualMachine", "vm-7"),
        property("info.state", "queued"),
        property("info.queueTime", queued_at),
    ];
    let task = object("Task", "task-3", &(task.concat() + more));
    Reply::of(
        "RetrievePropertiesEx",
        &format!("<returnval>{vm}{task}</returnval>"),
    )
}

#[tokio::test]
async fn refusal_names_the_task_on_the_vm_its_user_and_its_age() {
    let reason = "<propSet><name>info.reason</name><val i:type=\"TaskReasonUser\"><userName>LAB\\backup</userName></val></propSet>";
    let seen =
        move |call: &Request| looks(call).then(|| busy_vm("poweredOn", "2026-11-21T09:57:02Z", reason));
    let (_fake, vcenter, _server) = Fake::start(seen).await;
    let refused = act(&vcenter, "ShutdownGuest").await.unwrap_err();
    let message = refused.fault().unwrap().message.clone();
    for part in [
        "VirtualMachine.createSnapshot",
        "task-3",
        "LAB\\backup",
        "2026-11-21T09:57:02Z",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn task_that_was_left_unfinished_long_ago_stops_no_act() {
    // The session began at 2026-11-21T09:57:00Z.
    for (queued_at, counts) in [
        ("2013-04-01T10:00:00Z", false),
        ("2026-11-20T09:56:59Z", false),
        ("2026-11-20T09:57:01Z", true),
        ("2026-11-22T10:00:00Z", true),
    ] {
        let sent = |call: &Request| match call.method() {
            "ShutdownGuest" => Some(Reply::of("ShutdownGuest", "")),
            _ => looks(call).then(|| busy_vm("poweredOn", queued_at, "")),
        };
        let (fake, vcenter, _server) = Fake::start(sent).await;
        let answer = act(&vcenter, "ShutdownGuest").await;
        assert_eq!(answer.is_err(), counts, "{queued_at}: {answer:?}");
        assert_eq!(fake.calls("ShutdownGuest").is_empty(), counts, "{queued_at}");
    }
}

#[tokio::test]
async fn act_whose_check_got_no_answer_was_not_sent() {
    for (method, _) in ACTS {
        for (reply, what) in [
            (Reply::Close, "a cut connection"),
            (Reply::new(503, b"no healthy upstream"), "503"),
            (
                Reply::of("RetrievePropertiesEx", "<returnval><objects/></returnval>"),
                "nonsense",
            ),
        ] {
            let (fake, vcenter, _server) =
                Fake::start(move |call: &Request| looks(call).then(|| reply.clone())).await;
            let error = act(&vcenter, method).await.unwrap_err();
            assert!(
                matches!(error.failure(), Failure::NotSent),
                "{method}, {what}: {}",
                error.chain()
            );
            assert!(fake.calls(method).is_empty(), "{method}, {what}");
        }
    }
}

#[tokio::test]
async fn task_of_the_same_kind_at_work_is_taken_for_ours() {
    for (method, power, what) in [
        ("PowerOffVM_Task", "poweredOn", "VirtualMachine.powerOff"),
        ("PowerOnVM_Task", "poweredOff", "VirtualMachine.powerOn"),
        ("RelocateVM_Task", "poweredOff", "VirtualMachine.relocate"),
        ("ReconfigVM_Task", "poweredOff", "VirtualMachine.reconfigure"),
    ] {
        let (fake, vcenter, _server) =
            Fake::start(move |call: &Request| looks(call).then(|| seen_at_work(power, what, "running")))
                .await;
        let (permit, vm) = (permit(), vm());
        let here = HostRef::new("host-1");
        let started = match method {
            "PowerOffVM_Task" => {
                vcenter
                    .power_off(&permit, &vm, &PowerOffCause::Request(None))
                    .await
            }
            "PowerOnVM_Task" => vcenter.power_on(&permit, &vm, &PowerOnTarget::Host(here)).await,
            "RelocateVM_Task" => vcenter.relocate(&permit, &vm, &HostRef::new("host-2")).await,
            _ => vcenter.reconfigure_devices(&permit, &vm, &here, &[]).await,
        };
        assert_eq!(started.unwrap(), StartedTask::Running(TaskRef::new("task-3")));
        assert!(fake.calls(method).is_empty(), "{method}");
    }
}

#[tokio::test]
async fn vm_that_is_on_is_not_relocated() {
    for power in ["poweredOn", "suspended"] {
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| reads(call, power)).await;
        let answer = vcenter.relocate(&permit(), &vm(), &HostRef::new("host-2")).await;
        assert_eq!(kind_of(answer), FaultKind::InvalidPowerState);
        assert!(fake.calls("RelocateVM_Task").is_empty());
    }
}

#[tokio::test]
async fn vm_that_is_powered_on_during_vcenters_check_is_not_relocated() {
    for (after, is_relocated) in [("poweredOn", false), ("poweredOff", true)] {
        let mut power = "poweredOff";
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| match call.method() {
            "CheckRelocate_Task" => {
                power = after;
                let task = r#"<returnval type="Task">task-9</returnval>"#;
                Some(Reply::of("CheckRelocate_Task", task))
            }
            "RelocateVM_Task" => {
                let task = r#"<returnval type="Task">task-10</returnval>"#;
                Some(Reply::of("RelocateVM_Task", task))
            }
            "RetrievePropertiesEx" if call.body.contains("task-9") => {
                let task = object("Task", "task-9", &property("info.state", "success"));
                let found = format!("<returnval>{task}</returnval>");
                Some(Reply::of("RetrievePropertiesEx", &found))
            }
            _ => reads(call, power),
        })
        .await;
        let answer = vcenter.relocate(&permit(), &vm(), &HostRef::new("host-2")).await;
        assert_eq!(fake.calls("CheckRelocate_Task").len(), 1);
        assert_eq!(
            fake.calls("RelocateVM_Task").len(),
            usize::from(is_relocated),
            "{answer:?}"
        );
        if !is_relocated {
            assert_eq!(kind_of(answer), FaultKind::InvalidPowerState);
        }
    }
}

#[tokio::test]
async fn guest_of_a_vm_that_is_off_is_not_asked() {
    let (fake, vcenter, _server) =
        Fake::start(|call: &Request| looks(call).then(|| seen("poweredOff", ""))).await;
    let asked = vcenter
        .shutdown_guest(&permit(), &vm(), &PowerOffCause::Request(None))
        .await;
    asked.unwrap();
    assert!(fake.calls("ShutdownGuest").is_empty());

    // The VM went off between the read and the call.
    let (_fake, vcenter, _server) = Fake::start(|call: &Request| match call.method() {
        "ShutdownGuest" => Some(Reply::fault(
            "InvalidPowerState",
            "<existingState>poweredOff</existingState>",
        )),
        _ => looks(call).then(|| seen("poweredOn", "")),
    })
    .await;
    let asked = vcenter
        .shutdown_guest(&permit(), &vm(), &PowerOffCause::Request(None))
        .await;
    asked.unwrap();
}

const ENTERS: &str = "HostSystem.enterMaintenanceMode";

/// The response to the read of the host and of its maintenance task.
fn host_seen(in_maintenance: &str, tasks: &[(&str, &str)]) -> String {
    let host = [
        property("name", "esx1"),
        property("runtime.inMaintenanceMode", in_maintenance),
        property("runtime.connectionState", "connected"),
    ];
    let tasks: String = tasks
        .iter()
        .map(|(name, state)| task(name, ENTERS, ("HostSystem", "host-1"), state))
        .collect();
    object("HostSystem", "host-1", &host.concat()) + &tasks
}

#[tokio::test]
async fn power_is_cut_only_while_the_host_is_leaving() {
    let by_person = PowerOffCause::Request(None);
    let by = |task: bool| PowerOffCause::Host {
        host: HostRef::new("host-1"),
        task: task.then(|| TaskRef::new("task-9")),
    };
    let cases = [
        (by_person, host_seen("false", &[]), true, "a person asks"),
        (by(true), host_seen("true", &[]), true, "in maintenance"),
        (
            by(true),
            host_seen("true", &[("task-9", "error")]),
            true,
            "in maintenance, the task ended",
        ),
        (
            by(true),
            host_seen("false", &[("task-9", "queued")]),
            true,
            "queued",
        ),
        (
            by(true),
            host_seen("false", &[("task-9", "running")]),
            true,
            "running",
        ),
        (
            by(true),
            host_seen("false", &[("task-9", "error")]),
            false,
            "cancelled",
        ),
        (
            by(true),
            host_seen("false", &[("task-9", "success")]),
            false,
            "in and out again",
        ),
        (by(true), host_seen("false", &[]), false, "unknown task"),
        (
            by(true),
            host_seen("false", &[("task-8", "error")]),
            false,
            "unknown task, another ended",
        ),
        (
            by(true),
            host_seen("false", &[("task-8", "running")]),
            true,
            "unknown task, another runs",
        ),
        (
            by(false),
            host_seen("false", &[("task-8", "running")]),
            true,
            "no task is known, one runs",
        ),
        (by(false), host_seen("false", &[]), false, "back in service"),
        (by(true), String::new(), false, "the host is gone"),
    ];
    for (asked, beside, goes_on, what) in cases {
        let (fake, vcenter, _server) = Fake::start(move |call: &Request| match call.method() {
            "PowerOffVM_Task" => Some(Reply::of(
                "PowerOffVM_Task",
                r#"<returnval type="Task">task-1</returnval>"#,
            )),
            _ => looks(call).then(|| seen("poweredOn", &beside)),
        })
        .await;
        let shut_down = vcenter.shutdown_guest(&permit(), &vm(), &asked).await;
        let cut = vcenter.power_off(&permit(), &vm(), &asked).await;
        let sent = (
            fake.calls("ShutdownGuest").len(),
            fake.calls("PowerOffVM_Task").len(),
        );
        if goes_on {
            shut_down.expect(what);
            assert_eq!(
                cut.unwrap(),
                StartedTask::Running(TaskRef::new("task-1")),
                "{what}"
            );
            assert_eq!(sent, (1, 1), "{what}");
            continue;
        }
        let error = cut.unwrap_err();
        assert_eq!(kind_of(shut_down), FaultKind::NotLeaving, "{what}");
        assert_eq!(kind_of::<()>(Err(error)), FaultKind::NotLeaving, "{what}");
        assert_eq!(sent, (0, 0), "{what}");
        // In one read: the state could change between two.
        assert_eq!(fake.calls("RetrievePropertiesEx").len(), 2, "{what}");
    }
}

#[tokio::test]
async fn refusal_names_the_host_and_why() {
    let denied = r#"<missingSet><path>runtime.inMaintenanceMode</path><fault><fault i:type="NoPermission"/>
        <localizedMessage>denied</localizedMessage></fault></missingSet>"#;
    for (beside, words) in [
        (
            host_seen("false", &[]),
            "host esx1 (connected) is not entering maintenance mode any more; nothing was sent",
        ),
        (
            object("HostSystem", "host-1", denied),
            "host host-1 cannot be read (NoPermission: denied); nothing was sent",
        ),
        (
            String::new(),
            "host host-1 is not shown by vCenter; nothing was sent",
        ),
    ] {
        let (_fake, vcenter, _server) =
            Fake::start(move |call: &Request| looks(call).then(|| seen("poweredOn", &beside))).await;
        let asked = PowerOffCause::Host {
            host: HostRef::new("host-1"),
            task: None,
        };
        let error = vcenter.power_off(&permit(), &vm(), &asked).await.unwrap_err();
        assert_eq!(error.fault().unwrap().message, words);
    }
}

#[tokio::test]
async fn power_is_not_cut_if_the_vm_has_left_the_host() {
    let host = [
        property("name", "esx2"),
        property("runtime.inMaintenanceMode", "true"),
    ];
    let beside = object("HostSystem", "host-2", &host.concat());
    let (fake, vcenter, _server) =
        Fake::start(move |call: &Request| looks(call).then(|| seen("poweredOn", &beside))).await;
    let asked = PowerOffCause::Host {
        host: HostRef::new("host-2"),
        task: None,
    };
    let shut_down = vcenter.shutdown_guest(&permit(), &vm(), &asked).await;
    let cut = vcenter.power_off(&permit(), &vm(), &asked).await.unwrap_err();
    let fault = cut.fault().unwrap();
    assert_eq!(kind_of(shut_down), FaultKind::NotLeaving);
    assert_eq!(fault.kind, FaultKind::NotLeaving);
    assert_eq!(
        fault.message,
        "the VM is on host-1 now, and not on host-2, which is maintained; nothing was sent"
    );
    let sent = fake.calls("ShutdownGuest").len() + fake.calls("PowerOffVM_Task").len();
    assert_eq!(sent, 0);
}

#[tokio::test]
async fn task_of_the_host_is_no_task_of_the_vm() {
    let (fake, vcenter, _server) = Fake::start(|call: &Request| {
        looks(call).then(|| seen("poweredOn", &host_seen("false", &[("task-9", "running")])))
    })
    .await;
    let asked = PowerOffCause::Host {
        host: HostRef::new("host-1"),
        task: Some(TaskRef::new("task-9")),
    };
    vcenter.shutdown_guest(&permit(), &vm(), &asked).await.unwrap();
    assert_eq!(fake.calls("ShutdownGuest").len(), 1);
}

#[tokio::test]
async fn power_on_names_its_host_and_is_not_sent_for_another() {
    let power_on = |to: &'static str| async move {
        let (fake, vcenter, _server) = Fake::start(|call: &Request| match call.method() {
            "PowerOnVM_Task" => Some(Reply::of(
                "PowerOnVM_Task",
                r#"<returnval type="Task">task-1</returnval>"#,
            )),
            _ => looks(call).then(|| seen("poweredOff", "")),
        })
        .await;
        let target = PowerOnTarget::Host(HostRef::new(to));
        let answer = vcenter.power_on(&permit(), &vm(), &target).await;
        (answer, fake.calls("PowerOnVM_Task"))
    };
    let (answer, sent) = power_on("host-1").await;
    assert_eq!(answer.unwrap(), StartedTask::Running(TaskRef::new("task-1")));
    assert!(
        sent[0]
            .body
            .contains(r#"<_this type="VirtualMachine">vm-7</_this><host type="HostSystem">host-1</host></PowerOnVM_Task>"#),
        "{}",
        sent[0].body
    );
    let (answer, sent) = power_on("host-2").await;
    let error = answer.unwrap_err();
    assert!(matches!(error.failure(), Failure::Refused(_)));
    assert_eq!(
        error.fault().unwrap().to_string(),
        "InvalidState: the VM is registered on host-1, not on host-2; nothing was sent"
    );
    assert!(sent.is_empty());
}

#[tokio::test]
async fn change_of_a_device_names_the_configuration_that_was_read() {
    let started = |call: &Request| match call.method() {
        "ReconfigVM_Task" => Some(Reply::of(
            "ReconfigVM_Task",
            r#"<returnval type="Task">task-1</returnval>"#,
        )),
        _ => reads(call, "poweredOff"),
    };
    let (fake, vcenter, _server) = Fake::start(started).await;
    act(&vcenter, "ReconfigVM_Task").await.unwrap();
    let call = &fake.calls("ReconfigVM_Task")[0];
    assert_eq!(call.value("changeVersion"), Some("version-1"), "{}", call.body);
    assert_eq!(call.value("systemId"), Some("here"), "{}", call.body);
    let asked = &fake.calls("QueryConfigTarget")[0];
    assert!(
        asked.body.contains("envbrowser-9") && asked.body.contains("host-1"),
        "{}",
        asked.body
    );
}
