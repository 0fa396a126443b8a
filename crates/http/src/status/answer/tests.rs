use axum::Router;
use axum::body::{Body, to_bytes};
use axum::middleware::from_fn;
use axum::routing::get;
use haulout_core::fixtures;
use secrecy::SecretString;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::*;
use crate::plan::DrainLimits;
use crate::plan::planner::ANSWERS;
use crate::plan::view::{PlanSettings, PlanSources};
use haulout_controller::event_loop::InventoryRequest;
use haulout_core::inventory::{Fact, Inventory};
use haulout_core::maintenance::observed::LeadershipEpoch;
use haulout_core::maintenance::policy::DrainTimeoutAction;
use haulout_core::maintenance::policy::StaticDevices;
use haulout_kubernetes::stand_in::{ScriptedReply, server};
use haulout_vsphere::client::{CredentialPart, CredentialSource, Endpoint, Settings, Trust, Vcenter};
use haulout_vsphere::update::VsphereUpdate;

/// The inventory of a leader that knows two hosts, each with the VM of a node.
fn leading() -> Inventory {
    let mut inventory = Inventory::new(fixtures::inventory_settings(), fixtures::at(0));
    let facts = (1..=2).flat_map(fixtures::trio);
    let leads = Fact::Leadership(Some(LeadershipEpoch::ALONE));
    inventory.advance(fixtures::synced(facts).chain([leads]), fixtures::moment(1));
    inventory
}

/// A planner whose event loop has this inventory, and the task of that loop.
fn planner(inventory: Inventory) -> (Arc<Planner>, JoinSet<()>) {
    let given = || CredentialPart::Given(SecretString::from("nobody"));
    let credentials = CredentialSource {
        user: given(),
        password: given(),
    };
    let endpoint = Endpoint::parse("https://vcenter.test/sdk").unwrap();
    let (sender, mut requests) = mpsc::channel::<InventoryRequest>(1);
    let mut event_loop = JoinSet::new();
    event_loop.spawn(async move {
        while let Some(request) = requests.recv().await {
            let _ = request.send(inventory.clone());
        }
    });
    let (client, _) = server(|_| ScriptedReply::Json(404, json!({})));
    let planner = Planner {
        inventory: sender,
        sources: Arc::new(PlanSources {
            vcenter: Vcenter::new(Settings::new(endpoint, credentials, Trust::Nothing)).unwrap(),
            client,
            management: None,
            settings: PlanSettings {
                selector: String::new(),
                limits: DrainLimits {
                    timeout: Duration::ZERO,
                    action: DrainTimeoutAction::Hold,
                    wait_max: Duration::ZERO,
                },
                static_devices: StaticDevices::Wait,
                guards_machines: false,
            },
        }),
        clock: || fixtures::moment(1),
        turns: Arc::new(Semaphore::new(ANSWERS)),
    };
    (Arc::new(planner), event_loop)
}

/// The lifetime of a connection in which nothing is streamed.
const CONNECTION: Duration = Duration::from_secs(10);

fn router(planner: &Arc<Planner>) -> Router {
    Router::new()
        .route("/plan", get(plan))
        .route("/report", get(report))
        .route("/hosts", get(hosts))
        .route_layer(from_fn(refuse_other_sites))
        .with_state(Arc::clone(planner))
}

/// Status, whether a later attempt is asked for, and body.
async fn ask(planner: &Arc<Planner>, path: &str) -> (StatusCode, bool, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = router(planner).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let is_later = parts.headers.contains_key(header::RETRY_AFTER);
    (parts.status, is_later, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn answer_is_the_last_event() {
    let (planner, _event_loop) = planner(leading());
    let (status, _, body) = ask(&planner, "/hosts").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body, "event: answer\ndata: [\"esx-1\",\"esx-2\"]\n\n");
    let (_, _, body) = ask(&planner, "/plan?name=a%0D%0Ab").await;
    assert!(
        body.starts_with("event: error\ndata: \"")
            && body.contains("is neither a node")
            && body.ends_with("\"\n\n"),
        "{body}"
    );
    assert_eq!(ask(&planner, "/plan").await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn replica_that_cannot_answer_says_why() {
    let standby = Inventory::new(fixtures::inventory_settings(), fixtures::at(0));
    let mut lost = leading();
    let why = "connection refused".to_owned();
    lost.advance([Fact::Vsphere(VsphereUpdate::Lost { why })], fixtures::moment(2));
    for (inventory, words) in [
        (
            standby,
            "this replica is a standby, and only the leader follows vCenter\n",
        ),
        (lost, "the leader is not synced: vCenter: connection refused\n"),
    ] {
        let (planner, _event_loop) = planner(inventory);
        let began = Instant::now();
        let (status, is_later, body) = ask(&planner, "/report").await;
        assert_eq!((status, is_later), (StatusCode::SERVICE_UNAVAILABLE, false));
        assert_eq!(body, words);
        assert!(
            began.elapsed() < CONNECTION,
            "the server would close the connection before"
        );
    }
    let (planner, mut event_loop) = planner(leading());
    event_loop.shutdown().await;
    for path in ["/report", "/hosts"] {
        let (status, _, body) = ask(&planner, path).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn copies_of_the_inventory_are_limited() {
    let (planner, _event_loop) = planner(leading());
    let first = Arc::clone(&planner).begin().await;
    let _second = Arc::clone(&planner).begin().await;
    let (status, is_later, body) = ask(&planner, "/plan?name=nobody").await;
    assert_eq!(
        (status, is_later),
        (StatusCode::SERVICE_UNAVAILABLE, true),
        "{body}"
    );
    assert_eq!(
        ask(&planner, "/hosts").await.0,
        StatusCode::OK,
        "names need no turn"
    );
    drop(first);
    assert_eq!(ask(&planner, "/plan?name=nobody").await.0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn page_of_another_site_cannot_keep_the_leader_busy() {
    let (planner, _event_loop) = planner(leading());
    for (site, expected) in [
        (None, StatusCode::OK),
        (Some("none"), StatusCode::OK),
        (Some("same-origin"), StatusCode::OK),
        (Some("same-site"), StatusCode::FORBIDDEN),
        (Some("cross-site"), StatusCode::FORBIDDEN),
    ] {
        let mut request = Request::get("/hosts");
        if let Some(site) = site {
            request = request.header("Sec-Fetch-Site", site);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = router(&planner).oneshot(request).await.unwrap();
        assert_eq!(response.status(), expected, "{site:?}");
    }
}
