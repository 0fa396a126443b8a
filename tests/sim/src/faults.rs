//! Which faults a run draws, and when they fire.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use haulout_core::named_enum;

use crate::account::Account;

named_enum! {
    /// The kinds of faults.
    pub enum Fault {
        VcenterRefuses = "vcenter: connection refused",
        VcenterReplyLost = "vcenter: reply lost",
        VcenterUnavailable = "vcenter: HTTP 503",
        VcenterSilent = "vcenter: no reply",
        PollCut = "vcenter: long poll cut",
        TaskFails = "vcenter: task fails",
        SessionsExpire = "vcenter: sessions expire",
        VcenterRestarts = "vcenter: restart",
        HostLost = "vcenter: host not responding",
        VmDies = "vcenter: VM dies",
        KubernetesRefuses = "kubernetes: connection refused",
        KubernetesReplyLost = "kubernetes: reply lost",
        KubernetesFails = "kubernetes: HTTP 5xx",
        KubernetesThrottles = "kubernetes: HTTP 429",
        KubernetesSilent = "kubernetes: no reply",
        WatchCut = "kubernetes: watch cut",
        WatchLags = "kubernetes: watch lags",
        HistoryCompacted = "kubernetes: history compacted",
        Conflict = "kubernetes: conflict",
        KubernetesOutage = "kubernetes: outage",
        LabelLost = "kubernetes: Node loses its label",
        NodeDeleted = "kubernetes: Node deleted",
        ReplicaKilled = "replica: killed",
        ReplicaStopped = "replica: stopped",
        ClockSteps = "replica: wall clock steps",
        GuestIgnores = "guest: ignores the shutdown",
        PodEndsLate = "pod: ends late",
        HostileKubelet = "adversary: kubelet",
        HostileTenant = "adversary: tenant",
    }
}

/// When a fault may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// At each request.
    Request,
    /// At each task, guest shutdown or eviction, of which there are few.
    Effect,
    /// At times, at most this often.
    Times(usize),
}

impl Fault {
    /// When it may happen.
    pub fn occasion(self) -> Occasion {
        match self {
            Self::VcenterRefuses
            | Self::VcenterReplyLost
            | Self::VcenterUnavailable
            | Self::VcenterSilent
            | Self::PollCut
            | Self::KubernetesRefuses
            | Self::KubernetesReplyLost
            | Self::KubernetesFails
            | Self::KubernetesThrottles
            | Self::KubernetesSilent
            | Self::Conflict => Occasion::Request,
            Self::TaskFails | Self::GuestIgnores | Self::PodEndsLate => Occasion::Effect,
            Self::SessionsExpire
            | Self::VcenterRestarts
            | Self::HostLost
            | Self::VmDies
            | Self::WatchCut
            | Self::WatchLags
            | Self::HistoryCompacted
            | Self::KubernetesOutage
            | Self::LabelLost
            | Self::NodeDeleted
            | Self::ReplicaKilled
            | Self::ReplicaStopped
            | Self::ClockSteps => Occasion::Times(3),
            Self::HostileTenant => Occasion::Times(10),
            Self::HostileKubelet => Occasion::Times(30),
        }
    }
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is answered.
    Answered,
    /// It does not arrive.
    Refused,
    /// It is carried out, and its reply is lost.
    ReplyLost,
    /// A proxy or the server answers with this status, and nothing is carried out.
    Status(u16),
    /// It is never answered, and not carried out.
    Silence,
}

/// The faults of a run.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The probability in 10,000 of each fault that may happen.
    chances: BTreeMap<Fault, u32>,
    /// Faults have ended, and liveness is checked.
    pub is_calm: bool,
}

impl Faults {
    /// Draws about half of the kinds; none for a calm run.
    pub fn draw(rng: &mut Rng, is_calm: bool) -> Self {
        let mut chances = BTreeMap::new();
        for fault in Fault::ALL {
            if is_calm || rng.u32(0..100) < 50 {
                continue;
            }
            let most = if fault.occasion() == Occasion::Request {
                100
            } else {
                2_500
            };
            chances.insert(*fault, rng.u32(1..=most));
        }
        Self { chances, is_calm }
    }

    /// How many kinds may happen.
    pub fn kinds(&self) -> usize {
        self.chances.len()
    }

    /// Whether a fault fires now.
    pub fn fires(&self, fault: Fault, rng: &mut Rng, account: &mut Account) -> bool {
        let chance = self.chances.get(&fault).filter(|_| !self.is_calm);
        let fires = chance.is_some_and(|chance| rng.u32(0..10_000) < *chance);
        if fires {
            account.count("fault", fault.name());
        }
        fires
    }

    /// Whether a fault was drawn for this run.
    pub fn has(&self, fault: Fault) -> bool {
        !self.is_calm && self.chances.contains_key(&fault)
    }

    /// The fate of a call to vCenter.
    pub fn of_vcenter(&self, is_poll: bool, rng: &mut Rng, account: &mut Account) -> Fate {
        let fires = |fault, rng: &mut Rng, account: &mut Account| self.fires(fault, rng, account);
        if fires(Fault::VcenterRefuses, rng, account) {
            Fate::Refused
        } else if !is_poll && fires(Fault::VcenterReplyLost, rng, account) {
            Fate::ReplyLost
        } else if fires(Fault::VcenterUnavailable, rng, account) {
            Fate::Status(503)
        } else if fires(Fault::VcenterSilent, rng, account) {
            Fate::Silence
        } else {
            Fate::Answered
        }
    }

    /// The fate of a request to the kube-apiserver.
    pub fn of_kubernetes(&self, is_write: bool, rng: &mut Rng, account: &mut Account) -> Fate {
        let fires = |fault, rng: &mut Rng, account: &mut Account| self.fires(fault, rng, account);
        if fires(Fault::KubernetesRefuses, rng, account) {
            Fate::Refused
        } else if is_write && fires(Fault::KubernetesReplyLost, rng, account) {
            Fate::ReplyLost
        } else if fires(Fault::KubernetesFails, rng, account) {
            Fate::Status(if rng.bool() { 500 } else { 503 })
        } else if fires(Fault::KubernetesThrottles, rng, account) {
            Fate::Status(429)
        } else if fires(Fault::KubernetesSilent, rng, account) {
            Fate::Silence
        } else {
            Fate::Answered
        }
    }

    /// Whether a task of the controller fails.
    pub fn task_fails(&self, rng: &mut Rng, account: &mut Account) -> bool {
        self.fires(Fault::TaskFails, rng, account)
    }

    /// How long a guest takes to shut down; `None` for one that does not.
    pub fn guest_shutdown(&self, rng: &mut Rng, account: &mut Account) -> Option<Duration> {
        let ignores = self.fires(Fault::GuestIgnores, rng, account);
        (!ignores).then(|| Duration::from_millis(rng.u64(2_000..20_000)))
    }

    /// How long a pod takes to end.
    pub fn pod_ends(&self, rng: &mut Rng, account: &mut Account) -> Duration {
        match self.fires(Fault::PodEndsLate, rng, account) {
            true => Duration::from_millis(rng.u64(30_000..400_000)),
            false => Duration::from_millis(rng.u64(200..5_000)),
        }
    }
}
