//! What Haulout was told to do: the arguments as they were typed become a configuration that is true throughout.
//!
//! Every setting has one name: `POLL_INTERVAL_SECONDS` in the environment is `--poll-interval-seconds` on the command
//! line, which goes first. A variable that is set to nothing counts as not set, as charts like to render them.

mod args;
mod credential;
mod leadership;
mod listen;
mod selector;
mod setting;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

pub use args::Args;
pub use credential::Credential;
pub use leadership::{LeaderElection, Leadership};
pub use listen::Listen;
pub use setting::{ConfigError, EXIT_CODE, Wrong};

use crate::keys;
use listen::Address;
use setting::{Choice, Found, Range, Seconds};

/// The GPU resources unless others are configured: those of the three vendors' device plugins.
pub const DEFAULT_GPU_RESOURCES: &str = "nvidia.com/*,amd.com/*,gpu.intel.com/*";

/// What a trace's id takes the place of in `TRACE_UI_URL_TEMPLATE`.
pub const TRACE_ID: &str = "{trace_id}";

// Upper bounds keep typing errors out, as milliseconds for seconds; they lie well above what anybody has asked for.
const POLL_INTERVAL: Seconds = Seconds::new("POLL_INTERVAL_SECONDS", 30, 3_600);
const DRAIN_TIMEOUT: Seconds = Seconds::new("DRAIN_TIMEOUT_SECONDS", 600, 604_800);
const EVICTION_RETRY: Seconds = Seconds::new("EVICTION_RETRY_SECONDS", 5, 600);
const GUEST_SHUTDOWN_TIMEOUT: Seconds = Seconds::new("GUEST_SHUTDOWN_TIMEOUT_SECONDS", 120, 86_400);
const RELOCATE_TIMEOUT: Seconds = Seconds::new("RELOCATE_TIMEOUT_SECONDS", 600, 604_800);
const POWER_ON_TIMEOUT: Seconds = Seconds::new("POWER_ON_TIMEOUT_SECONDS", 300, 86_400);
const POWER_OFF_TIMEOUT: Seconds = Seconds::new("POWER_OFF_TIMEOUT_SECONDS", 300, 86_400);
const MAINTENANCE_RETRY_GRACE: Seconds = Seconds::new("MAINTENANCE_RETRY_GRACE_SECONDS", 10, 86_400);
// kube-controller-manager shows a Node as not Ready after 50 s without its kubelet (`--node-monitor-grace-period`).
const NODE_MONITOR_GRACE: Seconds = Seconds::new("NODE_MONITOR_GRACE_SECONDS", 60, 3_600);
const DRAIN_SLOT: Seconds = Seconds::new("DRAIN_SLOT_SECONDS", 1_800, 604_800);
const RETRY_MAX: Seconds = Seconds::new("RETRY_MAX_SECONDS", 30, 3_600);
const VCENTER_CALL_TIMEOUT: Seconds = Seconds::new("VCENTER_CALL_TIMEOUT_SECONDS", 30, 600);
// vCenter ends a session that is idle for 30 minutes; a poll must end well before. Proxies end a call that is silent for
// longer than some minutes. At two minutes the two polls of an idle Haulout are one call a minute.
const VCENTER_LONG_POLL: Seconds = Seconds::new("VCENTER_LONG_POLL_SECONDS", 120, 1_200);
const MAX_CONCURRENT_DRAINS: Range = Range::new("MAX_CONCURRENT_DRAINS", "nodes", 1, 1_000);
// A NodeMaintenance is some kilobytes; a thousand of each of a hundred nodes would be half of what etcd likes to hold.
const NODE_MAINTENANCE_HISTORY: Range = Range::new("NODE_MAINTENANCE_HISTORY", "objects", 0, 1_000);
const DRAIN_TIMEOUT_ACTION: Choice<DrainTimeoutAction> = Choice::new(
    "DRAIN_TIMEOUT_ACTION",
    &[
        ("power-off", DrainTimeoutAction::PowerOff),
        ("hold", DrainTimeoutAction::Hold),
    ],
);
const LOG_FORMAT: Choice<LogFormat> = Choice::new(
    "LOG_FORMAT",
    &[("text", LogFormat::Text), ("json", LogFormat::Json)],
);

const NODE_CONDITIONS: Choice<NodeConditions> = Choice::new(
    "NODE_CONDITIONS",
    &[
        ("well-known", NodeConditions::WellKnown),
        ("off", NodeConditions::Off),
    ],
);
// The ports that controllers have by habit: a ServiceMonitor and a probe copied from another one fit.
const METRICS_ADDRESS: Address = Address::new("METRICS_ADDRESS", 8080);
const HEALTH_ADDRESS: Address = Address::new("HEALTH_ADDRESS", 8081);
const STATUS_ADDRESS: Address = Address::off("STATUS_ADDRESS", 8082);

/// The whole configuration. `Debug` and [`Config::describe`] mask the secrets.
#[derive(Clone, Debug)]
pub struct Config {
    /// The vCenter as it was given: a name, `name:port` or a URL. The vSphere half reads it.
    pub vcenter_host: String,
    /// Who logs in.
    pub vcenter_user: Credential,
    /// The password.
    pub vcenter_password: Credential,
    /// PEM file with certificate authorities to trust for the vCenter.
    pub vcenter_ca_bundle: Option<PathBuf>,
    /// Whether the vCenter's certificate is verified. Always true with a CA bundle, which goes first.
    pub vcenter_tls_verify: bool,
    /// The longest wait for the answer to one call.
    pub vcenter_call_timeout: Duration,
    /// How long the vCenter may let a question for updates stand open.
    pub vcenter_long_poll: Duration,
    /// Label selector of the nodes that are taken through maintenance.
    pub gpu_node_label: String,
    /// Which resources are GPUs, as it was given. The Kubernetes half reads it.
    pub gpu_resources: String,
    /// Prefix of the annotations, without the slash.
    pub annotation_prefix: String,
    /// Whether a VM may be bound to a node by its name alone.
    pub bind_by_name: bool,
    /// Whether NodeMaintenance objects are watched and written.
    pub node_maintenances: bool,
    /// How many ended episodes of a node are kept as NodeMaintenance objects.
    pub node_maintenance_history: u32,
    /// Whether a drain begins only on a node that a person has approved.
    pub require_approval: bool,
    /// How often everything is read again, in case the push was lost.
    pub poll_interval: Duration,
    /// The longest drain.
    pub drain_timeout: Duration,
    /// What happens to a node whose drain takes longer.
    pub drain_timeout_action: DrainTimeoutAction,
    /// When a refused eviction is tried again.
    pub eviction_retry: Duration,
    /// The longest wait for the guest to shut down before its power is cut.
    pub guest_shutdown_timeout: Duration,
    /// The longest cold relocate.
    pub relocate_timeout: Duration,
    /// The longest wait from power-on until the node is back with its GPUs.
    pub power_on_timeout: Duration,
    /// The longest hard power-off.
    pub power_off_timeout: Duration,
    /// How long a node stays as it is after the maintenance of its host failed.
    pub maintenance_retry_grace: Duration,
    /// How long a Node may be shown as Ready after its kubelet has stopped.
    pub node_monitor_grace: Duration,
    /// How long a drain may hold its place.
    pub drain_slot: Duration,
    /// The longest wait between two tries of anything that failed.
    pub retry_max: Duration,
    /// How many nodes may be between cordon and power-off at once.
    pub max_concurrent_drains: u32,
    /// How many nodes may be out of service at once.
    pub max_unavailable: MaxUnavailable,
    /// Whether and how several replicas take turns.
    pub leadership: Leadership,
    /// Whether an episode also shows in conditions of its Node.
    pub node_conditions: NodeConditions,
    /// How the log is written.
    pub log_format: LogFormat,
    /// What is logged: a level, or a list of `target=level`.
    pub log_level: String,
    /// The file that goes before it while it is there, and is read again while the program runs.
    pub log_level_file: Option<PathBuf>,
    /// Where metrics are served.
    pub metrics_address: Listen,
    /// Where the health checks are served.
    pub health_address: Listen,
    /// Where the status page is served.
    pub status_address: Listen,
    /// The address of a trace in the tracing UI, with [`TRACE_ID`] in the place of its id.
    pub trace_ui_url_template: Option<String>,
    /// Whether everything is decided and nothing done.
    pub dry_run: bool,
}

/// What happens to a node whose drain takes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainTimeoutAction {
    /// Its VM is shut down with the pods that are left, which are named.
    PowerOff,
    /// It waits for the pods, for ever if need be.
    Hold,
}

/// How many nodes may be out of service at once, from cordon until they are back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxUnavailable {
    /// As many as there are.
    Unlimited,
    /// This many.
    Nodes(u32),
    /// This part of the nodes that the selector matches, in percent.
    Percent(u8),
}

/// Whether an episode also shows in conditions of its Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeConditions {
    /// In those of KEP-5683, while it lasts.
    WellKnown,
    /// In none: they cost a second PATCH for most changes of phase, and a right that nothing else needs.
    Off,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Config {
    /// Reads what was typed. All that is wrong is told at once.
    pub fn from_args(args: Args) -> Result<Self, ConfigError> {
        let Args {
            vcenter_host,
            vcenter_user,
            vcenter_user_file,
            vcenter_password,
            vcenter_password_file,
            vcenter_ca_bundle,
            vcenter_tls_verify,
            vcenter_call_timeout_seconds,
            vcenter_long_poll_seconds,
            gpu_node_label,
            gpu_resources,
            annotation_prefix,
            bind_by_name,
            node_maintenances,
            node_maintenance_history,
            require_approval,
            poll_interval_seconds,
            drain_timeout_seconds,
            drain_timeout_action,
            eviction_retry_seconds,
            guest_shutdown_timeout_seconds,
            relocate_timeout_seconds,
            power_on_timeout_seconds,
            power_off_timeout_seconds,
            maintenance_retry_grace_seconds,
            node_monitor_grace_seconds,
            drain_slot_seconds,
            retry_max_seconds,
            max_concurrent_drains,
            max_unavailable,
            leader_election,
            lease_name,
            lease_namespace,
            release,
            adopt_releases,
            lease_duration_seconds,
            lease_renew_deadline_seconds,
            lease_retry_period_seconds,
            node_conditions,
            log_format,
            log_level,
            log_level_file,
            metrics_address,
            health_address,
            status_address,
            trace_ui_url_template,
            dry_run,
        } = args;
        let found = &mut Found::default();
        let user = vcenter_user.map(SecretString::from);
        let ca_bundle = setting::given(vcenter_ca_bundle).map(PathBuf::from);
        let verify = setting::boolean("VCENTER_TLS_VERIFY", vcenter_tls_verify, true, found);
        let config = Self {
            vcenter_host: host(vcenter_host, found),
            vcenter_user: Credential::read_args("VCENTER_USER", user, vcenter_user_file, found),
            vcenter_password: Credential::read_args(
                "VCENTER_PASSWORD",
                vcenter_password,
                vcenter_password_file,
                found,
            ),
            vcenter_tls_verify: verify || ca_bundle.is_some(),
            vcenter_ca_bundle: ca_bundle,
            vcenter_call_timeout: VCENTER_CALL_TIMEOUT.read(vcenter_call_timeout_seconds, found),
            vcenter_long_poll: VCENTER_LONG_POLL.read(vcenter_long_poll_seconds, found),
            gpu_node_label: node_label(gpu_node_label, found),
            gpu_resources: setting::given(gpu_resources).unwrap_or_else(|| DEFAULT_GPU_RESOURCES.to_owned()),
            annotation_prefix: prefix(annotation_prefix, found),
            bind_by_name: setting::boolean("BIND_BY_NAME", bind_by_name, false, found),
            node_maintenances: setting::boolean("NODE_MAINTENANCES", node_maintenances, true, found),
            node_maintenance_history: NODE_MAINTENANCE_HISTORY.read(node_maintenance_history, 20, found),
            require_approval: setting::boolean("REQUIRE_APPROVAL", require_approval, false, found),
            poll_interval: POLL_INTERVAL.read(poll_interval_seconds, found),
            drain_timeout: DRAIN_TIMEOUT.read(drain_timeout_seconds, found),
            drain_timeout_action: DRAIN_TIMEOUT_ACTION.read(
                drain_timeout_action,
                DrainTimeoutAction::PowerOff,
                found,
            ),
            eviction_retry: EVICTION_RETRY.read(eviction_retry_seconds, found),
            guest_shutdown_timeout: GUEST_SHUTDOWN_TIMEOUT.read(guest_shutdown_timeout_seconds, found),
            relocate_timeout: RELOCATE_TIMEOUT.read(relocate_timeout_seconds, found),
            power_on_timeout: POWER_ON_TIMEOUT.read(power_on_timeout_seconds, found),
            power_off_timeout: POWER_OFF_TIMEOUT.read(power_off_timeout_seconds, found),
            maintenance_retry_grace: MAINTENANCE_RETRY_GRACE.read(maintenance_retry_grace_seconds, found),
            node_monitor_grace: NODE_MONITOR_GRACE.read(node_monitor_grace_seconds, found),
            drain_slot: DRAIN_SLOT.read(drain_slot_seconds, found),
            retry_max: RETRY_MAX.read(retry_max_seconds, found),
            max_concurrent_drains: MAX_CONCURRENT_DRAINS.read(max_concurrent_drains, 1, found),
            max_unavailable: unavailable(max_unavailable, found),
            leadership: Leadership::read(
                leadership::Typed {
                    election: leader_election,
                    name: lease_name,
                    namespace: lease_namespace,
                    release,
                    adopt_releases,
                    duration: lease_duration_seconds,
                    renew_deadline: lease_renew_deadline_seconds,
                    retry_period: lease_retry_period_seconds,
                },
                found,
            ),
            node_conditions: NODE_CONDITIONS.read(node_conditions, NodeConditions::Off, found),
            log_format: LOG_FORMAT.read(log_format, LogFormat::Text, found),
            log_level: level(log_level, found),
            log_level_file: setting::given(log_level_file).map(PathBuf::from),
            metrics_address: METRICS_ADDRESS.read(metrics_address, found),
            health_address: HEALTH_ADDRESS.read(health_address, found),
            status_address: STATUS_ADDRESS.read(status_address, found),
            trace_ui_url_template: trace_ui(trace_ui_url_template, found),
            dry_run: setting::boolean("DRY_RUN", dry_run, false, found),
        };
        std::mem::take(found).into_result(config)
    }

    /// The effective configuration by the settings' names, without the password.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let seconds = |duration: Duration| duration.as_secs().to_string();
        let Self {
            vcenter_host,
            vcenter_user,
            vcenter_password,
            vcenter_ca_bundle,
            vcenter_tls_verify,
            vcenter_call_timeout,
            vcenter_long_poll,
            gpu_node_label,
            gpu_resources,
            annotation_prefix,
            bind_by_name,
            node_maintenances,
            node_maintenance_history,
            require_approval,
            poll_interval,
            drain_timeout,
            drain_timeout_action,
            eviction_retry,
            guest_shutdown_timeout,
            relocate_timeout,
            power_on_timeout,
            power_off_timeout,
            maintenance_retry_grace,
            node_monitor_grace,
            drain_slot,
            retry_max,
            max_concurrent_drains,
            max_unavailable,
            leadership,
            node_conditions,
            log_format,
            log_level,
            log_level_file,
            metrics_address,
            health_address,
            status_address,
            trace_ui_url_template,
            dry_run,
        } = self;
        let path = |path: &Option<PathBuf>| {
            let path = path.as_ref().map(|path| path.display().to_string());
            path.unwrap_or_default()
        };
        let mut described = vec![
            ("VCENTER_HOST", without_password(vcenter_host)),
            ("VCENTER_USER", vcenter_user.describe(|user| user.to_owned())),
            (
                "VCENTER_PASSWORD",
                vcenter_password.describe(|_| "***".to_owned()),
            ),
            ("VCENTER_CA_BUNDLE", path(vcenter_ca_bundle)),
            ("VCENTER_TLS_VERIFY", vcenter_tls_verify.to_string()),
            (VCENTER_CALL_TIMEOUT.name(), seconds(*vcenter_call_timeout)),
            (VCENTER_LONG_POLL.name(), seconds(*vcenter_long_poll)),
            ("GPU_NODE_LABEL", gpu_node_label.clone()),
            ("GPU_RESOURCES", gpu_resources.clone()),
            ("ANNOTATION_PREFIX", annotation_prefix.clone()),
            ("BIND_BY_NAME", bind_by_name.to_string()),
            ("NODE_MAINTENANCES", node_maintenances.to_string()),
            (
                NODE_MAINTENANCE_HISTORY.name(),
                node_maintenance_history.to_string(),
            ),
            ("REQUIRE_APPROVAL", require_approval.to_string()),
            (POLL_INTERVAL.name(), seconds(*poll_interval)),
            (DRAIN_TIMEOUT.name(), seconds(*drain_timeout)),
            (
                DRAIN_TIMEOUT_ACTION.name(),
                DRAIN_TIMEOUT_ACTION.word(*drain_timeout_action),
            ),
            (EVICTION_RETRY.name(), seconds(*eviction_retry)),
            (GUEST_SHUTDOWN_TIMEOUT.name(), seconds(*guest_shutdown_timeout)),
            (RELOCATE_TIMEOUT.name(), seconds(*relocate_timeout)),
            (POWER_ON_TIMEOUT.name(), seconds(*power_on_timeout)),
            (POWER_OFF_TIMEOUT.name(), seconds(*power_off_timeout)),
            (MAINTENANCE_RETRY_GRACE.name(), seconds(*maintenance_retry_grace)),
            (NODE_MONITOR_GRACE.name(), seconds(*node_monitor_grace)),
            (DRAIN_SLOT.name(), seconds(*drain_slot)),
            (RETRY_MAX.name(), seconds(*retry_max)),
            (MAX_CONCURRENT_DRAINS.name(), max_concurrent_drains.to_string()),
            ("MAX_UNAVAILABLE", max_unavailable.to_string()),
        ];
        described.extend(leadership.describe());
        described.extend([
            (NODE_CONDITIONS.name(), NODE_CONDITIONS.word(*node_conditions)),
            (LOG_FORMAT.name(), LOG_FORMAT.word(*log_format)),
            ("LOG_LEVEL", log_level.clone()),
            ("LOG_LEVEL_FILE", path(log_level_file)),
            (METRICS_ADDRESS.name(), metrics_address.to_string()),
            (HEALTH_ADDRESS.name(), health_address.to_string()),
            (STATUS_ADDRESS.name(), status_address.to_string()),
            (
                "TRACE_UI_URL_TEMPLATE",
                trace_ui_url_template.clone().unwrap_or_default(),
            ),
            ("DRY_RUN", dry_run.to_string()),
        ]);
        described
    }
}

impl fmt::Display for MaxUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Nodes(nodes) => write!(f, "{nodes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

fn host(host: Option<String>, found: &mut Found) -> String {
    setting::given(host).unwrap_or_else(|| {
        found.missing(
            "VCENTER_HOST",
            "the vCenter's name, name:port or URL is expected".to_owned(),
        );
        String::new()
    })
}

/// A host as it was given, but for credentials that someone wrote into the URL: for whatever shows it to people.
pub fn without_password(host: &str) -> String {
    match host.rsplit_once('@') {
        Some((_, host)) => format!("***@{host}"),
        None => host.to_owned(),
    }
}

fn node_label(label: Option<String>, found: &mut Found) -> String {
    let label = setting::given(label).unwrap_or_else(|| keys::DEFAULT_NODE_SELECTOR.to_owned());
    if !selector::is_selector(&label) {
        found.wrong(
            "GPU_NODE_LABEL",
            &label,
            "a label selector is expected, such as key=value, key, !key or key in (a,b), joined by commas"
                .to_owned(),
        );
    }
    label
}

fn prefix(prefix: Option<String>, found: &mut Found) -> String {
    let given = setting::given(prefix).unwrap_or_else(|| keys::DEFAULT_PREFIX.to_owned());
    let prefix = given.trim_end_matches('/');
    if !selector::is_dns_subdomain(prefix) {
        found.wrong(
            "ANNOTATION_PREFIX",
            &given,
            "a DNS name of 1 to 253 lower-case letters, digits, hyphens and dots is expected".to_owned(),
        );
    }
    prefix.to_owned()
}

fn unavailable(given: Option<String>, found: &mut Found) -> MaxUnavailable {
    let Some(text) = setting::given(given) else {
        return MaxUnavailable::Unlimited;
    };
    let read = match text.strip_suffix('%') {
        Some(percent) => percent
            .parse::<u8>()
            .ok()
            .filter(|percent| (1..=100).contains(percent))
            .map(MaxUnavailable::Percent),
        None => text
            .parse::<u32>()
            .ok()
            .filter(|nodes| (1..=10_000).contains(nodes))
            .map(MaxUnavailable::Nodes),
    };
    read.unwrap_or_else(|| {
        found.wrong(
            "MAX_UNAVAILABLE",
            &text,
            "1 to 10000 nodes or 1% to 100% is expected, or nothing for no limit".to_owned(),
        );
        MaxUnavailable::Unlimited
    })
}

fn trace_ui(given: Option<String>, found: &mut Found) -> Option<String> {
    let template = setting::given(given)?;
    let is_address = template.starts_with("https://") || template.starts_with("http://");
    if !is_address || !template.contains(TRACE_ID) {
        found.wrong(
            "TRACE_UI_URL_TEMPLATE",
            &template,
            format!("an http or https address with {TRACE_ID} in it is expected"),
        );
    }
    Some(template)
}

fn level(given: Option<String>, found: &mut Found) -> String {
    let text = setting::given(given).unwrap_or_else(|| "info".to_owned());
    log_level(&text).unwrap_or_else(|expected| {
        found.wrong("LOG_LEVEL", &text, expected);
        text
    })
}

/// What is logged, read from `text`.
///
/// # Errors
/// What is expected in the place of something else.
pub fn log_level(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let text = text.trim().to_lowercase();
    let is_directive = |entry: &str| {
        let (target, level) = entry.rsplit_once('=').unwrap_or(("haulout", entry));
        LEVELS.contains(&level)
            && !target.is_empty()
            && target
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
    };
    if text.split(',').all(is_directive) {
        Ok(text)
    } else {
        Err(format!(
            "one of {} is expected, or a list as info,kube=debug",
            LEVELS.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests;
