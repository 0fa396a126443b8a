//! Requests that arrive late. The network has them, so they are carried out also if their client has given up, or has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;

use crate::clock;
use crate::kube_api::Ask;
use crate::soap::{Answer, Call};
use crate::world::{World, WorldEvent};

/// How late a request may be, in milliseconds. The shortest time between the last request of a leader and the first one of the next
/// is ten seconds: the Lease expires five seconds after the leadership ends, and the quarantine is five seconds.
const LATE: std::ops::Range<u64> = 1_000..8_000;

/// The requests in the network.
#[derive(Debug, Default)]
pub struct LateRequests {
    waiting: BTreeMap<u64, LateRequest>,
    sent: u64,
}

/// A request in the network. Its client may have gone.
#[derive(Debug)]
pub(crate) enum LateRequest {
    /// To vCenter.
    Vcenter {
        replica: usize,
        call: Call,
        reply: oneshot::Sender<Answer>,
    },
    /// To the kube-apiserver.
    Kubernetes {
        replica: usize,
        ask: Ask,
        reply: oneshot::Sender<(u16, Value)>,
    },
}

impl World {
    /// Sends a request that arrives late.
    pub(crate) fn send_late(&mut self, request: LateRequest) {
        self.late.sent += 1;
        let id = self.late.sent;
        self.late.waiting.insert(id, request);
        let by = Duration::from_millis(self.rng.u64(LATE));
        self.queue.after(by, WorldEvent::RequestArrives(id));
    }

    /// A late request arrives.
    pub(crate) fn request_arrives(&mut self, id: u64) {
        let now = clock::elapsed();
        // A client that does not wait any more needs no answer.
        match self.late.waiting.remove(&id) {
            Some(LateRequest::Vcenter { replica, call, reply }) if self.vcenter.down_until <= now => {
                let answer = self.call(replica, &call);
                let _ = reply.send(answer);
            }
            Some(LateRequest::Kubernetes { replica, ask, reply }) if self.kube.down_until <= now => {
                let answer = self.serve(replica, &ask);
                let _ = reply.send(answer);
            }
            Some(LateRequest::Vcenter { .. } | LateRequest::Kubernetes { .. }) | None => {}
        }
    }
}
