//! How fast evictions follow each other, and lists: at once as long as a bucket lasts, then as fast as it fills again, and faster where
//! drains would be over before their pods were asked.

use std::collections::BTreeMap;
use std::sync::{self, Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// Which part of the time that is left those that wait are asked in, because a pod has to end as well. It is what is left
/// at each turn, so the hurry eases: of 22,000 pods whose drains end in 600 s the first are asked at 73 a second, and the last
/// within 500 s.
const PART: u32 = 2;

/// The shortest time between two turns, however little is left. A thousand evictions a second are more than a
/// kube-apiserver answers: from there on the places in flight are the bound.
const SHORTEST: Duration = Duration::from_millis(1);

/// A bucket of turns that fills again while none is taken. Clones share it.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Whoever waits for a turn holds it, so that turns are taken in the order in which they were asked for.
    bucket: Arc<Mutex<Bucket>>,
    waiting: Arc<sync::Mutex<Waiting>>,
    /// How many turns may be taken at once from a full bucket.
    burst: u32,
    /// How long one turn takes to come back where nothing is in a hurry.
    calm: Duration,
}

#[derive(Debug)]
struct Bucket {
    turns: u32,
    /// When the last of them came back.
    since: Instant,
}

/// Who waits to be asked.
#[derive(Debug, Default)]
struct Waiting {
    /// The number of the next drain.
    next: u64,
    drains: BTreeMap<u64, Drain>,
}

#[derive(Debug)]
struct Drain {
    pods: usize,
    until: Instant,
}

/// One drain's pods among those that wait. Dropped, none of them does.
#[derive(Debug)]
pub(super) struct Due {
    waiting: Arc<sync::Mutex<Waiting>>,
    number: u64,
}

impl Pace {
    /// A full bucket of `burst` turns, and at least one, of which `per_second` come back each second, and at least one.
    pub fn of(per_second: u32, burst: u32) -> Self {
        let burst = burst.max(1);
        Self {
            bucket: Arc::new(Mutex::new(Bucket {
                turns: burst,
                since: Instant::now(),
            })),
            waiting: Arc::default(),
            burst,
            calm: Duration::from_secs(1) / per_second.max(1),
        }
    }

    /// Waits for a turn and takes it. A wait that is given up takes none.
    pub async fn turn(&self) {
        let mut bucket = self.bucket.lock().await;
        loop {
            let now = Instant::now();
            let each = locked(&self.waiting).each(self.calm, now);
            bucket.fill(each, self.burst, now);
            if let Some(others) = bucket.turns.checked_sub(1) {
                bucket.turns = others;
                return;
            }
            sleep_until(bucket.since + each).await;
        }
    }

    /// That pods of a drain that lasts `until` then wait to be asked: see [`Due::are`].
    pub(super) fn due(&self, until: Instant) -> Due {
        let mut waiting = locked(&self.waiting);
        let number = waiting.next;
        waiting.next += 1;
        waiting.drains.insert(number, Drain { pods: 0, until });
        Due {
            waiting: Arc::clone(&self.waiting),
            number,
        }
    }
}

impl Due {
    /// That so many wait.
    pub(super) fn are(&self, pods: usize) {
        if let Some(drain) = locked(&self.waiting).drains.get_mut(&self.number) {
            drain.pods = pods;
        }
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        locked(&self.waiting).drains.remove(&self.number);
    }
}

impl Bucket {
    fn fill(&mut self, each: Duration, burst: u32, now: Instant) {
        let back = now.saturating_duration_since(self.since).as_nanos() / each.as_nanos().max(1);
        let back = u32::try_from(back).unwrap_or(u32::MAX);
        let room = burst - self.turns;
        if back < room {
            self.turns += back;
            self.since += each * back;
        } else {
            self.turns = burst;
            self.since = now;
        }
    }
}

impl Waiting {
    /// How long a turn takes to come back: as long as if it is calm, and less where the first drain of those that wait would be over
    /// before all were asked. All, because they are asked in the order in which they come, and not by whose time is up first.
    ///
    /// A drain whose time is up hurries nobody: its pods are named and its power is cut, or a person is waited for.
    fn each(&self, calm: Duration, now: Instant) -> Duration {
        let waiting = || self.drains.values().filter(|drain| drain.pods > 0);
        let first = waiting()
            .map(|drain| drain.until)
            .filter(|until| *until > now)
            .min();
        let pods: usize = waiting().map(|drain| drain.pods).sum();
        let pods = u32::try_from(pods).unwrap_or(u32::MAX);
        match first {
            Some(first) => ((first - now) / PART / pods.max(1)).max(SHORTEST).min(calm),
            None => calm,
        }
    }
}

/// What is read and written under it is whole at each moment, so one that panicked meanwhile left it so.
fn locked(waiting: &sync::Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each of `count` turns was had, in milliseconds from here.
    async fn turns(pace: &Pace, count: usize) -> Vec<u128> {
        let begun = Instant::now();
        let mut had = Vec::new();
        for _ in 0..count {
            pace.turn().await;
            had.push(begun.elapsed().as_millis());
        }
        had
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_had_at_once_while_the_bucket_lasts_and_then_as_they_come_back() {
        let pace = Pace::of(10, 3);
        assert_eq!(turns(&pace, 5).await, [0, 0, 0, 100, 200]);
        tokio::time::advance(Duration::from_millis(200)).await;
        assert_eq!(turns(&pace, 3).await, [0, 0, 100], "two have come back");
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(
            turns(&pace, 4).await,
            [0, 0, 0, 100],
            "it holds three, however long it filled"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_nobody_waits_for_any_more_is_there_for_the_next() {
        let pace = Pace::of(10, 1);
        pace.turn().await;
        for _ in 0..5 {
            let given_up = tokio::time::timeout(Duration::from_millis(10), pace.turn()).await;
            assert!(given_up.is_err());
        }
        assert_eq!(turns(&pace, 2).await, [50, 150]);
    }

    #[tokio::test(start_paused = true)]
    async fn clones_take_turns_from_one_bucket_in_the_order_in_which_they_ask() {
        let (pace, other) = (Pace::of(10, 1), Pace::of(10, 1));
        let clone = pace.clone();
        let (one, two, alone) = tokio::join!(turns(&pace, 3), turns(&clone, 3), turns(&other, 3));
        // The first asks for its second turn before the other asks at all.
        assert_eq!(one, [0, 100, 300]);
        assert_eq!(two, [200, 400, 500]);
        assert_eq!(alone, [0, 100, 200]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_back_while_it_was_calm_is_not_lost_when_it_is_in_a_hurry() {
        let pace = Pace::of(10, 2);
        assert_eq!(turns(&pace, 2).await, [0, 0]);
        tokio::time::advance(Duration::from_millis(30)).await;
        let due = pace.due(Instant::now() + Duration::from_secs(4));
        due.are(100);
        assert_eq!(
            turns(&pace, 3).await,
            [0, 10, 30],
            "30 ms are one turn of 20 ms and half of another"
        );
    }

    /// The rule, for up to three drains with every mix of few and many pods and of times that are up, near and far.
    #[tokio::test(start_paused = true)]
    async fn all_that_wait_are_asked_in_half_of_what_the_first_of_them_has_left() {
        let calm = Duration::from_millis(40);
        let begun = Instant::now();
        let now = begun + Duration::from_secs(1000);
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let kinds: Vec<(usize, Instant)> = [0, 1, 100, 20_000]
            .into_iter()
            .flat_map(|pods| [1, 1000, 1001, 1600].map(|until| (pods, at(until))))
            .collect();
        let mut hurried = 0;
        for one in &kinds {
            for two in &kinds {
                for three in &kinds {
                    let drains = [one, two, three];
                    let numbered = (0..).zip(drains.map(|&(pods, until)| Drain { pods, until }));
                    let waiting = Waiting {
                        next: 3,
                        drains: numbered.collect(),
                    };
                    let each = waiting.each(calm, now);
                    assert!(each >= SHORTEST && each <= calm, "{drains:?}: {each:?}");
                    let pods: usize = drains.iter().map(|(pods, _)| pods).sum();
                    let pods = u32::try_from(pods).unwrap();
                    let lasts = drains.iter().filter(|(pods, until)| *pods > 0 && *until > now);
                    let left = lasts.map(|(_, until)| *until - now).min();
                    match left {
                        Some(left) if calm * pods * 2 > left => {
                            assert!(
                                each * pods * 2 <= left || each == SHORTEST,
                                "{drains:?}: {each:?}"
                            );
                        }
                        Some(_) | None => assert_eq!(each, calm, "{drains:?}"),
                    }
                    hurried += usize::from(each < calm);
                }
            }
        }
        assert!(hurried > 0 && hurried < kinds.len().pow(3), "{hurried} of them");
    }

    #[tokio::test(start_paused = true)]
    async fn a_fleet_of_22_000_pods_is_asked_within_500_of_600_s() {
        let pace = Pace::of(25, 250);
        let begun = Instant::now();
        let due = pace.due(begun + Duration::from_secs(600));
        for pods in (1..=22_000).rev() {
            due.are(pods);
            pace.turn().await;
        }
        let took = begun.elapsed().as_secs();
        assert!((480..=500).contains(&took), "{took} s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_has_ended_hurries_nobody() {
        let pace = Pace::of(10, 1);
        let due = pace.due(Instant::now() + Duration::from_secs(1));
        due.are(50);
        assert_eq!(turns(&pace, 3).await, [0, 10, 20]);
        due.are(0);
        assert_eq!(turns(&pace, 2).await, [100, 200], "none of its pods waits");
        due.are(50);
        drop(due);
        assert_eq!(turns(&pace, 2).await, [100, 200]);
    }
}
