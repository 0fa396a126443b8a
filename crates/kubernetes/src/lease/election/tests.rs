use std::collections::BTreeMap;

use super::*;

const TIMING: Timing = Timing {
    lease: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry: Duration::from_secs(2),
    yield_after: YIELD_AFTER,
};

/// The epoch that the clock gives.
const NEW: u64 = 1_000;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A moment on a machine that was never suspended.
fn at(second: u64) -> BoottimeInstant {
    BoottimeInstant {
        monotonic: seconds(second),
        since_boot: seconds(second),
    }
}

fn held_by(holder: &str) -> ObservedLease {
    ObservedLease {
        holder: holder.to_owned(),
        transitions: 4,
        duration: seconds(15),
        renewed: Some("t1".to_owned()),
        version: "7".to_owned(),
        yields: false,
    }
}

fn released() -> ObservedLease {
    ObservedLease {
        duration: RELEASED,
        ..held_by("")
    }
}

fn bid(version: Option<&str>, transitions: u64, quarantine: u64) -> ElectionStep {
    ElectionStep::Bid(Bid {
        version: version.map(str::to_owned),
        transitions,
        quarantine: seconds(quarantine),
        yields: false,
    })
}

/// A replica `me` that led from a renewal sent at second 0, where it led, and has read `lease` at that second.
fn replica(led: bool, lease: Option<ObservedLease>) -> Election {
    let mut election = Election::of("me".to_owned(), TIMING);
    if led {
        let first = Bid {
            version: None,
            transitions: 4,
            quarantine: Duration::ZERO,
            yields: false,
        };
        election.won(&first, held_by("me"), at(0));
    }
    election.update_lease(lease, at(0));
    election
}

#[test]
fn every_lease_has_one_step_before_and_after_each_deadline() {
    let emptied = || ObservedLease {
        duration: seconds(15),
        ..held_by("")
    };
    let blank = || ObservedLease {
        renewed: None,
        duration: Duration::ZERO,
        transitions: 0,
        ..held_by("")
    };
    let deadline = || ElectionStep::StepDown(LeadershipLost::Deadline);
    let lost = |to: &str| ElectionStep::StepDown(LeadershipLost::To(to.to_owned()));
    let renew = || bid(Some("7"), 4, 0);
    // The Lease; what a standby does at second 9 and 15; what a leader does at second 9 and 10.
    let cases = [
        (
            None,
            [bid(None, NEW, 15), bid(None, NEW, 15)],
            [bid(None, 4, 0), deadline()],
        ),
        (
            Some(released()),
            [bid(Some("7"), 5, 0), bid(Some("7"), 5, 0)],
            [lost(""), deadline()],
        ),
        (
            Some(emptied()),
            [bid(Some("7"), NEW, 15), bid(Some("7"), NEW, 15)],
            [lost(""), deadline()],
        ),
        (
            Some(blank()),
            [bid(Some("7"), NEW, 15), bid(Some("7"), NEW, 15)],
            [lost(""), deadline()],
        ),
        (
            Some(held_by("me")),
            [bid(Some("7"), 4, 15), bid(Some("7"), 4, 15)],
            [renew(), deadline()],
        ),
        (
            Some(held_by("you")),
            [ElectionStep::Wait, bid(Some("7"), 5, 5)],
            [lost("you"), deadline()],
        ),
    ];
    for (lease, standby, leader) in cases {
        for (second, expected) in [9, 15].into_iter().zip(standby) {
            let step = replica(false, lease.clone()).step(at(second), NEW);
            assert_eq!(step, expected, "a standby at {second} with {lease:?}");
        }
        for (second, expected) in [9, 10].into_iter().zip(leader) {
            let step = replica(true, lease.clone()).step(at(second), NEW);
            assert_eq!(step, expected, "a leader at {second} with {lease:?}");
        }
    }
}

#[test]
fn who_has_not_read_the_lease_does_nothing() {
    assert_eq!(
        Election::of("me".to_owned(), TIMING).step(at(1_000), NEW),
        ElectionStep::Wait
    );
}

#[test]
fn lease_counts_from_its_observed_change_and_not_from_its_own_times() {
    let mut election = replica(false, Some(held_by("you")));
    let renewed = ObservedLease {
        renewed: Some("t0, long ago on a clock that is wrong".to_owned()),
        version: "8".to_owned(),
        ..held_by("you")
    };
    election.update_lease(Some(renewed.clone()), at(14));
    assert_eq!(election.step(at(28), NEW), ElectionStep::Wait);
    let annotated = ObservedLease {
        version: "9".to_owned(),
        ..renewed
    };
    election.update_lease(Some(annotated), at(20));
    assert_eq!(
        election.step(at(29), NEW),
        bid(Some("9"), 5, 5),
        "an annotation is no renewal"
    );
}

#[test]
fn suspensions_count_for_a_leader_and_not_for_a_standby() {
    let suspended = BoottimeInstant {
        monotonic: seconds(5),
        since_boot: seconds(500),
    };
    assert_eq!(
        replica(false, Some(held_by("you"))).step(suspended, NEW),
        ElectionStep::Wait
    );
    let leader = replica(true, Some(held_by("me")));
    assert_eq!(
        leader.step(suspended, NEW),
        ElectionStep::StepDown(LeadershipLost::Deadline)
    );
}

#[test]
fn longer_lease_of_another_replica_is_respected_up_to_a_limit() {
    let lasting = |duration| ObservedLease {
        duration,
        ..held_by("you")
    };
    let longer = replica(false, Some(lasting(seconds(60))));
    assert_eq!(longer.step(at(59), NEW), ElectionStep::Wait);
    assert_ne!(longer.step(at(60), NEW), ElectionStep::Wait);
    let absurd = replica(false, Some(lasting(seconds(2_000_000_000))));
    assert_ne!(absurd.step(at(600), NEW), ElectionStep::Wait);
    let shorter = replica(false, Some(lasting(seconds(1))));
    assert_eq!(
        shorter.step(at(14), NEW),
        ElectionStep::Wait,
        "and a shorter one is not believed"
    );
}

#[test]
fn a_renewal_counts_from_its_sending_and_leaves_the_quarantine_as_it_was() {
    let mut election = replica(false, Some(held_by("you")));
    let ElectionStep::Bid(first) = election.step(at(15), NEW) else {
        panic!("it bids");
    };
    election.won(&first, held_by("me"), at(15));
    let leadership = election.leadership().unwrap();
    assert_eq!(
        (leadership.epoch, leadership.until, leadership.effects_from),
        (5, seconds(25), seconds(20))
    );
    let ElectionStep::Bid(renewal) = election.step(at(17), NEW) else {
        panic!("it renews");
    };
    election.won(&renewal, held_by("me"), at(17));
    let leadership = election.leadership().unwrap();
    assert_eq!(
        (leadership.epoch, leadership.until, leadership.effects_from),
        (5, seconds(27), seconds(20))
    );
}

#[test]
fn a_standby_looks_again_right_when_a_lease_runs_out() {
    let standby = replica(false, Some(held_by("you")));
    assert_eq!(standby.pause(at(3)), seconds(2));
    assert_eq!(standby.pause(at(14)), seconds(1));
    assert_eq!(standby.pause(at(15)), TIMING.retry / 10);
}

/// A renewal of the leadership 4, which yields or not.
fn renewal(yields: bool) -> ElectionStep {
    ElectionStep::Bid(Bid {
        version: Some("7".to_owned()),
        transitions: 4,
        quarantine: Duration::ZERO,
        yields,
    })
}

/// A leader whose leadership does not end within these tests, and that could not work from second 1 on.
fn unable_leader() -> Election {
    let mut leader = replica(true, Some(held_by("me")));
    let ElectionStep::Bid(bid) = leader.step(at(1), NEW) else {
        panic!("it renews");
    };
    leader.set_able(false, at(1));
    leader.won(&bid, held_by("me"), at(25));
    leader
}

#[test]
fn a_leader_yields_when_it_could_not_work_for_30_seconds() {
    let mut leader = unable_leader();
    leader.set_able(false, at(29));
    assert_eq!(leader.step(at(30), NEW), renewal(false));
    assert_eq!(leader.step(at(31), NEW), renewal(true));
    leader.set_able(true, at(31));
    assert_eq!(leader.step(at(31), NEW), renewal(false), "it can work again");
    leader.set_able(false, at(31));
    assert_eq!(
        leader.step(at(34), NEW),
        renewal(false),
        "and counts again from there"
    );
}

#[test]
fn a_tenure_yields_from_the_sending_until_a_renewal_without_it() {
    let mut leader = unable_leader();
    let yields = |leader: &Election| leader.leadership().unwrap().yields;
    let bid = |leader: &Election| match leader.step(at(31), NEW) {
        ElectionStep::Bid(bid) => bid,
        other @ (ElectionStep::Wait | ElectionStep::StepDown(_)) => panic!("{other:?}"),
    };
    let yielding = bid(&leader);
    leader.sending(&yielding);
    assert!(yields(&leader), "whether it was written is not known yet");
    leader.set_able(true, at(31));
    let taken_back = bid(&leader);
    leader.sending(&taken_back);
    assert!(yields(&leader), "a standby may have read the Lease");
    leader.won(&taken_back, held_by("me"), at(31));
    assert!(!yields(&leader));
}

#[test]
fn a_yielding_leader_whose_lease_is_deleted_steps_down() {
    let mut leader = unable_leader();
    leader.update_lease(None, at(31));
    let ElectionStep::Bid(made_anew) = leader.step(at(31), NEW) else {
        panic!("nobody else could take it so far");
    };
    assert_eq!((made_anew.version.as_deref(), made_anew.transitions), (None, 4));
    leader.sending(&made_anew);
    assert_eq!(
        leader.step(at(31), NEW),
        ElectionStep::StepDown(LeadershipLost::Deleted)
    );
}

#[test]
fn a_yielding_lease_is_taken_at_once_by_a_standby_that_can_work() {
    let yielding = |holder: &str| ObservedLease {
        yields: true,
        ..held_by(holder)
    };
    let mut standby = replica(false, Some(yielding("you")));
    assert_eq!(standby.step(at(0), NEW), bid(Some("7"), 5, 15));
    standby.set_able(false, at(0));
    assert_eq!(standby.step(at(14), NEW), ElectionStep::Wait);
    assert_eq!(
        standby.step(at(15), NEW),
        bid(Some("7"), 5, 5),
        "a Lease that ran out is free for everybody"
    );
    for lease in [None, Some(released())] {
        let mut unable = replica(false, lease);
        unable.set_able(false, at(0));
        assert!(matches!(unable.step(at(1), NEW), ElectionStep::Bid(_)));
    }
    let longer = ObservedLease {
        duration: seconds(60),
        ..yielding("you")
    };
    let standby = replica(false, Some(longer));
    assert_eq!(standby.step(at(0), NEW), bid(Some("7"), 5, 60));
}

#[test]
fn a_lease_made_anew_has_an_epoch_that_was_never_seen() {
    let mut standby = replica(false, Some(held_by("you")));
    standby.update_lease(None, at(1));
    assert_eq!(standby.step(at(2), NEW), bid(None, NEW, 15));
    assert_eq!(
        standby.step(at(2), 3),
        bid(None, 5, 15),
        "also where the clock is behind the epochs"
    );
    let greatest = ObservedLease {
        transitions: TRANSITIONS_MAX,
        ..released()
    };
    let standby = replica(false, Some(greatest));
    assert_eq!(
        standby.step(at(0), NEW),
        bid(Some("7"), NEW, 0),
        "the API holds no greater one"
    );
}

/// After a restore of etcd, the Lease is the one before the leadership of `other`, which may still act.
#[test]
fn a_lease_that_went_back_is_taken_with_an_epoch_that_was_never_seen() {
    let undone = || ObservedLease {
        transitions: 5,
        renewed: Some("t2".to_owned()),
        ..held_by("other")
    };
    let taken = |restored: ObservedLease, second: u64| {
        let mut standby = replica(false, Some(undone()));
        standby.update_lease(Some(restored), at(0));
        standby.step(at(second), NEW)
    };
    assert_eq!(taken(held_by("you"), 15), bid(Some("7"), 6, 5));
    assert_eq!(
        taken(released(), 0),
        bid(Some("7"), NEW, 15),
        "it was not released by the leader of then"
    );
}

/// A Lease may have been created and deleted in the second in which a replica first looks.
#[test]
fn lease_is_created_in_a_later_second_than_one_deleted_before() {
    let mut standby = replica(false, None);
    assert_eq!(standby.step(at(0), NEW), ElectionStep::Wait);
    assert_eq!(standby.pause(at(0)), NEW_LEASE_AFTER);
    standby.update_lease(None, at(1));
    assert_eq!(standby.step(at(1), NEW + 1), bid(None, NEW + 1, 15));
    standby.update_lease(Some(held_by("you")), at(2));
    standby.update_lease(None, at(3));
    assert_eq!(
        standby.step(at(3), NEW),
        ElectionStep::Wait,
        "that is another absence"
    );
}

#[test]
fn with_a_lease_of_a_second_an_emptied_one_is_not_taken_for_released() {
    let timing = Timing {
        lease: Duration::from_millis(900),
        ..TIMING
    };
    let mut election = Election::of("me".to_owned(), timing);
    election.update_lease(Some(released()), at(0));
    let ElectionStep::Bid(bid) = election.step(at(0), NEW) else {
        panic!("it bids");
    };
    assert_eq!(bid.quarantine, timing.lease);
}

#[test]
fn lease_is_released_as_soon_as_its_holder_may_act() {
    let mut election = replica(false, Some(held_by("you")));
    let ElectionStep::Bid(takeover) = election.step(at(15), NEW) else {
        panic!("it bids");
    };
    election.won(&takeover, held_by("me"), at(15));
    assert_eq!(
        election.release(at(19)),
        None,
        "the quarantine lasts until second 20"
    );
    let released = election.release(at(20)).map(|bid| bid.transitions);
    assert_eq!(released, Some(5));
    assert_eq!(election.release(at(25)), None, "the leadership is over");
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn one_in(&mut self, n: u64) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.is_multiple_of(n)
    }
}

/// A replica in a random history: its own clock, and whether it is stopped.
struct Actor {
    election: Election,
    name: &'static str,
    clock_offset: u64,
    /// Its clock gains a tenth.
    is_fast: bool,
    stopped_until: u64,
    next_turn: u64,
    fresh: bool,
    /// It can do its work.
    is_able: bool,
}

impl Actor {
    /// A time of the history, in tenths of a second, on the clocks of its machine.
    fn now(&self, tenth: u64) -> BoottimeInstant {
        let own = if self.is_fast { tenth * 11 / 10 } else { tenth };
        let now = Duration::from_millis((own + self.clock_offset) * 100);
        BoottimeInstant {
            monotonic: now,
            since_boot: now,
        }
    }

    /// The process ends and starts again with another name.
    fn is_replaced(&mut self, index: usize, tenth: u64) {
        self.election = Election::of(format!("{}-{tenth}-{index}", self.name), TIMING);
        self.fresh = false;
    }

    /// Whether something of an effect of its may leave. Records may leave earlier, and the kube-apiserver checks them.
    fn sending(&self, tenth: u64) -> bool {
        let now = self.now(tenth).since_boot;
        self.election
            .leadership()
            .is_some_and(|leadership| now < leadership.until && now >= leadership.effects_from)
    }

    /// Whether an effect may begin.
    fn acts(&self, tenth: u64) -> bool {
        let now = self.now(tenth).since_boot;
        self.election.leadership().is_some_and(|leadership| {
            now + TIMING.margin() <= leadership.until && now >= leadership.effects_from && !leadership.yields
        })
    }
}

#[test]
fn no_two_replicas_lead_at_once_in_random_histories() {
    let mut total = Happened::default();
    for seed in 1..=400 {
        let happened = random_history(seed);
        total.takeovers += happened.takeovers;
        total.handovers += happened.handovers;
        total.restores += happened.restores;
        total.releases += happened.releases;
    }
    println!("400 histories of 400 s: {total:?}");
    let is_complete =
        total.takeovers > 800 && total.handovers > 100 && total.restores > 100 && total.releases > 100;
    assert!(is_complete, "{total:?}");
}

/// How often leadership changed in the histories.
#[derive(Debug, Default)]
struct Happened {
    /// The leader changed.
    takeovers: usize,
    /// A standby took the Lease of a leader that yielded.
    handovers: usize,
    /// The Lease went back to an earlier one.
    restores: usize,
    /// A leader stopped and released the Lease.
    releases: usize,
}

/// Three replicas and a Lease for 400 s.
fn random_history(seed: u64) -> Happened {
    let mut dice = Dice(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15));
    let mut lease: Option<ObservedLease> = None;
    let mut snapshot: Option<ObservedLease> = None;
    let mut version = 0_u64;
    let actor = |name: &'static str, clock_offset, is_fast| Actor {
        election: Election::of(name.to_owned(), TIMING),
        name,
        clock_offset,
        is_fast,
        stopped_until: 0,
        next_turn: 0,
        fresh: false,
        is_able: true,
    };
    let mut actors = [
        actor("a", 0, false),
        actor("b", 70_000, true),
        actor("c", 900, false),
    ];
    let mut led_last: Option<(usize, u64)> = None;
    let mut led_by: BTreeMap<u64, String> = BTreeMap::new();
    let mut happened = Happened::default();
    for tenth in 0..4_000 {
        for (index, actor) in actors.iter_mut().enumerate() {
            if tenth < actor.stopped_until || tenth < actor.next_turn {
                continue;
            }
            if dice.one_in(40) {
                actor.stopped_until = tenth + 250;
                continue;
            }
            if dice.one_in(300) {
                actor.is_able = !actor.is_able;
            }
            let now = actor.now(tenth);
            actor.election.set_able(actor.is_able, now);
            let is_lost = dice.one_in(4);
            if (!actor.fresh || actor.election.leadership().is_none()) && !is_lost {
                actor.election.update_lease(lease.clone(), now);
                actor.fresh = true;
            }
            if actor.election.leadership().is_some() && dice.one_in(100) {
                let bid = actor.election.release(now);
                let current = lease.as_ref().map(|lease| lease.version.clone());
                if let Some(bid) = bid.filter(|bid| bid.version.is_some() && bid.version == current) {
                    version += 1;
                    happened.releases += 1;
                    lease = Some(ObservedLease {
                        holder: String::new(),
                        transitions: bid.transitions,
                        duration: RELEASED,
                        renewed: Some(format!("{tenth}")),
                        version: version.to_string(),
                        yields: false,
                    });
                }
                actor.is_replaced(index, tenth);
                continue;
            }
            match actor.election.step(now, 1_000 + tenth) {
                ElectionStep::Wait => {}
                ElectionStep::StepDown(_) => actor.is_replaced(index, tenth),
                ElectionStep::Bid(bid) if actor.fresh => {
                    actor.election.sending(&bid);
                    let current = lease.as_ref().map(|lease| lease.version.clone());
                    if dice.one_in(5) || current != bid.version {
                        actor.fresh = false;
                    } else {
                        version += 1;
                        let is_yielded = lease.as_ref().is_some_and(|lease| lease.yields);
                        let is_new = actor.election.leadership().is_none();
                        happened.handovers += usize::from(is_new && is_yielded);
                        let written = ObservedLease {
                            holder: actor.election.me.clone(),
                            transitions: bid.transitions,
                            duration: TIMING.lease,
                            renewed: Some(format!("{tenth}")),
                            version: version.to_string(),
                            yields: bid.yields,
                        };
                        let me = &actor.election.me;
                        let other = led_by.insert(bid.transitions, me.clone());
                        // Who starts after a restore of etcd cannot know the epochs of then.
                        let is_known = happened.restores == 0 || actor.election.greatest >= bid.transitions;
                        assert!(
                            !is_known || other.is_none_or(|other| other == *me),
                            "seed {seed}: two have the epoch {}",
                            bid.transitions
                        );
                        lease = Some(written.clone());
                        if dice.one_in(6) {
                            // It was carried out, and the answer is lost.
                            actor.fresh = false;
                        } else {
                            actor.election.won(&bid, written, now);
                        }
                    }
                }
                ElectionStep::Bid(_) => {}
            }
            let pause = u64::try_from(actor.election.pause(now).as_millis()).unwrap();
            actor.next_turn = tenth + (pause / 100).max(1);
        }
        if dice.one_in(900) {
            // Somebody deletes the Lease.
            lease = None;
        }
        if dice.one_in(900) {
            snapshot.clone_from(&lease);
        }
        if snapshot.is_some() && dice.one_in(3_000) {
            // etcd is restored.
            lease = snapshot.take();
            happened.restores += 1;
        }
        let sending: Vec<usize> = (0..actors.len())
            .filter(|at| actors[*at].sending(tenth))
            .collect();
        for (index, actor) in actors.iter().enumerate() {
            if !actor.acts(tenth) {
                continue;
            }
            assert_eq!(
                sending,
                [index],
                "seed {seed}, tenth {tenth}: another can still send"
            );
            match led_last {
                Some((before, _)) if before == index => {}
                Some((_, at)) => {
                    happened.takeovers += 1;
                    assert!(tenth > at, "seed {seed}");
                }
                None => {}
            }
            led_last = Some((index, tenth));
        }
    }
    happened
}
