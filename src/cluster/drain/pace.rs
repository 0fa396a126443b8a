//! How fast evictions follow each other: at once as long as a bucket lasts, and then as fast as it fills again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// A bucket of turns that fills again while none is taken. Clones share it.
#[derive(Clone, Debug)]
pub struct Pace {
    /// When the bucket is full again. Whoever waits for a turn holds it, so that turns are taken in the order in which they were
    /// asked for.
    full: Arc<Mutex<Instant>>,
    /// How many turns may be taken at once from a full bucket.
    burst: u32,
    /// How long one turn takes to come back.
    each: Duration,
}

impl Pace {
    /// A full bucket of `burst` turns, and at least one, of which `per_second` come back each second, and at least one.
    pub fn of(per_second: u32, burst: u32) -> Self {
        Self {
            full: Arc::new(Mutex::new(Instant::now())),
            burst: burst.max(1),
            each: Duration::from_secs(1) / per_second.max(1),
        }
    }

    /// Waits for a turn and takes it. A wait that is given up takes none.
    pub async fn turn(&self) {
        let mut full = self.full.lock().await;
        // One is there as soon as no more than all the others are out.
        if let Some(there) = full.checked_sub(self.each * (self.burst - 1)) {
            sleep_until(there).await;
        }
        *full = (*full).max(Instant::now()) + self.each;
    }
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
}
