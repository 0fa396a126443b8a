//! What a process writes besides effects and records.

use crate::config::{Config, LeaderElection};

/// What is written besides effects and records; nothing in a dry run.
pub(super) struct Writes {
    pub(super) lease: bool,
    pub(super) objects: bool,
    pub(super) events: bool,
    pub(super) traces: bool,
    pub(super) vcenter_events: bool,
    pub(super) vcenter_attribute: bool,
}

impl Writes {
    pub(super) fn by(config: &Config) -> Self {
        let is_live = !config.dry_run;
        Self {
            lease: is_live && has_election(config),
            objects: is_live,
            events: is_live,
            traces: is_live,
            vcenter_events: is_live && config.vcenter_report.events,
            vcenter_attribute: is_live && config.vcenter_report.attribute,
        }
    }
}

fn has_election(config: &Config) -> bool {
    match config.leadership.election {
        LeaderElection::On => true,
        LeaderElection::Off => false,
        LeaderElection::Auto => {
            std::env::var_os("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty())
        }
    }
}
