//! Aborts the process when its leadership is over and the runtime hangs, so that the fence is not closed.
//!
//! It is a thread, because a hanging runtime runs no task. It aborts without logout, flush or destructors, which could hang as
//! well.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use tracing::error;

use super::WriteFence;

/// How long the last log line may take: standard output may be the cause of the hang.
const LOG_DEADLINE: Duration = Duration::from_millis(200);

/// A watchdog, which runs until it is dropped.
#[derive(Debug)]
pub struct Watchdog(#[expect(dead_code, reason = "its drop is what the thread waits for")] Sender<()>);

/// Checks `fence` every `period`, and aborts the process if it is overdue twice in a row. A process that was suspended has time
/// to end in order between two checks.
pub fn watch(fence: WriteFence, period: Duration) -> io::Result<Watchdog> {
    let (alive, ended) = mpsc::channel::<()>();
    let watch = move || {
        let mut overdue = 0;
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(period) {
            overdue = if fence.is_overdue() { overdue + 1 } else { 0 };
            if overdue == 2 {
                abort();
            }
        }
    };
    thread::Builder::new().name("watchdog".to_owned()).spawn(watch)?;
    Ok(Watchdog(alive))
}

fn abort() -> ! {
    let (sender, logged) = mpsc::channel();
    let _ = thread::Builder::new().spawn(move || {
        error!("the leadership is over and the runtime hangs; the process is aborted, so that nothing is sent late");
        let _ = sender.send(());
    });
    let _ = logged.recv_timeout(LOG_DEADLINE);
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::fence::{LeadershipWindow, clock};

    /// Makes the test hang, when it runs in its own process.
    const HANGS: &str = "HAULOUT_TEST_HANGS";

    #[test]
    fn hanging_process_is_aborted_when_its_leadership_is_over() {
        if std::env::var_os(HANGS).is_some() {
            let fence = WriteFence::for_replica(clock::now);
            fence.open(LeadershipWindow {
                epoch: 1,
                until: fence.now().since_boot + Duration::from_millis(200),
                margin: Duration::ZERO,
                effects_from: Duration::ZERO,
                yields: false,
            });
            let _dog = watch(fence, Duration::from_millis(20)).unwrap();
            // As a runtime that runs no task.
            let (_sender, nothing) = mpsc::channel::<()>();
            let _ = nothing.recv_timeout(Duration::from_secs(20));
            return;
        }
        let name = "fence::watchdog::tests::hanging_process_is_aborted_when_its_leadership_is_over";
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(HANGS, "yes")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        // SIGABRT
        assert_eq!(status.signal(), Some(6), "{status}");
    }
}
