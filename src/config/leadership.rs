//! Whether and how several replicas take turns.

use std::collections::BTreeSet;
use std::time::Duration;

use super::WrongSetting;
use super::parse::{fraction, object_name, release};

/// The longest name of an object that the API takes.
const NAME_CHARS_MAX: usize = 253;

const REPLICAS: &str = "Several replicas";

// The defaults are those of client-go, as every controller of Kubernetes has them. The upper bounds of the durations are
// those of patience: a silent leader is waited for that long. The lower ones are what a kube-apiserver on the same machine
// keeps.
/// Whether and how several replicas take turns.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct LeadershipSettings {
    /// Let one of several replicas act, by a Lease
    ///
    /// auto is true inside a cluster, where a rollout alone makes two replicas.
    #[arg(id = "leader_election", long = "leader-election", env = "LEADER_ELECTION", value_name = "WHEN",
          help_heading = REPLICAS, value_enum, ignore_case = true, default_value_t = LeaderElection::Auto,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub election: LeaderElection,
    /// Name of the Lease; replicas that share it take turns (a DNS name)
    #[arg(long, env, value_name = "NAME", help_heading = REPLICAS, value_parser = object_name(NAME_CHARS_MAX),
          default_value = "haulout")]
    pub lease_name: String,
    /// Namespace of the Lease (a DNS name)
    ///
    /// If unset, the pod's own, or that of the kubeconfig.
    #[arg(long, env, value_name = "NAME", help_heading = REPLICAS, value_parser = object_name(NAME_CHARS_MAX))]
    pub lease_namespace: Option<String>,
    /// Which release this is (DNS names joined by /)
    ///
    /// It stands in each record, and another release leaves that record alone. If unset, the Lease's namespace and name.
    #[arg(long, env, value_name = "NAME", help_heading = REPLICAS, value_parser = release)]
    pub release: Option<String>,
    /// Releases whose maintenances this one takes over (separated by commas)
    ///
    /// For use after a release was renamed.
    #[arg(long, env, value_name = "NAMES", help_heading = REPLICAS, value_parser = release, value_delimiter = ',')]
    adopt_releases: Vec<String>,
    /// How long a silent leader is waited for; at least one and a half renewal deadlines (0.5 to 600)
    #[arg(long = "lease-duration-seconds", env = "LEASE_DURATION_SECONDS", value_name = "SECONDS",
          help_heading = REPLICAS, value_parser = fraction(0.5, 600.0), default_value = "15")]
    pub lease_duration: Duration,
    /// How long after its last renewal a leader ends; at least three retry periods (0.3 to 400)
    #[arg(long = "lease-renew-deadline-seconds", env = "LEASE_RENEW_DEADLINE_SECONDS", value_name = "SECONDS",
          help_heading = REPLICAS, value_parser = fraction(0.3, 400.0), default_value = "10")]
    pub renew_deadline: Duration,
    /// How often a leader renews the Lease, and the others look at it (0.1 to 60)
    #[arg(long = "lease-retry-period-seconds", env = "LEASE_RETRY_PERIOD_SECONDS", value_name = "SECONDS",
          help_heading = REPLICAS, value_parser = fraction(0.1, 60.0), default_value = "2")]
    pub retry_period: Duration,
}

/// Whether replicas take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LeaderElection {
    /// Inside a cluster.
    Auto,
    /// Always.
    #[value(name = "true")]
    On,
    /// Never: there is only one replica.
    #[value(name = "false")]
    Off,
}

impl LeadershipSettings {
    /// The releases whose maintenances this one takes over.
    pub fn adopted(&self) -> BTreeSet<String> {
        self.adopt_releases.iter().cloned().collect()
    }

    /// The relations that keep two replicas from acting at once, and one lost request from costing the leadership.
    pub(super) fn check(&self) -> Vec<WrongSetting> {
        let seconds = |duration: Duration| duration.as_secs_f64().to_string();
        let mut wrong = Vec::new();
        // Between the last effect of a leader and the first of the next lies the difference of the two. A third of the lease
        // covers clocks that differ by a fifth in their rate.
        let least = self.renew_deadline * 3 / 2;
        if self.lease_duration < least {
            let expected = format!(
                "at least one and a half times LEASE_RENEW_DEADLINE_SECONDS is expected, which is {}: a leader must have \
                 ended well before the next begins",
                seconds(least)
            );
            let value = seconds(self.lease_duration);
            wrong.push(WrongSetting::new("LEASE_DURATION_SECONDS", &value, expected));
        }
        // Nothing begins in the last three tenths of a term: with three tries in a term, one may be lost before that.
        let least = self.retry_period * 3;
        if self.renew_deadline < least {
            let expected = format!(
                "at least three times LEASE_RETRY_PERIOD_SECONDS is expected, which is {}: one lost renewal must not cost \
                 the leadership",
                seconds(least)
            );
            let value = seconds(self.renew_deadline);
            wrong.push(WrongSetting::new(
                "LEASE_RENEW_DEADLINE_SECONDS",
                &value,
                expected,
            ));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with these three.
    fn wrong(duration: &str, renew_deadline: &str, retry_period: &str) -> Vec<(String, String)> {
        let command = clap::Command::new("test");
        let command = <LeadershipSettings as clap::Args>::augment_args(command);
        let words = [
            "test".to_owned(),
            format!("--lease-duration-seconds={duration}"),
            format!("--lease-renew-deadline-seconds={renew_deadline}"),
            format!("--lease-retry-period-seconds={retry_period}"),
        ];
        let matches = command.try_get_matches_from(words).unwrap();
        let leadership = <LeadershipSettings as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
        let wrong = leadership.check();
        wrong.into_iter().map(|it| (it.name, it.expected)).collect()
    }

    #[test]
    fn durations_under_which_two_replicas_could_act_at_once_are_refused() {
        assert_eq!(wrong("15", "10", "2"), []);
        assert_eq!(wrong("1.5", "1", "0.2"), []);
        let short = wrong("14.9", "10", "2");
        assert_eq!(short.len(), 1);
        assert_eq!(short[0].0, "LEASE_DURATION_SECONDS");
        assert!(short[0].1.contains("which is 15:"), "{short:?}");
        let rare = wrong("15", "10", "3.5");
        assert_eq!(rare.len(), 1);
        assert_eq!(rare[0].0, "LEASE_RENEW_DEADLINE_SECONDS");
        assert!(rare[0].1.contains("which is 10.5:"), "{rare:?}");
    }
}
