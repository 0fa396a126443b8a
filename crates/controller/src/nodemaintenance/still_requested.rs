//! Whether a request still stands. It is read right before power is cut for it, because a watch that is silent shows a request that
//! was withdrawn minutes ago.

use std::time::Duration;

use kube::api::{Api, ApiResource, ListParams};
use thiserror::Error;

use super::foreign;
use super::kind::NodeMaintenance;
use haulout_core::maintenance::effect::PowerOffCause;
use haulout_core::maintenance::request::RequestIdentity;
use haulout_kubernetes::answer;

/// The deadline of the read, as that of a write.
const READ_DEADLINE: Duration = Duration::from_secs(10);

/// Why power is not cut for a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RequestCheckError {
    /// It does not exist any more, or is being deleted.
    #[error("NodeMaintenance {name} was withdrawn; nothing was sent")]
    Withdrawn { name: String },
    /// It could not be read.
    #[error(
        "whether NodeMaintenance {name} still stands is unknown: {message}; nothing was sent, and it is tried again"
    )]
    Unknown { name: String, message: String },
}

/// Checks that power may be cut, if a request asks for it.
pub(crate) async fn check_cause(
    client: &kube::Client,
    cause: &PowerOffCause,
) -> Result<(), RequestCheckError> {
    match cause {
        PowerOffCause::Request(Some(request)) => check(client, request).await,
        // The client of vCenter checks the host.
        PowerOffCause::Request(None) | PowerOffCause::Host { .. } => Ok(()),
    }
}

/// Checks that the request still stands. It is a list, because the rights of Haulout have no `get`, and without `resourceVersion`, so
/// that the read is consistent.
async fn check(client: &kube::Client, request: &RequestIdentity) -> Result<(), RequestCheckError> {
    let name = request.name.clone();
    let unknown = |message: String| RequestCheckError::Unknown {
        name: name.clone(),
        message,
    };
    let objects = match &request.foreign {
        Some(origin) => foreign::api_of(client, origin),
        None => Some(Api::all_with(
            client.clone(),
            &ApiResource::erase::<NodeMaintenance>(&()),
        )),
    };
    let objects = objects.ok_or_else(|| unknown("its namespace is not a valid name".to_owned()))?;
    let params = ListParams::default().fields(&format!("metadata.name={name}"));
    let listed = answer::within(READ_DEADLINE, objects.list(&params)).await;
    let listed = listed.map_err(|refusal| unknown(refusal.to_string()))?;
    let stands = listed.items.iter().any(|object| {
        let metadata = &object.metadata;
        metadata.uid.as_deref() == Some(request.uid.as_str()) && metadata.deletion_timestamp.is_none()
    });
    if stands {
        Ok(())
    } else {
        Err(RequestCheckError::Withdrawn { name })
    }
}

#[cfg(test)]
mod tests;
