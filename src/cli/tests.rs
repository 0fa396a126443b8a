use std::ffi::OsString;

use jiff::Timestamp;
use serde_json::json;

use super::nodes::{ExitState, ListedNode, TraceLink};
use super::out::Paint;
use super::*;
use crate::nodemaintenance::kind::{PendingPod, PhaseTimes, WaitStatus};
use crate::plan::{NodePlan, Plan, PlannedHost, PlannedObject, PodPlan};
use crate::status::PhaseKind;

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

fn draining() -> ListedNode {
    ListedNode {
        node: "gpu-1".to_owned(),
        state: PhaseKind::Draining,
        exit_state: ExitState::InMaintenance,
        since: Some("2026-03-01T03:00:00Z".to_owned()),
        host: Some("esx-3".to_owned()),
        ready: true,
        cordoned: true,
        cordoned_by: Some("Haulout".to_owned()),
        gpus: [("nvidia.com/gpu".to_owned(), 2)].into(),
        waiting_on: Some(WaitStatus {
            reason: "disruption-budget".to_owned(),
            message: "1 pod to go; ml/train-0: held by PodDisruptionBudget train".to_owned(),
            since: "2026-03-01T03:00:05Z".to_owned(),
            deadline: Some("2026-03-01T03:30:00Z".to_owned()),
            then: Some("the VM is shut down with the pods that are left".to_owned()),
            next_step: Some("kubectl -n ml describe poddisruptionbudget train".to_owned()),
        }),
        pods: vec![PendingPod {
            namespace: "ml".to_owned(),
            name: "train-0".to_owned(),
            state: "HeldByBudget".to_owned(),
            reason: "held by PodDisruptionBudget train".to_owned(),
        }],
        eviction_pods: Some(3),
        phases: vec![
            PhaseTimes {
                phase: "Queued".to_owned(),
                started_at: "2026-03-01T02:59:50Z".to_owned(),
                ended_at: Some("2026-03-01T03:00:00Z".to_owned()),
            },
            PhaseTimes {
                phase: "Draining".to_owned(),
                started_at: "2026-03-01T03:00:00Z".to_owned(),
                ended_at: None,
            },
        ],
        reason: Some("ESXi host esx-3 is entering maintenance (task-9)".to_owned()),
        trace: Some(TraceLink {
            node: "gpu-1".to_owned(),
            trace_id: "4bf92f3577b34da6a3ce929d0e0e4736".to_owned(),
            url: None,
            running: true,
        }),
        ..ListedNode::default()
    }
}

#[test]
fn tree_shows_the_wait_and_its_start() {
    let tree = status::tree(&draining(), Paint::OFF, at("2026-03-01T03:02:10Z"));
    assert_eq!(
        tree,
        "► node/gpu-1 Draining for 2m10s\n\
         ├─ host      esx-3\n\
         ├─ reason    ESXi host esx-3 is entering maintenance (task-9)\n\
         ├─ ready     yes\n\
         ├─ cordoned  by Haulout\n\
         ├─ GPUs      2 nvidia.com/gpu\n\
         ├─ waits for 1 pod to go; ml/train-0: held by PodDisruptionBudget train (for 2m5s)\n\
         ├─ until     2026-03-01T03:30:00Z, when the VM is shut down with the pods that are left\n\
         ├─ next      kubectl -n ml describe poddisruptionbudget train\n\
         ├─ phases\n\
         │  ├─ √ Queued        10s\n\
         │  └─ ► Draining      2m10s\n\
         ├─ pods      1/3 to go\n\
         │  └─ ml/train-0: held by PodDisruptionBudget train\n\
         └─ trace     4bf92f3577b34da6a3ce929d0e0e4736\n"
    );
}

#[test]
fn list_is_aligned_and_shows_none() {
    let idle = ListedNode {
        node: "gpu-22".to_owned(),
        state: PhaseKind::InService,
        ..ListedNode::default()
    };
    let table = nodes::table(&[draining(), idle], false, true, at("2026-03-01T03:02:10Z"));
    assert_eq!(
        table,
        "NODE     HOST     STATE       PODS     WAITING FOR         SINCE\n\
         gpu-1    esx-3    Draining    1/3      disruption-budget   2m10s\n\
         gpu-22   <none>   InService   <none>   <none>              <none>\n"
    );
}

#[test]
fn foreign_text_cannot_control_the_terminal() {
    let state = ListedNode {
        node: "gpu-1\u{1b}[2J".to_owned(),
        parked: Some("a\nb\u{202e}c".to_owned()),
        ..draining()
    };
    for text in [
        status::tree(&state, Paint::OFF, Timestamp::UNIX_EPOCH),
        nodes::table(std::slice::from_ref(&state), true, true, Timestamp::UNIX_EPOCH),
    ] {
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text:?}");
        assert!(!text.contains("a\nb"), "{text:?}");
    }
}

#[test]
fn a_plan_names_pods_budgets_hosts_and_gpus() {
    let node = NodePlan {
        node: "gpu-1".to_owned(),
        state: PhaseKind::InService,
        vm: Some("gpu1".to_owned()),
        host: Some("esx-1".to_owned()),
        evicts: vec![
            PodPlan {
                pod: "ml/serve-0".to_owned(),
                wait_seconds: Some(60),
                held: None,
                warnings: vec!["its emptyDir data is lost".to_owned()],
            },
            PodPlan {
                pod: "ml/train-0".to_owned(),
                wait_seconds: None,
                held: Some(
                    "held by PodDisruptionBudget train, which needs 2 healthy pods and has 2".to_owned(),
                ),
                warnings: Vec::new(),
            },
        ],
        leaving: Vec::new(),
        left: vec!["ml/scratch-0".to_owned()],
        skipped: [("of a DaemonSet".to_owned(), 2)].into(),
        place: PlannedHost {
            target: Some("esx-2".to_owned()),
            otherwise: None,
            refused: vec!["esx-3 has no matching device free".to_owned()],
        },
        gpus: [("nvidia.com/gpu".to_owned(), 2)].into(),
        stops: Vec::new(),
        notes: Vec::new(),
    };
    let mut plan = Plan {
        about: PlannedObject::Host,
        name: "esx-1".to_owned(),
        state: Some("in service".to_owned()),
        gpus_missing: node.gpus.clone(),
        nodes: vec![node],
        not_checked: Vec::new(),
    };
    assert!(plan.is_blocked());
    assert_eq!(
        plan::render(&plan, true, Paint::OFF),
        "Maintenance of host/esx-1, which is in service:\n\
         \n  node/gpu-1 (InService, VM gpu1 on esx-1)\n    \
         evicts    ml/serve-0 after 60 s, unless it has ended by itself\n                ! its emptyDir data is lost\n              ml/train-0\n                \
         ‼ held by PodDisruptionBudget train, which needs 2 healthy pods and has 2\n    \
         leaves    ml/scratch-0 (haulout.dev/drain=skip): it ends with the VM\n    \
         skips     2 of a DaemonSet\n    \
         moves to  √ esx-2\n              esx-3 has no matching device free\n    \
         GPUs      2 nvidia.com/gpu\n\
         \nMissing meanwhile: 2 nvidia.com/gpu\n"
    );
    let written = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&written).unwrap(), plan);
    plan.nodes[0].evicts[1].held = None;
    assert!(!plan.is_blocked());
    plan.not_checked = vec!["the host of the VM of gpu-9".to_owned()];
    assert!(plan.is_blocked(), "it may be on this host");
    assert!(plan::render(&plan, false, Paint::OFF).ends_with("\n‼ not known: the host of the VM of gpu-9\n"));
}

#[test]
fn under_the_name_of_the_plugin_the_help_speaks_of_kubectl() {
    for (first, plugin) in [
        ("/usr/local/bin/kubectl-haulout", true),
        ("kubectl-haulout", true),
        ("/usr/local/bin/haulout", false),
    ] {
        assert_eq!(is_plugin(Some(&OsString::from(first))), plugin, "{first}");
    }
    let help = command_as(true)
        .try_get_matches_from(["kubectl-haulout", "list", "--help"])
        .unwrap_err()
        .to_string();
    assert!(help.contains("Usage: kubectl haulout list"), "{help}");
}

#[test]
fn the_command_line_is_well_formed() {
    command_as(false).debug_assert();
}

#[test]
fn json_has_the_documented_state_names() {
    let value = serde_json::to_value(draining()).unwrap();
    assert_eq!(value["waitingOn"]["reason"], json!("disruption-budget"));
    assert_eq!(value["pods"][0]["namespace"], json!("ml"));
    assert_eq!(
        value["trace"]["traceId"],
        json!("4bf92f3577b34da6a3ce929d0e0e4736")
    );
}
