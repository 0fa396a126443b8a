//! Jaeger starts, and answers queries.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use haulout_lab::jaeger::Jaeger;

#[tokio::test]
async fn it_answers_and_knows_nothing_yet() {
    let jaeger = Jaeger::start().await.unwrap();
    let spans = jaeger.trace("0123456789abcdef0123456789abcdef").await.unwrap();
    assert!(spans.is_empty(), "{spans:?}");
}
