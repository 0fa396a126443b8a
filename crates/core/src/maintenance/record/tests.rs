use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::ids::{BootId, EpisodeId, HostRef, NodeUid, TaskRef, VmUuid};
use crate::maintenance::clock::Elapsed;
use crate::maintenance::episode::{CordonOwner, Detection, DrainEnd, EpisodeResult, HostIdentity, Trigger};
use crate::maintenance::volumes::VolumeWait;
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
        late_power_off_of: None,
    };
    let host = HostIdentity {
        moref: Some(HostRef::new("host-21")),
        name: "esx-1".into(),
    };
    let begun_at = time("2026-11-21T03:00:01Z");
    Episode {
        id: EpisodeId::new("00112233445566778899aabbccddeeff"),
        traceparent: "00-00112233445566778899aabbccddeeff-0011223344556677-01".into(),
        vm_uuid: VmUuid::parse("4215e1a2-7c3d-9e4f-0102-030405060708"),
        cordon: CordonOwner::Ours,
        boot_before: Some(BootId::new("boot-1")),
        gpus_before: Arc::new([("nvidia.com/gpu".to_owned(), 4)].into()),
        left_behind: vec!["ml/train-0".to_owned()],
        volumes: Some(VolumeWait {
            waited: Elapsed::of(Duration::from_secs(120)),
            left: vec!["pvc-1 (claim ml/data)".to_owned()],
        }),
        since: time("2026-11-21T03:00:02Z"),
        ..Episode::new(NodeUid::new("uid-1"), trigger, host, phase, begun_at)
    }
}

fn every_phase() -> Vec<Phase> {
    let to = HostIdentity {
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
        ParkReason::VmOutOfScope,
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

fn annotations(state: &str, host: &str, time: &str) -> NodeAnnotations {
    NodeAnnotations {
        state: Some(state.to_owned()),
        host: Some(host.to_owned()),
        transition_time: Some(time.to_owned()),
        ..NodeAnnotations::default()
    }
}

#[test]
fn what_is_written_is_read_back_in_every_phase() {
    for phase in every_phase() {
        let record = Record::Episode(Arc::new(episode(phase)));
        assert_eq!(read_record(&write(&record, time("2026-11-21T03:00:03Z"))), record);
    }
    assert_eq!(
        write(&Record::InService, time("2026-11-21T03:00:03Z")),
        NodeAnnotations::default()
    );
    assert_eq!(read_record(&NodeAnnotations::default()), Record::InService);
}

#[test]
fn people_and_scripts_read_the_states_of_the_python_controller() {
    let written = |phase: Phase, moved: bool| {
        let mut episode = episode(phase);
        episode.moved_to = moved.then(|| HostIdentity {
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
fn python_episode_is_recognised_in_each_state() {
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
                read_record(&annotations(word, "esx-1", at)),
                Record::Python(python),
                "{word} {at}"
            );
        }
    }
}

#[test]
fn what_cannot_be_read_is_parked_and_says_why() {
    let json = |text: &str| NodeAnnotations {
        episode: Some(text.to_owned()),
        ..NodeAnnotations::default()
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
            NodeAnnotations {
                transition_time: None,
                ..annotations("draining", "esx-1", "")
            },
            "no transition-time",
        ),
        (
            NodeAnnotations {
                host: None,
                ..annotations("draining", "", "2026-11-21T03:00:00Z")
            },
            "no host",
        ),
    ] {
        match read_record(&annotations) {
            Record::Unreadable { why: message } => {
                assert!(message.contains(why), "{message:?} should say {why:?}")
            }
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

/// The record of an episode in progress, with `change` applied to its JSON.
fn forged(change: impl FnOnce(&mut serde_json::Value)) -> Record {
    let mut sound = episode(Phase::Parked {
        reason: ParkReason::VmMissing,
        resume: Box::new(Phase::Relocating {
            to: HostIdentity {
                moref: Some(HostRef::new("host-22")),
                name: "esx-2".into(),
            },
        }),
        resume_since: time("2026-11-21T03:00:02Z"),
    });
    sound.in_flight.guest_shutdown = Some(crate::maintenance::clock::Timer {
        since: time("2026-11-21T03:00:02Z"),
        elapsed: crate::maintenance::clock::Elapsed::ZERO,
    });
    sound.refused(
        &HostRef::new("host-23"),
        crate::maintenance::episode::RefusedMove::Relocate,
        "no",
    );
    let json = write(&Record::Episode(Arc::new(sound)), time("2026-11-21T03:00:03Z")).episode;
    let mut value: serde_json::Value = serde_json::from_str(&json.unwrap()).unwrap();
    change(&mut value);
    read_record(&NodeAnnotations {
        episode: Some(value.to_string()),
        ..NodeAnnotations::default()
    })
}

#[test]
fn record_with_impossible_values_is_unreadable() {
    use serde_json::json;
    assert!(forged(|_| {}).episode().is_some(), "the sound one is read");
    let ten_years_and_a_day: u64 = (10 * 365 + 1) * 24 * 3600 * 1000;
    let resources: serde_json::Map<_, _> = (0..65).map(|n| (format!("gpu{n}"), json!(1))).collect();
    let refusal = json!({"host": "host-9", "what": "relocate", "said": "no"});
    let request = json!({"name": "Not A Name", "uid": "1"});
    for (path, forgery, why) in [
        ("/id", json!("!!!!!!!!"), "episode id"),
        ("/id", json!("FFEEDDCCBBAA99887766554433221100"), "episode id"),
        ("/id", json!("ffeeddccbbaa99887766554433221100"), "traceparent"),
        ("/traceparent", json!("00-x-y-01"), "traceparent"),
        ("/nodeUid", json!("u".repeat(254)), "name of at most 253"),
        ("/host/name", json!("e".repeat(254)), "a host has a name"),
        ("/host/name", json!(""), "a host has a name"),
        ("/host/moref", json!("h".repeat(254)), "name of at most 253"),
        (
            "/phase/parked/resume/relocating/to/name",
            json!(""),
            "a host has a name",
        ),
        (
            "/movedTo",
            json!({"moref": null, "name": "e".repeat(254)}),
            "a host has a name",
        ),
        (
            "/vmUuid",
            json!("00000000-0000-0000-0000-000000000000"),
            "usable UUID",
        ),
        ("/release", json!("r".repeat(507)), "release"),
        ("/keptOffBy", request.clone(), "a request has a name"),
        ("/trigger/request", request, "a request has a name"),
        ("/begunAt", json!("1999-12-31T23:59:59Z"), "of the beginning"),
        ("/begunAt", json!("2200-01-01T00:00:00Z"), "of the beginning"),
        ("/since", json!("2300-01-01T00:00:00Z"), "of the phase is"),
        (
            "/trigger/clickedAt",
            json!("-009999-01-02T01:59:59Z"),
            "of the click",
        ),
        (
            "/phase/parked/resume_since",
            json!("2300-01-01T00:00:00Z"),
            "of the phase to resume",
        ),
        (
            "/inFlight/guestShutdown/since",
            json!("2300-01-01T00:00:00Z"),
            "of a request",
        ),
        (
            "/inFlight/guestShutdown/elapsed",
            json!(u64::MAX),
            "a request to vCenter has lasted",
        ),
        ("/elapsed", json!(ten_years_and_a_day), "the phase has lasted"),
        ("/drainedFor", json!(ten_years_and_a_day), "the drain has lasted"),
        ("/gpusBefore", json!(resources), "GPU resources"),
        ("/gpusBefore", json!({"g".repeat(507): 1}), "GPU resources"),
        ("/refusals", json!(vec![refusal; 33]), "more than 32 hosts"),
        (
            "/volumes",
            json!({"waited": 1, "left": vec!["pvc-1"; 21]}),
            "more than 20 volumes",
        ),
        (
            "/volumes",
            json!({"waited": ten_years_and_a_day}),
            "the wait for volumes has lasted",
        ),
        ("/revision", json!(u64::MAX), "more often"),
        ("/epoch", json!(u64::MAX), "more often"),
        ("/recordoned", json!(256), "does not read"),
    ] {
        let record = forged(|value| {
            let (parent, field) = path.rsplit_once('/').unwrap();
            let parent = value.pointer_mut(parent).unwrap().as_object_mut().unwrap();
            parent.insert(field.to_owned(), forgery.clone());
        });
        match record {
            Record::Unreadable { why: message } => {
                assert!(message.contains(why), "{path}: {message:?} and not {why:?}")
            }
            other @ (Record::InService | Record::Episode(_) | Record::Python(_)) => {
                panic!("{path} = {forgery} is read as {other:?}")
            }
        }
    }
    // One more in each count is the first that is too many.
    let at_most = |path: &str, sound: serde_json::Value| {
        let record = forged(|value| {
            value.as_object_mut().unwrap().insert(path.to_owned(), sound);
        });
        assert!(record.episode().is_some(), "{path}: {record:?}");
    };
    at_most("begunAt", json!("2000-01-01T00:00:00Z"));
    at_most("begunAt", json!("2199-12-31T23:59:59Z"));
    at_most("elapsed", json!(ten_years_and_a_day - 24 * 3600 * 1000));
    at_most("release", json!("r".repeat(506)));
    at_most("revision", json!(1_u64 << 53));
    let resources: serde_json::Map<_, _> = (0..64).map(|n| (format!("gpu{n}"), json!(1))).collect();
    at_most("gpusBefore", json!(resources));
    // Two names of 253 characters with a slash between them.
    at_most("gpusBefore", json!({"g".repeat(506): 1}));
}

#[test]
fn a_wrong_history_is_dropped_and_parks_nobody() {
    use serde_json::json;
    let finished = json!({"phase": "draining", "host": "esx-1", "since": "2026-11-21T03:00:01Z",
        "until": "2026-11-21T03:00:02Z", "outcome": "passed"});
    let with = |path: &str, wrong: serde_json::Value| {
        let mut history =
            json!({"finished": [finished], "incidents": [{"restarted": {"at": "2026-11-21T03:00:02Z"}}]});
        if !path.is_empty() {
            *history.pointer_mut(path).unwrap() = wrong;
        }
        let record = forged(|value| value["history"] = history);
        record.episode().expect("the record is read").history.clone()
    };
    let sound = with("", json!(null));
    assert_eq!((sound.finished.len(), sound.incidents.len()), (1, 1));
    for (path, wrong) in [
        ("/finished", json!("none")),
        ("/finished/0/outcome", json!("later")),
        ("/finished/0/host", json!("e".repeat(254))),
        ("/finished/0/until", json!("2300-01-01T00:00:00Z")),
        (
            "/finished/0/phase",
            json!({"relocating": {"to": {"moref": null, "name": ""}}}),
        ),
        ("/finished", json!(vec![finished.clone(); 65])),
        ("/incidents/0/restarted/at", json!("1999-01-01T00:00:00Z")),
    ] {
        assert_eq!(with(path, wrong), PhaseHistory::default(), "{path}");
    }
}

#[test]
fn texts_of_a_record_are_cut_and_hold_nothing_that_a_terminal_obeys() {
    let text = |message: String| {
        let record = forged(|value| {
            *value.pointer_mut("/refusals/0/said").unwrap() = message.into();
        });
        record.episode().unwrap().refusals[0].message.clone()
    };
    assert_eq!(text("a\u{1b}[2Jb\r\nc".to_owned()), "a [2Jb  c");
    assert_eq!(text("é".repeat(5_000)).chars().count(), 4096);
    assert_eq!(text("plain".to_owned()), "plain");
}

#[test]
fn the_last_episode_is_checked_like_any_other() {
    let mut ended = episode(Phase::Rejoining);
    ended.in_flight.earlier_guest_shutdown = Some(time("2026-11-21T03:10:00Z"));
    let last = LastEpisode {
        episode: EndedEpisode::of(&ended),
        ended: Some(crate::maintenance::episode::EpisodeResult::Succeeded),
        at: time("2026-11-21T03:30:00Z"),
    };
    let json = write_last(&last);
    assert_eq!(read_last(&json).unwrap(), last);
    assert!(json.len() < 1024, "{} bytes: {json}", json.len());
    for (is, forgery) in [
        ("esx-1", "e".repeat(254)),
        ("2026-11-21T03:00:01Z", "2300-01-01T00:00:00Z".to_owned()),
        ("2026-11-21T03:10:00Z", "1999-01-01T00:00:00Z".to_owned()),
    ] {
        assert!(json.contains(is), "{is} in {json}");
        assert_eq!(read_last(&json.replacen(is, &forgery, 1)), None, "{is}");
    }
    let id = last.episode.id.as_str();
    assert_eq!(read_last(&json.replacen(id, "!!!!", 1)), None);
    assert_eq!(
        read_last(&json.replacen("\"version\":1", "\"version\":2", 1)),
        None
    );
    assert_eq!(read_last(&" ".repeat(MAX_JSON + 1)), None);
}

#[test]
fn last_episode_is_written_when_it_ends_and_not_before() {
    let before = Record::Episode(Arc::new(episode(Phase::Rejoining)));
    let of_another = |change: fn(&mut Episode)| {
        let mut next = episode(Phase::Queued);
        change(&mut next);
        Record::Episode(Arc::new(next))
    };
    let goes_on = of_another(|_| {});
    let next = of_another(|next| next.id = EpisodeId::new("ffeeddccbbaa99887766554433221100"));
    let ended = time("2026-11-05T04:00:00Z");
    for (after, is_over) in [(&goes_on, false), (&next, true), (&Record::InService, true)] {
        let last = LastEpisode::of(&before, after, Some(EpisodeResult::Succeeded), ended);
        assert_eq!(last.is_some(), is_over, "{after:?}");
    }
    assert_eq!(LastEpisode::of(&Record::InService, &next, None, ended), None);
}
