use haulout_core::fixtures;
use serde_json::json;

use super::*;
use haulout_core::ids::NodeName;
use haulout_core::maintenance::episode::Record;
use haulout_core::maintenance::observed::{BoundVm, HostState, ObservedVm, PowerState};

#[test]
fn pod_of_several_budgets_is_never_evicted() {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"namespace": "ml", "name": "train-0", "labels": {"app": "train"}},
        "status": {"phase": "Running"},
    }))
    .unwrap();
    let budget = |name: &str, allowed: i32, expected: i32| -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ml", "name": name},
            "spec": {"selector": {"matchLabels": {"app": "train"}}},
            "status": {
                "disruptionsAllowed": allowed, "expectedPods": expected, "desiredHealthy": 1, "currentHealthy": 1,
            },
        }))
        .unwrap()
    };
    let found = |budgets: &[PodDisruptionBudget]| {
        let mut findings = Findings::default();
        held(&pod, budgets, &mut findings);
        findings
            .reasons()
            .iter()
            .map(Reason::sentence)
            .collect::<Vec<_>>()
    };
    assert!(found(&[budget("a", 1, 2)]).is_empty());
    assert_eq!(
        found(&[budget("a", 0, 1)]),
        ["a PodDisruptionBudget allows no disruption (ml/train-0: ml/a never allows one)"]
    );
    // Whatever they allow.
    assert_eq!(
        found(&[budget("a", 1, 2), budget("b", 0, 1)]),
        ["more than one PodDisruptionBudget selects a pod, which is then never evicted (ml/train-0: a, b)"]
    );
}

#[test]
fn missing_rights_concern_the_nodes_that_need_them() {
    let vm = fixtures::vm(Some(PowerState::On), HostState::InService);
    let facts = PoolFacts {
        budgets: Vec::new(),
        privileges: BTreeMap::from([(vm.moref.clone(), vec!["Resource.ColdMigrate".to_owned()])]),
        machine_rights: vec!["may not patch machines in cluster.x-k8s.io".to_owned()],
        not_checked: Vec::new(),
    };
    let found = |moref: VmRef, has_machine| {
        let vm = ObservedVm { moref, ..vm.clone() };
        let forecast = Forecast {
            node: NodeName::new("gpu-1"),
            record: Record::InService,
            seen: Some(fixtures::node()),
            vm: BoundVm::Found(vm),
            vm_name: None,
            queue: None,
            offer: None,
        };
        let mut findings = Findings::default();
        facts.of_rights(&forecast, has_machine, &mut findings);
        findings
            .reasons()
            .iter()
            .map(Reason::sentence)
            .collect::<Vec<_>>()
    };
    let privilege = "Haulout's user lacks a privilege on the VM in vCenter (Resource.ColdMigrate)";
    let guard = "its Machine cannot be guarded: another controller may replace the node or power its VM on (may not patch \
                 machines in cluster.x-k8s.io)";
    assert!(found(VmRef::new("other"), false).is_empty());
    assert_eq!(found(vm.moref.clone(), false), [privilege]);
    assert_eq!(found(vm.moref.clone(), true), [privilege, guard]);
    assert_eq!(found(VmRef::new("other"), true), [guard]);
}
