//! Converts OTLP JSON to Zipkin's v2 format.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Export {
    #[serde(default)]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans {
    #[serde(default)]
    resource: Resource,
    #[serde(default)]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Debug, Default, Deserialize)]
struct Resource {
    #[serde(default)]
    attributes: Vec<Attribute>,
}

#[derive(Debug, Deserialize)]
struct ScopeSpans {
    #[serde(default)]
    spans: Vec<OtlpSpan>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OtlpSpan {
    trace_id: String,
    span_id: String,
    #[serde(default)]
    parent_span_id: String,
    name: String,
    #[serde(default)]
    kind: u8,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    #[serde(default)]
    attributes: Vec<Attribute>,
    #[serde(default)]
    events: Vec<OtlpEvent>,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OtlpEvent {
    time_unix_nano: String,
    name: String,
}

#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    code: u8,
    #[serde(default)]
    message: String,
}

#[derive(Debug, Deserialize)]
struct Attribute {
    key: String,
    #[serde(default)]
    value: Value,
}

/// A span in Zipkin's format.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ZipkinSpan {
    trace_id: String,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<String>,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    /// In microseconds since 1970.
    timestamp: u64,
    /// In microseconds.
    duration: u64,
    local_endpoint: ZipkinEndpoint,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_endpoint: Option<ZipkinEndpoint>,
    annotations: Vec<Annotation>,
    tags: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ZipkinEndpoint {
    service_name: String,
}

#[derive(Debug, PartialEq, Serialize)]
struct Annotation {
    timestamp: u64,
    value: String,
}

/// All spans of one OTLP request.
pub(super) fn convert(otlp: &[u8]) -> anyhow::Result<Vec<ZipkinSpan>> {
    let export: Export = serde_json::from_slice(otlp).context("reading an export of spans")?;
    let mut converted = Vec::new();
    for resource_spans in export.resource_spans {
        let service = attribute(&resource_spans.resource.attributes, "service.name")
            .unwrap_or_else(|| "unknown".to_owned());
        let spans = resource_spans.scope_spans.into_iter().flat_map(|it| it.spans);
        for span in spans {
            converted.push(one(span, &service)?);
        }
    }
    Ok(converted)
}

fn one(span: OtlpSpan, service: &str) -> anyhow::Result<ZipkinSpan> {
    let start = micros(&span.start_time_unix_nano)?;
    let end = micros(&span.end_time_unix_nano)?;
    let endpoint = |service_name| ZipkinEndpoint { service_name };
    let remote_endpoint = attribute(&span.attributes, "peer.service").map(endpoint);
    let mut tags: BTreeMap<String, String> = span
        .attributes
        .iter()
        .map(|it| (it.key.clone(), text(&it.value)))
        .collect();
    // The status code of an error. Zipkin shows a span with this tag in red.
    if span.status.code == 2 {
        let message = Some(span.status.message).filter(|it| !it.is_empty());
        tags.insert("error".to_owned(), message.unwrap_or_else(|| "true".to_owned()));
    }
    let annotation = |event: OtlpEvent| {
        anyhow::Ok(Annotation {
            timestamp: micros(&event.time_unix_nano)?,
            value: event.name,
        })
    };
    Ok(ZipkinSpan {
        trace_id: span.trace_id,
        id: span.span_id,
        parent_id: Some(span.parent_span_id).filter(|it| !it.is_empty()),
        name: span.name,
        kind: match span.kind {
            2 => Some("SERVER"),
            3 => Some("CLIENT"),
            4 => Some("PRODUCER"),
            5 => Some("CONSUMER"),
            _ => None,
        },
        timestamp: start,
        // Zipkin does not draw a duration of zero.
        duration: end.saturating_sub(start).max(1),
        local_endpoint: endpoint(service.to_owned()),
        remote_endpoint,
        annotations: span
            .events
            .into_iter()
            .map(annotation)
            .collect::<anyhow::Result<_>>()?,
        tags,
    })
}

fn attribute(attributes: &[Attribute], key: &str) -> Option<String> {
    let found = attributes.iter().find(|it| it.key == key)?;
    Some(text(&found.value))
}

/// A value as text. OTLP wraps it in an object named by its type.
fn text(value: &Value) -> String {
    let inner = value.as_object().and_then(|it| it.values().next());
    match inner {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(list)) => {
            let values = list.get("values").and_then(Value::as_array);
            let texts: Vec<String> = values.into_iter().flatten().map(text).collect();
            texts.join(", ")
        }
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

/// OTLP writes 64-bit numbers as text.
fn micros(nanos: &str) -> anyhow::Result<u64> {
    let nanos: u64 = nanos
        .parse()
        .with_context(|| format!("{nanos:?} is no time in nanoseconds"))?;
    Ok(nanos / 1_000)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::convert;

    #[test]
    fn a_span_keeps_its_place_its_times_its_attributes_and_its_error() {
        let otlp = json!({"resourceSpans": [{
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "haulout"}}]},
            "scopeSpans": [{"spans": [{
                "traceId": "0af7651916cd43dd8448eb211c80319c",
                "spanId": "b7ad6b7169203331",
                "parentSpanId": "00f067aa0ba902b7",
                "name": "power off",
                "kind": 3,
                "startTimeUnixNano": "1700000000000001000",
                "endTimeUnixNano": "1700000002000001000",
                "attributes": [
                    {"key": "peer.service", "value": {"stringValue": "vcenter"}},
                    {"key": "attempt", "value": {"intValue": "2"}},
                    {"key": "pods", "value": {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}}},
                ],
                "events": [{"timeUnixNano": "1700000001000001000", "name": "refused"}],
                "status": {"code": 2, "message": "no power"},
            }]}],
        }]});
        let spans = convert(otlp.to_string().as_bytes()).unwrap();
        assert_eq!(
            serde_json::to_value(&spans).unwrap(),
            json!([{
                "traceId": "0af7651916cd43dd8448eb211c80319c",
                "id": "b7ad6b7169203331",
                "parentId": "00f067aa0ba902b7",
                "name": "power off",
                "kind": "CLIENT",
                "timestamp": 1_700_000_000_000_001_u64,
                "duration": 2_000_000,
                "localEndpoint": {"serviceName": "haulout"},
                "remoteEndpoint": {"serviceName": "vcenter"},
                "annotations": [{"timestamp": 1_700_000_001_000_001_u64, "value": "refused"}],
                "tags": {"attempt": "2", "error": "no power", "peer.service": "vcenter", "pods": "a, b"},
            }])
        );
    }

    #[test]
    fn a_root_has_no_parent_and_a_moment_can_be_seen() {
        let otlp = json!({"resourceSpans": [{"scopeSpans": [{"spans": [{
            "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "maintenance",
            "startTimeUnixNano": "1700000000000001000", "endTimeUnixNano": "1700000000000001000",
        }]}]}]});
        let spans = serde_json::to_value(convert(otlp.to_string().as_bytes()).unwrap()).unwrap();
        assert_eq!(spans[0].get("parentId"), None);
        assert_eq!(spans[0]["duration"], 1);
        assert!(convert(b"no JSON").is_err());
    }
}
