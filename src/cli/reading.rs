//! Reads Nodes and NodeMaintenance objects, and derives the state of each node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use super::controller_settings::NodeSettings;
use super::nodes::{ExitState, ListedNode, RequestState, TraceLink};
use crate::device_slice::{self, DeviceSlice};
use crate::ids::NodeName;
use crate::inventory::record_of;
use crate::kubernetes::facts::{GpuResources, node_facts};
use crate::kubernetes::reads::{self, ReadError};
use crate::kubernetes::update::{NodeAnnotations, NodeFacts};
use crate::maintenance::episode::{CordonOwner, Episode, Record};
use crate::maintenance::record::read_record;
use crate::nodemaintenance;
use crate::nodemaintenance::api::{concerns, name_of};
use crate::nodemaintenance::kind::{MaintenanceOrigin, NodeMaintenance};
use crate::status::{WaitKind, trace_url};

/// The objects read from Kubernetes.
pub(super) struct NodeReading {
    pub(super) nodes: Vec<NodeFacts>,
    pub(super) objects: Vec<NodeMaintenance>,
    slices: Result<BTreeMap<NodeName, Arc<[DeviceSlice]>>, ReadError>,
    trace_url: Option<String>,
}

/// Which nodes are read.
#[derive(Clone, Copy, Debug)]
pub(super) enum WantedNodes<'a> {
    /// All of the controller.
    All,
    /// Those of the controller that this label selector matches as well.
    Matching(&'a str),
    Named(&'a [String]),
}

/// Reads nodes with their NodeMaintenances.
///
/// # Errors
/// When they cannot be read, or a named one does not exist.
pub(super) async fn read_nodes(
    client: &kube::Client,
    settings: &NodeSettings,
    wanted: WantedNodes<'_>,
) -> anyhow::Result<NodeReading> {
    let objects = nodemaintenance::read::all(client).await?;
    let gpus = GpuResources::parse(&settings.gpu_resources)?;
    let nodes = match wanted {
        WantedNodes::All => reads::nodes(client, &settings.gpu_node_label).await?,
        WantedNodes::Matching(selector) => reads::nodes(client, &settings.with_selector(selector)).await?,
        WantedNodes::Named(names) => named_nodes(client, names, &objects).await?,
    };
    let is_wanted = |object: &NodeMaintenance| match wanted {
        WantedNodes::All => concerns(object, &settings.gpu_node_label),
        WantedNodes::Matching(_) => nodes
            .iter()
            .any(|node| node.metadata.name.as_ref() == Some(&object.spec.node_name)),
        WantedNodes::Named(names) => names.contains(&object.spec.node_name),
    };
    let only = match wanted {
        WantedNodes::Named([name]) => Some(name.as_str()),
        WantedNodes::All | WantedNodes::Matching(_) | WantedNodes::Named(_) => None,
    };
    let slices = reads::device_slices(client, &gpus, only).await;
    Ok(NodeReading {
        slices,
        nodes: nodes.iter().map(|node| node_facts(node, None, &gpus)).collect(),
        objects: objects.into_iter().filter(is_wanted).collect(),
        trace_url: settings.trace_ui_url_template.clone(),
    })
}

/// The Nodes of these names. One that was deleted during its episode is left out: the episode continues from its copy.
async fn named_nodes(
    client: &kube::Client,
    names: &[String],
    objects: &[NodeMaintenance],
) -> Result<Vec<Node>, ReadError> {
    let mut nodes = Vec::new();
    for name in names {
        let has_copy = || objects.iter().any(|it| is_open(it) && it.spec.node_name == *name);
        match reads::node(client, name).await {
            Ok(node) => nodes.push(node),
            Err(error) if error.is_absent() && has_copy() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(nodes)
}

fn is_open(object: &NodeMaintenance) -> bool {
    object
        .status
        .as_ref()
        .is_none_or(|status| status.ended_at.is_none())
}

pub(super) fn is_open_request(object: &NodeMaintenance) -> bool {
    object.spec.origin == MaintenanceOrigin::Request && is_open(object)
}

impl NodeReading {
    /// The state of each node, including nodes that were deleted during an episode.
    pub(super) fn states(&self) -> Vec<ListedNode> {
        let mut names: BTreeSet<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let copies = self
            .objects
            .iter()
            .filter(|it| it.spec.origin == MaintenanceOrigin::Episode && is_open(it));
        names.extend(copies.map(|object| object.spec.node_name.as_str()));
        names.into_iter().map(|name| self.state(name)).collect()
    }

    /// The GPUs of a Node by resource and by driver; after a power cycle, those of the new boot.
    ///
    /// # Errors
    /// When the ResourceSlices could not be listed.
    pub(super) fn gpus(&self, node: &NodeFacts) -> Result<BTreeMap<String, u64>, ReadError> {
        let slices = self.slices.as_ref().map_err(Clone::clone)?;
        let record = record_of(node);
        let after = record.episode().and_then(Episode::slices_after);
        let slices = slices.get(&node.name).map_or(&[][..], |slices| slices);
        let mut gpus = BTreeMap::clone(&node.gpus);
        gpus.extend(device_slice::counts(slices, after));
        Ok(gpus)
    }

    fn maintenances_of(&self, name: &str) -> impl Iterator<Item = &NodeMaintenance> {
        self.objects
            .iter()
            .filter(move |object| object.spec.node_name == name)
    }

    fn open_requests(&self, name: &str) -> impl Iterator<Item = &NodeMaintenance> {
        self.maintenances_of(name)
            .filter(|object| is_open_request(object))
    }

    /// The request that is served first.
    pub(super) fn first_request(&self, name: &str) -> Option<&NodeMaintenance> {
        let requests = self.open_requests(name);
        requests.min_by_key(|object| (object.creation_timestamp(), object.name_any()))
    }

    fn state(&self, name: &str) -> ListedNode {
        let node = self.nodes.iter().find(|node| node.name.as_str() == name);
        let record = node.map_or_else(|| self.copy(name), record_of);
        let mut state = ListedNode {
            node: name.to_owned(),
            state: record.kind(),
            exit_state: ExitState::of(record.kind()),
            trace: self.trace(name, &record),
            ..ListedNode::default()
        };
        if let Some(node) = node {
            state.ready = node.ready.is_true;
            state.cordoned = node.unschedulable;
            state.cordoned_by = node.unschedulable.then(|| cordoned_by(node, &record));
            // Most people may not list ResourceSlices.
            state.gpus = self.gpus(node).unwrap_or_else(|_| BTreeMap::clone(&node.gpus));
            state.overrides = overrides(node);
        }
        state.requests = self
            .open_requests(name)
            .map(|object| RequestState {
                name: object.name_any(),
                action: format!("{:?}", object.spec.action),
                reason: object.spec.reason.clone(),
                requested_by: object.spec.requested_by.clone(),
                phase: object.status.as_ref().and_then(|status| status.phase.clone()),
            })
            .collect();
        match &record {
            Record::InService => {}
            Record::Python(python) => {
                state.host = Some(python.host.clone());
                state.since = Some(python.since.to_string());
            }
            Record::Unreadable { why } => state.parked = Some(why.clone()),
            Record::Episode(episode) => self.add_episode(&mut state, episode),
        }
        // Before an episode begins, only the request has its wait.
        if state.waiting_on.is_none() {
            state.waiting_on = self
                .open_requests(name)
                .find_map(|object| object.status.as_ref()?.waiting_on.clone());
        }
        let kind = state
            .waiting_on
            .as_ref()
            .map(|wait| wait.reason.parse::<WaitKind>());
        if kind.is_some_and(|kind| kind.is_ok_and(WaitKind::needs_person)) {
            state.exit_state = ExitState::Stuck;
        }
        state
    }

    fn add_episode(&self, state: &mut ListedNode, episode: &Episode) {
        state.by_request = episode.trigger.request.is_some();
        state.host = Some(episode.host.name.to_string());
        state.since = Some(episode.since.to_string());
        let target = episode.phase.target().or(episode.moved_to.as_ref());
        state.target = target.map(ToString::to_string);
        state.parked = episode.phase.parked().map(|(reason, _)| reason.to_string());
        let copy = name_of(&NodeName::new(state.node.clone()), &episode.id);
        let Some(object) = self.objects.iter().find(|object| object.name_any() == copy) else {
            return;
        };
        let status = object.status.clone().unwrap_or_default();
        state.reason.clone_from(&object.spec.reason);
        state.waiting_on = status.waiting_on;
        state.pods = status.pods;
        state.eviction_pods = status.eviction_pods;
        state.phases = status.phases;
    }

    /// The record of a deleted node.
    fn copy(&self, name: &str) -> Record {
        let open = self
            .maintenances_of(name)
            .filter(|object| object.spec.origin == MaintenanceOrigin::Episode && is_open(object));
        let youngest = open.max_by_key(|object| object.creation_timestamp());
        let episode = youngest.and_then(|object| object.status.as_ref()?.record.clone());
        read_record(&NodeAnnotations {
            episode,
            ..NodeAnnotations::default()
        })
    }

    /// The trace of the active episode, or else of the latest one.
    pub(super) fn trace(&self, name: &str, record: &Record) -> Option<TraceLink> {
        let running = record.episode().map(|episode| episode.trace_id().to_owned());
        let latest = self
            .maintenances_of(name)
            .filter(|object| object.spec.origin == MaintenanceOrigin::Episode)
            .max_by_key(|object| object.creation_timestamp());
        let kept = latest.and_then(|object| object.status.as_ref());
        let trace_id = running
            .clone()
            .or_else(|| kept.and_then(|status| status.trace_id.clone()))?;
        // Any object with its address: that of a request may be written before that of the episode.
        let written = self
            .maintenances_of(name)
            .filter_map(|object| object.status.as_ref())
            .find(|status| status.trace_url.is_some() && status.trace_id.as_ref() == Some(&trace_id))
            .and_then(|status| status.trace_url.clone());
        let built = || Some(trace_url(self.trace_url.as_ref()?, &trace_id));
        Some(TraceLink {
            node: name.to_owned(),
            url: written.or_else(built),
            running: running.is_some(),
            trace_id,
        })
    }
}

fn cordoned_by(node: &NodeFacts, record: &Record) -> String {
    match record.episode().map(|episode| &episode.cordon) {
        Some(CordonOwner::Ours | CordonOwner::Adopted(_)) => "Haulout".to_owned(),
        Some(CordonOwner::Theirs) => "somebody, before the episode".to_owned(),
        Some(CordonOwner::NotYet) | None => node.cordoned_by.clone().unwrap_or_else(|| "somebody".to_owned()),
    }
}

fn overrides(node: &NodeFacts) -> Vec<String> {
    [
        (crate::keys::SKIP, &node.annotations.skip),
        (crate::keys::APPROVED, &node.annotations.approved),
        (crate::keys::STRATEGY, &node.annotations.strategy),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)))
    .collect()
}
