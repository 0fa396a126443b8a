//! The duration of an episode in four parts.

use jiff::SignedDuration;

use crate::maintenance::episode::Episode;
use crate::status::{PhaseKind, Took};

/// The finished phases of `episode`, such as ` (drain 4m, host 2h)`. Empty if the history is not complete, because the
/// parts would not add up.
pub(super) fn parts(episode: &Episode) -> String {
    let history = &episode.history;
    let first = history.finished.first();
    if history.origin.adopted || first.is_none_or(|first| first.since != episode.begun_at) {
        return String::new();
    }
    let part = |name: &str, is_part: fn(PhaseKind) -> bool| {
        let phases = history.finished.iter();
        let spent = phases
            .filter(|it| is_part(it.phase.at_work().kind()))
            .map(|it| it.until.duration_since(it.since).max(SignedDuration::ZERO))
            .fold(SignedDuration::ZERO, SignedDuration::saturating_add);
        (!spent.is_zero()).then(|| format!("{name} {}", Took(spent)))
    };
    // A person decides how long a node stays drained, so that is no part.
    let parts = [
        part("queue", |kind| kind == PhaseKind::Queued),
        part("drain", PhaseKind::is_draining),
        part("host", PhaseKind::is_waiting_for_host),
        part("boot", PhaseKind::is_coming_back),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        return String::new();
    }
    format!(" ({})", parts.join(", "))
}
