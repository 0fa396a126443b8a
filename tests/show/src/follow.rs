//! Follows vCenter's journal, Nodes, Pods and Haulout's log, and prints the changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};

use crate::node::{GPU, annotation, boot_id, gpus, is_cordoned, is_ready, phase};
use crate::peers::Peers;
use crate::printer::{Line, Place, Printer};

/// The poll interval of the log file.
const LOG_POLL: Duration = Duration::from_millis(30);
/// The shortest wait that is printed. Less than the printer's delay, so that the order is right.
const WAIT_MIN: Duration = Duration::from_millis(150);

/// The phases of each node with their times, from the annotation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Phases(Arc<Mutex<Vec<PhaseSeen>>>);

/// One phase of one node.
#[derive(Debug, Clone)]
pub(crate) struct PhaseSeen {
    pub(crate) node: String,
    /// The phase as in the episode's JSON; `None` in service.
    pub(crate) phase: Option<String>,
    /// When it began.
    pub(crate) since: Timestamp,
}

impl Phases {
    /// The phases of one node from a time on, in order.
    pub(crate) fn of(&self, node: &str, from: Timestamp) -> Vec<PhaseSeen> {
        let all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let of_node = all.iter().filter(|it| it.node == node && it.since >= from);
        of_node.cloned().collect()
    }

    fn add(&self, seen: PhaseSeen) {
        let mut all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.push(seen);
    }
}

/// Follows vCenter's journal until vCenter ends.
pub(crate) async fn journal(peers: &impl Peers, printer: &Printer) -> anyhow::Result<()> {
    let mut seq = 0;
    loop {
        for entry in peers.journal_after(seq).await? {
            seq = entry.seq;
            if let Some(what) = entry.line {
                let mut line = Line::new(entry.at, Place::Vcenter, what);
                line.click = entry.entered.is_some();
                printer.print(line);
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct NodeSeen {
    status: String,
    gpus: u32,
    boot: Option<String>,
    annotations: Vec<(&'static str, Option<String>)>,
    phase: Option<String>,
}

impl NodeSeen {
    fn of(node: &Node) -> Self {
        let ready = if is_ready(node) { "Ready" } else { "NotReady" };
        let cordon = if is_cordoned(node) {
            ",SchedulingDisabled"
        } else {
            ""
        };
        let annotations = ["state", "host", "migrated-to-host"];
        Self {
            status: format!("{ready}{cordon}"),
            gpus: gpus(node),
            boot: boot_id(node),
            annotations: annotations
                .into_iter()
                .map(|name| (name, annotation(node, name).map(str::to_owned)))
                .collect(),
            phase: phase(node),
        }
    }

    /// The differences to the state before.
    fn since(&self, before: &Self) -> Option<String> {
        let mut parts = Vec::new();
        if self.boot != before.boot {
            parts.push("new boot ID".to_owned());
        }
        if self.status != before.status {
            parts.push(self.status.clone());
        }
        if self.gpus != before.gpus {
            parts.push(format!("{} {} allocatable", self.gpus, GPU));
        }
        let pairs = self.annotations.iter().zip(&before.annotations);
        let changed = pairs.filter(|(after, before)| after != before);
        let values = changed.filter_map(|((name, value), _)| Some(format!("{name}={}", value.as_ref()?)));
        let values: Vec<String> = values.collect();
        if !values.is_empty() {
            parts.push(format!("annotated {}", values.join(", ")));
        }
        let has_any = |it: &Self| it.annotations.iter().any(|(_, value)| value.is_some());
        if has_any(before) && !has_any(self) {
            parts.push("annotations removed".to_owned());
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// Follows the Nodes with this label.
pub(crate) async fn nodes(client: kube::Client, label: String, printer: Printer, phases: Phases) {
    let config = watcher::Config::default().labels(&label);
    let mut events = watcher(Api::<Node>::all(client), config)
        .default_backoff()
        .boxed();
    let mut seen: BTreeMap<String, NodeSeen> = BTreeMap::new();
    while let Some(event) = events.next().await {
        // The stream restarts a broken watch itself.
        let Ok(event) = event else { continue };
        match event {
            Event::Apply(node) | Event::InitApply(node) => {
                let at = Timestamp::now();
                let (name, state) = (node.name_any(), NodeSeen::of(&node));
                if let Some(before) = seen.get(&name) {
                    if state.phase != before.phase {
                        phases.add(PhaseSeen {
                            node: name.clone(),
                            phase: state.phase.clone(),
                            since: at,
                        });
                    }
                    if let Some(what) = state.since(before) {
                        printer.print(Line::new(at, Place::Kubernetes, format!("node {name}: {what}")));
                    }
                }
                seen.insert(name, state);
            }
            Event::Delete(node) => {
                let what = format!("node {}: deleted", node.name_any());
                printer.print(Line::new(Timestamp::now(), Place::Kubernetes, what));
            }
            Event::Init | Event::InitDone => {}
        }
    }
}

/// Follows the Pods of this namespace.
pub(crate) async fn pods(client: kube::Client, namespace: String, printer: Printer) {
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let mut events = watcher(pods, watcher::Config::default())
        .default_backoff()
        .boxed();
    let mut leaving: BTreeSet<String> = BTreeSet::new();
    while let Some(event) = events.next().await {
        let Ok(event) = event else { continue };
        let what = match event {
            Event::Apply(pod) | Event::InitApply(pod) => {
                let name = pod.name_any();
                let begins = pod.metadata.deletion_timestamp.is_some() && leaving.insert(name.clone());
                begins.then(|| format!("pod {name}: Terminating"))
            }
            Event::Delete(pod) => {
                leaving.remove(&pod.name_any());
                Some(format!("pod {}: deleted", pod.name_any()))
            }
            Event::Init | Event::InitDone => None,
        };
        if let Some(what) = what {
            printer.print(Line::new(Timestamp::now(), Place::Kubernetes, what));
        }
    }
}

/// Follows Haulout's log, from its beginning on.
pub(crate) async fn log(path: PathBuf, printer: Printer) {
    let mut read = 0;
    let mut filter = Filter::default();
    let mut waits = DelayedWait::default();
    loop {
        let text = tokio::fs::read(&path).await.unwrap_or_default();
        let fresh = text.get(read..).unwrap_or_default();
        // The last line may be incomplete.
        if let Some(end) = fresh.iter().rposition(|byte| *byte == b'\n') {
            let whole = String::from_utf8_lossy(fresh.get(..=end).unwrap_or_default()).into_owned();
            read += end + 1;
            for line in whole.lines().filter_map(|line| filter.pass(line)) {
                for line in waits.add(line) {
                    printer.print(line);
                }
            }
        }
        if let Some(line) = waits.lasting(Timestamp::now()) {
            printer.print(line);
        }
        tokio::time::sleep(LOG_POLL).await;
    }
}

/// Delays a wait, so that a wait of a few milliseconds is not printed.
#[derive(Debug, Default)]
struct DelayedWait {
    held: Option<Line>,
}

impl DelayedWait {
    /// The lines that can be printed when `line` arrives, which ends the wait before it.
    fn add(&mut self, line: Line) -> Vec<Line> {
        let mut due: Vec<Line> = self.lasting(line.at).into_iter().collect();
        self.held = None;
        if line.what.starts_with("waiting for ") {
            self.held = Some(line);
        } else {
            due.push(line);
        }
        due
    }

    /// The wait that has lasted long enough at `now`.
    fn lasting(&mut self, now: Timestamp) -> Option<Line> {
        let lasts = |line: &mut Line| now.duration_since(line.at).unsigned_abs() >= WAIT_MIN;
        self.held.take_if(lasts)
    }
}

/// Selects the lines of a maintenance, without repetitions within a phase.
#[derive(Debug, Default)]
struct Filter {
    printed: BTreeSet<String>,
}

impl Filter {
    fn pass(&mut self, line: &str) -> Option<Line> {
        let (time, rest) = line.trim().split_once(' ')?;
        let at: Timestamp = time.parse().ok()?;
        let (level, rest) = rest.trim_start().split_once(' ')?;
        let (message, fields) = rest.split_at(fields_at(rest));
        if !fields.contains(" node=") && level == "INFO" {
            return None;
        }
        let message = message.trim();
        // vCenter's journal shows the same.
        if message.contains("waiting for vCenter's task to ") {
            return None;
        }
        if message.contains(" -> ") {
            self.printed.clear();
        }
        // An attempt and the wait for it are one line.
        let waits_for = message
            .split_once("waiting for ")
            .map_or(message, |(_, rest)| rest);
        if !self.printed.insert(waits_for.to_owned()) {
            return None;
        }
        let what = match level {
            "INFO" => message.to_owned(),
            other => format!("{other}: {message}"),
        };
        Some(Line::new(at, Place::Haulout, what))
    }
}

/// The start of `tracing`'s fields behind a message: the first ` name=` in lower case.
fn fields_at(text: &str) -> usize {
    let mut from = 0;
    while let Some(space) = text.get(from..).and_then(|rest| rest.find(' ')) {
        let start = from + space;
        let word = text.get(start + 1..).unwrap_or_default();
        let name = word.find('=').and_then(|equals| word.get(..equals));
        let is_field = name.is_some_and(|name| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        });
        if is_field {
            return start;
        }
        from = start + 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::{DelayedWait, Filter, Line, Place, fields_at};

    #[test]
    fn a_log_line_loses_its_time_and_its_fields() {
        let mut filter = Filter::default();
        let line =
            "2026-01-02T10:12:26.544934Z  INFO Draining -> ShuttingDown node=gpu1 host=\"esx1\" phase=\"x\"";
        assert_eq!(filter.pass(line).unwrap().what, "Draining -> ShuttingDown");
        let config = "2026-01-02T10:12:26.544934Z  INFO VCENTER_USER      admin";
        assert_eq!(filter.pass(config), None);
        let warning = "2026-01-02T10:12:26.544934Z  WARN something is wrong why=\"x\"";
        assert_eq!(filter.pass(warning).unwrap().what, "WARN: something is wrong");
    }

    #[test]
    fn same_wait_is_printed_once_in_a_phase() {
        let mut filter = Filter::default();
        let mut pass = |words: &str| {
            let line = format!("2026-01-02T10:12:26.544934Z  INFO {words} node=gpu1");
            filter.pass(&line).map(|line| line.what)
        };
        assert!(pass("trying to drain; waiting for 1 pod to go").is_some());
        assert_eq!(pass("waiting for 1 pod to go"), None);
        assert!(pass("Draining -> ShuttingDown").is_some());
        assert!(pass("waiting for 1 pod to go").is_some());
    }

    #[test]
    fn a_wait_is_printed_once_it_has_lasted() {
        let at = |ms: i64| Timestamp::from_millisecond(ms).unwrap();
        let line = |ms, what: &str| Line::new(at(ms), Place::Haulout, what);
        let mut waits = DelayedWait::default();
        let (short, long, phase) = (
            line(0, "waiting for a list"),
            line(10, "waiting for a pod"),
            line(400, "Draining -> ShuttingDown"),
        );
        assert_eq!(waits.add(short), []);
        assert_eq!(waits.add(long.clone()), []);
        assert_eq!(waits.lasting(at(50)), None);
        assert_eq!(waits.lasting(at(200)), Some(long.clone()));
        assert_eq!(waits.lasting(at(300)), None);
        assert_eq!(waits.add(long.clone()), []);
        assert_eq!(waits.add(phase.clone()), [long, phase]);
    }

    #[test]
    fn capitals_are_part_of_the_message() {
        let text = "set VCENTER_TLS_VERIFY=false here endpoint=x";
        assert_eq!(
            text.split_at(fields_at(text)).0,
            "set VCENTER_TLS_VERIFY=false here"
        );
    }
}
