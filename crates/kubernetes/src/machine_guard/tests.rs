use super::*;
use crate::fence::{WriteFence, WriteKind};
use crate::stand_in::{RequestLog, ScriptedReply, refusal, server};

const UUID: &str = "4215e1a2-7c3d-9e4f-0102-030405060708";
const OTHER_UUID: &str = "4215e1a2-7c3d-9e4f-0102-030405060709";
const MACHINE: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/tenant-a/machines/md-1";
const VSPHERE_VM: &str = "/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/tenant-a/vspherevms/md-1";

/// What the kube-apiserver has.
#[derive(Clone)]
struct Served {
    groups: Vec<&'static str>,
    machine: Value,
    vsphere_vm: Value,
    /// What is refused.
    forbidden: &'static str,
    code: u16,
}

impl Default for Served {
    fn default() -> Self {
        Self {
            groups: vec![
                "cluster.x-k8s.io/v1beta2",
                "infrastructure.cluster.x-k8s.io/v1beta1",
            ],
            machine: json!({
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
                "metadata": {"name": "md-1", "namespace": "tenant-a", "resourceVersion": "7"},
                "spec": {
                    "clusterName": "tenant-a",
                    "providerID": format!("vsphere://{UUID}"),
                    "infrastructureRef": {"kind": "VSphereMachine", "name": "md-1-infra"},
                },
                "status": {"nodeRef": {"name": "gpu-1"}},
            }),
            vsphere_vm: json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "VSphereVM",
                "metadata": {
                    "name": "md-1", "namespace": "tenant-a", "resourceVersion": "8",
                    "ownerReferences": [{"apiVersion": "x/v1", "kind": "VSphereMachine", "name": "md-1-infra", "uid": "1"}],
                },
                "spec": {"biosUUID": UUID},
            }),
            forbidden: "none",
            code: 403,
        }
    }
}

impl Served {
    fn reply(&self, line: &str) -> ScriptedReply {
        let (_, path) = line.split_once(' ').unwrap();
        if path.contains(self.forbidden) {
            return refusal(self.code, "Forbidden", "machines is forbidden", json!({}));
        }
        let group = |entry: &&str| {
            let (name, version) = entry.split_once('/').unwrap();
            let version = json!({"groupVersion": entry, "version": version});
            json!({"name": name, "versions": [version], "preferredVersion": version})
        };
        let groups: Vec<Value> = self.groups.iter().map(group).collect();
        let node = json!({
            "metadata": {"name": "gpu-1", "annotations": {
                "cluster.x-k8s.io/machine": "md-1", "cluster.x-k8s.io/cluster-namespace": "tenant-a",
            }},
        });
        let listed = json!({"metadata": {}, "items": [self.vsphere_vm]});
        let found = match path {
            "/apis" => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
            "/api/v1/nodes/gpu-1" => node,
            MACHINE => self.machine.clone(),
            VSPHERE_VM => self.vsphere_vm.clone(),
            list if VSPHERE_VM.starts_with(list) => listed,
            other => panic!("asked for {other}"),
        };
        if found.is_null() {
            return refusal(404, "NotFound", "it is not there", json!({}));
        }
        ScriptedReply::Json(200, found)
    }

    fn client(&self) -> (kube::Client, RequestLog) {
        let this = self.clone();
        server(move |request| this.reply(&request.line))
    }
}

fn vm() -> VmUuid {
    VmUuid::parse(UUID).unwrap()
}

async fn set(served: &Served) -> (Guarded<Option<Vec<GuardedObject>>>, Vec<(String, Value)>) {
    let (client, log) = served.client();
    let permit = WriteFence::without_election().permit(WriteKind::Effect).unwrap();
    let api = MachineApi::new(client.clone());
    let set = api.set(&permit, &client, &NodeName::new("gpu-1"), vm()).await;
    (set, patches(&log))
}

async fn remove(served: &Served, objects: &[GuardedObject]) -> (Guarded<()>, Vec<(String, Value)>) {
    let (client, log) = served.client();
    let permit = WriteFence::without_election().permit(WriteKind::Effect).unwrap();
    let api = MachineApi::new(client.clone());
    let removed = api
        .remove(&permit, &client, &NodeName::new("gpu-1"), vm(), objects)
        .await;
    (removed, patches(&log))
}

/// Object and new annotations of each PATCH.
fn patches(log: &RequestLog) -> Vec<(String, Value)> {
    let requests = log.all().into_iter();
    let patch = requests.filter_map(|request| {
        let path = request.line.strip_prefix("PATCH ")?.to_owned();
        Some((path, request.body["metadata"].clone()))
    });
    patch.collect()
}

fn with_annotation(mut object: Value, key: &str, value: &str) -> Value {
    object["metadata"]["annotations"] = json!({key: value});
    object
}

fn names(objects: &[GuardedObject]) -> Vec<(&'static str, &str)> {
    let name = |object: &'_ GuardedObject| object.kind.name();
    objects
        .iter()
        .map(|object| (name(object), object.name.as_str()))
        .collect()
}

#[tokio::test]
async fn vm_is_paused_before_the_remediation_of_its_machine_is_skipped() {
    let (set, patches) = set(&Served::default()).await;
    let ours = format!("haulout: maintenance of VM {UUID}");
    let expected = [
        (
            VSPHERE_VM.to_owned(),
            json!({"resourceVersion": "8", "annotations": {"cluster.x-k8s.io/paused": ours}}),
        ),
        (
            MACHINE.to_owned(),
            json!({"resourceVersion": "7", "annotations": {"cluster.x-k8s.io/skip-remediation": ours}}),
        ),
    ];
    assert_eq!(patches, expected);
    assert_eq!(
        names(&set.unwrap().unwrap()),
        [("vsphereVm", "md-1"), ("machine", "md-1")]
    );
}

#[tokio::test]
async fn annotation_of_somebody_else_on_a_machine_is_left_alone() {
    let usual = Served::default();
    let served = Served {
        vsphere_vm: with_annotation(usual.vsphere_vm, PAUSED, "true"),
        ..Served::default()
    };
    let (set, patches) = set(&served).await;
    assert_eq!(names(&set.unwrap().unwrap()), [("machine", "md-1")]);
    assert_eq!(patches.len(), 1);
    let (removed, patches) = remove(&served, &[]).await;
    removed.unwrap();
    assert!(patches.is_empty(), "{patches:?}");
}

#[tokio::test]
async fn guard_that_is_there_already_is_reported_and_not_written_again() {
    let ours = value_of(vm());
    let usual = Served::default();
    let served = Served {
        machine: with_annotation(usual.machine, SKIP_REMEDIATION, &ours),
        vsphere_vm: with_annotation(usual.vsphere_vm, PAUSED, &ours),
        ..Served::default()
    };
    let (set, patches) = set(&served).await;
    assert_eq!(set.unwrap().unwrap().len(), 2);
    assert!(patches.is_empty());
}

#[tokio::test]
async fn machine_of_another_node_or_vm_is_not_guarded() {
    let other_vm = ("/spec/providerID", json!(format!("vsphere://{OTHER_UUID}")));
    let other_node = ("/status/nodeRef/name", json!("gpu-2"));
    let without_id = ("/spec/providerID", Value::Null);
    for (pointer, value) in [other_vm, other_node, without_id] {
        let mut served = Served::default();
        *served.machine.pointer_mut(pointer).unwrap() = value;
        let (set, patches) = set(&served).await;
        assert!(
            set.unwrap() == Some(Vec::new()) && patches.is_empty(),
            "{pointer}"
        );
    }
}

#[tokio::test]
async fn machine_that_is_being_deleted_is_not_guarded() {
    let mut served = Served::default();
    served.machine["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let (set, patches) = set(&served).await;
    assert!(set.unwrap() == Some(Vec::new()) && patches.is_empty());
}

#[tokio::test]
async fn vsphere_vm_of_another_machine_or_vm_is_not_paused() {
    let other = ("/metadata/ownerReferences/0/name", json!("md-2-infra"));
    let other_vm = ("/spec/biosUUID", json!(OTHER_UUID));
    for (pointer, value) in [other, other_vm] {
        let mut served = Served::default();
        *served.vsphere_vm.pointer_mut(pointer).unwrap() = value;
        let (set, _) = set(&served).await;
        assert_eq!(names(&set.unwrap().unwrap()), [("machine", "md-1")], "{pointer}");
    }
}

#[tokio::test]
async fn missing_right_on_machines_holds_nothing_up() {
    let served = Served {
        forbidden: "machines",
        ..Served::default()
    };
    assert_eq!(set(&served).await.0.unwrap(), None);
    remove(&served, &[]).await.0.unwrap();
    let recorded = GuardedObject {
        kind: GuardedKind::Machine,
        namespace: "tenant-a".to_owned(),
        name: "md-1".to_owned(),
    };
    let (removed, _) = remove(&served, &[recorded]).await;
    let error = removed.unwrap_err().to_string();
    assert_eq!(
        error,
        "reading machine tenant-a/md-1: machines is forbidden (HTTP 403)"
    );
}

#[tokio::test]
async fn credential_that_does_not_count_is_no_missing_right() {
    let served = Served {
        forbidden: "machines",
        code: 401,
        ..Served::default()
    };
    assert!(!set(&served).await.0.unwrap_err().is_forbidden());
    assert!(!remove(&served, &[]).await.0.unwrap_err().is_forbidden());
}

#[tokio::test]
async fn own_guards_are_removed_and_gone_objects_are_no_error() {
    let ours = value_of(vm());
    let usual = Served::default();
    let served = Served {
        machine: with_annotation(usual.machine, SKIP_REMEDIATION, &ours),
        vsphere_vm: Value::Null,
        ..Served::default()
    };
    let gone = GuardedObject {
        kind: GuardedKind::VsphereVm,
        namespace: "tenant-a".to_owned(),
        name: "md-1".to_owned(),
    };
    let mut served_list = served.clone();
    served_list.machine["spec"]["infrastructureRef"]["kind"] = json!("DockerMachine");
    let (removed, patches) = remove(&served_list, &[gone]).await;
    removed.unwrap();
    let expected =
        json!({"resourceVersion": "7", "annotations": {"cluster.x-k8s.io/skip-remediation": null}});
    assert_eq!(patches, [(MACHINE.to_owned(), expected)]);
}

#[tokio::test]
async fn without_cluster_api_only_its_groups_are_asked_for() {
    let served = Served {
        groups: vec!["apps/v1"],
        ..Served::default()
    };
    let (client, log) = served.client();
    let api = MachineApi::new(client);
    assert!(!api.is_served().await);
    assert!(!api.is_served().await);
    assert_eq!(log.lines(), ["GET /apis"]);
}
