//! What a seed decides before a run: sizes, settings, faults, and what people do.

use std::time::Duration;

use fastrand::Rng;

use crate::faults::Faults;

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
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
    /// `DRAIN_TIMEOUT_SECONDS`.
    pub drain_timeout: Duration,
    /// `GUEST_SHUTDOWN_TIMEOUT_SECONDS`.
    pub guest_timeout: Duration,
    /// The settings of the controller, as flags.
    pub flags: Vec<String>,
    /// The faults.
    pub faults: Faults,
    /// How many things people do.
    pub deeds: usize,
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
            // The first kubelet lies.
            in_turn: (0..8).map(|_| rng.usize(1..nodes)).collect(),
            ..self
        }
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
        let (lease, deadline, retry) = if rng.bool() { (30, 20, 5) } else { (15, 10, 2) };
        let flags = [
            ("drain-timeout-seconds", drain_timeout.to_string()),
            ("guest-shutdown-timeout-seconds", guest_timeout.to_string()),
            ("poll-interval-seconds", rng.u64(20..60).to_string()),
            ("max-concurrent-drains", rng.u64(1..=3).to_string()),
            ("drain-slot-seconds", rng.u64(60..600).to_string()),
            ("host-settle-seconds", rng.u64(0..60).to_string()),
            ("retry-max-seconds", rng.u64(5..30).to_string()),
            ("leader-election", (replicas > 1 || rng.bool()).to_string()),
            ("lease-duration-seconds", lease.to_string()),
            ("lease-renew-deadline-seconds", deadline.to_string()),
            ("lease-retry-period-seconds", retry.to_string()),
        ];
        let flags = flags.into_iter().map(|(name, value)| format!("--{name}={value}"));
        Self {
            seed,
            nodes,
            spares: rng.usize(0..=nodes.min(3)),
            others: rng.usize(0..=3),
            replicas,
            active: Duration::from_secs(minutes * 60),
            rest: Duration::from_secs(45 * 60),
            drain_timeout: Duration::from_secs(drain_timeout),
            guest_timeout: Duration::from_secs(guest_timeout),
            flags: flags.collect(),
            faults: Faults::draw(rng, is_calm),
            deeds: rng.usize(2..=5) + nodes / 2,
            in_turn: Vec::new(),
        }
    }

    /// The command line of the controller.
    pub fn command_line(&self) -> Vec<String> {
        let fixed = [
            "haulout",
            "run",
            "--vcenter-host=vcenter.example.com",
            "--vcenter-user=haulout",
            "--vcenter-password=simulated",
            "--vcenter-events=false",
            "--vcenter-policies=false",
            "--metrics-address=off",
            "--health-address=off",
            "--lease-namespace=haulout",
            "--log-level=off",
        ];
        let fixed = fixed.into_iter().map(str::to_owned);
        fixed.chain(self.flags.iter().cloned()).collect()
    }

    /// The plan in one line.
    pub fn line(&self) -> String {
        let Self {
            nodes,
            spares,
            others,
            replicas,
            deeds,
            ..
        } = self;
        let faults = match self.faults.kinds() {
            0 => "no faults".to_owned(),
            count => format!("{count} kinds of faults"),
        };
        format!(
            "{nodes} nodes, {spares} other hosts, {others} other VMs, {replicas} replicas, {deeds} deeds in {} min, {faults}; {}",
            self.active.as_secs() / 60,
            self.flags.join(" ")
        )
    }
}
