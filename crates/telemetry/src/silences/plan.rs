//! What has to be asked of Alertmanager.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{SilentEpisode, SilentNodes};
use crate::silences::matchers::LabelMatcher;
use haulout_core::ids::NodeName;
use haulout_core::maintenance::clock::whole_second;

/// The alerts of Haulout itself, which tell when a maintenance needs a person.
const OWN_ALERTS: &str = "Haulout.*";

/// What the comment of a silence says before the id of its episode.
const EPISODE: &str = "episode ";

/// The longest id that is used. Alertmanager's are UUIDs.
const ID_CHARS_MAX: usize = 64;

/// How silences look.
#[derive(Clone, Debug)]
pub struct SilenceRules {
    /// Who makes them: by it, those of this release are known.
    pub created_by: String,
    /// The label with the name of the node.
    pub node_label: String,
    /// Further matchers.
    pub matchers: Vec<LabelMatcher>,
    /// How long one lasts unless it is renewed.
    pub lasts: Duration,
}

/// A silence that Alertmanager has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FoundSilence {
    pub id: String,
    pub status: SilenceStatus,
    pub matchers: Vec<LabelMatcher>,
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
    pub created_by: String,
    pub comment: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SilenceStatus {
    /// `active`, `pending` or `expired`.
    pub state: String,
}

/// A silence to be made, or to be renewed if it has an id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PostedSilence {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub matchers: Vec<LabelMatcher>,
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
    pub created_by: String,
    pub comment: String,
    #[serde(skip)]
    pub node: NodeName,
}

/// A request that changes something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SilenceCall {
    Post(PostedSilence),
    Delete { node: NodeName, id: String },
}

impl SilenceCall {
    pub fn node(&self) -> &NodeName {
        match self {
            Self::Post(silence) => &silence.node,
            Self::Delete { node, .. } => node,
        }
    }

    /// What was done.
    pub fn words(&self) -> String {
        match self {
            Self::Post(PostedSilence {
                id: None, ends_at, ..
            }) => {
                format!("the alerts of the node are silenced until {ends_at}")
            }
            Self::Post(PostedSilence {
                id: Some(id),
                ends_at,
                ..
            }) => {
                format!("silence {id} is renewed until {ends_at}")
            }
            Self::Delete { id, .. } => format!("silence {id} is ended"),
        }
    }
}

impl FoundSilence {
    fn is_over(&self) -> bool {
        self.status.state == "expired"
    }

    fn episode(&self) -> Option<&str> {
        Some(self.comment.rsplit_once(EPISODE)?.1)
    }

    /// Whether a person ended it before its time. Ends that Haulout sets are whole seconds; one that is set by hand is the moment of
    /// the click.
    fn was_ended_by_hand(&self) -> bool {
        self.is_over() && whole_second(self.ends_at) != self.ends_at
    }
}

impl SilenceRules {
    /// The interval in which silences are renewed: two attempts may fail before one ends.
    pub fn renewed_every(&self) -> Duration {
        self.lasts / 3
    }

    /// What differs between the silences that `nodes` should have and the ones that Alertmanager has. Silences of others, and those
    /// of nodes that this cluster does not have, are left alone.
    pub(super) fn calls(
        &self,
        nodes: &SilentNodes,
        found: &[FoundSilence],
        now: Timestamp,
    ) -> Vec<SilenceCall> {
        let (mut posts, mut deletes) = (Vec::new(), Vec::new());
        for (node, episode) in nodes {
            let matchers = self.matchers(node);
            let is_ours = |silence: &&FoundSilence| {
                silence.created_by == self.created_by && silence.matchers == matchers && is_id(&silence.id)
            };
            let mut ours: Vec<&FoundSilence> = found.iter().filter(is_ours).collect();
            // The one that lasts longest first.
            ours.sort_by_key(|silence| std::cmp::Reverse(silence.ends_at));
            let is_of_episode = |silence: &&FoundSilence| {
                let id = episode.as_ref().map(|episode| episode.id.as_str());
                id.is_some() && silence.episode() == id
            };
            let kept = ours.iter().copied().find(|it| !it.is_over() && is_of_episode(it));
            let last = ours.iter().copied().find(is_of_episode);
            if let Some(episode) = episode
                && kept.is_none_or(|kept| self.is_renewal_due(kept, now))
                && (kept.is_some() || !last.is_some_and(FoundSilence::was_ended_by_hand))
            {
                posts.push(SilenceCall::Post(self.silence(node, episode, kept, now)));
            }
            let others = ours
                .iter()
                .filter(|it| !it.is_over() && Some(it.id.as_str()) != kept.map(|kept| kept.id.as_str()));
            deletes.extend(others.map(|silence| SilenceCall::Delete {
                node: node.clone(),
                id: silence.id.clone(),
            }));
        }
        posts.into_iter().chain(deletes).collect()
    }

    /// A little before the interval is over, so that a look at its end finds it due.
    fn is_renewal_due(&self, silence: &FoundSilence, now: Timestamp) -> bool {
        let left = silence.ends_at.duration_since(now);
        left <= signed(self.lasts) - signed(self.renewed_every()) + SignedDuration::from_secs(2)
    }

    fn silence(
        &self,
        node: &NodeName,
        episode: &SilentEpisode,
        renewed: Option<&FoundSilence>,
        now: Timestamp,
    ) -> PostedSilence {
        PostedSilence {
            id: renewed.map(|silence| silence.id.clone()),
            matchers: self.matchers(node),
            // A renewal with another start would be another silence. One in the past begins at once, whatever the clocks are.
            starts_at: renewed.map_or(now - signed(self.lasts), |silence| silence.starts_at),
            ends_at: whole_second(now + signed(self.lasts)),
            created_by: self.created_by.clone(),
            comment: format!(
                "Maintenance of node {node} on host {}, {EPISODE}{}",
                episode.host, episode.id
            ),
            node: node.clone(),
        }
    }

    fn matchers(&self, node: &NodeName) -> Vec<LabelMatcher> {
        let of_node = LabelMatcher {
            name: self.node_label.clone(),
            value: node.to_string(),
            is_regex: false,
            is_equal: true,
        };
        let others = [but_own_alerts()]
            .into_iter()
            .chain(self.matchers.iter().cloned());
        [of_node].into_iter().chain(others).collect()
    }
}

/// Excludes the alerts of Haulout. Every silence has it.
pub(super) fn but_own_alerts() -> LabelMatcher {
    LabelMatcher {
        name: "alertname".to_owned(),
        value: OWN_ALERTS.to_owned(),
        is_regex: true,
        is_equal: false,
    }
}

/// Whether it can stand in the path of an address.
fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= ID_CHARS_MAX && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
