//! The settings that decisions depend on.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::clock::doubled;
use crate::facts::gpu_resources::GpuResources;
use crate::facts::node_guard::NodeGuard;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `DRAIN_TIMEOUT_SECONDS`, from the cordon.
    pub drain_timeout: Duration,
    /// `DRAIN_WAIT_MAX_SECONDS`: how long pods may be waited for. Effects go by it; here only a change of it counts.
    pub drain_wait_max: Duration,
    /// `DRAIN_TIMEOUT_ACTION`.
    pub drain_timeout_action: DrainTimeoutAction,
    /// The wait after a round with refused evictions, and the longest wait after one that a budget
    /// blocked.
    pub eviction_retry: Duration,
    /// `VOLUME_DETACH_TIMEOUT_SECONDS`, from the end of the drain. Zero waits for no volume.
    pub volume_detach_timeout: Duration,
    /// `GUEST_SHUTDOWN_TIMEOUT_SECONDS`, from the first request to shut down.
    pub guest_shutdown_timeout: Duration,
    /// The longest hard power-off, from the record of the power-off.
    pub power_off_timeout: Duration,
    /// The longest relocation, from the record of it.
    pub relocate_timeout: Duration,
    /// `POWER_ON_TIMEOUT_SECONDS`, for the power-on, and again for the node to be back.
    pub power_on_timeout: Duration,
    /// `POLL_INTERVAL_SECONDS`: the interval of surveys.
    pub survey_every: Duration,
    /// How long a Node may still be Ready after its kubelet has stopped.
    pub node_monitor_grace: Duration,
    /// `MAINTENANCE_RETRY_GRACE_SECONDS`: how long a node stays as it is after the maintenance of its host failed.
    pub maintenance_retry_grace: Duration,
    /// How long a node is left alone so that vCenter can move its VM by vMotion.
    pub vmotion_grace: VmotionGrace,
    /// How long after an unanswered request a power-off can still begin: the deadline of a call and two reads of the VM's tasks.
    pub unanswered_for: Duration,
    /// `HOOK_TIMEOUT_SECONDS`: how long hooks may hold one step.
    pub hook_timeout: Duration,
    /// `HOOK_TIMEOUT_ACTION`.
    pub hook_timeout_action: HookTimeoutAction,
    pub guards: GuardPolicy,
    /// The releases whose episodes are handled.
    pub releases: Releases,
    /// `GPU_RESOURCES`: what has to be back before a node is.
    pub gpu_resources: GpuResources,
    /// `REQUIRE_APPROVAL`: no drain begins without an approval.
    pub require_approval: bool,
    /// The first wait after a refusal, which doubles with each refusal in a row.
    pub retry_min: Duration,
    /// The longest wait after a refusal, and the interval of retries that wait for a person.
    pub retry_max: Duration,
}

/// The guards that episodes set on Nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardPolicy {
    /// `MAINTENANCE_TAINT`.
    pub maintenance_taint: MaintenanceTaint,
    /// `OUT_OF_SERVICE_TAINT`.
    pub out_of_service_taint: bool,
    /// The other guards in use.
    pub enabled: BTreeSet<NodeGuard>,
    /// Guards are set on the Machines of nodes.
    pub machines: bool,
}

named_enum! {
    /// `MAINTENANCE_TAINT`: how long a Node has the taint [`NodeGuard::MaintenanceTaint`], from its cordon.
    pub enum MaintenanceTaint {
        /// It has none.
        Off = "off",
        /// Until its VM is on again.
        UntilPowerOn = "until-power-on",
        /// Until the node is back. Only for clusters whose DaemonSets all tolerate it.
        UntilBack = "until-back",
    }
}

/// `VMOTION_GRACE_SECONDS`: how long vCenter gets to move a VM by vMotion before its node is drained for the maintenance of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmotionGrace {
    /// So long where all passthrough devices of the VM allow it. Other nodes are drained at once, and with zero all are.
    Limited(Duration),
    /// Such VMs and those without a passthrough device are left to vCenter.
    Unlimited,
}

impl VmotionGrace {
    /// The longest limit that can be set.
    pub const LONGEST: Duration = Duration::from_secs(86_400);

    /// How long the node of an open episode waits. One that was queued under a limit does not wait for ever under none.
    pub fn limit(self) -> Duration {
        match self {
            Self::Limited(limit) => limit,
            Self::Unlimited => Self::LONGEST,
        }
    }
}

named_enum! {
    /// `NODE_BINDING`: by what a Node is bound to its VM.
    pub enum NodeBinding {
        /// The UUIDs in `spec.providerID` and `status.nodeInfo.systemUUID`.
        Uuid = "uuid",
        /// The UUID in `spec.providerID`, which a kubelet cannot change.
        ProviderId = "provider-id",
        Name = "name",
    }
}

/// The release of this process and those that it replaces. Several releases may serve one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Releases {
    /// Namespace and name of its Lease. Episodes of other releases are left alone.
    pub own: Arc<str>,
    /// `ADOPT_RELEASES`: other releases whose episodes are taken over.
    pub adopted: Arc<BTreeSet<String>>,
}

/// Action after the longest drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DrainTimeoutAction {
    /// The VM is shut down with the pods that are left.
    PowerOff,
    /// The pods are waited for.
    Hold,
}

named_enum! {
    /// Action after hooks have held a step for the longest time.
    pub enum HookTimeoutAction {
        /// The step is made.
        Proceed = "proceed",
        /// The node is parked as overdue until the hooks are removed.
        Hold = "hold",
    }
}

named_enum! {
    /// `STATIC_DEVICES`: what happens to a VM that is off and has a passthrough device at a fixed address of its host.
    pub enum StaticDevices {
        /// It waits for its own host.
        Wait = "wait",
        /// It may be relocated, and gets the devices of the other host.
        Repoint = "repoint",
    }
}

/// `MAX_UNAVAILABLE` and `MAX_UNAVAILABLE_GPUS`: how many nodes or GPUs may be out of service at once, from the cordon of a node until
/// it is back. `MAX_POWER_OFFS_PER_HOUR`: how many VMs may be powered off in an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// No limit.
    Unlimited,
    Number(u32),
    /// This share of all, rounded down, at least one.
    Percent(u8),
}

/// An invalid value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not one of the permitted values")]
pub struct NotPermitted;

impl DrainTimeoutAction {
    /// All values.
    pub const ALL: [Self; 2] = [Self::PowerOff, Self::Hold];

    /// Its name in the settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::PowerOff => "power-off",
            Self::Hold => "hold",
        }
    }
}

impl FromStr for Limit {
    type Err = NotPermitted;

    fn from_str(text: &str) -> Result<Self, NotPermitted> {
        if text.eq_ignore_ascii_case("unlimited") {
            return Ok(Self::Unlimited);
        }
        let limit = match text.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
                percent.map(Self::Percent)
            }
            None => {
                let number = text.parse().ok().filter(|number| (1..=10_000).contains(number));
                number.map(Self::Number)
            }
        };
        limit.ok_or(NotPermitted)
    }
}

impl Limit {
    /// The limit as a number, where `all` counts what there is.
    pub fn limit_of(self, all: impl FnOnce() -> u64) -> Option<u32> {
        match self {
            Self::Unlimited => None,
            Self::Number(number) => Some(number),
            Self::Percent(percent) => {
                let share = all().saturating_mul(u64::from(percent)) / 100;
                Some(u32::try_from(share).unwrap_or(u32::MAX).max(1))
            }
        }
    }
}

impl Policy {
    /// How long to wait after `refusals` refusals in a row.
    pub fn backoff(&self, refusals: u32) -> Duration {
        doubled(self.retry_min, refusals.saturating_sub(1), self.retry_max)
    }
}

impl Releases {
    /// Whether episodes of `release` are handled.
    pub fn has(&self, release: &str) -> bool {
        // Old records have no release.
        release.is_empty() || self.names(release)
    }

    /// Whether `release` is one of these, for records where only the name shows the owner.
    pub fn names(&self, release: &str) -> bool {
        release == &*self.own || self.adopted.contains(release)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(retry_min: u64, retry_max: u64) -> Policy {
        let some = Duration::from_secs(600);
        Policy {
            drain_timeout: some,
            drain_wait_max: some,
            drain_timeout_action: DrainTimeoutAction::Hold,
            eviction_retry: some,
            volume_detach_timeout: some,
            guest_shutdown_timeout: some,
            power_off_timeout: some,
            relocate_timeout: some,
            power_on_timeout: some,
            survey_every: some,
            node_monitor_grace: some,
            maintenance_retry_grace: some,
            vmotion_grace: VmotionGrace::Limited(some),
            unanswered_for: some,
            hook_timeout: some,
            hook_timeout_action: HookTimeoutAction::Hold,
            guards: GuardPolicy {
                maintenance_taint: MaintenanceTaint::Off,
                out_of_service_taint: false,
                enabled: BTreeSet::new(),
                machines: false,
            },
            releases: Releases {
                own: "ops/haulout".into(),
                adopted: Arc::new(["ops/former".to_owned()].into()),
            },
            gpu_resources: GpuResources::parse("nvidia.com/*").unwrap(),
            require_approval: false,
            retry_min: Duration::from_secs(retry_min),
            retry_max: Duration::from_secs(retry_max),
        }
    }

    #[test]
    fn backoff_doubles_with_each_refusal_up_to_its_limit() {
        let waits = |policy: &Policy, refusals: &[u32]| -> Vec<u64> {
            let wait = |refusals: &u32| policy.backoff(*refusals).as_secs();
            refusals.iter().map(wait).collect()
        };
        let usual = policy(1, 30);
        assert_eq!(
            waits(&usual, &[0, 1, 2, 3, 4, 5, 6, 7]),
            [1, 1, 2, 4, 8, 16, 30, 30]
        );
        assert_eq!(waits(&usual, &[17, 18, u32::MAX]), [30, 30, 30]);
        let patient = policy(1, u64::MAX);
        assert_eq!(waits(&patient, &[17, u32::MAX]), [65_536, 65_536]);
        assert_eq!(
            waits(&policy(60, 30), &[1]),
            [30],
            "never longer than the longest"
        );
    }

    #[test]
    fn episode_without_release_is_ours_only_on_a_node() {
        let releases = policy(1, 1).releases;
        let of = |release| (releases.has(release), releases.names(release));
        assert_eq!(of("ops/haulout"), (true, true));
        assert_eq!(of("ops/former"), (true, true));
        assert_eq!(of("other/haulout"), (false, false));
        assert_eq!(of(""), (true, false));
    }
}
