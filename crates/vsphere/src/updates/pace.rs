//! Rate limit for lookups of new keys, and whose turn it is.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::update::VmKey;

/// Burst: so many nodes may join at once.
const BURST: usize = 1_000;
/// Interval per key after the burst. A node that reports another UUID all the time costs vCenter two
/// searches for each.
const INTERVAL: Duration = Duration::from_millis(100);

/// A token bucket.
pub(super) struct LookupPace {
    left: usize,
    /// The time up to which `left` is counted.
    counted: Instant,
}

impl LookupPace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            left: BURST,
            counted: now,
        }
    }

    /// Takes up to `wanted` tokens at `now`.
    pub(super) fn take(&mut self, wanted: usize, now: Instant) -> usize {
        let passed = now.saturating_duration_since(self.counted);
        let more = usize::try_from(passed.as_millis() / INTERVAL.as_millis()).unwrap_or(BURST);
        match u32::try_from(more) {
            Ok(times) if self.left + more < BURST => {
                self.left += more;
                self.counted += INTERVAL * times;
            }
            Ok(_) | Err(_) => {
                self.left = BURST;
                self.counted = now;
            }
        }
        let taken = wanted.min(self.left);
        self.left -= taken;
        taken
    }

    /// When the next token is available, if none is left.
    pub(super) fn next(&self) -> Instant {
        self.counted + INTERVAL
    }
}

/// Up to `count` of the sorted `keys`: those after `last`, then from the first one. Updates `last`. It
/// stays if there is none, or a caller without an allowance would lose its turn.
pub(super) fn next_in_turn(keys: &[&VmKey], count: usize, last: &mut Option<VmKey>) -> BTreeSet<VmKey> {
    let start = keys.partition_point(|key| last.as_ref().is_some_and(|last| *key <= last));
    let in_turn = keys.iter().cycle().skip(start);
    let next: Vec<VmKey> = in_turn
        .take(count.min(keys.len()))
        .map(|key| (*key).clone())
        .collect();
    if let Some(key) = next.last() {
        *last = Some(key.clone());
    }
    next.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn new_keys_are_asked_for_at_a_bounded_pace() {
        let begin = Instant::now();
        let mut pace = LookupPace::new(begin);
        assert_eq!(pace.take(BURST + 7, begin), BURST);
        assert_eq!(pace.take(7, begin), 0);
        assert_eq!(pace.take(7, pace.next()), 1);
        let asked: usize = (1..=600)
            .map(|tick| pace.take(5, begin + INTERVAL + Duration::from_millis(10) * tick))
            .sum();
        assert_eq!(asked, 60);
        let later = begin + Duration::from_secs(3_600);
        assert_eq!(pace.take(usize::MAX, later), BURST);
    }

    /// A full bucket earns nothing: not even the part of an interval that has passed counts.
    #[tokio::test(start_paused = true)]
    async fn next_key_after_a_burst_waits_a_whole_interval() {
        let begin = Instant::now();
        let half = INTERVAL / 2;
        for (taken, passed, left, counted) in [
            (0, half * 3, BURST, half * 3),
            (1, half, BURST - 1, Duration::ZERO),
            (1, half * 3, BURST, half * 3),
            (2, half * 3, BURST - 1, INTERVAL),
            (2, half * 5, BURST, half * 5),
            (3, half * 5, BURST - 1, INTERVAL * 2),
            (BURST, half * 5, 2, INTERVAL * 2),
        ] {
            let mut pace = LookupPace::new(begin);
            assert_eq!(pace.take(taken, begin), taken);
            let now = begin + passed;
            assert_eq!(pace.take(usize::MAX, now), left, "{taken} {passed:?}");
            assert_eq!(pace.next(), begin + counted + INTERVAL, "{taken} {passed:?}");
        }
    }
}
