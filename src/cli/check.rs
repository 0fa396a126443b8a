//! Checks all requirements of Haulout, with a hint for each problem.

mod inventory;
mod machines;
mod privileges;

use std::pin::pin;

use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::Serialize;
use tracing::debug;

use super::out::{Items, Output, PROBLEM_FOUND, Paint, Tone};
use super::{CheckArgs, Format};
use crate::config::{Config, LeaderElection, without_password};
use crate::foreign_maintenance::ForeignApi;
use crate::ids::NodeName;
use crate::inventory::Forecast;
use crate::kubernetes::answer::plain;
use crate::kubernetes::budgets::{full_name, is_never_satisfied, selects};
use crate::kubernetes::client::{KubeConnectError, connect_by, connect_other};
use crate::kubernetes::drain::{self, DrainSettings};
use crate::kubernetes::pods::verdict;
use crate::kubernetes::rights::Right;
use crate::kubernetes::{kubelet_config, reads, rights};
use crate::maintenance::decide::dead_node;
use crate::maintenance::episode::Record;
use crate::maintenance::observed::{BoundVm, PowerState};
use crate::maintenance::waiting::{WaitingOn, few};
use crate::nodemaintenance;
use inventory::ClusterView;

/// How many kubelets are asked at the same time.
const KUBELET_READS: usize = 8;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CheckResult {
    pub(super) section: &'static str,
    pub(super) mark: CheckMark,
    pub(super) what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum CheckMark {
    Good,
    /// Haulout works, but something is missing or will delay it.
    Warning,
    /// Haulout does not work.
    Missing,
}

/// The results of a section.
struct Section {
    name: &'static str,
    checks: Vec<CheckResult>,
}

impl Section {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            checks: Vec::new(),
        }
    }

    fn good(&mut self, what: impl Into<String>) {
        self.add(CheckMark::Good, what.into(), None);
    }

    fn warn(&mut self, what: impl Into<String>, hint: &str) {
        self.problem(false, what, hint);
    }

    fn missing(&mut self, what: impl Into<String>, hint: &str) {
        self.problem(true, what, hint);
    }

    /// What is missing if it `is_vital`, and a warning if not.
    fn problem(&mut self, is_vital: bool, what: impl Into<String>, hint: &str) {
        let mark = if is_vital {
            CheckMark::Missing
        } else {
            CheckMark::Warning
        };
        self.add(mark, what.into(), Some(hint));
    }

    fn add(&mut self, mark: CheckMark, what: String, hint: Option<&str>) {
        self.checks.push(CheckResult {
            section: self.name,
            mark,
            what,
            hint: hint.map(str::to_owned),
        });
    }
}

pub(super) async fn perform(args: CheckArgs, out: Output) -> anyhow::Result<u8> {
    let config = args.settings;
    let checks = match connect_by(&args.access).await {
        Ok(client) => all(&config, client).await,
        Err(error) => {
            let mut section = Section::new("Kubernetes");
            section.missing(error.to_string(), "set --kubeconfig or KUBECONFIG");
            section.checks
        }
    };
    let format = args.output.output;
    out.print_value(format, &Items { items: &checks }, || {
        render(&checks, format == Format::Wide, out.paint())
    })?;
    let is_missing = checks.iter().any(|check| check.mark == CheckMark::Missing);
    Ok(if is_missing { PROBLEM_FOUND } else { 0 })
}

/// All checks.
pub(super) async fn all(config: &Config, client: kube::Client) -> Vec<CheckResult> {
    let (mut checks, is_readable) = kubernetes(config, &client).await;
    if !is_readable {
        // The Nodes determine the VMs to check.
        let mut section = Section::new("vCenter");
        section.missing(
            "not checked, because the Nodes cannot be read",
            "see Kubernetes above",
        );
        checks.extend(section.checks);
        return checks;
    }
    let (of_vcenter, view) = vcenter(config, client).await;
    checks.extend(of_vcenter);
    if let Some(mut view) = view {
        checks.extend(nodes(config, &mut view).await);
        view.close().await;
    }
    checks
}

/// The checks of Kubernetes, and whether Nodes can be read.
async fn kubernetes(config: &Config, client: &kube::Client) -> (Vec<CheckResult>, bool) {
    let mut section = Section::new("Kubernetes");
    match reads::version(client).await {
        Ok(version) => section.good(format!("the kube-apiserver answers ({version})")),
        Err(error) => {
            section.missing(
                error.to_string(),
                "check that the address in the kubeconfig is right and reachable from here",
            );
            return (section.checks, false);
        }
    }
    for needed in rights::NEEDED {
        right(client, needed, None, &mut section).await;
    }
    lease(config, client, &mut section).await;
    crd_yaml(client, &mut section).await;
    for api in &config.foreign_node_maintenances.0 {
        foreign_maintenances(client, *api, &mut section).await;
    }
    let nodes = reads::nodes(client, &config.gpu_node_label).await;
    let is_readable = nodes.is_ok();
    machines::check(config, client, nodes.as_deref().unwrap_or_default(), &mut section).await;
    match nodes {
        Ok(nodes) if nodes.is_empty() => section.missing(
            format!("no node matches {}", config.gpu_node_label),
            "set GPU_NODE_LABEL to a label that your GPU nodes carry",
        ),
        Ok(nodes) => section.good(format!(
            "nodes that match {}: {}",
            config.gpu_node_label,
            nodes.len()
        )),
        Err(error) => section.missing(error.to_string(), "see the rights above"),
    }
    (section.checks, is_readable)
}

/// The right to the Lease, in its cluster.
async fn lease(config: &Config, client: &kube::Client, section: &mut Section) {
    let Some(namespace) = lease_namespace(config) else {
        return;
    };
    let Some(path) = &config.leadership.lease_kubeconfig else {
        return right(client, &rights::LEASES, Some(&namespace), section).await;
    };
    match connect_other("LEASE_KUBECONFIG", path).await {
        Ok(leases) => right(&leases, &rights::LEASES, Some(&namespace), section).await,
        Err(error @ KubeConnectError::InCluster(_)) => section.warn(
            format!("the right to the Lease is not checked: {error}"),
            "run it in the pod: kubectl -n haulout exec deployment/haulout -- /haulout check",
        ),
        Err(error) => section.missing(
            error.to_string(),
            "without it, Haulout does not start: correct it, or unset LEASE_KUBECONFIG",
        ),
    }
}

/// The namespace of the Lease, with leader election and if known here.
fn lease_namespace(config: &Config) -> Option<String> {
    match config.leadership.election {
        LeaderElection::Off => None,
        LeaderElection::On | LeaderElection::Auto => config
            .leadership
            .lease_namespace
            .clone()
            .or_else(|| std::env::var("POD_NAMESPACE").ok())
            .filter(|namespace| !namespace.is_empty()),
    }
}

async fn right(client: &kube::Client, right: &Right, namespace: Option<&str>, section: &mut Section) {
    let mut on = match right.group {
        "" => right.resource.to_owned(),
        group => format!("{} in {group}", right.resource),
    };
    if let Some(namespace) = namespace {
        on.push_str(&format!(", namespace {namespace}"));
    }
    let hint = "apply the rights in docs/install/kubernetes-rights.md, and bind them to the user that you check; --as checks another user";
    match rights::lacking(client, right, namespace).await {
        Ok(lacking) if lacking.is_empty() => section.good(format!("may {} {on}", right.verbs.join(", "))),
        Ok(lacking) => {
            let what = format!("may not {} {on} (needed for {})", lacking.join(", "), right.why);
            section.problem(right.is_vital, what, hint);
        }
        Err(error) => section.warn(error.to_string(), "try again"),
    }
}

async fn crd_yaml(client: &kube::Client, section: &mut Section) {
    let apply = "install it by: haulout crd | kubectl apply -f -";
    match nodemaintenance::read::definition(client).await {
        Ok(installed) if nodemaintenance::read::is_ours(&installed) => {
            section.good("the kind NodeMaintenance is installed, of this version");
        }
        Ok(_) => section.warn("the kind NodeMaintenance is installed, of another version", apply),
        Err(error) if error.is_absent() => section.warn(
            "the kind NodeMaintenance is not installed: no requests of people, no second copy of a record",
            apply,
        ),
        Err(error) => section.warn(
            error.to_string(),
            "requires the right to get customresourcedefinitions, which the controller itself does not need",
        ),
    }
}

/// Checks the rights for the NodeMaintenances of another project, and whether they can be read.
async fn foreign_maintenances(client: &kube::Client, api: ForeignApi, section: &mut Section) {
    for needed in &rights::foreign_maintenances(api) {
        right(client, needed, None, section).await;
    }
    let kind = format!("the kind NodeMaintenance of {}", api.group());
    match nodemaintenance::foreign::all(client, api).await {
        Ok(Some(_)) => section.good(format!("{kind} is installed")),
        Ok(None) => section.warn(
            format!("{kind} is not installed: there are no requests of it"),
            &format!("install it, or remove {api} from FOREIGN_NODE_MAINTENANCES"),
        ),
        Err(error) => section.warn(error.to_string(), "see the rights above"),
    }
}

async fn vcenter(config: &Config, client: kube::Client) -> (Vec<CheckResult>, Option<ClusterView>) {
    let mut section = Section::new("vCenter");
    let name = without_password(&config.vcenter_host);
    let pinned = config.vcenter_thumbprint.is_some();
    if !config.verifies_tls() && !pinned {
        section.warn(
            "its certificate is not verified: anybody on the network path can read the password",
            "set VCENTER_CA_BUNDLE and remove VCENTER_TLS_VERIFY=false",
        );
    }
    let view = match ClusterView::read(config, client).await {
        Ok(view) => view,
        Err(error) => {
            section.missing(
                format!("{error:#}"),
                "see VCENTER_HOST, VCENTER_USER and its password, and VCENTER_CA_BUNDLE and VCENTER_THUMBPRINT if the certificate is named",
            );
            return (section.checks, None);
        }
    };
    if config.verifies_tls() || pinned {
        section.good(format!("{name} has a trusted certificate"));
    }
    section.good(format!("{name} opened a session and sent its inventory"));
    privileges::check(&view, config, &mut section).await;
    privileges::beyond(&view, config, &mut section).await;
    (section.checks, Some(view))
}

async fn nodes(config: &Config, view: &mut ClusterView) -> Vec<CheckResult> {
    let mut section = Section::new("Nodes");
    let names = view.inventory.nodes();
    let forecasts = view.inventory.forecast_each_host();
    let is_no_vm = |forecast: &&Forecast| forecast.vm == BoundVm::NoVm;
    let (without_vm, others): (Vec<&Forecast>, Vec<&Forecast>) = forecasts.iter().partition(is_no_vm);
    for forecast in &others {
        of_node(forecast, &mut section);
    }
    of_nodes_without_vm(&without_vm, others.is_empty(), &mut section);
    of_kubelets(config, &view.client, &others, &mut section).await;
    match reads::budgets(&view.client).await {
        Ok(budgets) => of_budgets(view, &names, &budgets, &mut section).await,
        Err(error) => section.warn(
            error.to_string(),
            "requires the right to list poddisruptionbudgets",
        ),
    }
    section.checks
}

/// Finds kubelets that delay a shutdown for longer than the guest gets. Most people may not ask them, so that is no warning.
async fn of_kubelets(config: &Config, client: &kube::Client, nodes: &[&Forecast], section: &mut Section) {
    let lacking = rights::lacking(client, &rights::KUBELETS, None).await;
    if !lacking.is_ok_and(|lacking| lacking.is_empty()) {
        return;
    }
    let reads = nodes.iter().map(async |forecast| {
        let node = &forecast.node;
        (node, kubelet_config::shutdown_grace(client, node).await)
    });
    let mut reads = pin!(stream::iter(reads).buffered(KUBELET_READS));
    while let Some((node, grace)) = reads.next().await {
        let timeout = config.guest_shutdown_timeout;
        match grace {
            Ok(grace) if grace > timeout => section.warn(
                format!(
                    "{node}: its kubelet delays a shutdown by up to {} s (shutdownGracePeriod), and its power is cut after {} s",
                    grace.as_secs(),
                    timeout.as_secs()
                ),
                "raise GUEST_SHUTDOWN_TIMEOUT_SECONDS above it",
            ),
            Ok(_) => {}
            Err(error) => debug!("shutdownGracePeriod of the kubelet of {node} is not checked: {error}"),
        }
    }
}

/// Nodes that are no VMs are left alone. Where there are no others, Haulout has nothing to do.
fn of_nodes_without_vm(nodes: &[&Forecast], are_all: bool, section: &mut Section) {
    if nodes.is_empty() {
        return;
    }
    let names: Vec<&str> = nodes.iter().map(|forecast| forecast.node.as_str()).collect();
    let what = format!(
        "no VM that vCenter knows, and left alone ({}): {}",
        names.len(),
        few(&names)
    );
    let hint = "nothing is to be done for physical machines; for a VM, see spec.providerID and status.nodeInfo.systemUUID of the \
                Node against the VM's BIOS UUID, whether the user may read the VM, or NODE_BINDING";
    section.problem(are_all, what, hint);
}

/// The checks of a node and its VM.
fn of_node(forecast: &Forecast, section: &mut Section) {
    let node = &forecast.node;
    let bind = "see spec.providerID and status.nodeInfo.systemUUID of the Node against the VM's BIOS UUID, or NODE_BINDING";
    match forecast.vm.or_wait() {
        Ok(vm) => {
            let name = forecast.vm_name.clone().unwrap_or_else(|| vm.moref.to_string());
            section.good(format!("{node} is VM {name} on {}", vm.host_name));
            let seen = forecast
                .seen
                .as_ref()
                .filter(|_| vm.power == Some(PowerState::On));
            if let Some(reason) = seen.and_then(|seen| dead_node(seen, vm, None)) {
                section.missing(
                    format!("{node}: {reason}"),
                    "delete the Node that is an earlier name of the machine, or correct the UUID that the other one reports",
                );
            }
            if vm.power == Some(PowerState::On) && vm.tools_running == Some(false) {
                section.warn(
                    format!("{node}: VMware Tools do not run in VM {name}"),
                    "install open-vm-tools; without them the power is cut without a guest shutdown",
                );
            }
            if vm.evacuation_power_off {
                section.warn(
                    format!("{node}: vCenter itself powers VM {name} off when its host enters maintenance"),
                    "remove maintenance.vm.evacuation.poweroff from its extraConfig, or the tag of the compute policy from the \
                     VM: it races the drain",
                );
            }
        }
        Err(wait) => {
            let hint = if wait == WaitingOn::VmLookup {
                "check that the user may read the VM"
            } else {
                bind
            };
            section.missing(format!("{node}: {}", wait.sentence()), hint);
        }
    }
    if let Record::Unreadable { why } = &forecast.record {
        section.missing(
            format!("{node}: its record cannot be read: {why}"),
            "check its annotations and remove wrong ones",
        );
    }
}

/// Finds budgets that would block a drain forever.
async fn of_budgets(
    view: &ClusterView,
    names: &[NodeName],
    budgets: &[PodDisruptionBudget],
    section: &mut Section,
) {
    let hopeless: Vec<&PodDisruptionBudget> = budgets
        .iter()
        .filter(|budget| is_never_satisfied(budget))
        .collect();
    if hopeless.is_empty() {
        section.good("every PodDisruptionBudget can allow a disruption");
        return;
    }
    let mut found = false;
    for node in names {
        let pods = match drain::list(&view.client, node, &DrainSettings::default()).await {
            Ok(pods) => pods,
            Err(error) => {
                section.warn(error.to_string(), "see the rights above");
                continue;
            }
        };
        for budget in &hopeless {
            let held = pods
                .iter()
                .filter(|pod| verdict(pod).blocks_drain() && selects(budget, pod));
            let held: Vec<&str> = held.filter_map(|pod| pod.metadata.name.as_deref()).collect();
            if !held.is_empty() {
                found = true;
                section.warn(
                    format!(
                        "{node}: PodDisruptionBudget {} can never allow a disruption, and blocks {}",
                        full_name(budget),
                        held.join(", ")
                    ),
                    "allow one healthy pod fewer than there are, or add a replica",
                );
            }
        }
    }
    if !found {
        section.good("no PodDisruptionBudget blocks a pod of these nodes forever");
    }
}

/// Renders checks. A hint is below a problem, or beside it in wide output.
pub(super) fn render(checks: &[CheckResult], wide: bool, paint: Paint) -> String {
    let mut text = String::new();
    let mut section = "";
    for check in checks {
        if check.section != section {
            section = check.section;
            let gap = if text.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{gap}{section}\n"));
        }
        let (mark, tone) = match check.mark {
            CheckMark::Good => ("√", Tone::Good),
            CheckMark::Warning => ("‼", Tone::Busy),
            CheckMark::Missing => ("×", Tone::Bad),
        };
        text.push_str(&format!("{} {}", paint.apply(tone, mark), plain(&check.what)));
        if let Some(hint) = &check.hint {
            let lead = if wide { "; hint: " } else { "\n    hint: " };
            text.push_str(&format!("{lead}{}", plain(hint)));
        }
        text.push('\n');
    }
    let count = |mark: CheckMark| checks.iter().filter(|check| check.mark == mark).count();
    text.push_str(&format!(
        "\n{} √   {} ‼   {} ×\n",
        count(CheckMark::Good),
        count(CheckMark::Warning),
        count(CheckMark::Missing)
    ));
    text
}
