//! Searches all Nodes of the cluster periodically for episodes: on Nodes that lost the label, also if the episode has ended and
//! its requests may still stop the VM, and under other annotation prefixes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{ListParams, PartialObjectMeta};
use serde::Deserialize;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{Backoff, Selection, WatchContext};
use crate::ids::{NodeName, NodeUid};
use crate::keys::Keys;
use crate::kubernetes::answer::{self, ApiRefusal};
use crate::kubernetes::lease::ElectionStatus;
use crate::kubernetes::update::{KubernetesUpdate, StrandedNode};
use crate::maintenance::record::read_last;

/// The interval. Such an episode was left by a change of a label or a setting, hours or days ago.
const EVERY: Duration = Duration::from_secs(600);

const PAGE_DEADLINE: Duration = Duration::from_secs(15);

/// Nodes per page. Annotations may have 256 KiB, so that a page has at most 25 MiB.
const PAGE: u32 = 100;

/// The maximum number of pages of one list: 20,000 Nodes, four times the limit of Kubernetes.
const PAGES_MAX: usize = 200;

/// The maximum number of reported episodes.
const STRANDED_MAX: usize = 1_000;

/// The maximum number of reported episodes of one Node. Its kubelet may write any number of them, and must not hide those of others.
const OF_ONE_NODE_MAX: usize = 8;

/// The last part of the key of an annotation that holds an episode, whatever its prefix.
const EPISODE: &str = "episode";

/// The longest value that is read, as for our own records.
const VALUE_BYTES_MAX: usize = 64 * 1024;

/// The part that all versions of an episode have.
#[derive(Deserialize)]
struct Versioned {
    #[serde(rename = "version")]
    _version: serde_json::Number,
}

/// Reports all episodes on Nodes: at the start, at the start of each leadership, and every ten minutes, until `stop`.
pub async fn run(selection: Selection, mut status: watch::Receiver<ElectionStatus>, context: WatchContext) {
    let mut backoff = Backoff::new(&context.settings);
    let mut is_broken = false;
    loop {
        let led = epoch(&status.borrow_and_update());
        let scan = scan(&context.client, &selection);
        let Some(scanned) = context.stop.run_until_cancelled(scan).await else {
            return;
        };
        let pause = match scanned {
            Ok(stranded) => {
                if std::mem::take(&mut is_broken) {
                    info!("the nodes of the cluster can be searched for episodes again");
                }
                backoff.settled();
                if !context.send(vec![KubernetesUpdate::Scanned { stranded }]).await {
                    return;
                }
                EVERY
            }
            Err(refusal) => {
                if !std::mem::replace(&mut is_broken, true) {
                    warn!(
                        "the nodes of the cluster could not be searched for episodes that were left behind: {refusal}; the \
                         search is retried"
                    );
                }
                backoff.next()
            }
        };
        let another_leadership = status.wait_for(|status| {
            let leads = epoch(status);
            leads.is_some() && leads != led
        });
        tokio::select! {
            biased;
            () = context.stop.cancelled() => return,
            Ok(_) = another_leadership => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn epoch(status: &ElectionStatus) -> Option<u64> {
    status.leadership.map(|leadership| leadership.epoch)
}

/// Reads the metadata of all Nodes, and returns the episodes on them.
async fn scan(client: &kube::Client, selection: &Selection) -> Result<Vec<StrandedNode>, ApiRefusal> {
    let mut stranded = Vec::new();
    let mut is_too_many = false;
    each_node(client, ListParams::default(), |metadata| {
        let name = NodeName::new(metadata.name.unwrap_or_default());
        let uid = NodeUid::new(metadata.uid.unwrap_or_default());
        for prefix in prefixes(&metadata.annotations.unwrap_or_default(), &selection.keys) {
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
        warn!("there are more than {STRANDED_MAX} episodes on the nodes of the cluster; the rest is ignored");
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

/// Passes the metadata of all Nodes that match to `show`, page by page.
async fn each_node(
    client: &kube::Client,
    params: ListParams,
    mut show: impl FnMut(kube::core::ObjectMeta),
) -> Result<(), ApiRefusal> {
    let nodes: Api<core::Node> = Api::all(client.clone());
    let list = async |params| nodes.list_metadata(&params).await;
    let show = |node: PartialObjectMeta<core::Node>| show(node.metadata);
    answer::pages(params.limit(PAGE), PAGES_MAX, PAGE_DEADLINE, list, show).await
}

/// The prefixes of the episodes in `annotations`, and our own if the last episode has requests to vCenter that may still stop the
/// VM. The inventory knows until when. Our own prefix comes first, and at most [`OF_ONE_NODE_MAX`] are returned.
fn prefixes(annotations: &BTreeMap<String, String>, keys: &Keys) -> Vec<String> {
    let last = annotations
        .get(&keys.last_episode)
        .filter(|value| value.len() <= VALUE_BYTES_MAX)
        .and_then(|value| read_last(value))
        .filter(|last| !last.episode.in_flight.is_empty());
    let late = last.and_then(|_| Some(keys.last_episode.split_once('/')?.0.to_owned()));
    let mut prefixes: Vec<String> = annotations
        .iter()
        .filter_map(|(key, value)| {
            let (prefix, name) = key.split_once('/')?;
            let is_episode = name == EPISODE && value.len() <= VALUE_BYTES_MAX;
            let is_ours = is_episode && serde_json::from_str::<Versioned>(value).is_ok();
            is_ours.then(|| prefix.to_owned())
        })
        .collect();
    if let Some(late) = late
        && !prefixes.contains(&late)
    {
        prefixes.push(late);
    }
    prefixes.sort_by_key(|prefix| keys.episode != format!("{prefix}/{EPISODE}"));
    prefixes.truncate(OF_ONE_NODE_MAX);
    prefixes
}

#[cfg(test)]
mod tests;
