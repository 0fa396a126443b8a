//! The wait for the volumes of a drained node to be detached.
//!
//! The attach-detach controller detaches a volume after its pod is gone, through the CSI driver and the same vCenter. A VM that is
//! shut down meanwhile keeps its disks: the pods elsewhere wait until Kubernetes detaches by force.

use std::time::Duration;

use super::super::context::{PhaseContext, PhaseStep, at_latest};
use super::super::transition_to;
use crate::maintenance::clock::Monotonic;
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::Episode;
use crate::maintenance::volumes::{VolumeReport, VolumeWait};
use crate::maintenance::waiting::WaitingOn;

/// The shortest and the longest interval between two lists. Each reads the VolumeAttachments of all nodes.
const LIST_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Within that share of the time so far the next list comes.
const SHARE: u32 = 4;

/// The longest wait that is not recorded where no volume was seen, as for one list.
const UNRECORDED: Duration = Duration::from_secs(5);

impl PhaseContext<'_> {
    /// Waits for the volumes of pods that are gone, before the guest is asked to shut down. Not where the kubelet is gone: only it can
    /// unmount them.
    pub(in super::super) fn await_volumes(self) -> Option<PhaseStep> {
        let timeout = self.policy.volume_detach_timeout;
        let is_asked = self.seen.attempt(EffectKind::ShutdownGuest).is_some();
        let is_over = self.episode.volumes.is_some() || is_asked;
        if timeout.is_zero() || is_over || self.node.is_unreachable {
            return None;
        }
        let deadline = self.phase_deadline(timeout);
        let listed = self.seen.volumes.as_ref();
        let listed = listed.filter(|report| report.listed_at >= self.seen.record_seen.phase_at);
        let attached = listed.map(|report| report.attached.clone()).unwrap_or_default();
        if listed.is_some() && attached.is_empty() {
            let had_some = listed.is_some_and(|report| report.had_some);
            let is_worth_a_write = had_some || self.episode.elapsed.span() > UNRECORDED;
            return is_worth_a_write.then(|| self.end_of_volumes(Vec::new()));
        }
        if self.is_past(deadline) {
            let left = attached.iter().map(ToString::to_string);
            return Some(self.end_of_volumes(left.collect()));
        }
        let waiting_on = WaitingOn::Volumes {
            volumes: attached,
            until: deadline.shown,
        };
        let step = match listed.map(|report| self.next_list(report)) {
            Some(at) if self.now.monotonic < at => PhaseStep::wait_until(waiting_on, at),
            Some(_) | None => self.list_volumes(waiting_on),
        };
        Some(at_latest(deadline.at, step))
    }

    fn next_list(self, report: &VolumeReport) -> Monotonic {
        let (least, most) = LIST_EVERY;
        let every = (self.episode.elapsed.span() / SHARE).clamp(least, most);
        report.listed_at.after(every)
    }

    /// Lists the volumes; after a failed list, waits for its backoff first.
    fn list_volumes(self, waiting_on: WaitingOn) -> PhaseStep {
        let attempt = self.seen.attempt(EffectKind::ListVolumes);
        if attempt.is_some_and(|attempt| attempt.outcome.refusal().is_some()) {
            return self.start_or_retry(EffectKind::ListVolumes, waiting_on, || Ok(Effect::ListVolumes));
        }
        PhaseStep::act(Effect::ListVolumes, waiting_on)
    }

    fn end_of_volumes(self, left: Vec<String>) -> PhaseStep {
        PhaseStep::record(transition_to(Episode {
            volumes: Some(VolumeWait {
                waited: self.episode.elapsed,
                left,
            }),
            ..self.episode.clone()
        }))
    }

    /// How long the shutdown had taken when the guest could be asked.
    pub(super) fn volumes_waited(self) -> Duration {
        let volumes = self.episode.volumes.as_ref();
        volumes.map(|volumes| volumes.waited.span()).unwrap_or_default()
    }
}
