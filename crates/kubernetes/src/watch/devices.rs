//! Watches the ResourceSlices, where GPUs of Dynamic Resource Allocation are published.

use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Api;
use kube::runtime::watcher::Event;
use tracing::{info, warn};

use super::{Backoff, LOOK_FOR_KIND, WatchBroke, WatchContext, WatchHandler, watcher_config};
use crate::devices::SliceIndex;
use crate::facts::GpuResources;
use crate::ids::NodeName;
use crate::update::KubernetesUpdate;

/// Objects per page of the list. A slice of 128 devices with many attributes may have some 100 KiB.
const PAGE: u32 = 100;

/// Sends the slices of each Node after a change, until `stop`. An outage voids nothing: the list before it counts until the next.
pub async fn run(gpus: GpuResources, context: WatchContext) {
    let api = Api::all(context.client.clone());
    let config = watcher_config().page_size(PAGE);
    context.watch(api, config, Devices::new(gpus)).await;
}

struct Devices {
    slices: SliceIndex,
    /// It was logged that the kind does not exist.
    is_missed: bool,
    /// It was logged that the right is missing.
    is_refused: bool,
    /// It was logged that the list fails for another reason.
    is_unlisted: bool,
}

impl Devices {
    fn new(gpus: GpuResources) -> Self {
        Self {
            slices: SliceIndex::new(gpus),
            is_missed: false,
            is_refused: false,
            is_unlisted: false,
        }
    }

    fn update(&self, node: NodeName) -> KubernetesUpdate {
        let slices = self.slices.slices_of(&node);
        KubernetesUpdate::Devices { node, slices }
    }
}

impl WatchHandler for Devices {
    type Object = ResourceSlice;

    fn event(&mut self, event: Event<ResourceSlice>) -> Vec<KubernetesUpdate> {
        let node = match event {
            Event::Init => {
                self.slices.list_begins();
                None
            }
            Event::InitApply(slice) | Event::Apply(slice) => self.slices.seen(&slice),
            Event::Delete(slice) => {
                let name = slice.metadata.name.unwrap_or_default();
                self.slices.remove(&name)
            }
            Event::InitDone => {
                (self.is_missed, self.is_refused, self.is_unlisted) = (false, false, false);
                let changed = self.slices.listed();
                let updates = changed.into_iter().map(|node| self.update(node));
                return updates.chain([KubernetesUpdate::DevicesListed]).collect();
            }
        };
        node.map(|node| self.update(node)).into_iter().collect()
    }

    fn broke(&mut self, broke: &WatchBroke, backoff: &mut Backoff) -> (Vec<KubernetesUpdate>, Duration) {
        let code = broke.refusal.code();
        let is_missed = broke.is_unlisted && code == Some(404);
        let is_refused = matches!(code, Some(401 | 403));
        if is_missed && !std::mem::replace(&mut self.is_missed, true) {
            info!(
                "the kind ResourceSlice (resource.k8s.io/v1) does not exist: GPUs are those in Node statuses"
            );
        }
        if is_refused && !std::mem::replace(&mut self.is_refused, true) {
            warn!(
                "ResourceSlices may not be watched, so GPUs of Dynamic Resource Allocation are not awaited on the way back: {}",
                broke.refusal
            );
        }
        let is_unlisted = broke.is_unlisted && !is_missed && !is_refused;
        if is_unlisted && !std::mem::replace(&mut self.is_unlisted, true) {
            warn!(
                "ResourceSlices cannot be listed, so GPUs of Dynamic Resource Allocation are those of the last list, or none before the first: {}",
                broke.refusal
            );
        }
        let wait = backoff.next_wait();
        let is_for_long = is_missed || is_refused;
        let wait = if is_for_long { LOOK_FOR_KIND } else { wait };
        // Without the list, maintenance continues with the GPUs in Node statuses.
        (vec![KubernetesUpdate::DevicesListed], wait)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{Value, json};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Metadata, Subscriber};

    use super::*;
    use crate::answer::ApiRefusal;
    use crate::stand_in::{ScriptedReply, refusal};
    use crate::watch::Settings;
    use crate::watch::tests::{event, scripted, updates_of};

    fn slice(name: &str, devices: usize) -> Value {
        let devices: Vec<_> = (0..devices)
            .map(|it| json!({"name": format!("gpu-{it}")}))
            .collect();
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": name, "resourceVersion": "5", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "driver": "gpu.nvidia.com", "nodeName": "gpu-1", "devices": devices,
                "pool": {"name": "gpu-1", "generation": 1, "resourceSliceCount": 1},
            },
        })
    }

    /// Watches for ten seconds. A number is the count of devices of gpu-1, `None` the end of a list.
    async fn counts(lists: Vec<ScriptedReply>, watches: Vec<ScriptedReply>) -> Vec<Option<u64>> {
        let (client, _log) = scripted(lists, watches);
        let gpus = GpuResources::parse("gpu.nvidia.com").unwrap();
        let updates = updates_of(client, usize::MAX, Duration::from_secs(10), |context| {
            run(gpus, context)
        })
        .await;
        let count = |update| {
            if update == KubernetesUpdate::DevicesListed {
                return None;
            }
            let KubernetesUpdate::Devices { slices, .. } = update else {
                panic!("{update:?}");
            };
            Some(slices.iter().map(|slice| slice.devices).sum())
        };
        updates.into_iter().map(|(_, update)| count(update)).collect()
    }

    fn list(slices: &[Value]) -> ScriptedReply {
        ScriptedReply::Json(
            200,
            json!({"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1", "metadata": {"resourceVersion": "9"}, "items": slices}),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn devices_of_a_node_are_sent_after_each_change() {
        let changes = [
            ("MODIFIED", slice("a", 7)),
            ("DELETED", slice("a", 7)),
            ("ADDED", slice("b", 8)),
        ];
        let events = changes.iter().map(|(kind, slice)| event(kind, slice)).collect();
        let counts = counts(vec![list(&[slice("a", 8)])], vec![ScriptedReply::Events(events)]).await;
        assert_eq!(counts, [Some(8), None, Some(7), Some(0), Some(8)]);
    }

    #[tokio::test(start_paused = true)]
    async fn cluster_without_resource_slices_is_listed_at_once() {
        let absent = refusal(
            404,
            "NotFound",
            "the server could not find the requested resource",
            Value::Null,
        );
        assert_eq!(counts(vec![absent], vec![]).await, [None]);
    }

    /// Counts warnings.
    #[derive(Clone, Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn list_that_keeps_failing_is_logged_once_until_the_next_complete_list() {
        let warnings = Warnings::default();
        let mut devices = Devices::new(GpuResources::parse("gpu.nvidia.com").unwrap());
        let mut backoff = Backoff::new(&Settings::default());
        let mut after = |is_unlisted| {
            let broke = WatchBroke {
                refusal: ApiRefusal::Unreachable("no list within 70 s".to_owned()),
                is_unlisted,
            };
            tracing::subscriber::with_default(warnings.clone(), || devices.broke(&broke, &mut backoff));
            if !is_unlisted {
                devices.event(Event::InitDone);
            }
            warnings.0.load(Ordering::Relaxed)
        };
        assert_eq!([after(true), after(true)], [1, 1]);
        assert_eq!([after(false), after(true)], [1, 2], "a watch ends now and then");
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_right_maintenance_goes_on() {
        let refused = refusal(403, "Forbidden", "resourceslices is forbidden", Value::Null);
        assert_eq!(counts(vec![refused], vec![]).await, [None]);
    }
}
