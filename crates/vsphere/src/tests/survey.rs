//! What a survey makes of hosts and VMs that cannot be read whole.

use crate::property::{ObjectProperties, read_page};
use crate::soap::{SoapAnswer, read_answer};
use crate::survey::{self, hardware, hardware::HardwareVersions};
use crate::update::{Claim, ClaimedDevice, HostReading, HostSurvey, HostVgpus, VgpuProfile};
use haulout_core::ids::{HostRef, VmRef};

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

fn object(kind: &str, name: &str, properties: &str) -> String {
    format!(r#"<objects><obj type="{kind}">{name}</obj>{properties}</objects>"#)
}

fn property(path: &str, value: &str) -> String {
    format!("<propSet><name>{path}</name><val>{value}</val></propSet>")
}

fn on_host(host: &str) -> String {
    format!(r#"<propSet><name>runtime.host</name><val type="HostSystem">{host}</val></propSet>"#)
}

fn denied(path: &str) -> String {
    format!(
        r#"<missingSet><path>{path}</path><fault><fault i:type="NoPermission"><privilegeId>System.Read</privilegeId></fault>
           <localizedMessage>denied</localizedMessage></fault></missingSet>"#
    )
}

fn vms(names: &[&str]) -> String {
    let names: String = names
        .iter()
        .map(|name| {
            format!(r#"<ManagedObjectReference type="VirtualMachine">{name}</ManagedObjectReference>"#)
        })
        .collect();
    property("vm", &names)
}

fn bindings(of: &[(&str, &str)]) -> String {
    let of: String = of
        .iter()
        .map(|(id, vm)| {
            format!(
                r#"<HostAssignableHardwareBinding><instanceId>{id}</instanceId><vm type="VirtualMachine">{vm}</vm></HostAssignableHardwareBinding>"#
            )
        })
        .collect();
    property("config.assignableHardwareBinding", &of)
}

fn host() -> HostRef {
    HostRef::new("host-1")
}

/// A VM with a device that is chosen at power-on.
fn readable(name: &str, power: &str) -> String {
    let device = r#"<VirtualDevice i:type="VirtualPCIPassthrough"><backing i:type="VirtualPCIPassthroughDynamicBackingInfo">
        <allowedDevice><vendorId>4318</vendorId><deviceId>8373</deviceId></allowedDevice></backing></VirtualDevice>"#;
    let properties = [
        property("name", name),
        property("config.hardware.device", device),
        property("runtime.powerState", power),
        on_host("host-1"),
    ];
    object("VirtualMachine", name, &properties.concat())
}

fn survey(content: &str) -> HostSurvey {
    let mut surveyed = survey::survey(&[host()], &objects(content));
    surveyed.remove(&host()).expect("each host that was asked about")
}

fn surveyed_host(content: &str) -> HostReading {
    match survey(content) {
        HostSurvey::Read(reading) => reading,
        HostSurvey::Unreadable(why) => panic!("{why}"),
    }
}

/// Why the host cannot be read.
fn unreadable(content: &str) -> String {
    match survey(content) {
        HostSurvey::Read(reading) => panic!("{reading:?}"),
        HostSurvey::Unreadable(why) => why,
    }
}

fn address(read: &HostReading, vm: &str) -> Vec<String> {
    let is_of_vm = |claim: &&Claim| claim.vm == VmRef::new(vm);
    let of_vm = read.claims.iter().filter(is_of_vm);
    of_vm
        .map(|claim| match &claim.device {
            ClaimedDevice::Address(address) => address.clone(),
            ClaimedDevice::AnyOf(_) | ClaimedDevice::Vgpu(_) => panic!("{claim:?}"),
        })
        .collect()
}

#[test]
fn host_that_cannot_be_read_says_why() {
    for (content, why) in [
        (String::new(), "vCenter does not show the host"),
        (object("HostSystem", "host-1", &denied("vm")), "NoPermission"),
    ] {
        let message = unreadable(&content);
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn host_without_vms_holds_nothing() {
    let read = surveyed_host(&object("HostSystem", "host-1", &property("name", "esx1")));
    assert!(read.claims.is_empty());
}

#[test]
fn unreadable_vm_is_named_with_its_reason() {
    let denied = [property("name", "vCLS-1"), denied("config.hardware.device")].concat();
    for (properties, name, why) in [
        (Some(denied), "vCLS-1", "System.Read"),
        (
            Some(property("name", "lost%2ffound")),
            "lost/found",
            "inaccessible",
        ),
        (None, "vm-2", "does not show"),
    ] {
        let content = [
            object("HostSystem", "host-1", &vms(&["vm-1", "vm-2"])),
            readable("vm-1", "poweredOn"),
            properties.map_or_else(String::new, |properties| {
                object("VirtualMachine", "vm-2", &properties)
            }),
        ];
        let message = unreadable(&content.concat());
        assert!(
            message.contains(&format!("VM {name} cannot be read: ")),
            "{message}"
        );
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn the_reason_names_one_vm_and_counts_the_others() {
    for (others, of_others) in [(0, ""), (1, " (and of another VM)"), (2, " (and of 2 other VMs)")] {
        let expected = format!("the devices of VM vCLS-1{of_others} cannot be read: NoPermission");
        assert_eq!(survey::unreadable_vms("vCLS-1", "NoPermission", others), expected);
    }
}

#[test]
fn binding_lists_devices_of_an_unreadable_vm() {
    let hidden = |vm: &str| object("VirtualMachine", vm, &denied("config.hardware.device"));
    let with = |of: &[(&str, &str)]| {
        let host = [vms(&["vm-1", "vm-2", "vm-3"]), bindings(of)].concat();
        let content = [
            object("HostSystem", "host-1", &host),
            readable("vm-1", "poweredOn"),
            hidden("vm-2"),
            hidden("vm-3"),
        ];
        content.concat()
    };
    // Named with addresses: it holds these. Not named: it holds nothing.
    let read = surveyed_host(&with(&[("0000:af:00.0", "vm-2"), ("pcip:0000:3b:00.0", "vm-2")]));
    assert_eq!(address(&read, "vm-2"), ["0000:3b:00.0", "0000:af:00.0"]);
    assert!(read.claims.iter().all(|claim| claim.vm != VmRef::new("vm-3")));

    // Listed without an address: it holds an unknown device.
    let message = unreadable(&with(&[("0000:af:00.0", "vm-2"), ("vendor-group-7", "vm-2")]));
    assert!(message.contains("VM vm-2 cannot be read"), "{message}");
}

#[test]
fn binding_does_not_clear_a_vm_that_is_off() {
    let hidden = |power: &str| {
        let properties = [
            denied("config.hardware.device"),
            property("runtime.powerState", power),
        ];
        object("VirtualMachine", "vm-2", &properties.concat())
    };
    for (power, is_known) in [("poweredOn", true), ("poweredOff", false), ("suspended", false)] {
        let host = [vms(&["vm-1", "vm-2"]), bindings(&[("0000:af:00.0", "vm-1")])].concat();
        let content = [
            object("HostSystem", "host-1", &host),
            readable("vm-1", "poweredOn"),
            hidden(power),
        ];
        let is_read = matches!(survey(&content.concat()), HostSurvey::Read(_));
        assert_eq!(is_read, is_known, "{power}");
    }
}

#[test]
fn absent_or_denied_binding_says_nothing() {
    for binding in [String::new(), denied("config.assignableHardwareBinding")] {
        let host = [vms(&["vm-2"]), binding].concat();
        let hidden = object("VirtualMachine", "vm-2", &denied("config.hardware.device"));
        let message = unreadable(&[object("HostSystem", "host-1", &host), hidden].concat());
        assert!(message.contains("VM vm-2 cannot be read"), "{message}");
    }
}

#[test]
fn vm_on_its_way_and_vm_that_is_off_hold_their_devices() {
    // The host does not list it yet; the VM says itself where it is.
    for power in ["poweredOn", "poweredOff"] {
        let read =
            surveyed_host(&[object("HostSystem", "host-1", &vms(&[])), readable("vm-1", power)].concat());
        assert_eq!(read.claims.len(), 1, "{power}");
    }
    let template = readable("vm-1", "poweredOff").replace(
        "<propSet><name>name</name>",
        "<propSet><name>config.template</name><val>true</val></propSet><propSet><name>name</name>",
    );
    let read = surveyed_host(&[object("HostSystem", "host-1", &vms(&["vm-1"])), template].concat());
    assert!(read.claims.is_empty());
}

#[test]
fn networks_of_a_host_are_none_unless_reported() {
    let networks = [
        ("Network", "network-7"),
        ("DistributedVirtualPortgroup", "dvportgroup-8"),
        ("OpaqueNetwork", "network-o9"),
    ];
    let networks = networks.map(|(kind, name)| {
        format!(r#"<ManagedObjectReference type="{kind}">{name}</ManagedObjectReference>"#)
    });
    for (properties, count) in [
        (property("network", &networks.concat()), Some(3)),
        (property("network", ""), Some(0)),
        (String::new(), None),
        (denied("network"), None),
    ] {
        let read = surveyed_host(&object("HostSystem", "host-1", &properties));
        assert_eq!(read.networks.map(|all| all.len()), count, "{properties}");
    }
}

#[test]
fn vms_that_are_on_run_there() {
    let content = [
        object("HostSystem", "host-1", &vms(&["vm-1", "vm-2", "vm-3"])),
        readable("vm-1", "poweredOn"),
        readable("vm-2", "poweredOff"),
        // Its power state cannot be read.
        readable("vm-3", "unknown"),
    ];
    let read = surveyed_host(&content.concat());
    assert_eq!(read.running, [VmRef::new("vm-1")].into());
}

#[test]
fn memory_is_unreserved_unless_a_running_vm_reserves_it() {
    let reserves = |vm: String| {
        let end = vm.len() - "</objects>".len();
        format!(
            "{}{}</objects>",
            &vm[..end],
            property("summary.config.memoryReservation", "3072")
        )
    };
    let unreserved = |memory: &str| {
        let content = [
            object(
                "HostSystem",
                "host-1",
                &[vms(&["vm-1", "vm-2", "vm-3"]), memory.to_owned()].concat(),
            ),
            reserves(readable("vm-1", "poweredOn")),
            reserves(readable("vm-2", "poweredOff")),
            readable("vm-3", "poweredOn"),
        ];
        surveyed_host(&content.concat()).unreserved_mib
    };
    assert_eq!(
        unreserved(&property("hardware.memorySize", "8589934592")),
        Some(5_120)
    );
    assert_eq!(unreserved(&property("hardware.memorySize", "1048576")), Some(0));
    for unreported in [
        String::new(),
        denied("hardware.memorySize"),
        property("hardware.memorySize", "-1"),
    ] {
        assert_eq!(unreserved(&unreported), None, "{unreported}");
    }
}

#[test]
fn vgpu_profiles_and_shared_gpus_of_a_host_are_read() {
    let types = property(
        "config.sharedPassthruGpuTypes",
        "<string>grid_a40-48c</string><string></string><string>grid_a40-24c</string>",
    );
    let capabilities = property(
        "config.sharedGpuCapabilities",
        "<HostSharedGpuCapabilities><vgpu>grid_a40-8c</vgpu></HostSharedGpuCapabilities><HostSharedGpuCapabilities/>",
    );
    let gpu = |kind: &str, memory: &str| {
        format!(
            "<HostGraphicsInfo><graphicsType>{kind}</graphicsType>{memory}<vm type=\"VirtualMachine\">vm-1</vm></HostGraphicsInfo>"
        )
    };
    let graphics = [
        gpu("sharedDirect", "<memorySizeInKB>47173632</memorySizeInKB>"),
        gpu("sharedDirect", "<memorySizeInKB>-1</memorySizeInKB>"),
        gpu("sharedDirect", ""),
        gpu("shared", "<memorySizeInKB>47173632</memorySizeInKB>"),
        gpu("direct", ""),
    ];
    let graphics = property("config.graphicsInfo", &graphics.concat());
    let vgpus = |content: &str| surveyed_host(&object("HostSystem", "host-1", content)).vgpus;
    let all = vgpus(&[types, capabilities, graphics].concat()).unwrap();
    let profiles: Vec<String> = all.profiles.iter().map(ToString::to_string).collect();
    assert_eq!(profiles, ["grid_a40-24c", "grid_a40-48c", "grid_a40-8c"]);
    assert_eq!(all.gpus_gib, [45, 0, 0]);
    assert_eq!(
        vgpus(&property("name", "esx1")).as_deref(),
        Some(&HostVgpus::default())
    );
    assert_eq!(vgpus(&denied("config.sharedPassthruGpuTypes")), None);
}

#[test]
fn lists_of_vgpu_profiles_are_bounded() {
    let names: String = (0..5_000).map(|n| format!("<string>p{n}-1c</string>")).collect();
    let host = object(
        "HostSystem",
        "host-1",
        &property("config.sharedPassthruGpuTypes", &names),
    );
    let vgpus = surveyed_host(&host).vgpus.unwrap();
    assert_eq!(vgpus.profiles.len(), 1_000);
}

#[test]
fn vgpu_of_a_vm_is_a_claim_with_its_profile() {
    let device = r#"<VirtualDevice i:type="VirtualPCIPassthrough"><backing i:type="VirtualPCIPassthroughVmiopBackingInfo">
        <vgpu>grid_a40-24c</vgpu></backing></VirtualDevice>"#;
    let vm = [property("config.hardware.device", device), on_host("host-1")];
    let content = [
        object("HostSystem", "host-1", &vms(&["vm-1"])),
        object("VirtualMachine", "vm-1", &vm.concat()),
    ];
    let read = surveyed_host(&content.concat());
    let profile = VgpuProfile::new("grid_a40-24c");
    let claims: Vec<_> = read.claimed_vgpus().collect();
    assert_eq!(claims, [(&VmRef::new("vm-1"), &profile)]);
}

#[test]
fn hardware_versions_are_read_of_each_host() {
    let descriptor = |key: &str, hosts: &[&str], more: &str| {
        let hosts: String = hosts
            .iter()
            .map(|host| format!(r#"<host type="HostSystem">{host}</host>"#))
            .collect();
        format!("<returnval><key>{key}</key>{hosts}{more}</returnval>")
    };
    let reply = [
        descriptor(
            "vmx-20",
            &["host-1", "host-2"],
            "<runSupported>true</runSupported>",
        ),
        descriptor("vmx-21", &["host-1"], ""),
        descriptor("vmx-4", &["host-2"], "<runSupported>false</runSupported>"),
        descriptor("", &["host-1"], ""),
        "<returnval/>".to_owned(),
    ];
    let versions = hardware_versions(&reply.concat());
    let of = |host: &str| -> Vec<String> {
        let versions = versions.get(&HostRef::new(host)).into_iter().flatten();
        versions.map(ToString::to_string).collect()
    };
    assert_eq!(of("host-1"), ["vmx-20", "vmx-21"]);
    assert_eq!(of("host-2"), ["vmx-20"]);
    assert_eq!(versions.len(), 2);
    let many: String = (0..5_000)
        .map(|n| descriptor(&format!("vmx-{n}"), &["host-1"], ""))
        .collect();
    assert_eq!(hardware_versions(&many)[&host()].len(), 200);
}

fn hardware_versions(content: &str) -> HardwareVersions {
    const METHOD: &str = "QueryConfigOptionDescriptor";
    let reply = format!(
        r#"<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>
           <{METHOD}Response xmlns="urn:vim25">{content}</{METHOD}Response></s:Body></s:Envelope>"#
    );
    match read_answer(METHOD, reply.as_bytes(), |response| {
        Ok(hardware::read_versions(response))
    })
    .unwrap()
    {
        SoapAnswer::Returned(versions) => versions,
        SoapAnswer::Fault { fault, .. } => panic!("{fault}"),
    }
}
