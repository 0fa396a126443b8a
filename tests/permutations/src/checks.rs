//! What holds in every order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shuttle::future::{block_on, spawn, yield_now};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::facts::permit::WritePermit as _;
use crate::fence::{BoottimeInstant, FenceClosed, LeadershipWindow, WriteFence, WriteKind};
use crate::watch::{Settings, WatchContext, watch_each};

/// Set by one task and read by others, without being a step by itself.
type Flag = Arc<AtomicBool>;

fn is_set(flag: &Flag) -> bool {
    flag.load(Ordering::SeqCst)
}

fn window(epoch: u64, yields: bool) -> LeadershipWindow {
    LeadershipWindow {
        epoch,
        until: Duration::from_secs(110),
        margin: Duration::from_secs(3),
        effects_from: Duration::ZERO,
        yields,
    }
}

fn leading() -> WriteFence {
    let fence = WriteFence::for_replica(|| BoottimeInstant {
        monotonic: Duration::from_secs(100),
        since_boot: Duration::from_secs(100),
    });
    fence.open(window(1, false));
    fence
}

/// After the stop of a process nothing is written: once a closed fence is idle, no permit is in use, and none is given.
pub fn closed_fence_is_idle_for_good() {
    block_on(async {
        let (fence, stopped) = (leading(), Flag::default());
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let (fence, stopped) = (fence.clone(), Arc::clone(&stopped));
                spawn(async move {
                    for kind in [WriteKind::Record, WriteKind::Effect] {
                        let Ok(permit) = fence.permit(kind) else { return };
                        assert!(!is_set(&stopped), "a permit is given after the stop");
                        yield_now().await;
                        assert!(!is_set(&stopped), "a permit is in use after the stop");
                        drop(permit);
                    }
                })
            })
            .collect();
        fence.close();
        fence.idle().await;
        stopped.store(true, Ordering::SeqCst);
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

/// The renewals of a Lease do not open a fence that is closed, and a paused one gives no permit until it is renewed.
pub fn renewal_opens_a_paused_fence_and_no_closed_one() {
    block_on(async {
        let (fence, closed) = (leading(), Flag::default());
        let (paused, renewing) = (Flag::default(), Flag::default());
        let renewal = {
            let (fence, renewing) = (fence.clone(), Arc::clone(&renewing));
            spawn(async move {
                fence.open(window(1, true));
                renewing.store(true, Ordering::SeqCst);
                fence.open(window(2, false));
            })
        };
        let writer = {
            let (fence, closed) = (fence.clone(), Arc::clone(&closed));
            let (paused, renewing) = (Arc::clone(&paused), Arc::clone(&renewing));
            spawn(async move {
                let mut epoch = 0;
                for _ in 0..3 {
                    let was_closed = is_set(&closed);
                    let was_paused = is_set(&paused);
                    let permit = fence.permit(WriteKind::Effect);
                    match &permit {
                        Ok(permit) => {
                            let is = permit.epoch();
                            assert!(is >= epoch, "epoch {is} after {epoch}");
                            epoch = is;
                            assert!(!was_closed, "a closed fence was opened");
                            assert!(!was_paused || is_set(&renewing), "a paused fence gave a permit");
                        }
                        Err(FenceClosed::Closed) => {}
                        Err(error) => assert_eq!(*error, FenceClosed::Yielding),
                    }
                    yield_now().await;
                }
            })
        };
        fence.pause();
        paused.store(true, Ordering::SeqCst);
        yield_now().await;
        fence.close();
        closed.store(true, Ordering::SeqCst);
        renewal.await.unwrap();
        writer.await.unwrap();
        assert_eq!(fence.permit(WriteKind::Record).unwrap_err(), FenceClosed::Closed);
    });
}

/// How many watches of each key run.
#[derive(Clone, Default)]
struct RunningWatches(Arc<Mutex<BTreeMap<u8, usize>>>);

impl RunningWatches {
    fn change(&self, change: impl FnOnce(&mut BTreeMap<u8, usize>)) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut running);
        running.retain(|_, count| *count > 0);
    }

    fn all(&self) -> BTreeMap<u8, usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// However the wanted keys change, in the end each of them has one watch and no other has one; after the stop there is none.
pub fn each_wanted_key_has_one_watch() {
    block_on(async {
        let running = RunningWatches::default();
        let (wants, wanted) = watch::channel(BTreeSet::from([1]));
        let context = WatchContext {
            settings: Settings {
                backoff_min: Duration::from_secs(1),
            },
            stop: CancellationToken::new(),
        };
        let watches = {
            let (context, running) = (context.clone(), running.clone());
            spawn(async move {
                let run = |key: u8, context: WatchContext| {
                    let running = running.clone();
                    async move {
                        running.change(|all| *all.entry(key).or_default() += 1);
                        context.stop.cancelled().await;
                        yield_now().await;
                        running.change(|all| *all.entry(key).or_default() -= 1);
                    }
                };
                watch_each(wanted, &context, run).await;
                assert_eq!(running.all(), BTreeMap::new(), "a watch outlives the stop");
            })
        };
        let last = BTreeSet::from([2, 3]);
        for keys in [BTreeSet::from([1, 2]), BTreeSet::from([1]), last.clone()] {
            wants.send_replace(keys);
            yield_now().await;
        }
        // More turns than there are steps left; without this limit, a lost change would look like a slow one.
        let mut turns = 0;
        while running.all() != last.iter().map(|key| (*key, 1)).collect() {
            yield_now().await;
            turns += 1;
            assert!(turns < 10_000, "{:?} run, and {last:?} are wanted", running.all());
        }
        context.stop.cancel();
        watches.await.unwrap();
    });
}
