//! The status page in the states that a person on call meets: what it says, whether it is accessible (axe-core), and its pictures.

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT, episode, label};
use haulout_lab::python;
use haulout_lab::run_dir::RunDir;
use haulout_lab::tools::{self, Tool};
use haulout_lab::vcenter::{FaultRule, FaultRuleKind};
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::browser::{Browser, Colours, Until};
use crate::fixture::{a40, fixture, gpu_vm, hosts, kube, one_node, run, run_scenario};
use crate::metrics::ask;
use crate::status_page::{SERVED, json as json_of, page};

/// A package with axe-core in one file, of which nothing else is used.
const AXE: &str = "axe-core-python==0.1.0";

/// The tags of axe-core's rules: WCAG 2.1, A and AA, and best practices.
const RULES: &str = "['wcag2a','wcag2aa','wcag21a','wcag21aa','best-practice']";

/// The end of a page. On a busy machine the browser may give its answer while it still reads a page, and it closes each element that
/// is open then.
const END: &str = "this page as JSON</a>";
const END_OF_MISSING: &str = ">Overview</a></p>";

/// The nodes of a large cluster.
const NODES: usize = 500;

const SIZES: [(&str, (u32, u32)); 2] = [("desktop", (1280, 900)), ("phone", (390, 844))];

/// The text of axe-core; `None` if this machine cannot have it, and `test` is skipped.
async fn axe(test: &str) -> anyhow::Result<Option<String>> {
    let program = match python::with(AXE, "axe_core_python.base").await? {
        Tool::At(program) => program,
        Tool::Missing(why) => {
            tools::skip(test, &why)?;
            return Ok(None);
        }
    };
    let print = "import axe_core_python, os; print(os.path.dirname(axe_core_python.__file__))";
    let output = tokio::process::Command::new(program)
        .args(["-c", print])
        .output()
        .await?;
    let folder = String::from_utf8(output.stdout)?;
    let file = std::path::Path::new(folder.trim()).join("axe.min.js");
    Ok(Some(
        tokio::fs::read_to_string(&file)
            .await
            .with_context(|| format!("reading {}", file.display()))?,
    ))
}

/// What is needed to look at a page.
struct Look {
    browser: Browser,
    axe: String,
    folder: RunDir,
}

impl Look {
    async fn prepare(test: &str) -> anyhow::Result<Option<Self>> {
        let Some(browser) = Browser::find(test)? else {
            return Ok(None);
        };
        let Some(axe) = axe(test).await? else {
            return Ok(None);
        };
        let folder = RunDir::create()?;
        Ok(Some(Self { browser, axe, folder }))
    }

    /// Reads `url` in a browser until it has these words, checks it, and takes its pictures as `name`.
    async fn at(&mut self, name: &str, url: &str, words: &[&str]) -> anyhow::Result<()> {
        let what = format!("the page {name} to say {words:?}");
        let browser = &mut self.browser;
        let dom = until(&what, WAIT_TIMEOUT, async || {
            let dom = browser.dom(url, Until::TwoSeconds).await?;
            Ok(words.iter().all(|it| dom.contains(it)).then_some(dom))
        })
        .await?;
        self.check(name, url, &dom).await?;
        if self.browser.keeps_pictures() {
            for (screen, size) in SIZES {
                for colours in [Colours::Light, Colours::Dark] {
                    let name = format!("states/{name}-{screen}-{colours:?}").to_lowercase();
                    self.browser
                        .picture(&name, url, size, colours, Until::TwoSeconds)
                        .await?;
                }
            }
        }
        Ok(())
    }

    /// Runs axe-core in a copy of the page: the Content-Security-Policy of the page itself allows no other script.
    async fn check(&mut self, name: &str, url: &str, dom: &str) -> anyhow::Result<()> {
        let base = url.split('/').take(3).collect::<Vec<_>>().join("/");
        let (_, style) = ask(&format!("{base}/style.css"), "text/css").await?;
        let mut copy = without(dom, "<script", "</script>");
        copy = without(&copy, "<link rel=\"stylesheet\"", ">");
        let run = format!(
            "axe.run(document, {{runOnly: {RULES}}}).then(found => {{ const told = found.violations.map(it => it.id + ': ' + \
             it.nodes.map(node => node.html).join(' ')); document.body.textContent = 'VIOLATIONS ' + JSON.stringify(told) + ' of ' + \
             found.passes.length + ' END'; }})"
        );
        let axe = &self.axe;
        copy = copy.replace("</head>", &format!("<style>{style}</style></head>"));
        copy = copy.replace(
            "</body>",
            &format!("<script>{axe}</script><script>{run}</script></body>"),
        );
        let file = self.folder.join(format!("{name}.html"));
        tokio::fs::write(&file, copy).await?;
        let shown = self
            .browser
            .dom(&format!("file://{}", file.display()), Until::Loaded)
            .await?;
        let told = shown
            .split("VIOLATIONS ")
            .nth(1)
            .and_then(|it| it.split(" END").next());
        let told = told.with_context(|| format!("axe-core gave no result for {name}:\n{shown}"))?;
        let passes = told
            .strip_prefix("[] of ")
            .with_context(|| format!("{name}: {told}"))?;
        ensure!(
            passes.parse::<u32>()? >= 10,
            "{name}: only {passes} rules applied"
        );
        Ok(())
    }
}

/// `text` without the parts from `start` to `end`.
fn without(text: &str, start: &str, end: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(start) {
        kept.push_str(before);
        rest = after.split_once(end).map_or("", |(_, after)| after);
    }
    kept + rest
}

#[test]
fn page_says_in_each_state_what_is_to_do_and_is_accessible() {
    run_scenario(async {
        let Some(mut look) = Look::prepare("the look at the status page in each state").await? else {
            return Ok(());
        };
        let names = ["esx1", "esx2", "esx3"];
        let devices = [a40(1)];
        let mut spec = hosts(&names.map(|host| (host, &devices[..])));
        let vms = ["gpu1", "gpu2", "gpu3"].iter().zip(names);
        spec.vms = vms.map(|(vm, host)| gpu_vm("states", vm, host)).collect();
        let fixture = fixture("states", &spec).await?;
        let node = |vm: &str| fixture.node_name(vm);
        fixture.add_pod("notebook-0", &node("gpu1"), &[]).await?;
        fixture.set_budget("notebook-0", 0).await?;
        let changes = [
            SERVED,
            ("DRAIN_TIMEOUT_SECONDS", "8"),
            ("DRAIN_TIMEOUT_ACTION", "hold"),
            ("MAX_CONCURRENT_DRAINS", "2"),
        ];
        let haulout = run(&fixture, &changes).await?;
        let page = page(&fixture).await?;
        let waits_for = async |vm: &str, reason: &str| {
            let node = node(vm);
            until(
                &format!("{node} to wait for {reason}"),
                WAIT_TIMEOUT,
                async || {
                    let shown = json_of(&format!("{page}/api/v1/nodes/{node}")).await?;
                    Ok((shown["waitsFor"]["reason"] == reason).then_some(()))
                },
            )
            .await
        };
        look.at("calm", &page, &[END]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        waits_for("gpu1", "disruption-budget").await?;
        look.at("blocked", &page, &["notebook-0", END]).await?;
        waits_for("gpu1", "drain-held").await?;
        // The title counts whom a person has to help.
        look.at("held", &page, &["<title>(1) ", END]).await?;
        look.at("held-node", &format!("{page}/nodes/{}", node("gpu1")), &[END])
            .await?;

        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.wait_phase(&node("gpu2"), "awaitingHost").await?;
        fixture.wait_in_maintenance("esx2").await?;
        look.at("host", &format!("{page}/hosts/esx2"), &[END]).await?;
        fixture.vcenter.remove_host("esx2").await?;
        let parked = fixture.wait_phase(&node("gpu2"), "parked").await?;
        look.at("parked", &page, &["<title>(2) ", "Parked", END]).await?;
        let record = episode(&parked).context("the Node has no record")?;
        let id = record["id"].as_str().context("the episode has no id")?;
        look.at("parked-episode", &format!("{page}/episodes/{id}"), &[END])
            .await?;
        haulout.stop().await
    });
}

#[test]
fn page_says_that_the_vcenter_connection_is_lost_and_since_when() {
    run_scenario(async {
        let Some(mut look) = Look::prepare("the look at the status page without vCenter").await? else {
            return Ok(());
        };
        let fixture = one_node("page-lost").await?;
        let haulout = run(&fixture, &[SERVED]).await?;
        let page = page(&fixture).await?;
        // Kubernetes may be synced after vCenter, and the VM of a node is looked up only then.
        let node = format!("{page}/api/v1/nodes/{}", fixture.node_name("gpu1"));
        until("the host of the node to be known", WAIT_TIMEOUT, async || {
            let (status, text) = ask(&node, "application/json").await?;
            Ok((status == 200 && text.contains("esx1")).then_some(()))
        })
        .await?;
        let refused = FaultRule {
            status: 503,
            ..FaultRule::new("*", FaultRuleKind::Status)
        };
        fixture.vcenter.fault(&refused).await?;
        fixture.wait_for_log("vCenter connection lost").await?;
        let words = ["vCenter connection lost", "<p>HTTP status 503", ">esx1</a>", END];
        look.at("disconnected", &page, &words).await?;
        look.at("maintainable", &format!("{page}/maintainable"), &[END])
            .await?;
        look.at("missing", &format!("{page}/nodes/nosuch"), &[END_OF_MISSING])
            .await?;
        haulout.stop().await
    });
}

/// Creates Nodes without kubelets: 500 of these would keep the machine busy.
async fn create_nodes(fixture: &Fixture<'_>, uuids: &[String]) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(fixture.client());
    let create = |(index, uuid): (usize, &String)| {
        let node = json!({
            "metadata": {
                "name": fixture.node_name(&format!("gpu{index:03}")),
                "labels": {label(fixture.name()): "true"},
            },
            "spec": {"providerID": format!("vsphere://{uuid}")},
        });
        let nodes = nodes.clone();
        async move {
            let node: Node = serde_json::from_value(node)?;
            nodes.create(&PostParams::default(), &node).await?;
            anyhow::Ok(())
        }
    };
    let created = stream::iter(uuids.iter().enumerate().map(create));
    created.buffer_unordered(10).try_collect().await
}

#[test]
fn page_of_500_nodes_is_accessible() {
    run_scenario(async {
        let Some(mut look) = Look::prepare("the look at the status page of 500 nodes").await? else {
            return Ok(());
        };
        let hosts_names: Vec<String> = (0..NODES / 4).map(|host| format!("esx{host:03}")).collect();
        let devices = [a40(1), a40(2), a40(3), a40(4)];
        let shown: Vec<(&str, &[_])> = hosts_names
            .iter()
            .map(|host| (host.as_str(), &devices[..]))
            .collect();
        let mut spec = hosts(&shown);
        spec.vms = (0..NODES)
            .map(|vm| gpu_vm("many", &format!("gpu{vm:03}"), &hosts_names[vm / 4]))
            .collect();
        let uuids: Vec<String> = spec.vms.iter().map(|vm| vm.uuid.clone()).collect();
        let fixture = Fixture::create(kube().await, "many", &spec, Vec::new(), true).await?;
        create_nodes(&fixture, &uuids).await?;
        let haulout = run(&fixture, &[SERVED]).await?;
        let page = page(&fixture).await?;
        until("all nodes to be in service", WAIT_TIMEOUT, async || {
            let shown = json_of(&format!("{page}/api/v1/overview")).await?;
            Ok((shown["figures"]["nodes"].as_u64() == Some(NODES as u64)).then_some(()))
        })
        .await?;
        fixture.vcenter.enter_maintenance("esx001").await?;
        fixture
            .wait_phase(&fixture.node_name("gpu004"), "awaitingHost")
            .await?;
        let (status, _) = ask(&page, "text/html").await?;
        ensure!(status == 200, "{status}");
        look.at("many", &page, &[END]).await?;
        haulout.stop().await
    });
}
