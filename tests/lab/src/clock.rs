//! A separate wall clock for a program under test, which a test can step.
//!
//! libfaketime is preloaded and replaces the real-time clock. The monotonic and boot-time clocks stay real, so timers
//! and deadlines keep their length.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::tools;

/// The folder of the library on Debian and Ubuntu, below a folder for the architecture.
const BELOW: &str = "faketime/libfaketime.so.1";
/// The command that installs it.
const HOW: &str = "libfaketime is not installed (apt-get install faketime)";
/// The folder of libfaketime's shared files, named by process id. libfaketime does not remove the file of a killed
/// process.
const SHARED_MEMORY: &str = "/dev/shm";

/// The wall clock of one program.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    file: PathBuf,
}

impl WallClock {
    /// A clock with the machine's time, kept in a file in `dir`. `None` if libfaketime is not installed: the test
    /// `name` is skipped.
    ///
    /// # Errors If libfaketime is not installed and `CI` is set.
    pub fn new(dir: &Path, name: &str) -> anyhow::Result<Option<Self>> {
        let Some(library) = library() else {
            tools::skip(name, HOW)?;
            return Ok(None);
        };
        let clock = Self {
            library,
            file: dir.join(format!("clock-{name}")),
        };
        clock.set(0)?;
        remove_leftovers();
        Ok(Some(clock))
    }

    /// The environment of the program.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Steps the clock to `seconds` ahead of the machine's, or behind it if negative.
    pub fn set(&self, seconds_ahead: i64) -> anyhow::Result<()> {
        // Renamed atomically, because the program may read the file at any time.
        let partial = self.file.with_extension("partial");
        std::fs::write(&partial, format!("{seconds_ahead:+}s\n"))
            .with_context(|| format!("writing {}", partial.display()))?;
        std::fs::rename(&partial, &self.file)
            .with_context(|| format!("moving {} to {}", partial.display(), self.file.display()))
    }
}

impl Drop for WallClock {
    fn drop(&mut self) {
        remove_leftovers();
    }
}

fn library() -> Option<PathBuf> {
    let architectures = std::fs::read_dir("/usr/lib").ok()?;
    architectures
        .flatten()
        .map(|architecture| architecture.path().join(BELOW))
        .find(|library| library.is_file())
}

/// Removes libfaketime's files of ended processes: a later process with the same id fails otherwise.
fn remove_leftovers() {
    let Ok(entries) = std::fs::read_dir(SHARED_MEMORY) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let pid = name
            .strip_prefix("faketime_shm_")
            .or_else(|| name.strip_prefix("sem.faketime_sem_"));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Another test may have removed it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::WallClock;
    use crate::process::ProcessSpec;
    use crate::run_dir::RunDir;
    use crate::wait::until;

    /// Prints the wall clock, the monotonic one, and the one that counts a suspended machine, in seconds. It waits with
    /// `select`: under libfaketime, `time.sleep` of Python 3.11 fails.
    const SHOW: &str = "import select, time\nwhile True:\n print(int(time.time()), int(time.monotonic()), int(time.clock_gettime(time.CLOCK_BOOTTIME)), flush=True)\n select.select([], [], [], 0.05)";

    #[tokio::test]
    async fn the_wall_clock_steps_and_no_other_clock_does() {
        let dir = RunDir::create().unwrap();
        let Some(clock) = WallClock::new(dir.path(), "probe").unwrap() else {
            return;
        };
        let mut spec = ProcessSpec::leashed("python3", "python3", dir.join("log")).args(["-c", SHOW]);
        for (name, value) in clock.environment() {
            spec = spec.env(name, value);
        }
        let program = spec.spawn().unwrap();
        let shown = async || -> anyhow::Result<[i64; 3]> {
            let tail = program.tail();
            let line = tail.lines().last().unwrap_or_default().to_owned();
            let numbers: Vec<i64> = line.split(' ').filter_map(|it| it.parse().ok()).collect();
            numbers
                .try_into()
                .map_err(|_| anyhow::anyhow!("it says {line:?}"))
        };
        let patience = Duration::from_secs(20);
        let ahead_by = async |seconds: i64| {
            until(&format!("a clock {seconds} s ahead"), patience, async || {
                let [wall, monotonic, boottime] = shown().await?;
                let real = jiff::Timestamp::now().as_second();
                let far = (wall - real - seconds).abs();
                Ok((far <= 2).then_some([monotonic, boottime]))
            })
            .await
            .unwrap()
        };
        let before = ahead_by(0).await;
        clock.set(3600).unwrap();
        ahead_by(3600).await;
        clock.set(-3600).unwrap();
        let after = ahead_by(-3600).await;
        for (before, after) in before.into_iter().zip(after) {
            assert!((0..60).contains(&(after - before)), "{before} and then {after}");
        }
    }
}
