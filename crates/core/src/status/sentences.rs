//! Sentences that several renderers share. Those of waits are in [`crate::maintenance::waiting`].

use crate::maintenance::decide::Transition;
use crate::maintenance::episode::{Episode, Phase, Record};

impl Episode {
    /// The reason of the maintenance, as it follows "for".
    pub fn cause(&self) -> String {
        match &self.trigger.request {
            Some(request) => format!("NodeMaintenance {request}"),
            None => format!("the maintenance of ESXi host {}", self.host),
        }
    }

    pub fn trigger_sentence(&self) -> String {
        let trigger = &self.trigger;
        let by = trigger.user.as_ref().map(|user| format!(" by {user}"));
        let by = by.unwrap_or_default();
        if let Some(task) = &trigger.task {
            format!("ESXi host {} is entering maintenance ({task}{by})", self.host)
        } else if let Some(request) = &trigger.request {
            format!("NodeMaintenance {request}{by}")
        } else if let Some(ended) = &trigger.late_power_off_of {
            format!("The VM went off after episode {ended} had ended")
        } else {
            format!("ESXi host {} is in maintenance mode", self.host)
        }
    }
}

impl Transition {
    /// The change of phase and cordon, as the log and the page show it.
    pub fn words(&self, before: &Record) -> String {
        let (from, to) = (before.kind(), self.record.kind());
        let whereto = self.record.phase().map(Phase::whereto).unwrap_or_default();
        let cordon = match self.unschedulable {
            Some(true) => ", cordoned",
            Some(false) => ", uncordoned",
            None => "",
        };
        format!("{from} -> {to}{whereto}{cordon}")
    }
}
