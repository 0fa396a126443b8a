//! The check before a relocate (`CheckRelocate_Task`).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::call::SoapCall;
use crate::client::Vcenter;
use crate::error::Error;
use crate::fault::Fault;
use crate::fault::check_result::CheckFindings;
use crate::moref::Moref;
use crate::power::{StartedTask, read_started};
use crate::property::{ObjectProperties, PropertySpec, Value};
use crate::session::Session;
use crate::task::{self, RESULT};
use crate::update::TaskState;
use crate::xml::write::XmlWriter;
use haulout_core::ids::{TaskRef, VmRef};

const METHOD: &str = "CheckRelocate_Task";

/// How long a check may take. It only reads; the relocate makes the same checks, so that nothing is lost without it.
const DEADLINE: Duration = Duration::from_secs(10);
/// The first pause between two reads of the task. It doubles.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Vcenter {
    /// Why vCenter would refuse this relocate; `None` if it would not, or if the check is not possible. Warnings are logged.
    pub(super) async fn relocate_objection(
        &self,
        session: &Arc<Session>,
        vm: &VmRef,
        spec: &XmlWriter,
    ) -> Option<Fault> {
        let checker = session.content.provisioning_checker.as_ref()?;
        let call = SoapCall::to(METHOD, checker)
            .with(XmlWriter::moref("vm", &vm.into()))
            .with(spec.clone());
        let work = async {
            match self.call_in(session, &call, read_started).await? {
                StartedTask::Running(task) => self.findings_of(&task).await,
                StartedTask::AlreadyThere => Ok(CheckFindings::default()),
            }
        };
        let found = match timeout(DEADLINE, work).await {
            Ok(found) => found.map_err(|error| error.chain()),
            Err(_elapsed) => Err(format!("it has not ended within {} s", DEADLINE.as_secs())),
        };
        match found {
            Ok(findings) => {
                for warning in &findings.warnings {
                    tracing::info!(%vm, "vCenter warns of the relocation: {warning}");
                }
                objection(findings.errors)
            }
            Err(why) => {
                // A missing privilege or method concerns all relocations.
                if self.tells_once() {
                    tracing::info!(%vm, "relocations are not checked before they begin: {METHOD}: {why}");
                } else {
                    tracing::debug!(%vm, "the relocation is not checked: {METHOD}: {why}");
                }
                None
            }
        }
    }

    /// The findings of a check, when its task has ended.
    async fn findings_of(&self, task: &TaskRef) -> Result<CheckFindings, Error> {
        let moref = Moref::from(task);
        let mut pause = PAUSE_MIN;
        loop {
            let spec = PropertySpec::default()
                .read_properties("Task", &[task::PATHS, &[RESULT]].concat())
                .select_object(&moref, []);
            let objects = self.retrieve(spec).await?;
            let object = objects.iter().find(|object| object.moref == moref);
            let state = object.map(|object| task::read_task(object, None).map(|task| task.state));
            let unreadable = |source| SoapCall::to("RetrievePropertiesEx", &moref).unreadable(source);
            match state.transpose().map_err(unreadable)? {
                Some(TaskState::Success) => return Ok(object.map(found).unwrap_or_default()),
                Some(TaskState::Error(fault)) => return Err(Error::refused(METHOD, &moref, fault)),
                Some(TaskState::Queued | TaskState::Running) | None => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

fn found(task: &ObjectProperties) -> CheckFindings {
    let findings = task.get(RESULT).and_then(Value::findings);
    findings.cloned().unwrap_or_default()
}

/// The first error, with the number of the others.
fn objection(errors: Vec<Fault>) -> Option<Fault> {
    let others = errors.len().saturating_sub(1);
    let mut first = errors.into_iter().next()?;
    if others > 0 {
        first.message = format!("{} (and {others} more)", first.message);
    }
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind;

    #[test]
    fn first_error_is_the_objection_and_the_others_are_counted() {
        let fault = |message: &str| Fault::new(FaultKind::VmConfig, message);
        assert_eq!(objection(Vec::new()), None);
        assert_eq!(objection(vec![fault("a")]), Some(fault("a")));
        let three = vec![fault("a"), fault("b"), fault("c")];
        assert_eq!(objection(three), Some(fault("a (and 2 more)")));
    }
}
