//! Support data as a directory of JSON files.
//!
//! Files contain only data that this program understands. Two texts are copied unchanged: the reason in
//! a NodeMaintenance, and the copy of the record in its status. Foreign annotations and pod specs are
//! omitted; Secrets are not read.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::controller_settings::NodeSettings;
use super::leader::{Leader, LeaderArgs};
use super::out::{Output, json as indented};
use super::plan::plan_path;
use super::reading::{WantedNodes, read_nodes};
use super::{ExportArgs, check};
use crate::app::clock;
use crate::kubernetes::budgets::full_name;
use crate::kubernetes::client::connect_by;
use crate::kubernetes::reads;
use crate::nodemaintenance::kind::{NodeMaintenance, NodeMaintenanceSpec, NodeMaintenanceStatus};
use crate::plan::wave::WavePlan;
use crate::plan::{NAMES_MAX, Plan};

/// A NodeMaintenance without foreign metadata.
#[derive(Serialize)]
struct ExportedObject<'a> {
    name: String,
    created: Option<String>,
    spec: &'a NodeMaintenanceSpec,
    status: Option<&'a NodeMaintenanceStatus>,
}

pub(super) async fn perform(args: ExportArgs, out: Output) -> anyhow::Result<u8> {
    let config = args.settings;
    let client = connect_by(&args.leader.access).await?;
    // Readable by the owner only: it contains names of hosts, nodes and pods.
    private_dir()
        .create(&args.to)
        .with_context(|| format!("making the directory {}", args.to.display()))?;
    let mut missing: Map<String, Value> = Map::new();
    let mut miss = |what: &str, error: &anyhow::Error| {
        missing.insert(what.to_owned(), json!(format!("{error:#}")));
    };

    let settings: Map<String, Value> = config
        .describe()
        .iter()
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    file(&args.to, "settings", &settings)?;
    let kubernetes = reads::version(&client).await.ok();
    let about = json!({
        "haulout": env!("CARGO_PKG_VERSION"), "kubernetes": kubernetes, "exportedAt": format!("{:.0}", clock()),
    });
    file(&args.to, "about", &about)?;

    let mut names: Vec<String> = Vec::new();
    match read_nodes(&client, &NodeSettings::of(&config), WantedNodes::All).await {
        Ok(reading) => {
            let states = reading.states();
            names.extend(states.iter().map(|state| state.node.clone()));
            file(&args.to, "nodes", &states)?;
            file(&args.to, "nodemaintenances", &exported(&reading.objects))?;
        }
        Err(error) => miss("nodes", &error),
    }
    file(&args.to, "checks", &check::all(&config, client.clone()).await)?;
    let leader = LeaderArgs {
        status_token_file: config.status_page.status_token_file.clone(),
        address: args.leader,
    };
    match leader.find(out).await {
        Ok(leader) => {
            let plans = plans_of(&leader, &names, |error| miss("some plans", error)).await;
            file(&args.to, "plans", &plans)?;
        }
        Err(error) => miss("plans", &error),
    }
    match reads::budgets(&client).await {
        Ok(budgets) => file(
            &args.to,
            "budgets",
            &budgets.iter().map(exported_budget).collect::<Vec<_>>(),
        )?,
        Err(error) => miss("budgets", &error.into()),
    }
    file(&args.to, "missing", &missing)?;
    out.result(&args.to.display().to_string())?;
    out.progress("it contains names of hosts, nodes, VMs and pods, and no password, token or key; review it before you pass it on");
    Ok(0)
}

/// The plan of each node, as if those of one question left at the same time. The first error ends it.
async fn plans_of(leader: &Leader, names: &[String], failed: impl FnOnce(&anyhow::Error)) -> Vec<Plan> {
    let mut plans: Vec<Plan> = Vec::new();
    for names in names.chunks(NAMES_MAX) {
        match leader.ask::<WavePlan>(&plan_path(names)).await {
            Ok(more) => plans.extend(more.plans),
            Err(error) => {
                failed(&error);
                break;
            }
        }
    }
    plans
}

fn exported(objects: &[NodeMaintenance]) -> Vec<ExportedObject<'_>> {
    let objects = objects.iter().map(|object| ExportedObject {
        name: object.name_any(),
        created: object.creation_timestamp().map(|time| time.0.to_string()),
        spec: &object.spec,
        status: object.status.as_ref(),
    });
    objects.collect()
}

fn exported_budget(budget: &PodDisruptionBudget) -> Value {
    let status = budget.status.clone().unwrap_or_default();
    json!({
        "name": full_name(budget),
        "disruptionsAllowed": status.disruptions_allowed,
        "desiredHealthy": status.desired_healthy,
        "currentHealthy": status.current_healthy,
        "expectedPods": status.expected_pods,
    })
}

fn file(directory: &Path, name: &str, value: &impl Serialize) -> anyhow::Result<()> {
    let path = directory.join(format!("{name}.json"));
    let text = indented(value)?;
    let mut file = private_file()
        .write(true)
        .create_new(true)
        .open(&path)
        .with_context(|| format!("making {}", path.display()))?;
    writeln!(file, "{text}").with_context(|| format!("writing {}", path.display()))
}

#[cfg(unix)]
fn private_dir() -> DirBuilder {
    use std::os::unix::fs::DirBuilderExt as _;

    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

#[cfg(unix)]
fn private_file() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;

    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// On Windows a new directory has the rights of the one around it, which in a user's profile is private.
#[cfg(not(unix))]
fn private_dir() -> DirBuilder {
    DirBuilder::new()
}

#[cfg(not(unix))]
fn private_file() -> OpenOptions {
    OpenOptions::new()
}
