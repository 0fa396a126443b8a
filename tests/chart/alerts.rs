//! Alerts, runbooks and the dashboard, compared with the metrics of the program.

use std::collections::BTreeSet;
use std::process::Command;

use haulout::status::PhaseKind;
use haulout::telemetry::metrics::ALL;
use haulout_lab::run_dir::RunDir;
use haulout_lab::tools;
use serde_json::Value;

use crate::helm::{chart, object, read, rendered, root};

/// The rules with the chart's defaults.
pub fn rules() -> Value {
    let objects = rendered(
        &chart().join("ci/default-values.yaml"),
        &["prometheusRule.enabled=true"],
    );
    object(&objects, "PrometheusRule")["spec"].clone()
}

fn alerts() -> Vec<Value> {
    let rules = rules();
    let groups = rules["groups"].as_array().unwrap().iter();
    groups
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .filter(|rule| rule.get("alert").is_some())
        .collect()
}

/// The names in `text` with the prefix of our metrics, without the suffixes of a histogram's series.
fn metrics(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))
        .filter(|word| word.starts_with("haulout_"))
        .map(|word| {
            let series = ["_bucket", "_sum", "_count"];
            let base = series.iter().find_map(|end| word.strip_suffix(end));
            base.unwrap_or(word).to_owned()
        })
        .collect()
}

fn assert_known(place: &str, text: &str) {
    let used = metrics(text);
    let known: BTreeSet<String> = ALL.iter().map(|metric| metric.name()).collect();
    let unknown: Vec<&String> = used.difference(&known).collect();
    assert!(
        unknown.is_empty(),
        "{place} asks for {unknown:?}, which docs/reference/metrics.md does not have"
    );
    assert!(!used.is_empty(), "{place} uses no metric");
}

#[test]
fn alerts_and_dashboard_use_existing_metrics() {
    assert_known("chart/templates/_alerts.tpl", &rules().to_string());
    assert_known("chart/files/dashboard.json", &read("chart/files/dashboard.json"));
}

#[test]
fn dashboard_shows_every_metric() {
    let dashboard = read("chart/files/dashboard.json");
    let unseen: Vec<String> = ALL
        .iter()
        .map(|metric| metric.name())
        .filter(|name| !dashboard.contains(name.as_str()))
        .collect();
    assert!(unseen.is_empty(), "no panel shows {unseen:?}");
}

/// Prometheus sets these labels on every series. It would rename a label of ours with such a name, or the dashboard would
/// mistake one for the other.
#[test]
fn no_metric_has_a_label_that_the_scraper_sets() {
    let theirs = [
        "cluster",
        "container",
        "endpoint",
        "instance",
        "job",
        "namespace",
        "pod",
        "service",
        "workload_cluster",
    ];
    for metric in ALL {
        for label in metric.labels {
            assert!(!theirs.contains(label), "{}: {label}", metric.name());
        }
    }
}

#[test]
fn dashboard_shows_the_documented_panels_and_describes_each() {
    let dashboard: Value = serde_json::from_str(&read("chart/files/dashboard.json")).unwrap();
    assert_eq!(dashboard["uid"], "haulout");
    let mut panels = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        panels.push(panel.clone());
        panels.extend(panel["panels"].as_array().into_iter().flatten().cloned());
    }
    let mut kinds = BTreeSet::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        kinds.insert(panel["type"].as_str().unwrap().to_owned());
        assert!(
            panel["description"]
                .as_str()
                .is_some_and(|text| text.ends_with('.')),
            "{title} has no description"
        );
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
    for kind in ["state-timeline", "stat", "timeseries", "barchart", "table"] {
        assert!(kinds.contains(kind), "no {kind} in {kinds:?}");
    }
}

#[test]
fn every_alert_has_labels_texts_and_a_runbook() {
    let mut pages: BTreeSet<String> = std::fs::read_dir(root().join("docs/runbooks"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(
            ["critical", "warning", "info", "none"].contains(&severity),
            "{name}: {severity}"
        );
        for key in ["summary", "description"] {
            assert!(alert["annotations"][key].is_string(), "{name} has no {key}");
        }
        let url = alert["annotations"]["runbook_url"].as_str().unwrap();
        assert!(url.ends_with(&format!("/{name}.md")), "{name}: {url}");
        assert!(pages.remove(&format!("{name}.md")), "{name} has no page");
        let page = read(format!("docs/runbooks/{name}.md"));
        assert!(
            page.starts_with(&format!("# {name}\n\nSeverity: {severity}.")),
            "{name}"
        );
    }
    assert!(pages.is_empty(), "pages of no alert: {pages:?}");
}

/// The alert that inhibits others while a node is away must not hide a phase without its own alert.
#[test]
fn every_phase_has_an_alert() {
    let alerts = alerts();
    let about = |word: &str| {
        let alert = alerts.iter().find(|alert| {
            let expr = alert["expr"].as_str().unwrap();
            alert["labels"]["severity"] != "none" && expr.contains(word)
        });
        alert.is_some()
    };
    for phase in PhaseKind::ALL
        .iter()
        .filter(|phase| **phase != PhaseKind::InService)
    {
        let is_named = ["\"", "|"].iter().any(|before| {
            ["\"", "|"]
                .iter()
                .any(|after| about(&format!("{before}{phase}{after}")))
        });
        // The queue has its own metric.
        let is_queue = *phase == PhaseKind::Queued && about("haulout_queue_depth");
        assert!(is_named || is_queue, "no alert is about the phase {phase}");
    }
    // Waits for a person without a change of phase.
    for kind in [
        "approval",
        "drain-held",
        "invalid-window",
        "node-object",
        "other-release",
        "parked",
        "powered-on",
        "question",
        "skip",
    ] {
        let is_named = ["\"", "|"].iter().any(|before| {
            ["\"", "|"]
                .iter()
                .any(|after| about(&format!("{before}{kind}{after}")))
        });
        assert!(is_named, "no alert is about the wait {kind}");
    }
}

#[test]
fn alert_about_a_deadline_fires_before_it() {
    let minutes = |values: &[&str], name: &str| {
        let values = [&["prometheusRule.enabled=true"], values].concat();
        let objects = rendered(&chart().join("ci/default-values.yaml"), &values);
        let rules = object(&objects, "PrometheusRule")["spec"]["groups"][1]["rules"].clone();
        let rules = rules.as_array().unwrap();
        let rule = rules.iter().find(|rule| rule["alert"] == name).unwrap();
        let minutes = rule["for"].as_str().unwrap().strip_suffix('m').unwrap();
        minutes.parse::<u32>().unwrap()
    };
    for (timeout, expected) in [(600, 5), (60, 1), (7_200, 30), (300, 2)] {
        let drain = format!("config.drainTimeoutSeconds={timeout}");
        assert_eq!(minutes(&[&drain], "HauloutDrainStuck"), expected, "{timeout} s");
    }
    let relocate = u64::from(minutes(&[], "HauloutRelocationStuck")) * 60;
    assert!(relocate < haulout::config::Timings::default().relocate.as_secs());
    let times = [
        "config.guestShutdownTimeoutSeconds=900",
        "config.volumeDetachTimeoutSeconds=600",
    ];
    assert_eq!(
        minutes(&times, "HauloutShutdownStuck"),
        30,
        "after the time of the volumes and of the guest"
    );
}

#[test]
fn each_alert_fires_exactly_when_expected() {
    let tests = read("tests/chart/rules_test.yaml");
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let expectations: Vec<&str> = tests
            .split(&format!("alertname: {name}\n"))
            .skip(1)
            .map(|rest| rest.lines().next().unwrap().trim())
            .collect();
        assert!(
            expectations.contains(&"exp_alerts:") && expectations.contains(&"exp_alerts: []"),
            "{name} is not tested both ways"
        );
    }
    let dir = RunDir::create().unwrap();
    dir.write("rules.yaml", rules().to_string()).unwrap();
    dir.write("rules_test.yaml", tests).unwrap();
    let Some(promtool) = tools::on_path(&["promtool"]) else {
        return tools::skip(
            "each_alert_fires_exactly_when_expected",
            "there is no promtool on PATH (apt-get install prometheus)",
        )
        .unwrap();
    };
    let output = Command::new(promtool)
        .args(["test", "rules", "rules_test.yaml"])
        .current_dir(dir.path())
        .output()
        .expect("starting promtool");
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}
