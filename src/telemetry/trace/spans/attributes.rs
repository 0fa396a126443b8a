//! The attributes of spans, in the words of the semantic conventions where there are some.

use opentelemetry::{KeyValue, StringValue, Value};

use super::Span;
use crate::ids::TaskRef;
use crate::maintenance::waiting::ParkReason;

/// vCenter, as spans of calls to it name it.
pub const VCENTER: &str = "vcenter";

/// The kube-apiserver, likewise.
const KUBERNETES: &str = "kube-apiserver";

/// By this attribute Jaeger draws its arrows.
const PEER: &str = "peer.service";

/// The methods by which a VM comes to be off.
pub(super) const SHUTDOWN: &str = "ShutdownGuest";
pub(super) const POWER_OFF: &str = "PowerOffVM_Task";

/// What failed because it took too long, in the word of the conventions.
pub(super) const TIMEOUT: &str = "timeout";

pub fn count(name: &'static str, count: usize) -> KeyValue {
    KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX))
}

pub fn number(name: &'static str, number: u64) -> KeyValue {
    KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX))
}

pub fn text(name: &'static str, value: &str) -> KeyValue {
    KeyValue::new(name, value.to_owned())
}

pub(super) fn texts(name: &'static str, values: impl Iterator<Item = String>) -> KeyValue {
    let values = values.map(StringValue::from).collect();
    KeyValue::new(name, Value::Array(opentelemetry::Array::String(values)))
}

/// The span of what failed in one of few ways, for these words.
pub(super) fn failed(mut span: Span, kind: &'static str, why: String) -> Span {
    span.attributes.push(KeyValue::new("error.type", kind));
    span.failed = Some(why);
    span
}

/// Why an episode was parked, without what differs from one to the other.
pub(super) fn kind(reason: &ParkReason) -> &'static str {
    match reason {
        ParkReason::UnreadableRecord { .. } => "unreadable_record",
        ParkReason::AnotherNode => "another_node",
        ParkReason::VmMissing => "vm_missing",
        ParkReason::VmAmbiguous { .. } => "vm_ambiguous",
        ParkReason::VmShared { .. } => "vm_shared",
        ParkReason::VmSuspended => "vm_suspended",
        ParkReason::NoUuid => "no_uuid",
        ParkReason::VmReplaced { .. } => "vm_replaced",
        ParkReason::PowerLost { .. } => "power_lost",
        ParkReason::Uncordoned => "uncordoned",
        ParkReason::PoweredOn { .. } => "powered_on",
        ParkReason::Overdue { .. } => TIMEOUT,
    }
}

/// The span of a call to vCenter.
pub(super) fn vcenter(mut span: Span, method: &'static str) -> Span {
    span.attributes.push(KeyValue::new("rpc.method", method));
    calling(VCENTER, span)
}

/// The task by which vCenter did it.
pub(super) fn by(task: Option<&TaskRef>, mut span: Span) -> Span {
    let task = task.map(|task| text("vcenter.task.id", task.as_str()));
    span.attributes.extend(task);
    span
}

/// The span of a call to the kube-apiserver.
pub(super) fn kubernetes(span: Span) -> Span {
    calling(KUBERNETES, span)
}

/// Jaeger draws its arrows by the older of the two names; the conventions have moved on to the other.
fn calling(peer: &'static str, mut span: Span) -> Span {
    span.attributes.push(KeyValue::new(PEER, peer));
    span.attributes.push(KeyValue::new("service.peer.name", peer));
    span
}

/// Whether `span` is that of a call to `peer`.
pub fn is_call_to(span: &Span, peer: &str) -> bool {
    let is_peer = |it: &KeyValue| it.key.as_str() == PEER && it.value.as_str() == peer;
    span.attributes.iter().any(is_peer)
}
