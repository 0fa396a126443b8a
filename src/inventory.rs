//! Folds what both worlds tell, and what effects found, into one [`Sight`] per node. Pure: no async, no clock, no I/O.
//!
//! Whatever comes in is a [`Fact`]; what goes out is the whole picture of each node, so that a missed or repeated fact
//! is repaired by the next look. Half a set is never the world: between a `Reset` and its `Settled` a side counts as
//! not heard, and what was not told again by then is forgotten.

mod bind;
mod findings;
mod forecast;
mod fresh;
mod holding;
mod paper;
mod places;
mod requests;
mod shown;
mod sight;
mod spare;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::cluster::update as cluster;
use crate::ids::{ComputeRef, HostRef, NodeName, TaskRef, VmRef};
use crate::maintenance::admission::{Applicant, Ledger, Limits};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::{Phase, Record};
use crate::maintenance::finding::{Finding, Found};
use crate::maintenance::observed::{Attempt, DrainReport, Hearing, Lead, Outcome, Pictures, Sight};
use crate::maintenance::placement::{Hold, Offer};
use crate::maintenance::record;
use crate::vsphere::update as vsphere;

pub use forecast::{Forecast, Reach};
pub use sight::record_of;

/// One thing to fold in.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// vCenter told it.
    Vsphere(vsphere::Update),
    /// Kubernetes told it.
    Cluster(cluster::Update),
    /// An effect found it.
    Finding(Finding),
}

/// The configured part of the fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// `MAX_CONCURRENT_DRAINS`.
    pub concurrent_drains: u32,
    /// `MAX_UNAVAILABLE`.
    pub unavailable: MaxUnavailable,
    /// `BIND_BY_NAME`: look VMs up by name although a UUID is known.
    pub bind_by_name: bool,
    /// `REQUIRE_APPROVAL`.
    pub require_approval: bool,
    /// `NODE_MAINTENANCES`: NodeMaintenance objects are watched.
    pub node_maintenances: bool,
}

/// `MAX_UNAVAILABLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxUnavailable {
    /// No limit.
    Unlimited,
    /// This many nodes.
    Nodes(u32),
    /// This share of the nodes that the selector matches, rounded down, and at least one.
    Percent(u8),
}

/// The fold.
#[derive(Debug)]
pub struct Inventory {
    rules: Rules,
    process_began: Timestamp,
    lead: Lead,
    vcenter: Side<String>,
    kubernetes: Side<NodeName>,
    requests: Side<String>,
    hosts: BTreeMap<HostRef, Arc<vsphere::Host>>,
    computes: BTreeMap<ComputeRef, vsphere::Compute>,
    vms: BTreeMap<VmRef, vsphere::Vm>,
    tasks: BTreeMap<TaskRef, vsphere::Task>,
    answers: BTreeMap<vsphere::VmKey, BTreeSet<VmRef>>,
    /// The keys to which this VM answers, alone or with others.
    answers_to: BTreeMap<VmRef, BTreeSet<vsphere::VmKey>>,
    /// The nodes that go by this key.
    askers: BTreeMap<vsphere::VmKey, BTreeSet<NodeName>>,
    pressed: BTreeMap<vsphere::VmKey, fresh::Pressed>,
    holds: BTreeMap<HostRef, Vec<Hold>>,
    nodes: BTreeMap<NodeName, cluster::Node>,
    maintenances: requests::Objects,
    local: BTreeMap<NodeName, Local>,
    /// The episode of any node that was about this host and ended last.
    last_of: BTreeMap<HostRef, LastOf>,
    /// What was offered in the last pictures, to nodes that look for a host.
    offers: BTreeMap<NodeName, Offer>,
    /// The budgets whose watch stands.
    heard_budgets: BTreeSet<cluster::Budget>,
    ledger: Ledger,
    /// What of all our nodes is asked of vCenter.
    keys: Arc<BTreeSet<vsphere::VmKey>>,
    /// What came in since the last pictures, where it can change one.
    news: Option<News>,
    /// The hosts that were told of since the last pictures.
    told_hosts: BTreeSet<HostRef>,
    /// In the last pictures every node was in service, and nobody asked otherwise.
    is_calm: bool,
    /// The nodes that were not at rest in the last pictures. Each may be another one with whatever comes in and is not some
    /// node's own, because they wait for each other and look for places on the same hosts; one at rest only with a fact about
    /// itself or its host.
    awake: BTreeSet<NodeName>,
}

/// What has to be drawn anew.
#[derive(Debug)]
enum News {
    /// Every picture.
    OfAll,
    /// Those of these nodes, and of whoever is awake.
    Of(BTreeSet<NodeName>),
    /// Those of these nodes. What came in is their own: it changes nobody's place in a queue or on a host.
    OnlyOf(BTreeSet<NodeName>),
}

/// Whether one world is being heard, and what it has told since its last `Reset`.
#[derive(Debug)]
struct Side<Key> {
    silent: Option<String>,
    /// What was told since the last `Reset`.
    told: BTreeSet<Key>,
    /// Something was told since the last `Settled`.
    is_open: bool,
}

/// An episode that has ended.
#[derive(Debug)]
struct LastOf {
    at: Timestamp,
    traceparent: Arc<str>,
}

/// What this process knows of a node beyond what the two worlds tell. Nothing here is needed after a restart.
#[derive(Debug, Default)]
struct Local {
    attempts: BTreeMap<EffectKind, Attempt>,
    drain: Option<DrainReport>,
    pods_revision: u64,
    offered: Option<HostRef>,
    /// What stands on the Node, read when it was told: a picture is drawn far more often than a record is written.
    on_node: Option<Record>,
    /// The record last seen on a Node that is gone since.
    record_of_gone: Option<Record>,
    paper: paper::Paper,
}

impl<Key> Side<Key> {
    fn unheard(who: &str) -> Self {
        Self {
            silent: Some(format!("{who} has not told its first complete set yet")),
            told: BTreeSet::new(),
            is_open: false,
        }
    }
}

impl Inventory {
    /// An inventory that knows nothing yet, of a process that began at `process_began`.
    pub fn new(rules: Rules, process_began: Timestamp) -> Self {
        Self {
            rules,
            process_began,
            lead: Lead::ALONE,
            vcenter: Side::unheard("vCenter"),
            kubernetes: Side::unheard("the kube-apiserver"),
            requests: if rules.node_maintenances {
                Side::unheard("the watch of NodeMaintenances")
            } else {
                Side::silent_by_choice()
            },
            hosts: BTreeMap::new(),
            computes: BTreeMap::new(),
            vms: BTreeMap::new(),
            tasks: BTreeMap::new(),
            answers: BTreeMap::new(),
            answers_to: BTreeMap::new(),
            askers: BTreeMap::new(),
            pressed: BTreeMap::new(),
            holds: BTreeMap::new(),
            nodes: BTreeMap::new(),
            maintenances: requests::Objects::default(),
            local: BTreeMap::new(),
            last_of: BTreeMap::new(),
            offers: BTreeMap::new(),
            heard_budgets: BTreeSet::new(),
            ledger: Ledger::default(),
            keys: Arc::default(),
            news: Some(News::OfAll),
            told_hosts: BTreeSet::new(),
            is_calm: false,
            awake: BTreeSet::new(),
        }
    }

    /// Takes that this process leads from `now` on. What it saw before, another may have done.
    pub fn leads(&mut self, lead: Lead, now: Timestamp) {
        self.lead = lead;
        self.process_began = now;
        self.news = Some(News::OfAll);
    }

    /// Folds one fact in.
    pub fn apply(&mut self, fact: Fact) {
        let news = self.news_in(&fact);
        if let (Some(_), Fact::Vsphere(vsphere::Update::Host(host))) = (&news, &fact) {
            self.told_hosts.insert(host.moref.clone());
        }
        self.news = match (self.news.take(), news) {
            (standing, None) => standing,
            (None, Some(news)) => Some(news),
            (Some(standing), Some(news)) => Some(standing.and(news)),
        };
        match fact {
            Fact::Vsphere(update) => self.apply_vsphere(update),
            Fact::Cluster(update) => self.apply_cluster(update),
            Fact::Finding(finding) => self.apply_finding(finding),
        }
    }

    /// Whether any picture can be another one than was drawn last.
    pub fn has_news(&self) -> bool {
        self.news.is_some()
    }

    /// Which pictures a fact can change. A vCenter may have thousands of hosts that change all the time and carry nothing of
    /// ours: while no node is on its way out or back, they cost a look at where our VMs stand. One on its way may go to
    /// any of them. And a thousand kubelets say several times a second that they live, each of a node at rest in a Node
    /// that is another only by its version; what happens to the node next shows its latest.
    fn news_in(&self, fact: &Fact) -> Option<News> {
        let is_heard = self.silent().is_none();
        let of = |node: &NodeName| Some(News::Of(BTreeSet::from([node.clone()])));
        let only_of = |node: &NodeName| Some(News::OnlyOf(BTreeSet::from([node.clone()])));
        match fact {
            Fact::Cluster(cluster::Update::Node(node)) => {
                let Some(known) = self.nodes.get(&node.name) else {
                    return Some(News::OfAll);
                };
                if is_later_only(known, node) {
                    let is_awake = self.awake.contains(&node.name);
                    return is_awake.then(|| only_of(&node.name)).flatten();
                }
                // Who goes by the same keys is seen by those that share a VM.
                let is_same_machine = known.uid == node.uid && self.keys(known) == self.keys(node);
                if is_heard && is_same_machine {
                    of(&node.name)
                } else {
                    Some(News::OfAll)
                }
            }
            Fact::Cluster(cluster::Update::PodsChanged(node)) if is_heard => only_of(node),
            Fact::Cluster(cluster::Update::Maintenances(cluster::Maintenances::Seen(seen)))
                if is_heard && matches!(seen.role, cluster::Role::Episode { .. }) =>
            {
                let on_node = self
                    .local
                    .get(&seen.node)
                    .and_then(|local| local.on_node.as_ref());
                let before = self.maintenances.get(&seen.name).map(|before| &before.node);
                match on_node {
                    _ if before.is_some_and(|before| *before != seen.node) => Some(News::OfAll),
                    // The record on the Node counts; the copy only has to say the same.
                    Some(Record::Episode(_)) => only_of(&seen.node),
                    Some(Record::InService | Record::Python(_) | Record::Unreadable { .. }) => of(&seen.node),
                    None => Some(News::OfAll),
                }
            }
            // Whoever drains is awake.
            Fact::Cluster(cluster::Update::Budget { .. }) if is_heard => Some(News::Of(BTreeSet::new())),
            Fact::Finding(finding) if is_heard => match finding.found {
                // It is for those who look on.
                Found::Evictions(_) => None,
                Found::Drain(_)
                | Found::Tried {
                    kind: EffectKind::DrainRound,
                    ..
                } => only_of(&finding.node),
                Found::Tried { .. }
                | Found::Holds { .. }
                | Found::PaperRecord { .. }
                | Found::PaperEffect(_) => of(&finding.node),
            },
            Fact::Vsphere(vsphere::Update::Host(host)) => {
                let known = self.hosts.get(&host.moref);
                if known == Some(host) {
                    return None;
                }
                let ours = self.nodes_on(&host.moref);
                if ours.is_empty() && self.is_calm {
                    return None;
                }
                let stays = known.is_some_and(|known| known.compute == host.compute);
                Some(if is_heard && stays {
                    News::Of(ours)
                } else {
                    News::OfAll
                })
            }
            // A template binds nobody; who stops being one, or begins to be, may bind others.
            Fact::Vsphere(vsphere::Update::Vm(vm)) => match self.vms.get(&vm.moref) {
                Some(known) if known == vm => None,
                Some(known) if is_heard && known.template == vm.template => {
                    Some(News::Of(self.nodes_of(&vm.moref).cloned().collect()))
                }
                Some(_) | None => Some(News::OfAll),
            },
            Fact::Vsphere(vsphere::Update::Task(task)) if is_heard => {
                let of_vm = task.vm.iter().flat_map(|vm| self.nodes_of(vm));
                let ours = of_vm.chain(self.awaiting(&task.moref));
                Some(News::Of(ours.cloned().collect()))
            }
            // The same answer, given anew: whoever asked may be sure of it.
            Fact::Vsphere(vsphere::Update::Found { key, vms })
                if is_heard && self.answers.get(key) == Some(vms) =>
            {
                Some(News::Of(self.askers.get(key).cloned().unwrap_or_default()))
            }
            Fact::Vsphere(vsphere::Update::Settled) => self.vcenter.silent.is_some().then_some(News::OfAll),
            Fact::Vsphere(_) | Fact::Cluster(_) | Fact::Finding(_) => Some(News::OfAll),
        }
    }

    /// The nodes whose VM stands on `host`.
    fn nodes_on(&self, host: &HostRef) -> BTreeSet<NodeName> {
        let vms = self.vms.values().filter(|vm| vm.host.as_ref() == Some(host));
        vms.flat_map(|vm| self.nodes_of(&vm.moref)).cloned().collect()
    }

    /// The nodes for which a try of this process waits for `task`.
    fn awaiting<'a>(&'a self, task: &'a TaskRef) -> impl Iterator<Item = &'a NodeName> {
        let is_it = move |attempt: &Attempt| match &attempt.outcome {
            Outcome::Running(running) => running == task,
            Outcome::Asked | Outcome::Done | Outcome::Refused(_) => false,
        };
        let locals = self.local.iter();
        locals.filter_map(move |(name, local)| local.attempts.values().any(is_it).then_some(name))
    }

    /// The nodes whose pictures may be other ones than were drawn last.
    fn in_the_news(&self) -> BTreeSet<NodeName> {
        match &self.news {
            None => self.awake.clone(),
            Some(News::OfAll) => self.names(),
            Some(News::Of(nodes)) => nodes.union(&self.awake).cloned().collect(),
            Some(News::OnlyOf(nodes)) => nodes.clone(),
        }
    }

    /// Whether a set of vCenter's has been told in part: what belongs to it follows at once, and is to be judged together.
    /// Kubernetes tells each Node by itself, so there is nothing to wait for.
    pub fn is_amid_a_set(&self) -> bool {
        self.vcenter.silent.is_none() && self.vcenter.is_open
    }

    /// What vCenter is to be asked about: the VMs of our nodes, and the tasks somebody waits for.
    pub fn roster(&mut self) -> vsphere::Roster {
        if matches!(self.news, Some(News::OfAll)) {
            let keys: BTreeSet<vsphere::VmKey> =
                self.names().iter().flat_map(|name| self.keys_of(name)).collect();
            if *self.keys != keys {
                self.keys = Arc::new(keys);
            }
        }
        let pressing = self.press();
        let tasks = self
            .local
            .values()
            .flat_map(|local| local.attempts.values())
            .filter_map(|attempt| match &attempt.outcome {
                Outcome::Running(task) => Some(task.clone()),
                Outcome::Asked | Outcome::Done | Outcome::Refused(_) => None,
            });
        vsphere::Roster {
            vms: Arc::clone(&self.keys),
            pressing,
            tasks: tasks.collect(),
        }
    }

    /// The nodes whose pods are to be watched: those being drained, and those kept so.
    pub fn draining(&self) -> BTreeSet<NodeName> {
        let awake = self.awake.iter().filter_map(|name| self.nodes.get(name));
        let kept = awake.filter(|node| match self.record(node) {
            Record::Episode(episode) => *episode.phase.at_work() == Phase::Drained,
            Record::InService | Record::Python(_) | Record::Unreadable { .. } => false,
        });
        let kept = kept.map(|node| node.name.clone());
        self.ledger.draining.iter().cloned().chain(kept).collect()
    }

    /// Every node that anybody tells of.
    fn names(&self) -> BTreeSet<NodeName> {
        let known = self.nodes.keys().chain(self.local.keys()).cloned();
        known.chain(self.only_copied()).collect()
    }

    /// The whole picture of each node.
    pub fn sights(&mut self) -> BTreeMap<NodeName, Sight> {
        self.news = Some(News::OfAll);
        self.draw().sights
    }

    /// The pictures that may be other ones than were drawn last.
    pub fn draw(&mut self) -> Pictures {
        let names = self.in_the_news();
        let are_all = matches!(self.news, Some(News::OfAll));
        let are_alone = matches!(self.news, Some(News::OnlyOf(_)));
        if !are_alone {
            self.update_ledger(&names);
            self.offers = self.offers(&names);
        }
        if are_all {
            self.awake.clear();
        }
        let mut sights = BTreeMap::new();
        for name in names {
            let offer = self.offers.get(&name).cloned().unwrap_or_default();
            let sight = self.sight(&name, offer);
            if sight.as_ref().is_none_or(Sight::is_at_rest) {
                self.awake.remove(&name);
            } else {
                self.awake.insert(name.clone());
            }
            sights.extend(sight.map(|sight| (name, sight)));
        }
        self.news = None;
        let told = std::mem::take(&mut self.told_hosts);
        let told = told.into_iter().filter(|_| !are_all);
        let hosts = told
            .filter_map(|moref| self.hosts.get(&moref))
            .map(|host| self.shown(host))
            .collect();
        let is_calm = |sight: &Sight| sight.record == Record::InService && sight.seen.request.is_none();
        self.is_calm = sights.values().all(is_calm) && (self.is_calm || !are_alone);
        Pictures {
            sights,
            are_all,
            hosts,
        }
    }

    fn apply_vsphere(&mut self, update: vsphere::Update) {
        use vsphere::Update;
        self.vcenter.is_open = !matches!(update, Update::Settled | Update::Lost { .. });
        match update {
            Update::Reset => {
                self.vcenter.silent = Some("vCenter is telling its whole set anew".to_owned());
                self.vcenter.told.clear();
            }
            Update::Host(host) => {
                self.vcenter.told.insert(host.moref.to_string());
                self.hosts.insert(host.moref.clone(), host);
            }
            Update::HostGone(host) => {
                self.hosts.remove(&host);
                self.holds.remove(&host);
                self.last_of.remove(&host);
            }
            Update::Compute(compute) => {
                self.vcenter.told.insert(compute.moref.to_string());
                self.computes.insert(compute.moref.clone(), compute);
            }
            Update::ComputeGone(compute) => {
                self.computes.remove(&compute);
            }
            Update::Vm(vm) => {
                self.vcenter.told.insert(vm.moref.to_string());
                self.vms.insert(vm.moref.clone(), vm);
            }
            Update::VmGone(vm) => {
                self.vms.remove(&vm);
            }
            Update::Task(task) => {
                self.vcenter.told.insert(task.moref.to_string());
                let moref = task.moref.clone();
                self.tasks.insert(moref.clone(), task);
                for local in self.local.values_mut() {
                    local.settle(&moref, &self.tasks);
                }
            }
            Update::Found { key, vms } => {
                if let Some(pressed) = self.pressed.get_mut(&key) {
                    pressed.is_answered = true;
                }
                self.answer(key, vms);
            }
            Update::Settled => self.settle_vcenter(),
            Update::Lost { why } => self.vcenter.silent = Some(why),
        }
    }

    /// The set is complete: what was not told is not there.
    fn settle_vcenter(&mut self) {
        if self.vcenter.silent.take().is_none() {
            return;
        }
        let told = std::mem::take(&mut self.vcenter.told);
        self.hosts.retain(|moref, _| told.contains(moref.as_str()));
        self.last_of.retain(|moref, _| told.contains(moref.as_str()));
        self.computes.retain(|moref, _| told.contains(moref.as_str()));
        self.vms.retain(|moref, _| told.contains(moref.as_str()));
        self.tasks.retain(|moref, _| told.contains(moref.as_str()));
        self.holds.clear();
        // A task that vCenter no longer knows tells nothing more: its effect is judged by the VM, and repeated if the
        // VM does not show it.
        for local in self.local.values_mut() {
            local.attempts.retain(|_, attempt| match &attempt.outcome {
                Outcome::Running(task) => self.tasks.contains_key(task),
                Outcome::Asked | Outcome::Done | Outcome::Refused(_) => true,
            });
        }
    }

    fn apply_cluster(&mut self, update: cluster::Update) {
        use cluster::Update;
        match update {
            Update::Reset => {
                self.kubernetes.silent = Some("the kube-apiserver is listing the Nodes anew".to_owned());
                self.kubernetes.told.clear();
            }
            Update::Node(node) => {
                self.kubernetes.told.insert(node.name.clone());
                self.apply_node(*node);
            }
            Update::NodeGone { name, uid } => {
                if self.nodes.get(&name).is_some_and(|node| node.uid == uid) {
                    self.forget_node(&name);
                }
            }
            Update::Settled => {
                if self.kubernetes.silent.take().is_some() {
                    let told = std::mem::take(&mut self.kubernetes.told);
                    let gone: Vec<NodeName> = self
                        .nodes
                        .keys()
                        .filter(|name| !told.contains(name))
                        .cloned()
                        .collect();
                    for name in gone {
                        self.forget_node(&name);
                    }
                }
            }
            Update::Maintenances(update) => self.apply_maintenances(update),
            Update::PodsChanged(name) => {
                let local = self.local.entry(name).or_default();
                local.pods_revision = local.pods_revision.wrapping_add(1);
            }
            Update::Budget { budget, stands } => self.apply_budget(budget, stands),
            Update::Lost { why } => self.kubernetes.silent = Some(why),
        }
    }

    fn apply_node(&mut self, node: cluster::Node) {
        let older = self
            .nodes
            .get(&node.name)
            .is_some_and(|known| known.uid == node.uid && known.resource_version > node.resource_version);
        if older {
            // The watch tells an older view than the answer to our own PATCH did.
            return;
        }
        let local = self.local.entry(node.name.clone()).or_default();
        local.record_of_gone = None;
        let told = local.on_node.insert(record_of(&node));
        let record = local.paper.record().unwrap_or(told);
        match record.phase() {
            Some(phase) if phase.is_draining() || *phase.at_work() == Phase::Drained => {}
            // Between episodes nothing of an earlier one counts.
            Some(_) => local.drain = None,
            None => {
                local.drain = None;
                local.attempts.clear();
                local.offered = None;
            }
        }
        if !node.unschedulable && !local.paper.is_cordoned() {
            // A list made before the cordon was lifted says nothing about what was scheduled since.
            local.drain = None;
        }
        let before = self.nodes.remove(&node.name);
        let told_before = before
            .as_ref()
            .and_then(|before| before.marks.last_episode.as_ref());
        if told_before != node.marks.last_episode.as_ref() {
            self.has_ended(&node);
        }
        self.asks(&node.name, before.as_ref(), Some(&node));
        self.nodes.insert(node.name.clone(), node);
    }

    /// Notes the episode that `node` tells to have ended, for the next one on its host.
    fn has_ended(&mut self, node: &cluster::Node) {
        let Some(last) = node.marks.last_episode.as_deref().and_then(record::read_last) else {
            return;
        };
        let Some(host) = last.episode.host.moref else {
            return;
        };
        let last = LastOf {
            at: last.at,
            traceparent: last.episode.traceparent,
        };
        if self.last_of.get(&host).is_none_or(|known| known.at < last.at) {
            self.last_of.insert(host, last);
        }
    }

    fn forget_node(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.remove(name) else {
            return;
        };
        self.asks(name, Some(&node), None);
        let local = self.local.entry(name.clone()).or_default();
        match local.on_node.take() {
            Some(record @ (Record::Episode(_) | Record::Python(_))) => local.record_of_gone = Some(record),
            Some(Record::InService | Record::Unreadable { .. }) | None => {
                self.local.remove(name);
            }
        }
    }

    /// Why nothing may be done, if one of the worlds is not heard.
    fn silent(&self) -> Option<Hearing> {
        let kubernetes = self.kubernetes.silent.as_ref().or(self.requests.silent.as_ref());
        match (&self.vcenter.silent, kubernetes) {
            (None, None) => None,
            (Some(why), _) => Some(Hearing::NoVcenter { why: why.clone() }),
            (None, Some(why)) => Some(Hearing::NoKubernetes { why: why.clone() }),
        }
    }

    fn limits(&self) -> Limits {
        let unavailable = match self.rules.unavailable {
            MaxUnavailable::Unlimited => None,
            MaxUnavailable::Nodes(nodes) => Some(nodes),
            MaxUnavailable::Percent(percent) => {
                let nodes = self.nodes.len().saturating_mul(usize::from(percent)) / 100;
                Some(u32::try_from(nodes).unwrap_or(u32::MAX).max(1))
            }
        };
        Limits {
            concurrent_drains: self.rules.concurrent_drains,
            unavailable,
        }
    }

    /// Takes who holds places and who wants one. A node at rest does neither, so `names` need only be of those that are not.
    fn update_ledger(&mut self, names: &BTreeSet<NodeName>) {
        let mut ledger = Ledger {
            granted: std::mem::take(&mut self.ledger.granted),
            ..Ledger::default()
        };
        for node in names.iter().filter_map(|name| self.nodes.get(name)) {
            let record = self.record(node);
            let (draining, unavailable) = sight::takes_places(&record);
            if draining {
                ledger.draining.insert(node.name.clone());
            }
            if unavailable {
                ledger.unavailable.insert(node.name.clone());
            }
            if let Some(clicked_at) = self.applies_since(node, &record) {
                ledger.applicants.insert(Applicant {
                    clicked_at,
                    node: node.name.clone(),
                });
            }
        }
        // A place is granted on complete pictures only: half a set may hide who holds one.
        if self.silent().is_none() {
            ledger.grant(self.limits());
        }
        self.ledger = ledger;
    }
}

impl News {
    /// Both of them.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::OfAll, _) | (_, Self::OfAll) => Self::OfAll,
            (Self::OnlyOf(mut nodes), Self::OnlyOf(more)) => {
                nodes.extend(more);
                Self::OnlyOf(nodes)
            }
            (Self::Of(mut nodes) | Self::OnlyOf(mut nodes), Self::Of(more) | Self::OnlyOf(more)) => {
                nodes.extend(more);
                Self::Of(nodes)
            }
        }
    }
}

/// Whether a Node shows nothing more than that its kubelet lives.
fn is_later_only(known: &cluster::Node, node: &cluster::Node) -> bool {
    let ready = cluster::Ready {
        heartbeat: known.ready.heartbeat,
        ..node.ready
    };
    let only_later = cluster::Node {
        resource_version: known.resource_version,
        ready,
        ..node.clone()
    };
    *known == only_later
}

#[cfg(test)]
mod tests;
