use super::*;
use crate::decode::custom_fields::{AttributeDefinition, NamedField};
use crate::fault::{Fault, FaultKind};
use crate::property::Value;

fn folder(id: &str) -> Moref {
    Moref::new("Folder", id)
}

fn object(moref: Moref, name: &str, parent: Option<Moref>) -> ObjectProperties {
    ObjectProperties {
        moref,
        missing: Vec::new(),
        properties: vec![
            ("name".to_owned(), Some(Value::Text(name.to_owned()))),
            ("parent".to_owned(), parent.map(Value::Moref)),
        ],
    }
}

/// `/dc1/vm/tenant-a/gpu` with vm-1, in the pool `/dc1/host/cluster1/Resources/pool-a`.
fn inventory() -> Vec<ObjectProperties> {
    let pool = |id: &str| Moref::new("ResourcePool", id);
    let cluster = Moref::new("ClusterComputeResource", "domain-c8");
    let datacenter = Moref::new("Datacenter", "datacenter-2");
    let mut vm = object(
        Moref::new("VirtualMachine", "vm-1"),
        "vm-1",
        Some(folder("group-v9")),
    );
    vm.properties
        .push(("resourcePool".to_owned(), Some(Value::Moref(pool("resgroup-7")))));
    vec![
        vm,
        object(folder("group-v9"), "gpu", Some(folder("group-v8"))),
        object(folder("group-v8"), "tenant-a", Some(folder("group-v3"))),
        object(folder("group-v3"), "vm", Some(datacenter.clone())),
        object(datacenter.clone(), "dc1", Some(folder("group-d1"))),
        object(folder("group-d1"), "Datacenters", None),
        object(pool("resgroup-7"), "pool-a", Some(pool("resgroup-6"))),
        object(pool("resgroup-6"), "Resources", Some(cluster.clone())),
        object(cluster, "cluster1", Some(folder("group-h4"))),
        object(folder("group-h4"), "host", Some(datacenter)),
    ]
}

fn is_in(scope: &str, read: &[ObjectProperties]) -> bool {
    let vms = BTreeSet::from([VmRef::new("vm-1")]);
    let scope: VmScope = scope.parse().unwrap();
    scope.contains(&vms, read) == vms
}

#[test]
fn vm_is_in_scope_below_a_folder_cluster_pool_or_datacenter() {
    let read = inventory();
    for scope in [
        "/dc1",
        "/dc1/vm/tenant-a",
        "/dc1/vm/tenant-a/",
        "/dc2, /dc1/vm/tenant-a/gpu",
        "/dc1/host/cluster1",
        "/dc1/host/cluster1/Resources/pool-a",
        "group-v8",
        "domain-c8",
        "resgroup-7",
    ] {
        assert!(is_in(scope, &read), "{scope}");
    }
    for scope in [
        "/dc2",
        "/dc1/vm/tenant",
        "/dc1/vm/tenant-a/gpu/vm-1",
        "/vm/tenant-a",
        "/Datacenters/dc1",
        "/tenant-a",
        "/dc1/host/cluster1/Resources/pool-b",
        "group-v77",
        "vm-1",
    ] {
        assert!(!is_in(scope, &read), "{scope}");
    }
}

#[test]
fn vm_whose_place_cannot_be_read_is_in_scope_by_a_readable_id_only() {
    let mut read = inventory();
    // The account has no rights on the datacenter and above.
    read.retain(|object| !["datacenter-2", "group-d1"].contains(&&*object.moref.value));
    assert!(!is_in("/dc1/vm/tenant-a", &read));
    assert!(is_in("group-v8", &read) && is_in("datacenter-2", &read));

    let mut read = inventory();
    for object in read
        .iter_mut()
        .filter(|object| &*object.moref.value == "group-v8")
    {
        object.properties.clear();
        let message = String::new();
        let fault = Fault::new(FaultKind::NoPermission, message);
        object.missing.push(("parent".to_owned(), fault));
    }
    assert!(!is_in("/gpu", &read), "a path counts from the root folder");
    assert!(is_in("/dc1/host/cluster1", &read));
    assert!(!is_in("/dc1", &[]));
}

#[test]
fn vm_is_in_scope_by_the_value_of_a_custom_attribute() {
    let field = |key, name: &str| NamedField {
        name: name.to_owned(),
        definition: AttributeDefinition { key, on: None },
    };
    let vm = |value: Option<(i32, &str)>| {
        let mut vm = object(Moref::new("VirtualMachine", "vm-1"), "vm-1", None);
        let fields = vec![field(7, "cluster"), field(8, "owner")];
        let values = value.map(|(key, value)| Value::CustomValues([(key, value.to_owned())].into()));
        vm.properties
            .extend([("availableField".to_owned(), Some(Value::Fields(fields)))]);
        vm.properties.push(("customValue".to_owned(), values));
        vec![vm]
    };
    let scope = "/dc9, cluster = tenant-a";
    assert!(is_in(scope, &vm(Some((7, "tenant-a")))));
    for (value, why) in [
        (Some((7, "tenant-ab")), "another value"),
        (Some((8, "tenant-a")), "another attribute"),
        (Some((9, "tenant-a")), "an attribute without a definition"),
        (None, "no value"),
    ] {
        assert!(!is_in(scope, &vm(value)), "{why}");
    }
}

#[test]
fn circle_of_parents_ends() {
    let read = [
        object(Moref::new("VirtualMachine", "vm-1"), "vm-1", Some(folder("a"))),
        object(folder("a"), "a", Some(folder("b"))),
        object(folder("b"), "b", Some(folder("a"))),
    ];
    assert!(!is_in("/a", &read));
}

#[test]
fn scope_is_a_list_of_paths_ids_and_attributes() {
    let scope: VmScope = " /dc1/vm/tenant-a/ ,group-v8, k8s cluster = a=b,"
        .parse()
        .unwrap();
    assert_eq!(scope.to_string(), "/dc1/vm/tenant-a,group-v8,k8s cluster=a=b");
    assert!("".parse::<VmScope>().unwrap().is_everything() && !scope.is_everything());
    for wrong in [
        "/", "//vm", "/dc1//vm", "tenant a", "dc1/vm", "=a", "cluster=", "a\u{7}=b",
    ] {
        let error = wrong.parse::<VmScope>().unwrap_err();
        assert_eq!(error.entry, wrong.trim());
    }
    let many = vec!["/a"; MAX_ENTRIES + 1].join(",");
    assert!(many.parse::<VmScope>().is_err());
}
