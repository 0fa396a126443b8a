//! Episodes as sequences of records, and their spans.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use haulout_core::fixtures::{self, at};

use super::*;
use haulout_core::ids::{EpisodeId, HostRef, NodeUid, RequestUid, VmUuid};
use haulout_core::maintenance::clock::Now;
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::episode::{
    CordonOwner, DrainEnd, HostIdentity, Phase, PhaseStats, PodCounts, QueuePosition, Record, RefusedHost,
    Trigger, TriggerKind,
};
use haulout_core::maintenance::phase_stats::close;
use haulout_core::maintenance::record;
use haulout_core::maintenance::request::RequestIdentity;
use haulout_core::maintenance::waiting::ParkReason;

fn host(name: &str) -> HostIdentity {
    HostIdentity {
        moref: Some(HostRef::new(format!("host-{name}"))),
        name: name.into(),
    }
}

/// The episode that a click 3 s before `at(0)` set off.
fn begun_in(phase: Phase) -> Episode {
    let trigger = Trigger {
        task: Some(TaskRef::new("task-81")),
        clicked_at: at(-3),
        user: Some("VSPHERE.LOCAL\\ops".to_owned()),
        ..fixtures::trigger()
    };
    Episode {
        vm_uuid: VmUuid::parse("4215e1a2-7c3d-9e4f-0102-030405060708"),
        cordon: CordonOwner::Ours,
        gpus_before: BTreeMap::from([("nvidia.com/gpu".to_owned(), 2)]).into(),
        powered_off: true,
        ..Episode::new(NodeUid::new("uid-1"), trigger, host("esx1"), phase, at(0))
    }
}

/// How long each write takes.
const WRITE: SignedDuration = SignedDuration::from_millis(20);

/// The spans of an episode whose phases begin at these seconds and which ends at `end`; the node is cordoned with the drain.
fn spans_with(
    phases: &[(Phase, i64)],
    end: i64,
    result: EpisodeResult,
    stats: impl Fn(&Phase) -> PhaseStats,
) -> Vec<Span> {
    let mut record = Record::InService;
    let mut spans = Vec::new();
    let after = phases.iter().map(|(phase, second)| {
        let unschedulable = matches!(phase, Phase::Draining).then_some(true);
        (Some(phase), unschedulable, None, *second)
    });
    let uncordon = phases.iter().any(|(phase, _)| matches!(phase, Phase::Draining));
    let last = (None, uncordon.then_some(false), Some(result), end);
    for (phase, unschedulable, ended_as, second) in after.chain([last]) {
        let was = record
            .episode()
            .cloned()
            .unwrap_or_else(|| begun_in(Phase::Queued));
        let next =
            phase.map(|phase| Record::Episode(Arc::new(was.enter(phase.clone(), Now::at(at(second), 0)))));
        let transition = Transition {
            record: next.unwrap_or(Record::InService),
            unschedulable,
            ended: ended_as,
            fulfilled: None,
        };
        let stats = record.phase().map_or_else(PhaseStats::default, &stats);
        record = changes(&record, transition, stats, second, &mut spans);
    }
    check(&spans);
    spans
}

/// What was known of the node before its episode.
fn surroundings() -> EpisodeOrigin {
    EpisodeOrigin {
        cluster: Some("gpu-cluster".to_owned()),
        vm: Some("gpu1.vm".to_owned()),
        before: Some(BEFORE.to_owned()),
        adopted: false,
    }
}

/// The traceparent of an episode that was about the same host.
const BEFORE: &str = "00-00000000000000000000000000000bef-0000000000000bef-01";

/// Changes the record, and builds the spans of what ended. Returns the stored record.
fn changes(
    before: &Record,
    mut transition: Transition,
    stats: PhaseStats,
    second: i64,
    spans: &mut Vec<Span>,
) -> Record {
    let node = NodeName::new("gpu1");
    let wrote = (at(second), at(second) + WRITE);
    let closed = close(
        before,
        &mut transition,
        stats,
        &surroundings(),
        at(-100),
        at(second),
    );
    // As the next process reads it.
    let stands = record::read_record(&record::write(&transition.record, at(second)));
    let next = transition.record.episode();
    if let Some(was) = closed.episode() {
        let known = before.episode().unwrap().history.finished.len();
        for it in &was.history.finished[known..] {
            let event = EpisodeSpans::of(&node, was).unwrap().finished(it);
            if let Some(next) = stands.episode() {
                let last = next.history.finished.last().unwrap();
                let again = EpisodeSpans::of(&node, next).unwrap().finished(last);
                assert_eq!(again, event, "sent again, it is the same");
            }
            spans.extend(event);
        }
        if next.is_none() {
            let end = SpanEnd {
                ended: transition.ended,
                uncordoned: transition.unschedulable == Some(false),
                wrote,
            };
            spans.extend(EpisodeSpans::of(&node, was).unwrap().ended(end));
        }
    } else if let Some(next) = next {
        spans.extend(EpisodeSpans::of(&node, next).unwrap().begin_spans());
    }
    if let (Some(next), Some(true)) = (next, transition.unschedulable) {
        spans.push(EpisodeSpans::of(&node, next).unwrap().cordoned(wrote));
    }
    stands
}

fn event(phases: &[(Phase, i64)], end: i64, result: EpisodeResult) -> Vec<Span> {
    spans_with(phases, end, result, |_| PhaseStats::default())
}

/// One root that comes last, everything inside its parent, phases without gaps or overlaps, and who it is about on each.
fn check(spans: &[Span]) {
    let roots: Vec<&Span> = spans.iter().filter(|span| span.parent.is_none()).collect();
    assert_eq!(roots.len(), 1, "{spans:#?}");
    let root = spans.last().unwrap();
    assert_eq!((root.name, root.parent), ("maintenance", None));
    assert_eq!(
        spans[0].name, "announce",
        "the trace can be found from the beginning"
    );
    assert!(spans.iter().all(|span| span.start < span.end), "{spans:#?}");
    let mut ids: Vec<SpanId> = spans.iter().map(|span| span.id).collect();
    ids.sort_unstable_by_key(|id| id.to_bytes());
    ids.dedup();
    assert_eq!(ids.len(), spans.len(), "two spans share an id: {spans:#?}");
    for span in spans {
        assert_eq!(span.trace, root.trace);
        assert!(span.start <= span.end, "{span:#?}");
        if let Some(parent) = span.parent {
            let parent = spans.iter().find(|it| it.id == parent);
            let parent = parent.unwrap_or_else(|| panic!("the parent of {span:#?} is missing"));
            assert!(
                parent.start <= span.start && span.end <= parent.end,
                "{span:#?} outside of {parent:#?}"
            );
        }
        for key in ["haulout.episode", "k8s.node.name", "vcenter.host.name"] {
            assert!(attribute(span, key).is_some(), "{key} is missing in {span:#?}");
        }
    }
    let phases: Vec<&Span> = spans
        .iter()
        .filter(|span| span.parent == Some(root.id) && span.name != "announce")
        .collect();
    assert_eq!(phases[0].start, root.start);
    assert_eq!(phases.last().unwrap().end, root.end);
    for pair in phases.windows(2) {
        assert_eq!(
            pair[0].end, pair[1].start,
            "between {:#?} and {:#?}",
            pair[0], pair[1]
        );
    }
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|it| it.key.as_str() == key)?;
    Some(found.value.to_string())
}

fn names(spans: &[Span]) -> Vec<&'static str> {
    spans.iter().map(|span| span.name).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found.next().unwrap_or_else(|| panic!("no {name} in {spans:#?}"));
    assert!(found.next().is_none(), "more than one {name}");
    span
}

fn wait_phases() -> [(Phase, i64); 5] {
    [
        (Phase::Draining, 0),
        (Phase::ShuttingDown(DrainEnd::Complete), 60),
        (Phase::AwaitingHost, 90),
        (Phase::PoweringOn { by_drs: false }, 7_200),
        (Phase::Rejoining, 7_210),
    ]
}

#[test]
fn wait_for_the_host_has_spans_from_start_to_uncordon() {
    let spans = event(&wait_phases(), 7_300, EpisodeResult::Succeeded);
    assert_eq!(
        names(&spans),
        [
            "announce",
            "detect",
            "cordon",
            "drain",
            "guest shutdown",
            "wait host exit",
            "power on",
            "wait node ready",
            "uncordon",
            "maintenance"
        ]
    );
    let root = named(&spans, "maintenance");
    assert_eq!(root.start, at(-3), "backdated to the click");
    assert_eq!(attribute(root, "haulout.result").as_deref(), Some("succeeded"));
    assert_eq!(attribute(root, "vcenter.task.id").as_deref(), Some("task-81"));
    assert_eq!(attribute(root, "haulout.trigger").as_deref(), Some("task"));
    for (name, method) in [
        ("guest shutdown", "ShutdownGuest"),
        ("power on", "PowerOnVM_Task"),
    ] {
        let span = named(&spans, name);
        assert_eq!(attribute(span, "rpc.method").as_deref(), Some(method));
        assert_eq!(attribute(span, "error.type"), None);
    }
    let episode = begun_in(Phase::Queued);
    assert_eq!(root.trace.to_string(), episode.trace_id());
    assert_eq!(Some(root.id), super::root(&episode).map(|root| root.span_id()));
    let cordon = named(&spans, "cordon");
    assert_eq!(cordon.parent, Some(named(&spans, "drain").id));
    assert_eq!(
        attribute(cordon, "peer.service").as_deref(),
        Some("kube-apiserver")
    );
}

#[test]
fn relocation_span_has_the_target_host() {
    let phases = [
        (Phase::Draining, 0),
        (Phase::ShuttingDown(DrainEnd::Complete), 60),
        (Phase::AwaitingHost, 90),
        (Phase::Relocating { to: host("esx2") }, 91),
        (Phase::PoweringOn { by_drs: false }, 120),
        (Phase::Rejoining, 130),
    ];
    let spans = spans_with(&phases, 200, EpisodeResult::Succeeded, |_| PhaseStats {
        from_the_start: true,
        ..PhaseStats::default()
    });
    let place = named(&spans, "place");
    assert_eq!((place.start, place.end), (at(90), at(91)));
    assert_eq!(
        attribute(place, "haulout.placement.strategy").as_deref(),
        Some("relocate")
    );
    let relocate = named(&spans, "relocate");
    assert_eq!(
        attribute(relocate, "haulout.target.host").as_deref(),
        Some("esx2")
    );
}

#[test]
fn drs_placement_has_minimum_duration() {
    let phases = [
        (Phase::Draining, 0),
        (Phase::ShuttingDown(DrainEnd::Complete), 60),
        (Phase::PoweringOn { by_drs: true }, 90),
        (Phase::Rejoining, 130),
    ];
    let spans = event(&phases, 200, EpisodeResult::Succeeded);
    let place = named(&spans, "place");
    assert_eq!((place.start, place.end), (at(90), after(at(90))));
    assert_eq!(place.parent, Some(named(&spans, "power on").id));
    assert_eq!(
        attribute(place, "haulout.placement.strategy").as_deref(),
        Some("drs")
    );
}

#[test]
fn queued_episode_links_to_the_one_with_the_slot() {
    let other = super::root(&begun_in(Phase::Draining)).unwrap();
    let phases = [
        (Phase::Queued, 0),
        (Phase::Draining, 500),
        (Phase::ShuttingDown(DrainEnd::Complete), 560),
        (Phase::AwaitingHost, 590),
        (Phase::PoweringOn { by_drs: false }, 600),
        (Phase::Rejoining, 610),
    ];
    let spans = spans_with(&phases, 700, EpisodeResult::Succeeded, |_| PhaseStats {
        ahead_traceparent: Some(begun_in(Phase::Draining).traceparent),
        ..PhaseStats::default()
    });
    let queue = named(&spans, "queue");
    assert_eq!((queue.start, queue.end), (at(0), at(500)));
    assert_eq!(queue.link.as_ref(), Some(&other));
}

#[test]
fn cancelled_episode_has_a_root() {
    let draining = event(&[(Phase::Draining, 0)], 20, EpisodeResult::Cancelled);
    assert_eq!(
        names(&draining),
        ["announce", "detect", "cordon", "drain", "uncordon", "maintenance"]
    );
    let drain = named(&draining, "drain");
    assert_eq!(
        attribute(drain, "haulout.drain.outcome").as_deref(),
        Some("cancelled")
    );
    let root = named(&draining, "maintenance");
    assert_eq!(attribute(root, "haulout.result").as_deref(), Some("cancelled"));

    // Nothing was cordoned, so there is nothing to take back.
    let queued = event(&[(Phase::Queued, 0)], 20, EpisodeResult::Cancelled);
    assert_eq!(names(&queued), ["announce", "detect", "queue", "maintenance"]);
}

#[test]
fn parked_span_has_a_reason_and_splits_the_phase() {
    let parked = Phase::Parked {
        reason: ParkReason::VmMissing,
        resume: Box::new(Phase::Draining),
        resume_since: at(0),
    };
    let phases = [(Phase::Draining, 0), (parked, 30), (Phase::Draining, 90)];
    let spans = event(&phases, 120, EpisodeResult::Cancelled);
    let drains = spans.iter().filter(|span| span.name == "drain").count();
    assert_eq!(drains, 2);
    let parked = named(&spans, "parked");
    assert!(parked.failed.is_some());
    assert_eq!(attribute(parked, "error.type").as_deref(), Some("vm_missing"));
}

#[test]
fn first_and_root_spans_have_cluster_vm_and_source() {
    let spans = event(&wait_phases(), 7_300, EpisodeResult::Succeeded);
    for name in ["announce", "detect", "maintenance"] {
        let span = named(&spans, name);
        assert_eq!(
            attribute(span, "vcenter.cluster.name").as_deref(),
            Some("gpu-cluster")
        );
        assert_eq!(attribute(span, "vcenter.vm.name").as_deref(), Some("gpu1.vm"));
    }
    let source = attribute(named(&spans, "detect"), "haulout.detection.source");
    assert_eq!(source.as_deref(), Some("property_collector"));
    assert_eq!(named(&spans, "maintenance").link, context(BEFORE));
    let linked: Vec<&str> = spans
        .iter()
        .filter(|span| span.link.is_some())
        .map(|span| span.name)
        .collect();
    assert_eq!(linked, ["maintenance"], "nothing was waited for");
}

/// The root of `episode`, which ends as `result` at 60 s.
fn root_of(episode: &Episode, result: EpisodeResult) -> Span {
    let end = SpanEnd {
        ended: Some(result),
        uncordoned: true,
        wrote: (at(60), at(60) + WRITE),
    };
    let node = NodeName::new("gpu1");
    EpisodeSpans::of(&node, episode)
        .unwrap()
        .ended(end)
        .pop()
        .unwrap()
}

#[test]
fn failed_request_is_an_error_of_the_root() {
    let mut episode = begun_in(Phase::Rejoining);
    episode.relocation_failure = Some("no host has a free device".to_owned());
    let root = root_of(&episode, EpisodeResult::Failed);
    assert_eq!(root.failed.as_deref(), Some("no host has a free device"));
    assert_eq!(attribute(&root, "error.type").as_deref(), Some("not_to_be_had"));
    assert_eq!(root_of(&episode, EpisodeResult::Succeeded).failed, None);
}

#[test]
fn the_root_knows_every_trigger() {
    let mut names = BTreeSet::new();
    for &kind in TriggerKind::ALL {
        let mut episode = begun_in(Phase::Rejoining);
        episode.trigger.task = None;
        match kind {
            TriggerKind::Task => episode.trigger.task = Some(TaskRef::new("task-1")),
            TriggerKind::Request => {
                episode.trigger.request = Some(RequestIdentity {
                    uid: RequestUid::new("uid-9"),
                    name: "drain-gpu1".into(),
                    foreign: None,
                });
            }
            TriggerKind::Stray => {
                episode.trigger.late_power_off_of = Some(EpisodeId::new("00112233445566778899aabbccddeeff"));
            }
            TriggerKind::HostState => {}
            TriggerKind::Adopted => episode.history.origin.adopted = true,
        }
        assert_eq!(episode.trigger_kind(), kind);
        let root = root_of(&episode, EpisodeResult::Succeeded);
        assert_eq!(attribute(&root, "haulout.trigger").as_deref(), Some(kind.name()));
        names.insert(kind.name());
    }
    assert_eq!(
        names,
        ["adopted", "host_state", "request", "stray", "task"].into()
    );
}

#[test]
fn cordon_and_uncordon_last_as_long_as_their_writes() {
    let spans = event(&wait_phases(), 7_300, EpisodeResult::Succeeded);
    for (name, start) in [("cordon", at(0)), ("uncordon", at(7_300))] {
        let span = named(&spans, name);
        assert_eq!((span.start, span.end), (start, start + WRITE), "{name}");
    }
}

#[test]
fn phase_statistics_become_attributes() {
    let phases = [
        (Phase::Queued, 0),
        (Phase::Draining, 10),
        (Phase::ShuttingDown(DrainEnd::Complete), 60),
        (Phase::Relocating { to: host("esx2") }, 90),
        (Phase::PoweringOn { by_drs: false }, 100),
        (Phase::Rejoining, 110),
    ];
    let seen = |phase: &Phase| {
        let nothing = PhaseStats {
            from_the_start: true,
            ..PhaseStats::default()
        };
        let task = |task: &str| Some(TaskRef::new(task));
        match phase {
            Phase::Queued => PhaseStats {
                ahead_traceparent: Some(BEFORE.into()),
                queue: Some(QueuePosition {
                    position: 3,
                    limit: 2,
                    setting: "MAX_CONCURRENT_DRAINS".to_owned(),
                }),
                ..nothing
            },
            Phase::Draining => PhaseStats {
                pods: Some(PodCounts {
                    listed: 9,
                    ignored: 4,
                    evicted: 5,
                }),
                ..nothing
            },
            Phase::ShuttingDown(_) => PhaseStats {
                power_cut: Some(at(80)),
                task: task("task-90"),
                refused: vec![RefusedHost {
                    host: "esx3".to_owned(),
                    why: "has no matching device free".to_owned(),
                }],
                ..nothing
            },
            Phase::Relocating { .. } => PhaseStats {
                task: task("task-91"),
                ..nothing
            },
            Phase::PoweringOn { .. } => PhaseStats {
                task: task("task-92"),
                ..nothing
            },
            Phase::Drained | Phase::AwaitingHost | Phase::Rejoining | Phase::Parked { .. } => nothing,
        }
    };
    let spans = spans_with(&phases, 200, EpisodeResult::Succeeded, seen);
    let has = |span: &str, key: &str| attribute(named(&spans, span), key).unwrap_or_default();
    assert_eq!(has("queue", "haulout.queue.position"), "3");
    assert_eq!(has("queue", "haulout.queue.limit"), "2");
    assert_eq!(has("queue", "haulout.queue.setting"), "MAX_CONCURRENT_DRAINS");
    assert_eq!(named(&spans, "queue").link, context(BEFORE));
    let pods = ["total", "ignored", "evicted"].map(|which| has("drain", &format!("haulout.pods.{which}")));
    assert_eq!(pods, ["9", "4", "5"]);
    for (span, task) in [
        ("power off", "task-90"),
        ("relocate", "task-91"),
        ("power on", "task-92"),
    ] {
        assert_eq!(has(span, "vcenter.task.id"), task, "of {span}");
    }
    let place = named(&spans, "place");
    let refused: Vec<_> = place
        .events
        .iter()
        .map(|it| (it.name, &it.attributes[..]))
        .collect();
    assert_eq!(
        refused,
        [(
            "host.refused",
            &[
                text("vcenter.host.name", "esx3"),
                text("reason", "has no matching device free")
            ][..]
        )]
    );
    assert!(
        place
            .events
            .iter()
            .all(|it| place.start <= it.at && it.at <= place.end)
    );
}

#[test]
fn observed_times_split_a_phase() {
    let saw = |from_the_start: bool| {
        move |phase: &Phase| PhaseStats {
            from_the_start,
            guest_asked: true,
            power_cut: Some(at(80)),
            host_awaited: Some(at(95)),
            gpus_awaited: Some(at(7_250)),
            budgets: if matches!(phase, Phase::Draining) {
                ["ml/train".to_owned()].into()
            } else {
                BTreeSet::new()
            },
            ..PhaseStats::default()
        }
    };
    let spans = spans_with(&wait_phases(), 7_300, EpisodeResult::Succeeded, saw(true));
    assert_eq!(named(&spans, "guest shutdown").end, at(80));
    let asked = named(&spans, "guest shutdown");
    assert!(asked.failed.is_some());
    assert_eq!(attribute(asked, "error.type").as_deref(), Some("timeout"));
    let cut = named(&spans, "power off");
    assert_eq!(attribute(cut, "rpc.method").as_deref(), Some("PowerOffVM_Task"));
    let gpus = attribute(named(&spans, "wait gpu allocatable"), "k8s.resource.name").unwrap();
    assert!(gpus.contains("nvidia.com/gpu"), "{gpus}");
    assert_eq!(named(&spans, "power off").end, at(90));
    assert_eq!(named(&spans, "place").end, at(95));
    assert_eq!(named(&spans, "wait host exit").end, at(7_200));
    assert_eq!(named(&spans, "wait gpu allocatable").start, at(7_250));
    let budgets = attribute(named(&spans, "drain"), "k8s.pdb.name").unwrap();
    assert!(budgets.contains("ml/train"), "{budgets}");

    // Seen after a restart, it says nothing of the part before.
    let spans = spans_with(&wait_phases(), 7_300, EpisodeResult::Succeeded, saw(false));
    assert_eq!(named(&spans, "wait host exit").start, at(90));
    assert_eq!(named(&spans, "wait node ready").end, at(7_300));
}

#[test]
fn every_process_builds_the_same_spans() {
    let once = event(&wait_phases(), 7_300, EpisodeResult::Succeeded);
    assert_eq!(once, event(&wait_phases(), 7_300, EpisodeResult::Succeeded));
}

#[test]
fn vcenter_clock_ahead_makes_no_negative_spans() {
    let mut episode = begun_in(Phase::Draining);
    episode.trigger.clicked_at = at(5);
    let record = Record::Episode(Arc::new(episode));
    let transition = |record, ended| Transition {
        record,
        unschedulable: None,
        ended,
        fulfilled: None,
    };
    let begin = transition(record.clone(), None);
    let end = transition(Record::InService, Some(EpisodeResult::Cancelled));
    let mut spans = Vec::new();
    let record = changes(&Record::InService, begin, PhaseStats::default(), 0, &mut spans);
    changes(&record, end, PhaseStats::default(), 2, &mut spans);
    check(&spans);
    assert_eq!(
        attribute(named(&spans, "detect"), "haulout.clock_skew_ms").as_deref(),
        Some("5000")
    );
}

#[test]
fn invalid_traceparent_has_no_spans() {
    let mut episode = begun_in(Phase::Draining);
    episode.traceparent = "mine".into();
    assert!(EpisodeSpans::of(&NodeName::new("gpu1"), &episode).is_none());
}

#[test]
fn incidents_are_events_of_the_root() {
    let mut episode = begun_in(Phase::Draining);
    episode.history.incidents = vec![
        Incident::Restarted { at: at(5) },
        Incident::LeaderChanged {
            at: at(10),
            old: 1,
            new: 2,
        },
    ];
    let root = root_of(&episode, EpisodeResult::Cancelled);
    let events: Vec<(&str, Timestamp)> = root.events.iter().map(|it| (it.name, it.at)).collect();
    assert_eq!(
        events,
        [
            ("controller.restarted", at(5)),
            ("leader.changed", at(10)),
            ("operator.cancelled", at(60))
        ]
    );
    let epochs: Vec<String> = root.events[1]
        .attributes
        .iter()
        .map(|it| it.value.to_string())
        .collect();
    assert_eq!(epochs, ["1", "2"]);
}
