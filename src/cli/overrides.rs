//! `approve`, `accept` and `pause`: annotations of a person on Nodes.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use kube::ResourceExt as _;

use super::controller_settings::NodeSettings;
use super::out::{Output, PROBLEM_FOUND};
use super::question;
use super::reading::{WantedNodes, read_nodes};
use super::selection::{NodeAnswer, for_each};
use super::{NodesArgs, PauseArgs, UnpauseArgs};
use crate::ids::RequestUid;
use crate::inventory::record_of;
use crate::keys::{ACCEPTED_GPUS, APPROVED, SKIP};
use crate::kubernetes::facts::{GpuResources, node_facts};
use crate::kubernetes::reads;
use crate::maintenance::episode::Phase;

/// Annotates the Nodes, so that the drains for which they wait may begin.
pub(super) async fn approve(args: NodesArgs, out: Output) -> anyhow::Result<u8> {
    let (client, settings) = args.flags.connect(out).await?;
    // A flag or a variable of the controller's container may say something else.
    if settings.requires_approval == Some(false) {
        out.progress("the ConfigMap of the controller says REQUIRE_APPROVAL=false: then no drain waits for an approval");
    }
    let names = args.nodes.names(&client, &settings).await?;
    let output = (args.flags.output, out);
    for_each(&names, output, async |name| {
        approve_one(&client, &settings, name).await
    })
    .await
}

async fn approve_one(
    client: &kube::Client,
    settings: &NodeSettings,
    name: &str,
) -> anyhow::Result<NodeAnswer> {
    let names = [name.to_owned()];
    let reading = read_nodes(client, settings, WantedNodes::Named(&names)).await?;
    let facts = reading.nodes.first();
    let record = record_of(facts.with_context(|| format!("node/{name} does not exist"))?);
    let (approval, words) = match record.episode() {
        None => {
            let request = reading.first_request(name).with_context(|| {
                format!("node/{name} is not in maintenance, so no drain waits for an approval")
            })?;
            let uid = RequestUid::new(request.uid().unwrap_or_default());
            let words = format!(
                " approved: NodeMaintenance {}, when it begins",
                request.name_any()
            );
            (uid.to_string(), words)
        }
        Some(episode) => {
            let phase = episode.phase.at_work();
            ensure!(
                matches!(phase, Phase::Queued | Phase::Drained | Phase::Rejoining),
                "node/{name} is {}, so no drain waits for an approval",
                phase.name()
            );
            // An approval of the request also counts if its episode gives way to the maintenance of the host.
            let begun_by = episode
                .trigger
                .request
                .as_ref()
                .filter(|_| *phase == Phase::Queued);
            let approval = begun_by.map_or_else(|| episode.id.to_string(), |request| request.uid.to_string());
            (approval, " approved".to_owned())
        }
    };
    reads::annotate(client, name, APPROVED, Some(&approval)).await?;
    Ok(NodeAnswer {
        value: serde_json::json!({"node": name, "approved": approval}),
        words,
    })
}

/// Annotates Nodes so that they are left alone. Where a maintenance is under way this stops it, so a person is asked first.
pub(super) async fn pause(args: PauseArgs, out: Output) -> anyhow::Result<u8> {
    let (client, settings) = args.flags.connect(out).await?;
    let names = args.nodes.names(&client, &settings).await?;
    let under_way = under_way(&client, &settings, &names).await?;
    if !under_way.is_empty() {
        let nodes: Vec<String> = under_way
            .iter()
            .map(|(name, phase)| stopped(name, phase))
            .collect();
        let nodes = nodes.join("; ");
        if !question::agreed(args.yes, out, &format!("{nodes}. Pause?"), &nodes)? {
            out.progress("nothing was paused");
            return Ok(PROBLEM_FOUND);
        }
    }
    for_each(&names, (args.flags.output, out), async |name| {
        reads::annotate(&client, name, SKIP, Some("true")).await?;
        let words = match under_way.contains_key(name) {
            true => " paused: its maintenance stops until `unpause`",
            false => " paused: no maintenance begins for it until `unpause`",
        };
        Ok(NodeAnswer {
            value: serde_json::json!({"node": name, "paused": true}),
            words: words.to_owned(),
        })
    })
    .await
}

/// The phases of those of these nodes whose maintenance is under way. A node that cannot be read cannot be annotated either, which is
/// said then.
async fn under_way(
    client: &kube::Client,
    settings: &NodeSettings,
    names: &[String],
) -> anyhow::Result<BTreeMap<String, Phase>> {
    let gpus = GpuResources::parse(&settings.gpu_resources)?;
    let mut phases = BTreeMap::new();
    for name in names {
        let Ok(node) = reads::node(client, name).await else {
            continue;
        };
        let record = record_of(&node_facts(&node, None, &gpus));
        if let Some(phase) = record.phase().filter(|phase| **phase != Phase::Queued) {
            phases.insert(name.clone(), phase.clone());
        }
    }
    Ok(phases)
}

/// What a pause does to a node whose maintenance is under way.
fn stopped(name: &str, phase: &Phase) -> String {
    let stays = if phase.vm_is_off() {
        "its VM stays off"
    } else {
        "it stays cordoned"
    };
    let phase = phase.name();
    format!("the maintenance of node/{name} is under way ({phase}) and stops until `unpause`: {stays}")
}

/// Takes the annotation of [`pause`] from Nodes.
pub(super) async fn unpause(args: UnpauseArgs, out: Output) -> anyhow::Result<u8> {
    let (client, settings) = args.flags.connect(out).await?;
    let names = args.nodes.names(&client, &settings).await?;
    for_each(&names, (args.flags.output, out), async |name| {
        reads::annotate(&client, name, SKIP, None).await?;
        Ok(NodeAnswer {
            value: serde_json::json!({"node": name, "paused": false}),
            words: " unpaused".to_owned(),
        })
    })
    .await
}

/// Annotates Nodes with the GPUs that they have, where these are fewer than before their maintenance.
pub(super) async fn accept(args: NodesArgs, out: Output) -> anyhow::Result<u8> {
    let (client, settings) = args.flags.connect(out).await?;
    let names = args.nodes.names(&client, &settings).await?;
    let output = (args.flags.output, out);
    for_each(&names, output, async |name| {
        accept_one(&client, &settings, name).await
    })
    .await
}

async fn accept_one(
    client: &kube::Client,
    settings: &NodeSettings,
    name: &str,
) -> anyhow::Result<NodeAnswer> {
    let names = [name.to_owned()];
    let reading = read_nodes(client, settings, WantedNodes::Named(&names)).await?;
    let facts = reading
        .nodes
        .first()
        .with_context(|| format!("node/{name} does not exist"))?;
    let record = record_of(facts);
    let episode = record
        .episode()
        .with_context(|| format!("node/{name} is not in maintenance, so it waits for no GPUs"))?;
    let gpus = reading.gpus(facts)?;
    let has = |resource: &str| gpus.get(resource).copied().unwrap_or(0);
    let before = episode.gpus_before.iter();
    let lacking: Vec<(&String, u64, u64)> = before
        .map(|(resource, want)| (resource, has(resource), *want))
        .filter(|(_, have, want)| have < want)
        .collect();
    ensure!(
        !lacking.is_empty(),
        "node/{name} has all GPUs that it had before its maintenance"
    );
    let counts = lacking
        .iter()
        .map(|(resource, have, _)| format!("{resource}={have}"));
    let counts = counts.collect::<Vec<_>>().join(",");
    reads::annotate(client, name, ACCEPTED_GPUS, Some(&counts)).await?;
    let fewer = lacking
        .iter()
        .map(|(resource, have, want)| format!("{resource} {have} of {want}"));
    let fewer = fewer.collect::<Vec<_>>().join(", ");
    Ok(NodeAnswer {
        value: serde_json::json!({"node": name, "accepted": counts}),
        words: format!(" accepted with {fewer}"),
    })
}
