//! Values of episodes that ended while nobody could clear them. They are read once at the start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;

use super::AttributeBoard;
use crate::sink::Delivery;
use crate::vcenter_events::text::BEGINS;
use crate::vcenter_events::text::objects_of;
use haulout_core::ids::{HostRef, NodeName};
use haulout_core::maintenance::episode::Record;
use haulout_core::status::{NodeStatus, NodeStatuses};
use haulout_vsphere::privileges::Entity;

/// Pause before they are read again after a failure.
const PAUSE: Duration = Duration::from_secs(60);

/// Reads values in vCenter.
pub(super) trait ReadValues: Sync {
    /// The values of those of `entities` that have one.
    fn values(
        &self,
        entities: &[Entity],
    ) -> impl Future<Output = Result<Vec<(Entity, String)>, Delivery>> + Send;
}

/// Objects that may have a value of ours.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Leftovers {
    /// The nodes that were looked at. A value is ours if it names one of them: other releases have others.
    pub(super) nodes: BTreeSet<NodeName>,
    /// The objects that have to be read.
    pub(super) entities: BTreeSet<Entity>,
}

impl Leftovers {
    /// Adds the nodes of these statuses that were not looked at before. Returns whether there are any.
    pub(super) fn add(&mut self, statuses: &NodeStatuses, hosts: impl FnOnce() -> Vec<HostRef>) -> bool {
        let is_new = |node: &NodeName, status: &NodeStatus| {
            status.is_known && status.vm.found().is_some() && !self.nodes.contains(node)
        };
        let new: Vec<(&NodeName, &Arc<NodeStatus>)> = statuses
            .iter()
            .filter(|(node, status)| is_new(node, status))
            .collect();
        if new.is_empty() {
            return false;
        }
        let vms = new.iter().filter_map(|(_, status)| status.vm.found());
        self.entities.extend(vms.map(|vm| Entity::Vm(vm.moref.clone())));
        self.entities.extend(hosts().into_iter().map(Entity::Host));
        self.nodes.extend(new.into_iter().map(|(node, _)| node.clone()));
        let records = statuses.values().map(|status| &status.record);
        for entity in records.filter_map(Record::episode).flat_map(objects_of) {
            self.entities.remove(&entity);
        }
        true
    }

    /// Whether `value` is one that Haulout set for one of these nodes.
    pub(super) fn is_ours(&self, value: &str) -> bool {
        let node = value.strip_prefix(BEGINS).and_then(|rest| rest.split(',').next());
        node.is_some_and(|node| self.nodes.contains(&NodeName::new(node)))
    }
}

/// Has the values of ours cleared, as often as there are new leftovers.
pub(super) async fn clear(port: &impl ReadValues, board: &AttributeBoard) {
    loop {
        board.0.are_found.notified().await;
        loop {
            let entities = std::mem::take(&mut board.0.leftovers.lock().entities);
            let entities: Vec<Entity> = entities.into_iter().collect();
            if entities.is_empty() {
                break;
            }
            match port.values(&entities).await {
                Ok(values) => {
                    let leftovers = board.0.leftovers.lock();
                    for (entity, _) in values.into_iter().filter(|(_, value)| leftovers.is_ours(value)) {
                        board.0.outbox.push_first(entity, String::new());
                    }
                }
                Err(Delivery::Later(why)) => {
                    debug!("custom attributes were not read in vCenter and are read again: {why}");
                    board.0.leftovers.lock().entities.extend(entities);
                    sleep(PAUSE).await;
                }
                // Who may not read them has set none.
                Err(Delivery::Refused(_) | Delivery::Rejected(_) | Delivery::Done) => {}
            }
        }
    }
}
