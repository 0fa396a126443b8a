//! Performs effects: the only place from which anything in vCenter or Kubernetes is changed.
//!
//! As little as possible is decided here. Each verb asks one of the two halves, which keep their own deadlines, and
//! hands in what was found; a dry run hands in what would have been found, and asks nothing that changes anything.

use std::error::Error as StdError;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::actor::perform::{NotRecorded, Perform, Recorded, TRACEPARENT};
use crate::cluster::client;
use crate::cluster::drain::{self, DrainSettings, Mode, Order, Why};
use crate::cluster::events::{Event, Publisher, Regarding, Severity};
use crate::cluster::facts::GpuResources;
use crate::cluster::node::{self, NodePatch, PatchError};
use crate::cluster::update::{Maintenances, Marks, Node, Update};
use crate::gate::{Errand, Gate, Permit, Shut};
use crate::ids::{HostRef, NodeName, VmRef};
use crate::keys::Keys;
use crate::line::line;
use crate::maintenance::clock::{Monotonic, Now, wall_after};
use crate::maintenance::decide::Transition;
use crate::maintenance::effect::{self, Effect, Place};
use crate::maintenance::episode::Record;
use crate::maintenance::finding::{Eviction, EvictionAnswer, EvictionRound, Finding, Found};
use crate::maintenance::observed::{
    Advice, DrainReport, NodeSeen, Outcome, PodLeft, PodLeftBecause, Refusal,
};
use crate::maintenance::placement::{Held, Hold, Reading};
use crate::maintenance::record;
use crate::maintenance::trail::Last;
use crate::nodemaintenance::api as maintenances;
use crate::vsphere::client::{Asked, AskedBy, Error, PowerOnBy, Started, Vcenter};
use crate::vsphere::update::{Claim, ClaimedDevice, Surveyed, UnreadableVm};

/// How long one write to a Node may take. The kube-apiserver answers within milliseconds or is in trouble; its own
/// limit for a request is 60 s, after which the answer would be about another world.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// Takes an HTTP status (0 where there was no answer) and how many evictions were answered with it.
pub type OnEvictions = Box<dyn Fn(u16, u64) + Send + Sync>;

/// The way to both worlds.
pub struct World {
    /// What every record and every effect passes.
    pub gate: Gate,
    /// vCenter.
    pub vcenter: Vcenter,
    /// Kubernetes.
    pub client: kube::Client,
    /// The keys of our annotations.
    pub keys: Keys,
    /// Which resources are GPUs.
    pub gpu_resources: GpuResources,
    /// The limits of one drain round.
    pub drain: DrainSettings,
    /// `DRY_RUN`: walk through every decision, change nothing.
    pub dry_run: bool,
    /// Where Events on evicted pods go.
    pub events: Publisher,
    /// Who is told how many evictions were answered with which HTTP status.
    pub on_evictions: OnEvictions,
    /// Where findings go.
    pub findings: mpsc::Sender<Finding>,
    /// Where the answers of the kube-apiserver to our own requests go, so that we see our writes before the watch does.
    pub nodes: mpsc::Sender<Update>,
}

impl Perform for World {
    async fn record(
        &self,
        name: &NodeName,
        seen: Option<&NodeSeen>,
        before: &Record,
        transition: &Transition,
        now: Now,
    ) -> Result<Recorded, NotRecorded> {
        if self.dry_run {
            self.found(
                name,
                Found::PaperRecord {
                    record: Box::new(transition.record.clone()),
                    unschedulable: transition.unschedulable,
                    fulfilled: transition.fulfilled.as_ref().map(|mark| mark.uid.clone()),
                },
            )
            .await;
            return Ok(Recorded::Elsewhere);
        }
        let Some(seen) = seen else {
            return self.record_on_copy(name, before, transition, now).await;
        };
        let annotations = record::write(&transition.record, now.wall);
        let patch = NodePatch {
            uid: seen.uid.clone(),
            resource_version: seen.resource_version,
            marks: Marks {
                state: annotations.state,
                host: annotations.host,
                migrated_to_host: annotations.migrated_to_host,
                transition_time: annotations.transition_time,
                episode: annotations.episode,
                last_episode: last_episode(before, transition, now.wall),
                fulfilled: transition.fulfilled.as_ref().map(|mark| mark.uid.to_string()),
                ..Marks::default()
            },
            is_end: transition.ended.is_some(),
            unschedulable: transition.unschedulable,
        };
        let permit = self.gate.pass(Errand::Record).map_err(not_recorded)?;
        let client = self.traced();
        let write = node::patch(
            &permit,
            &client,
            &self.keys,
            &self.gpu_resources,
            name,
            &patch,
            WRITE_DEADLINE,
        );
        match permit.carry(write).await.map_err(not_recorded)? {
            Ok(node) => {
                let resource_version = node.resource_version;
                self.told(node).await;
                Ok(Recorded::OnNode { resource_version })
            }
            Err(PatchError::Conflict { .. }) => {
                self.read_anew(name, before).await;
                Err(NotRecorded::Outdated)
            }
            Err(error) => Err(NotRecorded::Refused(whole(&error))),
        }
    }

    async fn perform(&self, name: &NodeName, record: &Record, effect: &Effect, now: Now) {
        let outcome = match self.permit(effect) {
            Err(shut) => not_done(shut),
            Ok(None) => self.look(name, record, effect, now).await,
            Ok(Some(permit)) => {
                let work = self.act(&permit, name, record, effect, now);
                permit.carry(work).await.unwrap_or_else(not_done)
            }
        };
        if let Outcome::Refused(refusal) = &outcome {
            let what = effect.kind().words();
            line!(warn, name, record, "tried to {what}: {}", refusal.said);
        }
        let host = match effect {
            Effect::Relocate { to: host, .. }
            | Effect::PowerOn {
                place: Place::Host(host),
                ..
            } => Some(host.clone()),
            Effect::DrainRound { .. }
            | Effect::Survey { .. }
            | Effect::ShutdownGuest { .. }
            | Effect::PowerOff { .. }
            | Effect::PowerOn {
                place: Place::Drs, ..
            } => None,
        };
        self.found(
            name,
            Found::Tried {
                kind: effect.kind(),
                at: now,
                host,
                outcome,
            },
        )
        .await;
    }
}

impl World {
    /// The Node is gone: the copy of its record is the record.
    async fn record_on_copy(
        &self,
        name: &NodeName,
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
        let permit = self.gate.pass(Errand::Record).map_err(not_recorded)?;
        let client = self.traced();
        let write = maintenances::write_status(&permit, &client, &object, None, &changes);
        match permit.carry(write).await.map_err(not_recorded)? {
            Ok(object) => {
                let seen = Maintenances::Seen(Box::new(object));
                let _ = self.nodes.send(Update::Maintenances(seen)).await;
                Ok(Recorded::Elsewhere)
            }
            Err(error) => Err(NotRecorded::Refused(whole(&error))),
        }
    }

    /// The permit for `effect`; none where it changes nothing.
    fn permit(&self, effect: &Effect) -> Result<Option<Permit>, Shut> {
        if self.dry_run || !effect.changes_something() {
            return Ok(None);
        }
        self.gate.pass(Errand::Effect).map(Some)
    }

    /// Does what changes nothing; what would change something is done on paper.
    async fn look(&self, name: &NodeName, record: &Record, effect: &Effect, now: Now) -> Outcome {
        match effect {
            Effect::DrainRound {
                pods_revision, until, ..
            } => {
                self.drain_round(Mode::ListOnly, name, record, *pods_revision, *until, now)
                    .await
            }
            Effect::Survey { hosts } => self.survey(name, hosts).await,
            Effect::ShutdownGuest { .. }
            | Effect::PowerOff { .. }
            | Effect::Relocate { .. }
            | Effect::PowerOn { .. } => {
                line!(
                    info,
                    name,
                    record,
                    "dry run: would {} at this point",
                    effect.kind().words()
                );
                self.found(name, Found::PaperEffect(effect.clone())).await;
                Outcome::Done
            }
        }
    }

    async fn act(
        &self,
        permit: &Permit,
        name: &NodeName,
        record: &Record,
        effect: &Effect,
        now: Now,
    ) -> Outcome {
        let vcenter = self.vcenter.about(name.as_str());
        match effect {
            Effect::DrainRound {
                pods_revision,
                in_turn,
                until,
            } => {
                let mode = if *in_turn {
                    Mode::EvictInTurn(permit)
                } else {
                    Mode::Evict(permit)
                };
                self.drain_round(mode, name, record, *pods_revision, *until, now)
                    .await
            }
            Effect::Survey { hosts } => self.survey(name, hosts).await,
            Effect::ShutdownGuest { vm, asked_by, .. } => {
                shutdown_guest(&vcenter, permit, vm, asked_by).await
            }
            Effect::PowerOff { vm, asked_by, .. } => {
                outcome(vcenter.power_off(permit, vm, &on_whose_behalf(asked_by)).await)
            }
            Effect::Relocate { vm, to } => outcome(vcenter.relocate(permit, vm, to).await),
            Effect::PowerOn { vm, place } => {
                let by = match place {
                    Place::Drs => PowerOnBy::Drs,
                    Place::Host(host) => PowerOnBy::Host(host.clone()),
                };
                outcome(vcenter.power_on(permit, vm, by).await)
            }
        }
    }

    async fn drain_round(
        &self,
        mode: Mode<'_>,
        name: &NodeName,
        record: &Record,
        pods_revision: u64,
        until: Monotonic,
        now: Now,
    ) -> Outcome {
        let begun = Instant::now();
        let order = Order {
            mode,
            // One that is over has no time left.
            until: begun + until.since(now.monotonic),
            on_evicted: &|pod| {
                // One that cannot be taken is counted by the publisher, and the pod leaves all the same.
                self.events
                    .event(eviction(name, pod, wall_after(now.wall, begun.elapsed())));
            },
        };
        match drain::round(&self.traced(), name, &self.drain, order).await {
            Ok(report) => {
                for (code, count) in &report.answers {
                    (self.on_evictions)(*code, *count);
                }
                let evicted = report.left.iter().filter(|left| left.why == Why::Evicted).count();
                self.found(name, Found::Evictions(evictions(&report, now.wall)))
                    .await;
                let left: Vec<PodLeft> = report.left.iter().map(pod_left).collect();
                let left = if self.dry_run {
                    line!(info, name, record, "dry run: would evict {} pods", left.len());
                    Vec::new()
                } else {
                    left
                };
                self.found(
                    name,
                    Found::Drain(DrainReport {
                        listed_at: now.monotonic,
                        pods_revision,
                        left,
                        moved_at: (evicted > 0).then_some(now.monotonic),
                        listed: report.listed,
                        ignored: report.skipped.values().sum(),
                        evicted,
                    }),
                )
                .await;
                Outcome::Done
            }
            Err(error) => Outcome::Refused(Refusal {
                advice: Advice::Retry,
                said: whole(&error),
            }),
        }
    }

    /// The client whose requests name the episode they are made for: a kube-apiserver that traces joins its trace.
    fn traced(&self) -> kube::Client {
        match TRACEPARENT.try_with(Clone::clone) {
            Ok(Some(traceparent)) => client::traced(&self.client, &traceparent),
            Ok(None) | Err(_) => self.client.clone(),
        }
    }

    async fn survey(&self, name: &NodeName, hosts: &[HostRef]) -> Outcome {
        match self.vcenter.survey(hosts).await {
            Ok(surveyed) => {
                for (host, reading) in readings(surveyed) {
                    self.found(name, Found::Surveyed { host, reading }).await;
                }
                Outcome::Done
            }
            Err(error) => Outcome::Refused(refusal(&error)),
        }
    }

    async fn read_anew(&self, name: &NodeName, record: &Record) {
        match node::get(
            &self.client,
            &self.keys,
            &self.gpu_resources,
            name,
            WRITE_DEADLINE,
        )
        .await
        {
            Ok(node) => self.told(node).await,
            // The watch tells soon as well; reading here only spares the wait for it.
            Err(error) => line!(
                info,
                name,
                record,
                "could not read the Node again: {}",
                whole(&error)
            ),
        }
    }

    /// The receiver ends only with the house, and then nobody needs the finding.
    async fn found(&self, node: &NodeName, found: Found) {
        let _ = self
            .findings
            .send(Finding {
                node: node.clone(),
                found,
            })
            .await;
    }

    async fn told(&self, node: Node) {
        let _ = self.nodes.send(Update::Answered(Box::new(node))).await;
    }
}

/// What has to hold still in vCenter, as its client checks it.
fn on_whose_behalf(asked_by: &effect::AskedBy) -> AskedBy {
    match asked_by {
        effect::AskedBy::Host { host, task } => AskedBy {
            host: Some(host.clone()),
            task: task.clone(),
        },
        effect::AskedBy::Request => AskedBy::default(),
    }
}

fn not_recorded(shut: Shut) -> NotRecorded {
    NotRecorded::Refused(shut.to_string())
}

fn not_done(shut: Shut) -> Outcome {
    Outcome::Refused(Refusal {
        advice: Advice::Retry,
        said: shut.to_string(),
    })
}

/// What stays on the Node of an episode that ends: when it did, and whatever of its story is not known to have been told.
fn last_episode(before: &Record, transition: &Transition, now: Timestamp) -> Option<String> {
    Some(record::write_last(&Last::of(before, transition, now)?))
}

async fn shutdown_guest(
    vcenter: &Vcenter,
    permit: &Permit,
    vm: &VmRef,
    asked_by: &effect::AskedBy,
) -> Outcome {
    match vcenter
        .shutdown_guest(permit, vm, &on_whose_behalf(asked_by))
        .await
    {
        Ok(Asked::Sent | Asked::AlreadyOff) => Outcome::Asked,
        Err(error) => Outcome::Refused(refusal(&error)),
    }
}

fn outcome(started: Result<Started, Error>) -> Outcome {
    match started {
        Ok(Started::AlreadyThere) => Outcome::Done,
        Ok(Started::Running(task)) => Outcome::Running(task),
        Err(error) => Outcome::Refused(refusal(&error)),
    }
}

fn refusal(error: &Error) -> Refusal {
    let advice = match error {
        Error::Refused { source, .. } => Refusal::from(source).advice,
        // Nothing was sent without a session.
        Error::Login { .. } => Advice::Retry,
        Error::Transport { .. } | Error::Reply { .. } => Advice::Unanswered,
    };
    Refusal {
        advice,
        said: whole(error),
    }
}

/// A survey as placement asks for it.
pub(crate) fn readings(surveyed: Surveyed) -> impl Iterator<Item = (HostRef, Reading)> {
    let read = surveyed.claims.into_iter().map(|claims| {
        let reading = match claims.unreadable.split_first() {
            None => Reading::Held(claims.held.into_iter().map(hold).collect()),
            Some((first, rest)) => Reading::Unreadable(unreadable(first, rest.len())),
        };
        (claims.host, reading)
    });
    let not_read = surveyed.not_surveyed.into_iter();
    read.chain(not_read.map(|host| (host.host, Reading::Unreadable(host.why))))
}

/// Which VM may hold any device of its host, as people read it.
fn unreadable(vm: &UnreadableVm, others: usize) -> String {
    let name = vm.name.as_deref().unwrap_or_else(|| vm.vm.as_str());
    let others = match others {
        0 => String::new(),
        1 => " (and of another VM)".to_owned(),
        _ => format!(" (and of {others} other VMs)"),
    };
    format!("the devices of VM {name}{others} cannot be read: {}", vm.why)
}

fn hold(claim: Claim) -> Hold {
    let device = match claim.device {
        ClaimedDevice::Address(address) => Held::Address(address),
        ClaimedDevice::AnyOf(ids) => Held::AnyOf(ids),
    };
    Hold { vm: claim.vm, device }
}

/// What a pod's owner is told: their logs say only that it was asked to stop.
fn eviction(node: &NodeName, pod: &drain::Left, at: Timestamp) -> Event {
    Event {
        regarding: Regarding::Pod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        },
        at,
        severity: Severity::Normal,
        reason: "Evicted",
        action: "Drain",
        note: format!("Evicted: node {node} is drained for the maintenance of its ESXi host"),
    }
}

fn pod_left(left: &drain::Left) -> PodLeft {
    let refused = |said: &str| PodLeftBecause::Refused {
        said: said.to_owned(),
    };
    let why = match &left.why {
        Why::Evicted | Why::Terminating { .. } => PodLeftBecause::Leaving,
        Why::Budget { names, said } => PodLeftBecause::Budget {
            names: names.clone(),
            said: said.clone(),
        },
        Why::Migrating { said } => PodLeftBecause::Migrating { said: said.clone() },
        Why::ServerError { said } | Why::Forbidden { said } | Why::Unreachable { said } => {
            PodLeftBecause::Refused { said: said.clone() }
        }
        Why::NamespaceTerminating => refused("its namespace is being deleted"),
        Why::TooManyRequests => refused("the kube-apiserver has too much to do"),
        Why::OwnPod => refused("it is Haulout's own pod, which leaves last"),
        Why::NotReached | Why::Standing => PodLeftBecause::NotReached,
    };
    PodLeft {
        name: format!("{}/{}", left.namespace, left.name),
        why,
    }
}

fn evictions(report: &drain::Report, now: Timestamp) -> EvictionRound {
    let at = |since| wall_after(now, since);
    let asked = report.asked.iter().map(|asked| Eviction {
        namespace: asked.namespace.clone(),
        pod: asked.name.clone(),
        uid: asked.uid.clone(),
        asked_at: at(asked.asked),
        answered_at: at(asked.answered),
        grace: asked.grace,
        answer: match &asked.why {
            None | Some(Why::Evicted | Why::Terminating { .. }) => EvictionAnswer::Accepted,
            Some(Why::Budget { names, said }) => EvictionAnswer::Blocked {
                budgets: names.clone(),
                said: said.clone(),
            },
            Some(
                Why::ServerError { .. }
                | Why::Forbidden { .. }
                | Why::Unreachable { .. }
                | Why::NamespaceTerminating
                | Why::TooManyRequests
                | Why::Migrating { .. }
                | Why::OwnPod
                | Why::NotReached
                | Why::Standing,
            ) => EvictionAnswer::Refused,
        },
    });
    EvictionRound {
        at: now,
        asked: asked.collect(),
        left: report.left.iter().map(|left| left.uid.clone()).collect(),
    }
}

/// An error with everything that led to it, once.
fn whole(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
