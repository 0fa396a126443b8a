//! Completion in a shell, also of the names of nodes and hosts.
//!
//! The shell runs the program itself: with [`VARIABLE`] set, after the script of `haulout completion SHELL`, or as
//! [`KUBECTL_COMPLETER`], which is what kubectl runs to complete the arguments of a plugin.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use clap_complete::env::{CompleteEnv, Shells};
use clap_complete::{ArgValueCandidates, CompletionCandidate, Shell};

use super::command_as;
use super::controller_settings::NodeSettings;
use super::leader::LeaderArgs;
use super::out::Output;
use crate::kubernetes::client::connect;
use crate::kubernetes::reads;
use crate::plan::HOSTS_PATH;

/// The environment variable with which the script of a shell calls the program.
const VARIABLE: &str = "HAULOUT_COMPLETE";

/// The name under which kubectl looks for the completion of the plugin
/// (`kubectl_complete-<plugin>`, <https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/>).
const KUBECTL_COMPLETER: &str = "kubectl_complete-haulout";

/// The end of the answer to kubectl: no names of files (cobra's `ShellCompDirectiveNoFileComp`).
const NO_FILES: &str = ":4";

/// The longest wait for names. A person who types does not wait longer.
const DEADLINE: Duration = Duration::from_secs(3);

/// The longest wait for the names of hosts, where those of nodes are candidates too.
const HOSTS_DEADLINE: Duration = Duration::from_secs(2);

/// Answers a shell that completes a command line. `false` if this is none of its calls.
///
/// # Errors
/// When the answer cannot be written, or the shell is unknown.
pub fn answer(args: impl IntoIterator<Item = OsString>) -> anyhow::Result<bool> {
    let args: Vec<OsString> = args.into_iter().collect();
    let called_as = args.first().map(Path::new).and_then(Path::file_stem);
    if called_as.is_some_and(|name| name == KUBECTL_COMPLETER) {
        answer_kubectl(args)?;
        return Ok(true);
    }
    let current = std::env::current_dir().ok();
    let answered = CompleteEnv::with_factory(|| command_as(false))
        .var(VARIABLE)
        .try_complete(args, current.as_deref());
    answered.context("completing the command line")
}

/// Writes the candidates in the format of kubectl, which is that of cobra: one a line, its help behind a tab.
fn answer_kubectl(args: Vec<OsString>) -> anyhow::Result<()> {
    let last = args.len().saturating_sub(1);
    let candidates = clap_complete::engine::complete(&mut command_as(true), args, last, None)?;
    let mut stdout = std::io::stdout().lock();
    for candidate in candidates.iter().filter(|candidate| !candidate.is_hide_set()) {
        let value = candidate.get_value().to_string_lossy();
        match candidate.get_help() {
            Some(help) => writeln!(stdout, "{value}\t{help}")?,
            None => writeln!(stdout, "{value}")?,
        }
    }
    writeln!(stdout, "{NO_FILES}")?;
    Ok(())
}

/// The script that a shell has to run.
pub(super) fn script(shell: Shell) -> anyhow::Result<String> {
    let mut script = Vec::new();
    Shells::builtins()
        .completer(&shell.to_string())
        .with_context(|| format!("no completion for {shell}"))?
        .write_registration(VARIABLE, "haulout", "haulout", "haulout", &mut script)?;
    Ok(String::from_utf8(script)?)
}

/// Completes the name of a node.
pub(super) fn nodes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| named(node_names()))
}

/// Completes the name of an ESXi host.
pub(super) fn hosts() -> ArgValueCandidates {
    ArgValueCandidates::new(|| named(host_names()))
}

/// Completes the name of a node or of an ESXi host.
pub(super) fn nodes_and_hosts() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        named(async {
            // The leader may be busy; the names of nodes are there without it.
            let hosts = tokio::time::timeout(HOSTS_DEADLINE, host_names());
            let (nodes, hosts) = tokio::join!(node_names(), hosts);
            Ok(nodes
                .unwrap_or_default()
                .into_iter()
                .chain(hosts.ok().and_then(Result::ok).unwrap_or_default())
                .collect())
        })
    })
}

/// None if they cannot be had in time: there is nobody to tell.
fn named(names: impl Future<Output = anyhow::Result<Vec<String>>>) -> Vec<CompletionCandidate> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    let found = runtime.block_on(async { tokio::time::timeout(DEADLINE, names).await });
    runtime.shutdown_background();
    let names = found.ok().and_then(Result::ok).unwrap_or_default();
    names.into_iter().map(CompletionCandidate::new).collect()
}

async fn node_names() -> anyhow::Result<Vec<String>> {
    let client = connect().await?;
    let settings = NodeSettings::read(&client).await;
    let nodes = reads::nodes(&client, &settings.gpu_node_label).await?;
    Ok(nodes.into_iter().filter_map(|node| node.metadata.name).collect())
}

/// The hosts that the leader knows.
async fn host_names() -> anyhow::Result<Vec<String>> {
    let leader = LeaderArgs::from_environment().find(Output::new()).await?;
    leader.ask(HOSTS_PATH).await
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn each_shell_has_a_script_that_calls_the_program() {
        for shell in Shell::value_variants() {
            let script = script(*shell).unwrap();
            assert!(script.contains(VARIABLE) && script.contains("haulout"), "{shell}");
        }
    }
}
