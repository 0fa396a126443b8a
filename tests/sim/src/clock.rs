//! The clocks of the replicas. Each is a plain function, as the controller takes it, and reads the simulated time of its thread.

use std::cell::RefCell;
use std::time::Duration;

use haulout::app::Clocks;
use haulout::fence::BoottimeInstant;
use haulout::maintenance::clock::{Monotonic, Now};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The most replicas of a run.
pub const REPLICAS_MAX: usize = 3;

/// The true time at the beginning of each run: 2026-01-05 08:00 UTC, a Monday.
const EPOCH: i64 = 1_767_600_000;

/// A machine has been up for a while when the run begins.
const UPTIME: Duration = Duration::from_secs(100_000);

/// How often a clock may be read at one moment. A program that reads it more often runs in a busy loop, in which simulated time
/// stands still.
const READS_MAX: u64 = 300_000;

thread_local! {
    static TIME: RefCell<ThreadTime> = const {
        RefCell::new(ThreadTime {
            began: None,
            epoch: Timestamp::UNIX_EPOCH,
            offsets: [SignedDuration::ZERO; REPLICAS_MAX],
            read_at: Duration::ZERO,
            reads: 0,
        })
    };
}

struct ThreadTime {
    began: Option<Instant>,
    /// The true time when it began.
    epoch: Timestamp,
    /// How far the wall clock of each replica is ahead.
    offsets: [SignedDuration; REPLICAS_MAX],
    /// When the boot clock was read last, and how often at that moment.
    read_at: Duration,
    reads: u64,
}

/// Begins a run on this thread, in a runtime whose time is paused.
pub fn begin() {
    begin_at(Timestamp::from_second(EPOCH).unwrap_or_default());
}

/// Begins a run on this thread at this true time.
pub fn begin_at(epoch: Timestamp) {
    TIME.with_borrow_mut(|time| {
        time.began = Some(Instant::now());
        time.epoch = epoch;
        time.offsets = [SignedDuration::ZERO; REPLICAS_MAX];
        (time.read_at, time.reads) = (Duration::ZERO, 0);
    });
}

/// How long the run has lasted.
pub fn elapsed() -> Duration {
    TIME.with_borrow(|time| time.began.map_or(Duration::ZERO, |began| began.elapsed()))
}

/// The moment of the run on the clock of the runtime.
pub fn instant(at: Duration) -> Instant {
    TIME.with_borrow(|time| time.began.map_or_else(Instant::now, |began| began + at))
}

/// The time on the clocks of vCenter and of the kube-apiserver.
pub fn true_time() -> Timestamp {
    wall_at(elapsed())
}

/// The true time at a moment of the run.
pub fn wall_at(at: Duration) -> Timestamp {
    let began = TIME.with_borrow(|time| time.epoch);
    let passed = SignedDuration::try_from(at).unwrap_or_default();
    began.saturating_add(passed).unwrap_or(began)
}

/// Whether no wall clock was set.
pub fn are_set_alike() -> bool {
    TIME.with_borrow(|time| time.offsets.iter().all(|offset| offset.is_zero()))
}

/// Steps the wall clock of a replica.
pub fn step(replica: usize, by: SignedDuration) {
    TIME.with_borrow_mut(|time| {
        if let Some(offset) = time.offsets.get_mut(replica) {
            *offset = offset.saturating_add(by);
        }
    });
}

fn wall<const REPLICA: usize>() -> Timestamp {
    let offset = TIME.with_borrow(|time| time.offsets[REPLICA]);
    true_time().saturating_add(offset).unwrap_or_default()
}

/// # Panics
/// In a busy loop. The run then shows a task that has panicked.
fn boot() -> BoottimeInstant {
    let now = elapsed();
    let reads = TIME.with_borrow_mut(|time| {
        if time.read_at != now {
            (time.read_at, time.reads) = (now, 0);
        }
        time.reads += 1;
        time.reads
    });
    assert!(
        reads < READS_MAX,
        "a busy loop: the clock was read {reads} times at {now:?}"
    );
    let since_boot = UPTIME + now;
    BoottimeInstant {
        monotonic: since_boot,
        since_boot,
    }
}

fn decisions<const REPLICA: usize>() -> Now {
    Now {
        wall: wall::<REPLICA>(),
        monotonic: Monotonic::since_boot(boot().since_boot),
    }
}

fn of<const REPLICA: usize>() -> Clocks {
    Clocks {
        wall: wall::<REPLICA>,
        boot,
        decisions: decisions::<REPLICA>,
    }
}

pub fn clocks(replica: usize) -> Clocks {
    match replica {
        0 => of::<0>(),
        1 => of::<1>(),
        _ => of::<2>(),
    }
}
