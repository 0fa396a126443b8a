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
        VcenterLate = "vcenter: request arrives late",
        PollCut = "vcenter: long poll cut",
        UpdatesWithheld = "vcenter: updates withheld",
        TaskUpdateLost = "vcenter: update of a task not pushed",
        TaskFails = "vcenter: task fails",
        TaskHangs = "vcenter: task hangs",
        MaintenanceFails = "vcenter: maintenance task fails",
        SessionsExpire = "vcenter: sessions expire",
        LoginsRefused = "vcenter: sessions expire and logins are refused",
        VcenterRestarts = "vcenter: restart",
        TasksForgotten = "vcenter: restart forgets tasks",
        HostLost = "vcenter: host not responding",
        HostCrashes = "vcenter: host crashes, and HA restarts its VMs",
        VmDies = "vcenter: VM dies",
        VmStarted = "vcenter: VM powered on by a person",
        VmMoved = "vcenter: VM relocated by a person",
        KubernetesRefuses = "kubernetes: connection refused",
        KubernetesReplyLost = "kubernetes: reply lost",
        KubernetesFails = "kubernetes: HTTP 5xx",
        KubernetesThrottles = "kubernetes: HTTP 429",
        KubernetesSilent = "kubernetes: no reply",
        KubernetesLate = "kubernetes: request arrives late",
        KindForbidden = "kubernetes: HTTP 403 for a kind",
        WatchCut = "kubernetes: watch cut",
        WatchLags = "kubernetes: watch lags",
        HistoryCompacted = "kubernetes: history compacted",
        Conflict = "kubernetes: conflict",
        KubernetesOutage = "kubernetes: outage",
        LabelLost = "kubernetes: Node loses its label",
        NodeDeleted = "kubernetes: Node deleted",
        EtcdRestored = "kubernetes: etcd restored",
        AnnotationsRemoved = "kubernetes: annotations removed",
        ManifestRestored = "kubernetes: Node restored from a manifest",
        ReplicaKilled = "replica: killed",
        ReplicaStopped = "replica: stopped",
        ReplicaCutOff = "replica: cut off",
        ClockSteps = "replica: wall clock steps",
        GuestIgnores = "guest: ignores the shutdown",
        ToolsStop = "guest: VMware Tools stop early",
        ReadyLost = "kubelet: not Ready for a while",
        CheckpointLost = "kubelet: loses its checkpoint of device plugins",
        PluginEnds = "kubelet: device plugin ends",
        DriverUncordons = "driver manager: uncordons at boot",
        CordonTaken = "person: uncordons during an episode",
        PodEndsLate = "pod: ends late",
        HostileKubelet = "adversary: kubelet",
        HostileTenant = "adversary: tenant",
        VcenterGarbled = "vcenter: garbled reply",
        KubernetesGarbled = "kubernetes: garbled reply",
        ForeignTask = "vcenter: task of another client on a VM",
        FilesLocked = "vcenter: files of a VM locked",
        VmotionFails = "vcenter: vMotion fails",
        VmAsks = "vcenter: VM asks a question",
        PowerOnAsks = "vcenter: power-on asks a question",
        SettingsChange = "replica: restarted with other settings",
        PollReplyLate = "vcenter: reply to a long poll arrives late",
    }
}

/// When a fault may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    Request,
    /// At each task, guest shutdown, eviction or end of a long poll, of which there are few.
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
            | Self::VcenterLate
            | Self::VcenterGarbled
            | Self::PollCut
            | Self::KubernetesRefuses
            | Self::KubernetesReplyLost
            | Self::KubernetesFails
            | Self::KubernetesThrottles
            | Self::KubernetesSilent
            | Self::KubernetesLate
            | Self::KubernetesGarbled
            | Self::Conflict => Occasion::Request,
            Self::TaskFails
            | Self::TaskHangs
            | Self::TaskUpdateLost
            | Self::PollReplyLate
            | Self::GuestIgnores
            | Self::ToolsStop
            | Self::ManifestRestored
            | Self::DriverUncordons
            | Self::FilesLocked
            | Self::VmotionFails
            | Self::PowerOnAsks
            | Self::CheckpointLost
            | Self::PodEndsLate => Occasion::Effect,
            Self::EtcdRestored => Occasion::Times(1),
            Self::SessionsExpire
            | Self::VcenterRestarts
            | Self::TasksForgotten
            | Self::UpdatesWithheld
            | Self::HostLost
            | Self::HostCrashes
            | Self::LoginsRefused
            | Self::VmDies
            | Self::WatchCut
            | Self::WatchLags
            | Self::HistoryCompacted
            | Self::KubernetesOutage
            | Self::LabelLost
            | Self::NodeDeleted
            | Self::ReplicaKilled
            | Self::ReplicaStopped
            | Self::ReplicaCutOff
            | Self::KindForbidden
            | Self::SettingsChange
            | Self::ReadyLost
            | Self::PluginEnds
            | Self::ClockSteps => Occasion::Times(3),
            // Most of these find nothing to act on.
            Self::MaintenanceFails
            | Self::VmAsks
            | Self::VmStarted
            | Self::VmMoved
            | Self::CordonTaken
            | Self::AnnotationsRemoved
            | Self::ForeignTask
            | Self::HostileTenant => Occasion::Times(10),
            Self::HostileKubelet => Occasion::Times(30),
        }
    }
}

impl Fault {
    /// Whether other nodes are treated in the same way with this fault as without it.
    pub fn keeps_effects(self) -> bool {
        let is_of_peers_or_replicas = matches!(
            self,
            Self::UpdatesWithheld
                | Self::PollReplyLate
                | Self::TaskUpdateLost
                | Self::SessionsExpire
                | Self::VcenterRestarts
                | Self::WatchCut
                | Self::WatchLags
                | Self::HistoryCompacted
                | Self::KubernetesOutage
                | Self::ReplicaKilled
                | Self::ReplicaStopped
                | Self::ReplicaCutOff
                | Self::ReadyLost
        );
        self.occasion() == Occasion::Request || self.is_hostile() || is_of_peers_or_replicas
    }

    /// Whether somebody does it on purpose.
    pub fn is_hostile(self) -> bool {
        matches!(self, Self::HostileKubelet | Self::HostileTenant)
    }
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// It does not arrive.
    Refused,
    /// It is carried out, and its reply is lost.
    ReplyLost,
    /// A proxy or the server answers with this status, and nothing is carried out.
    Status(u16),
    /// It is never answered, and not carried out.
    Silence,
    /// It arrives seconds later, also if its client does not wait for it any more.
    Late,
    /// It is carried out, and something else arrives than its reply.
    Garbled,
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
        // Drawn apart, so that the seeds that once broke a rule draw the same of the others.
        let mut own = rng.clone();
        for fault in Fault::ALL {
            let is_garbled = matches!(fault, Fault::VcenterGarbled | Fault::KubernetesGarbled);
            let is_newer = matches!(
                fault,
                Fault::ForeignTask
                    | Fault::FilesLocked
                    | Fault::VmotionFails
                    | Fault::HostCrashes
                    | Fault::LoginsRefused
                    | Fault::VmAsks
                    | Fault::PowerOnAsks
                    | Fault::CheckpointLost
                    | Fault::PluginEnds
                    | Fault::SettingsChange
                    | Fault::PollReplyLate
            );
            let is_apart = is_garbled || is_newer;
            let rng = if is_apart { &mut own } else { &mut *rng };
            if is_calm || rng.u32(0..100) < if is_garbled { 75 } else { 50 } {
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

    /// The faults of a run that is compared with one without faults: half of those that keep the effects, or only hostile ones.
    pub fn draw_that_keep_effects(rng: &mut Rng, only_hostile: bool) -> Self {
        let mut drawn = Self::draw(rng, false);
        if only_hostile {
            let hostile = Fault::ALL.iter().filter(|fault| fault.is_hostile());
            drawn.chances = hostile.map(|fault| (*fault, 10_000)).collect();
        } else {
            drawn.chances.retain(|fault, _| fault.keeps_effects());
        }
        drawn
    }

    /// How many kinds may happen.
    pub fn kinds(&self) -> usize {
        self.chances.len()
    }

    /// Whether all of them are hostile.
    pub fn are_hostile(&self) -> bool {
        self.chances.keys().all(|fault| fault.is_hostile())
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
    pub fn of_vcenter(&self, is_poll: bool, is_act: bool, rng: &mut Rng, account: &mut Account) -> Fate {
        let fires = |fault, rng: &mut Rng, account: &mut Account| self.fires(fault, rng, account);
        if fires(Fault::VcenterRefuses, rng, account) {
            Fate::Refused
        } else if !is_poll && fires(Fault::VcenterReplyLost, rng, account) {
            Fate::ReplyLost
        } else if fires(Fault::VcenterUnavailable, rng, account) {
            Fate::Status(503)
        } else if fires(Fault::VcenterSilent, rng, account) {
            Fate::Silence
        } else if is_act && fires(Fault::VcenterLate, rng, account) {
            Fate::Late
        } else if fires(Fault::VcenterGarbled, rng, account) {
            Fate::Garbled
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
        } else if is_write && fires(Fault::KubernetesLate, rng, account) {
            Fate::Late
        } else if fires(Fault::KubernetesGarbled, rng, account) {
            Fate::Garbled
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
