//! Follows a request until it is fulfilled, with kubectl's messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{anyhow, bail};
use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::time::Instant;

use super::out::Output;
use crate::ids::NodeName;
use crate::kubernetes::answer::plain;
use crate::kubernetes::drain::{self, DrainSettings};
use crate::kubernetes::pods::{PodVerdict, SkipReason, full_name, verdict};
use crate::kubernetes::reads;
use crate::nodemaintenance;
use crate::nodemaintenance::kind::NodeMaintenanceStatus;
use crate::status::{PhaseKind, PodState};

/// Poll interval. The controller batches status writes for a second.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// After this time without any status, a missing controller is reported.
const NO_CONTROLLER_AFTER: Duration = Duration::from_secs(15);

/// After this time without a report, the wait is repeated: a person at a terminal asks whether it hangs.
const REPEAT_EVERY: Duration = Duration::from_secs(30);

/// Reports the progress of the request `name` until it is fulfilled.
pub(super) async fn follow(
    client: &kube::Client,
    name: &str,
    mut follower: RequestFollower,
) -> anyhow::Result<()> {
    let out = follower.out;
    let node = NodeName::new(follower.node.clone());
    let began = Instant::now();
    let mut is_silence_reported = false;
    loop {
        let object = match nodemaintenance::read::one(client, name).await {
            Ok(object) => object,
            Err(error) if error.is_absent() => {
                bail!("nodemaintenance.haulout.dev/{name} was deleted before it was fulfilled")
            }
            Err(error) if !error.may_pass() => {
                bail!("{error}; the request stays, and only its progress is not shown")
            }
            Err(error) => {
                out.progress(&format!("{error}; retrying"));
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            }
        };
        let status = object.status.unwrap_or_default();
        if status.conditions.is_empty() && !is_silence_reported && began.elapsed() > NO_CONTROLLER_AFTER {
            is_silence_reported = true;
            out.progress("no controller has responded yet: does one run for this node?");
        }
        let pods = drain::list(client, &node, &DrainSettings::default()).await.ok();
        let cordoned = reads::node(client, node.as_str())
            .await
            .is_ok_and(|node| is_cordoned(&node));
        follower.update(cordoned, pods.as_deref(), &status)?;
        if let Some(end) = end(&status) {
            end.map_err(|why| anyhow!("{name}: {why}"))?;
            return follower.drained();
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

pub(super) fn is_cordoned(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.unschedulable).unwrap_or(false)
}

/// The result of a request, if it ended, from its condition `Succeeded`.
fn end(status: &NodeMaintenanceStatus) -> Option<Result<(), String>> {
    let succeeded = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Succeeded")?;
    match succeeded.status.as_str() {
        "True" => Some(Ok(())),
        "False" if status.phase.as_deref() == Some("Failed") => Some(Err(plain(&succeeded.message))),
        _ => None,
    }
}

/// What was reported so far.
pub(super) struct RequestFollower {
    out: Output,
    is_for_people: bool,
    node: String,
    was_cordoned: bool,
    cordon_reported: bool,
    drained_reported: bool,
    uncordoned_reported: bool,
    /// The pods with an eviction request, by `namespace/name`.
    evicted_requests: BTreeSet<String>,
    gone: BTreeSet<String>,
    /// The last reported reason of each blocked pod.
    held: BTreeMap<String, String>,
    state: Option<String>,
    stalled: Option<String>,
    /// The kind of the last reported wait.
    waiting: Option<String>,
    reported_at: Instant,
}

impl RequestFollower {
    pub(super) fn new(out: Output, is_for_people: bool, node: &str, was_cordoned: bool) -> Self {
        Self {
            out,
            is_for_people,
            node: node.to_owned(),
            was_cordoned,
            cordon_reported: false,
            drained_reported: false,
            uncordoned_reported: false,
            evicted_requests: BTreeSet::new(),
            gone: BTreeSet::new(),
            held: BTreeMap::new(),
            state: None,
            stalled: None,
            waiting: None,
            reported_at: Instant::now(),
        }
    }

    /// Reports changes. `pods` is `None` if they could not be listed.
    fn update(
        &mut self,
        cordoned: bool,
        pods: Option<&[Pod]>,
        status: &NodeMaintenanceStatus,
    ) -> anyhow::Result<()> {
        let is_fulfilled = matches!(end(status), Some(Ok(())));
        let phase: Option<PhaseKind> = status.state.as_deref().and_then(|state| state.parse().ok());
        let is_begun = is_fulfilled || phase.is_some_and(|phase| phase != PhaseKind::Queued);
        if !self.cordon_reported && cordoned && is_begun {
            self.cordon_reported = true;
            let words = if self.was_cordoned {
                "already cordoned"
            } else {
                "cordoned"
            };
            self.result(&format!("node/{} {words}", self.node))?;
            self.warn_of_daemon_sets(pods.unwrap_or_default());
        }
        if let Some(pods) = pods.filter(|_| self.cordon_reported) {
            self.update_pods(pods);
        }
        self.update_blocked(status);
        let is_past_drain = is_fulfilled || phase.is_some_and(|phase| !phase.is_before_drained());
        if self.cordon_reported && is_past_drain {
            self.drained()?;
        }
        if self.drained_reported && self.state != status.state && phase != Some(PhaseKind::Drained) {
            let state = status.state.as_deref().unwrap_or_default();
            let text = format!("node/{} {state}", self.node);
            self.say(&text);
        }
        self.state.clone_from(&status.state);
        self.update_stalled(status);
        self.update_wait(phase, status);
        if self.drained_reported && !cordoned && is_fulfilled && !self.uncordoned_reported {
            self.uncordoned_reported = true;
            self.result(&format!("node/{} uncordoned", self.node))?;
        }
        Ok(())
    }

    /// Reports blocked pods with the reason.
    fn update_blocked(&mut self, status: &NodeMaintenanceStatus) {
        for pod in &status.pods {
            let state = pod.state.parse();
            let is_leaving = state == Ok(PodState::Terminating);
            let name = format!("{}/{}", pod.namespace, pod.name);
            if !is_leaving && self.held.get(&name) != Some(&pod.reason) {
                let words = if state == Ok(PodState::Waiting) {
                    format!("pod {name} {}", pod.reason)
                } else {
                    format!(
                        "error when evicting pods/{:?} -n {:?} (will retry): {}",
                        pod.name, pod.namespace, pod.reason
                    )
                };
                self.say(&words);
                self.held.insert(name, pod.reason.clone());
            }
        }
    }

    fn update_stalled(&mut self, status: &NodeMaintenanceStatus) {
        let mut conditions = status.conditions.iter();
        let stalled = conditions.find(|it| it.type_ == "Stalled" && it.status == "True");
        let stalled = stalled.map(|condition| condition.message.clone());
        if let Some(why) = stalled.as_ref().filter(|_| stalled != self.stalled) {
            self.out
                .progress(&plain(&format!("node/{} cannot go on: {why}", self.node)));
        }
        self.stalled = stalled;
    }

    /// Reports a wait when it begins and, as long as it goes on, every [`REPEAT_EVERY`]. While the pods are evicted, each of them is
    /// reported, so the wait as a whole is only repeated.
    fn update_wait(&mut self, phase: Option<PhaseKind>, status: &NodeMaintenanceStatus) {
        let Some(wait) = &status.waiting_on else {
            self.waiting = None;
            return;
        };
        let is_new = self.waiting.as_ref() != Some(&wait.reason);
        let is_told = phase == Some(PhaseKind::Draining);
        let is_late = self.reported_at.elapsed() >= REPEAT_EVERY;
        if is_late || (is_new && !is_told) {
            let still = if is_new { "" } else { "still " };
            let deadline = wait.deadline.as_ref().map(|at| format!(", until {at}"));
            let text = format!(
                "node/{} {still}waits for {}{}",
                self.node,
                wait.message,
                deadline.unwrap_or_default()
            );
            self.say(&text);
        }
        self.waiting = Some(wait.reason.clone());
    }

    /// To stderr.
    fn say(&mut self, text: &str) {
        self.reported_at = Instant::now();
        self.out.progress(&plain(text));
    }

    fn update_pods(&mut self, pods: &[Pod]) {
        let remaining: BTreeSet<String> = pods
            .iter()
            .filter(|pod| verdict(pod).blocks_drain())
            .map(full_name)
            .collect();
        for pod in &remaining {
            if self.evicted_requests.insert(pod.clone()) {
                self.say(&format!("evicting pod {pod}"));
            }
        }
        let gone: Vec<String> = self.evicted_requests.difference(&remaining).cloned().collect();
        for pod in gone {
            if self.gone.insert(pod.clone()) {
                let name = pod.rsplit('/').next().unwrap_or_default();
                self.say(&format!("pod/{name} evicted"));
            }
        }
    }

    fn warn_of_daemon_sets(&self, pods: &[Pod]) {
        let ignored: Vec<String> = pods
            .iter()
            .filter(|pod| matches!(verdict(pod), PodVerdict::Skip(SkipReason::DaemonSet)))
            .map(full_name)
            .collect();
        if !ignored.is_empty() {
            let names = plain(&ignored.join(", "));
            self.out
                .progress(&format!("Warning: ignoring DaemonSet-managed Pods: {names}"));
        }
    }

    fn drained(&mut self) -> anyhow::Result<()> {
        if !std::mem::replace(&mut self.drained_reported, true) {
            self.result(&format!("node/{} drained", self.node))?;
        }
        Ok(())
    }

    /// To stdout for people; to stderr if stdout is machine-readable.
    fn result(&self, text: &str) -> anyhow::Result<()> {
        if self.is_for_people {
            return self.out.result(&plain(text));
        }
        self.out.progress(&plain(text));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodemaintenance::kind::PendingPod;

    #[test]
    fn request_that_failed_drained_nothing() {
        for (state, succeeded, is_drained) in [
            (None, "False", false),
            (Some("Queued"), "False", false),
            (Some("Draining"), "False", false),
            (Some("Drained"), "True", true),
            (None, "True", true),
        ] {
            let status = serde_json::from_value(serde_json::json!({
                "phase": if succeeded == "True" { "Succeeded" } else { "Failed" },
                "state": state,
                "endedAt": "2026-11-27T16:00:00Z",
                "conditions": [{
                    "type": "Succeeded",
                    "status": succeeded,
                    "reason": "NoHost",
                    "message": "no other host can take the VM",
                    "lastTransitionTime": "2026-11-27T16:00:00Z",
                }],
            }));
            let mut follower = RequestFollower::new(Output::new(), false, "gpu1", true);
            follower.update(true, None, &status.unwrap()).unwrap();
            assert_eq!(follower.drained_reported, is_drained, "{state:?} {succeeded}");
        }
    }

    #[test]
    fn only_blocked_pods_are_reported() {
        let mut follower = RequestFollower::new(Output::new(), true, "gpu1", false);
        let pods = PodState::ALL.iter().map(|state| PendingPod {
            namespace: "ml".to_owned(),
            name: state.name().to_lowercase(),
            state: state.name().to_owned(),
            reason: "some words".to_owned(),
        });
        follower.update_blocked(&NodeMaintenanceStatus {
            pods: pods.collect(),
            ..NodeMaintenanceStatus::default()
        });
        let held: Vec<&str> = follower.held.keys().map(String::as_str).collect();
        assert_eq!(
            held,
            [
                "ml/heldbybudget",
                "ml/migrating",
                "ml/notasked",
                "ml/refused",
                "ml/waiting"
            ]
        );
    }
}
