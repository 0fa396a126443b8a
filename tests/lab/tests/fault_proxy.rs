//! The proxy stops exactly the configured requests, forwards all others, and loses none.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use haulout_lab::fault_proxy::{FaultProxy, ForwardedRequest, Moment, Side};
use haulout_lab::kube::{Kube, KubeOptions, User};
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc, watch};

const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Waits for what must come, so that a test that waits in vain fails and does not hang.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_TIMEOUT, future)
        .await
        .unwrap_or_else(|_| panic!("waited {WAIT_TIMEOUT:?} for {what}"))
}

/// Both servers in one: it notes every request that is no GET, by path or SOAP method, when it has read it.
#[derive(Clone)]
struct Servers {
    seen: watch::Sender<Vec<String>>,
    /// How many requests that are no GET may be answered.
    answers: Arc<Semaphore>,
    /// What the one watch streams.
    events: Arc<Mutex<Option<mpsc::UnboundedReceiver<&'static str>>>>,
    url: String,
}

impl Servers {
    async fn start() -> (Self, mpsc::UnboundedSender<&'static str>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (send, events) = mpsc::unbounded_channel();
        let servers = Self {
            seen: watch::Sender::new(Vec::new()),
            answers: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            events: Arc::new(Mutex::new(Some(events))),
            url: format!("http://{}", listener.local_addr().unwrap()),
        };
        let router = axum::Router::new().fallback(serve).with_state(servers.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (servers, send)
    }

    fn seen(&self) -> Vec<String> {
        self.seen.borrow().clone()
    }

    async fn sees(&self, what: &str) {
        let mut seen = self.seen.subscribe();
        soon(what, seen.wait_for(|all| all.iter().any(|it| it == what)))
            .await
            .unwrap();
    }

    async fn proxy(&self) -> (FaultProxy, Client) {
        let mut config = kube::Config::new(self.url.parse().unwrap());
        config.default_retry = false;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let kubernetes = kube::Client::try_from(config).unwrap();
        let proxy = FaultProxy::start(kubernetes, &format!("{}/sdk", self.url))
            .await
            .unwrap();
        let client = Client::of(&proxy);
        (proxy, client)
    }
}

async fn serve(State(servers): State<Servers>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let body = String::from_utf8(body.to_vec()).unwrap();
    if parts.method == Method::GET {
        if parts.uri.query() != Some("watch=true") {
            return parts.uri.to_string().into_response();
        }
        let events = servers.events.lock().unwrap().take().expect("one watch only");
        let stream = futures::stream::unfold(events, async |mut events| {
            events
                .recv()
                .await
                .map(|it| (Ok::<_, std::io::Error>(it), events))
        });
        return Body::from_stream(stream).into_response();
    }
    let name = match body.split_once("<Body><") {
        Some((_, rest)) => rest.split('>').next().unwrap().to_owned(),
        None => format!("{} {}", parts.method, parts.uri.path()),
    };
    servers.seen.send_modify(|seen| seen.push(name));
    servers.answers.acquire().await.unwrap().forget();
    let cookie = parts.headers.get(header::COOKIE).cloned();
    let mut response = (StatusCode::CREATED, format!("{}{body}", parts.uri)).into_response();
    if let Some(cookie) = cookie {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// A client in the place of Haulout for both sides of the proxy. Each request has its own connection, as if each came from
/// another process.
#[derive(Clone)]
struct Client {
    http: reqwest::Client,
    kubernetes: String,
    sdk: String,
}

impl Client {
    fn of(proxy: &FaultProxy) -> Self {
        let file = TempFile::write(proxy);
        let config = kube::config::Kubeconfig::read_from(&file.0).unwrap();
        let cluster = config.clusters.into_iter().next().unwrap().cluster.unwrap();
        Self {
            http: reqwest::Client::builder()
                .no_proxy()
                .pool_max_idle_per_host(0)
                .build()
                .unwrap(),
            kubernetes: cluster.server.unwrap(),
            sdk: proxy.vcenter_sdk(),
        }
    }

    async fn kubernetes(&self, method: Method, path: &str) -> reqwest::Result<String> {
        let url = format!("{}{path}", self.kubernetes);
        let answer = self.http.request(method, url).body("{}").send().await?;
        answer.text().await
    }

    async fn soap(&self, method: &str) -> reqwest::Result<reqwest::Response> {
        let body = format!("<Envelope><Body><{method}><_this>vm-42</_this></{method}></Body></Envelope>");
        self.http
            .post(&self.sdk)
            .header(header::COOKIE, "vmware_soap_session=\"a b\"")
            .body(body)
            .send()
            .await
    }

    /// A request that runs until its answer comes or the handle is aborted, which hangs up as a killed client does.
    fn evict_soon(&self, pod: &str) -> tokio::task::JoinHandle<reqwest::Result<String>> {
        let (client, path) = (self.clone(), eviction(pod));
        tokio::spawn(async move { client.kubernetes(Method::POST, &path).await })
    }
}

fn eviction(pod: &str) -> String {
    format!("/api/v1/namespaces/ml/pods/{pod}/eviction")
}

/// A kubeconfig's file, gone with its reader.
struct TempFile(PathBuf);

impl TempFile {
    fn write(proxy: &FaultProxy) -> Self {
        let address = proxy.vcenter_sdk();
        let port = address.rsplit(':').next().unwrap().replace('/', "-");
        let path = std::env::temp_dir().join(format!("haulout-proxy-{}-{port}", std::process::id()));
        proxy.write_kubeconfig(&path).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn held(proxy: &FaultProxy, count: usize) {
    until(
        &format!("{count} requests to be held"),
        WAIT_TIMEOUT,
        async || Ok((proxy.held() == count).then_some(())),
    )
    .await
    .unwrap();
}

fn request(number: usize, side: Side, what: &str) -> ForwardedRequest {
    ForwardedRequest {
        number,
        side,
        what: what.to_owned(),
    }
}

#[tokio::test]
async fn a_watch_streams_through_as_its_events_come() {
    let (servers, events) = Servers::start().await;
    let (_proxy, client) = servers.proxy().await;
    let mut answer = client
        .http
        .get(format!("{}/api/v1/nodes?watch=true", client.kubernetes))
        .send()
        .await
        .unwrap();
    // Each event is sent when the one before it was received, so that nothing on the way may collect them.
    for event in ["one", "two", "three"] {
        events.send(event).unwrap();
        let chunk = soon(event, answer.chunk()).await.unwrap().unwrap();
        assert_eq!(chunk, event);
    }
    // The end of the client's interest reaches the server too.
    drop(answer);
    soon("the server to lose its watcher", events.closed()).await;
}

#[tokio::test]
async fn both_sides_share_one_count_of_changes() {
    let (servers, _events) = Servers::start().await;
    let (proxy, client) = servers.proxy().await;
    let path = "/api/v1/nodes?limit=5&labelSelector=a%3Db";
    assert_eq!(client.kubernetes(Method::GET, path).await.unwrap(), path);
    client
        .kubernetes(Method::PATCH, "/api/v1/nodes/gpu-1")
        .await
        .unwrap();
    client
        .kubernetes(
            Method::POST,
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        )
        .await
        .unwrap();
    client.soap("RetrievePropertiesEx").await.unwrap();
    let answer = client.soap("PowerOffVM_Task").await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    assert_eq!(
        answer.headers()[header::SET_COOKIE],
        "vmware_soap_session=\"a b\""
    );
    assert!(answer.text().await.unwrap().starts_with("/sdk<Envelope>"));
    client
        .kubernetes(Method::POST, &eviction("train-0"))
        .await
        .unwrap();
    assert_eq!(
        proxy.forwarded(),
        [
            request(1, Side::Kubernetes, "PATCH nodes/gpu-1"),
            request(2, Side::Vcenter, "PowerOffVM_Task vm-42"),
            request(3, Side::Kubernetes, "POST pods/train-0/eviction"),
        ]
    );
    assert_eq!(servers.seen().len(), 5);
    // Paths beside the SDK's pass too.
    let about = client
        .http
        .get(client.sdk.replace("/sdk", "/about?x=1"))
        .send()
        .await;
    assert_eq!(about.unwrap().text().await.unwrap(), "/about?x=1");
}

#[tokio::test]
async fn stop_before_a_request_holds_all_changes_until_it_is_released() {
    let (servers, _events) = Servers::start().await;
    let (proxy, client) = servers.proxy().await;
    proxy.stop_at(2, Moment::Before);
    client
        .kubernetes(Method::PATCH, "/api/v1/nodes/gpu-1")
        .await
        .unwrap();
    let stopped = client.evict_soon("train-0");
    let reached = soon("the stop", proxy.stopped()).await;
    assert_eq!(
        reached,
        request(2, Side::Kubernetes, "POST pods/train-0/eviction")
    );

    let further = client.evict_soon("train-1");
    let other_side = tokio::spawn({
        let client = client.clone();
        async move { client.soap("PowerOffVM_Task").await }
    });
    held(&proxy, 3).await;
    // Reads pass meanwhile, on both sides.
    client
        .kubernetes(Method::GET, "/api/v1/nodes/gpu-1")
        .await
        .unwrap();
    client.soap("WaitForUpdatesEx").await.unwrap();
    assert_eq!(servers.seen(), ["PATCH /api/v1/nodes/gpu-1", "WaitForUpdatesEx"]);

    further.abort();
    other_side.abort();
    held(&proxy, 1).await;
    proxy.open();
    client.soap("PowerOnVM_Task").await.unwrap();
    client
        .kubernetes(Method::POST, &eviction("train-2"))
        .await
        .unwrap();
    assert!(!stopped.is_finished());
    assert_eq!(
        servers.seen()[2..],
        [
            "PowerOnVM_Task".to_owned(),
            format!("POST {}", eviction("train-2"))
        ]
    );
    assert_eq!(
        proxy.forwarded()[1..],
        [
            reached,
            request(3, Side::Vcenter, "PowerOnVM_Task vm-42"),
            request(4, Side::Kubernetes, "POST pods/train-2/eviction"),
        ]
    );
    stopped.abort();
    held(&proxy, 0).await;
}

#[tokio::test]
async fn stop_after_a_request_withholds_the_response_from_the_client() {
    let (servers, _events) = Servers::start().await;
    let answers = &servers.answers;
    answers.forget_permits(usize::MAX);
    let (proxy, client) = servers.proxy().await;
    proxy.stop_at(1, Moment::After);
    let path = format!("POST {}", eviction("train-0"));
    let first = client.evict_soon("train-0");
    servers.sees(&path).await;
    // From its arrival on nothing else passes, although its server has not answered.
    let second = client.evict_soon("train-1");
    held(&proxy, 2).await;
    assert!(futures::FutureExt::now_or_never(proxy.stopped()).is_none());
    answers.add_permits(1);
    let reached = soon("the answer", proxy.stopped()).await;
    assert_eq!(
        reached,
        request(1, Side::Kubernetes, "POST pods/train-0/eviction")
    );
    assert_eq!(servers.seen(), [path]);
    assert!(!first.is_finished() && !second.is_finished());

    // The next stop begins in the same instant as this one ends. A client that is killed while its request is with the
    // server changes nothing: the request ends, and the stop is reported.
    proxy.stop_at(2, Moment::After);
    let third = client.evict_soon("train-2");
    servers.sees(&format!("POST {}", eviction("train-2"))).await;
    for client in [first, second, third] {
        client.abort();
    }
    held(&proxy, 0).await;
    answers.add_permits(1);
    let reached = soon("the answer", proxy.stopped()).await;
    assert_eq!(
        reached,
        request(2, Side::Kubernetes, "POST pods/train-2/eviction")
    );
    assert_eq!(servers.seen().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_allowed_number_of_concurrent_requests_passes() {
    let (servers, _events) = Servers::start().await;
    let (proxy, client) = servers.proxy().await;
    proxy.stop_at(4, Moment::Before);
    let mut all: Vec<_> = (0..12)
        .map(|n| client.evict_soon(&format!("train-{n}")))
        .collect();
    soon("the stop", proxy.stopped()).await;
    held(&proxy, 9).await;
    let mut answered = 0;
    while answered < 3 {
        let (result, _, rest) = soon("the passed ones", futures::future::select_all(all)).await;
        result.unwrap().unwrap();
        all = rest;
        answered += 1;
    }
    assert_eq!(servers.seen().len(), 3);
    assert_eq!(proxy.forwarded().len(), 4);
    assert!(all.iter().all(|it| !it.is_finished()));
    for client in all {
        client.abort();
    }
}

#[tokio::test]
async fn unread_request_of_a_killed_client_never_passes() {
    let (servers, _events) = Servers::start().await;
    let (proxy, client) = servers.proxy().await;
    let address = client.kubernetes.strip_prefix("http://").unwrap();
    let request = |pod: &str| {
        let path = eviction(pod);
        format!("POST {path} HTTP/1.1\r\nhost: proxy\r\ncontent-length: 2\r\n\r\n{{}}")
    };
    proxy.stop_at(1, Moment::Before);
    let stopped = client.evict_soon("train-0");
    soon("the stop", proxy.stopped()).await;
    // An idle connection, as a pool keeps them: accepted during the stop, which its one answered read shows.
    let mut idle = tokio::net::TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /api HTTP/1.1\r\nhost: proxy\r\n\r\n")
        .await
        .unwrap();
    soon("an answer", idle.read_u8()).await.unwrap();
    // A request of which a half has arrived, as the proxy's call for the other half shows.
    let mut half = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = request("train-3").replace("\r\n\r\n{}", "\r\nexpect: 100-continue\r\n\r\n");
    half.write_all(head.as_bytes()).await.unwrap();
    let mut call = [0; 25];
    soon("100 Continue", half.read_exact(&mut call)).await.unwrap();
    assert_eq!(&call, b"HTTP/1.1 100 Continue\r\n\r\n");
    stopped.abort();
    held(&proxy, 0).await;

    // This thread runs everything, so that the proxy accepts nothing and reads nothing between these three steps.
    let mut waiting = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut waiting, request("train-1").as_bytes()).unwrap();
    let mut idle = idle.into_std().unwrap();
    std::io::Write::write_all(&mut idle, request("train-2").as_bytes()).unwrap();
    proxy.open();

    // The proxy sees either the request or its release first: it holds the request or closes its connection.
    let mut idle = tokio::net::TcpStream::from_std(idle).unwrap();
    let mut rest = Vec::new();
    tokio::select! {
        _ = idle.read_to_end(&mut rest) => {}
        () = held(&proxy, 1) => {}
    }
    drop((waiting, idle));
    held(&proxy, 0).await;
    half.write_all(b"{}").await.unwrap();
    held(&proxy, 1).await;
    drop(half);
    held(&proxy, 0).await;
    client.soap("PowerOnVM_Task").await.unwrap();
    assert_eq!(servers.seen(), ["PowerOnVM_Task"]);
    assert_eq!(proxy.forwarded().len(), 2);
}

#[tokio::test]
async fn dropping_the_proxy_closes_both_sides_and_held_requests() {
    let (servers, _events) = Servers::start().await;
    let (proxy, client) = servers.proxy().await;
    proxy.stop_at(1, Moment::Before);
    let stopped = client.evict_soon("train-0");
    soon("the stop", proxy.stopped()).await;
    drop(proxy);
    soon("the connection's end", stopped).await.unwrap().unwrap_err();
    for url in [&client.kubernetes, &client.sdk] {
        until("connections to be refused", WAIT_TIMEOUT, async || {
            let answer = client.http.get(url).send().await;
            Ok(answer.is_err_and(|error| error.is_connect()).then_some(()))
        })
        .await
        .unwrap();
    }
    assert!(servers.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apiserver_behind_the_proxy_gets_only_what_passed() {
    let (servers, _events) = Servers::start().await;
    let kube = Kube::start(&KubeOptions::default()).await.unwrap();
    let admin: Api<Node> = Api::all(kube.client());
    let node = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    for name in ["gpu-1", "gpu-2", "gpu-3"] {
        admin.create(&PostParams::default(), &node(name)).await.unwrap();
    }
    let user = User::haulout("haulout-behind-the-proxy");
    let proxy = FaultProxy::start(kube.client_for(&user).unwrap(), &format!("{}/sdk", servers.url))
        .await
        .unwrap();
    let file = TempFile::write(&proxy);
    let config = kube::config::Kubeconfig::read_from(&file.0).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(config, &options)
        .await
        .unwrap();
    let connect = || Api::<Node>::all(kube::Client::try_from(config.clone()).unwrap());
    let nodes = connect();

    let version = nodes
        .list(&kube::api::ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let watched = nodes
        .watch(&WatchParams::default().fields("metadata.name=gpu-1"), &version)
        .await
        .unwrap();
    let mut watched = Box::pin(watched);

    proxy.stop_at(2, Moment::After);
    let cordon = |nodes: &Api<Node>, name: &'static str| {
        let nodes = nodes.clone();
        tokio::spawn(async move {
            let patch = json!({"spec": {"unschedulable": true}});
            nodes
                .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
        })
    };
    soon("the first patch", cordon(&nodes, "gpu-1"))
        .await
        .unwrap()
        .unwrap();
    loop {
        match soon("the watch's event", watched.next()).await.unwrap().unwrap() {
            WatchEvent::Modified(node) if node.spec.as_ref().unwrap().unschedulable == Some(true) => break,
            WatchEvent::Modified(_) | WatchEvent::Bookmark(_) => {}
            WatchEvent::Added(_) | WatchEvent::Deleted(_) | WatchEvent::Error(_) => panic!("no other event"),
        }
    }
    let second = cordon(&nodes, "gpu-2");
    let reached = soon("the stop", proxy.stopped()).await;
    assert_eq!(reached, request(2, Side::Kubernetes, "PATCH nodes/gpu-2"));
    let third = cordon(&nodes, "gpu-3");
    held(&proxy, 2).await;
    assert!(!second.is_finished());
    let mut cordoned = Vec::new();
    for node in nodes.list(&kube::api::ListParams::default()).await.unwrap() {
        if node.spec.unwrap_or_default().unschedulable == Some(true) {
            cordoned.push(node.metadata.name.unwrap());
        }
    }
    assert_eq!(cordoned, ["gpu-1", "gpu-2"]);
    third.abort();
    second.abort();
    held(&proxy, 0).await;
    proxy.open();
    // The successor has its own connections.
    soon("a later patch", cordon(&connect(), "gpu-3"))
        .await
        .unwrap()
        .unwrap();
    // The audit log has the requests under the identity of the proxy's client.
    let of_haulout: Vec<_> = kube
        .audit()
        .await
        .unwrap()
        .into_iter()
        .filter(|event| event.user == user.name())
        .filter_map(|event| event.name)
        .collect();
    assert_eq!(of_haulout, ["gpu-1", "gpu-2", "gpu-3"]);
}
