//! The one gate that every record and every effect passes: it opens for a leader only, and shuts in time by itself.
//!
//! Whatever changes something in vCenter or Kubernetes asks for a [`Permit`], and only [`Gate::pass`] makes one, out of
//! a leadership that still has a margin left. vCenter has no compare-and-set on power, so that a true fence is not to
//! be had; what is left is to bound the time in which a deposed leader can still send something. The clock is read at
//! each pass: a gate that nobody shuts because the runtime hangs is shut all the same.

mod clock;
pub(crate) mod watchdog;

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;

pub use clock::BoottimeInstant;

/// A gate. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct WriteFence {
    shared: Arc<FenceShared>,
}

#[derive(Debug)]
struct FenceShared {
    state: watch::Sender<FenceState>,
    /// How many permits are out.
    out: watch::Sender<usize>,
    clock: fn() -> BoottimeInstant,
}

/// Until when and from when the gate is open. All three are times since the boot of the machine, so that a machine that
/// was suspended or stunned has not gained the time it lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FenceTerm {
    /// Which leadership it is of.
    pub(crate) epoch: u64,
    /// When the leadership ends unless it is renewed.
    pub(crate) until: Duration,
    /// How much of it has to be left for something to begin.
    pub(crate) margin: Duration,
    /// When effects may begin; records may from the first moment.
    pub(crate) effects_from: Duration,
    /// Another replica may take the leadership at any moment: nothing begins.
    pub(crate) yields: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FenceState {
    /// There is no election: always open.
    Alone,
    Standby,
    Leads(FenceTerm),
    /// For good: the house closes, or the leadership was lost.
    Closed,
}

/// What wants to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// A record, which the kube-apiserver checks against what stands there.
    Record,
    /// An effect, which nobody checks: it also waits until a predecessor's last one has arrived.
    Effect,
}

/// Why something did not pass, or was cut off on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FenceClosed {
    /// Another replica leads, or none does.
    #[error("this replica does not lead; whoever does goes on")]
    Standby,
    /// The leadership ends too soon.
    #[error("the leadership of this replica is not renewed and ends; the next leader goes on")]
    Ending,
    /// The time in which a predecessor's last effect may still arrive.
    #[error("a predecessor's last request may still arrive; it is tried again when that time is over")]
    Quarantine,
    /// This replica lets another take the leadership.
    #[error("this replica cannot do its work and lets another one lead; whichever can do it first goes on")]
    Yielding,
    /// The house closes.
    #[error("this replica is stopping; the next leader goes on")]
    Closed,
}

/// Leave to change something. It is out until it is dropped, and only a [`Gate`] makes one.
#[derive(Debug)]
pub struct Permit {
    shared: Arc<FenceShared>,
    epoch: u64,
}

/// This moment, on the clocks that nobody can set.
pub(crate) fn now() -> BoottimeInstant {
    clock::now()
}

impl WriteFence {
    /// The gate of a process that is alone by the word of whoever runs it: always open, until it is closed.
    pub fn without_election() -> Self {
        Self::new(FenceState::Alone, clock::now)
    }

    /// The gate of a replica: shut until it leads.
    pub(crate) fn of_a_replica() -> Self {
        Self::new(FenceState::Standby, clock::now)
    }

    fn new(state: FenceState, clock: fn() -> BoottimeInstant) -> Self {
        Self {
            shared: Arc::new(FenceShared {
                state: watch::Sender::new(state),
                out: watch::Sender::new(0),
                clock,
            }),
        }
    }

    /// The time by which the gate goes.
    pub(crate) fn now(&self) -> BoottimeInstant {
        (self.shared.clock)()
    }

    /// Opens the gate for a term, or prolongs it. One that was closed stays closed.
    pub(crate) fn open(&self, term: FenceTerm) {
        self.shared.state.send_if_modified(|state| match state {
            FenceState::Alone | FenceState::Closed => false,
            FenceState::Standby | FenceState::Leads(_) => {
                *state = FenceState::Leads(term);
                true
            }
        });
    }

    /// Lets nothing more pass until [`Self::open`] is called with a term that does not yield. What is out goes on.
    pub(crate) fn pause(&self) {
        self.shared.state.send_if_modified(|state| match state {
            FenceState::Alone | FenceState::Standby | FenceState::Closed => false,
            FenceState::Leads(term) => !std::mem::replace(&mut term.yields, true),
        });
    }

    /// Closes the gate for good, and cuts off nothing that is out and within its term.
    pub(crate) fn close(&self) {
        self.shared.state.send_modify(|state| *state = FenceState::Closed);
    }

    /// Gives leave for one errand.
    ///
    /// # Errors
    /// Where this replica does not lead, or not for long enough.
    pub fn pass(&self, errand: WriteKind) -> Result<Permit, FenceClosed> {
        let now = self.now().since_boot;
        // The count goes up while the state is held: whoever closes the gate and then sees nobody out is right.
        let state = self.shared.state.borrow();
        let epoch = match &*state {
            FenceState::Alone => 0,
            FenceState::Standby => return Err(FenceClosed::Standby),
            FenceState::Closed => return Err(FenceClosed::Closed),
            FenceState::Leads(term) if now + term.margin > term.until => return Err(FenceClosed::Ending),
            FenceState::Leads(term) if term.yields => return Err(FenceClosed::Yielding),
            FenceState::Leads(term) if errand == WriteKind::Effect && now < term.effects_from => {
                return Err(FenceClosed::Quarantine);
            }
            FenceState::Leads(term) => term.epoch,
        };
        self.shared.out.send_modify(|out| *out += 1);
        Ok(Permit {
            shared: Arc::clone(&self.shared),
            epoch,
        })
    }

    /// Waits until no permit is out.
    pub(crate) async fn idle(&self) {
        // The sender lives in `self`, so that this cannot fail.
        let _ = self.shared.out.subscribe().wait_for(|out| *out == 0).await;
    }

    /// Whether a term is over that nobody has ended: the runtime does not turn.
    fn is_overdue(&self) -> bool {
        match &*self.shared.state.borrow() {
            FenceState::Leads(term) => self.now().since_boot >= term.until,
            FenceState::Alone | FenceState::Standby | FenceState::Closed => false,
        }
    }
}

impl Permit {
    /// Does `work` under this permit, and drops it where it stands when the term ends without having been prolonged.
    ///
    /// What a call sends leaves in its first moments, and the margin of [`Gate::pass`] is there for the connection to be
    /// made; the rest is waiting for an answer, which may take as long as the leadership is renewed.
    ///
    /// # Errors
    /// [`FenceClosed::Ending`], and then it is unknown what became of the work.
    pub async fn carry<T>(&self, work: impl Future<Output = T>) -> Result<T, FenceClosed> {
        // Order: a term that is over ends the work even where its answer is there, because nothing may follow from it.
        tokio::select! {
            biased;
            () = self.ends() => Err(FenceClosed::Ending),
            done = work => Ok(done),
        }
    }

    async fn ends(&self) {
        let mut states = self.shared.state.subscribe();
        let mut until = None;
        loop {
            match *states.borrow_and_update() {
                FenceState::Leads(term) => until = Some(term.until),
                // What was begun in a term is finished in it, also where the house closes meanwhile.
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

impl haulout_vsphere::WritePermit for Permit {
    fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.out.send_modify(|out| *out = out.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests;
