//! How soon the stream works again after vCenter was away, in simulated time, and how often it logs in meanwhile.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haulout_vsphere::client::{
    ConnectError, ConnectionPool, Connector, Endpoint, HttpReplyFuture, HttpResponse, HttpTransport,
    Settings, TransportError, Vcenter,
};
use haulout_vsphere::update::{VsphereUpdate, WatchSet};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::server::{
    CONTENT, DEAD, Followed, LOGIN, Reply, Request, VERSIONS, change, follow, host, someone,
};

const REFUSED: &[u8] = include_bytes!("../../../../proto-notes/captures/login-refused.xml");

/// How long a request takes to arrive, and a reply.
const LATENCY: Duration = Duration::from_millis(20);

/// What vCenter does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Up,
    /// Connections are refused, and those that exist are cut.
    Away,
    /// The reverse proxy answers for it.
    Starting,
    /// It accepts no password.
    RefusesLogins,
    /// The connection of each login breaks before the reply.
    LosesLogins,
    /// It answers no login.
    HoldsLogins,
    /// A proxy cuts each poll that is idle for a minute. Hosts change more often, tasks do not.
    CutsIdlePolls,
    /// Each session is dead as soon as it was made.
    ForgetsSessions,
    /// It answers, and refuses to create anything.
    RefusesViews,
}

/// A vCenter in memory, with one host.
#[derive(Debug)]
struct Memory {
    condition: watch::Sender<Condition>,
    /// When each login came.
    logins: Mutex<Vec<Instant>>,
    /// The sessions that live.
    sessions: Mutex<BTreeSet<usize>>,
    created: Mutex<usize>,
    /// The collectors of task histories.
    histories: Mutex<BTreeSet<String>>,
}

#[derive(Clone, Debug)]
struct MemoryConnector(Arc<Memory>);

impl Memory {
    fn start() -> (Arc<Self>, MemoryConnector) {
        let memory = Arc::new(Self {
            condition: watch::Sender::new(Condition::Up),
            logins: Mutex::default(),
            sessions: Mutex::default(),
            created: Mutex::default(),
            histories: Mutex::default(),
        });
        (memory.clone(), MemoryConnector(memory))
    }

    /// From now on. Whatever happens, sessions are lost.
    fn becomes(&self, condition: Condition) {
        self.sessions.lock().unwrap().clear();
        self.condition.send_replace(condition);
    }

    fn logins_since(&self, since: Instant) -> Vec<Duration> {
        let logins = self.logins.lock().unwrap();
        let since = logins.iter().filter(|at| **at >= since).map(|at| *at - since);
        since.collect()
    }

    fn reply(&self, request: &Request) -> Reply {
        let condition = *self.condition.borrow();
        if condition == Condition::Starting {
            return Reply::new(503, "");
        }
        let method = request.method();
        match method {
            "" => return Reply::new(200, VERSIONS),
            "RetrieveServiceContent" => return Reply::new(200, CONTENT),
            "Login" => {
                let mut logins = self.logins.lock().unwrap();
                logins.push(Instant::now());
                if condition == Condition::RefusesLogins {
                    return Reply::new(500, REFUSED);
                }
                if condition == Condition::LosesLogins {
                    return Reply::Close;
                }
                if condition == Condition::HoldsLogins {
                    return Reply::Never;
                }
                if condition != Condition::ForgetsSessions {
                    self.sessions.lock().unwrap().insert(logins.len());
                }
                let cookie = format!("Set-Cookie: vmware_soap_session=\"{}\"; Path=/\r\n", logins.len());
                return Reply::Answer {
                    status: 200,
                    headers: cookie,
                    body: LOGIN.to_vec(),
                };
            }
            _ => {}
        }
        let is_of = |session: &usize| request.head.contains(&format!("\"{session}\""));
        if !self.sessions.lock().unwrap().iter().any(is_of) {
            return Reply::new(500, DEAD);
        }
        let creates = |kind: &str| {
            let mut created = self.created.lock().unwrap();
            *created += 1;
            Reply::of(
                method,
                &format!(r#"<returnval type="{kind}">session[1]{kind}-{created}</returnval>"#),
            )
        };
        match method {
            "CreateContainerView" if condition == Condition::RefusesViews => Reply::fault("SystemError", ""),
            "CreateContainerView" => creates("ContainerView"),
            "CreateListView" => creates("ListView"),
            "CreatePropertyCollector" => creates("PropertyCollector"),
            "CreateFilter" => {
                if request.body.contains("latestPage") {
                    let collector = request.value("_this").unwrap().to_owned();
                    self.histories.lock().unwrap().insert(collector);
                }
                creates("PropertyFilter")
            }
            "CreateCollectorForTasks" if condition == Condition::CutsIdlePolls => {
                creates("TaskHistoryCollector")
            }
            "WaitForUpdatesEx" if condition == Condition::CutsIdlePolls => self.reply_to_poll(request),
            "WaitForUpdatesEx" if request.value("version") == Some("") => {
                let esx1 = host("enter", "host-1", &change("name", "esx1"));
                let set = format!("<returnval><version>1</version><filterSet>{esx1}</filterSet></returnval>");
                Reply::of(method, &set)
            }
            "WaitForUpdatesEx" => Reply::Never,
            "CreateCollectorWithInfoFilterForTasks" | "CreateCollectorForTasks" => {
                Reply::fault("NotSupported", "")
            }
            "RetrievePropertiesEx" => Reply::of(
                method,
                r#"<returnval><objects><obj type="HostSystem">host-1</obj></objects></returnval>"#,
            ),
            _ => Reply::of(method, ""),
        }
    }

    /// Through a proxy that cuts idle polls.
    fn reply_to_poll(&self, request: &Request) -> Reply {
        let collector = request.value("_this").unwrap();
        let is_history = self.histories.lock().unwrap().contains(collector);
        let version = request.value("version").unwrap();
        let esx1 = host("enter", "host-1", &change("name", "esx1"));
        let objects = if is_history { "" } else { &esx1 };
        let set =
            format!("<returnval><version>{version}1</version><filterSet>{objects}</filterSet></returnval>");
        let wait = Duration::from_secs(request.value("maxWaitSeconds").unwrap().parse().unwrap());
        let minute = Duration::from_secs(60);
        match (version, is_history) {
            ("", _) => Reply::of(request.method(), &set),
            (_, false) => Reply::of(request.method(), &set).after(wait.min(minute / 2)),
            (_, true) if wait < minute => Reply::of(request.method(), "").after(wait),
            (_, true) => Reply::Close.after(minute),
        }
    }
}

impl Connector for MemoryConnector {
    fn connect(&self, _: &Settings, _: Option<&[u8]>) -> Result<Arc<dyn HttpTransport>, ConnectError> {
        Ok(Arc::new(self.clone()))
    }
}

impl HttpTransport for MemoryConnector {
    fn send(
        &self,
        _: ConnectionPool,
        request: http::Request<Vec<u8>>,
        _: &'static [u16],
    ) -> HttpReplyFuture<'_> {
        let broken = || TransportError::Connection("connection refused".into());
        Box::pin(async move {
            sleep(LATENCY).await;
            let mut condition = self.0.condition.subscribe();
            if *condition.borrow() == Condition::Away {
                return Err(broken());
            }
            let (head, body) = request.into_parts();
            let cookie = head.headers.get(http::header::COOKIE);
            let request = Request {
                head: cookie.map_or_else(String::new, |cookie| cookie.to_str().unwrap().to_owned()),
                body: String::from_utf8(body).unwrap(),
            };
            let mut reply = self.0.reply(&request);
            while let Reply::After(pause, then) = reply {
                sleep(pause).await;
                reply = *then;
            }
            let Reply::Answer {
                status,
                headers,
                body,
            } = reply
            else {
                if matches!(reply, Reply::Never) {
                    condition.changed().await.unwrap();
                }
                return Err(broken());
            };
            sleep(LATENCY).await;
            let mut reply = HttpResponse {
                status: StatusCode::from_u16(status).unwrap(),
                headers: HeaderMap::new(),
                body,
            };
            if let Some(cookie) = headers.strip_prefix("Set-Cookie: ") {
                let cookie = HeaderValue::from_str(cookie.trim()).unwrap();
                reply.headers.insert(http::header::SET_COOKIE, cookie);
            }
            Ok(reply)
        })
    }
}

fn client(connector: &MemoryConnector) -> Vcenter {
    let endpoint = Endpoint::parse("https://vcenter.example.com/sdk").unwrap();
    let settings = Settings::new(endpoint, someone(), haulout_vsphere::client::Trust::Nothing);
    Vcenter::with_connector(settings, Arc::new(connector.clone())).unwrap()
}

/// Waits until the stream is synced; returns when.
async fn synced(stream: &mut Followed) -> Instant {
    loop {
        if stream.updates.recv().await.expect("the stream ended") == VsphereUpdate::Settled {
            return Instant::now();
        }
    }
}

async fn lost(stream: &mut Followed) {
    while !matches!(stream.updates.recv().await, Some(VsphereUpdate::Lost { .. })) {}
}

/// Handles updates until `until`.
async fn idle(stream: &mut Followed, until: Instant) {
    while let Ok(update) = tokio::time::timeout_at(until, stream.updates.recv()).await {
        update.expect("the stream ended");
    }
}

#[tokio::test(start_paused = true)]
async fn stream_works_within_a_quarter_of_the_outage_after_its_end() {
    let mut late = Vec::new();
    for away in [Condition::Away, Condition::Starting] {
        for seconds in [0, 1, 2, 5, 11, 20, 40, 90, 300, 1_800] {
            for _ in 0..6 {
                let (memory, connector) = Memory::start();
                let vcenter = client(&connector);
                let mut stream = follow(&vcenter, WatchSet::default());
                synced(&mut stream).await;
                let began = Instant::now();
                memory.becomes(away);
                lost(&mut stream).await;
                idle(&mut stream, began + Duration::from_secs(seconds)).await;
                memory.becomes(Condition::Up);
                let back = Instant::now();
                let took = synced(&mut stream).await - back;
                if took > Duration::from_secs(5).max(Duration::from_secs(seconds) / 4) {
                    late.push(format!(
                        "{away:?} for {seconds} s, works {:.1} s later",
                        took.as_secs_f32()
                    ));
                }
                assert_eq!(memory.logins_since(began).len(), 1, "{away:?} for {seconds} s");
                stream.stop.cancel();
            }
        }
    }
    let count = late.len();
    late.dedup_by_key(|late| late.split(',').next().map(str::to_owned));
    assert!(late.is_empty(), "{count} of 120: {late:#?}");
}

#[tokio::test(start_paused = true)]
async fn pauses_between_attempts_grow_with_the_outage() {
    for away in [Condition::Away, Condition::Starting, Condition::RefusesViews] {
        let (memory, connector) = Memory::start();
        let mut stream = follow(&client(&connector), WatchSet::default());
        synced(&mut stream).await;
        memory.becomes(away);
        lost(&mut stream).await;
        let began = Instant::now();
        // vCenter answered that the session is lost: the first attempt follows at once.
        if away == Condition::RefusesViews {
            lost(&mut stream).await;
        }
        while began.elapsed() < Duration::from_secs(1_800) {
            let outage = began.elapsed();
            lost(&mut stream).await;
            let pause = began.elapsed() - outage;
            let (least, most) = (outage / 16, outage / 8);
            let second = Duration::from_secs(1);
            let least = least.clamp(second, 15 * second);
            // The attempt takes some milliseconds.
            let most = most.clamp(2 * second, 30 * second) + second / 2;
            assert!(
                (least..most).contains(&pause),
                "{away:?}: {pause:?} after {outage:?}"
            );
        }
        stream.stop.cancel();
    }
}

/// A vCenter that starts may answer `InvalidLogin` to a correct password, and locks the account after a few.
#[tokio::test(start_paused = true)]
async fn refused_logins_after_an_outage_do_not_lock_the_account() {
    let (memory, connector) = Memory::start();
    let mut stream = follow(&client(&connector), WatchSet::default());
    synced(&mut stream).await;
    memory.becomes(Condition::Away);
    let began = Instant::now();
    idle(&mut stream, began + Duration::from_secs(60)).await;
    memory.becomes(Condition::RefusesLogins);
    idle(&mut stream, began + Duration::from_secs(1_860)).await;
    let logins = memory.logins_since(began);
    let most = logins.iter().map(|from| {
        logins
            .iter()
            .filter(|at| (*from..*from + Duration::from_secs(180)).contains(at))
            .count()
    });
    assert!(most.max().unwrap() <= 3, "{logins:?}");
    stream.stop.cancel();
}

/// vCenter may have refused each of them, and locks the account after a few.
#[tokio::test(start_paused = true)]
async fn logins_without_an_answer_do_not_lock_the_account() {
    for (condition, was_accepted) in [
        (Condition::LosesLogins, true),
        (Condition::LosesLogins, false),
        (Condition::HoldsLogins, true),
        (Condition::HoldsLogins, false),
    ] {
        let (memory, connector) = Memory::start();
        if !was_accepted {
            memory.becomes(condition);
        }
        let mut stream = follow(&client(&connector), WatchSet::default());
        if was_accepted {
            synced(&mut stream).await;
            memory.becomes(condition);
        }
        let began = Instant::now();
        idle(&mut stream, began + Duration::from_secs(1_800)).await;
        let logins = memory.logins_since(began);
        let most = logins.iter().map(|from| {
            logins
                .iter()
                .filter(|at| (*from..*from + Duration::from_secs(180)).contains(at))
                .count()
        });
        assert!(
            most.max().unwrap() <= 3,
            "{condition:?} {was_accepted}: {logins:?}"
        );
        assert!(logins.len() >= 8, "{condition:?} {was_accepted}: {logins:?}");
        stream.stop.cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn login_without_an_answer_is_tried_again_soon() {
    let (memory, connector) = Memory::start();
    memory.becomes(Condition::LosesLogins);
    let mut stream = follow(&client(&connector), WatchSet::default());
    lost(&mut stream).await;
    memory.becomes(Condition::Up);
    let back = Instant::now();
    assert!(synced(&mut stream).await - back < Duration::from_secs(13));
    stream.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn sessions_that_die_at_once_cause_no_storm_of_logins() {
    let (memory, connector) = Memory::start();
    let mut stream = follow(&client(&connector), WatchSet::default());
    synced(&mut stream).await;
    memory.becomes(Condition::ForgetsSessions);
    let began = Instant::now();
    lost(&mut stream).await;
    idle(&mut stream, began + Duration::from_secs(600)).await;
    let logins = memory.logins_since(began);
    assert!(logins.len() <= 70, "{}: {logins:?}", logins.len());
    let of_last_minute = logins.iter().filter(|at| at.as_secs() >= 540).count();
    assert!(of_last_minute <= 4, "{logins:?}");
    stream.stop.cancel();
}

/// Each cut of the history costs a new subscription as well.
#[tokio::test(start_paused = true)]
async fn polls_of_the_history_that_a_proxy_cuts_become_shorter() {
    let (memory, connector) = Memory::start();
    memory.becomes(Condition::CutsIdlePolls);
    let mut stream = follow(&client(&connector), WatchSet::default());
    let began = Instant::now();
    let mut losses = Vec::new();
    let until = began + Duration::from_secs(1_800);
    while let Ok(update) = tokio::time::timeout_at(until, stream.updates.recv()).await {
        if matches!(update.expect("the stream ended"), VsphereUpdate::Lost { .. }) {
            losses.push(began.elapsed());
        }
    }
    assert_eq!(losses.len(), 2, "{losses:?}");
    stream.stop.cancel();
}

/// Clients of many clusters that lost the same vCenter come back one after the other.
#[tokio::test(start_paused = true)]
async fn clients_do_not_log_in_all_at_once_after_an_outage() {
    let (memory, connector) = Memory::start();
    let mut streams = Vec::new();
    for _ in 0..40 {
        streams.push(follow(&client(&connector), WatchSet::default()));
    }
    for stream in &mut streams {
        synced(stream).await;
    }
    memory.becomes(Condition::Away);
    let began = Instant::now();
    for stream in &mut streams {
        lost(stream).await;
    }
    sleep(Duration::from_secs(60)).await;
    memory.becomes(Condition::Up);
    let back = Instant::now();
    for stream in &mut streams {
        synced(stream).await;
    }
    let logins = memory.logins_since(began);
    let within = |from: Duration| {
        logins
            .iter()
            .filter(|at| (from..from + Duration::from_secs(1)).contains(at))
            .count()
    };
    let most = logins.iter().map(|from| within(*from)).max().unwrap();
    assert!(most <= 20, "{most} logins within a second: {logins:?}");
    assert!(back.elapsed() <= Duration::from_secs(15));
    for stream in &streams {
        stream.stop.cancel();
    }
}
