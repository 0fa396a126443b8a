//! Writes `docs/reference/` from the program's own tables, and fails where the committed files differ: run `make docs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, Args as _, Command, CommandFactory as _};
use haulout::cli::{Cli, OutputArgs};
use haulout::keys;
use haulout::kubernetes::client::Access;
use haulout::maintenance::decide::{OTHERWISE, PHASES};
use haulout::status::story::Reason;
use haulout::telemetry::metrics::ALL;
use haulout::telemetry::trace::catalogue;

/// If set, the files are written in place of being compared.
const WRITE: &str = "HAULOUT_WRITE_REFERENCE";

/// How many settings there may be, and how many that a usual site may need. Another one needs a reason to be none of them.
const SETTINGS_MAX: usize = 59;
const COMMON_MAX: usize = 25;

/// How wide the help of a subcommand is written.
const WIDTH: usize = 100;

#[test]
fn docs_reference_is_what_the_program_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference");
    let pages = [
        ("configuration.md", configuration()),
        ("cli.md", cli()),
        ("metrics.md", metrics()),
        ("events.md", events()),
        ("annotations.md", annotations()),
        ("tracing.md", tracing()),
        ("phases.md", phases()),
    ];
    let mut differing = Vec::new();
    for (name, page) in pages {
        let path = folder.join(name);
        let page = page.trim_start();
        if std::env::var_os(WRITE).is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(path, page).unwrap();
        } else if std::fs::read_to_string(path).unwrap_or_default() != page {
            differing.push(name);
        }
    }
    assert!(
        differing.is_empty(),
        "{differing:?} in docs/reference differ: run `make docs`"
    );
}

/// A heading, the note that the page is generated, and what comes before its tables.
fn page(title: &str, intro: &str) -> String {
    format!("# {title}\n\n<!-- Written by `make docs` from the program. Do not edit. -->\n{intro}\n")
}

fn row(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = row(header);
    let _ = writeln!(table, "|{}", "---|".repeat(header.len()));
    for cells in rows {
        table += &row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    table + "\n"
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

/// A list of names with their meanings.
fn meanings(header: &[&str], list: &[(&str, &str)]) -> String {
    table(
        header,
        list.iter()
            .map(|(name, meaning)| vec![code(name), (*meaning).to_owned()]),
    )
}

fn configuration() -> String {
    let mut text = page("Configuration", CONFIGURATION);
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    let shown = || run.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut headings: Vec<&str> = shown().filter_map(Arg::get_help_heading).collect();
    headings.dedup();
    for (part, is_advanced) in [("What you set", false), ("Advanced", true)] {
        let _ = writeln!(text, "## {part}\n");
        let of_part = || shown().filter(|arg| arg.is_hide_short_help_set() == is_advanced);
        for heading in &headings {
            let settings = of_part().filter(|arg| arg.get_help_heading() == Some(heading));
            let rows: Vec<Vec<String>> = settings.map(setting).collect();
            if !rows.is_empty() {
                let _ = writeln!(text, "### {heading}\n");
                text += &table(
                    &["variable", "flag", "default", "values", "meaning"],
                    rows.into_iter(),
                );
            }
        }
        let most = if is_advanced { SETTINGS_MAX } else { COMMON_MAX };
        let count = if is_advanced {
            shown().count()
        } else {
            of_part().count()
        };
        assert!(count <= most, "{count} settings are more than {most}");
    }
    text
}

/// The row of a setting. Its help ends with the permitted values in parentheses, unless clap lists them.
fn setting(arg: &Arg) -> Vec<String> {
    let help = arg.get_help().unwrap().to_string();
    let (meaning, values) = match help.strip_suffix(')').and_then(|help| help.rsplit_once(" (")) {
        Some((meaning, values)) => (meaning, values.to_owned()),
        None => {
            let names: Vec<String> = arg
                .get_possible_values()
                .iter()
                .map(|value| code(value.get_name()))
                .collect();
            let name = arg.get_value_names().unwrap()[0].to_lowercase();
            (
                help.as_str(),
                if names.is_empty() { name } else { names.join(", ") },
            )
        }
    };
    let details = arg
        .get_long_help()
        .map(|long| long.to_string())
        .unwrap_or_default();
    let details = details.split_once("\n\n").map_or("", |(_, details)| details);
    let default = match arg.get_default_values() {
        _ if meaning.contains(", required") => "required".to_owned(),
        [] => "unset".to_owned(),
        [value, ..] => code(value.to_str().unwrap()),
    };
    vec![
        code(arg.get_env().unwrap().to_str().unwrap()),
        code(&format!("--{}", arg.get_long().unwrap())),
        default,
        values,
        format!("{meaning}. {details}").trim_end().to_owned(),
    ]
}

fn cli() -> String {
    let mut text = page("Command line", CLI);
    let common = Access::augment_args(OutputArgs::augment_args(Command::new("common")));
    let is_common =
        |arg: &Arg| arg.get_id() == "help" || common.get_arguments().any(|it| it.get_id() == arg.get_id());
    // The settings of the controller have a page of their own.
    let run = Cli::command().find_subcommand("run").unwrap().clone();
    let is_setting =
        |arg: &Arg| arg.get_env().is_some() && run.get_arguments().any(|it| it.get_env() == arg.get_env());
    let mut command = Cli::command().term_width(WIDTH).mut_subcommands(|subcommand| {
        subcommand.disable_help_flag(true).mut_args(|arg| {
            let hide = is_setting(&arg) || is_common(&arg);
            // They are those of the environment in which this runs.
            arg.hide(hide).hide_env_values(true)
        })
    });
    command.build();
    for subcommand in command.get_subcommands_mut() {
        let help = long_help(subcommand.clone());
        let name = subcommand.get_name();
        let _ = writeln!(text, "## haulout {name}\n\n```text\n{help}\n```\n");
        let settings: Vec<String> = subcommand
            .get_arguments()
            .filter(|arg| is_setting(arg))
            .filter_map(|arg| Some(code(arg.get_env()?.to_str()?)))
            .collect();
        match settings.len() {
            0 => {}
            1..10 => {
                let settings = settings.join(", ");
                let _ = writeln!(text, "Of the [settings](configuration.md) it takes {settings}.\n");
            }
            _ => text += "It takes all [settings of the controller](configuration.md).\n\n",
        }
    }
    let help = long_help(common.clone().term_width(WIDTH).disable_help_flag(true));
    let options = help.split_once("Options:").expect("there are options").1;
    let _ = writeln!(text, "## Common options\n\n```text\nOptions:{options}\n```");
    text
}

fn long_help(mut command: Command) -> String {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n")
}

fn metrics() -> String {
    let mut text = page("Metrics and health", METRICS);
    let metrics = ALL.iter().map(|metric| {
        let labels: Vec<String> = metric.labels.iter().map(|label| code(label)).collect();
        vec![
            code(&metric.name()),
            metric.kind.to_string(),
            if labels.is_empty() {
                "none".to_owned()
            } else {
                labels.join(", ")
            },
            metric.help.to_owned(),
            (if metric.is_stable { "stable" } else { "alpha" }).to_owned(),
        ]
    });
    text += &table(&["name", "type", "labels", "meaning", "stability"], metrics);
    text + AFTER_METRICS.trim_start()
}

fn events() -> String {
    let mut text = page("Events", EVENTS);
    let reasons = Reason::ALL.iter().map(|reason| {
        vec![
            code(reason.name()),
            reason.severity().word().to_owned(),
            reason.action().to_owned(),
            reason.meaning().to_owned(),
        ]
    });
    text += &table(&["reason", "type", "action", "when"], reasons);
    text + AFTER_EVENTS.trim_start()
}

fn annotations() -> String {
    page("Annotations", ANNOTATIONS)
        + &meanings(&["annotation", "value"], keys::ON_NODES)
        + "\n## On pods and namespaces\n\n"
        + &meanings(&["annotation", "value"], keys::ON_PODS)
}

fn tracing() -> String {
    let mut text = page("Traces", TRACING);
    text += "## Spans\n\n";
    text += &meanings(&["span", "what it is"], catalogue::SPANS);
    text += "## Attributes\n\n";
    text += &meanings(&["attribute", "meaning"], catalogue::ATTRIBUTES);
    text += "## Attributes of the resource\n\n";
    text += &meanings(&["attribute", "meaning"], catalogue::RESOURCE);
    text += "## Events of spans\n\n";
    text + &meanings(&["event", "meaning"], catalogue::EVENTS)
}

const CONFIGURATION: &str = "
Every setting is an environment variable and a flag. The flag takes precedence. An empty variable counts as
not set. A wrong value stops the program with exit code 2; the message names every wrong setting and what is expected.

It has two parts: *What you set* is what a usual site may need, and *Advanced* the rest; `haulout run -h` shows the first, and
`haulout run --help` both. All have defaults but the vCenter and its credentials.

`KUBECONFIG`, `POD_NAMESPACE` and `POD_NAME` are read from the environment only. `POD_NAME`, or else the name of the machine,
reports the Events and is the first half of the holder's name in the Lease. For `OTEL_*` see [Traces](tracing.md).
";

const CLI: &str = "
The program is called `haulout`. Under the name `kubectl-haulout` on the PATH it is `kubectl haulout`.

Exit code 0 is success, 1 an error that stderr explains, and 2 a command line or setting that is wrong; other codes are
described with their subcommand. Results go to stdout, progress goes to stderr. Subcommands that print a result or read Kubernetes take
the [common options](#common-options).
";

const METRICS: &str = "
Metrics are served on `METRICS_ADDRESS` (port 8080) under `/metrics`: as OpenMetrics 1.0 to clients that accept
`application/openmetrics-text`, as Prometheus does, and otherwise in the text format of Prometheus 0.0.4. There is no
authentication, and no secret is shown.

In OpenMetrics, the buckets of the histograms about episodes carry an exemplar: `trace_id`, the id of the episode that was
counted there last. It is the id in the log and in the record on the Node. To keep exemplars, Prometheus needs
`--enable-feature=exemplar-storage`.

Labels take their values from closed lists. The names of nodes are those that `GPU_NODE_LABEL` selects, the names of hosts
those that carry one of their VMs. The series of a node end with the node, unless an episode of it is still open. Counters
begin at 0 with the process. A dry run counts what it would have recorded.

*Stable* metrics keep name, type and labels until the next major version; label values may be added. *Alpha* ones may change
with any version.
";

const AFTER_METRICS: &str = "
## What a node waits for

The values of `kind` of `haulout_waiting_on`. Each is one sentence in the log, in Events and in the status.

| kind | the node waits for |
|---|---|
| `vcenter`, `kubernetes` | the connection to vCenter; the watch of Nodes, or of NodeMaintenance objects where one concerns the node |
| `takeover` | the time in which an effect of the previous leader may still arrive |
| `write-pace` | its next write: its state changes too often, and another controller may be writing to the Node |
| `other-release` | the other release of Haulout to which the episode belongs |
| `vmotion` | vCenter to move its VM by vMotion (`VMOTION_GRACE_SECONDS`) |
| `slot`, `approval`, `skip` | a slot; `haulout.dev/approved`; the removal of `haulout.dev/skip` |
| `node-object` | the Node, which was deleted |
| `vm-lookup`, `power-state`, `question` | the lookup of its VM; the power state of the VM; an answer to vCenter's question about the VM |
| `drain-round`, `pods`, `disruption-budget`, `drain-held` | a list of its pods; pods that terminate, or may end by themselves; a PodDisruptionBudget; pods after the drain timeout with `DRAIN_TIMEOUT_ACTION=hold` |
| `maintenance-retry` | a retry of its host's maintenance, which failed |
| `volumes` | volumes of pods that are gone to be detached (`VOLUME_DETACH_TIMEOUT_SECONDS`) |
| `guest-shutdown`, `guest-shutdown-after-cancel` | the guest shutdown, also after a cancel |
| `task`, `retry` | a vCenter task; the next attempt after a refusal |
| `host-visible`, `host-settling` | its host to be connected; its host to stay after it came back by itself (`HOST_SETTLE_SECONDS`) |
| `host-entry`, `host-exit` | its host to get into maintenance although the VM is off; its host to leave maintenance |
| `survey`, `place` | a survey of the devices of other hosts; a host for a VM that a NodeMaintenance wants to relocate |
| `power-on-pause` | the next power-on of a VM that was powered off again |
| `node-ready`, `gpus` | Ready on another boot; the GPUs |
| `request`, `powered-on`, `already-there` | a person to delete a NodeMaintenance; a VM that must be powered on first; a person to delete a NodeMaintenance that is fulfilled already |
| `parked` | a person or a change, see [HauloutNodeParked](../runbooks/HauloutNodeParked.md) |

## Queries

```
time() - haulout_node_phase_start_timestamp_seconds > 3600                 # phases that have lasted for an hour
haulout_waiting_on                                                         # what nodes wait for
haulout_free_gpu_hosts == 0                                                # clusters where a node would wait for its own host
haulout_node_phase{phase=\"Parked\"} == 1                                    # nodes that need a person
time() - haulout_vcenter_last_update_timestamp_seconds > 180               # vCenter does not answer
increase(haulout_forced_poweroffs_total[1d]) > 0                           # power was cut
```

## Health

Served on `HEALTH_ADDRESS` (port 8081). `?verbose` names each check; a check that fails is named in any case.

| path | 200 when | for |
|---|---|---|
| `/livez`, `/healthz` | the event loop made progress within 30 s. vCenter and Kubernetes are not part of it: a restart does not repair them | `livenessProbe` |
| `/readyz` | the same, and vCenter and the watch of Nodes are connected and synced. `?verbose` also shows the leader and degraded parts, which do not affect readiness | `readinessProbe` |

A connection serves one request and lasts ten seconds at most; event streams of the status page last 15 minutes. At most 256
connections are open at once, and one that has not sent its request head within 400 ms (`/metrics`: 2 s) is closed, so that
clients that connect and send nothing do not keep the kubelet from its answer.
";

const EVENTS: &str = "
A transition is one Event on the Node, and so is a wait that matters to a person. An Event is not repeated within ten
minutes. Cordon and uncordon are part of the write that begins the drain or ends the episode, so they are part of its
Event. An evicted pod has its own Event, `Evicted`, and one with an annotation that cannot be read has
`DrainPolicyUnreadable`. Events are written from bounded queues, each once and with a
deadline: if the kube-apiserver rejects them, only the Events are lost. A dry run sends none.
";

const AFTER_EVENTS: &str = "
## Order

`kubectl events -n default --for node/NODE` shows them in the order of time, and follows them with `--watch`. `kubectl describe
node` sorts by `lastTimestamp`, which Kubernetes does not let an Event of events.k8s.io/v1 have: with more than twelve
Events of a Node, its order is arbitrary.

## Conditions

An episode also shows in the Node conditions of [KEP-5683](https://github.com/kubernetes/enhancements/issues/5683):
`MaintenancePlanned`, `DrainInProgress`, `Drained` and `MaintenanceInProgress`, which kube-state-metrics exports by itself. They are
removed at its end. A write that was lost is made up for within some seconds. `MaintenancePlanned` is also there for a NodeMaintenance with
`notBefore` or `window`, from some seconds after it was created until its episode begins, with the time and the name of the object.

Kubernetes 1.37 defines these types (`pkg/apis/core/types.go` of v1.37.2: \"The admin is responsible for setting and clearing this
condition\"). None of its controllers reads them, nor do the scheduler, the kubelet and kubectl: they are for people and for other programs.
";

const ANNOTATIONS: &str = "
The annotations of a Node with an episode. Haulout's own annotations are removed when the node is back in service, except
`fulfilled-request` and `last-episode`. Those of an episode of the [Python controller](../install/python-controller.md) are read as
well, and removed with the first write.
";

const TRACING: &str = "
Each episode is one trace, from the click in vCenter to the uncordon, over restarts too. It is sent by OTLP where an endpoint
is set:

```
OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318     # http/protobuf, or with OTEL_EXPORTER_OTLP_PROTOCOL=grpc: 4317
```

The standard variables are understood: [those of the exporter](../install/network.md#collectors), `OTEL_EXPORTER_OTLP_*` and
`OTEL_EXPORTER_OTLP_TRACES_*`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_EXPORTER=none`,
`OTEL_SDK_DISABLED`. Every episode is traced; samplers have no effect. A dry run sends nothing.

Search for `haulout.episode`, `k8s.node.name` or `vcenter.host.name`, which every span has: the root comes last. Trace
id and episode id are the same, and each line of the log carries it as `trace_id`. Calls to the kube-apiserver that are made
for an episode carry its `traceparent`.
";

/// The text with the names of settings in backticks.
fn settings_as_code(text: &str) -> String {
    let is_setting = |word: &str| word.contains('_') && !word.contains(|it: char| it.is_lowercase());
    let words = text.split(' ').map(|word| {
        let name = word.trim_end_matches([',', ';']);
        if is_setting(name) {
            word.replacen(name, &code(name), 1)
        } else {
            word.to_owned()
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn phases() -> String {
    let mut page = page(
        "Phases",
        "\nWhat Haulout asks in each [phase](../concepts.md#phases) of an episode. The first rule that applies decides. The rules are asked \
         again after each change of the node, its VM, its hosts and its requests.\n",
    );
    for phase in PHASES {
        let rules = phase.rules.iter().map(|rule| (rule.when, rule.then));
        let rules = rules.chain([(OTHERWISE, phase.otherwise)]);
        let rows = rules.map(|(when, then)| vec![settings_as_code(when), settings_as_code(then)]);
        let table = table(&["when", "what is done"], rows);
        let _ = write!(page, "## {}\n\n{table}", phase.name);
    }
    page.trim_end().to_owned() + "\n"
}
