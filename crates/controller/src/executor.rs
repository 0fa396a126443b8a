//! Performs effects: the only place from which Nodes, pods and VMs are changed.
//!
//! Nothing is decided here. Each effect is a call to vCenter or Kubernetes with its own deadline; its result is sent as an effect
//! report.

mod clear_gpus;
mod dry_run;
mod refusals;
mod report;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::{sync::mpsc, time::Instant};

use crate::log_node;
use crate::nodemaintenance::api::{self as maintenances, WriteIf};
use crate::nodemaintenance::still_requested;
use crate::run_effect::{NotRecorded, Recorded, RunEffect, TRACEPARENT};
use haulout_core::ids::{HostRef, NodeName, VmUuid};
use haulout_core::maintenance::clock::{Now, wall_after};
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::effect::Effect;
use haulout_core::maintenance::effect_report::{EffectReport, EffectResult};
use haulout_core::maintenance::episode::Record;
use haulout_core::maintenance::machine_guard::MachineGuardReport;
use haulout_core::maintenance::node_guard::GuardChanges;
use haulout_core::maintenance::observed::{AttemptOutcome, EffectRefusal, Observed, RetryAdvice};
use haulout_core::maintenance::record::{self, LastEpisode};
use haulout_core::maintenance::volumes::VolumeReport;
use haulout_kubernetes::client;
use haulout_kubernetes::drain::{self, DrainOrder, DrainSettings};
use haulout_kubernetes::events::Publisher;
use haulout_kubernetes::facts::GpuResources;
use haulout_kubernetes::fence::{FenceClosed, Permit, WriteFence, WriteKind};
use haulout_kubernetes::machine_guard::MachineApi;
use haulout_kubernetes::node::{self, NodeErrorKind, NodePatch};
use haulout_kubernetes::update::{KubernetesUpdate, NodeAnnotations, NodeMaintenanceUpdate};
use haulout_vsphere::StartedTask;
use haulout_vsphere::client::{Error, Vcenter};

pub use dry_run::DryRun;
pub use refusals::RefusalLog;

/// The deadline of one write to a Node. The kube-apiserver normally answers within milliseconds; its own limit for a request is
/// 60 s, after which the reply would be out of date.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// Called with an HTTP status (0 without a reply) and the number of evictions that were answered with it.
pub type OnEvictions = Box<dyn Fn(u16, u64) + Send + Sync>;

/// Performs effects in vCenter and Kubernetes.
pub struct Executor {
    /// Every record and every effect needs a permit of it.
    pub fence: WriteFence,
    pub vcenter: Vcenter,
    pub client: kube::Client,
    /// The Machines of the nodes.
    pub machines: Arc<MachineApi>,
    /// The label by whose value nodes are grouped for limits.
    pub limit_group: Option<String>,
    pub gpu_resources: GpuResources,
    /// The limits of one drain round.
    pub drain: DrainSettings,
    /// Takes Events of evicted pods.
    pub events: Publisher,
    pub on_evictions: OnEvictions,
    pub refusals: RefusalLog,
    pub reports: mpsc::Sender<EffectReport>,
    /// Takes the replies of the kube-apiserver to our writes, so that the inventory has them before the watch does.
    pub nodes: mpsc::Sender<KubernetesUpdate>,
}

pub enum AnyExecutor {
    Live(Box<Executor>),
    DryRun(Box<DryRun>),
}

impl AnyExecutor {
    /// `executor`, or a dry run of it.
    pub fn of(executor: Executor, is_dry_run: bool) -> Self {
        if is_dry_run {
            Self::DryRun(Box::new(DryRun::of(executor)))
        } else {
            Self::Live(Box::new(executor))
        }
    }
}

impl RunEffect for AnyExecutor {
    async fn record(
        &self,
        name: &NodeName,
        seen: &Observed,
        before: &Record,
        transition: &Transition,
        now: Now,
    ) -> Result<Recorded, NotRecorded> {
        match self {
            Self::Live(executor) => executor.record(name, seen, before, transition, now).await,
            Self::DryRun(dry_run) => dry_run.record(name, seen, before, transition, now).await,
        }
    }

    async fn perform(&self, name: &NodeName, record: &Record, effect: &Effect, now: Now) {
        match self {
            Self::Live(executor) => executor.perform(name, record, effect, now).await,
            Self::DryRun(dry_run) => dry_run.perform(name, record, effect, now).await,
        }
    }
}

impl RunEffect for Executor {
    async fn record(
        &self,
        name: &NodeName,
        seen: &Observed,
        before: &Record,
        transition: &Transition,
        now: Now,
    ) -> Result<Recorded, NotRecorded> {
        let (ends_approval, version) = (transition.ends_approval(before, seen), seen.copy_version);
        let Some(seen) = &seen.node else {
            return self.record_on_copy(name, version, before, transition, now).await;
        };
        let patch = NodePatch {
            uid: seen.uid.clone(),
            resource_version: seen.resource_version,
            annotations: NodeAnnotations {
                last_episode: last_episode(before, transition, now.wall),
                fulfilled: transition
                    .fulfilled
                    .as_ref()
                    .map(|request| request.uid.to_string()),
                ..record::write(&transition.record, now.wall)
            },
            is_adoption: matches!(before, Record::Python(_)),
            is_end: transition.ended.is_some(),
            ends_approval,
            unschedulable: transition.unschedulable,
            guards: GuardChanges::of(before, &transition.record, seen),
            taints: Arc::clone(&seen.taints),
        };
        let permit = self.fence.permit(WriteKind::Record).map_err(not_recorded)?;
        let client = self.traced();
        let write = node::patch(
            &permit,
            &client,
            (self.limit_group.as_deref(), &self.gpu_resources),
            name,
            &patch,
            WRITE_DEADLINE,
        );
        match permit.run(write).await.map_err(not_recorded)? {
            Ok(node) => {
                let resource_version = node.resource_version;
                self.update(KubernetesUpdate::Answered(Box::new(node))).await;
                Ok(Recorded::OnNode { resource_version })
            }
            Err(error) if error.kind == NodeErrorKind::Conflict => {
                self.read_again(name, before, seen.resource_version).await;
                Err(NotRecorded::Outdated)
            }
            Err(error) => Err(NotRecorded::Refused(error.to_string())),
        }
    }

    async fn perform(&self, name: &NodeName, record: &Record, effect: &Effect, now: Now) {
        // What changes nothing needs no permit.
        let outcome = if let Effect::Survey { hosts } = effect {
            self.survey(name, hosts).await
        } else if matches!(effect, Effect::ListVolumes) {
            self.list_volumes(name, now).await
        } else {
            match self.fence.permit(WriteKind::Effect) {
                Err(closed) => not_done(closed),
                Ok(permit) => {
                    let work = self.act(&permit, name, effect, now);
                    permit.run(work).await.unwrap_or_else(not_done)
                }
            }
        };
        self.report_attempt(name, record, effect, now, outcome).await;
    }
}

impl Executor {
    /// Writes to the copy of the record, because the Node is gone.
    async fn record_on_copy(
        &self,
        name: &NodeName,
        version: Option<u64>,
        before: &Record,
        transition: &Transition,
        now: Now,
    ) -> Result<Recorded, NotRecorded> {
        let Some(episode) = before.episode() else {
            let why = "the Node is gone, and with it the record of what is no episode of ours";
            return Err(NotRecorded::Refused(why.to_owned()));
        };
        let object = maintenances::name_of(name, &episode.id);
        let record = record::write(&transition.record, now.wall).episode;
        let changes = json!({ "record": record });
        let permit = self.fence.permit(WriteKind::Record).map_err(not_recorded)?;
        let client = self.traced();
        let write =
            maintenances::write_status(&permit, &client, &object, WriteIf::Version(version), &changes);
        match permit.run(write).await.map_err(not_recorded)? {
            Ok(object) => {
                let answered = NodeMaintenanceUpdate::Answered(Box::new(object));
                self.update(KubernetesUpdate::Maintenances(answered)).await;
                Ok(Recorded::Elsewhere)
            }
            Err(error) => Err(NotRecorded::Refused(error.to_string())),
        }
    }

    async fn act(&self, permit: &Permit, name: &NodeName, effect: &Effect, now: Now) -> AttemptOutcome {
        let vcenter = self.vcenter.for_subject(name.as_str());
        match effect {
            Effect::DrainRound {
                pods_revision,
                in_turn,
                deferred,
                known,
                began,
            } => {
                let order = DrainOrder {
                    in_turn: *in_turn,
                    deferred,
                    known: known.as_deref(),
                    began: *began,
                    now,
                    on_evicted: &|_| {},
                };
                self.drain_round(permit, name, *pods_revision, order).await
            }
            Effect::ListVolumes => self.list_volumes(name, now).await,
            Effect::Survey { hosts } => self.survey(name, hosts).await,
            Effect::ShutdownGuest { vm, asked_by, .. } => {
                if let Err(why) = still_requested::check_cause(&self.traced(), asked_by).await {
                    return not_done(why);
                }
                match vcenter.shutdown_guest(permit, vm, asked_by).await {
                    Ok(()) => AttemptOutcome::Asked,
                    Err(error) => refused(&error),
                }
            }
            Effect::PowerOff { vm, asked_by, .. } => {
                if let Err(why) = still_requested::check_cause(&self.traced(), asked_by).await {
                    return not_done(why);
                }
                started(vcenter.power_off(permit, vm, asked_by).await)
            }
            Effect::Relocate { vm, to } => started(vcenter.relocate(permit, vm, to).await),
            Effect::Reconfigure { vm, host, devices } => {
                started(vcenter.reconfigure_devices(permit, vm, host, devices).await)
            }
            Effect::SetMachineGuards { vm } => self.set_machine_guards(permit, name, *vm, now).await,
            Effect::RemoveMachineGuards { vm, guards } => {
                let Some(vm) = *vm else {
                    return AttemptOutcome::Done;
                };
                let client = self.traced();
                let removed = self.machines.remove(permit, &client, name, vm, &guards.objects);
                match removed.await {
                    Ok(()) => AttemptOutcome::Done,
                    Err(error) => report::not_removed(&error),
                }
            }
            Effect::ClearGpus { .. } => self.clear_gpus(permit, name, effect).await,
            Effect::PowerOn { vm, place } => started(vcenter.power_on(permit, vm, place).await),
        }
    }

    async fn drain_round(
        &self,
        permit: &Permit,
        name: &NodeName,
        pods_revision: u64,
        order: DrainOrder<'_>,
    ) -> AttemptOutcome {
        let now = order.now;
        let begun = Instant::now();
        let order = DrainOrder {
            on_evicted: &|pod| {
                let full_name = pod.full_name();
                tracing::debug!(node = %name, pod = %full_name, trace_id = trace_id(), "evicted a pod");
                // A dropped Event is counted by the publisher.
                self.events
                    .event(report::event(name, pod, wall_after(now.wall, begun.elapsed())));
            },
            ..order
        };
        match drain::round(permit, &self.traced(), name, &self.drain, order).await {
            Ok(round) => {
                for (code, count) in &round.answers {
                    (self.on_evictions)(*code, *count);
                }
                let evictions = EffectResult::Evictions(report::evictions(&round, now.wall));
                self.report(name, evictions).await;
                for pod in &round.unreadable {
                    let full_name = format!("{}/{}", pod.namespace, pod.name);
                    tracing::warn!(node = %name, pod = %full_name, "{}", pod.why);
                    self.events.event(report::unreadable_event(pod, now.wall));
                }
                let report = report::of_round(round, pods_revision, (now, begun.elapsed()));
                self.report(name, EffectResult::Drain(report)).await;
                AttemptOutcome::Done
            }
            Err(error) => not_done(error),
        }
    }

    async fn set_machine_guards(
        &self,
        permit: &Permit,
        name: &NodeName,
        vm: Option<VmUuid>,
        now: Now,
    ) -> AttemptOutcome {
        let set = match vm {
            Some(vm) => self.machines.set(permit, &self.traced(), name, vm).await,
            // Without the UUID it cannot be verified that a Machine is that of the node.
            None => Ok(Some(Vec::new())),
        };
        match set {
            Ok(objects) => {
                let at = now.monotonic;
                let report = EffectResult::MachineGuarded(MachineGuardReport { at, objects });
                self.report(name, report).await;
                AttemptOutcome::Done
            }
            Err(error) => not_done(error),
        }
    }

    /// The client whose requests carry the trace of the episode, which a kube-apiserver with tracing joins.
    fn traced(&self) -> kube::Client {
        match TRACEPARENT.try_with(Clone::clone) {
            Ok(Some(traceparent)) => client::traced(&self.client, &traceparent),
            Ok(None) | Err(_) => self.client.clone(),
        }
    }

    async fn survey(&self, name: &NodeName, hosts: &[HostRef]) -> AttemptOutcome {
        match self.vcenter.survey(hosts).await {
            Ok(surveyed) => {
                for (host, reading) in surveyed {
                    self.report(name, EffectResult::Surveyed { host, reading }).await;
                }
                AttemptOutcome::Done
            }
            Err(error) => refused(&error),
        }
    }

    async fn list_volumes(&self, name: &NodeName, now: Now) -> AttemptOutcome {
        match drain::attached_volumes(&self.traced(), name, &self.drain).await {
            Ok(attached) => {
                let report = VolumeReport {
                    listed_at: now.monotonic,
                    had_some: !attached.is_empty(),
                    attached,
                };
                self.report(name, EffectResult::Volumes(report)).await;
                AttemptOutcome::Done
            }
            Err(error) => not_done(error),
        }
    }

    async fn read_again(&self, name: &NodeName, record: &Record, conflicted: u64) {
        let read = (self.limit_group.as_deref(), &self.gpu_resources);
        match node::get(&self.client, read, name, WRITE_DEADLINE).await {
            Ok(node) => {
                let node = Box::new(node);
                self.update(KubernetesUpdate::ReadAgain { node, conflicted })
                    .await;
            }
            // The watch shows the Node soon as well.
            Err(error) => log_node!(info, name, record, "could not read the Node again: {error}"),
        }
    }

    /// Reports the outcome of `effect`, and logs a refusal.
    async fn report_attempt(
        &self,
        name: &NodeName,
        record: &Record,
        effect: &Effect,
        at: Now,
        outcome: AttemptOutcome,
    ) {
        let kind = effect.kind();
        self.refusals.log_outcome(name, record, kind, &outcome);
        let attempt = EffectResult::Tried {
            kind,
            at,
            host: effect.host().cloned(),
            outcome,
        };
        self.report(name, attempt).await;
    }

    /// An error means that the process stops.
    async fn report(&self, node: &NodeName, found: EffectResult) {
        let node = node.clone();
        let _ = self.reports.send(EffectReport { node, found }).await;
    }

    /// Sends what a reply shows. An error means that the process stops.
    async fn update(&self, update: KubernetesUpdate) {
        let _ = self.nodes.send(update).await;
    }
}

fn not_recorded(closed: FenceClosed) -> NotRecorded {
    NotRecorded::Refused(closed.to_string())
}

/// The trace of the episode whose effect runs.
fn trace_id() -> Option<String> {
    let traceparent = TRACEPARENT.try_with(Clone::clone).ok()??;
    traceparent.split('-').nth(1).map(str::to_owned)
}

/// An effect that changed nothing, or whose repetition changes nothing.
fn not_done(why: impl ToString) -> AttemptOutcome {
    AttemptOutcome::Refused(EffectRefusal {
        advice: RetryAdvice::Retry,
        message: why.to_string(),
    })
}

fn started(started: Result<StartedTask, Error>) -> AttemptOutcome {
    match started {
        Ok(StartedTask::AlreadyThere) => AttemptOutcome::Done,
        Ok(StartedTask::Running(task)) => AttemptOutcome::Running(task),
        Err(error) => refused(&error),
    }
}

fn refused(error: &Error) -> AttemptOutcome {
    AttemptOutcome::Refused(EffectRefusal {
        advice: RetryAdvice::from(error.failure()),
        message: error.chain(),
    })
}

/// The annotation that stays on the Node when an episode ends.
fn last_episode(before: &Record, transition: &Transition, now: Timestamp) -> Option<String> {
    let last = LastEpisode::of(before, &transition.record, transition.ended, now)?;
    Some(record::write_last(&last))
}

#[cfg(test)]
mod tests;
