//! What the page shows beside the board of all nodes: connections, leadership and hosts.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde::Serialize;

use haulout_core::ids::HostRef;
use haulout_core::maintenance::observed::HostState;
use haulout_core::status::{HostKind, StatusSpan};

/// State changes kept per host.
const HOST_CHANGES: usize = 16;

#[derive(Debug)]
pub(super) struct PageState {
    /// Why vCenter is not synced.
    pub(super) vcenter: Option<String>,
    /// Why Kubernetes is not synced.
    pub(super) kubernetes: Option<String>,
    pub(super) leadership: PageLeadership,
    /// When vCenter last answered a long poll.
    pub(super) vcenter_answered: Option<Timestamp>,
    /// The revision of the board of all nodes that is shown.
    pub(super) board: u64,
    pub(super) hosts: BTreeMap<HostRef, HostEntry>,
}

/// The role of this replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "role")]
pub(crate) enum PageLeadership {
    Leads,
    /// Another replica leads.
    StandsBy {
        /// The leader, if known.
        leader: Option<String>,
    },
}

#[derive(Debug)]
pub(super) struct HostEntry {
    pub(super) name: String,
    pub(super) state: HostState,
    /// Its states, each with the time when it was first seen.
    pub(super) past: VecDeque<(Timestamp, HostKind)>,
}

impl Default for PageState {
    fn default() -> Self {
        let not_synced = |who: &str| Some(format!("{who} has not synced yet"));
        Self {
            vcenter: not_synced("vCenter"),
            kubernetes: not_synced("Kubernetes"),
            leadership: PageLeadership::Leads,
            vcenter_answered: None,
            board: 0,
            hosts: BTreeMap::new(),
        }
    }
}

/// Stores `value`; returns whether it differs.
pub(super) fn set<T: PartialEq>(target: &mut T, value: T) -> bool {
    let is_changed = *target != value;
    *target = value;
    is_changed
}

impl PageState {
    /// Whether this replica leads, and so follows vCenter.
    pub(super) fn leads(&self) -> bool {
        self.leadership == PageLeadership::Leads
    }

    /// Sets the hosts to show; returns whether the page changes. While vCenter is not synced, they stay as they were: without VMs the
    /// inventory does not know which hosts are ours.
    pub(super) fn show_hosts(
        &mut self,
        hosts: BTreeMap<HostRef, (String, HostState)>,
        now: Timestamp,
    ) -> bool {
        if self.vcenter.is_some() {
            return false;
        }
        let before = self.hosts.len();
        self.hosts.retain(|moref, _| hosts.contains_key(moref));
        let mut is_changed = before != self.hosts.len();
        for (moref, (name, state)) in hosts {
            let kind = state.kind();
            let host = self.hosts.entry(moref).or_insert_with(|| {
                is_changed = true;
                HostEntry {
                    name: name.clone(),
                    state: state.clone(),
                    past: VecDeque::new(),
                }
            });
            is_changed |= set(&mut host.name, name);
            is_changed |= set(&mut host.state, state);
            if host.past.back().is_none_or(|(_, last)| *last != kind) {
                if host.past.len() == HOST_CHANGES {
                    host.past.pop_front();
                }
                host.past.push_back((now, kind));
            }
        }
        is_changed
    }
}

impl HostEntry {
    pub(super) fn spans(&self) -> impl Iterator<Item = StatusSpan<HostKind>> {
        let ends = self.past.iter().skip(1).map(|(at, _)| Some(*at)).chain([None]);
        let spans = self.past.iter().zip(ends);
        spans.map(|((from, kind), to)| StatusSpan {
            kind: *kind,
            from: *from,
            to,
        })
    }
}
