//! Sets the GPU counts of the last boot on a Node to 0.

use super::{Executor, WRITE_DEADLINE};
use haulout_core::ids::NodeName;
use haulout_core::maintenance::effect::Effect;
use haulout_core::maintenance::observed::{AttemptOutcome, EffectRefusal, RetryAdvice};
use haulout_kubernetes::fence::Permit;
use haulout_kubernetes::node::{self, NodeErrorKind};
use haulout_kubernetes::update::KubernetesUpdate;

/// Conflicts in a row, after each of which the Node is read again. The conditions of a transition are written at about the same time.
const CONFLICTS_MAX: u32 = 3;

impl Executor {
    pub(super) async fn clear_gpus(
        &self,
        permit: &Permit,
        name: &NodeName,
        effect: &Effect,
    ) -> AttemptOutcome {
        let Effect::ClearGpus {
            node: uid,
            resource_version,
            boot,
            resources,
        } = effect
        else {
            return AttemptOutcome::Done;
        };
        let client = self.traced();
        let read = (self.limit_group.as_deref(), &self.gpu_resources);
        let (mut version, mut conflicts) = (*resource_version, 0);
        loop {
            let of = (uid, version);
            let cleared = node::clear_gpus(permit, &client, read, name, of, resources, WRITE_DEADLINE);
            let error = match cleared.await {
                Ok(node) => {
                    self.update(KubernetesUpdate::Answered(Box::new(node))).await;
                    return AttemptOutcome::Done;
                }
                Err(error) => error,
            };
            if error.kind == NodeErrorKind::Conflict && conflicts < CONFLICTS_MAX {
                conflicts += 1;
                let again = node::get(&client, read, name, WRITE_DEADLINE).await;
                if let Ok(node) = again
                    && node.uid == *uid
                    && node.boot_id == *boot
                {
                    version = node.resource_version;
                    continue;
                }
            }
            return AttemptOutcome::Refused(EffectRefusal {
                advice: match error.kind {
                    NodeErrorKind::Forbidden | NodeErrorKind::Rejected => RetryAdvice::Person,
                    NodeErrorKind::Conflict
                    | NodeErrorKind::Gone
                    | NodeErrorKind::Unversioned
                    | NodeErrorKind::Unreachable => RetryAdvice::Retry,
                },
                message: error.to_string(),
            });
        }
    }
}
