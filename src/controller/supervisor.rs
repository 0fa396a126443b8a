//! Starts an actor for each node, hands it its sights, reaps it, and starts it again when it panics.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::node::{ActorContext, NodeActor};
use super::run_effect::RunEffect;
use crate::ids::NodeName;
use crate::maintenance::observed::{NodeSnapshot, SnapshotBatch};

/// How long the actors get to end when the house closes. They stop at their next await; more time would only hide one
/// that does not.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// How long an actor that panicked stays down: what made it panic is probably still there, and must not spin.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The actors of all nodes.
#[derive(Debug)]
pub struct Supervisor<P> {
    shared: Arc<ActorContext<P>>,
    handles: BTreeMap<NodeName, Handle>,
    actors: JoinSet<()>,
    names: HashMap<Id, NodeName>,
    stop: CancellationToken,
}

/// One actor, as its supervisor holds it.
#[derive(Debug)]
struct Handle {
    task: Id,
    sights: watch::Sender<Arc<NodeSnapshot>>,
    stop: CancellationToken,
}

impl<P: RunEffect> Supervisor<P> {
    /// A supervisor without actors.
    pub fn new(shared: ActorContext<P>, stop: &CancellationToken) -> Self {
        Self {
            shared: Arc::new(shared),
            handles: BTreeMap::new(),
            actors: JoinSet::new(),
            names: HashMap::new(),
            stop: stop.child_token(),
        }
    }

    /// Hands each node's actor its sight, starts actors for nodes that have none, and ends those of nodes that are gone.
    pub fn show(&mut self, pictures: SnapshotBatch) {
        self.handles.retain(|name, handle| {
            let stays = pictures.keeps(name);
            if !stays {
                handle.stop.cancel();
            }
            stays
        });
        for (name, sight) in pictures.snapshots {
            match self.handles.get(&name) {
                Some(handle) => {
                    handle.sights.send_if_modified(|standing| {
                        let changed = **standing != sight;
                        if changed {
                            *standing = Arc::new(sight);
                        }
                        changed
                    });
                }
                None => self.start(name, Arc::new(sight), Duration::ZERO),
            }
        }
    }

    /// Waits for an actor to end, and starts it again if it ended by a panic. Never comes back while there are none, so
    /// that it can stand in a `select!`.
    pub async fn reap(&mut self) {
        let Some(ended) = self.actors.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let (id, panicked) = match ended {
            Ok((id, ())) => (id, None),
            Err(error) => (error.id(), Some(error)),
        };
        let Some(name) = self.names.remove(&id) else {
            return;
        };
        let Some(handle) = self.handles.get(&name).filter(|handle| handle.task == id) else {
            debug!(node = %name, "the actor of a node that is gone has ended");
            return;
        };
        if let Some(panic) = panicked {
            error!(node = %name, "the actor of this node panicked and is started again: {panic}");
        } else if self.stop.is_cancelled() {
            return;
        } else {
            warn!(node = %name, "the actor of this node ended without being asked, and is started again");
        }
        let sight = Arc::clone(&handle.sights.borrow());
        self.start(name, sight, RESTART_PAUSE);
    }

    /// Stops all actors, and says which did not stop in time.
    pub async fn close(mut self) {
        self.stop.cancel();
        let all = async { while self.actors.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_GRACE, all).await.is_err() {
            warn!(
                "{} actors did not stop within {STOP_GRACE:?} and are dropped",
                self.actors.len()
            );
        }
    }

    fn start(&mut self, name: NodeName, sight: Arc<NodeSnapshot>, pause: Duration) {
        let (sender, receiver) = watch::channel(sight);
        let stop = self.stop.child_token();
        let actor = NodeActor::new(name.clone(), Arc::clone(&self.shared), receiver, stop.clone());
        let running = async move {
            tokio::time::sleep(pause).await;
            actor.run().await;
        };
        let task = self.actors.spawn(running).id();
        self.names.insert(task, name.clone());
        self.handles.insert(
            name,
            Handle {
                task,
                sights: sender,
                stop,
            },
        );
    }
}
