//! One HTTP request and its answer: HTTP/1.1, no redirect, no proxy, no cookie jar, a deadline and a size limit.

use std::time::Duration;

use hyper::Request;
use reqwest::header::{CONTENT_TYPE, COOKIE, HOST, HeaderMap, HeaderValue, SET_COOKIE, USER_AGENT};
use rustls::ClientConfig;

use super::client::Settings;
use super::endpoint::Endpoint;
use super::error::{ConnectError, TransportError};
use super::poll_connection::PollConnection;
use super::tls;

/// Largest answer. A page of 50 hosts with all their PCI devices is under 8 MiB.
pub const MAX_REPLY: usize = 32 << 20;
/// Connections that idle longer are closed by us, long before a proxy in between resets them (vCenter's own: 900 s).
const POOL_IDLE: Duration = Duration::from_secs(60);
/// A peer that vanished without a word is noticed after about `KEEPALIVE` and three probes.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(10);
pub(super) const KEEPALIVE_PROBES: u32 = 3;
/// Three lost SYNs and their retransmissions.
pub(super) const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
const SOAP: HeaderValue = HeaderValue::from_static("text/xml; charset=utf-8");
/// 500 carries a fault.
const CARRY_SOAP: &[u16] = &[200, 500];

/// The HTTP client for one vCenter.
#[derive(Clone, Debug)]
pub(super) struct Transport {
    http: reqwest::Client,
    endpoint: Endpoint,
    tls: ClientConfig,
    user_agent: String,
}

/// Who we say we are: vCenter shows it in its list of sessions.
fn user_agent(instance: &str) -> String {
    const PROGRAM: &str = concat!("haulout/", env!("CARGO_PKG_VERSION"));
    // A name may come from the environment, and a header takes no other bytes.
    let instance: String = instance.chars().filter(char::is_ascii_graphic).collect();
    match instance.is_empty() {
        true => PROGRAM.to_owned(),
        false => format!("{PROGRAM} ({instance})"),
    }
}

/// An answer that may carry SOAP.
pub(super) struct Reply {
    pub(super) body: Vec<u8>,
    /// The session cookie it sets, `name=value`, byte for byte.
    pub(super) cookie: Option<HeaderValue>,
}

impl Transport {
    /// Builds the client; nothing is sent.
    pub(super) fn new(settings: &Settings, ca: Option<&[u8]>) -> Result<Self, ConnectError> {
        let tls = tls::config(&settings.trust, ca)?;
        let user_agent = user_agent(&settings.instance);
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls.clone())
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .referer(false)
            .user_agent(&*user_agent)
            .connect_timeout(CONNECT_DEADLINE)
            .pool_idle_timeout(POOL_IDLE)
            .tcp_keepalive(KEEPALIVE)
            .tcp_keepalive_interval(KEEPALIVE)
            .tcp_keepalive_retries(KEEPALIVE_PROBES)
            .tcp_nodelay(true)
            .build()
            .map_err(ConnectError::Http)?;
        Ok(Self {
            http,
            endpoint: settings.endpoint.clone(),
            tls,
            user_agent,
        })
    }

    /// A connection for one long poll at a time.
    pub(super) fn poll_connection(&self) -> PollConnection {
        PollConnection::new(self.tls.clone(), self.endpoint.sdk_uri())
    }

    /// Posts a SOAP envelope. 200 and 500 carry SOAP, everything else is an error.
    pub(super) async fn post(
        &self,
        soap_action: &str,
        cookie: Option<&HeaderValue>,
        envelope: String,
        deadline: Duration,
    ) -> Result<Reply, TransportError> {
        let mut request = self
            .http
            .post(self.endpoint.sdk())
            .header(CONTENT_TYPE, SOAP)
            .header("SOAPAction", soap_action)
            .body(envelope);
        if let Some(cookie) = cookie {
            request = request.header(COOKIE, cookie);
        }
        within(deadline, receive(request, CARRY_SOAP)).await
    }

    /// The same over a connection of its own.
    pub(super) async fn post_over(
        &self,
        connection: &PollConnection,
        soap_action: &str,
        cookie: &HeaderValue,
        envelope: String,
        deadline: Duration,
    ) -> Result<Reply, TransportError> {
        let request = Request::post("/sdk")
            .header(HOST, self.endpoint.name())
            .header(USER_AGENT, &self.user_agent)
            .header(CONTENT_TYPE, SOAP)
            .header("SOAPAction", soap_action)
            .header(COOKIE, cookie)
            .body(envelope)
            .map_err(|error| TransportError::Connection(error.into()))?;
        let exchange = async {
            let mut answered = connection.send(request).await?;
            let cookie = usable(
                answered.head.status().as_u16(),
                answered.head.headers(),
                CARRY_SOAP,
            )?;
            let mut body = Vec::new();
            while let Some(chunk) = answered.chunk().await? {
                append(&mut body, &chunk)?;
            }
            connection.keep(answered);
            Ok(Reply { body, cookie })
        };
        within(deadline, exchange).await
    }

    /// Gets the document that lists the API versions.
    pub(super) async fn versions(&self, deadline: Duration) -> Result<Vec<u8>, TransportError> {
        let request = self.http.get(self.endpoint.versions());
        let reply = within(deadline, receive(request, &[200])).await?;
        Ok(reply.body)
    }
}

async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, TransportError>>,
) -> Result<T, TransportError> {
    match tokio::time::timeout(deadline, work).await {
        Ok(result) => result,
        Err(_) => Err(TransportError::Deadline(deadline)),
    }
}

async fn receive(request: reqwest::RequestBuilder, carry: &[u16]) -> Result<Reply, TransportError> {
    let broken = |error: reqwest::Error| TransportError::Connection(error.without_url().into());
    let mut response = request.send().await.map_err(broken)?;
    let cookie = usable(response.status().as_u16(), response.headers(), carry)?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(broken)? {
        append(&mut body, &chunk)?;
    }
    Ok(Reply { body, cookie })
}

/// The session cookie, if one is set, of an answer whose status is among those that `carry` what was asked for.
fn usable(status: u16, headers: &HeaderMap, carry: &[u16]) -> Result<Option<HeaderValue>, TransportError> {
    match carry.contains(&status) {
        true => Ok(session_cookie(headers.get_all(SET_COOKIE).iter())),
        false => Err(TransportError::Status(status)),
    }
}

fn append(body: &mut Vec<u8>, chunk: &[u8]) -> Result<(), TransportError> {
    if body.len() + chunk.len() > MAX_REPLY {
        return Err(TransportError::TooLarge(MAX_REPLY));
    }
    body.extend_from_slice(chunk);
    Ok(())
}

/// vCenter's session cookie: what stands before the first `;`, quotes and all.
fn session_cookie<'a>(mut headers: impl Iterator<Item = &'a HeaderValue>) -> Option<HeaderValue> {
    headers.find_map(|header| {
        let pair = header.as_bytes().split(|byte| *byte == b';').next()?;
        if !pair.starts_with(b"vmware_soap_session=") {
            return None;
        }
        let mut cookie = HeaderValue::from_bytes(pair).ok()?;
        cookie.set_sensitive(true);
        Some(cookie)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_cookie_is_kept_byte_for_byte() {
        let headers = [
            HeaderValue::from_static("other=1; Path=/"),
            HeaderValue::from_static("vmware_soap_session=\"52a=b c\"; Path=/; HttpOnly; Secure"),
        ];
        let cookie = session_cookie(headers.iter()).unwrap();
        assert_eq!(cookie.as_bytes(), b"vmware_soap_session=\"52a=b c\"");
        assert!(cookie.is_sensitive());
    }
}
