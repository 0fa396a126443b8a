//! Lets the replicas of one release take turns at vCenter's login, by a Lease.

use std::time::Duration;

use crate::cluster::login::Turns;
use crate::vsphere::client::{TakesTurns, Waiting};

impl TakesTurns for Turns {
    fn take(&self, longest: Duration) -> Waiting<'_, Result<(), String>> {
        Box::pin(async move {
            Turns::take(self, longest)
                .await
                .map_err(|not_yet| not_yet.to_string())
        })
    }

    fn end(&self, hold: Option<Duration>) -> Waiting<'_, ()> {
        Box::pin(Turns::end(self, hold))
    }
}
