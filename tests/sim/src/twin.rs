//! Maintenances one after the other, in a run with faults and in the same run without any. Faults of connections and of processes, and
//! a kubelet that lies about its own node, must not change what is done to the other nodes.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock;
use crate::cluster::node_name;
use crate::people::Deed;
use crate::world::{World, WorldEvent};

/// How often it is checked whether the next step is due.
const STEP: Duration = Duration::from_secs(5);

/// The time between two maintenances, so that faults happen before, in and after them.
const PAUSE: Duration = Duration::from_secs(4 * 60);

/// The time that is left for the last maintenance.
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// How many times more writes a maintenance may cost with faults. A drain that lasts is recorded at times, a write whose reply is lost
/// is sent again, and a new leader writes its epoch.
const WRITES_WITH_FAULTS: u32 = 5;

/// The same where only another kubelet lies.
const WRITES_WITH_LIES: u32 = 2;

/// How much longer a maintenance may take because another kubelet lies. A drain that a tenant asks for holds its slot for minutes, and
/// guests and pods do not take the same time in both runs.
const DELAY_BY_LIES: Duration = Duration::from_secs(8 * 60);

/// What was done to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeEffects {
    /// How often its VM went off.
    pub offs: u32,
    /// How often its VM was powered on.
    pub ons: u32,
    /// How often a replica cordoned it.
    pub cordons: u32,
    /// How often a replica uncordoned it.
    pub uncordons: u32,
    /// How often a replica wrote its Node.
    pub writes: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct EndedMaintenance {
    node: usize,
    effects: NodeEffects,
    lasted: Duration,
}

/// The maintenances of a run, one after the other.
#[derive(Clone, Debug, Default)]
pub struct MaintenancesInTurn {
    nodes: VecDeque<usize>,
    current: Option<CurrentMaintenance>,
    ended: Vec<EndedMaintenance>,
}

#[derive(Clone, Copy, Debug)]
struct CurrentMaintenance {
    node: usize,
    host: usize,
    before: NodeEffects,
    began: Duration,
    has_left: bool,
}

impl NodeEffects {
    fn since(self, before: Self) -> Self {
        Self {
            offs: self.offs - before.offs,
            ons: self.ons - before.ons,
            cordons: self.cordons - before.cordons,
            uncordons: self.uncordons - before.uncordons,
            writes: self.writes - before.writes,
        }
    }
}

impl World {
    /// Schedules the maintenances of this run.
    pub fn plan_in_turn(&mut self) {
        self.in_turn.nodes = self.plan.in_turn.iter().copied().collect();
        if !self.in_turn.nodes.is_empty() {
            self.oracle.liar = Some(0);
            self.queue.after(STEP, WorldEvent::NextInTurn);
        }
    }

    /// The maintenances that have ended.
    pub fn ended_in_turn(&self) -> &[EndedMaintenance] {
        &self.in_turn.ended
    }

    /// Begins, ends or awaits a maintenance.
    pub fn next_in_turn(&mut self) {
        let now = clock::elapsed();
        match self.in_turn.current {
            None => {
                let has_time = now + LONGEST < self.plan.active;
                let Some(node) = self.in_turn.nodes.pop_front().filter(|_| has_time) else {
                    return;
                };
                let host = self.vcenter.vms[node].host;
                self.in_turn.current = Some(CurrentMaintenance {
                    node,
                    host,
                    before: self.oracle.nodes[node].effects,
                    began: now,
                    has_left: false,
                });
                self.enters(host);
            }
            Some(current) => self.go_on(current),
        }
        let pause = if self.in_turn.current.is_some() {
            STEP
        } else {
            PAUSE
        };
        self.queue.after(pause, WorldEvent::NextInTurn);
    }

    fn go_on(&mut self, mut current: CurrentMaintenance) {
        let host = &self.vcenter.hosts[current.host];
        if host.in_maintenance && !current.has_left {
            current.has_left = true;
            self.in_turn.current = Some(current);
            self.deed(Deed::Exits(current.host));
        }
        let is_out = self.vcenter.hosts[current.host].takes_vms();
        let name = node_name(current.node);
        // What concerns a node begins with its name.
        let is_back = || !self.unrest().iter().any(|it| it.starts_with(&format!("{name} ")));
        if current.has_left && is_out && is_back() {
            self.in_turn.ended.push(EndedMaintenance {
                node: current.node,
                effects: self.oracle.nodes[current.node].effects.since(current.before),
                lasted: clock::elapsed().saturating_sub(current.began),
            });
            self.in_turn.current = None;
        }
    }
}

/// The differences of what was done in a run from its twin without faults.
pub fn differences(run: &[EndedMaintenance], twin: &[EndedMaintenance], is_by_lies: bool) -> Vec<String> {
    let mut differences = Vec::new();
    let times = if is_by_lies {
        WRITES_WITH_LIES
    } else {
        WRITES_WITH_FAULTS
    };
    for (with, without) in run.iter().zip(twin) {
        let is_same = NodeEffects {
            writes: without.effects.writes,
            ..with.effects
        } == without.effects;
        let is_late = is_by_lies && with.lasted > without.lasted + DELAY_BY_LIES;
        if with.node != without.node
            || !is_same
            || with.effects.writes > times * without.effects.writes
            || is_late
        {
            differences.push(format!("{with:?}, and without faults {without:?}"));
        }
    }
    differences
}
