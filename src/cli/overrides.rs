//! `approve`, `accept` and `pause`: annotations of a person on Nodes.

use anyhow::{Context as _, ensure};

use super::controller_settings::NodeSettings;
use super::nodes::{WantedNodes, read_nodes};
use super::out::Output;
use super::selection::{NodeAnswer, for_each};
use super::{NodesArgs, PauseArgs};
use crate::inventory::record_of;
use crate::kubernetes::client::connect_by;
use crate::kubernetes::reads;
use crate::maintenance::episode::Phase;

/// Annotates the Nodes, so that the drains for which they wait may begin.
pub(super) async fn approve(args: NodesArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    let settings = args.flags.settings.complete(&client, out).await;
    ensure!(
        settings.requires_approval != Some(false),
        "the controller requires no approval (REQUIRE_APPROVAL=false), so no drain waits for one"
    );
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
    let episode = record
        .episode()
        .with_context(|| format!("node/{name} is not in maintenance, so no drain waits for an approval"))?;
    let phase = episode.phase.at_work();
    ensure!(
        matches!(phase, Phase::Queued | Phase::Drained | Phase::Rejoining),
        "node/{name} is {}, so no drain waits for an approval",
        phase.name()
    );
    reads::approve(client, name, &episode.id).await?;
    Ok(NodeAnswer {
        value: serde_json::json!({"node": name, "approved": episode.id}),
        words: " approved".to_owned(),
    })
}

/// Annotates Nodes so that they are left alone, or takes that back.
pub(super) async fn pause(args: PauseArgs, out: Output, skip: bool) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    let settings = args.flags.settings.complete(&client, out).await;
    let names = args.nodes.names(&client, &settings).await?;
    let words = if skip {
        " paused: no maintenance begins for it until `unpause`"
    } else {
        " unpaused"
    };
    for_each(&names, (args.flags.output, out), async |name| {
        reads::set_skip(&client, name, skip).await?;
        Ok(NodeAnswer {
            value: serde_json::json!({"node": name, "paused": skip}),
            words: words.to_owned(),
        })
    })
    .await
}

/// Annotates Nodes with the GPUs that they have, where these are fewer than before their maintenance.
pub(super) async fn accept(args: NodesArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    let settings = args.flags.settings.complete(&client, out).await;
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
    reads::accept_gpus(client, name, &counts).await?;
    let fewer = lacking
        .iter()
        .map(|(resource, have, want)| format!("{resource} {have} of {want}"));
    let fewer = fewer.collect::<Vec<_>>().join(", ");
    Ok(NodeAnswer {
        value: serde_json::json!({"node": name, "accepted": counts}),
        words: format!(" accepted with {fewer}"),
    })
}
