//! Asks the leader, by its status page: through the kube-apiserver to the pod, or at an address.
//!
//! The page may be served inside the pod only, so the connection is a port-forward, as `kubectl port-forward` makes it.

mod events;
mod replicas;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::{Request, StatusCode, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, timeout};

use super::out::Output;
use crate::kubernetes::answer::{chain, plain};
use crate::kubernetes::client::{Access, connect_by};
use crate::kubernetes::port_forward;
use crate::plan::planner::ANSWER_TIMEOUT;
use crate::telemetry::client;
use events::{AnswerEvent, EventReader};
use replicas::{Release, Replica};

/// Limit for the head of a response. The leader takes a copy of its inventory before.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a leader that makes other plans is asked again.
const BUSY_TIMEOUT: Duration = Duration::from_secs(120);

/// The pause before it is asked again.
const BUSY_PAUSE: Duration = Duration::from_secs(5);

/// When progress is shown at first, and how often.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// The longest text of an error that is shown.
const ERROR_CHARS_MAX: usize = 1_000;

/// The environment variables of the flags.
const STATUS_URL: &str = "STATUS_URL";
const STATUS_TOKEN_FILE: &str = "STATUS_TOKEN_FILE";

/// How to reach the leader.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Leader")]
pub(super) struct LeaderAddress {
    /// The Helm release to ask, as NAMESPACE/NAME, where a cluster has several
    #[arg(long, value_name = "RELEASE")]
    release: Option<Release>,
    /// The address of the leader's status page, instead of a port-forward to its pod
    #[arg(long, env = STATUS_URL, value_name = "URL")]
    status_url: Option<String>,
    #[command(flatten)]
    pub(super) access: Access,
}

/// The flags of subcommands that ask the leader only.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Leader")]
pub(super) struct LeaderArgs {
    /// The file with the token of the status page, if it needs one; it is sent to a release that is named, or to --status-url
    #[arg(long, env = STATUS_TOKEN_FILE, value_name = "FILE")]
    pub(super) status_token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) address: LeaderAddress,
}

impl LeaderArgs {
    /// Those of a command line without these flags.
    pub(super) fn from_environment() -> Self {
        Self {
            status_token_file: std::env::var_os(STATUS_TOKEN_FILE).map(PathBuf::from),
            address: LeaderAddress {
                status_url: std::env::var(STATUS_URL).ok(),
                ..LeaderAddress::default()
            },
        }
    }

    /// Finds the replicas.
    ///
    /// # Errors
    /// If there is no cluster, or no release or several in it.
    pub(super) async fn find(self, out: Output) -> anyhow::Result<Leader> {
        let token = self.status_token_file.map(|file| {
            let text = std::fs::read_to_string(&file);
            text.map(|text| SecretString::from(text.trim()))
                .with_context(|| format!("reading the token of the status page in {}", file.display()))
        });
        let token = token.transpose()?;
        let address = self.address;
        // A flag is more than a variable.
        let url = address.status_url.filter(|_| address.release.is_none());
        if let Some(url) = url {
            let asked = Asked::Address(http_client(&url)?, url.trim_end_matches('/').to_owned());
            return Ok(Leader {
                asked: vec![asked],
                token,
                out,
            });
        }
        let client = connect_by(&address.access).await?;
        let found = replicas::find(&client, address.release.as_ref()).await?;
        let asked = found.into_iter().map(|pod| Asked::Pod(client.clone(), pod));
        Ok(Leader {
            asked: asked.collect(),
            // Anybody who may create pods in some namespace could make one with the labels of Haulout.
            token: token.filter(|_| address.release.is_some()),
            out,
        })
    }
}

/// The leader, or the replicas of which one leads.
pub(super) struct Leader {
    asked: Vec<Asked>,
    token: Option<SecretString>,
    out: Output,
}

/// Who is asked.
enum Asked {
    Address(reqwest::Client, String),
    Pod(kube::Client, Replica),
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(_, url) => f.write_str(&plain(url)),
            Self::Pod(_, replica) => replica.fmt(f),
        }
    }
}

/// A response whose head has arrived.
struct Connected {
    response: reqwest::Response,
    /// Carries the connection of a port-forward.
    _connection: JoinSet<()>,
}

/// Why a replica gives no answer.
enum Refusal {
    /// It does not answer this.
    Final(String),
    /// It makes other plans, and may be asked again.
    Busy,
}

impl Leader {
    /// Asks for `path`, and waits for the answer.
    ///
    /// # Errors
    /// If no replica answers, or the answer cannot be read.
    pub(super) async fn ask<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let busy_until = Instant::now() + BUSY_TIMEOUT;
        loop {
            let mut refusals = Vec::new();
            for who in &self.asked {
                match self.accepted(who, path).await? {
                    Ok(accepted) => return self.answer(accepted, who).await,
                    Err(refusal) => refusals.push((who, refusal)),
                }
            }
            let reasons = refusals.iter().filter_map(|(who, refusal)| match refusal {
                Refusal::Busy => None,
                Refusal::Final(why) => Some(format!("{who}: {why}")),
            });
            let reasons: Vec<String> = reasons.collect();
            if reasons.len() == refusals.len() {
                bail!("no replica can answer: {}", plain(&reasons.join("; ")));
            }
            if Instant::now() >= busy_until {
                bail!(
                    "the leader still makes other plans after {} s",
                    BUSY_TIMEOUT.as_secs()
                );
            }
            self.out.progress("the leader makes other plans; waiting");
            tokio::time::sleep(BUSY_PAUSE).await;
        }
    }

    /// Sends the request to one replica. The outer error is about all of them.
    async fn accepted(&self, who: &Asked, path: &str) -> anyhow::Result<Result<Connected, Refusal>> {
        let sent = match who {
            Asked::Address(client, url) => self.at_address(client, &format!("{url}{path}")).await,
            Asked::Pod(client, replica) => self.at_pod(client, replica, path).await?,
        };
        let connected = match sent {
            Ok(connected) => connected,
            Err(why) => return Ok(Err(Refusal::Final(why))),
        };
        let response = &connected.response;
        match response.status() {
            StatusCode::OK => Ok(Ok(connected)),
            StatusCode::SERVICE_UNAVAILABLE if response.headers().contains_key(header::RETRY_AFTER) => {
                Ok(Err(Refusal::Busy))
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                Ok(Err(Refusal::Final(events::short_text(connected.response).await)))
            }
            StatusCode::UNAUTHORIZED if self.token.is_some() => Ok(Err(Refusal::Final(
                "its status page refuses the token of --status-token-file".to_owned(),
            ))),
            StatusCode::UNAUTHORIZED => Ok(Err(Refusal::Final(
                "its status page needs a token: name its file by --status-token-file, and the release by --release".to_owned(),
            ))),
            StatusCode::NOT_FOUND => Ok(Err(Refusal::Final(
                "it makes no plans: it is older than this command line, or another program".to_owned(),
            ))),
            status => {
                let text = events::short_text(connected.response).await;
                Ok(Err(Refusal::Final(format!("it answered with status {status}: {text}"))))
            }
        }
    }

    async fn at_address(&self, client: &reqwest::Client, url: &str) -> Result<Connected, String> {
        let mut request = client.get(url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose_secret());
        }
        match timeout(HEAD_TIMEOUT, request.send()).await {
            Ok(Ok(response)) => Ok(Connected {
                response,
                _connection: JoinSet::new(),
            }),
            Ok(Err(error)) => Err(chain(&error)),
            Err(_elapsed) => Err(format!("no answer within {} s", HEAD_TIMEOUT.as_secs())),
        }
    }

    /// The outer error is about all pods.
    async fn at_pod(
        &self,
        client: &kube::Client,
        replica: &Replica,
        path: &str,
    ) -> anyhow::Result<Result<Connected, String>> {
        let opened = port_forward::open(client, &replica.namespace, &replica.pod, replica.port).await;
        let (stream, reason) = match opened {
            Ok(opened) => opened,
            Err(refusal) if refusal.code() == Some(403) => bail!(replicas::forbidden(replica, &refusal)),
            Err(refusal) => return Ok(Err(format!("the port-forward failed: {refusal}"))),
        };
        let request = Request::get(path).header(header::HOST, "localhost");
        let request = match &self.token {
            Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {}", token.expose_secret())),
            None => request,
        };
        let request = request.body(String::new()).context("preparing the request")?;
        let mut tasks = JoinSet::new();
        let sent = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tasks.spawn(async move {
                // The response tells of an error.
                let _ = connection.await;
            });
            sender.send_request(request).await
        };
        match timeout(HEAD_TIMEOUT, sent).await {
            Ok(Ok(response)) => Ok(Ok(Connected {
                response: reqwest::Response::from(response.map(reqwest::Body::wrap)),
                _connection: tasks,
            })),
            Ok(Err(error)) => {
                let reason = reason.await.unwrap_or_else(|| error.to_string());
                Ok(Err(format!("nothing answers on port {}: {reason}", replica.port)))
            }
            Err(_elapsed) => {
                let reason = reason.await.unwrap_or_else(|| "it is silent".to_owned());
                Ok(Err(format!(
                    "no answer within {} s: {reason}",
                    HEAD_TIMEOUT.as_secs()
                )))
            }
        }
    }

    /// Reads the answer of `who`, and shows how far it is.
    async fn answer<T: DeserializeOwned>(&self, accepted: Connected, who: &Asked) -> anyhow::Result<T> {
        let Connected {
            response,
            _connection,
        } = accepted;
        let mut events = EventReader::new(response);
        let mut latest = format!("waiting for the answer of {who}");
        let mut tick = interval_at(Instant::now() + PROGRESS_AFTER, PROGRESS_EVERY);
        let reading = async {
            loop {
                let event = tokio::select! {
                    biased;
                    event = events.next() => event.with_context(|| format!("reading the answer of {who}"))?,
                    _ = tick.tick() => {
                        self.out.progress(&plain(&latest));
                        continue;
                    }
                };
                match event {
                    AnswerEvent::Progress(text) => latest = text,
                    AnswerEvent::Answer(json) => {
                        let answer = serde_json::from_slice(&json);
                        return answer.with_context(|| {
                            format!("reading the answer of {who}, which may be of another version than this command line")
                        });
                    }
                    AnswerEvent::Failed(why) => {
                        let why: String = why.chars().take(ERROR_CHARS_MAX).collect();
                        bail!(plain(&why))
                    }
                }
            }
        };
        let limit = ANSWER_TIMEOUT + HEAD_TIMEOUT;
        match timeout(limit, reading).await {
            Ok(answer) => answer,
            Err(_elapsed) => bail!("{who} has not answered within {} s", limit.as_secs()),
        }
    }
}

/// The client for a page at this address. A proxy is of no use for one on this machine, and would see its token.
fn http_client(url: &str) -> anyhow::Result<reqwest::Client> {
    let mut client = client::builder();
    if is_on_this_machine(url) {
        client = client.no_proxy();
    }
    client
        .build()
        .context("preparing the connection to the status page")
}

fn is_on_this_machine(url: &str) -> bool {
    let host = url
        .parse::<http::Uri>()
        .ok()
        .and_then(|url| Some(url.host()?.to_owned()));
    host.is_some_and(|host| {
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

#[cfg(test)]
mod tests;
