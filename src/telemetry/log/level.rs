//! What is logged, which a file can change while the program runs.
//!
//! Whoever looks for a fault that shows once a week must not have to restart the program and lose it. Three ways were
//! weighed. A path on the health port would let everybody who can reach a probe turn the log off, since nobody is asked
//! for credentials there. A signal needs a shell beside the process, which an image without one does not have, and cannot
//! say which of its parts is to speak. A file comes from a ConfigMap: who may change it is a matter of RBAC, it holds the
//! same words as `LOG_LEVEL`, and it still holds them after a restart.

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config;

/// How often the file is looked at. The kubelet takes up to a minute to bring a changed ConfigMap; whoever has waited
/// that long should not have to wait once more, and a read of a few bytes every other second costs nothing.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// More is no list of levels. The path may name anything.
const FILE_BYTES_MAX: u64 = 4_096;

/// Applies a level; the error is what is wrong with it.
pub(super) type Apply = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// The level that stands, and where another may come from.
pub struct Level {
    apply: Apply,
    configured: String,
    standing: String,
    file: Option<PathBuf>,
    /// What was last complained of, so that it is said once.
    complaint: Option<String>,
}

impl Level {
    /// `configured` stands, and `file` may hold another.
    pub(super) fn new(configured: &str, file: Option<PathBuf>, apply: Apply) -> Self {
        Self {
            apply,
            configured: configured.to_owned(),
            standing: configured.to_owned(),
            file,
            complaint: None,
        }
    }

    /// Whether there is a file to follow.
    pub fn can_change(&self) -> bool {
        self.file.is_some()
    }

    /// Follows the file until `stop`.
    pub async fn follow(mut self, stop: CancellationToken) {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Order: a closing house looks no more.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = looks.tick() => self.look(),
            }
        }
    }

    /// Looks once. A file that is not there or empty leaves the configured level; one that cannot be read or says nothing
    /// that is a level leaves the one that stands.
    pub(super) fn look(&mut self) {
        let Some(file) = self.file.clone() else { return };
        let path = file.display();
        let wanted = match read(&file) {
            Ok(text) if text.trim().is_empty() => self.configured.clone(),
            Ok(text) => match config::log_level(&text) {
                Ok(level) => level,
                Err(expected) => {
                    return self.complain(format!("LOG_LEVEL_FILE: {path} holds no level: {expected}"));
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.configured.clone(),
            Err(error) => {
                return self.complain(format!("LOG_LEVEL_FILE: {path} cannot be read: {error}"));
            }
        };
        if wanted == self.standing {
            self.complaint = None;
            return;
        }
        match (self.apply)(&wanted) {
            Ok(()) => {
                self.complaint = None;
                info!("the log level is {wanted}; it was {}", self.standing);
                self.standing = wanted;
            }
            Err(error) => self.complain(format!("LOG_LEVEL_FILE: {path}: {wanted:?} is no level: {error}")),
        }
    }

    fn complain(&mut self, words: String) {
        if self.complaint.as_ref() != Some(&words) {
            warn!("{words}; the log level stays {}", self.standing);
            self.complaint = Some(words);
        }
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { standing, file, .. } = self;
        f.debug_struct("Level")
            .field("standing", standing)
            .field("file", file)
            .finish_non_exhaustive()
    }
}

fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(file)?
        .take(FILE_BYTES_MAX)
        .read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A file of its own, which is gone with it.
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
    fn the_file_goes_before_the_setting_and_what_is_no_level_changes_nothing() {
        let file = Scratch::named("words");
        let applied = Arc::<Mutex<Vec<String>>>::default();
        let seen = applied.clone();
        let apply: Apply = Box::new(move |level| {
            seen.lock().unwrap().push(level.to_owned());
            Ok(())
        });
        let mut level = Level::new("info", Some(file.0.clone()), apply);
        level.look();
        file.holds("DEBUG\n");
        level.look();
        level.look();
        file.holds("loud");
        level.look();
        assert!(level.complaint.as_ref().unwrap().contains("one of off, error"));
        file.holds("warn,kube=debug");
        level.look();
        assert_eq!(level.complaint, None);
        file.holds(" \n");
        level.look();
        assert_eq!(*applied.lock().unwrap(), ["debug", "warn,kube=debug", "info"]);
    }

    #[test]
    fn a_path_that_is_no_file_is_complained_of_once() {
        let mut level = Level::new("info", Some(std::env::temp_dir()), Box::new(|_| Ok(())));
        level.look();
        let complaint = level.complaint.clone();
        assert!(complaint.as_ref().unwrap().contains("cannot be read"));
        level.look();
        assert_eq!(level.complaint, complaint);
    }
}
