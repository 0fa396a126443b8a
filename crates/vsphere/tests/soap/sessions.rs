//! Sessions with a scripted server: the number of logins, and what is sent when.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use haulout_core::ids::{HostRef, VmRef};
use haulout_core::maintenance::effect::PowerOffCause;
use haulout_vsphere::client::{
    Callback, CredentialPart, CredentialSource, Endpoint, Error, LoginError, LoginOutcome, Settings, Trust,
    Vcenter,
};
use haulout_vsphere::fault::FaultKind;
use haulout_vsphere::update::{VsphereUpdate, WatchSet};
use haulout_vsphere::updates;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::server::{
    Answers, CONTENT, DEAD, Fake, LOGIN, Reply, Request, VERSIONS, WAIT_TIMEOUT, change, follow, host, login,
    permit, serve, settings, someone,
};

const REFUSED: &[u8] = include_bytes!("../../../../proto-notes/captures/login-refused.xml");

/// Responds to reads of hosts and to `ShutdownGuest` in the latest session, and counts.
#[derive(Default)]
struct Script {
    logins: AtomicUsize,
    calls: AtomicUsize,
    /// Calls other than reads.
    acts: AtomicUsize,
    refuse: bool,
    /// The first login whose session stays valid; earlier sessions end at once.
    stands_from: usize,
    /// Responds to calls with this status and no body.
    status: Option<u16>,
    with_cookie_at_login: AtomicUsize,
}

impl Script {
    fn reply(&self, head: &str, body: &str) -> (u16, String, Vec<u8>) {
        let cookie = |n: usize| format!("vmware_soap_session=\"s {n}\"");
        if head.starts_with("GET /sdk/vimServiceVersions.xml") {
            return (200, String::new(), VERSIONS.to_vec());
        }
        if body.contains("<RetrieveServiceContent") {
            return (200, String::new(), CONTENT.to_vec());
        }
        if body.contains("<Login ") {
            let nth = self.logins.fetch_add(1, Ordering::SeqCst) + 1;
            if head.to_ascii_lowercase().contains("\r\ncookie:") {
                self.with_cookie_at_login.fetch_add(1, Ordering::SeqCst);
            }
            if self.refuse {
                return (500, String::new(), REFUSED.to_vec());
            }
            return (
                200,
                format!("Set-Cookie: {}; Path=/; HttpOnly\r\n", cookie(nth)),
                LOGIN.to_vec(),
            );
        }
        let is_read = body.contains("<RetrievePropertiesEx");
        if let Some(status) = self.status.filter(|_| !is_read) {
            self.acts.fetch_add(1, Ordering::SeqCst);
            return (status, String::new(), Vec::new());
        }
        let logins = self.logins.load(Ordering::SeqCst);
        if is_read && logins >= self.stands_from && head.contains(&cookie(logins)) {
            self.calls.fetch_add(1, Ordering::SeqCst);
            let ok = r#"<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body><RetrievePropertiesExResponse xmlns="urn:vim25"><returnval><objects>
                <obj type="VirtualMachine">vm-1</obj><propSet><name>runtime.powerState</name><val>poweredOn</val></propSet></objects></returnval>
                </RetrievePropertiesExResponse></s:Body></s:Envelope>"#;
            return (200, String::new(), ok.into());
        }
        (500, String::new(), DEAD.to_vec())
    }
}

impl Answers for Script {
    fn answer(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Reply> + Send>> {
        let (status, headers, body) = self.reply(&request.head, &request.body);
        Box::pin(std::future::ready(Reply::Answer {
            status,
            headers,
            body,
        }))
    }
}

async fn start(script: Script, source: Option<CredentialSource>) -> (Vcenter, Arc<Script>, JoinSet<()>) {
    let script = Arc::new(script);
    let (endpoint, tasks) = serve(script.clone()).await;
    let mut settings = settings(endpoint);
    if let Some(source) = source {
        settings.credentials = source;
    }
    (Vcenter::new(settings).unwrap(), script, tasks)
}

#[tokio::test]
async fn concurrent_callers_share_one_login() {
    let (vcenter, script, _tasks) = start(Script::default(), None).await;
    let mut calls = JoinSet::new();
    for n in 0..20 {
        let vcenter = vcenter.clone();
        calls.spawn(async move { vcenter.survey(&[HostRef::new(format!("host-{n}"))]).await });
    }
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(script.logins.load(Ordering::SeqCst), 1);
    assert_eq!(script.calls.load(Ordering::SeqCst), 20);
}

#[tokio::test]
async fn dead_session_costs_one_login_for_all_its_callers() {
    let script = Script {
        stands_from: 2,
        ..Script::default()
    };
    let (vcenter, script, _tasks) = start(script, None).await;
    let mut calls = JoinSet::new();
    for n in 0..20 {
        let vcenter = vcenter.clone();
        calls.spawn(async move { vcenter.survey(&[HostRef::new(format!("host-{n}"))]).await });
    }
    while let Some(result) = calls.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(script.logins.load(Ordering::SeqCst), 2);
    assert_eq!(script.with_cookie_at_login.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn session_that_dies_again_at_once_is_an_error() {
    let script = Script {
        stands_from: usize::MAX,
        ..Script::default()
    };
    let (vcenter, script, _tasks) = start(script, None).await;
    let error = vcenter.survey(&[HostRef::new("host-1")]).await.unwrap_err();
    assert_eq!(
        error.fault().map(|fault| &fault.kind),
        Some(&FaultKind::NotAuthenticated)
    );
    assert_eq!(script.logins.load(Ordering::SeqCst), 2);
}

/// How long refused credentials are held back.
fn held_for(error: &Error) -> Option<Duration> {
    let Error::Login { source, .. } = error else {
        return None;
    };
    let LoginError::Credentials { again_in, .. } = source.as_ref() else {
        return None;
    };
    Some(*again_in)
}

#[tokio::test]
async fn every_caller_that_waits_for_a_login_gets_its_refusal() {
    let script = Script {
        refuse: true,
        ..Script::default()
    };
    let (vcenter, script, _tasks) = start(script, None).await;
    let mut calls = JoinSet::new();
    for n in 0..20 {
        let vcenter = vcenter.clone();
        calls.spawn(async move { vcenter.survey(&[HostRef::new(format!("host-{n}"))]).await });
    }
    while let Some(result) = calls.join_next().await {
        let error = result.unwrap().unwrap_err();
        assert!(held_for(&error).is_some(), "{}", error.chain());
    }
    assert_eq!(script.logins.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn user_without_permission_is_held_back_like_a_wrong_password() {
    const NO_PERMISSION: &str = r#"<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body><s:Fault>
        <faultcode>ServerFaultCode</faultcode><faultstring>denied</faultstring><detail><NoPermissionFault xmlns="urn:vim25"/></detail>
        </s:Fault></s:Body></s:Envelope>"#;
    let (fake, vcenter, _server) =
        Fake::start(|call: &Request| (call.method() == "Login").then(|| Reply::new(500, NO_PERMISSION)))
            .await;
    for _ in 0..2 {
        let error = vcenter.survey(&[HostRef::new("host-1")]).await.unwrap_err();
        assert!(held_for(&error).is_some(), "{}", error.chain());
    }
    assert_eq!(fake.calls("Login").len(), 1);
}

#[tokio::test]
async fn refusal_of_a_process_before_holds_its_user_until_it_is_over() {
    let (vcenter, script, _tasks) = start(Script::default(), None).await;
    let hosts = [HostRef::new("host-1")];
    vcenter.login_was_refused("someone", Duration::from_secs(60));
    let error = vcenter.survey(&hosts).await.unwrap_err();
    let Error::Login { source, .. } = &error else {
        panic!("{}", error.chain());
    };
    let LoginError::RefusedElsewhere { again_in } = source.as_ref() else {
        panic!("{}", error.chain());
    };
    assert!((100..=120).contains(&again_in.as_secs()), "{again_in:?}");
    assert_eq!(script.logins.load(Ordering::SeqCst), 0);

    vcenter.login_was_refused("someone", Duration::from_secs(180));
    vcenter.survey(&hosts).await.unwrap();
    assert_eq!(script.logins.load(Ordering::SeqCst), 1);
}

/// vCenter 6.0 sets a cookie with a refused login, too.
#[tokio::test]
async fn cookie_of_a_refused_login_is_no_session() {
    let (fake, vcenter, _server) = Fake::start(|call: &Request| {
        let refused = || Reply::Answer {
            status: 500,
            headers: "Set-Cookie: vmware_soap_session=\"5\"; Path=/; HttpOnly; Secure;\r\n".to_owned(),
            body: REFUSED.to_vec(),
        };
        (call.method() == "Login").then(refused)
    })
    .await;
    let error = vcenter.survey(&[HostRef::new("host-1")]).await.unwrap_err();
    assert!(held_for(&error).is_some(), "{}", error.chain());
    let with_cookie = |call: &Request| call.head.to_ascii_lowercase().contains("\r\ncookie:");
    assert!(!fake.all_calls().iter().any(with_cookie));
}

#[tokio::test]
async fn login_reports_its_end() {
    let outcomes = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut refused = false;
    let listener = Arc::clone(&outcomes);
    let (_fake, vcenter, _server) = Fake::start_with(
        move |call: &Request| {
            let refuse = call.method() == "Login" && !std::mem::replace(&mut refused, true);
            refuse.then(|| Reply::new(500, REFUSED))
        },
        |settings| {
            settings.bad_login_hold = Duration::ZERO;
            settings.on_login = Callback::new(move |outcome| listener.lock().unwrap().push(outcome));
        },
    )
    .await;
    let hosts = [HostRef::new("host-1")];
    vcenter.survey(&hosts).await.unwrap_err();
    drop(vcenter.survey(&hosts).await);
    let user = "someone".to_owned();
    assert_eq!(
        *outcomes.lock().unwrap(),
        [LoginOutcome::Refused { user }, LoginOutcome::Accepted]
    );
}

#[tokio::test]
async fn probe_makes_no_session() {
    let (vcenter, script, _tasks) = start(Script::default(), None).await;
    vcenter.probe().await.unwrap();
    assert_eq!(script.logins.load(Ordering::SeqCst), 0);
    let (fake, vcenter, server) = Fake::start(|_| None).await;
    vcenter.probe().await.unwrap();
    assert!(fake.all_calls().iter().all(|call| call.method().is_empty()));
    drop(server);
    assert!(vcenter.probe().await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn refused_credentials_are_held_back_until_they_change() {
    let directory = std::env::temp_dir().join(format!("haulout-soap-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (user, password) = (directory.join("user"), directory.join("password"));
    std::fs::write(&user, "someone\n").unwrap();
    std::fs::write(&password, "hunter2\n").unwrap();
    let source = CredentialSource {
        user: CredentialPart::File(user),
        password: CredentialPart::File(password.clone()),
    };
    let script = Script {
        refuse: true,
        ..Script::default()
    };
    let (vcenter, script, _tasks) = start(script, Some(source)).await;
    for _ in 0..3 {
        let error = vcenter
            .shutdown_guest(&permit(), &VmRef::new("vm-1"), &PowerOffCause::Request(None))
            .await
            .unwrap_err();
        let again_in = held_for(&error).unwrap_or_else(|| panic!("{}", error.chain()));
        assert!(again_in.as_secs() > 100, "{again_in:?}");
        assert!(!format!("{error:?} {}", error.chain()).contains("hunter2"));
    }
    assert_eq!(script.logins.load(Ordering::SeqCst), 1);
    std::fs::write(&password, "other").unwrap();
    vcenter
        .shutdown_guest(&permit(), &VmRef::new("vm-1"), &PowerOffCause::Request(None))
        .await
        .unwrap_err();
    assert_eq!(script.logins.load(Ordering::SeqCst), 2);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn a_call_that_acts_is_sent_once_when_its_answer_is_useless() {
    let script = Script {
        status: Some(503),
        ..Script::default()
    };
    let (vcenter, script, _tasks) = start(script, None).await;
    let error = vcenter
        .shutdown_guest(&permit(), &VmRef::new("vm-1"), &PowerOffCause::Request(None))
        .await
        .unwrap_err();
    assert!(error.chain().contains("503"), "{}", error.chain());
    assert_eq!(script.acts.load(Ordering::SeqCst), 1);
    assert!(!format!("{vcenter:?}").contains("hunter2"));
}

#[test]
fn a_ca_file_that_cannot_be_used_is_named() {
    let endpoint = Endpoint::parse("vc.example.com").unwrap();
    let source = someone();
    for (path, words) in [
        ("/nonexistent/ca.pem", "cannot be read"),
        ("Cargo.toml", "holds no PEM certificate"),
    ] {
        let settings = Settings::new(endpoint.clone(), source.clone(), Trust::CaBundle(path.into()));
        let error = Vcenter::new(settings).unwrap_err().to_string();
        assert!(error.contains(path) && error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn stream_that_cannot_start_is_reported_retried_and_stopped() {
    let script = Script {
        status: Some(503),
        ..Script::default()
    };
    let (vcenter, script, _tasks) = start(script, None).await;
    let (_roster, watch_set) = watch::channel(WatchSet::default());
    let (out, mut updates) = mpsc::channel(8);
    let stop = CancellationToken::new();
    let mut stream = JoinSet::new();
    stream.spawn(updates::run(vcenter, watch_set, out, stop.clone()));
    for _ in 0..2 {
        let update = updates.recv().await;
        assert!(
            matches!(&update, Some(VsphereUpdate::Lost { why }) if why.contains("503")),
            "{update:?}"
        );
    }
    assert_eq!(
        script.logins.load(Ordering::SeqCst),
        1,
        "a session that stands is kept"
    );
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(4), stream.join_next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(updates.recv().await, None);
}

#[tokio::test]
async fn view_that_no_longer_exists_ends_the_session() {
    let (fake, vcenter, _server) = Fake::start(|_| None).await;
    let first_set = host("enter", "host-1", &change("name", "esx1"));
    fake.push(1, &first_set);
    let mut stream = follow(&vcenter, WatchSet::default());
    stream.settled().await;
    fake.push(
        1,
        r#"<filter type="PropertyFilter">session[1]filter-1</filter><missingSet><obj type="ContainerView">session[1]hosts-1</obj>
           <fault><fault i:type="ManagedObjectNotFound"/><localizedMessage>gone</localizedMessage></fault></missingSet>"#,
    );
    let why = stream.lost().await;
    assert!(why.contains("does not exist any more"), "{why}");
    // The second collector for objects, or the third if the first stream had a history.
    fake.push(2, &first_set);
    fake.push(3, &first_set);
    stream.settled().await;
    assert_eq!(fake.calls("Login").len(), 2);
    stream.stop().await;
}

#[tokio::test]
async fn late_reply_in_an_abandoned_session_does_not_end_the_next_one() {
    let mut logins = 0;
    let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
        if call.method() == "Login" {
            logins += 1;
            return Some(login(logins));
        }
        let is_read = call.method() == "RetrievePropertiesEx";
        let is_dead = is_read && call.head.contains("vmware_soap_session=\"1\"");
        is_dead.then(|| {
            let pause = if call.body.contains("host-late") { 300 } else { 0 };
            Reply::new(500, DEAD).after(Duration::from_millis(pause))
        })
    })
    .await;
    // The first session is valid before it ends for both.
    let (late, soon) = ([HostRef::new("host-late")], [HostRef::new("host-soon")]);
    let (late, soon) = tokio::join!(vcenter.survey(&late), vcenter.survey(&soon));
    late.unwrap();
    soon.unwrap();
    assert_eq!(fake.calls("Login").len(), 2);
}

#[tokio::test]
async fn abandoned_session_is_logged_out_before_the_next_login() {
    let mut logins = 0;
    let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
        if call.method() == "Login" {
            logins += 1;
            return Some(login(logins));
        }
        let is_dead = call.head.contains("vmware_soap_session=\"1\"") && call.method() != "Logout";
        is_dead.then(|| Reply::new(500, DEAD))
    })
    .await;
    vcenter.survey(&[HostRef::new("host-1")]).await.unwrap();
    let goodbyes = fake.calls("Logout");
    assert_eq!(goodbyes.len(), 1);
    assert!(
        goodbyes[0].head.contains("vmware_soap_session=\"1\""),
        "{}",
        goodbyes[0].head
    );
}

#[tokio::test]
async fn call_that_is_never_answered_ends_at_its_deadline() {
    let (_fake, vcenter, _server) = Fake::start_with(
        |call: &Request| (call.method() == "RetrievePropertiesEx").then_some(Reply::Never),
        |settings| settings.call_deadline = Duration::from_secs(1),
    )
    .await;
    let hosts = [HostRef::new("host-1")];
    let ended = tokio::time::timeout(WAIT_TIMEOUT, vcenter.survey(&hosts)).await;
    let error = ended.unwrap().unwrap_err();
    assert!(
        error.chain().contains("no whole answer within 1 s"),
        "{}",
        error.chain()
    );
}

#[tokio::test]
async fn answer_larger_than_any_that_is_asked_for_is_refused() {
    let (fake, vcenter, _server) = Fake::start(|call: &Request| {
        let large = || Reply::new(200, vec![b' '; 33 << 20]);
        (call.method() == "RetrievePropertiesEx").then(large)
    })
    .await;
    let error = vcenter.survey(&[HostRef::new("host-1")]).await.unwrap_err();
    assert!(error.chain().contains("more than 32 MiB"), "{}", error.chain());
    assert_eq!(fake.calls("RetrievePropertiesEx").len(), 1);
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let (elsewhere, _, _other) = Fake::start(|_| None).await;
    let to = elsewhere.address();
    let (_fake, vcenter, _server) = Fake::start(move |call: &Request| {
        let redirect = || Reply::Answer {
            status: 307,
            headers: format!("Location: {to}\r\n"),
            body: Vec::new(),
        };
        (call.method() == "RetrievePropertiesEx").then(redirect)
    })
    .await;
    let error = vcenter.survey(&[HostRef::new("host-1")]).await.unwrap_err();
    assert!(error.chain().contains("HTTP status 307"), "{}", error.chain());
    assert!(elsewhere.all_calls().is_empty());
}

#[tokio::test]
async fn login_whose_task_panicked_does_not_block_the_next_one() {
    let panicked = AtomicBool::new(false);
    let (fake, vcenter, _server) = Fake::start_with(
        |_| None,
        |settings| {
            settings.on_login = Callback::new(move |_| {
                assert!(panicked.swap(true, Ordering::SeqCst), "the first login panics");
            });
        },
    )
    .await;
    let hosts = [HostRef::new("host-1")];
    let error = vcenter.survey(&hosts).await.unwrap_err();
    let Error::Login { source, .. } = &error else {
        panic!("{}", error.chain());
    };
    assert!(
        matches!(source.as_ref(), LoginError::Stopped),
        "{}",
        error.chain()
    );
    vcenter.survey(&hosts).await.unwrap();
    assert_eq!(fake.calls("Login").len(), 2);
}

/// A vCenter that is starting refuses nobody.
#[tokio::test]
async fn login_that_fails_for_another_reason_is_tried_again_at_once() {
    let mut is_ready = false;
    let (fake, vcenter, _server) = Fake::start(move |call: &Request| {
        let fails = call.method() == "Login" && !std::mem::replace(&mut is_ready, true);
        fails.then(|| Reply::fault("SystemError", ""))
    })
    .await;
    let hosts = [HostRef::new("host-1")];
    let error = vcenter.survey(&hosts).await.unwrap_err();
    assert_eq!(held_for(&error), None, "{}", error.chain());
    vcenter.survey(&hosts).await.unwrap();
    assert_eq!(fake.calls("Login").len(), 2);
}

#[tokio::test]
async fn forgotten_refusal_does_not_hold_its_user() {
    let (vcenter, script, _tasks) = start(Script::default(), None).await;
    vcenter.login_was_refused("someone", Duration::ZERO);
    vcenter.login_was_accepted();
    vcenter.survey(&[HostRef::new("host-1")]).await.unwrap();
    assert_eq!(script.logins.load(Ordering::SeqCst), 1);
}
