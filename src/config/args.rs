//! The settings as they are typed: nothing is checked here but the spelling of the flags.

use secrecy::SecretString;

const VCENTER: &str = "vCenter";
const NODES: &str = "Nodes";
const PACE: &str = "How many nodes at once";
const PERIODS: &str = "Periods and deadlines";
const OPERATION: &str = "Operation";
const REPLICAS: &str = "Several replicas";

/// The settings of the controller.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// The vCenter: a name, name:port or URL (required)
    #[arg(long, env = "VCENTER_HOST", value_name = "HOST", help_heading = VCENTER)]
    pub vcenter_host: Option<String>,
    /// Who logs in to the vCenter (required, or VCENTER_USER_FILE)
    #[arg(long, env = "VCENTER_USER", value_name = "NAME", help_heading = VCENTER)]
    pub vcenter_user: Option<String>,
    /// File with the user name, read again at each login
    #[arg(long, env = "VCENTER_USER_FILE", value_name = "FILE", help_heading = VCENTER)]
    pub vcenter_user_file: Option<String>,
    /// The password (required, or VCENTER_PASSWORD_FILE); as a flag, other users of this machine can see it
    #[arg(long, env = "VCENTER_PASSWORD", value_name = "PASSWORD", help_heading = VCENTER, hide_env_values = true,
          value_parser = secret)]
    pub vcenter_password: Option<SecretString>,
    /// File with the password, read again at each login
    #[arg(long, env = "VCENTER_PASSWORD_FILE", value_name = "FILE", help_heading = VCENTER)]
    pub vcenter_password_file: Option<String>,
    /// PEM file with the certificate authority to trust for the vCenter, beside the system's own
    #[arg(long, env = "VCENTER_CA_BUNDLE", value_name = "FILE", help_heading = VCENTER)]
    pub vcenter_ca_bundle: Option<String>,
    /// Verify the vCenter's certificate; false is ignored beside a CA bundle [default: true]
    #[arg(long, env = "VCENTER_TLS_VERIFY", value_name = "BOOL", help_heading = VCENTER,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub vcenter_tls_verify: Option<String>,
    /// The longest wait for the answer to one call [default: 30; 1 to 600]
    #[arg(long, env = "VCENTER_CALL_TIMEOUT_SECONDS", value_name = "SECONDS", help_heading = VCENTER)]
    pub vcenter_call_timeout_seconds: Option<String>,
    /// How long the vCenter may let a question for updates stand open [default: 120; 1 to 1200]
    #[arg(long, env = "VCENTER_LONG_POLL_SECONDS", value_name = "SECONDS", help_heading = VCENTER)]
    pub vcenter_long_poll_seconds: Option<String>,

    /// Label selector of the nodes to take through maintenance [default: intel.feature.node.kubernetes.io/gpu=true]
    #[arg(long, env = "GPU_NODE_LABEL", value_name = "SELECTOR", help_heading = NODES)]
    pub gpu_node_label: Option<String>,
    /// The resources that must be allocatable again before a node is back, comma-separated
    /// [default: nvidia.com/*,amd.com/*,gpu.intel.com/*]
    #[arg(long, env = "GPU_RESOURCES", value_name = "LIST", help_heading = NODES)]
    pub gpu_resources: Option<String>,
    /// Prefix of the annotations that Haulout keeps on a node [default: vsphere-maintenance.boeye.net]
    #[arg(long, env = "ANNOTATION_PREFIX", value_name = "DNS NAME", help_heading = NODES)]
    pub annotation_prefix: Option<String>,
    /// Bind each node to the VM of the same name, whatever its UUID; without it a name counts only where no UUID is known [default: false]
    #[arg(long, env = "BIND_BY_NAME", value_name = "BOOL", help_heading = NODES,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub bind_by_name: Option<String>,
    /// Watch NodeMaintenance objects: requests of people, and the second copy of each record [default: true]
    #[arg(long, env = "NODE_MAINTENANCES", value_name = "BOOL", help_heading = NODES,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub node_maintenances: Option<String>,
    /// How many ended episodes of a node are kept as NodeMaintenance objects [default: 20; 0 to 1000]
    #[arg(long, env = "NODE_MAINTENANCE_HISTORY", value_name = "OBJECTS", help_heading = NODES)]
    pub node_maintenance_history: Option<String>,

    /// Begin no drain on a node before it is annotated with haulout.dev/approved=true [default: false]
    #[arg(long, env = "REQUIRE_APPROVAL", value_name = "BOOL", help_heading = PACE,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub require_approval: Option<String>,
    /// Nodes between cordon and power-off at once [default: 1; 1 to 1000]
    #[arg(long, env = "MAX_CONCURRENT_DRAINS", value_name = "NODES", help_heading = PACE)]
    pub max_concurrent_drains: Option<String>,
    /// Nodes between cordon and being back at once: a number or a percentage [default: no limit; 1 to 10000, 1% to 100%]
    #[arg(long, env = "MAX_UNAVAILABLE", value_name = "NODES", help_heading = PACE)]
    pub max_unavailable: Option<String>,

    /// How often everything is read again, in case a push was lost [default: 30; 1 to 3600]
    #[arg(long, env = "POLL_INTERVAL_SECONDS", value_name = "SECONDS", help_heading = PERIODS)]
    pub poll_interval_seconds: Option<String>,
    /// The longest drain [default: 600; 1 to 604800]
    #[arg(long, env = "DRAIN_TIMEOUT_SECONDS", value_name = "SECONDS", help_heading = PERIODS)]
    pub drain_timeout_seconds: Option<String>,
    /// After the longest drain: power-off with the pods that are left, or hold [default: power-off]
    #[arg(long, env = "DRAIN_TIMEOUT_ACTION", value_name = "ACTION", help_heading = PERIODS)]
    pub drain_timeout_action: Option<String>,
    /// When a refused eviction is tried again; one that a budget holds, at the latest [default: 5; 1 to 600]
    #[arg(long, env = "EVICTION_RETRY_SECONDS", value_name = "SECONDS", help_heading = PERIODS)]
    pub eviction_retry_seconds: Option<String>,
    /// The longest guest shutdown before the power is cut [default: 120; 1 to 86400]
    #[arg(long, env = "GUEST_SHUTDOWN_TIMEOUT_SECONDS", value_name = "SECONDS", help_heading = PERIODS)]
    pub guest_shutdown_timeout_seconds: Option<String>,
    /// The longest hard power-off before the node is parked as overdue [default: 300; 1 to 86400]
    #[arg(long, env = "POWER_OFF_TIMEOUT_SECONDS", value_name = "SECONDS", help_heading = PERIODS)]
    pub power_off_timeout_seconds: Option<String>,
    /// The longest move to another host [default: 600; 1 to 604800]
    #[arg(long, env = "RELOCATE_TIMEOUT_SECONDS", value_name = "SECONDS", help_heading = PERIODS)]
    pub relocate_timeout_seconds: Option<String>,
    /// The longest wait from power-on until the node is back with its GPUs [default: 300; 1 to 86400]
    #[arg(long, env = "POWER_ON_TIMEOUT_SECONDS", value_name = "SECONDS", help_heading = PERIODS)]
    pub power_on_timeout_seconds: Option<String>,
    /// How long a node stays cordoned after its host's maintenance failed, in case it is tried again [default: 10; 1 to 86400]
    #[arg(long, env = "MAINTENANCE_RETRY_GRACE_SECONDS", value_name = "SECONDS", help_heading = PERIODS)]
    pub maintenance_retry_grace_seconds: Option<String>,
    /// How long a Node may still be shown as Ready after its kubelet has stopped [default: 60; 1 to 3600]
    #[arg(long, env = "NODE_MONITOR_GRACE_SECONDS", value_name = "SECONDS", help_heading = PERIODS)]
    pub node_monitor_grace_seconds: Option<String>,
    /// After how long a drain that is held up gives its place to the next one [default: 1800; 1 to 604800]
    #[arg(long, env = "DRAIN_SLOT_SECONDS", value_name = "SECONDS", help_heading = PERIODS)]
    pub drain_slot_seconds: Option<String>,
    /// The longest wait between two tries of anything that failed [default: 30; 1 to 3600]
    #[arg(long, env = "RETRY_MAX_SECONDS", value_name = "SECONDS", help_heading = PERIODS)]
    pub retry_max_seconds: Option<String>,

    /// Let one of several replicas act, by a Lease: true, false, or auto, which is true inside a cluster [default: auto]
    #[arg(long, env = "LEADER_ELECTION", value_name = "WHEN", help_heading = REPLICAS,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub leader_election: Option<String>,
    /// Name of the Lease; replicas that share it take turns [default: haulout]
    #[arg(long, env = "LEASE_NAME", value_name = "NAME", help_heading = REPLICAS)]
    pub lease_name: Option<String>,
    /// Namespace of the Lease; without it, the pod's own, or that of the kubeconfig
    #[arg(long, env = "LEASE_NAMESPACE", value_name = "NAME", help_heading = REPLICAS)]
    pub lease_namespace: Option<String>,
    /// Which release this is, written into each record; another release leaves it alone. Without it, the Lease's namespace and
    /// name
    #[arg(long, env = "RELEASE", value_name = "NAME", help_heading = REPLICAS)]
    pub release: Option<String>,
    /// Releases whose maintenances this one takes over, separated by commas
    #[arg(long, env = "ADOPT_RELEASES", value_name = "NAMES", help_heading = REPLICAS)]
    pub adopt_releases: Option<String>,
    /// How long a leader that falls silent is waited for; at least one and a half renewal deadlines
    /// [default: 15; 0.5 to 600]
    #[arg(long, env = "LEASE_DURATION_SECONDS", value_name = "SECONDS", help_heading = REPLICAS)]
    pub lease_duration_seconds: Option<String>,
    /// After how long without a renewal a leader ends; at least three retry periods [default: 10; 0.3 to 400]
    #[arg(long, env = "LEASE_RENEW_DEADLINE_SECONDS", value_name = "SECONDS", help_heading = REPLICAS)]
    pub lease_renew_deadline_seconds: Option<String>,
    /// How often a leader renews the Lease, and the others look at it [default: 2; 0.1 to 60]
    #[arg(long, env = "LEASE_RETRY_PERIOD_SECONDS", value_name = "SECONDS", help_heading = REPLICAS)]
    pub lease_retry_period_seconds: Option<String>,

    /// Show an episode in the Node's conditions MaintenancePlanned, DrainInProgress, Drained and MaintenanceInProgress:
    /// well-known or off [default: off]
    #[arg(long, env = "NODE_CONDITIONS", value_name = "WHICH", help_heading = OPERATION)]
    pub node_conditions: Option<String>,
    /// How the log is written: text or json [default: text]
    #[arg(long, env = "LOG_FORMAT", value_name = "FORMAT", help_heading = OPERATION)]
    pub log_format: Option<String>,
    /// What is logged: off, error, warn, info, debug or trace, or a list as info,kube=debug [default: info]
    #[arg(long, env = "LOG_LEVEL", value_name = "LEVEL", help_heading = OPERATION)]
    pub log_level: Option<String>,
    /// File with a level that goes before LOG_LEVEL, read again while the program runs
    #[arg(long, env = "LOG_LEVEL_FILE", value_name = "PATH", help_heading = OPERATION)]
    pub log_level_file: Option<String>,
    /// Where /metrics is served [default: 0.0.0.0:8080; IP:PORT, or off]
    #[arg(long, env = "METRICS_ADDRESS", value_name = "ADDRESS", help_heading = OPERATION)]
    pub metrics_address: Option<String>,
    /// Where /livez and /readyz are served [default: 0.0.0.0:8081; IP:PORT, or off]
    #[arg(long, env = "HEALTH_ADDRESS", value_name = "ADDRESS", help_heading = OPERATION)]
    pub health_address: Option<String>,
    /// Where the status page for people is served [default: off; IP:PORT, or off]
    #[arg(long, env = "STATUS_ADDRESS", value_name = "ADDRESS", help_heading = OPERATION)]
    pub status_address: Option<String>,
    /// Address of a trace in the tracing UI, as https://jaeger.example/trace/{trace_id}; makes the log, the Events and the conditions link to it
    #[arg(long, env = "TRACE_UI_URL_TEMPLATE", value_name = "URL", help_heading = OPERATION)]
    pub trace_ui_url_template: Option<String>,
    /// Decide and log every step, and change nothing, neither in vCenter nor in Kubernetes [default: false]
    #[arg(long, env = "DRY_RUN", value_name = "BOOL", help_heading = OPERATION,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub dry_run: Option<String>,
}

/// Takes a secret out of the reach of `Debug` at the first moment.
fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(SecretString::from(text))
}
