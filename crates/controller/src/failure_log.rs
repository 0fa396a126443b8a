//! How often a failure that goes on is logged.

/// The second to seventh attempt follow within seconds, and say nothing new.
const QUIET_UNTIL: u64 = 8;

/// Whether the failure with this number in a row is logged, although the first was.
pub fn is_logged_again(count: u64) -> bool {
    count >= QUIET_UNTIL && count.is_power_of_two()
}

/// Failures in a row. The first one is logged, and then ever fewer, so that an outage of a day costs a dozen lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureStreak {
    count: u64,
}

impl FailureStreak {
    /// Counts a failure. Returns how many there are in a row if it is to be logged.
    pub fn failed(&mut self) -> Option<u64> {
        self.count = self.count.saturating_add(1);
        (self.count == 1 || is_logged_again(self.count)).then_some(self.count)
    }

    /// Ends the row. Returns how many failures there were, if any.
    pub fn ended(&mut self) -> Option<u64> {
        let count = std::mem::take(&mut self.count);
        (count > 0).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_are_logged_with_growing_intervals() {
        let mut streak = FailureStreak::default();
        assert_eq!(streak.ended(), None);
        let logged: Vec<u64> = (0..100).filter_map(|_| streak.failed()).collect();
        assert_eq!(logged, [1, 8, 16, 32, 64]);
        assert_eq!(streak.ended(), Some(100));
        assert_eq!(streak.ended(), None);
        assert_eq!(streak.failed(), Some(1));
    }
}
