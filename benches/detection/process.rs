//! A client under test: a process that reports when it is in sync, and each change of the host's state.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use haulout_lab::tools::Tool;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::clients::Watch;
use super::used::{Used, used};

/// The timeout of a client; the slowest pollers need 90 s.
const WAIT_TIMEOUT: Duration = Duration::from_secs(240);

/// The clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Baseline,
    BaselineOfAll,
    BaselineOverReqwest,
    BaselineOverHyper,
    Stream,
    Govmomi,
    Pyvmomi,
    /// A poller with this interval in seconds.
    Poller(u32),
}

impl Kind {
    pub fn name(self) -> String {
        match self {
            Self::Baseline => "baseline: bare long poll, one host".into(),
            Self::BaselineOfAll => "bare long poll, all hosts".into(),
            Self::BaselineOverReqwest => "bare long poll over reqwest".into(),
            Self::BaselineOverHyper => "bare long poll over hyper, XML walked".into(),
            Self::Stream => "Haulout's stream".into(),
            Self::Govmomi => "govmomi's waiter".into(),
            Self::Pyvmomi => "pyVmomi's WaitForUpdatesEx".into(),
            Self::Poller(every) => format!("pyVmomi poller, every {every} s"),
        }
    }

    /// The first word of its User-Agent, by which the simulator counts calls.
    pub fn agent(self) -> &'static str {
        match self {
            Self::Baseline | Self::BaselineOfAll | Self::BaselineOverReqwest | Self::BaselineOverHyper => {
                "baseline"
            }
            Self::Stream => "haulout",
            Self::Govmomi => "govmomi",
            Self::Pyvmomi | Self::Poller(_) => "pyvmomi",
        }
    }
}

/// The programs of the other clients.
#[derive(Debug, Clone)]
pub struct Programs {
    pub govmomi: PathBuf,
    /// A Python with pyVmomi, or the reason why there is none.
    pub python: Result<PathBuf, String>,
}

impl Programs {
    /// Builds govmomi's waiter and installs pyVmomi, in the lab's cache.
    pub async fn find() -> anyhow::Result<Self> {
        Ok(Self {
            govmomi: haulout_lab::build::part("govmomi").await?,
            python: python().await,
        })
    }
}

async fn python() -> Result<PathBuf, String> {
    match haulout_lab::python::with(haulout_lab::python::PYVMOMI, "pyVmomi").await {
        Ok(Tool::At(program)) => Ok(program),
        Ok(Tool::Missing(why)) => Err(why),
        Err(error) => Err(format!("{error:#}")),
    }
}

/// This program as a client.
fn ourselves(watch: &Watch, kind: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(watch.arguments(kind));
    Ok(command)
}

/// A running client that is in sync.
#[derive(Debug)]
pub struct TestedClient {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// The time from its start to in sync in milliseconds, without the start of its interpreter.
    pub sync_ms: f64,
    /// When it was in sync, in nanoseconds since 1970.
    pub sync_ns: i64,
}

impl TestedClient {
    /// Starts it and waits until it is in sync.
    pub async fn start(kind: Kind, watch: &Watch, programs: &Programs) -> anyhow::Result<Self> {
        let mut command = match kind {
            Kind::Baseline => ourselves(watch, "baseline")?,
            Kind::BaselineOfAll => ourselves(watch, "baseline-of-all")?,
            Kind::BaselineOverReqwest => ourselves(watch, "baseline-over-reqwest")?,
            Kind::BaselineOverHyper => ourselves(watch, "baseline-over-hyper")?,
            Kind::Stream => ourselves(watch, "stream")?,
            Kind::Govmomi => peer(Command::new(&programs.govmomi), watch),
            Kind::Pyvmomi | Kind::Poller(_) => {
                let python = programs.python.as_ref().map_err(|why| anyhow::anyhow!("{why}"))?;
                let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/detection/pyvmomi.py");
                let mut command = Command::new(python);
                command.arg(script);
                if let Kind::Poller(every) = kind {
                    command.args(["-every", &every.to_string()]);
                }
                peer(command, watch)
            }
        };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", kind.name()))?;
        let stdout = child.stdout.take().context("its stdout is not piped")?;
        let mut tested = Self {
            child,
            lines: BufReader::new(stdout).lines(),
            sync_ms: 0.0,
            sync_ns: 0,
        };
        let ready = tested.until("ready").await.context(kind.name())?;
        tested.sync_ms = ready.get("ms").and_then(Value::as_f64).unwrap_or_default();
        let sync_ns = ready.get("ns").and_then(Value::as_i64);
        tested.sync_ns = sync_ns.context("it did not say when it was in sync")?;
        Ok(tested)
    }

    /// The next line with this key.
    pub async fn until(&mut self, key: &str) -> anyhow::Result<Value> {
        let line = async {
            while let Some(line) = self.lines.next_line().await? {
                let line: Value = serde_json::from_str(&line)?;
                if line.get(key).is_some() {
                    return Ok(line);
                }
            }
            bail!("it ended");
        };
        timeout(WAIT_TIMEOUT, line)
            .await
            .with_context(|| format!("it never logged {key:?}"))?
    }

    /// Waits until it reports that the host is entering, or no longer, and returns when, in nanoseconds since 1970.
    pub async fn knows(&mut self, entering: bool) -> anyhow::Result<i64> {
        loop {
            let line = self.until("entering").await?;
            if line.get("entering").and_then(Value::as_bool) == Some(entering) {
                return line
                    .get("ns")
                    .and_then(Value::as_i64)
                    .context("no time in its line");
            }
        }
    }

    /// Its use of CPU and memory so far.
    pub fn used(&self) -> anyhow::Result<Used> {
        used(self.child.id().context("it has ended")?)
    }

    /// Kills it.
    pub async fn end(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}

fn peer(mut command: Command, watch: &Watch) -> Command {
    command
        .args([
            "-sdk",
            &watch.sdk,
            "-user",
            &watch.user,
            "-password",
            &watch.password,
        ])
        .args(["-host", &watch.host, "-ca"])
        .arg(&watch.ca);
    command
}
