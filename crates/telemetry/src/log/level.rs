//! The log level, which a file can change at run time.
//!
//! A file, mounted from a ConfigMap, keeps rare faults observable without a restart. It is protected by
//! RBAC, unlike a path on the health port, and needs no shell in the image, unlike a signal. It has the
//! same syntax as `LOG_LEVEL`.

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How often the file is read. The kubelet already takes up to a minute to update a ConfigMap.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// Limit for reading: the path may name any file.
const FILE_BYTES_MAX: u64 = 4_096;

/// Applies a level; the error says why it is invalid.
pub(super) type Apply = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// The current level, and the file that may change it.
pub struct Level {
    apply: Apply,
    configured: String,
    current: String,
    file: Option<PathBuf>,
    /// The last logged error, so that it is logged once.
    logged_error: Option<String>,
}

impl Level {
    pub(super) fn new(configured: &str, file: Option<PathBuf>, apply: Apply) -> Self {
        Self {
            apply,
            configured: configured.to_owned(),
            current: configured.to_owned(),
            file,
            logged_error: None,
        }
    }

    pub fn can_change(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the file periodically until `stop`.
    pub async fn follow(mut self, stop: CancellationToken) {
        let mut interval = tokio::time::interval(READ_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = interval.tick() => self.read_file(),
            }
        }
    }

    /// Reads the file once. If it is missing or empty, the configured level applies; if it is
    /// unreadable or invalid, the current level stays.
    pub(super) fn read_file(&mut self) {
        let Some(file) = self.file.clone() else { return };
        let path = file.display();
        let wanted = match read_level(&file) {
            Ok(text) if text.trim().is_empty() => self.configured.clone(),
            Ok(text) => match log_level(&text) {
                Ok(level) => level,
                Err(expected) => {
                    return self.log_error(format!("LOG_LEVEL_FILE: {path} holds no level: {expected}"));
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.configured.clone(),
            Err(error) => {
                return self.log_error(format!("LOG_LEVEL_FILE: {path} cannot be read: {error}"));
            }
        };
        if wanted == self.current {
            self.logged_error = None;
            return;
        }
        match (self.apply)(&wanted) {
            Ok(()) => {
                self.logged_error = None;
                info!("the log level is {wanted}; it was {}", self.current);
                self.current = wanted;
            }
            Err(error) => self.log_error(format!("LOG_LEVEL_FILE: {path}: {wanted:?} is no level: {error}")),
        }
    }

    fn log_error(&mut self, error: String) {
        if self.logged_error.as_ref() != Some(&error) {
            warn!("{error}; the log level stays {}", self.current);
            self.logged_error = Some(error);
        }
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { current, file, .. } = self;
        f.debug_struct("Level")
            .field("current", current)
            .field("file", file)
            .finish_non_exhaustive()
    }
}

fn read_level(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(file)?
        .take(FILE_BYTES_MAX)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// A log level or a list of directives.
///
/// # Errors
/// For any other text; the error says what is expected.
pub fn log_level(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let text = text.trim().to_lowercase();
    let is_directive = |entry: &str| {
        let (target, level) = entry.rsplit_once('=').unwrap_or(("haulout", entry));
        let is_of_target = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
        LEVELS.contains(&level) && !target.is_empty() && target.chars().all(is_of_target)
    };
    if text.split(',').all(is_directive) {
        Ok(text)
    } else {
        let levels = LEVELS.join(", ");
        Err(format!(
            "one of {levels} is expected, or a list as info,kube=debug"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A temporary file.
    struct Scratch(PathBuf);

    impl Scratch {
        fn named(name: &str) -> Self {
            let file = format!("haulout-level-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(file))
        }

        fn holds(&self, text: &str) {
            std::fs::write(&self.0, text).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn file_overrides_setting_and_invalid_level_is_ignored() {
        let file = Scratch::named("words");
        let applied = Arc::<Mutex<Vec<String>>>::default();
        let seen = applied.clone();
        let apply: Apply = Box::new(move |level| {
            seen.lock().unwrap().push(level.to_owned());
            Ok(())
        });
        let mut level = Level::new("info", Some(file.0.clone()), apply);
        level.read_file();
        file.holds("DEBUG\n");
        level.read_file();
        level.read_file();
        file.holds("loud");
        level.read_file();
        assert!(level.logged_error.as_ref().unwrap().contains("one of off, error"));
        file.holds("warn,kube=debug");
        level.read_file();
        assert_eq!(level.logged_error, None);
        file.holds(" \n");
        level.read_file();
        assert_eq!(*applied.lock().unwrap(), ["debug", "warn,kube=debug", "info"]);
    }

    #[test]
    fn unreadable_file_is_logged_once() {
        let mut level = Level::new("info", Some(std::env::temp_dir()), Box::new(|_| Ok(())));
        level.read_file();
        let logged_error = level.logged_error.clone();
        assert!(logged_error.as_ref().unwrap().contains("cannot be read"));
        level.read_file();
        assert_eq!(level.logged_error, logged_error);
    }
}
