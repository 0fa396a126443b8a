//! `drain`, `resume`, `approve` and `accept`.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde::Serialize;

use super::follow::{RequestFollower, follow, is_cordoned};
use super::nodes::{NodeReading, read_nodes};
use super::out::Output;
use super::question::{self, Consent};
use super::subcommands::PROBLEM_FOUND;
use super::{DrainArgs, Format, NodeArgs, RequestDryRun, ResumeArgs};
use crate::ids::RequestUid;
use crate::inventory::record_of;
use crate::kubernetes::answer::plain;
use crate::kubernetes::client::connect_by;
use crate::kubernetes::reads;
use crate::maintenance::episode::Phase;
use crate::nodemaintenance::api::{self, WriteError};
use crate::nodemaintenance::kind::{
    MaintenanceAction, MaintenanceOrigin, MaintenanceWindow, NodeMaintenance, NodeMaintenanceSpec,
};

/// The kind in the names that are printed, as kubectl prints them.
const NM: &str = "nodemaintenance.haulout.dev";

/// Creates a request, and waits until it is fulfilled.
pub(super) async fn drain(args: DrainArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    ensure!(
        args.target_host.is_none() || args.action == MaintenanceAction::Relocate,
        "--target-host goes with --action Relocate only"
    );
    let before = reads::node(&client, &args.node).await?;
    let settings = args.flags.settings.complete(&client, out).await;
    let selector = &settings.gpu_node_label;
    if let Ok(false) = reads::is_selected(&client, &args.node, selector).await {
        out.progress(&format!(
            "node/{} does not match {selector} (GPU_NODE_LABEL): no controller may serve this request",
            args.node
        ));
    }
    let spec = NodeMaintenanceSpec {
        node_name: args.node.clone(),
        reason: args.reason.clone(),
        requested_by: user(&client, out).await,
        action: args.action,
        target_host: args.target_host.clone(),
        not_before: args.not_before.map(Time),
        window: args.window.as_ref().map(MaintenanceWindow::from),
        ..NodeMaintenanceSpec::default()
    };
    let format = args.flags.output.output;
    if args.dry_run == RequestDryRun::Client {
        let object = api::requested(spec);
        out.show(format, &object, || {
            format!("{NM}/{}- created (dry run)", args.node)
        })?;
        return Ok(0);
    }
    let is_dry = args.dry_run == RequestDryRun::Server;
    if !is_dry && !agreed(&args, out)? {
        out.progress("nothing was requested");
        return Ok(PROBLEM_FOUND);
    }
    let made = match api::request(&client, spec, is_dry).await {
        Err(WriteError::Gone { message, .. }) => bail!(
            "the kind NodeMaintenance is not installed ({message}); install it by: haulout crd | kubectl apply -f -"
        ),
        made => made?,
    };
    let asked = serde_json::json!({
        "name": made.name, "node": args.node, "action": format!("{:?}", args.action),
    });
    let is_for_people = matches!(format, Format::Table | Format::Wide);
    out.show(format, &asked, || {
        let created = match (is_for_people, is_dry) {
            (false, _) => "",
            (true, false) => " created",
            (true, true) => " created (server dry run)",
        };
        format!("{NM}/{}{created}", made.name)
    })?;
    if !args.wait || is_dry {
        return Ok(0);
    }
    let follower = RequestFollower::new(out, is_for_people, &args.node, is_cordoned(&before));
    let wait = follow(&client, &made.name, follower);
    match args.timeout {
        0 => wait.await?,
        seconds => match tokio::time::timeout(Duration::from_secs(seconds), wait).await {
            Ok(ended) => ended?,
            Err(_elapsed) => bail!(
                "timed out waiting for {NM}/{}; the request stays: delete it with `resume {}`",
                made.name,
                args.node
            ),
        },
    }
    Ok(0)
}

/// Whether a person agrees to a request that shuts a VM down.
fn agreed(args: &DrainArgs, out: Output) -> anyhow::Result<bool> {
    let node = plain(&args.node);
    let then = match args.action {
        MaintenanceAction::Drain | MaintenanceAction::HostMaintenance => return Ok(true),
        MaintenanceAction::PowerOff => format!("stays off until `resume {node}`"),
        MaintenanceAction::Relocate => match &args.target_host {
            Some(host) => format!("is moved to {}", plain(host)),
            None => "is moved to another host".to_owned(),
        },
        MaintenanceAction::Reboot => "is powered on again".to_owned(),
    };
    let question = format!("node/{node} is drained, and its VM is shut down and {then}. Continue?");
    match question::ask(args.yes, out, &question)? {
        Consent::Given => Ok(true),
        Consent::Refused => Ok(false),
        Consent::NobodyToAsk => bail!(
            "--action {:?} shuts the VM of node/{node} down: without a terminal, confirm it with --yes",
            args.action
        ),
    }
}

/// The name of the user; `None` if the kube-apiserver does not say it.
async fn user(client: &kube::Client, out: Output) -> Option<String> {
    match reads::user(client).await {
        Ok(name) => Some(name),
        Err(error) => {
            out.progress(&format!("whose request it is, is not known: {error}"));
            None
        }
    }
}

/// The result of `resume`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Resumed {
    node: String,
    deleted: Vec<String>,
    /// Open requests of other users.
    others: Vec<OthersRequest>,
    stays: Vec<String>,
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
    fn words(&self) -> String {
        let by = self.requested_by.as_deref().unwrap_or("an unknown user");
        format!("{NM}/{} by {}", plain(&self.name), plain(by))
    }
}

/// Deletes open requests of a node, and reports what keeps it out of service.
pub(super) async fn resume(args: ResumeArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    let settings = args.flags.settings.complete(&client, out).await;
    let reading = read_nodes(&client, &settings, Some(&args.node)).await?;
    let is_open = |object: &&NodeMaintenance| {
        let status = object.status.as_ref();
        object.spec.origin == MaintenanceOrigin::Request && status.is_none_or(|it| it.ended_at.is_none())
    };
    let open: Vec<&NodeMaintenance> = reading.objects.iter().filter(is_open).collect();
    let me = user(&client, out).await;
    let is_mine = |object: &NodeMaintenance| me.is_some() && object.spec.requested_by == me;
    let (mut taken, mut left): (Vec<&NodeMaintenance>, Vec<&NodeMaintenance>) =
        open.into_iter().partition(|object| match &args.request {
            Some(name) => object.name_any() == *name,
            None => is_mine(object),
        });
    if let (Some(name), true) = (&args.request, taken.is_empty()) {
        bail!("{NM}/{name}: node/{} has no open request of this name", args.node);
    }
    if args.all && agreed_to_all(&args, &left, out)? {
        taken.append(&mut left);
    }
    let mut resumed = Resumed {
        node: args.node.clone(),
        deleted: Vec::new(),
        others: left.into_iter().map(others).collect(),
        stays: stays(&reading, &args.node),
    };
    for object in taken {
        let uid = RequestUid::new(object.uid().unwrap_or_default());
        api::take_back(&client, &object.name_any(), &uid).await?;
        resumed.deleted.push(object.name_any());
    }
    show_resumed(&resumed, &args, out)?;
    let is_without_effect = resumed.deleted.is_empty() && !resumed.others.is_empty();
    Ok(if is_without_effect { PROBLEM_FOUND } else { 0 })
}

fn others(object: &NodeMaintenance) -> OthersRequest {
    OthersRequest {
        name: object.name_any(),
        requested_by: object.spec.requested_by.clone(),
    }
}

/// Whether a person agrees that the requests of other users are deleted.
fn agreed_to_all(args: &ResumeArgs, left: &[&NodeMaintenance], out: Output) -> anyhow::Result<bool> {
    if left.is_empty() {
        return Ok(true);
    }
    let names: Vec<String> = left.iter().map(|object| others(object).words()).collect();
    let names = names.join(", ");
    let question = format!("Delete the requests of other users as well: {names}?");
    match question::ask(args.yes, out, &question)? {
        Consent::Given => Ok(true),
        Consent::Refused => Ok(false),
        Consent::NobodyToAsk => {
            bail!(
                "--all deletes requests of other users ({names}): without a terminal, confirm it with --yes"
            )
        }
    }
}

fn show_resumed(resumed: &Resumed, args: &ResumeArgs, out: Output) -> anyhow::Result<()> {
    let format = args.flags.output.output;
    out.show(format, resumed, || {
        let what = if format == Format::Name { "" } else { " deleted" };
        let names = resumed.deleted.iter();
        let lines = names.map(|name| format!("{NM}/{}{what}", plain(name)));
        lines.collect::<Vec<_>>().join("\n")
    })?;
    if format.is_machine_readable() {
        return Ok(());
    }
    if resumed.deleted.is_empty() && resumed.others.is_empty() {
        out.progress(&format!("node/{} has no open request", plain(&args.node)));
    }
    for other in &resumed.others {
        out.progress(&format!(
            "{} stays: delete it with --request {} or --all",
            other.words(),
            plain(&other.name)
        ));
    }
    for stays in &resumed.stays {
        out.progress(&plain(stays));
    }
    Ok(())
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

/// Annotates the Node, so that the drain for which it waits may begin.
pub(super) async fn approve(args: NodeArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    let settings = args.flags.settings.complete(&client, out).await;
    let reading = read_nodes(&client, &settings, Some(&args.node)).await?;
    let node = plain(&args.node);
    let facts = reading.nodes.first();
    let record = record_of(facts.with_context(|| format!("node/{node}: not there"))?);
    let episode = record
        .episode()
        .with_context(|| format!("node/{node} is not in maintenance, so no drain waits for an approval"))?;
    let phase = episode.phase.at_work();
    ensure!(
        matches!(phase, Phase::Queued | Phase::Drained | Phase::Rejoining),
        "node/{node} is {}, so no drain waits for an approval",
        phase.name()
    );
    reads::approve(&client, &args.node, &episode.id).await?;
    let value = serde_json::json!({"node": args.node, "approved": episode.id});
    let format = args.flags.output.output;
    out.show(format, &value, || {
        let what = if format == Format::Name { "" } else { " approved" };
        format!("node/{}{what}", plain(&args.node))
    })?;
    Ok(0)
}

/// Annotates the Node so that it is left alone, or takes that back.
pub(super) async fn pause(args: NodeArgs, out: Output, skip: bool) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    reads::set_skip(&client, &args.node, skip).await?;
    let value = serde_json::json!({"node": args.node, "paused": skip});
    let format = args.flags.output.output;
    out.show(format, &value, || {
        let what = match (format, skip) {
            (Format::Name, _) => "",
            (_, true) => " paused: no maintenance begins for it until `unpause`",
            (_, false) => " unpaused",
        };
        format!("node/{}{what}", plain(&args.node))
    })?;
    Ok(0)
}

/// Annotates the Node with the GPUs that it has, where these are fewer than before its maintenance.
pub(super) async fn accept(args: NodeArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.flags.access).await?;
    let settings = args.flags.settings.complete(&client, out).await;
    let reading = read_nodes(&client, &settings, Some(&args.node)).await?;
    let facts = reading.nodes.first().context("the Node is not there")?;
    let record = record_of(facts);
    let episode = record.episode().with_context(|| {
        format!(
            "node/{} is not in maintenance, so it waits for no GPUs",
            plain(&args.node)
        )
    })?;
    let gpus = reading.gpus(facts)?;
    let has = |resource: &str| gpus.get(resource).copied().unwrap_or(0);
    let before = episode.gpus_before.iter();
    let lacking: Vec<(&String, u64, u64)> = before
        .map(|(resource, want)| (resource, has(resource), *want))
        .filter(|(_, have, want)| have < want)
        .collect();
    ensure!(
        !lacking.is_empty(),
        "node/{} has all GPUs that it had before its maintenance",
        plain(&args.node)
    );
    let counts = lacking
        .iter()
        .map(|(resource, have, _)| format!("{resource}={have}"));
    let counts = counts.collect::<Vec<_>>().join(",");
    reads::accept_gpus(&client, &args.node, &counts).await?;
    let value = serde_json::json!({"node": args.node, "accepted": counts});
    let format = args.flags.output.output;
    out.show(format, &value, || {
        if format == Format::Name {
            return format!("node/{}", plain(&args.node));
        }
        let fewer = lacking
            .iter()
            .map(|(resource, have, want)| format!("{resource} {have} of {want}"));
        let fewer = fewer.collect::<Vec<_>>().join(", ");
        format!("node/{} accepted with {}", plain(&args.node), plain(&fewer))
    })?;
    Ok(0)
}
