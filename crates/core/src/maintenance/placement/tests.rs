use super::*;
use crate::facts::vsphere::{AllowedDevice, PciIds, VmHostRule};
use crate::fixtures::{of_model, pci};
use crate::maintenance::episode::Detection;

const A40: (u16, u16) = (0x10de, 0x2235);
const FLEX: (u16, u16) = (0x8086, 0x56c0);

fn wanted(devices: DeviceRequirements) -> VmRequirements {
    VmRequirements {
        vm: VmRef::new("vm-1"),
        from: Some(HostRef::new("host-home")),
        home: Some(HostRef::new("host-home")),
        build: None,
        home_only: false,
        compute: Some(ComputeRef::new("cluster-1")),
        datastores: Arc::new(BTreeSet::from([DatastoreRef::new("ds-1")])),
        datastore_states: Arc::default(),
        networks: Arc::default(),
        rules: Arc::default(),
        sriov: Vec::new(),
        memory_mib: None,
        hardware_version: None,
        devices,
        vgpus: Vec::new(),
        only: None,
    }
}

fn one_a40() -> VmRequirements {
    wanted(DeviceRequirements::AnyOf(vec![of_model(A40)]))
}

fn host(name: &str, devices: &[(u16, u16)]) -> HostView {
    HostView {
        moref: HostRef::new(name),
        name: name.to_owned(),
        compute: Some(ComputeRef::new("cluster-1")),
        state: HostState::InService,
        build: None,
        is_maintained: false,
        datastores: Arc::new(BTreeSet::from([
            DatastoreRef::new("ds-1"),
            DatastoreRef::new("ds-2"),
        ])),
        devices: Some(
            devices
                .iter()
                .enumerate()
                .map(|(slot, ids)| pci(&format!("0000:{slot:02x}:00.0"), *ids))
                .collect(),
        ),
        sriov: Arc::default(),
        reading: Some(HostSurvey::Read(HostReading::default())),
        reserved: Vec::new(),
    }
}

fn fits(wanted: &VmRequirements, hosts: &[HostView]) -> Option<String> {
    find_host(wanted, hosts, None, &[]).fits.map(|(_, name)| name)
}

fn why_not(wanted: &VmRequirements, host: HostView) -> RejectionReason {
    let offer = find_host(wanted, &[host], None, &[]);
    assert_eq!(offer.fits, None);
    offer.refused.into_iter().next().unwrap().why
}

fn hold(vm: &str, device: ClaimedDevice) -> Claim {
    Claim {
        vm: VmRef::new(vm),
        device,
    }
}

#[test]
fn a_host_with_a_free_matching_device_fits() {
    assert_eq!(
        fits(&one_a40(), &[host("esx-2", &[FLEX, A40])]),
        Some("esx-2".to_owned())
    );
}

#[test]
fn a_device_of_another_vendor_does_not_match() {
    assert_eq!(
        why_not(&one_a40(), host("esx-2", &[FLEX])),
        RejectionReason::NoMatchingDevice
    );
}

/// A host with one A40 of this hardware label and subsystem device.
#[test]
fn host_that_was_updated_already_is_preferred() {
    // Each host with its build, whether it was in maintenance, and how many devices it has.
    let hosts = |of: &[(&str, Option<u64>, bool, usize)]| -> Vec<HostView> {
        let view = |(name, build, is_maintained, devices): &(&str, Option<u64>, bool, usize)| HostView {
            build: *build,
            is_maintained: *is_maintained,
            ..host(name, &vec![A40; *devices])
        };
        of.iter().map(view).collect()
    };
    let old = VmRequirements {
        build: Some(100),
        ..one_a40()
    };
    for (of, chosen) in [
        (&[("a", Some(100), false, 2), ("b", Some(101), false, 1)][..], "b"),
        (&[("a", Some(100), false, 2), ("b", Some(100), true, 1)], "b"),
        (&[("a", Some(100), true, 2), ("b", Some(101), false, 1)], "b"),
        // An older or unknown build says nothing.
        (&[("a", Some(100), false, 2), ("b", Some(99), false, 1)], "a"),
        (&[("a", Some(100), false, 2), ("b", None, false, 1)], "a"),
        (&[("a", Some(100), false, 1), ("b", Some(100), false, 2)], "b"),
    ] {
        assert_eq!(fits(&old, &hosts(of)).as_deref(), Some(chosen), "{of:?}");
    }
    // A host that is reserved already is given up for one that was updated.
    for (is_maintained, chosen) in [(false, "a"), (true, "b")] {
        let of = hosts(&[("a", Some(100), false, 1), ("b", Some(100), is_maintained, 2)]);
        let offer = find_host(&old, &of, Some(&HostRef::new("a")), &[]);
        assert_eq!(offer.fits.map(|(_, name)| name).as_deref(), Some(chosen));
    }
    let unknown = hosts(&[("a", Some(1), false, 1), ("b", Some(2), false, 1)]);
    assert_eq!(fits(&one_a40(), &unknown).as_deref(), Some("a"));
}

fn labelled(name: &str, label: Option<&str>, sub_device: u16) -> HostView {
    let a40 = pci("0000:01:00.0", A40);
    HostView {
        devices: Some(Arc::new([PciDevice {
            label: label.map(Into::into),
            ids: PciIds {
                sub_device,
                ..a40.ids
            },
            ..a40
        }])),
        ..host(name, &[])
    }
}

#[test]
fn host_whose_device_has_another_label_or_subsystem_is_refused() {
    let wants = |label: Option<&str>, sub_device| {
        wanted(DeviceRequirements::AnyOf(vec![DeviceRequirement {
            allowed: vec![AllowedDevice {
                sub_device,
                ..of_model(A40).allowed[0]
            }],
            label: label.map(Into::into),
        }]))
    };
    let pool_a = wants(Some("pool-a"), None);
    let hosts = [
        labelled("esx-2", Some("pool-b"), 1),
        labelled("esx-3", Some("pool-a"), 1),
    ];
    assert_eq!(fits(&pool_a, &hosts), Some("esx-3".to_owned()));
    let other_label = RejectionReason::OtherLabel("pool-a".into());
    assert_eq!(
        why_not(&pool_a, labelled("esx-2", Some("pool-b"), 1)),
        other_label
    );
    assert_eq!(why_not(&pool_a, labelled("esx-2", None, 1)), other_label);
    assert_eq!(
        why_not(&wants(None, Some(2)), labelled("esx-2", None, 1)),
        RejectionReason::OtherSubsystem
    );
    assert_eq!(
        why_not(&pool_a, host("esx-2", &[FLEX])),
        RejectionReason::NoMatchingDevice
    );
    assert_eq!(
        other_label.to_string(),
        "has no matching passthrough device with the hardware label pool-a"
    );
}

#[test]
fn claim_on_another_label_leaves_the_device_free() {
    let mut pool_a = labelled("esx-2", Some("pool-a"), 1);
    let claim = |label: &str| {
        let requirement = DeviceRequirement {
            label: Some(label.into()),
            ..of_model(A40)
        };
        Some(HostSurvey::Read(
            vec![hold("vm-9", ClaimedDevice::AnyOf(requirement))].into(),
        ))
    };
    pool_a.devices = Some(
        [Some("pool-a"), Some("pool-b")]
            .into_iter()
            .zip(["0000:01:00.0", "0000:02:00.0"])
            .map(|(label, address)| PciDevice {
                label: label.map(Into::into),
                ..pci(address, A40)
            })
            .collect(),
    );
    let wants = wanted(DeviceRequirements::AnyOf(vec![DeviceRequirement {
        label: Some("pool-a".into()),
        ..of_model(A40)
    }]));
    pool_a.reading = claim("pool-b");
    assert_eq!(fits(&wants, &[pool_a.clone()]), Some("esx-2".to_owned()));
    pool_a.reading = claim("pool-a");
    assert_eq!(why_not(&wants, pool_a), RejectionReason::DevicesTaken);
}

#[test]
fn a_device_held_at_its_address_is_taken_whatever_the_case_of_its_letters() {
    let mut taken = host("esx-2", &[A40; 11]);
    taken.reading = Some(HostSurvey::Read(
        (0..11)
            .map(|slot| hold("vm-9", ClaimedDevice::Address(format!("0000:{slot:02X}:00.0"))))
            .collect::<Vec<_>>()
            .into(),
    ));
    assert_eq!(why_not(&one_a40(), taken), RejectionReason::DevicesTaken);
}

#[test]
fn a_hold_without_an_address_takes_one_device_of_its_kind() {
    let mut two = host("esx-2", &[A40, A40]);
    two.reading = Some(HostSurvey::Read(
        vec![hold("vm-9", ClaimedDevice::AnyOf(of_model(A40)))].into(),
    ));
    assert_eq!(fits(&one_a40(), &[two.clone()]), Some("esx-2".to_owned()));
    two.reading = Some(HostSurvey::Read(
        vec![
            hold("vm-8", ClaimedDevice::AnyOf(of_model(A40))),
            hold("vm-9", ClaimedDevice::AnyOf(of_model(A40))),
        ]
        .into(),
    ));
    assert_eq!(why_not(&one_a40(), two), RejectionReason::DevicesTaken);
}

#[test]
fn devices_held_by_the_vm_itself_are_free_for_it() {
    let mut own = host("esx-2", &[A40]);
    own.reading = Some(HostSurvey::Read(
        vec![hold("vm-1", ClaimedDevice::AnyOf(of_model(A40)))].into(),
    ));
    assert_eq!(fits(&one_a40(), &[own]), Some("esx-2".to_owned()));
}

#[test]
fn a_reservation_of_another_episode_takes_a_device() {
    let mut reserved = host("esx-2", &[A40]);
    reserved.reserved = vec![ReservedVm {
        vm: VmRef::new("vm-9"),
        needs: vec![of_model(A40)],
        vgpus: Vec::new(),
        memory_mib: 0,
    }];
    assert_eq!(why_not(&one_a40(), reserved), RejectionReason::DevicesTaken);
}

#[test]
fn the_only_device_that_fits_one_need_is_kept_for_it() {
    // The first device fits both needs; taking it for the first need alone would leave none for the second.
    let either = DeviceRequirement {
        allowed: [A40, FLEX]
            .into_iter()
            .flat_map(|ids| of_model(ids).allowed)
            .collect(),
        label: None,
    };
    let both = wanted(DeviceRequirements::AnyOf(vec![either, of_model(A40)]));
    assert_eq!(
        fits(&both, &[host("esx-2", &[A40, FLEX])]),
        Some("esx-2".to_owned())
    );
    assert_eq!(fits(&both, &[host("esx-2", &[FLEX, FLEX])]), None);
}

#[test]
fn nothing_is_placed_on_a_host_that_takes_no_vms() {
    let entering = HostState::Entering {
        task: crate::ids::TaskRef::new("task-1"),
        clicked_at: jiff::Timestamp::UNIX_EPOCH,
        user: None,
        detection: Detection::Pushed,
    };
    for state in [
        HostState::Unknown,
        HostState::Unreachable,
        entering,
        HostState::InMaintenance,
        HostState::Quarantined,
    ] {
        let words = state.words();
        let refused = why_not(
            &one_a40(),
            HostView {
                state,
                ..host("esx-2", &[A40])
            },
        );
        assert_eq!(refused, RejectionReason::State(words));
    }
}

#[test]
fn another_cluster_and_the_own_host_are_not_even_considered() {
    let elsewhere = HostView {
        compute: Some(ComputeRef::new("cluster-2")),
        ..host("esx-2", &[A40])
    };
    let offer = find_host(&one_a40(), &[elsewhere, host("host-home", &[A40])], None, &[]);
    assert_eq!(offer, PlacementOffer::default());
    let homeless = VmRequirements {
        compute: None,
        ..one_a40()
    };
    assert_eq!(
        find_host(
            &homeless,
            &[HostView {
                compute: None,
                ..host("esx-2", &[A40])
            }],
            None,
            &[]
        ),
        PlacementOffer::default()
    );
}

#[test]
fn a_host_that_does_not_see_every_datastore_of_the_vm_is_refused() {
    let far = VmRequirements {
        datastores: Arc::new(BTreeSet::from([
            DatastoreRef::new("ds-1"),
            DatastoreRef::new("ds-9"),
        ])),
        ..one_a40()
    };
    let unseen = why_not(&far, host("esx-2", &[A40]));
    assert_eq!(unseen, RejectionReason::Datastores(vec!["ds-9".into()]));
    let named = VmRequirements {
        datastore_states: Arc::new(BTreeMap::from([(
            DatastoreRef::new("ds-9"),
            Arc::new(DatastoreState {
                name: Some("ds-local-0".into()),
                ..DatastoreState::default()
            }),
        )])),
        ..far
    };
    let unseen = why_not(&named, host("esx-2", &[A40]));
    assert_eq!(
        unseen.to_string(),
        "does not see datastore ds-local-0 of the VM's files"
    );
    let unknown = VmRequirements {
        datastores: Arc::default(),
        ..one_a40()
    };
    assert_eq!(
        why_not(&unknown, host("esx-2", &[A40])),
        RejectionReason::UnknownDatastores
    );
}

#[test]
fn host_without_a_network_of_the_vm_is_refused_if_networks_are_reported() {
    let network = |name: &str| NetworkRef::new(name);
    let with_networks = VmRequirements {
        networks: Arc::new(BTreeMap::from([
            (network("dvportgroup-1"), Some("storage".into())),
            (network("network-7"), None),
        ])),
        ..one_a40()
    };
    let has = |networks: Option<&[&str]>| HostView {
        reading: Some(HostSurvey::Read(HostReading {
            networks: networks.map(|names| Arc::new(names.iter().map(|name| network(name)).collect())),
            ..HostReading::default()
        })),
        ..host("esx-2", &[A40])
    };
    let both = has(Some(&["dvportgroup-1", "network-7", "network-8"]));
    assert_eq!(fits(&with_networks, &[both]), Some("esx-2".to_owned()));
    assert_eq!(fits(&with_networks, &[has(None)]), Some("esx-2".to_owned()));
    let why = why_not(&with_networks, has(Some(&["network-7"])));
    assert_eq!(why, RejectionReason::Network("storage".into()));
    assert_eq!(why.to_string(), "lacks network storage");
    assert_eq!(
        why_not(&with_networks, has(Some(&["dvportgroup-1"]))),
        RejectionReason::Network("network-7".into()),
        "without a name it is called by its reference"
    );
    let none = find_host(&with_networks, &[has(Some(&[]))], None, &[]);
    assert_eq!(
        none.survey,
        [HostRef::new("esx-2")],
        "the next survey may show it"
    );
    assert!(!none.has_unread());
}

#[test]
fn host_that_does_not_run_the_hardware_version_of_the_vm_is_refused() {
    let runs = |versions: Option<&[&str]>| HostView {
        reading: Some(HostSurvey::Read(HostReading {
            hardware_versions: versions
                .map(|versions| Arc::new(versions.iter().map(|version| (*version).into()).collect())),
            ..HostReading::default()
        })),
        ..host("esx-2", &[A40])
    };
    let new = VmRequirements {
        hardware_version: Some("vmx-21".into()),
        ..one_a40()
    };
    for (wanted, versions) in [
        (&new, Some(&["vmx-20", "vmx-21"][..])),
        // Not known of the host or of the VM.
        (&new, None),
        (&one_a40(), Some(&["vmx-20"])),
    ] {
        assert_eq!(fits(wanted, &[runs(versions)]), Some("esx-2".to_owned()));
    }
    let why = why_not(&new, runs(Some(&["vmx-19", "vmx-20"])));
    assert_eq!(why, RejectionReason::HardwareVersion("vmx-21".into()));
    assert_eq!(why.to_string(), "does not run the VM's hardware version vmx-21");
    let offer = find_host(&new, &[runs(Some(&["vmx-20"]))], None, &[]);
    assert_eq!(offer.survey, [HostRef::new("esx-2")], "it may be upgraded");
}

fn with_rules(rules: ClusterRules) -> VmRequirements {
    VmRequirements {
        rules: Arc::new(rules),
        ..one_a40()
    }
}

#[test]
fn dedicated_failover_host_is_refused() {
    let failover = with_rules(ClusterRules {
        failover_hosts: [HostRef::new("esx-2")].into(),
        ..ClusterRules::default()
    });
    let hosts = [host("esx-2", &[A40, A40]), host("esx-3", &[A40])];
    assert_eq!(fits(&failover, &hosts), Some("esx-3".to_owned()));
    assert_eq!(
        why_not(&failover, host("esx-2", &[A40])),
        RejectionReason::FailoverHost
    );
}

#[test]
fn mandatory_vm_host_rule_keeps_its_vms_off_a_host() {
    let rule = |vm: &str, only_on: Option<&str>, never_on: Option<&str>| {
        let hosts = |name: &str| Arc::new(BTreeSet::from([HostRef::new(name)]));
        with_rules(ClusterRules {
            vm_host: vec![VmHostRule {
                name: "licensed".into(),
                vms: Arc::new([VmRef::new(vm)].into()),
                only_on: only_on.map(hosts),
                never_on: never_on.map(hosts).unwrap_or_default(),
            }],
            ..ClusterRules::default()
        })
    };
    let hosts = [host("esx-2", &[A40]), host("esx-3", &[A40])];
    let fits = |wanted: VmRequirements| fits(&wanted, &hosts);
    assert_eq!(fits(rule("vm-1", Some("esx-3"), None)), Some("esx-3".to_owned()));
    assert_eq!(fits(rule("vm-1", None, Some("esx-2"))), Some("esx-3".to_owned()));
    assert_eq!(
        fits(rule("vm-7", Some("esx-3"), Some("esx-2"))),
        Some("esx-2".to_owned())
    );
    let why = why_not(&rule("vm-1", Some("esx-3"), None), host("esx-2", &[A40]));
    assert_eq!(why, RejectionReason::VmHostRule("licensed".into()));
    assert_eq!(why.to_string(), "is excluded by the VM-Host rule licensed");
}

#[test]
fn vms_of_an_anti_affinity_rule_are_not_placed_on_one_host() {
    let apart = with_rules(ClusterRules {
        anti_affinity: vec![AntiAffinityRule {
            name: "spread".into(),
            vms: [VmRef::new("vm-1"), VmRef::new("vm-8")].into(),
        }],
        ..ClusterRules::default()
    });
    let runs = |vm: &str| HostView {
        reading: Some(HostSurvey::Read(HostReading {
            running: [VmRef::new(vm)].into(),
            ..HostReading::default()
        })),
        ..host("esx-2", &[A40])
    };
    for vm in ["vm-1", "vm-7"] {
        assert_eq!(fits(&apart, &[runs(vm)]), Some("esx-2".to_owned()), "{vm}");
    }
    let rule = RejectionReason::AntiAffinity("spread".into());
    assert_eq!(why_not(&apart, runs("vm-8")), rule);
    let mut reserved = host("esx-2", &[A40]);
    reserved.reserved = vec![ReservedVm {
        vm: VmRef::new("vm-8"),
        needs: Vec::new(),
        vgpus: Vec::new(),
        memory_mib: 0,
    }];
    assert_eq!(why_not(&apart, reserved), rule);
    let offer = find_host(&apart, &[runs("vm-8")], None, &[]);
    assert_eq!(offer.survey, [HostRef::new("esx-2")], "the other VM may leave");
}

#[test]
fn host_with_too_little_unreserved_memory_is_refused() {
    let needs_64_gib = VmRequirements {
        memory_mib: Some(65_536),
        ..one_a40()
    };
    let has = |unreserved_mib: Option<u64>, reserved: u64| HostView {
        reading: Some(HostSurvey::Read(HostReading {
            unreserved_mib,
            ..HostReading::default()
        })),
        reserved: vec![ReservedVm {
            vm: VmRef::new("vm-9"),
            needs: Vec::new(),
            vgpus: Vec::new(),
            memory_mib: reserved,
        }],
        ..host("esx-2", &[A40])
    };
    for (unreserved, reserved) in [(Some(65_536), 0), (None, 1), (Some(131_072), 65_536)] {
        let fits = fits(&needs_64_gib, &[has(unreserved, reserved)]);
        assert_eq!(fits, Some("esx-2".to_owned()), "{unreserved:?} {reserved}");
    }
    let memory = RejectionReason::Memory { mib: 65_536 };
    assert_eq!(why_not(&needs_64_gib, has(Some(65_535), 0)), memory);
    assert_eq!(why_not(&needs_64_gib, has(Some(65_536), 1)), memory);
    let unknown = one_a40();
    assert_eq!(fits(&unknown, &[has(Some(1), 0)]), Some("esx-2".to_owned()));
    let offer = find_host(&needs_64_gib, &[has(Some(1), 0)], None, &[]);
    assert_eq!(offer.survey, [HostRef::new("esx-2")], "VMs there may stop");
}

#[test]
fn host_that_cannot_use_a_datastore_of_the_vm_is_refused() {
    let state = |in_maintenance, inaccessible_on: &[&str]| {
        let state = DatastoreState {
            name: Some("nfs".into()),
            in_maintenance,
            inaccessible_on: inaccessible_on.iter().map(|host| HostRef::new(*host)).collect(),
        };
        VmRequirements {
            datastore_states: Arc::new([(DatastoreRef::new("ds-1"), Arc::new(state))].into()),
            ..one_a40()
        }
    };
    let hosts = [host("esx-2", &[A40]), host("esx-3", &[A40])];
    assert_eq!(fits(&state(false, &["esx-2"]), &hosts), Some("esx-3".to_owned()));
    assert_eq!(
        why_not(&state(true, &["esx-2"]), host("esx-2", &[A40])),
        RejectionReason::DatastoreInaccessible("nfs".into())
    );
    let maintenance = why_not(&state(true, &[]), host("esx-2", &[A40]));
    assert_eq!(maintenance, RejectionReason::DatastoreInMaintenance("nfs".into()));
}

#[test]
fn host_is_surveyed_before_its_offer_and_again_when_devices_are_taken() {
    let unsurveyed = HostView {
        reading: None,
        ..host("esx-2", &[A40])
    };
    let mut taken = host("esx-3", &[A40]);
    taken.reading = Some(HostSurvey::Read(
        vec![hold("vm-9", ClaimedDevice::AnyOf(of_model(A40)))].into(),
    ));
    let offer = find_host(
        &one_a40(),
        &[unsurveyed, taken, host("esx-4", &[FLEX])],
        None,
        &[],
    );
    assert_eq!(offer.fits, None);
    assert_eq!(offer.survey, [HostRef::new("esx-2"), HostRef::new("esx-3")]);
}

#[test]
fn only_an_unread_host_may_still_fit() {
    let unread = || HostView {
        reading: None,
        ..host("esx-2", &[A40])
    };
    let taken = || HostView {
        reading: Some(HostSurvey::Read(
            vec![hold("vm-9", ClaimedDevice::Address("0000:00:00.0".to_owned()))].into(),
        )),
        ..host("esx-3", &[A40])
    };
    let unfit = || host("esx-4", &[]);
    let unreported = || HostView {
        devices: None,
        ..host("esx-6", &[])
    };
    let has_unread = |hosts: &[HostView]| find_host(&one_a40(), hosts, None, &[]).has_unread();
    assert_eq!(why_not(&one_a40(), taken()), RejectionReason::DevicesTaken);
    assert!(has_unread(&[unread()]));
    assert!(has_unread(&[unread(), taken(), unfit()]));
    assert!(!has_unread(&[taken(), unfit()]));
    assert!(!has_unread(&[unfit()]));
    assert_eq!(
        why_not(&one_a40(), unreported()),
        RejectionReason::DevicesUnreported
    );
    assert!(has_unread(&[unfit(), unreported()]));
    assert!(!has_unread(&[]));
    assert!(
        !has_unread(&[unread(), host("esx-5", &[A40])]),
        "there is one already"
    );
}

#[test]
fn a_fixed_address_and_a_foreign_device_keep_the_vm_at_home() {
    assert_eq!(
        why_not(&wanted(DeviceRequirements::Static), host("esx-2", &[A40])),
        RejectionReason::StaticDevice
    );
    let foreign = wanted(DeviceRequirements::Foreign {
        backing: "Vmiop".to_owned(),
    });
    assert_eq!(
        why_not(&foreign, host("esx-2", &[A40])),
        RejectionReason::ForeignDevice("Vmiop".to_owned())
    );
    assert_eq!(
        why_not(&wanted(DeviceRequirements::Unknown), host("esx-2", &[A40])),
        RejectionReason::UnknownDevice
    );
}

#[test]
fn offer_stays_while_it_fits_and_the_roomiest_host_comes_first() {
    let hosts = [
        host("esx-2", &[A40]),
        host("esx-3", &[A40, A40]),
        host("esx-4", &[A40, A40]),
    ];
    assert_eq!(fits(&one_a40(), &hosts), Some("esx-3".to_owned()));
    let kept = find_host(&one_a40(), &hosts, Some(&HostRef::new("esx-2")), &[]);
    assert_eq!(kept.fits, Some((HostRef::new("esx-2"), "esx-2".to_owned())));
}

#[test]
fn a_host_that_vcenter_refused_a_moment_ago_is_not_offered_again() {
    let refused = [(HostRef::new("esx-2"), "no room".to_owned())];
    let offer = find_host(&one_a40(), &[host("esx-2", &[A40])], None, &refused);
    assert_eq!(offer.fits, None);
    assert_eq!(
        offer.refused.first().map(ToString::to_string).as_deref(),
        Some("esx-2 was refused by vCenter: no room")
    );
}

/// A VM on another host than its own.
fn away_from_home(devices: DeviceRequirements) -> VmRequirements {
    VmRequirements {
        from: Some(HostRef::new("host-away")),
        ..wanted(devices)
    }
}

#[test]
fn own_host_comes_before_a_roomier_host_and_the_last_offer() {
    let mut home = host("host-home", &[A40]);
    home.reading = Some(HostSurvey::Read(HostReading::default()));
    let mut other = host("a-roomy", &[A40, A40, A40]);
    other.reading = Some(HostSurvey::Read(HostReading::default()));
    let kept = other.moref.clone();
    let away = away_from_home(DeviceRequirements::AnyOf(vec![of_model(A40)]));
    let offer = find_host(&away, &[other.clone(), home.clone()], Some(&kept), &[]);
    assert_eq!(offer.fits.unwrap().1, "host-home");
    home.state = HostState::InMaintenance;
    let offer = find_host(&away, &[other, home], Some(&kept), &[]);
    assert_eq!(offer.fits.unwrap().1, "a-roomy");
}

#[test]
fn a_vm_that_waits_for_its_own_host_is_offered_no_other() {
    let mut other = host("other", &[A40]);
    other.reading = Some(HostSurvey::Read(HostReading::default()));
    let mut home = host("host-home", &[A40]);
    home.reading = Some(HostSurvey::Read(HostReading::default()));
    let away = VmRequirements {
        home_only: true,
        ..away_from_home(DeviceRequirements::AnyOf(vec![of_model(A40)]))
    };
    assert_eq!(
        find_host(&away, &[other.clone()], None, &[]),
        PlacementOffer::default()
    );
    assert_eq!(
        find_host(&away, &[other, home], None, &[]).fits.unwrap().1,
        "host-home"
    );
}

#[test]
fn a_device_at_a_fixed_address_fits_its_own_host_alone() {
    let mut other = host("other", &[A40]);
    other.reading = Some(HostSurvey::Read(HostReading::default()));
    let mut home = host("host-home", &[A40]);
    home.reading = Some(HostSurvey::Read(HostReading::default()));
    let offer = find_host(
        &away_from_home(DeviceRequirements::Static),
        &[other, home],
        None,
        &[],
    );
    assert_eq!(offer.fits.unwrap().1, "host-home");
    assert_eq!(offer.refused.len(), 1);
    assert_eq!(offer.refused[0].why, RejectionReason::StaticDevice);
}

#[test]
fn the_host_with_the_most_spare_devices_is_offered() {
    let holds = |count: usize| {
        let of = |n| hold(&format!("vm-{n}"), ClaimedDevice::AnyOf(of_model(A40)));
        Some(HostSurvey::Read((0..count).map(of).collect::<Vec<_>>().into()))
    };
    let large = HostView {
        reading: holds(2),
        ..host("esx-large", &[A40; 4])
    };
    let empty = host("esx-small", &[A40; 3]);
    assert_eq!(fits(&one_a40(), &[large, empty]), Some("esx-small".to_owned()));
}

#[test]
fn requested_host_is_the_only_one_considered_and_its_absence_is_named() {
    let hosts = [host("esx-2", &[A40]), host("esx-3", &[A40])];
    let asks_for = |only: &str| VmRequirements {
        only: Some(only.to_owned()),
        ..one_a40()
    };
    let offer = find_host(&asks_for("esx-3"), &hosts, None, &[]);
    assert_eq!(offer.fits.map(|(_, name)| name).as_deref(), Some("esx-3"));
    assert_eq!(offer.refused, []);
    let offer = find_host(&asks_for("esx-9"), &hosts, None, &[]);
    let absent = RejectedHost {
        host: "esx-9".to_owned(),
        why: RejectionReason::NotThere,
    };
    assert_eq!((offer.fits, offer.refused), (None, vec![absent]));
}

#[test]
fn host_needs_active_sriov_for_the_sriov_cards_of_a_vm() {
    const CARD: &str = "0000:17:00.0";
    let with = |cards: &[Option<&str>]| VmRequirements {
        sriov: cards.iter().map(|card| card.map(str::to_owned)).collect(),
        ..one_a40()
    };
    let sriov_at = |addresses: &[&str]| HostView {
        sriov: Arc::new(addresses.iter().map(|address| (*address).to_owned()).collect()),
        ..host("esx-2", &[A40])
    };
    let fits = |wanted: &VmRequirements, host: HostView| find_host(wanted, &[host], None, &[]).fits.is_some();
    for (cards, addresses) in [
        (&[][..], &[][..]),
        (&[None], &["0000:18:00.0"]),
        (&[Some(CARD), None], &[CARD]),
    ] {
        assert!(
            fits(&with(cards), sriov_at(addresses)),
            "{cards:?}, {addresses:?}"
        );
    }
    for (cards, addresses, words) in [
        (&[None][..], &[][..], "has no network card with active SR-IOV"),
        (
            &[None, Some(CARD)],
            &["0000:18:00.0"],
            "has no network card with active SR-IOV at 0000:17:00.0, which the VM names",
        ),
    ] {
        let why = why_not(&with(cards), sriov_at(addresses));
        assert_eq!(why.to_string(), words);
    }
}

mod vgpu;
