//! Makes the pages' data of what is known: pure, with the time as an argument.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::{
    EpisodePage, EpisodeRow, Fact, Figures, Frame, HostRow, NodePage, NodeRow, Overview, PodRow, Pods,
    QueueRow, Span, State, Step, Timeline, TimelineRow, Waits,
};
use crate::admin::status::About;
use crate::admin::status::known::{Known, OfHost, OfNode, Standing, Story};
use crate::cluster::update::Maintenance;
use crate::ids::{EpisodeId, NodeName};
use crate::maintenance::episode::{Ended, Episode, Phase, Record};
use crate::maintenance::observed::{
    Admission, HostState, PodLeft, PodLeftBecause, PowerSeen, Strategy, VmSeen,
};

/// How many hosts, and how many nodes, a page lists.
const ROWS: usize = 200;

/// How many pods a page lists.
const PODS: usize = 50;

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

/// How an episode ended whose end nobody has seen.
const NOT_SEEN: &str = "NotSeen";

/// The overview.
pub(in crate::admin::status) fn overview(
    known: &Known,
    history: &[Maintenance],
    about: &About,
    now: Timestamp,
) -> Overview {
    let mut nodes: Vec<NodeRow> = known
        .nodes
        .iter()
        .filter_map(|(name, of_node)| node_row(name, of_node, history))
        .collect();
    let mut hosts: Vec<HostRow> = known.hosts.values().map(|host| host_row(known, host)).collect();
    let count = |is: &dyn Fn(&NodeRow) -> bool| nodes.iter().filter(|row| is(row)).count();
    let figures = Figures {
        nodes: nodes.len(),
        in_episode: count(&|row| !matches!(row.state, State::InService | State::Queued)),
        queued: count(&|row| row.state == State::Queued),
        parked: count(&|row| row.state == State::Parked),
        hosts_leaving: known
            .hosts
            .values()
            .filter(|host| host.state.is_leaving())
            .count(),
    };
    nodes.sort_by_key(|row| (row.state == State::InService, row.waits_for.is_none()));
    hosts.sort_by_key(|row| (row.state == State::InService, row.nodes.is_empty()));
    let (more_nodes, more_hosts) = (nodes.len().saturating_sub(ROWS), hosts.len().saturating_sub(ROWS));
    nodes.truncate(ROWS);
    hosts.truncate(ROWS);
    let mut episodes = episodes(known, history);
    let timeline = overview_timeline(known, history, &episodes, now);
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

/// One node's page; `None` for a node that nobody tells of.
pub(in crate::admin::status) fn node(
    known: &Known,
    history: &[Maintenance],
    about: &About,
    name: &NodeName,
    now: Timestamp,
) -> Option<NodePage> {
    let of_node = known.nodes.get(name)?;
    let standing = of_node.standing.as_ref()?;
    let mut episodes = episodes(known, history);
    episodes.retain(|row| row.node == name.as_str());
    Some(NodePage {
        frame: frame(known, about, now),
        row: node_row(name, of_node, history)?,
        facts: node_facts(standing, known.leads()),
        pods: pods_of(of_node, history),
        steps: of_node.story.as_ref().map(steps).unwrap_or_default(),
        episodes,
    })
}

/// One episode's page; `None` for one that nobody knows.
pub(in crate::admin::status) fn episode(
    known: &Known,
    history: &[Maintenance],
    about: &About,
    id: &str,
    now: Timestamp,
) -> Option<EpisodePage> {
    let id = EpisodeId::new(id);
    let seen = known.nodes.iter().find_map(|(name, of_node)| {
        let story = of_node.story.as_ref().filter(|story| story.is(&id))?;
        Some((name, of_node, story))
    });
    let object = history
        .iter()
        .find(|object| object.status.episode.as_deref() == Some(id.as_str()));
    let row = match (seen, object.and_then(row_of_object)) {
        (Some((name, _, story)), written) => told_or_written(row_of_story(name, story), written),
        (None, Some(written)) => written,
        (None, None) => return None,
    };
    let story = seen.map(|(_, _, story)| story);
    let phases = phases(story, object);
    let is_running = row.ended_at.is_none();
    let from = row
        .started_at
        .or_else(|| phases.first().map(|span| span.from))
        .unwrap_or(now);
    let timeline = Timeline {
        from,
        to: row.ended_at.unwrap_or(now).max(from),
        rows: episode_rows(&phases, story.map_or(&[], |story| &story.waits)),
    };
    let of_node = seen.filter(|_| is_running).map(|(_, of_node, _)| of_node);
    let trace = story.map(|story| story.episode.trace_id().to_owned());
    Some(EpisodePage {
        frame: frame(known, about, now),
        is_running,
        trace_id: trace
            .or_else(|| object?.status.trace_id.clone())
            .unwrap_or_default(),
        trace_url: story
            .and_then(|story| about.links.to(&story.episode))
            .or_else(|| object?.status.trace_url.clone().filter(|url| is_web(url))),
        facts: match story {
            Some(story) => episode_facts(&story.episode),
            None => object.map(object_facts).unwrap_or_default(),
        },
        waits_for: of_node.and_then(|of_node| waits(of_node, history)),
        phases,
        timeline,
        pods: of_node.and_then(|of_node| pods_of(of_node, history)),
        steps: story.map(steps).unwrap_or_default(),
        row,
    })
}

fn frame(known: &Known, about: &About, now: Timestamp) -> Frame {
    Frame {
        now,
        version: env!("CARGO_PKG_VERSION"),
        dry_run: about.is_dry_run,
        // A replica that stands by has no session, and needs none.
        vcenter_silent: known.vcenter.clone().filter(|_| known.leads()),
        kubernetes_silent: known.kubernetes.clone(),
        leadership: known.leadership.clone(),
    }
}

/// What stands in an object may have been written there by anybody: only an address of the web becomes a link.
fn is_web(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("http://")
}

fn node_row(name: &NodeName, of_node: &OfNode, history: &[Maintenance]) -> Option<NodeRow> {
    let standing = of_node.standing.as_ref()?;
    Some(NodeRow {
        name: name.to_string(),
        state: State::named(standing.phase()),
        phase: standing.phase(),
        since: standing.since(),
        host: host_of(standing).or_else(|| recorded_host(standing)),
        waits_for: waits(of_node, history),
        episode: standing.record.episode().map(|episode| episode.id.to_string()),
    })
}

/// What it waits for, as its actor tells, or else, in a replica that stands by, as the leader has written.
fn waits(of_node: &OfNode, history: &[Maintenance]) -> Option<Waits> {
    let told = of_node.waits.as_ref().map(|wait| Waits {
        reason: wait.on.kind().to_owned(),
        message: wait.on.to_string(),
        since: Some(wait.since),
    });
    told.or_else(|| {
        let written = object_of(of_node, history)?.status.waiting_on.as_ref()?;
        Some(Waits {
            reason: kind(&written.reason),
            message: written.message.clone(),
            since: time(&written.since),
        })
    })
}

/// The object of the episode that goes on, where the leader has made one.
fn object_of<'a>(of_node: &OfNode, history: &'a [Maintenance]) -> Option<&'a Maintenance> {
    let id = &of_node.standing.as_ref()?.record.episode()?.id;
    let is_its = |object: &&Maintenance| object.status.episode.as_deref() == Some(id.as_str());
    history.iter().find(is_its)
}

/// `NodeReady`, as objects have it, as `node-ready`, as the leader's page has it: a program may ask any replica.
fn kind(reason: &str) -> String {
    let mut kind = String::new();
    for letter in reason.chars() {
        if letter.is_ascii_uppercase() && !kind.is_empty() {
            kind.push('-');
        }
        kind.push(letter.to_ascii_lowercase());
    }
    kind
}

fn host_of(standing: &Standing) -> Option<String> {
    let vm = standing.vm.found()?;
    vm.on.is_some().then(|| vm.on_name.clone())
}

/// The host that the record names, where vCenter has not told.
fn recorded_host(standing: &Standing) -> Option<String> {
    let episode = standing.record.episode()?;
    let host = episode.moved_to.as_ref().unwrap_or(&episode.host);
    (standing.vm == VmSeen::NotLookedUp).then(|| host.name.to_string())
}

fn host_row(known: &Known, host: &OfHost) -> HostRow {
    let (by, since) = match &host.state {
        HostState::Entering { user, clicked_at, .. } => (user.clone(), Some(*clicked_at)),
        HostState::Unknown
        | HostState::Unreachable
        | HostState::InMaintenance
        | HostState::Quarantined
        | HostState::InService => {
            // The first state of all was there before anybody looked.
            let seen = host.past.back().filter(|_| host.past.len() > 1);
            (None, seen.map(|(at, _)| *at))
        }
    };
    let stands_on = |of_node: &OfNode| {
        let standing = of_node.standing.as_ref();
        standing.and_then(host_of).is_some_and(|on| on == host.name)
    };
    let nodes = known.nodes.iter().filter(|(_, of_node)| stands_on(of_node));
    HostRow {
        name: host.name.clone(),
        state: State::of_host(&host.state),
        words: host.state.words(),
        by,
        since,
        nodes: nodes.map(|(name, _)| name.to_string()).collect(),
    }
}

/// In the order in which they are served: by the time of the click or request.
fn queue(known: &Known) -> Vec<QueueRow> {
    let mut queued: Vec<(Timestamp, &NodeName, &Standing)> = known
        .nodes
        .iter()
        .filter_map(|(name, of_node)| {
            let standing = of_node.standing.as_ref()?;
            let episode = standing.record.episode()?;
            let is_queued = matches!(episode.phase.at_work(), Phase::Queued);
            is_queued.then_some((episode.trigger.clicked_at, name, standing))
        })
        .collect();
    queued.sort_by_key(|(asked_at, name, _)| (*asked_at, *name));
    queued
        .into_iter()
        .take(ROWS)
        .zip(1..)
        .map(|((asked_at, name, standing), place)| {
            let (ahead, limit) = match &standing.admission {
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
        })
        .collect()
}

/// Those in progress first, then by their beginning, the newest first.
fn episodes(known: &Known, history: &[Maintenance]) -> Vec<EpisodeRow> {
    let seen = known.nodes.iter().filter_map(|(name, of_node)| {
        let story = of_node.story.as_ref()?;
        Some(row_of_story(name, story))
    });
    let mut rows: BTreeMap<String, EpisodeRow> =
        history.iter().filter_map(row_of_object).map(keyed).collect();
    for row in seen {
        let written = rows.remove(&row.id);
        let (id, row) = keyed(told_or_written(row, written));
        rows.insert(id, row);
    }
    let mut rows: Vec<EpisodeRow> = rows.into_values().collect();
    rows.sort_by_key(|row| (row.ended_at.is_some(), std::cmp::Reverse(row.started_at)));
    rows
}

fn keyed(row: EpisodeRow) -> (String, EpisodeRow) {
    (row.id.clone(), row)
}

/// What this process has seen of an episode; of an end that it has not, as one of a replica that stands by, what the
/// leader has written.
fn told_or_written(told: EpisodeRow, written: Option<EpisodeRow>) -> EpisodeRow {
    let written = written.filter(|row| told.result == NOT_SEEN && row.ended_at.is_some());
    written.unwrap_or(told)
}

fn row_of_story(name: &NodeName, story: &Story) -> EpisodeRow {
    let episode = &story.episode;
    let (ended_at, result) = match (story.ended, story.gone_at) {
        (Some((ended, at)), _) => (Some(at), result(ended)),
        (None, Some(at)) => (Some(at), NOT_SEEN),
        (None, None) => (None, episode.phase.name()),
    };
    EpisodeRow {
        id: episode.id.to_string(),
        node: name.to_string(),
        host: Some(episode.host.name.to_string()),
        started_at: Some(episode.begun_at),
        ended_at,
        result: result.to_owned(),
    }
}

fn result(ended: Ended) -> &'static str {
    match ended {
        Ended::Succeeded => "Succeeded",
        Ended::Failed => "Failed",
        Ended::Cancelled => "Cancelled",
    }
}

fn row_of_object(object: &Maintenance) -> Option<EpisodeRow> {
    let status = &object.status;
    let ended_at = status.ended_at.as_deref().and_then(time);
    let succeeded = status.conditions.iter().find(|it| it.type_ == "Succeeded");
    let result = match (ended_at, succeeded) {
        (Some(_), Some(condition)) => condition.reason.clone(),
        (_, _) => status.state.clone().unwrap_or_default(),
    };
    Some(EpisodeRow {
        id: status.episode.clone()?,
        node: object.node.to_string(),
        host: status.host.clone(),
        started_at: status.started_at.as_deref().and_then(time),
        ended_at,
        result,
    })
}

fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// The phases that the object has where it reaches farther back than this process does, and those that were seen
/// otherwise.
fn phases(story: Option<&Story>, object: Option<&Maintenance>) -> Vec<Span> {
    let seen = story.map_or(&[][..], |story| &story.phases);
    let written: Vec<Span> = object
        .into_iter()
        .flat_map(|object| &object.status.phases)
        .filter_map(|phase| {
            Some(Span {
                state: State::named(&phase.phase),
                label: phase.phase.clone(),
                from: time(&phase.started_at)?,
                to: phase.ended_at.as_deref().and_then(time),
            })
        })
        .collect();
    let Some(first) = seen.first() else {
        return written;
    };
    // An object has milliseconds, and this process more.
    let is_older = |span: &Span| span.from.as_millisecond() < first.from.as_millisecond();
    let mut all: Vec<Span> = written.into_iter().filter(is_older).collect();
    if let Some(last) = all.last_mut() {
        last.to = Some(last.to.unwrap_or(first.from).min(first.from));
    }
    all.extend(seen.iter().cloned());
    all
}

/// One row for each phase in its order, and below it one for each thing that was waited for meanwhile.
fn episode_rows(phases: &[Span], waits: &[Span]) -> Vec<TimelineRow> {
    let mut rows: Vec<TimelineRow> = Vec::new();
    let mut add = |name: String, span: &Span| match rows.iter_mut().find(|row| row.name == name) {
        Some(row) => row.spans.push(span.clone()),
        None => rows.push(TimelineRow {
            name,
            spans: vec![span.clone()],
        }),
    };
    for phase in phases {
        add(phase.label.clone(), phase);
        let is_meanwhile =
            |wait: &&Span| wait.from >= phase.from && phase.to.is_none_or(|ended| wait.from < ended);
        for wait in waits.iter().filter(is_meanwhile) {
            add(format!("waits for {}", wait.label), wait);
        }
    }
    rows
}

fn overview_timeline(
    known: &Known,
    history: &[Maintenance],
    episodes: &[EpisodeRow],
    now: Timestamp,
) -> Timeline {
    let longest = PERIODS[PERIODS.len() - 1];
    let since = |at: &Timestamp| now.duration_since(*at);
    let begun = episodes.iter().filter(|row| {
        let end = row.ended_at.unwrap_or(now);
        since(&end) < longest
    });
    let oldest = begun
        .clone()
        .filter_map(|row| row.started_at)
        .map(|at| since(&at))
        .max();
    let period = PERIODS
        .into_iter()
        .find(|period| oldest.is_none_or(|oldest| oldest < *period))
        .unwrap_or(longest);
    let from = now.checked_sub(period).unwrap_or(now);
    let is_in = |span: &Span| span.to.is_none_or(|ended| ended > from);
    let ids: BTreeSet<&str> = begun.map(|row| row.id.as_str()).collect();

    let mut of_nodes: BTreeMap<&str, Vec<Span>> = BTreeMap::new();
    for object in history {
        let id = object.status.episode.as_deref().unwrap_or_default();
        let of_node = known.nodes.get(&object.node);
        let story = of_node.and_then(|of_node| of_node.story.as_ref());
        let is_told = story.is_some_and(|story| story.episode.id.as_str() == id);
        if ids.contains(id) && !is_told {
            of_nodes
                .entry(object.node.as_str())
                .or_default()
                .extend(phases(None, Some(object)));
        }
    }
    for (name, of_node) in &known.nodes {
        if let Some(story) = &of_node.story {
            let its =
                |object: &&Maintenance| object.status.episode.as_deref() == Some(story.episode.id.as_str());
            let object = history.iter().find(its);
            of_nodes
                .entry(name.as_str())
                .or_default()
                .extend(phases(Some(story), object));
        }
    }
    let hosts = known.hosts.values().filter_map(|host| {
        let is_quiet = host.past.iter().all(|(_, state)| *state == State::InService);
        (!is_quiet).then(|| TimelineRow {
            name: format!("host {}", host.name),
            spans: spans_of(host),
        })
    });
    let nodes = of_nodes.into_iter().map(|(name, mut spans)| {
        spans.sort_by_key(|span| span.from);
        TimelineRow {
            name: name.to_owned(),
            spans,
        }
    });
    let rows = hosts.chain(nodes).filter_map(|mut row| {
        row.spans.retain(is_in);
        (!row.spans.is_empty()).then_some(row)
    });
    Timeline {
        from,
        to: now,
        rows: rows.take(TIMELINE_ROWS).collect(),
    }
}

fn spans_of(host: &OfHost) -> Vec<Span> {
    let ends = host.past.iter().skip(1).map(|(at, _)| Some(*at)).chain([None]);
    let spans = host.past.iter().zip(ends).map(|((from, state), to)| Span {
        state: *state,
        label: state.name().to_owned(),
        from: *from,
        to,
    });
    spans.collect()
}

fn steps(story: &Story) -> Vec<Step> {
    story.steps.iter().rev().cloned().collect()
}

/// The pods that are still to go, as this process has listed them, or else as the leader has written.
fn pods_of(of_node: &OfNode, history: &[Maintenance]) -> Option<Pods> {
    let listed = of_node.standing.as_ref()?.pods.as_deref().map(pods);
    listed.or_else(|| {
        let written = &object_of(of_node, history)?.status.pods;
        let left = written.iter().map(|pod| PodRow {
            name: format!("{}/{}", pod.namespace, pod.name),
            why: pod.reason.clone(),
        });
        (!written.is_empty()).then(|| Pods {
            left: left.take(PODS).collect(),
            more: written.len().saturating_sub(PODS),
        })
    })
}

fn pods(left: &[PodLeft]) -> Pods {
    let mut left: Vec<&PodLeft> = left.iter().collect();
    left.sort_by_key(|pod| pod.why == PodLeftBecause::Leaving);
    Pods {
        more: left.len().saturating_sub(PODS),
        left: left
            .into_iter()
            .take(PODS)
            .map(|pod| PodRow {
                name: pod.name.clone(),
                why: why(&pod.why),
            })
            .collect(),
    }
}

fn why(why: &PodLeftBecause) -> String {
    match why {
        PodLeftBecause::Leaving => "terminating".to_owned(),
        PodLeftBecause::Budget { names, said } if names.is_empty() => {
            format!("a PodDisruptionBudget allows no disruption: {said}")
        }
        PodLeftBecause::Budget { names, said } => {
            format!("held by PodDisruptionBudget {}: {said}", names.join(", "))
        }
        PodLeftBecause::Migrating { said } => format!("its VM is being migrated live: {said}"),
        PodLeftBecause::Refused { said } => format!("its eviction was refused: {said}"),
        PodLeftBecause::NotReached => "its eviction has not been asked for yet".to_owned(),
    }
}

fn node_facts(standing: &Standing, is_vcenter_followed: bool) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut say = |name, value: String| facts.push(Fact { name, value });
    match &standing.node {
        None => say("Node", "the object is gone".to_owned()),
        Some(node) => {
            let cordon = if node.is_cordoned {
                "cordoned"
            } else {
                "schedulable"
            };
            let ready = if node.is_ready { "Ready" } else { "not Ready" };
            say("Node", format!("{ready}, {cordon}"));
            if node.wishes.skip {
                say("Left alone", "it is annotated to be skipped".to_owned());
            }
            if node.wishes.approved {
                say("Approved", "its next drain may begin".to_owned());
            }
            if node.wishes.strategy == Strategy::Wait {
                say("Strategy", "its VM waits for its own host".to_owned());
            }
        }
    }
    match &standing.vm {
        VmSeen::NotLookedUp if !is_vcenter_followed => {}
        VmSeen::NotLookedUp => say("VM", "vCenter has not told which it is".to_owned()),
        VmSeen::Missing { .. } => say("VM", "vCenter knows none".to_owned()),
        VmSeen::NoUuid => say("VM", "the Node tells no UUID of it".to_owned()),
        VmSeen::Ambiguous(vms) => say("VM", format!("{} answer for this node", vms.len())),
        VmSeen::Shared(nodes) => say("VM", format!("it is that of {} more nodes", nodes.len())),
        VmSeen::Found(vm) => {
            let power = match vm.power {
                PowerSeen::Unknown => "power state unknown",
                PowerSeen::On => "powered on",
                PowerSeen::Off => "powered off",
                PowerSeen::Suspended => "suspended",
            };
            say("VM", format!("{}, {power}", vm.moref));
            say("Host", format!("{}, {}", vm.on_name, vm.host.words()));
            if let Some(question) = &vm.question {
                say("Question", question.clone());
            }
        }
    }
    if let Some(request) = &standing.request {
        let asks = format!(
            "NodeMaintenance {} asks for it to be {}",
            request.mark.name, request.action
        );
        say("Request", asks);
    }
    match &standing.record {
        Record::Episode(episode) => facts.extend(episode_facts(episode)),
        Record::Python(python) => say("Adopting", format!("an episode of host {}", python.host)),
        Record::Unreadable { why } => say("Record", format!("it cannot be read: {why}")),
        Record::InService => {}
    }
    facts
}

fn episode_facts(episode: &Episode) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut say = |name, value: String| facts.push(Fact { name, value });
    let trigger = &episode.trigger;
    if let Some(ended) = &trigger.stray_of {
        say("Set off by", format!("a late power-off of episode {ended}"));
    }
    match (&trigger.request, &trigger.task) {
        (Some(request), _) => say("Set off by", format!("NodeMaintenance {}", request.name)),
        (None, Some(task)) => {
            let user = trigger.user.as_ref().map(|user| format!(" of {user}"));
            let user = user.unwrap_or_default();
            say(
                "Set off by",
                format!("{task}{user}, Enter Maintenance Mode of {}", episode.host),
            );
        }
        (None, None) if trigger.stray_of.is_some() => {}
        (None, None) => say(
            "Set off by",
            format!("host {}, in maintenance mode", episode.host),
        ),
    }
    if let Phase::Relocating { to } = episode.phase.at_work() {
        say("Moving to", to.name.to_string());
    }
    if let Some(moved) = &episode.moved_to {
        say("Moved to", moved.name.to_string());
    }
    if let Some(why) = &episode.gave_up {
        say("Gave up", why.clone());
    }
    if !episode.left_behind.is_empty() {
        let listed: Vec<&str> = episode
            .left_behind
            .iter()
            .take(PODS)
            .map(String::as_str)
            .collect();
        say("Pods left behind", listed.join(", "));
    }
    if let Phase::Parked { reason, .. } = &episode.phase {
        say("Parked", reason.to_string());
    }
    facts
}

fn object_facts(object: &Maintenance) -> Vec<Fact> {
    let mut facts = Vec::new();
    if let Some(target) = &object.status.target {
        facts.push(Fact {
            name: "Moved to",
            value: target.clone(),
        });
    }
    if let Some(error) = &object.status.last_error {
        facts.push(Fact {
            name: "Last error",
            value: error.clone(),
        });
    }
    facts
}
