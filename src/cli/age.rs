//! Durations in kubectl's format: `42s`, `3m10s`, `25m`, `4h5m`, `3d`.

use jiff::SignedDuration;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// `span` in at most two units, like `duration.HumanDuration` of Kubernetes.
pub(super) fn age(span: SignedDuration) -> String {
    let seconds = span.as_secs().max(0);
    let two = |unit: i64, name: &str, smaller: i64, smaller_name: &str| {
        let (whole, rest) = (seconds / unit, seconds % unit / smaller);
        if rest == 0 {
            format!("{whole}{name}")
        } else {
            format!("{whole}{name}{rest}{smaller_name}")
        }
    };
    match seconds {
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(MINUTE, "m", 1, "s"),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(HOUR, "h", MINUTE, "m"),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(DAY, "d", HOUR, "h"),
        s => format!("{}d", s / DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_is_formatted_as_in_kubectl() {
        for (seconds, expected) in [
            (-3, "0s"),
            (0, "0s"),
            (119, "119s"),
            (130, "2m10s"),
            (180, "3m"),
            (1_500, "25m"),
            (3 * HOUR + 65, "3h1m"),
            (9 * HOUR, "9h"),
            (2 * DAY + 3 * HOUR, "2d3h"),
            (9 * DAY, "9d"),
        ] {
            assert_eq!(age(SignedDuration::from_secs(seconds)), expected, "{seconds}");
        }
    }
}
