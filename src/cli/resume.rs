//! `resume`: cancels requests, and says what follows.

use anyhow::bail;
use kube::ResourceExt as _;
use serde::Serialize;

use super::nodes::ListedNode;
use super::out::{Output, PROBLEM_FOUND};
use super::question;
use super::reading::{WantedNodes, is_open_request, read_nodes};
use super::request::{NM, user};
use super::selection::show_values;
use super::{Format, ResumeArgs};
use crate::ids::RequestUid;
use crate::kubernetes::answer::plain;
use crate::nodemaintenance::api;
use crate::nodemaintenance::kind::NodeMaintenance;
use crate::status::PhaseKind;

/// The result for one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Resumed {
    node: String,
    deleted: Vec<String>,
    /// Open requests of other users.
    others: Vec<OthersRequest>,
    /// What keeps the node out of service.
    stays: Vec<String>,
    /// What the controller does then.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A request of another user.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OthersRequest {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    requested_by: Option<String>,
}

impl OthersRequest {
    fn of(object: &NodeMaintenance) -> Self {
        Self {
            name: object.name_any(),
            requested_by: object.spec.requested_by.clone(),
        }
    }

    fn words(&self) -> String {
        let by = self.requested_by.as_deref().unwrap_or("an unknown user");
        format!("{NM}/{} by {}", plain(&self.name), plain(by))
    }
}

/// Deletes open requests of nodes, and reports what keeps the nodes out of service.
pub(super) async fn perform(args: ResumeArgs, out: Output) -> anyhow::Result<u8> {
    let (client, settings) = args.flags.connect(out).await?;
    let names = args.nodes.names(&client, &settings).await?;
    let reading = read_nodes(&client, &settings, WantedNodes::Named(&names)).await?;
    let open = reading.objects.iter().filter(|object| is_open_request(object));
    let me = user(&client, out).await;
    let is_mine = |object: &NodeMaintenance| me.is_some() && object.spec.requested_by == me;
    let (mut taken, mut left): (Vec<&NodeMaintenance>, Vec<&NodeMaintenance>) =
        open.partition(|object| match &args.request {
            Some(name) => object.name_any() == *name,
            None => is_mine(object),
        });
    if let (Some(name), true) = (&args.request, taken.is_empty()) {
        bail!(
            "{NM}/{name}: node/{} has no open request of this name",
            names.join(", node/")
        );
    }
    if args.all && agreed_to_all(&args, &left, out)? {
        taken.append(&mut left);
    }
    let states = reading.states();
    let mut resumed: Vec<Resumed> = Vec::new();
    for name in &names {
        let state = states.iter().find(|state| state.node == *name);
        let of_node = |object: &&&NodeMaintenance| object.spec.node_name == *name;
        let mut deleted = Vec::new();
        for object in taken.iter().filter(of_node) {
            let uid = RequestUid::new(object.uid().unwrap_or_default());
            api::withdraw(&client, &object.name_any(), &uid, None).await?;
            deleted.push(object.name_any());
        }
        let others: Vec<OthersRequest> = left
            .iter()
            .filter(of_node)
            .map(|it| OthersRequest::of(it))
            .collect();
        let is_last = !deleted.is_empty() && others.is_empty();
        let stays = state.map(stays).unwrap_or_default();
        let next = state.filter(|_| is_last && stays.is_empty()).and_then(next);
        resumed.push(Resumed {
            node: name.clone(),
            deleted,
            others,
            stays,
            next,
        });
    }
    show_resumed(&resumed, &args, out)?;
    let is_without_effect = resumed
        .iter()
        .any(|it| it.deleted.is_empty() && !it.others.is_empty());
    Ok(if is_without_effect { PROBLEM_FOUND } else { 0 })
}

/// Whether a person agrees that the requests of other users are deleted.
fn agreed_to_all(args: &ResumeArgs, left: &[&NodeMaintenance], out: Output) -> anyhow::Result<bool> {
    if left.is_empty() {
        return Ok(true);
    }
    let names: Vec<String> = left
        .iter()
        .map(|object| OthersRequest::of(object).words())
        .collect();
    let names = names.join(", ");
    let question = format!("Delete the requests of other users as well: {names}?");
    let what = format!("--all deletes requests of other users ({names})");
    question::agreed(args.yes, out, &question, &what)
}

fn show_resumed(resumed: &[Resumed], args: &ResumeArgs, out: Output) -> anyhow::Result<()> {
    let format = args.flags.output.output;
    if format.is_machine_readable() {
        return show_values(resumed, resumed.len(), (format, out));
    }
    let what = if format == Format::Name { "" } else { " deleted" };
    for one in resumed {
        for name in &one.deleted {
            out.result(&format!("{NM}/{}{what}", plain(name)))?;
        }
        if one.deleted.is_empty() && one.others.is_empty() {
            out.progress(&format!("node/{} has no open request", plain(&one.node)));
        }
        for other in &one.others {
            out.progress(&format!(
                "{} stays: delete it with --request {} or --all",
                other.words(),
                plain(&other.name)
            ));
        }
        for text in one.stays.iter().chain(&one.next) {
            out.progress(&plain(text));
        }
    }
    Ok(())
}

/// What keeps the node out of service without requests.
fn stays(state: &ListedNode) -> Vec<String> {
    let node = &state.node;
    let mut stays = Vec::new();
    if let Some(host) = state.host.as_ref().filter(|_| !state.by_request) {
        stays.push(format!(
            "node/{node} stays {}: ESXi host {host} is in maintenance, or on its way there; cancel that in vCenter to have the node \
             back",
            state.state
        ));
    }
    if let Some(by) = state.cordoned_by.as_ref().filter(|by| *by != "Haulout") {
        stays.push(format!("node/{node} stays cordoned: by {by}"));
    }
    stays
}

/// What the controller does after the last request is deleted.
fn next(state: &ListedNode) -> Option<String> {
    let node = &state.node;
    match state.state {
        PhaseKind::InService | PhaseKind::Queued | PhaseKind::Adopting => None,
        PhaseKind::Draining | PhaseKind::Drained => Some(format!("node/{node} is uncordoned next")),
        PhaseKind::ShuttingDown
        | PhaseKind::Relocating
        | PhaseKind::AwaitingHost
        | PhaseKind::PoweringOn
        | PhaseKind::Rejoining
        | PhaseKind::Parked => Some(format!(
            "node/{node} is {}: its VM is powered on where it is off, then the node is uncordoned; follow it with: \
             kubectl haulout status {node} --watch",
            state.state
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_request_says_what_the_controller_does_next() {
        for phase in PhaseKind::ALL {
            let state = ListedNode {
                node: "gpu-1".to_owned(),
                state: *phase,
                ..ListedNode::default()
            };
            let next = next(&state);
            let nothing_was_done = ["InService", "Queued", "Adopting"].contains(&phase.name());
            assert_eq!(next.is_none(), nothing_was_done, "{phase}");
            assert_eq!(
                next.is_some_and(|next| next.contains("powered on")),
                !nothing_was_done && !["Draining", "Drained"].contains(&phase.name()),
                "{phase}"
            );
        }
    }
}
