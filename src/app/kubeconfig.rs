//! Detects a rotated kubeconfig. A client keeps its certificates, so the process exits to be restarted with the new file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::{debug, info};

use crate::config::Config;

/// The kubelet takes up to a minute to update a Secret in a pod, and rotated certificates are valid for hours.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// Limit for reading: a kubeconfig with embedded certificates has some ten kilobytes.
const MAX_BYTES: u64 = 1 << 20;

/// Returns when one of the kubeconfigs of a pod has changed. Never returns outside of a pod, where nothing restarts the program,
/// and where a kubeconfig changes with each context.
pub(super) async fn rotated(config: &Config) {
    let read = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if read("KUBERNETES_SERVICE_HOST").is_none() {
        return std::future::pending().await;
    }
    let of_nodes = read("KUBECONFIG").map(PathBuf::from);
    let others = [&config.management_kubeconfig, &config.leadership.lease_kubeconfig];
    let paths = of_nodes.into_iter().chain(others.into_iter().flatten().cloned());
    let mut files: Vec<Kubeconfig> = paths.map(Kubeconfig::read).collect();
    loop {
        tokio::time::sleep(READ_INTERVAL).await;
        if let Some(file) = files.iter_mut().find_map(Kubeconfig::changed) {
            info!(
                "{} has changed; exiting to be restarted with the new one",
                file.display()
            );
            return;
        }
    }
}

/// A file and its contents.
struct Kubeconfig {
    path: PathBuf,
    first: Option<Vec<u8>>,
    last: Option<Vec<u8>>,
}

impl Kubeconfig {
    fn read(path: PathBuf) -> Self {
        let first = contents(&path);
        Self {
            path,
            last: first.clone(),
            first,
        }
    }

    /// Reads it again; its path, if it has changed. It counts once two reads agree, so that it is complete.
    fn changed(&mut self) -> Option<&Path> {
        let is = contents(&self.path);
        let has_changed = is.is_some() && is != self.first && is == self.last;
        self.last = is;
        has_changed.then_some(&self.path)
    }
}

/// `None` if the file is not there, as during its replacement.
fn contents(path: &Path) -> Option<Vec<u8>> {
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
