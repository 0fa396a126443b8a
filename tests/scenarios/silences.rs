//! Silences in an Alertmanager during the maintenance of a node.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::extract::{Path as PathOf, RawQuery, State};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use haulout_lab::fixture::WAIT_TIMEOUT;
use haulout_lab::wait::until;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::fixture::{one_node, run, run_scenario};

/// A silence lasts for 30 s unless it is renewed, which happens every third of it.
const SILENCE_SECONDS: &str = "silence=30";

/// An Alertmanager: a real one, or a stand-in.
pub struct Alertmanager {
    pub url: String,
    pub client: reqwest::Client,
    _server: JoinSet<()>,
}

impl Alertmanager {
    pub fn at(url: String, server: JoinSet<()>) -> anyhow::Result<Self> {
        // As in the other parts of the lab: without it, no client can be built.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(10));
        Ok(Self {
            url,
            client: client.build()?,
            _server: server,
        })
    }

    async fn stand_in() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        // With a path, as behind a proxy.
        let url = format!("http://{}/alertmanager/", listener.local_addr()?);
        let router = Router::new()
            .route("/alertmanager/api/v2/silences", get(list).post(set))
            .route("/alertmanager/api/v2/silence/{id}", delete(expire))
            .with_state(Silences::default());
        let mut server = JoinSet::new();
        server.spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self::at(url, server)
    }

    pub async fn api(&self, path: &str) -> anyhow::Result<Value> {
        let url = format!("{}/api/v2/{path}", self.url.trim_end_matches('/'));
        let answer = self.client.get(url).send().await?.error_for_status()?;
        Ok(serde_json::from_str(&answer.text().await?)?)
    }

    /// All silences, ended ones included.
    pub async fn silences(&self) -> anyhow::Result<Vec<Value>> {
        let silences = self.api("silences").await?;
        Ok(silences.as_array().context("a list")?.clone())
    }

    /// The only active silence, once it ends later than `before`.
    async fn wait_for_one(&self, before: Option<&Value>) -> anyhow::Result<Value> {
        until("an active silence that lasts longer", WAIT_TIMEOUT, async || {
            let mut active = self.silences().await?;
            active.retain(|it| it["status"]["state"] == "active");
            ensure!(active.len() <= 1, "{active:?}");
            let Some(one) = active.pop() else { return Ok(None) };
            let lasts_longer = match before {
                Some(before) => ends_at(&one)? > ends_at(before)?,
                None => true,
            };
            Ok(lasts_longer.then_some(one))
        })
        .await
    }
}

pub fn ends_at(silence: &Value) -> anyhow::Result<Timestamp> {
    Ok(silence["endsAt"].as_str().context("it has an end")?.parse()?)
}

/// The silences of the stand-in.
type Silences = Arc<Mutex<Vec<Value>>>;

/// Those whose matchers include the one of the filter, as Alertmanager does it.
async fn list(State(all): State<Silences>, RawQuery(query): RawQuery) -> String {
    let mut all = all.lock().unwrap().clone();
    if let Some(query) = query {
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        assert_eq!(
            pairs,
            [("filter".to_owned(), "alertname!~\"Haulout.*\"".to_owned())]
        );
        let own = json!({"name": "alertname", "value": "Haulout.*", "isRegex": true, "isEqual": false});
        all.retain(|it| {
            it["matchers"]
                .as_array()
                .is_some_and(|matchers| matchers.contains(&own))
        });
    }
    for silence in &mut all {
        let is_over = ends_at(silence).unwrap() <= now();
        silence["status"] = json!({"state": if is_over { "expired" } else { "active" }});
    }
    json!(all).to_string()
}

async fn set(State(all): State<Silences>, body: String) -> (StatusCode, String) {
    let mut posted: Value = serde_json::from_str(&body).unwrap();
    let mut all = all.lock().unwrap();
    if let Some(id) = posted["id"].as_str().map(str::to_owned) {
        let Some(known) = all.iter_mut().find(|it| it["id"] == id.as_str()) else {
            return (StatusCode::NOT_FOUND, "silence not found".to_owned());
        };
        if known["matchers"] != posted["matchers"] || known["startsAt"] != posted["startsAt"] {
            return (StatusCode::BAD_REQUEST, "it would be another silence".to_owned());
        }
        *known = posted;
        return (StatusCode::OK, json!({"silenceID": id}).to_string());
    }
    let id = format!("00000000-0000-0000-0000-{:012}", all.len());
    posted["id"] = json!(id);
    posted["startsAt"] = json!(now().to_string());
    all.push(posted);
    (StatusCode::OK, json!({"silenceID": id}).to_string())
}

async fn expire(State(all): State<Silences>, PathOf(id): PathOf<String>) -> StatusCode {
    let mut all = all.lock().unwrap();
    match all.iter_mut().find(|it| it["id"] == id.as_str()) {
        Some(silence) => {
            silence["endsAt"] = json!(now().to_string());
            StatusCode::OK
        }
        None => StatusCode::NOT_FOUND,
    }
}

#[expect(clippy::disallowed_methods, reason = "Alertmanager has a clock of its own")]
fn now() -> Timestamp {
    Timestamp::now()
}

/// A maintenance, with a crash in the middle.
pub async fn silence_lasts_for_the_maintenance(
    name: &str,
    alertmanager: &Alertmanager,
    in_maintenance: impl AsyncFnOnce(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let fixture = one_node(name).await?;
    let node = fixture.node_name("gpu1");
    // The folder is that of all fixtures.
    let file = fixture.log().with_file_name(format!("alertmanager-url-{name}"));
    std::fs::write(&file, &alertmanager.url)?;
    let settings = [
        ("ALERTMANAGER_URL_FILE", file.to_str().context("a path")?),
        ("TEST_TIMINGS", SILENCE_SECONDS),
        ("SILENCE_MATCHERS", "cluster=\"east\""),
        ("LOG_LEVEL", "info,haulout_telemetry::silences=debug"),
    ];
    let haulout = run(&fixture, &settings).await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    let away = fixture.wait_phase(&node, "awaitingHost").await?;
    let made = alertmanager.wait_for_one(None).await;
    let made = made.with_context(|| format!("the first silence: {}", fixture.log_text()))?;
    let mut matchers = made["matchers"].as_array().context("matchers")?.clone();
    matchers.sort_by_key(|it| it["name"].to_string());
    ensure!(
        matchers
            == [
                json!({"name": "alertname", "value": "Haulout.*", "isRegex": true, "isEqual": false}),
                json!({"name": "cluster", "value": "east", "isRegex": false, "isEqual": true}),
                json!({"name": "node", "value": node, "isRegex": false, "isEqual": true}),
            ],
        "{matchers:?}"
    );
    let episode = haulout_lab::fixture::episode(&away).context("an episode")?;
    let id = episode["id"].as_str().context("an id")?;
    let comment = made["comment"].as_str().context("a comment")?;
    ensure!(comment.contains(id) && comment.contains("esx1"), "{comment}");
    in_maintenance(&node).await?;

    let renewed = alertmanager.wait_for_one(Some(&made)).await;
    let renewed = renewed.with_context(|| fixture.log_text())?;
    ensure!(renewed["id"] == made["id"], "{made} {renewed}");
    haulout.kill().await?;
    let haulout = run(&fixture, &settings).await?;
    let taken_over = alertmanager.wait_for_one(Some(&renewed)).await?;
    ensure!(taken_over["id"] == made["id"], "{renewed} {taken_over}");

    fixture.vcenter.exit_maintenance("esx1").await?;
    fixture.wait_in_service(&node).await?;
    until("the end of the silence", WAIT_TIMEOUT, async || {
        let all = alertmanager.silences().await?;
        ensure!(all.len() == 1, "one silence in all: {all:?}");
        Ok((all[0]["status"]["state"] == "expired").then_some(()))
    })
    .await?;
    let ended = alertmanager.silences().await?.swap_remove(0);
    ensure!(ends_at(&ended)? < ends_at(&taken_over)?, "{taken_over} {ended}");
    haulout.stop().await
}

#[test]
fn alerts_of_a_node_are_silenced_during_its_maintenance() {
    run_scenario(async {
        let alertmanager = Alertmanager::stand_in().await?;
        silence_lasts_for_the_maintenance("silence", &alertmanager, async |_| Ok(())).await
    });
}

#[test]
fn maintenance_goes_on_without_the_alertmanager() {
    run_scenario(async {
        let fixture = one_node("silence-none").await?;
        let node = fixture.node_name("gpu1");
        let file = fixture.log().with_file_name("alertmanager-url-none");
        // The discard port, on which nothing listens.
        std::fs::write(&file, "http://someone:canary-of-alertmanager@127.0.0.1:9")?;
        let settings = [
            ("ALERTMANAGER_URL_FILE", file.to_str().context("a path")?),
            ("METRICS_ADDRESS", "127.0.0.1:0"),
        ];
        let haulout = run(&fixture, &settings).await?;
        let metrics = crate::metrics::address(&fixture, "metrics").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        fixture
            .wait_for_log("the silences in Alertmanager are not set")
            .await?;
        let (_, shown) = crate::metrics::ask(&format!("{metrics}/metrics"), "*/*").await?;
        let failed = shown
            .lines()
            .find_map(|line| line.strip_prefix("haulout_silence_requests_failed_total "));
        ensure!(failed.is_some_and(|count| count != "0"), "{shown}");
        haulout.stop().await?;
        let log = fixture.log_text();
        ensure!(
            log.matches("the silences in Alertmanager are not set").count() == 1,
            "{log}"
        );
        ensure!(!log.contains("canary-of-alertmanager"), "{log}");
        Ok(())
    });
}
