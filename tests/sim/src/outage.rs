//! The rule about outages of vCenter: where nothing else happens, it is used again soon after its end.

use std::time::Duration;

use crate::clock;
use crate::world::{World, WorldEvent};

/// How long no fault has fired before an outage that the rule is about: by then a replica leads and follows vCenter.
const QUIET: Duration = Duration::from_secs(180);

/// The shortest time after the end of an outage in which vCenter has to be used again.
const SOON: Duration = Duration::from_secs(5);

/// How the account names an outage that was checked.
pub const CHECKED_OUTAGE: &str = "outage of vCenter";

/// An outage of vCenter in which no other fault may fire.
#[derive(Clone, Copy, Debug)]
pub struct QuietOutage {
    began: Duration,
    ends: Duration,
}

impl World {
    /// vCenter's service restarts: its sessions are gone, and it does not answer for a while.
    pub(crate) fn vcenter_restarts(&mut self, lasts: Duration) {
        let began = clock::elapsed();
        let ends = began + lasts;
        let was_followed = !self.sessions.is_empty();
        self.sessions.clear();
        self.vcenter.down_until = ends;
        self.vcenter.changed();
        if was_followed && began >= self.account.disturbed() + QUIET {
            let outage = QuietOutage { began, ends };
            let due = lasts + SOON.max(lasts / 4);
            self.queue.after(due, WorldEvent::OutageIsOver(outage));
        }
    }

    /// By now the stream of a replica has its first set after the outage.
    pub(crate) fn check_outage(&mut self, outage: QuietOutage) {
        if self.account.disturbed() > outage.began {
            return;
        }
        self.account.count("checked", CHECKED_OUTAGE);
        if self.vcenter.followed_at < outage.ends {
            let lasted = (outage.ends - outage.began).as_secs();
            let since = (clock::elapsed() - outage.ends).as_secs_f32();
            let what =
                format!("it was away for {lasted} s, and {since:.1} s later no stream has a first set");
            self.violated("vCenter is used soon after an outage", what);
        }
    }
}
