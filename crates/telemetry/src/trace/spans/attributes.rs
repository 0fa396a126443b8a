//! Span attributes, with the names of the semantic conventions if they exist.

use opentelemetry::{KeyValue, StringValue, Value};

use super::Span;
use haulout_core::ids::TaskRef;
use haulout_core::maintenance::waiting::ParkReason;

/// The peer name of vCenter.
pub(crate) const VCENTER: &str = "vcenter";

/// The peer name of the kube-apiserver.
const KUBERNETES: &str = "kube-apiserver";

/// Jaeger uses this attribute for its dependency graph.
const PEER: &str = "peer.service";

/// The methods that power a VM off.
pub(super) const SHUTDOWN: &str = "ShutdownGuest";
pub(super) const POWER_OFF: &str = "PowerOffVM_Task";

/// The `error.type` of a timeout, from the semantic conventions.
pub(super) const TIMEOUT: &str = "timeout";

pub(crate) fn count(name: &'static str, count: usize) -> KeyValue {
    KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX))
}

pub(crate) fn number(name: &'static str, number: u64) -> KeyValue {
    KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX))
}

pub(crate) fn text(name: &'static str, value: &str) -> KeyValue {
    KeyValue::new(name, value.to_owned())
}

pub(super) fn texts(name: &'static str, values: impl Iterator<Item = String>) -> KeyValue {
    let values = values.map(StringValue::from).collect();
    KeyValue::new(name, Value::Array(opentelemetry::Array::String(values)))
}

/// Marks a span as failed.
pub(super) fn failed(mut span: Span, kind: &'static str, why: String) -> Span {
    span.attributes.push(KeyValue::new("error.type", kind));
    span.failed = Some(why);
    span
}

/// The `error.type` of a parked episode.
pub(super) fn kind(reason: &ParkReason) -> &'static str {
    match reason {
        ParkReason::UnreadableRecord { .. } => "unreadable_record",
        ParkReason::AnotherNode => "another_node",
        ParkReason::VmMissing => "vm_missing",
        ParkReason::VmOutOfScope => "vm_out_of_scope",
        ParkReason::VmAmbiguous { .. } => "vm_ambiguous",
        ParkReason::VmShared { .. } => "vm_shared",
        ParkReason::VmHeldByDeadNode { .. } => "vm_held_by_dead_node",
        ParkReason::NodeNotReady { .. } => "node_not_ready",
        ParkReason::VmSuspended => "vm_suspended",
        ParkReason::NoUuid => "no_uuid",
        ParkReason::VmReplaced { .. } => "vm_replaced",
        ParkReason::PowerLost { .. } => "power_lost",
        ParkReason::Uncordoned => "uncordoned",
        ParkReason::PoweredOn { .. } => "powered_on",
        ParkReason::Overdue { .. } => TIMEOUT,
    }
}

pub(super) fn vcenter(mut span: Span, method: &'static str) -> Span {
    span.attributes.push(KeyValue::new("rpc.system.name", "soap"));
    span.attributes.push(KeyValue::new("rpc.method", method));
    calling(VCENTER, span)
}

/// Adds the vCenter task.
pub(super) fn by(task: Option<&TaskRef>, mut span: Span) -> Span {
    let task = task.map(|task| text("vcenter.task.id", task.as_str()));
    span.attributes.extend(task);
    span
}

pub(super) fn kubernetes(span: Span) -> Span {
    calling(KUBERNETES, span)
}

/// Jaeger uses the older of the two names; the semantic conventions have the other.
fn calling(peer: &'static str, mut span: Span) -> Span {
    span.attributes.push(KeyValue::new(PEER, peer));
    span.attributes.push(KeyValue::new("service.peer.name", peer));
    span
}

/// Whether `span` is a call to `peer`.
pub(crate) fn is_call_to(span: &Span, peer: &str) -> bool {
    let is_peer = |it: &KeyValue| it.key.as_str() == PEER && it.value.as_str() == peer;
    span.attributes.iter().any(is_peer)
}
