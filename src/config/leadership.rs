//! Settings of leader election.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::WrongSetting;
use super::parse::{fraction, object_name, path, release};

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
          num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub election: LeaderElection,
    /// Name of the Lease; only one of the replicas that share it acts (a DNS name)
    #[arg(long, env, value_name = "NAME", help_heading = REPLICAS, value_parser = object_name,
          default_value = "haulout", hide_short_help = true)]
    pub lease_name: String,
    /// Namespace of the Lease (a DNS name)
    ///
    /// If unset, the pod's own, or that of the kubeconfig.
    #[arg(long, env, value_name = "NAME", help_heading = REPLICAS, value_parser = object_name, hide_short_help = true)]
    pub lease_namespace: Option<String>,
    /// Kubeconfig of the cluster of the Lease, if it is another one than that of the nodes (a file, or in-cluster)
    ///
    /// in-cluster is the cluster in which Haulout runs, with the service account of its pod. The administrators of
    /// a hosted cluster then cannot change the Lease. It needs LEASE_NAMESPACE.
    #[arg(long, env, value_name = "FILE", help_heading = REPLICAS, value_parser = path, hide_short_help = true)]
    pub lease_kubeconfig: Option<PathBuf>,
    /// Releases whose maintenances this one takes over (separated by commas)
    ///
    /// A release is the namespace and the name of its Lease, such as ops/haulout. It is stored in each record, and other releases
    /// ignore that record. For renamed releases.
    #[arg(long, env, value_name = "NAMES", help_heading = REPLICAS, value_parser = release, value_delimiter = ',', hide_short_help = true)]
    adopt_releases: Vec<String>,
    /// How long other replicas wait for a leader that does not renew the Lease; at least one and a half
    /// renewal deadlines (0.5 to 600)
    #[arg(long = "lease-duration-seconds", env = "LEASE_DURATION_SECONDS", value_name = "SECONDS",
          help_heading = REPLICAS, value_parser = fraction(0.5, 600.0), default_value = "15", hide_short_help = true)]
    pub lease_duration: Duration,
    /// How long after its last renewal a leader exits; it renews five times as often (0.5 to 400)
    #[arg(long = "lease-renew-deadline-seconds", env = "LEASE_RENEW_DEADLINE_SECONDS", value_name = "SECONDS",
          help_heading = REPLICAS, value_parser = fraction(0.5, 400.0), default_value = "10", hide_short_help = true)]
    pub renew_deadline: Duration,
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

    /// How often a leader renews the Lease, and the others read it. No effect begins in the last three tenths of the renew deadline,
    /// so two renewals may be refused before that.
    pub fn retry_period(&self) -> Duration {
        self.renew_deadline / 5
    }

    /// Checks the relations between settings: two replicas must not act at once.
    pub(super) fn check(&self) -> Vec<WrongSetting> {
        let mut problems = Vec::new();
        // The difference of the two separates the last effect of a leader from the first of the next
        // one. A third of the lease tolerates clock rates that differ by a fifth.
        let least = self.renew_deadline * 3 / 2;
        if self.lease_duration < least {
            let expected = format!(
                "at least one and a half times LEASE_RENEW_DEADLINE_SECONDS is expected, which is {}: a leader must have ended well \
                 before the next begins",
                least.as_secs_f64()
            );
            problems.push(WrongSetting::new(
                "LEASE_DURATION_SECONDS",
                &self.lease_duration.as_secs_f64().to_string(),
                expected,
            ));
        }
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

    /// The problems of these flags: name, and what is expected.
    fn problems(flags: &[&str]) -> Vec<(String, String)> {
        let command = <LeadershipSettings as clap::Args>::augment_args(clap::Command::new("test"));
        let args = std::iter::once("test").chain(flags.iter().copied());
        let matches = command.try_get_matches_from(args).unwrap();
        let leadership = <LeadershipSettings as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
        let problems = leadership.check();
        problems.into_iter().map(|it| (it.name, it.expected)).collect()
    }

    #[test]
    fn lease_of_another_cluster_needs_its_namespace() {
        let named = |args: &[&str]| {
            let problems = problems(args).into_iter();
            problems.map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(named(&["--lease-kubeconfig=in-cluster"]), ["LEASE_KUBECONFIG"]);
        assert!(named(&["--lease-kubeconfig=in-cluster", "--lease-namespace=haulout"]).is_empty());
    }

    #[test]
    fn durations_under_which_two_replicas_could_act_at_once_are_refused() {
        let problems = |duration: &str, renew_deadline: &str| {
            problems(&[
                &format!("--lease-duration-seconds={duration}"),
                &format!("--lease-renew-deadline-seconds={renew_deadline}"),
            ])
        };
        assert!(problems("15", "10").is_empty());
        assert!(problems("1.5", "1").is_empty());
        let short = problems("14.9", "10");
        assert_eq!(short.len(), 1);
        assert_eq!(short[0].0, "LEASE_DURATION_SECONDS");
        assert!(short[0].1.contains("which is 15:"), "{short:?}");
    }
}
