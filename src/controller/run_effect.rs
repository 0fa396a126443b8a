//! How actors change anything: by two methods, which an executor implements.

use std::future::Future;
use std::sync::Arc;

use crate::ids::NodeName;
use crate::maintenance::clock::Now;
use crate::maintenance::decide::Transition;
use crate::maintenance::effect::Effect;
use crate::maintenance::episode::Record;
use crate::maintenance::observed::ObservedNode;

tokio::task_local! {
    /// The traceparent of the episode that a method is called for. It reaches the headers of the calls and nothing else,
    /// so it travels beside the arguments, which are what is decided.
    pub static TRACEPARENT: Option<Arc<str>>;
}

/// Does what was decided.
///
/// Both methods keep deadlines of their own and come back; what they bring about comes as facts. They may be repeated.
pub trait RunEffect: Send + Sync + 'static {
    /// Writes `transition` to the Node in one PATCH, if the Node is still as `node` saw it; or, where the Node is gone, to
    /// the copy of its record.
    fn record(
        &self,
        name: &NodeName,
        node: Option<&ObservedNode>,
        before: &Record,
        transition: &Transition,
        now: Now,
    ) -> impl Future<Output = Result<Recorded, NotRecorded>> + Send;

    /// Performs `effect`, which was decided on from `record`; the record only tells what the log's lines are about. Its
    /// [`EffectResult::Tried`](crate::maintenance::effect_report::EffectResult::Tried), which begins at `now`, has been handed in when this comes back.
    fn perform(
        &self,
        name: &NodeName,
        record: &Record,
        effect: &Effect,
        now: Now,
    ) -> impl Future<Output = ()> + Send;
}

/// A write that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// On the Node.
    OnNode {
        /// The Node's resource version after it: a sight older than that has not seen the write.
        resource_version: u64,
    },
    /// To the copy of a Node that is gone, or nowhere, in a dry run: it is seen when the record is.
    Elsewhere,
}

/// A write that was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRecorded {
    /// The Node has changed meanwhile; it has been read anew, and the decision is made again.
    Outdated,
    /// It was refused, or nobody answered: what was tried, and what was said.
    Refused(String),
}
