use haulout_core::fixtures;
use serde_json::json;

use super::*;
use crate::cli::plan::{PlannedHost, PodPlan};
use crate::ids::HostRef;
use crate::maintenance::admission::AdmissionRound;
use crate::maintenance::episode::Record;
use crate::maintenance::observed::{BoundVm, HostState, ObservedVm};
use crate::maintenance::placement::PlacementOffer;
use crate::nodemaintenance::kind::NodeMaintenance;
use crate::status::PhaseKind;

fn name(n: usize) -> NodeName {
    NodeName::new(format!("gpu-{n}"))
}

fn names(numbers: &[usize]) -> BTreeSet<NodeName> {
    numbers.iter().copied().map(name).collect()
}

fn round(start: RoundStart, nodes: &[usize], away: &[usize]) -> AdmissionRound {
    AdmissionRound {
        start,
        nodes: nodes.iter().copied().map(name).collect(),
        away: names(away),
    }
}

fn group(group: Option<&str>, rounds: Vec<AdmissionRound>) -> WaveGroup {
    WaveGroup {
        group: group.map(str::to_owned),
        rounds,
        left: Vec::new(),
    }
}

/// The forecast of a node whose VM finds a host if `to` is one.
fn forecast(n: usize, to: Option<&str>) -> Forecast {
    Forecast {
        node: name(n),
        record: Record::InService,
        seen: Some(fixtures::node()),
        vm: BoundVm::Found(fixtures::vm(Some(PowerState::On), HostState::InService)),
        vm_name: None,
        tools_running: Some(true),
        evacuation_power_off: false,
        queue: None,
        offer: Some(PlacementOffer {
            fits: to.map(|to| (HostRef::new(to), to.to_owned())),
            ..PlacementOffer::default()
        }),
    }
}

fn plan(about: &'static str, of: &str, nodes: &[usize]) -> Plan {
    let node = |n: &usize| NodePlan {
        node: name(*n).to_string(),
        state: PhaseKind::InService,
        vm: Some(format!("vm-{n}")),
        host: Some(format!("esx-{n}")),
        evicts: Vec::new(),
        leaving: Vec::new(),
        left: Vec::new(),
        skipped: BTreeMap::new(),
        place: PlannedHost {
            target: Some("esx-9".to_owned()),
            ..PlannedHost::default()
        },
        gpus: BTreeMap::new(),
        stops: Vec::new(),
        notes: Vec::new(),
        unknown: Vec::new(),
    };
    Plan {
        about,
        name: of.to_owned(),
        state: None,
        nodes: nodes.iter().map(node).collect(),
        gpus_missing: BTreeMap::new(),
    }
}

/// Two GPUs for each node.
fn two_each(nodes: &BTreeSet<NodeName>) -> BTreeMap<String, u64> {
    match nodes.len() as u64 {
        0 => BTreeMap::new(),
        count => BTreeMap::from([("gpu".to_owned(), 2 * count)]),
    }
}

/// Episodes that took these minutes.
fn history(episodes: &[(usize, u32)]) -> EpisodeDurations {
    let object = |(node, minutes): &(usize, u32)| -> NodeMaintenance {
        serde_json::from_value(json!({
            "apiVersion": "haulout.dev/v1alpha1",
            "kind": "NodeMaintenance",
            "metadata": {"name": "it"},
            "spec": {"nodeName": name(*node).as_str(), "origin": "Episode"},
            "status": {
                "startedAt": "2026-11-01T00:00:00Z",
                "endedAt": format!("2026-11-01T00:{minutes:02}:00Z"),
                "conditions": [{
                    "type": "Succeeded", "status": "True", "reason": "It", "message": "",
                    "lastTransitionTime": "2026-11-01T00:00:00Z",
                }],
            },
        }))
        .unwrap()
    };
    EpisodeDurations::of(&episodes.iter().map(object).collect::<Vec<_>>())
}

#[test]
fn gpus_and_minutes_follow_the_rounds() {
    let (now, later) = (RoundStart::Now, RoundStart::VmsOff);
    // (groups, GPUs missing at most, minutes)
    let table: [(Vec<WaveGroup>, u64, i64); 4] = [
        (vec![group(None, vec![round(now, &[1, 2], &[1, 2])])], 4, 20),
        (
            vec![group(
                None,
                vec![
                    round(now, &[1], &[1]),
                    round(later, &[2], &[1, 2]),
                    round(later, &[3], &[3]),
                ],
            )],
            4,
            45,
        ),
        // Groups go side by side.
        (
            vec![
                group(
                    Some("a"),
                    vec![round(now, &[1], &[1]), round(later, &[2], &[1, 2])],
                ),
                group(Some("b"), vec![round(now, &[3], &[3])]),
            ],
            6,
            30,
        ),
        (vec![group(None, Vec::new())], 0, 0),
    ];
    let durations = history(&[(1, 10), (2, 20), (3, 15)]);
    for (groups, gpus, minutes) in table {
        let members = WaveMembers {
            groups: groups.clone(),
            ..WaveMembers::default()
        };
        let summary = summary(&members, &[], two_each, &durations);
        let most = summary.gpus_missing.get("gpu").copied().unwrap_or_default();
        assert_eq!(most, gpus, "{groups:?}");
        assert_eq!(summary.seconds.unwrap_or_default(), minutes * 60, "{groups:?}");
    }
}

#[test]
fn hosts_whose_vms_all_find_a_place_are_counted() {
    let members = |hosts: &[&[usize]]| WaveMembers {
        hosts: hosts
            .iter()
            .map(|nodes| nodes.iter().copied().map(name).collect())
            .collect(),
        forecasts: vec![
            forecast(1, Some("esx-8")),
            forecast(2, None),
            forecast(3, Some("esx-9")),
        ],
        ..WaveMembers::default()
    };
    // (nodes of each host, hosts, of these with places)
    let table: [(&[&[usize]], usize, usize); 5] = [
        (&[&[1]], 1, 1),
        (&[&[2]], 1, 0),
        (&[&[1, 2], &[3]], 2, 1),
        (&[&[1], &[3]], 2, 2),
        // A host without a node needs no place.
        (&[&[1], &[]], 1, 1),
    ];
    for (hosts, all, placed) in table {
        let summary = summary(&members(hosts), &[], two_each, &EpisodeDurations::default());
        assert_eq!((summary.hosts, summary.hosts_placed), (all, placed), "{hosts:?}");
    }
}

#[test]
fn node_in_no_round_has_a_reason() {
    let of = |vm: ObservedVm| Forecast {
        vm: BoundVm::Found(vm),
        ..forecast(1, None)
    };
    let on = || fixtures::vm(Some(PowerState::On), HostState::InService);
    let left_to_vcenter = of(ObservedVm {
        is_left_to_vcenter: true,
        ..on()
    });
    let off = of(fixtures::vm(Some(PowerState::Off), HostState::InService));
    let mut stopped = plan("node", "gpu-1", &[1]);
    stopped.nodes[0].stops = vec!["a person to remove haulout.dev/skip".to_owned()];
    let calm = || vec![plan("node", "gpu-1", &[1])];
    let table = [
        (of(on()), vec![stopped], "a person to remove haulout.dev/skip"),
        (
            left_to_vcenter,
            calm(),
            "vCenter moves its VM (VMOTION_GRACE_SECONDS=unlimited)",
        ),
        (off, calm(), "its VM is not on"),
        (of(on()), calm(), "its present state does not allow it"),
    ];
    for (forecast, plans, why) in table {
        let members = WaveMembers {
            forecasts: vec![forecast],
            ..WaveMembers::default()
        };
        let summary = summary(&members, &plans, two_each, &EpisodeDurations::default());
        let told: Vec<&str> = summary.not_begun.iter().map(|it| it.why.as_str()).collect();
        assert_eq!(told, [why]);
    }
}

#[test]
fn wave_is_shown_as_rounds_and_one_line_for_each_node() {
    let members = WaveMembers {
        groups: vec![group(
            None,
            vec![
                round(RoundStart::Now, &[1], &[1]),
                round(RoundStart::NodesBack, &[2], &[2]),
            ],
        )],
        hosts: vec![vec![name(1)], vec![name(2)]],
        forecasts: vec![forecast(1, Some("esx-9")), forecast(2, None)],
    };
    let mut second = plan("host", "esx-2", &[2]);
    second.nodes[0].evicts = vec![PodPlan {
        pod: "ml/train".to_owned(),
        wait_seconds: None,
        held: Some("held by it".to_owned()),
        warnings: Vec::new(),
    }];
    let plans = vec![plan("host", "esx-1", &[1]), second];
    let durations = history(&[(1, 10)]);
    let wave = WavePlan {
        wave: summary(&members, &plans, two_each, &durations),
        plans,
    };
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
    let none = WavePlan {
        wave: WaveSummary::default(),
        plans: vec![plan("host", "esx-9", &[])],
    };
    let text = render(&none, false, Paint::OFF);
    assert!(
        text.contains("No node is drained.") && text.contains("Duration: unknown, no history is kept"),
        "{text}"
    );
    assert!(!none.is_blocked());
}
