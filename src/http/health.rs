//! Whether the controller lives, and whether it is ready, each as a list of checks.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::telemetry::metrics::Degraded;

/// How long the hub may be silent. It takes a second for thousands of nodes; whatever holds it for longer than this
/// does not let go by itself.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// What the checks go by.
#[derive(Debug)]
pub struct Health {
    signs: Mutex<HealthState>,
    /// Whether vCenter synced.
    hears_vcenter: watch::Sender<bool>,
    /// Whether it has, or answered the latest probe.
    reaches_vcenter: watch::Sender<bool>,
}

#[derive(Debug)]
struct HealthState {
    hub_turned: Instant,
    vcenter: Result<(), String>,
    /// Whether vCenter answered the latest probe, where there was one.
    probe: Option<Result<(), String>>,
    kubernetes: Result<(), String>,
    leadership: Option<String>,
    stands_by: bool,
    /// Parts that do not work, though the controller goes on without, and why.
    degraded: BTreeMap<Degraded, String>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is looked at.
    pub name: &'static str,
    /// Why it fails, if it does.
    pub fails: Option<String>,
    /// What there is to say of it while it does not.
    pub says: Option<String>,
}

impl Health {
    /// The health of a process that begins at this moment and has heard nobody.
    pub fn of_a_beginner() -> Self {
        let unheard = |who: &str| Err(format!("{who} has not synced yet"));
        let signs = HealthState {
            hub_turned: Instant::now(),
            vcenter: unheard("vCenter"),
            probe: None,
            kubernetes: unheard("Kubernetes"),
            leadership: None,
            stands_by: false,
            degraded: BTreeMap::new(),
        };
        Self {
            signs: Mutex::new(signs),
            hears_vcenter: watch::Sender::new(false),
            reaches_vcenter: watch::Sender::new(false),
        }
    }

    /// Whether vCenter synced, as it changes.
    pub fn hears_vcenter(&self) -> watch::Receiver<bool> {
        self.hears_vcenter.subscribe()
    }

    /// Whether vCenter can be reached from here, as far as is known, as it changes.
    pub fn reaches_vcenter(&self) -> watch::Receiver<bool> {
        self.reaches_vcenter.subscribe()
    }

    /// Takes that the hub turns.
    pub fn hub_turns(&self) {
        self.signs().hub_turned = Instant::now();
    }

    /// Takes whether vCenter synced, or why not.
    pub fn vcenter(&self, heard: Result<(), String>) {
        let is_heard = heard.is_ok();
        self.signs().vcenter = heard;
        set(&self.hears_vcenter, is_heard);
        self.reaches();
    }

    /// Takes whether vCenter answered a probe, or why not. Gives whether that is news.
    pub fn vcenter_probed(&self, answered: Result<(), String>) -> bool {
        let is_answered = answered.is_ok();
        let before = self.signs().probe.replace(answered);
        self.reaches();
        before.is_none_or(|before| before.is_ok() != is_answered)
    }

    fn reaches(&self) {
        let reaches = {
            let signs = self.signs();
            signs.vcenter.is_ok() || signs.probe == Some(Ok(()))
        };
        set(&self.reaches_vcenter, reaches);
    }

    /// Takes whether Kubernetes synced, or why not.
    pub fn kubernetes(&self, heard: Result<(), String>) {
        self.signs().kubernetes = heard;
    }

    /// Takes who leads, in words, and whether this replica stands by, where there is an election.
    pub fn leadership(&self, who: String, stands_by: bool) {
        let mut signs = self.signs();
        signs.leadership = Some(who);
        signs.stands_by = stands_by;
    }

    /// Takes that `part` does not work for this reason and the controller goes on without it, or, with `None`, that it
    /// works again. `/readyz?verbose` shows it; the controller stays ready. Gives whether that is news.
    pub fn degraded(&self, part: Degraded, reason: Option<String>) -> bool {
        let degraded = &mut self.signs().degraded;
        let is_degraded = reason.is_some();
        let was = match reason {
            Some(reason) => degraded.insert(part, reason),
            None => degraded.remove(&part),
        };
        was.is_some() != is_degraded
    }

    /// Whether the controller lives: a restart would help where it does not. Whether vCenter answers is no part of it.
    pub fn live(&self) -> Vec<HealthCheck> {
        let silent = self.signs().hub_turned.elapsed();
        let fails =
            (silent > SILENCE_MAX).then(|| format!("the hub has not turned for {} s", silent.as_secs()));
        vec![HealthCheck {
            name: "hub",
            fails,
            says: None,
        }]
    }

    /// Whether the controller knows enough to decide. Whether it leads is told and is no part of it: a standby that has
    /// heard Kubernetes and reaches vCenter is ready to take over, and a rollout that waited for it to lead would wait for ever.
    pub fn ready(&self) -> Vec<HealthCheck> {
        let mut checks = self.live();
        let signs = self.signs();
        let unasked = Err("vCenter has not been asked yet".to_owned());
        let vcenter = if signs.stands_by {
            signs.probe.as_ref().unwrap_or(&unasked)
        } else {
            &signs.vcenter
        };
        for (name, heard) in [("vcenter", vcenter), ("kubernetes", &signs.kubernetes)] {
            let fails = heard.as_ref().err().cloned();
            checks.push(HealthCheck {
                name,
                fails,
                says: None,
            });
        }
        if let Some(who) = &signs.leadership {
            checks.push(HealthCheck {
                name: "leadership",
                fails: None,
                says: Some(who.clone()),
            });
        }
        for (part, reason) in &signs.degraded {
            checks.push(HealthCheck {
                name: part.name(),
                fails: None,
                says: Some(format!("degraded: {reason}")),
            });
        }
        checks
    }

    fn signs(&self) -> MutexGuard<'_, HealthState> {
        // Every change of it is whole, whatever panicked meanwhile.
        self.signs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set(sender: &watch::Sender<bool>, value: bool) {
    sender.send_if_modified(|standing| std::mem::replace(standing, value) != value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(checks: &[HealthCheck]) -> Vec<&'static str> {
        let failing = checks.iter().filter(|check| check.fails.is_some());
        failing.map(|check| check.name).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_hub_that_does_not_turn_is_not_alive_and_one_that_turns_again_is() {
        let health = Health::of_a_beginner();
        assert!(failing(&health.live()).is_empty());
        tokio::time::advance(SILENCE_MAX + Duration::from_secs(1)).await;
        assert_eq!(
            health.live()[0].fails.as_deref(),
            Some("the hub has not turned for 31 s")
        );
        health.hub_turns();
        assert!(failing(&health.live()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn ready_needs_both_worlds_and_alive_needs_neither() {
        let health = Health::of_a_beginner();
        assert_eq!(failing(&health.ready()), ["vcenter", "kubernetes"]);
        health.kubernetes(Ok(()));
        assert_eq!(failing(&health.ready()), ["vcenter"]);
        health.vcenter(Ok(()));
        assert!(failing(&health.ready()).is_empty());
        assert!(*health.hears_vcenter().borrow());
        health.vcenter(Err("connection refused".to_owned()));
        assert!(!*health.hears_vcenter().borrow());
        assert_eq!(failing(&health.ready()), ["vcenter"]);
        assert!(failing(&health.live()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn standby_that_reaches_vcenter_is_ready_and_says_who_leads() {
        let health = Health::of_a_beginner();
        health.kubernetes(Ok(()));
        health.leadership("haulout-0 leads".to_owned(), true);
        assert_eq!(failing(&health.ready()), ["vcenter"]);
        assert!(
            health.vcenter_probed(Err("no route".to_owned())),
            "the first answer is news"
        );
        assert!(!health.vcenter_probed(Err("timed out".to_owned())));
        assert_eq!(failing(&health.ready()), ["vcenter"]);
        assert!(health.vcenter_probed(Ok(())));
        let checks = health.ready();
        assert!(failing(&checks).is_empty());
        let said: Vec<_> = checks.iter().filter_map(|check| check.says.as_deref()).collect();
        assert_eq!(said, ["haulout-0 leads"]);
    }

    #[tokio::test(start_paused = true)]
    async fn leader_is_ready_when_vcenter_told_its_set_whatever_a_probe_says() {
        let health = Health::of_a_beginner();
        health.kubernetes(Ok(()));
        health.vcenter_probed(Ok(()));
        health.leadership("this replica leads".to_owned(), false);
        assert_eq!(failing(&health.ready()), ["vcenter"]);
        health.vcenter(Ok(()));
        health.vcenter_probed(Err("no route".to_owned()));
        assert!(failing(&health.ready()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn vcenter_is_reached_where_its_stream_stands_or_a_probe_is_answered() {
        let health = Health::of_a_beginner();
        let reaches = health.reaches_vcenter();
        let lost = || Err("cut off".to_owned());
        for (stream, probe, expected) in [
            (lost(), lost(), false),
            (lost(), Ok(()), true),
            (Ok(()), Ok(()), true),
            (Ok(()), lost(), true),
            (lost(), lost(), false),
        ] {
            health.vcenter(stream);
            health.vcenter_probed(probe);
            assert_eq!(*reaches.borrow(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_degraded_part_is_told_and_does_not_make_the_controller_unready() {
        let health = Health::of_a_beginner();
        health.kubernetes(Ok(()));
        health.vcenter(Ok(()));
        let degraded =
            |reason: Option<&str>| health.degraded(Degraded::NodeMaintenances, reason.map(str::to_owned));
        assert!(!degraded(None));
        assert!(degraded(Some("gone")));
        assert!(!degraded(Some("refused")), "another reason is no news");
        let checks = health.ready();
        assert!(failing(&checks).is_empty());
        let told = checks
            .iter()
            .find(|check| check.name == "node-maintenances")
            .unwrap();
        assert_eq!(told.says.as_deref(), Some("degraded: refused"));
        assert!(degraded(None));
        assert_eq!(health.ready().len(), 3);
    }
}
