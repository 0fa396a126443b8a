//! One watch for each thing that is wanted at the moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::pause;
use crate::kubernetes::answer;

/// Runs `follow` for each of `wanted`, and stops it when that is wanted no longer; all of them at `stop`. Should one panic,
/// all begin anew after `breath`.
pub(super) async fn steered<Key, Following>(
    what: &str,
    mut wanted: watch::Receiver<BTreeSet<Key>>,
    breath: Duration,
    stop: &CancellationToken,
    follow: impl Fn(Key, CancellationToken) -> Following,
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
                let token = stop.child_token();
                tasks.spawn(follow(key, token.clone()));
                token
            });
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            // A task ends by itself only when nobody listens; one that we stopped is forgotten already.
            Some(ended) = tasks.join_next() => if let Err(error) = ended {
                // Which one it was is unknown, so all are started anew, each with a fresh look at what it follows.
                tracing::error!(error = %answer::chain(&error), "a watch of {what} failed; all watches of {what} are restarted");
                for token in std::mem::take(&mut followed).into_values() {
                    token.cancel();
                }
                if !pause(stop, breath).await {
                    break;
                }
            },
            changed = wanted.changed(), if is_steered => is_steered = changed.is_ok(),
        }
    }
    while tasks.join_next().await.is_some() {}
}
