use std::sync::Mutex as StdMutex;

use haulout_core::fixtures::{host_ref, name, vm_ref};
use tokio::time::sleep;

use super::*;

type Answer = dyn Fn(&Entity, &str) -> Option<PostOutcome> + Send + Sync;

/// Answers by a function of the object and the value; `None` is no answer within a minute. Before, it has these values.
struct FakePort {
    answer: Box<Answer>,
    has: Vec<(Entity, String)>,
    calls: StdMutex<Vec<(Entity, String)>>,
    readings: StdMutex<u32>,
}

impl SetAttribute for &FakePort {
    async fn set(&self, entity: &Entity, value: &str) -> PostOutcome {
        let call = (entity.clone(), value.to_owned());
        self.calls.lock().unwrap().push(call);
        match (self.answer)(entity, value) {
            Some(outcome) => outcome,
            None => {
                sleep(Duration::from_secs(60)).await;
                PostOutcome::Later("no answer".to_owned())
            }
        }
    }

    async fn values(&self, entities: &[Entity]) -> Result<Vec<(Entity, String)>, PostOutcome> {
        let mut readings = self.readings.lock().unwrap();
        *readings += 1;
        if *readings == 1 {
            return Err(PostOutcome::Later("no session".to_owned()));
        }
        let mut has = self.has.clone();
        has.retain(|(entity, _)| entities.contains(entity));
        Ok(has)
    }
}

fn port(answer: impl Fn(&Entity, &str) -> Option<PostOutcome> + Send + Sync + 'static) -> FakePort {
    FakePort {
        answer: Box::new(answer),
        has: Vec::new(),
        calls: StdMutex::default(),
        readings: StdMutex::default(),
    }
}

fn show(board: &AttributeBoard, n: usize, text: &str) {
    let on = vec![Entity::Host(host_ref(n)), Entity::Vm(vm_ref(n))];
    board.change(|values, now| values.show(&name(n), text.to_owned(), on, true, now));
}

/// Runs for so long. Returns the calls.
async fn run_for(port: &FakePort, board: &AttributeBoard, seconds: u64) -> Vec<(Entity, String)> {
    let stop = CancellationToken::new();
    let ends = async {
        sleep(Duration::from_secs(seconds)).await;
        stop.cancel();
    };
    tokio::join!(run(port, board.clone(), stop.clone()), ends);
    port.calls.lock().unwrap().drain(..).collect()
}

#[tokio::test(start_paused = true)]
async fn value_is_set_once_on_host_and_vm() {
    let (port, board) = (port(|_, _| Some(PostOutcome::Done)), AttributeBoard::default());
    show(&board, 1, "Draining");
    let calls = run_for(&port, &board, 600).await;
    let expected = [Entity::Host(host_ref(1)), Entity::Vm(vm_ref(1))];
    assert_eq!(calls, expected.map(|entity| (entity, "Draining".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn object_without_an_answer_holds_up_no_other_object() {
    let silent = Entity::Host(host_ref(1));
    let board = AttributeBoard::default();
    let port = port(move |entity, _| (*entity != silent).then_some(PostOutcome::Done));
    for n in 1..=3 {
        show(&board, n, "Draining");
    }
    let calls = run_for(&port, &board, 1).await;
    assert_eq!(calls.len(), 6, "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn value_is_set_after_an_outage() {
    let begun = Instant::now();
    let board = AttributeBoard::default();
    let port = port(move |_, _| {
        Some(match begun.elapsed() < Duration::from_secs(3600) {
            true => PostOutcome::Later("vCenter is away".to_owned()),
            false => PostOutcome::Done,
        })
    });
    show(&board, 1, "Draining");
    board.change(|values, now| values.hide(&name(1), Vec::new(), now));
    let calls = run_for(&port, &board, 3700).await;
    assert!(calls.iter().all(|(_, value)| value.is_empty()), "{calls:?}");
    assert!((100..200).contains(&calls.len()), "{}", calls.len());
    // Nothing is left to do.
    assert_eq!(run_for(&port, &board, 600).await, []);
}

#[tokio::test(start_paused = true)]
async fn leftovers_of_ours_are_cleared_and_others_stay() {
    let ours = |n: usize| {
        (
            Entity::Vm(vm_ref(n)),
            format!("Haulout, node {}, Draining", name(n)),
        )
    };
    let mut port = port(|_, _| Some(PostOutcome::Done));
    port.has = vec![
        ours(1),
        // Another release's, and a person's.
        (Entity::Vm(vm_ref(2)), "Haulout, node other, Draining".to_owned()),
        (Entity::Vm(vm_ref(3)), "do not touch".to_owned()),
    ];
    let board = AttributeBoard::default();
    *board.0.leftovers.lock() = Leftovers {
        nodes: (1..=3).map(name).collect(),
        entities: (1..=3).map(|n| Entity::Vm(vm_ref(n))).collect(),
    };
    // The first reading fails, and is tried again.
    let calls = run_for(&port, &board, 120).await;
    assert_eq!(calls, [(Entity::Vm(vm_ref(1)), String::new())]);
    assert_eq!(*port.readings.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn stop_waits_for_no_answer() {
    let (port, board) = (port(|_, _| None), AttributeBoard::default());
    show(&board, 1, "Draining");
    let began = Instant::now();
    run_for(&port, &board, 1).await;
    assert_eq!(began.elapsed().as_secs(), 1);
}
