//! Zipkin, a tracing UI on loopback. Maven fetches its server once into the lab's cache.
//!
//! Zipkin does not accept OTLP, so the lab's Jaeger forwards spans to [`Zipkin::otlp`], which converts them.

mod spans;

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::post;
use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::build;
use crate::ports::Port;
use crate::process::{Process, ProcessSpec};
use crate::run_dir::RunDir;
use crate::tools::{Tool, on_path};
use crate::wait::until;

/// The release. The slim server has the web UI and keeps traces in memory.
const VERSION: &str = "3.5.1";
/// The SHA-256 of that release's slim jar on Maven Central.
const SHA256: &str = "7956e7f2c64b7073e1362b81e697fceb5fe61e121ad3cb48d545461026964b0f";
/// The Maven goal that fetches one file without a project.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy";
/// The timeout of Maven for 84 MB and its plugin.
const DOWNLOAD: Duration = Duration::from_secs(600);
/// The timeout of the start: 8 s on an idle machine, 40 s on a very busy one.
const START: Duration = Duration::from_secs(180);
/// The timeout of an export.
const EXPORT: Duration = Duration::from_secs(10);
/// The size limit of an export.
const MAX_BODY: usize = 16 * 1024 * 1024;

/// The server's jar in the lab's cache, fetched if it is missing. Concurrent processes fetch it once.
///
/// # Errors If the cache cannot be written, or the jar has another checksum.
pub async fn jar() -> anyhow::Result<Tool> {
    if on_path(&["java"]).is_none() {
        return Ok(Tool::Missing(
            "there is no java on PATH (apt-get install default-jre-headless)".to_owned(),
        ));
    }
    let cache = build::cache_dir()?;
    std::fs::create_dir_all(&cache)
        .with_context(|| format!("making the cache directory {}", cache.display()))?;
    let file = format!("zipkin-server-{VERSION}-slim.jar");
    let jar = cache.join(&file);
    if jar.is_file() {
        return Ok(Tool::At(jar));
    }
    let _lock = build::lock(&cache, "zipkin").await?;
    if jar.is_file() {
        return Ok(Tool::At(jar));
    }
    if on_path(&["mvn"]).is_none() {
        return Ok(Tool::Missing(
            "there is no mvn on PATH to fetch Zipkin with (apt-get install maven)".to_owned(),
        ));
    }
    build::say("fetching Zipkin's server from Maven Central (84 MB, a minute the first time)");
    // In the same folder, so that the rename is atomic.
    let partial = cache.join(format!("zipkin.partial-{}", std::process::id()));
    let fetched = fetch(&partial, &file, &jar).await;
    let _ = std::fs::remove_dir_all(&partial);
    match fetched? {
        None => Ok(Tool::At(jar)),
        Some(why) => Ok(Tool::Missing(format!(
            "Maven could not fetch Zipkin's server: {why}"
        ))),
    }
}

/// Fetches `file` into `partial`, checks it and renames it to `jar`. Returns Maven's output on failure.
async fn fetch(partial: &Path, file: &str, jar: &Path) -> anyhow::Result<Option<String>> {
    std::fs::create_dir_all(partial).with_context(|| format!("making {}", partial.display()))?;
    let maven = Command::new("mvn")
        .args(["--quiet", "--batch-mode", COPY])
        .arg(format!("-Dartifact=io.zipkin:zipkin-server:{VERSION}:jar:slim"))
        .arg(format!("-DoutputDirectory={}", partial.display()))
        .current_dir(partial)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let Ok(output) = timeout(DOWNLOAD, maven).await else {
        return Ok(Some(format!("it did not end within {} s", DOWNLOAD.as_secs())));
    };
    let output = output.context("starting mvn")?;
    if !output.status.success() {
        let stdout = String::from_utf8_lossy(&output.stdout);
        let first = stdout.lines().find(|line| line.contains("ERROR"));
        return Ok(Some(first.unwrap_or("it printed no error").to_owned()));
    }
    let fetched = partial.join(file);
    let bytes = std::fs::read(&fetched).with_context(|| format!("reading {}", fetched.display()))?;
    let digest: String = Sha256::digest(&bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    ensure!(
        digest == SHA256,
        "what Maven fetched as {file} has the SHA-256 {digest}, and not {SHA256}: it is not used"
    );
    std::fs::rename(&fetched, jar).with_context(|| format!("moving {file} to {}", jar.display()))?;
    Ok(None)
}

/// A running Zipkin. It ends when this is dropped.
#[derive(Debug)]
pub struct Zipkin {
    // The process is dropped before the directory and the port.
    process: Process,
    port: Port,
    otlp: String,
    client: reqwest::Client,
    // Ends the converter.
    _converter: JoinSet<()>,
    _dir: RunDir,
}

impl Zipkin {
    /// Starts `jar` on a free port of loopback. It responds only after [`Zipkin::wait_ready`]; spans sent to
    /// [`Zipkin::otlp`] before are refused and must be sent again.
    ///
    /// # Errors If it cannot be started.
    pub async fn start(jar: &Path) -> anyhow::Result<Self> {
        let dir = RunDir::create()?;
        let port = Port::reserve()?;
        let temporary = format!("-Djava.io.tmpdir={}", dir.path().display());
        // The list of ports is replaced as a whole, so every setting is needed.
        let listener = [
            "--armeria.ports[0].ip=127.0.0.1".to_owned(),
            format!("--armeria.ports[0].port={}", port.number()),
            "--armeria.ports[0].protocols[0]=http".to_owned(),
        ];
        let process = ProcessSpec::leashed("zipkin", "java", dir.join("zipkin.log"))
            // For a fast start and little memory.
            .args(["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .arg(temporary)
            .arg("-jar")
            .arg(jar)
            .args(listener)
            .env("STORAGE_TYPE", "mem")
            .env(crate::process::REMOVE_AT_EOF, dir.path())
            .spawn()?;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().timeout(EXPORT).build()?;
        let converter = Converter {
            client: client.clone(),
            spans: format!("http://127.0.0.1:{}/api/v2/spans", port.number()),
        };
        let (otlp, task) = converter.serve().await?;
        Ok(Self {
            process,
            port,
            otlp,
            client,
            _converter: task,
            _dir: dir,
        })
    }

    /// Waits until it responds.
    ///
    /// # Errors If it has ended, or does not respond in time.
    pub async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let health = format!("http://127.0.0.1:{}/health", self.port.number());
        until("Zipkin to answer", START, async || {
            self.process.check_running()?;
            let answer = self.client.get(&health).send().await;
            Ok(answer.is_ok_and(|it| it.status().is_success()).then_some(()))
        })
        .await
    }

    /// The endpoint for OTLP/HTTP with JSON, with the path `/v1/traces` only.
    pub fn otlp(&self) -> &str {
        &self.otlp
    }

    /// Its first page.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/zipkin/", self.port.number())
    }

    /// The page of one trace. With `{trace_id}` in the place of an id, it is a `TRACE_UI_URL_TEMPLATE`.
    pub fn page(&self, trace_id: &str) -> String {
        format!("{}traces/{trace_id}", self.url())
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port.number()
    }
}

/// Converts OTLP to Zipkin's format and forwards it.
#[derive(Debug)]
struct Converter {
    client: reqwest::Client,
    spans: String,
}

impl Converter {
    /// Serves on a port of loopback until the returned set is dropped. Returns its endpoint as well.
    async fn serve(self) -> anyhow::Result<(String, JoinSet<()>)> {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("binding a port for the converter of traces")?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let router = Router::new()
            .route("/v1/traces", post(take))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(Arc::new(self));
        let mut task = JoinSet::new();
        task.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!(%error, "the converter of traces has ended");
            }
        });
        Ok((endpoint, task))
    }

    async fn export(&self, otlp: &[u8]) -> anyhow::Result<()> {
        let spans = serde_json::to_vec(&spans::convert(otlp)?)?;
        let request = self
            .client
            .post(&self.spans)
            .header("content-type", "application/json");
        let answer = request.body(spans).send().await?;
        if !answer.status().is_success() {
            bail!("{}: {}", answer.status(), answer.text().await.unwrap_or_default());
        }
        Ok(())
    }
}

/// With 503 the sender retries.
async fn take(State(converter): State<Arc<Converter>>, body: axum::body::Bytes) -> (StatusCode, String) {
    match converter.export(&body).await {
        Ok(()) => (StatusCode::OK, "{}".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}")),
    }
}
