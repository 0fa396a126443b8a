use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::fence::{LeadershipWindow, WriteKind};

/// Stops a leader with a request that is answered after `answered`, and returns whether the election was asked to release its
/// Lease.
async fn is_released(answered: Duration) -> bool {
    let mut controller = Controller::new(true, Clocks::MACHINE);
    let until = controller.fence.now().since_boot + Duration::from_secs(3_600);
    controller.fence.open(LeadershipWindow {
        epoch: 1,
        until,
        margin: Duration::ZERO,
        effects_from: Duration::ZERO,
        yields: false,
    });
    let permit = controller.fence.permit(WriteKind::Effect).unwrap();
    let stop = controller.stop.clone();
    controller.spawn("request", async move {
        let _permit = permit;
        // As an actor, which drops its turn at the stop.
        let _ = tokio::time::timeout(answered, stop.cancelled()).await;
    });
    let released = Arc::new(AtomicBool::new(false));
    let (stop, flag) = (controller.election_stop.clone(), Arc::clone(&released));
    controller.election.spawn(async move {
        stop.cancelled().await;
        flag.store(true, Ordering::Relaxed);
    });
    controller.stop().await;
    released.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn lease_is_released_only_if_every_request_was_answered() {
    assert!(is_released(FINISH_GRACE / 2).await);
    assert!(!is_released(FINISH_GRACE * 2).await, "it may still arrive");
}
