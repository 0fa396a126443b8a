use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const MARGIN: Duration = Duration::from_secs(3);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn window(until: u64, effects_from: u64) -> LeadershipWindow {
    LeadershipWindow {
        epoch: 1,
        until: seconds(until),
        margin: MARGIN,
        effects_from: seconds(effects_from),
        yields: false,
    }
}

/// A fence at the second 100 of its machine.
fn at_100() -> WriteFence {
    WriteFence::new(FenceState::Standby, || BoottimeInstant {
        monotonic: seconds(50),
        since_boot: seconds(100),
    })
}

#[test]
fn fence_opens_for_a_leader_but_not_for_its_last_seconds() {
    let fence = at_100();
    assert_eq!(fence.permit(WriteKind::Record).unwrap_err(), FenceClosed::Standby);
    fence.open(window(110, 0));
    assert!(fence.permit(WriteKind::Record).is_ok() && fence.permit(WriteKind::Effect).is_ok());
    fence.open(window(103, 0));
    assert!(fence.permit(WriteKind::Effect).is_ok(), "the margin is just left");
    fence.open(window(102, 0));
    assert_eq!(fence.permit(WriteKind::Effect).unwrap_err(), FenceClosed::Ending);
    assert_eq!(fence.permit(WriteKind::Record).unwrap_err(), FenceClosed::Ending);
}

#[test]
fn permit_carries_the_epoch_of_its_leadership() {
    let fence = at_100();
    for epoch in [7, 8] {
        fence.open(LeadershipWindow {
            epoch,
            ..window(110, 0)
        });
        let permit = fence.permit(WriteKind::Effect).unwrap();
        assert_eq!(permit.epoch(), epoch);
    }
}

#[test]
fn leader_writes_at_once_and_acts_after_the_quarantine() {
    let fence = at_100();
    fence.open(window(110, 105));
    assert!(fence.permit(WriteKind::Record).is_ok());
    assert_eq!(
        fence.permit(WriteKind::Effect).unwrap_err(),
        FenceClosed::Quarantine
    );
    fence.open(window(110, 100));
    assert!(fence.permit(WriteKind::Effect).is_ok());
}

#[test]
fn paused_fence_gives_no_permit_until_a_window_that_does_not_yield() {
    let fence = at_100();
    fence.open(window(110, 0));
    let under_way = fence.permit(WriteKind::Effect).unwrap();
    fence.pause();
    for kind in [WriteKind::Record, WriteKind::Effect] {
        assert_eq!(fence.permit(kind).unwrap_err(), FenceClosed::Yielding);
    }
    let yielding = LeadershipWindow {
        yields: true,
        ..window(120, 0)
    };
    fence.open(yielding);
    assert_eq!(
        fence.permit(WriteKind::Record).unwrap_err(),
        FenceClosed::Yielding
    );
    fence.open(window(120, 0));
    assert!(fence.permit(WriteKind::Record).is_ok() && fence.permit(WriteKind::Effect).is_ok());
    drop(under_way);
    for fence in [at_100(), WriteFence::without_election()] {
        fence.pause();
        assert_ne!(
            fence.permit(WriteKind::Record).err(),
            Some(FenceClosed::Yielding),
            "without an election there is no window"
        );
    }
}

#[test]
fn closed_fence_is_not_opened_again() {
    for fence in [at_100(), WriteFence::without_election()] {
        fence.close();
        fence.open(window(110, 0));
        assert_eq!(fence.permit(WriteKind::Record).unwrap_err(), FenceClosed::Closed);
    }
}

#[test]
fn ended_window_is_overdue_until_the_fence_is_closed() {
    let fence = at_100();
    assert!(!fence.is_overdue());
    fence.open(window(101, 0));
    assert!(!fence.is_overdue());
    fence.open(window(100, 0));
    assert!(fence.is_overdue());
    fence.close();
    assert!(!fence.is_overdue());
}

#[tokio::test]
async fn it_is_idle_when_the_last_permit_is_back() {
    let fence = WriteFence::without_election();
    let permit = fence.permit(WriteKind::Effect).unwrap();
    fence.close();
    let soon = Duration::from_millis(20);
    assert!(tokio::time::timeout(soon, fence.idle()).await.is_err());
    drop(permit);
    fence.idle().await;
}

#[tokio::test(start_paused = true)]
async fn work_continues_while_the_window_is_extended_and_is_dropped_at_its_end() {
    static NOW: AtomicU64 = AtomicU64::new(100);
    let fence = WriteFence::new(FenceState::Standby, || BoottimeInstant {
        monotonic: Duration::ZERO,
        since_boot: seconds(NOW.load(Ordering::SeqCst)),
    });
    fence.open(window(110, 0));
    let permit = fence.permit(WriteKind::Effect).unwrap();
    let elapse = |to| async move {
        tokio::time::sleep(seconds(5)).await;
        NOW.store(to, Ordering::SeqCst);
    };
    let renewed = async {
        elapse(105).await;
        fence.open(window(115, 0));
        elapse(112).await;
    };
    assert_eq!(
        permit.run(renewed).await,
        Ok(()),
        "it took longer than the first window"
    );
    let never = async {
        elapse(116).await;
        std::future::pending::<()>().await;
    };
    assert_eq!(permit.run(never).await, Err(FenceClosed::Ending));
}

#[tokio::test(start_paused = true)]
async fn work_does_not_continue_after_a_suspension_of_its_machine() {
    static NOW: AtomicU64 = AtomicU64::new(100);
    let fence = WriteFence::new(FenceState::Standby, || BoottimeInstant {
        monotonic: seconds(50),
        since_boot: seconds(NOW.load(Ordering::Relaxed)),
    });
    fence.open(window(110, 0));
    let permit = fence.permit(WriteKind::Effect).unwrap();
    let (reply, replied) = tokio::sync::oneshot::channel();
    let mut sent = 0;
    let work = async {
        sent += 1;
        replied.await.unwrap();
        sent += 1;
    };
    let suspended = async {
        tokio::task::yield_now().await;
        // Tokio's clock has stood still.
        NOW.store(10_000, Ordering::Relaxed);
        reply.send(()).unwrap();
    };
    let (ended, ()) = tokio::join!(permit.run(work), suspended);
    assert_eq!((ended, sent), (Err(FenceClosed::Ending), 1));
}
