use std::sync::Mutex;

use haulout_core::fixtures::{host_ref, name, vm_ref};
use tokio::time::sleep;

use super::*;
use crate::telemetry::vcenter_events::queue::{PAUSE_MAX, TRIES_MAX, TextKind};

type Answer = dyn Fn(&NodeName, &Entity, usize) -> Option<PostOutcome> + Send + Sync;

/// Answers by a function of the node, the object and the number of the call. `None` is no answer
/// within a minute.
struct FakeLog {
    answer: Box<Answer>,
    calls: Mutex<Vec<String>>,
}

impl LogEvent for &FakeLog {
    async fn log(&self, node: &NodeName, entity: &Entity, text: &str) -> PostOutcome {
        let number = {
            let mut calls = self.calls.lock().unwrap();
            let on = match entity {
                Entity::Root => "root".to_owned(),
                Entity::Datacenter(datacenter) => datacenter.to_string(),
                Entity::Host(host) => host.to_string(),
                Entity::Vm(vm) => vm.to_string(),
            };
            calls.push(format!("{on}: {text}"));
            calls.len()
        };
        if let Some(outcome) = (self.answer)(node, entity, number) {
            return outcome;
        }
        sleep(Duration::from_secs(60)).await;
        PostOutcome::Later("no answer".to_owned())
    }
}

fn fake(
    answer: impl Fn(&NodeName, &Entity, usize) -> Option<PostOutcome> + Send + Sync + 'static,
) -> FakeLog {
    FakeLog {
        answer: Box::new(answer),
        calls: Mutex::default(),
    }
}

fn post(n: usize, kind: TextKind) -> LoggedText {
    LoggedText {
        text: format!("{kind:?}"),
        on: vec![Entity::Host(host_ref(n)), Entity::Vm(vm_ref(n))],
        kind,
        tries: 0,
    }
}

/// Runs for `seconds` while `during` runs. Returns the calls, and how many texts were lost.
async fn run_for(
    log: &FakeLog,
    seconds: u64,
    outbox: &Outbox,
    during: impl Future<Output = ()>,
) -> (Vec<String>, u64) {
    let (lost, stop) = (Counter::default(), CancellationToken::new());
    let ends = async {
        during.await;
        sleep(Duration::from_secs(seconds)).await;
        stop.cancel();
    };
    tokio::join!(run(log, outbox.clone(), lost.clone(), stop.clone()), ends);
    (log.calls.lock().unwrap().drain(..).collect(), lost.get())
}

#[tokio::test(start_paused = true)]
async fn text_is_logged_on_the_host_and_then_on_the_vm() {
    let log = fake(|_, _, _| Some(PostOutcome::Done));
    let outbox = Outbox::default();
    let pushed = async {
        outbox.push(&name(1), post(1, TextKind::Change));
    };
    let (calls, lost) = run_for(&log, 1, &outbox, pushed).await;
    assert_eq!(calls, ["host-1: Change", "vm-1: Change"]);
    assert_eq!(lost, 0);
}

#[tokio::test(start_paused = true)]
async fn object_without_an_answer_does_not_hold_up_other_nodes() {
    let log = fake(|node, _, _| (*node != name(1)).then_some(PostOutcome::Done));
    let outbox = Outbox::default();
    for n in 1..=3 {
        outbox.push(&name(n), post(n, TextKind::Change));
    }
    let (calls, _) = run_for(&log, 1, &outbox, async {}).await;
    for n in 2..=3 {
        assert!(calls.contains(&format!("vm-{n}: Change")), "{calls:?}");
    }
    assert!(!calls.contains(&"vm-1: Change".to_owned()), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn stop_does_not_wait_for_an_answer() {
    let log = fake(|_, _, _| None);
    let outbox = Outbox::default();
    outbox.push(&name(1), post(1, TextKind::End));
    let began = Instant::now();
    run_for(&log, 1, &outbox, async {}).await;
    assert_eq!(began.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn end_is_logged_after_an_outage() {
    let begun = Instant::now();
    let log = fake(move |_, _, _| {
        Some(if begun.elapsed() < Duration::from_secs(15 * 60) {
            PostOutcome::Later("vCenter restarts".to_owned())
        } else {
            PostOutcome::Done
        })
    });
    let outbox = Outbox::default();
    outbox.push(&name(1), post(1, TextKind::End));
    let (calls, lost) = run_for(&log, 17 * 60, &outbox, async {}).await;
    assert_eq!(calls[calls.len() - 2..], ["host-1: End", "vm-1: End"]);
    assert!(calls.len() < 50, "{}", calls.len());
    assert_eq!(lost, 0);
}

#[tokio::test(start_paused = true)]
async fn text_that_is_never_taken_is_counted_as_lost() {
    let log = fake(|_, _, _| Some(PostOutcome::Later("no".to_owned())));
    let outbox = Outbox::default();
    outbox.push(&name(1), post(1, TextKind::End));
    let longest = u64::from(TRIES_MAX) * PAUSE_MAX.as_secs();
    let (calls, lost) = run_for(&log, longest, &outbox, async {}).await;
    assert_eq!(calls.len(), 2 * usize::try_from(TRIES_MAX).unwrap());
    assert_eq!(lost, 1);
}

#[tokio::test(start_paused = true)]
async fn refused_kind_of_object_is_left_out_for_an_hour() {
    let log = fake(|_, entity, _| {
        Some(match entity {
            Entity::Host(_) => PostOutcome::Refused("NoPermission".to_owned()),
            Entity::Root | Entity::Datacenter(_) | Entity::Vm(_) => PostOutcome::Done,
        })
    });
    let outbox = Outbox::default();
    let pushed = async {
        for kind in [TextKind::Change, TextKind::Wait] {
            outbox.push(&name(1), post(1, kind));
            sleep(PAUSE_MAX).await;
        }
        sleep(LEFT_OUT_FOR).await;
        outbox.push(&name(1), post(1, TextKind::End));
    };
    let (calls, lost) = run_for(&log, 10, &outbox, pushed).await;
    assert_eq!(
        calls,
        [
            "host-1: Change",
            "vm-1: Change",
            "vm-1: Wait",
            "host-1: End",
            "vm-1: End"
        ]
    );
    assert_eq!(lost, 0);
}

#[test]
fn refusal_is_logged_once_for_all_kinds() {
    let mut refusals = EventRefusals::default();
    let now = Instant::now();
    let refused = |entity| vec![(entity, "no".to_owned())];
    refusals.note(refused(Entity::Host(host_ref(1))), now);
    assert!(refusals.was_logged);
    assert!(!refusals.allow(&Entity::Host(host_ref(2)), now));
    assert!(refusals.allow(&Entity::Vm(vm_ref(2)), now));
    assert!(refusals.allow(&Entity::Host(host_ref(2)), now + LEFT_OUT_FOR));
}
