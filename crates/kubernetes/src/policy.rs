//! What the annotations of a pod and of its namespace ask of a drain. Pure.
//!
//! Those who may write a pod are not trusted: `wait` is limited by a setting, and with `skip` only the pod itself loses.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use thiserror::Error;

use super::answer::plain;
use crate::keys::{DRAIN, DRAIN_WAIT_SECONDS};

/// The longest part of an unreadable value that is shown.
const SHOWN_CHARS: usize = 40;

/// The two annotations of a pod or a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainAnnotations {
    drain: Option<String>,
    wait_seconds: Option<String>,
}

/// What a drain does with a pod that would be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainPolicy {
    Evict,
    /// It may end by itself until this long after the beginning of the drain, and is evicted then. `None` means as long as the
    /// settings allow.
    Wait(Option<Duration>),
    /// It is left on the node, and ends with the VM.
    Skip,
}

/// An annotation that cannot be read. The pod is evicted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}={value:?} is not {expected}, so the pod is evicted")]
pub struct UnreadablePolicy {
    key: &'static str,
    value: String,
    expected: &'static str,
}

impl DrainAnnotations {
    pub fn of(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let value = |key: &str| annotations.and_then(|all| all.get(key)).cloned();
        Self {
            drain: value(DRAIN),
            wait_seconds: value(DRAIN_WAIT_SECONDS),
        }
    }

    pub fn of_pod(pod: &Pod) -> Self {
        Self::of(pod.metadata.annotations.as_ref())
    }

    /// Whether the annotations of the namespace matter for a pod with these.
    pub fn need_namespace(&self) -> bool {
        match self.drain.as_deref() {
            None => true,
            Some("wait") => self.wait_seconds.is_none(),
            Some(_) => false,
        }
    }

    /// The policy of a pod with these annotations in a namespace with those of `namespace`. Each annotation of the pod goes before the
    /// same one of its namespace.
    pub fn policy(&self, namespace: &Self) -> Result<DrainPolicy, UnreadablePolicy> {
        let unreadable = |key, value: &str, expected| UnreadablePolicy {
            key,
            value: plain(&value.chars().take(SHOWN_CHARS).collect::<String>()),
            expected,
        };
        let drain = self.drain.as_deref().or(namespace.drain.as_deref());
        match drain {
            None | Some("evict") => Ok(DrainPolicy::Evict),
            Some("skip") => Ok(DrainPolicy::Skip),
            Some("wait") => {
                let seconds = self.wait_seconds.as_deref();
                let Some(seconds) = seconds.or(namespace.wait_seconds.as_deref()) else {
                    return Ok(DrainPolicy::Wait(None));
                };
                let read = seconds
                    .parse::<u32>()
                    .map_err(|_| unreadable(DRAIN_WAIT_SECONDS, seconds, "a whole number of seconds"))?;
                Ok(DrainPolicy::Wait(Some(Duration::from_secs(read.into()))))
            }
            Some(other) => Err(unreadable(DRAIN, other, "evict, wait or skip")),
        }
    }
}

impl DrainPolicy {
    /// How long after the beginning of the drain the pod may still end by itself, where at most `longest` is allowed.
    pub fn wait(self, longest: Duration) -> Duration {
        match self {
            Self::Wait(asked) => asked.unwrap_or(longest).min(longest),
            Self::Evict | Self::Skip => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(drain: Option<&str>, wait_seconds: Option<&str>) -> DrainAnnotations {
        let both = [(DRAIN, drain), (DRAIN_WAIT_SECONDS, wait_seconds)];
        let all = both
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())))
            .collect();
        DrainAnnotations::of(Some(&all))
    }

    #[test]
    fn annotation_of_the_pod_goes_before_that_of_its_namespace() {
        let none = DrainAnnotations::default();
        let seconds = |seconds| DrainPolicy::Wait(Some(Duration::from_secs(seconds)));
        for (pod, namespace, policy) in [
            (none.clone(), none.clone(), DrainPolicy::Evict),
            (none.clone(), annotations(Some("skip"), None), DrainPolicy::Skip),
            (
                annotations(Some("evict"), None),
                annotations(Some("skip"), None),
                DrainPolicy::Evict,
            ),
            (
                annotations(Some("wait"), None),
                none.clone(),
                DrainPolicy::Wait(None),
            ),
            (
                annotations(Some("wait"), None),
                annotations(None, Some("60")),
                seconds(60),
            ),
            (
                annotations(None, Some("7")),
                annotations(Some("wait"), Some("60")),
                seconds(7),
            ),
            (
                annotations(Some("skip"), Some("x")),
                none.clone(),
                DrainPolicy::Skip,
            ),
        ] {
            assert_eq!(pod.policy(&namespace), Ok(policy), "{pod:?} in {namespace:?}");
            let differs = pod.policy(&namespace) != pod.policy(&none);
            assert!(pod.need_namespace() || !differs, "{pod:?} in {namespace:?}");
        }
    }

    #[test]
    fn unreadable_annotation_is_told_with_what_is_expected() {
        let none = DrainAnnotations::default();
        let told = |pod: DrainAnnotations| pod.policy(&none).unwrap_err().to_string();
        assert_eq!(
            told(annotations(Some("never"), None)),
            "haulout.dev/drain=\"never\" is not evict, wait or skip, so the pod is evicted"
        );
        for value in ["2h", "-1", "", "1e9", "99999999999"] {
            assert_eq!(
                told(annotations(Some("wait"), Some(value))),
                format!(
                    "haulout.dev/drain-wait-seconds={value:?} is not a whole number of seconds, so the pod is evicted"
                )
            );
        }
        let long = told(annotations(Some(&"x\n".repeat(1_000)), None));
        assert!(long.len() < 150 && !long.contains('\n'), "{long}");
    }

    #[test]
    fn wait_is_limited_by_the_setting() {
        let (hour, longest) = (Duration::from_secs(3_600), Duration::from_secs(600));
        assert_eq!(DrainPolicy::Wait(Some(hour)).wait(longest), longest);
        assert_eq!(DrainPolicy::Wait(None).wait(longest), longest);
        assert_eq!(DrainPolicy::Wait(Some(longest)).wait(hour), longest);
        assert_eq!(DrainPolicy::Wait(None).wait(Duration::ZERO), Duration::ZERO);
        assert_eq!(DrainPolicy::Evict.wait(longest), Duration::ZERO);
    }
}
