//! Compute policies by which vCenter itself shuts VMs down when their host enters maintenance mode. The SOAP API does not show them.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::client::Vcenter;
use super::error::{Error, TransportError};
use super::moref::Moref;
use super::soap::ReplyError;
use super::text;
use super::transport::Transport;
use haulout_core::ids::VmRef;

/// The maximum number of policies of this kind that are read. vCenter has at most 100 compute policies (VMware Configuration Maximums,
/// vSphere 8.0), of which these are a few.
const MAX_POLICIES: usize = 100;

/// The header with the token of a session of the REST API.
const SESSION_ID: HeaderName = HeaderName::from_static("vmware-api-session-id");

/// What the errors say that was asked.
const REST_API: &str = "the REST API";

/// A compute policy by which vCenter shuts VMs down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvacuationPolicy {
    /// Its name, for display.
    pub name: String,
    /// The VMs with its tag.
    pub vms: BTreeSet<VmRef>,
}

#[derive(Deserialize)]
struct Summary {
    policy: String,
    #[serde(default)]
    name: String,
    capability: String,
}

#[derive(Deserialize)]
struct Info {
    vm_tag: Option<String>,
}

#[derive(Deserialize)]
struct TaggedObject {
    id: String,
    #[serde(rename = "type")]
    kind: String,
}

/// One session of the REST API.
struct RestSession<'a> {
    vcenter: &'a Vcenter,
    transport: Transport,
    token: SecretString,
}

impl Vcenter {
    /// Reads which VMs are shut down by a compute policy (`GET /api/vcenter/compute/policies`), in a session of its own that is ended
    /// afterwards.
    ///
    /// # Errors
    /// Those of a call; [`Error::is_not_there`] for a vCenter without compute policies.
    pub async fn evacuation_policies(&self) -> Result<Vec<EvacuationPolicy>, Error> {
        let session = RestSession::begin(self).await?;
        let policies = session.evacuation_policies().await;
        session.end().await;
        policies
    }
}

impl<'a> RestSession<'a> {
    async fn begin(vcenter: &'a Vcenter) -> Result<Self, Error> {
        const CALL: &str = "POST /api/session";
        let login = |error| vcenter.sessions.failed(Arc::new(error));
        let credentials = vcenter.settings.credentials.read().map_err(login)?;
        let transport = vcenter.sessions.transport().map_err(login)?;
        let url = vcenter.settings.endpoint.rest(&["api", "session"]);
        let pair = format!("{}:{}", credentials.user, credentials.password.expose_secret());
        let authorization = (AUTHORIZATION, secret(&format!("Basic {}", STANDARD.encode(pair))));
        let deadline = vcenter.settings.call_deadline;
        let body = transport.rest(Method::POST, url, authorization, deadline).await;
        let token: String = read_reply(CALL, body)?;
        Ok(Self {
            vcenter,
            transport,
            token: token.into(),
        })
    }

    async fn evacuation_policies(&self) -> Result<Vec<EvacuationPolicy>, Error> {
        const POLICIES: &[&str] = &["api", "vcenter", "compute", "policies"];
        const LIST: &str = "GET /api/vcenter/compute/policies";
        const GET: &str = "GET /api/vcenter/compute/policies/{policy}";
        const TAGGED: &str = "POST /api/cis/tagging/tag-association/{tag}";
        let all: Vec<Summary> = self.call(Method::GET, LIST, POLICIES, None).await?;
        let mut policies = Vec::new();
        for summary in all.into_iter().filter(Summary::shuts_down).take(MAX_POLICIES) {
            let path = [POLICIES, &[&*summary.policy]].concat();
            // A policy, or its tag, may be deleted meanwhile.
            let Some(info): Option<Info> = if_there(self.call(Method::GET, GET, &path, None).await)? else {
                continue;
            };
            let Some(tag) = info.vm_tag else { continue };
            let path = ["api", "cis", "tagging", "tag-association", &*tag];
            let action = Some(("action", "list-attached-objects"));
            let tagged: Option<Vec<TaggedObject>> =
                if_there(self.call(Method::POST, TAGGED, &path, action).await)?;
            let Some(tagged) = tagged else { continue };
            policies.push(EvacuationPolicy {
                name: text::for_people(&summary.name),
                vms: tagged.into_iter().filter_map(TaggedObject::vm).collect(),
            });
        }
        Ok(policies)
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        call: &'static str,
        path: &[&str],
        query: Option<(&str, &str)>,
    ) -> Result<T, Error> {
        let mut url = self.vcenter.settings.endpoint.rest(path);
        if let Some((name, value)) = query {
            url.query_pairs_mut().append_pair(name, value);
        }
        let body = self.send(method, url).await;
        read_reply(call, body)
    }

    async fn send(&self, method: Method, url: reqwest::Url) -> Result<Vec<u8>, TransportError> {
        let token = (SESSION_ID, secret(self.token.expose_secret()));
        let deadline = self.vcenter.settings.call_deadline;
        self.transport.rest(method, url, token, deadline).await
    }

    /// Ends the session. If that fails, vCenter ends it when it has been idle for some minutes.
    async fn end(self) {
        let url = self.vcenter.settings.endpoint.rest(&["api", "session"]);
        if let Err(error) = self.send(Method::DELETE, url).await {
            tracing::debug!("the session of the REST API could not be ended: {error}");
        }
    }
}

impl Summary {
    /// Whether VMs are shut down by it: *BestEffortRestart*, and the automatic eviction of 9.1. A policy that evacuates by vMotion only
    /// does not.
    fn shuts_down(&self) -> bool {
        let capability = self.capability.to_ascii_lowercase();
        let is_evacuation = capability.contains("evacuation") || capability.contains("eviction");
        is_evacuation && !capability.contains("vmotion")
    }
}

impl TaggedObject {
    fn vm(self) -> Option<VmRef> {
        Moref::of_wire(&self.kind, &self.id)?.vm()
    }
}

/// The value of a header that is not shown in logs. One with bytes that a header does not allow is sent empty, and refused.
fn secret(text: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

/// `None` where the server does not have what was asked for.
fn if_there<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(it) => Ok(Some(it)),
        Err(error) if error.is_not_there() => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_reply<T: DeserializeOwned>(
    operation: &'static str,
    body: Result<Vec<u8>, TransportError>,
) -> Result<T, Error> {
    let body = body.map_err(|source| Error::Transport {
        operation,
        object: REST_API.to_owned(),
        source,
    })?;
    serde_json::from_slice(&body).map_err(|error| Error::Reply {
        operation,
        object: REST_API.to_owned(),
        source: ReplyError::Object {
            object: "the body".to_owned(),
            why: error.to_string(),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn policies_that_shut_vms_down_are_told_from_those_that_vmotion_them() {
        let shuts_down = |capability: &str| {
            let summary = Summary {
                policy: "p-1".to_owned(),
                name: "x".to_owned(),
                capability: format!("com.vmware.vcenter.compute.policies.capabilities.{capability}"),
            };
            summary.shuts_down()
        };
        for capability in ["vm.evacuation.best_effort_restart", "automatic_vm_eviction"] {
            assert!(shuts_down(capability), "{capability}");
        }
        for capability in ["vm.evacuation.vmotion", "vm_host_affinity", "disable_drs_vmotion"] {
            assert!(!shuts_down(capability), "{capability}");
        }
    }

    #[test]
    fn vcenter_that_starts_is_told_from_one_that_refuses() {
        let may_pass = |source| {
            read_reply::<String>("a call", Err(source))
                .unwrap_err()
                .may_pass()
        };
        for status in [502, 503] {
            assert!(may_pass(TransportError::Status(status)), "{status}");
        }
        assert!(may_pass(TransportError::Deadline(Duration::from_secs(30))));
        for status in [401, 403, 404] {
            assert!(!may_pass(TransportError::Status(status)), "{status}");
        }
    }

    #[test]
    fn objects_with_a_tag_that_are_no_vms_are_left_out() {
        let body = br#"[{"id":"vm-7","type":"VirtualMachine"},{"id":"host-9","type":"HostSystem"},{"id":"","type":"VirtualMachine"}]"#;
        let tagged: Vec<TaggedObject> = read_reply("a call", Ok(body.to_vec())).unwrap();
        let vms: Vec<VmRef> = tagged.into_iter().filter_map(TaggedObject::vm).collect();
        assert_eq!(vms, [VmRef::new("vm-7")]);
        let unreadable = read_reply::<Vec<TaggedObject>>("a call", Ok(b"<html>".to_vec()))
            .err()
            .unwrap();
        assert!(unreadable.chain().contains("a call"), "{}", unreadable.chain());
    }
}
