//! Gauges of the current state, encoded from the latest statuses at each scrape, so that removed
//! objects disappear.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;

use super::families::{self, Descriptor};
use haulout_core::ids::{NodeName, TaskRef};
use haulout_core::maintenance::observed::Admission;
use haulout_core::status::{
    HostKind, NodeStatus, NodeStatuses, PhaseKind, PodCountsByState, PodState, WaitKind,
};

/// The states of the metric.
const HOST_STATES: [&str; 4] = ["normal", "entering", "in", "unknown"];

#[derive(Debug, Default)]
pub(super) struct CurrentState(Mutex<StateGauges>);

#[derive(Debug, Default)]
pub(super) struct StateGauges {
    nodes: Arc<NodeStatuses>,
    pub(super) waits: BTreeMap<NodeName, WaitKind>,
    /// The latest power-off task of each node, so that none is counted twice.
    poweroffs: BTreeMap<NodeName, TaskRef>,
    pub(super) free_gpu_hosts: BTreeMap<String, u32>,
    pub(super) vcenter: String,
    pub(super) is_vcenter_up: bool,
    /// `None` without leader election.
    pub(super) is_vcenter_reachable: Option<bool>,
    pub(super) vcenter_answered: Option<Timestamp>,
}

impl CurrentState {
    pub(super) fn lock(&self) -> MutexGuard<'_, StateGauges> {
        self.0.lock()
    }
}

impl Collector for CurrentState {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.lock();
        state.build_info(&mut encoder)?;
        state.episodes(&mut encoder)?;
        state.nodes(&mut encoder)?;
        state.pods(&mut encoder)?;
        state.hosts(&mut encoder)?;
        state.vcenter(&mut encoder)
    }
}

/// Encodes one metric: its description, then its samples.
fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    descriptor: &Descriptor,
    samples: impl FnOnce(&mut GaugeWriter<'_>) -> fmt::Result,
) -> fmt::Result {
    let unit = descriptor.unit();
    // The registry adds a full stop to help texts; a collector has to.
    let help = format!("{}.", descriptor.help);
    let encoder = encoder.encode_descriptor(descriptor.stem(), &help, unit.as_ref(), MetricType::Gauge)?;
    samples(&mut GaugeWriter(encoder))
}

struct GaugeWriter<'a>(MetricEncoder<'a>);

impl GaugeWriter<'_> {
    fn bare(&mut self, value: f64) -> fmt::Result {
        self.0.encode_gauge(&value)
    }

    fn with<const N: usize>(&mut self, labels: [(&str, &str); N], value: f64) -> fmt::Result {
        self.0.encode_family(&labels)?.encode_gauge(&value)
    }
}

impl StateGauges {
    pub(super) fn update_statuses(&mut self, statuses: Arc<NodeStatuses>) {
        self.waits.retain(|name, _| statuses.contains_key(name));
        self.poweroffs.retain(|name, _| statuses.contains_key(name));
        self.nodes = statuses;
    }

    /// Why `task` cuts the power of the VM of `node`; `None` if the task was counted before.
    pub(super) fn cuts_power(&mut self, node: &NodeName, task: &TaskRef) -> Option<&'static str> {
        let before = self.poweroffs.insert(node.clone(), task.clone());
        if before.as_ref() == Some(task) {
            return None;
        }
        let lacks_tools = self.nodes.get(node).is_some_and(|status| status.lacks_tools);
        Some(if lacks_tools { "no_tools" } else { "guest_deadline" })
    }

    fn statuses(&self) -> impl Iterator<Item = (&str, &NodeStatus)> {
        self.nodes.iter().map(|(name, status)| (name.as_str(), &**status))
    }

    fn build_info(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let revision = option_env!("HAULOUT_REVISION").unwrap_or("unknown");
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("revision", revision)];
        gauge(encoder, &families::BUILD_INFO, |gauge| gauge.with(labels, 1.0))
    }

    fn episodes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        gauge(encoder, &families::EPISODES_ACTIVE, |gauge| {
            for phase in PhaseKind::ALL
                .iter()
                .filter(|phase| **phase != PhaseKind::InService)
            {
                let in_it = self.statuses().filter(|(_, status)| status.phase == *phase);
                gauge.with([("phase", phase.name())], number(in_it.count()))?;
            }
            Ok(())
        })?;
        let queued = || {
            self.statuses()
                .filter(|(_, status)| status.at_work == PhaseKind::Queued)
        };
        gauge(encoder, &families::QUEUE_DEPTH, |gauge| {
            gauge.bare(number(queued().count()))
        })?;
        gauge(encoder, &families::QUEUE_POSITION, |gauge| {
            for (name, status) in queued() {
                if let Admission::Queued { position, limit, .. } = &status.queue {
                    gauge.with([("node", name), ("limit", limit.setting())], number(*position))?;
                }
            }
            Ok(())
        })
    }

    fn nodes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        gauge(encoder, &families::NODE_MAINTAINABLE, |gauge| {
            // No maintenance comes to a node that is no VM.
            for (name, status) in self.statuses().filter(|(_, it)| it.is_no_vm() != Some(true)) {
                let obstacles = status.obstacles();
                if obstacles.is_empty() {
                    gauge.with([("node", name), ("reason", "none")], 1.0)?;
                }
                for obstacle in obstacles {
                    gauge.with([("node", name), ("reason", obstacle.name())], 0.0)?;
                }
            }
            Ok(())
        })?;
        gauge(encoder, &families::NODE_PHASE, |gauge| {
            for (name, status) in self.statuses() {
                for phase in PhaseKind::ALL {
                    let labels = [("node", name), ("phase", phase.name())];
                    gauge.with(labels, truth(*phase == status.phase))?;
                }
            }
            Ok(())
        })?;
        gauge(encoder, &families::NODE_PHASE_START, |gauge| {
            for (name, status) in self.statuses() {
                if let Some(since) = status.since {
                    gauge.with([("node", name)], seconds(since))?;
                }
            }
            Ok(())
        })?;
        gauge(encoder, &families::WAITING_ON, |gauge| {
            for (name, kind) in &self.waits {
                // The wait may be older than the status.
                if self.nodes.get(name).is_some_and(|status| !status.is_idle) {
                    gauge.with([("node", name.as_str()), ("kind", kind.name())], 1.0)?;
                }
            }
            Ok(())
        })
    }

    fn pods(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        gauge(encoder, &families::DRAIN_PODS_PENDING, |gauge| {
            for (name, status) in self
                .statuses()
                .filter(|(_, it)| it.at_work == PhaseKind::Draining)
            {
                let Some(pods) = &status.pods else { continue };
                for (reason, count) in by_reason(pods) {
                    gauge.with([("node", name), ("reason", reason)], number(count))?;
                }
            }
            Ok(())
        })
    }

    fn hosts(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let hosts: BTreeMap<&str, HostKind> = self.statuses().filter_map(|(_, it)| it.host()).collect();
        gauge(encoder, &families::HOST_MAINTENANCE_STATE, |gauge| {
            for (host, kind) in hosts {
                for state in HOST_STATES {
                    gauge.with(
                        [("host", host), ("state", state)],
                        truth(state == host_state(kind)),
                    )?;
                }
            }
            Ok(())
        })?;
        gauge(encoder, &families::NODE_HOST, |gauge| {
            for (name, status) in self.statuses() {
                if let Some((host, _)) = status.host() {
                    gauge.with([("node", name), ("host", host)], 1.0)?;
                }
            }
            Ok(())
        })?;
        let marked = self
            .statuses()
            .filter(|(_, status)| status.evacuation_policy() == Some(true));
        let marked = number(marked.count());
        gauge(encoder, &families::EVACUATION_POLICY_NODES, |gauge| {
            gauge.bare(marked)
        })?;
        gauge(encoder, &families::FREE_GPU_HOSTS, |gauge| {
            for (cluster, count) in &self.free_gpu_hosts {
                gauge.with([("compute_cluster", cluster)], f64::from(*count))?;
            }
            Ok(())
        })
    }

    fn vcenter(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let label = [("vcenter", &*self.vcenter)];
        let is_up = truth(self.is_vcenter_up);
        gauge(encoder, &families::VCENTER_SESSION_UP, |gauge| {
            gauge.with(label, is_up)
        })?;
        gauge(encoder, &families::VCENTER_REACHABLE, |gauge| {
            let is_reachable = self.is_vcenter_reachable;
            is_reachable.map_or(Ok(()), |is| gauge.with(label, truth(is)))
        })?;
        gauge(encoder, &families::VCENTER_LAST_UPDATE, |gauge| {
            let answered = self.vcenter_answered;
            answered.map_or(Ok(()), |at| gauge.with(label, seconds(at)))
        })
    }
}

/// The number of remaining pods by reason.
fn by_reason(pods: &PodCountsByState) -> [(&'static str, usize); 3] {
    let held = pods.count(PodState::HeldByBudget);
    let terminating = pods.count(PodState::Terminating);
    let other = pods.left.len() - held - terminating;
    [("pdb", held), ("terminating", terminating), ("other", other)]
}

fn host_state(kind: HostKind) -> &'static str {
    match kind {
        HostKind::Unknown | HostKind::Unreachable => "unknown",
        HostKind::EnteringMaintenance => "entering",
        HostKind::InMaintenance => "in",
        HostKind::Settling | HostKind::Quarantined | HostKind::InService => "normal",
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
