//! The reboot sentinel: asks for a reboot of its own node where one is required.
//!
//! It remembers nothing. A request is named after the node and its boot, so there is at most one for each boot, however often the
//! sentinel restarts. Whether and when the node is rebooted is decided by the controller, which takes one node at a time.
//!
//! ```text
//! file, command, Node ─▶ need ─┐
//! NodeMaintenances ────────────┴─▶ decide ─▶ create or delete one NodeMaintenance
//! ```

mod decide;
mod need;

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{GetParams, ListParams};
use kube::core::DeserializeGuard;
use kube::{Api, ResourceExt as _};
use thiserror::Error;
use tracing::{info, warn};

use crate::config::parse::seconds;
use crate::ids::{BootId, NodeName, RequestUid};
use crate::keys::{REQUESTED_BY, SENTINEL};
use crate::kubernetes::answer::{self, ApiRefusal, plain};
use crate::kubernetes::client::Access;
use crate::maintenance::clock::doubled;
use crate::nodemaintenance::api::{self, WriteError};
use crate::nodemaintenance::kind::{
    MaintenanceAction, MaintenanceOrigin, MaintenanceWindow, NodeMaintenance, NodeMaintenanceSpec,
};
use crate::status::EpisodeOutcome;
use crate::telemetry::log::{LogFormat, log_level};
use crate::window::Window;
use decide::{KnownRequest, RebootFacts, RequestProgress, SentinelNote, SentinelStep, StoredRequestId};

const READ_DEADLINE: Duration = Duration::from_secs(10);

/// The wait after the first failure, which doubles with each further one until it is the interval.
const RETRY_MIN: Duration = Duration::from_secs(2);

/// The wait after a deletion, which another step may follow.
const AFTER_DELETION: Duration = Duration::from_secs(1);

/// The value of `REBOOT_REQUIRED_FILE` with which no file is looked for.
const OFF: &str = "off";

/// The most objects of a node that are read.
const OBJECTS_MAX: u32 = 500;

/// `sentinel`.
#[derive(Clone, Debug, clap::Args)]
pub struct SentinelArgs {
    /// The node on which the sentinel runs
    #[arg(long, env, value_name = "NODE")]
    pub(crate) node_name: String,
    /// A file that requires a reboot while it exists (a path, or off)
    #[arg(long, env, value_name = "FILE", default_value = "/var/run/reboot-required")]
    reboot_required_file: PathBuf,
    /// Interval of checks (1 to 86400)
    #[arg(long = "sentinel-interval-seconds", env = "SENTINEL_INTERVAL_SECONDS", value_name = "SECONDS",
          value_parser = seconds(86_400), default_value = "300")]
    interval: Duration,
    /// The shortest time between two reboots for the sentinel (1 to 31536000)
    ///
    /// A reason that a reboot does not remove must not cause one after the other.
    #[arg(long = "sentinel-pause-seconds", env = "SENTINEL_PAUSE_SECONDS", value_name = "SECONDS",
          value_parser = seconds(31_536_000), default_value = "86400")]
    pause: Duration,
    /// The days and hours in which its requests may begin, such as "Sat,Sun 22:00-04:00 Europe/Berlin"
    #[arg(long = "sentinel-window", env = "SENTINEL_WINDOW", value_name = "WINDOW")]
    window: Option<Window>,
    /// Format of the log
    #[arg(long, env, value_name = "FORMAT", value_enum, ignore_case = true, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// What is logged (off, error, warn, info, debug, trace, or a list such as info,kube=debug)
    #[arg(long, env, value_name = "LEVEL", value_parser = log_level, default_value = "info")]
    pub log_level: String,
    /// A command that requires a reboot with exit code 0, and none with exit code 1
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    pub access: Access,
}

/// Why a round was not complete.
#[derive(Debug, Error)]
enum RoundError {
    #[error("the Node {node} cannot be read: {refusal}")]
    Node { node: String, refusal: ApiRefusal },
    #[error("the Node {node} does not report a boot id")]
    NoBoot { node: String },
    #[error("the NodeMaintenances of {node} cannot be read: {refusal}")]
    Requests { node: String, refusal: ApiRefusal },
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Runs until it is dropped. A command that is running is killed then.
pub(crate) async fn run(args: SentinelArgs, client: kube::Client, clock: fn() -> Timestamp) {
    let sentinel = Sentinel { args, client, clock };
    sentinel.rounds().await;
}

struct Sentinel {
    args: SentinelArgs,
    client: kube::Client,
    clock: fn() -> Timestamp,
}

impl Sentinel {
    async fn rounds(&self) {
        let mut log = ChangeLog::default();
        let mut failures: u32 = 0;
        loop {
            let wait = match self.round(&mut log).await {
                Ok(SentinelStep::Rest | SentinelStep::Ask { .. }) => {
                    failures = 0;
                    self.args.interval
                }
                Ok(SentinelStep::Delete(_)) => {
                    failures = 0;
                    AFTER_DELETION.min(self.args.interval)
                }
                Err(error) => {
                    log.failed(&error.to_string());
                    failures = failures.saturating_add(1);
                    retry_after(failures, self.args.interval)
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Reads, decides, and does one step.
    async fn round(&self, log: &mut ChangeLog) -> Result<SentinelStep, RoundError> {
        let facts = self.read().await?;
        let (step, note) = decide::decide(&facts, self.args.pause);
        log.noted(note);
        match &step {
            SentinelStep::Rest => {}
            SentinelStep::Delete(id) => {
                api::withdraw(&self.client, &id.name, &id.uid, Some(&id.version)).await?;
            }
            SentinelStep::Ask { name, reason } => {
                let spec = NodeMaintenanceSpec {
                    node_name: self.args.node_name.clone(),
                    reason: Some(reason_of(reason)),
                    action: MaintenanceAction::Reboot,
                    window: self.args.window.as_ref().map(MaintenanceWindow::from),
                    ..NodeMaintenanceSpec::default()
                };
                api::request_as_sentinel(&self.client, name, spec).await?;
            }
        }
        log.succeeded();
        Ok(step)
    }

    async fn read(&self) -> Result<RebootFacts, RoundError> {
        let node = &self.args.node_name;
        let nodes: Api<Node> = Api::all(self.client.clone());
        // From the cache of the kube-apiserver: each node has a sentinel, and a step is refused where it is outdated.
        let cached = GetParams::any();
        let object = answer::within(READ_DEADLINE, nodes.get_with(node, &cached)).await;
        let object = object.map_err(|refusal| RoundError::Node {
            node: node.clone(),
            refusal,
        })?;
        let info = object
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref());
        let boot = info
            .map(|info| info.boot_id.clone())
            .filter(|boot| !boot.is_empty());
        let boot = BootId::new(boot.ok_or_else(|| RoundError::NoBoot { node: node.clone() })?);
        let objects: Api<DeserializeGuard<NodeMaintenance>> = Api::all(self.client.clone());
        let of_node = ListParams::default()
            .fields(&format!("spec.nodeName={node}"))
            .limit(OBJECTS_MAX);
        let listed = answer::within(READ_DEADLINE, objects.list(&of_node)).await;
        let listed = listed.map_err(|refusal| RoundError::Requests {
            node: node.clone(),
            refusal,
        })?;
        let readable = listed.items.iter().filter_map(|object| object.0.as_ref().ok());
        let needs = [
            self.by_file().await,
            need::by_command(&self.args.command).await,
            need::by_annotation(object.metadata.annotations.as_ref(), &boot),
        ];
        Ok(RebootFacts {
            now: (self.clock)(),
            node: NodeName::new(node.clone()),
            boot,
            need: need::all(needs),
            requests: readable.filter_map(known_request).collect(),
        })
    }

    async fn by_file(&self) -> decide::RebootNeed {
        let file = &self.args.reboot_required_file;
        if file.as_os_str().eq_ignore_ascii_case(OFF) {
            return decide::RebootNeed::NotRequired;
        }
        need::by_file(file).await
    }
}

/// `spec.reason`, which is as long as the kind allows.
fn reason_of(reason: &str) -> String {
    plain(&format!("a reboot is required: {reason}"))
}

/// A request; `None` for the record of an episode, and for a request that is being deleted.
fn known_request(object: &NodeMaintenance) -> Option<KnownRequest> {
    if object.spec.origin != MaintenanceOrigin::Request || object.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = object.status.clone().unwrap_or_default();
    let progress = match (&status.ended_at, status.state.as_deref()) {
        (Some(ended_at), _) => RequestProgress::Ended {
            at: ended_at.parse().unwrap_or(Timestamp::UNIX_EPOCH),
            succeeded: status.result.as_deref() == Some(EpisodeOutcome::Succeeded.name()),
        },
        (None, None | Some("Queued")) => RequestProgress::NotBegun,
        (None, Some(_)) => RequestProgress::Begun,
    };
    Some(KnownRequest {
        id: StoredRequestId {
            name: object.name_any(),
            uid: RequestUid::new(object.uid().unwrap_or_default()),
            version: object.resource_version().unwrap_or_default(),
        },
        is_ours: object.labels().get(REQUESTED_BY).is_some_and(|by| by == SENTINEL),
        progress,
    })
}

/// The wait after this many failures in a row.
fn retry_after(failures: u32, interval: Duration) -> Duration {
    doubled(RETRY_MIN, failures.saturating_sub(1), interval)
}

/// Logs each change once.
#[derive(Debug, Default)]
struct ChangeLog {
    note: Option<SentinelNote>,
    failure: Option<String>,
}

impl ChangeLog {
    fn noted(&mut self, note: SentinelNote) {
        if self.note.as_ref() == Some(&note) {
            return;
        }
        let text = plain(&note.text);
        if note.needs_person {
            warn!("{text}");
        } else {
            info!("{text}");
        }
        self.note = Some(note);
    }

    fn failed(&mut self, failure: &str) {
        if self.failure.as_deref() != Some(failure) {
            warn!("{}; it is tried again", plain(failure));
            self.failure = Some(failure.to_owned());
        }
    }

    fn succeeded(&mut self) {
        if self.failure.take().is_some() {
            info!("the failure is over");
        }
    }
}

#[cfg(test)]
mod tests;
