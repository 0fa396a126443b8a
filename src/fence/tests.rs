use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const MARGIN: Duration = Duration::from_secs(3);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn term(until: u64, effects_from: u64) -> FenceTerm {
    FenceTerm {
        epoch: 1,
        until: seconds(until),
        margin: MARGIN,
        effects_from: seconds(effects_from),
        yields: false,
    }
}

/// A gate at the second 100 of its machine.
fn at_100() -> WriteFence {
    WriteFence::new(FenceState::Standby, || BoottimeInstant {
        awake: seconds(50),
        since_boot: seconds(100),
    })
}

#[test]
fn it_opens_for_a_leader_only_and_not_for_the_last_seconds_of_a_term() {
    let gate = at_100();
    assert_eq!(gate.pass(WriteKind::Record).unwrap_err(), FenceClosed::Standby);
    gate.open(term(110, 0));
    assert!(gate.pass(WriteKind::Record).is_ok() && gate.pass(WriteKind::Effect).is_ok());
    gate.open(term(103, 0));
    assert!(gate.pass(WriteKind::Effect).is_ok(), "the margin is just left");
    gate.open(term(102, 0));
    assert_eq!(gate.pass(WriteKind::Effect).unwrap_err(), FenceClosed::Ending);
    assert_eq!(gate.pass(WriteKind::Record).unwrap_err(), FenceClosed::Ending);
}

#[test]
fn a_leader_may_write_at_once_and_act_when_its_predecessors_last_effect_has_arrived() {
    let gate = at_100();
    gate.open(term(110, 105));
    assert!(gate.pass(WriteKind::Record).is_ok());
    assert_eq!(gate.pass(WriteKind::Effect).unwrap_err(), FenceClosed::Quarantine);
    gate.open(term(110, 100));
    assert!(gate.pass(WriteKind::Effect).is_ok());
}

#[test]
fn a_paused_gate_lets_nothing_begin_until_a_term_that_does_not_yield() {
    let gate = at_100();
    gate.open(term(110, 0));
    let under_way = gate.pass(WriteKind::Effect).unwrap();
    gate.pause();
    for errand in [WriteKind::Record, WriteKind::Effect] {
        assert_eq!(gate.pass(errand).unwrap_err(), FenceClosed::Yielding);
    }
    let yielding = FenceTerm {
        yields: true,
        ..term(120, 0)
    };
    gate.open(yielding);
    assert_eq!(gate.pass(WriteKind::Record).unwrap_err(), FenceClosed::Yielding);
    gate.open(term(120, 0));
    assert!(gate.pass(WriteKind::Record).is_ok() && gate.pass(WriteKind::Effect).is_ok());
    drop(under_way);
    for gate in [at_100(), WriteFence::without_election()] {
        gate.pause();
        assert_ne!(
            gate.pass(WriteKind::Record).err(),
            Some(FenceClosed::Yielding),
            "it does not lead by a term"
        );
    }
}

#[test]
fn a_gate_that_was_closed_is_not_opened_again() {
    for gate in [at_100(), WriteFence::without_election()] {
        gate.close();
        gate.open(term(110, 0));
        assert_eq!(gate.pass(WriteKind::Record).unwrap_err(), FenceClosed::Closed);
    }
}

#[test]
fn a_term_that_is_over_is_overdue_until_somebody_closes_the_gate() {
    let gate = at_100();
    assert!(!gate.is_overdue());
    gate.open(term(101, 0));
    assert!(!gate.is_overdue());
    gate.open(term(100, 0));
    assert!(gate.is_overdue());
    gate.close();
    assert!(!gate.is_overdue());
}

#[tokio::test]
async fn it_is_idle_when_the_last_permit_is_back() {
    let gate = WriteFence::without_election();
    let permit = gate.pass(WriteKind::Effect).unwrap();
    gate.close();
    let soon = Duration::from_millis(20);
    assert!(tokio::time::timeout(soon, gate.idle()).await.is_err());
    drop(permit);
    gate.idle().await;
}

#[tokio::test(start_paused = true)]
async fn work_goes_on_while_the_term_is_prolonged_and_is_dropped_when_it_ends() {
    static NOW: AtomicU64 = AtomicU64::new(100);
    let gate = WriteFence::new(FenceState::Standby, || BoottimeInstant {
        awake: Duration::ZERO,
        since_boot: seconds(NOW.load(Ordering::SeqCst)),
    });
    gate.open(term(110, 0));
    let permit = gate.pass(WriteKind::Effect).unwrap();
    let elapse = |to| async move {
        tokio::time::sleep(seconds(5)).await;
        NOW.store(to, Ordering::SeqCst);
    };
    let renewed = async {
        elapse(105).await;
        gate.open(term(115, 0));
        elapse(112).await;
    };
    assert_eq!(
        permit.carry(renewed).await,
        Ok(()),
        "it took longer than the first term"
    );
    let never = async {
        elapse(116).await;
        std::future::pending::<()>().await;
    };
    assert_eq!(permit.carry(never).await, Err(FenceClosed::Ending));
}
