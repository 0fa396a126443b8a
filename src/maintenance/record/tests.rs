use std::sync::Arc;

use super::*;
use crate::ids::{BootId, EpisodeId, HostRef, NodeUid, TaskRef, VmUuid};
use crate::maintenance::episode::{Cordon, Detection, DrainEnd, HostMark, Trigger};
use crate::maintenance::waiting::ParkReason;

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn episode(phase: Phase) -> Episode {
    let trigger = Trigger {
        task: Some(TaskRef::new("task-81")),
        clicked_at: time("2026-11-21T03:00:00.25Z"),
        user: Some("VSPHERE.LOCAL\\ops".to_owned()),
        detection: Some(Detection::Polled),
        request: None,
        stray_of: None,
    };
    let host = HostMark {
        moref: Some(HostRef::new("host-21")),
        name: "esx-1".into(),
    };
    let begun_at = time("2026-11-21T03:00:01Z");
    Episode {
        id: EpisodeId::new("00112233445566778899aabbccddeeff"),
        traceparent: "00-00112233445566778899aabbccddeeff-0011223344556677-01".into(),
        vm_uuid: VmUuid::parse("4215e1a2-7c3d-9e4f-0102-030405060708"),
        cordon: Cordon::Ours,
        boot_before: Some(BootId::new("boot-1")),
        gpus_before: Arc::new([("nvidia.com/gpu".to_owned(), 4)].into()),
        left_behind: vec!["ml/train-0".to_owned()],
        since: time("2026-11-21T03:00:02Z"),
        ..Episode::new(NodeUid::new("uid-1"), trigger, host, phase, begun_at)
    }
}

fn every_phase() -> Vec<Phase> {
    let to = HostMark {
        moref: Some(HostRef::new("host-22")),
        name: "esx-2".into(),
    };
    let at_work = [
        Phase::Queued,
        Phase::Draining,
        Phase::ShuttingDown(DrainEnd::Complete),
        Phase::ShuttingDown(DrainEnd::TimedOut),
        Phase::Relocating { to },
        Phase::AwaitingHost,
        Phase::PoweringOn { by_drs: true },
        Phase::Rejoining,
    ];
    let reasons = [
        ParkReason::VmMissing,
        ParkReason::VmAmbiguous { count: 2 },
        ParkReason::VmSuspended,
        ParkReason::Uncordoned,
        ParkReason::AnotherNode,
        ParkReason::Overdue {
            phase: "Rejoining".to_owned(),
            waiting_on: "the node".to_owned(),
        },
    ];
    let parked = reasons.into_iter().map(|reason| Phase::Parked {
        reason,
        resume: Box::new(Phase::Rejoining),
        resume_since: time("2026-11-21T03:00:02Z"),
    });
    at_work.iter().cloned().chain(parked).collect()
}

fn annotations(state: &str, host: &str, time: &str) -> Annotations {
    Annotations {
        state: Some(state.to_owned()),
        host: Some(host.to_owned()),
        transition_time: Some(time.to_owned()),
        ..Annotations::default()
    }
}

#[test]
fn what_is_written_is_read_back_in_every_phase() {
    for phase in every_phase() {
        let record = Record::Episode(Arc::new(episode(phase)));
        assert_eq!(read(&write(&record, time("2026-11-21T03:00:03Z"))), record);
    }
    assert_eq!(
        write(&Record::InService, time("2026-11-21T03:00:03Z")),
        Annotations::default()
    );
    assert_eq!(read(&Annotations::default()), Record::InService);
}

#[test]
fn people_and_scripts_read_the_states_of_the_python_controller() {
    let written = |phase: Phase, moved: bool| {
        let mut episode = episode(phase);
        episode.moved_to = moved.then(|| HostMark {
            moref: None,
            name: "esx-2".into(),
        });
        write(
            &Record::Episode(Arc::new(episode)),
            time("2026-11-21T03:00:03.75Z"),
        )
    };
    let draining = written(Phase::Draining, false);
    assert_eq!(draining.state.as_deref(), Some("draining"));
    assert_eq!(draining.host.as_deref(), Some("esx-1"));
    assert_eq!(draining.transition_time.as_deref(), Some("2026-11-21T03:00:03Z"));
    assert_eq!(
        written(Phase::AwaitingHost, false).state.as_deref(),
        Some("powered-off")
    );
    assert_eq!(
        written(Phase::Rejoining, false).state.as_deref(),
        Some("powered-off")
    );
    let migrated = written(Phase::Rejoining, true);
    assert_eq!(migrated.state.as_deref(), Some("migrated"));
    assert_eq!(migrated.migrated_to_host.as_deref(), Some("esx-2"));
    assert_eq!(written(Phase::Queued, false).state, None);
}

#[test]
fn an_episode_of_the_python_controller_is_recognised_in_each_of_its_states() {
    for (word, state) in [
        ("draining", PythonState::Draining),
        ("powered-off", PythonState::PoweredOff),
        ("migrated", PythonState::Migrated),
    ] {
        for at in [
            "2026-11-21T03:00:00Z",
            "2026-11-21T03:00:00+00:00",
            "2026-11-21T03:00:00",
            "2026-11-21T04:00:00+01:00",
        ] {
            let python = PythonEpisode {
                state,
                host: "esx-1".to_owned(),
                migrated_to_host: None,
                since: time("2026-11-21T03:00:00Z"),
            };
            assert_eq!(
                read(&annotations(word, "esx-1", at)),
                Record::Python(python),
                "{word} {at}"
            );
        }
    }
}

#[test]
fn what_cannot_be_read_is_parked_and_says_why() {
    let json = |text: &str| Annotations {
        episode: Some(text.to_owned()),
        ..Annotations::default()
    };
    let good = write(
        &Record::Episode(Arc::new(episode(Phase::Draining))),
        time("2026-11-21T03:00:03Z"),
    )
    .episode
    .unwrap();
    let deep = format!(
        "{{\"version\":1,\"phase\":{}",
        "{\"parked\":{\"resume\":".repeat(20_000)
    );
    for (annotations, why) in [
        (json(""), "no JSON of ours"),
        (json("null"), "no JSON of ours"),
        (json("[]"), "no JSON of ours"),
        (json("{\"version\":2}"), "version 2"),
        (json("{\"version\":1}"), "does not read as version 1"),
        (json("{\"version\":-1}"), "no JSON of ours"),
        (
            json(&good.replace("\"draining\"", "\"flying\"")),
            "does not read as version 1",
        ),
        (
            json(&good.replace("2026-11-21T03:00:02Z", "yesterday")),
            "does not read as version 1",
        ),
        (
            json(&good.replace("4215e1a2-7c3d-9e4f-0102-030405060708", "gpu-1")),
            "does not read as version 1",
        ),
        (json(&deep), "bytes long"),
        (json(deep.get(..60_000).unwrap()), "no JSON of ours"),
        (json(&"9".repeat(60_000)), "no JSON of ours"),
        (
            annotations("flying", "esx-1", "2026-11-21T03:00:00Z"),
            "state is \"flying\"",
        ),
        (
            annotations("draining", "esx-1", "yesterday"),
            "transition-time is \"yesterday\"",
        ),
        (
            Annotations {
                transition_time: None,
                ..annotations("draining", "esx-1", "")
            },
            "no transition-time",
        ),
        (
            Annotations {
                host: None,
                ..annotations("draining", "", "2026-11-21T03:00:00Z")
            },
            "no host",
        ),
    ] {
        match read(&annotations) {
            Record::Unreadable { why: said } => assert!(said.contains(why), "{said:?} should say {why:?}"),
            other @ (Record::InService | Record::Episode(_) | Record::Python(_)) => {
                panic!("{why}: read as {other:?}")
            }
        }
    }
}

#[test]
fn the_record_stays_small_however_many_pods_were_left_behind() {
    let mut crowded = episode(Phase::ShuttingDown(DrainEnd::TimedOut));
    crowded.left_behind = (0..5_000)
        .map(|pod| format!("a-rather-long-namespace/a-rather-long-pod-name-{pod}"))
        .collect();
    let written = write(&Record::Episode(Arc::new(crowded)), time("2026-11-21T03:00:03Z"));
    assert!(written.episode.unwrap().len() < 8 * 1024);
}
