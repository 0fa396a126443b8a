//! The write fence: every write and every effect needs a [`Permit`], and only a leader with enough time left gets one.
//!
//! vCenter has no compare-and-set on power, so a strict fence is not possible; this one bounds the time in which a deposed
//! leader can still send something. [`WriteFence::permit`] reads the clock each time, so the fence also closes when the runtime
//! hangs and nothing closes it.

mod clock;
pub mod watchdog;

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use haulout_core::facts::permit::WritePermit;
use thiserror::Error;
use tokio::sync::watch;

pub use clock::BoottimeInstant;

/// The write fence of this process. Clones share its state.
#[derive(Clone, Debug)]
pub struct WriteFence {
    shared: Arc<FenceShared>,
}

#[derive(Debug)]
struct FenceShared {
    state: watch::Sender<FenceState>,
    /// The number of permits in use.
    permits: watch::Sender<usize>,
    clock: fn() -> BoottimeInstant,
}

/// The time in which the fence is open. Times count from the boot of the machine and include suspensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipWindow {
    pub epoch: u64,
    /// When the leadership ends unless it is renewed.
    pub until: Duration,
    /// How much time has to be left for a permit.
    pub margin: Duration,
    /// When effects may begin; records may be written at once.
    pub effects_from: Duration,
    /// Another replica may take the leadership at any moment: there are no new permits.
    pub yields: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FenceState {
    /// There is no election: always open.
    Alone,
    Standby,
    Leads(LeadershipWindow),
    /// Permanently: the process stops, or the leadership was lost.
    Closed,
}

/// What a permit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// A write to Kubernetes, which the kube-apiserver checks against the `resourceVersion`.
    Record,
    /// An effect, which also has to wait until the last one of the previous leader has arrived.
    Effect,
}

/// Why there is no permit, or why its work was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FenceClosed {
    /// Another replica leads, or none does.
    #[error("this replica does not lead; the leader continues")]
    Standby,
    /// The leadership ends too soon.
    #[error("the leadership of this replica is not renewed and ends; the next leader continues")]
    Ending,
    /// The last effect of the previous leader may still arrive.
    #[error(
        "the last request of the previous leader may still arrive; it is tried again when that time is over"
    )]
    Quarantine,
    /// This replica lets another one take the leadership.
    #[error(
        "this replica cannot do its work and lets another one lead; the first one that can work continues"
    )]
    Yielding,
    /// This process stops.
    #[error("this replica is stopping; the next leader continues")]
    Closed,
}

/// The permission to change something, until it is dropped. Only a [`WriteFence`] makes one.
#[derive(Debug)]
pub struct Permit {
    shared: Arc<FenceShared>,
    epoch: u64,
}

/// The current time on clocks that cannot be set.
pub fn now() -> BoottimeInstant {
    clock::now()
}

impl WriteFence {
    /// The fence of a process without leader election: open until it is closed.
    pub fn without_election() -> Self {
        Self::new(FenceState::Alone, clock::now)
    }

    /// The fence of a replica, on the clocks of its machine: closed until it leads.
    pub fn for_replica(clock: fn() -> BoottimeInstant) -> Self {
        Self::new(FenceState::Standby, clock)
    }

    fn new(state: FenceState, clock: fn() -> BoottimeInstant) -> Self {
        // Shuttle's tokio, with which `tests/permutations` compiles this file, has no `Sender::new`.
        Self {
            shared: Arc::new(FenceShared {
                state: watch::channel(state).0,
                permits: watch::channel(0).0,
                clock,
            }),
        }
    }

    /// The current time on the clock of the fence.
    pub fn now(&self) -> BoottimeInstant {
        (self.shared.clock)()
    }

    /// Opens the fence, or extends the time in which it is open. A closed fence stays closed.
    pub fn open(&self, window: LeadershipWindow) {
        self.shared.state.send_if_modified(|state| match state {
            FenceState::Alone | FenceState::Closed => false,
            FenceState::Standby | FenceState::Leads(_) => {
                *state = FenceState::Leads(window);
                true
            }
        });
    }

    /// Gives no new permits until [`Self::open`] is called with a window that does not yield. Existing permits stay valid.
    pub fn pause(&self) {
        self.shared.state.send_if_modified(|state| match state {
            FenceState::Alone | FenceState::Standby | FenceState::Closed => false,
            FenceState::Leads(window) => !std::mem::replace(&mut window.yields, true),
        });
    }

    /// Closes the fence permanently. Existing permits stay valid until their window ends.
    pub fn close(&self) {
        self.shared.state.send_modify(|state| *state = FenceState::Closed);
    }

    /// Gives a permit.
    pub fn permit(&self, kind: WriteKind) -> Result<Permit, FenceClosed> {
        let now = self.now().since_boot;
        // The count is raised while the state is borrowed, so that after `close` a count of 0 is final.
        let state = self.shared.state.borrow();
        let epoch = match &*state {
            FenceState::Alone => 0,
            FenceState::Standby => return Err(FenceClosed::Standby),
            FenceState::Closed => return Err(FenceClosed::Closed),
            FenceState::Leads(window) if now + window.margin > window.until => {
                return Err(FenceClosed::Ending);
            }
            FenceState::Leads(window) if window.yields => return Err(FenceClosed::Yielding),
            FenceState::Leads(window) if kind == WriteKind::Effect && now < window.effects_from => {
                return Err(FenceClosed::Quarantine);
            }
            FenceState::Leads(window) => window.epoch,
        };
        self.shared.permits.send_modify(|count| *count += 1);
        Ok(Permit {
            shared: Arc::clone(&self.shared),
            epoch,
        })
    }

    /// Waits until no permit is in use.
    pub async fn idle(&self) {
        // The sender is owned by `self`, so this cannot fail.
        let _ = self
            .shared
            .permits
            .subscribe()
            .wait_for(|count| *count == 0)
            .await;
    }

    /// Whether the window is over and the fence was not closed: the runtime hangs.
    fn is_overdue(&self) -> bool {
        match &*self.shared.state.borrow() {
            FenceState::Leads(window) => self.now().since_boot >= window.until,
            FenceState::Alone | FenceState::Standby | FenceState::Closed => false,
        }
    }
}

impl Permit {
    /// Runs `work` under this permit, and drops it when the window ends.
    ///
    /// A call sends its request at the beginning, within the margin of [`LeadershipWindow`]. The rest is waiting for the reply,
    /// which may take as long as the leadership is renewed.
    ///
    /// # Errors
    /// [`FenceClosed::Ending`]; the outcome of the work is unknown then.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, FenceClosed> {
        let mut ends = pin!(self.ends());
        let mut work = pin!(work);
        let mut until = None;
        // Priority: the end of the window, even if the reply is there, because nothing may follow from it. The timer is not asked alone:
        // it is late after the process was frozen or its machine suspended.
        std::future::poll_fn(|context| {
            if let FenceState::Leads(window) = &*self.shared.state.borrow() {
                until = Some(window.until);
            }
            let is_over = until.is_some_and(|until| (self.shared.clock)().since_boot >= until);
            if is_over || ends.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(FenceClosed::Ending));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Whether the fence is closed: work of several requests begins no further one.
    pub fn is_closed(&self) -> bool {
        matches!(*self.shared.state.borrow(), FenceState::Closed)
    }

    async fn ends(&self) {
        let mut states = self.shared.state.subscribe();
        let mut until = None;
        loop {
            match *states.borrow_and_update() {
                FenceState::Leads(window) => until = Some(window.until),
                // Work may finish in its window, also if the fence is closed meanwhile.
                FenceState::Alone | FenceState::Standby | FenceState::Closed => {}
            }
            let sleep = async {
                match until {
                    Some(until) => {
                        let left = until.saturating_sub((self.shared.clock)().since_boot);
                        tokio::time::sleep(left).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Ok(()) = states.changed() => {}
                () = sleep => {
                    if until.is_some_and(|until| (self.shared.clock)().since_boot >= until) {
                        return;
                    }
                }
            }
        }
    }
}

impl WritePermit for Permit {
    fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared
            .permits
            .send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests;
