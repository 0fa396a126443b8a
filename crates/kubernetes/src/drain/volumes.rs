//! The volumes that are attached to a Node and that no pod there uses any more.
//!
//! Kubernetes detaches a volume when its pod is gone; its VolumeAttachment is gone when that is done. Volumes of pods that stay, such as
//! those of DaemonSets, are never detached, so their claims are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::ListParams;
use parking_lot::Mutex;
use thiserror::Error;

use super::{DrainSettings, PAGE, list};
use crate::answer::{self, ApiRefusal};
use crate::ids::NodeName;
use crate::maintenance::volumes::{AttachedVolume, MAX_VOLUMES};
use crate::pods::has_ended;

/// The maximum number of pages of one list: half a million VolumeAttachments.
const PAGES_MAX: usize = 1_000;

/// The maximum number of attachments of a Node that are looked at. vSphere allows 255 disks for a VM.
const ATTACHMENTS_MAX: usize = 512;

/// Concurrent reads of PersistentVolumes.
const READS: usize = 8;

/// The maximum number of PersistentVolumes whose claims are remembered.
const CLAIMS_MAX: usize = 10_000;

/// The claims of PersistentVolumes, and what was told. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct VolumeClaims(Arc<ClaimCache>);

#[derive(Debug, Default)]
struct ClaimCache {
    /// By PersistentVolume. The claim of a volume that is attached does not change.
    claims: Mutex<BTreeMap<String, Option<String>>>,
    is_refusal_told: AtomicBool,
}

/// Why the volumes could not be listed. This never means that there are none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}; they are waited for until the timeout")]
pub struct VolumesUnlisted(String);

/// A VolumeAttachment of the Node.
struct Attachment {
    name: String,
    volume: Option<String>,
}

/// Lists the volumes that are attached to `node` without a pod there that uses them, at most [`MAX_VOLUMES`]. It lists none where
/// Haulout may not list VolumeAttachments, so that nothing is waited for.
pub async fn attached(
    client: &kube::Client,
    node: &NodeName,
    settings: &DrainSettings,
) -> Result<Vec<AttachedVolume>, VolumesUnlisted> {
    let claims = &settings.claims;
    let attachments = match attachments(client, node, settings).await {
        Ok(attachments) => attachments,
        Err(refusal) if matches!(refusal.code(), Some(401 | 403)) => {
            claims.tell(
                &refusal,
                "volumes are not waited for after a drain; allow `list` on volumeattachments",
            );
            return Ok(Vec::new());
        }
        Err(refusal) => {
            return Err(VolumesUnlisted(format!(
                "the VolumeAttachments of node {node} could not be listed: {refusal}"
            )));
        }
    };
    if attachments.is_empty() {
        return Ok(Vec::new());
    }
    let pods = list(client, node, settings).await;
    let in_use = claims_in_use(&pods.map_err(|error| VolumesUnlisted(error.to_string()))?);
    let names = attachments
        .iter()
        .filter_map(|attachment| attachment.volume.clone());
    let known = match claims.read_claims(client, names.collect(), settings).await {
        Ok(known) => known,
        // Which volumes are those of pods that stay is not known.
        Err(refusal) if !in_use.is_empty() => {
            claims.tell(
                &refusal,
                "volumes of a node with pods that stay are not waited for; allow `get` on persistentvolumes",
            );
            return Ok(Vec::new());
        }
        Err(_) => BTreeMap::new(),
    };
    let mut attached: Vec<AttachedVolume> = attachments
        .into_iter()
        .map(|attachment| {
            let volume = attachment.volume.as_ref();
            AttachedVolume {
                claim: volume.and_then(|volume| known.get(volume).cloned().flatten()),
                name: attachment.volume.unwrap_or(attachment.name),
            }
        })
        .filter(|volume| volume.claim.as_ref().is_none_or(|claim| !in_use.contains(claim)))
        .collect();
    attached.sort();
    attached.truncate(MAX_VOLUMES);
    Ok(attached)
}

/// The VolumeAttachments of `node`. The kube-apiserver cannot select them by node, so those of all nodes are read, page by page.
async fn attachments(
    client: &kube::Client,
    node: &NodeName,
    settings: &DrainSettings,
) -> Result<Vec<Attachment>, ApiRefusal> {
    let api: Api<VolumeAttachment> = Api::all(client.clone());
    let params = ListParams::default().limit(PAGE);
    let mut found = Vec::new();
    let list = async |params| answer::of_kind(api.list(&params).await?, "VolumeAttachmentList");
    let pages = answer::pages(
        params,
        PAGES_MAX,
        settings.list_deadline,
        list,
        |attachment: VolumeAttachment| {
            if attachment.spec.node_name == node.as_str() && found.len() < ATTACHMENTS_MAX {
                found.push(Attachment {
                    name: attachment.metadata.name.unwrap_or_default(),
                    volume: attachment.spec.source.persistent_volume_name,
                });
            }
        },
    );
    match settings.in_slot(pages).await {
        Ok(Ok(())) => Ok(found),
        // The kind is not served.
        Ok(Err(refusal)) if refusal.code() == Some(404) => Ok(Vec::new()),
        Ok(Err(refusal)) => Err(refusal),
        Err(late) => Err(ApiRefusal::Unreachable(late)),
    }
}

/// The claims that pods on the Node may still use, as `namespace/name`. The volumes of a pod whose containers have ended are
/// unmounted, whether it was evicted or not.
fn claims_in_use(pods: &[Pod]) -> BTreeSet<String> {
    let mut claims = BTreeSet::new();
    for pod in pods {
        if has_ended(pod) {
            continue;
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        for volume in volumes {
            if let Some(claim) = &volume.persistent_volume_claim {
                claims.insert(format!("{namespace}/{}", claim.claim_name));
            } else if volume.ephemeral.is_some() {
                claims.insert(format!("{namespace}/{name}-{}", volume.name));
            }
        }
    }
    claims
}

impl VolumeClaims {
    /// The claims of these PersistentVolumes.
    async fn read_claims(
        &self,
        client: &kube::Client,
        names: BTreeSet<String>,
        settings: &DrainSettings,
    ) -> Result<BTreeMap<String, Option<String>>, ApiRefusal> {
        let mut known: BTreeMap<String, Option<String>> = {
            let claims = self.0.claims.lock();
            let known = names
                .iter()
                .filter_map(|name| Some((name.clone(), claims.get(name)?.clone())));
            known.collect()
        };
        let missing: Vec<String> = names
            .into_iter()
            .filter(|name| !known.contains_key(name))
            .collect();
        let api: Api<PersistentVolume> = Api::all(client.clone());
        let reads = missing.into_iter().map(async |name| {
            let read = answer::within(settings.list_deadline, api.get(&name)).await;
            (name, read)
        });
        let mut reads = futures::stream::iter(reads).buffer_unordered(READS);
        while let Some((name, read)) = reads.next().await {
            let claim = match read {
                Ok(volume) => claim_of(&volume),
                Err(refusal) if refusal.code() == Some(404) => None,
                Err(refusal) => return Err(refusal),
            };
            let mut claims = self.0.claims.lock();
            if claims.len() >= CLAIMS_MAX {
                claims.clear();
            }
            claims.insert(name.clone(), claim.clone());
            known.insert(name, claim);
        }
        Ok(known)
    }

    fn tell(&self, refusal: &ApiRefusal, consequence: &str) {
        if !self.0.is_refusal_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(why = %refusal, "{consequence}");
        }
    }
}

fn claim_of(volume: &PersistentVolume) -> Option<String> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some(format!(
        "{}/{}",
        claim.namespace.as_deref()?,
        claim.name.as_deref()?
    ))
}

#[cfg(test)]
mod tests;
