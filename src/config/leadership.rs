//! Settings of leader election.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::WrongSetting;
use super::parse::{fraction, object_name, path, release};

/// Limit of object names in Kubernetes.
const NAME_CHARS_MAX: usize = 253;

const REPLICAS: &str = "Several replicas";

// The defaults are those of client-go. The upper bounds limit the failover time. The lower bounds are
// what a kube-apiserver on the same machine can handle.
/// Settings of leader election.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct LeadershipSettings {
    /// Elect one of several replicas by a Lease
    ///
    /// auto is true inside a cluster, where a rollout runs two replicas.
    #[arg(id = "leader_election", long = "leader-election", env = "LEADER_ELECTION", value_name = "WHEN",
          help_heading = REPLICAS, value_enum, ignore_case = true, default_value_t = LeaderElection::Auto,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub election: LeaderElection,
    /// Name of the Lease; only one of the replicas that share it acts (a DNS name)
    #[arg(long, env, value_name = "NAME", help_heading = REPLICAS, value_parser = object_name(NAME_CHARS_MAX),
          default_value = "haulout")]
    pub lease_name: String,
    /// Namespace of the Lease (a DNS name)
    ///
    /// If unset, the pod's own, or that of the kubeconfig.
    #[arg(long, env, value_name = "NAME", help_heading = REPLICAS, value_parser = object_name(NAME_CHARS_MAX))]
    pub lease_namespace: Option<String>,
    /// Kubeconfig of the cluster of the Lease, if it is another one than that of the nodes (a file, or in-cluster)
    ///
    /// in-cluster is the cluster in which Haulout runs, with the service account of its pod. The administrators of
    /// a hosted cluster then cannot change the Lease. It needs LEASE_NAMESPACE.
    #[arg(long, env, value_name = "FILE", help_heading = REPLICAS, value_parser = path)]
    pub lease_kubeconfig: Option<PathBuf>,
    /// Name of this release (DNS names joined by /)
    ///
    /// It is stored in each record, and other releases ignore that record. If unset, the Lease's
    /// namespace and name.
    #[arg(long, env, value_name = "NAME", help_heading = REPLICAS, value_parser = release)]
    pub release: Option<String>,
    /// Releases whose maintenances this one takes over (separated by commas)
    ///
    /// For renamed releases.
    #[arg(long, env, value_name = "NAMES", help_heading = REPLICAS, value_parser = release, value_delimiter = ',')]
    adopt_releases: Vec<String>,
    /// How long other replicas wait for a leader that does not renew the Lease; at least one and a half
    /// renewal deadlines (0.5 to 600)
    #[arg(long = "lease-duration-seconds", env = "LEASE_DURATION_SECONDS", value_name = "SECONDS",
          help_heading = REPLICAS, value_parser = fraction(0.5, 600.0), default_value = "15")]
    pub lease_duration: Duration,
    /// How long after its last renewal a leader exits; at least three retry periods (0.3 to 400)
    #[arg(long = "lease-renew-deadline-seconds", env = "LEASE_RENEW_DEADLINE_SECONDS", value_name = "SECONDS",
          help_heading = REPLICAS, value_parser = fraction(0.3, 400.0), default_value = "10")]
    pub renew_deadline: Duration,
    /// How often a leader renews the Lease, and the others read it (0.1 to 60)
    #[arg(long = "lease-retry-period-seconds", env = "LEASE_RETRY_PERIOD_SECONDS", value_name = "SECONDS",
          help_heading = REPLICAS, value_parser = fraction(0.1, 60.0), default_value = "2")]
    pub retry_period: Duration,
}

/// When leader election is used.
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

    /// Checks the relations between durations: two replicas must not act at once, and one lost request
    /// must not cost the leadership.
    pub(super) fn check(&self) -> Vec<WrongSetting> {
        let mut problems = Vec::new();
        let mut at_least = |name: &str, value: Duration, least: Duration, times: &str, why: &str| {
            if value < least {
                let least = least.as_secs_f64();
                let expected = format!("at least {times} is expected, which is {least}: {why}");
                problems.push(WrongSetting::new(
                    name,
                    &value.as_secs_f64().to_string(),
                    expected,
                ));
            }
        };
        // The difference of the two separates the last effect of a leader from the first of the next
        // one. A third of the lease tolerates clock rates that differ by a fifth.
        at_least(
            "LEASE_DURATION_SECONDS",
            self.lease_duration,
            self.renew_deadline * 3 / 2,
            "one and a half times LEASE_RENEW_DEADLINE_SECONDS",
            "a leader must have ended well before the next begins",
        );
        // No effect begins in the last three tenths of the renew deadline. With three attempts, one may
        // fail before that.
        at_least(
            "LEASE_RENEW_DEADLINE_SECONDS",
            self.renew_deadline,
            self.retry_period * 3,
            "three times LEASE_RETRY_PERIOD_SECONDS",
            "one lost renewal must not cost the leadership",
        );
        if let Some(path) = self
            .lease_kubeconfig
            .as_ref()
            .filter(|_| self.lease_namespace.is_none())
        {
            let expected = "LEASE_NAMESPACE is expected too, because the namespace of the nodes' kubeconfig is of another cluster";
            problems.push(WrongSetting::new(
                "LEASE_KUBECONFIG",
                &path.display().to_string(),
                expected.to_owned(),
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The problems of these three values.
    fn problems(duration: &str, renew_deadline: &str, retry_period: &str) -> Vec<(String, String)> {
        let command = clap::Command::new("test");
        let command = <LeadershipSettings as clap::Args>::augment_args(command);
        let args = [
            "test".to_owned(),
            format!("--lease-duration-seconds={duration}"),
            format!("--lease-renew-deadline-seconds={renew_deadline}"),
            format!("--lease-retry-period-seconds={retry_period}"),
        ];
        let matches = command.try_get_matches_from(args).unwrap();
        let leadership = <LeadershipSettings as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
        let problems = leadership.check();
        problems.into_iter().map(|it| (it.name, it.expected)).collect()
    }

    #[test]
    fn lease_of_another_cluster_needs_its_namespace() {
        let problems = |args: &[&str]| {
            let command = <LeadershipSettings as clap::Args>::augment_args(clap::Command::new("test"));
            let args = std::iter::once("test").chain(args.iter().copied());
            let matches = command.try_get_matches_from(args).unwrap();
            let leadership =
                <LeadershipSettings as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
            let problems = leadership.check();
            problems.into_iter().map(|it| it.name).collect::<Vec<_>>()
        };
        assert_eq!(problems(&["--lease-kubeconfig=in-cluster"]), ["LEASE_KUBECONFIG"]);
        assert!(problems(&["--lease-kubeconfig=in-cluster", "--lease-namespace=haulout"]).is_empty());
    }

    #[test]
    fn durations_under_which_two_replicas_could_act_at_once_are_refused() {
        assert_eq!(problems("15", "10", "2"), []);
        assert_eq!(problems("1.5", "1", "0.2"), []);
        let short = problems("14.9", "10", "2");
        assert_eq!(short.len(), 1);
        assert_eq!(short[0].0, "LEASE_DURATION_SECONDS");
        assert!(short[0].1.contains("which is 15:"), "{short:?}");
        let rare = problems("15", "10", "3.5");
        assert_eq!(rare.len(), 1);
        assert_eq!(rare[0].0, "LEASE_RENEW_DEADLINE_SECONDS");
        assert!(rare[0].1.contains("which is 10.5:"), "{rare:?}");
    }
}
