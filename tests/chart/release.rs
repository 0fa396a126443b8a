//! A release of the chart in the lab's cluster, and the program with the settings of its Deployment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use haulout_lab::fixture::{Fixture, Member, TEST_TIMINGS, WAIT_TIMEOUT, label};
use haulout_lab::kube::{AuditEvent, Kube, KubeOptions, User};
use haulout_lab::ports::Port;
use haulout_lab::process::{Process, ProcessSpec};
use haulout_lab::run_dir::RunDir;
use haulout_lab::vcenter::{ClusterSpec, DeviceSpec, Gpu, HostSpec, Spec, VmSpec};
use haulout_lab::wait::until;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Container, Namespace, PodSpec, Secret, ServiceAccount, Volume};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::helm;

/// The cluster ends with this process, because its parts read our end of their stdin.
static KUBE: OnceCell<Kube> = OnceCell::const_new();

/// The cluster of the chart's tests. It has no scheduler: no kubelet runs the pods of a release, so they would hold the drains of
/// each other's nodes by the release's PodDisruptionBudget.
pub async fn kube() -> &'static Kube {
    KUBE.get_or_init(async || {
        let options = KubeOptions {
            with_scheduler: false,
            ..KubeOptions::default()
        };
        Kube::start(&options).await.expect("starting the cluster")
    })
    .await
}

/// The PCI id of an NVIDIA A40.
const A40: u16 = 0x2235;

/// A fixture of one node `gpu1` on the first of these hosts, each of which has one matching device.
pub async fn fixture(name: &str, uuid: &str, hosts: &[&str]) -> anyhow::Result<Fixture<'static>> {
    let spec = spec(hosts, &[("gpu1", uuid, hosts[0])]);
    let members = vec![Member::new(name, "gpu1", uuid)];
    Fixture::create(kube().await, name, &spec, members, true).await
}

/// These hosts with one device each, and VMs with a name, a UUID and a host.
pub fn spec(hosts: &[&str], vms: &[(&str, &str, &str)]) -> Spec {
    let device = DeviceSpec::gpu("0000:01:00.0".to_owned(), A40);
    Spec {
        clusters: vec![ClusterSpec {
            name: "c1".to_owned(),
            hosts: hosts
                .iter()
                .map(|host| HostSpec {
                    name: (*host).to_owned(),
                    devices: vec![device.clone()],
                    datastores: vec!["ds1".to_owned()],
                    ..HostSpec::default()
                })
                .collect(),
            ..ClusterSpec::default()
        }],
        vms: vms
            .iter()
            .map(|(name, uuid, host)| VmSpec {
                name: (*name).to_owned(),
                uuid: (*uuid).to_owned(),
                host: (*host).to_owned(),
                gpu: Gpu::nvidia(A40),
                ..VmSpec::default()
            })
            .collect(),
        ..Spec::default()
    }
}

/// Creates a namespace with the Pod Security level `restricted`.
pub async fn restricted_namespace(client: &kube::Client, name: &str) -> anyhow::Result<()> {
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([(
                "pod-security.kubernetes.io/enforce".to_owned(),
                "restricted".to_owned(),
            )])),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .with_context(|| format!("creating the namespace {name}"))?;
    Ok(())
}

/// Whether the program has a setting.
fn knows(setting: &str) -> bool {
    use clap::CommandFactory as _;
    let command = haulout::cli::Cli::command();
    let run = command.find_subcommand("run").unwrap();
    run.get_arguments()
        .any(|argument| argument.get_env().is_some_and(|name| name == setting))
}

/// A release with the name of its fixture, in its own namespace.
pub struct Release<'s> {
    pub namespace: String,
    fixture: &'s Fixture<'static>,
    /// The cluster into which it is installed.
    kube: &'static Kube,
    /// The kubeconfig for helm.
    kubeconfig: PathBuf,
    values: PathBuf,
    name: String,
    dir: RunDir,
}

/// A program that was started from a Deployment.
pub struct Replica {
    process: Process,
    health: Option<(Port, Vec<String>)>,
}

impl<'s> Release<'s> {
    /// Prepares a release: its namespace, and the values for the fixture's vCenter, with the lab's short
    /// intervals. Nothing is installed.
    pub async fn prepare(fixture: &'s Fixture<'static>) -> anyhow::Result<Self> {
        Self::prepare_in(fixture, fixture.kube).await
    }

    /// As [`Self::prepare`], in another cluster than that of the nodes.
    pub async fn prepare_in(fixture: &'s Fixture<'static>, kube: &'static Kube) -> anyhow::Result<Self> {
        let namespace = format!("{}-release", fixture.name());
        restricted_namespace(&kube.client(), &namespace).await?;
        // The vCenter of a fixture has a certificate of the fixture's cluster.
        let authority = std::fs::read_to_string(fixture.kube.authority())?;
        let ca: ConfigMap = serde_json::from_value(json!({
            "metadata": {"name": "vcenter-ca"}, "data": {"ca.pem": authority},
        }))?;
        Api::namespaced(kube.client(), &namespace)
            .create(&PostParams::default(), &ca)
            .await?;
        let mut values = json!({
            "vcenter": {
                "host": fixture.vcenter.sdk(),
                "user": fixture.vcenter.user(),
                "password": fixture.vcenter.password(),
                "caBundle": {"configMapName": "vcenter-ca"},
            },
            "config": {
                "gpuNodeLabel": format!("{}=true", label(fixture.name())),
                "pollIntervalSeconds": 1, "drainTimeoutSeconds": 120,
                "guestShutdownTimeoutSeconds": 30, "powerOnTimeoutSeconds": 60, "logFormat": "text",
            },
            "extraEnv": [{"name": TEST_TIMINGS, "value": "eviction_retry=1,retry_max=1"}],
        });
        if knows("LEADER_ELECTION") {
            values["leaderElection"] = json!({"durationSeconds": 3, "renewDeadlineSeconds": 2});
        } else {
            values["leaderElection"] = json!({"enabled": false});
            values["replicaCount"] = json!(1);
        }
        let dir = RunDir::create()?;
        Ok(Self {
            kubeconfig: kube.kubeconfig(&User::admin("helm"))?,
            values: dir.write("values.json", values.to_string())?,
            name: fixture.name().to_owned(),
            namespace,
            fixture,
            kube,
            dir,
        })
    }

    /// The name of the release.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs helm in this release's namespace.
    pub fn helm(&self, args: &[&str]) -> String {
        let mut all = args.to_vec();
        all.extend([
            "--namespace",
            &self.namespace,
            "--kubeconfig",
            self.kubeconfig.to_str().unwrap(),
        ]);
        helm::succeed("helm", &all)
    }

    /// Installs the chart or upgrades to it, with these values in addition.
    pub fn upgrade(&self, set: &[&str]) {
        // All releases of a cluster share the kind, and many scenarios share this cluster.
        self.upgrade_with(&["--take-ownership"], set);
    }

    /// As [`Self::upgrade`], with these flags of helm.
    pub fn upgrade_with(&self, flags: &[&str], set: &[&str]) {
        let chart = helm::chart();
        let mut args = vec!["upgrade", "--install", &self.name, chart.to_str().unwrap()];
        args.extend(flags);
        args.extend(["-f", self.values.to_str().unwrap()]);
        args.extend(set.iter().flat_map(|value| ["--set", value]));
        self.helm(&args);
    }

    /// The flags by which helm installs this release: its values, namespace and cluster.
    pub fn helm_flags(&self) -> [&str; 6] {
        [
            "-f",
            folder(&self.values),
            "--namespace",
            &self.namespace,
            "--kubeconfig",
            folder(&self.kubeconfig),
        ]
    }

    /// The one Deployment of the release.
    pub async fn deployment(&self) -> anyhow::Result<Deployment> {
        let deployments: Api<Deployment> = Api::namespaced(self.kube.client(), &self.namespace);
        let mut all = deployments.list(&Default::default()).await?.items;
        ensure!(all.len() == 1, "{} Deployments", all.len());
        all.pop().context("there is a Deployment")
    }

    /// Waits until the pods of the Deployment are created. Pod Security refuses pods that are not restricted.
    pub async fn wait_admitted(&self) -> anyhow::Result<()> {
        until(
            "the pods of the release to be admitted",
            WAIT_TIMEOUT,
            async || {
                let deployment = self.deployment().await?;
                let wanted = deployment.spec.replicas;
                let made = deployment.status.and_then(|status| status.replicas);
                Ok((made.is_some() && made == wanted).then_some(()))
            },
        )
        .await
    }

    /// The user name of the release at the kube-apiserver.
    pub async fn user(&self) -> anyhow::Result<String> {
        let account = pod_spec(&self.deployment().await?)?
            .service_account_name
            .context("the pod has a ServiceAccount")?;
        Ok(format!("system:serviceaccount:{}:{account}", self.namespace))
    }

    /// A token of the release's ServiceAccount.
    pub async fn token(&self) -> anyhow::Result<String> {
        let account = pod_spec(&self.deployment().await?)?
            .service_account_name
            .context("the pod has a ServiceAccount")?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.kube.client(), &self.namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(vec!["https://kubernetes.default.svc".to_owned()]),
                expiration_seconds: Some(3600),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(&account, &PostParams::default(), &request)
            .await?;
        let status = answer.status.context("the token has a status")?;
        status.token.context("the token is set")
    }

    /// A client with the rights of the release.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        let kubeconfig = kube::config::Kubeconfig::read_from(self.kubeconfig_of_pod().await?)?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
        Ok(kube::Client::try_from(config)?)
    }

    /// Replaces the token that the kubelet mounts, whose path is fixed in the program.
    async fn kubeconfig_of_pod(&self) -> anyhow::Result<PathBuf> {
        self.kubeconfig_with(&self.token().await?)
    }

    /// Writes a kubeconfig with this token.
    pub fn kubeconfig_with(&self, token: &str) -> anyhow::Result<PathBuf> {
        let cluster = json!({"server": self.kube.url(), "certificate-authority": self.kube.authority()});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "pod",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "pod", "user": {"token": token}}],
            "contexts": [{"name": "pod", "context": {"cluster": "lab", "user": "pod"}}],
        });
        self.dir.write("pod.kubeconfig", config.to_string())
    }

    /// Starts the program as the kubelet does: with the arguments, environment and files of the Deployment. The files are in
    /// our own directory, and the program listens on loopback addresses.
    pub async fn start(&self) -> anyhow::Result<Replica> {
        self.start_with(&[]).await
    }

    /// As [`Self::start`], with these variables in addition.
    pub async fn start_with(&self, changes: &[(&str, String)]) -> anyhow::Result<Replica> {
        let deployment = self.deployment().await?;
        let pod = pod_spec(&deployment)?;
        let [container] = pod.containers.as_slice() else {
            bail!("one container is expected");
        };
        let mounts = self
            .mount(container, pod.volumes.as_deref().unwrap_or_default())
            .await?;
        let mut environment = self.environment(container).await?;
        for value in environment.values_mut() {
            for (path, ours) in &mounts {
                if value.starts_with(path) {
                    *value = value.replacen(path, ours, 1);
                }
            }
        }
        let paths: Vec<String> = [&container.liveness_probe, &container.readiness_probe]
            .into_iter()
            .flatten()
            .filter_map(|probe| probe.http_get.as_ref()?.path.clone())
            .collect();
        ensure!(paths.len() == 2, "probes of {paths:?}");
        let health = Port::reserve()?;
        let rewritten = [
            ("METRICS_ADDRESS", "off".to_owned()),
            ("STATUS_ADDRESS", "off".to_owned()),
            ("HEALTH_ADDRESS", format!("127.0.0.1:{}", health.number())),
            ("HTTPS_PROXY", String::new()),
            ("https_proxy", String::new()),
        ];
        // A kubeconfig of the chart is one of the files; without one, the kubelet would mount a token.
        if !environment.contains_key("KUBECONFIG") {
            let ours = self.kubeconfig_of_pod().await?.display().to_string();
            environment.insert("KUBECONFIG".to_owned(), ours);
        }
        // The same token, for the Lease.
        if environment
            .get("LEASE_KUBECONFIG")
            .is_some_and(|value| value == "in-cluster")
        {
            let ours = self.kubeconfig_of_pod().await?.display().to_string();
            environment.insert("LEASE_KUBECONFIG".to_owned(), ours);
        }
        environment.extend(rewritten.map(|(name, value)| (name.to_owned(), value)));
        for (name, value) in changes {
            environment.insert((*name).to_owned(), value.clone());
        }
        let mut spec = ProcessSpec::leashed("haulout", env!("CARGO_BIN_EXE_haulout"), self.fixture.log())
            .args(container.args.as_deref().unwrap_or_default());
        for (name, value) in environment {
            spec = spec.env(name, value);
        }
        Ok(Replica {
            process: spec.spawn()?,
            health: Some((health, paths)),
        })
    }

    /// Writes the content of the volumes, and returns the path of each mount.
    async fn mount(
        &self,
        container: &Container,
        volumes: &[Volume],
    ) -> anyhow::Result<Vec<(String, String)>> {
        let client = self.kube.client();
        let mut mounts = Vec::new();
        for mount in container.volume_mounts.iter().flatten() {
            let volume = volumes
                .iter()
                .find(|volume| volume.name == mount.name)
                .with_context(|| format!("no volume {}", mount.name))?;
            let (content, items): (BTreeMap<String, Vec<u8>>, _) = if let Some(secret) = &volume.secret {
                let name = secret.secret_name.as_deref().context("a Secret's name")?;
                let api: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
                let data = api.get(name).await?.data.unwrap_or_default();
                (
                    data.into_iter().map(|(key, value)| (key, value.0)).collect(),
                    &secret.items,
                )
            } else if let Some(map) = &volume.config_map {
                let api: Api<ConfigMap> = Api::namespaced(client.clone(), &self.namespace);
                let data = api.get(&map.name).await?.data.unwrap_or_default();
                (
                    data.into_iter()
                        .map(|(key, value)| (key, value.into_bytes()))
                        .collect(),
                    &map.items,
                )
            } else {
                bail!("{} is no Secret and no ConfigMap", volume.name);
            };
            let folder = self.dir.join(&mount.name);
            std::fs::create_dir_all(&folder)?;
            for item in items.iter().flatten() {
                let value = content
                    .get(&item.key)
                    .with_context(|| format!("{} has no {}", volume.name, item.key))?;
                std::fs::write(folder.join(&item.path), value)?;
            }
            mounts.push((mount.mount_path.clone(), folder.display().to_string()));
        }
        Ok(mounts)
    }

    async fn environment(&self, container: &Container) -> anyhow::Result<BTreeMap<String, String>> {
        let client = self.kube.client();
        let maps: Api<ConfigMap> = Api::namespaced(client, &self.namespace);
        let mut environment = BTreeMap::new();
        for source in container.env_from.iter().flatten() {
            let map = source.config_map_ref.as_ref().context("a ConfigMap")?;
            environment.extend(maps.get(&map.name).await?.data.unwrap_or_default());
        }
        for variable in container.env.iter().flatten() {
            let field = variable
                .value_from
                .as_ref()
                .and_then(|from| Some(from.field_ref.as_ref()?.field_path.as_str()));
            let value = match (field, &variable.value) {
                (Some("metadata.name"), None) => format!("{}-0", self.name),
                (Some("metadata.namespace"), None) => self.namespace.clone(),
                (None, Some(value)) => value.clone(),
                (other, _) => bail!("{} is made of {other:?}", variable.name),
            };
            environment.insert(variable.name.clone(), value);
        }
        Ok(environment)
    }

    /// All requests of the release to the kube-apiserver.
    pub async fn audit(&self) -> anyhow::Result<Vec<AuditEvent>> {
        let user = self.user().await?;
        let all = self.kube.audit().await?;
        Ok(all.into_iter().filter(|event| event.user == user).collect())
    }
}

impl Replica {
    /// The port of the probes.
    pub fn health_port(&self) -> Option<u16> {
        self.health.as_ref().map(|(port, _)| port.number())
    }

    /// Waits until both probes pass.
    pub async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let (port, paths) = self.health.as_ref().context("it has a health port")?;
        let client = reqwest::Client::builder().no_proxy().build()?;
        for path in paths {
            let url = format!("http://127.0.0.1:{}{path}", port.number());
            until(&format!("{url} to answer 200"), WAIT_TIMEOUT, async || {
                let answer = client.get(&url).send().await?;
                Ok((answer.status() == 200).then_some(()))
            })
            .await
            .with_context(|| self.process.tail())?;
        }
        self.process.check_running()
    }

    /// Stops it as Kubernetes does, within the grace period of the pod.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let status = self.process.stop(std::time::Duration::from_secs(15)).await?;
        ensure!(status.success(), "haulout exited with {status} after SIGTERM");
        Ok(())
    }
}

pub fn pod_spec(deployment: &Deployment) -> anyhow::Result<PodSpec> {
    let template = deployment.spec.template.clone();
    template.spec.context("a Deployment's pods have a spec")
}

/// The path of a chart's folder, for helm.
pub fn folder(path: &Path) -> &str {
    path.to_str().expect("the path is text")
}
