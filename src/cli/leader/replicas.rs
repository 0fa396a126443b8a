//! Finds the pods of Haulout that serve the status page.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use anyhow::bail;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::kubernetes::answer::{ApiRefusal, plain};
use crate::kubernetes::reads;

/// The label with the name of the release.
const INSTANCE: &str = "app.kubernetes.io/instance";

/// The name of the port of the status page in the chart.
const PORT: &str = "status";

/// A Helm release.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Release {
    namespace: String,
    name: String,
}

impl FromStr for Release {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            _ => Err("NAMESPACE/NAME is expected, such as haulout/haulout"),
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", plain(&self.namespace), plain(&self.name))
    }
}

/// A pod with a status page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) port: u16,
    release: Release,
}

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod/{}", plain(&self.pod))
    }
}

/// The replicas of the one release, or of `wanted`.
///
/// # Errors
/// If pods cannot be listed, or there is no release or several.
pub(super) async fn find(client: &kube::Client, wanted: Option<&Release>) -> anyhow::Result<Vec<Replica>> {
    let namespace = wanted.map(|release| release.namespace.as_str());
    let pods = reads::controller_pods(client, namespace).await.map_err(|error| {
        let hint = match wanted {
            Some(_) => "",
            None => "; --release NAMESPACE/NAME looks in one namespace only",
        };
        anyhow::Error::new(error).context(format!(
            "looking for the pods of Haulout, which answer this{hint}; see docs/how-to/plan.md for the rights"
        ))
    })?;
    choose(&pods, wanted)
}

fn choose(pods: &[Pod], wanted: Option<&Release>) -> anyhow::Result<Vec<Replica>> {
    let mut replicas: Vec<Replica> = pods.iter().filter_map(replica).collect();
    if let Some(wanted) = wanted {
        replicas.retain(|replica| replica.release == *wanted);
    }
    let releases: BTreeSet<&Release> = replicas.iter().map(|replica| &replica.release).collect();
    if releases.len() > 1 {
        let names = releases.iter().map(|release| format!("--release {release}"));
        bail!(
            "several releases of Haulout are in this cluster; choose one: {}",
            names.collect::<Vec<_>>().join(", ")
        );
    }
    if replicas.is_empty() {
        let of = wanted.map(|release| format!(" of release {release}"));
        bail!(
            "no running pod of Haulout with a status page was found{}: is it installed here, with statusPage.enabled? \
             Name a page elsewhere by --status-url",
            of.unwrap_or_default()
        );
    }
    Ok(replicas)
}

/// The pod as replica, if it runs and serves the status page.
fn replica(pod: &Pod) -> Option<Replica> {
    if pod.status.as_ref()?.phase.as_deref() != Some("Running") || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(PORT))?;
    let namespace = pod.namespace()?;
    Some(Replica {
        port: u16::try_from(port.container_port).ok()?,
        pod: pod.name_any(),
        release: Release {
            namespace: namespace.clone(),
            name: pod.labels().get(INSTANCE).cloned().unwrap_or_default(),
        },
        namespace,
    })
}

/// What to grant if the port-forward is forbidden.
pub(super) fn forbidden(replica: &Replica, refusal: &ApiRefusal) -> String {
    let namespace = plain(&replica.namespace);
    format!(
        "the leader is asked by a port-forward to its pod, which is forbidden: {refusal}. In the namespace {namespace}, get and \
         create on pods/portforward and list on pods are needed (docs/how-to/plan.md has the Role); or name the status page by \
         --status-url"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, release: &str, name: &str) -> serde_json::Value {
        json!({
            "metadata": {"namespace": namespace, "name": name, "labels": {INSTANCE: release}},
            "spec": {"containers": [{"name": "haulout", "ports": [
                {"name": "metrics", "containerPort": 8080},
                {"name": "status", "containerPort": 8082},
            ]}]},
            "status": {"phase": "Running"},
        })
    }

    fn chosen(pods: &[serde_json::Value], wanted: Option<&str>) -> Result<Vec<String>, String> {
        let pods: Vec<Pod> = pods
            .iter()
            .map(|pod| serde_json::from_value(pod.clone()).unwrap())
            .collect();
        let wanted: Option<Release> = wanted.map(|text| text.parse().unwrap());
        let found = choose(&pods, wanted.as_ref()).map_err(|error| error.to_string())?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn running_pods_with_a_status_page_are_asked() {
        let mut pending = pod("haulout", "haulout", "pending");
        pending["status"]["phase"] = "Pending".into();
        let mut sentinel = pod("haulout", "haulout", "sentinel");
        sentinel["spec"]["containers"][0]["ports"] = json!([]);
        let mut deleted = pod("haulout", "haulout", "deleted");
        deleted["metadata"]["deletionTimestamp"] = "2026-11-28T00:00:00Z".into();
        let pods = [
            pod("haulout", "haulout", "a"),
            pending,
            sentinel,
            deleted,
            pod("haulout", "haulout", "b"),
        ];
        assert_eq!(chosen(&pods, None).unwrap(), ["pod/a", "pod/b"]);
        let none = chosen(&pods[1..4], None).unwrap_err();
        assert!(none.contains("statusPage.enabled"), "{none}");
    }

    #[test]
    fn one_of_several_releases_is_chosen_by_its_name() {
        let pods = [
            pod("haulout", "haulout", "a"),
            pod("haulout", "tenant", "b"),
            pod("other", "haulout", "c"),
        ];
        assert_eq!(
            chosen(&pods, None).unwrap_err(),
            "several releases of Haulout are in this cluster; choose one: --release haulout/haulout, --release haulout/tenant, \
             --release other/haulout"
        );
        assert_eq!(chosen(&pods, Some("haulout/tenant")).unwrap(), ["pod/b"]);
        assert!(chosen(&pods, Some("haulout/none")).is_err());
        assert!("haulout".parse::<Release>().is_err() && "/x".parse::<Release>().is_err());
    }
}
