//! The plan of a maintenance: made from the controller's own rules, and rendered.
//!
//! `make` reads and resolves names, `wave` is the summary of several, `durations` what past episodes say, `warnings` what a pod
//! says.

mod durations;
mod make;
pub(super) mod warnings;
mod wave;

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::Serialize;

use super::follow::full_name;
use super::out::{Paint, Tone};
use crate::inventory::Forecast;
use crate::keys::{DRAIN, STRATEGY};
use crate::kubernetes::answer::plain;
use crate::kubernetes::budgets::hold;
use crate::kubernetes::drain::{NamespacePolicies, PodPolicy};
use crate::kubernetes::pods::{PodVerdict, verdict};
use crate::kubernetes::policy::DrainPolicy;
use crate::kubernetes::reads::ReadError;
use crate::maintenance::observed::{Admission, BoundVm, PowerState, Strategy};
use crate::maintenance::waiting::{ParkReason, WaitingOn};
use crate::status::PhaseKind;

pub(super) use durations::EpisodeDurations;
pub(super) use make::{NAMES_MAX, make_plan, perform};
pub(super) use warnings::DrainLimits;

/// The plan of a maintenance.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plan {
    /// `host` or `node`.
    pub(super) about: &'static str,
    pub(super) name: String,
    /// The state of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<String>,
    pub(super) nodes: Vec<NodePlan>,
    /// GPUs that are missing during the maintenance, by resource.
    pub(super) gpus_missing: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodePlan {
    pub(super) node: String,
    pub(super) state: PhaseKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<String>,
    pub(super) evicts: Vec<PodPlan>,
    /// Pods that are terminating already, as `namespace/name`.
    pub(super) leaving: Vec<String>,
    /// Pods that stay because an annotation says so, as `namespace/name`.
    pub(super) left: Vec<String>,
    /// Number of pods that stay, by reason.
    #[serde(rename = "letsBe")]
    pub(super) skipped: BTreeMap<String, usize>,
    pub(super) place: PlannedHost,
    pub(super) gpus: BTreeMap<String, u64>,
    /// What would block it, except for budgets.
    pub(super) stops: Vec<String>,
    /// Further notes.
    pub(super) notes: Vec<String>,
    /// What could not be read. Shown with `-o wide` only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unknown: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodPlan {
    pub(super) pod: String,
    /// How long it may end by itself before, from the cordon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wait_seconds: Option<u64>,
    /// What would block its eviction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held: Option<String>,
    /// What an operator should know before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
}

/// The destination of the VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlannedHost {
    /// The host to move to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<String>,
    /// A text, if it is not moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) otherwise: Option<String>,
    /// Why other hosts are rejected.
    pub(super) refused: Vec<String>,
}

impl Plan {
    /// Whether something would block it.
    pub(super) fn is_blocked(&self) -> bool {
        self.nodes
            .iter()
            .any(|node| !node.stops.is_empty() || node.evicts.iter().any(|pod| pod.held.is_some()))
    }
}

pub(super) fn of_node(
    forecast: &Forecast,
    (pods, policies): (&[Pod], &NamespacePolicies),
    shutdown_grace: &Result<Duration, ReadError>,
    budgets: &[PodDisruptionBudget],
    limits: DrainLimits,
) -> NodePlan {
    let mut plan = NodePlan {
        node: forecast.node.to_string(),
        state: forecast.record.kind(),
        vm: forecast.vm_name.clone(),
        host: forecast.vm.found().map(|vm| vm.on_name.clone()),
        evicts: Vec::new(),
        leaving: Vec::new(),
        left: Vec::new(),
        skipped: BTreeMap::new(),
        place: place(forecast),
        gpus: forecast
            .seen
            .as_ref()
            .map(|node| (*node.gpus).clone())
            .unwrap_or_default(),
        stops: stops(forecast),
        notes: Vec::new(),
        unknown: Vec::new(),
    };
    match shutdown_grace {
        Ok(grace) => plan.notes.extend(warnings::of_kubelet(*grace, limits)),
        // Most people may not read it.
        Err(error) => plan
            .unknown
            .push(format!("shutdownGracePeriod of its kubelet: {error}")),
    }
    for pod in pods {
        let name = full_name(pod);
        let (verdict, policy) = (verdict(pod, &forecast.node), policies.policy(pod));
        if verdict.blocks_drain() && policy == PodPolicy::Read(DrainPolicy::Skip) {
            plan.left.push(name);
            continue;
        }
        match verdict {
            PodVerdict::Evict => plan.evicts.push(PodPlan {
                pod: name,
                wait_seconds: wait_seconds(&policy, limits),
                held: hold(pod, budgets).map(|hold| hold.to_string()),
                warnings: warnings::of_pod(pod, &policy, limits)
                    .into_iter()
                    .map(|warning| warning.text)
                    .collect(),
            }),
            PodVerdict::Wait => plan.leaving.push(name),
            PodVerdict::Skip(reason) => *plan.skipped.entry(reason.to_string()).or_default() += 1,
        }
    }
    plan.evicts.sort_by(|a, b| a.pod.cmp(&b.pod));
    plan.leaving.sort();
    plan.left.sort();
    plan.notes.extend(notes(forecast));
    plan
}

/// What is special about the VM and the node.
fn notes(forecast: &Forecast) -> Vec<String> {
    let vm = forecast.vm.found();
    let is_on = vm.is_some_and(|vm| vm.power == Some(PowerState::On));
    let mut notes = Vec::new();
    if is_on && forecast.tools_running == Some(false) {
        notes.push("VMware Tools do not run: its power is cut without asking the guest".to_owned());
    }
    if vm.is_some_and(|vm| vm.is_left_to_vcenter) {
        notes.push(
            "maintenance of its host leaves it to vCenter (VMOTION_GRACE_SECONDS=unlimited)".to_owned(),
        );
    }
    if let Some(vmotion) = vm.and_then(|vm| vm.vmotion) {
        notes.push(format!(
            "it has {}: vCenter may move it by vMotion, and the node is drained only if it does not",
            vmotion.device.words()
        ));
    }
    if forecast.evacuation_power_off {
        notes.push(
            "maintenance.vm.evacuation.poweroff is set or a compute policy says so: vCenter itself may power it off before \
             it is drained"
                .to_owned(),
        );
    }
    if forecast.seen.as_ref().is_some_and(|node| node.unschedulable) {
        notes.push("it is cordoned already, and stays so if a person did it".to_owned());
    }
    notes
}

/// How long a pod with this policy may end by itself.
fn wait_seconds(policy: &PodPolicy, limits: DrainLimits) -> Option<u64> {
    match policy {
        PodPolicy::Read(policy) => {
            let seconds = policy.wait(limits.wait_max).as_secs();
            (seconds > 0).then_some(seconds)
        }
        PodPolicy::Unreadable(_) | PodPolicy::Unread(_) => None,
    }
}

/// What would block it, with the texts of waits.
fn stops(forecast: &Forecast) -> Vec<String> {
    let mut stops = Vec::new();
    match forecast.vm.or_wait() {
        Ok(vm) => {
            let is_suspended = vm.power == Some(PowerState::Suspended);
            stops.extend(is_suspended.then_some(WaitingOn::Parked(ParkReason::VmSuspended)));
            stops.extend(vm.question.clone().map(WaitingOn::Question));
        }
        Err(wait) => stops.push(wait),
    }
    if forecast.seen.as_ref().is_some_and(|node| node.overrides.skip) {
        stops.push(WaitingOn::Skip);
    }
    if let Some(Admission::Queued {
        ahead,
        position,
        limit,
    }) = &forecast.queue
        && !ahead.is_empty()
    {
        stops.push(WaitingOn::Slot {
            ahead: ahead.clone(),
            position: *position,
            limit: *limit,
        });
    }
    stops.iter().map(WaitingOn::sentence).collect()
}

fn place(forecast: &Forecast) -> PlannedHost {
    let BoundVm::Found(vm) = &forecast.vm else {
        return PlannedHost::default();
    };
    let seen = forecast.seen.as_ref();
    let waits = seen.is_some_and(|node| node.overrides.strategy == Strategy::Wait);
    let offer = forecast.offer.as_ref().filter(|_| !waits && !vm.drs);
    let target = forecast.finds_host().filter(|_| !vm.drs).map(str::to_owned);
    let otherwise = if waits {
        format!("its own host when it is back ({STRATEGY}=wait)")
    } else if vm.drs {
        "the host that DRS selects".to_owned()
    } else if offer.is_some() {
        "its own host when it is back: no other can take it".to_owned()
    } else {
        "its own host when it is back".to_owned()
    };
    let refused = offer.into_iter().flat_map(|offer| &offer.refused);
    PlannedHost {
        otherwise: target.is_none().then_some(otherwise),
        target,
        refused: refused.map(ToString::to_string).collect(),
    }
}

/// Renders a plan.
pub(super) fn render(plan: &Plan, wide: bool, paint: Paint) -> String {
    let state = plan.state.iter().map(|state| format!(", which is {state}"));
    let state: String = state.collect();
    let mut text = format!("Maintenance of {}/{}{state}:\n", plan.about, plain(&plan.name));
    if plan.nodes.is_empty() {
        text.push_str("\n  it has no VM of our nodes: nothing would be done\n");
    }
    for node in &plan.nodes {
        node_lines(node, wide, paint, &mut text);
    }
    let missing = counts(&plan.gpus_missing);
    if !missing.is_empty() {
        let _ = writeln!(text, "\nMissing meanwhile: {missing}");
    }
    text
}

fn node_lines(node: &NodePlan, wide: bool, paint: Paint, text: &mut String) {
    let vm = match (&node.vm, &node.host) {
        (Some(vm), Some(host)) => format!("VM {} on {}", plain(vm), plain(host)),
        (None, Some(host)) => format!("its VM on {}", plain(host)),
        (_, None) => "no VM".to_owned(),
    };
    let _ = writeln!(text, "\n  node/{} ({}, {vm})", plain(&node.node), node.state);
    let mut line = |name: &str, words: &str| {
        let _ = writeln!(text, "    {name:<9} {}", words.trim_end());
    };
    for stop in &node.stops {
        line("stops", &bad_words(stop, paint));
    }
    pod_lines(node, paint, &mut line);
    match (&node.place.target, &node.place.otherwise) {
        (Some(target), _) => line(
            "moves to",
            &paint.apply(Tone::Good, &format!("√ {}", plain(target))),
        ),
        (None, Some(words)) => line("goes to", words),
        (None, None) => {}
    }
    // With a target, the rejected hosts are shown with `-o wide` only.
    if wide || node.place.target.is_none() {
        for refused in &node.place.refused {
            line("", &plain(refused));
        }
    }
    let gpus = counts(&node.gpus);
    if !gpus.is_empty() {
        line("GPUs", &gpus);
    }
    for note in &node.notes {
        line("note", &plain(note));
    }
    for unknown in node.unknown.iter().filter(|_| wide) {
        line("unknown", &plain(unknown));
    }
}

/// What happens to the pods of a node, by calls of `line` with a label and its text.
fn pod_lines(node: &NodePlan, paint: Paint, line: &mut impl FnMut(&str, &str)) {
    if node.evicts.is_empty() {
        line("evicts", "no pod");
    }
    for (index, pod) in node.evicts.iter().enumerate() {
        let name = if index == 0 { "evicts" } else { "" };
        let wait = pod
            .wait_seconds
            .map(|seconds| format!(" after {seconds} s, unless it has ended by itself"));
        line(name, &format!("{}{}", plain(&pod.pod), wait.unwrap_or_default()));
        if let Some(held) = &pod.held {
            line("", &format!("  {}", bad_words(held, paint)));
        }
        for warning in &pod.warnings {
            line("", &format!("  ! {}", plain(warning)));
        }
    }
    for pod in &node.leaving {
        line("leaving", &plain(pod));
    }
    for pod in &node.left {
        line(
            "leaves",
            &format!("{} ({DRAIN}=skip): it ends with the VM", plain(pod)),
        );
    }
    if !node.skipped.is_empty() {
        line("skips", &counts(&node.skipped));
    }
}

fn bad_words(words: &str, paint: Paint) -> String {
    paint.apply(Tone::Bad, &format!("‼ {}", plain(words)))
}

/// Counts by name, such as `2 nvidia.com/gpu`.
fn counts(by_name: &BTreeMap<String, impl Display>) -> String {
    let counts = by_name.iter().map(|(name, count)| format!("{count} {name}"));
    counts.collect::<Vec<_>>().join(", ")
}
