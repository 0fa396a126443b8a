//! Runs the scenarios of a test program, in parallel and in one cluster.

use std::sync::LazyLock;
use std::time::Instant;

use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, RwLock};

use crate::kube::{Kube, KubeOptions};
use crate::tools;

/// One runtime for all scenarios: the client of the shared cluster belongs to the runtime in which it was made.
#[expect(clippy::expect_used, reason = "no test runs without a runtime")]
pub static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("starting a runtime"));

/// The cluster ends with this process, because its parts read our end of their stdin.
static KUBE: OnceCell<Kube> = OnceCell::const_new();

/// Write-locked by a scenario that runs alone.
static RUNNING: RwLock<()> = RwLock::const_new(());

/// The cluster of all scenarios of this process.
#[expect(clippy::expect_used, reason = "no scenario runs without a cluster")]
pub async fn kube() -> &'static Kube {
    KUBE.get_or_init(async || {
        Kube::start(&KubeOptions::default())
            .await
            .expect("starting the cluster")
    })
    .await
}

/// Runs a scenario and panics with the chain of its error.
pub fn run_scenario(scenario: impl Future<Output = anyhow::Result<()>>) {
    RUNTIME.block_on(async {
        let _beside_others = RUNNING.read().await;
        finish(scenario).await;
    });
}

/// Runs a scenario that measures time, while no other one runs.
pub fn run_scenario_alone(scenario: impl Future<Output = anyhow::Result<()>>) {
    RUNTIME.block_on(async {
        let _alone = RUNNING.write().await;
        finish(scenario).await;
    });
}

#[expect(clippy::panic, reason = "a test fails by panicking")]
async fn finish(scenario: impl Future<Output = anyhow::Result<()>>) {
    let start = Instant::now();
    let result = scenario.await;
    // The test harness names the thread of a test after it.
    let name = std::thread::current().name().unwrap_or("unnamed").to_owned();
    tools::record_time(&name, start.elapsed());
    if let Err(error) = result {
        panic!("{error:#}");
    }
}
