//! The data of the node page, a pure function of state and time.

use super::episode::{PODS, episode_facts, newest_first, time};
use super::{LabelledFact, NextStepRow, NodePage, NodeRow, PodRow, PodRows, ShownState, View, Waits};
use haulout_controller::nodemaintenance::kind::WaitStatus;
use haulout_core::ids::NodeName;
use haulout_core::maintenance::episode::Record;
use haulout_core::maintenance::observed::{BoundVm, PowerState, Strategy};
use haulout_core::maintenance::waiting::is_command;
use haulout_core::status::{NodeEntry, NodeStatus, NodeSummary, PhaseKind, WaitKind};
use haulout_kubernetes::update::NodeMaintenanceFacts;

const RUNBOOKS: &str = "https://github.com/haulout/haulout/blob/main/docs/runbooks";

impl View<'_> {
    /// `None` for an unknown node.
    pub(in crate::status) fn node(self, name: &NodeName) -> Option<NodePage> {
        let entry = self.board.nodes.get(name)?;
        let mut episodes = self.episodes();
        episodes.retain(|row| row.node == name.as_str());
        let latest = entry.latest.as_ref();
        Some(NodePage {
            frame: self.frame(),
            row: self.node_row(name, entry)?,
            facts: node_facts(entry.status.as_ref()?, self.state.leads()),
            pods: self.pods_of(entry),
            steps: latest.map(newest_first).unwrap_or_default(),
            episodes,
        })
    }

    pub(super) fn node_row(self, name: &NodeName, entry: &NodeEntry) -> Option<NodeRow> {
        let status = entry.status.as_ref()?;
        Some(NodeRow {
            name: name.to_string(),
            state: ShownState::Phase(status.phase),
            phase: status.phase,
            since: status.since,
            host: status
                .host()
                .map(|(name, _)| name.to_owned())
                .or_else(|| recorded_host(status))
                .or_else(|| last_host(entry, status)),
            waits_for: self.waits(name, entry),
            episode: entry.episode().map(|episode| episode.id.to_string()),
        })
    }

    /// The wait that its actor reports, or, on a standby, the one that the leader wrote. Both are shown from the written form.
    pub(super) fn waits(self, name: &NodeName, entry: &NodeEntry) -> Option<Waits> {
        let object = entry
            .episode()
            .and_then(|episode| self.object(episode.id.as_str()));
        let written = object.and_then(|object| object.status.waiting_on.as_ref());
        let reported = entry
            .waiting_on()
            .map(|wait| wait.written(name).continuing(written));
        reported.or_else(|| written.cloned()).map(Waits::from)
    }

    /// The NodeMaintenance of an episode, if the leader created one.
    pub(super) fn object(&self, id: &str) -> Option<&NodeMaintenanceFacts> {
        let mut objects = self.history.iter();
        objects.find(|object| object.status.episode.as_deref() == Some(id))
    }

    /// The remaining pods listed by this process, or else by the leader.
    pub(super) fn pods_of(self, entry: &NodeEntry) -> Option<PodRows> {
        let status = entry.status.as_ref()?;
        let is_shown = matches!(status.at_work, PhaseKind::Draining | PhaseKind::Drained);
        let listed = status.pods.as_ref().filter(|_| is_shown);
        let listed = listed.map(|pods| (pods.written(PODS), pods.left.len()));
        let (left, all) = listed.or_else(|| {
            let written = &self.object(entry.episode()?.id.as_str())?.status.pods;
            (!written.is_empty()).then(|| (written.clone(), written.len()))
        })?;
        let rows = left.into_iter().take(PODS).map(|pod| PodRow {
            name: pod.full_name(),
            why: pod.reason,
        });
        Some(PodRows {
            left: rows.collect(),
            more: all.saturating_sub(PODS),
        })
    }
}

impl From<WaitStatus> for Waits {
    fn from(written: WaitStatus) -> Self {
        // Objects have kinds in CamelCase.
        let kind: Option<WaitKind> = written.reason.parse().ok();
        Self {
            reason: kind.map_or(written.reason, |kind| kind.to_string()),
            message: written.message,
            since: time(&written.since),
            deadline: written.deadline.as_deref().and_then(time),
            then: written.then,
            next: written.next_step.map(|text| NextStepRow {
                is_command: is_command(&text),
                text,
            }),
            runbook: kind.and_then(runbook),
            needs_person: kind.is_some_and(WaitKind::needs_person),
        }
    }
}

/// The address of the runbook about a wait.
fn runbook(kind: WaitKind) -> Option<String> {
    kind.runbook().map(|name| format!("{RUNBOOKS}/{name}.md"))
}

impl NodeRow {
    /// Its maintenance goes on only after a person acts.
    pub(super) fn needs_person(&self) -> bool {
        self.phase == PhaseKind::Parked || self.waits_for.as_ref().is_some_and(|wait| wait.needs_person)
    }
}

/// The last known host, while vCenter does not show the VM.
fn last_host(entry: &NodeEntry, status: &NodeStatus) -> Option<String> {
    let is_unknown = status.vm == BoundVm::NotLookedUp;
    entry.last_host.clone().filter(|_| is_unknown)
}

/// The host in the record, if vCenter has not reported one.
fn recorded_host(status: &NodeStatus) -> Option<String> {
    let episode = status.record.episode()?;
    let host = episode.moved_to.as_ref().unwrap_or(&episode.host);
    (status.vm == BoundVm::NotLookedUp).then(|| host.name.to_string())
}

fn node_facts(status: &NodeStatus, is_vcenter_followed: bool) -> Vec<LabelledFact> {
    let mut facts = of_node(status.node.as_ref());
    if is_vcenter_followed || status.vm != BoundVm::NotLookedUp {
        facts.extend(of_vm(&status.vm));
    }
    if let Some(request) = &status.request {
        let (name, action) = (&request.identity, &request.action);
        let asks = format!("NodeMaintenance {name} asks for it to be {action}");
        facts.push(LabelledFact::new("Request", asks));
    }
    match &status.record {
        Record::Episode(episode) => facts.extend(episode_facts(episode)),
        Record::Python(python) => {
            facts.push(LabelledFact::new(
                "Adopting",
                format!("an episode of host {}", python.host),
            ));
        }
        Record::Unreadable { why } => {
            facts.push(LabelledFact::new("Record", format!("it cannot be read: {why}")))
        }
        Record::InService => {}
    }
    facts
}

fn of_node(node: Option<&NodeSummary>) -> Vec<LabelledFact> {
    let Some(node) = node else {
        return vec![LabelledFact::new("Node", "the object is gone")];
    };
    let cordon = if node.is_cordoned {
        "cordoned"
    } else {
        "schedulable"
    };
    let ready = if node.is_ready { "Ready" } else { "not Ready" };
    let mut facts = vec![LabelledFact::new("Node", format!("{ready}, {cordon}"))];
    if node.overrides.skip {
        facts.push(LabelledFact::new("Left alone", "it is annotated to be skipped"));
    }
    if let Some(approved) = &node.overrides.approved {
        facts.push(LabelledFact::new("Approved", approved.to_string()));
    }
    if node.overrides.strategy == Strategy::Wait {
        facts.push(LabelledFact::new("Strategy", "its VM waits for its own host"));
    }
    facts
}

fn of_vm(vm: &BoundVm) -> Vec<LabelledFact> {
    let vm = match vm.or_wait() {
        Ok(vm) => vm,
        Err(_) if *vm == BoundVm::NoVm => {
            return vec![LabelledFact::new(
                "VM",
                "none that vCenter knows; the node is left alone",
            )];
        }
        Err(wait) => return vec![LabelledFact::new("VM", wait.sentence())],
    };
    let power = match vm.power {
        None => "power state unknown",
        Some(PowerState::On) => "powered on",
        Some(PowerState::Off) => "powered off",
        Some(PowerState::Suspended) => "suspended",
    };
    let mut facts = vec![
        LabelledFact::new("VM", format!("{}, {power}", vm.moref)),
        LabelledFact::new("Host", format!("{}, {}", vm.host_name, vm.host.words())),
    ];
    facts.extend(
        vm.question
            .as_ref()
            .map(|question| LabelledFact::new("Question", question)),
    );
    facts
}
