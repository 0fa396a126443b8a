//! An HTTP server on loopback with a function as its responses, and a vCenter on top that a test controls.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use haulout_vsphere::WritePermit;
use haulout_vsphere::client::{CredentialPart, CredentialSource, Endpoint, Settings, Trust, Vcenter};
use haulout_vsphere::update::{Host, VsphereUpdate, WatchSet};
use haulout_vsphere::updates;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub const VERSIONS: &[u8] = include_bytes!("../../../../proto-notes/captures/versions.xml");
pub const CONTENT: &[u8] = include_bytes!("../../../../proto-notes/captures/service-content.xml");
pub const LOGIN: &[u8] = include_bytes!("../../../../proto-notes/captures/login.xml");
pub const DEAD: &[u8] = include_bytes!("../../../../proto-notes/captures/dead-session-call.xml");

/// The timeout of a test.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct Request {
    /// Request line and headers.
    pub head: String,
    pub body: String,
}

impl Request {
    /// The SOAP method; empty for a GET.
    pub fn method(&self) -> &str {
        let Some((_, body)) = self.body.split_once("<soapenv:Body><") else {
            return "";
        };
        body.split([' ', '>']).next().unwrap_or_default()
    }

    /// The value of the element `name`, the first one.
    pub fn value(&self, name: &str) -> Option<&str> {
        let (_, rest) = self.body.split_once(&format!("<{name}"))?;
        let (_, rest) = rest.split_once('>')?;
        Some(rest.split_once('<')?.0)
    }
}

/// The response to a request.
#[derive(Clone, Debug)]
pub enum Reply {
    Answer {
        status: u16,
        headers: String,
        body: Vec<u8>,
    },
    /// The request is read and the connection is closed.
    Close,
    Never,
    After(Duration, Box<Reply>),
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::Answer {
            status,
            headers: String::new(),
            body: body.into(),
        }
    }

    /// The same after a delay.
    pub fn after(self, pause: Duration) -> Self {
        Self::After(pause, Box::new(self))
    }

    /// The response of `method` with this content.
    pub fn of(method: &str, content: &str) -> Self {
        let body = format!(
            r#"<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><s:Body><{method}Response xmlns="urn:vim25">{content}</{method}Response></s:Body></s:Envelope>"#
        );
        Self::new(200, body)
    }

    pub fn fault(kind: &str, detail: &str) -> Self {
        let body = format!(
            r#"<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><s:Body><s:Fault><faultcode>ServerFaultCode</faultcode><faultstring>no</faultstring><detail><{kind}Fault xmlns="urn:vim25" i:type="{kind}">{detail}</{kind}Fault></detail></s:Fault></s:Body></s:Envelope>"#
        );
        Self::new(500, body)
    }
}

/// Answers a request.
pub trait Answers: Send + Sync + 'static {
    fn answer(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Reply> + Send>>;
}

/// Serves until the returned set is dropped.
pub async fn serve(answers: Arc<impl Answers>) -> (Endpoint, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::parse(&format!("http://{}/sdk", listener.local_addr().unwrap())).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(converse(stream, answers.clone()));
        }
    });
    (endpoint, tasks)
}

async fn converse(mut stream: TcpStream, answers: Arc<impl Answers>) -> Option<()> {
    let mut buffer = Vec::new();
    loop {
        let (head, length) = loop {
            let text = String::from_utf8_lossy(&buffer).into_owned();
            if let Some((head, _)) = text.split_once("\r\n\r\n") {
                let lower = head.to_ascii_lowercase();
                let length = lower
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                break (head.to_owned(), length.unwrap_or(0_usize));
            }
            (stream.read_buf(&mut buffer).await.ok()? > 0).then_some(())?;
        };
        let end = head.len() + 4 + length;
        while buffer.len() < end {
            (stream.read_buf(&mut buffer).await.ok()? > 0).then_some(())?;
        }
        let body = String::from_utf8_lossy(&buffer[head.len() + 4..end]).into_owned();
        buffer.drain(..end);
        let mut reply = answers.clone().answer(Request { head, body }).await;
        while let Reply::After(pause, then) = reply {
            tokio::time::sleep(pause).await;
            reply = *then;
        }
        match reply {
            Reply::Answer {
                status,
                headers,
                body,
            } => {
                let head = format!(
                    "HTTP/1.1 {status} x\r\n{headers}Content-Length: {}\r\n\r\n",
                    body.len()
                );
                // In one write: the second one would wait for an acknowledgement of the first.
                let reply = [head.as_bytes(), &body].concat();
                stream.write_all(&reply).await.ok()?;
            }
            Reply::Close | Reply::After(..) => return None,
            Reply::Never => std::future::pending().await,
        }
    }
}

pub fn someone() -> CredentialSource {
    CredentialSource {
        user: CredentialPart::Given("someone".to_owned().into()),
        password: CredentialPart::Given("hunter2".to_owned().into()),
    }
}

/// Settings for a server on loopback, with short pauses.
pub fn settings(endpoint: Endpoint) -> Settings {
    let mut settings = Settings::new(endpoint, someone(), Trust::Nothing);
    settings.call_deadline = Duration::from_secs(5);
    settings.retry_min = Duration::from_millis(10);
    settings
}

type Script = dyn FnMut(&Request) -> Option<Reply> + Send;

/// A vCenter that accepts all logins, creates all objects, and pushes the sets of a test. The responses of a script
/// take precedence.
pub struct Fake {
    script: Mutex<Box<Script>>,
    calls: Mutex<Vec<Request>>,
    /// The next sets of the collectors, by their number from 1.
    sets: Mutex<HashMap<String, VecDeque<String>>>,
    made: Mutex<usize>,
    versions: Mutex<usize>,
    happened: Notify,
    address: OnceLock<String>,
}

impl Fake {
    pub async fn start(
        script: impl FnMut(&Request) -> Option<Reply> + Send + 'static,
    ) -> (Arc<Self>, Vcenter, JoinSet<()>) {
        Self::start_with(script, |_| {}).await
    }

    pub async fn start_with(
        script: impl FnMut(&Request) -> Option<Reply> + Send + 'static,
        set: impl FnOnce(&mut Settings),
    ) -> (Arc<Self>, Vcenter, JoinSet<()>) {
        let fake = Arc::new(Self {
            script: Mutex::new(Box::new(script)),
            calls: Mutex::default(),
            sets: Mutex::default(),
            made: Mutex::default(),
            versions: Mutex::default(),
            happened: Notify::new(),
            address: OnceLock::new(),
        });
        let (endpoint, tasks) = serve(fake.clone()).await;
        fake.address.set(endpoint.to_string()).unwrap();
        let mut settings = settings(endpoint);
        set(&mut settings);
        (fake, Vcenter::new(settings).unwrap(), tasks)
    }

    /// Pushes `objects`, the content of a `filterSet`, as the next set of the collector `pc-NUMBER`.
    pub fn push(&self, collector: usize, objects: &str) {
        self.push_raw(collector, &format!("<filterSet>{objects}</filterSet>"));
    }

    /// Pushes any content after the version of a set.
    pub fn push_raw(&self, collector: usize, content: &str) {
        let mut versions = self.versions.lock().unwrap();
        *versions += 1;
        let set = format!("<returnval><version>{versions}</version>{content}</returnval>");
        let mut sets = self.sets.lock().unwrap();
        let queue = sets.entry(format!("session[1]pc-{collector}")).or_default();
        queue.push_back(set);
        drop((versions, sets));
        self.happened.notify_waiters();
    }

    pub fn address(&self) -> String {
        self.address.get().unwrap().clone()
    }

    pub fn all_calls(&self) -> Vec<Request> {
        self.calls.lock().unwrap().clone()
    }

    pub fn calls(&self, method: &str) -> Vec<Request> {
        let calls = self.calls.lock().unwrap();
        calls
            .iter()
            .filter(|call| call.method() == method)
            .cloned()
            .collect()
    }

    /// Waits for a call that matches `is`.
    pub async fn called(&self, is: impl Fn(&Request) -> bool) -> Request {
        let found = async {
            loop {
                let happened = self.happened.notified();
                let found = self.calls.lock().unwrap().iter().find(|call| is(call)).cloned();
                if let Some(found) = found {
                    return found;
                }
                happened.await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, found)
            .await
            .expect("the call did not come")
    }

    /// Waits for this many calls of `method`.
    pub async fn counted(&self, method: &str, count: usize) {
        self.counted_where(|call| call.method() == method, count).await;
    }

    /// Waits for this many calls that match `is`.
    pub async fn counted_where(&self, is: impl Fn(&Request) -> bool, count: usize) {
        let counted = async {
            loop {
                let happened = self.happened.notified();
                if self.calls.lock().unwrap().iter().filter(|call| is(call)).count() >= count {
                    return;
                }
                happened.await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, counted)
            .await
            .expect("the calls did not come");
    }

    async fn next_set(&self, collector: &str) -> String {
        loop {
            let happened = self.happened.notified();
            let set = self
                .sets
                .lock()
                .unwrap()
                .get_mut(collector)
                .and_then(VecDeque::pop_front);
            if let Some(set) = set {
                return set;
            }
            happened.await;
        }
    }

    fn make(&self, method: &str, kind: &str, short: &str) -> Reply {
        let mut made = self.made.lock().unwrap();
        let number = if short == "pc" {
            *made += 1;
            *made
        } else {
            1
        };
        Reply::of(
            method,
            &format!(r#"<returnval type="{kind}">session[1]{short}-{number}</returnval>"#),
        )
    }
}

/// The default response to a reread: one host without maintenance.
const REREAD: &str = r#"<returnval><objects><obj type="HostSystem">host-1</obj><propSet><name>recentTask</name></propSet></objects></returnval>"#;

/// Whether it is the reread, which uses the views.
pub fn is_reread(call: &Request) -> bool {
    call.method() == "RetrievePropertiesEx" && call.body.contains("<path>view</path>")
}

impl Answers for Fake {
    fn answer(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Reply> + Send>> {
        Box::pin(async move {
            self.calls.lock().unwrap().push(request.clone());
            self.happened.notify_waiters();
            if let Some(reply) = (self.script.lock().unwrap())(&request) {
                return reply;
            }
            let method = request.method();
            match method {
                "" => Reply::new(200, VERSIONS),
                "RetrieveServiceContent" => Reply::new(200, CONTENT),
                "Login" => Reply::Answer {
                    status: 200,
                    headers: "Set-Cookie: vmware_soap_session=\"1\"; Path=/; HttpOnly\r\n".to_owned(),
                    body: LOGIN.to_vec(),
                },
                "CreateContainerView" => self.make(method, "ContainerView", "hosts"),
                "CreateListView" => self.make(method, "ListView", "list"),
                "CreatePropertyCollector" => self.make(method, "PropertyCollector", "pc"),
                "CreateFilter" => self.make(method, "PropertyFilter", "filter"),
                "CreateCollectorForTasks" | "CreateCollectorWithInfoFilterForTasks" => {
                    self.make(method, "TaskHistoryCollector", "history")
                }
                "WaitForUpdatesEx" => {
                    let collector = request.value("_this").unwrap().to_owned();
                    Reply::of(method, &self.next_set(&collector).await)
                }
                "RetrievePropertiesEx" if is_reread(&request) => Reply::of(method, REREAD),
                _ => Reply::of(method, ""),
            }
        })
    }
}

/// A running stream.
pub struct Followed {
    pub updates: mpsc::Receiver<VsphereUpdate>,
    pub watch_set: watch::Sender<WatchSet>,
    pub stop: CancellationToken,
    pub tasks: JoinSet<()>,
}

pub fn follow(vcenter: &Vcenter, watch_set: WatchSet) -> Followed {
    let (sender, watch_set) = watch::channel(watch_set);
    let (out, updates) = mpsc::channel(64);
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(updates::run(vcenter.clone(), watch_set, out, stop.clone()));
    Followed {
        updates,
        watch_set: sender,
        stop,
        tasks,
    }
}

impl Followed {
    /// The next update that `pick` accepts.
    pub async fn until<T>(&mut self, pick: impl Fn(&VsphereUpdate) -> Option<T>) -> T {
        let picked = async {
            loop {
                let update = self.updates.recv().await.expect("the stream ended");
                if let VsphereUpdate::Lost { why } = &update {
                    panic!("the stream broke: {why}");
                }
                if let Some(picked) = pick(&update) {
                    return picked;
                }
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, picked)
            .await
            .expect("no such update arrived")
    }

    /// The next host update that `pick` accepts.
    pub async fn host<T>(&mut self, pick: impl Fn(&Host) -> Option<T>) -> T {
        self.until(|update| {
            let VsphereUpdate::Host(host) = update else {
                return None;
            };
            pick(host)
        })
        .await
    }

    /// The reason why the stream ended.
    pub async fn lost(&mut self) -> String {
        let lost = async {
            loop {
                let update = self.updates.recv().await.expect("the stream ended");
                if let VsphereUpdate::Lost { why } = update {
                    return why;
                }
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, lost)
            .await
            .expect("the stream did not end")
    }

    pub async fn settled(&mut self) {
        self.until(|update| (*update == VsphereUpdate::Settled).then_some(()))
            .await;
    }

    pub async fn stop(mut self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(WAIT_TIMEOUT, self.tasks.join_next()).await;
        ended.expect("the stream did not stop").unwrap().unwrap();
    }
}

/// An `objectSet` of a host.
pub fn host(kind: &str, name: &str, properties: &str) -> String {
    format!(r#"<objectSet><kind>{kind}</kind><obj type="HostSystem">{name}</obj>{properties}</objectSet>"#)
}

/// A changed property.
pub fn change(path: &str, value: &str) -> String {
    format!("<changeSet><name>{path}</name><op>assign</op><val>{value}</val></changeSet>")
}

/// A changed property whose value is a reference.
pub fn change_ref(path: &str, kind: &str, value: &str) -> String {
    format!(r#"<changeSet><name>{path}</name><op>assign</op><val type="{kind}">{value}</val></changeSet>"#)
}

/// A changed property whose value is a list of tasks.
pub fn recent(tasks: &[&str]) -> String {
    let tasks: String = tasks
        .iter()
        .map(|task| format!(r#"<ManagedObjectReference type="Task">{task}</ManagedObjectReference>"#))
        .collect();
    change("recentTask", &tasks)
}

/// The `objectSet` of a maintenance task that runs on a host.
pub fn entering(task: &str, host: &str, second: u32) -> String {
    format!(
        r#"<objectSet><kind>enter</kind><obj type="Task">{task}</obj>{}{}{}{}{}</objectSet>"#,
        change("info.descriptionId", "HostSystem.enterMaintenanceMode"),
        change_ref("info.entity", "HostSystem", host),
        change("info.state", "running"),
        change("info.cancelled", "false"),
        change("info.queueTime", &format!("2026-11-21T09:57:{second:02}Z")),
    )
}

/// The `objectSet` of a task that changed.
pub fn task_changed(task: &str, properties: &str) -> String {
    format!(r#"<objectSet><kind>modify</kind><obj type="Task">{task}</obj>{properties}</objectSet>"#)
}

/// The properties of a task that ended with a fault.
pub fn failed(fault: &str) -> String {
    let error = format!(r#"<fault i:type="{fault}"/><localizedMessage>no words</localizedMessage>"#);
    [change("info.error", &error), change("info.state", "error")].concat()
}

/// The response to a login with the cookie of a new session.
pub fn login(number: usize) -> Reply {
    Reply::Answer {
        status: 200,
        headers: format!("Set-Cookie: vmware_soap_session=\"{number}\"; Path=/; HttpOnly\r\n"),
        body: LOGIN.to_vec(),
    }
}

/// The permit of a test, which leads alone.
pub struct Permit;

impl WritePermit for Permit {
    fn epoch(&self) -> u64 {
        0
    }
}

pub fn permit() -> Permit {
    Permit
}
