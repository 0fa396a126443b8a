//! Stand-ins for controllers that are not built from a module and that act on a Node during its maintenance. Each follows
//! the source that its file names.

mod autoscaler;
mod driver_manager;
mod node_health_check;

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::fixture::{Fixture, label};

pub use autoscaler::{SCALE_DOWN_DISABLED, start as start_autoscaler};
pub use driver_manager::{MANAGER, start as start_driver_manager};
pub use node_health_check::{FENCE_AGENT, start as start_node_health_check};

/// How often a stand-in looks at the Nodes.
const PERIOD: Duration = Duration::from_millis(200);

/// A running stand-in. Dropping it ends it.
#[derive(Debug)]
pub struct StandIn {
    task: JoinHandle<()>,
    decisions: watch::Receiver<Decisions>,
}

/// How often a stand-in has decided this.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Decisions {
    /// It acted on a Node.
    pub acted: usize,
    /// It would have acted, but for the annotation or label that excludes the Node.
    pub excluded: usize,
}

impl StandIn {
    /// Runs `round` again and again.
    fn run(mut round: impl AsyncRound) -> Self {
        let (sender, decisions) = watch::channel(Decisions::default());
        let task = tokio::spawn(async move {
            loop {
                let mut decided = *sender.borrow();
                if let Err(error) = round.round(&mut decided).await {
                    tracing::debug!(error = format!("{error:#}"), "a round of a stand-in failed");
                }
                sender.send_replace(decided);
                tokio::time::sleep(PERIOD).await;
            }
        });
        Self { task, decisions }
    }

    /// The decisions so far.
    pub fn decisions(&self) -> Decisions {
        *self.decisions.borrow()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One look at all Nodes.
trait AsyncRound: Send + 'static {
    fn round(&mut self, decided: &mut Decisions) -> impl Future<Output = anyhow::Result<()>> + Send;
}

#[derive(Clone)]
struct FixtureNodes {
    api: Api<Node>,
    label: String,
}

impl FixtureNodes {
    fn of(fixture: &Fixture<'_>) -> Self {
        Self {
            api: Api::all(fixture.client()),
            label: label(fixture.name()),
        }
    }

    async fn list(&self) -> anyhow::Result<Vec<Node>> {
        let params = ListParams::default().labels(&self.label);
        Ok(self.api.list(&params).await?.items)
    }
}
