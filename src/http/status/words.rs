//! Times and durations as text.

use jiff::{SignedDuration, Timestamp};

/// The time in UTC, with the date if it is not today.
pub(super) fn hour(at: Timestamp, now: Timestamp) -> String {
    let day = |at: Timestamp| at.strftime("%Y-%m-%d").to_string();
    if day(at) == day(now) {
        at.strftime("%H:%M:%S UTC").to_string()
    } else {
        at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
    }
}

/// The time before `now`.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> String {
    let past = now.duration_since(at);
    if past < SignedDuration::from_secs(1) {
        // vCenter's clock may be ahead of ours.
        return "just now".to_owned();
    }
    format!("{} ago", length(past))
}

/// A duration in its two largest units.
pub(super) fn length(length: SignedDuration) -> String {
    let seconds = length.as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let (count, unit, rest, unit_of_rest) = match (days, hours, minutes) {
        (0, 0, 0) => (seconds, "s", 0, ""),
        (0, 0, _) => (minutes, "min", seconds % 60, "s"),
        (0, _, _) => (hours, "h", minutes % 60, "min"),
        (_, _, _) => (days, "d", hours % 24, "h"),
    };
    if rest == 0 {
        format!("{count} {unit}")
    } else {
        format!("{count} {unit} {rest} {unit_of_rest}")
    }
}
