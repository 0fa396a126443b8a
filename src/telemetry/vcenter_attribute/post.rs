//! Sets the values: several objects at once, and at the start clears those that an earlier process left.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{ATTRIBUTE, AttributeBoard, Leftovers};
use crate::fence::{WriteFence, WriteKind};
use crate::telemetry::vcenter_events::{EventPermit, PostOutcome};
use crate::vsphere::client::{AttributeDefinition, Error, Vcenter};
use crate::vsphere::fault::FaultKind;
use crate::vsphere::privileges::Entity;

/// Objects whose values are set at once, so that one for which vCenter does not answer holds up few others.
const OBJECTS_AT_ONCE: usize = 4;

/// Pause before the leftovers are read again after a failure.
const LEFTOVERS_PAUSE: Duration = Duration::from_secs(60);

/// Reads and sets values in vCenter.
pub trait SetAttribute: Sync {
    /// Gives `entity` this value, within a deadline.
    fn set(&self, entity: &Entity, value: &str) -> impl Future<Output = PostOutcome> + Send;

    /// The values of those of `entities` that have one.
    fn values(
        &self,
        entities: &[Entity],
    ) -> impl Future<Output = Result<Vec<(Entity, String)>, PostOutcome>> + Send;
}

/// Sets values while this replica leads.
#[derive(Debug)]
pub struct LeaderAttribute {
    vcenter: Vcenter,
    fence: WriteFence,
    /// The definitions of the attribute, once they were read. Without one it is defined.
    definitions: Mutex<Vec<AttributeDefinition>>,
}

impl LeaderAttribute {
    pub fn new(vcenter: Vcenter, fence: WriteFence) -> Self {
        Self {
            vcenter,
            fence,
            definitions: Mutex::default(),
        }
    }

    /// The definitions; empty if there are none.
    async fn read_definitions(&self) -> Result<Vec<AttributeDefinition>, PostOutcome> {
        let mut known = self.definitions.lock().await;
        if known.is_empty() {
            let found = self.vcenter.attribute_definitions(ATTRIBUTE).await;
            *known = in_session(found)?;
        }
        Ok(known.clone())
    }

    /// The definition for `entity`, which is made if nobody has made one.
    async fn definition(
        &self,
        permit: &EventPermit,
        entity: &Entity,
    ) -> Result<AttributeDefinition, PostOutcome> {
        let known = self.read_definitions().await?;
        if let Some(definition) = known.iter().find(|definition| definition.fits(entity)) {
            return Ok(definition.clone());
        }
        if !known.is_empty() {
            let why = format!("it is defined, and not for {}", entity.kind_words());
            return Err(PostOutcome::Refused(why));
        }
        let mut known = self.definitions.lock().await;
        if let Some(definition) = known.first() {
            // Another object was faster.
            return Ok(definition.clone());
        }
        let defined = self.vcenter.define_attribute(permit, ATTRIBUTE).await;
        let definition = in_session(defined)?;
        info!("the custom attribute {ATTRIBUTE} was defined in vCenter, for all types of objects");
        known.push(definition.clone());
        Ok(definition)
    }
}

/// What a call returned, or what follows for the value.
fn in_session<T>(answer: Result<Option<T>, Error>) -> Result<T, PostOutcome> {
    match answer {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(PostOutcome::Later("there is no session".to_owned())),
        Err(error) => {
            let kind = error.fault().map(|fault| &fault.kind);
            let is_final = matches!(
                kind,
                Some(FaultKind::NoPermission | FaultKind::NotSupported | FaultKind::MethodDisabled)
            );
            Err(match is_final {
                true => PostOutcome::Refused(error.chain()),
                false => PostOutcome::Later(error.chain()),
            })
        }
    }
}

impl SetAttribute for LeaderAttribute {
    async fn set(&self, entity: &Entity, value: &str) -> PostOutcome {
        let permit = match self.fence.permit(WriteKind::Effect) {
            Ok(permit) => EventPermit::of(&permit),
            Err(closed) => return PostOutcome::Later(closed.to_string()),
        };
        let definition = match self.definition(&permit, entity).await {
            Ok(definition) => definition,
            Err(outcome) => return outcome,
        };
        let set = self
            .vcenter
            .set_attribute(&permit, &definition, entity, value)
            .await;
        match set.as_ref().err().and_then(Error::fault).map(|fault| &fault.kind) {
            Some(FaultKind::ManagedObjectNotFound) => return PostOutcome::Done,
            // Its definition is gone.
            Some(FaultKind::InvalidArgument) => self.definitions.lock().await.clear(),
            Some(_) | None => {}
        }
        match in_session(set) {
            Ok(()) => PostOutcome::Done,
            Err(outcome) => outcome,
        }
    }

    async fn values(&self, entities: &[Entity]) -> Result<Vec<(Entity, String)>, PostOutcome> {
        let definitions = self.read_definitions().await?;
        if definitions.is_empty() {
            return Ok(Vec::new());
        }
        in_session(self.vcenter.attribute_values(&definitions, entities).await)
    }
}

/// Sets what `board` shows until `stop`.
pub async fn run(port: impl SetAttribute, board: AttributeBoard, stop: CancellationToken) {
    let mut was_refused = false;
    let mut setting = FuturesUnordered::new();
    let mut reading = FuturesUnordered::new();
    loop {
        if let Some(leftovers) = board.take_leftovers() {
            reading.push(read(&port, leftovers, Instant::now()));
        }
        while setting.len() < OBJECTS_AT_ONCE
            && let Some((entity, value)) = board.with(|values| values.take(Instant::now()))
        {
            setting.push(set(&port, entity, value));
        }
        let due = match setting.len() < OBJECTS_AT_ONCE {
            true => board.with(|values| values.next_due()),
            false => None,
        };
        // Priority: shutdown, results, new values.
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some((entity, value, outcome)) = setting.next() => {
                note(&board, &entity, value, outcome, &mut was_refused);
            }
            Some((leftovers, values)) = reading.next() => {
                if let Some(again) = found(leftovers, values, &board) {
                    reading.push(read(&port, again, Instant::now() + LEFTOVERS_PAUSE));
                }
            }
            () = board.0.changed.notified() => {}
            () = until(due) => {}
        }
    }
}

/// Notes the result of setting `value`. The first refusal is logged.
fn note(
    board: &AttributeBoard,
    entity: &Entity,
    value: String,
    outcome: PostOutcome,
    was_refused: &mut bool,
) {
    let now = Instant::now();
    match outcome {
        PostOutcome::Done => board.with(|values| values.set(entity, value, now)),
        PostOutcome::Later(why) => {
            debug!("a custom attribute was not set in vCenter and is tried again: {why}");
            board.with(|values| values.failed(entity, now));
        }
        PostOutcome::Refused(why) => {
            board.with(|values| values.refused(entity, now));
            if !std::mem::replace(was_refused, true) {
                warn!(
                    "the custom attribute {ATTRIBUTE} is not set in vCenter on {}: {why}; maintenance continues without it. Grant \
                     Global.SetCustomField, and define the attribute for all types of objects or grant Global.ManageCustomFields, or \
                     leave attribute out of VCENTER_REPORT",
                    entity.kind_words()
                );
            }
        }
    }
}

async fn set(port: &impl SetAttribute, entity: Entity, value: String) -> (Entity, String, PostOutcome) {
    let outcome = port.set(&entity, &value).await;
    (entity, value, outcome)
}

/// Completes at `time`; without one, never.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Reads the values of objects that may have one left, at `due`.
async fn read(
    port: &impl SetAttribute,
    leftovers: Leftovers,
    due: Instant,
) -> (Leftovers, Result<Vec<(Entity, String)>, PostOutcome>) {
    sleep_until(due).await;
    let entities: Vec<Entity> = leftovers.entities.iter().cloned().collect();
    let values = port.values(&entities).await;
    (leftovers, values)
}

/// Has the values cleared that are ours. Returns the leftovers if they are to be read again.
fn found(
    leftovers: Leftovers,
    read: Result<Vec<(Entity, String)>, PostOutcome>,
    board: &AttributeBoard,
) -> Option<Leftovers> {
    match read {
        Ok(values) => {
            let ours = values.into_iter().filter(|(_, value)| leftovers.is_ours(value));
            let now = Instant::now();
            board.with(|all| ours.for_each(|(entity, value)| all.found(entity, value, now)));
            None
        }
        Err(PostOutcome::Later(why)) => {
            debug!("custom attributes were not read in vCenter and are read again: {why}");
            Some(leftovers)
        }
        // Who may not read them has set none.
        Err(PostOutcome::Refused(_) | PostOutcome::Done) => None,
    }
}

#[cfg(test)]
mod tests;
