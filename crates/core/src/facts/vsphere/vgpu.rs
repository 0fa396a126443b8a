//! Virtual GPUs: the profiles of VMs and hosts, and whether a host has room for one more.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// The name of a vGPU profile, such as `grid_a40-24c`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VgpuProfile(Arc<str>);

impl VgpuProfile {
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The framebuffer of one vGPU, which is the number before the end of the name (`proto-notes/relocate.md`). `None` if the name
    /// has none, or says less than 1 GiB.
    pub fn framebuffer_gib(&self) -> Option<u64> {
        let (_, size) = self.0.rsplit_once('-')?;
        let end = size
            .find(|letter: char| !letter.is_ascii_digit())
            .unwrap_or(size.len());
        size.get(..end)?.parse().ok().filter(|gib| *gib > 0)
    }
}

impl fmt::Display for VgpuProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The vGPUs of a host. The default is a host without any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostVgpus {
    pub profiles: BTreeSet<VgpuProfile>,
    /// The memory of each GPU that is shared among VMs, in GiB, rounded up.
    pub gpus_gib: Vec<u64>,
}

impl HostVgpus {
    /// Whether vGPUs of these profiles may have room on the GPUs of the host, while vGPUs of `taken` are there. This compares the sums
    /// of their framebuffers only, so it is `Some(false)` only if they certainly have no room. `None` if the sums are not known.
    pub fn may_have_room<'a>(
        &self,
        needs: &[VgpuProfile],
        taken: impl Iterator<Item = &'a VgpuProfile>,
    ) -> Option<bool> {
        if self.gpus_gib.is_empty() {
            return None;
        }
        // The largest profile takes a whole GPU. The memory that a host reports may be less, because a part of it is reserved.
        let largest = self
            .profiles
            .iter()
            .filter_map(VgpuProfile::framebuffer_gib)
            .max();
        let of_gpu = |gib: &u64| largest.map_or(*gib, |largest| largest.max(*gib));
        let capacity = self.gpus_gib.iter().map(of_gpu).fold(0, u64::saturating_add);
        let needed: Option<Vec<u64>> = needs.iter().map(VgpuProfile::framebuffer_gib).collect();
        let taken = taken.filter_map(VgpuProfile::framebuffer_gib);
        let sum = needed?.into_iter().chain(taken).fold(0, u64::saturating_add);
        Some(sum <= capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(name: &str) -> VgpuProfile {
        VgpuProfile::new(name)
    }

    #[test]
    fn size_of_a_profile_is_the_number_before_its_end() {
        for (name, gib) in [
            ("grid_a40-24c", Some(24)),
            ("nvidia_a100-4-20c", Some(20)),
            ("nvidia_rtx_pro_6000_blackwell_dc-4-96q", Some(96)),
            ("nvidia_a100-1-5cme", Some(5)),
            ("grid_p40-1b4", Some(1)),
            ("grid_m60-0q", None),
            ("grid_a40", None),
            ("grid_a40-", None),
            ("grid-999999999999999999999c", None),
            ("", None),
        ] {
            assert_eq!(profile(name).framebuffer_gib(), gib, "{name}");
        }
    }

    #[test]
    fn vgpus_have_no_room_if_they_need_more_than_all_gpus() {
        // A GPU of 48 GB of which the host reports less.
        let host = |gpus: usize| HostVgpus {
            profiles: ["grid_a40-48c", "grid_a40-24c"].map(profile).into(),
            gpus_gib: vec![45; gpus],
        };
        for (gpus, need, taken, room) in [
            (1, "grid_a40-48c", &[][..], Some(true)),
            (1, "grid_a40-24c", &["grid_a40-24c"], Some(true)),
            (1, "grid_a40-24c", &["grid_a40-24c", "grid_a40-24c"], Some(false)),
            (1, "grid_a40-24c", &["grid_a40-48c"], Some(false)),
            (2, "grid_a40-48c", &["grid_a40-48c"], Some(true)),
            (2, "grid_a40-48c", &["grid_a40-48c", "grid_a40-24c"], Some(false)),
            // Not certain: each GPU may have one.
            (2, "grid_a40-48c", &["grid_a40-24c", "grid_a40-24c"], Some(true)),
            // What has no size in its name counts as nothing.
            (1, "grid_a40-48c", &["other"], Some(true)),
            (1, "other", &[], None),
            (0, "grid_a40-48c", &[], None),
        ] {
            let taken: Vec<VgpuProfile> = taken.iter().copied().map(profile).collect();
            let may_have = host(gpus).may_have_room(&[profile(need)], taken.iter());
            assert_eq!(may_have, room, "{gpus} {need} {taken:?}");
        }
        let shrunk = HostVgpus {
            profiles: [profile("grid_a40-24c")].into(),
            gpus_gib: vec![45, 45],
        };
        let both = ["grid_a40-24c", "grid_a40-24c"].map(profile);
        assert_eq!(
            shrunk.may_have_room(&[profile("grid_a40-24c")], both.iter()),
            Some(true),
            "the memory counts if the largest profile is not offered any more"
        );
    }
}
