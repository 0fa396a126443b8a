//! Building blocks of the cases, in addition to the fixtures.

pub use haulout_core::fixtures::*;
use haulout_core::ids::HostRef;
use haulout_core::maintenance::episode::{CordonOwner, Episode, HostIdentity, Phase};
use haulout_core::maintenance::observed::ObservedNode;

pub fn spare() -> HostRef {
    HostRef::new("host-spare")
}

/// A Node with two GPUs whose kubelet reports.
pub fn node() -> ObservedNode {
    ObservedNode {
        boot_id: Some(old_boot()),
        gpus: gpus(2).into(),
        ..haulout_core::fixtures::node()
    }
}

pub fn episode(phase: Phase, cordon: CordonOwner, powered_off: bool) -> Episode {
    let host = HostIdentity {
        moref: Some(home()),
        name: "esx1".into(),
    };
    Episode {
        host,
        cordon,
        boot_before: Some(old_boot()),
        gpus_before: gpus(2).into(),
        gpus_cleared: powered_off,
        powered_off,
        begun_at: at(0),
        ..haulout_core::fixtures::episode(phase, 0)
    }
}
