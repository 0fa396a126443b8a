//! Jaeger: receives traces by OTLP, keeps them in memory, and serves its query API.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};

use crate::build;
use crate::ports::Port;
use crate::process::{Process, ProcessSpec};
use crate::run_dir::RunDir;
use crate::wait::until;

/// The timeout of the start, which takes two seconds on an idle machine.
const START: Duration = Duration::from_secs(60);

/// The timeout of a query.
const QUESTION: Duration = Duration::from_secs(10);

/// A running Jaeger. It ends when this is dropped.
#[derive(Debug)]
pub struct Jaeger {
    // The process is dropped before the directory and the ports.
    process: Process,
    client: reqwest::Client,
    grpc: Port,
    http: Port,
    query: Port,
    _query_grpc: Port,
    _dir: RunDir,
}

/// A span from Jaeger's API.
#[derive(Debug, Clone)]
pub struct JaegerSpan {
    pub id: String,
    /// The id of its parent; `None` for a root.
    pub parent: Option<String>,
    /// The ids of the traces it links to.
    pub links: Vec<String>,
    pub name: String,
    /// When it began, in microseconds since 1970.
    pub start: u64,
    /// When it ended, in microseconds since 1970.
    pub end: u64,
    /// The names of its events, in order.
    pub events: Vec<String>,
    /// Its attributes, each as text.
    pub tags: BTreeMap<String, String>,
}

impl Jaeger {
    /// Starts one on free ports of loopback and waits until it responds.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_forwarding(&[]).await
    }

    /// As [`Jaeger::start`], and forwards all spans to these OTLP/HTTP endpoints as JSON, with retries. An endpoint
    /// may be started later.
    ///
    /// # Errors
    /// As [`Jaeger::start`].
    pub async fn start_forwarding(endpoints: &[String]) -> anyhow::Result<Self> {
        let binary = build::part("jaeger").await?;
        let dir = RunDir::create()?;
        let (grpc, http) = (Port::reserve()?, Port::reserve()?);
        let (query, query_grpc) = (Port::reserve()?, Port::reserve()?);
        let at = |port: &Port| format!("127.0.0.1:{}", port.number());
        let mut exporters = json!({"jaeger_storage_exporter": {"trace_storage": "memory"}});
        for (number, endpoint) in endpoints.iter().enumerate() {
            exporters[format!("otlphttp/{number}")] = forwarder(endpoint);
        }
        let exporter_names: Vec<&String> = exporters
            .as_object()
            .into_iter()
            .flat_map(|it| it.keys())
            .collect();
        let config = json!({
            "service": {
                "extensions": ["jaeger_storage", "jaeger_query"],
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": exporter_names}},
                "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "warn"}},
            },
            "extensions": {
                "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 10_000}}}},
                "jaeger_query": {
                    "storage": {"traces": "memory"},
                    "http": {"endpoint": at(&query)},
                    "grpc": {"endpoint": at(&query_grpc)},
                },
            },
            "receivers": {"otlp": {"protocols": {
                "grpc": {"endpoint": at(&grpc)},
                "http": {"endpoint": at(&http)},
            }}},
            "exporters": exporters,
        });
        let config = dir.write("jaeger.json", config.to_string())?;
        let mut process = ProcessSpec::leashed("jaeger", &binary, dir.join("jaeger.log"))
            .arg("--config")
            .arg(&config)
            .env(crate::process::REMOVE_AT_EOF, dir.path())
            .spawn()?;
        let _ = rustls::crypto::ring::default_provider().install_default();
        // The lab is on loopback and needs no proxy.
        let client = reqwest::Client::builder().no_proxy().timeout(QUESTION).build()?;
        let services = format!("http://{}/api/services", at(&query));
        let receiver = format!("http://{}/v1/traces", at(&http));
        until("Jaeger to answer", START, async || {
            process.check_running()?;
            let answers = client
                .get(&services)
                .send()
                .await
                .is_ok_and(|it| it.status().is_success());
            // An empty request is a valid one.
            let empty = client
                .post(&receiver)
                .header("content-type", "application/x-protobuf");
            let takes = empty.send().await.is_ok_and(|it| it.status().is_success());
            Ok((answers && takes).then_some(()))
        })
        .await?;
        Ok(Self {
            process,
            client,
            grpc,
            http,
            query,
            _query_grpc: query_grpc,
            _dir: dir,
        })
    }

    /// The endpoint for `OTEL_EXPORTER_OTLP_ENDPOINT` with the protocol `http/protobuf`.
    pub fn otlp_http(&self) -> String {
        format!("http://127.0.0.1:{}", self.http.number())
    }

    /// The endpoint for `OTEL_EXPORTER_OTLP_ENDPOINT` with the protocol `grpc`.
    pub fn otlp_grpc(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc.number())
    }

    /// The URL of a trace in the query API.
    pub fn query(&self) -> String {
        format!("http://127.0.0.1:{}", self.query.number())
    }

    /// The last lines of its log.
    pub fn log_text(&self) -> String {
        self.process.tail()
    }

    /// The spans of one trace in the order of their start; none for an unknown trace.
    pub async fn trace(&self, id: &str) -> anyhow::Result<Vec<JaegerSpan>> {
        self.spans(&format!("/api/traces/{id}")).await
    }

    /// The spans of one trace as they are stored; a span that was sent twice is there twice.
    pub async fn stored(&self, id: &str) -> anyhow::Result<Vec<JaegerSpan>> {
        self.spans(&format!("/api/traces/{id}?raw=true")).await
    }

    /// The spans of all traces with a span that carries this attribute.
    pub async fn find(&self, service: &str, tag: &str, value: &str) -> anyhow::Result<Vec<JaegerSpan>> {
        let tags = json!({tag: value}).to_string();
        let address = reqwest::Url::parse_with_params(
            &format!("{}/api/traces", self.query()),
            [
                ("service", service),
                ("tags", &tags),
                ("limit", "100"),
                ("lookback", "2d"),
            ],
        )?;
        let path = format!("{}?{}", address.path(), address.query().unwrap_or_default());
        self.spans(&path).await
    }

    async fn spans(&self, path: &str) -> anyhow::Result<Vec<JaegerSpan>> {
        let asking = || format!("asking Jaeger for {path}");
        let answer = self
            .client
            .get(format!("{}{path}", self.query()))
            .send()
            .await
            .with_context(asking)?;
        if answer.status() == reqwest::StatusCode::NOT_FOUND {
            return Ok(Vec::new());
        }
        let body = answer.error_for_status()?.text().await.with_context(asking)?;
        let answer: Value = serde_json::from_str(&body).with_context(asking)?;
        let mut spans = answer["data"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|trace| trace["spans"].as_array().into_iter().flatten())
            .map(span)
            .collect::<anyhow::Result<Vec<JaegerSpan>>>()?;
        spans.sort_by_key(|span| (span.start, span.end));
        Ok(spans)
    }
}

/// The settings of an exporter to `endpoint`. It retries every second without limit, because a person may start the
/// container late.
fn forwarder(endpoint: &str) -> Value {
    json!({
        "endpoint": endpoint,
        "encoding": "json",
        "compression": "none",
        "retry_on_failure": {
            "enabled": true, "initial_interval": "500ms", "max_interval": "1s", "max_elapsed_time": "0s",
        },
    })
}

fn span(returned: &Value) -> anyhow::Result<JaegerSpan> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let wrong = || anyhow!("Jaeger returned an invalid span: {returned}");
    let references = returned["references"].as_array().into_iter().flatten();
    let is_parent = |reference: &&Value| reference["refType"] == "CHILD_OF";
    let start = returned["startTime"].as_u64().ok_or_else(wrong)?;
    let tags = returned["tags"].as_array().into_iter().flatten();
    Ok(JaegerSpan {
        id: text(&returned["spanID"]).ok_or_else(wrong)?,
        parent: references
            .clone()
            .find(is_parent)
            .and_then(|parent| text(&parent["spanID"])),
        links: references
            .filter(|reference| !is_parent(reference))
            .filter_map(|link| text(&link["traceID"]))
            .collect(),
        name: text(&returned["operationName"]).ok_or_else(wrong)?,
        start,
        end: start + returned["duration"].as_u64().ok_or_else(wrong)?,
        events: returned["logs"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|log| log["fields"].as_array().into_iter().flatten())
            .filter(|field| field["key"] == "event")
            .filter_map(|field| text(&field["value"]))
            .collect(),
        tags: tags
            .filter_map(|tag| {
                let value = &tag["value"];
                Some((
                    text(&tag["key"])?,
                    text(value).unwrap_or_else(|| value.to_string()),
                ))
            })
            .collect(),
    })
}
