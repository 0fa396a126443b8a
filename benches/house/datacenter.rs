//! A datacenter for a bench: hosts with one GPU each and a node on every one, beside those that a case asks for.

use haulout_lab::kube::Kube;
use haulout_lab::stage::{Haulout, Member, Stage};
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

/// A stage of `count` hosts with a node on each, without DRS and with tasks that take no time. `change` may make the
/// machines other than the lab's defaults.
///
/// # Errors
/// Where the lab cannot set it.
pub async fn stage<'a>(
    kube: &'a Kube,
    name: &str,
    count: usize,
    collector: Collector,
    change: impl Fn(&mut Member, &mut VmSpec),
) -> anyhow::Result<Stage<'a>> {
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
    Stage::set_with(kube, name, &spec, members, true, collector).await
}

/// Starts the Haulout of `stage` and waits until both worlds have told it everything.
///
/// # Errors
/// Where it does not come up.
pub async fn start(stage: &Stage<'_>, changes: &[(&str, &str)]) -> anyhow::Result<Haulout> {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_haulout"));
    let haulout = stage.start(binary, changes)?;
    for world in ["vCenter", "Kubernetes"] {
        stage.wait_said(&format!("{world} synced")).await?;
    }
    Ok(haulout)
}

/// A UUID that no other stage and number has.
fn uuid(stage: &str, number: usize) -> String {
    let sum = stage.bytes().fold(0_u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(byte))
    });
    format!("{sum:08x}-0000-4000-8000-{number:012x}")
}
