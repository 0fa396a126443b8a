//! Runs a sentinel until it is asked to stop.

use anyhow::Context as _;
use tracing::info;

use super::clock;
use super::terminate::Terminate;
use crate::kubernetes::client::connect_by;
use crate::sentinel::{self, SentinelArgs};

/// Runs a sentinel until SIGTERM or Ctrl-C.
///
/// # Errors
/// If there is no cluster to connect to.
pub async fn run_sentinel(args: SentinelArgs) -> anyhow::Result<()> {
    let mut terminate = Terminate::listen().context("listening for SIGTERM")?;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        "starting the sentinel of {}", args.node_name
    );
    let rounds = async {
        let client = connect_by(&args.access).await?;
        sentinel::run(args, client, clock).await;
        Ok(())
    };
    tokio::select! {
        biased;
        () = terminate.asked() => info!("SIGTERM: stopping"),
        _ = tokio::signal::ctrl_c() => info!("Ctrl-C: stopping"),
        ended = rounds => return ended,
    }
    Ok(())
}
