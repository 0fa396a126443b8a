//! The simulated vCenter on the wire: sessions, and the methods that the vSphere client calls.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use haulout_vsphere::client::{
    ConnectError, ConnectionPool, Connector, HttpReplyFuture, HttpResponse, HttpTransport, Settings,
    TransportError,
};
use http::header::{COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use crate::clock;
use crate::collector::{Collector, PollAnswer, Spec, View, Views, page};
use crate::faults::{Fate, Fault};
use crate::late::LateRequest;
use crate::oracle::Act;
use crate::properties::{escaped, number, task_ref, vm_ref};
use crate::vcenter::{OUR_USER, Work};
use crate::world::{Peer, Shared, World, WorldEvent, lock};
use crate::xml::{self, Element};

const VERSIONS: &str = "<?xml version=\"1.0\"?><namespaces version=\"1.0\"><namespace><name>urn:vim25</name>\
    <version>8.0.2.0</version><priorVersions><version>7.0.3.0</version></priorVersions></namespace></namespaces>";

const CONTENT: &str = "<returnval><rootFolder type=\"Folder\">group-d1</rootFolder>\
    <propertyCollector type=\"PropertyCollector\">propertyCollector</propertyCollector>\
    <viewManager type=\"ViewManager\">ViewManager</viewManager>\
    <sessionManager type=\"SessionManager\">SessionManager</sessionManager>\
    <searchIndex type=\"SearchIndex\">SearchIndex</searchIndex>\
    <taskManager type=\"TaskManager\">TaskManager</taskManager></returnval>";

/// The methods that change a VM.
const ACTS: [&str; 5] = [
    "ShutdownGuest",
    "PowerOffVM_Task",
    "PowerOnVM_Task",
    "PowerOnMultiVM_Task",
    "RelocateVM_Task",
];

/// How long changes are gathered before a long poll is answered.
const GATHER: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub struct Session {
    /// The replica that logged in.
    pub replica: usize,
    views: Views,
    collectors: BTreeMap<String, Collector>,
    created: usize,
}

/// The sessions, by their cookie.
pub type Sessions = BTreeMap<String, Session>;

/// One replica's connection to vCenter.
pub struct SimConnector {
    pub world: Shared,
    pub replica: usize,
}

impl std::fmt::Debug for SimConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SimConnector").field(&self.replica).finish()
    }
}

impl Connector for SimConnector {
    fn connect(&self, _: &Settings, _: Option<&[u8]>) -> Result<Arc<dyn HttpTransport>, ConnectError> {
        let (world, replica) = (Arc::clone(&self.world), self.replica);
        Ok(Arc::new(Self { world, replica }))
    }
}

impl HttpTransport for SimConnector {
    fn send(
        &self,
        pool: ConnectionPool,
        request: Request<Vec<u8>>,
        _: &'static [u16],
    ) -> HttpReplyFuture<'_> {
        Box::pin(exchange(&self.world, self.replica, pool, request))
    }
}

/// A call, read from its envelope.
#[derive(Debug)]
pub(crate) struct Call {
    method: String,
    on: (String, String),
    body: Element,
    cookie: String,
    operation: String,
}

/// What a method answers.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The content of the response.
    Returned(String),
    /// A fault: its type, its message, and what is inside.
    Fault(&'static str, String),
    /// The response of a login, with its cookie.
    LoggedIn(String),
    /// A long poll: wait for a change.
    Wait,
}

fn broken(what: &'static str) -> TransportError {
    TransportError::Connection(what.into())
}

/// Answers a call of a replica.
pub async fn exchange(
    world: &Shared,
    replica: usize,
    pool: ConnectionPool,
    request: Request<Vec<u8>>,
) -> Result<HttpResponse, TransportError> {
    let is_poll = pool == ConnectionPool::Polls;
    let call = Call::read(&request);
    let is_act = call.as_ref().is_some_and(Call::is_act);
    let guest_sent;
    let (fate, there, back) = {
        let mut world = lock(world);
        let world = &mut *world;
        let fate = world
            .faults
            .of_vcenter(is_poll, is_act, &mut world.rng, &mut world.account);
        let line = match &call {
            Some(call) => format!("{} {}:{}", call.method, call.on.0, call.on.1),
            None => format!("{} {}", request.method(), request.uri().path()),
        };
        world.asked(replica, "vCenter", &line, fate);
        world.story.content(request.body());
        let guest = call.as_ref().filter(|call| call.method == "ShutdownGuest");
        guest_sent = guest.and_then(|call| world.guest_is_sent(&call.on.1));
        (fate, world.latency(), world.latency())
    };
    sleep(there).await;
    match fate {
        Fate::Refused => return Err(broken("connection refused")),
        Fate::Status(status) => return Ok(reply(status, String::new())),
        Fate::Silence => std::future::pending().await,
        Fate::Answered | Fate::ReplyLost | Fate::Late | Fate::Garbled => {}
    }
    if lock(world).is_cut_off(replica, Peer::Vcenter) {
        std::future::pending().await
    }
    if lock(world).vcenter.down_until > clock::elapsed() {
        return Err(broken("connection refused"));
    }
    let Some(call) = call else {
        let is_versions =
            request.method() == Method::GET && request.uri().path().ends_with("vimServiceVersions.xml");
        sleep(back).await;
        return Ok(match is_versions {
            true => reply(200, VERSIONS.to_owned()),
            false => reply(404, String::new()),
        });
    };
    let method = call.method.clone();
    let answer = if fate == Fate::Late {
        let (reply, answer) = oneshot::channel();
        lock(world).send_late(LateRequest::Vcenter { replica, call, reply });
        answer.await.map_err(|_| broken("connection reset"))?
    } else {
        let answer = lock(world).call(replica, &call);
        match answer {
            Answer::Wait => wait(world, replica, &call).await?,
            Answer::Returned(_) | Answer::Fault(..) | Answer::LoggedIn(_) => answer,
        }
    };
    let late = is_poll.then(|| lock(world).poll_reply_is_late()).flatten();
    sleep(late.unwrap_or(back)).await;
    if lock(world).is_cut_off(replica, Peer::Vcenter) {
        std::future::pending().await
    }
    if fate == Fate::ReplyLost {
        return Err(broken("connection reset"));
    }
    let is_refused = fate == Fate::Answered && matches!(answer, Answer::Fault(..));
    if let Some(sent) = guest_sent.filter(|_| is_refused) {
        lock(world).guest_is_refused(sent);
    }
    let mut reply = envelope(&method, answer);
    if fate == Fate::Garbled {
        let body = String::from_utf8(reply.body).unwrap_or_default();
        reply.body = lock(world).garbled(Peer::Vcenter, &method, body).into_bytes();
    }
    Ok(reply)
}

/// Waits until a collector has something to tell.
async fn wait(world: &Shared, replica: usize, call: &Call) -> Result<Answer, TransportError> {
    let seconds: u64 = call
        .body
        .child("options")
        .map_or("", |it| it.text_of("maxWaitSeconds"))
        .parse()
        .unwrap_or(60);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut changes = lock(world).vcenter.changes.subscribe();
    loop {
        changes.borrow_and_update();
        {
            let mut world = lock(world);
            let world = &mut *world;
            if world.vcenter.down_until > clock::elapsed() {
                return Err(broken("connection reset"));
            }
            if !world.is_cut_off(replica, Peer::Vcenter) {
                let answer = world.call(replica, call);
                if !matches!(answer, Answer::Wait) {
                    return Ok(answer);
                }
            }
        }
        let withheld = clock::instant(lock(world).vcenter.withheld_until);
        let look = if withheld > Instant::now() {
            until.min(withheld)
        } else {
            until
        };
        if timeout_at(look, changes.changed()).await.is_err() {
            if look < until {
                continue;
            }
            return Ok(Answer::Returned(String::new()));
        }
        sleep(GATHER).await;
        let mut world = lock(world);
        let world = &mut *world;
        if world
            .faults
            .fires(Fault::PollCut, &mut world.rng, &mut world.account)
        {
            return Err(broken("connection reset"));
        }
    }
}

fn reply(status: u16, body: String) -> HttpResponse {
    HttpResponse {
        status: StatusCode::from_u16(status).unwrap_or_default(),
        headers: HeaderMap::new(),
        body: body.into_bytes(),
    }
}

fn envelope(method: &str, answer: Answer) -> HttpResponse {
    let mut cookie = None;
    let (status, content) = match answer {
        Answer::Returned(xml) => (
            200,
            format!("<{method}Response xmlns=\"urn:vim25\">{xml}</{method}Response>"),
        ),
        Answer::LoggedIn(key) => {
            let xml = format!(
                "<LoginResponse xmlns=\"urn:vim25\"><returnval><key>{key}</key><userName>{}</userName></returnval></LoginResponse>",
                escaped(OUR_USER)
            );
            cookie = HeaderValue::from_str(&format!("vmware_soap_session=\"{key}\"; Path=/; HttpOnly")).ok();
            (200, xml)
        }
        Answer::Fault(kind, inside) => (
            500,
            format!(
                "<soapenv:Fault><faultcode>ServerFaultCode</faultcode><faultstring>simulated {kind}</faultstring>\
                 <detail><{kind}Fault xmlns=\"urn:vim25\" xsi:type=\"{kind}\">{inside}</{kind}Fault></detail></soapenv:Fault>"
            ),
        ),
        Answer::Wait => (200, String::new()),
    };
    let mut response = reply(
        status,
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><soapenv:Envelope xmlns:soapenv=\"http://schemas.xmlsoap.org/soap/envelope/\" \
             xmlns:xsd=\"http://www.w3.org/2001/XMLSchema\" xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\">\
             <soapenv:Body>{content}</soapenv:Body></soapenv:Envelope>"
        ),
    );
    if let Some(cookie) = cookie {
        response.headers.insert(SET_COOKIE, cookie);
    }
    response
}

impl Call {
    fn read(request: &Request<Vec<u8>>) -> Option<Self> {
        let envelope = xml::parse(request.body())?;
        let body = envelope.child("Body")?.children.first()?.clone();
        let this = body.child("_this")?;
        let cookie = request
            .headers()
            .get(COOKIE)
            .and_then(|cookie| cookie.to_str().ok());
        let cookie = cookie
            .and_then(|cookie| cookie.split('"').nth(1))
            .unwrap_or_default();
        Some(Self {
            method: body.name.clone(),
            on: (this.attribute("type").to_owned(), this.text.clone()),
            cookie: cookie.to_owned(),
            operation: envelope
                .child("Header")
                .map_or("", |header| header.text_of("operationID"))
                .to_owned(),
            body,
        })
    }

    /// Whether it changes a VM.
    fn is_act(&self) -> bool {
        ACTS.contains(&self.method.as_str())
    }

    /// The epoch of the leadership under which it was sent.
    fn epoch(&self) -> Option<u64> {
        self.operation
            .strip_prefix("haulout-e")?
            .split('-')
            .next()?
            .parse()
            .ok()
    }
}

fn moref_of(element: &Element) -> (String, String) {
    (element.attribute("type").to_owned(), element.text.clone())
}

fn task_of(task: usize) -> Answer {
    let (kind, id) = task_ref(task);
    Answer::Returned(format!("<returnval type=\"{kind}\">{id}</returnval>"))
}

fn created(kind: &str, id: &str) -> Answer {
    Answer::Returned(format!("<returnval type=\"{kind}\">{id}</returnval>"))
}

/// Logins that vCenter refuses for a while, as it does when its identity source is down.
#[derive(Debug, Default)]
pub struct RefusedLogins {
    pub until: Duration,
    /// When the latest were refused.
    at: VecDeque<Duration>,
}

/// By default, vCenter locks an account after so many refused logins in a row within so long.
const LOCKED_AFTER: (usize, Duration) = (5, Duration::from_secs(180));

impl World {
    /// Counts a refused login. Without a Lease, a process that starts knows of no earlier refusal.
    fn login_is_refused(&mut self, replica: usize) {
        self.tell(format!("replica-{replica}"), "is refused by vCenter");
        let (now, (most, within)) = (clock::elapsed(), LOCKED_AFTER);
        let at = &mut self.refused_logins.at;
        at.push_back(now);
        at.retain(|then| now < *then + within);
        let is_elected = self
            .plan
            .settings
            .flags
            .iter()
            .any(|flag| flag == "--leader-election=true");
        // A restore of etcd takes the note on the Lease back, and one by a clock that was set may look old.
        let is_noted = is_elected && self.oracle.restored.is_none() && clock::are_set_alike();
        if at.len() >= most && is_noted {
            self.violated(
                "no account is locked by refused logins",
                format!("{most} within {} s", within.as_secs()),
            );
        }
    }

    /// How late the reply to a long poll is, if it is. Re-reads of the same objects begin and end in this time.
    fn poll_reply_is_late(&mut self) -> Option<Duration> {
        let is_late = self
            .faults
            .fires(Fault::PollReplyLate, &mut self.rng, &mut self.account);
        is_late.then(|| self.seconds(5..150))
    }

    pub(crate) fn call(&mut self, replica: usize, call: &Call) -> Answer {
        match call.method.as_str() {
            "RetrieveServiceContent" => return Answer::Returned(CONTENT.to_owned()),
            "Login" if clock::elapsed() < self.refused_logins.until => {
                self.login_is_refused(replica);
                return Answer::Fault("InvalidLogin", String::new());
            }
            "Login" => {
                self.logins += 1;
                self.refused_logins.at.clear();
                let key = format!("52f00000-{replica}-{}", self.logins);
                let session = Session {
                    replica,
                    ..Session::default()
                };
                self.sessions.insert(key.clone(), session);
                self.tell(format!("replica-{replica}"), "logs in to vCenter");
                return Answer::LoggedIn(key);
            }
            _ => {}
        }
        if !self.sessions.contains_key(&call.cookie) {
            let inside = "<object type=\"PropertyCollector\">propertyCollector</object><privilegeId>System.View</privilegeId>";
            return Answer::Fault("NotAuthenticated", inside.to_owned());
        }
        if let Some(answer) = self.call_of_session(call) {
            return answer;
        }
        match call.method.as_str() {
            "FindAllByUuid" => {
                let uuid = call.body.text_of("uuid");
                let found = self.vcenter.vms.iter().position(|vm| vm.uuid == uuid);
                let (kind, id) = vm_ref(found.unwrap_or_default());
                let xml = found.map(|_| format!("<returnval type=\"{kind}\">{id}</returnval>"));
                Answer::Returned(xml.unwrap_or_default())
            }
            "QueryConfigOptionDescriptor" => Answer::Returned(String::new()),
            _ if call.is_act() => self.act_on_vm(replica, call),
            _ => Answer::Fault("NotSupported", String::new()),
        }
    }

    /// The methods that concern a session only.
    fn call_of_session(&mut self, call: &Call) -> Option<Answer> {
        let session = self.sessions.get_mut(&call.cookie)?;
        let vcenter = &self.vcenter;
        let mut id = |kind: &str| {
            session.created += 1;
            format!("session[{}]{kind}-{}", call.cookie, session.created)
        };
        Some(match call.method.as_str() {
            "Logout" => {
                self.sessions.remove(&call.cookie);
                Answer::Returned(String::new())
            }
            "CreateContainerView" => {
                let id = id("view");
                session
                    .views
                    .insert(id.clone(), View::All(call.body.text_of("type").to_owned()));
                created("ContainerView", &id)
            }
            "CreateListView" => {
                let id = id("list");
                session.views.insert(id.clone(), View::List(Default::default()));
                created("ListView", &id)
            }
            "ModifyListView" => {
                let Some(View::List(members)) = session.views.get_mut(&call.on.1) else {
                    return Some(Answer::Fault("ManagedObjectNotFound", String::new()));
                };
                let mut absent = String::new();
                for add in call.body.all("add") {
                    let (kind, id) = moref_of(add);
                    match vcenter.known(&kind, &id) {
                        Some(moref) => {
                            members.insert(moref);
                        }
                        None => absent.push_str(&format!("<returnval type=\"{kind}\">{id}</returnval>")),
                    }
                }
                for remove in call.body.all("remove") {
                    let (kind, id) = moref_of(remove);
                    members.retain(|(of, it)| *of != kind || *it != id);
                }
                vcenter.changed();
                Answer::Returned(absent)
            }
            "DestroyView" => {
                session.views.remove(&call.on.1);
                Answer::Returned(String::new())
            }
            "CreatePropertyCollector" => {
                let id = id("collector");
                session.collectors.insert(id.clone(), Collector::default());
                created("PropertyCollector", &id)
            }
            "CreateCollectorForTasks" => created("TaskHistoryCollector", &id("history")),
            "SetCollectorPageSize" | "DestroyCollector" => Answer::Returned(String::new()),
            "DestroyPropertyCollector" => {
                session.collectors.remove(&call.on.1);
                vcenter.changed();
                Answer::Returned(String::new())
            }
            "CreateFilter" => {
                let Some(collector) = session.collectors.get_mut(&call.on.1) else {
                    return Some(Answer::Fault("ManagedObjectNotFound", String::new()));
                };
                collector.filters.extend(call.body.child("spec").map(Spec::read));
                vcenter.changed();
                created("PropertyFilter", "filter")
            }
            "CancelWaitForUpdates" => Answer::Returned(String::new()),
            "RetrievePropertiesEx" => {
                let specs = call.body.all("specSet").map(Spec::read);
                let objects: String = specs
                    .map(|spec| page(&spec.select(vcenter, &session.views)))
                    .collect();
                match objects.is_empty() {
                    true => Answer::Returned(String::new()),
                    false => Answer::Returned(format!("<returnval>{objects}</returnval>")),
                }
            }
            "WaitForUpdatesEx" => {
                let Some(collector) = session.collectors.get_mut(&call.on.1) else {
                    return Some(Answer::Fault("ManagedObjectNotFound", String::new()));
                };
                let version = call.body.text_of("version");
                if vcenter.withheld_until > clock::elapsed() && !version.is_empty() {
                    return Some(Answer::Wait);
                }
                let (faults, rng, account) = (&self.faults, &mut self.rng, &mut self.account);
                let mut is_lost = || faults.fires(Fault::TaskUpdateLost, rng, account);
                match collector.poll(version, vcenter, &session.views, &mut is_lost) {
                    PollAnswer::Set { xml, is_first } => {
                        if is_first {
                            self.vcenter.followed_at = clock::elapsed();
                        }
                        Answer::Returned(format!("<returnval>{xml}</returnval>"))
                    }
                    PollAnswer::Nothing => Answer::Wait,
                    PollAnswer::UnknownVersion => Answer::Fault("InvalidCollectorVersion", String::new()),
                }
            }
            _ => return None,
        })
    }

    /// The methods that change a VM.
    fn act_on_vm(&mut self, replica: usize, call: &Call) -> Answer {
        let by_drs = call.method == "PowerOnMultiVM_Task";
        let named = match by_drs {
            true => call.body.child("vm").map(moref_of).unwrap_or_default(),
            false => call.on.clone(),
        };
        let Some(vm) = self
            .vcenter
            .known(&named.0, &named.1)
            .and_then(|(_, id)| number(&id))
        else {
            return Answer::Fault("ManagedObjectNotFound", String::new());
        };
        let act = match call.method.as_str() {
            "ShutdownGuest" => Act::ShutdownGuest,
            "PowerOffVM_Task" => Act::PowerOff,
            "RelocateVM_Task" => Act::Relocate,
            _ => Act::PowerOn,
        };
        let name = self.vcenter.vms[vm].name.clone();
        self.tell(format!("replica-{replica}"), format!("{} of {name}", call.method));
        self.check_act(act, vm, call.epoch().unwrap_or_default());
        if self.vcenter.busy(vm).is_some() {
            return Answer::Fault("TaskInProgress", String::new());
        }
        if self.vcenter.vms[vm].asks {
            return Answer::Fault("QuestionPending", "<text>simulated question</text>".to_owned());
        }
        let state = |on: bool| {
            let (requested, existing) = if on {
                ("poweredOff", "poweredOn")
            } else {
                ("poweredOn", "poweredOff")
            };
            format!("<requestedState>{requested}</requestedState><existingState>{existing}</existingState>")
        };
        let on = self.vcenter.vms[vm].is_shown_on();
        let is_reached = self.vcenter.hosts[self.vcenter.vms[vm].host].connected;
        match act {
            Act::ShutdownGuest if !is_reached => Answer::Fault("HostNotConnected", String::new()),
            Act::ShutdownGuest if !on => Answer::Fault("InvalidPowerState", state(on)),
            Act::ShutdownGuest if self.vcenter.vms[vm].tools_stopped => {
                Answer::Fault("ToolsUnavailable", String::new())
            }
            Act::ShutdownGuest => {
                if !self.vcenter.vms[vm].going_down {
                    self.shut_down_guest(vm);
                }
                Answer::Returned(String::new())
            }
            Act::PowerOff => task_of(self.begin_task(Work::PowerOff(vm), OUR_USER)),
            Act::PowerOn => task_of(self.begin_task(Work::PowerOn { vm, by_drs }, OUR_USER)),
            Act::Relocate => {
                let host = call
                    .body
                    .child("spec")
                    .and_then(|spec| spec.child("host"))
                    .map(moref_of);
                let host = host.and_then(|(kind, id)| self.vcenter.known(&kind, &id));
                match host.and_then(|(_, id)| number(&id)) {
                    Some(to) => task_of(self.begin_task(Work::Relocate { vm, to }, OUR_USER)),
                    None => Answer::Fault("ManagedObjectNotFound", String::new()),
                }
            }
        }
    }

    /// A guest is asked to shut down.
    fn shut_down_guest(&mut self, vm: usize) {
        let takes = self.faults.guest_shutdown(&mut self.rng, &mut self.account);
        let guest = &mut self.vcenter.vms[vm];
        if let Some(takes) = takes {
            guest.going_down = true;
            guest.tools_stopped = self
                .faults
                .fires(Fault::ToolsStop, &mut self.rng, &mut self.account);
            let boots = guest.boots;
            self.oracle.nodes[vm].guest_asked = clock::elapsed();
            self.queue.after(takes, WorldEvent::GuestIsOff { vm, boots });
            self.kubelet_shuts_down(vm);
        }
    }
}
