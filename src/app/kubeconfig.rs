//! Detects a rotated kubeconfig. A client keeps its certificates, so the process exits to be restarted with the new file.

use std::path::PathBuf;
use std::time::Duration;

use tracing::{debug, info};

/// The kubelet takes up to a minute to update a Secret in a pod, and rotated certificates are valid for hours.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// Limit for reading: a kubeconfig with embedded certificates has some ten kilobytes.
const MAX_BYTES: u64 = 1 << 20;

/// Returns when the kubeconfig of a pod has changed. Never returns outside of a pod, where nothing restarts the program, and
/// where a kubeconfig changes with each context.
pub(super) async fn rotated() {
    let read = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let Some(path) = read("KUBECONFIG").filter(|_| read("KUBERNETES_SERVICE_HOST").is_some()) else {
        return std::future::pending().await;
    };
    let path = PathBuf::from(path);
    let first = contents(&path);
    let mut last = first.clone();
    loop {
        tokio::time::sleep(READ_INTERVAL).await;
        let is = contents(&path);
        // Read twice, so that a file is complete.
        if is.is_some() && is != first && is == last {
            info!(
                "{} has changed; exiting to be restarted with the new one",
                path.display()
            );
            return;
        }
        last = is;
    }
}

/// `None` if the file is not there, as during its replacement.
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
            debug!("{} cannot be read: {error}", path.display());
            None
        }
    }
}
