//! The settings. clap parses each one from its flag or environment variable; relations between settings
//! are checked afterwards.
//!
//! Every setting has one name: `POLL_INTERVAL_SECONDS` in the environment is `--poll-interval-seconds`
//! on the command line, which takes precedence.

mod alertmanager;
mod binding;
mod foreign_maintenances;
mod guards;
mod leadership;
mod listen;
mod pace;
pub(crate) mod parse;
mod read;
mod redacted;
mod selector;
mod status;
mod timings;
mod vcenter_report;

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use secrecy::SecretString;

pub use crate::maintenance::policy::{
    DrainTimeoutAction, HookTimeoutAction, Limit, MaintenanceTaint, NodeBinding, StaticDevices, VmotionGrace,
};
pub use alertmanager::AlertmanagerSettings;
pub use binding::BindingSettings;
pub use foreign_maintenances::ForeignMaintenances;
pub use guards::Guards;
pub use leadership::{LeaderElection, LeadershipSettings};
pub use listen::Listen;
pub use pace::PaceSettings;
pub use read::{ConfigError, WrongSetting, read_arguments};
pub use redacted::without_password;
pub use status::{HostNames, StatusSettings};
pub use timings::Timings;
pub use vcenter_report::VcenterReport;

use crate::keys;
use crate::telemetry::log::{LogFormat, log_level};
use crate::vsphere::client::{CredentialPart, CredentialSource};
use listen::listen;
use parse::{
    boolean, count, node_label, one_of, path, seconds, seconds_or_none, secret, text, trace_ui, vmotion_grace,
};
use redacted::redacted;

/// The exit code for a wrong configuration, like clap's for a wrong command line.
pub const EXIT_CODE: u8 = 2;

/// The default GPU resources: those of the three vendors' device plugins.
pub const DEFAULT_GPU_RESOURCES: &str =
    "nvidia.com/*,amd.com/*,gpu.intel.com/*,gpu.nvidia.com,gpu.amd.com,gpu.intel.com";

const VCENTER: &str = "vCenter";
const NODES: &str = "Nodes";
const PERIODS: &str = "Periods and deadlines";
const OPERATION: &str = "Operation";

// The first paragraph of a doc comment is the help text; it ends with the permitted values in
// parentheses. `make docs` writes docs/reference/configuration.md from it. Upper bounds catch mistakes
// such as milliseconds for seconds. What few sites need is hidden in the short help, and advanced in the reference.
/// The settings of the controller. [`Config::describe`] and [`Config::line`] contain no secret.
#[derive(Clone, Debug, clap::Args)]
pub struct Config {
    /// The vCenter, required (a name, name:port or URL)
    #[arg(long, env, value_name = "HOST", help_heading = VCENTER, value_parser = text, default_value = "",
          hide_default_value = true)]
    pub vcenter_host: String,
    /// The user who logs in to the vCenter, required unless VCENTER_USER_FILE is set
    #[arg(long, env, value_name = "NAME", help_heading = VCENTER, value_parser = text)]
    vcenter_user: Option<String>,
    /// File with the user name, read again at each login
    #[arg(long, env, value_name = "FILE", help_heading = VCENTER, value_parser = path)]
    vcenter_user_file: Option<PathBuf>,
    /// The password, required unless VCENTER_PASSWORD_FILE is set
    ///
    /// Given as a flag, other users of the machine can see it.
    #[arg(long, env, value_name = "PASSWORD", help_heading = VCENTER, hide_env_values = true, value_parser = secret)]
    vcenter_password: Option<SecretString>,
    /// File with the password, read again at each login
    ///
    /// A rotated secret needs no restart.
    #[arg(long, env, value_name = "FILE", help_heading = VCENTER, value_parser = path)]
    vcenter_password_file: Option<PathBuf>,
    /// PEM file with certificate authorities to trust for the vCenter, besides the system's own
    ///
    /// It may hold the vCenter's own certificate instead of the CA that issued it.
    #[arg(long, env, value_name = "FILE", help_heading = VCENTER, value_parser = path)]
    pub vcenter_ca_bundle: Option<PathBuf>,
    /// Verify the vCenter's certificate (true, false)
    ///
    /// With false, any certificate is accepted, and the log warns of it; with VCENTER_THUMBPRINT, only that one.
    /// Ignored with VCENTER_CA_BUNDLE.
    #[arg(long, env, value_name = "BOOL", help_heading = VCENTER, value_parser = boolean, default_value = "true",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    vcenter_tls_verify: bool,
    /// SHA-256 thumbprint of the vCenter's certificate (64 hexadecimal digits, colons are optional)
    ///
    /// Checked in addition to issuer, name and validity; with VCENTER_TLS_VERIFY=false it alone is checked. It changes
    /// when the certificate is renewed.
    #[arg(long, env, value_name = "SHA256", help_heading = VCENTER, value_parser = text, hide_short_help = true)]
    pub vcenter_thumbprint: Option<String>,
    /// Where vCenter shows episodes (a list of events and attribute, or none)
    ///
    /// events are those of its host and its VM, and need the privilege Global.LogEvent. attribute is the custom attribute `haulout` of
    /// both, with the present state; it needs Global.SetCustomField, and Global.ManageCustomFields unless an administrator has defined
    /// it. Without a privilege, a warning is logged and maintenance continues.
    #[arg(long, env, value_name = "LIST", help_heading = VCENTER, default_value = "events", hide_short_help = true)]
    pub vcenter_report: VcenterReport,

    /// The nodes to manage (a label selector)
    #[arg(long, env, value_name = "SELECTOR", help_heading = NODES, value_parser = node_label,
          default_value = keys::DEFAULT_NODE_SELECTOR)]
    pub gpu_node_label: String,
    /// The GPUs that must be there again before a node is back (resources and DRA drivers, separated by commas)
    ///
    /// A name with a slash is a resource that must be allocatable, or all of a domain with `*`. A name without one is a driver of
    /// Dynamic Resource Allocation, whose devices must be in ResourceSlices.
    #[arg(long, env, value_name = "LIST", help_heading = NODES, value_parser = text,
          default_value = DEFAULT_GPU_RESOURCES)]
    pub gpu_resources: String,
    #[command(flatten)]
    pub binding: BindingSettings,
    // A NodeMaintenance is some kilobytes; a thousand of each of a hundred nodes would be half of what etcd is made for.
    /// How many ended episodes of a node are kept as NodeMaintenance objects (0 to 1000)
    #[arg(long, env, value_name = "OBJECTS", help_heading = NODES, value_parser = count("objects", 0, 1_000),
          default_value = "20", hide_short_help = true)]
    pub node_maintenance_history: u32,
    /// The other projects whose NodeMaintenance objects are drain requests as well (a list of medik8s, kubevirt and nvidia, or none)
    ///
    /// Their kinds need not be installed yet. Their own operators must not serve the same nodes.
    #[arg(long, env, value_name = "LIST", help_heading = NODES, default_value = "none", hide_short_help = true)]
    pub foreign_node_maintenances: ForeignMaintenances,
    /// How long a Node has the taint haulout.dev/maintenance:NoSchedule, from its cordon
    ///
    /// It keeps pods away also where another controller uncordons the Node. until-back needs a toleration on every DaemonSet
    /// that the node needs to be back, such as GPU drivers and device plugins.
    #[arg(long, env, value_name = "WHEN", help_heading = NODES,
          value_parser = one_of(MaintenanceTaint::ALL, MaintenanceTaint::name),
          ignore_case = true, default_value = MaintenanceTaint::UntilPowerOn.name(), hide_short_help = true)]
    pub maintenance_taint: MaintenanceTaint,
    /// Declare a node out of service while its VM is off with pods or volumes left behind (true, false)
    ///
    /// With the taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, Kubernetes deletes these pods by force and detaches
    /// their volumes, so that they start elsewhere. It is removed before the VM is powered on.
    #[arg(long, env, value_name = "BOOL", help_heading = NODES, value_parser = boolean, default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, hide_short_help = true)]
    pub out_of_service_taint: bool,
    /// Which controllers are kept from acting on a node during its maintenance (a list of queued-taint, cluster-autoscaler, medik8s, nvsentinel, gardener and cluster-api, all, or none)
    ///
    /// queued-taint keeps evicted pods away from the nodes that are drained next, by the taint
    /// haulout.dev/queued:PreferNoSchedule. The others are annotations and labels for the controller of that name.
    #[arg(long, env, value_name = "LIST", help_heading = NODES, default_value = "all", hide_short_help = true)]
    pub guards: Guards,
    /// Kubeconfig of the management cluster of Cluster API, if the Machines are in another cluster than the nodes (a file, or in-cluster)
    ///
    /// in-cluster is the cluster in which Haulout runs, with the service account of its pod.
    #[arg(long, env, value_name = "FILE", help_heading = NODES, value_parser = path, hide_short_help = true)]
    pub management_kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    pub pace: PaceSettings,

    /// Interval of full re-reads, in case an update was lost (1 to 3600)
    #[arg(long = "poll-interval-seconds", env = "POLL_INTERVAL_SECONDS", value_name = "SECONDS",
          help_heading = PERIODS, value_parser = seconds(3_600), default_value = "30", hide_short_help = true)]
    pub poll_interval: Duration,
    /// The longest drain (1 to 604800)
    ///
    /// Counted from the cordon, across restarts. Time in which no pod can be evicted, because no replica runs or vCenter or Kubernetes
    /// is not connected, does not count.
    #[arg(long = "drain-timeout-seconds", env = "DRAIN_TIMEOUT_SECONDS", value_name = "SECONDS",
          help_heading = PERIODS, value_parser = seconds(604_800), default_value = "600")]
    pub drain_timeout: Duration,
    /// Action after the longest drain
    ///
    /// power-off shuts the VM down with the pods that are left. hold waits for them.
    #[arg(long, env, value_name = "ACTION", help_heading = PERIODS,
          value_parser = one_of(&DrainTimeoutAction::ALL, DrainTimeoutAction::name),
          ignore_case = true, default_value = DrainTimeoutAction::PowerOff.name())]
    pub drain_timeout_action: DrainTimeoutAction,
    /// The longest time for which a pod may ask to be waited for (0 to 604800)
    ///
    /// With the annotation haulout.dev/drain=wait, a pod is evicted only if it has not ended by itself by then, counted
    /// from the cordon. The drain timeout begins afterwards. With 0, all pods are evicted at once.
    #[arg(long = "drain-wait-max-seconds", env = "DRAIN_WAIT_MAX_SECONDS", value_name = "SECONDS",
          help_heading = PERIODS, value_parser = seconds_or_none(604_800), default_value = "3600", hide_short_help = true)]
    pub drain_wait_max: Duration,
    /// The longest wait for volumes to be detached after the drain (0 to 86400)
    ///
    /// Those of pods that stay are not waited for. With 0, no volume is.
    #[arg(long = "volume-detach-timeout-seconds", env = "VOLUME_DETACH_TIMEOUT_SECONDS", value_name = "SECONDS",
          help_heading = PERIODS, value_parser = seconds_or_none(86_400), default_value = "120", hide_short_help = true)]
    pub volume_detach_timeout: Duration,
    /// The longest guest shutdown before the power is cut (1 to 86400)
    ///
    /// Counted from the request to the guest.
    #[arg(long = "guest-shutdown-timeout-seconds", env = "GUEST_SHUTDOWN_TIMEOUT_SECONDS", value_name = "SECONDS",
          help_heading = PERIODS, value_parser = seconds(86_400), default_value = "120")]
    pub guest_shutdown_timeout: Duration,
    /// The longest power-on, and again the longest wait for node and GPUs, before the node is parked as overdue (1 to 86400)
    #[arg(long = "power-on-timeout-seconds", env = "POWER_ON_TIMEOUT_SECONDS", value_name = "SECONDS",
          help_heading = PERIODS, value_parser = seconds(86_400), default_value = "300")]
    pub power_on_timeout: Duration,
    /// How long a node stays cordoned after the maintenance of its host failed (1 to 86400)
    ///
    /// A failed maintenance is not cancelled: it may be retried. Set this to the retry delay of a
    /// remediation.
    #[arg(long = "maintenance-retry-grace-seconds", env = "MAINTENANCE_RETRY_GRACE_SECONDS", value_name = "SECONDS",
          help_heading = PERIODS, value_parser = seconds(86_400), default_value = "10", hide_short_help = true)]
    pub maintenance_retry_grace: Duration,
    /// How long vCenter gets to move a VM by vMotion before its node is drained (0 to 86400, unlimited)
    ///
    /// vCenter can move a VM with vGPUs or Enhanced DirectPath I/O devices and no other passthrough device. Other nodes are drained at
    /// once, and with 0 all are. With unlimited, the maintenance of a host leaves such VMs, and those without a passthrough device, to
    /// vCenter; requests still drain their nodes.
    #[arg(long = "vmotion-grace-seconds", env = "VMOTION_GRACE_SECONDS", value_name = "SECONDS",
          help_heading = PERIODS, value_parser = vmotion_grace, default_value = "300", hide_short_help = true)]
    pub vmotion_grace: VmotionGrace,
    /// How long hooks may hold one step of a maintenance (1 to 604800)
    ///
    /// Hooks are annotations of the Node, such as pre-drain.hook.haulout.dev/NAME.
    #[arg(long = "hook-timeout-seconds", env = "HOOK_TIMEOUT_SECONDS", value_name = "SECONDS",
          help_heading = PERIODS, value_parser = seconds(604_800), default_value = "3600", hide_short_help = true)]
    pub hook_timeout: Duration,
    /// Action after hooks have held a step for the longest time
    ///
    /// hold parks the node as overdue until a person removes the hooks. proceed makes the step.
    #[arg(long, env, value_name = "ACTION", help_heading = PERIODS,
          value_parser = one_of(HookTimeoutAction::ALL, HookTimeoutAction::name),
          ignore_case = true, default_value = HookTimeoutAction::Hold.name(), hide_short_help = true)]
    pub hook_timeout_action: HookTimeoutAction,
    /// What happens to a VM with a passthrough device at a fixed address of its host
    ///
    /// wait leaves it off until its own host is back. repoint relocates it to a host with a free device of the same
    /// model, and changes the VM's configuration to that device.
    #[arg(long, env, value_name = "ACTION", help_heading = PERIODS,
          value_parser = one_of(StaticDevices::ALL, StaticDevices::name),
          ignore_case = true, default_value = StaticDevices::Wait.name())]
    pub static_devices: StaticDevices,
    /// How long a host that returned by itself has to stay before it is used (0 to 86400)
    ///
    /// Counts from when vCenter has the host again after it did not respond or was disconnected. It may be under repair
    /// still. Where a user exits maintenance mode, the host is used at once.
    #[arg(long = "host-settle-seconds", env = "HOST_SETTLE_SECONDS", value_name = "SECONDS",
          help_heading = PERIODS, value_parser = seconds_or_none(86_400), default_value = "60", hide_short_help = true)]
    pub host_settle: Duration,

    #[command(flatten)]
    pub leadership: LeadershipSettings,

    /// Format of the log
    #[arg(long, env, value_name = "FORMAT", help_heading = OPERATION, value_enum, ignore_case = true,
          default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// What is logged (off, error, warn, info, debug, trace, or a list such as info,kube=debug)
    #[arg(long, env, value_name = "LEVEL", help_heading = OPERATION, value_parser = log_level, default_value = "info")]
    pub log_level: String,
    /// File with a level that takes precedence over LOG_LEVEL while it is there
    ///
    /// It is read every two seconds: with a mounted ConfigMap the level changes without a restart.
    #[arg(long, env, value_name = "FILE", help_heading = OPERATION, value_parser = path, hide_short_help = true)]
    pub log_level_file: Option<PathBuf>,
    // The usual ports of controllers, so that common ServiceMonitors and probes fit.
    /// Address of /metrics (IP:PORT, or off)
    #[arg(long, env, value_name = "ADDRESS", help_heading = OPERATION, value_parser = listen(8080),
          default_value = "[::]:8080", hide_short_help = true)]
    pub metrics_address: Listen,
    /// Address of /livez and /readyz (IP:PORT, or off)
    #[arg(long, env, value_name = "ADDRESS", help_heading = OPERATION, value_parser = listen(8081),
          default_value = "[::]:8081", hide_short_help = true)]
    pub health_address: Listen,
    #[command(flatten)]
    pub status_page: StatusSettings,
    /// File with an address to which a CloudEvent is sent when a maintenance begins, needs a person, or ends (an http or https URL)
    ///
    /// It is read again for each message. It is a file, because the address of a chat system is a secret.
    #[arg(long, env, value_name = "FILE", help_heading = OPERATION, value_parser = path)]
    pub notify_url_file: Option<PathBuf>,
    /// Address of a trace in the tracing UI (a URL with {trace_id} in it)
    ///
    /// The log, the Events, the conditions and the status page link to it.
    #[arg(long, env, value_name = "URL", help_heading = OPERATION, value_parser = trace_ui)]
    pub trace_ui_url_template: Option<String>,
    /// Decide and log every step, but change nothing in vCenter or Kubernetes (true, false)
    #[arg(long, env, value_name = "BOOL", help_heading = OPERATION, value_parser = boolean, default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub dry_run: bool,

    #[command(flatten)]
    pub alertmanager: AlertmanagerSettings,

    /// Other times than those of [`Timings`], for tests
    #[arg(long, env, hide = true, value_name = "LIST", help_heading = OPERATION)]
    test_timings: Option<Timings>,

    #[arg(skip)]
    effective: Vec<(String, String)>,
}

impl Config {
    /// For each part, either the value or the file is set; [`Self::check`] verifies it.
    pub fn vcenter_credentials(&self) -> CredentialSource {
        let part = |value: Option<SecretString>, file: &Option<PathBuf>| {
            let file = || CredentialPart::File(file.clone().unwrap_or_default());
            value.map_or_else(file, CredentialPart::Given)
        };
        CredentialSource {
            user: part(
                self.vcenter_user.clone().map(SecretString::from),
                &self.vcenter_user_file,
            ),
            password: part(self.vcenter_password.clone(), &self.vcenter_password_file),
        }
    }

    pub fn timings(&self) -> Timings {
        self.test_timings.unwrap_or_default()
    }

    /// How long a node may hold a drain slot. After three times the longest drain, a hold, a hook or a person keeps it.
    pub fn drain_slot(&self) -> Duration {
        self.drain_timeout * 3
    }

    /// Whether the certificate of vCenter is verified. A CA bundle takes precedence.
    pub fn verifies_tls(&self) -> bool {
        self.vcenter_tls_verify || self.vcenter_ca_bundle.is_some()
    }

    /// The effective configuration by name, without secrets.
    pub fn describe(&self) -> &[(String, String)] {
        &self.effective
    }

    /// The settings with a value, in one line.
    pub fn line(&self) -> String {
        let given = self.effective.iter().filter(|(_, value)| !value.is_empty());
        let is_quoted = |c: char| c.is_whitespace() || c.is_control();
        let words = given.map(|(name, value)| match value.contains(is_quoted) {
            true => format!("{name}={value:?}"),
            false => format!("{name}={value}"),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// Keeps the raw values of `matches` for [`Self::describe`].
    pub(crate) fn keep_effective(&mut self, command: &clap::Command, matches: &clap::ArgMatches) {
        let values = command.get_arguments().filter_map(|arg| {
            let name = arg.get_env()?.to_str()?;
            // A list has several values.
            let values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
            let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
            let value = values.join(",").trim().to_owned();
            Some((name.to_owned(), redacted(name, value)))
        });
        self.effective = values.collect();
    }

    /// The problems of combinations of settings.
    pub(crate) fn check(&self) -> Vec<WrongSetting> {
        let mut problems = Vec::new();
        if self.vcenter_host.is_empty() {
            let expected = "the vCenter's name, name:port or URL is expected";
            problems.push(WrongSetting::missing("VCENTER_HOST", expected.to_owned()));
        }
        let (user, password) = (self.vcenter_user.is_some(), self.vcenter_password.is_some());
        let given = [
            ("VCENTER_USER", user, &self.vcenter_user_file),
            ("VCENTER_PASSWORD", password, &self.vcenter_password_file),
        ];
        for (name, has_value, file) in given {
            match (has_value, file) {
                (true, None) | (false, Some(_)) => {}
                (true, Some(path)) => {
                    let path = path.display();
                    let expected = format!("{name}_FILE={path} is set as well; one of the two is expected");
                    problems.push(WrongSetting::new(name, "***", expected));
                }
                (false, None) => problems.push(WrongSetting::missing(
                    name,
                    format!("it or {name}_FILE is expected"),
                )),
            }
        }
        problems.extend(self.leadership.check());
        problems
    }
}

#[cfg(test)]
mod tests;
