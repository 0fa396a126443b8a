//! Random stories: a person, a vCenter and a kubelet do what they like; then they stop, and the laws say how it ends.

use haulout::ids::{BootId, HostRef, NodeName, TaskRef};
use haulout::maintenance::decide::{Decision, Transition, decide};
use haulout::maintenance::effect::{Effect, EffectKind};
use haulout::maintenance::episode::{Phase, Record};
use haulout::maintenance::observed::{
    Admission, Advice, Attempt, CordonedBy, DrainReport, Hearing, HostState, Limit, Observed, Outcome,
    PodLeft, PodLeftBecause, PowerSeen, Refusal, Strategy, VmFacts, VmSeen,
};
use haulout::maintenance::placement::{Refused, Why};
use haulout::maintenance::policy::{DrainTimeoutAction, Policy};
use haulout::maintenance::record::{read, write};
use haulout::maintenance::request::Action;
use jiff::Timestamp;
use proptest::prelude::{ProptestConfig, prop, prop_assert, prop_assert_eq, proptest};

use crate::facts::{at, entering, gpus, home, node, observed, policy, request, spare, vm};

/// What may happen to a node between two looks.
#[derive(Clone, Copy, Debug)]
enum Happening {
    HomeEnters,
    HomeIsInMaintenance,
    HomeIsOut,
    HomeIsUnknown,
    SpareEnters,
    SpareIsOut,
    SpareGetsFree,
    SpareGetsTaken,
    PlaceGranted,
    PlaceTaken,
    PodGoes,
    PodComes,
    PodSlipsIn,
    GuestStops,
    TaskEnds,
    TaskFails,
    NodeComesUp,
    NodeLosesGpus,
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
    WeCrash,
    WorldFallsSilent,
    WorldIsHeard,
    AMinute,
    AnHour,
}

fn happenings() -> impl proptest::strategy::Strategy<Value = Vec<Happening>> {
    use Happening::*;
    let any = prop::sample::select(vec![
        HomeEnters,
        HomeEnters,
        HomeIsInMaintenance,
        HomeIsOut,
        HomeIsUnknown,
        SpareEnters,
        SpareIsOut,
        SpareGetsFree,
        SpareGetsTaken,
        PlaceGranted,
        PlaceTaken,
        PodGoes,
        PodGoes,
        PodComes,
        PodSlipsIn,
        GuestStops,
        GuestStops,
        TaskEnds,
        TaskEnds,
        TaskFails,
        NodeComesUp,
        NodeComesUp,
        NodeLosesGpus,
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
        WeCrash,
        WorldFallsSilent,
        WorldIsHeard,
        AMinute,
        AMinute,
        AnHour,
    ]);
    prop::collection::vec(any, 1..60)
}

/// A node, its VM and its two hosts, as small as the laws allow.
struct World {
    record: Record,
    seen: Observed,
    policy: Policy,
    now: Timestamp,
    home: HostState,
    spare: HostState,
    spare_is_free: bool,
    on: HostRef,
    power: PowerSeen,
    vm_is_there: bool,
    pods: u32,
    boots: u32,
    /// The Node was cordoned by a person, and no person has uncordoned it since.
    cordoned_by_person: bool,
    person_powered_off: bool,
}

impl World {
    fn new(drs: bool, cordoned: bool, action: DrainTimeoutAction) -> Self {
        let facts = VmFacts {
            drs,
            ..vm(PowerSeen::On, HostState::InService)
        };
        let mut node = node();
        if cordoned {
            node.unschedulable = true;
            node.cordoned_by = CordonedBy::Other("kubectl-cordon".to_owned());
        }
        Self {
            record: Record::InService,
            seen: observed(node, facts),
            policy: policy(action),
            now: at(0),
            home: HostState::InService,
            spare: HostState::InService,
            spare_is_free: false,
            on: home(),
            power: PowerSeen::On,
            vm_is_there: true,
            pods: 2,
            boots: 0,
            cordoned_by_person: cordoned,
            person_powered_off: false,
        }
    }

    fn happen(&mut self, happening: Happening) {
        use Happening::*;
        match happening {
            HomeEnters => self.home = entering(),
            HomeIsInMaintenance if self.power == PowerSeen::Off || self.on != home() => {
                self.home = HostState::InMaintenance
            }
            HomeIsInMaintenance => {}
            HomeIsOut => self.home = HostState::InService,
            HomeIsUnknown => self.home = HostState::Unknown,
            SpareEnters => self.spare = entering(),
            SpareIsOut => self.spare = HostState::InService,
            SpareGetsFree => self.spare_is_free = true,
            SpareGetsTaken => self.spare_is_free = false,
            PlaceGranted => self.seen.admission = Admission::Granted,
            PlaceTaken => {
                let ahead = vec![NodeName::new("other")];
                self.seen.admission = Admission::Behind {
                    ahead,
                    limit: Limit::ConcurrentDrains(1),
                };
            }
            PodGoes => {
                self.pods = self.pods.saturating_sub(1);
                self.seen.pods_revision += 1;
            }
            PodComes if !self.node().unschedulable => {
                self.pods += 1;
                self.seen.pods_revision += 1;
            }
            PodComes => {}
            // The scheduler was about to bind it when the node was cordoned.
            PodSlipsIn if self.power == PowerSeen::On => {
                self.pods += 1;
                self.seen.pods_revision += 1;
            }
            PodSlipsIn => {}
            GuestStops if self.asked_to_stop() => self.power_off(),
            GuestStops => {}
            TaskEnds => self.end_tasks(None),
            TaskFails => self.end_tasks(Some(Advice::OtherHost)),
            NodeComesUp => self.come_up(),
            NodeLosesGpus => self.seen.node.as_mut().unwrap().gpus = Default::default(),
            PersonCordons => self.person(true),
            PersonUncordons => self.person(false),
            PersonPowersOn if self.host().takes_vms() && self.power == PowerSeen::Off => self.power_on(),
            PersonPowersOn => {}
            PersonPowersOff => {
                if self.power == PowerSeen::On {
                    self.person_powered_off = self.record == Record::InService;
                    self.power_off();
                }
            }
            PersonAsksForDrain => self.ask(Action::Drain),
            PersonAsksForPowerOff => self.ask(Action::PowerOff),
            PersonAsksForRelocate => self.ask(Action::Relocate { to: None }),
            PersonAsksForReboot => self.ask(Action::Reboot),
            PersonDeletesRequest => self.seen.request = None,
            PersonSaysSkip => self.seen.node.as_mut().unwrap().wishes.skip = true,
            PersonSaysGoOn => self.seen.node.as_mut().unwrap().wishes.skip = false,
            PersonSaysWait => self.seen.node.as_mut().unwrap().wishes.strategy = Strategy::Wait,
            VmLost => self.vm_is_there = false,
            VmBack => self.vm_is_there = true,
            WeCrash => self.crash(),
            WorldFallsSilent => {
                self.seen.hearing = Hearing::NoVcenter {
                    why: "cut".to_owned(),
                }
            }
            WorldIsHeard => self.seen.hearing = Hearing::Both,
            AMinute => self.now += jiff::SignedDuration::from_mins(1),
            AnHour => self.now += jiff::SignedDuration::from_hours(1),
        }
    }

    /// What is durable survives, by way of what is written on the Node; what this process knew does not.
    fn crash(&mut self) {
        self.seen.attempts.clear();
        self.seen.drain = None;
        self.seen.process_began = self.now;
        if let Record::Episode(_) = &self.record {
            self.record = read(&write(&self.record, self.now));
        }
    }

    fn node(&self) -> &haulout::maintenance::observed::NodeSeen {
        self.seen.node.as_ref().unwrap()
    }

    /// A second request waits its turn, so the first that stands is the one that counts.
    fn ask(&mut self, action: Action) {
        self.seen.request.get_or_insert_with(|| request(action));
    }

    fn person(&mut self, cordons: bool) {
        let node = self.seen.node.as_mut().unwrap();
        if node.unschedulable == cordons {
            // kubectl leaves a node alone that is already as it is asked to be.
            return;
        }
        node.unschedulable = cordons;
        node.cordoned_by = CordonedBy::Other("kubectl-cordon".to_owned());
        self.cordoned_by_person = cordons;
        if !cordons {
            self.seen.drain = None;
        }
    }

    fn host(&self) -> HostState {
        if self.on == home() {
            self.home.clone()
        } else {
            self.spare.clone()
        }
    }

    fn asked_to_stop(&self) -> bool {
        self.seen.attempts.contains_key(&EffectKind::ShutdownGuest)
    }

    fn power_off(&mut self) {
        self.power = PowerSeen::Off;
        // Its pods are lost with it; the Node goes on telling the boot id and the Ready it had.
        self.pods = 0;
    }

    fn power_on(&mut self) {
        self.power = PowerSeen::On;
        self.person_powered_off = false;
    }

    fn come_up(&mut self) {
        if self.power == PowerSeen::On {
            self.boots += 1;
            let boot = BootId::new(format!("boot-{}", self.boots));
            let node = self.seen.node.as_mut().unwrap();
            // Only a power cycle gives another boot; without one the kubelet merely heartbeats.
            if self.record.episode().is_some_and(|episode| episode.powered_off) || self.boots > 1 {
                node.boot_id = Some(boot);
            }
            node.ready = true;
            node.gpus = gpus(2).into();
            node.heartbeat = Some(self.now);
        }
    }

    fn end_tasks(&mut self, failure: Option<Advice>) {
        let running: Vec<EffectKind> = self
            .seen
            .attempts
            .iter()
            .filter(|(_, attempt)| matches!(attempt.outcome, Outcome::Running(_)))
            .map(|(kind, _)| *kind)
            .collect();
        for kind in running {
            let refused = failure.or_else(|| self.impossible(kind));
            match refused {
                Some(advice) => {
                    let attempt = self.seen.attempts.get_mut(&kind).unwrap();
                    attempt.refusals += 1;
                    attempt.outcome = Outcome::Refused(Refusal {
                        advice,
                        said: "no".to_owned(),
                    });
                }
                None => {
                    self.seen.attempts.get_mut(&kind).unwrap().outcome = Outcome::Done;
                    match kind {
                        EffectKind::PowerOff => self.power_off(),
                        EffectKind::PowerOn => {
                            if !self.host().takes_vms() {
                                self.on = spare();
                            }
                            self.power_on();
                        }
                        EffectKind::Relocate => self.on = spare(),
                        _ => {}
                    }
                }
            }
        }
    }

    fn impossible(&self, kind: EffectKind) -> Option<Advice> {
        match kind {
            EffectKind::PowerOn
                if !(self.host().takes_vms() || self.spare.takes_vms() && self.spare_is_free) =>
            {
                Some(Advice::OtherHost)
            }
            EffectKind::Relocate if !self.spare.takes_vms() => Some(Advice::OtherHost),
            _ => None,
        }
    }

    fn refresh(&mut self) {
        let host = self.host();
        let (power, on) = (self.power, self.on.clone());
        let template = match &self.seen.vm {
            VmSeen::Found(facts) => facts.clone(),
            _ => vm(power, host.clone()),
        };
        self.seen.vm = if self.vm_is_there {
            VmSeen::Found(VmFacts {
                power,
                host,
                on_name: on.to_string(),
                on: Some(on.clone()),
                ..template
            })
        } else {
            VmSeen::Missing
        };
        self.seen.target = self.spare.clone();
        let may_move = self.node().wishes.strategy == Strategy::Migrate;
        let elsewhere = may_move && self.spare.takes_vms() && on != spare();
        self.seen.offer.survey = if elsewhere { vec![spare()] } else { vec![] };
        let taken = Refused {
            host: "esx-spare".to_owned(),
            why: Why::DevicesTaken,
        };
        let is_taken = elsewhere && !self.spare_is_free;
        self.seen.offer.refused = if is_taken { vec![taken] } else { vec![] };
        self.seen.offer.fits = (elsewhere && self.spare_is_free).then(|| (spare(), "esx-spare".to_owned()));
    }

    /// Lets the actor look until it has nothing more to do.
    fn settle(&mut self) {
        for _ in 0..50 {
            self.refresh();
            match decide(&self.record, &self.seen, &self.policy, self.now) {
                Decision::Record(transition) => self.write(&transition),
                Decision::Act { effect, .. } => self.perform(&effect),
                Decision::Wait { .. } | Decision::Rest => return,
            }
        }
        panic!("no rest in phase {}", self.record.phase_name());
    }

    fn write(&mut self, transition: &Transition) {
        let node = self.seen.node.as_mut().unwrap();
        if let Some(unschedulable) = transition.unschedulable {
            if !unschedulable {
                assert!(!self.cordoned_by_person, "7: a person's cordon was taken away");
            }
            node.unschedulable = unschedulable;
            node.cordoned_by = CordonedBy::Haulout;
        }
        if transition.record == Record::InService {
            assert_eq!(self.power, PowerSeen::On, "an episode ended with the VM off");
            self.seen.attempts.clear();
            self.seen.drain = None;
        }
        if let Some(fulfilled) = &transition.fulfilled {
            let asked = self
                .seen
                .request
                .take()
                .expect("only a request that stands is fulfilled");
            assert_eq!(asked.mark, *fulfilled);
        }
        let cuts =
            |record: &Record| matches!(record.phase().map(Phase::at_work), Some(Phase::ShuttingDown(_)));
        if cuts(&transition.record) && !cuts(&self.record) {
            let episode = transition.record.episode().unwrap();
            let timed_out =
                episode.phase == Phase::ShuttingDown(haulout::maintenance::episode::DrainEnd::TimedOut);
            assert!(
                self.pods == 0 || timed_out,
                "6: to be shut down with {} pods on it",
                self.pods
            );
        }
        self.record = transition.record.clone();
    }

    fn perform(&mut self, effect: &Effect) {
        let mut outcome = Outcome::Running(TaskRef::new("task-9"));
        match effect {
            Effect::DrainRound { pods_revision, .. } => {
                outcome = Outcome::Done;
                let left = (0..self.pods).map(|pod| PodLeft {
                    name: format!("ml/{pod}"),
                    why: PodLeftBecause::Leaving,
                });
                let (listed_at, pods_revision) = (self.now, *pods_revision);
                self.seen.drain = Some(DrainReport {
                    listed_at,
                    pods_revision,
                    left: left.collect(),
                    moved_at: None,
                    listed: 0,
                    ignored: 0,
                    evicted: 0,
                });
            }
            Effect::ShutdownGuest { .. } | Effect::PowerOff { .. } => {
                assert!(self.node().unschedulable, "6: power cut on a schedulable node");
                assert_eq!(self.power, PowerSeen::On);
                if matches!(effect, Effect::ShutdownGuest { .. }) {
                    outcome = Outcome::Asked;
                }
            }
            Effect::Survey { .. } => outcome = Outcome::Done,
            Effect::Relocate { .. } => assert!(self.spare.takes_vms() && self.power == PowerSeen::Off, "9"),
            Effect::PowerOn { .. } => assert_eq!(self.power, PowerSeen::Off),
        }
        let before = self
            .seen
            .attempts
            .get(&effect.kind())
            .map_or(0, |attempt| attempt.refusals);
        self.seen.attempts.insert(
            effect.kind(),
            Attempt {
                at: self.now,
                host: None,
                task: None,
                refusals: before,
                outcome,
            },
        );
    }

    /// A person asks for `action`, and everybody does what is asked.
    fn ask_calmly(&mut self, action: &Action) {
        use Happening::*;
        self.seen.request = Some(request(action.clone()));
        for _ in 0..60 {
            for happening in [PlaceGranted, PodGoes, GuestStops, TaskEnds, NodeComesUp, AMinute] {
                self.happen(happening);
                self.settle();
            }
        }
    }

    /// All trouble ends; everybody does what is asked; time goes by.
    fn calm_down(&mut self, home: &HostState) {
        use Happening::*;
        self.home = home.clone();
        let calm = [
            PersonDeletesRequest,
            PersonSaysGoOn,
            WorldIsHeard,
            VmBack,
            SpareIsOut,
            PlaceGranted,
            PodGoes,
            GuestStops,
            TaskEnds,
            NodeComesUp,
            AMinute,
        ];
        for _ in 0..60 {
            for happening in calm {
                self.happen(happening);
                self.settle();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happened_a_node_whose_host_is_back_is_in_service_as_it_was_found(
        story in happenings(), drs: bool, cordoned: bool, hold: bool,
    ) {
        let action = if hold { DrainTimeoutAction::Hold } else { DrainTimeoutAction::PowerOff };
        let mut world = World::new(drs, cordoned, action);
        for happening in story {
            world.happen(happening);
            world.settle();
        }
        world.calm_down(&HostState::InService);
        // An episode that somebody stopped by uncordoning again and again waits for that person.
        if matches!(&world.record, Record::Episode(episode) if matches!(episode.phase, Phase::Parked { .. })) && !world.node().unschedulable {
            world.person(true);
            world.calm_down(&HostState::InService);
        }
        prop_assert_eq!(&world.record, &Record::InService);
        prop_assert!(world.power == PowerSeen::On || world.person_powered_off, "the VM was left off");
        prop_assert_eq!(world.node().unschedulable, world.cordoned_by_person, "the cordon is not as a person left it");
    }

    #[test]
    fn whatever_happened_a_request_that_stands_is_as_asked_in_the_end(
        story in happenings(), drs: bool, cordoned: bool, kind in 0..4,
    ) {
        let action = match kind {
            0 => Action::Drain,
            1 => Action::PowerOff,
            2 => Action::Reboot,
            _ => Action::Relocate { to: None },
        };
        let mut world = World::new(drs, cordoned, DrainTimeoutAction::PowerOff);
        for happening in story {
            world.happen(happening);
            world.settle();
        }
        // Whatever was asked for is over, and the node and its VM are in service.
        world.calm_down(&HostState::InService);
        if !world.node().unschedulable {
            world.person(true);
            world.calm_down(&HostState::InService);
        }
        world.power_on();
        world.ask_calmly(&action);
        match action {
            Action::Drain => {
                prop_assert_eq!(world.record.phase(), Some(&Phase::Drained));
                prop_assert!(world.node().unschedulable && world.pods == 0 && world.power == PowerSeen::On);
            }
            Action::PowerOff => {
                prop_assert_eq!(world.record.phase(), Some(&Phase::AwaitingHost));
                prop_assert!(world.node().unschedulable && world.power == PowerSeen::Off);
            }
            Action::Reboot | Action::Relocate { .. } => {
                prop_assert_eq!(&world.record, &Record::InService);
                prop_assert_eq!(world.power, PowerSeen::On);
                prop_assert!(world.seen.request.is_none(), "it was never fulfilled");
            }
        }
    }

    #[test]
    fn whatever_happened_a_host_that_keeps_leaving_gets_rid_of_the_vm(
        story in happenings(), drs: bool, cordoned: bool,
    ) {
        let mut world = World::new(drs, cordoned, DrainTimeoutAction::PowerOff);
        for happening in story {
            world.happen(happening);
            world.settle();
        }
        world.calm_down(&entering());
        if !world.node().unschedulable && world.power == PowerSeen::On && world.on == home() {
            world.person(true);
            world.calm_down(&entering());
        }
        prop_assert!(world.power == PowerSeen::Off || world.on != home(), "the VM is still running on its host in phase {}", world.record.phase_name());
        prop_assert!(world.power == PowerSeen::On || world.record != Record::InService || world.person_powered_off, "the VM was left off without an episode");
    }
}
