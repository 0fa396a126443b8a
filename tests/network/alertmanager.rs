//! An Alertmanager that answers with something else.

use std::alloc::System;

use haulout::fence::WriteFence;
use haulout::telemetry::silences::{AlertmanagerApi as _, LeaderAlertmanager};
use serde_json::Value;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::peers::{Files, http_client};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Below the limit of an answer.
const ANSWER_BYTES: usize = 8 * 1024 * 1024 - 64;

/// The answer is read into a buffer that grows, and all tests of this program count.
const ALLOCATED_MAX: usize = 100 * 1024 * 1024;

#[tokio::test]
async fn list_of_other_things_takes_little_more_memory_than_its_bytes() {
    for (first, element) in [("[", "[],"), ("[[", "[],")] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut body = first.to_owned();
        while body.len() < ANSWER_BYTES {
            body.push_str(element);
        }
        body.push_str("[]");
        body.push_str(&"]".repeat(first.len()));
        let head = format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        // The limit is one that such a list can break.
        let region = Region::new(ALLOCATOR);
        let values: Vec<Value> = serde_json::from_str(&body).unwrap();
        let allocated = region.change().bytes_allocated;
        assert!(allocated > ALLOCATED_MAX, "{allocated} bytes as values");
        drop(values);

        let mut server = JoinSet::new();
        server.spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            connection.write_all(head.as_bytes()).await.unwrap();
            connection.write_all(body.as_bytes()).await.unwrap();
        });
        let files = Files::create("alertmanager");
        let api = LeaderAlertmanager {
            client: http_client(),
            url_file: files.write("url", url).into(),
            fence: WriteFence::without_election(),
        };
        let region = Region::new(ALLOCATOR);
        assert!(api.silences().await.unwrap().is_empty());
        let allocated = region.change().bytes_allocated;
        assert!(
            allocated < ALLOCATED_MAX,
            "{allocated} bytes for {first}{element}"
        );
    }
}
