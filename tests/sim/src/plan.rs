//! What a seed decides before a run: sizes, settings, faults, and what people do.

use std::time::Duration;

use fastrand::Rng;

use crate::faults::{Fault, Faults};
use crate::holds::Holds;

/// The settings of a process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `DRAIN_TIMEOUT_SECONDS`; the longest time there is where the drain is held.
    pub drain_timeout: Duration,
    /// `GUEST_SHUTDOWN_TIMEOUT_SECONDS`.
    pub guest_timeout: Duration,
    /// All of them, as flags.
    pub flags: Vec<String>,
}

impl Settings {
    fn of(flags: &[(&str, String)]) -> Self {
        let value = |name: &str| {
            flags
                .iter()
                .find(|flag| flag.0 == name)
                .map(|flag| flag.1.as_str())
        };
        let seconds = |name: &str| value(name).and_then(|seconds| seconds.parse().ok());
        let drain_timeout = seconds("drain-timeout-seconds").map_or(Duration::MAX, Duration::from_secs);
        let is_held = value("drain-timeout-action") == Some("hold");
        Self {
            drain_timeout: if is_held { Duration::MAX } else { drain_timeout },
            guest_timeout: Duration::from_secs(seconds("guest-shutdown-timeout-seconds").unwrap_or_default()),
            flags: flags
                .iter()
                .map(|(name, value)| format!("--{name}={value}"))
                .collect(),
        }
    }

    /// Other values for some of `flags`, and values of settings that they do not name.
    fn other(mut flags: Vec<(&'static str, String)>, rng: &mut Rng) -> Self {
        let others = [
            ("drain-timeout-seconds", rng.u64(60..400).to_string()),
            ("guest-shutdown-timeout-seconds", rng.u64(20..120).to_string()),
            ("poll-interval-seconds", rng.u64(20..60).to_string()),
            ("max-concurrent-drains", rng.u64(1..=3).to_string()),
            ("host-settle-seconds", rng.u64(0..60).to_string()),
            ("drain-timeout-action", "hold".to_owned()),
            ("volume-detach-timeout-seconds", rng.u64(0..60).to_string()),
            ("power-on-timeout-seconds", rng.u64(10..300).to_string()),
            ("maintenance-retry-grace-seconds", rng.u64(1..60).to_string()),
            (
                "maintenance-taint",
                ["off", "until-back"][rng.usize(0..2)].to_owned(),
            ),
            ("out-of-service-taint", "true".to_owned()),
            ("guards", ["none", "queued-taint"][rng.usize(0..2)].to_owned()),
            ("max-unavailable", rng.u64(1..=2).to_string()),
            ("static-devices", "repoint".to_owned()),
            ("vmotion-grace-seconds", "unlimited".to_owned()),
        ];
        for (name, value) in others {
            if rng.bool() {
                flags.retain(|flag| flag.0 != name);
                flags.push((name, value));
            }
        }
        Self::of(&flags)
    }
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// The number of nodes, each with a VM on a host of its own.
    pub nodes: usize,
    /// The number of other hosts with a GPU.
    pub spares: usize,
    /// The number of VMs of others.
    pub others: usize,
    /// The number of replicas of the controller.
    pub replicas: usize,
    /// How long people act and faults happen.
    pub active: Duration,
    /// How long it may take until everything is at rest afterwards.
    pub rest: Duration,
    /// The settings of the controller.
    pub settings: Settings,
    /// Those that a replica has after it was restarted with other ones.
    pub other_settings: Settings,
    /// The limits on how many nodes are away at once, as flags. All replicas have them.
    pub limits: Vec<String>,
    pub faults: Faults,
    /// How many things people do.
    pub deeds: usize,
    /// How many times faster than real ones hosts, guests and kubelets are.
    pub speed: u32,
    /// There are pods from the beginning.
    pub has_workloads: bool,
    /// A controller creates its pod with `spec.nodeName`, so that it comes back whatever its node is.
    pub has_pinned_pod: bool,
    /// Finalizers keep some Pods with which their kubelets are done.
    pub has_finalizers: bool,
    /// The VMs have vGPUs, and vCenter can move them by vMotion.
    pub has_vgpus: bool,
    /// The node that has a reboot sentinel.
    pub sentinel: Option<usize>,
    /// What people hold.
    pub holds: Holds,
    /// How many annotations people give to Nodes for some time.
    pub overrides: usize,
    /// In a run without faults: how many times somebody uncordons a node in an episode, and again where it is cordoned.
    pub insists: usize,
    /// In a run that is compared with one without faults: the nodes whose hosts are maintained, one after the other.
    pub in_turn: Vec<usize>,
}

/// Every how manyth seed is compared with a run without faults. Every second of these has only hostile ones.
const COMPARED: u64 = 20;

impl Plan {
    /// The plan of `seed`. A fifth of the seeds has no faults and lasts longer, or is compared with such a run.
    pub fn draw(seed: u64, rng: &mut Rng) -> Self {
        let plan = Self::draw_any(seed, rng);
        if seed % COMPARED == COMPARED / 2 {
            plan.compared(seed, rng)
        } else {
            plan
        }
    }

    fn compared(self, seed: u64, rng: &mut Rng) -> Self {
        let nodes = self.nodes.clamp(2, 6);
        Self {
            nodes,
            spares: self.spares.min(nodes),
            // A kubelet may claim a VM that no other node has: docs/security.md says what limits that.
            others: 0,
            active: Duration::from_secs(60 * 60),
            faults: Faults::draw_that_keep_effects(rng, seed % (2 * COMPARED) == COMPARED / 2),
            deeds: 0,
            has_pinned_pod: false,
            has_vgpus: false,
            holds: Holds::default(),
            overrides: 0,
            insists: 0,
            sentinel: None,
            // The first kubelet lies.
            in_turn: (0..8).map(|_| rng.usize(1..nodes)).collect(),
            // A limit makes a maintenance wait for what the other run does at another time.
            limits: Vec::new(),
            ..self
        }
    }

    /// The limits on how many nodes are away at once, as flags. Of each kind, none is the usual case.
    fn draw_limits(rng: &mut Rng) -> Vec<String> {
        const LIMITS: [(&str, [&str; 6]); 3] = [
            (
                "max-unavailable",
                ["unlimited", "unlimited", "1", "1", "2", "50%"],
            ),
            (
                "max-unavailable-gpus",
                ["unlimited", "unlimited", "unlimited", "1", "2", "50%"],
            ),
            (
                "max-power-offs-per-hour",
                ["unlimited", "unlimited", "unlimited", "unlimited", "3", "6"],
            ),
        ];
        let flags = LIMITS.map(|(name, values)| format!("--{name}={}", values[rng.usize(0..values.len())]));
        flags
            .into_iter()
            .filter(|flag| !flag.ends_with("=unlimited"))
            .collect()
    }

    /// Whether the kubelet of this node lies in a run that is compared with one without faults.
    pub fn is_liar(&self, node: usize) -> bool {
        !self.in_turn.is_empty() && node == 0
    }

    /// The same without faults.
    pub fn without_faults(&self) -> Self {
        Self {
            faults: Faults::default(),
            ..self.clone()
        }
    }

    /// The plan of the demo: nodes and another host, no faults, and nobody who does anything.
    pub fn of_demo(nodes: usize) -> Self {
        let mut rng = Rng::with_seed(0);
        Self {
            nodes,
            spares: 1,
            others: 0,
            replicas: 1,
            // As long as the demo lasts.
            active: Duration::from_secs(u64::from(u32::MAX)),
            limits: Vec::new(),
            faults: Faults::default(),
            deeds: 0,
            speed: 10,
            has_workloads: false,
            has_pinned_pod: false,
            has_finalizers: false,
            has_vgpus: false,
            sentinel: None,
            holds: Holds::default(),
            overrides: 0,
            insists: 0,
            ..Self::draw_any(0, &mut rng)
        }
    }

    fn draw_any(seed: u64, rng: &mut Rng) -> Self {
        let is_calm = seed.is_multiple_of(5);
        let nodes = match rng.u32(0..10) {
            0..=4 => rng.usize(1..=2),
            5..=8 => rng.usize(3..=5),
            _ if rng.u32(0..4) > 0 => rng.usize(6..=10),
            _ => rng.usize(11..=30),
        };
        let replicas = rng.usize(1..=3);
        let minutes = if is_calm { rng.u64(20..40) } else { rng.u64(7..16) };
        let drain_timeout = rng.u64(60..400);
        let guest_timeout = rng.u64(20..120);
        let (lease, deadline) = if rng.bool() { (30, 20) } else { (15, 10) };
        let flags = [
            ("drain-timeout-seconds", drain_timeout.to_string()),
            ("guest-shutdown-timeout-seconds", guest_timeout.to_string()),
            ("poll-interval-seconds", rng.u64(20..60).to_string()),
            ("max-concurrent-drains", rng.u64(1..=3).to_string()),
            ("vmotion-grace-seconds", rng.u64(60..600).to_string()),
            ("host-settle-seconds", rng.u64(0..60).to_string()),
            ("test-timings", format!("retry_max={}", rng.u64(5..30))),
            ("out-of-service-taint", rng.bool().to_string()),
            ("leader-election", (replicas > 1 || rng.bool()).to_string()),
            ("lease-duration-seconds", lease.to_string()),
            ("lease-renew-deadline-seconds", deadline.to_string()),
        ];
        // Drawn apart, so that the seeds that once broke a rule draw the same of the rest.
        let other_settings = Settings::other(flags.to_vec(), &mut rng.clone());
        Self {
            seed,
            nodes,
            spares: rng.usize(0..=nodes.min(3)),
            others: rng.usize(0..=3),
            replicas,
            active: Duration::from_secs(minutes * 60),
            rest: Duration::from_secs(45 * 60),
            settings: Settings::of(&flags),
            other_settings,
            // Drawn apart as well.
            limits: Self::draw_limits(&mut Rng::with_seed(!seed)),
            faults: Faults::draw(rng, is_calm),
            deeds: rng.usize(2..=5) + nodes / 2,
            speed: 1,
            has_workloads: true,
            has_pinned_pod: seed % 3 == 1,
            has_finalizers: true,
            has_vgpus: Rng::with_seed(seed.rotate_left(16)).u32(0..5) == 0,
            sentinel: (seed % 4 == 2).then_some(nodes - 1),
            overrides: Rng::with_seed(seed.rotate_left(8))
                .usize(0..=4 + nodes)
                .saturating_sub(2),
            insists: if is_calm { 12 } else { 0 },
            holds: Holds::draw(nodes, &mut Rng::with_seed(seed.rotate_left(32))),
            in_turn: Vec::new(),
        }
    }

    /// The shortest drain timeout of the settings that a process may have.
    pub fn least_drain_timeout(&self) -> Duration {
        let other = self.other_settings.drain_timeout;
        self.least(self.settings.drain_timeout, other)
    }

    /// The same of the time of a guest.
    pub fn least_guest_timeout(&self) -> Duration {
        let other = self.other_settings.guest_timeout;
        self.least(self.settings.guest_timeout, other)
    }

    fn least(&self, usual: Duration, other: Duration) -> Duration {
        if self.faults.has(Fault::SettingsChange) {
            usual.min(other)
        } else {
            usual
        }
    }

    /// The command line of a controller with these settings.
    pub fn command_line(&self, settings: &Settings) -> Vec<String> {
        let fixed = [
            "haulout",
            "run",
            "--vcenter-host=vcenter.example.com",
            "--vcenter-user=haulout",
            "--vcenter-password=simulated",
            "--vcenter-report=none",
            "--metrics-address=off",
            "--health-address=off",
            "--lease-namespace=haulout",
            "--log-level=off",
        ];
        let fixed = fixed.into_iter().map(str::to_owned);
        let name = |flag: &String| flag.split('=').next().map(str::to_owned);
        let is_set = |limit: &&String| settings.flags.iter().any(|flag| name(flag) == name(limit));
        let limits = self.limits.iter().filter(|limit| !is_set(limit));
        fixed
            .chain(self.holds.flags())
            .chain(settings.flags.iter().chain(limits).cloned())
            .collect()
    }

    /// The plan in one line.
    pub fn line(&self) -> String {
        let Self {
            nodes,
            spares,
            others,
            replicas,
            deeds,
            holds,
            ..
        } = self;
        let faults = match self.faults.kinds() {
            0 => "no faults".to_owned(),
            count => format!("{count} kinds of faults"),
        };
        let devices = if self.has_vgpus { "vGPUs, " } else { "" };
        format!(
            "{nodes} nodes, {spares} other hosts, {others} other VMs, {replicas} replicas, {deeds} deeds and {} hooks in {} min, {devices}{faults}; {}",
            holds.hooks,
            self.active.as_secs() / 60,
            [&self.settings.flags[..], &self.limits[..], &holds.flags()]
                .concat()
                .join(" ")
        )
    }
}
