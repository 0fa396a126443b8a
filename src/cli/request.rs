//! `drain`, `resume` and `approve`.

use std::time::Duration;

use anyhow::{bail, ensure};
use kube::ResourceExt as _;
use serde::Serialize;

use super::follow::{RequestFollower, follow, is_cordoned};
use super::nodes::{NodeReading, read_nodes};
use super::out::Output;
use super::{DrainArgs, Format, NodeArgs};
use crate::ids::RequestUid;
use crate::kubernetes::answer::plain;
use crate::kubernetes::client::connect_by;
use crate::kubernetes::reads;
use crate::nodemaintenance::api::{self, WriteError};
use crate::nodemaintenance::kind::{MaintenanceAction, MaintenanceOrigin, NodeMaintenanceSpec};

/// Creates a request, and waits until it is fulfilled.
pub(super) async fn drain(args: DrainArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    ensure!(
        args.target_host.is_none() || args.action == MaintenanceAction::Relocate,
        "--target-host goes with --action Relocate only"
    );
    let before = reads::node(&client, &args.node).await?;
    let spec = NodeMaintenanceSpec {
        node_name: args.node.clone(),
        reason: args.reason.clone(),
        action: args.action,
        target_host: args.target_host.clone(),
        ..NodeMaintenanceSpec::default()
    };
    let made = match api::request(&client, spec).await {
        Err(WriteError::Gone { message, .. }) => bail!(
            "the kind NodeMaintenance is not installed ({message}); install it by: haulout crd | kubectl apply -f -"
        ),
        made => made?,
    };
    let asked = serde_json::json!({
        "name": made.name, "node": args.node, "action": format!("{:?}", args.action),
    });
    let format = args.flags.output.output;
    let is_for_people = matches!(format, Format::Table | Format::Wide);
    out.show(format, &asked, || {
        let created = if is_for_people { " created" } else { "" };
        format!("nodemaintenance.haulout.dev/{}{created}", made.name)
    })?;
    if !args.wait {
        return Ok(0);
    }
    let follower = RequestFollower::new(out, is_for_people, &args.node, is_cordoned(&before));
    let wait = follow(&client, &made.name, follower);
    match args.timeout {
        0 => wait.await?,
        seconds => match tokio::time::timeout(Duration::from_secs(seconds), wait).await {
            Ok(ended) => ended?,
            Err(_elapsed) => bail!(
                "timed out waiting for nodemaintenance.haulout.dev/{}; the request stays: delete it with `resume {}`",
                made.name,
                args.node
            ),
        },
    }
    Ok(0)
}

/// The result of `resume`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Resumed {
    node: String,
    deleted: Vec<String>,
    stays: Vec<String>,
}

/// Deletes the open requests of a node, and reports what keeps it out of service.
pub(super) async fn resume(args: NodeArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    let reading = read_nodes(&client, &args.flags.settings, Some(&args.node)).await?;
    let mut resumed = Resumed {
        node: args.node.clone(),
        deleted: Vec::new(),
        stays: stays(&reading, &args.node),
    };
    for object in &reading.objects {
        let is_over = object
            .status
            .as_ref()
            .is_some_and(|status| status.ended_at.is_some());
        if object.spec.origin != MaintenanceOrigin::Request || is_over {
            continue;
        }
        let uid = RequestUid::new(object.uid().unwrap_or_default());
        api::take_back(&client, &object.name_any(), &uid).await?;
        resumed.deleted.push(object.name_any());
    }
    let format = args.flags.output.output;
    out.show(format, &resumed, || {
        let what = if format == Format::Name { "" } else { " deleted" };
        let names = resumed.deleted.iter();
        let lines = names.map(|name| format!("nodemaintenance.haulout.dev/{}{what}", plain(name)));
        lines.collect::<Vec<_>>().join("\n")
    })?;
    if format.is_machine_readable() {
        return Ok(0);
    }
    if resumed.deleted.is_empty() {
        out.progress(&format!("node/{} has no open request", plain(&args.node)));
    }
    for stays in &resumed.stays {
        out.progress(&plain(stays));
    }
    Ok(0)
}

/// What keeps the node out of service without requests.
fn stays(reading: &NodeReading, node: &str) -> Vec<String> {
    let states = reading.states();
    let Some(state) = states.iter().find(|state| state.node == node) else {
        return Vec::new();
    };
    let mut stays = Vec::new();
    if let Some(host) = state.host.as_ref().filter(|_| !state.by_request) {
        let why = format!("ESXi host {host} is in maintenance, or on its way there");
        stays.push(format!("node/{node} stays {}: {why}", state.state));
    }
    if let Some(by) = state.cordoned_by.as_ref().filter(|by| *by != "Haulout") {
        stays.push(format!("node/{node} stays cordoned: by {by}"));
    }
    stays
}

/// Annotates the Node, so that its next drain may begin.
pub(super) async fn approve(args: NodeArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    reads::approve(&client, &args.node).await?;
    let value = serde_json::json!({"node": args.node, "approved": true});
    let format = args.flags.output.output;
    out.show(format, &value, || {
        let what = if format == Format::Name { "" } else { " approved" };
        format!("node/{}{what}", plain(&args.node))
    })?;
    Ok(0)
}
