//! The subcommands, as `haulout SUBCOMMAND` and as `kubectl haulout SUBCOMMAND`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, Member, boot_id, episode, is_cordoned, is_ready, label};
use haulout_lab::kube::{AuditEvent, User};
use haulout_lab::vcenter::{DeviceSpec, GuestPatch, VmSpec};
use haulout_lab::wait::until;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::io::AsyncBufReadExt as _;
use tokio::process::Command;

use crate::assertions::clock;
use crate::fixture::{A40, BINARY, a40, fixture, gpu_vm, hosts, kube, one_node, run, run_scenario};
use crate::status_page::{SERVED, page};

/// The timeout of a subcommand.
const WAIT_TIMEOUT: Duration = Duration::from_secs(90);

/// The result of a subcommand.
pub struct Answer {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Answer {
    fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("{self}"))
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {}\n{}{}", self.code, self.stdout, self.stderr)
    }
}

/// Runs `words` as a user with all rights.
pub async fn types(fixture: &Fixture<'_>, words: &[&str]) -> anyhow::Result<Answer> {
    types_with(fixture, words, &[]).await
}

pub async fn types_with(
    fixture: &Fixture<'_>,
    words: &[&str],
    changes: &[(&str, &str)],
) -> anyhow::Result<Answer> {
    types_as(fixture, &person(fixture), words, changes).await
}

/// Each call rewrites the user's kubeconfig, so concurrent calls need different users.
async fn types_as(
    fixture: &Fixture<'_>,
    person: &str,
    words: &[&str],
    changes: &[(&str, &str)],
) -> anyhow::Result<Answer> {
    let kubeconfig = fixture.kube.kubeconfig(&User::admin(person))?;
    let mut command = Command::new(BINARY);
    command.args(words).env_clear().envs(fixture.environment()?);
    command
        .env("KUBECONFIG", kubeconfig)
        .envs(changes.iter().copied());
    answer(command).await
}

/// Runs `words` against the status page of the fixture's leader.
pub async fn asks(fixture: &Fixture<'_>, words: &[&str]) -> anyhow::Result<Answer> {
    let page = page(fixture).await?;
    types_with(fixture, words, &[("STATUS_URL", &page)]).await
}

fn person(fixture: &Fixture<'_>) -> String {
    format!("person-{}", fixture.name())
}

pub async fn answer(mut command: Command) -> anyhow::Result<Answer> {
    command.kill_on_drop(true).stdin(std::process::Stdio::null());
    let output = tokio::time::timeout(WAIT_TIMEOUT, command.output()).await;
    let output = output.with_context(|| format!("{command:?} did not end within {WAIT_TIMEOUT:?}"))??;
    Ok(Answer {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout)?,
        stderr: String::from_utf8(output.stderr)?,
    })
}

/// The text with durations as `#` and without the fixture's name.
fn masked(fixture: &Fixture<'_>, text: &str) -> String {
    let is_span = |word: &str| {
        word.len() > 1
            && word.starts_with(|c: char| c.is_ascii_digit())
            && word.ends_with(['s', 'm', 'h', 'd'])
            && word.chars().all(|c| c.is_ascii_digit() || ".smhd".contains(c))
    };
    let line = |line: &str| {
        let words = line.split(' ').map(|word| {
            let bare = word.trim_matches(['(', ')']);
            if is_span(bare) {
                word.replace(bare, "#")
            } else {
                word.to_owned()
            }
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let text: Vec<String> = text.lines().map(line).collect();
    text.join("\n").replace(&format!("{}-", fixture.name()), "")
}

/// Two hosts with the GPU that the node on the first one needs, and one without.
async fn three_hosts(name: &str) -> anyhow::Result<Fixture<'static>> {
    let other = DeviceSpec::gpu("0000:01:00.0", 0x1db6);
    let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)]), ("esx3", &[other])]);
    ensure!(A40 != 0x1db6);
    spec.vms = vec![gpu_vm(name, "gpu1", "esx1")];
    fixture(name, &spec).await
}

#[test]
fn plugin_reads_the_settings_from_the_controllers_config_map() {
    run_scenario(async {
        let fixture = one_node("found-settings").await?;
        let node = fixture.node_name("gpu1");
        let unset = [("GPU_NODE_LABEL", "")];
        let lost = types_with(&fixture, &["list"], &unset).await?;
        let words = "This is the default; name the label of your GPU nodes with --gpu-node-label.";
        ensure!(lost.code == 0 && lost.stderr.contains(words), "{lost}");

        let map: ConfigMap = serde_json::from_value(json!({
            "metadata": {"name": "haulout", "labels": {"app.kubernetes.io/part-of": "haulout"}},
            "data": {"GPU_NODE_LABEL": format!("{}=true", label("found-settings")), "REQUIRE_APPROVAL": "false"},
        }))?;
        let maps: Api<ConfigMap> = Api::namespaced(fixture.client(), "found-settings");
        maps.create(&PostParams::default(), &map).await?;
        let found = types_with(&fixture, &["list"], &unset).await?;
        ensure!(found.code == 0 && found.stdout.contains(&node), "{found}");
        let warned = types_with(&fixture, &["approve", &node], &unset).await?;
        let words = "the ConfigMap of the controller says REQUIRE_APPROVAL=false";
        ensure!(warned.stderr.contains(words), "{warned}");
        maps.delete("haulout", &Default::default()).await?;
        Ok(())
    });
}

#[test]
fn paused_node_is_left_alone_and_its_history_is_kept() {
    run_scenario(async {
        let fixture = one_node("paused").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let none = types(&fixture, &["history", &node]).await?;
        ensure!(
            none.code == 0 && none.stderr.contains("No ended maintenance"),
            "{none}"
        );

        let paused = types(&fixture, &["pause", &node]).await?;
        ensure!(paused.code == 0 && paused.stdout.contains("paused"), "{paused}");
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("a person to remove haulout.dev/skip")
            .await?;
        let unpaused = types(&fixture, &["unpause", &node]).await?;
        ensure!(unpaused.code == 0, "{unpaused}");
        fixture.wait_phase(&node, "awaitingHost").await?;
        // In an episode it stops everything, so nobody does that without being told.
        let asked = types(&fixture, &["pause", &node]).await?;
        let told = "(AwaitingHost) and stops until `unpause`: its VM stays off. Without a terminal, confirm it with --yes";
        ensure!(asked.code == 1 && asked.stderr.contains(told), "{asked}");
        let stopped = types(&fixture, &["pause", &node, "--yes"]).await?;
        ensure!(
            stopped.code == 0 && stopped.stdout.contains("its maintenance stops"),
            "{stopped}"
        );
        let unpaused = types(&fixture, &["unpause", &node]).await?;
        ensure!(unpaused.code == 0, "{unpaused}");
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let past = until("the episode to be kept", WAIT_TIMEOUT, async || {
            let past = types(&fixture, &["history", &node]).await?;
            Ok(past.stdout.contains("Succeeded").then_some(past))
        })
        .await?;
        ensure!(past.stdout.contains("esx1"), "{past}");
        haulout.stop().await
    });
}

/// Two hosts with a node each, and a third one with a GPU.
async fn two_nodes(name: &str) -> anyhow::Result<Fixture<'static>> {
    let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)]), ("esx3", &[a40(1)])]);
    spec.vms = vec![gpu_vm(name, "gpu1", "esx1"), gpu_vm(name, "gpu2", "esx2")];
    fixture(name, &spec).await
}

#[test]
fn plugin_serves_several_nodes_by_name_label_or_all() {
    run_scenario(async {
        let fixture = two_nodes("several").await?;
        let (first, second) = (fixture.node_name("gpu1"), fixture.node_name("gpu2"));
        let skips = async || {
            let mut skips = Vec::new();
            for node in [&first, &second] {
                let node = fixture.node(node).await?;
                skips.push(node.annotations().contains_key("haulout.dev/skip"));
            }
            anyhow::Ok(skips)
        };
        let nodes: Api<Node> = Api::all(fixture.client());
        let rack = json!({"metadata": {"labels": {"rack": "b"}}});
        nodes
            .patch(&second, &PatchParams::default(), &Patch::Merge(&rack))
            .await?;
        let paused = types(&fixture, &["pause", "-l", "rack=b"]).await?;
        ensure!(paused.code == 0 && skips().await? == [false, true], "{paused}");
        let listed = types(&fixture, &["list", "-l", "rack=b", "-o", "name"]).await?;
        ensure!(listed.stdout == format!("node/{second}\n"), "{listed}");
        let all = types(&fixture, &["pause", "--all", "-o", "json"]).await?;
        ensure!(all.json()?["items"].as_array().map(Vec::len) == Some(2), "{all}");
        ensure!(skips().await? == [true, true]);
        let unpaused = types(&fixture, &["unpause", &first, "nosuch", &second]).await?;
        ensure!(
            unpaused.code == 1
                && unpaused
                    .stderr
                    .contains("node/nosuch: node/nosuch: nodes \"nosuch\" not found"),
            "{unpaused}"
        );
        ensure!(
            skips().await? == [false, false],
            "an error about one stops no other"
        );
        let nobody = types(&fixture, &["pause", "-l", "rack=none"]).await?;
        ensure!(
            nobody.code == 1 && nobody.stderr.contains("no node matches"),
            "{nobody}"
        );

        let haulout = run(&fixture, &[("MAX_CONCURRENT_DRAINS", "2")]).await?;
        let drained = types(&fixture, &["drain", &first, &second, "--timeout", "60"]).await?;
        ensure!(
            drained.code == 0
                && drained.stdout.contains(&format!("node/{first} drained"))
                && drained.stdout.contains(&format!("node/{second} drained")),
            "{drained}"
        );
        let status = types(&fixture, &["status", &first, &second]).await?;
        ensure!(
            status.code == 3
                && status.stdout.contains(&format!("node/{first} Drained"))
                && status.stdout.contains(&format!("node/{second} Drained")),
            "{status}"
        );
        let cancelled = types(&fixture, &["cancel", &first, &second]).await?;
        ensure!(
            cancelled.code == 0
                && cancelled.stdout.lines().count() == 2
                && cancelled
                    .stderr
                    .contains(&format!("node/{second} is uncordoned next")),
            "{cancelled}"
        );
        for node in [&first, &second] {
            fixture.wait_in_service(node).await?;
        }
        let past = until("both episodes to be kept", WAIT_TIMEOUT, async || {
            let past = types(&fixture, &["history", &first, &second]).await?;
            let is_kept = |node: &&String| past.stdout.contains(*node);
            Ok([&first, &second].iter().all(is_kept).then_some(past))
        })
        .await?;
        ensure!(past.code == 0 && past.stdout.starts_with("NODE "), "{past}");
        haulout.stop().await
    });
}

#[test]
fn drain_names_the_older_request_for_which_it_waits() {
    run_scenario(async {
        let fixture = one_node("behind").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let older = types(&fixture, &["drain", &node, "-o", "json", "--timeout", "60"]).await?;
        let older = older.json()?["name"].as_str().context("a name")?.to_owned();
        let words = ["drain", &node, "--action", "Reboot", "--yes", "--timeout", "8"];
        let behind = types(&fixture, &words).await?;
        let told = format!("node/{node} waits for NodeMaintenance {older}, which was there first");
        ensure!(
            behind.code == 1 && behind.stderr.contains(&told),
            "{told:?} in {behind}"
        );
        let resumed = types(&fixture, &["resume", &node]).await?;
        ensure!(resumed.code == 0, "{resumed}");
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn relocation_to_a_host_that_does_not_exist_is_refused_before_the_drain() {
    run_scenario(async {
        let fixture = one_node("nosuch-host").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("web", &node, &[]).await?;
        let haulout = run(&fixture, &[]).await?;
        let words = [
            "drain",
            &node,
            "--action",
            "Relocate",
            "--target-host",
            "nosuch",
            "--timeout",
            "20",
            "--yes",
        ];
        let refused = types(&fixture, &words).await?;
        ensure!(
            refused.code == 1 && refused.stderr.contains("nosuch"),
            "{refused}"
        );
        ensure!(!refused.stderr.contains("timed out"), "{refused}");
        ensure!(fixture.pods_on(&node).await? == ["web"], "nothing was evicted");
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn list_watch_prints_each_change_and_names_are_completed() {
    run_scenario(async {
        let fixture = one_node("watched").await?;
        let node = fixture.node_name("gpu1");
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(fixture.name());
        std::fs::create_dir_all(&directory)?;
        let completer = directory.join("kubectl_complete-haulout");
        let _ = std::fs::remove_file(&completer);
        std::os::unix::fs::symlink(BINARY, &completer)?;
        let kubeconfig = fixture.kube.kubeconfig(&User::admin("completes"))?;
        let haulout = run(&fixture, &[SERVED]).await?;
        let page = page(&fixture).await?;
        let completes = async |words: &'static [&'static str]| {
            let mut command = Command::new(&completer);
            command.args(words).env_clear().envs(fixture.environment()?);
            command.env("KUBECONFIG", &kubeconfig).env("STATUS_URL", &page);
            answer(command).await
        };
        let nodes = completes(&["status", ""]).await?;
        ensure!(nodes.stdout.lines().any(|line| line == node), "{nodes}");
        let hosts = completes(&["plan", "esx"]).await?;
        ensure!(hosts.stdout.starts_with("esx1\n"), "{hosts}");

        let mut command = Command::new(BINARY);
        command
            .args(["list", "--watch"])
            .env_clear()
            .envs(fixture.environment()?);
        command.env("KUBECONFIG", &kubeconfig).kill_on_drop(true);
        let mut watching = command.stdout(std::process::Stdio::piped()).spawn()?;
        let stdout = watching.stdout.take().context("stdout")?;
        let mut lines = tokio::io::BufReader::new(stdout).lines();
        let mut until = async |words: &str| {
            let found = async {
                while let Some(line) = lines.next_line().await? {
                    if line.contains(words) {
                        return anyhow::Ok(());
                    }
                }
                anyhow::bail!("the watch has ended")
            };
            tokio::time::timeout(WAIT_TIMEOUT, found)
                .await
                .context(words.to_owned())?
        };
        until("InService").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        until("AwaitingHost").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        until("InService").await?;
        watching.kill().await?;
        haulout.stop().await
    });
}

#[test]
fn report_says_which_nodes_would_get_through_a_maintenance() {
    run_scenario(async {
        let fixture = three_hosts("report").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[SERVED]).await?;
        let sound = asks(&fixture, &["report"]).await?;
        let words = [
            "NODE          HOST   VERDICT   MOVES TO",
            "report-gpu1   esx1   √ ready   esx2",
            "Nodes: 1 ready, 0 costly, 0 blocked. Hosts that could leave at the same time, with another host for each VM: 1 of 1.",
        ];
        for words in words {
            ensure!(
                sound.code == 0 && sound.stdout.contains(words),
                "{words:?} in {sound}"
            );
        }

        fixture.add_pod("free", &node, &[]).await?;
        let costly = asks(&fixture, &["report", "-o", "md"]).await?;
        let words = "| report-gpu1 | esx1 | ‼ costly | esx2 | a pod has no controller: nothing starts it again (report/free) |";
        ensure!(costly.code == 0 && costly.stdout.contains(words), "{costly}");

        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let mute = GuestPatch {
            tools: Some(false),
            ..GuestPatch::default()
        };
        fixture.vcenter.patch_vm("gpu1", mute).await?;
        let report = until(
            "the leader to know that the Tools are gone",
            WAIT_TIMEOUT,
            async || {
                let blocked = asks(&fixture, &["report", "-o", "json"]).await?;
                ensure!(blocked.code == 4, "{blocked}");
                let report = blocked.json()?;
                let kinds: Vec<&str> = report["nodes"][0]["reasons"]
                    .as_array()
                    .context("reasons")?
                    .iter()
                    .filter_map(|reason| reason["kind"].as_str())
                    .collect();
                let expected = ["disruption-budget", "no-vmware-tools", "no-controller"];
                Ok((kinds == expected).then_some(report))
            },
        )
        .await?;
        ensure!(report["nodes"][0]["verdict"] == "blocked", "{report}");
        fixture
            .vcenter
            .withhold(&[("Resource.ColdMigrate", Some("gpu1"))])
            .await?;
        let lacking = asks(&fixture, &["report"]).await?;
        let words = "Haulout's user lacks a privilege on the VM in vCenter (Resource.ColdMigrate)";
        ensure!(lacking.code == 4 && lacking.stdout.contains(words), "{lacking}");
        let html = asks(&fixture, &["report", "-o", "html"]).await?;
        ensure!(
            html.stdout
                .contains("<td>report-gpu1</td><td>esx1</td><td>× blocked</td>"),
            "{html}"
        );
        haulout.stop().await
    });
}

#[test]
fn plan_shows_what_then_happens() {
    run_scenario(async {
        let fixture = three_hosts("plan").await?;
        let node = fixture.node_name("gpu1");
        for pod in ["free", "held"] {
            fixture.add_pod(pod, &node, &[]).await?;
        }
        fixture.set_budget("held", 0).await?;
        let (drain, seconds) = ("haulout.dev/drain", "haulout.dev/drain-wait-seconds");
        fixture
            .add_pod("late", &node, &[(drain, "wait"), (seconds, "1")])
            .await?;
        fixture.add_pod("odd", &node, &[(drain, "later")]).await?;
        fixture.add_pod("stays", &node, &[(drain, "skip")]).await?;

        let haulout = run(&fixture, &[SERVED]).await?;
        let began = clock();
        let blocked = asks(&fixture, &["plan", "esx1", "-o", "wide"]).await?;
        ensure!(blocked.code == 4, "{blocked}");
        let expected = "\
Maintenance of host/esx1, which is in service:

  node/gpu1 (InService, VM gpu1 on esx1)
    evicts    plan/free
                ! it has no controller: nothing starts it again
              plan/held
                ‼ held by PodDisruptionBudget held-budget, which needs 1 healthy pods and has 1: it can never allow a disruption
                ! it has no controller: nothing starts it again
              plan/late after 1 s, unless it has ended by itself
                ! it has no controller: nothing starts it again
              plan/odd
                ! haulout.dev/drain=\"later\" is not evict, wait or skip, so the pod is evicted
                ! it has no controller: nothing starts it again
    leaves    plan/stays (haulout.dev/drain=skip): it ends with the VM
    moves to  √ esx2
              esx3 has no matching passthrough device
    GPUs      2 nvidia.com/gpu

Missing meanwhile: 2 nvidia.com/gpu";
        let shown = masked(&fixture, &blocked.stdout);
        ensure!(shown == expected, "{blocked}");

        fixture.set_budget("held", 1).await?;
        let free = until("the budget to allow it", WAIT_TIMEOUT, async || {
            let answer = asks(&fixture, &["plan", &node, "-o", "json"]).await?;
            Ok((answer.code == 0).then_some(answer))
        })
        .await?;
        let plan = free.json()?;
        let planned: Vec<&str> = plan["nodes"][0]["evicts"]
            .as_array()
            .context("pods")?
            .iter()
            .filter_map(|pod| pod["pod"].as_str())
            .collect();
        let target = plan["nodes"][0]["place"]["target"].as_str().context("a target")?;
        ensure!(plan["gpusMissing"] == json!({"nvidia.com/gpu": 2}), "{free}");
        let journal = fixture.vcenter.journal().await?;
        let changing = [
            "PowerOffVM_Task",
            "ShutdownGuest",
            "RelocateVM_Task",
            "PowerOnVM_Task",
        ];
        ensure!(
            !journal
                .iter()
                .any(|it| changing.iter().any(|method| it.is_call(method)))
        );
        let changes = fixture
            .audit()
            .await?
            .into_iter()
            .filter(|it| it.received >= began);
        let is_review = |it: &AuditEvent| it.resource == "selfsubjectaccessreviews";
        let changes: Vec<_> = changes.filter(|it| !is_review(it)).collect();
        ensure!(changes.is_empty(), "a plan changes nothing: {changes:?}");

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_vcenter("the VM is on elsewhere", |state| {
                state.vm("gpu1").is_some_and(|vm| vm.host == target && vm.is_on())
            })
            .await?;
        fixture.wait_in_service(&node).await?;
        let mut evicted: Vec<String> = fixture
            .audit()
            .await?
            .into_iter()
            .filter(|it| it.subresource.as_deref() == Some("eviction") && it.code == 201)
            .filter_map(|it| Some(format!("{}/{}", it.namespace?, it.name?)))
            .collect();
        evicted.sort();
        ensure!(evicted == planned, "planned {planned:?}, evicted {evicted:?}");
        haulout.stop().await
    });
}

#[test]
fn plan_of_several_hosts_promises_a_spare_host_once() {
    run_scenario(async {
        let name = "wave";
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)]), ("esx3", &[a40(1)])]);
        spec.vms = vec![gpu_vm(name, "gpu1", "esx1"), gpu_vm(name, "gpu2", "esx2")];
        let fixture = fixture(name, &spec).await?;
        let (first, second) = (fixture.node_name("gpu1"), fixture.node_name("gpu2"));
        let haulout = run(&fixture, &[SERVED]).await?;
        let words = ["plan", "esx2", "esx1", "esx2", &first, "-o", "json"];
        let free = asks(&fixture, &words).await?;
        ensure!(free.code == 0, "{free}");
        let plan = free.json()?;
        let wave = &plan["wave"];
        let rounds: Vec<(&str, &Value)> = wave["rounds"]
            .as_array()
            .context("rounds")?
            .iter()
            .filter_map(|round| Some((round["begins"].as_str()?, &round["nodes"])))
            .collect();
        ensure!(
            rounds == [("now", &json!([second])), ("vms-off", &json!([first]))],
            "one drain at a time, in the order given: {free}"
        );
        ensure!(wave["hosts"] == 2 && wave["hostsPlaced"] == 1, "{free}");
        ensure!(wave["gpusMissing"] == json!({"nvidia.com/gpu": 4}), "{free}");
        ensure!(wave["seconds"].is_null(), "no history is kept: {free}");
        let places: Vec<(&Value, &Value)> = plan["plans"]
            .as_array()
            .context("plans")?
            .iter()
            .map(|plan| (&plan["name"], &plan["nodes"][0]["place"]["target"]))
            .collect();
        ensure!(
            places == [(&json!("esx2"), &json!("esx3")), (&json!("esx1"), &Value::Null)],
            "{free}"
        );

        fixture.add_pod("held", &first, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let blocked = asks(&fixture, &["plan", "esx1", &second]).await?;
        let held = "held by PodDisruptionBudget held-budget";
        ensure!(
            blocked.code == 4
                && blocked.stdout.contains("Maintenance of host/esx1, node/")
                && blocked.stdout.contains(held),
            "{blocked}"
        );

        let unknown = asks(&fixture, &["plan", "esx1", "nobody", "nothing"]).await?;
        let words =
            "nobody, nothing are neither nodes that GPU_NODE_LABEL selects nor hosts that vCenter shows us";
        ensure!(
            unknown.code == 1 && unknown.stdout.is_empty() && unknown.stderr.contains(words),
            "{unknown}"
        );
        haulout.stop().await
    });
}

#[test]
fn plugin_drains_a_node_and_takes_it_back() {
    run_scenario(async {
        let fixture = one_node("at-prompt").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("web", &node, &[]).await?;
        let template = "https://jaeger.example/trace/{trace_id}";
        let haulout = run(&fixture, &[("TRACE_UI_URL_TEMPLATE", template)]).await?;
        let idle = types(&fixture, &["list"]).await?;
        let table = "\
NODE   HOST     STATE       PODS     WAITING FOR   SINCE
gpu1   <none>   InService   <none>   <none>        <none>";
        ensure!(
            squeezed(&masked(&fixture, &idle.stdout)) == squeezed(table),
            "{idle}"
        );
        ensure!(types(&fixture, &["status", &node]).await?.code == 0);

        let drained = types(
            &fixture,
            &["drain", &node, "--reason", "a new fan", "--timeout", "60"],
        )
        .await?;
        ensure!(drained.code == 0, "{drained}");
        let lines = drained.stdout.lines().collect::<Vec<_>>();
        let [created, rest @ ..] = lines.as_slice() else {
            anyhow::bail!("{drained}")
        };
        ensure!(
            created.starts_with(&format!("nodemaintenance.haulout.dev/{node}-"))
                && created.ends_with(" created"),
            "{drained}"
        );
        ensure!(
            rest == [format!("node/{node} cordoned"), format!("node/{node} drained")],
            "{drained}"
        );
        ensure!(is_cordoned(&fixture.node(&node).await?));
        ensure!(fixture.pods_on(&node).await?.is_empty());

        let status = types(&fixture, &["status", &node]).await?;
        ensure!(status.code == 3, "{status}");
        let first = masked(&fixture, &status.stdout);
        ensure!(
            first.starts_with("► node/gpu1 Drained for #\n├─ host      esx1\n"),
            "{status}"
        );
        ensure!(status.stdout.contains("Drain Succeeded: a new fan"), "{status}");
        let list = types(&fixture, &["list", "-o", "json"]).await?.json()?;
        ensure!(list["items"][0]["state"] == "Drained", "{list}");
        let names = types(&fixture, &["list", "-o", "name"]).await?;
        ensure!(names.stdout == format!("node/{node}\n"), "{names}");

        let trace = types(&fixture, &["trace", &node]).await?;
        let lines: Vec<&str> = trace.stdout.lines().collect();
        let episode = haulout_lab::fixture::episode(&fixture.node(&node).await?).context("an episode")?;
        let id = episode["id"].as_str().context("an id")?;
        ensure!(lines == [id, &template.replace("{trace_id}", id)], "{trace}");

        // One person watches while another one deletes the request.
        let words = ["status", &node, "--watch", "--timeout", "60"];
        let watching = types_as(&fixture, "watcher", &words, &[]);
        let resuming = async {
            fixture.wait_phase(&node, "drained").await?;
            types(&fixture, &["resume", &node]).await
        };
        let (watched, resumed) = tokio::join!(watching, resuming);
        let (watched, resumed) = (watched?, resumed?);
        ensure!(
            resumed.code == 0 && resumed.stdout.ends_with(" deleted\n"),
            "{resumed}"
        );
        fixture.wait_in_service(&node).await?;
        ensure!(watched.code == 0, "{watched}");
        ensure!(
            watched.stdout.contains(&format!("√ node/{node} InService")),
            "{watched}"
        );
        let again = types(&fixture, &["resume", &node]).await?;
        ensure!(
            again.stdout.is_empty() && again.stderr.contains("has no open request"),
            "{again}"
        );
        haulout.stop().await
    });
}

/// Lines with single spaces: column widths depend on the fixture's name.
fn squeezed(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}

/// The output of `drain` with `action`, without the line that names the request.
fn outcome(answer: &Answer, node: &str) -> anyhow::Result<Vec<String>> {
    let mut lines = answer.stdout.lines();
    let created = lines.next().unwrap_or_default();
    ensure!(
        created.starts_with(&format!("nodemaintenance.haulout.dev/{node}-")) && created.ends_with(" created"),
        "{answer}"
    );
    let outcome = lines.map(|line| line.replace(&format!("node/{node} "), ""));
    Ok(outcome.collect())
}

#[test]
fn plugin_requests_that_a_vm_is_kept_off() {
    run_scenario(async {
        let fixture = one_node("prompt-off").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("web", &node, &[]).await?;
        let haulout = run(&fixture, &[]).await?;
        let words = ["drain", &node, "--action", "PowerOff", "--timeout", "60", "--yes"];
        let off = types(&fixture, &words).await?;
        ensure!(off.code == 0, "{off}");
        ensure!(outcome(&off, &node)? == ["cordoned", "drained"], "{off}");
        let power = async || {
            anyhow::Ok(
                fixture
                    .vcenter
                    .state()
                    .await?
                    .vm("gpu1")
                    .is_some_and(|vm| vm.is_on()),
            )
        };
        ensure!(!power().await?, "it waited until the VM was off: {off}");
        ensure!(fixture.pods_on(&node).await?.is_empty());
        let status = types(&fixture, &["status", &node]).await?;
        ensure!(
            status.code == 3 && status.stdout.contains("PowerOff Succeeded"),
            "{status}"
        );
        let resumed = types(&fixture, &["resume", &node]).await?;
        ensure!(resumed.code == 0, "{resumed}");
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn plugin_requests_a_reboot_and_reports_when_the_node_is_back() {
    run_scenario(async {
        let fixture = one_node("prompt-reboot").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("web", &node, &[]).await?;
        let before = boot_id(&fixture.node(&node).await?);
        let haulout = run(&fixture, &[]).await?;
        let words = ["drain", &node, "--action=reboot", "--timeout=60", "-y"];
        let rebooted = types(&fixture, &words).await?;
        ensure!(rebooted.code == 0, "{rebooted}");
        ensure!(
            outcome(&rebooted, &node)? == ["cordoned", "drained", "uncordoned"],
            "{rebooted}"
        );
        let back = fixture.node(&node).await?;
        ensure!(boot_id(&back) != before && !is_cordoned(&back) && is_ready(&back));
        ensure!(types(&fixture, &["status", &node]).await?.code == 0);
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn plugin_requests_a_relocation_and_reports_why_it_is_impossible() {
    run_scenario(async {
        let fixture = three_hosts("prompt-move").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let to = |host| {
            [
                "drain",
                &node,
                "--action",
                "Relocate",
                "--target-host",
                host,
                "--timeout",
                "60",
                "--yes",
            ]
        };
        let moved = types(&fixture, &to("esx2")).await?;
        ensure!(moved.code == 0, "{moved}");
        ensure!(
            outcome(&moved, &node)? == ["cordoned", "drained", "uncordoned"],
            "{moved}"
        );
        let stands_on = async || {
            let state = fixture.vcenter.state().await?;
            Ok::<_, anyhow::Error>(state.vm("gpu1").map(|vm| vm.host.clone()))
        };
        ensure!(stands_on().await?.as_deref() == Some("esx2"));
        fixture.wait_in_service(&node).await?;

        let nowhere = types(&fixture, &to("esx3")).await?;
        ensure!(
            nowhere.code == 1 && nowhere.stderr.contains("esx3 has no matching passthrough device"),
            "{nowhere}"
        );
        fixture.wait_in_service(&node).await?;
        ensure!(stands_on().await?.as_deref() == Some("esx2"));
        haulout.stop().await
    });
}

#[test]
fn plugin_names_the_budget_that_blocks_and_times_out() {
    run_scenario(async {
        let fixture = one_node("prompt-held").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[]).await?;
        let late = types(&fixture, &["drain", &node, "--timeout", "6"]).await?;
        ensure!(late.code == 1, "{late}");
        for words in [
            "evicting pod prompt-held/held",
            "error when evicting pods/\"held\" -n \"prompt-held\"",
            "PodDisruptionBudget held-budget",
            "timed out waiting for nodemaintenance.haulout.dev/",
        ] {
            ensure!(late.stderr.contains(words), "{words:?} in {late}");
        }
        types(&fixture, &["resume", &node]).await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn drain_that_needs_approval_begins_when_the_plugin_approves_it() {
    run_scenario(async {
        let fixture = one_node("prompt-approve").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[("REQUIRE_APPROVAL", "true")]).await?;
        let asked = types(&fixture, &["drain", &node, "--wait=false", "-o", "json"]).await?;
        ensure!(asked.code == 0 && asked.json()?["action"] == "Drain", "{asked}");
        fixture.wait_for_log("a person to approve its drain").await?;
        ensure!(!is_cordoned(&fixture.node(&node).await?));
        let approved = types(&fixture, &["approve", &node]).await?;
        ensure!(approved.stdout == format!("node/{node} approved\n"), "{approved}");
        fixture.wait_phase(&node, "drained").await?;
        types(&fixture, &["resume", &node]).await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn request_for_later_begins_at_its_time() {
    run_scenario(async {
        let fixture = one_node("prompt-later").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let pod = fixture.add_pod("train", &node, &[]).await?;
        let now = pod.creation_timestamp().context("the pod has no creation time")?;
        let at = now.0 + SignedDuration::from_secs(6);
        let time = format!("{at:.0}");
        let words = ["drain", &node, "--wait=false", "--not-before", &time];
        let asked = types(&fixture, &words).await?;
        ensure!(asked.code == 0, "{asked}");
        fixture.wait_for_log("may not begin").await?;
        ensure!(!is_cordoned(&fixture.node(&node).await?));
        let drained = fixture.wait_phase(&node, "drained").await?;
        let episode = episode(&drained).context("there is no record")?;
        let begun: Timestamp = episode["begunAt"].as_str().unwrap_or_default().parse()?;
        ensure!(begun >= at, "it began at {begun}, before {at}");
        types(&fixture, &["resume", &node]).await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn check_tells_missing_rights_in_the_management_cluster() {
    run_scenario(async {
        let fixture = one_node("check-management").await?;
        let stranger = User::stranger("management-stranger");
        let kubeconfig = fixture.kube.kubeconfig(&stranger)?;
        let management = [("MANAGEMENT_KUBECONFIG", kubeconfig.to_str().context("a path")?)];
        let unnamed = types_with(&fixture, &["check"], &management).await?;
        let words = "‼ no node has the annotation cluster.x-k8s.io/cluster-namespace";
        ensure!(unnamed.code == 0 && unnamed.stdout.contains(words), "{unnamed}");

        let annotated =
            json!({"metadata": {"annotations": {"cluster.x-k8s.io/cluster-namespace": "tenant-a"}}});
        let nodes: Api<Node> = Api::all(fixture.client());
        nodes
            .patch(
                &fixture.node_name("gpu1"),
                &PatchParams::default(),
                &Patch::Merge(&annotated),
            )
            .await?;
        let named = types_with(&fixture, &["check"], &management).await?;
        for words in [
            "‼ may not get, patch machines in cluster.x-k8s.io, namespace tenant-a (needed for",
            "‼ may not get, list, patch vspherevms in infrastructure.cluster.x-k8s.io, namespace tenant-a",
        ] {
            ensure!(
                named.code == 0 && named.stdout.contains(words),
                "{words:?} in {named}"
            );
        }

        let absent = [("MANAGEMENT_KUBECONFIG", "/no/such/file")];
        let absent = types_with(&fixture, &["check"], &absent).await?;
        let words = "× the kubeconfig that MANAGEMENT_KUBECONFIG names cannot be used";
        ensure!(absent.code == 4 && absent.stdout.contains(words), "{absent}");
        Ok(())
    });
}

#[test]
fn check_reports_what_is_missing_and_what_to_do() {
    run_scenario(async {
        let fixture = one_node("check").await?;
        let node = fixture.node_name("gpu1");
        let good = types(&fixture, &["check"]).await?;
        ensure!(
            good.code == 0 && good.stdout.ends_with(" √   0 ‼   0 ×\n"),
            "{good}"
        );
        for words in [
            "√ may get, list, watch, patch nodes",
            "√ the kind NodeMaintenance is installed, of this version",
            "√ Global.LogEvent on the hosts of their clusters",
            &format!("√ {node} is VM gpu1 on esx1"),
        ] {
            ensure!(good.stdout.contains(words), "{words:?} in {good}");
        }
        // As the controller's user, which lacks rights that it does not need.
        let config = fixture.kube.kubeconfig(&fixture.user())?;
        let config = config.to_str().context("a path")?;
        let own = types_with(&fixture, &["check"], &[("KUBECONFIG", config)]).await?;
        ensure!(own.code == 0 && own.stdout.ends_with(" ‼   0 ×\n"), "{own}");

        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let mute = GuestPatch {
            tools: Some(false),
            ..GuestPatch::default()
        };
        fixture.vcenter.patch_vm("gpu1", mute).await?;
        let warned = types(&fixture, &["check"]).await?;
        ensure!(warned.code == 0, "{warned}");
        ensure!(
            warned.stdout.contains(&format!(
                "‼ {node}: PodDisruptionBudget check/held-budget can never allow a disruption, and blocks held\n    hint: "
            )),
            "{warned}"
        );
        ensure!(
            warned
                .stdout
                .contains("‼ check-gpu1: VMware Tools do not run in VM gpu1"),
            "{warned}"
        );

        let stranger = types(&fixture, &["check", "--as", "nobody-in-particular"]).await?;
        ensure!(
            stranger.code == 4
                && stranger
                    .stdout
                    .contains("× may not get, list, watch, patch nodes"),
            "{stranger}"
        );
        let refused = types_with(&fixture, &["check"], &[("VCENTER_PASSWORD", "wrong-canary")]).await?;
        ensure!(
            refused.code == 4 && refused.stdout.contains("× vCenter cannot be read"),
            "{refused}"
        );
        ensure!(!format!("{refused}").contains("wrong-canary"), "{refused}");
        let unbelieved = types_with(&fixture, &["check"], &[("VCENTER_CA_BUNDLE", "")]).await?;
        ensure!(
            unbelieved.code == 4 && unbelieved.stdout.contains("certificate"),
            "{unbelieved}"
        );
        fixture.vcenter.remove_vm("gpu1").await?;
        let unbound = types(&fixture, &["check"]).await?;
        ensure!(unbound.code == 4, "{unbound}");
        ensure!(
            unbound.stdout.contains(&format!(
                "× {node}: vCenter knows no VM for this node\n    hint: "
            )),
            "{unbound}"
        );
        Ok(())
    });
}

#[test]
fn check_names_vms_of_others_that_the_account_may_power_off() {
    run_scenario(async {
        let name = "check-others";
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)]), ("esx3", &[a40(1)])]);
        let mut ours = gpu_vm(name, "gpu1", "esx1");
        ours.folder = "tenant-a".to_owned();
        let mut inside = gpu_vm(name, "control-plane", "esx2");
        inside.folder = "tenant-a".to_owned();
        let members = vec![Member::new(name, "gpu1", &ours.uuid)];
        spec.vms = vec![ours, inside, gpu_vm(name, "other", "esx3")];
        let fixture = Fixture::create(kube().await, name, &spec, members, true).await?;

        let words = "‼ the account may power off VMs that are no nodes of this cluster (2): control-plane, other\n    hint: ";
        let all = types(&fixture, &["check"]).await?;
        ensure!(all.code == 0 && all.stdout.contains(words), "{all}");
        // The folder of the cluster is its own, and of a hosted cluster nothing else may be reached.
        let kubeconfig = fixture.kube.kubeconfig(&User::admin("leases"))?;
        let hosted = [
            ("VCENTER_SCOPE", "/DC0/vm/tenant-a"),
            ("LEASE_KUBECONFIG", kubeconfig.to_str().context("a path")?),
            ("LEASE_NAMESPACE", name),
            ("LEADER_ELECTION", "true"),
        ];
        let scoped = types_with(&fixture, &["check"], &hosted).await?;
        let words = "× the account may power off VMs that are no nodes of this cluster (1): other\n";
        ensure!(scoped.code == 4 && scoped.stdout.contains(words), "{scoped}");
        let words = format!("√ may get, create, update leases in coordination.k8s.io, namespace {name}");
        ensure!(scoped.stdout.contains(&words), "{scoped}");

        fixture
            .vcenter
            .withhold(&[("VirtualMachine.Interact.PowerOff", Some("other"))])
            .await?;
        let limited = types_with(&fixture, &["check"], &hosted).await?;
        let words = "√ the account may power off no VM of others\n";
        ensure!(limited.code == 0 && limited.stdout.contains(words), "{limited}");

        let absent = [
            ("LEASE_KUBECONFIG", "/no/such/file"),
            ("LEASE_NAMESPACE", name),
            ("LEADER_ELECTION", "true"),
        ];
        let absent = types_with(&fixture, &["check"], &absent).await?;
        let words = "× the kubeconfig that LEASE_KUBECONFIG names cannot be used";
        ensure!(absent.code == 4 && absent.stdout.contains(words), "{absent}");
        Ok(())
    });
}

/// The lines of `check` on missing privileges.
#[test]
fn check_names_each_missing_privilege_and_its_object() {
    run_scenario(async {
        let name = "check-privileges";
        let mut spec = hosts(&[("esx1", &[a40(1)])]);
        spec.vms = vec![VmSpec {
            encrypted: true,
            ..gpu_vm(name, "gpu1", "esx1")
        }];
        let fixture = fixture(name, &spec).await?;
        let state = fixture.vcenter.state().await?;
        let vm = &state.vm("gpu1").context("no VM")?.reference;
        let host = &state.host("esx1").context("no host")?.reference;
        let (vm, host) = (format!("gpu1 ({vm})"), format!("esx1 ({host})"));
        let root = "the root folder".to_owned();
        let vms = "the VMs of our nodes";
        let on_hosts = "the hosts of their clusters";
        for (privilege, object, good, on) in [
            ("System.View", None, "the root folder", &root),
            ("System.Read", None, "the root folder", &root),
            ("VirtualMachine.Interact.PowerOff", None, vms, &vm),
            ("VirtualMachine.Interact.PowerOn", None, vms, &vm),
            ("Resource.ColdMigrate", Some("gpu1"), vms, &vm),
            ("Global.LogEvent", Some("gpu1"), vms, &vm),
            ("Global.LogEvent", Some("esx1"), on_hosts, &host),
            ("Global.SetCustomField", Some("gpu1"), vms, &vm),
            ("Global.SetCustomField", Some("esx1"), on_hosts, &host),
            ("Global.ManageCustomFields", None, "the root folder", &root),
            ("Cryptographer.Migrate", Some("gpu1"), vms, &vm),
            ("Cryptographer.RegisterHost", Some("esx1"), on_hosts, &host),
        ] {
            let good = format!("√ {privilege} on {good}\n");
            fixture.vcenter.withhold(&[]).await?;
            let switched_on = [("VCENTER_REPORT", "events,attribute")];
            let granted = types_with(&fixture, &["check"], &switched_on).await?;
            ensure!(
                granted.code == 0 && granted.stdout.contains(&good),
                "{good:?} in {granted}"
            );
            fixture.vcenter.withhold(&[(privilege, object)]).await?;
            let withheld = types_with(&fixture, &["check"], &switched_on).await?;
            // Maintenance works without events and the attribute in vCenter.
            let role = "give the user the roles in docs/install/vcenter-role.md";
            let role = |what: &str| format!("{role}, {what}");
            let (mark, code, end, hint) = match privilege {
                "Global.LogEvent" => (
                    '‼',
                    0,
                    " ‼   0 ×\n",
                    role("or leave events out of VCENTER_REPORT"),
                ),
                "Global.SetCustomField" => {
                    let hint = role("or leave attribute out of VCENTER_REPORT");
                    ('‼', 0, " ‼   0 ×\n", hint)
                }
                "Global.ManageCustomFields" => {
                    let hint = "define the attribute in vCenter for all types of objects, see docs/how-to/vcenter-events.md";
                    ('‼', 0, " ‼   0 ×\n", hint.to_owned())
                }
                _ => ('×', 4, " ‼   1 ×\n", role("propagated")),
            };
            let missing = format!("\n{mark} {privilege} is missing on {on} (needed for ");
            ensure!(
                withheld.code == code
                    && withheld.stdout.contains(&missing)
                    && !withheld.stdout.contains(&good)
                    && withheld.stdout.ends_with(end),
                "{missing:?} in {withheld}"
            );
            let (_, after) = withheld.stdout.split_once(&missing).context("it is there")?;
            let hint = format!("    hint: {hint}");
            ensure!(after.lines().nth(1) == Some(hint.as_str()), "{withheld}");
        }
        let listed = types(&fixture, &["check", "-o", "json"]).await?;
        ensure!(
            !listed.stdout.contains("CustomField"),
            "the attribute is off: {listed}"
        );
        let missing = |item: &&Value| item["mark"] == "missing";
        let missing: Vec<Value> = listed.json()?["items"]
            .as_array()
            .context("items")?
            .iter()
            .filter(missing)
            .cloned()
            .collect();
        ensure!(
            listed.code == 4 && missing.len() == 1 && missing[0]["section"] == "vCenter",
            "{listed}"
        );
        Ok(())
    });
}

/// Runs `check` as a user with the documented rights except `lacks`: resource and verb.
async fn check_without(fixture: &Fixture<'_>, lacks: &[(&str, &str)]) -> anyhow::Result<Answer> {
    let person = format!("{}-{}", fixture.name(), lacks.len());
    let rules: Vec<PolicyRule> = haulout_lab::kube::KubeOptions::default()
        .haulout_rules
        .into_iter()
        .map(|mut rule| {
            let of_it = rule.resources.clone().unwrap_or_default();
            rule.verbs.retain(|verb| {
                !lacks
                    .iter()
                    .any(|(resource, lacked)| of_it.iter().any(|it| it == resource) && verb == lacked)
            });
            rule
        })
        .filter(|rule| !rule.verbs.is_empty())
        .collect();
    let user = User::stranger(&person);
    fixture.kube.grant(&user, rules).await?;
    let config = fixture.kube.kubeconfig(&user)?;
    let config = config.to_str().context("a path")?.to_owned();
    // The kube-apiserver sees a role binding with a delay.
    until("the binding to count", WAIT_TIMEOUT, async || {
        let answer = types_with(fixture, &["check"], &[("KUBECONFIG", &config)]).await?;
        Ok(answer
            .stdout
            .contains("√ may list, watch pods\n")
            .then_some(answer))
    })
    .await
}

#[test]
fn check_names_the_missing_kubernetes_rights() {
    run_scenario(async {
        let fixture = one_node("check-rights").await?;
        let whole = check_without(&fixture, &[]).await?;
        ensure!(
            whole.code == 0 && whole.stdout.contains("√ may create pods/eviction\n"),
            "{whole}"
        );
        ensure!(!whole.stdout.contains("may not"), "{whole}");

        // Not needed for a drain, only for its display.
        let less = check_without(&fixture, &[("events", "create")]).await?;
        ensure!(
            less.code == 0
                && less
                    .stdout
                    .contains("‼ may not create events in events.k8s.io (needed for showing the maintenance"),
            "{less}"
        );
        let blocked = check_without(&fixture, &[("pods/eviction", "create"), ("nodes", "patch")]).await?;
        ensure!(
            blocked.code == 4 && blocked.stdout.ends_with(" ‼   2 ×\n"),
            "{blocked}"
        );
        for words in [
            "× may not patch nodes (needed for following nodes, cordoning them, and keeping the record)\n    hint: apply the rights in docs/install/kubernetes-rights.md",
            "× may not create pods/eviction (needed for draining)\n    hint: apply the rights in docs/install/kubernetes-rights.md",
        ] {
            ensure!(blocked.stdout.contains(words), "{words:?} in {blocked}");
        }
        Ok(())
    });
}

#[test]
fn export_holds_what_helps_and_no_secret() {
    const CANARY: &str = "canary-5ae1";
    run_scenario(async {
        let fixture = one_node("export").await?;
        let node = fixture.node_name("gpu1");
        fixture
            .add_pod("web", &node, &[("example.com/token", CANARY)])
            .await?;
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(fixture.client());
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"example.com/token": CANARY}}}));
        nodes.patch(&node, &PatchParams::default(), &patch).await?;
        let secrets: Api<k8s_openapi::api::core::v1::Secret> =
            Api::namespaced(fixture.client(), fixture.name());
        let secret = serde_json::from_value(json!({
            "metadata": {"name": "vcenter"}, "stringData": {"VCENTER_PASSWORD": CANARY},
        }))?;
        secrets.create(&PostParams::default(), &secret).await?;
        let secret_file = fixture.kube.dir().join("export-password");
        std::fs::write(&secret_file, fixture.vcenter.password())?;
        let to = fixture.kube.dir().join("export");
        let words = ["export", "--to", to.to_str().context("a path")?];
        let haulout = run(&fixture, &[SERVED]).await?;
        let page = page(&fixture).await?;
        let exported = types_with(
            &fixture,
            &words,
            &[
                ("OTEL_EXPORTER_OTLP_HEADERS", CANARY),
                ("STATUS_URL", &page),
                ("VCENTER_PASSWORD", ""),
                ("VCENTER_PASSWORD_FILE", secret_file.to_str().context("a path")?),
            ],
        )
        .await?;
        ensure!(exported.code == 0, "{exported}");
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        for entry in std::fs::read_dir(&to)? {
            let path = entry?.path();
            let name = path.file_name().context("a name")?.to_string_lossy().into_owned();
            files.insert(name, std::fs::read_to_string(&path)?);
        }
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        ensure!(
            names
                == [
                    "about.json",
                    "budgets.json",
                    "checks.json",
                    "missing.json",
                    "nodemaintenances.json",
                    "nodes.json",
                    "plans.json",
                    "settings.json"
                ],
            "{names:?}"
        );
        for (name, text) in &files {
            let _: Value = serde_json::from_str(text).with_context(|| name.clone())?;
            ensure!(
                !text.contains(CANARY) && !text.contains(fixture.vcenter.password()),
                "{name}: {text}"
            );
        }
        ensure!(files["plans.json"].contains("export/web") && files["nodes.json"].contains(&node));
        ensure!(files["missing.json"].trim() == "{}", "{}", files["missing.json"]);
        let again = types(&fixture, &words).await?;
        ensure!(again.code == 1, "what is there is not written over: {again}");
        haulout.stop().await
    });
}

#[test]
fn kubectl_finds_the_plugin_by_its_name() {
    run_scenario(async {
        let fixture = one_node("plugin").await?;
        let path = fixture.kube.dir().join("plugin-path");
        std::fs::create_dir(&path)?;
        std::os::unix::fs::symlink(BINARY, path.join("kubectl-haulout"))?;
        let person = fixture.kube.kubeconfig(&User::admin(person(&fixture)))?;
        let mut own = Command::new(path.join("kubectl-haulout"));
        own.args(["list", "--help"]).env_clear();
        let help = answer(own).await?;
        ensure!(help.stdout.contains("Usage: kubectl haulout list"), "{help}");
        let mut through = Command::new(fixture.kube.kubectl());
        through
            .args(["haulout", "list", "-o", "name", "--kubeconfig"])
            .arg(&person);
        through
            .args(["--context", "lab"])
            .env_clear()
            .envs(fixture.environment()?);
        let searched = format!("{}:/usr/bin:/bin", path.display());
        through
            .env("PATH", searched)
            .env("HOME", &path)
            .env_remove("KUBECONFIG");
        let list = answer(through).await?;
        ensure!(
            list.stdout == format!("node/{}\n", fixture.node_name("gpu1")),
            "{list}"
        );
        Ok(())
    });
}

#[test]
fn failure_is_written_to_stderr_with_its_exit_code() {
    run_scenario(async {
        let fixture = one_node("wrong-words").await?;
        let node = fixture.node_name("gpu1");
        for (words, code, message) in [
            (
                vec!["status", "nobody"],
                1,
                "node/nobody: nodes \"nobody\" not found",
            ),
            (
                vec!["drain", "nobody"],
                1,
                "node/nobody: nodes \"nobody\" not found",
            ),
            (
                vec!["approve", "nobody"],
                1,
                "node/nobody: nodes \"nobody\" not found",
            ),
            (
                vec!["plan", "esx1", "--release", "wrong-words/haulout"],
                1,
                "no running pod of Haulout with a status page was found of release wrong-words/haulout",
            ),
            (vec!["trace", node.as_str()], 1, "has had no episode"),
            (vec!["list", "--context", "none-such"], 1, "--context"),
            (
                vec!["check", "--poll-interval-seconds", "0"],
                2,
                "POLL_INTERVAL_SECONDS",
            ),
            (
                vec![
                    "drain",
                    node.as_str(),
                    "--action",
                    "Relocate",
                    "--target-host",
                    "esx1",
                    "--no-such",
                ],
                2,
                "--no-such",
            ),
            (
                vec!["drain", node.as_str(), "--target-host", "esx1"],
                2,
                "--action",
            ),
            (
                vec![
                    "drain",
                    node.as_str(),
                    "--target-host",
                    "esx1",
                    "--action",
                    "Reboot",
                ],
                1,
                "--action Relocate only",
            ),
        ] {
            let answer = types(&fixture, &words).await?;
            ensure!(answer.code == code, "{words:?}: {answer}");
            ensure!(answer.stdout.is_empty(), "{words:?}: {answer}");
            ensure!(answer.stderr.contains(message), "{words:?}: {answer}");
        }
        let version = types(&fixture, &["version"]).await?;
        ensure!(
            version.stdout == format!("haulout {}\n", env!("CARGO_PKG_VERSION")),
            "{version}"
        );
        let yaml = types(&fixture, &["version", "-o", "yaml"]).await?;
        ensure!(
            yaml.stdout == format!("haulout: \"{}\"\n", env!("CARGO_PKG_VERSION")),
            "{yaml}"
        );
        let script = types(&fixture, &["completion", "bash"]).await?;
        ensure!(
            script.stdout.contains("_clap_complete_haulout haulout"),
            "{script}"
        );
        let kind = types(&fixture, &["crd"]).await?;
        ensure!(
            kind.stdout.contains("name: nodemaintenances.haulout.dev"),
            "{kind}"
        );
        Ok(())
    });
}

#[test]
fn resume_deletes_own_requests_and_those_of_others_only_if_told() {
    run_scenario(async {
        let fixture = one_node("prompt-others").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let [alice, bob] = ["alice", "bob"].map(|name| format!("{name}-{}", fixture.name()));
        let drain = ["drain", &node, "--wait=false", "-o", "name"];
        let of_alice = types_as(&fixture, &alice, &drain, &[]).await?;
        ensure!(of_alice.code == 0, "{of_alice}");
        let name = of_alice.stdout.trim().to_owned();
        let drained = fixture.wait_phase(&node, "drained").await?;
        let episode = haulout_lab::fixture::episode(&drained).context("an episode")?;
        ensure!(episode["trigger"]["user"] == alice.as_str(), "{episode}");
        let status = types(&fixture, &["status", &node]).await?;
        ensure!(status.stdout.contains(&format!("by {alice}")), "{status}");

        let by_bob = types_as(&fixture, &bob, &["resume", &node], &[]).await?;
        ensure!(by_bob.code == 4 && by_bob.stdout.is_empty(), "{by_bob}");
        let stays = format!("{name} by {alice} stays: delete it with --request ");
        ensure!(by_bob.stderr.contains(&stays), "{by_bob}");
        let all = types_as(&fixture, &bob, &["resume", &node, "--all"], &[]).await?;
        ensure!(
            all.code == 1 && all.stderr.contains("confirm it with --yes"),
            "{all}"
        );
        let missing = ["resume", &node, "--request", "none-such"];
        let missing = types_as(&fixture, &bob, &missing, &[]).await?;
        ensure!(
            missing.code == 1 && missing.stderr.contains("no open request of this name"),
            "{missing}"
        );

        let of_bob = types_as(&fixture, &bob, &drain, &[]).await?;
        let by_bob = types_as(&fixture, &bob, &["resume", &node, "-o", "json"], &[])
            .await?
            .json()?;
        let own = of_bob.stdout.trim().rsplit('/').next().context("a name")?;
        ensure!(by_bob["deleted"] == serde_json::json!([own]), "{by_bob}");
        ensure!(by_bob["others"][0]["requestedBy"] == alice.as_str(), "{by_bob}");
        ensure!(is_cordoned(&fixture.node(&node).await?));

        let all = types_as(&fixture, &bob, &["resume", &node, "--all", "--yes"], &[]).await?;
        ensure!(
            all.code == 0 && all.stdout == format!("{name} deleted\n"),
            "{all}"
        );
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn request_that_shuts_a_vm_down_is_confirmed_and_can_be_tried_first() {
    run_scenario(async {
        let fixture = one_node("prompt-confirm").await?;
        let node = fixture.node_name("gpu1");
        let objects: kube::Api<haulout::nodemaintenance::kind::NodeMaintenance> =
            kube::Api::all(fixture.client());
        for action in ["PowerOff", "Relocate", "Reboot"] {
            let asked = types(&fixture, &["drain", &node, "--action", action]).await?;
            ensure!(asked.code == 1 && asked.stdout.is_empty(), "{asked}");
            ensure!(asked.stderr.contains("confirm it with --yes"), "{asked}");
        }
        let words = [
            "drain",
            &node,
            "--action",
            "PowerOff",
            "--dry-run=client",
            "-o",
            "json",
        ];
        let object = types(&fixture, &words).await?.json()?;
        ensure!(
            object["spec"]["action"] == "PowerOff" && object["spec"]["nodeName"] == node.as_str(),
            "{object}"
        );
        let server = types(&fixture, &["drain", &node, "--dry-run=server"]).await?;
        ensure!(
            server.code == 0 && server.stdout.ends_with(" created (server dry run)\n"),
            "{server}"
        );
        let unselected = [("GPU_NODE_LABEL", "no-such-label=true")];
        let words = ["drain", &node, "--dry-run=server"];
        let unselected = types_with(&fixture, &words, &unselected).await?;
        ensure!(
            unselected
                .stderr
                .contains("does not match no-such-label=true (GPU_NODE_LABEL)"),
            "{unselected}"
        );
        let left = objects.list(&kube::api::ListParams::default()).await?;
        let left = left
            .items
            .into_iter()
            .filter(|object| object.spec.node_name == node);
        ensure!(left.count() == 0, "a dry run created a request");
        Ok(())
    });
}
