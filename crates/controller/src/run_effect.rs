//! The two methods by which actors change anything. The executor implements them.

use std::future::Future;
use std::sync::Arc;

use haulout_core::ids::NodeName;
use haulout_core::maintenance::clock::Now;
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::effect::Effect;
use haulout_core::maintenance::episode::Record;
use haulout_core::maintenance::observed::Observed;

tokio::task_local! {
    /// The traceparent of the episode that a method is called for. It is used in the headers of the calls only, so it is not an
    /// argument.
    pub static TRACEPARENT: Option<Arc<str>>;
}

/// Performs decisions.
///
/// Both methods have their own deadlines and may be repeated. Their results are sent as facts.
pub trait RunEffect: Send + Sync + 'static {
    /// Writes `transition` in one PATCH to the Node, or to the copy of the record if the Node is gone, unless that has changed since
    /// `seen`.
    fn record(
        &self,
        name: &NodeName,
        seen: &Observed,
        before: &Record,
        transition: &Transition,
        now: Now,
    ) -> impl Future<Output = Result<Recorded, NotRecorded>> + Send;

    /// Performs `effect`; `record` is used for the log only. Before it returns, it sends the
    /// [`EffectResult::Tried`](haulout_core::maintenance::effect_report::EffectResult::Tried) with `now`.
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
    OnNode {
        /// The Node's resource version after it; an older snapshot does not show the write.
        resource_version: u64,
    },
    /// To the copy of the record of a Node that is gone, or nowhere in a dry run.
    Elsewhere,
}

/// A write that was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRecorded {
    /// The Node has changed meanwhile and was read again; the decision is repeated.
    Outdated,
    /// It was refused or not answered.
    Refused(String),
}
