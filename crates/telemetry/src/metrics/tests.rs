use haulout_core::maintenance::clock::Now;
use std::sync::Arc;
use std::time::Duration;

use haulout_core::fixtures::{
    self, TRACE, at, beat, drain_report, episode, moment, node, record as of, snapshot,
};

use super::*;
use haulout_core::ids::{EpisodeId, RequestUid, TaskRef};
use haulout_core::maintenance::effect::Effect;
use haulout_core::maintenance::episode::Detection;
use haulout_core::maintenance::observed::{
    Admission, BoundVm, EffectAttempt, EffectRefusal, HostState, NodeSnapshot, PendingEviction,
    PendingReason, RetryAdvice, SlotLimit, SourceState,
};
use haulout_core::maintenance::request::RequestIdentity;
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::statuses;

struct Fixture {
    metrics: Arc<Metrics>,
    name: NodeName,
}

impl Fixture {
    fn new() -> Self {
        Self {
            metrics: Arc::new(Metrics::default()),
            name: NodeName::new("gpu1"),
        }
    }

    fn recorded(&self, before: &Record, after: Record, ended: Option<EpisodeResult>, when: i64) {
        let transition = Transition {
            record: after,
            unschedulable: None,
            ended,
            fulfilled: None,
        };
        let event = NodeEvent::Recorded {
            node: Some(&node()),
            vm: &BoundVm::NotLookedUp,
            before,
            transition: &transition,
            wrote: (at(when), at(when)),
        };
        self.metrics.observe(&self.name, &beat(event, at(when)));
    }

    fn waits(&self, record: &Record, on: &WaitingOn) {
        let event = NodeEvent::Waits {
            node: Some(&node()),
            vm: &BoundVm::NotLookedUp,
            record,
            on,
        };
        self.metrics.observe(&self.name, &beat(event, at(0)));
    }

    /// Shows the snapshots of gpu1, gpu2 and so on.
    fn shows(&self, snapshots: impl IntoIterator<Item = NodeSnapshot>) {
        let named = |(snapshot, number)| (NodeName::new(format!("gpu{number}")), snapshot);
        let snapshots = snapshots.into_iter().zip(1..).map(named);
        self.metrics
            .update_statuses(&Arc::new(statuses(&fixtures::snapshots(snapshots))));
    }

    fn tried_power_off(&self, outcome: AttemptOutcome) {
        self.metrics.effect_reported(&EffectReport {
            node: self.name.clone(),
            found: EffectResult::Tried {
                kind: EffectKind::PowerOff,
                at: Now::at(at(9), 9),
                host: None,
                outcome,
            },
        });
    }

    fn open(&self) -> String {
        self.metrics.write(Text::OpenMetrics).unwrap()
    }

    /// Each sample is written as stated.
    #[track_caller]
    fn assert_lines(&self, samples: &[&str]) {
        let text = self.open();
        for sample in samples {
            let is_there = text
                .lines()
                .any(|line| line == *sample || line.starts_with(&format!("{sample} # {{")));
            assert!(is_there, "{sample} is not in:\n{text}");
        }
    }

    #[track_caller]
    fn assert_no_sample(&self, what: &str) {
        let text = self.open();
        let samples: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#') && line.contains(what))
            .collect();
        assert!(samples.is_empty(), "{samples:#?}");
    }
}

#[test]
fn an_episode_is_counted_from_its_click_to_its_end_with_its_trace() {
    let fixture = Fixture::new();
    let draining = of(episode(Phase::Draining, 1));
    let waiting = of(Episode {
        powered_off: true,
        ..episode(Phase::AwaitingHost, 31)
    });
    fixture.recorded(&Record::InService, draining.clone(), None, 1);
    fixture.recorded(&draining, waiting.clone(), None, 31);
    fixture.recorded(&waiting, Record::InService, Some(EpisodeResult::Succeeded), 3631);
    let bucket = fixture
        .open()
        .lines()
        .find(|line| {
            line.starts_with("haulout_episode_duration_seconds_bucket{le=\"7200.0\",result=\"success\"")
        })
        .map(str::to_owned);
    assert_eq!(
        bucket.unwrap(),
        format!(
            "haulout_episode_duration_seconds_bucket{{le=\"7200.0\",result=\"success\"}} 1 # {{trace_id=\"{TRACE}\"}} 3630.0"
        )
    );
    fixture.assert_lines(&[
        "haulout_episodes_started_total{trigger=\"task\"} 1",
        "haulout_episodes_finished_total{result=\"success\",placement=\"returned\"} 1",
        "haulout_episodes_finished_total{result=\"cancelled\",placement=\"none\"} 0",
        "haulout_detection_latency_seconds_sum{source=\"property_collector\"} 1.0",
        "haulout_phase_duration_seconds_sum{phase=\"Draining\",result=\"success\"} 30.0",
        "haulout_phase_duration_seconds_sum{phase=\"AwaitingHost\",result=\"success\"} 3600.0",
        "haulout_episode_duration_seconds_sum{result=\"success\"} 3630.0",
        "haulout_queue_wait_seconds_sum 0.0",
        "haulout_queue_wait_seconds_count 1",
        "haulout_decisions_total{decision=\"record\"} 3",
    ]);
}

#[test]
fn phase_and_episode_results_are_labelled() {
    let fixture = Fixture::new();
    let draining = of(episode(Phase::Draining, 1));
    let parked = |reason| {
        of(episode(
            Phase::Parked {
                reason,
                resume: Box::new(Phase::Draining),
                resume_since: at(1),
            },
            5,
        ))
    };
    let late = ParkReason::Overdue {
        phase: "Draining".to_owned(),
        waiting_on: String::new(),
    };
    let timed_out = of(episode(Phase::ShuttingDown(DrainEnd::TimedOut), 5));
    fixture.recorded(&draining, timed_out, None, 5);
    fixture.recorded(&draining, parked(late), None, 5);
    fixture.recorded(&draining, parked(ParkReason::VmSuspended), None, 5);
    fixture.recorded(&draining, Record::InService, Some(EpisodeResult::Cancelled), 5);
    fixture.assert_lines(&[
        "haulout_phase_duration_seconds_count{phase=\"Draining\",result=\"timeout\"} 2",
        "haulout_phase_duration_seconds_count{phase=\"Draining\",result=\"failed\"} 1",
        "haulout_phase_duration_seconds_count{phase=\"Draining\",result=\"cancelled\"} 1",
    ]);
    let text = fixture.open();
    let results: std::collections::BTreeSet<&str> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("haulout_episodes_finished_total{result=\"")?
                .split('"')
                .next()
        })
        .collect();
    assert_eq!(
        results.into_iter().collect::<Vec<_>>(),
        ["cancelled", "failed", "success"]
    );
}

fn second_in_queue() -> NodeSnapshot {
    let mut queued = snapshot(of(episode(Phase::Queued, 1)), HostState::InMaintenance);
    queued.observed.admission = Admission::Queued {
        ahead: vec![NodeName::new("gpu-7"), NodeName::new("gpu-8")],
        position: 2,
        limit: SlotLimit::UnavailableGpus(8),
    };
    queued
}

#[test]
fn queue_wait_is_observed_when_it_ends() {
    let fixture = Fixture::new();
    let queued = of(episode(Phase::Queued, 1));
    fixture.recorded(&Record::InService, queued.clone(), None, 1);
    fixture.assert_lines(&["haulout_queue_wait_seconds_count 0"]);
    fixture.shows([snapshot(queued.clone(), HostState::InMaintenance)]);
    fixture.assert_lines(&[
        "haulout_queue_depth 1.0",
        "haulout_episodes_active{phase=\"Queued\"} 1.0",
    ]);
    fixture.shows([second_in_queue()]);
    fixture.assert_lines(&["haulout_queue_position{node=\"gpu1\",limit=\"MAX_UNAVAILABLE_GPUS\"} 2.0"]);
    fixture.recorded(&queued, of(episode(Phase::Draining, 61)), None, 61);
    fixture.assert_lines(&[
        "haulout_queue_wait_seconds_sum 60.0",
        "haulout_queue_wait_seconds_count 1",
    ]);
}

#[test]
fn detection_before_startup_has_its_own_source() {
    let fixture = Fixture::new();
    let mut late = episode(Phase::Draining, 1);
    late.trigger.clicked_at = at(-600);
    late.trigger.detection = Some(Detection::AtStartup);
    fixture.recorded(&Record::InService, of(late), None, 1);
    fixture.assert_lines(&["haulout_detection_latency_seconds_sum{source=\"startup\"} 601.0"]);
    fixture.assert_lines(&["haulout_detection_latency_seconds_count{source=\"property_collector\"} 0"]);
}

#[test]
fn detection_by_reread_has_its_own_source() {
    let fixture = Fixture::new();
    let mut polled = episode(Phase::Draining, 1);
    polled.trigger.detection = Some(Detection::Polled);
    fixture.recorded(&Record::InService, of(polled), None, 1);
    fixture.assert_lines(&["haulout_detection_latency_seconds_count{source=\"poll\"} 1"]);
    fixture.assert_lines(&["haulout_detection_latency_seconds_count{source=\"property_collector\"} 0"]);
    fixture.recorded(&Record::InService, of(episode(Phase::Draining, 1)), None, 1);
    fixture.assert_lines(&[
        "haulout_detection_latency_seconds_count{source=\"poll\"} 1",
        "haulout_detection_latency_seconds_count{source=\"property_collector\"} 1",
    ]);
}

#[test]
fn clocks_that_differ_give_no_time_below_zero() {
    let fixture = Fixture::new();
    let mut ahead = episode(Phase::Draining, 1);
    ahead.trigger.clicked_at = at(5);
    fixture.recorded(&Record::InService, of(ahead), None, 1);
    fixture.assert_lines(&["haulout_detection_latency_seconds_sum{source=\"property_collector\"} 0.0"]);
}

#[test]
fn forced_poweroff_is_counted_once_with_its_reason() {
    let fixture = Fixture::new();
    let record = of(episode(Phase::Draining, 1));
    let mut toolless = snapshot(record.clone(), HostState::InMaintenance);
    let refusal = EffectRefusal {
        advice: RetryAdvice::NoTools,
        message: "ToolsUnavailable".to_owned(),
    };
    toolless.observed.attempts.insert(
        EffectKind::ShutdownGuest,
        EffectAttempt {
            at: Now::at(at(2), 2),
            host: None,
            task: None,
            refusals: 1,
            refused_since: Now::at(at(2), 2),
            tries: 1,
            outcome: AttemptOutcome::Refused(refusal.clone()),
        },
    );
    fixture.shows([toolless]);
    fixture.tried_power_off(AttemptOutcome::Refused(refusal));
    fixture.tried_power_off(AttemptOutcome::Done);
    fixture.assert_lines(&["haulout_forced_poweroffs_total{reason=\"no_tools\"} 0"]);
    let running = AttemptOutcome::Running(TaskRef::new("task-9"));
    fixture.tried_power_off(running.clone());
    fixture.tried_power_off(running);
    fixture.assert_lines(&[
        "haulout_forced_poweroffs_total{reason=\"no_tools\"} 1",
        "haulout_forced_poweroffs_total{reason=\"guest_deadline\"} 0",
    ]);
}

#[test]
fn wait_is_shown_until_it_ends() {
    let fixture = Fixture::new();
    let idle = || snapshot(Record::InService, HostState::InService);
    let mut disconnected = idle();
    disconnected.observed.sources = SourceState::NoVcenter { why: String::new() };
    fixture.shows([disconnected]);
    fixture.waits(&Record::InService, &WaitingOn::Vcenter { why: String::new() });
    fixture.assert_lines(&["haulout_waiting_on{node=\"gpu1\",kind=\"vcenter\"} 1.0"]);
    fixture.shows([idle()]);
    fixture.assert_no_sample("haulout_waiting_on");

    let draining = of(episode(Phase::Draining, 1));
    fixture.shows([snapshot(draining.clone(), HostState::InMaintenance)]);
    fixture.waits(&draining, &WaitingOn::DrainRound);
    fixture.waits(&draining, &WaitingOn::PowerState);
    fixture.assert_lines(&["haulout_waiting_on{node=\"gpu1\",kind=\"power-state\"} 1.0"]);
    fixture.assert_no_sample("drain-round");
    fixture.recorded(&draining, of(episode(Phase::AwaitingHost, 9)), None, 9);
    fixture.assert_no_sample("haulout_waiting_on");
}

#[test]
fn node_that_is_no_vm_has_no_series_that_an_alert_reads() {
    let fixture = Fixture::new();
    let mut physical = snapshot(Record::InService, HostState::InService);
    physical.observed.vm = BoundVm::NotLookedUp;
    fixture.shows([physical.clone()]);
    fixture.waits(&Record::InService, &WaitingOn::VmLookup);
    physical.observed.vm = BoundVm::NoVm;
    fixture.shows([physical.clone()]);
    fixture.assert_no_sample("haulout_waiting_on");
    fixture.assert_no_sample("haulout_node_maintainable");
    fixture.assert_lines(&["haulout_node_phase{node=\"gpu1\",phase=\"InService\"} 1.0"]);

    physical.observed.vm = BoundVm::Missing { was_known: false };
    fixture.shows([physical]);
    let missing = WaitingOn::Parked(ParkReason::VmMissing);
    fixture.waits(&Record::InService, &missing);
    fixture.assert_lines(&[
        "haulout_waiting_on{node=\"gpu1\",kind=\"parked\"} 1.0",
        "haulout_node_maintainable{node=\"gpu1\",reason=\"vm-not-found\"} 0.0",
    ]);
}

#[test]
fn draining_node_has_series_until_it_is_removed() {
    let fixture = Fixture::new();
    let mut draining = snapshot(of(episode(Phase::Draining, 7)), HostState::InMaintenance);
    let left = |why| PendingEviction {
        name: "ml/secretive-pod".to_owned(),
        why,
    };
    draining.observed.drain = Some(drain_report(
        moment(8).monotonic,
        vec![
            left(PendingReason::Budget {
                names: Vec::new(),
                message: String::new(),
            }),
            left(PendingReason::Leaving),
            left(PendingReason::Leaving),
            left(PendingReason::NotReached),
        ],
    ));
    fixture.shows([draining]);
    fixture.waits(&Record::InService, &WaitingOn::DrainRound);
    fixture.assert_lines(&[
        "haulout_node_maintainable{node=\"gpu1\",reason=\"none\"} 1.0",
        "haulout_node_phase{node=\"gpu1\",phase=\"Draining\"} 1.0",
        "haulout_node_phase{node=\"gpu1\",phase=\"InService\"} 0.0",
        "haulout_node_phase_start_timestamp_seconds{node=\"gpu1\"} 1795000007.0",
        "haulout_drain_pods_pending{node=\"gpu1\",reason=\"pdb\"} 1.0",
        "haulout_drain_pods_pending{node=\"gpu1\",reason=\"terminating\"} 2.0",
        "haulout_drain_pods_pending{node=\"gpu1\",reason=\"other\"} 1.0",
        "haulout_host_maintenance_state{host=\"esx1\",state=\"in\"} 1.0",
        "haulout_node_host_info{node=\"gpu1\",host=\"esx1\"} 1.0",
        "haulout_host_maintenance_state{host=\"esx1\",state=\"normal\"} 0.0",
    ]);
    fixture.assert_no_sample("secretive-pod");
    fixture.shows([]);
    fixture.assert_no_sample("gpu1");
    fixture.assert_no_sample("esx1");
}

/// Something of everything, so that no metric is left out for want of a sample.
fn everything() -> Fixture {
    let fixture = Fixture::new();
    let draining = of(episode(Phase::Draining, 1));
    fixture.recorded(&Record::InService, draining.clone(), None, 1);
    fixture.recorded(&draining, Record::InService, Some(EpisodeResult::Cancelled), 5);
    let mut shown = snapshot(draining.clone(), HostState::InService);
    shown.observed.drain = Some(drain_report(moment(2).monotonic, Vec::new()));
    fixture.shows([shown, second_in_queue()]);
    fixture.waits(&draining, &WaitingOn::DrainRound);
    let effect = Effect::Survey { hosts: Vec::new() };
    let asks = NodeEvent::Asks {
        record: &draining,
        effect: &effect,
    };
    fixture.metrics.observe(&fixture.name, &beat(asks, at(0)));
    fixture.metrics.evictions(429, 2);
    fixture
        .metrics
        .reconciled(ReconcileOutcome::Acted, Duration::from_millis(300));
    fixture
        .metrics
        .vcenter_called("Login", "ok", Duration::from_millis(30));
    fixture.metrics.set_vcenter_name("vc.example.com");
    fixture.metrics.set_vcenter_reachable(true);
    fixture.metrics.vcenter_answered(at(3));
    fixture
        .metrics
        .show_free_gpu_hosts(BTreeMap::from([("c1".to_owned(), 2)]));
    fixture.metrics.leads("haulout", true);
    fixture
}

#[test]
fn every_metric_is_written_under_its_name_with_its_type_and_its_labels() {
    let fixture = everything();
    let to_prometheus = fixture.metrics.write(Text::Prometheus).unwrap();
    let mut typed: Vec<(String, String)> = to_prometheus
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    let mut listed: Vec<(String, String)> = ALL
        .iter()
        .map(|metric| (metric.name(), metric.kind.to_string()))
        .collect();
    typed.sort();
    listed.sort();
    assert_eq!(typed, listed);
    for metric in ALL {
        let name = metric.name();
        let name = match metric.kind {
            MetricKind::Histogram => format!("{name}_count"),
            MetricKind::Counter | MetricKind::Gauge => name,
        };
        let sample = to_prometheus
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} ")))
            .unwrap_or_else(|| panic!("no sample of {name} in:\n{to_prometheus}"));
        let labels: Vec<&str> = match sample.split_once('{') {
            Some((_, labels)) => labels
                .split(',')
                .map(|label| label.split('=').next().unwrap())
                .collect(),
            None => Vec::new(),
        };
        assert_eq!(labels, metric.labels, "{sample}");
    }
}

#[test]
fn prometheus_text_has_full_names_and_no_exemplars() {
    let fixture = everything();
    assert!(fixture.open().ends_with("# EOF\n"));
    assert!(fixture.open().contains(" # {trace_id="));
    let to_prometheus = fixture.metrics.write(Text::Prometheus).unwrap();
    for absent in ["# EOF", "# UNIT", "trace_id"] {
        assert!(!to_prometheus.contains(absent), "{absent} in:\n{to_prometheus}");
    }
    for line in [
        "# HELP haulout_vcenter_session_up 1 while the vCenter update stream is connected; a standby has none.",
        "# TYPE haulout_episodes_started_total counter",
        "haulout_eviction_requests_total{code=\"429\"} 2",
    ] {
        assert!(
            to_prometheus.lines().any(|it| it == line),
            "{line} is not in:\n{to_prometheus}"
        );
    }
}

#[test]
fn reconcile_is_counted_and_timed_by_outcome() {
    let fixture = Fixture::new();
    fixture.assert_lines(&["haulout_reconcile_total{result=\"recorded\"} 0"]);
    fixture
        .metrics
        .reconciled(ReconcileOutcome::Recorded, Duration::from_millis(20));
    fixture
        .metrics
        .reconciled(ReconcileOutcome::Outdated, Duration::from_millis(5));
    fixture.assert_lines(&[
        "haulout_reconcile_total{result=\"recorded\"} 1",
        "haulout_reconcile_total{result=\"outdated\"} 1",
        "haulout_reconcile_total{result=\"refused\"} 0",
        "haulout_reconcile_duration_seconds_sum{result=\"recorded\"} 0.02",
    ]);
}

#[test]
fn accept_header_selects_openmetrics() {
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
    assert_eq!(Text::accepted(Some(prometheus)), Text::OpenMetrics);
    assert_eq!(Text::accepted(Some("*/*")), Text::Prometheus);
    assert_eq!(Text::accepted(None), Text::Prometheus);
}

#[test]
fn every_phase_is_shown() {
    let host = haulout_core::maintenance::episode::HostIdentity {
        moref: None,
        name: "esx2".into(),
    };
    let mut phases = vec![Phase::Queued];
    // The next phase; a new phase must be added here.
    let next = |phase: &Phase| match phase {
        Phase::Queued => Some(Phase::Draining),
        Phase::Draining => Some(Phase::Drained),
        Phase::Drained => Some(Phase::ShuttingDown(DrainEnd::Complete)),
        Phase::ShuttingDown(_) => Some(Phase::Relocating { to: host.clone() }),
        Phase::Relocating { .. } => Some(Phase::AwaitingHost),
        Phase::AwaitingHost => Some(Phase::PoweringOn { by_drs: false }),
        Phase::PoweringOn { .. } => Some(Phase::Rejoining),
        Phase::Rejoining => Some(Phase::Parked {
            reason: ParkReason::VmSuspended,
            resume: Box::new(Phase::Rejoining),
            resume_since: at(1),
        }),
        Phase::Parked { .. } => None,
    };
    while let Some(phase) = phases.last().and_then(next) {
        phases.push(phase);
    }
    for phase in phases {
        let name = phase.name();
        let fixture = Fixture::new();
        fixture.shows([snapshot(of(episode(phase, 1)), HostState::InService)]);
        fixture.assert_lines(&[
            &format!("haulout_node_phase{{node=\"gpu1\",phase=\"{name}\"}} 1.0"),
            &format!("haulout_episodes_active{{phase=\"{name}\"}} 1.0"),
        ]);
    }
}

#[test]
fn pods_left_by_a_timed_out_drain_are_counted_once() {
    let fixture = Fixture::new();
    fixture.assert_lines(&["haulout_drain_pods_left_behind_total 0"]);
    let draining = of(episode(Phase::Draining, 1));
    let timed_out = |phase, since| {
        of(Episode {
            left_behind: vec!["ml/a".to_owned(), "ml/b".to_owned()],
            ..episode(phase, since)
        })
    };
    let end = || Phase::ShuttingDown(DrainEnd::TimedOut);
    let shutting_down = timed_out(end(), 5);
    fixture.recorded(&draining, shutting_down.clone(), None, 5);
    fixture.assert_lines(&["haulout_drain_pods_left_behind_total 2"]);
    let parked = Phase::Parked {
        reason: ParkReason::VmSuspended,
        resume: Box::new(end()),
        resume_since: at(5),
    };
    let parked = timed_out(parked, 9);
    fixture.recorded(&shutting_down, parked.clone(), None, 9);
    fixture.recorded(&parked, timed_out(end(), 12), None, 12);
    fixture.recorded(
        &draining,
        of(episode(Phase::ShuttingDown(DrainEnd::Complete), 5)),
        None,
        5,
    );
    fixture.assert_lines(&["haulout_drain_pods_left_behind_total 2"]);
}

#[test]
fn episodes_are_counted_by_what_set_them_off() {
    let fixture = Fixture::new();
    let with = |task, request, late_power_off_of| {
        let mut begun = episode(Phase::Draining, 1);
        begun.trigger.task = task;
        begun.trigger.request = request;
        begun.trigger.late_power_off_of = late_power_off_of;
        begun
    };
    let request = RequestIdentity {
        name: "drain-1".to_owned(),
        uid: RequestUid::new("uid-2"),
        foreign: None,
    };
    let mut adopted = with(None, None, None);
    adopted.history.origin.adopted = true;
    let begun = [
        (TriggerKind::Task, with(Some(TaskRef::new("task-1")), None, None)),
        (TriggerKind::Request, with(None, Some(request), None)),
        (TriggerKind::Stray, with(None, None, Some(EpisodeId::new("0")))),
        (TriggerKind::HostState, with(None, None, None)),
        (TriggerKind::Adopted, adopted),
    ];
    assert_eq!(begun.len(), TriggerKind::ALL.len());
    for (trigger, episode) in begun {
        let series = format!("haulout_episodes_started_total{{trigger=\"{trigger}\"}}");
        fixture.assert_lines(&[&format!("{series} 0")]);
        fixture.recorded(&Record::InService, of(episode), None, 1);
        fixture.assert_lines(&[&format!("{series} 1")]);
    }
}

#[test]
fn skipped_node_in_service_shows_its_wait() {
    let fixture = Fixture::new();
    let mut skipped = snapshot(Record::InService, HostState::InMaintenance);
    let mut marks = node();
    marks.overrides.skip = true;
    skipped.observed.node = Some(marks);
    fixture.shows([skipped.clone()]);
    fixture.waits(&Record::InService, &WaitingOn::Skip);
    fixture.assert_lines(&["haulout_waiting_on{node=\"gpu1\",kind=\"skip\"} 1.0"]);
    skipped.observed.node = Some(node());
    fixture.shows([skipped]);
    fixture.assert_no_sample("haulout_waiting_on");
}

#[test]
fn checkpoint_keeps_the_wait() {
    let fixture = Fixture::new();
    let before = of(episode(Phase::Draining, 1));
    fixture.shows([snapshot(before.clone(), HostState::InMaintenance)]);
    fixture.waits(&before, &WaitingOn::DrainHeld { left: Vec::new() });
    let aged = episode(Phase::Draining, 1).aged(Duration::from_secs(20));
    fixture.recorded(&before, of(aged), None, 21);
    fixture.assert_lines(&["haulout_waiting_on{node=\"gpu1\",kind=\"drain-held\"} 1.0"]);
}
