use serde_json::json;

use super::*;

#[test]
fn wave_is_shown_as_rounds_and_one_line_for_each_node() {
    let plan = |n: usize, evicts: serde_json::Value| {
        json!({"about": "host", "name": format!("esx-{n}"), "gpusMissing": {}, "nodes": [{
            "node": format!("gpu-{n}"), "state": "InService", "host": format!("esx-{n}"), "evicts": evicts,
            "leaving": [], "left": [], "letsBe": {}, "place": {"target": "esx-9", "refused": []},
            "gpus": {}, "stops": [], "notes": [],
        }]})
    };
    let round = |round: usize, begins: &str, node: &str| json!({"round": round, "begins": begins, "nodes": [node], "gpusMissing": {"gpu": 2}, "seconds": 600});
    let wave: WavePlan = serde_json::from_value(json!({
        "wave": {
            "rounds": [round(1, "now", "gpu-1"), round(2, "nodes-back", "gpu-2")],
            "notBegun": [], "hosts": 2, "hostsPlaced": 1, "gpusMissing": {"gpu": 2}, "seconds": 1200,
        },
        "plans": [plan(1, json!([])), plan(2, json!([{"pod": "ml/train", "held": "held by it"}]))],
    }))
    .unwrap();
    assert!(wave.is_blocked());
    assert_eq!(
        render(&wave, false, Paint::OFF),
        "\
Maintenance of host/esx-1, host/esx-2 at once:

ROUND   BEGINS                           NODES   MISSING GPUS   TAKES
1       at once                          gpu-1   2 gpu          ~10m
2       when the nodes before are back   gpu-2   2 gpu          ~10m

Places: the VMs of 1 of 2 hosts find another host if all of them leave at once
Missing meanwhile: 2 gpu at most
Duration: about 20m, by the ended maintenances that are kept

NODE    HOST    GOES TO   EVICTS   BLOCKED BY
gpu-1   esx-1   esx-9     0 pods   <none>
gpu-2   esx-2   esx-9     1 pod    ml/train: held by it

-o wide shows each plan in full.
"
    );
    let wide = render(&wave, true, Paint::OFF);
    assert!(
        wide.contains("\nMaintenance of host/esx-2:\n\n  node/gpu-2 ("),
        "{wide}"
    );
    let none: WavePlan = serde_json::from_value(json!({
        "wave": {"rounds": [], "notBegun": [], "hosts": 0, "hostsPlaced": 0, "gpusMissing": {}},
        "plans": [{"about": "host", "name": "esx-9", "nodes": [], "gpusMissing": {}}],
    }))
    .unwrap();
    let text = render(&none, false, Paint::OFF);
    assert!(
        text.contains("No node is drained.") && text.contains("Duration: unknown, no history is kept"),
        "{text}"
    );
    assert!(!none.is_blocked());
}
