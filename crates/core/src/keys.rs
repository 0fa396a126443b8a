//! Every annotation key and field manager that Haulout uses; the only file with a domain name in it.

/// The prefix of our annotations unless another is configured: the Python controller's, so that scripts that read its
/// annotations go on working and its episodes in flight are adopted.
pub const DEFAULT_PREFIX: &str = "vsphere-maintenance.boeye.net";

/// The field manager of our PATCHes, by which `metadata.managedFields` distinguishes our cordon from others.
pub const FIELD_MANAGER: &str = "haulout";

/// The field manager of the command line, which must differ from that of the controller.
pub const CLI_MANAGER: &str = "kubectl-haulout";

/// The `reportingController` of our Events.
pub const REPORTING_CONTROLLER: &str = "haulout.dev/controller";

/// The label selector of GPU nodes unless another is configured: the Python controller's default.
pub const DEFAULT_NODE_SELECTOR: &str = "intel.feature.node.kubernetes.io/gpu=true";

/// An annotation that people set on a Node: with `true`, Haulout leaves it alone.
pub const SKIP: &str = "haulout.dev/skip";

/// An annotation that people set on a Node: with `true`, its next drain may begin where `REQUIRE_APPROVAL` is set. Haulout removes
/// it at the end of the episode.
pub const APPROVED: &str = "haulout.dev/approved";

/// An annotation that people set on a Node: `migrate` or `wait`.
pub const STRATEGY: &str = "haulout.dev/strategy";

/// The annotation on the Lease of the leader election: with `true`, the leader lets another replica take the Lease.
pub const YIELDS: &str = "haulout.dev/yields";

/// The annotation on the Lease that notes a login that vCenter refused: time and user.
pub const LOGIN_REFUSED: &str = "haulout.dev/login-refused";

/// The full keys of our annotations under one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// `draining`, `powered-off` or `migrated`.
    pub state: String,
    /// The host that triggered maintenance.
    pub host: String,
    /// The host the VM was moved to.
    pub migrated_to_host: String,
    /// When the last transition happened.
    pub transition_time: String,
    /// The versioned JSON with the rest.
    pub episode: String,
    /// The versioned JSON of the episode that ended last.
    pub last_episode: String,
    /// Set by people: the Node stays cordoned at the end.
    pub keep_cordoned: String,
    /// The UID of the latest fulfilled request. It is written with the end of the episode, so that a crash before the update of
    /// the request's status does not start it again.
    pub fulfilled: String,
}

impl Keys {
    /// Each annotation on a Node with its meaning, those of Haulout first.
    pub fn described(&self) -> Vec<(&str, &'static str)> {
        // Destructured, so that a new key is not forgotten here.
        let Self {
            state,
            host,
            migrated_to_host,
            transition_time,
            episode,
            last_episode,
            keep_cordoned,
            fulfilled,
        } = self;
        vec![
            (
                state,
                "`draining`, `powered-off` or `migrated`; absent while queued",
            ),
            (host, "the ESXi host whose maintenance it is about"),
            (migrated_to_host, "the host the VM was moved to, with `migrated`"),
            (transition_time, "when that began, ISO 8601"),
            (
                episode,
                "the record that a restart goes on from, as versioned JSON: the exact phase and since when, who clicked, whose \
                 the cordon is, UUID and moref of the VM, boot id and GPU count before, what was requested of vCenter, which \
                 hosts refused the VM, pods left behind",
            ),
            (
                fulfilled,
                "the UID of the last NodeMaintenance that was fulfilled on this node; it stays",
            ),
            (
                last_episode,
                "the episode that ended last, until the next one begins; by it a VM that goes off too late is brought back",
            ),
            (
                keep_cordoned,
                "yours: `true` keeps the node cordoned at the end of the episode",
            ),
            (
                SKIP,
                "yours: while it is `true`, Haulout leaves the node alone, and says so",
            ),
            (
                APPROVED,
                "yours: `true` lets the next drain begin where `REQUIRE_APPROVAL` is set; it is removed at the end, so it \
                 approves one",
            ),
            (
                STRATEGY,
                "yours: `migrate` (the default) moves the VM where another host can take it, `wait` keeps it for its own host",
            ),
        ]
    }

    /// The keys under `prefix`, with or without a trailing slash.
    pub fn under(prefix: &str) -> Self {
        let prefix = prefix.trim_end_matches('/');
        let key = |name: &str| format!("{prefix}/{name}");
        Self {
            state: key("state"),
            host: key("host"),
            migrated_to_host: key("migrated-to-host"),
            transition_time: key("transition-time"),
            episode: key("episode"),
            last_episode: key("last-episode"),
            keep_cordoned: key("keep-cordoned"),
            fulfilled: key("fulfilled-request"),
        }
    }
}
