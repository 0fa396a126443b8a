//! The status page, as people see it while a node goes through maintenance: in words, as JSON, and as a picture.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::stage::{PATIENCE, Stage, episode};
use haulout_lab::wait::until;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::metrics::{address, ask};
use crate::story::{a40, gpu_vm, hosts, one_node, run, stage, tell};

/// Any free port of the loopback; the log tells which.
const SERVED: (&str, &str) = ("STATUS_ADDRESS", "127.0.0.1:0");

/// Where the pictures are kept, for whoever wants to look at them; without it they are thrown away.
const PICTURES: &str = "HAULOUT_PICTURES";

/// What a hundred open pages may cost, in bytes.
const COST_MAX: u64 = 5 * 1024 * 1024;

async fn page(stage: &Stage<'_>) -> anyhow::Result<String> {
    address(stage, "the status page").await
}

/// What the page answers as JSON.
pub async fn json(url: &str) -> anyhow::Result<Value> {
    let (status, text) = ask(url, "application/json").await?;
    ensure!(status == 200, "{url}: {status}: {text}");
    Ok(serde_json::from_str(&text)?)
}

/// A page that is open: it listens to changes, as the script of the page does.
struct Open {
    stream: TcpStream,
    heard: String,
}

impl Open {
    async fn at(page: &str) -> anyhow::Result<Self> {
        let address = page.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await?;
        let question =
            format!("GET /events HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\r\n");
        stream.write_all(question.as_bytes()).await?;
        let mut open = Self {
            stream,
            heard: String::new(),
        };
        open.hear(1).await?;
        ensure!(open.heard.starts_with("HTTP/1.1 200"), "{}", open.heard);
        Ok(open)
    }

    /// Waits until it has been told of `count` changes in all.
    async fn hear(&mut self, count: usize) -> anyhow::Result<()> {
        let hear = async {
            let mut bytes = [0; 1024];
            while self.heard.matches("event: changed").count() < count {
                let read = self.stream.read(&mut bytes).await?;
                ensure!(read > 0, "it was closed after: {}", self.heard);
                self.heard.push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
            anyhow::Ok(())
        };
        let heard = tokio::time::timeout(PATIENCE, hear).await;
        heard.with_context(|| format!("waiting for change {count}"))?
    }
}

#[test]
fn the_page_of_a_held_drain_names_the_budget_and_its_json_agrees_with_the_node() {
    tell(async {
        let stage = one_node("page").await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("held", &node, &[]).await?;
        stage.set_budget("held", 0).await?;
        let template = "https://traces.example/{trace_id}";
        let haulout = run(&stage, &[SERVED, ("TRACE_UI_URL_TEMPLATE", template)]).await?;
        let page = page(&stage).await?;
        let mut open = Open::at(&page).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        open.hear(2).await?;
        stage.wait_said("held by PodDisruptionBudget held-budget").await?;
        let shown = until("the page to name the budget", PATIENCE, async || {
            let shown = json(&format!("{page}/api/v1/nodes/{node}")).await?;
            let is_named = shown["waitsFor"]["reason"] == "disruption-budget" && shown["pods"].is_object();
            Ok(is_named.then_some(shown))
        })
        .await?;
        let record = episode(&stage.node(&node).await?).context("an episode stands on the Node")?;
        ensure!(shown["episode"] == record["id"], "{shown}\n{record}");
        ensure!(
            shown["phase"] == "Draining" && shown["since"] == record["since"],
            "{shown}\n{record}"
        );
        ensure!(shown["pods"]["left"][0]["name"] == "page/held", "{shown}");

        let id = record["id"].as_str().context("it has an id")?;
        let (_, html) = ask(&format!("{page}/episodes/{id}"), "text/html").await?;
        ensure!(html.contains("held by PodDisruptionBudget held-budget"), "{html}");
        ensure!(
            html.contains(&format!("href=\"https://traces.example/{id}\"")),
            "{html}"
        );
        ensure!(
            html.contains("<svg") && html.contains("waits for disruption-budget"),
            "{html}"
        );
        let client = reqwest::Client::builder().no_proxy().build()?;
        let posted = client.post(&page).send().await?;
        ensure!(posted.status().as_u16() == 405, "{}", posted.status());

        stage.set_budget("held", 1).await?;
        let heard = open.heard.matches("event: changed").count();
        open.hear(heard + 1).await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        stage.vcenter.exit_maintenance("esx1").await?;
        stage.wait_in_service(&node).await?;
        until("the episode to be shown as ended", PATIENCE, async || {
            let shown = json(&format!("{page}/api/v1/episodes/{id}")).await?;
            Ok((shown["result"] == "Succeeded" && shown["isRunning"] == false).then_some(()))
        })
        .await?;
        haulout.stop().await
    });
}

/// `VmRSS` of a process, in bytes.
fn resident(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.context("the kernel tells VmRSS")?.trim().parse::<u64>()? * 1024)
}

#[test]
fn a_hundred_open_pages_cost_the_controller_no_more_than_5_mib() {
    tell(async {
        let stage = one_node("pages").await?;
        let node = stage.node_name("gpu1");
        let haulout = run(&stage, &[SERVED]).await?;
        let page = page(&stage).await?;
        // What the first page costs, all have in common.
        let mut first = Open::at(&page).await?;
        ask(&page, "text/html").await?;
        stage.person_cordons(&node, true).await?;
        first.hear(2).await?;
        ask(&page, "text/html").await?;
        let pid = haulout.pid().context("it runs")?;
        let before = resident(pid)?;

        let mut open = Vec::new();
        for _ in 0..99 {
            open.push(Open::at(&page).await?);
        }
        // All are told at once, and all look.
        stage.person_cordons(&node, false).await?;
        for listener in &mut open {
            listener.hear(2).await?;
        }
        let client = reqwest::Client::builder().no_proxy().build()?;
        let looks = (0..100).map(|_| client.get(&page).timeout(PATIENCE).send());
        for look in futures::future::join_all(looks).await {
            let html = look?.error_for_status()?.text().await?;
            ensure!(html.contains(&node), "{html}");
        }
        let after = resident(pid)?;
        let cost = after.saturating_sub(before);
        println!(
            "100 open pages: VmRSS {before} -> {after} bytes, {} KiB more",
            cost / 1024
        );
        ensure!(cost <= COST_MAX, "100 open pages cost {cost} bytes");
        // Nobody was dropped meanwhile.
        stage.person_cordons(&node, true).await?;
        for listener in &mut open {
            listener.hear(3).await?;
        }
        haulout.stop().await
    });
}

/// The browser, where one is installed.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .flat_map(|folder| ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name)))
        .find(|program| program.is_file())
}

/// Has the browser open `url` with `arguments`; gives what it says.
async fn browse(browser: &Path, profile: &Path, url: &str, arguments: &[String]) -> anyhow::Result<String> {
    let mut command = Command::new(browser);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-proxy-server",
        ])
        .args(["--disable-dev-shm-usage", "--no-first-run", "--timeout=2000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(arguments)
        .arg(url)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    // A page that listens is never done loading, so it is told above when to stop; a busy machine needs longer than that.
    let ended = tokio::time::timeout(Duration::from_secs(60), command.output()).await;
    let ended = ended.context("the browser does not end")??;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(
        ended.status.success(),
        "the browser ended with {}: {said}",
        ended.status
    );
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// Width and height of a PNG.
fn size_of(png: &[u8]) -> anyhow::Result<(u32, u32)> {
    ensure!(png.starts_with(b"\x89PNG\r\n\x1a\n"), "it is no PNG");
    let number = |at: usize| {
        let bytes = png.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_be_bytes).context("it is cut off")
    };
    Ok((number(16)?, number(20)?))
}

#[test]
fn a_browser_shows_the_page_at_every_width_and_runs_nothing_that_a_name_says() {
    let Some(browser) = browser() else {
        println!("left out: no chromium is installed");
        return;
    };
    tell(async {
        let nasty = "esx1<script>document.title='owned'";
        let mut spec = hosts(&[(nasty, &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![
            gpu_vm("browser", "gpu1", nasty),
            gpu_vm("browser", "gpu2", "esx2"),
        ];
        let stage = stage("browser", &spec).await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("held", &node, &[]).await?;
        stage.set_budget("held", 0).await?;
        let haulout = run(&stage, &[SERVED]).await?;
        let page = page(&stage).await?;
        stage.vcenter.enter_maintenance(nasty).await?;
        stage.wait_said("held by PodDisruptionBudget held-budget").await?;
        stage.vcenter.enter_maintenance("esx2").await?;
        stage.wait_phase(&stage.node_name("gpu2"), "queued").await?;
        let overview = json(&format!("{page}/api/v1/overview")).await?;
        ensure!(overview["hosts"].to_string().contains("<script>"), "{overview}");
        let record = episode(&stage.node(&node).await?).context("an episode stands on the Node")?;
        let id = record["id"].as_str().context("it has an id")?;

        let kept = std::env::var_os(PICTURES).map(PathBuf::from);
        let folder = std::env::temp_dir().join(format!("haulout-pictures-{}", std::process::id()));
        let pictures = kept.clone().unwrap_or_else(|| folder.clone());
        std::fs::create_dir_all(&folder)?;
        std::fs::create_dir_all(&pictures)?;
        let looked = look(&browser, &folder, &pictures, &page, &node, id).await;
        // The browser's own children may still be writing there.
        until("the pictures to be removed", PATIENCE, async || {
            Ok(std::fs::remove_dir_all(&folder).ok())
        })
        .await?;
        looked?;
        haulout.stop().await
    });
}

async fn look(
    browser: &Path,
    folder: &Path,
    pictures: &Path,
    page: &str,
    node: &str,
    id: &str,
) -> anyhow::Result<()> {
    let profile = folder.join("profile");
    let written = browse(browser, &profile, page, &["--dump-dom".to_owned()]).await?;
    ensure!(
        written.contains("<title>Overview \u{b7} Haulout</title>"),
        "a name ran: {written}"
    );
    ensure!(
        written.contains("updates itself"),
        "the script of the page runs: {written}"
    );
    let paths = [
        ("overview", String::new()),
        ("node", format!("nodes/{node}")),
        ("episode", format!("episodes/{id}")),
    ];
    for (name, path) in &paths {
        for (width, height) in [(390, 844), (1280, 900)] {
            // 0 is dark and 1 is light.
            for (scheme, colours) in [(1, "light"), (0, "dark")] {
                let file = pictures.join(format!("{name}-{width}-{colours}.png"));
                let arguments = [
                    format!("--window-size={width},{height}"),
                    format!("--blink-settings=preferredColorScheme={scheme}"),
                    format!("--screenshot={}", file.display()),
                ];
                browse(browser, &profile, &format!("{page}/{path}"), &arguments).await?;
                let png = std::fs::read(&file)?;
                ensure!(
                    size_of(&png)? == (width, height),
                    "{}: {:?}",
                    file.display(),
                    size_of(&png)?
                );
                // An empty page of this size is a tenth of it.
                ensure!(png.len() > 10_000, "{} shows nothing", file.display());
            }
        }
    }
    Ok(())
}
