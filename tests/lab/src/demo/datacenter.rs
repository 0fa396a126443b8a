//! The datacenter of the demo: three clusters, three nodes, and two VMs that are not nodes.

use std::time::Duration;

use haulout_lab::fixture::Member;
use haulout_lab::vcenter::{
    ClusterSpec, Delays, DeviceSpec, DrsAutomation, DrsSpec, Gpu, HostSpec, Spec, VmSpec,
};

/// The fixture's name, the namespace of its pods, and the prefix of its nodes' names.
pub(crate) const FIXTURE: &str = "demo";

const A40: u16 = 0x2235;
const AMD: u16 = 0x1002;
const MI210: u16 = 0x740f;

/// The name of a device's model.
pub(crate) fn model(device: &DeviceSpec) -> String {
    match (device.vendor, device.device) {
        (0x10de, A40) => "NVIDIA A40".to_owned(),
        (AMD, MI210) => "AMD MI210".to_owned(),
        (vendor, device) => format!("{vendor:04x}:{device:04x}"),
    }
}

/// The initial inventory. Delays are long enough to see each step.
pub(crate) fn inventory() -> Spec {
    let a40 = || vec![DeviceSpec::gpu("0000:3b:00.0", A40)];
    let amd = || {
        vec![DeviceSpec {
            vendor: AMD,
            ..DeviceSpec::gpu("0000:3b:00.0", MI210)
        }]
    };
    Spec {
        clusters: vec![
            cluster(
                "train",
                vec![("esx1", a40()), ("esx2", a40()), ("esx3", amd()), ("esx4", a40())],
            ),
            cluster("serve", vec![("esx5", a40()), ("esx6", a40()), ("esx7", amd())]),
            cluster("spare", vec![("esx8", a40())]),
        ],
        vms: vec![
            vm("gpu1", "esx1", 1),
            vm("render-a", "esx2", 11),
            vm("gpu2", "esx5", 2),
            vm("render-b", "esx6", 12),
            vm("gpu3", "esx8", 3),
        ],
        delays: Delays {
            exit_ms: 300,
            power_on_ms: 100,
            relocate_ms: 1500,
            ..Delays::default()
        },
        ..Spec::default()
    }
}

/// The VMs that are nodes.
const NODES: [&str; 3] = ["gpu1", "gpu2", "gpu3"];

/// The nodes. They boot for longer than the node monitor grace, so that NotReady occurs.
pub(crate) fn members(spec: &Spec) -> Vec<Member> {
    let nodes = spec.vms.iter().filter(|vm| NODES.contains(&vm.name.as_str()));
    let member = |vm: &VmSpec| {
        let mut member = Member::new(FIXTURE, &vm.name, &vm.uuid);
        member.machine.gpus = 1;
        member.machine.boot = Duration::from_secs(4);
        member.machine.gpus_after = Duration::from_millis(500);
        member
    };
    nodes.map(member).collect()
}

fn cluster(name: &str, hosts: Vec<(&str, Vec<DeviceSpec>)>) -> ClusterSpec {
    let host = |(host, devices): (&str, Vec<DeviceSpec>)| HostSpec {
        name: host.to_owned(),
        devices,
        datastores: vec![format!("{name}-storage")],
        ..HostSpec::default()
    };
    ClusterSpec {
        name: name.to_owned(),
        drs: DrsSpec {
            enabled: false,
            behavior: DrsAutomation::Manual,
            ..DrsSpec::default()
        },
        hosts: hosts.into_iter().map(host).collect(),
        ..ClusterSpec::default()
    }
}

fn vm(name: &str, host: &str, number: u8) -> VmSpec {
    VmSpec {
        name: name.to_owned(),
        uuid: format!("4217a90c-0000-4000-8000-0000000000{number:02x}"),
        host: host.to_owned(),
        gpu: Gpu::nvidia(A40),
        shutdown_ms: 1200,
        ..VmSpec::default()
    }
}
