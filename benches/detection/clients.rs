//! The clients under test that are written here: the baselines and Haulout's stream. Each is a separate process, for
//! its memory and CPU, and prints one JSON object per line, as the other clients do.

use std::future::poll_fn;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use haulout::ids::VmUuid;
use haulout::vsphere::client::{CredentialPart, CredentialSource, Endpoint, Settings, Trust, Vcenter};
use haulout::vsphere::update::{VmKey, VsphereUpdate, WatchSet};
use haulout::vsphere::updates;
use hyper::Request;
use hyper::body::Body as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use quick_xml::Reader;
use quick_xml::events::Event;
use reqwest::header::{CONTENT_TYPE, COOKIE, HOST, SET_COOKIE, USER_AGENT};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use haulout_lab::vcenter::Bulk;

/// The argument that starts a bench's program as a client.
pub const WORD: &str = "client";

/// The address and credentials of vCenter, and what to follow.
#[derive(Debug, Clone)]
pub struct Watch {
    pub sdk: String,
    pub ca: PathBuf,
    pub user: String,
    pub password: String,
    /// The moref of the host under test.
    pub host: String,
    /// The number of bulk VMs that belong to nodes.
    pub ours: usize,
}

impl Watch {
    /// As arguments of this program.
    pub fn arguments(&self, kind: &str) -> Vec<String> {
        let words = [WORD, kind, &self.sdk, &self.ca.to_string_lossy(), &self.user];
        let rest = [&*self.password, &self.host, &self.ours.to_string()];
        words.iter().chain(&rest).map(|word| (*word).to_owned()).collect()
    }

    fn read(words: &[String]) -> anyhow::Result<Self> {
        let [sdk, ca, user, password, host, ours] = words else {
            bail!("a client takes six words, not {}", words.len());
        };
        Ok(Self {
            sdk: sdk.clone(),
            ca: ca.into(),
            user: user.clone(),
            password: password.clone(),
            host: host.clone(),
            ours: ours.parse().context("how many VMs are ours")?,
        })
    }
}

/// Whether `--quick` or `QUICK=1` requests the smallest run.
pub fn is_quick(words: &[String]) -> bool {
    words.iter().any(|word| word == "--quick") || haulout_lab::figures::is_quick()
}

/// Runs the client in the arguments; `None` if there is none.
pub fn run(began: Instant, words: &[String]) -> Option<anyhow::Result<()>> {
    match words {
        [word, kind, rest @ ..] if word == WORD => Some(Watch::read(rest).and_then(|watch| match &**kind {
            "baseline" => baseline(began, &watch, Hosts::One, searched, &mut Wire::open(&watch)?),
            "baseline-of-all" => baseline(began, &watch, Hosts::All, searched, &mut Wire::open(&watch)?),
            "baseline-over-reqwest" => baseline(
                began,
                &watch,
                Hosts::One,
                searched,
                &mut OverReqwest::new(&watch)?,
            ),
            "baseline-over-hyper" => {
                baseline(began, &watch, Hosts::One, walked, &mut OverHyper::open(&watch)?)
            }
            "stream" => stream(began, &watch),
            other => bail!("there is no client {other:?}"),
        })),
        _ => None,
    }
}

fn say(line: &serde_json::Value) {
    // The bench may have ended; then this process ends soon.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn say_ready(began: Instant) {
    say(&serde_json::json!({ "ready": true, "ns": now_ns(), "ms": began.elapsed().as_secs_f64() * 1e3 }));
}

fn say_entering(entering: bool) {
    say(&serde_json::json!({ "entering": entering, "ns": now_ns() }));
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// The hosts that a baseline follows.
#[derive(Clone, Copy)]
enum Hosts {
    /// The host under test.
    One,
    /// All hosts, as the other clients do, with the same cost in the server.
    All,
}

/// Whether the response has a running task or a cancelled one.
type Reads = fn(&str) -> Option<bool>;

/// By a text search instead of parsing.
fn searched(answer: &str) -> Option<bool> {
    let is = |state: &str| answer.contains(&format!("<state>{state}</state>"));
    is("running")
        .then_some(true)
        .or_else(|| is("error").then_some(false))
}

/// By Haulout's XML reader, which reads the whole response and keeps nothing.
fn walked(answer: &str) -> Option<bool> {
    let mut reader = Reader::from_str(answer);
    let (mut is_state, mut entering) = (false, None);
    loop {
        match reader.read_event() {
            Ok(Event::Start(start)) => is_state = start.local_name().as_ref() == "state",
            Ok(Event::Text(text)) if is_state => match text.xml10_content().as_ref() {
                "running" => entering = Some(true),
                "error" => entering = entering.or(Some(false)),
                _ => {}
            },
            Ok(Event::End(_)) => is_state = false,
            Ok(Event::Eof) | Err(_) => return entering,
            Ok(_) => {}
        }
    }
}

/// The minimal client: one connection, prepared requests, and only `reads` applied to a response.
fn baseline(
    began: Instant,
    watch: &Watch,
    hosts: Hosts,
    reads: Reads,
    wire: &mut impl Post,
) -> anyhow::Result<()> {
    let collector = "<_this type=\"PropertyCollector\">propertyCollector</_this>";
    wire.post(&format!(
        "<Login xmlns=\"urn:vim25\"><_this type=\"SessionManager\">SessionManager</_this><userName>{}</userName>\
         <password>{}</password></Login>",
        watch.user, watch.password
    ))?;
    let tasks =
        "<selectSet xsi:type=\"TraversalSpec\"><type>HostSystem</type><path>recentTask</path></selectSet>";
    let objects = match hosts {
        Hosts::One => format!("<obj type=\"HostSystem\">{}</obj>{tasks}", watch.host),
        Hosts::All => {
            let answer = wire.post(
                "<CreateContainerView xmlns=\"urn:vim25\"><_this type=\"ViewManager\">ViewManager</_this>\
                 <container type=\"Folder\">group-d1</container><type>HostSystem</type><recursive>true</recursive>\
                 </CreateContainerView>",
            )?;
            let view = between(&answer, "type=\"ContainerView\">", "<").context("there is no view")?;
            format!(
                "<obj type=\"ContainerView\">{view}</obj><skip>true</skip><selectSet xsi:type=\"TraversalSpec\">\
                 <type>ContainerView</type><path>view</path>{tasks}</selectSet>"
            )
        }
    };
    wire.post(&format!(
        "<CreateFilter xmlns=\"urn:vim25\">{collector}<spec>\
         <propSet><type>HostSystem</type><pathSet>recentTask</pathSet></propSet>\
         <propSet><type>Task</type><pathSet>info</pathSet></propSet>\
         <objectSet>{objects}</objectSet></spec><partialUpdates>false</partialUpdates></CreateFilter>"
    ))?;
    let mut version = String::new();
    let mut truncated = true;
    loop {
        let answer = wire.post(&format!(
            "<WaitForUpdatesEx xmlns=\"urn:vim25\">{collector}<version>{version}</version>\
             <options><maxWaitSeconds>60</maxWaitSeconds></options></WaitForUpdatesEx>"
        ))?;
        if !truncated {
            if let Some(entering) = reads(&answer) {
                say_entering(entering);
            }
        } else if !answer.contains("<truncated>true</truncated>") {
            truncated = false;
            say_ready(began);
        }
        if let Some(text) = between(&answer, "<version>", "</version>") {
            version = text.to_owned();
        }
    }
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(open)?;
    rest.split_once(close).map(|(inner, _)| inner)
}

/// The HTTP client of a baseline.
trait Post {
    /// vCenter's response to the SOAP envelope around `call`.
    fn post(&mut self, call: &str) -> anyhow::Result<String>;
}

fn envelope(call: &str) -> String {
    format!(
        "<e:Envelope xmlns:e=\"http://schemas.xmlsoap.org/soap/envelope/\" \
         xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\"><e:Body>{call}</e:Body></e:Envelope>"
    )
}

const ACTION: &str = "urn:vim25/8.0.3.0";
const TEXT: &str = "text/xml; charset=utf-8";

fn trusting(ca: &Path) -> anyhow::Result<rustls::ClientConfig> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    Ok(rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// reqwest with its runtime, as in Haulout.
struct OverReqwest {
    runtime: tokio::runtime::Runtime,
    http: reqwest::Client,
    sdk: String,
    cookie: String,
}

impl OverReqwest {
    fn new(watch: &Watch) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(trusting(&watch.ca)?)
            .http1_only()
            .no_proxy()
            .tcp_nodelay(true)
            .user_agent("baseline")
            .build()?;
        Ok(Self {
            runtime,
            http,
            sdk: watch.sdk.clone(),
            cookie: String::new(),
        })
    }
}

impl Post for OverReqwest {
    fn post(&mut self, call: &str) -> anyhow::Result<String> {
        let request = self.http.post(&self.sdk).body(envelope(call));
        let request = request.header(CONTENT_TYPE, TEXT).header("SOAPAction", ACTION);
        let exchange = async {
            let response = request
                .header(COOKIE, &self.cookie)
                .send()
                .await?
                .error_for_status()?;
            let cookie = response.headers().get(SET_COOKIE).cloned();
            anyhow::Ok((cookie, response.text().await?))
        };
        let (cookie, answer) = self.runtime.block_on(exchange)?;
        if let Some(cookie) = cookie {
            let pair = cookie.to_str()?.split(';').next().unwrap_or_default();
            pair.clone_into(&mut self.cookie);
        }
        Ok(answer)
    }
}

/// One connection of hyper, the library below reqwest, read by the waiting task.
struct OverHyper {
    runtime: tokio::runtime::Runtime,
    requests: http1::SendRequest<String>,
    connection: Pin<Box<http1::Connection<TokioIo<TlsStream<tokio::net::TcpStream>>, String>>>,
    host: String,
    cookie: String,
}

impl OverHyper {
    fn open(watch: &Watch) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (host, name) = address(watch)?;
        let tls = TlsConnector::from(Arc::new(trusting(&watch.ca)?));
        let (requests, connection) = runtime.block_on(async {
            let tcp = tokio::net::TcpStream::connect(&host).await?;
            tcp.set_nodelay(true)?;
            let io = TokioIo::new(tls.connect(name, tcp).await?);
            anyhow::Ok(http1::handshake(io).await?)
        })?;
        Ok(Self {
            runtime,
            requests,
            connection: Box::pin(connection),
            host,
            cookie: String::new(),
        })
    }
}

impl Post for OverHyper {
    fn post(&mut self, call: &str) -> anyhow::Result<String> {
        let request = Request::post("/sdk")
            .header(HOST, &self.host)
            .header(USER_AGENT, "baseline")
            .header(CONTENT_TYPE, TEXT)
            .header("SOAPAction", ACTION)
            .header(COOKIE, &self.cookie)
            .body(envelope(call))?;
        let Self {
            runtime,
            requests,
            connection,
            ..
        } = self;
        let exchange = async {
            let mut response = requests.send_request(request).await?;
            let mut body = Vec::new();
            while let Some(frame) = poll_fn(|it| Pin::new(response.body_mut()).poll_frame(it)).await {
                if let Ok(data) = frame?.into_data() {
                    body.extend_from_slice(&data);
                }
            }
            anyhow::Ok((response, body))
        };
        let mut exchange = std::pin::pin!(exchange);
        let (response, body) = runtime.block_on(poll_fn(|context| {
            // An end is seen by the waiting request.
            let _ = connection.as_mut().poll(context);
            exchange.as_mut().poll(context)
        }))?;
        let answer = String::from_utf8(body)?;
        if response.status() != 200 {
            bail!("{}: {answer}", response.status());
        }
        if let Some(cookie) = response.headers().get(SET_COOKIE) {
            let pair = cookie.to_str()?.split(';').next().unwrap_or_default();
            pair.clone_into(&mut self.cookie);
        }
        Ok(answer)
    }
}

/// Host and port, and the name in the certificate.
fn address(watch: &Watch) -> anyhow::Result<(String, ServerName<'static>)> {
    let host = between(&watch.sdk, "https://", "/sdk").context("the address has no host")?;
    let (name, _) = host.rsplit_once(':').context("the address has no port")?;
    Ok((host.to_owned(), ServerName::try_from(name.to_owned())?))
}

/// One connection with minimal HTTP.
struct Wire {
    stream: BufReader<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>,
    host: String,
    cookie: String,
}

impl Wire {
    fn open(watch: &Watch) -> anyhow::Result<Self> {
        let config = trusting(&watch.ca)?;
        let (host, name) = address(watch)?;
        let tcp = TcpStream::connect(&host)?;
        tcp.set_nodelay(true)?;
        let tls = rustls::ClientConnection::new(Arc::new(config), name)?;
        Ok(Self {
            stream: BufReader::new(rustls::StreamOwned::new(tls, tcp)),
            host,
            cookie: String::new(),
        })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the connection ended");
        }
        Ok(line.trim_end().to_owned())
    }

    fn take(&mut self, size: usize, into: &mut Vec<u8>) -> anyhow::Result<()> {
        let at = into.len();
        into.resize(at + size, 0);
        self.stream.read_exact(into.get_mut(at..).unwrap_or_default())?;
        Ok(())
    }
}

impl Post for Wire {
    fn post(&mut self, call: &str) -> anyhow::Result<String> {
        let body = envelope(call);
        let request = format!(
            "POST /sdk HTTP/1.1\r\nHost: {}\r\nUser-Agent: baseline\r\nContent-Type: {TEXT}\r\n\
             SOAPAction: {ACTION}\r\n{}Content-Length: {}\r\n\r\n{body}",
            self.host,
            self.cookie,
            body.len()
        );
        let wire = self.stream.get_mut();
        wire.write_all(request.as_bytes())?;
        wire.flush()?;
        let status = self.line()?;
        let mut length = None;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").context("a header without a value")?;
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.parse()?);
            } else if name.eq_ignore_ascii_case("set-cookie") {
                let cookie = value.split(';').next().unwrap_or_default();
                self.cookie = format!("Cookie: {cookie}\r\n");
            }
        }
        let mut answer = Vec::new();
        if let Some(length) = length {
            self.take(length, &mut answer)?;
        } else {
            loop {
                let size = usize::from_str_radix(&self.line()?, 16)?;
                self.take(size, &mut answer)?;
                self.line()?;
                if size == 0 {
                    break;
                }
            }
        }
        let answer = String::from_utf8(answer)?;
        if !status.contains(" 200 ") {
            bail!("{status}: {answer}");
        }
        Ok(answer)
    }
}

/// The same size as in the program.
const CHANNEL: usize = 1024;

/// Haulout's stream as its event loop receives it. A fact counts when its set is settled.
#[tokio::main(flavor = "current_thread")]
async fn stream(began: Instant, watch: &Watch) -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let plain = |text: &str| CredentialPart::Given(text.to_owned().into());
    let credentials = CredentialSource {
        user: plain(&watch.user),
        password: plain(&watch.password),
    };
    let endpoint = Endpoint::parse(&watch.sdk)?;
    let vcenter = Vcenter::new(Settings::new(
        endpoint,
        credentials,
        Trust::CaBundle(watch.ca.clone()),
    ))?;
    let ours = (0..watch.ours).filter_map(|n| VmUuid::parse(&Bulk::uuid(n)));
    let watch_set = WatchSet {
        vms: Arc::new(ours.map(VmKey::Uuid).collect()),
        ..WatchSet::default()
    };
    let (_keep, watch_set) = watch::channel(watch_set);
    let (out, mut updates) = mpsc::channel(CHANNEL);
    let follow = updates::run(vcenter, watch_set, out, CancellationToken::new());
    let host = watch.host.clone();
    let receive = async move {
        let (mut synced, mut known, mut entering) = (false, false, false);
        let mut batch = Vec::new();
        // All pending updates are handled at once, as in the event loop.
        while updates.recv_many(&mut batch, CHANNEL).await > 0 {
            for update in batch.drain(..) {
                match update {
                    VsphereUpdate::Host(it) if it.moref.as_str() == host => entering = it.entering.is_some(),
                    VsphereUpdate::Settled if !synced => {
                        synced = true;
                        known = entering;
                        say_ready(began);
                    }
                    VsphereUpdate::Settled if known != entering => {
                        known = entering;
                        say_entering(entering);
                    }
                    VsphereUpdate::Lost { why } => bail!("the stream was lost: {why}"),
                    VsphereUpdate::Host(_)
                    | VsphereUpdate::Reset
                    | VsphereUpdate::HostGone(_)
                    | VsphereUpdate::EvacuationPolicies { .. }
                    | VsphereUpdate::Compute(_)
                    | VsphereUpdate::ComputeGone(_)
                    | VsphereUpdate::Vm(_)
                    | VsphereUpdate::VmGone(_)
                    | VsphereUpdate::Task(_)
                    | VsphereUpdate::TaskGone(_)
                    | VsphereUpdate::Found { .. }
                    | VsphereUpdate::OutOfScope { .. }
                    | VsphereUpdate::Settled => {}
                }
            }
        }
        Ok(())
    };
    // Two tasks, as in the program, so that the waiting one wakes when it is notified.
    let mut tasks = JoinSet::new();
    tasks.spawn(receive);
    tasks.spawn(async {
        follow.await;
        bail!("the stream ended")
    });
    tasks.join_next().await.context("there are two tasks")??
}
