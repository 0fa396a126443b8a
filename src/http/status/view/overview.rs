//! The data of the overview, a pure function of state and time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::episode::phases;
use super::{
    EpisodeRow, Frame, HostRow, NodeRow, Overview, OverviewFigures, QueueRow, ShownState, Timeline,
    TimelineRow, TimelineSpan, View,
};
use crate::http::status::page_state::{HostEntry, PageState};
use crate::ids::NodeName;
use crate::maintenance::observed::{Admission, HostState};
use crate::status::{NodeEntry, NodeStatus, PhaseKind};

/// Limit of hosts, and of nodes.
const ROWS: usize = 200;

/// Limit of episodes.
const EPISODES: usize = 20;

/// Limit of rows in the timeline.
const TIMELINE_ROWS: usize = 30;

/// The periods of the timeline: the smallest one that contains all active episodes is used.
const PERIODS: [SignedDuration; 4] = [
    SignedDuration::from_mins(15),
    SignedDuration::from_hours(1),
    SignedDuration::from_hours(6),
    SignedDuration::from_hours(24),
];

impl View<'_> {
    pub(in crate::http::status) fn overview(self) -> Overview {
        let state = self.state;
        let nodes = state.board.nodes.iter();
        let mut nodes: Vec<NodeRow> = nodes
            .filter_map(|(name, entry)| self.node_row(name, entry))
            .collect();
        let mut hosts: Vec<HostRow> = state.hosts.values().map(|host| host_row(state, host)).collect();
        let count = |is: &dyn Fn(PhaseKind) -> bool| nodes.iter().filter(|row| is(row.phase)).count();
        let leaving = state.hosts.values().filter(|host| host.state.is_leaving());
        let figures = OverviewFigures {
            nodes: nodes.len(),
            in_episode: count(&|phase| !matches!(phase, PhaseKind::InService | PhaseKind::Queued)),
            queued: count(&|phase| phase == PhaseKind::Queued),
            parked: count(&|phase| phase == PhaseKind::Parked),
            hosts_leaving: leaving.count(),
        };
        nodes.sort_by_key(|row| (row.phase == PhaseKind::InService, row.waits_for.is_none()));
        hosts.sort_by_key(|row| (row.state == ShownState::IN_SERVICE, row.nodes.is_empty()));
        let (more_nodes, more_hosts) = (nodes.len().saturating_sub(ROWS), hosts.len().saturating_sub(ROWS));
        nodes.truncate(ROWS);
        hosts.truncate(ROWS);
        let mut episodes = self.episodes();
        let timeline = self.timeline(&episodes);
        episodes.truncate(EPISODES);
        Overview {
            frame: self.frame(),
            figures,
            hosts,
            more_hosts,
            nodes,
            more_nodes,
            queue: queue(state),
            timeline,
            episodes,
        }
    }

    pub(super) fn frame(self) -> Frame {
        let View {
            state, settings, now, ..
        } = self;
        Frame {
            now,
            version: env!("CARGO_PKG_VERSION"),
            dry_run: settings.is_dry_run,
            // A standby has no session and needs none.
            vcenter_error: state.vcenter.clone().filter(|_| state.leads()),
            kubernetes_error: state.kubernetes.clone(),
            leadership: state.leadership.clone(),
        }
    }

    fn timeline(self, episodes: &[EpisodeRow]) -> Timeline {
        let View { state, now, .. } = self;
        let longest = PERIODS[PERIODS.len() - 1];
        let since = |at: &Timestamp| now.duration_since(*at);
        let shown = episodes
            .iter()
            .filter(|row| since(&row.ended_at.unwrap_or(now)) < longest);
        let oldest = shown
            .clone()
            .filter_map(|row| row.started_at.as_ref().map(since))
            .max();
        let holds_all = |period: &SignedDuration| oldest.is_none_or(|oldest| oldest < *period);
        let period = PERIODS.into_iter().find(holds_all).unwrap_or(longest);
        let from = now.checked_sub(period).unwrap_or(now);
        let ids: BTreeSet<&str> = shown.map(|row| row.id.as_str()).collect();
        let hosts = state.hosts.values().filter_map(|host| {
            let spans: Vec<TimelineSpan> = host
                .spans()
                .map(|span| TimelineSpan::of(span, ShownState::of_host(span.kind)))
                .collect();
            let is_quiet = spans.iter().all(|span| span.state == ShownState::IN_SERVICE);
            (!is_quiet).then(|| TimelineRow {
                name: format!("host {}", host.name),
                spans,
            })
        });
        let nodes = self.spans_of_nodes(&ids).into_iter();
        let nodes = nodes.map(|(name, mut spans)| {
            spans.sort_by_key(|span| span.from);
            let name = name.to_owned();
            TimelineRow { name, spans }
        });
        let rows = hosts.chain(nodes).filter_map(|mut row| {
            row.spans.retain(|span| span.to.is_none_or(|ended| ended > from));
            (!row.spans.is_empty()).then_some(row)
        });
        Timeline {
            from,
            to: now,
            rows: rows.take(TIMELINE_ROWS).collect(),
        }
    }

    /// The phases of each node: of the episodes `ids` from their objects, and of the latest episode as seen
    /// by this process.
    fn spans_of_nodes(&self, ids: &BTreeSet<&str>) -> BTreeMap<&str, Vec<TimelineSpan>> {
        let View { state, history, .. } = *self;
        let mut of_nodes: BTreeMap<&str, Vec<TimelineSpan>> = BTreeMap::new();
        let nodes = &state.board.nodes;
        let latest = |name| {
            nodes
                .get(name)
                .and_then(|entry: &NodeEntry| entry.latest.as_ref())
        };
        for object in history {
            let id = object.status.episode.as_deref().unwrap_or_default();
            let is_seen = latest(&object.node).is_some_and(|latest| latest.episode.id.as_str() == id);
            if ids.contains(id) && !is_seen {
                let spans = of_nodes.entry(object.node.as_str()).or_default();
                spans.extend(phases(None, Some(object)));
            }
        }
        for name in nodes.keys() {
            if let Some(latest) = latest(name) {
                let object = self.object(latest.episode.id.as_str());
                let spans = of_nodes.entry(name.as_str()).or_default();
                spans.extend(phases(Some(latest), object));
            }
        }
        of_nodes
    }
}

fn host_row(state: &PageState, host: &HostEntry) -> HostRow {
    let (by, since) = if let HostState::Entering { user, clicked_at, .. } = &host.state {
        (user.clone(), Some(*clicked_at))
    } else {
        // The first state began before this process saw it.
        let seen = host.past.back().filter(|_| host.past.len() > 1);
        (None, seen.map(|(at, _)| *at))
    };
    let stands_on = |entry: &NodeEntry| {
        let on = entry.status.as_ref().and_then(|status| status.host());
        on.is_some_and(|(on, _)| on == host.name)
    };
    let nodes = state.board.nodes.iter().filter(|(_, entry)| stands_on(entry));
    HostRow {
        name: host.name.clone(),
        state: ShownState::of_host(host.state.kind()),
        words: host.state.words(),
        by,
        since,
        nodes: nodes.map(|(name, _)| name.to_string()).collect(),
    }
}

/// In queue order: by the time of the task or request.
fn queue(state: &PageState) -> Vec<QueueRow> {
    let nodes = state.board.nodes.iter();
    let mut queued: Vec<(Timestamp, &NodeName, &NodeStatus)> = nodes
        .filter_map(|(name, entry)| {
            let status = entry
                .status
                .as_ref()
                .filter(|it| it.at_work == PhaseKind::Queued)?;
            Some((status.record.episode()?.trigger.clicked_at, name, &**status))
        })
        .collect();
    queued.sort_by_key(|(asked_at, name, _)| (*asked_at, *name));
    let queued = queued.into_iter().take(ROWS).zip(1..);
    let row = |((asked_at, name, status), position): ((Timestamp, &NodeName, &NodeStatus), usize)| {
        let (ahead, limit) = match &status.queue {
            Admission::Granted => (Vec::new(), None),
            Admission::Queued { ahead, limit, .. } => {
                let ahead = ahead.iter().take(ROWS).map(NodeName::to_string).collect();
                (ahead, Some(limit.to_string()))
            }
        };
        QueueRow {
            position,
            node: name.to_string(),
            asked_at,
            limit,
            ahead,
        }
    };
    queued.map(row).collect()
}
