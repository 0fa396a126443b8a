//! Pauses the MachineHealthChecks of OpenShift (`machine.openshift.io`).
//!
//! They have no annotation by which one Machine is left out, so the whole check is paused by `cluster.x-k8s.io/paused`, as OpenShift's
//! documentation says for updates. Several nodes may need that at the same time: the value lists their VMs, and the check goes on when
//! the last one is removed.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt as _;
use kube::api::{DynamicObject, ListParams};
use kube::core::{Selector, SelectorExt as _};
use serde_json::{Value, json};

use super::{DEADLINE, Guarded, MachineApi, PAGE, guarded, object};
use crate::answer;
use crate::ids::{NodeName, VmUuid, is_object_name};
use crate::keys::PAUSED;
use crate::maintenance::machine_guard::{GuardedKind, GuardedObject};

/// The annotation by which OpenShift names the Machine of a Node, as namespace and name.
pub(super) const NODE_MACHINE: &str = "machine.openshift.io/machine";

const PREFIX: &str = "haulout: maintenance of VMs ";

/// The checks of one Machine, which has one in practice.
const CHECKS_MAX: usize = 4;

/// The VMs in one value. More nodes of one check are not in maintenance at once.
const VMS_MAX: usize = 64;

impl MachineApi {
    /// The health checks that select the Machine of a node.
    pub(super) async fn health_checks_of(
        &self,
        annotations: &BTreeMap<String, String>,
        node: &NodeName,
        vm: VmUuid,
    ) -> Guarded<Vec<(String, DynamicObject)>> {
        let named = annotations
            .get(NODE_MACHINE)
            .and_then(|value| value.split_once('/'));
        let Some((namespace, name)) =
            named.filter(|(namespace, name)| is_object_name(namespace) && is_object_name(name))
        else {
            return Ok(Vec::new());
        };
        let Some(machine) = self.get(GuardedKind::OpenshiftMachine, namespace, name).await? else {
            return Ok(Vec::new());
        };
        if !super::is_of_node(&machine, node, vm) {
            return Ok(Vec::new());
        }
        let Some(api) = self.api(GuardedKind::HealthCheck, namespace).await? else {
            return Ok(Vec::new());
        };
        let labels = machine.metadata.labels.unwrap_or_default();
        let params = ListParams::default().limit(PAGE);
        let listed = answer::within(DEADLINE, api.list(&params)).await;
        let listed = guarded(
            || format!("listing the MachineHealthChecks in {namespace}"),
            listed,
        )?;
        let selects = |check: &DynamicObject| {
            let selector = check.data.pointer("/spec/selector")?;
            let selector: LabelSelector = serde_json::from_value(selector.clone()).ok()?;
            let selector = Selector::try_from(selector).ok()?;
            selector.matches(&labels).then_some(())
        };
        let selecting = listed.items.into_iter().filter(|check| selects(check).is_some());
        let namespace = namespace.to_owned();
        let selecting = selecting.map(|check| (namespace.clone(), check));
        Ok(selecting.take(CHECKS_MAX).collect())
    }

    /// Pauses `check` for the node of `vm`; `None` if somebody else has paused it.
    pub(super) async fn pause(
        &self,
        namespace: &str,
        check: &DynamicObject,
        vm: VmUuid,
    ) -> Guarded<Option<GuardedObject>> {
        let mut vms = match check.annotations().get(PAUSED) {
            None => Vec::new(),
            Some(value) => match vms_of(value) {
                Some(vms) => vms,
                None => return Ok(None),
            },
        };
        if !vms.contains(&vm) {
            if vms.len() >= VMS_MAX {
                return Ok(None);
            }
            vms.push(vm);
            self.write(GuardedKind::HealthCheck, namespace, check, &value_of(&vms))
                .await?;
        }
        Ok(Some(object(GuardedKind::HealthCheck, namespace, check)))
    }

    /// Removes the node of `vm` from the value, and the annotation with the last one.
    pub(super) async fn resume(&self, namespace: &str, check: &DynamicObject, vm: VmUuid) -> Guarded<()> {
        let present = check.annotations().get(PAUSED);
        let Some(mut vms) = present.and_then(|value| vms_of(value)) else {
            return Ok(());
        };
        if !vms.contains(&vm) {
            return Ok(());
        }
        vms.retain(|other| *other != vm);
        self.write(GuardedKind::HealthCheck, namespace, check, &value_of(&vms))
            .await
    }
}

/// The VMs in a value of ours.
fn vms_of(value: &str) -> Option<Vec<VmUuid>> {
    let list = value.strip_prefix(PREFIX)?;
    list.split(", ").take(VMS_MAX).map(VmUuid::parse).collect()
}

fn value_of(vms: &[VmUuid]) -> Value {
    if vms.is_empty() {
        return Value::Null;
    }
    let vms: Vec<String> = vms.iter().map(VmUuid::to_string).collect();
    json!(format!("{PREFIX}{}", vms.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::{WriteFence, WriteKind};
    use crate::stand_in::{ScriptedReply, refusal, server};

    const UUID: &str = "4215e1a2-7c3d-9e4f-0102-030405060708";
    const OTHER_UUID: &str = "4215e1a2-7c3d-9e4f-0102-030405060709";
    const MACHINES: &str = "/apis/machine.openshift.io/v1beta1/namespaces/openshift-machine-api/machines";
    const CHECKS: &str =
        "/apis/machine.openshift.io/v1beta1/namespaces/openshift-machine-api/machinehealthchecks";

    fn vm(uuid: &str) -> VmUuid {
        VmUuid::parse(uuid).unwrap()
    }

    /// A check of the machines with the label `pool=gpu`.
    fn check(name: &str, pool: &str, paused: Option<&str>) -> Value {
        json!({
            "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineHealthCheck",
            "metadata": {
                "name": name, "namespace": "openshift-machine-api", "resourceVersion": "8",
                "annotations": paused.map(|paused| json!({PAUSED: paused})),
            },
            "spec": {"selector": {"matchLabels": {"pool": pool}}},
        })
    }

    /// Sets, or removes, the guards of gpu-1 where these checks exist; returns the values that were written, by the name of the check.
    async fn written(checks: &[Value], sets: bool) -> Vec<(String, Value)> {
        let machine = json!({
            "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
            "metadata": {"name": "gpu-1", "namespace": "openshift-machine-api", "labels": {"pool": "gpu"}},
            "spec": {"providerID": format!("vsphere://{UUID}")},
            "status": {"nodeRef": {"name": "gpu-1"}},
        });
        let version = json!({"groupVersion": "machine.openshift.io/v1beta1", "version": "v1beta1"});
        let group =
            json!({"name": "machine.openshift.io", "versions": [version], "preferredVersion": version});
        let node = json!({
            "metadata": {"name": "gpu-1", "annotations": {NODE_MACHINE: "openshift-machine-api/gpu-1"}},
        });
        let checks = checks.to_vec();
        let (client, log) = server(move |request| {
            let (_, path) = request.line.split_once(' ').unwrap();
            let named = |check: &&Value| {
                Some(path)
                    == check["metadata"]["name"]
                        .as_str()
                        .map(|name| format!("{CHECKS}/{name}"))
                        .as_deref()
            };
            let found = match path {
                "/apis" => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}),
                "/api/v1/nodes/gpu-1" => node.clone(),
                CHECKS => json!({"metadata": {}, "items": checks}),
                path if path == format!("{MACHINES}/gpu-1") => machine.clone(),
                _ => match checks.iter().find(named) {
                    Some(check) => check.clone(),
                    None => return refusal(404, "NotFound", "it is not there", json!({})),
                },
            };
            ScriptedReply::Json(200, found)
        });
        let permit = WriteFence::without_election().permit(WriteKind::Effect).unwrap();
        let api = MachineApi::new(client.clone());
        let name = NodeName::new("gpu-1");
        if sets {
            api.set(&permit, &client, &name, vm(UUID)).await.unwrap();
        } else {
            api.remove(&permit, &client, &name, vm(UUID), &[]).await.unwrap();
        }
        let patches = log.all().into_iter().filter_map(|request| {
            let name = request.line.strip_prefix(&format!("PATCH {CHECKS}/"))?.to_owned();
            assert_eq!(
                request.body["metadata"]["resourceVersion"], "8",
                "it must not have changed"
            );
            Some((name, request.body["metadata"]["annotations"][PAUSED].clone()))
        });
        patches.collect()
    }

    fn of(uuids: &[&str]) -> String {
        format!("{PREFIX}{}", uuids.join(", "))
    }

    #[tokio::test]
    async fn health_checks_that_select_the_machine_are_paused() {
        let checks = [
            check("gpu", "gpu", None),
            check("web", "web", None),
            check("all", "gpu", Some("")),
        ];
        assert_eq!(
            written(&checks, true).await,
            [("gpu".to_owned(), json!(of(&[UUID])))],
            "one of other machines and one that a person paused are left alone"
        );
    }

    #[tokio::test]
    async fn health_check_goes_on_with_the_last_node() {
        let both = of(&[OTHER_UUID, UUID]);
        for (sets, before, expected) in [
            (true, of(&[OTHER_UUID]), vec![json!(both)]),
            (true, both.clone(), vec![]),
            (false, both.clone(), vec![json!(of(&[OTHER_UUID]))]),
            (false, of(&[UUID]), vec![Value::Null]),
            (false, of(&[OTHER_UUID]), vec![]),
            (false, "a person's".to_owned(), vec![]),
            (false, format!("{PREFIX}no uuid"), vec![]),
        ] {
            let values: Vec<Value> = written(&[check("gpu", "gpu", Some(&before))], sets)
                .await
                .into_iter()
                .map(|(_, value)| value)
                .collect();
            assert_eq!(values, expected, "sets: {sets}, before: {before}");
        }
    }
}
