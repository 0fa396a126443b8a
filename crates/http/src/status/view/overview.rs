//! The data of the overview, a pure function of state and time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::episode::phases;
use super::{
    EpisodeRow, Frame, HostPage, HostRow, ListFilter, NodeRow, Overview, OverviewFigures, PageCount,
    QueueRow, ShownState, Timeline, TimelineRow, TimelineSpan, View,
};
use crate::status::page_state::HostEntry;
use haulout_core::ids::NodeName;
use haulout_core::maintenance::observed::{Admission, HostState};
use haulout_core::status::{NodeEntry, NodeStatus, PhaseKind, StatusBoard};

/// Rows of nodes, and of hosts, on one page.
pub(in crate::status) const ROWS: usize = 100;

/// Limit of nodes that wait for a person, and of queued ones.
const LISTED: usize = 200;

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
    pub(in crate::status) fn overview(self, filter: &ListFilter) -> Overview {
        let state = self.state;
        let frame = self.frame();
        let mut nodes = self.node_rows();
        let mut hosts = self.host_rows();
        let count = |is: &dyn Fn(PhaseKind) -> bool| nodes.iter().filter(|row| is(row.phase)).count();
        let leaving = state.hosts.values().filter(|host| host.state.is_leaving());
        let figures = OverviewFigures {
            nodes: nodes.len(),
            in_episode: count(&|phase| !matches!(phase, PhaseKind::InService | PhaseKind::Queued)),
            queued: count(&|phase| phase == PhaseKind::Queued),
            parked: count(&|phase| phase == PhaseKind::Parked),
            need_person: frame.need_person,
            hosts_leaving: leaving.count(),
            not_maintainable: self.blocked(),
        };
        let mut need_person: Vec<NodeRow> = nodes.iter().filter(|row| row.needs_person()).cloned().collect();
        need_person.truncate(LISTED);
        nodes.sort_by_key(|row| {
            (
                !row.needs_person(),
                row.phase == PhaseKind::InService,
                row.waits_for.is_none(),
            )
        });
        hosts.sort_by_key(|row| (row.state == ShownState::IN_SERVICE, row.nodes.is_empty()));
        let wanted = filter.q.to_lowercase();
        let matches = |name: &str| name.to_lowercase().contains(&wanted);
        nodes.retain(|row| matches(&row.name) || row.host.as_deref().is_some_and(matches));
        hosts.retain(|row| matches(&row.name) || row.nodes.iter().any(|node| matches(node)));
        let node_pages = page_of(&mut nodes, filter.nodes);
        let host_pages = page_of(&mut hosts, filter.hosts);
        let mut episodes = self.episodes();
        let timeline = self.timeline(&episodes);
        episodes.truncate(EPISODES);
        Overview {
            frame,
            figures,
            filter: filter.clone(),
            need_person,
            hosts,
            host_pages,
            nodes,
            node_pages,
            queue: queue(self.board),
            timeline,
            episodes,
        }
    }

    fn node_rows(self) -> Vec<NodeRow> {
        let nodes = self.board.nodes.iter();
        nodes
            .filter_map(|(name, entry)| self.node_row(name, entry))
            .collect()
    }

    fn host_rows(self) -> Vec<HostRow> {
        let mut on_hosts: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (name, entry) in &self.board.nodes {
            if let Some((host, _)) = entry.status.as_ref().and_then(|status| status.host()) {
                on_hosts.entry(host).or_default().push(name.to_string());
            }
        }
        let hosts = self.state.hosts.values();
        hosts
            .map(|host| host_row(host, on_hosts.remove(host.name.as_str()).unwrap_or_default()))
            .collect()
    }

    /// The page of a host, for who looks after the hosts; `None` for an unknown one.
    pub(in crate::status) fn host(self, name: &str) -> Option<HostPage> {
        let row = self.host_rows().into_iter().find(|row| row.name == name)?;
        let mut on_it = self.node_rows();
        on_it.retain(|node| node.host.as_deref() == Some(name));
        let mut episodes = self.episodes();
        episodes.retain(|episode| episode.host.as_deref() == Some(name));
        let mut timeline = self.timeline(&episodes);
        let own = format!("host {name}");
        let is_of_it = |row: &TimelineRow| row.name == own || episodes.iter().any(|it| it.node == row.name);
        timeline.rows.retain(is_of_it);
        episodes.truncate(EPISODES);
        Some(HostPage {
            frame: self.frame(),
            row,
            on_it,
            timeline,
            episodes,
        })
    }

    pub(super) fn frame(self) -> Frame {
        let View {
            state, settings, now, ..
        } = self;
        let nodes = self.node_rows();
        Frame {
            now,
            cluster: settings.cluster.clone(),
            vcenter: settings.vcenter.clone(),
            vcenter_answered: state.vcenter_answered.filter(|_| state.leads()),
            need_person: nodes.iter().filter(|row| row.needs_person()).count(),
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
                .map(|span| {
                    TimelineSpan::of(
                        span,
                        ShownState::of_host(span.kind).words(),
                        ShownState::of_host(span.kind),
                    )
                })
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
        let history = self.history;
        let mut of_nodes: BTreeMap<&str, Vec<TimelineSpan>> = BTreeMap::new();
        let nodes = &self.board.nodes;
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

/// Keeps the rows of one page.
pub(super) fn page_of<T>(rows: &mut Vec<T>, page: usize) -> PageCount {
    let all = rows.len();
    let pages = all.div_ceil(ROWS).max(1);
    let page = page.clamp(1, pages);
    rows.drain(..(page - 1) * ROWS);
    rows.truncate(ROWS);
    PageCount {
        rows: all,
        page,
        pages,
    }
}

fn host_row(host: &HostEntry, nodes: Vec<String>) -> HostRow {
    let (by, since) = if let HostState::Entering { user, clicked_at, .. } = &host.state {
        (user.clone(), Some(*clicked_at))
    } else {
        // The first state began before this process saw it.
        let seen = host.past.back().filter(|_| host.past.len() > 1);
        (None, seen.map(|(at, _)| *at))
    };
    HostRow {
        name: host.name.clone(),
        state: ShownState::of_host(host.state.kind()),
        words: host.state.words(),
        by,
        since,
        nodes,
    }
}

/// In queue order: by the time of the task or request.
fn queue(board: &StatusBoard) -> Vec<QueueRow> {
    let nodes = board.nodes.iter();
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
    let queued = queued.into_iter().take(LISTED).zip(1..);
    let row = |((asked_at, name, status), position): ((Timestamp, &NodeName, &NodeStatus), usize)| {
        let (ahead, limit) = match &status.queue {
            Admission::Granted => (Vec::new(), None),
            Admission::Queued { ahead, limit, .. } => {
                let ahead = ahead.iter().take(LISTED).map(NodeName::to_string).collect();
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
