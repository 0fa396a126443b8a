//! Random stories: persons, a vCenter, guests and kubelets do what they like; then they stop, and the laws say how it ends.

use std::time::Duration;

use haulout_core::facts::fault::FaultKind;
use haulout_core::facts::kubernetes::RequestedAction;
use haulout_core::facts::vsphere::PowerState;
use haulout_core::maintenance::episode::{Phase, Record};
use haulout_core::maintenance::policy::DrainTimeoutAction;
use jiff::SignedDuration;
use proptest::prelude::{ProptestConfig, prop, prop_assert, prop_assert_eq, proptest};

use crate::facts::policy;
use crate::world::{NODES, World, host_ref};

/// How many stories each property is tried with: `HAULOUT_STORIES` for a longer search.
fn stories() -> u32 {
    let set = std::env::var("HAULOUT_STORIES").ok();
    set.and_then(|count| count.parse().ok()).unwrap_or(200)
}

/// What may happen between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    HomeEnters,
    HomeIsInMaintenance,
    HomeIsOut,
    HomeMaintenanceFails,
    HomeIsCancelledUntold,
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
    ReplyIsLost,
    NodeComesUp,
    NodeLosesGpus,
    KubeletIsMissed,
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
    PersonDeletesRequest,
    PersonSaysSkip,
    PersonSaysGoOn,
    PersonSaysWait,
    VmLost,
    VmBack,
    AnotherProcess,
    AnotherProcessAhead,
    AnotherProcessBehind,
    ClockStepsForward,
    ClockStepsBack,
    VcenterIsLost,
    VcenterIsBack,
    ASecond,
    AMinute,
    AnHour,
}

use Happening::*;

/// All of them, the usual ones more than once.
const ALL: &[Happening] = &[
    HomeEnters,
    HomeEnters,
    HomeEnters,
    HomeIsInMaintenance,
    HomeIsOut,
    HomeIsOut,
    HomeMaintenanceFails,
    HomeIsCancelledUntold,
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
    ReplyIsLost,
    NodeComesUp,
    NodeComesUp,
    NodeLosesGpus,
    KubeletIsMissed,
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
    PersonDeletesRequest,
    PersonSaysSkip,
    PersonSaysGoOn,
    PersonSaysWait,
    VmLost,
    VmBack,
    AnotherProcess,
    AnotherProcessAhead,
    AnotherProcessBehind,
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
    let any = (prop::sample::select(ALL), 0..NODES);
    prop::collection::vec(any, 1..50)
}

fn happen(world: &mut World, happening: Happening, index: usize) {
    world.log.push(format!("{happening:?} {index}"));
    do_it(world, happening, index);
}

fn do_it(world: &mut World, happening: Happening, index: usize) {
    let spare = 2 + index;
    match happening {
        HomeEnters => world.enter(index),
        HomeIsInMaintenance => world.try_to_enter(index),
        HomeIsOut => world.leave(index),
        HomeMaintenanceFails => world.fail_entering(index),
        HomeIsCancelledUntold => world.cancel_untold(index),
        HomeIsUnreachable => world.set_host(index, |host| host.is_unreachable = true),
        SpareEnters => {
            world.enter(spare);
            world.try_to_enter(spare);
        }
        SpareIsOut => world.leave(spare),
        SpareGetsFree => world.set_host(spare, |host| host.is_taken = false),
        SpareGetsTaken => world.set_host(spare, |host| host.is_taken = true),
        SpareRefusesPowerOn => world.set_host(spare, |host| {
            host.refuses_power_on = Some(FaultKind::Other("GenericVmConfigFault".to_owned()));
        }),
        // Admission control looks at the cluster: with one host away, each of the others refuses.
        ClusterRefusesPowerOn => world.set_host(spare, |host| {
            host.refuses_power_on = Some(FaultKind::ClusterWide);
        }),
        HomeRefusesPowerOn => world.set_host(index, |host| {
            host.refuses_power_on = Some(FaultKind::InsufficientResources);
        }),
        PodGoes => world.pod_goes(index),
        PodComes if !world.is_cordoned(index) => world.pod_comes(index),
        PodComes => {}
        // The scheduler was about to bind it when the node was cordoned.
        PodSlipsIn => world.pod_comes(index),
        GuestStops => world.guest_stops(index),
        GuestReboots => world.guest_reboots(index),
        VmDies => world.vm_dies(index),
        TaskEnds => world.task_ends(index, None),
        TaskFails => world.task_ends(index, Some(FaultKind::Other("SystemError".to_owned()))),
        ReplyIsLost => world.lose_replies = 1,
        NodeComesUp => world.kubelet_reports(index, true),
        NodeLosesGpus => world.kubelet_reports(index, false),
        KubeletIsMissed => world.kubelet_is_missed(index),
        NodeIsDeleted => world.delete_node(index),
        LabelIsRemoved => world.select(index, false),
        LabelIsBack => world.select(index, true),
        AnnotationsAreWiped => world.wipe_annotations(index),
        DriverUncordons => driver_uncordons(world, index),
        PersonCordons => world.cordon(index, true),
        PersonUncordons => person_uncordons(world, index),
        PersonPowersOn => world.person_powers_on(index),
        PersonPowersOff => world.person_powers_off(index),
        PersonAsksForDrain => world.ask(index, RequestedAction::Drain),
        PersonAsksForPowerOff => world.ask(index, RequestedAction::PowerOff),
        PersonAsksForRelocate => world.ask(index, RequestedAction::Relocate),
        PersonAsksForReboot => world.ask(index, RequestedAction::Reboot),
        PersonDeletesRequest => world.delete_requests(index),
        PersonSaysSkip => world.mark(index, |marks| marks.skip = Some("true".to_owned())),
        PersonSaysGoOn => world.mark(index, |marks| marks.skip = None),
        PersonSaysWait => world.mark(index, |marks| marks.strategy = Some("wait".to_owned())),
        VmLost => world.set_vm_exists(index, false),
        VmBack => world.set_vm_exists(index, true),
        AnotherProcess => world.restart(SignedDuration::ZERO),
        AnotherProcessAhead => world.restart(SignedDuration::from_mins(30)),
        AnotherProcessBehind => world.restart(SignedDuration::from_mins(-30)),
        ClockStepsForward => world.step_clock(SignedDuration::from_hours(1)),
        ClockStepsBack => world.step_clock(SignedDuration::from_hours(-1)),
        VcenterIsLost => world.lose_vcenter(),
        VcenterIsBack => world.vcenter_is_back(),
        ASecond => world.pass(Duration::from_secs(1)),
        AMinute => world.pass(Duration::from_secs(60)),
        AnHour => {
            world.pass(Duration::from_secs(3600));
            world.guests_give_up();
        }
    }
    world.settle();
}

/// A node whose VM is away or boots is cordoned again, whoever uncordoned it: nobody can tell a person's hand from a controller's.
fn is_away(world: &World, index: usize) -> bool {
    let episode = world.open_episode(index);
    episode.is_some_and(|it| it.phase.vm_is_off() || *it.phase.at_work() == Phase::Rejoining)
}

fn driver_uncordons(world: &mut World, index: usize) {
    if is_away(world, index) {
        world.driver_uncordons(index);
    }
}

fn person_uncordons(world: &mut World, index: usize) {
    if !is_away(world, index) {
        world.cordon(index, false);
    }
}

/// All trouble ends, and time goes by until nothing changes any more.
fn calm_down(world: &mut World, home_enters: bool) {
    for index in 0..NODES {
        happen(world, PersonDeletesRequest, index);
        happen(world, PersonSaysGoOn, index);
        happen(world, VmBack, index);
        world.set_host(index, |host| {
            host.refuses_power_on = None;
            host.is_unreachable = false;
        });
        happen(world, SpareIsOut, index);
        // Hosts elsewhere may go on refusing while the host that the episode is about is back.
        let spare = host_ref(2 + index);
        let home = world.episode(index).map(|episode| episode.host.moref);
        let is_elsewhere = home.is_some_and(|home| home.as_ref() != Some(&spare));
        if home_enters || !is_elsewhere {
            world.set_host(2 + index, |host| host.refuses_power_on = None);
        }
        if home_enters {
            happen(world, LabelIsBack, index);
            happen(world, HomeEnters, index);
        } else {
            happen(world, HomeIsOut, index);
        }
    }
    world.lose_replies = 0;
    world.vcenter_is_back();
    let mut still = 0;
    for _ in 0..200 {
        let before = state(world);
        for index in 0..NODES {
            for happening in [PodGoes, GuestStops, TaskEnds, KubeletIsMissed, NodeComesUp] {
                do_it(world, happening, index);
            }
            if home_enters {
                do_it(world, HomeIsInMaintenance, index);
            }
        }
        world.pass(Duration::from_secs(45));
        still = if state(world) == before { still + 1 } else { 0 };
        // Longer than any timeout.
        if still > 40 {
            return;
        }
    }
}

/// What stands still when nothing more is going to happen.
fn state(world: &World) -> Vec<(String, bool, PowerState, u32)> {
    (0..NODES)
        .map(|index| {
            let phase = world.record(index).phase_name().to_owned();
            let vm = &world.vms[index];
            (phase, world.is_cordoned(index), vm.power, world.nodes[index].pods)
        })
        .collect()
}

/// A person who stopped an episode cares for it: one that waits for the Node to be cordoned gets its cordon, and a VM that was left
/// off because it kept going off is powered on.
fn care(world: &mut World, home_enters: bool) {
    for index in 0..NODES {
        let is_parked = matches!(
            world.episode(index).map(|episode| episode.phase),
            Some(Phase::Parked { .. })
        );
        if is_parked && !world.is_cordoned(index) {
            world.cordon(index, true);
        }
        if is_parked {
            world.person_powers_on(index);
        }
    }
    calm_down(world, home_enters);
}

fn action(hold: bool) -> DrainTimeoutAction {
    if hold {
        DrainTimeoutAction::Hold
    } else {
        DrainTimeoutAction::PowerOff
    }
}

fn told(world: &World) -> String {
    world.told()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: stories(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn node_whose_host_is_back_is_in_service_after_any_history(
        story in happenings(), cordoned: bool, hold: bool,
    ) {
        let mut world = World::new(policy(action(hold)), cordoned);
        for (happening, index) in story {
            happen(&mut world, happening, index);
        }
        calm_down(&mut world, false);
        care(&mut world, false);
        for index in 0..NODES {
            prop_assert_eq!(&world.record(index), &Record::InService, "{}", told(&world));
            let vm = &world.vms[index];
            prop_assert!(vm.power == PowerState::On || vm.off_by_person, "the VM was left off\n{}", told(&world));
            if world.node(index).is_some() {
                prop_assert_eq!(
                    world.is_cordoned(index), world.nodes[index].cordoned_by_person,
                    "the cordon is not as a person left it\n{}", told(&world)
                );
            }
        }
    }

    #[test]
    fn host_that_keeps_leaving_loses_its_vm_after_any_history(story in happenings(), cordoned: bool) {
        let mut world = World::new(policy(DrainTimeoutAction::PowerOff), cordoned);
        for (happening, index) in story {
            happen(&mut world, happening, index);
        }
        calm_down(&mut world, true);
        care(&mut world, true);
        for index in 0..NODES {
            let vm = &world.vms[index];
            // Without a Node nothing is known of its pods.
            let is_gone = world.node(index).is_none() && vm.power == PowerState::On;
            prop_assert!(
                is_gone || vm.power == PowerState::Off || vm.host >= NODES,
                "the VM still runs on its host\n{}", told(&world)
            );
            prop_assert!(
                vm.power == PowerState::On || world.is_in_episode(index) || vm.off_by_person,
                "the VM was left off without an episode\n{}", told(&world)
            );
        }
    }

    #[test]
    fn request_is_fulfilled_after_any_history(story in happenings(), kind in 0..4) {
        let action = match kind {
            0 => RequestedAction::Drain,
            1 => RequestedAction::PowerOff,
            2 => RequestedAction::Reboot,
            _ => RequestedAction::Relocate,
        };
        let mut world = World::new(policy(DrainTimeoutAction::PowerOff), false);
        for (happening, index) in story {
            happen(&mut world, happening, index);
        }
        // Whatever was asked for is over, and the node and its VM are in service.
        calm_down(&mut world, false);
        care(&mut world, false);
        world.set_host(2, |host| host.refuses_power_on = None);
        world.set_host(3, |host| host.refuses_power_on = None);
        world.person_powers_on(0);
        happen(&mut world, LabelIsBack, 0);
        happen(&mut world, NodeComesUp, 0);
        if world.node(0).is_none() {
            return Ok(());
        }
        world.ask(0, action);
        for _ in 0..60 {
            for happening in [PodGoes, GuestStops, TaskEnds, KubeletIsMissed, NodeComesUp, AMinute] {
                do_it(&mut world, happening, 0);
            }
        }
        let phase = world.episode(0).map(|episode| episode.phase);
        match action {
            RequestedAction::Drain => {
                prop_assert_eq!(phase, Some(Phase::Drained), "{}", told(&world));
                prop_assert!(world.is_cordoned(0) && world.nodes[0].pods == 0);
                prop_assert_eq!(world.vms[0].power, PowerState::On);
            }
            RequestedAction::PowerOff => {
                prop_assert_eq!(phase, Some(Phase::AwaitingHost), "{}", told(&world));
                prop_assert!(world.is_cordoned(0) && world.vms[0].power == PowerState::Off);
            }
            RequestedAction::Reboot | RequestedAction::Relocate => {
                prop_assert_eq!(&world.record(0), &Record::InService, "{}", told(&world));
                prop_assert_eq!(world.vms[0].power, PowerState::On);
                prop_assert!(world.requests.is_empty(), "it was never fulfilled\n{}", told(&world));
            }
        }
    }
}
