//! A run's temporary directory: private to its user, and removed when the run ends.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// The prefix of every run's directory. The Go parts only remove directories with this prefix.
pub const PREFIX: &str = "haulout-lab-";

/// A temporary directory that is removed when this is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Creates a directory that only its user can read, because it holds private keys.
    pub fn create() -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base = std::env::temp_dir();
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = base.join(format!("{PREFIX}{}-{count}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                // It may be left from a killed process with the same id.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("making the directory {}", path.display()));
                }
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the directory to a process that removes it.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// The path of `name` inside it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Writes `content` to `name` inside it and returns the path. The write is atomic, because scenarios may write and
    /// read the same kubeconfig concurrently.
    pub fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        static WRITES: AtomicU32 = AtomicU32::new(0);
        let path = self.join(name);
        let mut part = path.clone().into_os_string();
        part.push(format!(".{}", WRITES.fetch_add(1, Ordering::Relaxed)));
        std::fs::write(&part, content)
            .and_then(|()| std::fs::rename(&part, &path))
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // A process that was just killed may still write, and the removal then fails with "directory not empty".
        let deadline = Instant::now() + Duration::from_secs(2);
        while let Err(error) = std::fs::remove_dir_all(&self.path) {
            if error.kind() == std::io::ErrorKind::NotFound {
                return;
            }
            if Instant::now() > deadline {
                tracing::warn!(path = %self.path.display(), %error, "could not remove the run's directory");
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RunDir;

    #[test]
    fn a_directory_goes_with_its_owner() {
        let dir = RunDir::create().unwrap();
        let file = dir.write("a", "b").unwrap();
        assert!(file.exists());
        let path = dir.path().to_owned();
        drop(dir);
        assert!(!path.exists());
    }
}
