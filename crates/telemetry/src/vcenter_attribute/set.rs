//! Sets and reads values in vCenter. The attribute is defined at the first value, if nobody has defined it.

use tokio::sync::Mutex;
use tracing::{debug, info, warn};

use super::ATTRIBUTE;
use super::leftovers::ReadValues;
use crate::sink::{Delivery, Sink, SinkReport};
use crate::vcenter_events::{EventPermit, delivery_of, is_gone};
use haulout_kubernetes::fence::WriteFence;
use haulout_vsphere::AttributeDefinition;
use haulout_vsphere::client::Vcenter;
use haulout_vsphere::fault::FaultKind;
use haulout_vsphere::privileges::Entity;

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
    async fn read_definitions(&self) -> Result<Vec<AttributeDefinition>, Delivery> {
        let mut known = self.definitions.lock().await;
        if known.is_empty() {
            let found = self.vcenter.attribute_definitions(ATTRIBUTE).await;
            *known = found.map_err(delivery_of)?;
        }
        Ok(known.clone())
    }

    /// The definition for `entity`, which is made if nobody has made one.
    async fn definition(
        &self,
        permit: &EventPermit,
        entity: &Entity,
    ) -> Result<AttributeDefinition, Delivery> {
        let known = self.read_definitions().await?;
        if let Some(definition) = known.iter().find(|definition| definition.fits(entity)) {
            return Ok(definition.clone());
        }
        if !known.is_empty() {
            let why = format!("it is defined, and not for {}", entity.kind_words());
            return Err(Delivery::Refused(why));
        }
        let mut known = self.definitions.lock().await;
        if let Some(definition) = known.first() {
            // Another object was faster.
            return Ok(definition.clone());
        }
        let defined = self.vcenter.define_attribute(permit, ATTRIBUTE).await;
        let definition = defined.map_err(delivery_of)?;
        info!("the custom attribute {ATTRIBUTE} was defined in vCenter, for all types of objects");
        known.push(definition.clone());
        Ok(definition)
    }

    async fn set(&self, entity: &Entity, value: &str) -> Result<(), Delivery> {
        let permit = EventPermit::of(&self.fence)?;
        let definition = self.definition(&permit, entity).await?;
        let set = self
            .vcenter
            .set_attribute(&permit, &definition, entity, value)
            .await;
        match &set {
            Err(error) if is_gone(error) => return Ok(()),
            // Its definition is gone.
            Err(error)
                if error
                    .fault()
                    .is_some_and(|it| it.kind == FaultKind::InvalidArgument) =>
            {
                self.definitions.lock().await.clear();
            }
            Ok(_) | Err(_) => {}
        }
        set.map_err(delivery_of)
    }
}

impl Sink for LeaderAttribute {
    type Key = Entity;
    type Value = String;

    async fn put(&self, entity: &Entity, value: &String) -> Delivery {
        match self.set(entity, value).await {
            Ok(()) => Delivery::Done,
            Err(delivery) => delivery,
        }
    }

    fn log(&self, entity: &Entity, report: SinkReport<'_>) {
        match report {
            SinkReport::Later { why } | SinkReport::Lost { why, .. } => {
                debug!("a custom attribute was not set in vCenter and is tried again: {why}");
            }
            SinkReport::Recovered { .. } => {}
            SinkReport::Refused { why } => warn!(
                "the custom attribute {ATTRIBUTE} is not set in vCenter on {}: {why}; maintenance continues without it. Grant \
                 Global.SetCustomField, and define the attribute for all types of objects or grant Global.ManageCustomFields, or \
                 leave attribute out of VCENTER_REPORT",
                entity.kind_words()
            ),
        }
    }
}

impl ReadValues for LeaderAttribute {
    async fn values(&self, entities: &[Entity]) -> Result<Vec<(Entity, String)>, Delivery> {
        let definitions = self.read_definitions().await?;
        if definitions.is_empty() {
            return Ok(Vec::new());
        }
        let values = self.vcenter.attribute_values(&definitions, entities).await;
        values.map_err(delivery_of)
    }
}
