//! The result of one call to the kube-apiserver.

use std::fmt;
use std::time::Duration;

use haulout_core::tls_errors::explained;
use http::header::RETRY_AFTER;
use kube::api::{ListParams, ObjectList};
use kube::client::Body;
use kube::core::Status;

/// The longest message of a server that is kept: enough for all messages of Kubernetes, and a limit for webhooks and proxies.
const MESSAGE_CHARS_MAX: usize = 1_000;

/// The longest `Retry-After` that is respected. A webhook may send any number.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// Why a call has no result.
#[derive(Debug)]
pub enum ApiRefusal {
    /// The kube-apiserver, or a proxy, answered with an error.
    Status(Box<Status>),
    /// No usable reply in time. Whether the request was carried out is unknown.
    Unreachable(String),
}

/// Waits for the reply of `call`, at most for `deadline`.
pub async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApiRefusal> {
    match tokio::time::timeout(deadline, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.into()),
        Err(_elapsed) => Err(ApiRefusal::Unreachable(format!(
            "no answer within {} s",
            deadline.as_secs_f32()
        ))),
    }
}

/// Lists page by page, each within `deadline`, and passes the objects to `each`.
///
/// `list` is [`Api::list`](kube::Api::list) or a variant of it.
pub async fn pages<K: Clone, Listing: Future<Output = kube::Result<ObjectList<K>>>>(
    mut params: ListParams,
    pages_max: usize,
    deadline: Duration,
    list: impl Fn(ListParams) -> Listing,
    mut each: impl FnMut(K),
) -> Result<(), ApiRefusal> {
    for _ in 0..pages_max {
        let page = within(deadline, list(params.clone())).await?;
        page.items.into_iter().for_each(&mut each);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(()),
        }
    }
    let why = format!("the list has more than {pages_max} pages");
    Err(ApiRefusal::Unreachable(why))
}

/// Refuses a page of another kind. kube reads the items of any list as objects of the kind that was asked for, so the empty
/// list of another request would say that there are none.
pub fn of_kind<K: Clone>(page: ObjectList<K>, kind: &str) -> kube::Result<ObjectList<K>> {
    if page.types.kind == kind {
        return Ok(page);
    }
    let why = format!("a {} where a {kind} was asked for", plain(&page.types.kind));
    Err(kube::Error::SerdeError(serde::de::Error::custom(why)))
}

/// The result of a POST.
#[derive(Debug)]
pub struct Posted {
    pub result: Result<(), ApiRefusal>,
    /// The HTTP status; 0 where there was none.
    pub code: u16,
    /// The wait before the next attempt that the server asks for.
    pub retry_after: Option<Duration>,
}

/// Sends `request` and waits for its reply, at most for `deadline`.
///
/// kube's calls drop the header `Retry-After`, and API priority and fairness sends the time only there.
pub async fn post(
    client: &kube::Client,
    request: kube::Result<http::Request<Vec<u8>>>,
    deadline: Duration,
) -> Posted {
    let call = async {
        let response = client.send(request?.map(Body::from)).await?;
        let (head, body) = response.into_parts();
        let body = body.collect_bytes().await?;
        Ok((head, body))
    };
    let (head, body) = match within(deadline, call).await {
        Ok(answer) => answer,
        Err(refusal) => {
            return Posted {
                result: Err(refusal),
                code: 0,
                retry_after: None,
            };
        }
    };
    let code = head.status.as_u16();
    if head.status.is_success() {
        return Posted {
            result: Ok(()),
            code,
            retry_after: None,
        };
    }
    let mut status: Status = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Status::failure(String::from_utf8_lossy(&body).trim(), ""));
    status.code = code;
    let header = head
        .headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    let seconds = header
        .and_then(|seconds| seconds.parse().ok())
        .or_else(|| status.details.as_ref().map(|details| details.retry_after_seconds))
        .filter(|seconds| *seconds > 0);
    Posted {
        result: Err(ApiRefusal::Status(Box::new(status))),
        code,
        retry_after: seconds.map(|seconds: u32| Duration::from_secs(seconds.into()).min(RETRY_AFTER_MAX)),
    }
}

impl ApiRefusal {
    /// The HTTP status of the reply, if there was one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status(status) => Some(status.code),
            Self::Unreachable(_) => None,
        }
    }
}

impl From<kube::Error> for ApiRefusal {
    fn from(error: kube::Error) -> Self {
        if let kube::Error::Api(status) = error {
            return Self::Status(status);
        }
        // kube's text for it is the name of the variant.
        if let kube::Error::Service(error) = &error {
            return Self::Unreachable(chain(&**error));
        }
        Self::Unreachable(chain(&error))
    }
}

impl fmt::Display for ApiRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => f.write_str(&message(status)),
            Self::Unreachable(why) => f.write_str(why),
        }
    }
}

/// The message of a `Status` with its code.
pub fn message(status: &Status) -> String {
    let text = if status.message.is_empty() {
        &status.reason
    } else {
        &status.message
    };
    format!("{} (HTTP {})", plain(text), status.code)
}

/// The causes in `status.details` that carry `reason`, each with its message.
pub fn causes<'a>(status: &'a Status, reason: &'a str) -> impl Iterator<Item = &'a str> {
    status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .filter(move |cause| cause.reason == reason)
        .map(|cause| cause.message.as_str())
}

/// An error with its causes on one line. A cause that the text before it contains is left out.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    plain(&explained(&text))
}

/// `text` on one line, of limited length, without control characters.
pub fn plain(text: &str) -> String {
    let mut plain: String = text
        .chars()
        .take(MESSAGE_CHARS_MAX)
        .map(|c| if c.is_control() || is_bidi(c) { ' ' } else { c })
        .collect();
    if text.chars().nth(MESSAGE_CHARS_MAX).is_some() {
        plain.push('…');
    }
    plain.trim().to_owned()
}

/// Whether `c` reorders the text around it, which can forge a log line.
fn is_bidi(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_message_has_no_control_characters() {
        assert_eq!(plain("a\u{1b}[31m\nb\u{202e}c"), "a [31m b c");
        assert_eq!(plain(&"x".repeat(2_000)).chars().count(), MESSAGE_CHARS_MAX + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn missing_reply_ends_at_the_deadline() {
        let refusal = within(Duration::from_secs(3), std::future::pending::<kube::Result<()>>())
            .await
            .unwrap_err();
        assert_eq!(refusal.to_string(), "no answer within 3 s");
    }
}
