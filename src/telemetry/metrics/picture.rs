//! The metrics that show how things stand: written from the hub's latest picture at the moment somebody asks, so that
//! what is gone from the picture is gone from the metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;

use super::families::{self, Descriptor};
use crate::ids::{NodeName, TaskRef};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::{Phase, Record};
use crate::maintenance::observed::{
    Advice, DrainReport, Hearing, HostState, Outcome, Pictures, PodLeftBecause, Sight, VmSeen,
};

/// The phases by the names that people read, in the order of an episode.
pub const PHASES: [&str; 11] = [
    "InService",
    "Queued",
    "Adopting",
    "Draining",
    "Drained",
    "ShuttingDown",
    "Relocating",
    "AwaitingHost",
    "PoweringOn",
    "Rejoining",
    "Parked",
];

/// The states of a host.
const HOST_STATES: [&str; 4] = ["normal", "entering", "in", "unknown"];

/// How things stand.
#[derive(Debug, Default)]
pub(super) struct Picture(Mutex<Standing>);

#[derive(Debug, Default)]
struct Standing {
    nodes: BTreeMap<NodeName, Node>,
    waits: BTreeMap<NodeName, &'static str>,
    /// The latest task of each node that cut the power of its VM, so that none is counted twice.
    poweroffs: BTreeMap<NodeName, TaskRef>,
    free_gpu_hosts: BTreeMap<String, u32>,
    vcenter: String,
    is_vcenter_up: bool,
    /// `None` where there is no election.
    is_vcenter_reachable: Option<bool>,
    vcenter_answered: Option<Timestamp>,
}

/// What is shown of one node.
#[derive(Debug)]
struct Node {
    phase: &'static str,
    since: Option<Timestamp>,
    is_queued: bool,
    /// It is in service and asks for nothing: whatever was told to be waited for before is over.
    is_at_rest: bool,
    pods: Option<Pods>,
    host: Option<(String, &'static str)>,
    /// The guest could not be asked to shut down.
    no_tools: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pods {
    pdb: u32,
    terminating: u32,
    other: u32,
}

impl Picture {
    pub(super) fn show(&self, pictures: &Pictures) {
        let mut standing = self.lock();
        if pictures.are_all {
            standing.waits.retain(|name, _| pictures.keeps(name));
            standing.poweroffs.retain(|name, _| pictures.keeps(name));
            standing.nodes.retain(|name, _| pictures.keeps(name));
        }
        for (name, sight) in &pictures.sights {
            standing.nodes.insert(name.clone(), Node::of(sight));
        }
    }

    pub(super) fn waits(&self, node: &NodeName, kind: Option<&'static str>) {
        let waits = &mut self.lock().waits;
        match kind {
            Some(kind) => waits.insert(node.clone(), kind),
            None => waits.remove(node),
        };
    }

    /// Why the power of `node`'s VM is cut by `task`, if that has not been asked before.
    pub(super) fn cuts_power(&self, node: &NodeName, task: &TaskRef) -> Option<&'static str> {
        let mut standing = self.lock();
        let before = standing.poweroffs.insert(node.clone(), task.clone());
        if before.as_ref() == Some(task) {
            return None;
        }
        let no_tools = standing.nodes.get(node).is_some_and(|node| node.no_tools);
        Some(if no_tools { "no_tools" } else { "guest_deadline" })
    }

    pub(super) fn show_free_gpu_hosts(&self, by_cluster: BTreeMap<String, u32>) {
        self.lock().free_gpu_hosts = by_cluster;
    }

    pub(super) fn name_vcenter(&self, name: &str) {
        name.clone_into(&mut self.lock().vcenter);
    }

    pub(super) fn vcenter_is(&self, up: bool) {
        self.lock().is_vcenter_up = up;
    }

    pub(super) fn vcenter_is_reachable(&self, reachable: bool) {
        self.lock().is_vcenter_reachable = Some(reachable);
    }

    pub(super) fn vcenter_answered(&self, at: Timestamp) {
        self.lock().vcenter_answered = Some(at);
    }

    fn lock(&self) -> MutexGuard<'_, Standing> {
        // Every change of it is whole, whatever panicked meanwhile.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    fn of(sight: &Sight) -> Self {
        let Sight { record, seen } = sight;
        let since = match record {
            Record::Episode(episode) => Some(episode.since),
            Record::Python(python) => Some(python.since),
            Record::InService | Record::Unreadable { .. } => None,
        };
        let is_found = matches!(seen.vm, VmSeen::Found(_));
        let is_heard = seen.hearing == Hearing::Both;
        let host = seen.vm.found().filter(|vm| vm.on.is_some());
        let host = host.map(|vm| (vm.on_name.clone(), host_state(&vm.host)));
        let guest = seen.attempts.get(&EffectKind::ShutdownGuest);
        let no_tools = guest.is_some_and(|attempt| match &attempt.outcome {
            Outcome::Refused(refusal) => refusal.advice == Advice::NoTools,
            Outcome::Asked | Outcome::Running(_) | Outcome::Done => false,
        });
        let is_draining = record.phase().is_some_and(|phase| match phase.at_work() {
            Phase::Draining => true,
            Phase::Queued
            | Phase::Drained
            | Phase::ShuttingDown(_)
            | Phase::Relocating { .. }
            | Phase::AwaitingHost
            | Phase::PoweringOn { .. }
            | Phase::Rejoining
            | Phase::Parked { .. } => false,
        });
        Self {
            phase: record.phase_name(),
            since,
            is_queued: record
                .phase()
                .is_some_and(|phase| matches!(phase.at_work(), Phase::Queued)),
            is_at_rest: *record == Record::InService && is_heard && is_found,
            pods: seen.drain.as_ref().filter(|_| is_draining).map(Pods::of),
            host,
            no_tools,
        }
    }
}

impl Pods {
    fn of(report: &DrainReport) -> Self {
        let mut pods = Self::default();
        for pod in &report.left {
            let count = match pod.why {
                PodLeftBecause::Budget { .. } => &mut pods.pdb,
                PodLeftBecause::Leaving => &mut pods.terminating,
                PodLeftBecause::Migrating { .. }
                | PodLeftBecause::Refused { .. }
                | PodLeftBecause::NotReached => &mut pods.other,
            };
            *count = count.saturating_add(1);
        }
        pods
    }
}

fn host_state(state: &HostState) -> &'static str {
    match state {
        HostState::Unknown | HostState::Unreachable => "unknown",
        HostState::Entering { .. } => "entering",
        HostState::InMaintenance => "in",
        HostState::Quarantined | HostState::InService => "normal",
    }
}

impl Collector for Picture {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let standing = self.lock();
        standing.build_info(&mut encoder)?;
        standing.episodes(&mut encoder)?;
        standing.nodes(&mut encoder)?;
        standing.vcenter(&mut encoder)
    }
}

/// Writes one metric: its description, then what `samples` adds to it.
fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    descriptor: &Descriptor,
    samples: impl FnOnce(&mut Gauge<'_>) -> fmt::Result,
) -> fmt::Result {
    let unit = descriptor.unit();
    // The registry ends what it is told with a full stop; this way in does not.
    let help = format!("{}.", descriptor.help);
    let encoder = encoder.encode_descriptor(descriptor.stem(), &help, unit.as_ref(), MetricType::Gauge)?;
    samples(&mut Gauge(encoder))
}

struct Gauge<'a>(MetricEncoder<'a>);

impl Gauge<'_> {
    fn bare(&mut self, value: f64) -> fmt::Result {
        self.0.encode_gauge(&value)
    }

    fn with<const N: usize>(&mut self, labels: [(&str, &str); N], value: f64) -> fmt::Result {
        self.0.encode_family(&labels)?.encode_gauge(&value)
    }

    /// One series for each of `states`, of which one is 1.
    fn states(&mut self, of: (&str, &str), label: &str, states: &[&str], is: &str) -> fmt::Result {
        for state in states {
            self.with([of, (label, state)], truth(*state == is))?;
        }
        Ok(())
    }
}

impl Standing {
    fn build_info(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let revision = option_env!("HAULOUT_REVISION").unwrap_or("unknown");
        gauge(encoder, &families::BUILD_INFO, |gauge| {
            gauge.with(
                [("version", env!("CARGO_PKG_VERSION")), ("revision", revision)],
                1.0,
            )
        })
    }

    fn episodes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        gauge(encoder, &families::EPISODES_ACTIVE, |gauge| {
            for phase in PHASES.iter().filter(|phase| **phase != "InService") {
                let count = self.nodes.values().filter(|node| node.phase == *phase).count();
                gauge.with([("phase", phase)], number(count))?;
            }
            Ok(())
        })?;
        gauge(encoder, &families::QUEUE_DEPTH, |gauge| {
            gauge.bare(number(self.nodes.values().filter(|node| node.is_queued).count()))
        })
    }

    fn nodes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        gauge(encoder, &families::NODE_PHASE, |gauge| {
            for (name, node) in &self.nodes {
                gauge.states(("node", name.as_str()), "phase", &PHASES, node.phase)?;
            }
            Ok(())
        })?;
        gauge(encoder, &families::NODE_PHASE_START, |gauge| {
            for (name, node) in &self.nodes {
                if let Some(since) = node.since {
                    gauge.with([("node", name.as_str())], seconds(since))?;
                }
            }
            Ok(())
        })?;
        gauge(encoder, &families::WAITING_ON, |gauge| {
            for (name, kind) in &self.waits {
                if self.nodes.get(name).is_some_and(|node| !node.is_at_rest) {
                    gauge.with([("node", name.as_str()), ("kind", kind)], 1.0)?;
                }
            }
            Ok(())
        })?;
        gauge(encoder, &families::DRAIN_PODS_PENDING, |gauge| {
            for (name, node) in &self.nodes {
                let Some(pods) = node.pods else { continue };
                let Pods {
                    pdb,
                    terminating,
                    other,
                } = pods;
                for (reason, count) in [("pdb", pdb), ("terminating", terminating), ("other", other)] {
                    gauge.with([("node", name.as_str()), ("reason", reason)], f64::from(count))?;
                }
            }
            Ok(())
        })
    }

    fn vcenter(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let hosts: BTreeMap<&str, &str> = self
            .nodes
            .values()
            .filter_map(|node| node.host.as_ref())
            .map(|(name, state)| (name.as_str(), *state))
            .collect();
        gauge(encoder, &families::HOST_MAINTENANCE_STATE, |gauge| {
            for (host, state) in hosts {
                gauge.states(("host", host), "state", &HOST_STATES, state)?;
            }
            Ok(())
        })?;
        gauge(encoder, &families::NODE_HOST, |gauge| {
            for (name, node) in &self.nodes {
                if let Some((host, _)) = &node.host {
                    gauge.with([("node", name.as_str()), ("host", host)], 1.0)?;
                }
            }
            Ok(())
        })?;
        gauge(encoder, &families::FREE_GPU_HOSTS, |gauge| {
            for (cluster, count) in &self.free_gpu_hosts {
                gauge.with([("compute_cluster", cluster)], f64::from(*count))?;
            }
            Ok(())
        })?;
        gauge(encoder, &families::VCENTER_SESSION_UP, |gauge| {
            gauge.with([("vcenter", &self.vcenter)], truth(self.is_vcenter_up))
        })?;
        gauge(encoder, &families::VCENTER_REACHABLE, |gauge| {
            match self.is_vcenter_reachable {
                Some(is) => gauge.with([("vcenter", &self.vcenter)], truth(is)),
                None => Ok(()),
            }
        })?;
        gauge(encoder, &families::VCENTER_LAST_UPDATE, |gauge| {
            match self.vcenter_answered {
                Some(at) => gauge.with([("vcenter", &self.vcenter)], seconds(at)),
                None => Ok(()),
            }
        })
    }
}

fn truth(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn seconds(at: Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}
