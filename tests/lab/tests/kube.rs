//! The lab's Kubernetes half behaves as the real thing where tests rely on it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::time::{Duration, Instant};

use haulout_lab::kube::{Kube, Options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn up() {
    let t = Instant::now();
    let kube = Kube::start(&Options::default()).await.unwrap();
    eprintln!("up {:?}", t.elapsed());
    let t = Instant::now();
    kube.restart_apiserver(Duration::from_millis(500)).await.unwrap();
    eprintln!("restart {:?}", t.elapsed());
    eprintln!("{:?}", kube.audit().await.unwrap().len());
    let t = Instant::now();
    let dir = kube.dir().to_owned();
    drop(kube);
    eprintln!("drop {:?}", t.elapsed());
    assert!(!dir.exists());
}
