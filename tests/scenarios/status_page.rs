//! The status page during a maintenance: HTML and JSON.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT, episode};
use haulout_lab::kube::{Kube, KubeOptions};
use haulout_lab::wait::until;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fixture::{a40, fixture, fixture_in, gpu_vm, hosts, one_node, run, run_scenario};
use crate::metrics::{address, ask};

/// A free port of loopback; the log shows it.
pub const SERVED: (&str, &str) = ("STATUS_ADDRESS", "127.0.0.1:0");

/// The memory that a hundred open pages may cost, in bytes.
const COST_MAX: u64 = 5 * 1024 * 1024;

/// The address of the status page.
pub async fn page(fixture: &Fixture<'_>) -> anyhow::Result<String> {
    address(fixture, "the status page").await
}

/// The JSON form of the page.
pub async fn json(url: &str) -> anyhow::Result<Value> {
    let (status, text) = ask(url, "application/json").await?;
    ensure!(status == 200, "{url}: {status}: {text}");
    Ok(serde_json::from_str(&text)?)
}

/// An open page that receives changes, like the script of the page.
struct Open {
    stream: TcpStream,
    received: String,
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
            received: String::new(),
        };
        open.receive(1).await?;
        ensure!(open.received.starts_with("HTTP/1.1 200"), "{}", open.received);
        Ok(open)
    }

    /// Waits until it has received `count` changes in all.
    async fn receive(&mut self, count: usize) -> anyhow::Result<()> {
        let receive = async {
            let mut bytes = [0; 1024];
            while self.received.matches("event: changed").count() < count {
                let read = self.stream.read(&mut bytes).await?;
                ensure!(read > 0, "it was closed after: {}", self.received);
                self.received.push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
            anyhow::Ok(())
        };
        let received = tokio::time::timeout(WAIT_TIMEOUT, receive).await;
        received.with_context(|| format!("waiting for change {count}"))?
    }
}

#[test]
fn page_of_a_blocked_drain_names_the_budget_and_agrees_with_its_json() {
    run_scenario(async {
        let fixture = one_node("page").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let template = "https://traces.example/{trace_id}";
        let haulout = run(&fixture, &[SERVED, ("TRACE_UI_URL_TEMPLATE", template)]).await?;
        let page = page(&fixture).await?;
        let mut open = Open::at(&page).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        open.receive(2).await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        let shown = until("the page to name the budget", WAIT_TIMEOUT, async || {
            let shown = json(&format!("{page}/api/v1/nodes/{node}")).await?;
            let is_named = shown["waitsFor"]["reason"] == "disruption-budget" && shown["pods"].is_object();
            Ok(is_named.then_some(shown))
        })
        .await?;
        let record = episode(&fixture.node(&node).await?).context("an episode stands on the Node")?;
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
            html.contains("<svg") && html.contains("waits for a PodDisruptionBudget"),
            "{html}"
        );
        let client = reqwest::Client::builder().no_proxy().build()?;
        let posted = client.post(&page).send().await?;
        ensure!(posted.status().as_u16() == 405, "{}", posted.status());

        fixture.set_budget("held", 1).await?;
        let received = open.received.matches("event: changed").count();
        open.receive(received + 1).await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        until("the episode to be shown as ended", WAIT_TIMEOUT, async || {
            let shown = json(&format!("{page}/api/v1/episodes/{id}")).await?;
            Ok((shown["result"] == "Succeeded" && shown["isRunning"] == false).then_some(()))
        })
        .await?;
        haulout.stop().await
    });
}

/// A tenth of the interval in which all snapshots are rebuilt, which would show the host too.
const SHOWN_WITHIN: Duration = Duration::from_secs(6);

#[test]
fn host_that_its_node_has_left_is_shown_in_service_when_it_returns() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![gpu_vm("page-host", "gpu1", "esx1")];
        let fixture = fixture("page-host", &spec).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[SERVED]).await?;
        let page = page(&fixture).await?;
        let shows = async |state: &str, within: Duration| {
            until(&format!("esx1 to be shown as {state}"), within, async || {
                let host = json(&format!("{page}/api/v1/hosts/esx1")).await?;
                let overview = json(&format!("{page}/api/v1/overview")).await?;
                let row = overview["hosts"]
                    .as_array()
                    .and_then(|hosts| hosts.iter().find(|host| host["name"] == "esx1").cloned());
                let is_shown = host["state"] == state && row.is_some_and(|row| row["state"] == state);
                Ok(is_shown.then_some(()))
            })
            .await
        };

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "relocating").await?;
        fixture.wait_in_service(&node).await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture
            .wait_for_log("-> PoweringOn: The VM was moved from ESXi host esx1 to esx2")
            .await?;
        shows("InMaintenance", SHOWN_WITHIN).await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        shows("InService", SHOWN_WITHIN).await?;
        haulout.stop().await
    });
}

/// `RssAnon` of a process, in bytes: heap and stacks. Pages of the program file are left out; the kernel maps them at first use.
pub fn resident(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.context("no RssAnon in its status")?.trim().parse::<u64>()? * 1024)
}

#[test]
fn hundred_open_pages_cost_at_most_5_mib() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)])]);
        spec.vms = vec![gpu_vm("pages", "gpu1", "esx1")];
        let kube = Kube::start(&KubeOptions::default()).await?;
        let fixture = fixture_in(&kube, "pages", &spec).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[SERVED]).await?;
        let page = page(&fixture).await?;
        // The first page's cost is shared by all.
        let mut first = Open::at(&page).await?;
        ask(&page, "text/html").await?;
        fixture.person_cordons(&node, true).await?;
        first.receive(2).await?;
        ask(&page, "text/html").await?;
        let pid = haulout.pid().context("it runs")?;
        let before = resident(pid)?;

        let mut open = Vec::new();
        for _ in 0..99 {
            open.push(Open::at(&page).await?);
        }
        // All receive a change at once, and all reload, a few at a time: what is measured is the pages that are open.
        fixture.person_cordons(&node, false).await?;
        for listener in &mut open {
            listener.receive(2).await?;
        }
        let client = reqwest::Client::builder().no_proxy().build()?;
        for _ in 0..20 {
            let looks = (0..5).map(|_| client.get(&page).timeout(WAIT_TIMEOUT).send());
            for look in futures::future::join_all(looks).await {
                let html = look?.error_for_status()?.text().await?;
                ensure!(html.contains(&node), "{html}");
            }
        }
        let after = resident(pid)?;
        let cost = after.saturating_sub(before);
        println!(
            "100 open pages: RssAnon {before} -> {after} bytes, {} KiB more",
            cost / 1024
        );
        ensure!(cost <= COST_MAX, "100 open pages cost {cost} bytes");
        // No connection was dropped.
        fixture.person_cordons(&node, true).await?;
        for listener in &mut open {
            listener.receive(3).await?;
        }
        haulout.stop().await
    });
}

#[test]
fn page_is_shown_with_its_token_and_under_a_permitted_name_only() {
    run_scenario(async {
        let fixture = one_node("page-token").await?;
        let file = fixture.log().with_file_name("status-token");
        std::fs::write(&file, "a token of some length\n")?;
        let file = file.to_string_lossy();
        let haulout = run(&fixture, &[SERVED, ("STATUS_TOKEN_FILE", &file)]).await?;
        let page = page(&fixture).await?;
        let client = reqwest::Client::builder().no_proxy().build()?;
        for path in ["/", "/api/v1/overview", "/nodes/gpu1", "/events", "/style.css"] {
            let asked = client.get(format!("{page}{path}")).send().await?;
            ensure!(asked.status() == 401, "{path}: {}", asked.status());
            ensure!(asked.headers().contains_key("content-security-policy"));
            let text = asked.text().await?;
            ensure!(!text.contains("gpu1"), "{path}: {text}");
        }
        until("the page to show the node", WAIT_TIMEOUT, async || {
            let shown = client.get(&page).basic_auth("me", Some("a token of some length"));
            let text = shown.send().await?.error_for_status()?.text().await?;
            Ok(text.contains(&fixture.node_name("gpu1")).then_some(()))
        })
        .await?;

        let foreign = client.get(&page).bearer_auth("a token of some length");
        let foreign = foreign.header("Host", "attacker.example").send().await?;
        ensure!(foreign.status() == 421, "{}", foreign.status());
        haulout.stop().await
    });
}
