//! `drain`: creates requests, and follows them.

use std::time::Duration;

use anyhow::{bail, ensure};
use futures::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

use super::controller_settings::NodeSettings;
use super::follow::{RequestFollower, follow, is_cordoned};
use super::out::{Output, PROBLEM_FOUND};
use super::question;
use super::selection::show_values;
use super::{DrainArgs, Format, RequestDryRun};
use crate::kubernetes::answer::plain;
use crate::kubernetes::reads;
use crate::nodemaintenance::api::{self, WriteError};
use crate::nodemaintenance::kind::{MaintenanceAction, MaintenanceWindow, NodeMaintenanceSpec};

/// The kind in the names that are printed, as kubectl prints them.
pub(super) const NM: &str = "nodemaintenance.haulout.dev";

/// How many requests are followed at the same time. Each is read twice a second.
const FOLLOWED_MAX: usize = 50;

#[derive(Debug, Serialize)]
struct CreatedRequest {
    name: String,
    node: String,
    action: String,
    #[serde(skip)]
    was_cordoned: bool,
}

/// Creates requests, and waits until they are fulfilled.
pub(super) async fn drain(args: DrainArgs, out: Output) -> anyhow::Result<u8> {
    ensure!(
        args.target_host.is_none() || args.action == MaintenanceAction::Relocate,
        "--target-host goes with --action Relocate only"
    );
    let (client, settings) = args.flags.connect(out).await?;
    let names = args.nodes.names(&client, &settings).await?;
    ensure!(
        !args.wait || names.len() <= FOLLOWED_MAX,
        "{} nodes are too many to wait for: at most {FOLLOWED_MAX}, or set --wait=false",
        names.len()
    );
    let spec = NodeMaintenanceSpec {
        reason: args.reason.clone(),
        action: args.action,
        target_host: args.target_host.clone(),
        not_before: args.not_before.map(Time),
        window: args.window.as_ref().map(MaintenanceWindow::from),
        requested_by: user(&client, out).await,
        ..NodeMaintenanceSpec::default()
    };
    let mut cordoned = Vec::new();
    for name in &names {
        cordoned.push(is_cordoned(&reads::node(&client, name).await?));
        warn_if_unselected(&client, &settings, name, out).await;
    }
    if args.dry_run == RequestDryRun::Client {
        return show_objects(&names, &spec, &args, out);
    }
    if args.dry_run == RequestDryRun::None && !agreed(&args, &names, out)? {
        out.progress("nothing was requested");
        return Ok(PROBLEM_FOUND);
    }
    let mut created = Vec::new();
    for (name, was_cordoned) in names.iter().zip(cordoned) {
        let spec = NodeMaintenanceSpec {
            node_name: name.clone(),
            ..spec.clone()
        };
        let made = create(&client, spec, &args).await?;
        let request = CreatedRequest {
            name: made,
            node: name.clone(),
            action: format!("{:?}", args.action),
            was_cordoned,
        };
        show_created(&request, &args, out)?;
        created.push(request);
    }
    show_values(&created, names.len(), (args.flags.output.output, out))?;
    if args.wait && args.dry_run == RequestDryRun::None {
        wait_for(&client, &created, &args, out).await?;
    }
    Ok(0)
}

/// Says that no controller may serve a request for this node.
async fn warn_if_unselected(client: &kube::Client, settings: &NodeSettings, node: &str, out: Output) {
    let selector = &settings.gpu_node_label;
    if let Ok(false) = reads::is_selected(client, node, selector).await {
        let text = format!(
            "node/{node} does not match {selector} (GPU_NODE_LABEL): no controller may serve this request"
        );
        out.progress(&plain(&text));
    }
}

/// Shows what would be created.
fn show_objects(
    names: &[String],
    spec: &NodeMaintenanceSpec,
    args: &DrainArgs,
    out: Output,
) -> anyhow::Result<u8> {
    let format = args.flags.output.output;
    let object = |name: &String| {
        api::requested(NodeMaintenanceSpec {
            node_name: name.clone(),
            ..spec.clone()
        })
    };
    if format.is_machine_readable() {
        let objects: Vec<_> = names.iter().map(object).collect();
        show_values(&objects, names.len(), (format, out))?;
    } else {
        for name in names {
            out.result(&format!("{NM}/{}- created (dry run)", plain(name)))?;
        }
    }
    Ok(0)
}

/// Creates a request, and returns its name.
async fn create(
    client: &kube::Client,
    spec: NodeMaintenanceSpec,
    args: &DrainArgs,
) -> anyhow::Result<String> {
    match api::request(client, spec, args.dry_run == RequestDryRun::Server).await {
        Err(WriteError::Gone { message, .. }) => bail!(
            "the kind NodeMaintenance is not installed ({message}); install it by: haulout crd | kubectl apply -f -"
        ),
        made => Ok(made?.name),
    }
}

fn show_created(request: &CreatedRequest, args: &DrainArgs, out: Output) -> anyhow::Result<()> {
    let words = match (args.flags.output.output, args.dry_run) {
        (Format::Json | Format::Yaml, _) => return Ok(()),
        (Format::Name, _) => "",
        (Format::Table | Format::Wide, RequestDryRun::Server) => " created (server dry run)",
        (Format::Table | Format::Wide, RequestDryRun::None | RequestDryRun::Client) => " created",
    };
    out.result(&plain(&format!("{NM}/{}{words}", request.name)))
}

/// Follows requests until all are fulfilled. The failure of one does not end the others.
async fn wait_for(
    client: &kube::Client,
    created: &[CreatedRequest],
    args: &DrainArgs,
    out: Output,
) -> anyhow::Result<()> {
    let is_for_people = matches!(args.flags.output.output, Format::Table | Format::Wide);
    let all = created.iter().map(|request| {
        let follower = RequestFollower::new(out, is_for_people, &request.node, request.was_cordoned);
        async move {
            let ended = within(args.timeout, follow(client, &request.name, follower)).await;
            ended.unwrap_or_else(|| {
                bail!(
                    "timed out waiting for {NM}/{}; the request stays: delete it with `resume {}`",
                    request.name,
                    request.node
                )
            })
        }
    });
    let mut failed = Vec::new();
    for ended in join_all(all).await {
        failed.extend(ended.err());
    }
    let Some(last) = failed.pop() else { return Ok(()) };
    for error in failed {
        out.progress(&plain(&format!("{error:#}")));
    }
    Err(last)
}

/// `None` after `seconds`; 0 is no limit.
async fn within<T>(seconds: u64, wait: impl Future<Output = T>) -> Option<T> {
    match seconds {
        0 => Some(wait.await),
        seconds => tokio::time::timeout(Duration::from_secs(seconds), wait)
            .await
            .ok(),
    }
}

/// Whether a person agrees to requests that shut VMs down.
fn agreed(args: &DrainArgs, names: &[String], out: Output) -> anyhow::Result<bool> {
    let nodes = format!("node/{}", plain(&names.join(", node/")));
    let is_one = names.len() == 1;
    let then = match args.action {
        MaintenanceAction::Drain | MaintenanceAction::HostMaintenance => return Ok(true),
        MaintenanceAction::PowerOff if is_one => format!("stays off until `resume {}`", plain(&names[0])),
        MaintenanceAction::PowerOff => "stays off until `resume`".to_owned(),
        MaintenanceAction::Relocate => match &args.target_host {
            Some(host) => format!("is moved to {}", plain(host)),
            None => "is moved to another host".to_owned(),
        },
        MaintenanceAction::Reboot => "is powered on again".to_owned(),
    };
    let question = if is_one {
        format!("{nodes} is drained, and its VM is shut down and {then}. Continue?")
    } else {
        format!("{nodes} are drained, and the VM of each is shut down and {then}. Continue?")
    };
    let what = format!("--action {:?} shuts the VM of {nodes} down", args.action);
    question::agreed(args.yes, out, &question, &what)
}

/// The name of the user; `None` if the kube-apiserver does not say it.
pub(super) async fn user(client: &kube::Client, out: Output) -> Option<String> {
    match reads::user(client).await {
        Ok(name) => Some(name),
        Err(error) => {
            out.progress(&format!("whose request it is, is not known: {error}"));
            None
        }
    }
}
