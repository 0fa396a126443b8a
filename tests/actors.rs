//! Actors and their supervisor, with a paused clock and an executor that records its calls.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use haulout::controller::node::ActorContext;
use haulout::controller::observer::{Observer, Observers};
use haulout::controller::run_effect::{NotRecorded, Recorded, RunEffect, TRACEPARENT};
use haulout::controller::supervisor::Supervisor;
use haulout::ids::{NodeName, TaskRef};
use haulout::maintenance::clock::Now;
use haulout::maintenance::decide::Transition;
use haulout::maintenance::effect::{Effect, EffectKind};
use haulout::maintenance::episode::{DrainEnd, Episode, Phase, Record};
use haulout::maintenance::observed::{
    AttemptOutcome, EffectAttempt, HostState, NodeSnapshot, Observed, ObservedNode, PowerState, Snapshots,
};
use haulout::maintenance::policy::DrainTimeoutAction;
use haulout::maintenance::record::LastEpisode;
use haulout::status::node_event::NodeEvent;
use haulout::status::story::Beat;
use haulout_core::fixtures::{
    drain_report, entering, episode, moment, node, observed, policy, record, snapshots, vm,
};
use tokio_util::sync::CancellationToken;

/// The calls of the executor, in order.
type Asked = Arc<Mutex<Vec<String>>>;

/// The record of the last write.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Option<Record>>>);

impl Written {
    fn last(&self) -> Record {
        self.0.lock().unwrap().clone().unwrap()
    }
}

struct RecordingExecutor {
    asked: Asked,
    written: Written,
    /// The node whose effects panic.
    bad: Option<&'static str>,
    /// The error of every write, if writes are refused.
    refuses: Option<NotRecorded>,
}

impl RunEffect for RecordingExecutor {
    async fn record(
        &self,
        name: &NodeName,
        seen: &Observed,
        _before: &Record,
        transition: &Transition,
        _now: Now,
    ) -> Result<Recorded, NotRecorded> {
        self.asked
            .lock()
            .unwrap()
            .push(format!("{name} writes {}", transition.record.phase_name()));
        *self.written.0.lock().unwrap() = Some(transition.record.clone());
        if let Some(refusal) = &self.refuses {
            return Err(refusal.clone());
        }
        Ok(Recorded::OnNode {
            resource_version: seen.node.as_ref().unwrap().resource_version + 1,
        })
    }

    async fn perform(&self, name: &NodeName, _record: &Record, effect: &Effect, _now: Now) {
        assert!(
            TRACEPARENT.with(Option::is_some),
            "an effect carries the trace of its episode"
        );
        self.asked
            .lock()
            .unwrap()
            .push(format!("{name} does {:?}", effect.kind()));
        assert!(self.bad != Some(name.as_str()), "a bug");
    }
}

fn supervisor(bad: Option<&'static str>) -> (Supervisor<RecordingExecutor>, Asked) {
    supervisor_with(bad, None)
}

fn supervisor_with(
    bad: Option<&'static str>,
    refuses: Option<NotRecorded>,
) -> (Supervisor<RecordingExecutor>, Asked) {
    let asked = Asked::default();
    let perform = RecordingExecutor {
        asked: asked.clone(),
        written: Written::default(),
        bad,
        refuses,
    };
    (of_executor(perform, Observers::default()), asked)
}

fn of_executor(perform: RecordingExecutor, observers: Observers) -> Supervisor<RecordingExecutor> {
    let shared = ActorContext {
        executor: perform,
        observers,
        policy: policy(DrainTimeoutAction::PowerOff),
        clock: || moment(2),
    };
    Supervisor::new(shared, &CancellationToken::new())
}

fn snapshot(record: Record, seen: Observed) -> NodeSnapshot {
    NodeSnapshot {
        record,
        observed: seen,
    }
}

/// A node whose host is entering.
fn leaving() -> NodeSnapshot {
    snapshot(
        Record::InService,
        observed(node(), vm(Some(PowerState::On), entering())),
    )
}

fn cordoned() -> ObservedNode {
    ObservedNode {
        unschedulable: true,
        ..node()
    }
}

/// A node that is drained and about to be shut down.
fn shutting_down() -> NodeSnapshot {
    let phase = Phase::ShuttingDown(DrainEnd::Complete);
    let record = record(episode(phase, 0));
    let mut seen = observed(cordoned(), vm(Some(PowerState::On), entering()));
    seen.drain = Some(drain_report(moment(2).monotonic, Vec::new()));
    snapshot(record, seen)
}

fn named(of: impl IntoIterator<Item = (&'static str, NodeSnapshot)>) -> Snapshots {
    let named = of
        .into_iter()
        .map(|(name, snapshot)| (NodeName::new(name), snapshot));
    snapshots(named)
}

/// A node whose VM is about to be powered on.
fn powering_on() -> NodeSnapshot {
    let phase = Phase::PoweringOn { by_drs: false };
    let record = record(Episode {
        powered_off: true,
        ..episode(phase, 0)
    });
    snapshot(
        record,
        observed(cordoned(), vm(Some(PowerState::Off), HostState::InService)),
    )
}

/// Runs all tasks until they wait for time, and then advances the time.
async fn pass(supervisor: &mut Supervisor<RecordingExecutor>, time: Duration) {
    let end = tokio::time::Instant::now() + time;
    loop {
        tokio::select! {
            biased;
            () = supervisor.reap() => {}
            () = tokio::time::sleep_until(end) => return,
        }
    }
}

fn drain(asked: &Asked) -> Vec<String> {
    std::mem::take(&mut asked.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn maintenance_is_written_at_once_and_once() {
    let (mut supervisor, asked) = supervisor(None);
    supervisor.update_snapshots(named([("gpu-1", leaving())]));
    pass(&mut supervisor, Duration::from_millis(10)).await;
    assert_eq!(drain(&asked), ["gpu-1 writes Draining"]);
    // A late snapshot from before the write is not decided on.
    let mut late = leaving();
    late.observed.pods_revision = 7;
    supervisor.update_snapshots(named([("gpu-1", late)]));
    pass(&mut supervisor, Duration::from_secs(1)).await;
    assert_eq!(drain(&asked), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn effect_is_not_repeated_while_it_runs_or_before_its_result() {
    let (mut supervisor, asked) = supervisor(None);
    supervisor.update_snapshots(named([("gpu-1", powering_on())]));
    pass(&mut supervisor, Duration::from_secs(1)).await;
    assert_eq!(drain(&asked), ["gpu-1 does PowerOn"]);
    let mut seen = powering_on();
    let attempt = EffectAttempt {
        at: moment(2),
        host: None,
        task: None,
        refusals: 0,
        refused_since: moment(2),
        tries: 1,
        outcome: AttemptOutcome::Running(TaskRef::new("task-2")),
    };
    seen.observed.attempts.insert(EffectKind::PowerOn, attempt);
    supervisor.update_snapshots(named([("gpu-1", seen)]));
    pass(&mut supervisor, Duration::from_secs(60)).await;
    assert_eq!(drain(&asked), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn actor_that_panics_is_restarted_and_affects_no_other() {
    let (mut supervisor, asked) = supervisor(Some("bad"));
    supervisor.update_snapshots(named([("bad", shutting_down()), ("good", leaving())]));
    pass(&mut supervisor, Duration::from_millis(2500)).await;
    let asked = drain(&asked);
    let count = |words: &str| asked.iter().filter(|it| *it == words).count();
    assert_eq!(count("good writes Draining"), 1);
    // At the start, and one second after each panic.
    assert_eq!(count("bad does ShutdownGuest"), 3, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn actor_of_a_node_that_is_gone_ends() {
    let (mut supervisor, asked) = supervisor(None);
    supervisor.update_snapshots(named([("gpu-1", leaving())]));
    pass(&mut supervisor, Duration::from_millis(10)).await;
    supervisor.update_snapshots(named([]));
    pass(&mut supervisor, Duration::from_secs(60)).await;
    assert_eq!(drain(&asked), ["gpu-1 writes Draining"]);
}

#[tokio::test(start_paused = true)]
async fn idle_actor_does_nothing_for_hours() {
    let (mut supervisor, asked) = supervisor(None);
    let resting = snapshot(
        Record::InService,
        observed(node(), vm(Some(PowerState::On), HostState::InService)),
    );
    supervisor.update_snapshots(named([("gpu-1", resting)]));
    pass(&mut supervisor, Duration::from_secs(10 * 3600)).await;
    assert_eq!(drain(&asked), [""; 0]);
}

/// The seconds of the attempts to write a maintenance when every write has this error.
async fn tries(refusal: NotRecorded) -> Vec<u64> {
    let (mut supervisor, asked) = supervisor_with(None, Some(refusal));
    supervisor.update_snapshots(named([("gpu-1", leaving())]));
    let mut seconds = Vec::new();
    for second in 0..100 {
        // The middle of a second, so that an attempt at its start is counted in it.
        let until = if second == 0 { 500 } else { 1000 };
        pass(&mut supervisor, Duration::from_millis(until)).await;
        seconds.extend(drain(&asked).iter().map(|_| second));
    }
    seconds
}

#[tokio::test(start_paused = true)]
async fn refused_write_is_retried_after_growing_pauses() {
    let forbidden = NotRecorded::Refused("403".to_owned());
    assert_eq!(tries(forbidden).await, [0, 1, 3, 7, 15, 31, 61, 91]);
}

#[tokio::test(start_paused = true)]
async fn conflict_is_retried_at_once_and_then_after_growing_pauses() {
    assert_eq!(
        tries(NotRecorded::Outdated).await,
        [0, 0, 1, 3, 7, 15, 31, 61, 91]
    );
}

/// What was told of transitions.
#[derive(Debug, Default)]
struct ToldTransitions(Mutex<Vec<&'static str>>);

impl ToldTransitions {
    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for ToldTransitions {
    fn observe(&self, _node: &NodeName, beat: &Beat<'_>) {
        if let NodeEvent::Recorded { transition, .. } = beat.event {
            self.0.lock().unwrap().push(transition.record.phase_name());
        }
    }
}

/// A supervisor whose writes get no answer. Returns the last one, and what is told.
fn without_answers() -> (Supervisor<RecordingExecutor>, Written, Arc<ToldTransitions>) {
    let told = Arc::new(ToldTransitions::default());
    let observers = Observers::from_iter([Arc::clone(&told) as Arc<dyn Observer>]);
    let perform = RecordingExecutor {
        asked: Asked::default(),
        written: Written::default(),
        bad: None,
        refuses: Some(NotRecorded::Refused("no answer".to_owned())),
    };
    let written = perform.written.clone();
    (of_executor(perform, observers), written, told)
}

#[tokio::test(start_paused = true)]
async fn begin_whose_answer_was_lost_is_told_once_when_the_node_shows_it() {
    let (mut supervisor, written, told) = without_answers();
    let mut seen = leaving();
    supervisor.update_snapshots(named([("gpu-1", seen.clone())]));
    pass(&mut supervisor, Duration::from_secs(10)).await;
    assert_eq!(told.take(), [""; 0], "nothing shows it");
    seen.record = written.last();
    for expected in [vec!["Draining"], vec![]] {
        seen.observed.pods_revision += 1;
        supervisor.update_snapshots(named([("gpu-1", seen.clone())]));
        pass(&mut supervisor, Duration::from_secs(10)).await;
        assert_eq!(told.take(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn end_whose_answer_was_lost_is_told_and_no_record_that_a_person_removed() {
    let draining = record(episode(Phase::Draining, 0));
    let at_rest = || observed(cordoned(), vm(Some(PowerState::On), HostState::InService));
    for has_ended in [true, false] {
        let (mut supervisor, written, told) = without_answers();
        supervisor.update_snapshots(named([("gpu-1", snapshot(draining.clone(), at_rest()))]));
        pass(&mut supervisor, Duration::from_secs(10)).await;
        assert_eq!(written.last(), Record::InService);
        let mut after = snapshot(Record::InService, at_rest());
        let last = LastEpisode::of(&draining, &Record::InService, None, moment(2).wall);
        after.observed.node.as_mut().unwrap().last_episode = last.filter(|_| has_ended).map(Arc::new);
        supervisor.update_snapshots(named([("gpu-1", after)]));
        pass(&mut supervisor, Duration::from_secs(10)).await;
        let expected: &[&str] = if has_ended { &["InService"] } else { &[] };
        assert_eq!(told.take(), expected);
    }
}
