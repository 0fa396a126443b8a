//! The settings of the controller, as the subcommands need them: from the command line, else from the cluster.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;

use super::NodeSettingsArgs;
use super::out::Output;
use crate::config::{Config, DEFAULT_GPU_RESOURCES};
use crate::keys::DEFAULT_NODE_SELECTOR;
use crate::kubernetes::answer::plain;
use crate::kubernetes::reads;
use crate::nodemaintenance;
use crate::nodemaintenance::kind::NodeMaintenance;

/// The settings, complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeSettings {
    pub(super) gpu_node_label: String,
    pub(super) gpu_resources: String,
    pub(super) trace_ui_url_template: Option<String>,
    /// Nothing names the selector, so the default is used.
    pub(super) is_default_selector: bool,
    /// Whether a drain needs an approval; `None` where that is not known.
    pub(super) requires_approval: Option<bool>,
}

impl NodeSettings {
    /// Those of a controller's configuration.
    pub(super) fn of(config: &Config) -> Self {
        Self {
            gpu_node_label: config.gpu_node_label.clone(),
            gpu_resources: config.gpu_resources.clone(),
            trace_ui_url_template: config.trace_ui_url_template.clone(),
            is_default_selector: false,
            requires_approval: Some(config.pace.require_approval),
        }
    }

    /// Those that the environment and the cluster name.
    pub(super) async fn read(client: &kube::Client) -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let named = NodeSettingsArgs {
            gpu_node_label: variable("GPU_NODE_LABEL"),
            gpu_resources: variable("GPU_RESOURCES"),
            trace_ui_url_template: variable("TRACE_UI_URL_TEMPLATE"),
        };
        named.complete(client, None).await
    }

    /// The selector of the nodes that `selector` matches as well.
    pub(super) fn with_selector(&self, selector: &str) -> String {
        format!("{},{selector}", self.gpu_node_label)
    }
}

impl NodeSettingsArgs {
    /// Completes the settings: by the ConfigMap of the one controller in the cluster, or by the selector in the kept episodes, or
    /// by the defaults of the program. What cannot be read counts as absent, because many people may not read ConfigMaps.
    pub(super) async fn complete(
        &self,
        client: &kube::Client,
        out: impl Into<Option<Output>>,
    ) -> NodeSettings {
        let maps = reads::controllers(client).await.unwrap_or_default();
        let of_this: Vec<&ConfigMap> = maps.iter().filter(|map| self.fits(map)).collect();
        if let [map] = of_this.as_slice() {
            return self.with(Some(map), None);
        }
        if self.gpu_node_label.is_some() {
            return self.with(None, None);
        }
        if of_this.len() > 1 {
            let selectors = of_this.iter().filter_map(|map| setting(map, "GPU_NODE_LABEL"));
            let selectors: BTreeSet<String> = selectors.map(|it| plain(&it).to_string()).collect();
            let selectors: Vec<String> = selectors.into_iter().collect();
            if let Some(out) = out.into() {
                out.progress(&format!(
                    "several controllers are in this cluster; choose one with --gpu-node-label: {}",
                    selectors.join(" or ")
                ));
            }
        }
        let objects = nodemaintenance::read::all(client).await.unwrap_or_default();
        self.with(None, only_selector(&objects))
    }

    /// Whether this may be the controller that is meant.
    fn fits(&self, map: &ConfigMap) -> bool {
        let selector = setting(map, "GPU_NODE_LABEL");
        selector.is_some() && (self.gpu_node_label.is_none() || self.gpu_node_label == selector)
    }

    fn with(&self, map: Option<&ConfigMap>, selector: Option<String>) -> NodeSettings {
        let read = |name| map.and_then(|map| setting(map, name));
        let named = self
            .gpu_node_label
            .clone()
            .or_else(|| read("GPU_NODE_LABEL"))
            .or(selector);
        let or = |value: &Option<String>, name, default: &str| {
            let value = value.clone().or_else(|| read(name));
            value.unwrap_or_else(|| default.to_owned())
        };
        NodeSettings {
            is_default_selector: named.is_none(),
            gpu_node_label: named.unwrap_or_else(|| DEFAULT_NODE_SELECTOR.to_owned()),
            gpu_resources: or(&self.gpu_resources, "GPU_RESOURCES", DEFAULT_GPU_RESOURCES),
            trace_ui_url_template: self
                .trace_ui_url_template
                .clone()
                .or_else(|| read("TRACE_UI_URL_TEMPLATE")),
            requires_approval: read("REQUIRE_APPROVAL").and_then(|value| value.parse().ok()),
        }
    }
}

fn setting(map: &ConfigMap, name: &str) -> Option<String> {
    let value = map.data.as_ref()?.get(name)?;
    (!value.is_empty()).then(|| value.clone())
}

/// The selector in all kept episodes, if they agree.
fn only_selector(objects: &[NodeMaintenance]) -> Option<String> {
    let selectors = objects.iter().filter_map(|object| object.spec.selector.as_ref());
    let selectors: BTreeSet<&String> = selectors.collect();
    match selectors.into_iter().collect::<Vec<_>>().as_slice() {
        [selector] => Some((*selector).clone()),
        _ => None,
    }
}
