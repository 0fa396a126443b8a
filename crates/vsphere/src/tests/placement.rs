//! What is read for placement: devices, clusters, networks.

use std::sync::Arc;

use crate::property::{Change, ObjectProperties, read_page};
use crate::soap::{SoapAnswer, read_answer};
use crate::update::{
    AllowedDevice, ClusterRules, Compute, DatastoreState, Host, Passthrough, PciIds, Vm, VsphereUpdate,
};
use crate::updates::property_cache::PropertyCache;
use haulout_core::facts::vsphere::VmotionDevice;
use haulout_core::ids::{DatastoreRef, HostRef, VmRef};

fn objects(content: &str) -> Vec<ObjectProperties> {
    let reply = format!(
        r#"<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><s:Body>
           <RetrievePropertiesExResponse xmlns="urn:vim25"><returnval>{content}</returnval></RetrievePropertiesExResponse></s:Body></s:Envelope>"#
    );
    match read_answer("RetrievePropertiesEx", reply.as_bytes(), read_page).unwrap() {
        SoapAnswer::Returned(page) => page.objects,
        SoapAnswer::Fault { fault, .. } => panic!("{fault}"),
    }
}

fn object(kind: &str, name: &str, properties: &[(&str, &str)]) -> String {
    let properties: String = properties
        .iter()
        .map(|(path, value)| format!("<propSet><name>{path}</name><val>{value}</val></propSet>"))
        .collect();
    format!(r#"<objects><obj type="{kind}">{name}</obj>{properties}</objects>"#)
}

/// The updates that follow from these objects; the VM `vm-1` is ours.
fn updates(content: &str) -> Vec<VsphereUpdate> {
    let mut cache = PropertyCache::default();
    cache.set_ours([VmRef::new("vm-1")].into());
    cache.apply(objects(content).into_iter().map(Change::Upsert).collect());
    cache.take_updates()
}

fn host(properties: &[(&str, &str)]) -> Host {
    match updates(&object("HostSystem", "host-1", properties)).as_slice() {
        [VsphereUpdate::Host(host)] => Host::clone(host),
        updates => panic!("{updates:?}"),
    }
}

fn vm(properties: &[(&str, &str)]) -> Vm {
    match updates(&object("VirtualMachine", "vm-1", properties)).as_slice() {
        [VsphereUpdate::Vm(vm)] => vm.clone(),
        updates => panic!("{updates:?}"),
    }
}

#[test]
fn label_and_subsystem_ids_of_a_device_are_read() {
    // Signed shorts: 0x10de is 4318, 0x9abc is -25924.
    let device = |id: &str, sub_ids: &str| {
        format!(
            "<HostPciDevice><id>{id}</id><vendorId>4318</vendorId>{sub_ids}<deviceId>8757</deviceId></HostPciDevice>"
        )
    };
    let devices = [
        device(
            "0000:3b:00.0",
            "<subVendorId>4318</subVendorId><subDeviceId>-25924</subDeviceId>",
        ),
        device("0000:af:00.0", ""),
        device("0000:d8:00.0", ""),
    ];
    let info = |id: &str, active: bool, label: &str| {
        format!(
            "<HostPciPassthruInfo><id>{id}</id><passthruActive>{active}</passthruActive>{label}</HostPciPassthruInfo>"
        )
    };
    let info = [
        info("0000:3b:00.0", true, "<hardwareLabel>pool-a</hardwareLabel>"),
        info("0000:af:00.0", true, "<hardwareLabel/>"),
        info("0000:d8:00.0", false, "<hardwareLabel>pool-a</hardwareLabel>"),
    ];
    let host = host(&[
        ("hardware.pciDevice", &devices.concat()),
        ("config.pciPassthruInfo", &info.concat()),
    ]);
    let read: Vec<_> = host
        .passthrough
        .iter()
        .flat_map(|devices| devices.iter())
        .collect();
    assert_eq!(read.len(), 2, "{read:?}");
    let a40 = PciIds {
        vendor: 0x10de,
        device: 0x2235,
        sub_vendor: 0x10de,
        sub_device: 0x9abc,
    };
    assert_eq!((read[0].ids, read[0].label.as_deref()), (a40, Some("pool-a")));
    assert_eq!((read[1].ids.sub_device, read[1].label.as_deref()), (0, None));
}

#[test]
fn label_and_subsystem_ids_that_a_vm_requires_are_read() {
    let requires = |allowed: &str, label: &str| {
        let device = format!(
            r#"<VirtualDevice i:type="VirtualPCIPassthrough"><backing i:type="VirtualPCIPassthroughDynamicBackingInfo">
               <allowedDevice><vendorId>4318</vendorId><deviceId>8757</deviceId>{allowed}</allowedDevice>{label}</backing></VirtualDevice>"#
        );
        match vm(&[("config.hardware.device", &device)]).passthrough.as_deref() {
            Some([Passthrough::Dynamic(requirement)]) => requirement.clone(),
            devices => panic!("{devices:?}"),
        }
    };
    let any = AllowedDevice {
        vendor: 0x10de,
        device: 0x2235,
        sub_vendor: None,
        sub_device: None,
    };
    let plain = requires("", "<customLabel/>");
    assert_eq!((plain.allowed.as_slice(), plain.label), ([any].as_slice(), None));
    let unspecified = requires("<subVendorId>0</subVendorId><subDeviceId>0</subDeviceId>", "");
    assert_eq!(unspecified.allowed, [any]);
    let exact = requires(
        "<subVendorId>4318</subVendorId><subDeviceId>39612</subDeviceId><revisionId>161</revisionId>",
        "<customLabel>pool-a</customLabel>",
    );
    let specified = AllowedDevice {
        sub_vendor: Some(0x10de),
        sub_device: Some(0x9abc),
        ..any
    };
    assert_eq!(exact.allowed, [specified]);
    assert_eq!(exact.label.as_deref(), Some("pool-a"));
}

#[test]
fn networks_of_a_vm_are_named_when_their_names_arrive() {
    let mut cache = PropertyCache::default();
    cache.set_ours([VmRef::new("vm-1")].into());
    let networks = r#"<ManagedObjectReference type="Network">network-7</ManagedObjectReference>
        <ManagedObjectReference type="DistributedVirtualPortgroup">dvportgroup-8</ManagedObjectReference>"#;
    let mut report = |content: &str| -> Vec<(String, Option<String>)> {
        cache.apply(objects(content).into_iter().map(Change::Upsert).collect());
        match cache.take_updates().as_slice() {
            [VsphereUpdate::Vm(vm)] => vm
                .networks
                .iter()
                .map(|(network, name)| (network.to_string(), name.as_deref().map(str::to_owned)))
                .collect(),
            updates => panic!("{updates:?}"),
        }
    };
    let vm = object("VirtualMachine", "vm-1", &[("network", networks)]);
    let (dvs, standard) = ("dvportgroup-8".to_owned(), "network-7".to_owned());
    assert_eq!(report(&vm), [(dvs.clone(), None), (standard.clone(), None)]);
    let name = object("Network", "network-7", &[("name", "VM Network%2fA")]);
    let named = Some("VM Network/A".to_owned());
    assert_eq!(
        report(&name),
        [(dvs.clone(), None), (standard.clone(), named.clone())]
    );
    let name = object(
        "DistributedVirtualPortgroup",
        "dvportgroup-8",
        &[("name", "storage")],
    );
    assert_eq!(
        report(&name),
        [(dvs, Some("storage".to_owned())), (standard, named)]
    );
}

fn cluster(content: &str) -> Compute {
    let value = format!(
        r#"<propSet><name>configurationEx</name><val i:type="ClusterConfigInfoEx">{content}</val></propSet>"#
    );
    let object = format!(r#"<objects><obj type="ClusterComputeResource">c-1</obj>{value}</objects>"#);
    match updates(&object).as_slice() {
        [VsphereUpdate::Compute(compute)] => compute.clone(),
        updates => panic!("{updates:?}"),
    }
}

#[test]
fn failover_hosts_are_read_where_vsphere_ha_enforces_them() {
    let failover = |enabled: &str, admission: &str, kind: &str| {
        let config = cluster(&format!(
            r#"<dasConfig>{enabled}<admissionControlPolicy i:type="{kind}"><failoverHosts type="HostSystem">host-6</failoverHosts>
               <failoverLevel>1</failoverLevel></admissionControlPolicy>{admission}</dasConfig>"#
        ));
        config.rules.failover_hosts.len()
    };
    let (on, admission) = (
        "<enabled>true</enabled>",
        "<admissionControlEnabled>true</admissionControlEnabled>",
    );
    let policy = "ClusterFailoverHostAdmissionControlPolicy";
    assert_eq!(failover(on, admission, policy), 1);
    assert_eq!(failover("<enabled>false</enabled>", admission, policy), 0);
    assert_eq!(failover(on, "", policy), 0, "not reported");
    assert_eq!(
        failover(on, admission, "ClusterFailoverLevelAdmissionControlPolicy"),
        0
    );
}

/// A rule of the cluster, and the groups `vms` with `vm-1`, `good` with `host-1` and `bad` with `host-2`.
fn rules(drs: bool, kind: &str, enabled: bool, content: &str) -> Arc<ClusterRules> {
    let groups = r#"<group i:type="ClusterVmGroup"><name>vms</name><vm type="VirtualMachine">vm-1</vm></group>
        <group i:type="ClusterHostGroup"><name>good</name><host type="HostSystem">host-1</host></group>
        <group i:type="ClusterHostGroup"><name>bad</name><host type="HostSystem">host-2</host></group>"#;
    let config = format!(
        r#"<drsConfig><enabled>{drs}</enabled></drsConfig>
           <rule i:type="{kind}"><key>1</key><enabled>{enabled}</enabled><name>a rule</name>{content}</rule>{groups}"#
    );
    cluster(&config).rules
}

#[test]
fn mandatory_vm_host_rules_are_read_with_their_groups() {
    let rule = |enabled: bool, mandatory: &str, hosts: &str| {
        let content = format!("{mandatory}<vmGroupName>vms</vmGroupName>{hosts}");
        rules(false, "ClusterVmHostRuleInfo", enabled, &content)
    };
    let mandatory = "<mandatory>true</mandatory>";
    let good = "<affineHostGroupName>good</affineHostGroupName>";
    let bad = "<antiAffineHostGroupName>bad</antiAffineHostGroupName>";
    let forbids = |rules: &ClusterRules, vm: &str| {
        let hosts = ["host-1", "host-2", "host-3"].into_iter();
        let is_forbidden = |host: &&str| rules.vm_host[0].forbids(&VmRef::new(vm), &HostRef::new(*host));
        hosts.filter(is_forbidden).collect::<Vec<_>>()
    };
    assert_eq!(
        forbids(&rule(true, mandatory, good), "vm-1"),
        ["host-2", "host-3"]
    );
    assert_eq!(forbids(&rule(true, mandatory, bad), "vm-1"), ["host-2"]);
    assert!(forbids(&rule(true, mandatory, good), "vm-2").is_empty());
    let no_group = "<affineHostGroupName>deleted</affineHostGroupName>";
    assert!(forbids(&rule(true, mandatory, no_group), "vm-1").is_empty());
    assert_eq!(&*rule(true, mandatory, good).vm_host[0].name, "a rule");
    for (enabled, mandatory) in [
        (false, mandatory),
        (true, ""),
        (true, "<mandatory>false</mandatory>"),
    ] {
        assert!(rule(enabled, mandatory, good).vm_host.is_empty());
    }
}

#[test]
fn anti_affinity_rules_are_read_where_drs_is_on() {
    let vms = r#"<vm type="VirtualMachine">vm-1</vm><vm type="VirtualMachine">vm-2</vm>"#;
    let kind = "ClusterAntiAffinityRuleSpec";
    let read = rules(true, kind, true, vms);
    assert!(read.anti_affinity[0].separates(&VmRef::new("vm-1"), &VmRef::new("vm-2")));
    assert!(rules(true, kind, false, vms).anti_affinity.is_empty());
    assert!(rules(false, kind, true, vms).anti_affinity.is_empty());
    assert!(
        rules(true, "ClusterAffinityRuleSpec", true, vms)
            .anti_affinity
            .is_empty()
    );
}

#[test]
fn memory_of_a_vm_is_read() {
    for (text, memory) in [("65536", Some(65_536)), ("-1", None), ("much", None)] {
        assert_eq!(vm(&[("config.hardware.memoryMB", text)]).memory_mib, memory);
    }
}

#[test]
fn datastore_that_only_an_image_in_a_drive_is_on_is_not_needed() {
    let backing = |kind: &str, datastore: &str, more: &str| {
        format!(
            r#"<backing i:type="{kind}"><fileName>[x] y</fileName><datastore type="Datastore">{datastore}</datastore>{more}</backing>"#
        )
    };
    let device = |kind: &str, backing: &str| {
        format!(r#"<VirtualDevice i:type="{kind}"><key>1</key>{backing}</VirtualDevice>"#)
    };
    let cd = |datastore: &str| {
        device(
            "VirtualCdrom",
            &backing("VirtualCdromIsoBackingInfo", datastore, ""),
        )
    };
    let floppy = |datastore: &str| {
        device(
            "VirtualFloppy",
            &backing("VirtualFloppyImageBackingInfo", datastore, ""),
        )
    };
    let disk = |datastore: &str, parent: &str| {
        device(
            "VirtualDisk",
            &backing("VirtualDiskFlatVer2BackingInfo", datastore, parent),
        )
    };
    let parent = r#"<parent><fileName>[x] z</fileName><datastore type="Datastore">ds-2</datastore></parent>"#;
    let none = device(
        "VirtualCdrom",
        r#"<backing i:type="VirtualCdromRemoteAtapiBackingInfo"/>"#,
    );
    let datastores: String = ["ds-1", "ds-2", "ds-3"]
        .map(|datastore| {
            format!(r#"<ManagedObjectReference type="Datastore">{datastore}</ManagedObjectReference>"#)
        })
        .concat();
    for (devices, needed) in [
        (disk("ds-1", "") + &cd("ds-2") + &floppy("ds-3"), &["ds-1"][..]),
        (disk("ds-1", "") + &none, &["ds-1", "ds-2", "ds-3"]),
        // The disk, or the one that it is based on, is there as well.
        (disk("ds-2", "") + &cd("ds-2"), &["ds-1", "ds-2", "ds-3"]),
        (disk("ds-1", parent) + &cd("ds-2"), &["ds-1", "ds-2", "ds-3"]),
    ] {
        let vm = vm(&[("datastore", &datastores), ("config.hardware.device", &devices)]);
        let found: Vec<&str> = vm.datastores.iter().map(DatastoreRef::as_str).collect();
        assert_eq!(found, needed, "{devices}");
    }
}

#[test]
fn datastore_that_a_vm_cannot_use_is_known_with_the_vm() {
    let mut cache = PropertyCache::default();
    cache.set_ours([VmRef::new("vm-1")].into());
    let mut report = |content: &str| {
        cache.apply(objects(content).into_iter().map(Change::Upsert).collect());
        match cache.take_updates().as_slice() {
            [VsphereUpdate::Vm(vm)] => vm
                .datastore_states
                .values()
                .next()
                .map(|state| DatastoreState::clone(state)),
            updates => panic!("{updates:?}"),
        }
    };
    let datastore = r#"<ManagedObjectReference type="Datastore">ds-1</ManagedObjectReference>"#;
    assert_eq!(
        report(&object("VirtualMachine", "vm-1", &[("datastore", datastore)])),
        None
    );
    let mount = |host: &str, accessible: &str| {
        format!(
            r#"<DatastoreHostMount><key type="HostSystem">{host}</key><mountInfo><accessMode>readWrite</accessMode>{accessible}</mountInfo></DatastoreHostMount>"#
        )
    };
    let mounts = [
        mount("host-1", "<accessible>true</accessible>"),
        mount("host-2", "<accessible>false</accessible>"),
        mount("host-3", ""),
    ];
    let properties = [
        ("name", "nfs"),
        ("summary.maintenanceMode", "enteringMaintenance"),
        ("host", &mounts.concat()),
    ];
    let mut known = DatastoreState {
        name: Some("nfs".into()),
        in_maintenance: false,
        inaccessible_on: [HostRef::new("host-2")].into(),
    };
    assert_eq!(
        report(&object("Datastore", "ds-1", &properties)),
        Some(known.clone())
    );
    known.in_maintenance = true;
    let changed = object(
        "Datastore",
        "ds-1",
        &[("summary.maintenanceMode", "inMaintenance")],
    );
    assert_eq!(report(&changed), Some(known));
}

#[test]
fn devices_that_can_be_moved_while_the_vm_runs_are_told_apart() {
    let device = |backing: &str| {
        let devices = format!(r#"<VirtualDevice i:type="VirtualPCIPassthrough">{backing}</VirtualDevice>"#);
        let vm = vm(&[("config.hardware.device", &devices)]);
        vm.passthrough.expect("devices").remove(0)
    };
    let vgpu = |more: &str| {
        let kind = "VirtualPCIPassthroughVmiopBackingInfo";
        device(&format!(
            r#"<backing i:type="{kind}"><vgpu>grid_a40-48c</vgpu>{more}</backing>"#
        ))
    };
    let dvx = device(
        r#"<backing i:type="VirtualPCIPassthroughDvxBackingInfo"><deviceClass>x</deviceClass></backing>"#,
    );
    for (device, kind) in [
        (vgpu(""), Some(VmotionDevice::Vgpu)),
        (
            vgpu("<migrateSupported>true</migrateSupported>"),
            Some(VmotionDevice::Vgpu),
        ),
        (vgpu("<migrateSupported>false</migrateSupported>"), None),
        (dvx, Some(VmotionDevice::Dvx)),
        (
            device(r#"<backing i:type="VirtualPCIPassthroughNewBackingInfo"/>"#),
            None,
        ),
    ] {
        assert_eq!(device.vmotion_device(), kind, "{device:?}");
    }
}

#[test]
fn build_of_a_host_is_a_number() {
    for (text, build) in [("24585291", Some(24_585_291)), ("", None), ("x", None)] {
        assert_eq!(host(&[("summary.config.product.build", text)]).build, build);
    }
    assert_eq!(host(&[("name", "esx-1")]).build, None);
}

#[test]
fn sriov_network_cards_of_a_vm_and_active_sriov_of_a_host_are_read() {
    let card = |more: &str| {
        let devices = format!(r#"<VirtualDevice i:type="VirtualSriovEthernetCard">{more}</VirtualDevice>"#);
        let vm = vm(&[("config.hardware.device", &devices)]);
        vm.passthrough.expect("devices").remove(0)
    };
    let on = |id: &str| {
        let backing = format!("<physicalFunctionBacking><id>{id}</id></physicalFunctionBacking>");
        card(&format!("<sriovBacking>{backing}</sriovBacking>"))
    };
    let sriov = |function: Option<&str>| Passthrough::Sriov {
        function: function.map(str::to_owned),
    };
    assert_eq!(on("0000:17:00.0"), sriov(Some("0000:17:00.0")));
    assert_eq!(on("Automatic-0000:17:00.0"), sriov(None), "chosen at power-on");
    assert_eq!(card(""), sriov(None));
    assert_eq!(card("<dvxBackingInfo/>"), Passthrough::Dvx);

    let info =
        |id: &str, more: &str| format!("<HostPciPassthruInfo><id>{id}</id>{more}</HostPciPassthruInfo>");
    let host = host(&[(
        "config.pciPassthruInfo",
        &[
            info(
                "0000:17:00.0",
                "<passthruActive>false</passthruActive><sriovActive>true</sriovActive>",
            ),
            info("0000:18:00.0", "<sriovActive>false</sriovActive>"),
            info("0000:3b:00.0", "<passthruActive>true</passthruActive>"),
        ]
        .concat(),
    )]);
    assert_eq!(*host.sriov, ["0000:17:00.0".to_owned()].into());
}
