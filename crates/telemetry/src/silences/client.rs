//! The API of Alertmanager, version 2.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::{Response, Url};
use serde::de::IgnoredAny;
use thiserror::Error;

use super::plan::{FoundSilence, PostedSilence, but_own_alerts};
use crate::url_file;
use haulout_kubernetes::answer::{chain, plain};
use haulout_kubernetes::fence::{FenceClosed, WriteFence, WriteKind};

/// Deadline of one request, its answer included.
const DEADLINE: Duration = Duration::from_secs(10);

/// Limit of an answer. Alertmanager keeps ended silences for five days: this is room for ten thousand.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How much of the reason of a refusal is shown.
const REASON_CHARS_MAX: usize = 300;

/// Reads and changes silences.
pub trait AlertmanagerApi: Sync {
    /// The silences that leave the alerts of Haulout alone, ended ones included.
    fn silences(&self) -> impl Future<Output = Result<Vec<FoundSilence>, AlertmanagerError>> + Send;

    /// Makes or renews a silence.
    fn post(&self, silence: &PostedSilence) -> impl Future<Output = Result<(), AlertmanagerError>> + Send;

    /// Ends a silence.
    fn delete(&self, id: &str) -> impl Future<Output = Result<(), AlertmanagerError>> + Send;
}

/// Why a request failed. The address may be a secret, so none of them shows it.
#[derive(Debug, Error)]
pub enum AlertmanagerError {
    #[error("the file {path} of ALERTMANAGER_URL_FILE has no http or https address: {why}")]
    Address { path: String, why: String },
    #[error("{0}")]
    NotLeading(#[from] FenceClosed),
    #[error("the Alertmanager of ALERTMANAGER_URL_FILE was not reached: {0}")]
    Connection(String),
    #[error("the Alertmanager of ALERTMANAGER_URL_FILE answered {what} with {code}: {reason}")]
    Refused {
        what: &'static str,
        code: u16,
        reason: String,
    },
    #[error("the Alertmanager of ALERTMANAGER_URL_FILE sent no list of silences: {0}")]
    Unreadable(String),
}

/// An Alertmanager that is changed while this replica leads.
#[derive(Debug)]
pub struct LeaderAlertmanager {
    pub client: reqwest::Client,
    /// The file with its address.
    pub url_file: PathBuf,
    pub fence: WriteFence,
}

impl AlertmanagerError {
    /// Whether nothing was sent, because this replica does not lead.
    pub(super) fn is_of_leadership(&self) -> bool {
        match self {
            Self::NotLeading(_) => true,
            Self::Address { .. } | Self::Connection(_) | Self::Refused { .. } | Self::Unreadable(_) => false,
        }
    }
}

impl LeaderAlertmanager {
    /// The address of a part of the API.
    async fn url(&self, path: &[&str]) -> Result<Url, AlertmanagerError> {
        let error = |why: String| AlertmanagerError::Address {
            path: self.url_file.display().to_string(),
            why,
        };
        let mut url = url_file::read_url(&self.url_file).await.map_err(error)?;
        url.path_segments_mut()
            .map_err(|()| error("it has no path".to_owned()))?
            .pop_if_empty()
            .extend(["api", "v2"])
            .extend(path);
        Ok(url)
    }

    /// Sends a request while this replica leads. The permit is not held meanwhile: nothing depends on a silence.
    async fn send(
        &self,
        what: &'static str,
        request: reqwest::RequestBuilder,
    ) -> Result<Vec<u8>, AlertmanagerError> {
        drop(self.fence.permit(WriteKind::Record)?);
        let failed = |error: reqwest::Error| AlertmanagerError::Connection(chain(&error.without_url()));
        let mut answer = request.timeout(DEADLINE).send().await.map_err(failed)?;
        let status = answer.status();
        let body = body(&mut answer).await?;
        if status.is_success() {
            return Ok(body);
        }
        let reason = plain(&String::from_utf8_lossy(&body));
        Err(AlertmanagerError::Refused {
            what,
            code: status.as_u16(),
            reason: reason.chars().take(REASON_CHARS_MAX).collect(),
        })
    }
}

async fn body(answer: &mut Response) -> Result<Vec<u8>, AlertmanagerError> {
    let failed = |error: reqwest::Error| AlertmanagerError::Connection(chain(&error.without_url()));
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            let why = format!("the answer has more than {ANSWER_BYTES_MAX} bytes");
            return Err(AlertmanagerError::Unreadable(why));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The silences in a list. One that cannot be read is none of ours.
///
/// Each element is read by itself, so that an answer of any content takes little more memory than its bytes.
pub fn silences_in(body: &[u8]) -> Result<Vec<FoundSilence>, String> {
    let no_list = || "it is no list".to_owned();
    let mut rest = body.trim_ascii().strip_prefix(b"[").ok_or_else(no_list)?;
    let mut found = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if rest == b"]" {
            return Ok(found);
        }
        let mut elements = serde_json::Deserializer::from_slice(rest).into_iter::<IgnoredAny>();
        match elements.next() {
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err("the list has no end".to_owned()),
        }
        let (element, after) = rest
            .split_at_checked(elements.byte_offset())
            .ok_or_else(no_list)?;
        // The error for anything else would cost more memory than it.
        if element.trim_ascii_start().starts_with(b"{") {
            found.extend(serde_json::from_slice::<FoundSilence>(element).ok());
        }
        let after = after.trim_ascii_start();
        rest = match after.strip_prefix(b",") {
            Some(next) => next,
            None if after == b"]" => after,
            None => return Err("the list has no end".to_owned()),
        };
    }
}

impl AlertmanagerApi for LeaderAlertmanager {
    async fn silences(&self) -> Result<Vec<FoundSilence>, AlertmanagerError> {
        let mut url = self.url(&["silences"]).await?;
        url.query_pairs_mut()
            .append_pair("filter", &but_own_alerts().to_string());
        let body = self.send("GET silences", self.client.get(url)).await?;
        silences_in(&body).map_err(AlertmanagerError::Unreadable)
    }

    async fn post(&self, silence: &PostedSilence) -> Result<(), AlertmanagerError> {
        let url = self.url(&["silences"]).await?;
        let request = self
            .client
            .post(url)
            .header("content-type", "application/json")
            .body(serde_json::to_string(silence).unwrap_or_default());
        self.send("POST silences", request).await.map(|_| ())
    }

    async fn delete(&self, id: &str) -> Result<(), AlertmanagerError> {
        let url = self.url(&["silence", id]).await?;
        match self.send("DELETE silence", self.client.delete(url)).await {
            // It is gone already.
            Ok(_) | Err(AlertmanagerError::Refused { code: 404, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: &str = r#"{"id": "a", "status": {"state": "active"}, "matchers": [], "updatedAt": [{}],
        "startsAt": "2026-01-01T00:00:00Z", "endsAt": "2026-01-02T00:00:00Z", "createdBy": "b", "comment": "c"}"#;

    #[test]
    fn what_is_no_silence_is_left_out_of_the_list() {
        for others in ["", "[], ", "{}, 1, null, \"], [\", [[], {\"id\": 3}], "] {
            for end in ["", ", true", ", []"] {
                let list = format!(" [{others}{SILENCE}{end} ]\n");
                let found = silences_in(list.as_bytes()).unwrap();
                assert_eq!(
                    found.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(),
                    ["a"],
                    "{list}"
                );
            }
        }
        assert_eq!(silences_in(b"[]"), Ok(Vec::new()));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in [
            "", "{}", "[", "[[]", "[1", "[1 2]", "[1,", "[1],", "[] []", "null", "<html>",
        ] {
            assert!(silences_in(text.as_bytes()).is_err(), "{text}");
        }
    }
}
