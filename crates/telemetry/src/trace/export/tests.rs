//! The environment's words, and a collector that is away, hangs or panics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use opentelemetry::trace::{SpanKind, TraceId};
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};

use super::*;

fn asked(variables: &[(&str, &str)]) -> Result<bool, String> {
    let read = |name: &str| {
        let found = variables.iter().find(|(it, _)| *it == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    exporter(read)
        .map(|exporter| exporter.is_some())
        .map_err(|invalid| invalid.to_string())
}

#[tokio::test]
async fn nothing_is_made_without_an_endpoint_or_where_it_is_switched_off() {
    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
    assert_eq!(asked(&[]), Ok(false));
    assert_eq!(asked(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]), Ok(false));
    assert_eq!(asked(&[ENDPOINT, ("OTEL_SDK_DISABLED", "true")]), Ok(false));
    assert_eq!(asked(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]), Ok(false));
    assert_eq!(asked(&[ENDPOINT]), Ok(true));
    let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector:4317");
    assert_eq!(
        asked(&[traces, ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")]),
        Ok(true)
    );
    let invalid = asked(&[ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]).unwrap_err();
    assert!(
        invalid.contains("OTEL_EXPORTER_OTLP_PROTOCOL=\"http/json\""),
        "{invalid}"
    );
    let absent = asked(&[ENDPOINT, ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such.pem")]);
    assert!(absent.unwrap_err().contains("/no/such.pem"));
}

#[test]
fn resource_names_cluster_and_namespace_and_no_replica() {
    let in_pod = |name: &str| match name {
        "POD_NAME" => Some("haulout-7".to_owned()),
        "POD_NAMESPACE" => Some("haulout".to_owned()),
        "NODE_NAME" => Some("gpu-1".to_owned()),
        _ => None,
    };
    let uid = KeyValue::new("k8s.cluster.uid", "of-kube-system");
    let resource = resource(detected(in_pod).into_iter().chain([uid]));
    let shown: Vec<(String, String)> = resource
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .filter(|(key, _)| !key.starts_with("telemetry.sdk."))
        .collect();
    for (key, value) in &shown {
        assert!(
            super::super::catalogue::RESOURCE
                .iter()
                .any(|(known, _)| known == key),
            "{key}={value}"
        );
    }
    for (key, value) in [
        ("service.name", "haulout"),
        ("k8s.namespace.name", "haulout"),
        ("k8s.cluster.uid", "of-kube-system"),
    ] {
        assert!(
            shown.contains(&(key.to_owned(), value.to_owned())),
            "{key}: {shown:?}"
        );
    }
    let names_replica = |key: &str| ["service.instance.id", "k8s.pod.name", "k8s.node.name"].contains(&key);
    assert!(!shown.iter().any(|(key, _)| names_replica(key)), "{shown:?}");
}

#[test]
fn password_in_the_address_is_redacted() {
    let event = without_password("sending to (http://someone:canary@collector:4318/v1/traces) failed");
    assert_eq!(event, "sending to (http://***@collector:4318/v1/traces) failed");
    assert_eq!(without_password("someone:canary@collector"), "***@collector");
    assert_eq!(without_password("http://collector:4318"), "http://collector:4318");
}

fn span() -> Span {
    let at = Timestamp::UNIX_EPOCH;
    Span {
        trace: TraceId::from_bytes([1; 16]),
        id: SpanId::from_bytes([2; 8]),
        parent: None,
        name: "drain",
        kind: SpanKind::Internal,
        start: at,
        end: at,
        attributes: Vec::new(),
        events: Vec::new(),
        failed: None,
        link: None,
    }
}

/// A collector with a list of responses; after those it hangs.
#[derive(Debug, Default)]
struct Collector {
    answers: Mutex<Vec<OTelSdkResult>>,
    took: Arc<AtomicU64>,
}

impl Export for Collector {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let answer = self.answers.lock().unwrap().pop();
        match answer {
            Some(Ok(())) => {
                self.took.fetch_add(batch.len() as u64, Ordering::Relaxed);
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => std::future::pending().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_queued_is_sent_before_the_end() {
    let collector = Collector::default();
    let took = collector.took.clone();
    collector.answers.lock().unwrap().extend([Ok(()), Ok(())]);
    let (sender, queue) = mpsc::channel(super::super::QUEUE);
    for _ in 0..BATCH + 1 {
        sender.try_send(span()).unwrap();
    }
    drop(sender);
    let stop = CancellationToken::new();
    stop.cancel();
    run(collector, queue, Counter::default(), stop).await;
    assert_eq!(took.load(Ordering::Relaxed), BATCH as u64 + 1);
}

#[tokio::test(start_paused = true)]
async fn refused_batch_is_counted_and_the_next_sent() {
    let collector = Collector::default();
    let took = collector.took.clone();
    let down = Err(OTelSdkError::InternalFailure("connection refused".to_owned()));
    // The last one is the first answer.
    collector.answers.lock().unwrap().extend([Ok(()), down]);
    let (sender, queue) = mpsc::channel(super::super::QUEUE);
    for _ in 0..BATCH + 1 {
        sender.try_send(span()).unwrap();
    }
    drop(sender);
    let lost = Counter::default();
    run(collector, queue, lost.clone(), CancellationToken::new()).await;
    assert_eq!((lost.get(), took.load(Ordering::Relaxed)), (BATCH as u64, 1));
}

#[tokio::test(start_paused = true)]
async fn hanging_collector_delays_shutdown_by_two_seconds() {
    let (sender, queue) = mpsc::channel(super::super::QUEUE);
    sender.try_send(span()).unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    let begin_spans = Instant::now();
    run(Collector::default(), queue, Counter::default(), stop).await;
    assert_eq!(begin_spans.elapsed(), END_DEADLINE);
}
