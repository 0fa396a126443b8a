//! Notices that the kubeconfig has been rotated. A client keeps the certificates that it was made with, so the process ends
//! in order and is started again with what is there then: everything that matters stands on the Nodes.

use std::path::PathBuf;
use std::time::Duration;

use tracing::{debug, info};

/// How often the file is looked at. kubelet itself takes up to a minute to bring a changed Secret into a pod, and what is
/// rotated is valid for hours more.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The largest kubeconfig that is read: one with all its certificates inside is some ten kilobytes.
const MAX_BYTES: u64 = 1 << 20;

/// Comes back when the kubeconfig of a pod has become another one, and never where there is none to look at: outside of a
/// pod nobody starts the program again, and a person's own kubeconfig changes with each context.
pub(super) async fn rotated() {
    let read = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let Some(path) = read("KUBECONFIG").filter(|_| read("KUBERNETES_SERVICE_HOST").is_some()) else {
        return std::future::pending().await;
    };
    let path = PathBuf::from(path);
    let first = contents(&path);
    let mut last = first.clone();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let is = contents(&path);
        // Twice the same, so that a file that is being written is not taken for a whole one.
        if is.is_some() && is != first && is == last {
            info!(
                "{} has changed: stopping, so that whoever started Haulout starts it with the new one",
                path.display()
            );
            return;
        }
        last = is;
    }
}

/// What stands in the file; `None` while it is not there, as in the middle of its exchange.
fn contents(path: &std::path::Path) -> Option<Vec<u8>> {
    let read = std::fs::metadata(path).and_then(|about| {
        if about.len() > MAX_BYTES {
            return Err(std::io::Error::other("it is too large for a kubeconfig"));
        }
        std::fs::read(path)
    });
    match read {
        Ok(contents) => Some(contents),
        Err(error) => {
            debug!("{} is not read: {error}", path.display());
            None
        }
    }
}
