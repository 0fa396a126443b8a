//! Events on the host and the VM of an episode, for people who look at vCenter. A change of phase and each different wait is one event.

pub(super) mod text;

use std::time::Duration;

use tracing::{debug, warn};

use super::sink::{Delivery, Keep, Outbox, Pace, Sink, SinkKey, SinkReport};
use crate::link::Links;
use haulout_controller::observer::Observer;
use haulout_core::ids::NodeName;
use haulout_core::status::story::Beat;
use haulout_kubernetes::fence::{WriteFence, WriteKind};
use haulout_vsphere::WritePermit;
use haulout_vsphere::client::{Error, Vcenter};
use haulout_vsphere::fault::FaultKind;
use haulout_vsphere::privileges::Entity;

/// vCenter keeps each event for a month, and budgets and hosts may change back and forth for hours. A restart of vCenter takes up to a
/// quarter of an hour: 30 attempts take twice that. Each episode takes minutes, so more ends than eight are not expected within that.
const PACE: Pace = Pace {
    at_once: 4,
    pause_min: Duration::from_secs(3),
    pause_max: Duration::from_secs(60),
    keep: Keep::Each {
        tries: 30,
        max_final: 8,
    },
};

/// The events of a node on one of its objects.
pub type EventsOutbox = Outbox<(NodeName, Entity), String>;

impl SinkKey for (NodeName, Entity) {
    fn group(&self) -> &'static str {
        self.1.kind_words()
    }
}

/// Queues the story of each node.
#[derive(Debug)]
pub struct VcenterEvents {
    outbox: EventsOutbox,
    links: Links,
}

impl VcenterEvents {
    pub fn new(links: Links) -> Self {
        Self {
            outbox: Outbox::new(PACE),
            links,
        }
    }

    pub fn outbox(&self) -> EventsOutbox {
        self.outbox.clone()
    }
}

impl Observer for VcenterEvents {
    fn observe(&self, node: &NodeName, beat: &Beat<'_>) {
        let Some(logged) = text::logged_text(node, beat, &self.links) else {
            return;
        };
        for entity in logged.on {
            let key = (node.clone(), entity);
            self.outbox.push(key, logged.text.clone(), logged.urgency);
        }
    }
}

/// Logs events while this replica leads.
#[derive(Debug)]
pub struct LeaderLog {
    pub vcenter: Vcenter,
    pub fence: WriteFence,
}

/// The leadership in which an event is logged. It is not held during the call: nothing depends on an event, so
/// a late one is harmless, and a call without an answer must not hold up the release of the Lease.
#[derive(Debug)]
pub(super) struct EventPermit {
    epoch: u64,
}

impl EventPermit {
    /// # Errors
    /// Another replica leads.
    pub(super) fn of(fence: &WriteFence) -> Result<Self, Delivery> {
        match fence.permit(WriteKind::Effect) {
            Ok(permit) => Ok(Self {
                epoch: permit.epoch(),
            }),
            Err(closed) => Err(Delivery::Later(closed.to_string())),
        }
    }
}

impl WritePermit for EventPermit {
    fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// What follows from a failed call for what people are shown in vCenter.
pub(super) fn delivery_of(error: Error) -> Delivery {
    let kind = error.fault().map(|fault| &fault.kind);
    let is_final = matches!(
        kind,
        Some(FaultKind::NoPermission | FaultKind::NotSupported | FaultKind::MethodDisabled)
    );
    match is_final {
        true => Delivery::Refused(error.chain()),
        false => Delivery::Later(error.chain()),
    }
}

/// Whether the object is gone, so that it needs nothing more.
pub(super) fn is_gone(error: &Error) -> bool {
    let fault = error.fault();
    fault.is_some_and(|fault| fault.kind == FaultKind::ManagedObjectNotFound)
}

impl Sink for LeaderLog {
    type Key = (NodeName, Entity);
    type Value = String;

    async fn put(&self, (node, entity): &Self::Key, text: &String) -> Delivery {
        let permit = match EventPermit::of(&self.fence) {
            Ok(permit) => permit,
            Err(closed) => return closed,
        };
        let vcenter = self.vcenter.for_subject(node.as_str());
        match vcenter.log_event(&permit, entity, text).await {
            Ok(()) => Delivery::Done,
            Err(error) if is_gone(&error) => Delivery::Done,
            Err(error) => delivery_of(error),
        }
    }

    fn log(&self, (node, entity): &Self::Key, report: SinkReport<'_>) {
        match report {
            SinkReport::Later { why } => {
                debug!(%node, "an event was not logged in vCenter and is tried again: {why}");
            }
            SinkReport::Lost { why, count } => warn!(
                %node,
                lost = count,
                "an event was not logged in vCenter and is not tried again: {why}; what happens is in the log"
            ),
            SinkReport::Recovered { count } => {
                debug!(%node, "events are logged in vCenter again; {count} were lost meanwhile");
            }
            SinkReport::Refused { why } => warn!(
                "events are not logged in vCenter on {}: {why}; maintenance continues without them. Grant Global.LogEvent, or leave \
                 events out of VCENTER_REPORT",
                entity.kind_words()
            ),
        }
    }
}
