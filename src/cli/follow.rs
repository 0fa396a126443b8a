//! How a request goes, told to a person in kubectl's own words until it is met.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{anyhow, bail};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::out::Output;
use crate::ids::NodeName;
use crate::kubernetes::answer::plain;
use crate::kubernetes::drain::{self, DrainSettings};
use crate::kubernetes::pods::{PodVerdict, SkipReason, verdict};
use crate::kubernetes::reads;
use crate::nodemaintenance;
use crate::nodemaintenance::kind::NodeMaintenanceStatus;
use crate::status::{PhaseKind, PodState};

/// How often a wait looks. The controller gathers what it writes for a second.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// After this long without a word in the status of a request, a person wants to hear that nobody answers.
const NOBODY_ANSWERS: Duration = Duration::from_secs(15);

/// Tells how the request `name` goes until it is met.
pub(super) async fn follow(
    client: &kube::Client,
    name: &str,
    mut following: RequestFollower,
) -> anyhow::Result<()> {
    let out = following.out;
    let node = NodeName::new(following.node.clone());
    let began = Instant::now();
    let mut is_silence_told = false;
    loop {
        let object = match nodemaintenance::look::one(client, name).await {
            Ok(object) => object,
            Err(error) if error.is_absent() => {
                bail!("nodemaintenance.haulout.dev/{name} was deleted before it was met")
            }
            Err(error) => {
                out.progress(&format!("{error}; looking again"));
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
        };
        let status = object.status.unwrap_or_default();
        if status.conditions.is_empty() && !is_silence_told && began.elapsed() > NOBODY_ANSWERS {
            is_silence_told = true;
            out.progress("no controller has answered yet: is one running that takes care of this node?");
        }
        let pods = drain::list(client, &node, &DrainSettings::default()).await.ok();
        let cordoned = reads::node(client, node.as_str())
            .await
            .is_ok_and(|node| is_cordoned(&node));
        following.see(cordoned, pods.as_deref(), &status)?;
        if let Some(end) = end(&status) {
            end.map_err(|why| anyhow!("{name}: {why}"))?;
            return following.drained();
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

pub(super) fn is_cordoned(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.unschedulable).unwrap_or(false)
}

/// How a request has ended, if it has: by its condition `Succeeded`.
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

/// What has been told so far of a drain.
pub(super) struct RequestFollower {
    out: Output,
    is_for_people: bool,
    node: String,
    was_cordoned: bool,
    cordon_told: bool,
    drained_told: bool,
    uncordoned_told: bool,
    /// The pods that were asked to leave, by `namespace/name`.
    asked: BTreeSet<String>,
    gone: BTreeSet<String>,
    /// What was last said of each pod that is held back.
    held: BTreeMap<String, String>,
    state: Option<String>,
    stalled: Option<String>,
}

impl RequestFollower {
    pub(super) fn new(out: Output, is_for_people: bool, node: &str, was_cordoned: bool) -> Self {
        Self {
            out,
            is_for_people,
            node: node.to_owned(),
            was_cordoned,
            cordon_told: false,
            drained_told: false,
            uncordoned_told: false,
            asked: BTreeSet::new(),
            gone: BTreeSet::new(),
            held: BTreeMap::new(),
            state: None,
            stalled: None,
        }
    }

    /// Tells what is new. `pods` is `None` where they could not be listed.
    fn see(
        &mut self,
        cordoned: bool,
        pods: Option<&[Pod]>,
        status: &NodeMaintenanceStatus,
    ) -> anyhow::Result<()> {
        let has_ended = status.ended_at.is_some();
        let phase: Option<PhaseKind> = status.state.as_deref().and_then(|state| state.parse().ok());
        let is_begun = has_ended || phase.is_some_and(|phase| phase != PhaseKind::Queued);
        if !self.cordon_told && cordoned && is_begun {
            self.cordon_told = true;
            let words = if self.was_cordoned {
                "already cordoned"
            } else {
                "cordoned"
            };
            self.result(&format!("node/{} {words}", self.node))?;
            self.warn_of_daemon_sets(pods.unwrap_or_default());
        }
        if let Some(pods) = pods.filter(|_| self.cordon_told) {
            self.see_pods(pods);
        }
        self.see_held(status);
        let is_past_drain = has_ended || phase.is_some_and(|phase| !phase.is_before_drained());
        if self.cordon_told && is_past_drain {
            self.drained()?;
        }
        if self.drained_told && self.state != status.state && phase != Some(PhaseKind::Drained) {
            let state = status.state.as_deref().unwrap_or_default();
            self.out.progress(&plain(&format!("node/{} {state}", self.node)));
        }
        self.state.clone_from(&status.state);
        self.see_stalled(status);
        if self.drained_told && !cordoned && has_ended && !self.uncordoned_told {
            self.uncordoned_told = true;
            self.result(&format!("node/{} uncordoned", self.node))?;
        }
        Ok(())
    }

    /// Tells which pods are held back, and why.
    fn see_held(&mut self, status: &NodeMaintenanceStatus) {
        for pod in &status.pods {
            let is_leaving = pod.state.parse() == Ok(PodState::Terminating);
            let name = format!("{}/{}", pod.namespace, pod.name);
            if !is_leaving && self.held.get(&name) != Some(&pod.reason) {
                self.out.progress(&plain(&format!(
                    "error when evicting pods/{:?} -n {:?} (will retry): {}",
                    pod.name, pod.namespace, pod.reason
                )));
                self.held.insert(name, pod.reason.clone());
            }
        }
    }

    fn see_stalled(&mut self, status: &NodeMaintenanceStatus) {
        let mut conditions = status.conditions.iter();
        let stalled = conditions.find(|it| it.type_ == "Stalled" && it.status == "True");
        let stalled = stalled.map(|condition| condition.message.clone());
        if let Some(why) = stalled.as_ref().filter(|_| stalled != self.stalled) {
            self.out
                .progress(&plain(&format!("node/{} cannot go on: {why}", self.node)));
        }
        self.stalled = stalled;
    }

    fn see_pods(&mut self, pods: &[Pod]) {
        let node = NodeName::new(self.node.clone());
        let standing: BTreeSet<String> = pods
            .iter()
            .filter(|pod| verdict(pod, &node).stands_in_the_way())
            .map(full_name)
            .collect();
        for pod in &standing {
            if self.asked.insert(pod.clone()) {
                self.out.progress(&format!("evicting pod {}", plain(pod)));
            }
        }
        let gone: Vec<String> = self.asked.difference(&standing).cloned().collect();
        for pod in gone {
            if self.gone.insert(pod.clone()) {
                let name = pod.rsplit('/').next().unwrap_or_default();
                self.out.progress(&format!("pod/{} evicted", plain(name)));
            }
        }
    }

    fn warn_of_daemon_sets(&self, pods: &[Pod]) {
        let node = NodeName::new(self.node.clone());
        let ignored: Vec<String> = pods
            .iter()
            .filter(|pod| matches!(verdict(pod, &node), PodVerdict::Skip(SkipReason::DaemonSet)))
            .map(full_name)
            .collect();
        if !ignored.is_empty() {
            let names = plain(&ignored.join(", "));
            self.out
                .progress(&format!("Warning: ignoring DaemonSet-managed Pods: {names}"));
        }
    }

    fn drained(&mut self) -> anyhow::Result<()> {
        if !std::mem::replace(&mut self.drained_told, true) {
            self.result(&format!("node/{} drained", self.node))?;
        }
        Ok(())
    }

    /// For people on stdout; where a program reads that, on stderr.
    fn result(&self, text: &str) -> anyhow::Result<()> {
        if self.is_for_people {
            return self.out.result(&plain(text));
        }
        self.out.progress(&plain(text));
        Ok(())
    }
}

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodemaintenance::kind::PendingPod;

    #[test]
    fn only_pods_that_are_held_back_are_told_however_the_reason_reads() {
        let mut following = RequestFollower::new(Output::new(), true, "gpu1", false);
        let pods = PodState::ALL.iter().map(|state| PendingPod {
            namespace: "ml".to_owned(),
            name: state.name().to_lowercase(),
            state: state.name().to_owned(),
            reason: "some words".to_owned(),
        });
        following.see_held(&NodeMaintenanceStatus {
            pods: pods.collect(),
            ..NodeMaintenanceStatus::default()
        });
        let held: Vec<&str> = following.held.keys().map(String::as_str).collect();
        assert_eq!(
            held,
            ["ml/heldbybudget", "ml/migrating", "ml/notasked", "ml/refused"]
        );
    }
}
