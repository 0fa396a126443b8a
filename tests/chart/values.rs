//! The values of the chart: their schema, their documents, and the settings of the program that they set.

use std::collections::BTreeSet;

use clap::CommandFactory as _;
use haulout::cli::{Cli, Command};
use haulout_lab::kube::{KubeOptions, User};
use haulout_lab::run_dir::RunDir;
use haulout_lab::scenario::RUNTIME;
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};

use crate::helm::{cases, chart, object, read, refusal, rendered, succeed};
use crate::release::kube;

/// Environment variables that the chart sets and that are not values of their own.
const OTHERS: [&str; 19] = [
    "POD_NAME",
    "POD_NAMESPACE",
    "KUBECONFIG",
    "LEADER_ELECTION",
    "LEASE_NAME",
    "LEASE_NAMESPACE",
    "LEASE_DURATION_SECONDS",
    "LEASE_RENEW_DEADLINE_SECONDS",
    "NODE_MAINTENANCE_HISTORY",
    "REQUIRE_APPROVAL",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

/// Passed as files, so that they are in no environment.
const AS_FILES: [&str; 2] = ["VCENTER_USER", "VCENTER_PASSWORD"];

#[test]
fn helm_lint_has_no_findings() {
    let chart = chart();
    for case in cases() {
        let (chart, case) = (chart.to_str().unwrap(), case.to_str().unwrap());
        succeed("helm", &["lint", "--strict", "--quiet", chart, "-f", case]);
    }
}

#[test]
fn helm_unittest_suites_pass() {
    let message = succeed("helm-unittest", &["--strict", chart().to_str().unwrap()]);
    assert!(message.contains("Test Suites: 5 passed, 5 total"), "{message}");
}

#[test]
fn chart_readme_is_generated_from_its_values() {
    let dir = RunDir::create().unwrap();
    for file in ["Chart.yaml", "values.yaml", "README.md.gotmpl"] {
        std::fs::copy(chart().join(file), dir.join(file)).unwrap();
    }
    succeed(
        "helm-docs",
        &["--chart-search-root", dir.path().to_str().unwrap()],
    );
    let made = std::fs::read_to_string(dir.join("README.md")).unwrap();
    assert!(
        made == read("chart/README.md"),
        "chart/README.md is not current: run `make chart`"
    );
}

#[test]
fn chart_has_the_version_of_the_program() {
    let text = read("chart/Chart.yaml");
    let version = env!("CARGO_PKG_VERSION");
    for line in [
        format!("\nversion: {version}\n"),
        format!("\nappVersion: {version}\n"),
        format!("      image: ghcr.io/haulout/haulout:{version}\n"),
    ] {
        assert!(text.contains(&line), "chart/Chart.yaml has no line {line:?}");
    }
}

#[test]
fn unknown_value_is_refused_by_name() {
    for (value, path, key) in [
        ("vcenter.tlsVerfy=false", "/vcenter", "tlsVerfy"),
        ("drainTimeoutSeconds=1", "", "drainTimeoutSeconds"),
        ("config.drainTimeout=1", "/config", "drainTimeout"),
        (
            "networkPolicy.egress.vcentre.to=x",
            "/networkPolicy/egress",
            "vcentre",
        ),
        ("livenessProbe.period=1", "/livenessProbe", "period"),
        ("strategy.kind=Recreate", "/strategy", "kind"),
    ] {
        let message = refusal(&["vcenter.existingSecret=x", value]);
        let expected = format!("at '{path}': additional properties '{key}' not allowed");
        assert!(message.contains(&expected), "{value}: {message}");
    }
}

#[test]
fn value_that_the_program_would_refuse_is_refused_by_helm() {
    for (value, path) in [
        ("config.pollIntervalSeconds=0", "/config/pollIntervalSeconds"),
        ("config.drainTimeoutSeconds=700000", "/config/drainTimeoutSeconds"),
        ("config.drainTimeoutAction=abort", "/config/drainTimeoutAction"),
        ("config.maxUnavailable=101%", "/config/maxUnavailable"),
        ("config.staticDevices=move", "/config/staticDevices"),
        ("config.nodeBinding=vm", "/config/nodeBinding"),
        ("config.vmotionGraceSeconds=never", "/config/vmotionGraceSeconds"),
        (
            "config.foreignNodeMaintenances={kured}",
            "/config/foreignNodeMaintenances/0",
        ),
        ("vcenter.report={log}", "/vcenter/report/0"),
    ] {
        let message = refusal(&["vcenter.existingSecret=x", value]);
        assert!(message.contains(&format!("at '{path}'")), "{value}: {message}");
    }
}

/// A map without `additionalProperties: false` would accept any misspelt key.
#[test]
fn every_object_of_the_schema_refuses_unknown_keys() {
    fn walk(path: &str, schema: &Value, open: &mut Vec<String>) {
        if let Some(properties) = schema["properties"].as_object() {
            // `global` has the values of all charts of an installation.
            assert!(
                schema["additionalProperties"] == json!(false) || path == ".global",
                "{path} takes unknown keys"
            );
            for (key, schema) in properties {
                walk(&format!("{path}.{key}"), schema, open);
            }
        } else if schema["type"] == "object" {
            open.push(path.trim_start_matches('.').to_owned());
        }
    }
    let schema: Value = serde_json::from_str(&read("chart/values.schema.json")).unwrap();
    let mut open = Vec::new();
    walk("", &schema, &mut open);
    // Types of Kubernetes are checked by the kube-apiserver, and some keys are names that administrators choose.
    let meant = [
        "affinity",
        "commonLabels",
        "dnsConfig",
        "fence",
        "grafanaDashboard.annotations",
        "lifecycle",
        "metrics.service.annotations",
        "nodeSelector",
        "podAnnotations",
        "podLabels",
        "podMonitor.additionalLabels",
        "podSecurityContext",
        "prometheusRule.additionalLabels",
        "prometheusRule.additionalRuleLabels",
        "resources",
        "securityContext",
        "sentinel.nodeSelector",
        "sentinel.resources",
        "serviceAccount.annotations",
        "serviceMonitor.additionalLabels",
        "tracing.resourceAttributes",
    ];
    open.sort();
    assert_eq!(open, meant);
}

/// The environment of the container, by name.
fn environment(objects: &[Value]) -> BTreeSet<String> {
    let settings = object(objects, "ConfigMap")["data"].as_object().unwrap();
    let container = &object(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let variables = container["env"].as_array().unwrap();
    let named = variables
        .iter()
        .map(|variable| variable["name"].as_str().unwrap().to_owned());
    settings.keys().cloned().chain(named).collect()
}

#[test]
fn every_setting_of_the_program_is_a_value() {
    let set: BTreeSet<String> = cases()
        .iter()
        .flat_map(|case| {
            environment(&rendered(
                case,
                &["tracing.timeoutMilliseconds=1000", "proxy.http=http://p"],
            ))
        })
        .collect();
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    let settings: BTreeSet<String> = run
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
        .filter_map(|argument| Some(argument.get_env()?.to_str().unwrap().to_owned()))
        .collect();
    let missing: Vec<&String> = settings
        .difference(&set)
        .filter(|name| !AS_FILES.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "no value sets {missing:?}");
    let unknown: Vec<&String> = set
        .difference(&settings)
        .filter(|name| !OTHERS.contains(&name.as_str()))
        .collect();
    assert!(unknown.is_empty(), "the program has no setting {unknown:?}");
}

#[test]
fn chart_has_the_defaults_of_the_program_except_the_log_and_the_page_inside_the_pod() {
    let objects = rendered(&chart().join("ci/default-values.yaml"), &[]);
    let settings = object(&objects, "ConfigMap")["data"].as_object().unwrap().clone();
    let mut args = ["haulout", "run", "--vcenter-host=v"].map(str::to_owned).to_vec();
    let known: BTreeSet<String> = Cli::command()
        .find_subcommand("run")
        .unwrap()
        .get_arguments()
        .filter_map(|argument| Some(argument.get_long()?.to_owned()))
        .collect();
    for (name, value) in &settings {
        let flag = name.to_lowercase().replace('_', "-");
        if known.contains(&flag) {
            args.push(format!("--{flag}={}", value.as_str().unwrap()));
        }
    }
    let read = |args: &[String]| {
        let words = args.iter().map(std::ffi::OsString::from);
        match Cli::read(words).unwrap().command {
            Command::Run(config) => config.describe().to_vec(),
            Command::Sentinel(_) | Command::Subcommand(_) => panic!("the subcommand is run"),
        }
    };
    let least = args
        .iter()
        .filter(|argument| {
            !argument.starts_with("--") || argument.contains("vcenter-host") || argument.contains("-file=")
        })
        .cloned()
        .collect::<Vec<_>>();
    let differing: Vec<(String, String)> = read(&args)
        .into_iter()
        .zip(read(&least))
        .filter(|(ours, theirs)| ours != theirs && !ours.0.starts_with("LEA"))
        .map(|(ours, _)| ours)
        .collect();
    let expected = [("LOG_FORMAT", "json"), ("STATUS_ADDRESS", "127.0.0.1:8082")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(differing, expected);
}

/// The tests of the program run with the rules of the lab, which docs/install/kubernetes-rights.md shows.
#[test]
fn chart_has_the_rights_of_the_lab() {
    let objects = rendered(&chart().join("ci/full-values.yaml"), &[]);
    let ours = &object(&objects, "ClusterRole")["rules"];
    // The rights to the Lease are in a Role, because it is in one namespace.
    let is_in_a_role = |rule: &PolicyRule| {
        let mut groups = rule.api_groups.iter().flatten();
        groups.any(|group| group == "coordination.k8s.io")
    };
    let mut theirs = KubeOptions::default().haulout_rules;
    theirs.retain(|rule| !is_in_a_role(rule));
    assert_eq!(ours, &serde_json::to_value(theirs).unwrap());
}

#[test]
fn no_template_reads_cluster_clock_or_random_numbers() {
    let folders = ["templates", "templates/tests"].map(|folder| chart().join(folder));
    let entries = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap());
    for path in entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
    {
        let text = std::fs::read_to_string(&path).unwrap();
        let actions = text
            .split("{{")
            .skip(1)
            .filter_map(|rest| rest.split("}}").next());
        for word in actions.flat_map(|action| action.split(|c: char| !c.is_alphanumeric())) {
            let differs = [
                "lookup",
                "now",
                "randAlphaNum",
                "randAlpha",
                "randNumeric",
                "uuidv4",
                "genCA",
                "genSelfSignedCert",
            ];
            assert!(
                !differs.contains(&word),
                "{}: {word} renders differently each time",
                path.display()
            );
        }
    }
}

#[test]
fn notes_warn_about_unsafe_and_unused_values() {
    let chart = chart();
    // helm reads the version of the cluster, also in a dry run.
    let kube = RUNTIME.block_on(kube());
    let kubeconfig = kube.kubeconfig(&User::admin("notes")).unwrap();
    let notes = |case: &str, set: &[&str]| {
        let case = chart.join("ci").join(case);
        let mut args = vec!["install", "notes", chart.to_str().unwrap(), "-n", "notes"];
        args.extend(["--dry-run=client", "-f", case.to_str().unwrap()]);
        args.extend(["--kubeconfig", kubeconfig.to_str().unwrap()]);
        args.extend(["--set", "crds.enabled=false"]);
        args.extend(set.iter().flat_map(|value| ["--set", value]));
        let message = succeed("helm", &args);
        message.split_once("NOTES:").unwrap().1.to_owned()
    };
    let quiet = notes("default-values.yaml", &[]);
    assert!(
        quiet.contains("rollout status deployment/notes-haulout"),
        "{quiet}"
    );
    assert!(
        !quiet.contains("WARNING") && !quiet.contains("DRY RUN:"),
        "{quiet}"
    );
    let mounts = notes("default-values.yaml", &["sentinel.enabled=true"]);
    assert!(mounts.contains("mount /var/run of their nodes"), "{mounts}");
    let loud = notes(
        "python-values.yaml",
        &["fence.enabled=true", "config.dryRun=true"],
    );
    for words in [
        "any certificate is accepted",
        "release Secret of Helm",
        "has no fence",
        "DRY RUN:",
    ] {
        assert!(loud.contains(words), "{words:?} is missing: {loud}");
    }
}
