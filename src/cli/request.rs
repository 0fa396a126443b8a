//! `drain`, `resume` and `approve`: what a person asks for, and how it goes, in kubectl's own words.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use serde::Serialize;
use tokio::time::Instant;

use super::nodes::{Reading, read_nodes};
use super::out::Out;
use super::{Action, DrainArgs, Format, OfNode, show};
use crate::cluster::answer::plain;
use crate::cluster::client::connect_by;
use crate::cluster::drain::{self, DrainSettings};
use crate::cluster::look;
use crate::cluster::pods::{SkipReason, Verdict, verdict};
use crate::ids::{NodeName, RequestUid};
use crate::nodemaintenance;
use crate::nodemaintenance::api::{self, WriteError};
use crate::nodemaintenance::kind::{MaintenanceAction, NodeMaintenanceSpec, NodeMaintenanceStatus, Origin};
use crate::status::{PhaseKind, PodState};

/// How often a wait looks. The controller gathers what it writes for a second.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// After this long without a word in the status of a request, a person wants to hear that nobody answers.
const NOBODY_ANSWERS: Duration = Duration::from_secs(15);

/// What `drain` has made.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Asked<'a> {
    name: &'a str,
    node: &'a str,
    action: String,
}

/// Creates a request, and waits until it is met.
pub(super) async fn drain(args: DrainArgs, out: Out) -> anyhow::Result<u8> {
    let client = connect_by(&(&args.access).into()).await?;
    ensure!(
        args.target_host.is_none() || args.action == Action::Relocate,
        "--target-host goes with --action Relocate only"
    );
    let before = look::node(&client, &args.node).await?;
    let spec = NodeMaintenanceSpec {
        node_name: args.node.clone(),
        reason: args.reason.clone(),
        action: args.action.into(),
        target_host: args.target_host.clone(),
        ..NodeMaintenanceSpec::default()
    };
    let made = match api::request(&client, spec).await {
        Err(WriteError::Gone { said, .. }) => bail!(
            "the kind NodeMaintenance is not installed ({said}); install it by: haulout crd | kubectl apply -f -"
        ),
        made => made?,
    };
    let action = format!("{:?}", MaintenanceAction::from(args.action));
    let asked = Asked {
        name: &made.name,
        node: &args.node,
        action,
    };
    let format = args.output.output;
    let name = format!("nodemaintenance.haulout.dev/{}", made.name);
    let for_programs = show::for_programs(format, &asked)?;
    let is_for_people = for_programs.is_none() && format != Format::Name;
    let created = if is_for_people {
        format!("{name} created")
    } else {
        name
    };
    out.result(&for_programs.unwrap_or(created))?;
    if !args.wait {
        return Ok(0);
    }
    let following = Following {
        is_for_people,
        node: args.node.clone(),
        was_cordoned: is_cordoned(&before),
        ..Following::new(out)
    };
    let wait = follow(&client, &made.name, following);
    match args.timeout {
        0 => wait.await?,
        seconds => match tokio::time::timeout(Duration::from_secs(seconds), wait).await {
            Ok(ended) => ended?,
            Err(_elapsed) => bail!(
                "timed out waiting for nodemaintenance.haulout.dev/{}; it stands: `resume {}` takes it back",
                made.name,
                args.node
            ),
        },
    }
    Ok(0)
}

/// Tells how the request `name` goes until it is met.
async fn follow(client: &kube::Client, name: &str, mut following: Following) -> anyhow::Result<()> {
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
        let cordoned = look::node(client, node.as_str())
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

fn is_cordoned(node: &Node) -> bool {
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
struct Following {
    out: Out,
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

impl Following {
    fn new(out: Out) -> Self {
        Self {
            out,
            is_for_people: true,
            node: String::new(),
            was_cordoned: false,
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
            .filter(|pod| matches!(verdict(pod, &node), Verdict::Skip(SkipReason::DaemonSet)))
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

/// What `resume` did, and what stays.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Resumed {
    node: String,
    deleted: Vec<String>,
    stays: Vec<String>,
}

/// Deletes the standing requests of a node, and says what stays.
pub(super) async fn resume(args: OfNode, out: Out) -> anyhow::Result<u8> {
    let client = connect_by(&(&args.access).into()).await?;
    let reading = read_nodes(&client, &args.marks, Some(&args.node)).await?;
    let mut resumed = Resumed {
        node: args.node.clone(),
        deleted: Vec::new(),
        stays: stays(&reading, &args.node),
    };
    for object in &reading.objects {
        let is_over = object
            .status
            .as_ref()
            .is_some_and(|status| status.ended_at.is_some());
        if object.spec.origin != Origin::Request || is_over {
            continue;
        }
        let uid = RequestUid::new(object.uid().unwrap_or_default());
        api::take_back(&client, &object.name_any(), &uid).await?;
        resumed.deleted.push(object.name_any());
    }
    if let Some(text) = show::for_programs(args.output.output, &resumed)? {
        out.result(&text)?;
        return Ok(0);
    }
    for name in &resumed.deleted {
        let told = if args.output.output == Format::Name {
            ""
        } else {
            " deleted"
        };
        out.result(&format!("nodemaintenance.haulout.dev/{}{told}", plain(name)))?;
    }
    if resumed.deleted.is_empty() {
        out.progress(&format!(
            "nobody has asked for node/{} to be out of service",
            plain(&args.node)
        ));
    }
    for stays in &resumed.stays {
        out.progress(&plain(stays));
    }
    Ok(0)
}

/// What deleting requests does not take away.
fn stays(reading: &Reading, node: &str) -> Vec<String> {
    let states = reading.states();
    let Some(state) = states.iter().find(|state| state.node == node) else {
        return Vec::new();
    };
    let mut stays = Vec::new();
    if let Some(host) = state.host.as_ref().filter(|_| !state.by_request) {
        let why = format!("ESXi host {host} is in maintenance, or on its way there");
        stays.push(format!("node/{node} stays {}: {why}", state.state));
    }
    if let Some(by) = state.cordoned_by.as_ref().filter(|by| *by != "Haulout") {
        stays.push(format!("node/{node} stays cordoned: that was {by}"));
    }
    stays
}

/// Annotates the Node, so that its next drain may begin.
pub(super) async fn approve(args: OfNode, out: Out) -> anyhow::Result<u8> {
    let client = connect_by(&(&args.access).into()).await?;
    look::approve(&client, &args.node).await?;
    let node = plain(&args.node);
    let value = serde_json::json!({"node": args.node, "approved": true});
    match (
        args.output.output,
        show::for_programs(args.output.output, &value)?,
    ) {
        (_, Some(text)) => out.result(&text)?,
        (Format::Name, None) => out.result(&format!("node/{node}"))?,
        (Format::Table | Format::Wide | Format::Json | Format::Yaml, None) => {
            out.result(&format!("node/{node} approved"))?;
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodemaintenance::kind::PendingPod;

    #[test]
    fn only_pods_that_are_held_back_are_told_however_the_reason_reads() {
        let mut following = Following::new(Out::new());
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
