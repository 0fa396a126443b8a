//! Logs refused effects, those that go on for long ever more rarely.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::failure_log::FailureStreak;
use crate::log_node;
use haulout_core::ids::NodeName;
use haulout_core::maintenance::effect::EffectKind;
use haulout_core::maintenance::episode::Record;
use haulout_core::maintenance::observed::AttemptOutcome;

/// The most entries: those of ten thousand nodes, the limit of a count of nodes. Beyond it, a line may be repeated.
const ENTRIES_MAX: usize = 10_000;

/// The refusals in a row of each effect of a node, with the last message.
#[derive(Debug, Default)]
pub struct RefusalLog(Mutex<BTreeMap<(NodeName, EffectKind), (String, FailureStreak)>>);

impl RefusalLog {
    /// Logs the outcome of an attempt, if it is a refusal, or the first success after several.
    pub(super) fn log_outcome(
        &self,
        name: &NodeName,
        record: &Record,
        kind: EffectKind,
        outcome: &AttemptOutcome,
    ) {
        let mut all = self.0.lock();
        let key = (name.clone(), kind);
        let AttemptOutcome::Refused(refusal) = outcome else {
            let before = all.remove(&key).and_then(|(_, mut streak)| streak.ended());
            if let Some(count) = before.filter(|count| *count > 1) {
                log_node!(
                    info,
                    name,
                    record,
                    "could {} after {count} attempts that failed",
                    kind.words()
                );
            }
            return;
        };
        if all.len() >= ENTRIES_MAX {
            all.clear();
        }
        let (message, streak) = all.entry(key).or_default();
        if *message != refusal.message {
            message.clone_from(&refusal.message);
            *streak = FailureStreak::default();
        }
        let Some(count) = streak.failed() else { return };
        let message = &refusal.message;
        match count {
            1 => log_node!(warn, name, record, "tried to {}: {message}", kind.words()),
            _ => log_node!(
                warn,
                name,
                record,
                "tried to {} {count} times: {message}",
                kind.words()
            ),
        }
    }
}
