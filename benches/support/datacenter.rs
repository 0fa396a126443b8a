//! A datacenter for a bench: hosts with one GPU and a node each.

use haulout_lab::fixture::{Fixture, Haulout, Member};
use haulout_lab::kube::Kube;
use haulout_lab::vcenter::{ClusterSpec, Collector, Delays, DeviceSpec, Gpu, HostSpec, Spec, VmSpec};

/// The PCI id of an NVIDIA A40.
const A40: u16 = 0x2235;

/// The name of the host with this number.
pub fn host(number: usize) -> String {
    format!("esx{number}")
}

/// The name of the VM on it.
pub fn vm(number: usize) -> String {
    format!("gpu{number}")
}

/// A fixture of `count` hosts with a node each, without DRS and with instant tasks. `change` changes the machines.
///
/// # Errors If the lab cannot create it.
pub async fn fixture<'a>(
    kube: &'a Kube,
    name: &str,
    count: usize,
    collector: Collector,
    change: impl Fn(&mut Member, &mut VmSpec),
) -> anyhow::Result<Fixture<'a>> {
    let mut vms = Vec::new();
    let mut members = Vec::new();
    for number in 0..count {
        let mut spec = VmSpec {
            name: vm(number),
            uuid: uuid(name, number),
            host: host(number),
            gpu: Gpu::nvidia(A40),
            ..VmSpec::default()
        };
        let mut member = Member::new(name, &spec.name, &spec.uuid);
        change(&mut member, &mut spec);
        vms.push(spec);
        members.push(member);
    }
    let hosts = (0..count).map(|number| HostSpec {
        name: host(number),
        devices: vec![DeviceSpec::gpu("0000:3b:00.0", A40)],
        datastores: vec!["ds1".to_owned()],
        ..HostSpec::default()
    });
    let spec = Spec {
        clusters: vec![ClusterSpec {
            name: "c1".to_owned(),
            hosts: hosts.collect(),
            ..ClusterSpec::default()
        }],
        vms,
        delays: Delays::default(),
        ..Spec::default()
    };
    Fixture::create_with(kube, name, &spec, members, true, collector).await
}

/// Starts Haulout and waits until both sources are synced.
///
/// # Errors If it does not start.
pub async fn start(fixture: &Fixture<'_>, changes: &[(&str, &str)]) -> anyhow::Result<Haulout> {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_haulout"));
    let haulout = fixture.start(binary, changes)?;
    for source in ["vCenter", "Kubernetes"] {
        fixture.wait_for_log(&format!("{source} synced")).await?;
    }
    Ok(haulout)
}

/// A UUID unique to this fixture and number.
fn uuid(fixture: &str, number: usize) -> String {
    let sum = fixture.bytes().fold(0_u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(byte))
    });
    format!("{sum:08x}-0000-4000-8000-{number:012x}")
}
