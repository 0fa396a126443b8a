use std::collections::BTreeMap;

use tokio::time::{advance, sleep};

use super::queue::LEFT_OUT_FOR;
use super::*;

/// A key is refused together with those that begin with the same letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(&'static str);

impl SinkKey for Key {
    fn group(&self) -> &'static str {
        self.0.get(..1).unwrap_or_default()
    }
}

const TRIES: u32 = 30;

const MAX_FINAL: usize = 8;

const PAUSE_MIN: Duration = Duration::from_secs(3);

const PAUSE_MAX: Duration = Duration::from_secs(60);

const EVENTS: Pace = Pace {
    at_once: 2,
    pause_min: PAUSE_MIN,
    pause_max: PAUSE_MAX,
    keep: Keep::Each {
        tries: TRIES,
        max_final: MAX_FINAL,
    },
};

const STATE: Pace = Pace {
    keep: Keep::Newest,
    ..EVENTS
};

use Urgency::{Change, Final, Progress};

/// A queue with a clock.
struct Queued {
    queue: SinkQueue<Key, String>,
    now: Instant,
}

impl Queued {
    fn new(pace: Pace) -> Self {
        Self {
            queue: SinkQueue::new(pace),
            now: Instant::now(),
        }
    }

    fn push(&mut self, values: &[(&str, Urgency)]) {
        for (value, urgency) in values {
            let value = (*value).to_owned();
            self.queue.push(Key("a"), value, *urgency, self.now);
        }
    }

    /// Has what is due end like this. Returns its value, the seconds that it had to wait, and whether it is lost.
    fn put(&mut self, delivery: &Delivery) -> Option<(String, u64, bool)> {
        let at = self.queue.next_due()?;
        let waited = at.saturating_duration_since(self.now).as_secs();
        self.now = self.now.max(at);
        let due = self.queue.take(self.now)?;
        let value = due.value.clone();
        let fate = self.queue.attempt_ended(due, delivery, self.now);
        Some((value, waited, fate == ValueFate::Lost))
    }

    fn done(&mut self) -> Option<(String, u64)> {
        let (value, waited, is_lost) = self.put(&Delivery::Done)?;
        assert!(!is_lost);
        Some((value, waited))
    }
}

fn later() -> Delivery {
    Delivery::Later("not now".to_owned())
}

fn refused() -> Delivery {
    Delivery::Refused("no right".to_owned())
}

fn put(value: &str, after: u64) -> Option<(String, u64)> {
    Some((value.to_owned(), after))
}

#[test]
fn newest_value_replaces_one_that_waits() {
    for pace in [EVENTS, STATE] {
        let mut queued = Queued::new(pace);
        queued.push(&[("cordoned", Change), ("3 pods", Progress), ("1 pod", Progress)]);
        assert_eq!(queued.done(), put("1 pod", 0));
        assert_eq!(queued.done(), None);
    }
}

#[test]
fn two_values_of_one_key_are_seconds_apart() {
    let mut queued = Queued::new(EVENTS);
    queued.push(&[("a", Change)]);
    assert_eq!(queued.done(), put("a", 0));
    queued.push(&[("b", Change)]);
    assert_eq!(queued.done(), put("b", PAUSE_MIN.as_secs()));
    queued.now += PAUSE_MAX;
    queued.push(&[("c", Change)]);
    assert_eq!(queued.done(), put("c", 0));
}

#[test]
fn progress_becomes_rare_until_something_changes() {
    for pace in [EVENTS, STATE] {
        let mut queued = Queued::new(pace);
        queued.push(&[("draining", Change)]);
        assert_eq!(queued.done(), put("draining", 0));
        for (pods, pause) in ["9", "8", "7", "6", "5", "4", "3", "2"]
            .iter()
            .zip([3, 3, 6, 12, 24, 48, 60, 60])
        {
            queued.push(&[(pods, Progress)]);
            assert_eq!(queued.done(), put(pods, pause));
        }
        queued.push(&[("drained", Change)]);
        assert_eq!(queued.done(), put("drained", 3));
    }
}

#[test]
fn waits_that_change_back_and_forth_slowly_become_rare_too() {
    for pace in [EVENTS, STATE] {
        let mut queued = Queued::new(pace);
        let begun = queued.now;
        let mut delivered = 0;
        for change in 0..180 {
            queued.now = queued.now.max(begun + Duration::from_secs(10 * change));
            queued.push(&[(["a", "b"][usize::try_from(change % 2).unwrap()], Progress)]);
            delivered += usize::from(queued.done().is_some());
        }
        let minutes = usize::try_from((queued.now - begun).as_secs() / 60).unwrap();
        assert!(delivered <= minutes + 10, "{delivered} in {minutes} minutes");
    }
}

#[test]
fn last_value_is_kept_and_comes_before_the_next_one() {
    let mut queued = Queued::new(EVENTS);
    queued.push(&[
        ("w", Progress),
        ("first", Final),
        ("again", Change),
        ("second", Final),
    ]);
    queued.push(&[("third", Change)]);
    assert_eq!(queued.done(), put("first", 0));
    assert_eq!(queued.done(), put("second", 3));
    assert_eq!(queued.done(), put("third", 3));
    assert_eq!(queued.queue.take_dropped(), None);
}

#[test]
fn last_values_that_wait_are_bounded_and_the_oldest_is_dropped() {
    let mut queued = Queued::new(EVENTS);
    for number in 0..MAX_FINAL + 2 {
        queued.push(&[(number.to_string().as_str(), Final)]);
    }
    queued.push(&[("newest", Progress)]);
    assert_eq!(queued.queue.take_dropped(), Some((Key("a"), 2)));
    assert_eq!(queued.queue.take_dropped(), None, "told once");
    let left: Vec<String> = std::iter::from_fn(|| queued.done())
        .map(|(value, _)| value)
        .collect();
    let expected: Vec<String> = (2..MAX_FINAL + 2).map(|number| number.to_string()).collect();
    assert_eq!(left[..MAX_FINAL], expected);
    assert_eq!(left[MAX_FINAL..], ["newest"]);
}

#[test]
fn event_that_fails_is_tried_again_so_often_and_is_lost() {
    let mut queued = Queued::new(EVENTS);
    queued.push(&[("end", Final)]);
    let tries: Vec<(u64, bool)> = std::iter::from_fn(|| queued.put(&later()))
        .map(|(_, waited, is_lost)| (waited, is_lost))
        .collect();
    assert_eq!(tries.len(), usize::try_from(TRIES).unwrap());
    let pauses: Vec<u64> = tries.iter().map(|(waited, _)| *waited).collect();
    assert_eq!(pauses[..8], [0, 3, 6, 12, 24, 48, 60, 60]);
    let lost: Vec<bool> = tries.iter().map(|(_, is_lost)| *is_lost).collect();
    assert_eq!(lost.iter().position(|is_lost| *is_lost), Some(tries.len() - 1));
}

#[test]
fn value_that_is_not_taken_is_lost_at_once() {
    let mut queued = Queued::new(EVENTS);
    queued.push(&[("bad", Final), ("good", Final)]);
    let lost = Delivery::Rejected("400".to_owned());
    assert_eq!(queued.put(&lost), Some(("bad".to_owned(), 0, true)));
    assert_eq!(queued.done(), put("good", 3));
}

#[test]
fn failed_value_gives_way_to_a_newer_one_unless_it_is_a_last_one() {
    for (urgency, expected) in [(Progress, vec!["newer"]), (Final, vec!["older", "newer"])] {
        let mut queued = Queued::new(EVENTS);
        queued.push(&[("older", urgency)]);
        let due = queued.queue.take(queued.now).unwrap();
        queued.push(&[("newer", Change)]);
        assert_eq!(queued.queue.take(queued.now), None, "one at a time");
        let fate = queued.queue.attempt_ended(due, &later(), queued.now);
        let is_replaced = expected.len() == 1;
        assert_eq!(fate == ValueFate::Replaced, is_replaced, "{fate:?}");
        let values: Vec<String> = std::iter::from_fn(|| queued.done())
            .map(|(value, _)| value)
            .collect();
        assert_eq!(values, expected);
    }
}

#[test]
fn failed_end_is_lost_where_as_many_others_wait() {
    let mut queued = Queued::new(EVENTS);
    let Keep::Each { max_final, .. } = EVENTS.keep else {
        panic!("events are kept each")
    };
    queued.push(&[("oldest", Final)]);
    let due = queued.queue.take(queued.now).unwrap();
    for n in 0..max_final {
        queued.push(&[(&format!("end {n}"), Final)]);
    }
    let fate = queued.queue.attempt_ended(due, &later(), queued.now);
    assert_eq!(fate, ValueFate::Lost);
    let values: Vec<_> = std::iter::from_fn(|| queued.done()).collect();
    assert_eq!(values.len(), max_final, "{values:?}");
}

#[test]
fn state_that_is_there_is_not_put_again() {
    let mut queued = Queued::new(STATE);
    queued.push(&[("draining", Change)]);
    assert_eq!(queued.done(), put("draining", 0));
    queued.push(&[("draining", Change)]);
    assert_eq!(queued.done(), None);
    // Pushed again while it is being put.
    queued.push(&[("off", Change)]);
    let due = queued.queue.take(queued.now + PAUSE_MIN).unwrap();
    queued.push(&[("off", Progress)]);
    queued.queue.attempt_ended(due, &Delivery::Done, queued.now);
    assert_eq!(queued.done(), None);
    // An event that is the same as the one before is another one.
    let mut queued = Queued::new(EVENTS);
    for _ in 0..2 {
        queued.push(&[("again", Change)]);
        assert!(queued.done().is_some());
    }
}

#[test]
fn state_is_put_again_after_an_attempt_whose_effect_is_unknown() {
    let mut queued = Queued::new(STATE);
    queued.push(&[("draining", Change)]);
    assert_eq!(queued.done(), put("draining", 0));
    queued.push(&[("off", Change)]);
    // It may be there, although there was no answer.
    assert_eq!(queued.put(&later()), Some(("off".to_owned(), 3, false)));
    queued.push(&[("draining", Change)]);
    assert_eq!(queued.done(), put("draining", 3));
}

#[test]
fn state_is_tried_until_it_is_there() {
    let mut queued = Queued::new(STATE);
    queued.push(&[("", Change)]);
    for _ in 0..100 {
        assert_eq!(queued.put(&later()).map(|(_, _, is_lost)| is_lost), Some(false));
    }
    assert_eq!(queued.done(), put("", 60));
}

#[test]
fn refused_group_is_left_out_for_an_hour() {
    for (pace, is_state) in [(EVENTS, false), (STATE, true)] {
        let mut queued = Queued::new(pace);
        queued.push(&[("1", Change)]);
        assert_eq!(queued.put(&refused()), Some(("1".to_owned(), 0, false)));
        let left_out = queued.now + LEFT_OUT_FOR;
        let (same_group, other) = (Key("a2"), Key("b"));
        for key in [same_group, other] {
            queued.queue.push(key, "2".to_owned(), Change, queued.now);
        }
        let due = queued.queue.take(queued.now).unwrap();
        assert_eq!(due.key, other);
        queued.queue.attempt_ended(due, &Delivery::Done, queued.now);
        // A state is set once the right was granted; events of the past would be wrong then.
        assert_eq!(queued.queue.take(queued.now), None);
        assert_eq!(queued.queue.next_due(), is_state.then_some(left_out));
        queued.now = left_out;
        queued.queue.push(same_group, "3".to_owned(), Change, queued.now);
        let mut values = Vec::new();
        while let Some(due) = queued.queue.take(queued.now) {
            values.push((due.key, due.value.clone()));
            queued.queue.attempt_ended(due, &Delivery::Done, queued.now);
        }
        let expected = [(Key("a"), "1".to_owned()), (same_group, "3".to_owned())];
        assert_eq!(values, expected[usize::from(!is_state)..]);
    }
}

#[test]
fn key_without_a_value_is_forgotten() {
    for (pace, value, is_known) in [(EVENTS, "end", false), (STATE, "off", true), (STATE, "", false)] {
        let mut queued = Queued::new(pace);
        queued.push(&[(value, Change)]);
        assert!(queued.done().is_some());
        queued.now += PAUSE_MIN + PAUSE_MAX;
        queued
            .queue
            .push(Key("b"), "other".to_owned(), Change, queued.now);
        assert_eq!(queued.queue.knows(&Key("a")), is_known, "{value:?}");
    }
}

type Answer = dyn Fn(Key, usize) -> Option<Delivery> + Send + Sync;

/// Answers by a function of the key and the number of the call. `None` is no answer within a minute.
struct Fake {
    answer: Box<Answer>,
    calls: Mutex<Vec<String>>,
    log: Mutex<Vec<String>>,
}

impl Sink for Fake {
    type Key = Key;
    type Value = String;

    async fn put(&self, key: &Key, value: &String) -> Delivery {
        let number = {
            let mut calls = self.calls.lock();
            calls.push(format!("{}: {value}", key.0));
            calls.len()
        };
        if let Some(delivery) = (self.answer)(*key, number) {
            return delivery;
        }
        sleep(Duration::from_secs(60)).await;
        later()
    }

    fn log(&self, key: &Key, report: SinkReport<'_>) {
        self.log.lock().push(format!("{}: {report:?}", key.0));
    }
}

fn fake(answer: impl Fn(Key, usize) -> Option<Delivery> + Send + Sync + 'static) -> Fake {
    Fake {
        answer: Box::new(answer),
        calls: Mutex::default(),
        log: Mutex::default(),
    }
}

/// Runs for `seconds` while `during` runs. Returns the calls, and how many values were lost.
async fn run_for(
    fake: &Fake,
    seconds: u64,
    outbox: &Outbox<Key, String>,
    during: impl Future<Output = ()>,
) -> (Vec<String>, u64) {
    let (lost, stop) = (Counter::<u64>::default(), CancellationToken::new());
    let ends = async {
        during.await;
        sleep(Duration::from_secs(seconds)).await;
        stop.cancel();
    };
    tokio::join!(run(fake, outbox.clone(), lost.clone(), stop.clone()), ends);
    (fake.calls.lock().drain(..).collect(), lost.get())
}

#[tokio::test(start_paused = true)]
async fn object_without_an_answer_holds_up_no_other_one() {
    let fake = fake(|key, _| (key != Key("a")).then_some(Delivery::Done));
    let outbox = Outbox::new(EVENTS);
    for key in ["a", "b", "c", "d"] {
        outbox.push(Key(key), "1".to_owned(), Change);
    }
    let (calls, _) = run_for(&fake, 1, &outbox, async {}).await;
    assert_eq!(calls, ["a: 1", "b: 1", "c: 1", "d: 1"]);
}

#[tokio::test(start_paused = true)]
async fn deliveries_at_once_are_limited() {
    let fake = fake(|_, _| None);
    let outbox = Outbox::new(EVENTS);
    for key in ["a", "b", "c", "d"] {
        outbox.push(Key(key), "1".to_owned(), Change);
    }
    let (calls, _) = run_for(&fake, 59, &outbox, async {}).await;
    assert_eq!(calls.len(), EVENTS.at_once);
}

#[tokio::test(start_paused = true)]
async fn stop_does_not_wait_for_an_answer() {
    let fake = fake(|_, _| None);
    let outbox = Outbox::new(EVENTS);
    outbox.push(Key("a"), "1".to_owned(), Final);
    let began = Instant::now();
    run_for(&fake, 1, &outbox, async {}).await;
    assert_eq!(began.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn value_is_delivered_after_an_outage() {
    for pace in [EVENTS, STATE] {
        let begun = Instant::now();
        let is_away = move || begun.elapsed() < Duration::from_secs(15 * 60);
        let fake = fake(move |_, _| Some(if is_away() { later() } else { Delivery::Done }));
        let outbox = Outbox::new(pace);
        outbox.push(Key("a"), "end".to_owned(), Final);
        let (calls, lost) = run_for(&fake, 17 * 60, &outbox, async {}).await;
        assert!((15..30).contains(&calls.len()), "{}", calls.len());
        assert_eq!(lost, 0);
        let (calls, _) = run_for(&fake, 600, &outbox, async {}).await;
        assert_eq!(calls, [""; 0], "nothing is left to do");
    }
}

#[tokio::test(start_paused = true)]
async fn losses_are_counted_and_logged_ever_less_often() {
    let fake = fake(|_, number| {
        Some(match number {
            1..=20 => Delivery::Rejected(format!("number {number}")),
            _ => Delivery::Done,
        })
    });
    let outbox = Outbox::new(EVENTS);
    let pushed = async {
        for _ in 0..21 {
            outbox.push(Key("a"), "1".to_owned(), Final);
            sleep(PAUSE_MIN).await;
        }
        // More than may wait.
        for _ in 0..MAX_FINAL + 1 {
            outbox.push(Key("b"), "2".to_owned(), Final);
        }
    };
    let (_, lost) = run_for(&fake, 1, &outbox, pushed).await;
    assert_eq!(lost, 21);
    let log = fake.log.lock().clone();
    assert_eq!(
        log[..4],
        [
            "a: Lost { why: \"number 1\", count: 1 }",
            "a: Lost { why: \"number 8\", count: 8 }",
            "a: Lost { why: \"number 16\", count: 16 }",
            "a: Recovered { count: 20 }",
        ]
    );
    assert_eq!(log[4], "b: Lost { why: \"too many wait\", count: 1 }");
}

#[tokio::test(start_paused = true)]
async fn first_refusal_is_logged_and_the_group_is_left_out() {
    let fake = fake(|key, _| {
        Some(if key.0.starts_with('a') {
            refused()
        } else {
            Delivery::Done
        })
    });
    let outbox = Outbox::new(EVENTS);
    let pushed = async {
        for key in ["a", "b", "a2", "b"] {
            outbox.push(Key(key), "1".to_owned(), Change);
            sleep(PAUSE_MAX).await;
        }
        sleep(LEFT_OUT_FOR).await;
        outbox.push(Key("a2"), "2".to_owned(), Change);
    };
    let (calls, lost) = run_for(&fake, 1, &outbox, pushed).await;
    assert_eq!(calls, ["a: 1", "b: 1", "b: 1", "a2: 2"]);
    assert_eq!(lost, 0);
    assert_eq!(*fake.log.lock(), ["a: Refused { why: \"no right\" }"]);
}

#[tokio::test(start_paused = true)]
async fn refusal_is_logged_for_each_group_and_again_after_a_delivery() {
    let fake = fake(|_, number| Some(if number == 3 { Delivery::Done } else { refused() }));
    let outbox = Outbox::new(EVENTS);
    let pushed = async {
        for key in ["a", "c", "a", "a", "a"] {
            outbox.push(Key(key), "1".to_owned(), Change);
            sleep(LEFT_OUT_FOR).await;
        }
    };
    let (calls, _) = run_for(&fake, 1, &outbox, pushed).await;
    assert_eq!(calls, ["a: 1", "c: 1", "a: 1", "a: 1", "a: 1"]);
    let refused = ["a", "c", "a"].map(|key| format!("{key}: Refused {{ why: \"no right\" }}"));
    assert_eq!(*fake.log.lock(), refused);
}

#[tokio::test(start_paused = true)]
async fn first_value_of_a_key_is_pushed_only_if_there_was_none() {
    let outbox = Outbox::new(STATE);
    outbox.push(Key("a"), "shown".to_owned(), Change);
    for key in ["a", "b"] {
        outbox.push_first(Key(key), String::new());
    }
    let all: BTreeMap<Key, String> = outbox.deliver_all().into_iter().collect();
    assert_eq!(all[&Key("a")], "shown");
    assert_eq!(all[&Key("b")], "");
    advance(PAUSE_MAX).await;
    outbox.push_first(Key("a"), String::new());
    assert_eq!(outbox.deliver_all(), []);
}
