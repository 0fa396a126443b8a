//! A Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with RBAC
//! and an audit log.

mod lagging;

pub use lagging::LaggingApiserver;

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, GetParams, ObjectMeta, PostParams};
use kube::client::ConfigExt as _;
use kube::config::AuthInfo;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

use crate::build;
use crate::byte_proxy::ByteUpstream;
use crate::ports::Port;
use crate::process::{Process, ProcessSpec, REMOVE_AT_EOF};
use crate::run_dir::RunDir;
use crate::wait::until;

/// The group with the documented rights of Haulout.
pub const HAULOUT_GROUP: &str = "haulout";
/// The address of the Service `kubernetes`: the first one of [`SERVICES`].
pub const KUBERNETES_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const SERVICES: &str = "10.96.0.0/16";
/// The address of servers on loopback for the pods of a real kubelet, which have a network of their own. It is one of those that are
/// reserved for documentation (RFC 5737).
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The group with all rights.
const ADMIN_GROUP: &str = "system:masters";
/// The timeout of the start on a busy machine.
const STARTUP: Duration = Duration::from_secs(60);
/// The time for an orderly stop. kube-apiserver would wait a minute for its watchers.
const WAIT_TIMEOUT: Duration = Duration::from_millis(500);

/// The options of the control plane.
#[derive(Debug, Clone)]
pub struct KubeOptions {
    /// The node monitor grace. With production's 40 s a power cycle passes with Ready=True; with the default of 4 s a
    /// stopped node is NotReady soon.
    pub node_monitor_grace: Duration,
    /// The rights of [`HAULOUT_GROUP`].
    pub haulout_rules: Vec<PolicyRule>,
    /// Whether the kind NodeMaintenance is installed, as the chart does.
    pub with_kind: bool,
    /// Logs read requests too: see [`Kube::requests`].
    pub audit_reads: bool,
    /// Whether kube-scheduler runs. Without it, pods of controllers stay pending.
    pub with_scheduler: bool,
}

impl Default for KubeOptions {
    fn default() -> Self {
        Self {
            node_monitor_grace: Duration::from_secs(4),
            haulout_rules: vec![
                rule("", "nodes", &["get", "list", "watch", "patch"]),
                rule("", "pods", &["list", "watch"]),
                rule("", "pods/eviction", &["create"]),
                rule("", "namespaces", &["get"]),
                rule("storage.k8s.io", "volumeattachments", &["list"]),
                rule("", "persistentvolumes", &["get"]),
                rule("resource.k8s.io", "resourceslices", &["list", "watch"]),
                rule("policy", "poddisruptionbudgets", &["list", "watch"]),
                rule("events.k8s.io", "events", &["create"]),
                rule("", "nodes/status", &["patch"]),
                rule(
                    "haulout.dev",
                    "nodemaintenances",
                    &["list", "watch", "create", "delete"],
                ),
                rule("haulout.dev", "nodemaintenances/status", &["patch"]),
                rule(
                    "nodemaintenance.medik8s.io",
                    "nodemaintenances",
                    &["list", "watch"],
                ),
                rule(
                    "nodemaintenance.medik8s.io",
                    "nodemaintenances/status",
                    &["patch"],
                ),
                rule(
                    "nodemaintenance.kubevirt.io",
                    "nodemaintenances",
                    &["list", "watch"],
                ),
                rule(
                    "nodemaintenance.kubevirt.io",
                    "nodemaintenances/status",
                    &["patch"],
                ),
                rule("maintenance.nvidia.com", "nodemaintenances", &["list", "watch"]),
                rule("maintenance.nvidia.com", "nodemaintenances/status", &["patch"]),
                rule("cluster.x-k8s.io", "machines", &["get", "patch"]),
                rule(
                    "infrastructure.cluster.x-k8s.io",
                    "vspherevms",
                    &["get", "list", "patch"],
                ),
                rule("machine.openshift.io", "machines", &["get"]),
                rule(
                    "machine.openshift.io",
                    "machinehealthchecks",
                    &["get", "list", "patch"],
                ),
                rule("coordination.k8s.io", "leases", &["get", "create", "update"]),
            ],
            with_kind: true,
            audit_reads: false,
            with_scheduler: true,
        }
    }
}

/// The folder of a run's programs for `PATH`.
const BIN: &str = "bin";
/// The control plane's program is kubectl too, if it is run under that name.
const KUBECTL: &str = "bin/kubectl";

/// One RBAC rule: these verbs on this resource of this API group.
pub fn rule(group: &str, resource: &str, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
        ..PolicyRule::default()
    }
}

/// A user of the API server. The name is in the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    name: String,
    group: &'static str,
}

impl User {
    /// A user with all rights.
    pub fn admin(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            group: ADMIN_GROUP,
        }
    }

    /// A user with Haulout's documented rights.
    pub fn haulout(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            group: HAULOUT_GROUP,
        }
    }

    /// A user with the rights that are bound to its name.
    pub fn stranger(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            group: "strangers",
        }
    }

    /// The kubelet of this Node. The Node authorizer and the admission plugin NodeRestriction apply.
    pub fn kubelet(node: &str) -> Self {
        Self {
            name: format!("system:node:{node}"),
            group: "system:nodes",
        }
    }

    /// The name in the audit log.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A completed request in the audit log: a changing one, or any of a ServiceAccount.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEvent {
    /// `create`, `update`, `patch`, `delete` or `deletecollection`; of a ServiceAccount, and of [`Kube::requests`], also
    /// `get`, `list` and `watch`.
    pub verb: String,
    pub user: String,
    pub user_agent: String,
    /// The API group, empty for the core one.
    pub group: String,
    /// The plural resource, such as `nodes`.
    pub resource: String,
    /// Such as `eviction` or `status`.
    pub subresource: Option<String>,
    /// The namespace of a namespaced object.
    pub namespace: Option<String>,
    /// The object's name; `None` for a create with the name only in the body.
    pub name: Option<String>,
    /// The HTTP status of the answer.
    pub code: u16,
    /// When the request came in.
    pub received: jiff::Timestamp,
    /// When the response was complete.
    pub answered: jiff::Timestamp,
    /// The request's body, logged for members of [`HAULOUT_GROUP`] only.
    pub object: Option<serde_json::Value>,
}

/// A Node as stored in etcd.
#[derive(Debug, Clone)]
pub struct NodeBackup {
    key: ByteString,
    /// Base64, as in etcd's gateway.
    value: serde_json::Value,
}

/// A snapshot of etcd: a copy of its data directory.
#[derive(Debug)]
pub struct EtcdSnapshot {
    data: PathBuf,
}

/// A running control plane. Dropping it stops its processes and removes its files.
pub struct Kube {
    // Drop order: first the processes, then their ports, then their files.
    scheduler: Option<Mutex<Process>>,
    controller_manager: Mutex<Process>,
    apiserver: Mutex<Process>,
    etcd: Mutex<Process>,
    apiserver_spec: ProcessSpec,
    apiserver_files: ApiserverFiles,
    program: PathBuf,
    /// The data directory that etcd runs on.
    etcd_data: Mutex<PathBuf>,
    port: Port,
    etcd_port: Port,
    authority: Authority,
    client: kube::Client,
    dir: RunDir,
}

impl Kube {
    /// Starts a control plane and waits until RBAC roles exist and the controllers work.
    pub async fn start(options: &KubeOptions) -> anyhow::Result<Self> {
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let program = build::part("kube").await?;
        let mut tries = 3;
        loop {
            tries -= 1;
            match Self::try_start(&program, options).await {
                Err(error) if tries > 0 && format!("{error:#}").contains("address already in use") => {
                    tracing::debug!(%error, "a foreign process took the port, taking another");
                }
                result => return result.context("starting the lab's Kubernetes control plane"),
            }
        }
    }

    async fn try_start(program: &Path, options: &KubeOptions) -> anyhow::Result<Self> {
        let dir = RunDir::create()?;
        let port = Port::reserve()?;
        let etcd_port = Port::reserve()?;
        let authority = Authority::create(&dir)?;

        let etcd_data = dir.join("etcd");
        let etcd_spec = etcd(program, &dir, &etcd_port, &etcd_data);
        let kubectl = dir.join(KUBECTL);
        std::fs::create_dir_all(dir.join(BIN))
            .and_then(|()| std::os::unix::fs::symlink(program, &kubectl))
            .with_context(|| format!("linking {}", kubectl.display()))?;
        let policy = if options.audit_reads {
            // Long responses are logged at their start too.
            AUDIT_POLICY.replace(", ResponseStarted]", "]") + AUDIT_READS
        } else {
            AUDIT_POLICY.to_owned()
        };
        let apiserver_files = ApiserverFiles::write(program, &dir, &authority, &policy)?;
        let apiserver_spec = apiserver_files.spec(APISERVER, &port, local(&etcd_port), AUDIT_LOG);
        let etcd = etcd_spec.spawn()?;
        let apiserver = apiserver_spec.spawn()?;
        let admin = User::admin("admin");
        let client = kube::Client::try_from(client_config(&dir, &authority, &port, &admin)?)
            .context("making the admin's client")?;
        let manager_config =
            write_kubeconfig(&dir, &authority, &port, &User::admin("kube-controller-manager"))?;
        let manager_spec = controller_manager(program, &dir, &authority, &manager_config, options);
        // The controller manager exits after 10 s without an API server, which can happen on a busy machine.
        let mut starting = [etcd, apiserver];
        await_apiserver(&client, &mut starting).await?;
        let [etcd, apiserver] = starting;
        let mut manager = [manager_spec.spawn()?];
        let scheduler = if options.with_scheduler {
            let user = User::admin("kube-scheduler");
            let config = write_kubeconfig(&dir, &authority, &port, &user)?;
            Some(scheduler(program, &dir, &config).spawn()?)
        } else {
            None
        };
        let group = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": HAULOUT_GROUP});
        grant(&client, HAULOUT_GROUP, options.haulout_rules.clone(), &group).await?;
        if options.with_kind {
            install_kind(&client).await?;
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        await_with(
            &mut manager,
            "the controllers to make the default service account",
            async || Ok(accounts.get_opt("default").await?.map(|_| ())),
        )
        .await?;
        let [controller_manager] = manager;
        Ok(Self {
            scheduler: scheduler.map(Mutex::new),
            controller_manager: Mutex::new(controller_manager),
            apiserver: Mutex::new(apiserver),
            etcd: Mutex::new(etcd),
            apiserver_spec,
            apiserver_files,
            program: program.to_owned(),
            etcd_data: Mutex::new(etcd_data),
            port,
            etcd_port,
            authority,
            client,
            dir,
        })
    }

    /// A client of the user `admin` with all rights. It does not retry: tests need to see a 429 or a refused
    /// connection.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// A client of another user, without retries.
    pub fn client_for(&self, user: &User) -> anyhow::Result<kube::Client> {
        let config = client_config(&self.dir, &self.authority, &self.port, user)?;
        kube::Client::try_from(config).with_context(|| format!("making the client of {}", user.name))
    }

    /// Gives this user rights in addition to those of its group.
    pub async fn grant(&self, user: &User, rules: Vec<PolicyRule>) -> anyhow::Result<()> {
        let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user.name});
        grant(&self.client, &user.name, rules, &subject).await
    }

    /// The address of the API server.
    pub fn url(&self) -> String {
        url(&self.port)
    }

    /// The port of the API server on loopback.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// kubectl of the cluster's release. Its folder, [`Kube::bin`], can be in `PATH`.
    pub fn kubectl(&self) -> PathBuf {
        self.dir.join(KUBECTL)
    }

    /// A folder with programs for a person's `PATH`.
    pub fn bin(&self) -> PathBuf {
        self.dir.join(BIN)
    }

    /// Writes a kubeconfig for this user and returns its path. It refers to files that live as long as this value.
    pub fn kubeconfig(&self, user: &User) -> anyhow::Result<PathBuf> {
        write_kubeconfig(&self.dir, &self.authority, &self.port, user)
    }

    /// The API server for a proxy whose connections are those of this user.
    pub fn byte_upstream(&self, user: &User) -> anyhow::Result<ByteUpstream> {
        let config = client_config(&self.dir, &self.authority, &self.port, user)?;
        let tls = config
            .rustls_client_config()
            .with_context(|| format!("using the certificate of {}", user.name))?;
        Ok(ByteUpstream {
            address: (Ipv4Addr::LOCALHOST, self.port.number()).into(),
            tls: Some(tls),
        })
    }

    /// Creates a server certificate for loopback from the lab's CA, and returns the paths of certificate and key.
    pub fn server_certificate(&self, name: &str) -> anyhow::Result<(PathBuf, PathBuf)> {
        self.authority.issue(&self.dir, name, Purpose::Server)
    }

    /// The CA certificate.
    pub fn authority(&self) -> &Path {
        &self.authority.path
    }

    /// The directory of this run with the logs of all parts.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Creates the CustomResourceDefinition in this YAML, and waits until its kind is served.
    pub async fn define(&self, text: &str) -> anyhow::Result<()> {
        define(&self.client, text).await
    }

    /// Creates a namespace and waits for its default service account.
    pub async fn create_namespace(&self, name: &str) -> anyhow::Result<()> {
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let namespaces: Api<Namespace> = Api::all(self.client());
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("creating the namespace {name}"))?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), name);
        until(
            &format!("the default service account of the namespace {name}"),
            STARTUP,
            async || Ok(accounts.get_opt("default").await?.map(|_| ())),
        )
        .await
    }

    /// Stops kube-apiserver, waits, and starts it on the same port with the same certificates. Clients see closed and
    /// then refused connections.
    pub async fn restart_apiserver(&self, down: Duration) -> anyhow::Result<()> {
        let mut apiserver = self.apiserver.lock().await;
        apiserver.stop(WAIT_TIMEOUT).await?;
        tokio::time::sleep(down).await;
        *apiserver = self.apiserver_spec.spawn()?;
        await_apiserver(&self.client, std::slice::from_mut(&mut *apiserver)).await
    }

    /// The Node as stored in etcd, as in a backup.
    pub async fn back_up_node(&self, name: &str) -> anyhow::Result<NodeBackup> {
        let key = ByteString(format!("/registry/minions/{name}").into_bytes());
        let answer = self.ask_etcd("range", &json!({"key": key})).await?;
        let value = answer.pointer("/kvs/0/value").cloned();
        let value = value.with_context(|| format!("etcd holds no Node {name}: {answer}"))?;
        Ok(NodeBackup { key, value })
    }

    /// Writes a Node to etcd directly, with its old UID. This is impossible through the API.
    pub async fn restore_node(&self, backup: &NodeBackup) -> anyhow::Result<()> {
        let put = json!({"key": backup.key, "value": backup.value});
        self.ask_etcd("put", &put).await.map(|_| ())
    }

    /// Removes the history of etcd, as kube-apiserver does every five minutes. A watch from before is refused.
    pub async fn compact_etcd(&self) -> anyhow::Result<()> {
        let answer = self
            .ask_etcd("range", &json!({"key": ByteString(b"/".to_vec())}))
            .await?;
        let revision = answer.pointer("/header/revision").cloned();
        let revision = revision.with_context(|| format!("etcd named no revision: {answer}"))?;
        let compacted = self.ask_etcd("compaction", &json!({"revision": revision})).await;
        compacted.map(|_| ())
    }

    /// Takes a snapshot of etcd. The process is stopped during the copy, so the copy is what a crash would leave.
    pub async fn snapshot_etcd(&self) -> anyhow::Result<EtcdSnapshot> {
        let data = self.dir.join(format!("etcd-snapshot-{}", serial()));
        let etcd = self.etcd.lock().await;
        etcd.signal(Signal::STOP)?;
        let copied = copy_directory(&self.etcd_data.lock().await, &data);
        etcd.signal(Signal::CONT)?;
        copied?;
        Ok(EtcdSnapshot { data })
    }

    /// Restores a snapshot like `etcdutl snapshot restore` without `--bump-revision`: kube-apiserver and etcd stop,
    /// and start with the data of the snapshot on the same ports. Resource versions go back too. Use it only in a
    /// separate cluster.
    pub async fn restore_etcd(&self, snapshot: &EtcdSnapshot) -> anyhow::Result<()> {
        let mut apiserver = self.apiserver.lock().await;
        let mut etcd = self.etcd.lock().await;
        let mut data = self.etcd_data.lock().await;
        apiserver.stop(WAIT_TIMEOUT).await?;
        etcd.stop(WAIT_TIMEOUT).await?;
        *data = self.dir.join(format!("etcd-restored-{}", serial()));
        copy_directory(&snapshot.data, &data)?;
        *etcd = self::etcd(&self.program, &self.dir, &self.etcd_port, &data).spawn()?;
        *apiserver = self.apiserver_spec.spawn()?;
        await_apiserver(&self.client, std::slice::from_mut(&mut *apiserver)).await
    }

    /// Calls etcd's JSON gateway with keys and values in base64.
    async fn ask_etcd(
        &self,
        method: &str,
        question: &serde_json::Value,
    ) -> anyhow::Result<serde_json::Value> {
        let url = format!("http://127.0.0.1:{}/v3/kv/{method}", self.etcd_port.number());
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(5))
            .build()?;
        let asked = client.post(&url).body(question.to_string()).send().await;
        let answer = asked.with_context(|| format!("asking {url}"))?;
        let status = answer.status();
        let text = answer.text().await?;
        if !status.is_success() {
            bail!("{url} answered {status}: {text}");
        }
        serde_json::from_str(&text).with_context(|| format!("reading what {url} answered: {text}"))
    }

    /// Fails with the last output if a process has ended unexpectedly.
    pub async fn check_running(&self) -> anyhow::Result<()> {
        let parts = [&self.etcd, &self.apiserver, &self.controller_manager];
        for part in parts.into_iter().chain(&self.scheduler) {
            part.lock().await.check_running()?;
        }
        Ok(())
    }

    /// All changing requests so far except Leases of nodes, and all requests of ServiceAccounts, in the order of
    /// completion. The API server writes the log before it responds. A watch is included when it has ended.
    pub async fn audit(&self) -> anyhow::Result<Vec<AuditEvent>> {
        let mut events = parse_audit(&self.audit_log().await?)?;
        events
            .retain(|event| !READS.contains(&event.verb.as_str()) || event.user.starts_with(SERVICE_ACCOUNT));
        Ok(events)
    }

    /// The requests of one user in [`Kube::audit`]. The log of a cluster with many scenarios is large, so only their lines are parsed.
    pub async fn audit_of(&self, user: &User) -> anyhow::Result<Vec<AuditEvent>> {
        let log = self.audit_log().await?;
        let name = format!("\"username\":\"{}\"", user.name());
        let lines = log.split_inclusive('\n').filter(|line| line.contains(&name));
        let mut events = parse_audit(&lines.collect::<String>())?;
        events.retain(|event| event.user == user.name() && !READS.contains(&event.verb.as_str()));
        Ok(events)
    }

    /// All requests so far, reads included: a watch from the start of its response, the others from their end. Needs
    /// [`KubeOptions::audit_reads`], or else it is [`Kube::audit`].
    pub async fn requests(&self) -> anyhow::Result<Vec<AuditEvent>> {
        parse_audit(&self.audit_log().await?)
    }

    async fn audit_log(&self) -> anyhow::Result<String> {
        let path = self.dir.join(AUDIT_LOG);
        match tokio::fs::read_to_string(&path).await {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error).with_context(|| format!("reading the audit log {}", path.display())),
        }
    }

    /// Stops the control plane in order and removes its files. Dropping it does so with SIGKILL.
    pub async fn stop(self) -> anyhow::Result<()> {
        if let Some(scheduler) = &self.scheduler {
            scheduler.lock().await.stop(WAIT_TIMEOUT).await?;
        }
        self.controller_manager.lock().await.stop(WAIT_TIMEOUT).await?;
        self.apiserver.lock().await.stop(WAIT_TIMEOUT).await?;
        self.etcd.lock().await.stop(WAIT_TIMEOUT).await?;
        Ok(())
    }
}

const ACCOUNT_KEY: &str = "service-accounts.key";
/// The name of the process, and its first argument.
const APISERVER: &str = "kube-apiserver";
const AUDIT_LOG: &str = "audit.log";
const AUDIT_POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
# Every node renews its Lease once a second, which would bury everything else.
- level: None
  namespaces: [kube-node-lease]
  resources: [{group: coordination.k8s.io, resources: [leases]}]
# Bodies only for the program under test: Secrets and the stand-ins' heartbeats would drown them.
- level: Request
  userGroups: ["haulout"]
  verbs: [create, update, patch, delete, deletecollection]
# A release of the chart runs as a ServiceAccount, and its reads are compared with its rights. Nobody else here is one.
- level: Metadata
  userGroups: ["system:serviceaccounts"]
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
"#;

/// The rules of [`KubeOptions::audit_reads`]. A watch is logged at its start and at its end.
const AUDIT_READS: &str = r#"- level: Metadata
  verbs: [get, list, watch]
"#;

/// The prefix of ServiceAccount names.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The verbs that change nothing.
const READS: [&str; 3] = ["get", "list", "watch"];

/// All controllers that run by default, except these: the TTL controller annotates every Node when their number crosses
/// 100, which in a cluster of many scenarios happens in the middle of others. Controllers that need a cloud or a signing
/// key do not start here.
const CONTROLLERS: &str = "*,-ttl-controller";

fn etcd(program: &Path, dir: &RunDir, port: &Port, data: &Path) -> ProcessSpec {
    let client = format!("http://127.0.0.1:{}", port.number());
    ProcessSpec::new("etcd", program, dir.join("etcd.log"))
        .arg("etcd")
        .arg(format!("--data-dir={}", data.display()))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        // There are no peers, so any port works.
        .args([
            "--listen-peer-urls=http://127.0.0.1:0",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        ])
        .args([
            "--initial-cluster=default=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ])
        .env(REMOVE_AT_EOF, dir.path())
}

/// What every kube-apiserver of a cluster needs.
struct ApiserverFiles {
    program: PathBuf,
    dir: PathBuf,
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    policy: PathBuf,
    account_public: PathBuf,
    account_private: PathBuf,
    /// The certificate and the key by which kubelets know it.
    at_kubelets: (PathBuf, PathBuf),
}

impl ApiserverFiles {
    fn write(
        program: &Path,
        dir: &RunDir,
        authority: &Authority,
        audit_policy: &str,
    ) -> anyhow::Result<Self> {
        let (certificate, key) = authority.issue(dir, APISERVER, Purpose::Server)?;
        let account_key = KeyPair::generate().context("making the service accounts' key")?;
        let purpose = Purpose::Client { group: ADMIN_GROUP };
        Ok(Self {
            program: program.to_owned(),
            dir: dir.path().to_owned(),
            authority: authority.path.clone(),
            certificate,
            key,
            policy: dir.write("audit-policy.yaml", audit_policy)?,
            account_public: dir.write("service-accounts.pub", account_key.public_key_pem())?,
            account_private: dir.write(ACCOUNT_KEY, account_key.serialize_pem())?,
            at_kubelets: authority.issue(dir, "kube-apiserver-at-kubelets", purpose)?,
        })
    }

    /// A kube-apiserver of this name, with its audit log in the file `audit_log`.
    fn spec(&self, name: &str, port: &Port, etcd: SocketAddr, audit_log: &str) -> ProcessSpec {
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        ProcessSpec::new(name, &self.program, self.dir.join(format!("{name}.log")))
            .arg(APISERVER)
            .arg(format!("--etcd-servers=http://{etcd}"))
            .arg(format!("--secure-port={}", port.number()))
            .args([
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none",
            ])
            .arg(format!("--service-cluster-ip-range={SERVICES}"))
            .args([
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--profiling=false",
            ])
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(file("service-account-key-file", &self.account_public))
            .arg(file("service-account-signing-key-file", &self.account_private))
            .arg(file("kubelet-client-certificate", &self.at_kubelets.0))
            .arg(file("kubelet-client-key", &self.at_kubelets.1))
            .arg(file("client-ca-file", &self.authority))
            .arg(file("tls-cert-file", &self.certificate))
            .arg(file("tls-private-key-file", &self.key))
            .arg(file("cert-dir", &self.dir))
            .arg(file("audit-policy-file", &self.policy))
            .arg(file("audit-log-path", &self.dir.join(audit_log)))
            .arg("--audit-log-mode=blocking")
            // In megabytes. The default of 100 would rotate the log and lose counts.
            .arg("--audit-log-maxsize=10000")
    }
}

/// The address of a local port.
fn local(port: &Port) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port.number()).into()
}

fn controller_manager(
    program: &Path,
    dir: &RunDir,
    authority: &Authority,
    kubeconfig: &Path,
    options: &KubeOptions,
) -> ProcessSpec {
    let grace = options.node_monitor_grace;
    ProcessSpec::new(
        "kube-controller-manager",
        program,
        dir.join("kube-controller-manager.log"),
    )
    .arg("kube-controller-manager")
    .arg(format!("--kubeconfig={}", kubeconfig.display()))
    .arg(format!("--controllers={CONTROLLERS}"))
    .arg(format!(
        "--service-account-private-key-file={}",
        dir.join(ACCOUNT_KEY).display()
    ))
    .arg(format!("--root-ca-file={}", authority.path.display()))
    .arg(format!("--node-monitor-grace-period={}ms", grace.as_millis()))
    .arg(format!(
        "--node-startup-grace-period={}ms",
        grace.as_millis().max(4_000)
    ))
    .args([
        "--node-monitor-period=250ms",
        "--leader-elect=false",
        "--secure-port=0",
    ])
    .args(["--kube-api-qps=500", "--kube-api-burst=1000"])
}

fn scheduler(program: &Path, dir: &RunDir, kubeconfig: &Path) -> ProcessSpec {
    ProcessSpec::new("kube-scheduler", program, dir.join("kube-scheduler.log"))
        .arg("kube-scheduler")
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(["--leader-elect=false", "--secure-port=0"])
        .args(["--kube-api-qps=500", "--kube-api-burst=1000"])
}

/// Waits, and fails early if a process that it depends on has ended.
async fn await_with<T>(
    parts: &mut [Process],
    what: &str,
    mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let mut ended = None;
    let seen = until(what, STARTUP, async || {
        if let Err(error) = parts.iter_mut().try_for_each(Process::check_running) {
            ended = Some(error);
            return Ok(Some(None));
        }
        Ok(look().await?.map(Some))
    })
    .await;
    if let Some(error) = ended {
        return Err(error.context(format!("waiting for {what}")));
    }
    match seen {
        Ok(Some(value)) => Ok(value),
        Ok(None) => bail!("waiting for {what} ended without an answer"),
        Err(error) => {
            let words: Vec<String> = parts
                .iter()
                .map(|part| format!("{}:\n{}", part.name(), part.tail()))
                .collect();
            Err(error.context(words.join("\n")))
        }
    }
}

async fn await_apiserver(client: &kube::Client, parts: &mut [Process]) -> anyhow::Result<()> {
    await_with(parts, "kube-apiserver to be ready", async || {
        let request = kube::core::Request::new("").get("readyz", &GetParams::default())?;
        let answer = tokio::time::timeout(Duration::from_secs(5), client.request_text(request)).await??;
        Ok((answer == "ok").then_some(()))
    })
    .await
}

/// Installs the kind NodeMaintenance from the chart's own file.
async fn install_kind(client: &kube::Client) -> anyhow::Result<()> {
    define(client, include_str!("../../../chart/files/crd.yaml"))
        .await
        .context("installing the chart's CRD")
}

/// Creates the CustomResourceDefinition in `text`, and waits until its kind is served.
pub(crate) async fn define(client: &kube::Client, text: &str) -> anyhow::Result<()> {
    let kind: CustomResourceDefinition = serde_saphyr::from_str(text).context("reading the definition")?;
    let name = kind.metadata.name.clone().context("the definition has no name")?;
    let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
    kinds
        .create(&PostParams::default(), &kind)
        .await
        .with_context(|| format!("creating {name}"))?;
    let served = kube::runtime::conditions::is_crd_established();
    let waiting = kube::runtime::wait::await_condition(kinds, &name, served);
    tokio::time::timeout(STARTUP, waiting)
        .await
        .with_context(|| format!("{name} was not served in time"))??;
    Ok(())
}

/// Gives a user or a group these rights with a ClusterRole and a binding `name`.
async fn grant(
    client: &kube::Client,
    name: &str,
    rules: Vec<PolicyRule>,
    subject: &serde_json::Value,
) -> anyhow::Result<()> {
    let metadata = || ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let role = ClusterRole {
        metadata: metadata(),
        rules: Some(rules),
        ..ClusterRole::default()
    };
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": metadata(),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [subject],
    }))
    .context("composing the ClusterRoleBinding")?;
    let params = PostParams::default();
    Api::<ClusterRole>::all(client.clone())
        .create(&params, &role)
        .await
        .with_context(|| format!("creating the ClusterRole {name}"))?;
    Api::<ClusterRoleBinding>::all(client.clone())
        .create(&params, &binding)
        .await
        .with_context(|| format!("creating the ClusterRoleBinding {name}"))?;
    Ok(())
}

fn url(port: &Port) -> String {
    format!("https://127.0.0.1:{}", port.number())
}

fn client_config(
    dir: &RunDir,
    authority: &Authority,
    port: &Port,
    user: &User,
) -> anyhow::Result<kube::Config> {
    let (certificate, key) = authority.issue(dir, &user.name, Purpose::Client { group: user.group })?;
    let address = url(port).parse().context("composing the API server's address")?;
    // Not from a kubeconfig, which would use the proxy variables of the environment.
    let mut config = kube::Config::new(address);
    config.root_cert = Some(vec![authority.der.clone()]);
    config.default_retry = false;
    config.auth_info = AuthInfo {
        client_certificate: Some(certificate.display().to_string()),
        client_key: Some(key.display().to_string()),
        ..AuthInfo::default()
    };
    Ok(config)
}

fn write_kubeconfig(
    dir: &RunDir,
    authority: &Authority,
    port: &Port,
    user: &User,
) -> anyhow::Result<PathBuf> {
    let (certificate, key) = authority.issue(dir, &user.name, Purpose::Client { group: user.group })?;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": url(port), "certificate-authority": authority.path}}],
        "users": [{"name": user.name, "user": {"client-certificate": certificate, "client-key": key}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user.name}}],
        "current-context": "lab",
    });
    // JSON is YAML too, and needs no second serializer.
    dir.write(
        format!("{}-{}.kubeconfig", user.name, port.number()),
        serde_json::to_string_pretty(&config)?,
    )
}

/// A number unique in this process.
fn serial() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

fn copy_directory(from: &Path, to: &Path) -> anyhow::Result<()> {
    let copying = || format!("copying {} to {}", from.display(), to.display());
    std::fs::create_dir_all(to).with_context(copying)?;
    for entry in std::fs::read_dir(from).with_context(copying)? {
        let entry = entry.with_context(copying)?;
        let target = to.join(entry.file_name());
        if entry.file_type().with_context(copying)?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target).with_context(copying)?;
        }
    }
    Ok(())
}

enum Purpose {
    Server,
    Client { group: &'static str },
}

/// The lab's CA, new for each run.
#[derive(Debug)]
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    path: PathBuf,
    der: Vec<u8>,
}

impl Authority {
    fn create(dir: &RunDir) -> anyhow::Result<Self> {
        let key = KeyPair::generate().context("making the authority's key")?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "haulout lab");
        let certificate = params
            .self_signed(&key)
            .context("making the authority's certificate")?;
        let path = dir.write("ca.crt", certificate.pem())?;
        Ok(Self {
            der: certificate.der().to_vec(),
            issuer: Issuer::new(params, key),
            path,
        })
    }

    /// Creates a certificate with its key and returns the paths.
    fn issue(&self, dir: &RunDir, name: &str, purpose: Purpose) -> anyhow::Result<(PathBuf, PathBuf)> {
        if name.is_empty() || name.contains(['/', '\0']) {
            bail!("{name:?} cannot be a user's name here: it becomes a file's name");
        }
        let key = KeyPair::generate().with_context(|| format!("making {name}'s key"))?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = match purpose {
            Purpose::Server => {
                let addresses = [Ipv4Addr::LOCALHOST, GATEWAY, KUBERNETES_SERVICE];
                let addresses = addresses.map(|it| SanType::IpAddress(it.into()));
                let name = SanType::DnsName("localhost".try_into().context("naming localhost")?);
                params.subject_alt_names = addresses.into_iter().chain([name]).collect();
                vec![ExtendedKeyUsagePurpose::ServerAuth]
            }
            Purpose::Client { group } => {
                params.distinguished_name.push(DnType::OrganizationName, group);
                vec![ExtendedKeyUsagePurpose::ClientAuth]
            }
        };
        let certificate = params
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("making {name}'s certificate"))?;
        // A name may be requested twice concurrently, and a reader must not get the certificate of one and the key of
        // the other.
        let serial = serial();
        Ok((
            dir.write(format!("{name}-{serial}.crt"), certificate.pem())?,
            dir.write(format!("{name}-{serial}.key"), key.serialize_pem())?,
        ))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuditLine {
    stage: String,
    #[serde(default, rename = "auditID")]
    audit_id: String,
    verb: String,
    user: AuditUser,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: AuditObject,
    #[serde(default)]
    response_status: AuditStatus,
    request_received_timestamp: jiff::Timestamp,
    stage_timestamp: jiff::Timestamp,
    request_object: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct AuditUser {
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct AuditObject {
    #[serde(default)]
    api_group: String,
    #[serde(default)]
    resource: String,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

#[derive(Deserialize, Default)]
struct AuditStatus {
    #[serde(default)]
    code: u16,
}

fn parse_audit(text: &str) -> anyhow::Result<Vec<AuditEvent>> {
    // The text after the last newline is incomplete.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let read = |line| {
        serde_json::from_str::<AuditLine>(line)
            .with_context(|| format!("reading the audit log's line {line}"))
    };
    let lines = whole
        .lines()
        .map(read)
        .collect::<anyhow::Result<Vec<AuditLine>>>()?;
    // If its start is logged, a watch counts from there; its end is the same request.
    let begun: HashSet<String> = lines
        .iter()
        .filter(|line| line.stage == "ResponseStarted")
        .map(|line| line.audit_id.clone())
        .collect();
    let is_counted = |line: &AuditLine| line.stage == "ResponseComplete" && begun.contains(&line.audit_id);
    Ok(lines
        .into_iter()
        .filter(|line| !is_counted(line))
        .map(|line| AuditEvent {
            verb: line.verb,
            user: line.user.username,
            user_agent: line.user_agent,
            group: line.object_ref.api_group,
            resource: line.object_ref.resource,
            subresource: line.object_ref.subresource,
            namespace: line.object_ref.namespace,
            name: line.object_ref.name,
            code: line.response_status.code,
            received: line.request_received_timestamp,
            answered: line.stage_timestamp,
            object: line.request_object,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::parse_audit;

    #[test]
    fn an_audit_line_that_is_still_being_written_is_left_for_later() {
        let line = r#"{"stage":"ResponseComplete","verb":"create","user":{"username":"haulout"},"objectRef":{"resource":"pods","namespace":"n","name":"p","subresource":"eviction"},"responseStatus":{"code":429},"requestReceivedTimestamp":"2026-11-21T09:00:00.000001Z","stageTimestamp":"2026-11-21T09:00:00.000002Z"}"#;
        let events = parse_audit(&format!("{line}\n{}", &line[..40])).unwrap();
        let [event] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!(
            (event.verb.as_str(), event.code, event.subresource.as_deref()),
            ("create", 429, Some("eviction"))
        );
    }

    #[test]
    fn watch_whose_start_and_end_are_logged_is_one_event() {
        let line = |stage: &str, id: &str| {
            let user = r#""user":{"username":"haulout"}"#;
            let times = r#""requestReceivedTimestamp":"2026-11-21T09:00:00Z","stageTimestamp":"2026-11-21T09:00:01Z""#;
            format!("{{\"stage\":\"{stage}\",\"auditID\":\"{id}\",\"verb\":\"watch\",{user},{times}}}\n")
        };
        let log = [
            line("ResponseStarted", "a"),
            line("ResponseComplete", "a"),
            line("ResponseComplete", "b"),
        ];
        assert_eq!(parse_audit(&log.concat()).unwrap().len(), 2);
    }
}
