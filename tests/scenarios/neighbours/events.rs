//! What an episode writes to Kubernetes while it also sends a trace.

use anyhow::ensure;

use super::traces::jaeger;
use crate::events::{held_for_a_while, one_patch_and_one_event_a_change, writes};
use crate::fixture::{one_node, run_scenario};

#[test]
fn transition_costs_one_patch_and_at_most_one_event() {
    run_scenario(async {
        let fixture = one_node("event-cost").await?;
        // This collector acknowledges spans.
        let collector = jaeger().await.otlp_http();
        let changes = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.as_str()),
            ("METRICS_ADDRESS", "127.0.0.1:0"),
        ];
        held_for_a_while(&fixture, &changes).await?;
        let audit = writes(&fixture).await?;
        let changes = one_patch_and_one_event_a_change(&fixture, &audit)?;
        ensure!(changes >= 6, "the episode had {changes} changes");
        // There are no other writes except evictions.
        let other = audit.iter().find(|it| {
            let is_record = it.verb == "patch" && it.resource == "nodes";
            let is_event = it.verb == "create" && it.resource == "events";
            let is_eviction = it.subresource.as_deref() == Some("eviction");
            !(is_record || is_event || is_eviction)
        });
        ensure!(other.is_none(), "{other:#?}");
        Ok(())
    });
}
