//! Searches all Nodes of the cluster periodically for episodes on Nodes that lost the label, also if the episode has ended and
//! its requests may still stop the VM.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{ListParams, PartialObjectMeta};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{Backoff, Selection, WatchContext};
use crate::answer::{self, ApiRefusal};
use crate::ids::{NodeName, NodeUid};
use crate::keys::{EPISODE, LAST_EPISODE};
use crate::lease::ElectionStatus;
use crate::maintenance::policy::Releases;
use crate::maintenance::record::read_last;
use crate::update::{KubernetesUpdate, StrandedNode};

/// The interval. Such an episode was left by a change of a label or of the selector, hours or days ago.
const EVERY: Duration = Duration::from_secs(600);

const PAGE_DEADLINE: Duration = Duration::from_secs(15);

/// Nodes per page. Annotations may have 256 KiB, so that a page has at most 25 MiB.
const PAGE: u32 = 100;

/// The maximum number of pages of one list: 20,000 Nodes, four times the limit of Kubernetes.
const PAGES_MAX: usize = 200;

/// The maximum number of reported episodes.
const STRANDED_MAX: usize = 1_000;

/// The longest value that is read, as for our own records.
const VALUE_BYTES_MAX: usize = 64 * 1024;

/// The part that all versions of an episode have.
#[derive(Deserialize)]
struct Versioned {
    #[serde(rename = "version")]
    _version: serde_json::Number,
    #[serde(default)]
    release: Value,
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
                backoff.next_wait()
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
        if has_episode(&metadata.annotations.unwrap_or_default(), &selection.releases) {
            is_too_many = stranded.len() == STRANDED_MAX;
            if !is_too_many {
                stranded.push(StrandedNode {
                    name: NodeName::new(metadata.name.unwrap_or_default()),
                    uid: NodeUid::new(metadata.uid.unwrap_or_default()),
                    is_selected: false,
                });
            }
        }
    })
    .await?;
    if is_too_many {
        warn!("there are more than {STRANDED_MAX} nodes with an episode in the cluster; the rest is ignored");
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

/// Whether `annotations` hold an episode that may be of these releases, or the last one has requests to vCenter that may still stop
/// the VM. The inventory knows until when.
fn has_episode(annotations: &BTreeMap<String, String>, releases: &Releases) -> bool {
    let value = |key| {
        annotations
            .get(key)
            .filter(|value| value.len() <= VALUE_BYTES_MAX)
    };
    let open = value(EPISODE).and_then(|value| serde_json::from_str::<Versioned>(value).ok());
    // Those of other releases are not even counted: a large one would fill the list.
    let may_be_ours = |open: Versioned| {
        open.release
            .as_str()
            .is_none_or(|release| releases.names(release))
    };
    let last = value(LAST_EPISODE).and_then(|value| read_last(value));
    open.is_some_and(may_be_ours) || last.is_some_and(|last| !last.episode.in_flight.is_empty())
}

#[cfg(test)]
mod tests;
