//! Durations as text.

use std::fmt;

use jiff::SignedDuration;

const UNITS: [(i64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];

/// A duration in its two largest units: `0.4s`, `42s`, `18m48s`, `3h15m`, `2d1h`.
#[derive(Clone, Copy, Debug)]
pub struct Took(pub SignedDuration);

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Clocks may differ, which can make the duration negative.
        let duration = self.0.max(SignedDuration::ZERO);
        let mut rest = duration.as_secs();
        if rest < 10 {
            return write!(f, "{:.1}s", duration.as_secs_f64());
        }
        let largest = UNITS
            .iter()
            .position(|(unit, _)| rest >= *unit)
            .unwrap_or_default();
        for (index, (unit, name)) in UNITS.iter().skip(largest).take(2).enumerate() {
            if index == 0 || rest >= *unit {
                write!(f, "{}{name}", rest / unit)?;
            }
            rest %= unit;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_has_its_two_largest_units() {
        for (millis, expected) in [
            (-3_000, "0.0s"),
            (400, "0.4s"),
            (42_000, "42s"),
            (180_000, "3m"),
            (1_128_000, "18m48s"),
            (3_605_000, "1h"),
            (11_700_000, "3h15m"),
            (177_000_000, "2d1h"),
        ] {
            assert_eq!(Took(SignedDuration::from_millis(millis)).to_string(), expected);
        }
    }
}
