//! Decodes the vGPUs of hosts and VMs.

use std::collections::BTreeSet;

use crate::text::for_people;
use crate::update::VgpuProfile;
use crate::xml::Element;

/// The most profiles of a host. A GPU model has some dozens, and a host GPUs of one model or a few.
const MAX_PROFILES: usize = 1_000;
/// The most GPUs of a host. Servers have up to 16.
const MAX_GPUS: usize = 256;

/// A profile, of a host or a VM. Both are sanitized alike, so that they can be compared.
pub(crate) fn profile(text: &str) -> VgpuProfile {
    VgpuProfile::new(for_people(text))
}

/// Decodes `config.sharedPassthruGpuTypes`, an `ArrayOfString`.
pub(crate) fn types(value: &Element<'_>) -> BTreeSet<VgpuProfile> {
    profiles(value.children().map(Element::text))
}

/// Decodes the profiles of `config.sharedGpuCapabilities`, an `ArrayOfHostSharedGpuCapabilities`.
pub(crate) fn capabilities(value: &Element<'_>) -> BTreeSet<VgpuProfile> {
    profiles(value.children().filter_map(|it| it.text_of("vgpu")))
}

fn profiles<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<VgpuProfile> {
    let names = names.filter(|name| !name.is_empty());
    names.take(MAX_PROFILES).map(profile).collect()
}

/// Decodes `config.graphicsInfo`, an `ArrayOfHostGraphicsInfo`: the memory of each GPU that is shared among VMs as vGPUs, in GiB,
/// rounded up. It is 0 where the host does not know it.
pub(crate) fn shared_gpus(value: &Element<'_>) -> Vec<u64> {
    let is_shared = |gpu: &&Element<'_>| gpu.text_of("graphicsType") == Some("sharedDirect");
    let memory = |gpu: &Element<'_>| {
        let kib: Option<u64> = gpu.text_of("memorySizeInKB").and_then(|kib| kib.parse().ok());
        kib.unwrap_or_default().div_ceil(1 << 20)
    };
    value
        .children()
        .filter(is_shared)
        .take(MAX_GPUS)
        .map(memory)
        .collect()
}
