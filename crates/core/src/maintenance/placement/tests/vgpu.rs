//! Placement of VMs with a vGPU.

use super::*;
use crate::facts::vsphere::HostVgpus;

fn profile(name: &str) -> VgpuProfile {
    VgpuProfile::new(name)
}

/// A VM that needs these vGPUs, and an A40 if `has_device`.
fn needs(vgpus: &[&str], has_device: bool) -> VmRequirements {
    let devices = has_device.then(|| of_model(A40)).into_iter().collect();
    VmRequirements {
        vgpus: vgpus.iter().copied().map(profile).collect(),
        ..wanted(DeviceRequirements::AnyOf(devices))
    }
}

/// A host with GPUs of 48 GiB, the profiles of these sizes, and vGPUs of these sizes of other VMs.
fn vgpu_host(name: &str, gpus: usize, offers: &[u64], taken: &[u64]) -> HostView {
    let of_size = |gib: &u64| profile(&format!("grid_a40-{gib}c"));
    let claim = |(n, gib): (usize, &u64)| hold(&format!("vm-{}", 90 + n), ClaimedDevice::Vgpu(of_size(gib)));
    HostView {
        reading: Some(HostSurvey::Read(HostReading {
            claims: taken.iter().enumerate().map(claim).collect(),
            vgpus: Some(Arc::new(HostVgpus {
                profiles: offers.iter().map(of_size).collect(),
                gpus_gib: vec![48; gpus],
            })),
            ..HostReading::default()
        })),
        ..host(name, &[])
    }
}

#[test]
fn vm_with_a_vgpu_is_placed_on_a_host_with_its_profile() {
    let whole = needs(&["grid_a40-48c"], false);
    let hosts = [
        vgpu_host("esx-2", 1, &[24], &[]),
        vgpu_host("esx-3", 1, &[24, 48], &[]),
    ];
    assert_eq!(fits(&whole, &hosts), Some("esx-3".to_owned()));
    let why = why_not(&whole, hosts[0].clone());
    assert_eq!(why, RejectionReason::NoVgpuProfile(profile("grid_a40-48c")));
    assert_eq!(why.to_string(), "has no vGPU profile grid_a40-48c");
    let without = why_not(&whole, host("esx-4", &[A40]));
    assert!(matches!(without, RejectionReason::Unreadable(_)), "{without}");
    let offer = find_host(&whole, &hosts[..1], None, &[]);
    assert_eq!(
        offer.survey,
        [HostRef::new("esx-2")],
        "a driver may be installed there"
    );
}

#[test]
fn host_whose_gpus_are_full_has_no_vgpu_free() {
    let whole = needs(&["grid_a40-48c"], false);
    let taken = RejectionReason::VgpuTaken(profile("grid_a40-48c"));
    assert_eq!(taken.to_string(), "has no vGPU grid_a40-48c free");
    for (gpus, of_others, is_free) in [
        (1, &[][..], true),
        (1, &[24], false),
        (2, &[48], true),
        (2, &[48, 24], false),
    ] {
        let host = vgpu_host("esx-2", gpus, &[24, 48], of_others);
        if is_free {
            assert_eq!(
                fits(&whole, &[host]),
                Some("esx-2".to_owned()),
                "{gpus} {of_others:?}"
            );
        } else {
            assert_eq!(why_not(&whole, host), taken, "{gpus} {of_others:?}");
        }
    }
    // A host that lists only what is free: another VM there has the profile.
    assert_eq!(why_not(&whole, vgpu_host("esx-2", 2, &[24], &[48, 24])), taken);
    let two = needs(&["grid_a40-24c", "grid_a40-24c"], false);
    assert_eq!(
        fits(&two, &[vgpu_host("esx-2", 1, &[24, 48], &[])]),
        Some("esx-2".to_owned())
    );
    let taken = RejectionReason::VgpuTaken(profile("grid_a40-24c"));
    assert_eq!(why_not(&two, vgpu_host("esx-2", 1, &[24, 48], &[24])), taken);
}

#[test]
fn vgpu_of_the_vm_itself_takes_no_room_from_it() {
    let mut own = vgpu_host("esx-2", 1, &[48], &[]);
    own.reading = Some(HostSurvey::Read(HostReading {
        claims: vec![hold("vm-1", ClaimedDevice::Vgpu(profile("grid_a40-48c")))],
        vgpus: Some(Arc::new(HostVgpus {
            profiles: [profile("grid_a40-48c")].into(),
            gpus_gib: vec![48],
        })),
        ..HostReading::default()
    }));
    assert_eq!(
        fits(&needs(&["grid_a40-48c"], false), &[own]),
        Some("esx-2".to_owned())
    );
}

#[test]
fn vm_with_a_vgpu_and_another_device_needs_a_host_with_both() {
    let both = needs(&["grid_a40-24c"], true);
    let with_devices = |name: &str, devices: &[(u16, u16)], offers: &[u64]| HostView {
        devices: host(name, devices).devices,
        ..vgpu_host(name, 1, offers, &[])
    };
    let hosts = [
        with_devices("esx-2", &[], &[24]),
        with_devices("esx-3", &[A40], &[48]),
        with_devices("esx-4", &[A40], &[24]),
    ];
    assert_eq!(fits(&both, &hosts), Some("esx-4".to_owned()));
    assert_eq!(
        why_not(&both, hosts[0].clone()),
        RejectionReason::NoMatchingDevice
    );
    assert_eq!(
        why_not(&both, hosts[1].clone()),
        RejectionReason::NoVgpuProfile(profile("grid_a40-24c"))
    );
    // The vGPU of another VM does not hold the device.
    let mut shared = with_devices("esx-5", &[A40], &[24, 48]);
    if let Some(HostSurvey::Read(reading)) = &mut shared.reading {
        let claim = hold("vm-9", ClaimedDevice::Vgpu(profile("grid_a40-24c")));
        reading.claims.push(claim);
    }
    assert_eq!(fits(&both, &[shared]), Some("esx-5".to_owned()));
}

#[test]
fn vgpu_that_is_reserved_for_another_vm_takes_its_room() {
    let reserved = |name: &str, gpus: usize| HostView {
        reserved: vec![ReservedVm {
            vm: VmRef::new("vm-9"),
            needs: Vec::new(),
            vgpus: vec![profile(name)],
            memory_mib: 0,
        }],
        ..vgpu_host("esx-2", gpus, &[24, 48], &[])
    };
    let half = needs(&["grid_a40-24c"], false);
    let fits = |host| fits(&half, &[host]);
    assert_eq!(fits(reserved("grid_a40-24c", 1)), Some("esx-2".to_owned()));
    assert_eq!(fits(reserved("grid_a40-48c", 1)), None);
    // A host that does not say how many GPUs it has gets one VM at a time.
    assert_eq!(
        fits(vgpu_host("esx-2", 0, &[24], &[24])),
        Some("esx-2".to_owned())
    );
    let taken = RejectionReason::VgpuTaken(profile("grid_a40-24c"));
    assert_eq!(why_not(&half, reserved("grid_a40-24c", 0)), taken);
}

#[test]
fn own_host_takes_a_vm_with_a_vgpu_without_a_look_at_its_profiles() {
    let away = VmRequirements {
        from: Some(HostRef::new("host-away")),
        ..needs(&["grid_a40-48c"], false)
    };
    let home = Some("host-home".to_owned());
    for offers in [&[][..], &[24]] {
        assert_eq!(fits(&away, &[vgpu_host("host-home", 1, offers, &[])]), home);
    }
    assert_eq!(
        fits(&away, &[host("host-home", &[])]),
        home,
        "nothing was reported"
    );
    let full = vgpu_host("host-home", 1, &[48], &[48]);
    let taken = RejectionReason::VgpuTaken(profile("grid_a40-48c"));
    assert_eq!(why_not(&away, full), taken);
}

#[test]
fn host_with_the_fewest_vgpus_comes_first() {
    let hosts = [
        vgpu_host("esx-2", 2, &[24, 48], &[24]),
        vgpu_host("esx-3", 2, &[24, 48], &[]),
        vgpu_host("esx-4", 2, &[24, 48], &[24, 24]),
    ];
    assert_eq!(
        fits(&needs(&["grid_a40-24c"], false), &hosts),
        Some("esx-3".to_owned())
    );
}
