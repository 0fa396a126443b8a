//! The documents against the repository: the rights, files, tests and versions they name. `docs/reference` is generated, and
//! `tests/reference.rs` compares it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::path::Path;

use haulout::foreign_maintenance::ForeignApi;
use haulout::kubernetes::rights;
use haulout::nodemaintenance::kind::NodeMaintenance;
use haulout::vsphere::privileges;
use haulout_lab::kube::KubeOptions;
use kube::CustomResourceExt as _;

/// The documents at the top, and every Markdown file of `docs/`.
fn documents() -> Vec<String> {
    let top = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "SUPPORT.md",
        "GOVERNANCE.md",
        "CODE_OF_CONDUCT.md",
        "ROADMAP.md",
        "ADOPTERS.md",
    ];
    let mut documents: Vec<String> = top.map(str::to_owned).into();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let path = path.strip_prefix(root()).unwrap();
                documents.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    documents
}

#[test]
fn the_rights_in_the_book_are_those_the_lab_gives() {
    let page = read("docs/install/kubernetes-rights.md");
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
    let of = |key: &str| -> Vec<Vec<String>> { page.lines().filter_map(|line| list(line, key)).collect() };
    let rules = KubeOptions::default().haulout_rules;
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
fn a_check_asks_for_the_rights_and_privileges_that_the_book_lists() {
    let foreign = ForeignApi::ALL.iter().copied();
    let foreign: Vec<_> = foreign.flat_map(rights::foreign_maintenances).collect();
    let asked = rights::NEEDED
        .iter()
        .chain(&foreign)
        .chain(rights::MACHINES)
        .chain(rights::OPENSHIFT)
        .chain([&rights::LEASES]);
    let asked: Vec<(String, String, Vec<String>)> = asked
        .map(|right| {
            let verbs = right.verbs.iter().map(|verb| (*verb).to_owned()).collect();
            (right.group.to_owned(), right.resource.to_owned(), verbs)
        })
        .collect();
    let given: Vec<(String, String, Vec<String>)> = KubeOptions::default()
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
        "the lab's rules are compared with the page elsewhere"
    );
    let page = read("docs/install/vcenter-role.md");
    for needed in privileges::NEEDED {
        let row = page
            .lines()
            .any(|line| line.starts_with("| `") && line.contains(&format!("`{}`", needed.id)));
        assert!(row, "{} is in no row of the page", needed.id);
    }
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
    for document in documents() {
        let text = read(&document);
        let named = code(&text).filter(|word| PLACES.iter().any(|place| word.starts_with(place)));
        let named = named.map(|word| root().join(word.split([':', '*', '{']).next().unwrap()));
        let folder = root().join(&document).parent().unwrap().to_owned();
        let linked = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
            .filter(|link| !link.contains("://"))
            .map(|link| folder.join(link.split('#').next().unwrap()));
        for path in named.chain(linked).filter(|path| !path.exists()) {
            missing.push(format!("{document}: {}", path.display()));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The tables of modules have headings like "in `crates/core/src/inventory/`", under which files have no folder.
#[test]
fn every_module_in_the_tables_of_the_architecture_is_there() {
    let text = read("docs/development/architecture.md");
    let mut folder = None;
    let mut missing = Vec::new();
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let first = row.split('|').nth(1).unwrap_or_default().trim();
        if first.starts_with("**") {
            folder = code(first).next();
            continue;
        }
        let Some(folder) = folder.filter(|folder| folder.ends_with('/')) else {
            continue;
        };
        let modules = code(first).filter(|name| name.ends_with(".rs") || name.ends_with('/'));
        let modules = modules.map(|name| format!("{folder}{name}"));
        missing.extend(modules.filter(|path| !root().join(path).exists()));
    }
    assert!(folder.is_some(), "the tables have headings");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_heading_that_a_document_links_to_exists() {
    let mut missing = Vec::new();
    let mut links = 0;
    for document in documents() {
        let text = read(&document);
        let linked = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in linked.filter(|link| !link.contains("://")) {
            let Some((file, heading)) = link.split_once('#') else {
                continue;
            };
            links += 1;
            let target = match file {
                "" => root().join(&document),
                _ => root().join(&document).parent().unwrap().join(file),
            };
            let target = std::fs::read_to_string(target).unwrap_or_default();
            if !headings(&target).any(|it| it == heading) {
                missing.push(format!("{document}: {link}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(links > 3, "only {links} links have a heading");
}

/// The anchors of the headings of a document, as GitHub and mdBook make them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let titles = text.lines().filter(|line| line.starts_with('#'));
    titles.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|it| it.is_alphanumeric() || [' ', '-', '_'].contains(it));
        kept.collect::<String>().replace(' ', "-")
    })
}

#[test]
fn every_page_is_in_the_book() {
    let summary = read("docs/SUMMARY.md");
    let pages = documents()
        .into_iter()
        .filter_map(|it| it.strip_prefix("docs/").map(str::to_owned));
    let missing: Vec<String> = pages
        .filter(|page| page != "SUMMARY.md" && !summary.contains(&format!("({page})")))
        .collect();
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
    // In the other pages of docs/, metrics have such names too.
    for document in documents()
        .iter()
        .filter(|document| !document.starts_with("docs/") || *document == "docs/threats.md")
    {
        let text = read(document);
        // Only tests have names of that many words.
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
    let document = read("docs/threats.md");
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
        // A measure without a test names the place in the code.
        let by_test = code(shown).any(|word| word.split('_').count() >= 4);
        let by_construction = shown.starts_with("by construction, ") && code(shown).next().is_some();
        assert!(by_test || by_construction, "{cells:?}");
    }
}

/// The probe ids that a note names, as in: probe `long-poll`, or: probes `a`, `b`.
fn named_probes(note: &str) -> Vec<String> {
    let note = note.split_whitespace().collect::<Vec<_>>().join(" ");
    let note = note.replace("probes `", "probe `");
    let mentions = note.split("probe `").skip(1);
    let ids = mentions.flat_map(|rest| {
        let mention = rest.split([')', '.', ';', ':']).next().unwrap_or_default();
        mention
            .split('`')
            .step_by(2)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    ids.collect()
}

#[test]
fn notes_name_each_probe_and_no_other() {
    let mut named = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("proto-notes")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            named.extend(named_probes(&std::fs::read_to_string(path).unwrap()));
        }
    }
    let script = read("proto-notes/probe.py");
    let table = script
        .split("QUESTIONS = ")
        .nth(1)
        .unwrap()
        .split("\"\"\"")
        .nth(1)
        .unwrap();
    let rows: Vec<Vec<&str>> = table
        .trim()
        .lines()
        .map(|row| row.split(" | ").collect())
        .collect();
    assert!(
        rows.len() > 30 && rows.iter().all(|row| row.len() == 5),
        "{rows:?}"
    );
    let listed: BTreeSet<String> = rows.iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(listed.len(), rows.len(), "an id is there twice");
    assert_eq!(named, listed);
    let page = read("proto-notes/open-questions.md");
    for row in rows {
        let row = format!("| {} |", row.join(" | "));
        assert!(
            page.lines().any(|line| line == row),
            "put the table of `probe.py --list` into open-questions.md: {row}"
        );
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

#[test]
fn oldest_rust_is_the_same_everywhere() {
    let rust = env!("CARGO_PKG_RUST_VERSION");
    for (file, words) in [
        ("rust-toolchain.toml", format!("channel = \"{rust}.0\"")),
        ("Dockerfile", format!("FROM rust:{rust}-")),
        ("README.md", format!("Rust {rust},")),
        ("CONTRIBUTING.md", format!("Rust {rust} or newer")),
        ("docs/development/testing.md", format!("Rust {rust} or newer")),
    ] {
        assert!(read(file).contains(&words), "{file} does not say {words:?}");
    }
}

/// The text in backticks, outside of code blocks.
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
