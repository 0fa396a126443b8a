//! CloudEvents to a receiver outside.

use std::sync::{Arc, Mutex};

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use haulout_lab::fixture::WAIT_TIMEOUT;
use haulout_lab::wait::until;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::fixture::{one_node, run, run_scenario};

/// A receiver that refuses the first message once, and keeps what it took.
struct Receiver {
    url: String,
    taken: Arc<Mutex<Vec<Value>>>,
    _server: JoinSet<()>,
}

impl Receiver {
    async fn start() -> anyhow::Result<Self> {
        let taken: Arc<Mutex<Vec<Value>>> = Arc::default();
        let attempts = Arc::new(Mutex::new(0));
        let (keep, count) = (Arc::clone(&taken), Arc::clone(&attempts));
        let take = async move |body: String| {
            let mut count = count.lock().unwrap();
            *count += 1;
            if *count == 1 {
                return StatusCode::SERVICE_UNAVAILABLE;
            }
            keep.lock().unwrap().push(serde_json::from_str(&body).unwrap());
            StatusCode::NO_CONTENT
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/hook", listener.local_addr()?);
        let router = Router::new().route("/hook", post(take));
        let mut server = JoinSet::new();
        server.spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self {
            url,
            taken,
            _server: server,
        })
    }

    /// The messages of a type, once there is one.
    async fn wait_for(&self, kind: &str) -> anyhow::Result<Value> {
        let kind = format!("dev.haulout.maintenance.{kind}");
        until(&kind, WAIT_TIMEOUT, async || {
            let taken = self.taken.lock().unwrap();
            Ok(taken.iter().find(|it| it["type"] == kind.as_str()).cloned())
        })
        .await
    }
}

#[test]
fn begin_need_of_a_person_and_end_are_sent_as_cloud_events() {
    run_scenario(async {
        let fixture = one_node("notify").await?;
        let node = fixture.node_name("gpu1");
        let receiver = Receiver::start().await?;
        let file = fixture.log().with_file_name("notify-url");
        std::fs::write(&file, &receiver.url)?;
        let settings = [
            ("NOTIFY_URL_FILE", file.to_str().context("a path")?),
            ("DRAIN_TIMEOUT_SECONDS", "1"),
            ("DRAIN_TIMEOUT_ACTION", "hold"),
        ];
        let haulout = run(&fixture, &settings).await?;
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;

        // The receiver has refused it once.
        let began = receiver.wait_for("began").await?;
        ensure!(
            began["subject"] == node.as_str() && began["data"]["host"] == "esx1",
            "{began}"
        );
        let needs = receiver.wait_for("needs-person").await?;
        ensure!(needs["data"]["waitingOn"] == "drain-held", "{needs}");
        let step = "kubectl -n notify describe poddisruptionbudget held-budget";
        ensure!(needs["data"]["nextStep"] == step, "{needs}");
        ensure!(
            needs["text"]
                .as_str()
                .is_some_and(|text| text.contains("needs a person")),
            "{needs}"
        );

        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let ended = receiver.wait_for("ended").await?;
        ensure!(ended["data"]["result"] == "Cancelled", "{ended}");
        ensure!(
            !fixture.log_text().contains(&receiver.url),
            "the address may be a secret"
        );
        haulout.stop().await
    });
}
