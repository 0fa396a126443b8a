//! Settings that change in mid-episode: what begins is decided by the settings, and how it ends by the record. Each setting is
//! classified here, and a new one does not compile before it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use haulout_core::facts::gpu_resources::GpuResources;
use haulout_core::facts::kubernetes::RequestAction;
use haulout_core::fixtures::gpu_resources;
use haulout_core::ids::BootId;
use haulout_core::inventory::InventorySettings;
use haulout_core::maintenance::clock::Elapsed;
use haulout_core::maintenance::decide::{Decision, decide};
use haulout_core::maintenance::episode::{CordonOwner, DrainEnd, DrainLimit, Episode, Phase, Record};
use haulout_core::maintenance::machine_guard::{GuardedKind, GuardedObject, MachineGuards};
use haulout_core::maintenance::node_guard::{GuardChanges, GuardState, NodeGuard};
use haulout_core::maintenance::observed::{
    Admission, CordonedBy, HostState, NodeOverrides, ObservedNode, ObservedVm, PowerState, Strategy,
};
use haulout_core::maintenance::policy::{
    DrainTimeoutAction, GuardPolicy, HookTimeoutAction, Limit, MaintenanceTaint, Policy, StaticDevices,
    VmotionGrace,
};
use haulout_core::maintenance::waiting::ParkReason;

use crate::cases::{held, report};
use crate::facts::{self, at, entering, moment, node, observed, old_boot, vm};

/// The settings of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub policy: Policy,
    pub inventory: InventorySettings,
}

impl Settings {
    /// The longest time of a drain.
    pub fn drain_limit(&self) -> Duration {
        match self.policy.drain_timeout_action {
            DrainTimeoutAction::Hold => Duration::MAX,
            DrainTimeoutAction::PowerOff => self
                .policy
                .drain_timeout
                .saturating_add(self.policy.drain_wait_max),
        }
    }
}

/// A setting that histories change between two writes of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    DrainTimeout,
    DrainTimeoutAction,
    DrainWaitMax,
    EvictionRetry,
    VolumeDetachTimeout,
    GuestShutdownTimeout,
    PowerOffTimeout,
    RelocateTimeout,
    PowerOnTimeout,
    SurveyEvery,
    NodeMonitorGrace,
    MaintenanceRetryGrace,
    VmotionGrace,
    UnansweredFor,
    HookTimeout,
    HookTimeoutAction,
    MaintenanceTaint,
    OutOfServiceTaint,
    NodeGuards,
    MachineGuards,
    GpuResources,
    RequireApproval,
    RetryMax,
    ConcurrentDrains,
    Unavailable,
    PowerOffs,
    DrainSlot,
    StaticDevices,
    HostSettle,
}

/// The other of two values.
fn toggle<T: PartialEq>(value: &mut T, (one, other): (T, T)) {
    *value = if *value == one { other } else { one };
}

fn seconds(value: &mut Duration, one: u64, other: u64) {
    toggle(value, (Duration::from_secs(one), Duration::from_secs(other)));
}

impl Setting {
    pub const ALL: &[Self] = &[
        Self::DrainTimeout,
        Self::DrainTimeoutAction,
        Self::DrainWaitMax,
        Self::EvictionRetry,
        Self::VolumeDetachTimeout,
        Self::GuestShutdownTimeout,
        Self::PowerOffTimeout,
        Self::RelocateTimeout,
        Self::PowerOnTimeout,
        Self::SurveyEvery,
        Self::NodeMonitorGrace,
        Self::MaintenanceRetryGrace,
        Self::VmotionGrace,
        Self::UnansweredFor,
        Self::HookTimeout,
        Self::HookTimeoutAction,
        Self::MaintenanceTaint,
        Self::OutOfServiceTaint,
        Self::NodeGuards,
        Self::MachineGuards,
        Self::GpuResources,
        Self::RequireApproval,
        Self::RetryMax,
        Self::ConcurrentDrains,
        Self::Unavailable,
        Self::PowerOffs,
        Self::DrainSlot,
        Self::StaticDevices,
        Self::HostSettle,
    ];

    /// Sets it to another value.
    pub fn change(self, settings: &mut Settings) {
        let Settings { policy, inventory } = settings;
        match self {
            Self::DrainTimeout => seconds(&mut policy.drain_timeout, 600, 30),
            Self::DrainTimeoutAction => toggle(
                &mut policy.drain_timeout_action,
                (DrainTimeoutAction::PowerOff, DrainTimeoutAction::Hold),
            ),
            Self::DrainWaitMax => seconds(&mut policy.drain_wait_max, 0, 3600),
            Self::EvictionRetry => seconds(&mut policy.eviction_retry, 5, 60),
            Self::VolumeDetachTimeout => seconds(&mut policy.volume_detach_timeout, 120, 0),
            Self::GuestShutdownTimeout => seconds(&mut policy.guest_shutdown_timeout, 120, 10),
            Self::PowerOffTimeout => seconds(&mut policy.power_off_timeout, 300, 5),
            Self::RelocateTimeout => seconds(&mut policy.relocate_timeout, 600, 5),
            Self::PowerOnTimeout => seconds(&mut policy.power_on_timeout, 300, 5),
            Self::SurveyEvery => seconds(&mut policy.survey_every, 30, 300),
            Self::NodeMonitorGrace => seconds(&mut policy.node_monitor_grace, 60, 5),
            Self::MaintenanceRetryGrace => seconds(&mut policy.maintenance_retry_grace, 10, 600),
            Self::VmotionGrace => {
                policy.vmotion_grace = match policy.vmotion_grace {
                    VmotionGrace::Limited(limit) if limit.is_zero() => VmotionGrace::Unlimited,
                    VmotionGrace::Limited(_) => VmotionGrace::Limited(Duration::ZERO),
                    VmotionGrace::Unlimited => base().policy.vmotion_grace,
                };
                inventory.vmotion_grace = policy.vmotion_grace;
            }
            Self::UnansweredFor => seconds(&mut policy.unanswered_for, 90, 30),
            Self::HookTimeout => seconds(&mut policy.hook_timeout, 3600, 60),
            Self::HookTimeoutAction => toggle(
                &mut policy.hook_timeout_action,
                (HookTimeoutAction::Hold, HookTimeoutAction::Proceed),
            ),
            Self::MaintenanceTaint => {
                policy.guards.maintenance_taint = match policy.guards.maintenance_taint {
                    MaintenanceTaint::Off => MaintenanceTaint::UntilPowerOn,
                    MaintenanceTaint::UntilPowerOn => MaintenanceTaint::UntilBack,
                    MaintenanceTaint::UntilBack => MaintenanceTaint::Off,
                }
            }
            Self::OutOfServiceTaint => policy.guards.out_of_service_taint ^= true,
            Self::NodeGuards => {
                let all = NodeGuard::ALL.iter().copied().collect();
                toggle(&mut policy.guards.enabled, (all, BTreeSet::new()));
            }
            Self::MachineGuards => policy.guards.machines ^= true,
            Self::GpuResources => {
                let other = GpuResources::parse("example.com/gpu").unwrap();
                toggle(&mut policy.gpu_resources, (gpu_resources(), other));
                inventory.device_slices = policy.gpu_resources.has_drivers();
            }
            Self::RequireApproval => {
                policy.require_approval ^= true;
                inventory.require_approval = policy.require_approval;
            }
            Self::RetryMax => seconds(&mut policy.retry_max, 30, 5),
            Self::ConcurrentDrains => toggle(&mut inventory.concurrent_drains, (1, 2)),
            Self::Unavailable => toggle(&mut inventory.unavailable, (Limit::Unlimited, Limit::Number(1))),
            Self::PowerOffs => toggle(&mut inventory.power_offs, (Limit::Unlimited, Limit::Number(1))),
            Self::DrainSlot => seconds(&mut inventory.drain_slot, 1800, 60),
            Self::StaticDevices => toggle(
                &mut inventory.static_devices,
                (StaticDevices::Repoint, StaticDevices::Wait),
            ),
            Self::HostSettle => seconds(&mut inventory.host_settle, 60, 0),
        }
    }
}

/// How a setting that changes in mid-episode is tested.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tested {
    /// Histories change it, by this happening.
    Drawn(Setting),
    /// Histories do not change it, for this reason.
    Not(&'static str),
}

/// Each field of a struct, with its class. A field that is missing here does not compile.
macro_rules! classified {
    ($of:ident { $($field:ident => $class:expr),+ $(,)? }) => {{
        // Only the names matter.
        let _ = |it: $of| { let $of { $($field: _),+ } = it; };
        vec![$((stringify!($field), $class)),+]
    }};
}

fn of_policy() -> Vec<(&'static str, Tested)> {
    use Tested::{Drawn, Not};
    classified!(Policy {
        drain_timeout => Drawn(Setting::DrainTimeout),
        drain_timeout_action => Drawn(Setting::DrainTimeoutAction),
        drain_wait_max => Drawn(Setting::DrainWaitMax),
        eviction_retry => Drawn(Setting::EvictionRetry),
        volume_detach_timeout => Drawn(Setting::VolumeDetachTimeout),
        guest_shutdown_timeout => Drawn(Setting::GuestShutdownTimeout),
        power_off_timeout => Drawn(Setting::PowerOffTimeout),
        relocate_timeout => Drawn(Setting::RelocateTimeout),
        power_on_timeout => Drawn(Setting::PowerOnTimeout),
        survey_every => Drawn(Setting::SurveyEvery),
        node_monitor_grace => Drawn(Setting::NodeMonitorGrace),
        maintenance_retry_grace => Drawn(Setting::MaintenanceRetryGrace),
        vmotion_grace => Drawn(Setting::VmotionGrace),
        unanswered_for => Drawn(Setting::UnansweredFor),
        hook_timeout => Drawn(Setting::HookTimeout),
        hook_timeout_action => Drawn(Setting::HookTimeoutAction),
        guards => Not("its fields are classified below"),
        releases => Not("who writes the record: without ADOPT_RELEASES an episode of another release waits, and says so"),
        gpu_resources => Drawn(Setting::GpuResources),
        require_approval => Drawn(Setting::RequireApproval),
        retry_min => Not("no setting changes it"),
        retry_max => Drawn(Setting::RetryMax),
    })
}

fn of_guards() -> Vec<(&'static str, Tested)> {
    use Tested::Drawn;
    classified!(GuardPolicy {
        maintenance_taint => Drawn(Setting::MaintenanceTaint),
        out_of_service_taint => Drawn(Setting::OutOfServiceTaint),
        enabled => Drawn(Setting::NodeGuards),
        machines => Drawn(Setting::MachineGuards),
    })
}

fn of_inventory() -> Vec<(&'static str, Tested)> {
    use Tested::{Drawn, Not};
    classified!(InventorySettings {
        releases => Not("who writes the record: without ADOPT_RELEASES an episode of another release waits, and says so"),
        concurrent_drains => Drawn(Setting::ConcurrentDrains),
        unavailable => Drawn(Setting::Unavailable),
        unavailable_gpus => Not("another limit of the same queue as MAX_UNAVAILABLE"),
        power_offs => Drawn(Setting::PowerOffs),
        binding => Not("the identity of a VM: the tests of the inventory show that an episode keeps the one of its copy"),
        require_approval => Drawn(Setting::RequireApproval),
        device_slices => Drawn(Setting::GpuResources),
        node_maintenances => Not("no setting changes it: each process watches them"),
        foreign_maintenances => Not("no request of histories is of another project"),
        drain_slot => Drawn(Setting::DrainSlot),
        vmotion_grace => Drawn(Setting::VmotionGrace),
        static_devices => Drawn(Setting::StaticDevices),
        host_settle => Drawn(Setting::HostSettle),
    })
}

#[test]
fn each_setting_is_changed_by_its_happening_or_has_a_reason_not_to_be() {
    let all = [of_policy(), of_guards(), of_inventory()];
    let mut drawn = BTreeSet::new();
    for (name, class) in all.into_iter().flatten() {
        match class {
            Tested::Not(why) => assert!(!why.is_empty(), "{name}"),
            Tested::Drawn(setting) => {
                let before = base();
                let mut after = before.clone();
                setting.change(&mut after);
                assert_ne!(before, after, "{name}");
                setting.change(&mut after);
                drawn.insert(format!("{setting:?}"));
            }
        }
    }
    let all: BTreeSet<String> = Setting::ALL
        .iter()
        .map(|setting| format!("{setting:?}"))
        .collect();
    assert_eq!(drawn, all);
}

/// Node and VM of a node that is `phase`, drained as `limit` says, on a host in this state.
fn decided(episode: Episode, host: HostState, request: Option<RequestAction>) -> Decision {
    let node = ObservedNode {
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        boot_id: Some(old_boot()),
        ..node()
    };
    let mut seen = observed(node, vm(Some(PowerState::On), host));
    seen.request = request.map(facts::request);
    let policy = facts::policy(DrainTimeoutAction::PowerOff);
    decide(&facts::record(episode), &seen, &policy, moment(0))
}

fn drained_for(seconds: u64, limit: DrainLimit) -> Episode {
    Episode {
        elapsed: Elapsed::of(Duration::from_secs(seconds)),
        drain_limit: Some(limit),
        ..facts::episode(Phase::Draining, CordonOwner::Ours, false)
    }
}

#[test]
fn drain_limit_that_becomes_shorter_counts_from_then_and_a_longer_one_only_replaces_it() {
    let of = |seconds| DrainLimit::After(Elapsed::of(Duration::from_secs(seconds)));
    // Limit in the record, and from when the new one counts.
    for (recorded, from) in [(of(3600), 1000), (DrainLimit::Hold, 1000), (of(60), 0)] {
        let decision = decided(drained_for(1000, recorded), entering(), None);
        let Decision::Write(transition) = decision else {
            panic!("{decision:?}")
        };
        let after = transition.record.episode().unwrap();
        assert_eq!(after.drain_limit, Some(of(600)), "{recorded:?}");
        assert_eq!(after.limited_from.span().as_secs(), from, "{recorded:?}");
    }
}

#[test]
fn shorter_drain_timeout_with_a_longer_wait_for_pods_counts_from_then() {
    let policy = |timeout, wait| Policy {
        drain_timeout: Duration::from_secs(timeout),
        drain_wait_max: Duration::from_secs(wait),
        ..facts::policy(DrainTimeoutAction::PowerOff)
    };
    // The limit becomes longer, or stays the same.
    for wait in [7200, 3000] {
        let mut seen = observed(node(), vm(Some(PowerState::On), entering()));
        seen.admission = Admission::Granted;
        let queued = facts::record(facts::episode(Phase::Queued, CordonOwner::NotYet, false));
        let Decision::Write(begun) = decide(&queued, &seen, &policy(3600, 0), moment(0)) else {
            panic!("not admitted")
        };
        assert_eq!(begun.record.phase(), Some(&Phase::Draining));
        let cordoned = ObservedNode {
            unschedulable: true,
            cordoned_by: CordonedBy::Haulout,
            ..node()
        };
        seen.node = Some(cordoned);
        seen.drain = Some(report(moment(999).monotonic, 0, vec![held()]));
        let changed = policy(600, wait);
        let Decision::Write(followed) = decide(&begun.record, &seen, &changed, moment(1000)) else {
            panic!("the drain timeout is not recorded")
        };
        assert_eq!(followed.record.phase(), Some(&Phase::Draining), "{wait}");
        seen.record_seen.at = moment(1000);
        let next = decide(&followed.record, &seen, &changed, moment(1001));
        assert!(!matches!(next, Decision::Write(_)), "{wait}: {next:?}");
    }
}

#[test]
fn vm_that_is_left_to_vcenter_is_not_shut_down_for_its_host_where_a_request_keeps_its_node_drained() {
    let drained = |is_of_host: bool| {
        let mut episode = facts::episode(Phase::Drained, CordonOwner::Ours, false);
        if !is_of_host {
            episode.trigger.task = None;
        }
        let node = ObservedNode {
            unschedulable: true,
            cordoned_by: CordonedBy::Haulout,
            ..node()
        };
        let mut left = vm(Some(PowerState::On), entering());
        left.is_left_to_vcenter = true;
        let mut seen = observed(node, left);
        seen.request = Some(facts::request(RequestAction::Drain));
        let policy = facts::policy(DrainTimeoutAction::PowerOff);
        decide(&facts::record(episode), &seen, &policy, moment(5))
    };
    assert!(
        !matches!(drained(false), Decision::Write(_)),
        "{:?}",
        drained(false)
    );
    // An episode that began for the host goes on, also if the setting came later.
    assert!(matches!(drained(true), Decision::Write(_)), "{:?}", drained(true));
}

#[test]
fn guard_that_the_settings_do_not_want_any_more_is_removed_at_once() {
    let node = |guard| ObservedNode {
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        ready: false,
        boot_id: Some(old_boot()),
        guards: [(guard, GuardState::Ours)].into(),
        ..node()
    };
    let parked = |resume: Phase| Phase::Parked {
        reason: ParkReason::Overdue {
            phase: resume.name().to_owned(),
            waiting_on: "its GPUs".to_owned(),
        },
        resume: Box::new(resume),
        resume_since: at(0),
    };
    let mut policy = facts::policy(DrainTimeoutAction::PowerOff);
    policy.guards.maintenance_taint = MaintenanceTaint::UntilPowerOn;
    let episode = Episode {
        guards: [NodeGuard::MaintenanceTaint].into(),
        elapsed: Elapsed::of(Duration::from_secs(4000)),
        ..facts::episode(parked(Phase::Rejoining), CordonOwner::Ours, true)
    };
    let before = facts::record(episode);
    let seen = observed(
        node(NodeGuard::MaintenanceTaint),
        vm(Some(PowerState::On), HostState::InService),
    );
    let decision = decide(&before, &seen, &policy, moment(5));
    let Decision::Write(transition) = decision else {
        panic!("{decision:?}")
    };
    let changes = GuardChanges::of(&before, &transition.record, seen.node.as_ref().unwrap());
    assert_eq!(changes.remove, [NodeGuard::MaintenanceTaint].into());
    assert_eq!(transition.record.phase(), before.phase(), "nothing else changes");
}

#[test]
fn vm_that_was_to_wait_for_its_own_host_waits_after_its_node_was_deleted() {
    let waiting = ObservedNode {
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        overrides: NodeOverrides {
            strategy: Strategy::Wait,
            ..NodeOverrides::default()
        },
        ..node()
    };
    let episode = facts::episode(Phase::ShuttingDown(DrainEnd::Complete), CordonOwner::Ours, false);
    let policy = facts::policy(DrainTimeoutAction::PowerOff);
    let mut seen = observed(waiting, vm(Some(PowerState::Off), HostState::InMaintenance));
    let decision = decide(&facts::record(episode), &seen, &policy, moment(5));
    let Decision::Write(transition) = decision else {
        panic!("{decision:?}")
    };
    // The Node is gone, and DRS could place the VM.
    seen = observed(
        node(),
        ObservedVm {
            drs: true,
            ..vm(Some(PowerState::Off), HostState::InMaintenance)
        },
    );
    seen.node = None;
    seen.has_copy = true;
    seen.is_record_on_node = false;
    seen.home = HostState::InMaintenance;
    let decision = decide(&transition.record, &seen, &policy, moment(6));
    assert!(!matches!(decision, Decision::Write(_)), "{decision:?}");
}

#[test]
fn gpus_that_the_setting_does_not_match_any_more_are_not_awaited_and_named() {
    let back = ObservedNode {
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        boot_id: Some(BootId::new("boot-after")),
        ..node()
    };
    let episode = Episode {
        gpus_before: BTreeMap::from([("example.com/gpu".to_owned(), 8)]).into(),
        gpus_cleared: true,
        ..facts::episode(Phase::Rejoining, CordonOwner::Ours, true)
    };
    let policy = facts::policy(DrainTimeoutAction::PowerOff);
    let seen = observed(back, vm(Some(PowerState::On), HostState::InService));
    let named = decide(&facts::record(episode), &seen, &policy, moment(5));
    let Decision::Write(transition) = named else {
        panic!("{named:?}")
    };
    let unmatched = transition.record.episode().map(|it| it.unmatched_gpus.clone());
    assert_eq!(unmatched, Some(vec!["example.com/gpu".to_owned()]));
    let ended = decide(&transition.record, &seen, &policy, moment(6));
    let Decision::Write(transition) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(transition.record, Record::InService);
}

#[test]
fn guards_that_are_left_on_machines_are_named_with_the_commands_that_remove_them() {
    let object = |kind, name: &str| GuardedObject {
        kind,
        namespace: "capi".to_owned(),
        name: name.to_owned(),
    };
    let guards = MachineGuards {
        is_due: true,
        objects: vec![
            object(GuardedKind::Machine, "m"),
            object(GuardedKind::VsphereVm, "v"),
        ],
        left: Some("HTTP 403".to_owned()),
        ..MachineGuards::default()
    };
    assert_eq!(
        guards.left_behind().unwrap(),
        "the guards on machine capi/m, vsphereVm capi/v are left, because they could not be removed: HTTP 403; to remove them: \
         kubectl annotate -n capi machines.cluster.x-k8s.io m cluster.x-k8s.io/skip-remediation-; \
         kubectl annotate -n capi vspherevms.infrastructure.cluster.x-k8s.io v cluster.x-k8s.io/paused-"
    );
}

#[test]
fn guards_of_which_nobody_knows_whether_they_were_set_are_told_as_that() {
    let guards = MachineGuards {
        is_due: true,
        left: Some("HTTP 503".to_owned()),
        ..MachineGuards::default()
    };
    assert_eq!(
        guards.left_behind().unwrap(),
        "it is not known whether guards are left on the Machine of the node, because Haulout could not look: HTTP 503"
    );
}

fn base() -> Settings {
    Settings {
        policy: haulout_core::fixtures::policy(DrainTimeoutAction::PowerOff),
        inventory: haulout_core::fixtures::inventory_settings(),
    }
}
