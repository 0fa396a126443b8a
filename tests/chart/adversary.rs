//! A hostile kubelet, requesters and a tenant administrator try what they can while another node is in maintenance.
//!
//! Two things are checked: which writes the kube-apiserver accepts, and that the maintenance of the other node is the same as
//! without them, with no VM of another tenant touched.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout::nodemaintenance::kind::{
    DrainTimeoutAction, MaintenanceAction, MaintenanceOrigin, NodeMaintenance, NodeMaintenanceSpec,
};
use haulout_lab::fixture::{ANNOTATIONS, Fixture, Member, WAIT_TIMEOUT, label};
use haulout_lab::kube::User;
use haulout_lab::scenario::run_scenario;
use haulout_lab::vcenter::{ClusterSpec, DeviceSpec, EntryKind, Gpu, HostSpec, Spec, VmSpec};
use haulout_lab::wait::until;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::release::{Release, kube};

const NAME: &str = "adversary";
const A40: u16 = 0x2235;
const HONEST_UUID: &str = "aa000000-0000-4000-8000-000000000061";
const HOSTILE_UUID: &str = "aa000000-0000-4000-8000-000000000062";
const VICTIM_UUID: &str = "aa000000-0000-4000-8000-000000000063";

/// Idle connections to the health port. The kubelet's probe has to be answered beside them.
const CONNECTIONS: usize = 200;

/// The delay of the honest maintenance by the attacks. On a busy machine two runs differ by some seconds without any.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// `gpu1` is an honest node, `gpu2` belongs to the adversaries, and `victim` is a VM of another tenant.
async fn datacenter() -> anyhow::Result<Fixture<'static>> {
    let host = |name: &str| HostSpec {
        name: name.to_owned(),
        devices: vec![DeviceSpec::gpu("0000:01:00.0".to_owned(), A40)],
        datastores: vec!["ds1".to_owned()],
        ..HostSpec::default()
    };
    let vm = |name: &str, uuid: &str, host: &str, folder: &str| VmSpec {
        name: name.to_owned(),
        uuid: uuid.to_owned(),
        host: host.to_owned(),
        folder: folder.to_owned(),
        gpu: Gpu::nvidia(A40),
        ..VmSpec::default()
    };
    let spec = Spec {
        clusters: vec![ClusterSpec {
            name: "c1".to_owned(),
            hosts: vec![host("esx1"), host("esx2"), host("esx3")],
            ..ClusterSpec::default()
        }],
        vms: vec![
            vm("gpu1", HONEST_UUID, "esx1", "tenant-a"),
            vm("gpu2", HOSTILE_UUID, "esx2", "tenant-a"),
            vm("victim", VICTIM_UUID, "esx3", "tenant-b"),
        ],
        ..Spec::default()
    };
    let members = vec![
        Member::new(NAME, "gpu1", HONEST_UUID),
        Member::new(NAME, "gpu2", HOSTILE_UUID),
    ];
    Fixture::create(kube().await, NAME, &spec, members, true).await
}

/// Takes esx1 into maintenance and back. Returns Haulout's calls on the VM of the honest node, and the duration.
async fn honest_maintenance(fixture: &Fixture<'_>) -> anyhow::Result<(Vec<String>, Duration)> {
    let start = Instant::now();
    let before = fixture.vcenter.journal().await?.len();
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_in_maintenance("esx1").await?;
    fixture.vcenter.exit_maintenance("esx1").await?;
    fixture.wait_in_service(&fixture.node_name("gpu1")).await?;
    let journal = fixture.vcenter.journal().await?;
    let calls = journal.into_iter().skip(before);
    let calls =
        calls.filter(|it| it.kind == EntryKind::Call && !it.session.is_empty() && it.object == "gpu1");
    Ok((calls.map(|it| it.method).collect(), start.elapsed()))
}

/// Whether the kube-apiserver has not refused it by rights, an admission policy or validation.
fn is_accepted<T>(answer: Result<T, kube::Error>) -> anyhow::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 403 || status.code == 422 => Ok(false),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// The attackers, and the writes that should have been refused.
struct Adversaries<'s> {
    fixture: &'s Fixture<'static>,
    release: &'s Release<'s>,
    breaches: BTreeSet<String>,
    round: usize,
}

impl Adversaries<'_> {
    /// Attacks until the future is dropped.
    async fn attack_for_ever(&mut self) -> anyhow::Result<()> {
        loop {
            self.kubelet().await?;
            self.editor().await?;
            self.requester().await?;
            self.tenant_administrator().await?;
            self.round += 1;
            // The kube-apiserver of the lab has other work too.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn must_be_refused<T>(
        &mut self,
        who: &str,
        what: &str,
        answer: Result<T, kube::Error>,
    ) -> anyhow::Result<()> {
        if is_accepted(answer)? {
            self.breaches.insert(format!("{who}: {what}"));
        }
        Ok(())
    }

    /// The kubelet of gpu2, with the rights of the Node authorizer.
    async fn kubelet(&mut self) -> anyhow::Result<()> {
        let (own, honest) = (self.fixture.node_name("gpu2"), self.fixture.node_name("gpu1"));
        let client = self.fixture.kube.client_for(&User::kubelet(&own))?;
        let nodes: Api<Node> = Api::all(client.clone());
        let params = PatchParams::default();
        for uuid in [HONEST_UUID, VICTIM_UUID] {
            let patch = Patch::Strategic(json!({"status": {"nodeInfo": {"systemUUID": uuid}}}));
            let answer = nodes.patch_status(&own, &params, &patch).await;
            self.must_be_refused("kubelet", &format!("reports the UUID {uuid}"), answer)?;
            let patch = Patch::Merge(json!({"spec": {"providerID": format!("vsphere://{uuid}")}}));
            let answer = nodes.patch(&own, &params, &patch).await;
            self.must_be_refused("kubelet", &format!("has the providerID of {uuid}"), answer)?;
        }
        for (key, value) in [
            (format!("{ANNOTATIONS}/episode"), forged_record()),
            (format!("{ANNOTATIONS}/state"), "forged".to_owned()),
            ("haulout.dev/approved".to_owned(), "true".to_owned()),
            ("haulout.dev/skip".to_owned(), "true".to_owned()),
            (
                "haulout.dev/accepted-gpus".to_owned(),
                "nvidia.com/gpu=0".to_owned(),
            ),
            ("pre-poweroff.hook.haulout.dev/x".to_owned(), String::new()),
        ] {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {&key: value}}}));
            let answer = nodes.patch(&own, &params, &patch).await;
            self.must_be_refused("kubelet", &format!("annotates its Node with {key}"), answer)?;
        }
        let unselect = Patch::Merge(json!({"metadata": {"labels": {label(NAME): null}}}));
        let answer = nodes.patch(&own, &params, &unselect).await;
        self.must_be_refused("kubelet", "removes the label of its Node", answer)?;
        let other = Patch::Merge(json!({"metadata": {"annotations": {"example.com/x": "1"}}}));
        let answer = nodes.patch(&honest, &params, &other).await;
        self.must_be_refused("kubelet", "annotates another Node", answer)?;
        let answer = nodes.delete(&honest, &DeleteParams::default()).await;
        self.must_be_refused("kubelet", "deletes another Node", answer)?;
        let answer = nodes
            .create(&PostParams::default(), &ghost("adversary-by-kubelet")?)
            .await;
        self.must_be_refused("kubelet", "registers another Node", answer)?;
        let request = self.request(&honest, MaintenanceAction::PowerOff, "by-kubelet");
        let requests: Api<NodeMaintenance> = Api::all(client.clone());
        let answer = requests.create(&PostParams::default(), &request).await;
        self.must_be_refused("kubelet", "requests a maintenance", answer)?;
        self.take_lease("kubelet", client).await
    }

    /// A user with the role `edit` in the whole cluster.
    async fn editor(&mut self) -> anyhow::Result<()> {
        let client = self
            .fixture
            .kube
            .client_for(&User::stranger("adversary-editor"))?;
        let honest = self.fixture.node_name("gpu1");
        let nodes: Api<Node> = Api::all(client.clone());
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"haulout.dev/skip": "true"}}}));
        let answer = nodes.patch(&honest, &PatchParams::default(), &patch).await;
        self.must_be_refused("editor", "annotates a Node", answer)?;
        let requests: Api<NodeMaintenance> = Api::all(client.clone());
        let request = self.request(&honest, MaintenanceAction::PowerOff, "by-editor");
        let answer = requests.create(&PostParams::default(), &request).await;
        self.must_be_refused("editor", "requests a maintenance", answer)?;
        let answer = requests
            .delete("adversary-by-requester", &DeleteParams::default())
            .await;
        self.must_be_refused("editor", "deletes the request of another user", answer)
    }

    /// A user who may request maintenance.
    async fn requester(&mut self) -> anyhow::Result<()> {
        let client = self
            .fixture
            .kube
            .client_for(&User::stranger("adversary-requester"))?;
        let (own, honest) = (self.fixture.node_name("gpu2"), self.fixture.node_name("gpu1"));
        let requests: Api<NodeMaintenance> = Api::all(client);
        let post = PostParams::default();
        let mut forged = self.request(&honest, MaintenanceAction::PowerOff, "in-another-name");
        forged.spec.requested_by = Some("alice".to_owned());
        let answer = requests.create(&post, &forged).await;
        self.must_be_refused("requester", "requests in the name of another user", answer)?;
        let mut impossible = self.request(&honest, MaintenanceAction::Drain, "with-a-host");
        impossible.spec.target_host = Some("esx3".to_owned());
        let answer = requests.create(&post, &impossible).await;
        self.must_be_refused("requester", "names a host for a drain", answer)?;

        // These are allowed. The budget of the pod on gpu2 has to hold against the short timeouts.
        let mut hasty = self.request(&own, MaintenanceAction::PowerOff, "by-requester");
        hasty.spec.drain_timeout_seconds = Some(1);
        hasty.spec.drain_timeout_action = Some(DrainTimeoutAction::PowerOff);
        hasty.spec.guest_shutdown_timeout_seconds = Some(1);
        is_accepted(requests.create(&post, &hasty).await)?;
        let mut copy = self.request(&honest, MaintenanceAction::PowerOff, "as-an-episode");
        copy.spec.origin = MaintenanceOrigin::Episode;
        copy.spec.selector = Some(format!("{}=true", label(NAME)));
        is_accepted(requests.create(&post, &copy).await)?;
        let nowhere = format!("nowhere-{}", self.round);
        let junk = self.request(&nowhere, MaintenanceAction::Reboot, &nowhere);
        is_accepted(requests.create(&post, &junk).await)?;
        let status = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
        let answer = requests
            .patch_status("adversary-by-requester", &PatchParams::default(), &status)
            .await;
        self.must_be_refused("requester", "writes the status of a request", answer)
    }

    /// An administrator of the cluster, who may write everything in it, but has no VM outside of it.
    async fn tenant_administrator(&mut self) -> anyhow::Result<()> {
        let client = self.fixture.client();
        let nodes: Api<Node> = Api::all(client.clone());
        let name = format!("{NAME}-ghost");
        let forger = format!("{NAME}-forger");
        for name in [&name, &forger] {
            is_accepted(nodes.create(&PostParams::default(), &ghost(name)?).await)?;
            let reported = Patch::Merge(json!({"status": {"nodeInfo": machine(VICTIM_UUID)}}));
            is_accepted(nodes.patch_status(name, &PatchParams::default(), &reported).await)?;
        }
        let record = format!("{ANNOTATIONS}/episode");
        let forged = Patch::Merge(json!({"metadata": {"annotations": {record: forged_record()}}}));
        is_accepted(nodes.patch(&forger, &PatchParams::default(), &forged).await)?;
        let requests: Api<NodeMaintenance> = Api::all(client);
        for action in [MaintenanceAction::PowerOff, MaintenanceAction::Reboot] {
            let request = self.request(&name, action, &format!("ghost-{action:?}").to_lowercase());
            is_accepted(requests.create(&PostParams::default(), &request).await)?;
        }
        Ok(())
    }

    async fn take_lease(&mut self, who: &str, client: kube::Client) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(client, &self.release.namespace);
        let patch = Patch::Merge(json!({"spec": {"holderIdentity": who}}));
        let name = format!("{NAME}-haulout");
        let answer = leases.patch(&name, &PatchParams::default(), &patch).await;
        self.must_be_refused(who, "takes the Lease", answer)
    }

    fn request(&self, node: &str, action: MaintenanceAction, name: &str) -> NodeMaintenance {
        let spec = NodeMaintenanceSpec {
            node_name: node.to_owned(),
            action,
            ..NodeMaintenanceSpec::default()
        };
        NodeMaintenance::new(&format!("{NAME}-{name}"), spec)
    }
}

/// A Node with the UUID of the VM of another tenant.
fn ghost(name: &str) -> anyhow::Result<Node> {
    let node = json!({
        "metadata": {"name": name, "labels": {label(NAME): "true"}},
        "spec": {"providerID": format!("vsphere://{VICTIM_UUID}")},
    });
    Ok(serde_json::from_value(node)?)
}

/// All fields, because each is required.
fn machine(uuid: &str) -> Value {
    let mut machine: BTreeMap<&str, &str> = [
        "machineID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ]
    .map(|field| (field, "x"))
    .into();
    machine.insert("systemUUID", uuid);
    json!(machine)
}

/// A record of a shutdown of the victim.
fn forged_record() -> String {
    json!({"version": 1, "phase": "shuttingDown", "vm": {"uuid": VICTIM_UUID, "moref": "vm-1"}}).to_string()
}

/// Gives the adversaries their rights.
async fn arm(fixture: &Fixture<'_>, release: &Release<'_>) -> anyhow::Result<()> {
    let bindings: Api<ClusterRoleBinding> = Api::all(fixture.client());
    let may_request = format!("{}-{NAME}-haulout-edit", release.namespace);
    for (user, role) in [
        ("adversary-editor", "edit"),
        ("adversary-requester", may_request.as_str()),
    ] {
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }))?;
        bindings.create(&PostParams::default(), &binding).await?;
    }
    Ok(())
}

/// The kube-apiserver needs a moment to apply rights and policies.
async fn wait_for_policies(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let dry = |name: &str, by: Option<&str>| {
        let spec = NodeMaintenanceSpec {
            node_name: fixture.node_name("gpu2"),
            requested_by: by.map(str::to_owned),
            ..NodeMaintenanceSpec::default()
        };
        NodeMaintenance::new(name, spec)
    };
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let client = fixture.kube.client_for(&User::stranger("adversary-requester"))?;
    let requests: Api<NodeMaintenance> = Api::all(client);
    until(
        "rights and policies of requesters to hold",
        WAIT_TIMEOUT,
        async || {
            let own = is_accepted(requests.create(&params, &dry("adversary-dry", None)).await)?;
            let forged = is_accepted(
                requests
                    .create(&params, &dry("adversary-dry", Some("alice")))
                    .await,
            )?;
            Ok((own && !forged).then_some(()))
        },
    )
    .await?;
    let node = fixture.node_name("gpu2");
    let nodes: Api<Node> = Api::all(fixture.kube.client_for(&User::kubelet(&node))?);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"haulout.dev/approved": "true"}}}));
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    until("the policy of kubelets to hold", WAIT_TIMEOUT, async || {
        let is_accepted = is_accepted(nodes.patch(&node, &dry, &patch).await)?;
        Ok((!is_accepted).then_some(()))
    })
    .await
}

#[test]
fn adversaries_change_no_honest_maintenance_and_touch_no_foreign_vm() {
    run_scenario(async {
        let fixture = datacenter().await?;
        let release = Release::prepare(&fixture).await?;
        release.upgrade(&[
            "vcenter.scope[0]=/DC0/vm/tenant-a",
            "config.maxConcurrentDrains=2",
        ]);
        arm(&fixture, &release).await?;
        let mut replica = release.start().await?;
        replica.wait_ready().await?;
        let (calls, took) = honest_maintenance(&fixture).await?;
        ensure!(!calls.is_empty(), "Haulout called nothing on gpu1");
        wait_for_policies(&fixture).await?;
        let hostile = fixture.node_name("gpu2");
        fixture.add_pod("guarded", &hostile, &[]).await?;
        fixture.set_budget("guarded", 0).await?;

        let port = replica.health_port().context("it has a health port")?;
        let mut flood = Vec::new();
        for _ in 0..CONNECTIONS {
            flood.push(TcpStream::connect(("127.0.0.1", port)).await?);
        }
        let mut adversaries = Adversaries {
            fixture: &fixture,
            release: &release,
            breaches: BTreeSet::new(),
            round: 0,
        };
        let attacked = async {
            let done = honest_maintenance(&fixture).await?;
            // The ghost's turn has come, and it was refused.
            fixture.wait_for_log("its VM is outside VCENTER_SCOPE").await?;
            anyhow::Ok(done)
        };
        let (attacked_calls, attacked_took) = tokio::select! {
            done = attacked => done?,
            failed = adversaries.attack_for_ever() => { failed?; unreachable!("it ends by an error only") }
        };
        replica
            .wait_ready()
            .await
            .context("probes beside a flood of connections")?;
        drop(flood);

        ensure!(adversaries.round > 0, "the adversaries tried nothing");
        ensure!(
            adversaries.breaches.is_empty(),
            "accepted and should be refused: {:#?}",
            adversaries.breaches
        );
        ensure!(attacked_calls == calls, "{attacked_calls:?} instead of {calls:?}");
        ensure!(
            attacked_took < took + DELAY_MAX,
            "{attacked_took:?} instead of {took:?}"
        );
        let state = fixture.vcenter.state().await?;
        let hostile = state.vm("gpu2").context("gpu2")?;
        ensure!(hostile.is_on(), "power was cut against a budget");
        let journal = fixture.vcenter.journal().await?;
        let touched = journal
            .iter()
            .filter(|it| it.object == "victim" && it.user != "spec")
            .collect::<Vec<_>>();
        ensure!(touched.is_empty(), "a foreign VM was touched: {touched:#?}");
        replica.stop().await
    });
}
