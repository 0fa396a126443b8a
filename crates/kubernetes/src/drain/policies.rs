//! The policies of the pods of a Node: their own annotations, and those of their namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::core::PartialObjectMeta;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::answer::{self, ApiRefusal};
use crate::pods::verdict;
use crate::policy::{DrainAnnotations, DrainPolicy, UnreadablePolicy};

/// How long a namespace that was read is not read again. A drain lists the pods many times a minute.
const KEPT: Duration = Duration::from_secs(60);

/// How long namespaces are not read after the kube-apiserver has refused it.
const REFUSED_FOR: Duration = Duration::from_secs(300);

/// Concurrent reads of namespaces for one round.
const READS: usize = 8;

/// The maximum number of pods whose unreadable annotations are remembered as told.
const TOLD_MAX: usize = 10_000;

/// The annotations of namespaces, and what was told of them. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Namespaces(Arc<NamespaceCache>);

#[derive(Debug, Default)]
struct NamespaceCache {
    read: Mutex<BTreeMap<String, (Instant, DrainAnnotations)>>,
    refused_at: Mutex<Option<Instant>>,
    is_refusal_told: AtomicBool,
    /// The UIDs of pods with unreadable annotations.
    told: Mutex<BTreeSet<String>>,
}

/// The annotations of the namespaces of a Node's pods; those that could not be read are absent, each with a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespacePolicies {
    read: BTreeMap<String, DrainAnnotations>,
    unread: BTreeMap<String, String>,
}

/// What is known of the policy of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodPolicy {
    Read(DrainPolicy),
    /// An annotation has a wrong value: it is evicted.
    Unreadable(UnreadablePolicy),
    /// Its namespace could not be read now. To evict it could be wrong.
    Unread(String),
}

impl Namespaces {
    /// Reads the namespaces of the `pods` of a Node whose policy may depend on it, within `deadline`.
    pub async fn read_policies(
        &self,
        client: &kube::Client,
        pods: &[Pod],
        deadline: Duration,
    ) -> NamespacePolicies {
        let needing = pods
            .iter()
            .filter(|pod| verdict(pod).blocks_drain() && DrainAnnotations::of_pod(pod).need_namespace());
        let mut missing: BTreeSet<String> =
            needing.filter_map(|pod| pod.metadata.namespace.clone()).collect();
        let mut policies = NamespacePolicies::default();
        let now = Instant::now();
        {
            let mut read = self.0.read.lock();
            read.retain(|_, (at, _)| now.duration_since(*at) < KEPT);
            let known = missing
                .iter()
                .filter_map(|name| Some((name.clone(), read.get(name)?.1.clone())));
            policies.read = known.collect();
        }
        missing.retain(|name| !policies.read.contains_key(name));
        if self.is_refused(now) {
            return policies;
        }
        let until = now + deadline;
        let reads = missing.into_iter().map(async |name| {
            let read = get(client, &name, until.saturating_duration_since(Instant::now())).await;
            (name, read)
        });
        let mut reads = futures::stream::iter(reads).buffer_unordered(READS);
        while let Some((name, read)) = reads.next().await {
            match read {
                Ok(annotations) => {
                    let mut known = self.0.read.lock();
                    known.insert(name.clone(), (Instant::now(), annotations.clone()));
                    policies.read.insert(name, annotations);
                }
                Err(refusal) if matches!(refusal.code(), Some(401 | 403)) => {
                    self.refused(&refusal);
                    break;
                }
                Err(refusal) => {
                    policies.unread.insert(name, refusal.to_string());
                }
            }
        }
        policies
    }

    /// Namespaces without annotations, which are not read.
    #[cfg(test)]
    pub(super) fn plain(names: &[&str]) -> Self {
        let plain = |name: &&str| ((*name).to_owned(), (Instant::now(), DrainAnnotations::default()));
        let namespaces = Self::default();
        *namespaces.0.read.lock() = names.iter().map(plain).collect();
        namespaces
    }

    /// Whether this is the first report of a pod with an unreadable annotation.
    pub(super) fn is_first(&self, uid: &str) -> bool {
        let mut told = self.0.told.lock();
        if told.len() >= TOLD_MAX {
            told.clear();
        }
        told.insert(uid.to_owned())
    }

    fn is_refused(&self, now: Instant) -> bool {
        let refused = self.0.refused_at.lock();
        refused.is_some_and(|at| now.duration_since(at) < REFUSED_FOR)
    }

    fn refused(&self, refusal: &ApiRefusal) {
        *self.0.refused_at.lock() = Some(Instant::now());
        if !self.0.is_refusal_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                why = %refusal,
                "namespaces may not be read, so drains honour the annotations of pods only; allow `get` on namespaces"
            );
        }
    }
}

impl NamespacePolicies {
    pub fn policy(&self, pod: &Pod) -> PodPolicy {
        let own = DrainAnnotations::of_pod(pod);
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        if own.need_namespace()
            && let Some(message) = self.unread.get(namespace)
        {
            return PodPolicy::Unread(message.clone());
        }
        let none = DrainAnnotations::default();
        match own.policy(self.read.get(namespace).unwrap_or(&none)) {
            Ok(policy) => PodPolicy::Read(policy),
            Err(unreadable) => PodPolicy::Unreadable(unreadable),
        }
    }
}

/// The annotations of a namespace; none if it is gone.
async fn get(client: &kube::Client, name: &str, deadline: Duration) -> Result<DrainAnnotations, ApiRefusal> {
    let api: Api<Namespace> = Api::all(client.clone());
    match answer::within(deadline, api.get_metadata(name)).await {
        Ok(namespace) => {
            let namespace: PartialObjectMeta<Namespace> = namespace;
            Ok(DrainAnnotations::of(namespace.metadata.annotations.as_ref()))
        }
        Err(refusal) if refusal.code() == Some(404) => Ok(DrainAnnotations::default()),
        Err(refusal) => Err(refusal),
    }
}
