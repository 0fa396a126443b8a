use haulout_core::fixtures;
use serde_json::json;

use super::*;
use crate::plan::{PlannedHost, PlannedObject};
use haulout_controller::nodemaintenance::kind::NodeMaintenance;
use haulout_core::ids::HostRef;
use haulout_core::maintenance::admission::AdmissionRound;
use haulout_core::maintenance::episode::Record;
use haulout_core::maintenance::observed::{BoundVm, HostState, ObservedVm};
use haulout_core::maintenance::placement::PlacementOffer;
use haulout_core::status::PhaseKind;

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
        queue: None,
        offer: Some(PlacementOffer {
            fits: to.map(|to| (HostRef::new(to), to.to_owned())),
            ..PlacementOffer::default()
        }),
    }
}

fn plan(nodes: &[usize]) -> Plan {
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
    };
    Plan {
        about: PlannedObject::Node,
        name: "it".to_owned(),
        state: None,
        nodes: nodes.iter().map(node).collect(),
        gpus_missing: BTreeMap::new(),
        not_checked: Vec::new(),
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
                "result": "Succeeded",
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
    let mut stopped = plan(&[1]);
    stopped.nodes[0].stops = vec!["a person to remove haulout.dev/skip".to_owned()];
    let calm = || vec![plan(&[1])];
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
