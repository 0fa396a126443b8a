//! The pods of a release: on nodes with a real kubelet, with a network of their own, from the image in a registry.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, Member, WAIT_TIMEOUT, is_cordoned};
use haulout_lab::kube::{GATEWAY, Kube, KubeOptions, User};
use haulout_lab::scenario::run_scenario;
use haulout_lab::wait::until;
use haulout_lab::{real_kubelet, tools};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::{Api, ResourceExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::registry::Registry;
use crate::release::{Release, spec};

/// The path of a static program, which the image of the Dockerfile needs: it has no libc. `make test-neighbours` sets it.
const PROGRAM: &str = "HAULOUT_STATIC_PROGRAM";

/// The cluster ends with this process. The chart installs the kind.
static KUBE: OnceCell<Kube> = OnceCell::const_new();

async fn kube() -> &'static Kube {
    KUBE.get_or_init(async || {
        let options = KubeOptions {
            with_kind: false,
            ..KubeOptions::default()
        };
        Kube::start(&options).await.expect("starting the cluster")
    })
    .await
}

/// The program of the image; `None` where the test is skipped.
fn program(test: &str) -> anyhow::Result<Option<PathBuf>> {
    if real_kubelet::is_skipped(test)? {
        return Ok(None);
    }
    let program = std::env::var_os(PROGRAM).map(PathBuf::from);
    if program.is_none() {
        tools::skip(test, &format!("the image needs a static program: see {PROGRAM}"))?;
    }
    Ok(program)
}

/// The pods of a release.
struct Pods<'r> {
    api: Api<Pod>,
    leases: Api<Lease>,
    release: &'r Release<'r>,
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|it| it.type_ == "Ready");
    pod.metadata.deletion_timestamp.is_none() && ready.any(|it| it.status == "True")
}

fn node_of(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

impl<'r> Pods<'r> {
    fn of(release: &'r Release<'r>, kube: &Kube) -> Self {
        Self {
            api: Api::namespaced(kube.client(), &release.namespace),
            leases: Api::namespaced(kube.client(), &release.namespace),
            release,
        }
    }

    async fn all(&self) -> anyhow::Result<Vec<Pod>> {
        Ok(self.api.list(&ListParams::default()).await?.items)
    }

    /// Waits until the pods are those of the Deployment as it is now, and Ready.
    async fn wait_rolled_out(&self) -> anyhow::Result<()> {
        let rolled_out = until("two Ready pods of the Deployment", WAIT_TIMEOUT, async || {
            let deployment = self.release.deployment().await?;
            let status = deployment.status.unwrap_or_default();
            let counts = [status.replicas, status.updated_replicas, status.ready_replicas];
            let is_seen = status.observed_generation == deployment.metadata.generation;
            Ok((is_seen && counts == [Some(2); 3]).then_some(()))
        });
        match rolled_out.await {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(self.described().await?)),
        }
    }

    /// What is known of all pods.
    async fn described(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        for pod in self.all().await? {
            let status = serde_json::to_string(&pod.status)?;
            let log = self.api.logs(&pod.name_any(), &LogParams::default()).await;
            let log = log.unwrap_or_else(|error| error.to_string());
            text += &format!("{} on {:?}: {status}\n{log}\n", pod.name_any(), node_of(&pod));
        }
        Ok(text)
    }

    /// The Ready pod that the Lease names.
    async fn leader(&self) -> anyhow::Result<Pod> {
        until("a pod to lead", WAIT_TIMEOUT, async || {
            let leases = self.leases.list(&ListParams::default()).await?.items;
            let holders: Vec<String> = leases
                .into_iter()
                .filter_map(|lease| lease.spec?.holder_identity)
                .collect();
            let leads = |pod: &Pod| {
                let name = format!("{}_", pod.name_any());
                is_ready(pod) && holders.iter().any(|holder| holder.starts_with(&name))
            };
            Ok(self.all().await?.into_iter().find(leads))
        })
        .await
    }

    /// What a pod serves on a port, through the kube-apiserver and the kubelet.
    async fn get(&self, pod: &str, port: u16, path: &str) -> anyhow::Result<String> {
        let mut forwarder = self.api.portforward(pod, &[port]).await?;
        let mut stream = forwarder.take_stream(port).context("the port is forwarded")?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        tokio::time::timeout(WAIT_TIMEOUT, stream.read_to_string(&mut answer)).await??;
        Ok(answer)
    }

    async fn log(&self, pod: &str) -> anyhow::Result<String> {
        Ok(self.api.logs(pod, &LogParams::default()).await?)
    }
}

/// What `kubectl haulout plan` prints for a person with a kubeconfig and nothing else.
async fn plan(release: &Release<'_>, kube: &Kube, host: &str) -> anyhow::Result<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haulout"));
    command
        .args(["plan", host, "--release"])
        .arg(format!("{}/{}", release.namespace, release.name()))
        .env_clear()
        .env("KUBECONFIG", kube.kubeconfig(&User::admin("person"))?)
        .kill_on_drop(true);
    let output = tokio::time::timeout(WAIT_TIMEOUT, command.output()).await??;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubectl haulout plan: {said}{failed}");
    Ok(said)
}

/// Two nodes with a real kubelet, each on a host of its own.
async fn fixture(name: &str, registry: &Registry) -> anyhow::Result<Fixture<'static>> {
    let vms = [
        ("gpu1", "aa000000-0000-4000-8000-000000000071", "esx1"),
        ("gpu2", "aa000000-0000-4000-8000-000000000072", "esx2"),
    ];
    let members = vms.map(|(vm, uuid, _)| {
        let mut member = Member::new(name, vm, uuid).with_real_kubelet();
        member.reaches.push(registry.port());
        member
    });
    let spec = spec(&["esx1", "esx2"], &vms);
    Fixture::create(kube().await, name, &spec, members.to_vec(), true).await
}

#[test]
fn release_is_upgraded_while_the_node_of_its_leader_is_in_maintenance() {
    run_scenario(async {
        let test = "release_is_upgraded_while_the_node_of_its_leader_is_in_maintenance";
        let Some(program) = program(test)? else {
            return Ok(());
        };
        let registry = Registry::start().await?;
        registry.release(&program)?;
        let fixture = fixture("pods", &registry).await?;
        // Its namespace enforces the Pod Security level `restricted`.
        let release = Release::prepare(&fixture).await?;
        let vcenter = fixture.vcenter.sdk().replace("127.0.0.1", &GATEWAY.to_string());
        let vcenter = format!("vcenter.host={vcenter}");
        // A busy machine does not depose it.
        let lease = "leaderElection.durationSeconds=15,leaderElection.renewDeadlineSeconds=10";
        let set = ["--set", &vcenter, "--set", lease];
        registry.helm("install", &release, &set)?;
        let pods = Pods::of(&release, fixture.kube);
        pods.wait_rolled_out().await?;

        let leader = pods.leader().await?;
        let (name, node) = (leader.name_any(), node_of(&leader).to_owned());
        let nodes: Vec<String> = pods
            .all()
            .await?
            .iter()
            .map(|pod| node_of(pod).to_owned())
            .collect();
        ensure!(
            nodes.len() == 2 && nodes[0] != nodes[1],
            "the pods are on {nodes:?}"
        );
        let metrics = pods.get(&name, 8080, "/metrics").await?;
        ensure!(metrics.contains("\nhaulout_"), "{metrics}");
        let log = pods.log(&name).await?;
        ensure!(log.contains("leader election by the Lease"), "{log}");
        let vm = node.strip_prefix("pods-").context("the node of a VM")?.to_owned();
        let host = if vm == "gpu1" { "esx1" } else { "esx2" };
        let planned = plan(&release, fixture.kube, host).await?;
        ensure!(planned.contains(&node), "{planned}");

        fixture.vcenter.enter_maintenance(host).await?;
        fixture.wait_in_maintenance(host).await?;
        ensure!(is_cordoned(&fixture.node(&node).await?));
        let successor = pods.leader().await?;
        ensure!(node_of(&successor) != node, "{:?} leads", successor.name_any());
        let upgrade = [
            &set[..],
            &["--set", "strategy.type=RollingUpdate,config.logLevel=debug"],
        ]
        .concat();
        registry.helm("upgrade", &release, &upgrade)?;
        pods.wait_rolled_out().await?;
        let upgraded = pods.leader().await?;
        ensure!(upgraded.uid() != successor.uid());

        fixture.vcenter.exit_maintenance(host).await?;
        fixture.wait_in_service(&node).await?;
        let cycles = fixture.power_cycles(&vm).await?;
        ensure!(cycles == (1, 1), "off {} times, on {} times", cycles.0, cycles.1);

        release.helm(&["uninstall", release.name(), "--wait"]);
        until("no pod and no session to be left", WAIT_TIMEOUT, async || {
            let sessions = fixture.vcenter.state().await?.sessions;
            Ok((sessions == 0 && pods.all().await?.is_empty()).then_some(()))
        })
        .await
    });
}
