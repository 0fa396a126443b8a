//! Starts an actor for each node, gives it its snapshots, and starts it again when it panics.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::node::{ActorContext, NodeActor};
use super::run_effect::RunEffect;
use haulout_core::ids::NodeName;
use haulout_core::maintenance::observed::{NodeSnapshot, Snapshots};

/// How long the actors get to end at shutdown. They stop at their next await; more time would only hide one that does not.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// The pause before an actor that panicked is started again: the cause is probably still there.
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
    snapshots: watch::Sender<Arc<NodeSnapshot>>,
    stop: CancellationToken,
}

impl<P: RunEffect> Supervisor<P> {
    pub fn new(shared: ActorContext<P>, stop: &CancellationToken) -> Self {
        Self {
            shared: Arc::new(shared),
            handles: BTreeMap::new(),
            actors: JoinSet::new(),
            names: HashMap::new(),
            stop: stop.child_token(),
        }
    }

    /// Gives each node's actor its snapshot, starts actors for nodes that have none, and stops those of nodes that are gone.
    pub fn update_snapshots(&mut self, snapshots: Snapshots) {
        self.handles.retain(|name, handle| {
            let stays = snapshots.contains_key(name);
            if !stays {
                handle.stop.cancel();
            }
            stays
        });
        for (name, snapshot) in snapshots {
            match self.handles.get(&name) {
                Some(handle) => send_if_changed(&handle.snapshots, snapshot),
                None => self.start(name, snapshot, Duration::ZERO),
            }
        }
    }

    /// Waits for an actor to end, and starts it again if it panicked. Never returns while there are none, so that it can be a
    /// branch of a `select!`.
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
        let snapshot = Arc::clone(&handle.snapshots.borrow());
        self.start(name, snapshot, RESTART_PAUSE);
    }

    /// Stops all actors, and logs how many did not stop in time.
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

    fn start(&mut self, name: NodeName, snapshot: Arc<NodeSnapshot>, pause: Duration) {
        let (sender, receiver) = watch::channel(snapshot);
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
                snapshots: sender,
                stop,
            },
        );
    }
}

/// Sends `value`, unless the receivers have an equal one.
pub(super) fn send_if_changed<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|current| {
        let is_changed = *current != value;
        if is_changed {
            *current = value;
        }
        is_changed
    });
}
