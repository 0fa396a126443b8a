//! The overview's data, made of what is known. Pure: the time is an argument.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::episode::{episodes, phases};
use super::node::node_row;
use super::{
    EpisodeRow, Frame, HostRow, NodeRow, Overview, OverviewFigures, QueueRow, ShownState, Timeline,
    TimelineRow, TimelineSpan,
};
use crate::http::status::About;
use crate::http::status::page_state::{HostEntry, PageState};
use crate::ids::NodeName;
use crate::kubernetes::update::NodeMaintenanceFacts;
use crate::maintenance::observed::{Admission, HostState};
use crate::status::{NodeEntry, NodeStatus, PhaseKind};

/// How many hosts, and how many nodes, a page lists.
const ROWS: usize = 200;

/// How many episodes the overview lists.
const EPISODES: usize = 20;

/// How many rows the overview's timeline has: what fits a screen or two.
const TIMELINE_ROWS: usize = 30;

/// The periods that the overview's timeline may show: the smallest that holds all that goes on.
const PERIODS: [SignedDuration; 4] = [
    SignedDuration::from_mins(15),
    SignedDuration::from_hours(1),
    SignedDuration::from_hours(6),
    SignedDuration::from_hours(24),
];

/// The overview.
pub(in crate::http::status) fn overview(
    known: &PageState,
    history: &[NodeMaintenanceFacts],
    about: &About,
    now: Timestamp,
) -> Overview {
    let nodes = known.board.nodes.iter();
    let mut nodes: Vec<NodeRow> = nodes
        .filter_map(|(name, entry)| node_row(name, entry, history))
        .collect();
    let mut hosts: Vec<HostRow> = known.hosts.values().map(|host| host_row(known, host)).collect();
    let count = |is: &dyn Fn(PhaseKind) -> bool| nodes.iter().filter(|row| is(row.phase)).count();
    let leaving = known.hosts.values().filter(|host| host.state.is_leaving());
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
    let mut episodes = episodes(known, history);
    let timeline = timeline(known, history, &episodes, now);
    episodes.truncate(EPISODES);
    Overview {
        frame: frame(known, about, now),
        figures,
        hosts,
        more_hosts,
        nodes,
        more_nodes,
        queue: queue(known),
        timeline,
        episodes,
    }
}

pub(super) fn frame(known: &PageState, about: &About, now: Timestamp) -> Frame {
    Frame {
        now,
        version: env!("CARGO_PKG_VERSION"),
        dry_run: about.is_dry_run,
        // A standby has no session, and needs none.
        vcenter_silent: known.vcenter.clone().filter(|_| known.leads()),
        kubernetes_silent: known.kubernetes.clone(),
        leadership: known.leadership.clone(),
    }
}

fn host_row(known: &PageState, host: &HostEntry) -> HostRow {
    let (by, since) = if let HostState::Entering { user, clicked_at, .. } = &host.state {
        (user.clone(), Some(*clicked_at))
    } else {
        // The first state of all was there before anybody looked.
        let seen = host.past.back().filter(|_| host.past.len() > 1);
        (None, seen.map(|(at, _)| *at))
    };
    let stands_on = |entry: &NodeEntry| {
        let on = entry.status.as_ref().and_then(|status| status.host());
        on.is_some_and(|(on, _)| on == host.name)
    };
    let nodes = known.board.nodes.iter().filter(|(_, entry)| stands_on(entry));
    HostRow {
        name: host.name.clone(),
        state: ShownState::of_host(host.state.kind()),
        words: host.state.words(),
        by,
        since,
        nodes: nodes.map(|(name, _)| name.to_string()).collect(),
    }
}

/// In the order in which they are served: by the time of the click or request.
fn queue(known: &PageState) -> Vec<QueueRow> {
    let nodes = known.board.nodes.iter();
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
    let row = |((asked_at, name, status), place): ((Timestamp, &NodeName, &NodeStatus), usize)| {
        let (ahead, limit) = match &status.queue {
            Admission::Granted => (Vec::new(), None),
            Admission::Behind { ahead, limit } => {
                let ahead = ahead.iter().take(ROWS).map(NodeName::to_string).collect();
                (ahead, Some(limit.to_string()))
            }
        };
        QueueRow {
            place,
            node: name.to_string(),
            asked_at,
            limit,
            ahead,
        }
    };
    queued.map(row).collect()
}

fn timeline(
    known: &PageState,
    history: &[NodeMaintenanceFacts],
    episodes: &[EpisodeRow],
    now: Timestamp,
) -> Timeline {
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
    let hosts = known.hosts.values().filter_map(|host| {
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
    let nodes = spans_of_nodes(known, history, &ids).into_iter();
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

/// The phases of each node: of the episodes `ids` as objects have them, and of its latest one as this process has seen it.
fn spans_of_nodes<'a>(
    known: &'a PageState,
    history: &'a [NodeMaintenanceFacts],
    ids: &BTreeSet<&str>,
) -> BTreeMap<&'a str, Vec<TimelineSpan>> {
    let mut of_nodes: BTreeMap<&str, Vec<TimelineSpan>> = BTreeMap::new();
    let latest = |name| {
        known
            .board
            .nodes
            .get(name)
            .and_then(|entry: &NodeEntry| entry.latest.as_ref())
    };
    for object in history {
        let id = object.status.episode.as_deref().unwrap_or_default();
        let is_told = latest(&object.node).is_some_and(|latest| latest.episode.id.as_str() == id);
        if ids.contains(id) && !is_told {
            let spans = of_nodes.entry(object.node.as_str()).or_default();
            spans.extend(phases(None, Some(object)));
        }
    }
    for name in known.board.nodes.keys() {
        if let Some(latest) = latest(name) {
            let id = latest.episode.id.as_str();
            let object = history
                .iter()
                .find(|object| object.status.episode.as_deref() == Some(id));
            let spans = of_nodes.entry(name.as_str()).or_default();
            spans.extend(phases(Some(latest), object));
        }
    }
    of_nodes
}
