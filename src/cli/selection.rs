//! The nodes that a subcommand is about, and the answer about each.

use anyhow::ensure;
use serde_json::Value;

use super::completion;
use super::controller_settings::NodeSettings;
use super::out::{Items, Output};
use super::{Format, OutputArgs};
use crate::kubernetes::answer::plain;
use crate::kubernetes::reads;

/// Nodes by name or label.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct NodeSelection {
    /// The nodes
    #[arg(value_name = "NODE", required_unless_present = "selector", add = completion::nodes())]
    nodes: Vec<String>,
    /// The nodes of the controller that this label selector matches as well
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "nodes")]
    selector: Option<String>,
}

/// Nodes by name or label, or all nodes of the controller.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct NodeSelectionOrAll {
    /// The nodes
    #[arg(value_name = "NODE", required_unless_present_any = ["selector", "all"], add = completion::nodes())]
    nodes: Vec<String>,
    /// The nodes of the controller that this label selector matches as well
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "nodes")]
    selector: Option<String>,
    /// All nodes of the controller
    #[arg(long, conflicts_with_all = ["nodes", "selector"])]
    all: bool,
}

impl NodeSelection {
    /// The names, each once.
    ///
    /// # Errors
    /// When the nodes cannot be listed, or none matches.
    pub(super) async fn names(
        &self,
        client: &kube::Client,
        settings: &NodeSettings,
    ) -> anyhow::Result<Vec<String>> {
        match &self.selector {
            Some(selector) => matching(client, &settings.with_selector(selector)).await,
            None => Ok(each_once(&self.nodes)),
        }
    }
}

impl NodeSelectionOrAll {
    /// As [`NodeSelection::names`].
    pub(super) async fn names(
        &self,
        client: &kube::Client,
        settings: &NodeSettings,
    ) -> anyhow::Result<Vec<String>> {
        match &self.selector {
            Some(selector) => matching(client, &settings.with_selector(selector)).await,
            None if self.all => matching(client, &settings.gpu_node_label).await,
            None => Ok(each_once(&self.nodes)),
        }
    }
}

async fn matching(client: &kube::Client, selector: &str) -> anyhow::Result<Vec<String>> {
    let nodes = reads::nodes(client, selector).await?;
    let names: Vec<String> = nodes.into_iter().filter_map(|node| node.metadata.name).collect();
    ensure!(!names.is_empty(), "no node matches {}", plain(selector));
    Ok(names)
}

pub(super) fn each_once(nodes: &[String]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for node in nodes {
        if !names.contains(node) {
            names.push(node.clone());
        }
    }
    names
}

/// What was done to one node.
pub(super) struct NodeAnswer {
    pub(super) value: Value,
    /// Behind the name of the node, such as ` approved`.
    pub(super) words: String,
}

/// Does `each` for one node after the other. An error about one does not stop the others; the exit code is 1 then.
pub(super) async fn for_each(
    names: &[String],
    (output, out): (OutputArgs, Output),
    mut each: impl AsyncFnMut(&str) -> anyhow::Result<NodeAnswer>,
) -> anyhow::Result<u8> {
    let format = output.output;
    let mut values = Vec::new();
    let mut failed = false;
    for name in names {
        match each(name).await {
            Ok(answer) if format.is_machine_readable() => values.push(answer.value),
            Ok(answer) => {
                let words = if format == Format::Name { "" } else { &answer.words };
                out.result(&plain(&format!("node/{name}{words}")))?;
            }
            // The only one is the error of the subcommand.
            Err(error) if names.len() == 1 => return Err(error),
            Err(error) => {
                failed = true;
                out.progress(&plain(&format!("node/{name}: {error:#}")));
            }
        }
    }
    show_values(&values, names.len(), (format, out))?;
    Ok(u8::from(failed))
}

/// One value by itself, several as a list.
pub(super) fn show_values(
    values: &[impl serde::Serialize],
    asked: usize,
    (format, out): (Format, Output),
) -> anyhow::Result<()> {
    match values {
        _ if !format.is_machine_readable() => Ok(()),
        [value] if asked == 1 => out.print_value(format, value, String::new),
        values => out.print_value(format, &Items { items: values }, String::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_named_twice_is_one() {
        let names = ["gpu-1", "gpu-2", "gpu-1"].map(str::to_owned);
        assert_eq!(each_once(&names), ["gpu-1", "gpu-2"]);
    }
}
