//! Shows the plan of a maintenance.

mod wave;

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use super::out::{Output, PROBLEM_FOUND, Paint, Tone, node_names};
use super::selection::each_once;
use super::{Format, PlanArgs};
use crate::keys::DRAIN;
use crate::kubernetes::answer::plain;
use crate::plan::wave::WavePlan;
use crate::plan::{NodePlan, PLAN_PATH, Plan};

pub(super) async fn perform(args: PlanArgs, out: Output) -> anyhow::Result<u8> {
    let leader = args.leader.find(out).await?;
    let names = each_once(&args.name);
    let wave: WavePlan = leader.ask(&plan_path(&names)).await?;
    let format = args.output.output;
    let is_wide = format == Format::Wide;
    // The plan of one name is shown without rounds.
    let one = wave.plans.first().filter(|_| names.len() == 1);
    let text = || match (format == Format::Name, one) {
        (true, _) => node_names(wave.nodes().map(|node| &node.node)),
        (false, Some(plan)) => render(plan, is_wide, out.paint()),
        (false, None) => wave::render(&wave, is_wide, out.paint()),
    };
    match one {
        Some(plan) => out.print_value(format, plan, text)?,
        None => out.print_value(format, &wave, text)?,
    }
    Ok(if wave.is_blocked() { PROBLEM_FOUND } else { 0 })
}

/// The path of the plan of `names` in the leader's API.
pub(super) fn plan_path(names: &[String]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(names.iter().map(|name| ("name", name)));
    format!("{PLAN_PATH}?{}", query.finish())
}

/// Renders a plan.
pub(super) fn render(plan: &Plan, wide: bool, paint: Paint) -> String {
    let state = plan
        .state
        .iter()
        .map(|state| format!(", which is {}", plain(state)));
    let state: String = state.collect();
    let mut text = format!("Maintenance of {}/{}{state}:\n", plan.about, plain(&plan.name));
    if plan.nodes.is_empty() {
        text.push_str("\n  it has no VM of our nodes: nothing would be done\n");
    }
    for node in &plan.nodes {
        node_lines(node, wide, paint, &mut text);
    }
    let missing = counts(&plan.gpus_missing);
    if !missing.is_empty() {
        let _ = writeln!(text, "\nMissing meanwhile: {missing}");
    }
    for unknown in &plan.not_checked {
        let _ = writeln!(text, "\n{}", bad_words(&format!("not known: {unknown}"), paint));
    }
    text
}

fn node_lines(node: &NodePlan, wide: bool, paint: Paint, text: &mut String) {
    let vm = match (&node.vm, &node.host) {
        (Some(vm), Some(host)) => format!("VM {} on {}", plain(vm), plain(host)),
        (None, Some(host)) => format!("its VM on {}", plain(host)),
        (_, None) => "no VM".to_owned(),
    };
    let _ = writeln!(text, "\n  node/{} ({}, {vm})", plain(&node.node), node.state);
    let mut line = |name: &str, words: &str| {
        let _ = writeln!(text, "    {name:<9} {}", words.trim_end());
    };
    for stop in &node.stops {
        line("stops", &bad_words(stop, paint));
    }
    pod_lines(node, paint, &mut line);
    match (&node.place.target, &node.place.otherwise) {
        (Some(target), _) => line(
            "moves to",
            &paint.apply(Tone::Good, &format!("√ {}", plain(target))),
        ),
        (None, Some(words)) => line("goes to", &plain(words)),
        (None, None) => {}
    }
    // With a target, the rejected hosts are shown with `-o wide` only.
    if wide || node.place.target.is_none() {
        for refused in &node.place.refused {
            line("", &plain(refused));
        }
    }
    let gpus = counts(&node.gpus);
    if !gpus.is_empty() {
        line("GPUs", &gpus);
    }
    for note in &node.notes {
        line("note", &plain(note));
    }
}

/// What happens to the pods of a node, by calls of `line` with a label and its text.
fn pod_lines(node: &NodePlan, paint: Paint, line: &mut impl FnMut(&str, &str)) {
    if node.evicts.is_empty() {
        line("evicts", "no pod");
    }
    for (index, pod) in node.evicts.iter().enumerate() {
        let name = if index == 0 { "evicts" } else { "" };
        let wait = pod
            .wait_seconds
            .map(|seconds| format!(" after {seconds} s, unless it has ended by itself"));
        line(name, &format!("{}{}", plain(&pod.pod), wait.unwrap_or_default()));
        if let Some(held) = &pod.held {
            line("", &format!("  {}", bad_words(held, paint)));
        }
        for warning in &pod.warnings {
            line("", &format!("  ! {}", plain(warning)));
        }
    }
    for pod in &node.leaving {
        line("leaving", &plain(pod));
    }
    for pod in &node.left {
        line(
            "leaves",
            &format!("{} ({DRAIN}=skip): it ends with the VM", plain(pod)),
        );
    }
    if !node.skipped.is_empty() {
        line("skips", &counts(&node.skipped));
    }
}

fn bad_words(words: &str, paint: Paint) -> String {
    paint.apply(Tone::Bad, &format!("‼ {}", plain(words)))
}

/// Counts by name, such as `2 nvidia.com/gpu`.
fn counts(by_name: &BTreeMap<String, impl Display>) -> String {
    let counts = by_name
        .iter()
        .map(|(name, count)| format!("{count} {}", plain(name)));
    counts.collect::<Vec<_>>().join(", ")
}
