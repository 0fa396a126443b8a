//! Whether and how several replicas take turns.

use std::collections::BTreeSet;
use std::time::Duration;

use super::selector;
use super::setting::{self, Choice, Found, Fraction};

/// The name of the Lease unless another is configured.
const DEFAULT_NAME: &str = "haulout";

/// The longest name of a release: it stands in each record. The Lease's namespace and name take less.
const RELEASE_CHARS_MAX: usize = 400;

// The defaults of client-go, as every controller of Kubernetes has them. The upper bounds are those of patience: a
// leader that falls silent is waited for that long. The lower ones are what a kube-apiserver on the same machine keeps.
const DURATION: Fraction = Fraction::new("LEASE_DURATION_SECONDS", 15_000, 500, 600_000);
const RENEW_DEADLINE: Fraction = Fraction::new("LEASE_RENEW_DEADLINE_SECONDS", 10_000, 300, 400_000);
const RETRY_PERIOD: Fraction = Fraction::new("LEASE_RETRY_PERIOD_SECONDS", 2_000, 100, 60_000);
const ELECTION: Choice<LeaderElection> = Choice::new(
    "LEADER_ELECTION",
    &[
        ("auto", LeaderElection::Auto),
        ("true", LeaderElection::On),
        ("false", LeaderElection::Off),
    ],
);

/// Whether and how several replicas take turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// Whether they do.
    pub election: LeaderElection,
    /// The Lease's name.
    pub lease_name: String,
    /// Its namespace; `None` for the pod's own.
    pub lease_namespace: Option<String>,
    /// Which release this is; `None` for the Lease's namespace and name.
    pub release: Option<String>,
    /// The releases whose maintenances this one takes over.
    pub adopt_releases: BTreeSet<String>,
    /// How long a leader that falls silent is waited for.
    pub lease_duration: Duration,
    /// After how long without a renewal a leader leads no longer.
    pub renew_deadline: Duration,
    /// How often it renews, and how often the others look.
    pub retry_period: Duration,
}

/// Whether replicas take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderElection {
    /// They do inside a cluster, where a rollout alone makes two of them.
    Auto,
    /// They do.
    On,
    /// There is only one, by the word of whoever runs it.
    Off,
}

/// The settings as they were typed.
pub(super) struct Typed {
    pub(super) election: Option<String>,
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) release: Option<String>,
    pub(super) adopt_releases: Option<String>,
    pub(super) duration: Option<String>,
    pub(super) renew_deadline: Option<String>,
    pub(super) retry_period: Option<String>,
}

impl Leadership {
    pub(super) fn read(typed: Typed, found: &mut Found) -> Self {
        let name = |setting: &'static str, given: Option<String>, found: &mut Found| {
            let name = setting::given(given)?;
            if !selector::is_dns_subdomain(&name) {
                let expected = "a name of 1 to 253 lower-case letters, digits, hyphens and dots is expected";
                found.wrong(setting, &name, expected.to_owned());
            }
            Some(name)
        };
        let lease_name = name("LEASE_NAME", typed.name, found);
        let leadership = Self {
            election: ELECTION.read(typed.election, LeaderElection::Auto, found),
            lease_name: lease_name.unwrap_or_else(|| DEFAULT_NAME.to_owned()),
            lease_namespace: name("LEASE_NAMESPACE", typed.namespace, found),
            release: setting::given(typed.release).map(|name| release("RELEASE", &name, found)),
            adopt_releases: setting::given(typed.adopt_releases)
                .iter()
                .flat_map(|list| list.split(','))
                .map(|name| release("ADOPT_RELEASES", name.trim(), found))
                .collect(),
            lease_duration: DURATION.read(typed.duration, found),
            renew_deadline: RENEW_DEADLINE.read(typed.renew_deadline, found),
            retry_period: RETRY_PERIOD.read(typed.retry_period, found),
        };
        leadership.check(found);
        leadership
    }

    /// The relations that keep two replicas from acting at once, and one lost request from costing the leadership.
    fn check(&self, found: &mut Found) {
        let Self {
            lease_duration,
            renew_deadline,
            retry_period,
            ..
        } = self;
        // Between the last byte of a leader and the first of the next lies the difference of the two. A third of the
        // lease covers clocks that differ by a fifth in their rate.
        let least = *renew_deadline * 3 / 2;
        if *lease_duration < least {
            let expected = format!(
                "at least one and a half times {} is expected, which is {}: a leader must have ended well before the next \
                 begins",
                RENEW_DEADLINE.name(),
                seconds(least)
            );
            found.wrong(DURATION.name(), &seconds(*lease_duration), expected);
        }
        // Nothing begins in the last three tenths of a term: with three tries in a term, one may be lost before that.
        let least = *retry_period * 3;
        if *renew_deadline < least {
            let expected = format!(
                "at least three times {} is expected, which is {}: one lost renewal must not cost the leadership",
                RETRY_PERIOD.name(),
                seconds(least)
            );
            found.wrong(RENEW_DEADLINE.name(), &seconds(*renew_deadline), expected);
        }
    }

    /// The settings by their names.
    pub(super) fn describe(&self) -> [(&'static str, String); 8] {
        let Self {
            election,
            lease_name,
            lease_namespace,
            release,
            adopt_releases,
            lease_duration,
            renew_deadline,
            retry_period,
        } = self;
        let adopted: Vec<&str> = adopt_releases.iter().map(String::as_str).collect();
        [
            (ELECTION.name(), ELECTION.word(*election)),
            ("LEASE_NAME", lease_name.clone()),
            ("LEASE_NAMESPACE", lease_namespace.clone().unwrap_or_default()),
            ("RELEASE", release.clone().unwrap_or_default()),
            ("ADOPT_RELEASES", adopted.join(",")),
            (DURATION.name(), seconds(*lease_duration)),
            (RENEW_DEADLINE.name(), seconds(*renew_deadline)),
            (RETRY_PERIOD.name(), seconds(*retry_period)),
        ]
    }
}

/// A release as it is written into records: what the Lease's namespace and name are made of.
fn release(setting: &'static str, name: &str, found: &mut Found) -> String {
    let is_name = name.split('/').all(selector::is_dns_subdomain) && name.len() <= RELEASE_CHARS_MAX;
    if !is_name {
        let expected = format!(
            "names of lower-case letters, digits, hyphens and dots are expected, with slashes between them, in at most \
             {RELEASE_CHARS_MAX} characters"
        );
        found.wrong(setting, name, expected);
    }
    name.to_owned()
}

fn seconds(duration: Duration) -> String {
    duration.as_secs_f64().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of these three.
    fn said(duration: &str, renew_deadline: &str, retry_period: &str) -> Vec<(&'static str, String)> {
        let given = |text: &str| Some(text.to_owned());
        let found = &mut Found::default();
        Leadership::read(
            Typed {
                election: None,
                name: None,
                namespace: None,
                release: None,
                adopt_releases: None,
                duration: given(duration),
                renew_deadline: given(renew_deadline),
                retry_period: given(retry_period),
            },
            found,
        );
        match std::mem::take(found).into_result(()) {
            Ok(()) => Vec::new(),
            Err(error) => error.wrong.into_iter().map(|it| (it.name, it.expected)).collect(),
        }
    }

    #[test]
    fn durations_under_which_two_replicas_could_act_at_once_are_refused() {
        assert_eq!(said("15", "10", "2"), []);
        assert_eq!(said("1.5", "1", "0.2"), []);
        let short = said("14.9", "10", "2");
        assert_eq!(short.len(), 1);
        assert_eq!(short[0].0, "LEASE_DURATION_SECONDS");
        assert!(short[0].1.contains("which is 15:"), "{short:?}");
        let rare = said("15", "10", "3.5");
        assert_eq!(rare.len(), 1);
        assert_eq!(rare[0].0, "LEASE_RENEW_DEADLINE_SECONDS");
        assert!(rare[0].1.contains("which is 10.5:"), "{rare:?}");
    }

    #[test]
    fn the_help_states_the_default_and_the_range_of_each_duration() {
        use clap::CommandFactory as _;
        let command = crate::cli::Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for duration in [DURATION, RENEW_DEADLINE, RETRY_PERIOD] {
            let mut args = run.get_arguments();
            let arg = args.find(|arg| arg.get_env().is_some_and(|env| env == duration.name()));
            let help = arg.unwrap().get_help().unwrap().to_string();
            assert!(help.ends_with(&duration.range()), "{help}");
        }
    }
}
