use super::*;
use crate::plan::report::ReportedNode;
use crate::status::Obstacle;

fn report() -> Report {
    let reason = |kind, about: &str| Reason {
        kind,
        about: about.to_owned(),
    };
    let reasons = vec![
        reason(
            Obstacle::DisruptionBudget,
            "ml/train-0: ml/train never allows one",
        ),
        reason(Obstacle::EmptyDir, "ml/<b>train|0"),
    ];
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
        not_checked: vec!["privileges in vCenter: timed out".to_owned()],
    }
}

#[test]
fn report_of_the_leader_is_read_as_it_was_written() {
    let written = serde_json::to_string(&report()).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&written).unwrap(), report());
}

#[test]
fn table_says_which_nodes_stop_and_why() {
    assert_eq!(
        table(&report()),
        "NODE    HOST    VERDICT     MOVES TO   REASONS\n\
         gpu-1   esx-1   × blocked   <none>     a PodDisruptionBudget allows no disruption (ml/train-0: ml/train never allows \
         one); a pod loses the data in its emptyDir (ml/<b>train|0)\n\
         gpu-2   esx-1   √ ready     esx-9      <none>\n\n\
         Nodes: 1 ready, 0 costly, 1 blocked. Hosts that could leave at the same time, with another host for each VM: 1 of 2. \
         Not checked: privileges in vCenter: timed out.\n"
    );
}

#[test]
fn what_was_not_checked_cannot_control_the_terminal() {
    let mut report = report();
    report.not_checked = vec!["\u{1b}]52;c;text\u{7}".to_owned()];
    for text in [table(&report), markdown(&report)] {
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
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
