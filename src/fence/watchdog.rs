//! Ends the process where a leadership is over and the runtime does not turn to shut the gate.
//!
//! It is a thread of the system and no task, because what it guards against is a runtime that runs no task. It ends the
//! process without logout, flush or destructor: a stop hook that hangs as well would outlive the lease.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use tracing::error;

use super::WriteFence;

/// How long the last words may take: standard output may be what everything hangs on.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A watchdog that is awake until it is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog(#[expect(dead_code, reason = "its drop is what the thread waits for")] Sender<()>);

/// Looks at `gate` every `period`. Two looks in a row that find the term over end the process: between the two, a
/// process that was stopped and goes on has time to end in order.
///
/// # Errors
/// Where the system gives no thread.
pub(crate) fn watch(gate: WriteFence, period: Duration) -> io::Result<Watchdog> {
    let (alive, ended) = mpsc::channel::<()>();
    let watch = move || {
        let mut overdue = 0;
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(period) {
            overdue = if gate.is_overdue() { overdue + 1 } else { 0 };
            if overdue == 2 {
                abort();
            }
        }
    };
    thread::Builder::new().name("watchdog".to_owned()).spawn(watch)?;
    Ok(Watchdog(alive))
}

fn abort() -> ! {
    let (said, heard) = mpsc::channel();
    // Whether it could be said changes nothing.
    let _ = thread::Builder::new().spawn(move || {
        error!("the leadership is over and the program does not turn to end it; it is aborted, so that nothing late is sent");
        let _ = said.send(());
    });
    let _ = heard.recv_timeout(LAST_WORDS);
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::fence::FenceTerm;

    /// Tells the test, when it runs in a process of its own, to hang.
    const HANGS: &str = "HAULOUT_TEST_HANGS";

    #[test]
    fn a_process_whose_term_is_over_and_that_hangs_is_aborted() {
        if std::env::var_os(HANGS).is_some() {
            let gate = WriteFence::of_a_replica();
            gate.open(FenceTerm {
                epoch: 1,
                until: gate.now().since_boot + Duration::from_millis(200),
                margin: Duration::ZERO,
                effects_from: Duration::ZERO,
                yields: false,
            });
            let _dog = watch(gate, Duration::from_millis(20)).unwrap();
            // As a runtime that runs no task.
            let (_sender, nothing) = mpsc::channel::<()>();
            let _ = nothing.recv_timeout(Duration::from_secs(20));
            return;
        }
        let name = "fence::watchdog::tests::a_process_whose_term_is_over_and_that_hangs_is_aborted";
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
