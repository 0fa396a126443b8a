//! The peers of the demo with real parts.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use haulout_lab::fixture::{Fixture, label};
use haulout_lab::jaeger::Jaeger;
use haulout_lab::kube::Kube;
use haulout_lab::kubelet::EXITS_AFTER_MS;
use haulout_lab::vcenter::{self, EntryKind};
use haulout_lab::wait::until;
use haulout_show::peers::{Cast, Click, Entry, Host, Inventory, Member, Peers, Vm};
use haulout_show::traces::{Span, TraceReceiver};
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::sync::Mutex;

use super::datacenter;
use crate::say;
use crate::tracing_ui::TracingUi;
use crate::up;

/// The duration of a long poll of the journal.
const POLL: Duration = Duration::from_secs(5);
/// How long a budget may take until it is counted.
const COUNTED: Duration = Duration::from_secs(45);

/// What takes the traces.
pub(crate) enum TraceCollector {
    /// The demo itself.
    Receiver(TraceReceiver),
    /// Jaeger, which forwards them to a tracing UI.
    Jaeger(Box<(Jaeger, Mutex<TracingUi>)>),
}

impl TraceCollector {
    pub(crate) async fn start(with_ui: bool) -> anyhow::Result<Self> {
        if !with_ui {
            return Ok(Self::Receiver(TraceReceiver::start().await?));
        }
        let ui = TracingUi::start().await?;
        Ok(Self::Jaeger(Box::new((ui.start_jaeger().await?, Mutex::new(ui)))))
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Receiver(_) => "a receiver of traces",
            Self::Jaeger(_) => "Jaeger",
        }
    }

    /// The settings of Haulout.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let endpoint = |url: String| ("OTEL_EXPORTER_OTLP_ENDPOINT", url);
        match self {
            Self::Receiver(receiver) => vec![endpoint(receiver.endpoint().to_owned())],
            Self::Jaeger(both) => {
                let (jaeger, ui) = &**both;
                let ui = ui.try_lock().ok().and_then(|ui| ui.template());
                let link = ui.unwrap_or_else(|| format!("{}/api/traces/{{trace_id}}", jaeger.query()));
                vec![endpoint(jaeger.otlp_http()), ("TRACE_UI_URL_TEMPLATE", link)]
            }
        }
    }
}

/// The real parts.
pub(crate) struct Real<'a> {
    kube: &'a Kube,
    fixture: &'a Fixture<'a>,
    collector: TraceCollector,
    /// Haulout's program.
    binary: &'a Path,
    cast: Cast,
}

impl<'a> Real<'a> {
    pub(crate) fn new(
        kube: &'a Kube,
        fixture: &'a Fixture<'a>,
        collector: TraceCollector,
        binary: &'a Path,
    ) -> Self {
        let member = |vm: &str, home: &str| Member {
            vm: vm.to_owned(),
            node: fixture.node_name(vm),
            home: home.to_owned(),
        };
        let cast = Cast {
            datacenter: "8 ESXi hosts in three clusters. Each has one GPU, which one VM can use by passthrough. The \
                         kube-apiserver is a real one, and vCenter is govmomi's simulator. Hosts and guests of this lab take \
                         seconds where real ones take minutes.",
            mover: member("gpu1", "esx1"),
            target: "esx4".to_owned(),
            waiter: member("gpu2", "esx5"),
            clicked: member("gpu3", "esx8"),
            label: label(fixture.name()),
            namespace: fixture.name().to_owned(),
            kept: "make demo REAL=1 KEEP=1 leaves everything running: open this trace in a tracing UI, open Haulout's status page, \
                   and use kubectl, kubectl haulout and govc.",
        };
        Self {
            kube,
            fixture,
            collector,
            binary,
            cast,
        }
    }
}

impl Peers for Real<'_> {
    fn cast(&self) -> &Cast {
        &self.cast
    }

    fn client(&self) -> kube::Client {
        self.fixture.client()
    }

    async fn inventory(&self) -> anyhow::Result<Inventory> {
        let state = self.fixture.vcenter.state().await?;
        let host = |host: &vcenter::SimulatedHost| {
            let device = host.devices.first();
            Host {
                cluster: host.cluster.clone(),
                name: host.name.clone(),
                gpu: device.map_or_else(String::new, |device| datacenter::model(&device.spec)),
                holder: device.and_then(|device| device.used_by.clone()),
                in_maintenance: host.in_maintenance,
            }
        };
        let mut hosts: Vec<Host> = state.hosts.iter().map(host).collect();
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        let vm = |vm: &vcenter::VmState| Vm {
            name: vm.name.clone(),
            host: vm.host.clone(),
            on: vm.is_on(),
        };
        Ok(Inventory {
            hosts,
            vms: state.vms.iter().map(vm).collect(),
        })
    }

    async fn click(&self, what: Click, host: &str) -> anyhow::Result<()> {
        let vcenter = &self.fixture.vcenter;
        match what {
            Click::Enter => vcenter.enter_maintenance(host).await.map(|_| ()),
            Click::Cancel => vcenter.cancel_maintenance(host).await,
            Click::Exit => vcenter.exit_maintenance(host).await.map(|_| ()),
        }
    }

    async fn journal_after(&self, seq: u64) -> anyhow::Result<Vec<Entry>> {
        let user = self.fixture.vcenter.user();
        let entries = self.fixture.vcenter.journal_after(seq, POLL).await?;
        let seen = |entry: &vcenter::Entry| Entry {
            seq: entry.seq,
            at: entry.time,
            line: words(entry, user),
            entered: (entry.kind == EntryKind::Call && entry.method == "EnterMaintenanceMode_Task")
                .then(|| entry.object.clone()),
        };
        Ok(entries.iter().map(seen).collect())
    }

    async fn power_cycles(&self, vm: &str) -> anyhow::Result<(usize, usize)> {
        self.fixture.power_cycles(vm).await
    }

    async fn add_pod(&self, name: &str, node: &str, ends: Duration) -> anyhow::Result<()> {
        let ends = ends.as_millis().to_string();
        self.fixture
            .add_pod(name, node, &[(EXITS_AFTER_MS, &ends)])
            .await?;
        Ok(())
    }

    async fn set_budget(&self, name: &str, pod: &str, least: i32) -> anyhow::Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.fixture.client(), self.fixture.name());
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": pod}}},
        });
        let params = PatchParams::apply("person").force();
        budgets
            .patch(name, &params, &Patch::Apply(&budget))
            .await
            .with_context(|| format!("writing the PodDisruptionBudget {name}"))?;
        if least == 0 {
            // Haulout evicts the pod at once, and then there is nothing to count.
            return Ok(());
        }
        let what = format!("the PodDisruptionBudget {name} to be counted");
        until(&what, COUNTED, async || {
            let seen = budgets.get(name).await?;
            let counted = seen.status.as_ref().is_some_and(|status| {
                status.observed_generation == seen.metadata.generation
                    && status.disruptions_allowed == Some(0)
            });
            Ok(counted.then_some(()))
        })
        .await
    }

    async fn refusals(&self, pod: &str) -> anyhow::Result<Vec<Timestamp>> {
        let audit = self.fixture.audit().await?;
        let refused = audit.iter().filter(|event| {
            event.subresource.as_deref() == Some("eviction")
                && event.name.as_deref() == Some(pod)
                && event.code == 429
        });
        Ok(refused.map(|event| event.answered).collect())
    }

    async fn patched(&self, node: &str, from: Timestamp) -> anyhow::Result<Option<Timestamp>> {
        let audit = self.fixture.audit().await?;
        let patches = audit.iter().filter(|event| {
            event.verb == "patch"
                && event.resource == "nodes"
                && event.name.as_deref() == Some(node)
                && event.code == 200
                && event.received >= from
        });
        Ok(patches.map(|event| event.answered).min())
    }

    async fn trace(&self, id: &str) -> anyhow::Result<Vec<Span>> {
        match &self.collector {
            TraceCollector::Receiver(receiver) => Ok(receiver.trace(id)),
            TraceCollector::Jaeger(both) => {
                let spans = both.0.trace(id).await?.into_iter().map(|span| Span {
                    id: span.id,
                    parent: span.parent,
                    name: span.name,
                    start: span.start,
                    end: span.end,
                });
                Ok(spans.collect())
            }
        }
    }

    async fn say_how_to_look(&self, page: &str, trace_id: &str) -> anyhow::Result<()> {
        // The plugin is put into the folder of the lab's kubectl.
        let link = self.kube.bin().join("kubectl-haulout");
        std::os::unix::fs::symlink(self.binary, &link)
            .with_context(|| format!("linking {}", link.display()))?;
        up::look_around(self.fixture, self.kube, &self.cast.target)?;
        say(&format!("Haulout's log:      {}", self.fixture.log().display()));
        say("");
        say("Haulout's kubectl plugin, in the shell with KUBECONFIG and PATH:");
        say(&format!("  export GPU_NODE_LABEL={}", self.cast.label));
        if let Some((address, _)) = page.split_once("/episodes/") {
            say(&format!("  export STATUS_URL={address}"));
            say(&format!("  kubectl haulout plan {}", self.cast.mover.node));
        }
        say("  kubectl haulout list");
        say(&format!("  kubectl haulout status {}", self.cast.mover.node));
        say("");
        say("The second maintenance, in a browser:");
        say(&format!("Status page:          {page}"));
        if let TraceCollector::Jaeger(both) = &self.collector {
            let mut ui = both.1.lock().await;
            ui.wait_ready().await;
            ui.say(Some(trace_id));
        }
        Ok(())
    }
}

/// The line about an entry.
fn words(entry: &vcenter::Entry, haulout_user: &str) -> Option<String> {
    let (object, detail) = (&entry.object, &entry.detail);
    match entry.kind {
        EntryKind::Call => {
            let who = if entry.session.is_empty() {
                "the operator"
            } else if entry.user == haulout_user {
                "Haulout"
            } else {
                entry.user.as_str()
            };
            let verb = match entry.method.as_str() {
                // A person may do this with govc in Haulout's account; Haulout itself does not.
                "EnterMaintenanceMode_Task" => {
                    return Some(format!("the operator clicks Enter Maintenance Mode on {object}"));
                }
                "ExitMaintenanceMode_Task" => {
                    return Some(format!("the operator clicks Exit Maintenance Mode on {object}"));
                }
                "CancelTask" => {
                    return Some(format!("{who} cancels the task on {object}"));
                }
                "ShutdownGuest" => return Some(format!("{who} asks the guest of VM {object} to shut down")),
                "PowerOnVM_Task" | "PowerOnMultiVM_Task" => "power on",
                "PowerOffVM_Task" => "power off",
                "RelocateVM_Task" => "relocate",
                // The event or the value itself follows.
                "LogUserEvent" | "SetField" => return None,
                other => return Some(format!("{who} calls {other} on {object}")),
            };
            Some(format!("{who} starts a task: {verb} VM {object}"))
        }
        EntryKind::Power => {
            let cause = match entry.cause.as_str() {
                "" => String::new(),
                "ShutdownGuest" => " (its guest shut down)".to_owned(),
                other => format!(" ({other})"),
            };
            let power = match detail.as_str() {
                "poweredOn" => "on",
                "poweredOff" => "off",
                other => other,
            };
            Some(format!("VM {object}: powered {power} on {}{cause}", entry.host))
        }
        EntryKind::Maintenance => Some(match detail.as_str() {
            "entering" => format!(
                "{object}: task \"Enter maintenance mode\" ({}) waits until no VM is powered on there",
                entry.task
            ),
            "entered" => format!("{object}: the task has succeeded; the host is in maintenance mode"),
            "exited" => format!("{object}: the host has left maintenance mode"),
            other => format!("{object}: {other}"),
        }),
        EntryKind::Move => Some(format!("VM {object}: moved, {detail}")),
        EntryKind::Reconfigure => Some(format!("VM {object}: reconfigured {detail}")),
        EntryKind::Host => Some(format!("host {object}: {detail}")),
        // Haulout logs each on the host as well.
        EntryKind::Attribute if detail.is_empty() => {
            Some(format!("{object}: attribute {} cleared", entry.cause))
        }
        EntryKind::Attribute => Some(format!("{object}: attribute {} \"{detail}\"", entry.cause)),
        EntryKind::Event => (!entry.host.is_empty()).then(|| format!("VM {object}: event \"{detail}\"")),
        EntryKind::Session | EntryKind::Fault => None,
    }
}
