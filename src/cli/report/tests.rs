use haulout_core::fixtures;
use serde_json::json;

use super::*;
use crate::ids::NodeName;
use crate::maintenance::episode::Record;
use crate::maintenance::observed::{BoundVm, HostState, ObservedVm, PowerState};

fn report() -> Report {
    let mut findings = Findings::default();
    findings.add(Obstacle::EmptyDir, "ml/<b>train|0");
    findings.add(
        Obstacle::DisruptionBudget,
        "ml/train-0: ml/train never allows one",
    );
    let reasons = findings.reasons();
    let node = |node: &str, reasons: Vec<Reason>, moves_to: Option<&str>| ReportedNode {
        node: node.to_owned(),
        host: Some("esx-1".to_owned()),
        verdict: MaintenanceVerdict::of(&reasons),
        moves_to: moves_to.map(str::to_owned),
        reasons,
    };
    Report {
        made_at: "2026-11-27T16:00:00Z".parse().unwrap(),
        nodes: vec![
            node("gpu-1", reasons, None),
            node("gpu-2", Vec::new(), Some("esx-9")),
        ],
        hosts_that_can_leave: 1,
        hosts_in_service: 2,
    }
}

#[test]
fn table_says_which_nodes_stop_and_why() {
    assert_eq!(
        table(&report()),
        "NODE    HOST    VERDICT     MOVES TO   REASONS\n\
         gpu-1   esx-1   × blocked   <none>     a PodDisruptionBudget allows no disruption (ml/train-0: ml/train never allows \
         one); a pod loses the data in its emptyDir (ml/<b>train|0)\n\
         gpu-2   esx-1   √ ready     esx-9      <none>\n\n\
         Nodes: 1 ready, 0 costly, 1 blocked. Hosts that could leave at the same time, with another host for each VM: 1 of 2.\n"
    );
}

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
        reads_kubelets: false,
    };
    let found = |moref: VmRef, has_machine| {
        let vm = ObservedVm { moref, ..vm.clone() };
        let forecast = Forecast {
            node: NodeName::new("gpu-1"),
            record: Record::InService,
            seen: Some(fixtures::node()),
            vm: BoundVm::Found(vm),
            vm_name: None,
            tools_running: Some(true),
            evacuation_power_off: false,
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

#[test]
fn names_become_no_markup() {
    let markdown = markdown(&report());
    assert!(markdown.contains("ml/&lt;b>train\\|0"), "{markdown}");
    let html = html(&report()).unwrap();
    assert!(
        html.contains("ml/&#60;b&#62;train|0") && !html.contains("<b>"),
        "{html}"
    );
    assert!(
        html.contains("<th>Verdict</th>") && html.ends_with("</html>"),
        "{html}"
    );
}
