//! Times that are the same at every site, each with the reason. Tests run with other ones, by a setting that is hidden.

use std::str::FromStr;
use std::time::Duration;

macro_rules! timings {
    ($($(#[$doc:meta])+ $name:ident = $seconds:literal),+ $(,)?) => {
        /// Times that no user sets.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Timings {
            $($(#[$doc])+ pub $name: Duration),+
        }

        impl Default for Timings {
            fn default() -> Self {
                Self { $($name: Duration::from_secs($seconds)),+ }
            }
        }

        impl Timings {
            fn set(&mut self, name: &str, value: Duration) -> Option<()> {
                match name {
                    $(stringify!($name) => self.$name = value,)+
                    _ => return None,
                }
                Some(())
            }
        }
    };
}

timings! {
    /// Deadline of one call to vCenter. Calls take milliseconds, and a busy vCenter some seconds.
    vcenter_call = 30,
    /// How long a poll for updates waits at first. vCenter ends a session after 30 idle minutes, and at two minutes the two polls
    /// of an idle controller are one call a minute. Where proxies and firewalls close a request earlier, it gets shorter by itself.
    vcenter_long_poll = 120,
    /// The wait after a refused eviction. Budgets are watched and Retry-After is read, so it only matters for refusals without a
    /// reason, and where budgets cannot be watched.
    eviction_retry = 5,
    /// From when a hard power-off is overdue. It takes seconds, goes on after that, and is only reported.
    power_off = 300,
    /// The same for a move to another host. It takes seconds where the disks stay, as they do.
    relocate = 600,
    /// How long a Node may remain Ready after its kubelet has stopped. kube-controller-manager sees that after 50 s unless
    /// `--node-monitor-grace-period` is set. A node that goes down later than that is noticed then: its VM is brought back.
    node_monitor_grace = 60,
    /// The longest wait between two attempts of anything that failed. It is what a person waits for who has repaired the cause.
    retry_max = 30,
    /// How long a silence lasts unless it is renewed, at a third of it: longer than a restart of Alertmanager or Haulout, and what
    /// a Haulout that is gone leaves.
    silence = 1800,
}

impl FromStr for Timings {
    type Err = String;

    /// A list such as `retry_max=1,relocate=60`, of which later entries go before earlier ones.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut timings = Self::default();
        for entry in text.split(',') {
            let set = entry.split_once('=').and_then(|(name, seconds)| {
                let seconds = seconds.trim().parse().ok().filter(|seconds| *seconds > 0)?;
                timings.set(name.trim(), Duration::from_secs(seconds))
            });
            set.ok_or_else(|| format!("{entry:?} is not a name of a time, = and seconds"))?;
        }
        Ok(timings)
    }
}
