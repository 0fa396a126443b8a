//! The Job of one validation, from the template of the administrator. Pure, but for reading the file.

use std::path::Path;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Toleration,
};

use crate::ids::{BootId, EpisodeId, NodeName};
use crate::keys::{MAINTENANCE_TAINT, VALIDATED_NODE};
use crate::kubernetes::answer::plain;

/// The longest template: a ConfigMap has at most 1 MiB.
const TEMPLATE_BYTES_MAX: u64 = 1024 * 1024;

/// The number of digits of an episode's id and of a boot id in the name of a Job.
const DIGITS: usize = 12;

/// A Job that validates a node, without the node.
#[derive(Clone, Debug)]
pub struct ValidationTemplate {
    job: Job,
    spec: JobSpec,
    namespace: String,
}

/// The state of a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JobState {
    Running,
    Succeeded,
    Failed(String),
}

impl ValidationTemplate {
    /// Reads the file. The namespace is that of the Job, or `default_namespace`.
    ///
    /// # Errors
    /// When the file cannot be read, or is no Job.
    pub fn read(path: &Path, default_namespace: &str) -> Result<Self, String> {
        let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
        if length > TEMPLATE_BYTES_MAX {
            return Err(format!("it has more than {TEMPLATE_BYTES_MAX} bytes"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        Self::parse(&text, default_namespace)
    }

    pub(super) fn parse(text: &str, default_namespace: &str) -> Result<Self, String> {
        let job: Job =
            serde_json::from_str(text).map_err(|error| format!("a Job as JSON is expected: {error}"))?;
        let spec = job.spec.clone().ok_or("the Job has no spec")?;
        let pod = spec.template.spec.as_ref().ok_or("the Job has no pod template")?;
        if pod.containers.is_empty() {
            return Err("the Job has no container".to_owned());
        }
        let namespace = job.metadata.namespace.clone();
        Ok(Self {
            namespace: namespace.unwrap_or_else(|| default_namespace.to_owned()),
            spec,
            job,
        })
    }

    /// The namespace of the Jobs.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The Job of this name for a node. The scheduler binds its pod, so that GPUs are counted, but to that node only.
    pub(super) fn job(&self, name: &str, node: &NodeName) -> Job {
        let mut job = self.job.clone();
        job.metadata.name = Some(name.to_owned());
        job.metadata.generate_name = None;
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(VALIDATED_NODE.to_owned(), node.to_string());
        let mut spec = self.spec.clone();
        let pod = spec.template.spec.get_or_insert_default();
        let tolerated = ["node.kubernetes.io/unschedulable", MAINTENANCE_TAINT];
        let tolerations = pod.tolerations.get_or_insert_default();
        tolerations.extend(tolerated.map(|key| Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some("NoSchedule".to_owned()),
            ..Toleration::default()
        }));
        // The name of a Node need not be the value of its label kubernetes.io/hostname.
        let term = NodeSelectorTerm {
            match_fields: Some(vec![NodeSelectorRequirement {
                key: "metadata.name".to_owned(),
                operator: "In".to_owned(),
                values: Some(vec![node.to_string()]),
            }]),
            match_expressions: None,
        };
        let affinity = pod.affinity.get_or_insert_with(Affinity::default);
        affinity.node_affinity = Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            ..NodeAffinity::default()
        });
        job.spec = Some(spec);
        job
    }
}

/// The name of the Job of an episode on this boot: after another power cycle, the node is validated again.
pub(crate) fn job_name(episode: &EpisodeId, boot: Option<&BootId>) -> String {
    let digits = |text: &str| -> String {
        let digits = text.chars().map(|c| c.to_ascii_lowercase());
        digits.filter(char::is_ascii_hexdigit).take(DIGITS).collect()
    };
    let boot = boot.map(|boot| digits(boot.as_str())).unwrap_or_default();
    let name = format!("haulout-validation-{}-{boot}", digits(episode.as_str()));
    name.trim_end_matches('-').to_owned()
}

pub(super) fn state_of(job: &Job) -> JobState {
    let conditions = job
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut is = conditions.filter(|condition| condition.status == "True");
    let ended = is.find(|condition| ["Complete", "Failed"].contains(&condition.type_.as_str()));
    match ended {
        None => JobState::Running,
        Some(ended) if ended.type_ == "Complete" => JobState::Succeeded,
        Some(ended) => {
            let why = ended.message.as_ref().or(ended.reason.as_ref());
            JobState::Failed(plain(why.map_or("it has failed", String::as_str)))
        }
    }
}
