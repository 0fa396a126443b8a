//! The pace at which new keys of the roster are asked for.

use std::time::Duration;

use tokio::time::Instant;

/// New keys that are asked for at once: a fleet of so many nodes may join at one moment.
const AT_ONCE: usize = 1_000;
/// After that one more is asked for in each of these: a node may tell another UUID ten times a second for ever, and each costs
/// vCenter two questions.
const EACH: Duration = Duration::from_millis(100);

/// How many new keys may be asked for.
pub(super) struct LookupPace {
    left: usize,
    /// Up to when `left` is counted.
    counted: Instant,
}

impl LookupPace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            left: AT_ONCE,
            counted: now,
        }
    }

    /// Takes as many of `wanted` as may be asked for at `now`.
    pub(super) fn take(&mut self, wanted: usize, now: Instant) -> usize {
        let passed = now.saturating_duration_since(self.counted);
        let more = usize::try_from(passed.as_millis() / EACH.as_millis()).unwrap_or(AT_ONCE);
        match u32::try_from(more) {
            Ok(times) if self.left + more < AT_ONCE => {
                self.left += more;
                self.counted += EACH * times;
            }
            Ok(_) | Err(_) => {
                self.left = AT_ONCE;
                self.counted = now;
            }
        }
        let taken = wanted.min(self.left);
        self.left -= taken;
        taken
    }

    /// When the next one may be asked for, where none is left.
    pub(super) fn next(&self) -> Instant {
        self.counted + EACH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn new_keys_are_asked_for_at_a_bounded_pace() {
        let begin = Instant::now();
        let mut pace = LookupPace::new(begin);
        assert_eq!(pace.take(AT_ONCE + 7, begin), AT_ONCE);
        assert_eq!(pace.take(7, begin), 0);
        assert_eq!(pace.take(7, pace.next()), 1);
        // Ten a second, whatever is wanted how often.
        let asked: usize = (1..=600)
            .map(|tick| pace.take(5, begin + EACH + Duration::from_millis(10) * tick))
            .sum();
        assert_eq!(asked, 60);
        let later = begin + Duration::from_secs(3_600);
        assert_eq!(pace.take(usize::MAX, later), AT_ONCE);
    }
}
