//! The alerts and the queries of the dashboard, evaluated by a real Prometheus over a real episode.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::WAIT_TIMEOUT;
use haulout_lab::ports::Port;
use haulout_lab::process::{Process, ProcessSpec};
use haulout_lab::run_dir::RunDir;
use haulout_lab::scenario::run_scenario;
use haulout_lab::tools;
use haulout_lab::wait::until;
use serde_json::{Value, json};

use crate::alerts::rules;
use crate::helm::read;
use crate::release::{Release, fixture};

/// The interval of scrapes and of evaluations. A phase of the lab lasts a second or more.
const INTERVAL: &str = "200ms";

/// Alerts whose condition this episode meets. Their waiting times, of up to a day, are left out; promtool tests those.
const MET: [&str; 3] = [
    "HauloutDrainStuck",
    "HauloutNodeAwayLong",
    "HauloutMaintenanceInProgress",
];

/// A Prometheus that scrapes one target.
struct Prometheus {
    url: String,
    client: reqwest::Client,
    process: Process,
    _dir: RunDir,
}

impl Prometheus {
    async fn start(program: &Path, target: u16, rules: &Value) -> anyhow::Result<Self> {
        let dir = RunDir::create()?;
        dir.write("rules.yaml", rules.to_string())?;
        // The labels that the Prometheus Operator sets.
        let labels = json!({"namespace": "haulout", "pod": "a", "cluster": "lab"});
        let config = json!({
            "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{
                "job_name": "haulout",
                "static_configs": [{"targets": [format!("127.0.0.1:{target}")], "labels": labels}],
            }],
        });
        let config = dir.write("prometheus.yaml", config.to_string())?;
        let port = Port::reserve()?;
        let process = ProcessSpec::leashed("prometheus", program, dir.join("prometheus.log"))
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{}", port.number()))
            .spawn()?;
        let prometheus = Self {
            url: format!("http://127.0.0.1:{}/api/v1", port.number()),
            client: reqwest::Client::builder()
                .no_proxy()
                .timeout(Duration::from_secs(10))
                .build()?,
            process,
            _dir: dir,
        };
        until("Prometheus to scrape Haulout", WAIT_TIMEOUT, async || {
            let up = prometheus.query("up == 1").await?;
            Ok((up.as_array().map_or(0, Vec::len) == 1).then_some(()))
        })
        .await
        .with_context(|| prometheus.process.tail())?;
        Ok(prometheus)
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<Value> {
        let mut query_string = form_urlencoded::Serializer::new(String::new());
        query_string.extend_pairs(query);
        let url = format!("{}/{path}?{}", self.url, query_string.finish());
        let answer = self.client.get(url).send().await?;
        let value: Value = serde_json::from_str(&answer.text().await?)?;
        ensure!(value["status"] == "success", "{path} {query:?}: {value}");
        Ok(value["data"].clone())
    }

    /// The result of a query, which must be valid.
    async fn query(&self, query: &str) -> anyhow::Result<Value> {
        Ok(self.get("query", &[("query", query)]).await?["result"].clone())
    }

    /// The names of the alerts that fire.
    async fn firing(&self) -> anyhow::Result<BTreeSet<String>> {
        let result = self.query(r#"ALERTS{alertstate="firing"}"#).await?;
        let names = result.as_array().into_iter().flatten();
        let names = names.filter_map(|it| it["metric"]["alertname"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    async fn wait_for(&self, name: &str, fires: bool) -> anyhow::Result<()> {
        let what = if fires { "fire" } else { "clear" };
        until(&format!("{name} to {what}"), WAIT_TIMEOUT, async || {
            let firing = self.firing().await?;
            Ok((firing.contains(name) == fires).then_some(()))
        })
        .await
    }
}

/// The rules without the waiting times of their alerts.
fn impatient(mut rules: Value) -> anyhow::Result<Value> {
    let groups = rules["groups"].as_array_mut().context("groups")?;
    let rules_of = groups
        .iter_mut()
        .filter_map(|group| group["rules"].as_array_mut());
    for rule in rules_of.flatten() {
        if let Some(rule) = rule.as_object_mut() {
            rule.remove("for");
        }
    }
    Ok(rules)
}

/// The queries of all panels, with the variables that Grafana replaces.
fn queries() -> anyhow::Result<Vec<(String, String)>> {
    let dashboard: Value = serde_json::from_str(&read("chart/files/dashboard.json"))?;
    let top = dashboard["panels"].as_array().context("panels")?;
    let nested = top
        .iter()
        .flat_map(|panel| panel["panels"].as_array().into_iter().flatten());
    let mut queries = Vec::new();
    for panel in top.iter().chain(nested) {
        let title = panel["title"].as_str().unwrap_or_default();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let mut expr = target["expr"].as_str().context("an expression")?.to_owned();
            for (variable, value) in [
                ("$cluster", ".*"),
                ("$workload_cluster", ".*"),
                ("$node", ".*"),
                ("$__rate_interval", "1m"),
                ("$__range", "5m"),
            ] {
                expr = expr.replace(variable, value);
            }
            queries.push((title.to_owned(), expr));
        }
    }
    Ok(queries)
}

#[test]
fn alerts_fire_and_clear_and_every_query_is_valid_in_prometheus() {
    run_scenario(async {
        let test = "alerts_fire_and_clear_and_every_query_is_valid_in_prometheus";
        let Some(program) = tools::on_path(&["prometheus"]) else {
            return tools::skip(
                test,
                "there is no prometheus on PATH (apt-get install prometheus)",
            );
        };
        let fixture = fixture("queries", "aa000000-0000-4000-8000-000000000071", &["esx1"]).await?;
        let node = fixture.node_name("gpu1");
        let release = Release::prepare(&fixture).await?;
        release.upgrade(&[]);
        let port = Port::reserve()?;
        let metrics = ("METRICS_ADDRESS", format!("127.0.0.1:{}", port.number()));
        let mut replica = release.start_with(&[metrics]).await?;
        replica.wait_ready().await?;
        let prometheus = Prometheus::start(&program, port.number(), &impatient(rules())?).await?;

        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        prometheus.wait_for(MET[0], true).await?;
        fixture.set_budget("held", 1).await?;
        prometheus.wait_for(MET[1], true).await?;
        prometheus.wait_for(MET[2], true).await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        for alert in MET {
            prometheus.wait_for(alert, false).await?;
        }

        let evaluated = prometheus.get("rules", &[]).await?;
        let groups = evaluated["groups"].as_array().context("groups")?;
        let all: Vec<&Value> = groups
            .iter()
            .flat_map(|group| group["rules"].as_array().into_iter().flatten())
            .collect();
        let broken: Vec<&&Value> = all.iter().filter(|rule| rule["health"] != "ok").collect();
        ensure!(
            all.len() > 20 && broken.is_empty(),
            "{} rules: {broken:#?}",
            all.len()
        );

        let mut shown = BTreeSet::new();
        for (title, expr) in queries()? {
            let result = prometheus.query(&expr).await.with_context(|| title.clone())?;
            if result.as_array().is_some_and(|series| !series.is_empty()) {
                shown.insert(title);
            }
        }
        for title in [
            "In maintenance",
            "Phases of nodes",
            "Hosts",
            "Detection latency",
            "Duration of phases",
            "Episodes ended",
            "Evictions",
            "Calls to vCenter",
        ] {
            ensure!(
                shown.contains(title),
                "the panel {title} is empty; others show {shown:?}"
            );
        }
        replica.stop().await
    });
}
