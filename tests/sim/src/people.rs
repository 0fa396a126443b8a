//! What people do: maintenance of hosts, cancels, cordons and requests.

use std::ops::Range;
use std::time::Duration;

use serde_json::json;

use crate::clock;
use crate::cluster::{node_key, node_name};
use crate::oracle::is_from_manifest;
use crate::store::{cluster_key, is_cordoned};
use crate::vcenter::{OPERATOR, TaskState, Work};
use crate::world::{World, WorldEvent};

/// The field manager of a person with kubectl.
const KUBECTL: &str = "kubectl-cordon";

/// What a person does.
#[derive(Clone, Debug)]
pub enum Deed {
    /// Puts a host into maintenance mode.
    Enters(usize),
    Cancels(usize),
    /// Takes a host out of maintenance mode.
    Exits(usize),
    Cordons(usize),
    Uncordons(usize),
    Requests {
        node: usize,
        action: &'static str,
    },
    /// Deletes a request.
    Withdraws(String),
    Hooks {
        node: usize,
        point: &'static str,
    },
    Unhooks {
        node: usize,
        point: &'static str,
    },
    Annotates {
        node: usize,
        key: &'static str,
        value: &'static str,
    },
    Unannotates {
        node: usize,
        key: &'static str,
    },
    /// Uncordons a node in an episode, so many times, and cordons it in the end.
    Insists {
        node: usize,
        times: u32,
    },
    /// Approves drains.
    Approves,
    /// The sentinel of a node looks whether a reboot is required.
    SentinelLooks(usize),
}

impl World {
    /// Schedules what people do in this run.
    pub fn plan_deeds(&mut self) {
        let active = self.plan.active.as_secs();
        for _ in 0..self.plan.deeds {
            let at = Duration::from_secs(self.rng.u64(20..active * 3 / 4));
            let node = self.rng.usize(0..self.plan.nodes);
            let host = match self.rng.u32(0..10) {
                0..=7 => node,
                _ => self.rng.usize(0..self.vcenter.hosts.len()),
            };
            let deed = match self.rng.u32(0..20) {
                0..=13 => Deed::Enters(host),
                14 | 15 => Deed::Cordons(node),
                16 => Deed::Requests {
                    node,
                    action: "Drain",
                },
                17 => Deed::Requests {
                    node,
                    action: "PowerOff",
                },
                18 => Deed::Requests {
                    node,
                    action: "Relocate",
                },
                _ => Deed::Requests {
                    node,
                    action: "Reboot",
                },
            };
            self.queue.after(at, WorldEvent::Deed(deed));
        }
        for _ in 0..self.plan.insists {
            let at = Duration::from_secs(self.rng.u64(20..active * 3 / 4));
            let (node, times) = (self.rng.usize(0..self.plan.nodes), self.rng.u32(1..=5));
            self.queue
                .after(at, WorldEvent::Deed(Deed::Insists { node, times }));
        }
    }

    fn later(&mut self, seconds: Range<u64>, deed: Deed) {
        self.within(seconds, WorldEvent::Deed(deed));
    }

    /// A person does something.
    pub fn deed(&mut self, deed: Deed) {
        let is_over = self.faults_are_over();
        match deed {
            Deed::Enters(host) if is_over || !self.vcenter.hosts[host].takes_vms() => {}
            Deed::Enters(host) => {
                self.enters(host);
                if self.rng.u32(0..10) < 3 {
                    self.later(1..240, Deed::Cancels(host));
                }
                self.later(120..900, Deed::Exits(host));
            }
            Deed::Cancels(host) => self.cancel(host),
            Deed::Exits(host) if self.vcenter.hosts[host].in_maintenance => {
                self.tell(
                    "operator",
                    format!("takes {} out of maintenance mode", self.vcenter.hosts[host].name),
                );
                self.begin_task(Work::Exit(host), OPERATOR);
                self.cause_ends(host);
            }
            // It is still entering: look again later.
            Deed::Exits(host) if self.vcenter.hosts[host].entering.is_some() => {
                self.later(30..300, Deed::Exits(host));
            }
            Deed::Exits(_) => {}
            Deed::Cordons(_) if is_over => {}
            Deed::Cordons(node) => self.person_cordons(node),
            Deed::Uncordons(node) => self.person_uncordons(node),
            Deed::Requests { .. } if is_over => {}
            Deed::Requests { node, action } => self.person_requests(node, action),
            Deed::Withdraws(name) => self.person_withdraws(&name),
            Deed::Hooks { .. } if is_over => {}
            Deed::Hooks { node, point } => self.person_hooks(node, point),
            Deed::Unhooks { node, point } => self.person_unhooks(node, point),
            Deed::Annotates { .. } if is_over => {}
            Deed::Annotates { node, key, value } => self.person_annotates(node, key, value),
            Deed::Unannotates { node, key } => self.person_unannotates(node, key),
            Deed::Insists { .. } if is_over => {}
            Deed::Insists { node, times } => self.person_insists(node, times),
            Deed::Approves => self.person_approves(),
            Deed::SentinelLooks(_) if is_over => {}
            Deed::SentinelLooks(node) => self.sentinel_looks(node),
        }
    }

    /// A person puts a host into maintenance mode.
    pub fn enters(&mut self, host: usize) {
        self.tell(
            "operator",
            format!("puts {} into maintenance mode", self.vcenter.hosts[host].name),
        );
        self.cause_begins(host);
        let task = self.begin_task(Work::Enter(host), OPERATOR);
        self.vcenter.hosts[host].entering = Some(task);
        self.queue
            .after(Duration::from_secs(5), WorldEvent::DrsEvacuates(host));
        self.hosts_progress();
    }

    /// A person cancels that.
    pub fn cancel(&mut self, host: usize) {
        let Some(task) = self.vcenter.hosts[host].entering.take() else {
            return;
        };
        self.tell(
            "operator",
            format!("cancels the maintenance of {}", self.vcenter.hosts[host].name),
        );
        let cancelled = &mut self.vcenter.tasks[task];
        cancelled.cancelled = true;
        cancelled.state = TaskState::Error("RequestCanceled");
        cancelled.ended = Some(clock::elapsed());
        self.vcenter.changed();
        self.cause_ends(host);
    }

    /// The reason to keep the VMs of a host off has ended.
    pub fn cause_ends(&mut self, host: usize) {
        let now = clock::elapsed();
        for node in 0..self.plan.nodes {
            if self.vcenter.vms[node].host == host {
                self.oracle.nodes[node].cause_ended = Some(now);
            }
        }
    }

    /// Each VM on a host that enters maintenance mode may be powered off once more.
    fn cause_begins(&mut self, host: usize) {
        for node in 0..self.plan.nodes {
            if self.vcenter.vms[node].host == host {
                self.oracle.nodes[node].causes += 1;
            }
        }
    }

    fn person_cordons(&mut self, node: usize) {
        let key = node_key(node);
        let Some(object) = self.kube.get(&key).filter(|node| !is_cordoned(node)) else {
            return;
        };
        // On a Node that was restored from a manifest, nothing tells this cordon from that of the manifest.
        let has_manifest = is_from_manifest(object);
        self.tell("person", format!("cordons {}", node_name(node)));
        self.oracle.nodes[node].cordoned_by_person = !has_manifest;
        self.oracle.nodes[node].person_cordoned = Some(clock::elapsed());
        self.kube
            .change(&key, KUBECTL, |node| node["spec"]["unschedulable"] = json!(true));
        if self.rng.bool() {
            self.later(60..900, Deed::Uncordons(node));
        }
    }

    fn person_uncordons(&mut self, node: usize) {
        if !self.oracle.nodes[node].cordoned_by_person {
            return;
        }
        self.uncordon_as_person(node);
    }

    /// Somebody wants a node schedulable that is in an episode: this one, or another one if it is in none.
    fn person_insists(&mut self, node: usize, times: u32) {
        let is_in_episode = self.record_on(node).is_some();
        let other = self.any_node_where(Self::cordon_is_ours);
        let Some(node) = Some(node).filter(|_| is_in_episode).or(other) else {
            return;
        };
        if self.cordon_is_ours(node) {
            self.uncordon_as_person(node);
        }
        if times > 1 {
            self.later(
                2..40,
                Deed::Insists {
                    node,
                    times: times - 1,
                },
            );
        } else {
            self.later(60..400, Deed::Cordons(node));
        }
    }

    /// Whether it is cordoned in an episode, and not by a person.
    pub(crate) fn cordon_is_ours(&self, node: usize) -> bool {
        let object = self.kube.get(&node_key(node));
        let is_cordoned = object.is_some_and(|node| is_cordoned(node));
        is_cordoned && self.record_on(node).is_some() && !self.oracle.nodes[node].cordoned_by_person
    }

    pub fn uncordon_as_person(&mut self, node: usize) {
        self.tell("person", format!("uncordons {}", node_name(node)));
        let memory = &mut self.oracle.nodes[node];
        memory.cordoned_by_person = false;
        memory.cordon_is_forgotten = false;
        memory.schedulable_since = Some(clock::elapsed());
        self.kube.change(&node_key(node), KUBECTL, |node| {
            if let Some(spec) = node["spec"].as_object_mut() {
                spec.remove("unschedulable");
            }
        });
        self.schedule_soon();
    }

    fn person_requests(&mut self, node: usize, action: &str) {
        self.requests += 1;
        let name = format!("request-{}", self.requests);
        self.tell(
            "person",
            format!("requests {action} of {} by {name}", node_name(node)),
        );
        self.oracle.nodes[node].causes += 1;
        let mut spec = json!({"nodeName": node_name(node), "action": action, "reason": "simulated", "origin": "Request"});
        if action == "Relocate" && self.rng.u32(0..10) < 3 {
            let host = self.rng.usize(0..self.vcenter.hosts.len());
            spec["targetHost"] = json!(self.vcenter.hosts[host].name);
        }
        let from = clock::elapsed() + Duration::from_secs(self.rng.u64(60..300));
        let opens = clock::wall_at(from);
        match self.rng.u32(0..10) {
            0..=1 => {
                spec["notBefore"] = json!(format!("{opens:.0}"));
                self.requests_from.insert(name.clone(), from);
            }
            2 => {
                let time = |at: jiff::Timestamp| format!("{}", at.strftime("%H:%M"));
                // The seconds of the minute in which it opens are lost.
                self.requests_from
                    .insert(name.clone(), from.saturating_sub(Duration::from_secs(60)));
                let closes = clock::wall_at(from + Duration::from_secs(3_600));
                spec["window"] = json!({"start": time(opens), "end": time(closes), "timeZone": "UTC"});
            }
            _ => {}
        }
        let object = json!({
            "kind": "NodeMaintenance", "apiVersion": "haulout.dev/v1alpha1", "metadata": {}, "spec": spec,
        });
        // The name is new.
        let _ = self
            .kube
            .create(&cluster_key("nodemaintenances", &name), object, "kubectl");
        self.later(60..900, Deed::Withdraws(name));
        // A node that is drained already is maintained: it holds a slot when its host is clicked.
        if action == "Drain" && self.rng.bool() {
            let host = self.vcenter.vms[node].host;
            self.later(60..400, Deed::Enters(host));
        }
    }

    pub(crate) fn person_withdraws(&mut self, name: &str) {
        let Some(object) = self.kube.delete(&cluster_key("nodemaintenances", name)) else {
            return;
        };
        self.tell("person", format!("withdraws {name}"));
        let node = object["spec"]["nodeName"].as_str().unwrap_or_default();
        if let Some(node) = node
            .strip_prefix("gpu-")
            .and_then(|node| node.parse::<usize>().ok())
        {
            self.oracle.nodes[node].cause_ended = Some(clock::elapsed());
        }
    }

    /// People end what they have begun.
    pub fn people_rest(&mut self) {
        for host in 0..self.vcenter.hosts.len() {
            self.cancel(host);
            self.deed(Deed::Exits(host));
        }
        let requests = self
            .kube
            .list("nodemaintenances")
            .filter(|(_, object)| object["spec"]["origin"] != "Episode");
        let requests: Vec<String> = requests.map(|(key, _)| key.2.clone()).collect();
        for request in requests {
            self.person_withdraws(&request);
        }
        self.hooks_end();
        self.overrides_end();
    }
}
