//! The documents against the program: what they say of settings, annotations, rights, files and tests has to be so.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::path::Path;

use clap::CommandFactory as _;
use haulout::cli::Cli;
use haulout::cluster::rights;
use haulout::config::{Args, Config};
use haulout::ids::{NodeName, RequestUid};
use haulout::keys::{DEFAULT_PREFIX, Keys};
use haulout::maintenance::effect::EffectKind;
use haulout::maintenance::observed::{HostState, Limit, PodLeft, PodLeftBecause};
use haulout::maintenance::placement::{Refused, Why};
use haulout::maintenance::request::{Action, RequestMark};
use haulout::maintenance::waiting::{ParkReason, WaitingOn};
use haulout::nodemaintenance::kind::NodeMaintenance;
use haulout::telemetry::events::Reason;
use haulout::telemetry::metrics::ALL;
use haulout::vsphere::privileges;
use haulout_lab::kube::Options;
use jiff::Timestamp;
use kube::CustomResourceExt as _;

const DOCUMENTS: [&str; 5] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
];

/// A row of the README's table of settings.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    flag: String,
    default: String,
    range: String,
}

#[test]
fn the_table_of_settings_is_the_programs_own() {
    let readme = read("README.md");
    let shown: BTreeMap<String, Setting> = rows(&readme)
        .filter(|cells| cells.len() == 5 && cells[1].starts_with("--"))
        .map(|cells| {
            let setting = Setting {
                flag: cells[1].clone(),
                default: cells[2].clone(),
                range: cells[3].clone(),
            };
            (cells[0].clone(), setting)
        })
        .collect();

    let least = Args {
        vcenter_host: Some("vcenter.example.com".to_owned()),
        vcenter_user: Some("someone".to_owned()),
        vcenter_password_file: Some("password".to_owned()),
        ..Args::default()
    };
    let defaults: BTreeMap<&str, String> = Config::from_args(least).unwrap().describe().into_iter().collect();
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    let mut known = Vec::new();
    for arg in run.get_arguments().filter(|arg| arg.get_env().is_some()) {
        let name = arg.get_env().unwrap().to_str().unwrap();
        let help = arg.get_help().unwrap().to_string();
        let row = shown
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not in the table"));
        assert_eq!(row.flag, format!("--{}", arg.get_long().unwrap()), "{name}");
        let default = match defaults.get(name) {
            _ if help.contains("(required") => "required",
            Some(value) if !value.is_empty() => value,
            Some(_) | None => "unset",
        };
        assert_eq!(row.default, default, "the default of {name}");
        if let Some((_, range)) = help
            .rsplit_once("; ")
            .filter(|(before, _)| before.contains("[default"))
        {
            assert_eq!(row.range, range.trim_end_matches(']'), "the range of {name}");
        }
        known.push(name.to_owned());
    }
    known.sort();
    assert_eq!(shown.keys().cloned().collect::<Vec<_>>(), known);
}

#[test]
fn the_table_of_metrics_is_the_programs_own() {
    let document = read("docs/metrics.md");
    // A metric that is there twice would be missed as a key of a map.
    let mut shown: Vec<(String, String, String)> = rows(&document)
        .filter(|cells| cells[0].starts_with("haulout_") || cells[0].starts_with("leader_election_"))
        .map(|cells| {
            assert_eq!(cells.len(), 5, "{cells:?}");
            assert!(["stable", "alpha"].contains(&cells[4].as_str()), "{cells:?}");
            (cells[0].clone(), cells[1].clone(), cells[2].clone())
        })
        .collect();
    let mut held: Vec<(String, String, String)> = ALL
        .iter()
        .map(|metric| {
            let labels = match metric.labels {
                [] => "none".to_owned(),
                some => some.join(", "),
            };
            (metric.name(), metric.kind.to_string(), labels)
        })
        .collect();
    shown.sort();
    held.sort();
    assert_eq!(shown, held);
}

#[test]
fn the_table_of_annotations_has_every_key() {
    let readme = read("README.md");
    let mut shown: Vec<String> = rows(&readme)
        .map(|cells| cells[0].clone())
        .filter(|first| first.starts_with(DEFAULT_PREFIX))
        .collect();
    // By name, so that a key that is added is missed here.
    let Keys {
        state,
        host,
        migrated_to_host,
        transition_time,
        episode,
        last_episode,
        keep_cordoned,
        fulfilled,
    } = Keys::under(DEFAULT_PREFIX);
    let mut held = vec![
        state,
        host,
        migrated_to_host,
        transition_time,
        episode,
        last_episode,
        keep_cordoned,
        fulfilled,
    ];
    shown.sort();
    held.sort();
    assert_eq!(shown, held);
}

#[test]
fn the_table_of_events_has_every_reason() {
    let readme = read("README.md");
    let shown: Vec<(String, String)> = rows(&readme)
        .filter(|cells| cells.len() == 3 && ["Normal", "Warning"].contains(&cells[1].as_str()))
        .map(|cells| (cells[0].clone(), cells[1].clone()))
        .collect();
    let held = Reason::ALL.map(|reason| (reason.name().to_owned(), reason.severity().word().to_owned()));
    assert_eq!(shown, held);
}

#[test]
fn the_rights_in_the_readme_are_those_the_lab_gives() {
    let readme = read("README.md");
    let list = |line: &str, key: &str| -> Option<Vec<String>> {
        let items = line
            .trim()
            .trim_start_matches("- ")
            .strip_prefix(key)?
            .trim()
            .strip_prefix('[')?
            .strip_suffix(']')?;
        Some(
            items
                .split(", ")
                .map(|item| item.trim_matches('"').to_owned())
                .collect(),
        )
    };
    let of = |key: &str| -> Vec<Vec<String>> { readme.lines().filter_map(|line| list(line, key)).collect() };
    let rules = Options::default().haulout_rules;
    let held = |part: fn(&k8s_openapi::api::rbac::v1::PolicyRule) -> Vec<String>| -> Vec<Vec<String>> {
        rules.iter().map(part).collect()
    };
    assert_eq!(
        of("apiGroups:"),
        held(|rule| rule.api_groups.clone().unwrap_or_default())
    );
    assert_eq!(
        of("resources:"),
        held(|rule| rule.resources.clone().unwrap_or_default())
    );
    assert_eq!(of("verbs:"), held(|rule| rule.verbs.clone()));
}

#[test]
fn a_check_asks_for_the_rights_and_privileges_that_the_readme_lists() {
    let asked = rights::NEEDED.iter().chain([&rights::LEASES]);
    let asked: Vec<(String, String, Vec<String>)> = asked
        .map(|right| {
            let verbs = right.verbs.iter().map(|verb| (*verb).to_owned()).collect();
            (right.group.to_owned(), right.resource.to_owned(), verbs)
        })
        .collect();
    let given: Vec<(String, String, Vec<String>)> = Options::default()
        .haulout_rules
        .iter()
        .map(|rule| {
            let first = |list: &Option<Vec<String>>| list.clone().unwrap_or_default().concat();
            (
                first(&rule.api_groups),
                first(&rule.resources),
                rule.verbs.clone(),
            )
        })
        .collect();
    assert_eq!(
        asked, given,
        "the lab's rules are compared with the README elsewhere"
    );
    let readme = read("README.md");
    for needed in privileges::NEEDED {
        let row = readme
            .lines()
            .any(|line| line.starts_with("| `") && line.contains(&format!("`{}`", needed.id)));
        assert!(row, "{} is in no row of the README", needed.id);
    }
}

#[test]
fn the_table_of_verbs_is_the_programs_own() {
    let readme = read("README.md");
    let shown: Vec<String> = rows(&readme)
        .filter(|cells| cells.len() == 3 && cells[0].starts_with("haulout "))
        .filter_map(|cells| cells[0].split(' ').nth(1).map(str::to_owned))
        .collect();
    let command = Cli::command();
    let held: Vec<&str> = command
        .get_subcommands()
        .map(|verb| verb.get_name())
        .filter(|name| *name != "run")
        .collect();
    assert_eq!(shown, held);
}

#[test]
fn the_readme_shows_waits_in_the_programs_own_words() {
    let at = |time: &str| time.parse::<Timestamp>().unwrap();
    let held = |name: &str, budget: &str| PodLeft {
        name: name.to_owned(),
        why: PodLeftBecause::Budget {
            names: vec![budget.to_owned()],
            said: format!("The disruption budget {budget} needs 2 healthy pods and has 2 currently"),
        },
    };
    let leaving = |name: &str| PodLeft {
        name: name.to_owned(),
        why: PodLeftBecause::Leaving,
    };
    let refused = |host: &str, why: Why| Refused {
        host: host.to_owned(),
        why,
    };
    let waits = [
        WaitingOn::Slot {
            ahead: vec![NodeName::new("gpu-7")],
            limit: Limit::ConcurrentDrains(1),
        },
        WaitingOn::Pods(vec![
            held("ml/train-0", "train"),
            leaving("ml/a"),
            leaving("ml/b"),
        ]),
        WaitingOn::DrainHeld(vec![held("ml/train-0", "train")]),
        WaitingOn::GuestShutdown {
            until: at("2026-03-01T03:14:00Z"),
        },
        WaitingOn::HostExit {
            host: "esx-3".to_owned(),
            state: HostState::InMaintenance.words(),
            refused: vec![
                refused("esx-1", Why::DevicesTaken),
                refused("esx-2", Why::State(HostState::Quarantined.words())),
            ],
        },
        WaitingOn::Retry {
            effect: EffectKind::PowerOn,
            said: "NoPermission: VirtualMachine.Interact.PowerOn".to_owned(),
            at: at("2026-03-01T03:20:00Z"),
        },
        WaitingOn::NodeReady {
            missing: "its Ready is from before the power cycle",
        },
        WaitingOn::Gpus {
            resource: "nvidia.com/gpu".to_owned(),
            have: 0,
            want: 2,
        },
        WaitingOn::Request {
            request: RequestMark {
                name: "gpu-7-power-supply".to_owned(),
                uid: RequestUid::new("uid-1"),
            },
            asks: Action::Drain.to_string(),
        },
        WaitingOn::Approval,
        WaitingOn::Parked(ParkReason::VmAmbiguous { count: 2 }),
    ];
    let readme = read("README.md");
    let shown: Vec<&str> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("waiting for "))
        .collect();
    assert_eq!(shown, waits.map(|wait| wait.to_string()));
}

#[test]
fn every_file_that_a_document_names_is_there() {
    const PLACES: [&str; 7] = [
        "src/",
        "crates/",
        "tests/",
        "docs/",
        "proto-notes/",
        ".ci/",
        ".github/",
    ];
    let mut missing = Vec::new();
    for document in DOCUMENTS {
        let text = read(document);
        let named = code(&text).filter(|word| PLACES.iter().any(|place| word.starts_with(place)));
        let linked = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
            .filter(|link| !link.contains("://"));
        for path in named.chain(linked) {
            let path = path.split(['#', ':', '*', '{']).next().unwrap();
            if !root().join(path).exists() {
                missing.push(format!("{document}: {path}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_test_and_target_that_a_document_names_is_there() {
    let mut sources = String::new();
    for folder in ["src", "crates", "tests"] {
        append(&root().join(folder), &mut sources);
    }
    let makefile = read("Makefile");
    let mut missing = Vec::new();
    let mut tests = 0;
    for document in DOCUMENTS {
        let text = read(document);
        // Nothing but a test has a name of that many words.
        let named = code(&text).filter(|word| {
            word.split('_').count() >= 4 && word.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
        });
        for name in named.filter(|name| name.chars().any(|c| c.is_ascii_lowercase())) {
            tests += 1;
            if !sources.contains(&format!("fn {name}(")) {
                missing.push(format!("{document}: the test {name}"));
            }
        }
        for target in code(&text).filter_map(|word| word.strip_prefix("make ")) {
            let target = target.split(' ').next().unwrap();
            if !makefile.contains(&format!("\n{target}:")) {
                missing.push(format!("{document}: make {target}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(tests > 10, "only {tests} tests are named");
}

#[test]
fn each_measure_against_a_threat_names_the_test_that_shows_it() {
    let document = read("SECURITY.md");
    let measures: Vec<Vec<&str>> = document
        .lines()
        .filter(|line| line.starts_with("| ") && line.matches(" | ").count() == 2)
        .map(|line| line.trim_matches('|').split(" | ").collect())
        .skip_while(|cells: &Vec<&str>| cells[0].trim() != "threat")
        .skip(1)
        .collect();
    assert!(measures.len() > 15, "only {} measures", measures.len());
    for cells in measures {
        let shown = cells[2].trim();
        // What no test can show names the place where everybody can see it.
        let by_test = code(shown).any(|word| word.split('_').count() >= 4);
        let by_construction = shown.starts_with("by construction, ") && code(shown).next().is_some();
        assert!(by_test || by_construction, "{cells:?}");
    }
}

#[test]
fn the_version_of_the_program_is_in_the_changelog_or_ahead_of_it() {
    let changelog = read("CHANGELOG.md");
    let version = env!("CARGO_PKG_VERSION");
    let newest = changelog
        .lines()
        .find_map(|line| line.strip_prefix("## ["))
        .unwrap();
    assert!(
        newest.starts_with("Unreleased]") || newest.starts_with(&format!("{version}]")),
        "{newest}"
    );
}

/// The rows of all tables, as cells without their backticks.
fn rows(text: &str) -> impl Iterator<Item = Vec<String>> {
    text.lines().filter(|line| line.starts_with("| `")).map(|line| {
        let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
        let cells = inner.split(" | ").map(|cell| {
            let cell = cell.trim();
            // A cell of one code word is that word; in any other, the backticks only set words off.
            cell.replace('`', "")
        });
        cells.collect()
    })
}

/// What stands in backticks, outside of blocks of code.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split("```")
        .step_by(2)
        .flat_map(|prose| prose.split('`').skip(1).step_by(2))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn append(folder: &Path, to: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            append(&path, to);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            to.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn the_chart_carries_the_kind_as_the_program_knows_it() {
    let known = serde_json::to_value(NodeMaintenance::crd()).unwrap();
    let carried: serde_json::Value = serde_saphyr::from_str(&read("chart/files/crd.yaml")).unwrap();
    assert_eq!(
        carried, known,
        "write it anew: haulout crd > chart/files/crd.yaml"
    );
}
