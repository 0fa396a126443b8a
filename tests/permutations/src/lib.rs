//! Concurrent code of Haulout under [Shuttle](https://github.com/awslabs/shuttle), which decides at each step of a lock or a
//! channel which task goes on. Each check runs in thousands of random orders, the same ones in every run.
//!
//! `fence.rs` and `watch/keyed.rs` are links to the files of the program. They are compiled unchanged: in this package,
//! the name `tokio` is that of Shuttle's implementation of it. Time does not pass in it, and a task that panics fails the check.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "only a part of each file is checked, and a check fails by panicking"
)]

// `fence.rs` implements a trait of the core, of which nothing else is needed here.
extern crate self as haulout_core;

pub mod facts {
    pub mod permit {
        /// The permission to make a call that changes something.
        pub trait WritePermit: Sync {
            /// The epoch of the leadership.
            fn epoch(&self) -> u64;
        }
    }
}

pub mod fence;

pub(crate) mod answer {
    pub(crate) fn chain(error: &dyn std::error::Error) -> String {
        error.to_string()
    }
}

pub(crate) mod watch {
    mod keyed;

    use std::collections::BTreeSet;
    use std::time::Duration;

    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;

    /// What [`keyed`] needs of the context of the program's watches.
    #[derive(Clone)]
    pub(crate) struct WatchContext {
        pub(crate) settings: Settings,
        pub(crate) stop: CancellationToken,
    }

    #[derive(Clone)]
    pub(crate) struct Settings {
        pub(crate) backoff_min: Duration,
    }

    /// [`keyed`] is private to this module.
    pub(crate) async fn watch_each<Run: Future<Output = ()> + Send + 'static>(
        wanted: watch::Receiver<BTreeSet<u8>>,
        context: &WatchContext,
        run: impl Fn(u8, WatchContext) -> Run,
    ) {
        keyed::watch_each("keys", wanted, context, run).await;
    }

    impl WatchContext {
        async fn pause(&self, _: Duration) -> bool {
            shuttle::future::yield_now().await;
            !self.stop.is_cancelled()
        }
    }
}

pub mod checks;
