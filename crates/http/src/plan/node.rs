//! The plan of one node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::warnings::{self, DrainLimits};
use super::{NodePlan, PlannedHost, PodPlan};
use haulout_core::inventory::Forecast;
use haulout_core::keys::STRATEGY;
use haulout_core::maintenance::observed::{Admission, BoundVm, PowerState, Strategy};
use haulout_core::maintenance::waiting::{ParkReason, WaitingOn};
use haulout_kubernetes::budgets::hold;
use haulout_kubernetes::drain::{NamespacePolicies, PodPolicy};
use haulout_kubernetes::pods::{PodVerdict, full_name, verdict};
use haulout_kubernetes::policy::DrainPolicy;

pub(super) fn of_node(
    forecast: &Forecast,
    (pods, policies): (&[Pod], &NamespacePolicies),
    budgets: &[PodDisruptionBudget],
    limits: DrainLimits,
) -> NodePlan {
    let mut plan = NodePlan {
        node: forecast.node.to_string(),
        state: forecast.record.kind(),
        vm: forecast.vm_name.clone(),
        host: forecast.vm.found().map(|vm| vm.host_name.clone()),
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
        notes: notes(forecast),
    };
    for pod in pods {
        let name = full_name(pod);
        let (verdict, policy) = (verdict(pod), policies.policy(pod));
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
    plan
}

/// What is special about the VM and the node.
fn notes(forecast: &Forecast) -> Vec<String> {
    let vm = forecast.vm.found();
    let mut notes = Vec::new();
    if vm.is_some_and(|vm| vm.power == Some(PowerState::On) && vm.tools_running == Some(false)) {
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
    if vm.is_some_and(|vm| vm.evacuation_power_off) {
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
