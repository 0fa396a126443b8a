//! Random histories: persons, vCenter, guests and kubelets act at random. Then they stop, and the end state is
//! checked.

use std::time::Duration;

use haulout_core::facts::fault::FaultKind;
use haulout_core::facts::hook::HookPoint;
use haulout_core::facts::kubernetes::RequestAction;
use haulout_core::facts::node_guard::NodeGuard;
use haulout_core::facts::vsphere::PowerState;
use haulout_core::maintenance::episode::{Phase, Record};
use haulout_core::maintenance::policy::{DrainTimeoutAction, HookTimeoutAction, Limit, Policy};
use jiff::SignedDuration;
use proptest::prelude::{
    ProptestConfig, Strategy as _, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use proptest::test_runner::RngSeed;

use crate::facts;
use crate::model::{Limits, Model, NODES, host_ref};
use crate::settings::Setting;

/// The usual settings, with guards on Machines.
fn policy(action: DrainTimeoutAction) -> Policy {
    let mut policy = facts::policy(action);
    policy.guards.machines = true;
    policy
}

/// 200 cases of each property, the same ones in every run: a gate must not fail for what the change did not touch. With
/// `HAULOUT_HISTORIES`, as many other cases; `PROPTEST_RNG_SEED` selects which.
fn search() -> ProptestConfig {
    let set = std::env::var("HAULOUT_HISTORIES").ok();
    let cases = set.and_then(|count| count.parse().ok());
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: cases.unwrap_or(200),
        rng_seed: cases.map_or(RngSeed::Fixed(1), |_| default.rng_seed),
        failure_persistence: None,
        ..default
    }
}

/// A window that is closed when a history begins, and whose ends steps of a clock and the hours of a history pass.
const WINDOW: &str = "11:20-12:30";

/// The events of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    HomeEnters,
    HomeIsInMaintenance,
    HomeIsOut,
    HomeMaintenanceFails,
    HomeIsCancelledUnpushed,
    HomeIsUnreachable,
    SpareEnters,
    SpareIsOut,
    SpareGetsFree,
    SpareGetsTaken,
    SpareRefusesPowerOn,
    ClusterRefusesPowerOn,
    HomeRefusesPowerOn,
    PodGoes,
    PodComes,
    PodSlipsIn,
    GuestStops,
    GuestReboots,
    VmDies,
    TaskEnds,
    TaskFails,
    TaskOfAnotherStarts,
    FilesAreLocked,
    ReplyIsLost,
    NodeComesUp,
    NodeComesUpWithoutCheckpoint,
    NodeLosesGpus,
    KubeletShutsDown,
    KubeletIsMissed,
    StatusIsForbidden,
    StatusIsAllowed,
    NodeIsDeleted,
    LabelIsRemoved,
    LabelIsBack,
    AnnotationsAreWiped,
    DriverUncordons,
    PersonCordons,
    PersonUncordons,
    PersonPowersOn,
    PersonPowersOff,
    PersonAsksForDrain,
    PersonAsksForPowerOff,
    PersonAsksForRelocate,
    PersonAsksForReboot,
    PersonAsksForRebootInWindow,
    PersonDeletesRequest,
    PersonSaysSkip,
    PersonSaysGoOn,
    PersonSaysWait,
    PersonGuards,
    PersonUnguards,
    PersonHooksDrain,
    PersonHooksPowerOff,
    PersonHooksUncordon,
    PersonRemovesHooks,
    PersonApproves,
    VmLost,
    VmBack,
    VmHasVgpu,
    VmHasStaticDevice,
    VcenterMovesVm,
    AnotherProcess,
    AnotherProcessAhead,
    AnotherProcessBehind,
    /// The other replica takes over, with another value of this setting than it had.
    AnotherProcessWith(Setting),
    OtherReplicaLeads,
    MachineRightsGo,
    MachineRightsAreBack,
    CrashAfterAStep,
    CrashAfterTwoSteps,
    ClockStepsForward,
    ClockStepsBack,
    VcenterIsLost,
    VcenterIsBack,
    ASecond,
    AMinute,
    AnHour,
}

use Happening::*;

/// All events, the usual ones more than once.
const ALL: &[Happening] = &[
    HomeEnters,
    HomeEnters,
    HomeEnters,
    HomeIsInMaintenance,
    HomeIsOut,
    HomeIsOut,
    HomeMaintenanceFails,
    HomeIsCancelledUnpushed,
    HomeIsUnreachable,
    SpareEnters,
    SpareIsOut,
    SpareGetsFree,
    SpareGetsFree,
    SpareGetsTaken,
    SpareRefusesPowerOn,
    ClusterRefusesPowerOn,
    HomeRefusesPowerOn,
    PodGoes,
    PodGoes,
    PodGoes,
    PodComes,
    PodSlipsIn,
    GuestStops,
    GuestStops,
    GuestReboots,
    VmDies,
    TaskEnds,
    TaskEnds,
    TaskEnds,
    TaskFails,
    TaskOfAnotherStarts,
    FilesAreLocked,
    ReplyIsLost,
    NodeComesUp,
    NodeComesUp,
    NodeComesUpWithoutCheckpoint,
    NodeComesUpWithoutCheckpoint,
    NodeLosesGpus,
    KubeletShutsDown,
    KubeletIsMissed,
    StatusIsForbidden,
    StatusIsAllowed,
    NodeIsDeleted,
    LabelIsRemoved,
    LabelIsBack,
    AnnotationsAreWiped,
    DriverUncordons,
    PersonCordons,
    PersonUncordons,
    PersonPowersOn,
    PersonPowersOff,
    PersonAsksForDrain,
    PersonAsksForPowerOff,
    PersonAsksForRelocate,
    PersonAsksForReboot,
    PersonAsksForRebootInWindow,
    PersonDeletesRequest,
    PersonSaysSkip,
    PersonSaysGoOn,
    PersonSaysWait,
    PersonGuards,
    PersonUnguards,
    PersonHooksDrain,
    PersonHooksPowerOff,
    PersonHooksUncordon,
    PersonRemovesHooks,
    PersonApproves,
    VmLost,
    VmBack,
    VmHasVgpu,
    VmHasStaticDevice,
    VcenterMovesVm,
    VcenterMovesVm,
    AnotherProcess,
    AnotherProcessAhead,
    AnotherProcessBehind,
    OtherReplicaLeads,
    MachineRightsGo,
    MachineRightsAreBack,
    CrashAfterAStep,
    CrashAfterAStep,
    CrashAfterTwoSteps,
    ClockStepsForward,
    ClockStepsBack,
    VcenterIsLost,
    VcenterIsBack,
    ASecond,
    ASecond,
    AMinute,
    AMinute,
    AMinute,
    AnHour,
];

fn happenings() -> impl proptest::strategy::Strategy<Value = Vec<(Happening, usize)>> {
    let with = prop::sample::select(Setting::ALL).prop_map(AnotherProcessWith);
    let any = prop_oneof![12 => prop::sample::select(ALL), 1 => with];
    prop::collection::vec((any, 0..NODES), 1..50)
}

/// The limits of a history. Of each kind, none is the usual case.
fn limits() -> impl proptest::strategy::Strategy<Value = Limits> {
    use Limit::{Number, Percent, Unlimited};

    const NODES: &[Limit] = &[Unlimited, Unlimited, Number(1), Number(2), Percent(50)];
    const GPUS: &[Limit] = &[Unlimited, Unlimited, Unlimited, Number(2), Number(4)];
    const POWER_OFFS: &[Limit] = &[Unlimited, Unlimited, Unlimited, Number(1), Number(2)];
    let selected = (
        1..3_u32,
        prop::sample::select(NODES),
        prop::sample::select(GPUS),
        prop::sample::select(POWER_OFFS),
        prop::bool::weighted(0.2),
    );
    let limits = |(concurrent_drains, unavailable, unavailable_gpus, power_offs, is_grouped)| Limits {
        concurrent_drains,
        unavailable,
        unavailable_gpus,
        power_offs,
        is_grouped,
    };
    proptest::strategy::Strategy::prop_map(selected, limits)
}

fn happen(model: &mut Model, happening: Happening, index: usize) {
    model.log.push(format!("{happening:?} {index}"));
    do_it(model, happening, index);
}

fn do_it(model: &mut Model, happening: Happening, index: usize) {
    let spare = 2 + index;
    match happening {
        HomeEnters => model.enter(index),
        HomeIsInMaintenance => model.try_to_enter(index),
        HomeIsOut => model.leave(index),
        HomeMaintenanceFails => model.fail_entering(index),
        HomeIsCancelledUnpushed => model.cancel_unpushed(index),
        HomeIsUnreachable => model.set_host(index, |host| host.is_unreachable = true),
        SpareEnters => {
            model.enter(spare);
            model.try_to_enter(spare);
        }
        SpareIsOut => model.leave(spare),
        SpareGetsFree => model.set_host(spare, |host| host.is_taken = false),
        SpareGetsTaken => model.set_host(spare, |host| host.is_taken = true),
        SpareRefusesPowerOn => model.set_host(spare, |host| {
            host.refuses_power_on = Some(FaultKind::Other("GenericVmConfigFault".to_owned()));
        }),
        // vSphere's admission control applies to the cluster: with one host away, each other one refuses.
        ClusterRefusesPowerOn => model.set_host(spare, |host| {
            host.refuses_power_on = Some(FaultKind::ClusterWide);
        }),
        HomeRefusesPowerOn => model.set_host(index, |host| {
            host.refuses_power_on = Some(FaultKind::InsufficientResources);
        }),
        PodGoes => model.pod_goes(index),
        PodComes if !model.is_cordoned(index) => model.pod_comes(index),
        PodComes => {}
        // The binding was in flight at the cordon.
        PodSlipsIn => model.pod_comes(index),
        GuestStops => model.guest_stops(index),
        GuestReboots => model.guest_reboots(index),
        VmDies => model.vm_dies(index),
        TaskEnds => model.task_ends(index, None),
        TaskFails => model.task_ends(index, Some(FaultKind::Other("SystemError".to_owned()))),
        TaskOfAnotherStarts => model.foreign_task_starts(index),
        FilesAreLocked => model.lock_files(index, Duration::from_secs(90)),
        ReplyIsLost => model.lose_replies = 1,
        NodeComesUp => model.kubelet_reports(index, true),
        NodeComesUpWithoutCheckpoint => model.kubelet_reports_without_checkpoint(index),
        StatusIsForbidden => model.forbid_status(true),
        StatusIsAllowed => model.forbid_status(false),
        KubeletShutsDown => model.kubelet_shuts_down(index),
        NodeLosesGpus => model.kubelet_reports(index, false),
        KubeletIsMissed => model.kubelet_is_missed(index),
        NodeIsDeleted => model.delete_node(index),
        LabelIsRemoved => model.select(index, false),
        LabelIsBack => model.select(index, true),
        PersonGuards => model.person_guards(index, NodeGuard::ClusterAutoscaler),
        PersonUnguards => model.person_unguards(index, NodeGuard::ClusterAutoscaler),
        PersonHooksDrain => model.hook(index, HookPoint::PreDrain, true),
        PersonHooksPowerOff => model.hook(index, HookPoint::PrePowerOff, true),
        PersonHooksUncordon => model.hook(index, HookPoint::PreUncordon, true),
        PersonRemovesHooks => {
            for point in HookPoint::ALL {
                model.hook(index, *point, false);
            }
        }
        PersonApproves => model.person_approves(index),
        AnnotationsAreWiped => model.wipe_annotations(index),
        DriverUncordons => driver_uncordons(model, index),
        PersonCordons => model.cordon(index, true),
        PersonUncordons => person_uncordons(model, index),
        PersonPowersOn => model.person_powers_on(index),
        PersonPowersOff => model.person_powers_off(index),
        PersonAsksForDrain => model.ask(index, RequestAction::Drain),
        PersonAsksForPowerOff => model.ask(index, RequestAction::PowerOff),
        PersonAsksForRelocate => model.ask(index, RequestAction::Relocate { to: None }),
        PersonAsksForReboot => model.ask(index, RequestAction::Reboot),
        PersonAsksForRebootInWindow => model.ask_in(index, RequestAction::Reboot, Some(WINDOW)),
        PersonDeletesRequest => model.delete_requests(index),
        PersonSaysSkip => model.mark(index, |marks| marks.skip = Some("true".to_owned())),
        PersonSaysGoOn => model.mark(index, |marks| marks.skip = None),
        PersonSaysWait => model.mark(index, |marks| marks.strategy = Some("wait".to_owned())),
        VmLost => model.set_vm_exists(index, false),
        VmBack => model.set_vm_exists(index, true),
        VmHasVgpu => model.has_vgpu(index),
        VmHasStaticDevice => model.has_static_device(index),
        VcenterMovesVm => model.vmotion(index, spare),
        AnotherProcess => model.restart(SignedDuration::ZERO),
        AnotherProcessAhead => model.restart(SignedDuration::from_mins(30)),
        AnotherProcessBehind => model.restart(SignedDuration::from_mins(-30)),
        AnotherProcessWith(setting) => model.other_leads(|settings| setting.change(settings)),
        OtherReplicaLeads => model.other_leads(|_| {}),
        MachineRightsGo => model.has_machine_rights = false,
        MachineRightsAreBack => model.has_machine_rights = true,
        // Another process takes over between a record, its effect, the report of the effect, and the copy of the record.
        CrashAfterAStep => model.crashes_after = Some(0),
        CrashAfterTwoSteps => model.crashes_after = Some(1),
        ClockStepsForward => model.step_clock(SignedDuration::from_hours(1)),
        ClockStepsBack => model.step_clock(SignedDuration::from_hours(-1)),
        VcenterIsLost => model.lose_vcenter(),
        VcenterIsBack => model.vcenter_is_back(),
        ASecond => model.pass(Duration::from_secs(1)),
        AMinute => model.pass(Duration::from_secs(60)),
        AnHour => {
            model.pass(Duration::from_secs(3600));
            model.guests_give_up();
        }
    }
    model.settle();
}

/// A node whose VM is off or boots is cordoned again, because a person's uncordon cannot be distinguished from a
/// controller's.
fn is_away(model: &Model, index: usize) -> bool {
    let episode = model.open_episode(index);
    episode.is_some_and(|it| it.phase.vm_is_off() || *it.phase.at_work() == Phase::Rejoining)
}

fn driver_uncordons(model: &mut Model, index: usize) {
    if is_away(model, index) {
        model.driver_uncordons(index);
    }
}

fn person_uncordons(model: &mut Model, index: usize) {
    if !is_away(model, index) {
        model.cordon(index, false);
    }
}

/// All faults end, and time passes until nothing changes.
fn calm_down(model: &mut Model, home_enters: bool) {
    for index in 0..NODES {
        happen(model, PersonDeletesRequest, index);
        happen(model, PersonSaysGoOn, index);
        happen(model, PersonRemovesHooks, index);
        happen(model, VmBack, index);
        model.set_host(index, |host| {
            host.refuses_power_on = None;
            host.is_unreachable = false;
        });
        happen(model, SpareIsOut, index);
        // Other hosts may still refuse while the episode's host is back.
        let spare = host_ref(2 + index);
        let home = model.episode(index).map(|episode| episode.host.moref);
        let is_elsewhere = home.is_some_and(|home| home.as_ref() != Some(&spare));
        if home_enters || !is_elsewhere {
            model.set_host(2 + index, |host| host.refuses_power_on = None);
        }
        if home_enters {
            happen(model, LabelIsBack, index);
            happen(model, HomeEnters, index);
        } else {
            happen(model, HomeIsOut, index);
        }
    }
    model.lose_replies = 0;
    model.vcenter_is_back();
    // Longer than any timeout, and than power-offs count.
    let patience = if model.counts_power_offs() { 100 } else { 40 };
    let mut still = 0;
    for _ in 0..5 * patience {
        let before = state(model);
        for index in 0..NODES {
            for happening in [PodGoes, GuestStops, TaskEnds, KubeletIsMissed, NodeComesUp] {
                do_it(model, happening, index);
            }
            if home_enters {
                do_it(model, HomeIsInMaintenance, index);
            }
        }
        model.pass(Duration::from_secs(45));
        still = if state(model) == before { still + 1 } else { 0 };
        if still > patience {
            return;
        }
    }
}

/// The state that must stop changing.
fn state(model: &Model) -> Vec<(String, bool, PowerState, u32)> {
    (0..NODES)
        .map(|index| {
            let phase = model.record(index).phase_name().to_owned();
            let vm = &model.vms[index];
            (phase, model.is_cordoned(index), vm.power, model.nodes[index].pods)
        })
        .collect()
}

/// A person repairs what they stopped: a missing cordon is set, and a VM that was parked off is powered on.
fn care(model: &mut Model, home_enters: bool) {
    for index in 0..NODES {
        let is_parked = matches!(
            model.open_episode(index).map(|episode| episode.phase),
            Some(Phase::Parked { .. })
        );
        if is_parked && !model.is_cordoned(index) {
            model.cordon(index, true);
        }
        if is_parked {
            model.person_powers_on(index);
        }
    }
    calm_down(model, home_enters);
}

fn action(hold: bool) -> DrainTimeoutAction {
    if hold {
        DrainTimeoutAction::Hold
    } else {
        DrainTimeoutAction::PowerOff
    }
}

/// The same settings, with a wait for volumes.
fn with_volumes(policy: Policy) -> Policy {
    Policy {
        volume_detach_timeout: Duration::from_secs(120),
        ..policy
    }
}

proptest! {
    #![proptest_config(search())]

    #[test]
    fn node_whose_host_is_back_is_in_service_after_any_history(
        history in happenings(), cordoned: bool, hold: bool, proceeds: bool, approval in 0..4, limits in limits(),
    ) {
        let mut policy = with_volumes(policy(action(hold)));
        policy.require_approval = approval == 0;
        if proceeds {
            policy.hook_timeout_action = HookTimeoutAction::Proceed;
        }
        let mut model = Model::with_limits(policy, cordoned, limits);
        for (happening, index) in history {
            happen(&mut model, happening, index);
        }
        calm_down(&mut model, false);
        care(&mut model, false);
        for index in 0..NODES {
            prop_assert_eq!(&model.record(index), &Record::InService, "{}", model.recent_log());
            let vm = &model.vms[index];
            prop_assert!(vm.power == PowerState::On || vm.off_by_person, "the VM was left off\n{}", model.recent_log());
            if model.node(index).is_some() {
                prop_assert_eq!(
                    model.is_cordoned(index), model.nodes[index].cordoned_by_person,
                    "the cordon is not as a person left it\n{}", model.recent_log()
                );
            }
        }
    }

    #[test]
    fn host_that_keeps_leaving_loses_its_vm_after_any_history(
        history in happenings(), cordoned: bool, limits in limits(),
    ) {
        let mut model = Model::with_limits(with_volumes(policy(DrainTimeoutAction::PowerOff)), cordoned, limits);
        for (happening, index) in history {
            happen(&mut model, happening, index);
        }
        // Others may hold it, or leave it to a person.
        model.usual_settings();
        calm_down(&mut model, true);
        care(&mut model, true);
        for index in 0..NODES {
            let vm = &model.vms[index];
            // Without a Node its pods are unknown.
            let is_gone = model.node(index).is_none() && vm.power == PowerState::On;
            prop_assert!(
                is_gone || vm.power == PowerState::Off || vm.host >= NODES || model.waits_for_other(index),
                "the VM still runs on its host\n{}", model.recent_log()
            );
            prop_assert!(
                vm.power == PowerState::On || model.is_in_episode(index) || vm.off_by_person,
                "the VM was left off without an episode\n{}", model.recent_log()
            );
        }
    }

    #[test]
    fn request_is_fulfilled_after_any_history(history in happenings(), kind in 0..4, limits in limits()) {
        let action = match kind {
            0 => RequestAction::Drain,
            1 => RequestAction::PowerOff,
            2 => RequestAction::Reboot,
            _ => RequestAction::Relocate { to: None },
        };
        let mut model = Model::with_limits(with_volumes(policy(DrainTimeoutAction::PowerOff)), false, limits);
        for (happening, index) in history {
            happen(&mut model, happening, index);
        }
        model.usual_settings();
        // All requests have ended, and the node and its VM are in service.
        calm_down(&mut model, false);
        care(&mut model, false);
        model.set_host(2, |host| host.refuses_power_on = None);
        model.set_host(3, |host| host.refuses_power_on = None);
        model.person_powers_on(0);
        // A VM that is on has its device: nobody else has taken it.
        let on = model.vms[0].host;
        model.set_host(on, |host| host.is_taken = false);
        happen(&mut model, LabelIsBack, 0);
        happen(&mut model, NodeComesUp, 0);
        if model.node(0).is_none() {
            return Ok(());
        }
        model.ask(0, action.clone());
        // Power-offs from before count no longer: nothing has happened for more than an hour.
        for _ in 0..60 {
            for happening in [PodGoes, GuestStops, TaskEnds, KubeletIsMissed, NodeComesUp, AMinute] {
                do_it(&mut model, happening, 0);
            }
        }
        let phase = model.episode(0).map(|episode| episode.phase);
        match action {
            RequestAction::Drain => {
                prop_assert_eq!(phase, Some(Phase::Drained), "{}", model.recent_log());
                prop_assert!(model.is_cordoned(0) && model.nodes[0].pods == 0);
                prop_assert_eq!(model.vms[0].power, PowerState::On);
            }
            RequestAction::PowerOff => {
                prop_assert_eq!(phase, Some(Phase::AwaitingHost), "{}", model.recent_log());
                prop_assert!(model.is_cordoned(0) && model.vms[0].power == PowerState::Off);
            }
            RequestAction::Reboot | RequestAction::Relocate { .. } => {
                prop_assert_eq!(&model.record(0), &Record::InService, "{}", model.recent_log());
                prop_assert_eq!(model.vms[0].power, PowerState::On);
                prop_assert!(model.requests.is_empty(), "it was never fulfilled\n{}", model.recent_log());
            }
        }
    }
}

/// Nobody has to be asked for a right: the counts of the last boot are removed while the VM is off.
#[test]
fn node_whose_kubelet_lost_its_checkpoint_waits_for_its_device_plugin() {
    let mut model = Model::new(policy(DrainTimeoutAction::PowerOff), false);
    for happening in [
        HomeEnters,
        PodGoes,
        PodGoes,
        AMinute,
        GuestStops,
        HomeIsInMaintenance,
        AMinute,
        HomeIsOut,
        AMinute,
        TaskEnds,
        NodeComesUpWithoutCheckpoint,
        AMinute,
    ] {
        happen(&mut model, happening, 1);
    }
    let phase = model.episode(1).map(|episode| episode.phase);
    assert_eq!(phase, Some(Phase::Rejoining), "{}", model.recent_log());
    happen(&mut model, NodeComesUp, 1);
    assert_eq!(model.record(1), Record::InService, "{}", model.recent_log());
}

/// The end of a history that once broke a law.
fn replay<const N: usize>(history: [(Happening, usize); N]) -> Model {
    replay_under(policy(DrainTimeoutAction::PowerOff), history)
}

fn replay_under<const N: usize>(policy: Policy, history: [(Happening, usize); N]) -> Model {
    let mut model = Model::new(with_volumes(policy), false);
    for (happening, index) in history {
        happen(&mut model, happening, index);
    }
    calm_down(&mut model, false);
    care(&mut model, false);
    model
}

/// After this history, a process with the usual settings stops the VM of node `index`, whose host keeps leaving.
fn stops_under_the_usual_settings<const N: usize>(index: usize, history: [(Happening, usize); N]) {
    let mut model = Model::new(with_volumes(policy(DrainTimeoutAction::PowerOff)), false);
    for (happening, index) in history {
        happen(&mut model, happening, index);
    }
    model.usual_settings();
    calm_down(&mut model, true);
    let power = model.vms[index].power;
    assert_eq!(power, PowerState::Off, "{}", model.recent_log());
}

#[test]
fn end_of_an_episode_that_lies_in_the_future_opens_no_window_later() {
    let model = replay([
        (NodeIsDeleted, 1),
        (PersonAsksForPowerOff, 1),
        (NodeComesUp, 1),
        (ASecond, 0),
        (PersonDeletesRequest, 1),
        (AMinute, 0),
        (AMinute, 0),
        (AMinute, 0),
        (AnotherProcessBehind, 0),
    ]);
    for index in 0..NODES {
        assert_eq!(model.record(index), Record::InService, "{}", model.recent_log());
    }
}

#[test]
fn vm_whose_own_host_is_taken_goes_to_another_one() {
    let model = replay([
        (PersonAsksForDrain, 0),
        (HomeIsUnreachable, 0),
        (SpareGetsFree, 1),
        (SpareRefusesPowerOn, 0),
        (PersonPowersOff, 0),
        (HomeEnters, 1),
        (SpareGetsTaken, 1),
        (SpareGetsFree, 0),
        (VmDies, 1),
    ]);
    assert_eq!(model.record(1), Record::InService, "{}", model.recent_log());
    assert_eq!(model.vms[1].power, PowerState::On);
}

#[test]
fn cordon_of_a_person_during_a_vcenter_outage_stays() {
    let model = replay([
        (HomeEnters, 1),
        (VmDies, 1),
        (VcenterIsLost, 0),
        (DriverUncordons, 1),
        (PersonCordons, 1),
        (DriverUncordons, 1),
    ]);
    assert!(model.nodes[1].cordoned_by_person);
    assert!(model.is_cordoned(1), "{}", model.recent_log());
}

#[test]
fn guest_that_stops_late_on_a_node_without_label_is_powered_on_after_a_restart() {
    let model = replay([
        (PersonAsksForPowerOff, 1),
        (AnHour, 0),
        (LabelIsRemoved, 1),
        (TaskFails, 1),
        (PersonDeletesRequest, 1),
        (AnotherProcess, 0),
    ]);
    assert_eq!(model.vms[1].power, PowerState::On, "{}", model.recent_log());
}

#[test]
fn label_that_returns_after_its_record_was_wiped_is_served_at_once() {
    let model = replay([
        (HomeEnters, 0),
        (VmLost, 0),
        (AnnotationsAreWiped, 0),
        (LabelIsRemoved, 0),
        (LabelIsBack, 0),
        (AMinute, 0),
    ]);
    assert_eq!(model.record(0), Record::InService, "{}", model.recent_log());
}

#[test]
fn late_shutdown_is_made_up_for_by_a_process_whose_clock_is_ahead() {
    let model = replay([
        (PersonAsksForReboot, 1),
        (AnHour, 0),
        (PersonDeletesRequest, 1),
        (TaskFails, 1),
        (AnotherProcessAhead, 0),
    ]);
    assert_eq!(model.vms[1].power, PowerState::On, "{}", model.recent_log());
}

#[test]
fn ended_episode_does_not_begin_again_from_a_copy_that_is_not_closed_yet() {
    let model = replay([(PersonAsksForDrain, 0), (NodeIsDeleted, 0)]);
    assert_eq!(model.record(0), Record::InService, "{}", model.recent_log());
}

#[test]
fn vm_with_a_vgpu_that_is_registered_elsewhere_comes_home() {
    let model = replay([
        (SpareGetsFree, 1),
        (SpareRefusesPowerOn, 1),
        (HomeEnters, 1),
        (PersonPowersOff, 1),
        (VmHasVgpu, 1),
    ]);
    assert_eq!(model.record(1), Record::InService, "{}", model.recent_log());
    assert_eq!(model.vms[1].power, PowerState::On);
}

#[test]
fn vm_with_a_fixed_device_address_gets_the_device_of_the_host_it_moves_to() {
    let mut model = replay([(VmHasStaticDevice, 0), (SpareGetsFree, 0)]);
    calm_down(&mut model, true);
    let vm = &model.vms[0];
    let is_as_expected = (vm.power, vm.host, vm.device_of) == (PowerState::On, 2, Some(2));
    assert!(is_as_expected, "{vm:?}\n{}", model.recent_log());
}

/// A VM with the devices of another host comes home. `process` is the one that powers it on.
fn powered_on_at_home_by(process: Happening) {
    let model = replay([
        (VmHasStaticDevice, 1),
        (SpareGetsFree, 1),
        (SpareRefusesPowerOn, 1),
        (HomeEnters, 1),
        (AMinute, 0),
        (PodGoes, 1),
        (PodGoes, 1),
        (AMinute, 0),
        (GuestStops, 1),
        (TaskEnds, 1),
        (TaskEnds, 1),
        (TaskEnds, 1),
        (process, 0),
    ]);
    let vm = &model.vms[1];
    let is_as_expected = (vm.power, vm.host, vm.device_of) == (PowerState::On, 1, Some(1));
    let changes = model.log.iter().filter(|line| line.starts_with("Reconfigure("));
    assert!(
        is_as_expected && changes.count() == 2,
        "{vm:?}\n{}",
        model.recent_log()
    );
}

#[test]
fn vm_with_a_fixed_device_address_gets_its_own_device_back_at_home() {
    powered_on_at_home_by(AnotherProcess);
}

#[test]
fn vm_with_the_devices_of_another_host_gets_its_own_back_after_repoint_is_switched_off() {
    powered_on_at_home_by(AnotherProcessWith(Setting::StaticDevices));
}

#[test]
fn cordon_of_a_record_that_was_removed_is_still_ours_where_its_copy_is_older() {
    let model = replay([
        (VmHasVgpu, 1),
        (HomeEnters, 1),
        (VmDies, 1),
        (AnnotationsAreWiped, 1),
        (LabelIsRemoved, 1),
    ]);
    assert_eq!(model.record(1), Record::InService, "{}", model.recent_log());
    assert!(!model.is_cordoned(1), "{}", model.recent_log());
}

/// Lets node 0 be drained and its guest stop, until its VM is off.
fn go_off(model: &mut Model) {
    for happening in [PodGoes, PodGoes, AMinute, GuestStops] {
        happen(model, happening, 0);
    }
    assert_eq!(model.vms[0].power, PowerState::Off, "{}", model.recent_log());
}

/// Tasks end each second, for so many seconds.
fn tasks_end_for(model: &mut Model, seconds: u32) {
    for _ in 0..seconds {
        do_it(model, TaskEnds, 0);
        model.pass(Duration::from_secs(1));
    }
}

fn relocations(model: &Model) -> usize {
    model
        .log
        .iter()
        .filter(|line| line.starts_with("node-0: Relocate in"))
        .count()
}

#[test]
fn files_that_are_locked_for_a_while_keep_no_vm_off_and_cost_no_second_relocation() {
    // In seconds: a lock as short as a backup's last step, and one of minutes.
    for (lock, spares, longest) in [(20, 1, 60), (20, 2, 60), (240, 1, 480)] {
        let mut model = Model::new(policy(DrainTimeoutAction::PowerOff), false);
        for spare in 0..spares {
            happen(&mut model, SpareGetsFree, spare);
        }
        happen(&mut model, HomeEnters, 0);
        go_off(&mut model);
        happen(&mut model, HomeIsInMaintenance, 0);
        model.lock_files(0, Duration::from_secs(lock));
        tasks_end_for(&mut model, longest);
        let vm = &model.vms[0];
        let case = format!("{lock} s, {spares} spare: {vm:?}\n{}", model.recent_log());
        assert!(vm.power == PowerState::On && vm.host >= NODES, "{case}");
        assert_eq!(relocations(&model), 1, "{case}");
    }
}

#[test]
fn guest_is_asked_when_the_task_of_another_ends_and_then_has_its_time() {
    for minutes in [3, 60] {
        let mut model = Model::new(policy(DrainTimeoutAction::PowerOff), false);
        happen(&mut model, TaskOfAnotherStarts, 0);
        for happening in [HomeEnters, PodGoes, PodGoes] {
            happen(&mut model, happening, 0);
        }
        for _ in 0..minutes {
            happen(&mut model, AMinute, 0);
        }
        let is_asked = |model: &Model| model.vms[0].was_asked();
        assert!(!is_asked(&model), "{}", model.recent_log());
        happen(&mut model, TaskEnds, 0);
        happen(&mut model, AMinute, 0);
        assert!(is_asked(&model), "{minutes} min\n{}", model.recent_log());
        assert_eq!(model.vms[0].power, PowerState::On);
        // A guest that does not stop loses its power at the end of its time.
        for happening in [AMinute, AMinute, TaskEnds] {
            happen(&mut model, happening, 0);
        }
        assert_eq!(model.vms[0].power, PowerState::Off, "{}", model.recent_log());
    }
}

#[test]
fn guest_has_its_time_when_the_reply_that_refused_the_request_was_lost() {
    let mut model = Model::new(policy(DrainTimeoutAction::PowerOff), false);
    for happening in [
        TaskOfAnotherStarts,
        HomeEnters,
        PodGoes,
        ReplyIsLost,
        PodGoes,
        AnHour,
    ] {
        happen(&mut model, happening, 0);
    }
    let log = model.recent_log();
    assert!(log.contains("ShutdownGuest"), "{log}");
    assert!(!model.vms[0].was_asked(), "{log}");
    assert_eq!(model.vms[0].power, PowerState::On, "{log}");
    for happening in [TaskEnds, AMinute, AMinute, AMinute, TaskEnds] {
        happen(&mut model, happening, 0);
    }
    let log = model.recent_log();
    assert!(model.vms[0].power == PowerState::Off, "{log}");
}

#[test]
fn vm_that_was_relocated_gets_the_devices_of_its_host_after_repoint_is_switched_off() {
    let mut model = replay([(VmHasStaticDevice, 0), (SpareGetsFree, 0)]);
    for happening in [
        HomeEnters,
        AMinute,
        PodGoes,
        PodGoes,
        AMinute,
        GuestStops,
        TaskEnds,
        AnotherProcessWith(Setting::StaticDevices),
    ] {
        happen(&mut model, happening, 0);
    }
    calm_down(&mut model, true);
    let vm = &model.vms[0];
    let is_as_expected = (vm.power, vm.host, vm.device_of) == (PowerState::On, 2, Some(2));
    assert!(is_as_expected, "{vm:?}\n{}", model.recent_log());
}

#[test]
fn guard_whose_reply_was_lost_is_removed_after_guards_on_machines_are_switched_off() {
    replay([
        (ReplyIsLost, 0),
        (PersonAsksForDrain, 0),
        (AnotherProcessWith(Setting::MachineGuards), 0),
    ]);
}

#[test]
fn guard_whose_reply_was_lost_is_removed_after_a_right_was_gone_for_a_while() {
    replay([
        (ReplyIsLost, 0),
        (HomeEnters, 0),
        (MachineRightsGo, 0),
        (AnotherProcess, 0),
        (MachineRightsAreBack, 0),
    ]);
    replay([
        (ReplyIsLost, 0),
        (HomeEnters, 0),
        (MachineRightsGo, 0),
        (AnotherProcess, 0),
        (MachineRightsAreBack, 0),
        (AnotherProcessWith(Setting::MachineGuards), 0),
    ]);
}

#[test]
fn vm_whose_guest_was_asked_is_stopped_although_a_hook_would_hold_it_under_the_new_settings() {
    stops_under_the_usual_settings(
        1,
        [
            (PersonHooksPowerOff, 1),
            (AnotherProcessWith(Setting::HookTimeoutAction), 0),
            (HomeEnters, 1),
            (AnHour, 0),
            (AnHour, 0),
        ],
    );
}

#[test]
fn drain_that_had_its_time_while_its_host_was_gone_ends_when_it_is_back() {
    for setting in [Setting::DrainTimeout, Setting::DrainTimeoutAction] {
        stops_under_the_usual_settings(
            1,
            [
                (HomeEnters, 1),
                (HomeIsUnreachable, 1),
                (AnHour, 0),
                (AnotherProcessWith(setting), 0),
            ],
        );
    }
}

#[test]
fn guest_is_asked_again_no_more_often_than_the_longest_pause_says() {
    replay([
        (AnotherProcessWith(Setting::RetryMax), 0),
        (TaskOfAnotherStarts, 0),
        (HomeEnters, 0),
        (AnHour, 0),
    ]);
}

#[test]
fn guest_that_a_parked_episode_asked_is_not_asked_again_when_its_record_is_a_copy() {
    stops_under_the_usual_settings(
        0,
        [
            (HomeEnters, 0),
            (TaskOfAnotherStarts, 0),
            (TaskOfAnotherStarts, 0),
            (AnHour, 0),
            (AnnotationsAreWiped, 0),
        ],
    );
}

#[test]
fn guard_that_was_set_again_for_a_copy_of_the_record_is_removed_after_a_crash() {
    replay([
        (MachineRightsGo, 0),
        (HomeEnters, 0),
        (MachineRightsAreBack, 0),
        (AnotherProcessWith(Setting::DrainTimeout), 0),
        (HomeMaintenanceFails, 0),
        (CrashAfterAStep, 0),
        (AnnotationsAreWiped, 0),
    ]);
}

#[test]
fn node_is_in_service_again_after_the_rights_on_its_machine_are_gone() {
    for setting in [Setting::MachineGuards, Setting::RetryMax] {
        let model = replay([
            (HomeEnters, 1),
            (PodGoes, 1),
            (PodGoes, 1),
            (AMinute, 0),
            (GuestStops, 1),
            (AnotherProcessWith(setting), 0),
            (MachineRightsGo, 0),
        ]);
        assert_eq!(model.record(1), Record::InService, "{}", model.recent_log());
        assert!(!model.is_cordoned(1), "{}", model.recent_log());
    }
}

#[test]
fn drain_that_was_held_has_its_time_under_settings_that_do_not_hold_it() {
    replay([
        (AnotherProcessWith(Setting::DrainTimeoutAction), 0),
        (HomeEnters, 0),
        (AnHour, 0),
        (OtherReplicaLeads, 0),
        (ASecond, 0),
    ]);
}

#[test]
fn guest_is_asked_when_the_time_of_a_hook_is_over_that_does_not_hold_for_ever() {
    let proceeds = Policy {
        hook_timeout_action: HookTimeoutAction::Proceed,
        ..policy(DrainTimeoutAction::PowerOff)
    };
    replay_under(
        proceeds,
        [
            (PersonHooksPowerOff, 1),
            (HomeEnters, 1),
            (PodGoes, 1),
            (PodGoes, 1),
            (AnHour, 0),
            (ASecond, 0),
        ],
    );
}

#[test]
fn drain_under_way_has_its_time_under_a_shorter_timeout() {
    replay([
        (HomeEnters, 0),
        (AMinute, 0),
        (AnotherProcessWith(Setting::DrainTimeout), 0),
        (ASecond, 0),
    ]);
}

#[test]
fn drain_for_a_request_has_its_time_when_the_host_enters_maintenance() {
    replay([
        (PersonAsksForDrain, 0),
        (AnHour, 0),
        (HomeEnters, 0),
        (ASecond, 0),
    ]);
}

#[test]
fn guest_that_was_asked_has_its_time_under_a_shorter_timeout() {
    replay([
        (HomeEnters, 0),
        (PodGoes, 0),
        (PodGoes, 0),
        (AMinute, 0),
        (AnotherProcessWith(Setting::GuestShutdownTimeout), 0),
        (ASecond, 0),
    ]);
}
