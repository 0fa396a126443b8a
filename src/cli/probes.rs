//! The list of the probes: what Haulout assumes about vCenters, and how somebody can compare it with a real one.
//!
//! `docs/reference/probes.md` is generated from this list, and `proto-notes/` names the probe of each assumption.

/// One question about a vCenter.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Stable: reports and notes name it.
    pub id: &'static str,
    pub question: &'static str,
    /// What Haulout assumes, or does so as not to depend on the answer.
    pub assumption: &'static str,
    pub means: Means,
}

/// How a probe is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A reading of some seconds.
    Reading(ReadProbe),
    /// The watch while a person clicks.
    Watch(WatchProbe),
    /// The long polls.
    Polls,
    /// By changing something, which `haulout check --probe` never does.
    Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadProbe {
    ApiVersion,
    TaskResults,
    MaintenanceTaskShape,
    MaintenanceTimeout,
    ExitReason,
    VmotionTask,
    BindingFormat,
    BindingStatic,
    BindingDynamic,
    UnreadableVms,
    InaccessibleConfig,
    BuildOrder,
    EventAge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchProbe {
    RecentTaskPush,
    TaskEndPush,
    HistoryBeginPush,
    HistoryEndPush,
    MaintenanceModePush,
    MaintenanceWithoutTask,
}

impl Means {
    /// The words of the reference.
    pub fn words(self) -> &'static str {
        match self {
            Self::Reading(_) => "reading",
            Self::Watch(_) => "watch",
            Self::Polls => "long polls",
            Self::Change => "needs a change",
        }
    }
}

const fn reading(id: &'static str, by: ReadProbe, question: &'static str, assumption: &'static str) -> Probe {
    Probe {
        id,
        question,
        assumption,
        means: Means::Reading(by),
    }
}

const fn watch(id: &'static str, by: WatchProbe, question: &'static str, assumption: &'static str) -> Probe {
    Probe {
        id,
        question,
        assumption,
        means: Means::Watch(by),
    }
}

const fn change(id: &'static str, question: &'static str, assumption: &'static str) -> Probe {
    Probe {
        id,
        question,
        assumption,
        means: Means::Change,
    }
}

/// All probes, in the order of reports.
pub const ALL: &[Probe] = &[
    reading(
        "api-version",
        ReadProbe::ApiVersion,
        "Do we speak the newest API version of the server?",
        "An older version that both sides know is enough.",
    ),
    watch(
        "recent-task-push",
        WatchProbe::RecentTaskPush,
        "Is the beginning of a maintenance task pushed in `recentTask` of its host?",
        "It need not be. The task history and the re-read find it too.",
    ),
    watch(
        "task-end-push",
        WatchProbe::TaskEndPush,
        "Is the end of a task pushed to a client that follows the task itself?",
        "Yes. Without it, a cancel is seen by the re-read only.",
    ),
    watch(
        "history-begin-push",
        WatchProbe::HistoryBeginPush,
        "Is the beginning of a maintenance task pushed in the task history?",
        "Yes, where `recentTask` is not pushed.",
    ),
    watch(
        "history-end-push",
        WatchProbe::HistoryEndPush,
        "Is the end of a listed task pushed in the task history?",
        "It need not be. Running maintenance tasks are followed themselves.",
    ),
    watch(
        "maintenance-mode-push",
        WatchProbe::MaintenanceModePush,
        "Is a change of `runtime.inMaintenanceMode` pushed?",
        "Yes. The re-read finds it too.",
    ),
    watch(
        "maintenance-without-task",
        WatchProbe::MaintenanceWithoutTask,
        "Did a host get into maintenance mode without a task of vCenter?",
        "Possible: maintenance mode that was entered on the host itself.",
    ),
    Probe {
        id: "long-poll",
        question: "Does a long poll last as long as it was asked for?",
        assumption: "120 s are below the limits of vCenter and of most proxies. Where two polls in a row are cut after the same time, they get shorter.",
        means: Means::Polls,
    },
    reading(
        "task-results",
        ReadProbe::TaskResults,
        "Are there task results that are larger or deeper than our XML reader accepts?",
        "There may be. Results are not read, or left out where vCenter can.",
    ),
    reading(
        "maintenance-task-shape",
        ReadProbe::MaintenanceTaskShape,
        "Are there Enter Maintenance Mode tasks that another task began, or no user?",
        "Such tasks of vSphere Lifecycle Manager count like those of a person.",
    ),
    reading(
        "maintenance-timeout",
        ReadProbe::MaintenanceTimeout,
        "Are there Enter Maintenance Mode tasks that ended with `Timedout`?",
        "Possible. The node stays cordoned for the retry.",
    ),
    reading(
        "exit-reason",
        ReadProbe::ExitReason,
        "Are there Exit Maintenance Mode tasks that no user began?",
        "Yes, those of vCenter after it reconnected. Such a host has to stay before it is used.",
    ),
    reading(
        "vmotion-task",
        ReadProbe::VmotionTask,
        "Is a vMotion by DRS a task `Drm.ExecuteVMotionLRO`?",
        "Yes. No guest is shut down while such a task runs.",
    ),
    reading(
        "binding-format",
        ReadProbe::BindingFormat,
        "Has each instance id in `assignableHardwareBinding` exactly one PCI address?",
        "Mostly. Without one, the devices of an unreadable VM are unknown.",
    ),
    reading(
        "binding-static",
        ReadProbe::BindingStatic,
        "Are running VMs with a device at a fixed address in `assignableHardwareBinding`?",
        "Unknown. Bindings are used for VMs only whose own devices cannot be read.",
    ),
    reading(
        "binding-dynamic",
        ReadProbe::BindingDynamic,
        "Are running VMs with a device chosen at power-on in `assignableHardwareBinding`?",
        "Yes. An unreadable VM that is in none of a host's bindings holds no device.",
    ),
    reading(
        "unreadable-vms",
        ReadProbe::UnreadableVms,
        "Can our user read the devices of every VM on the hosts of our clusters?",
        "Not always: vCLS VMs may be hidden. Bindings say what they hold.",
    ),
    reading(
        "inaccessible-config",
        ReadProbe::InaccessibleConfig,
        "Have inaccessible VMs no `config`?",
        "Yes. Such a VM is not taken for one without devices.",
    ),
    reading(
        "build-order",
        ReadProbe::BuildOrder,
        "Has a later version of ESXi a larger build number?",
        "Yes, also across patches. Hosts with the largest build are preferred.",
    ),
    reading(
        "event-age",
        ReadProbe::EventAge,
        "Are events kept for 30 days?",
        "Yes, by default. Nothing depends on it.",
    ),
    change(
        "relocate-static",
        "What does vCenter answer to the relocation of a VM that is off and has a device at a fixed address?",
        "Unknown. Such a VM is kept at home.",
    ),
    change(
        "relocate-folder",
        "Does a relocation that names the folder of the VM need no other privilege?",
        "Yes, as documented for the same operation of the Automation API.",
    ),
    change(
        "relocate-checks",
        "Does the relocation of a VM that is off check neither memory nor admission control?",
        "Possible. Memory, failover hosts and rules are judged beforehand, and a refused power-on is remembered.",
    ),
    change(
        "unconnected-card",
        "Does a VM that was moved to a host without its standard port group start with an unconnected card?",
        "Yes. Such a host is not used.",
    ),
    change(
        "reconfigure-entering",
        "Can a VM that is off be reconfigured on a host that enters maintenance mode, or is in it?",
        "Unknown. No VM is reconfigured.",
    ),
    change(
        "drs-power-on-host",
        "Does `PowerOnVM_Task` with a host hold under fully automated DRS?",
        "Yes. A VM that starts elsewhere is found there.",
    ),
    change(
        "drs-refusal-alarms",
        "Does each refused power-on by DRS raise an alarm?",
        "Possible. Attempts become slower.",
    ),
    change(
        "rules-without-drs",
        "Do mandatory VM-Host rules count where DRS is off?",
        "Yes. Such a host is not used.",
    ),
    change(
        "power-on-after-exit",
        "Is a power-on refused for a while after Exit Maintenance Mode, while vSphere HA configures the host?",
        "Possible. The own host is tried again before another one.",
    ),
    change(
        "tools-stop-early",
        "Do VMware Tools stop early in a guest shutdown?",
        "Yes. A guest that was asked keeps its time.",
    ),
    change(
        "entering-after-restart",
        "Does Enter Maintenance Mode survive a restart of vCenter?",
        "Unknown. A task that is gone without an end counts as failed, not as cancelled.",
    ),
    change(
        "login-while-starting",
        "Does a vCenter that starts refuse a correct password?",
        "Yes. Credentials that were accepted before are tried again soon.",
    ),
    change(
        "sub-ids",
        "Does 0 as subsystem id of an allowed device stand for any device?",
        "Yes.",
    ),
    change(
        "lifecycle-prechecks",
        "Does vSphere Lifecycle Manager refuse a host before it begins a task?",
        "Possible. Nothing is seen of it.",
    ),
    change(
        "live-patch",
        "Does a live patch power-cycle VMs with a passthrough device?",
        "Possible. A partial maintenance mode is told, and begins no episode.",
    ),
    change(
        "attribute-in-client",
        "Do lists in the vSphere Client show a custom attribute as a column, and an empty value like none?",
        "Yes. The value is set to an empty text at the end of an episode.",
    ),
    change(
        "attribute-length",
        "How long may the value of a custom attribute be?",
        "At least 200 characters.",
    ),
];
