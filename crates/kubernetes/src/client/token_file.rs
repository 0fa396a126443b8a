//! The token in a file that a kubeconfig names. kube keeps a line end after it, which no header may have; kubectl does not.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

/// As often as kube.
const READ_INTERVAL: Duration = Duration::from_secs(50);

#[derive(Clone)]
pub(super) struct TokenFile {
    path: PathBuf,
    /// The header of the last token that was read, and when.
    last: Arc<Mutex<(HeaderValue, Instant)>>,
}

impl TokenFile {
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let header = read_token(path)?;
        Ok(Self {
            path: path.to_owned(),
            last: Arc::new(Mutex::new((header, Instant::now()))),
        })
    }

    /// The header `Authorization`. As long as the file cannot be read, the last token counts.
    pub(super) fn header(&self) -> HeaderValue {
        let mut last = self.last.lock();
        if last.1.elapsed() >= READ_INTERVAL {
            let header = read_token(&self.path).unwrap_or_else(|_| last.0.clone());
            *last = (header, Instant::now());
        }
        last.0.clone()
    }
}

fn read_token(path: &Path) -> Result<HeaderValue, String> {
    let unusable = |why: &dyn std::fmt::Display| format!("the token file {}: {why}", path.display());
    let token = std::fs::read_to_string(path).map_err(|error| unusable(&error))?;
    let header = HeaderValue::try_from(format!("Bearer {}", token.trim()));
    let mut header = header.map_err(|_| unusable(&"a token is one line of visible characters"))?;
    header.set_sensitive(true);
    Ok(header)
}
