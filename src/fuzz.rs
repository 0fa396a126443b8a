//! Entries of the fuzz targets in `tests/fuzz/`: settings, names, NodeMaintenance objects and kubeconfigs.

use std::ffi::OsString;
use std::time::Duration;

use kube::api::DynamicObject;
use kube::config::{AuthInfo, Cluster, Config as KubeConfig, KubeConfigOptions, Kubeconfig};
use serde_json::Value;

use crate::cli::{ArgsError, Cli, Command};
use crate::config::{Config, parse};
use crate::foreign_maintenance::ForeignApi;
use crate::ids::{EpisodeId, NodeName, VmUuid, is_object_name, is_traceparent_of};
use crate::kubernetes::{answer, client};
use crate::nodemaintenance::kind::{MaintenanceWindow, NodeMaintenance};
use crate::nodemaintenance::{api, foreign};
use crate::telemetry::log::log_level;
use crate::telemetry::silences::matchers::LabelMatchers;

/// The most characters of a message that is shown, with the one that marks a cut.
const SHOWN_MAX: usize = 1_001;

/// What Kubernetes' own parser of selectors reads: of all spaces only these.
const OF_SELECTORS: &str = "-_./,=!() \t\r\n";

/// Reads lines of `NAME=value` as settings of the controller, each one as its flag.
///
/// # Panics
/// If settings that are read are shown as others, on several lines or with the password, or if the report of wrong ones is not one
/// line for each.
pub fn settings(lines: &str) {
    let mut args: Vec<OsString> = vec!["haulout".into(), "run".into()];
    args.extend(lines.lines().map(|line| flag(line).into()));
    match Cli::read(args) {
        Ok(Cli {
            command: Command::Run(config),
        }) => shown_settings(&config, lines),
        Ok(_) => {}
        Err(ArgsError::CommandLine(error)) => assert!(error.exit_code() == 2 || !error.use_stderr()),
        Err(ArgsError::Settings(error)) => {
            let text = error.to_string();
            assert_eq!(text.lines().count(), error.problems.len() + 1, "{text}");
            assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        }
    }
}

fn flag(line: &str) -> String {
    let (name, value) = line.split_once('=').unwrap_or((line, ""));
    format!("--{}={value}", name.to_lowercase().replace('_', "-"))
}

fn shown_settings(config: &Config, lines: &str) {
    let line = config.line();
    assert!(!line.chars().any(char::is_control), "{line:?}");
    let passwords = lines
        .lines()
        .filter_map(|line| line.strip_prefix("VCENTER_PASSWORD="));
    for password in passwords.filter(|password| is_secret(password, lines)) {
        assert!(!line.contains(password), "{line}");
    }
    let mut args: Vec<OsString> = vec!["haulout".into(), "run".into()];
    let given = config.describe().iter().filter(|(_, value)| !value.is_empty());
    args.extend(given.map(|(name, value)| flag(&format!("{name}={value}")).into()));
    let again = match Cli::read(args) {
        Ok(Cli {
            command: Command::Run(again),
        }) => Ok(again),
        Ok(_) => Err("another subcommand".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let differing = again.map(|again| {
        let both = config.describe().iter().zip(again.describe());
        let differing = both.filter(|(one, two)| one != two);
        differing
            .map(|(one, two)| format!("{one:?} and {two:?}"))
            .collect::<Vec<_>>()
    });
    assert_eq!(
        differing,
        Ok(Vec::new()),
        "settings that are shown are read again"
    );
}

/// Whether `text` is a secret of the seeds that stands nowhere else: other words may be those of a message.
fn is_secret(text: &str, all: &str) -> bool {
    text.starts_with("s3cret") && all.matches(text).count() == 1
}

/// Reads `text` as a selector, the key of a label, the name of an object, and matchers of Alertmanager.
///
/// # Panics
/// If what is read is read differently again, or is none for Kubernetes.
pub fn selector(text: &str) {
    let again = |read: &dyn Fn(&str) -> Result<String, String>| {
        if let Ok(value) = read(text) {
            assert_eq!(read(&value).as_ref(), Ok(&value));
        }
    };
    again(&parse::node_label);
    again(&parse::label_key);
    again(&parse::release);
    again(&parse::object_name);
    again(&log_level);
    if let Ok(selector) = parse::node_label(text) {
        let is_known = |c: char| c.is_ascii_alphanumeric() || OF_SELECTORS.contains(c);
        assert!(selector.chars().all(is_known), "{selector:?}");
    }
    if let Ok(key) = parse::label_key(text) {
        assert!(
            parse::node_label(&format!("{key} in (a)")).is_ok()
                && parse::node_label(&format!("!{key}")).is_ok()
        );
    }
    if let Ok(matchers) = text.parse::<LabelMatchers>() {
        let written: Vec<String> = matchers.0.iter().map(ToString::to_string).collect();
        assert_eq!(written.join(",").parse::<LabelMatchers>().as_ref(), Ok(&matchers));
    }
}

/// Reads `text` as names and ids, shows it, and makes names of objects of it. Lines are: a node, an episode, a boot.
///
/// # Panics
/// If what is shown is long, on several lines, or changes when it is shown again, or if an object has a name that Kubernetes refuses.
pub fn name(text: &str) {
    let shown = answer::plain(text);
    assert!(
        shown.chars().count() <= SHOWN_MAX && !shown.chars().any(char::is_control),
        "{shown:?}"
    );
    assert_eq!(answer::plain(&shown), shown);
    let mut lines = text.split('\n');
    let mut next = || lines.next().unwrap_or_default();
    let (node, episode) = (next(), next());
    let read_id = EpisodeId::parse(episode);
    let id = read_id
        .clone()
        .unwrap_or_else(|| EpisodeId::new("00112233445566778899aabbccddeeff"));
    if is_object_name(node) {
        let name = api::name_of(&NodeName::new(node), &id);
        assert!(is_object_name(&name), "{name}");
    }
    // It is sent in a header.
    assert!(!is_traceparent_of(node, &id) || (node.len() == 55 && http::HeaderValue::from_str(node).is_ok()));
    assert_eq!(
        read_id.is_some(),
        serde_json::from_value::<EpisodeId>(episode.into()).is_ok()
    );
    if let Ok(name) = serde_json::from_value::<NodeName>(node.into()) {
        assert!(name.as_str() == node && node.len() <= 253 && !node.chars().any(char::is_control));
    }
    for uuid in [VmUuid::parse(node), VmUuid::from_provider_id(node)]
        .into_iter()
        .flatten()
    {
        assert_eq!(VmUuid::parse(&uuid.to_string()), Some(uuid));
        assert!(uuid.swapped().swapped() == uuid && uuid.same_machine(uuid.swapped()));
    }
}

/// Reads `json` as a NodeMaintenance of Haulout and of each other project.
///
/// # Panics
/// If an object that is read is written differently, or its facts are unbounded.
pub fn maintenance(json: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(json) else {
        return;
    };
    if let Ok(object) = serde_json::from_value::<DynamicObject>(value.clone()) {
        for api in ForeignApi::ALL {
            drop(foreign::read_foreign(*api, &object));
        }
    }
    let Ok(object) = serde_json::from_value::<NodeMaintenance>(value) else {
        return;
    };
    let facts = api::facts(&object);
    let lists = [
        facts.status.pods.len(),
        facts.status.phases.len(),
        facts.status.conditions.len(),
    ];
    assert!(lists.iter().all(|length| *length <= 100), "{lists:?}");
    let written = serde_json::to_value(&object).unwrap_or_default();
    let again = serde_json::from_value::<NodeMaintenance>(written.clone());
    let again = again.map(|again| serde_json::to_value(&again).unwrap_or_default());
    assert_eq!(again.ok(), Some(written), "what is written is read back");
    let window = object.spec.window.as_ref().and_then(|window| window.read().ok());
    if let Some(window) = window {
        assert_eq!(MaintenanceWindow::from(&window).read().as_ref(), Ok(&window));
    }
}

/// Reads `yaml` as a kubeconfig, and makes a client of it. Programs and files that it names are left out.
///
/// # Panics
/// If an error has several lines, or shows a token.
pub fn kubeconfig(yaml: &str) {
    let error = match Kubeconfig::from_yaml(yaml) {
        Ok(read) => client_of(without_files(read)),
        Err(error) => Some(client::unusable(&error)),
    };
    let Some(error) = error else { return };
    assert!(
        error.chars().count() <= SHOWN_MAX && !error.chars().any(char::is_control),
        "{error:?}"
    );
    let tokens = yaml
        .lines()
        .filter_map(|line| line.trim().strip_prefix("token: "));
    for token in tokens.filter(|token| is_secret(token, yaml)) {
        assert!(!error.contains(token), "{error}");
    }
}

/// `None`, or why there is no client.
fn client_of(read: Kubeconfig) -> Option<String> {
    const DEADLINE: Duration = Duration::from_secs(5);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string());
    let made = runtime.and_then(|runtime| {
        runtime.block_on(async {
            let options = KubeConfigOptions::default();
            let config =
                tokio::time::timeout(DEADLINE, KubeConfig::from_custom_kubeconfig(read, &options)).await;
            let config = config.map_err(|error| error.to_string())?;
            let config = config.map_err(|error| client::unusable(&error))?;
            client::client(config)
                .map(drop)
                .map_err(|error| answer::chain(&error))
        })
    });
    made.err()
}

fn without_files(mut read: Kubeconfig) -> Kubeconfig {
    for named in &mut read.auth_infos {
        if let Some(user) = &mut named.auth_info {
            *user = AuthInfo {
                exec: None,
                auth_provider: None,
                token_file: None,
                client_certificate: None,
                client_key: None,
                ..user.clone()
            };
        }
    }
    for named in &mut read.clusters {
        if let Some(cluster) = &mut named.cluster {
            *cluster = Cluster {
                certificate_authority: None,
                ..cluster.clone()
            };
        }
    }
    read
}

#[cfg(test)]
mod tests;
