//! Runs one watch for each wanted object.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::WatchContext;
use crate::answer;

/// Runs `run` for each of `wanted` until it is no longer wanted; all end at the stop of `context`. If one panics, all are
/// restarted after a pause.
pub(super) async fn watch_each<Key, Run>(
    what: &str,
    mut wanted: watch::Receiver<BTreeSet<Key>>,
    context: &WatchContext,
    run: impl Fn(Key, WatchContext) -> Run,
) where
    Key: Clone + Ord,
    Run: Future<Output = ()> + Send + 'static,
{
    let mut tasks: JoinSet<()> = JoinSet::new();
    let mut running: BTreeMap<Key, CancellationToken> = BTreeMap::new();
    let mut may_change = true;
    loop {
        let keys = wanted.borrow_and_update().clone();
        running.retain(|key, token| {
            let is_wanted = keys.contains(key);
            if !is_wanted {
                token.cancel();
            }
            is_wanted
        });
        for key in keys {
            running.entry(key.clone()).or_insert_with(|| {
                let stop = context.stop.child_token();
                let context = WatchContext {
                    stop: stop.clone(),
                    ..context.clone()
                };
                tasks.spawn(run(key, context));
                stop
            });
        }
        tokio::select! {
            biased;
            () = context.stop.cancelled() => break,
            // A task ends by itself only when the receiver is gone; a stopped one is already removed from `running`.
            Some(ended) = tasks.join_next() => if let Err(error) = ended {
                // It is unknown which one failed, so all are restarted.
                tracing::error!(error = %answer::chain(&error), "a watch of {what} failed; all watches of {what} are restarted");
                for token in std::mem::take(&mut running).into_values() {
                    token.cancel();
                }
                if !context.pause(context.settings.backoff_min).await {
                    break;
                }
            },
            changed = wanted.changed(), if may_change => may_change = changed.is_ok(),
        }
    }
    while tasks.join_next().await.is_some() {}
}
