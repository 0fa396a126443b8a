//! Looks from time to time for episodes on all Nodes of the cluster: on those that lost our label, and under other
//! annotation prefixes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::ListParams;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Backoff, Selection, Settings, tell};
use crate::ids::{NodeName, NodeUid};
use crate::kubernetes::answer::{self, ApiRefusal};
use crate::kubernetes::lease::ElectionStatus;
use crate::kubernetes::update::{KubernetesUpdate, StrandedNode};

/// How often. What is found here was left behind by a label or a setting that changed, hours or days ago.
const EVERY: Duration = Duration::from_secs(600);

/// For one page. The kube-apiserver answers within milliseconds or is in trouble.
const PAGE_DEADLINE: Duration = Duration::from_secs(15);

/// Nodes on a page. Metadata is a few KiB and may be 256 KiB of annotations, so a page is 25 MiB at the worst.
const PAGE: u32 = 100;

/// The most pages of one list: 20,000 Nodes, four times what Kubernetes is built for.
const PAGES_MAX: usize = 200;

/// The most episodes that are told of.
const STRANDED_MAX: usize = 1_000;

/// The last part of the key of an annotation that holds an episode, whatever its prefix.
const EPISODE: &str = "episode";

/// The longest value that is read, as for the record of a Node of ours.
const VALUE_BYTES_MAX: usize = 64 * 1024;

/// What every version of an episode has.
#[derive(Deserialize)]
struct Versioned {
    #[serde(rename = "version")]
    _version: serde_json::Number,
}

/// Tells of all episodes that stand on Nodes: at the start, at the start of each leadership, and every ten minutes, until
/// `stop`.
pub async fn run(
    client: kube::Client,
    selection: Selection,
    mut standing: watch::Receiver<ElectionStatus>,
    settings: Settings,
    out: mpsc::Sender<KubernetesUpdate>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new(&settings);
    let mut is_broken = false;
    loop {
        let led = epoch(&standing.borrow_and_update());
        let scan = scan(&client, &selection);
        let scanned = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            scanned = scan => scanned,
        };
        let pause = match scanned {
            Ok(stranded) => {
                if std::mem::take(&mut is_broken) {
                    info!("all nodes are looked through for episodes again");
                }
                backoff.settled();
                if !tell(&out, &stop, KubernetesUpdate::Scanned { stranded }).await {
                    return;
                }
                EVERY
            }
            Err(refusal) => {
                if !std::mem::replace(&mut is_broken, true) {
                    warn!(
                        "the nodes of the cluster could not be looked through for episodes that were left behind: {}; \
                         it is tried again",
                        refusal.said()
                    );
                }
                backoff.next()
            }
        };
        let another_leadership = standing.wait_for(|standing| {
            let leads = epoch(standing);
            leads.is_some() && leads != led
        });
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Ok(_) = another_leadership => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn epoch(standing: &ElectionStatus) -> Option<u64> {
    standing.lead.map(|lead| lead.epoch)
}

/// Reads the metadata of all Nodes, and gives the episodes on them.
async fn scan(client: &kube::Client, selection: &Selection) -> Result<Vec<StrandedNode>, ApiRefusal> {
    let mut stranded = Vec::new();
    let mut is_too_many = false;
    each_node(client, ListParams::default(), |metadata| {
        let name = NodeName::new(metadata.name.unwrap_or_default());
        let uid = NodeUid::new(metadata.uid.unwrap_or_default());
        for prefix in prefixes(&metadata.annotations.unwrap_or_default()) {
            if stranded.len() == STRANDED_MAX {
                is_too_many = true;
                return;
            }
            stranded.push(StrandedNode {
                name: name.clone(),
                uid: uid.clone(),
                is_ours: selection.keys.episode == format!("{prefix}/{EPISODE}"),
                prefix,
                is_selected: false,
            });
        }
    })
    .await?;
    if is_too_many {
        warn!("more than {STRANDED_MAX} episodes stand on the nodes of the cluster; the rest is left out");
    }
    if stranded.is_empty() {
        return Ok(stranded);
    }
    let mut selected = BTreeSet::new();
    let params = ListParams::default().labels(&selection.selector);
    each_node(client, params, |metadata| {
        selected.insert(metadata.uid.unwrap_or_default());
    })
    .await?;
    for node in &mut stranded {
        node.is_selected = selected.contains(node.uid.as_str());
    }
    Ok(stranded)
}

/// Shows the metadata of all Nodes that match to `show`, page by page.
async fn each_node(
    client: &kube::Client,
    params: ListParams,
    mut show: impl FnMut(kube::core::ObjectMeta),
) -> Result<(), ApiRefusal> {
    let nodes: Api<core::Node> = Api::all(client.clone());
    let mut params = params.limit(PAGE);
    for _ in 0..PAGES_MAX {
        let page = answer::within(PAGE_DEADLINE, nodes.list_metadata(&params)).await?;
        for node in page.items {
            show(node.metadata);
        }
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            Some(_) | None => return Ok(()),
        }
    }
    Err(ApiRefusal::Unreachable(format!(
        "there are more than {PAGES_MAX} pages of {PAGE} nodes"
    )))
}

/// The prefixes under which an episode stands among `annotations`.
fn prefixes(annotations: &BTreeMap<String, String>) -> Vec<String> {
    annotations
        .iter()
        .filter_map(|(key, value)| {
            let (prefix, name) = key.split_once('/')?;
            let is_episode = name == EPISODE && value.len() <= VALUE_BYTES_MAX;
            let is_ours = is_episode && serde_json::from_str::<Versioned>(value).is_ok();
            is_ours.then(|| prefix.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests;
