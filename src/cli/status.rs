//! The tree of one node.

use jiff::Timestamp;

use super::age::age;
use super::nodes::{ExitState, ListedNode, pods, since};
use super::out::{Paint, Tone};
use crate::kubernetes::answer::plain;
use crate::nodemaintenance::kind::PhaseTimes;

/// A line of the tree, and what hangs on it.
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

/// How `state` reads as a tree at `now`.
pub(super) fn tree(state: &ListedNode, paint: Paint, now: Timestamp) -> String {
    let tone = match state.standing {
        ExitState::InService => Tone::Good,
        ExitState::InMaintenance => Tone::Busy,
        ExitState::Stuck => Tone::Bad,
    };
    let mark = match state.standing {
        ExitState::InService => "√",
        ExitState::InMaintenance => "►",
        ExitState::Stuck => "‼",
    };
    let mut first = paint.apply(
        tone,
        &format!("{mark} node/{} {}", plain(&state.node), state.state),
    );
    let ago = since(state.since.as_deref(), now);
    if !ago.is_empty() {
        first.push_str(&format!(" for {ago}"));
    }
    let mut branches = Vec::new();
    let mut say = |name: &str, text: &str| branches.push(leaf(format!("{name:<9} {}", plain(text))));
    if let Some(host) = &state.host {
        say("host", host);
    }
    if let Some(target) = &state.target {
        say("target", target);
    }
    if let Some(reason) = &state.reason {
        say("reason", reason);
    }
    say("ready", if state.ready { "yes" } else { "no" });
    if let Some(by) = &state.cordoned_by {
        say("cordoned", &format!("by {by}"));
    }
    for (resource, count) in &state.gpus {
        say("GPUs", &format!("{count} {resource}"));
    }
    for wish in &state.wishes {
        say("wish", wish);
    }
    if let Some(why) = &state.parked {
        say("parked", why);
    }
    if let Some(waiting) = &state.waiting_on {
        let text = format!("{} (for {})", waiting.message, since(Some(&waiting.since), now));
        say("waits for", &text);
    }
    if !state.phases.is_empty() {
        branches.push(Branch {
            text: "phases".to_owned(),
            under: state.phases.iter().map(|it| phase(it, paint, now)).collect(),
        });
    }
    if !state.pods.is_empty() {
        let under = state.pods.iter();
        let under = under.map(|pod| leaf(plain(&format!("{}/{}: {}", pod.namespace, pod.name, pod.reason))));
        branches.push(Branch {
            text: format!("pods      {} to go", pods(state)),
            under: under.collect(),
        });
    }
    if !state.requests.is_empty() {
        let under = state.requests.iter().map(|request| {
            let phase = request.phase.as_deref().unwrap_or("not seen by a controller yet");
            let reason = request
                .reason
                .as_ref()
                .map(|it| format!(": {it}"))
                .unwrap_or_default();
            leaf(plain(&format!(
                "nodemaintenance/{} {} {phase}{reason}",
                request.name, request.action
            )))
        });
        branches.push(Branch {
            text: "requests".to_owned(),
            under: under.collect(),
        });
    }
    if let Some(trace) = &state.trace {
        let which = if trace.running {
            ""
        } else {
            " (of the latest episode)"
        };
        let text = trace.url.as_ref().unwrap_or(&trace.trace_id);
        branches.push(leaf(format!("trace     {}{which}", plain(text))));
    }
    let mut text = first;
    text.push('\n');
    grow(&branches, "", &mut text);
    text
}

fn phase(phase: &PhaseTimes, paint: Paint, now: Timestamp) -> Branch {
    let at = |text: &str| text.parse::<Timestamp>().ok();
    let began = at(&phase.started_at);
    let ended = phase.ended_at.as_deref().and_then(at);
    let span = began.map_or_else(String::new, |began| {
        age(ended.unwrap_or(now).duration_since(began))
    });
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
