//! Runs one watch for each wanted object.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::WatchContext;
use crate::kubernetes::answer;

/// Runs `follow` for each of `wanted` until it is no longer wanted; all end at the stop of `context`. If one panics, all are
/// restarted after a pause.
pub(super) async fn steered<Key, Following>(
    what: &str,
    mut wanted: watch::Receiver<BTreeSet<Key>>,
    context: &WatchContext,
    follow: impl Fn(Key, WatchContext) -> Following,
) where
    Key: Clone + Ord,
    Following: Future<Output = ()> + Send + 'static,
{
    let mut tasks: JoinSet<()> = JoinSet::new();
    let mut followed: BTreeMap<Key, CancellationToken> = BTreeMap::new();
    let mut is_steered = true;
    loop {
        let keys = wanted.borrow_and_update().clone();
        followed.retain(|key, token| {
            let is_wanted = keys.contains(key);
            if !is_wanted {
                token.cancel();
            }
            is_wanted
        });
        for key in keys {
            followed.entry(key.clone()).or_insert_with(|| {
                let stop = context.stop.child_token();
                let context = WatchContext {
                    stop: stop.clone(),
                    ..context.clone()
                };
                tasks.spawn(follow(key, context));
                stop
            });
        }
        tokio::select! {
            biased;
            () = context.stop.cancelled() => break,
            // A task ends by itself only when the receiver is gone; a stopped one is already removed from `followed`.
            Some(ended) = tasks.join_next() => if let Err(error) = ended {
                // It is unknown which one failed, so all are restarted.
                tracing::error!(error = %answer::chain(&error), "a watch of {what} failed; all watches of {what} are restarted");
                for token in std::mem::take(&mut followed).into_values() {
                    token.cancel();
                }
                if !context.pause(context.settings.backoff_min).await {
                    break;
                }
            },
            changed = wanted.changed(), if is_steered => is_steered = changed.is_ok(),
        }
    }
    while tasks.join_next().await.is_some() {}
}
