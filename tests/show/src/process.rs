//! A child process that never outlives its parent, with its output in a file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, Command};

/// If it is `1`, a part of the lab ends when its stdin reaches EOF.
pub const LEASH: &str = "HAULOUT_LAB_STDIN_LEASH";
/// The directory that a part removes when it ends because of EOF on stdin.
pub const REMOVE_AT_EOF: &str = "HAULOUT_LAB_REMOVE_AT_EOF";

/// The bytes of a log in an error.
const TAIL: u64 = 4096;

/// A shell that watches stdin for a program that does not. It execs the program, so that the process id stays, and
/// leaves the watching to a child.
const LEASHED: &str = r#"
exec 3<&0
(
    cat <&3 >/dev/null
    kill -9 $$ 2>/dev/null
    case "$HAULOUT_LAB_REMOVE_AT_EOF" in
        */haulout-lab-*) rm -rf "$HAULOUT_LAB_REMOVE_AT_EOF" ;;
    esac
) </dev/null >/dev/null 2>&1 &
exec "$0" "$@" 3<&- </dev/null
"#;

/// A process to start.
#[derive(Debug, Clone)]
pub struct ProcessSpec {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    log: PathBuf,
}

impl ProcessSpec {
    /// `name` is used in messages. Output is appended to `log`, so that a restarted part has one log.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            log: log.into(),
        }
    }

    /// As [`ProcessSpec::new`], for a program that does not watch its stdin, as Haulout and third-party ones.
    pub fn leashed(name: impl Into<String>, program: impl AsRef<OsStr>, log: impl Into<PathBuf>) -> Self {
        Self::new(name, "/bin/sh", log).args(["-c", LEASHED]).arg(program)
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable on top of the inherited ones.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Starts it.
    pub fn spawn(&self) -> anyhow::Result<Process> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("opening {}'s log {}", self.name, self.log.display()))?;
        let second = log
            .try_clone()
            .with_context(|| format!("opening {}'s log twice", self.name))?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env(LEASH, "1")
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(second)
            // A Ctrl-C at the terminal goes to the whole foreground group; the lab stops its parts in order.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {} ({})", self.name, self.program.display()))?;
        let leash = child.stdin.take();
        Ok(Process {
            name: self.name.clone(),
            log: self.log.clone(),
            child,
            _leash: leash,
        })
    }
}

/// A running child process. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
    // The child ends when this end of its stdin closes; the kernel closes it when the parent is killed.
    _leash: Option<ChildStdin>,
}

impl Process {
    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id until its end has been seen.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// The file that takes its output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of its output.
    pub fn tail(&self) -> String {
        tail(&self.log)
            .unwrap_or_else(|error| format!("(its log {} cannot be read: {error})", self.log.display()))
    }

    /// Fails with the end of its output if it has ended unexpectedly.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        match self
            .child
            .try_wait()
            .with_context(|| format!("asking whether {} runs", self.name))?
        {
            None => Ok(()),
            Some(status) => bail!(
                "{} ended by itself with {status}; its last words:\n{}",
                self.name,
                self.tail()
            ),
        }
    }

    /// Sends one signal to exactly this process. Does nothing when it has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let Some(pid) = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
        else {
            return Ok(());
        };
        kill_process(pid, signal).with_context(|| {
            format!(
                "sending {signal:?} to {} (pid {})",
                self.name,
                pid.as_raw_nonzero()
            )
        })
    }

    /// Sends SIGTERM, and SIGKILL after `patience`.
    pub async fn stop(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        match tokio::time::timeout(patience, self.child.wait()).await {
            Ok(status) => status.with_context(|| format!("waiting for {} to end", self.name)),
            Err(_) => self.kill().await,
        }
    }

    /// Sends SIGKILL and waits until it has ended.
    pub async fn kill(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::KILL)?;
        self.child
            .wait()
            .await
            .with_context(|| format!("waiting for {} to end after SIGKILL", self.name))
    }

    /// Waits until it ends by itself.
    pub async fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        self.child
            .wait()
            .await
            .with_context(|| format!("waiting for {} to end", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The directory and the ports are released right after this, so the process must have ended.
        let _ = self.child.start_kill();
        let deadline = Instant::now() + Duration::from_secs(2);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(if length > TAIL {
        text.split_once('\n')
            .map_or(text.clone(), |(_, rest)| rest.to_owned())
    } else {
        text
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::ProcessSpec;
    use crate::run_dir::RunDir;

    #[tokio::test]
    async fn part_that_ends_early_is_reported_with_its_last_output() {
        let dir = RunDir::create().unwrap();
        let mut part = ProcessSpec::new("part", "/bin/sh", dir.join("log"))
            .args(["-c", "echo no such flag; exit 3"])
            .spawn()
            .unwrap();
        part.wait().await.unwrap();
        let error = part.check_running().unwrap_err().to_string();
        assert!(
            error.contains("no such flag") && error.contains("exit status: 3"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn stop_kills_a_part_that_ignores_the_request() {
        let dir = RunDir::create().unwrap();
        let mut part = ProcessSpec::new("part", "/bin/sh", dir.join("log"))
            .args([
                "-c",
                "trap '' TERM; echo armed; while :; do read line || sleep 1; done",
            ])
            .spawn()
            .unwrap();
        while !part.tail().contains("armed") {
            tokio::task::yield_now().await;
        }
        let status = part.stop(Duration::from_millis(50)).await.unwrap();
        assert!(!status.success());
        assert_eq!(part.pid(), None);
    }
}
