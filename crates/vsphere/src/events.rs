//! Events that people see in vCenter.

use super::call::SoapCall;
use super::client::Vcenter;
use super::error::Error;
use super::fault::{Fault, FaultKind};
use super::privileges::Entity;
use super::soap;
use super::text::for_people;
use super::xml::write::XmlWriter;
use crate::WritePermit;

impl Vcenter {
    /// Logs an event of our user on `entity` (`EventManager.LogUserEvent`; `proto-notes/events.md`). `message` is sanitized
    /// and cut to 1,000 characters. An event is not worth a login, so it is sent in the live session only.
    ///
    /// # Errors
    /// Every error of a call; [`Error::Login`] without a session. Fault kinds of [`super::fault::FaultKind`]: `NoPermission` without `Global.LogEvent` on
    /// `entity`, `NotSupported` if the server has no event manager. After [`Error::Transport`] it is unknown whether vCenter
    /// has the event.
    pub async fn log_event(
        &self,
        permit: &impl WritePermit,
        entity: &Entity,
        message: &str,
    ) -> Result<(), Error> {
        const METHOD: &str = "LogUserEvent";
        let session = self.sessions.live_or_error()?;
        let entity = entity.moref(&session);
        let Some(manager) = &session.content.event_manager else {
            let fault = Fault::new(FaultKind::NotSupported, "the server has no event manager");
            return Err(Error::refused(METHOD, &entity, fault));
        };
        let call = SoapCall::under(permit, METHOD, manager)
            .with(XmlWriter::moref("entity", &entity))
            .with(XmlWriter::text("msg", for_people(message)));
        self.call_in(&session, &call, soap::nothing).await
    }
}
