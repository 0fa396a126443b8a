mod standby;

use std::collections::BTreeSet;
use std::pin::pin;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use futures::StreamExt as _;
use haulout_core::fixtures::{self, at, drain_report, moment};
use tower::ServiceExt as _;

use super::view::{ListFilter, PageCount, ShownState, Timeline, TimelineRow, TimelineSpan};
use super::*;
use haulout_core::ids::{NodeUid, TaskRef};
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::episode::{
    CordonOwner, Detection, Episode, EpisodeResult, HostIdentity, Phase, Record, Trigger,
};
use haulout_core::maintenance::observed::{
    Admission, BoundVm, CordonedBy, NodeSnapshot, Observed, ObservedNode, ObservedVm, PendingEviction,
    PendingReason, PowerState, SlotLimit,
};
use haulout_core::maintenance::policy::DrainTimeoutAction;
use haulout_core::maintenance::waiting::{DrainTimeout, WaitingOn};
use haulout_core::status::node_event::NodeEvent;
use haulout_core::status::{PhaseKind, statuses};

const NASTY: &str = "<script>alert(1)</script>";

fn clock() -> Timestamp {
    at(100)
}

fn status() -> Arc<StatusPage> {
    let settings = PageSettings {
        is_dry_run: false,
        cluster: "kube.example:6443".to_owned(),
        vcenter: "vc.example".to_owned(),
        links: Links::default(),
    };
    let status = StatusPage::new(settings, None, NodeBoard::new(clock), clock);
    status.connection(WatchedApi::Vcenter, ConnectionState::Synced);
    status.connection(WatchedApi::Kubernetes, ConnectionState::Synced);
    Arc::new(status)
}

/// Tells the board and the page of new statuses, as the event loop does.
fn built(status: &StatusPage, statuses: &NodeStatuses) {
    status.board.built(statuses);
    status.built(statuses);
}

fn tell(status: &StatusPage, node: &NodeName, event: NodeEvent<'_>) {
    let beat = fixtures::beat(event, clock());
    status.board.observe(node, &beat);
    status.observe(node, &beat);
}

fn episode(node: &str, host: &str, phase: Phase, since: Timestamp) -> Episode {
    let trigger = Trigger {
        user: Some("VSPHERE.LOCAL\\\"><b>".to_owned()),
        ..fixtures::trigger()
    };
    let host = HostIdentity {
        moref: Some(HostRef::new("host-1")),
        name: host.into(),
    };
    Episode {
        cordon: CordonOwner::Ours,
        since,
        ..Episode::new(NodeUid::new(node), trigger, host, phase, at(1))
    }
}

fn snapshot(node: &str, host: &str, record: Record, left: Vec<PendingEviction>) -> NodeSnapshot {
    let entering = HostState::Entering {
        task: TaskRef::new("task-1"),
        clicked_at: at(0),
        user: None,
        detection: Detection::Pushed,
    };
    let vm = ObservedVm {
        host_name: host.to_owned(),
        ..fixtures::vm(Some(PowerState::On), entering)
    };
    let node = ObservedNode {
        uid: NodeUid::new(node),
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        ..fixtures::node()
    };
    NodeSnapshot {
        record,
        observed: Observed {
            drain: Some(drain_report(moment(2).monotonic, left)),
            ..Observed::of(Some(node), BoundVm::Found(vm), moment(0))
        },
    }
}

fn draining(node: &str, host: &str, left: Vec<PendingEviction>) -> NodeSnapshot {
    let episode = episode(node, host, Phase::Draining, at(1));
    snapshot(node, host, Record::Episode(Arc::new(episode)), left)
}

fn held() -> PendingEviction {
    PendingEviction {
        name: format!("ml/{NASTY}"),
        why: PendingReason::Budget {
            names: vec!["<i>budget".to_owned()],
            message: "The disruption budget <i>budget needs 1 & has 1".to_owned(),
        },
    }
}

/// A node of this name on a host of a nasty one, held by a budget of a nasty one.
fn show(status: &Arc<StatusPage>, node: &str) {
    let name = NodeName::new(node);
    let snapshots = BTreeMap::from([(name.clone(), draining(node, NASTY, vec![held()]))]);
    let entering = HostState::Entering {
        task: TaskRef::new("task-1"),
        clicked_at: at(0),
        user: Some(NASTY.to_owned()),
        detection: Detection::Pushed,
    };
    let hosts = BTreeMap::from([(HostRef::new("host-1"), (NASTY.to_owned(), entering))]);
    built(status, &statuses(&fixtures::snapshots(snapshots.clone())));
    status.show_hosts(hosts);
    let on = WaitingOn::Pods {
        left: vec![held()],
        timeout: None,
    };
    let record = &snapshots[&name].record;
    let waits = NodeEvent::Waits {
        node: None,
        vm: &BoundVm::NotLookedUp,
        record,
        on: &on,
    };
    tell(status, &name, waits);
}

/// The routes of the pages.
fn routes(status: Arc<StatusPage>) -> axum::Router {
    let renders = Arc::new(tokio::sync::Semaphore::new(serve::RENDERS));
    serve::guarded(serve::pages_with(status, renders), PageAccess::default())
}

async fn ask(
    status: &Arc<StatusPage>,
    method: Method,
    path: &str,
) -> (StatusCode, axum::http::HeaderMap, String) {
    let router = routes(Arc::clone(status));
    let request = Request::builder().method(method).uri(path).body(Body::empty());
    let answer = router.oneshot(request.unwrap()).await.unwrap();
    let (parts, body) = answer.into_parts();
    let body = axum::body::to_bytes(body, 1 << 24).await.unwrap();
    let text = String::from_utf8(body.to_vec()).unwrap();
    (parts.status, parts.headers, text)
}

/// The paths of all pages of a node.
fn pages_of(status: &Arc<StatusPage>, node: &str) -> [String; 4] {
    let overview = status.overview(&ListFilter::default());
    let id = overview.episodes[0].id.clone();
    [
        "/".to_owned(),
        format!("/nodes/{node}"),
        format!("/episodes/{id}"),
        "/hosts/%3Cscript%3Ealert(1)%3C%2Fscript%3E".to_owned(),
    ]
}

#[tokio::test]
async fn whatever_names_hosts_pods_and_budgets_have_nothing_of_them_becomes_markup() {
    let status = status();
    show(&status, "gpu1");
    for path in pages_of(&status, "gpu1") {
        let (code, _, html) = ask(&status, Method::GET, &path).await;
        assert_eq!(code, StatusCode::OK, "{path}");
        for markup in ["<script>alert", "<i>budget", "\"><b>", "1 & has"] {
            assert!(!html.contains(markup), "{markup} in {path}:\n{html}");
        }
        assert!(
            html.contains("&#60;script&#62;alert(1)"),
            "{path} shows it:\n{html}"
        );
        // The one script is our own file.
        assert_eq!(html.matches("<script").count(), 1, "{path}");
        assert!(!html.contains(" style="), "the CSP would refuse it: {path}");
        // Nothing is loaded from elsewhere; runbooks are links.
        let links = html.matches("=\"http").count();
        assert_eq!(
            links,
            html.matches("href=\"https://github.com/haulout/").count(),
            "{path}"
        );
    }
}

#[tokio::test]
async fn json_says_the_same_as_the_pages_and_as_the_node() {
    let status = status();
    show(&status, "gpu1");
    let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
    let (_, headers, text) = ask(&status, Method::GET, "/api/v1/nodes/gpu1").await;
    assert_eq!(headers[header::CONTENT_TYPE], "application/json");
    let node = json(text);
    assert_eq!(node["phase"], "Draining");
    assert_eq!(node["host"], NASTY);
    assert_eq!(node["waitsFor"]["reason"], "disruption-budget");
    assert_eq!(node["pods"]["left"][0]["name"], format!("ml/{NASTY}"));
    let id = node["episode"].as_str().unwrap();
    let (_, _, text) = ask(&status, Method::GET, &format!("/api/v1/episodes/{id}")).await;
    let episode = json(text);
    assert_eq!(episode["node"], "gpu1");
    assert_eq!(episode["phases"][0]["label"], "draining");
    assert_eq!(
        episode["timeline"]["rows"][1]["name"],
        "\u{21b3} waits for a PodDisruptionBudget"
    );
    let (_, _, text) = ask(&status, Method::GET, "/api/v1/overview").await;
    let overview = json(text);
    assert_eq!(overview["figures"]["inEpisode"], 1);
    assert_eq!(overview["hosts"][0]["state"], "EnteringMaintenance");
    assert_eq!(overview["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn it_is_only_read_and_every_answer_has_the_headers() {
    let status = status();
    show(&status, "gpu1");
    let paths = [
        "/",
        "/nodes/gpu1",
        "/nodes/none",
        "/style.css",
        "/events",
        "/none",
    ];
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
        for path in paths {
            let (code, headers, _) = ask(&status, method.clone(), path).await;
            assert_eq!(code, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            assert_eq!(headers[header::ALLOW], "GET, HEAD");
        }
    }
    for path in paths.into_iter().filter(|path| *path != "/events") {
        let (_, headers, _) = ask(&status, Method::GET, path).await;
        let csp = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(csp.starts_with("default-src 'none'; style-src 'self'; script-src 'self'"));
        assert!(!csp.contains("unsafe"));
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
        assert_eq!(headers[header::REFERRER_POLICY], "no-referrer", "{path}");
    }
    let (code, _, _) = ask(&status, Method::GET, "/api/v1/episodes/none").await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    let (code, _, text) = ask(&status, Method::HEAD, "/").await;
    assert_eq!((code, text.as_str()), (StatusCode::OK, ""));
    let (_, _, text) = ask(&status, Method::GET, "/nodes/none").await;
    assert!(text.contains("There is no node of this name here."), "{text}");
}

#[tokio::test]
async fn banners_show_lost_connections_and_standby() {
    let status = status();
    show(&status, "gpu1");
    let (_, _, html) = ask(&status, Method::GET, "/").await;
    assert!(!html.contains("class=\"banner"), "{html}");
    status.connection(
        WatchedApi::Vcenter,
        ConnectionState::Lost {
            why: "connection <refused>",
        },
    );
    let (_, _, html) = ask(&status, Method::GET, "/nodes/gpu1").await;
    assert!(html.contains("vCenter connection lost"));
    assert!(html.contains("connection &#60;refused&#62;"));
    status.leadership(PageLeadership::StandsBy {
        leader: Some("haulout-b".to_owned()),
    });
    let (_, _, html) = ask(&status, Method::GET, "/nodes/gpu1").await;
    assert!(html.contains("haulout-b leads"));
    assert!(
        !html.contains("vCenter connection lost"),
        "a standby has no session"
    );
    let (_, _, html) = ask(&status, Method::GET, "/").await;
    assert!(html.contains("See the page of the leader"), "{html}");
    assert!(!html.contains("hosts in maintenance"), "{html}");
    let settings = PageSettings {
        is_dry_run: true,
        cluster: String::new(),
        vcenter: String::new(),
        links: Links::default(),
    };
    let dry = Arc::new(StatusPage::new(settings, None, NodeBoard::new(clock), clock));
    let (_, _, html) = ask(&dry, Method::GET, "/").await;
    assert!(html.contains("Dry run."));
    assert!(html.contains("vCenter has not synced yet"));
}

#[tokio::test]
async fn what_needs_a_person_comes_first_with_its_next_step() {
    let status = status();
    show(&status, "gpu1");
    let (_, _, html) = ask(&status, Method::GET, "/").await;
    assert!(
        !html.contains("Needs a person") && html.contains("<title>Overview"),
        "{html}"
    );

    let name = NodeName::new("gpu1");
    let held = PendingEviction {
        name: "ml/train-0".to_owned(),
        why: PendingReason::Budget {
            names: vec!["train".to_owned()],
            message: String::new(),
        },
    };
    let record = Record::Episode(Arc::new(episode("gpu1", NASTY, Phase::Draining, at(1))));
    let waits = |on: &WaitingOn| {
        let event = NodeEvent::Waits {
            node: None,
            vm: &BoundVm::NotLookedUp,
            record: &record,
            on,
        };
        tell(&status, &name, event);
    };
    waits(&WaitingOn::Pods {
        left: vec![held.clone()],
        timeout: Some(DrainTimeout {
            at: at(340),
            action: DrainTimeoutAction::PowerOff,
        }),
    });
    let (_, _, html) = ask(&status, Method::GET, "/nodes/gpu1").await;
    for words in [
        "the VM is shut down with the pods that are left at ",
        "<span class=\"left\" data-until=\"2026-11-18T11:12:20",
        ">in 4m</span>",
        "<code>kubectl -n ml describe poddisruptionbudget train</code>",
        "docs/runbooks/HauloutDrainStuck.md",
        "cluster kube.example:6443",
        "vCenter vc.example",
        "this replica leads",
    ] {
        assert!(html.contains(words), "{words}: {html}");
    }
    waits(&WaitingOn::DrainHeld { left: vec![held] });
    let (_, _, html) = ask(&status, Method::GET, "/").await;
    for words in [
        "<title>(1) Overview",
        "</span> Needs a person</h2>",
        "HauloutWaitsForPerson.md",
    ] {
        assert!(html.contains(words), "{words}: {html}");
    }
    let (_, _, html) = ask(&status, Method::GET, "/hosts/%3Cscript%3Ealert(1)%3C%2Fscript%3E").await;
    assert!(
        html.contains("What holds it") && html.contains("needs a person:"),
        "{html}"
    );
    status.connection(
        WatchedApi::Vcenter,
        ConnectionState::Lost {
            why: "no answer: error sending request: os error 111",
        },
    );
    let (_, _, html) = ask(&status, Method::GET, "/").await;
    assert!(html.contains("<p>os error 111</p><details>"), "{html}");
}

#[tokio::test(start_paused = true)]
async fn stream_has_one_event_for_simultaneous_changes() {
    let status = status();
    let router = routes(Arc::clone(&status));
    let request = Request::get("/events").body(Body::empty()).unwrap();
    let answer = router.oneshot(request).await.unwrap();
    assert_eq!(answer.headers()[header::CONTENT_TYPE], "text/event-stream");
    let mut last_event = pin!(answer.into_body().into_data_stream());
    let mut next = async || String::from_utf8(last_event.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(next().await.contains("event: changed"));
    show(&status, "gpu1");
    status.connection(WatchedApi::Vcenter, ConnectionState::Lost { why: "gone" });
    let revision = *status.changes.borrow();
    assert_eq!(next().await, format!("event: changed\ndata: {revision}\n\n"));
    // Nothing changes: the sign of life comes first.
    show(&status, "gpu1");
    let before = *status.changes.borrow();
    status.connection(WatchedApi::Vcenter, ConnectionState::Lost { why: "gone" });
    assert_eq!(*status.changes.borrow(), before, "the same again is no change");
}

#[tokio::test]
async fn only_so_many_listen() {
    let status = status();
    let router = routes(Arc::clone(&status));
    let mut listening = Vec::new();
    for _ in 0..serve::MAX_STREAMS {
        let request = Request::get("/events").body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        listening.push(answer);
    }
    let one_more = async || {
        let request = Request::get("/events").body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!(one_more().await, StatusCode::SERVICE_UNAVAILABLE);
    listening.pop();
    assert_eq!(one_more().await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn pages_and_json_are_rendered_one_at_a_time() {
    let renders = Arc::new(tokio::sync::Semaphore::new(serve::RENDERS));
    let router = serve::guarded(
        serve::pages_with(status(), Arc::clone(&renders)),
        PageAccess::default(),
    );
    let ask = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        (
            answer.status(),
            answer.headers().get(header::RETRY_AFTER).cloned(),
        )
    };
    let under_way = renders.acquire().await.unwrap();
    for path in [
        "/",
        "/nodes/gpu1",
        "/episodes/1",
        "/api/v1/overview",
        "/api/v1/nodes/gpu1",
        "/api/v1/episodes/1",
    ] {
        let (code, retry_after) = ask(path).await;
        assert_eq!(
            (code, retry_after.is_some()),
            (StatusCode::SERVICE_UNAVAILABLE, true),
            "{path}"
        );
    }
    assert_eq!(
        ask("/style.css").await.0,
        StatusCode::OK,
        "nothing is rendered for it"
    );
    let asking = ask("/api/v1/overview");
    let ending = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        drop(under_way);
    };
    let (answer, ()) = futures::join!(asking, ending);
    assert_eq!(answer.0, StatusCode::OK, "it waited for its turn");
}

#[test]
fn json_of_the_overview_has_each_name_once() {
    let status = status();
    show(&status, "gpu1");
    let text = status.overview_json(&ListFilter::default()).unwrap();
    // serde_json's own value takes the last of two values of one name; a struct refuses the second.
    #[derive(Debug, serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Names {
        need_person: Vec<serde_json::Value>,
    }
    let names: Names = serde_json::from_slice(&text).unwrap();
    assert_eq!(names.need_person.len(), 0);
}

#[tokio::test]
async fn overview_is_rendered_once_per_second() {
    let status = status();
    show(&status, "gpu1");
    let first = status.overview_json(&ListFilter::default()).unwrap();
    let second = status.overview_json(&ListFilter::default()).unwrap();
    assert_eq!(first.as_ptr(), second.as_ptr(), "the same bytes");
    status.connection(WatchedApi::Vcenter, ConnectionState::Lost { why: "gone" });
    let third = status.overview_json(&ListFilter::default()).unwrap();
    assert_ne!(first, third);
}

#[test]
fn an_episode_is_seen_through_all_its_phases_and_how_it_ended() {
    let status = status();
    let name = NodeName::new("gpu1");
    let mut before = Record::InService;
    let phases = [
        Phase::Queued,
        Phase::Draining,
        Phase::AwaitingHost,
        Phase::Rejoining,
    ];
    for (phase, since) in phases.into_iter().zip([1, 5, 20, 40]) {
        let record = Record::Episode(Arc::new(episode("gpu1", "esx1", phase, at(since))));
        before = record_change(&status, &name, &before, record, None, since);
    }
    let id = before.episode().unwrap().id.to_string();
    record_change(
        &status,
        &name,
        &before,
        Record::InService,
        Some(EpisodeResult::Succeeded),
        50,
    );
    let snapshots = BTreeMap::from([(name, snapshot("gpu1", "esx1", Record::InService, Vec::new()))]);
    built(&status, &statuses(&fixtures::snapshots(snapshots.clone())));

    let page = status.episode(&id).unwrap();
    let seen: Vec<_> = page
        .phases
        .iter()
        .map(|span| (span.label.as_str(), span.from, span.to))
        .collect();
    assert_eq!(
        seen,
        [
            ("queued", at(1), Some(at(5))),
            ("draining", at(5), Some(at(20))),
            ("off, waiting for its host", at(20), Some(at(40))),
            ("rejoining", at(40), Some(at(50))),
        ]
    );
    assert_eq!(
        (page.row.result.as_str(), page.row.ended_at),
        ("Succeeded", Some(at(50)))
    );
    assert_eq!(page.timeline.to, at(50));
    assert!(page.waits_for.is_none());
}

fn in_service(node: &str, vm: BoundVm) -> (NodeName, NodeSnapshot) {
    let snapshot = NodeSnapshot {
        record: Record::InService,
        observed: Observed::of(Some(fixtures::node()), vm, moment(0)),
    };
    (NodeName::new(node), snapshot)
}

/// The VM of a node in service on this host.
fn vm_on(host: &str, change: impl FnOnce(&mut ObservedVm)) -> BoundVm {
    let mut vm = ObservedVm {
        host_name: host.to_owned(),
        tools_running: Some(true),
        ..fixtures::vm(Some(PowerState::On), HostState::InService)
    };
    change(&mut vm);
    BoundVm::Found(vm)
}

#[tokio::test]
async fn obstacles_before_a_night_come_first_in_words() {
    let status = status();
    let snapshots = BTreeMap::from([
        in_service("a-sound", vm_on("esx-1", |_| {})),
        in_service("b-mute", vm_on("esx-2", |vm| vm.tools_running = Some(false))),
        in_service(
            "c-suspended",
            vm_on(NASTY, |vm| {
                vm.power = Some(PowerState::Suspended);
                vm.evacuation_power_off = true;
            }),
        ),
        in_service("d-unknown", BoundVm::NotLookedUp),
    ]);
    built(&status, &statuses(&fixtures::snapshots(snapshots)));

    let (code, _, page) = ask(&status, Method::GET, "/maintainable").await;
    assert_eq!(code, StatusCode::OK);
    let places: Vec<usize> = ["c-suspended", "b-mute", "d-unknown", "a-sound"]
        .iter()
        .map(|name| page.find(&format!(">{name}</a>")).unwrap())
        .collect();
    assert!(places.is_sorted(), "{page}");
    for words in [
        "<title>Before the night",
        "stops:</strong> the VM is suspended",
        "costs:</strong> vCenter itself powers the VM off",
        "costs:</strong> VMware Tools do not run",
        "its VM is not known yet",
        "none found",
        "<code>kubectl haulout report</code>",
        "href=\"./maintainable\" aria-current=\"page\"",
    ] {
        assert!(page.contains(words), "{words:?} in {page}");
    }
    assert!(!page.contains(NASTY), "{page}");

    let (_, _, json) = ask(&status, Method::GET, "/api/v1/maintainable?q=esx").await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rows = json["nodes"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["b-mute", "a-sound"], "limited to these hosts");
    assert_eq!(rows[0]["obstacles"][0]["kind"], "no-vmware-tools");
    assert_eq!(
        (&json["all"], &json["blocked"], &json["withObstacles"]),
        (&4.into(), &1.into(), &2.into())
    );

    let (_, _, overview) = ask(&status, Method::GET, "/").await;
    let link = "<a href=\"maintainable\">1 node would not get through a maintenance</a>";
    assert!(overview.contains(link), "{overview}");
}

#[test]
fn page_of_obstacles_is_bounded() {
    let status = status();
    let snapshots = (0..250).map(|n| in_service(&format!("gpu-{n:03}"), BoundVm::OutOfScope));
    built(&status, &statuses(&fixtures::snapshots(snapshots)));
    let filter = ListFilter {
        nodes: 3,
        ..ListFilter::default()
    };
    let page = status.maintainable(&filter);
    let count = PageCount {
        rows: 250,
        page: 3,
        pages: 3,
    };
    assert_eq!((page.node_pages, page.nodes.len()), (count, 50));
    assert_eq!(page.nodes[0].name, "gpu-200");
    let html = pages::maintainable(&page).unwrap();
    assert!(html.contains("?q=&#38;nodes=2&#38;hosts=0"), "{html}");
}

fn record_change(
    status: &Arc<StatusPage>,
    name: &NodeName,
    before: &Record,
    record: Record,
    ended: Option<EpisodeResult>,
    seconds: i64,
) -> Record {
    let mut transition = Transition {
        record,
        unschedulable: None,
        ended,
        fulfilled: None,
    };
    let before = fixtures::closed(before, &mut transition, seconds);
    let event = NodeEvent::Recorded {
        node: None,
        vm: &BoundVm::NotLookedUp,
        before: &before,
        transition: &transition,
        wrote: (at(seconds), at(seconds)),
    };
    tell(status, name, event);
    transition.record
}

#[test]
fn the_queue_is_listed_in_its_order_with_those_ahead() {
    let status = status();
    let queued = |node: &str, clicked: i64| {
        let mut episode = episode(node, "esx1", Phase::Queued, at(clicked));
        episode.trigger.clicked_at = at(clicked);
        let mut snapshot = snapshot(node, "esx1", Record::Episode(Arc::new(episode)), Vec::new());
        snapshot.observed.admission = Admission::Queued {
            ahead: vec![NodeName::new("gpu9")],
            position: 1,
            limit: SlotLimit::ConcurrentDrains(1),
        };
        (NodeName::new(node), snapshot)
    };
    built(
        &status,
        &statuses(&fixtures::snapshots(BTreeMap::from([
            queued("gpu1", 30),
            queued("gpu2", 20),
        ]))),
    );
    let overview = status.overview(&ListFilter::default());
    let places: Vec<_> = overview
        .queue
        .iter()
        .map(|row| (row.position, row.node.as_str()))
        .collect();
    assert_eq!(places, [(1, "gpu2"), (2, "gpu1")]);
    assert_eq!(overview.queue[0].ahead, ["gpu9"]);
    assert_eq!(
        overview.queue[0].limit.as_deref(),
        Some("at most 1 drained at once")
    );
    assert_eq!(overview.figures.queued, 2);
}

#[test]
fn page_of_thousands_of_nodes_is_bounded() {
    let status = status();
    let mut snapshots: BTreeMap<NodeName, NodeSnapshot> = (0..3000)
        .map(|index| {
            let name = format!("gpu{index:04}");
            let snapshot = snapshot(&name, "esx1", Record::InService, Vec::new());
            (NodeName::new(name), snapshot)
        })
        .collect();
    snapshots.insert(NodeName::new("zz"), draining("zz", "esx1", vec![held(); 3000]));
    built(&status, &statuses(&fixtures::snapshots(snapshots.clone())));
    let overview = status.overview(&ListFilter::default());
    let pages = |rows, page, pages| PageCount { rows, page, pages };
    assert_eq!(
        (overview.nodes.len(), overview.node_pages),
        (100, pages(3001, 1, 31))
    );
    assert_eq!(overview.nodes[0].name, "zz");
    let of = |q: &str, nodes| {
        let q = q.to_owned();
        status.overview(&ListFilter { q, nodes, hosts: 0 })
    };
    let last = of("", 99);
    assert_eq!((last.nodes.len(), last.node_pages), (1, pages(3001, 31, 31)));
    let few = of("GPU299", 1);
    assert_eq!((few.nodes.len(), few.node_pages), (10, pages(10, 1, 1)));
    let html = pages::overview(&of("gpu&\"", 1)).unwrap();
    assert!(
        html.contains("None matches.") && html.contains("value=\"gpu&#38;&#34;\""),
        "{html}"
    );
    let node = status.node(&NodeName::new("zz")).unwrap();
    let pods = node.pods.as_ref().unwrap();
    assert_eq!((pods.left.len(), pods.more), (50, 2950));
    let size = pages::overview(&overview).unwrap().len();
    assert!(size < 200_000, "{size} bytes");
}

#[test]
fn span_position_follows_its_times() {
    let span = |from: i64, to: Option<i64>| TimelineSpan {
        state: ShownState::Phase(PhaseKind::Draining),
        label: "Draining".to_owned(),
        from: at(from),
        to: to.map(at),
    };
    let timeline = Timeline {
        from: at(0),
        to: at(100),
        rows: vec![TimelineRow {
            name: "n".repeat(300),
            spans: vec![
                span(-50, Some(-10)),
                span(-50, Some(25)),
                span(25, Some(25)),
                span(50, None),
                span(100, None),
            ],
        }],
    };
    let picture = timeline_picture::layout(&timeline);
    let bars: Vec<_> = picture.rows[0]
        .bars
        .iter()
        .map(|bar| (bar.x.as_str(), bar.width.as_str(), bar.title.as_str()))
        .collect();
    assert_eq!(
        bars,
        [
            ("0.00%", "25.00%", "Draining, 1m15s"),
            ("25.00%", "0.50%", "Draining, 0.0s"),
            ("50.00%", "50.00%", "Draining, 50s so far"),
            ("99.50%", "0.50%", "Draining, 0.0s so far"),
        ]
    );
    assert_eq!(picture.legend, [ShownState::Phase(PhaseKind::Draining)]);
    assert_eq!(picture.rows[0].name.chars().count(), 49);
    assert_eq!(picture.height, picture.axis_y + 24);
    let marks: BTreeSet<_> = picture.marks.iter().map(|mark| mark.text.as_str()).collect();
    assert!((3..=5).contains(&marks.len()), "{marks:?}");
}

#[test]
fn axis_has_few_round_times() {
    for seconds in [0, 1, 7, 59, 600, 3601, 86_400, 3_000_000] {
        let timeline = Timeline {
            from: at(0),
            to: at(seconds),
            rows: Vec::new(),
        };
        let marks = timeline_picture::layout(&timeline).marks;
        assert!(marks.len() <= 5, "{seconds}: {marks:?}");
        assert!(seconds < 2 || !marks.is_empty(), "{seconds}");
    }
}

#[test]
fn every_state_has_its_own_colour_and_hatching() {
    for state in ShownState::all() {
        let class = format!(".s-{}", state.name());
        assert!(pages::STYLE.contains(&class), "{class}");
    }
    assert!(pages::STYLE.contains("prefers-color-scheme: dark"));
}

#[test]
fn hosts_stay_on_the_page_while_vcenter_is_not_connected() {
    let status = status();
    let name = NodeName::new("gpu-1");
    let shown = |snapshot: NodeSnapshot, hosts: &[&str]| {
        built(
            &status,
            &statuses(&fixtures::snapshots([(name.clone(), snapshot)])),
        );
        let hosts = hosts
            .iter()
            .map(|host| (HostRef::new(*host), ((*host).to_owned(), HostState::InService)));
        status.show_hosts(hosts.collect());
        let overview = status.overview(&ListFilter::default());
        (overview.nodes[0].host.clone(), overview.hosts.len())
    };
    let idle = || snapshot("gpu-1", "esx-1", Record::InService, Vec::new());
    let unknown = || {
        let mut snapshot = idle();
        snapshot.observed.vm = BoundVm::NotLookedUp;
        snapshot
    };
    let esx1 = || Some("esx-1".to_owned());
    assert_eq!(shown(idle(), &["esx-1"]), (esx1(), 1));
    status.connection(
        WatchedApi::Vcenter,
        ConnectionState::Lost {
            why: "HTTP status 503",
        },
    );
    assert_eq!(shown(unknown(), &[]), (esx1(), 1));
    status.connection(WatchedApi::Vcenter, ConnectionState::Synced);
    assert_eq!(shown(idle(), &[]), (esx1(), 0), "vCenter has it no more");
}
