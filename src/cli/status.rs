//! The tree of one node.

use jiff::Timestamp;

use super::nodes::{ExitState, ListedNode, RequestState, pods, since};
use super::out::{Paint, Tone};
use crate::kubernetes::answer::plain;
use crate::nodemaintenance::kind::PhaseTimes;
use crate::status::Took;

/// A line of the tree, with the lines below it.
#[derive(Debug)]
struct Branch {
    text: String,
    under: Vec<Branch>,
}

fn leaf(text: impl Into<String>) -> Branch {
    Branch {
        text: text.into(),
        under: Vec::new(),
    }
}

pub(super) fn tree(state: &ListedNode, paint: Paint, now: Timestamp) -> String {
    let mut branches = facts(state, now);
    let phases = state.phases.iter().map(|it| phase(it, paint, now));
    branches.extend(group("phases", phases.collect()));
    let pods_left = state.pods.iter();
    let pods_left =
        pods_left.map(|pod| leaf(plain(&format!("{}/{}: {}", pod.namespace, pod.name, pod.reason))));
    branches.extend(group(
        &format!("pods      {} to go", pods(state)),
        pods_left.collect(),
    ));
    branches.extend(group("requests", state.requests.iter().map(request).collect()));
    if let Some(trace) = &state.trace {
        let which = if trace.running {
            ""
        } else {
            " (of the latest episode)"
        };
        let text = trace.url.as_ref().unwrap_or(&trace.trace_id);
        branches.push(leaf(format!("trace     {}{which}", plain(text))));
    }
    let mut text = headline(state, paint, now);
    text.push('\n');
    grow(&branches, "", &mut text);
    text
}

fn headline(state: &ListedNode, paint: Paint, now: Timestamp) -> String {
    let (mark, tone) = match state.exit_state {
        ExitState::InService => ("√", Tone::Good),
        ExitState::InMaintenance => ("►", Tone::Busy),
        ExitState::Stuck => ("‼", Tone::Bad),
    };
    let node = format!("{mark} node/{} {}", plain(&state.node), state.state);
    let node = paint.apply(tone, &node);
    match since(state.since.as_deref(), now) {
        since if since.is_empty() => node,
        since => format!("{node} for {since}"),
    }
}

/// The branches without leaves.
fn facts(state: &ListedNode, now: Timestamp) -> Vec<Branch> {
    let mut branches = Vec::new();
    let mut add = |name: &str, text: &str| branches.push(leaf(format!("{name:<9} {}", plain(text))));
    for (name, value) in [
        ("host", &state.host),
        ("target", &state.target),
        ("reason", &state.reason),
    ] {
        value.iter().for_each(|value| add(name, value));
    }
    add("ready", if state.ready { "yes" } else { "no" });
    if let Some(by) = &state.cordoned_by {
        add("cordoned", &format!("by {by}"));
    }
    for (resource, count) in &state.gpus {
        add("GPUs", &format!("{count} {resource}"));
    }
    state.overrides.iter().for_each(|value| add("override", value));
    state.parked.iter().for_each(|why| add("parked", why));
    if let Some(waiting) = &state.waiting_on {
        let text = format!("{} (for {})", waiting.message, since(Some(&waiting.since), now));
        add("waits for", &text);
        if let Some(deadline) = &waiting.deadline {
            let then = waiting.then.iter().map(|then| format!(", when {then}"));
            add("until", &format!("{deadline}{}", then.collect::<String>()));
        }
        if let Some(step) = &waiting.next_step {
            add("next", step);
        }
    }
    branches
}

/// A branch with leaves, if there are any.
fn group(text: &str, under: Vec<Branch>) -> Option<Branch> {
    let text = text.to_owned();
    (!under.is_empty()).then_some(Branch { text, under })
}

fn request(request: &RequestState) -> Branch {
    let phase = request.phase.as_deref().unwrap_or("not seen by a controller yet");
    let reason = request.reason.iter().map(|it| format!(": {it}"));
    let by = request.requested_by.iter().map(|user| format!(", by {user}"));
    leaf(plain(&format!(
        "nodemaintenance/{} {} {phase}{}",
        request.name,
        request.action,
        reason.chain(by).collect::<String>()
    )))
}

fn phase(phase: &PhaseTimes, paint: Paint, now: Timestamp) -> Branch {
    let at = |text: &str| text.parse::<Timestamp>().ok();
    let began = at(&phase.started_at);
    let ended = phase.ended_at.as_deref().and_then(at);
    let took = |began| Took(ended.unwrap_or(now).duration_since(began)).to_string();
    let span = began.map(took).unwrap_or_default();
    let (mark, tone) = match ended {
        Some(_) => ("√", Tone::Faint),
        None => ("►", Tone::Busy),
    };
    let line = paint.apply(tone, &format!("{mark} {:<13}", plain(&phase.phase)));
    leaf(format!("{line} {span}"))
}

fn grow(branches: &[Branch], before: &str, text: &mut String) {
    for (index, branch) in branches.iter().enumerate() {
        let is_last = index + 1 == branches.len();
        let (joint, further) = if is_last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        text.push_str(&format!("{before}{joint}{}\n", branch.text.trim_end()));
        grow(&branch.under, &format!("{before}{further}"), text);
    }
}
