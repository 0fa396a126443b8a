//! The phases as lists of rules. The rules of a phase are asked in their order, and the first that answers decides.
//!
//! For a parked episode, the rules of the phase that it resumes are asked. Before the rules, `decide` checks the VM and the cordon; after
//! them, it may put guards, a GPU reset or a checkpoint first. A rule `unless_X` answers where X does not hold. The texts are published as `docs/reference/phases.md`.

use super::back::has_to_leave_again;
use super::context::{PhaseContext, PhaseStep};
use crate::maintenance::clock::Deadline;
use crate::maintenance::episode::Phase;

/// A rule of a phase.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// When it decides.
    pub when: &'static str,
    /// What is done then.
    pub then: &'static str,
    answer: fn(PhaseContext<'_>) -> Option<PhaseStep>,
}

const fn rule(
    when: &'static str,
    then: &'static str,
    answer: fn(PhaseContext<'_>) -> Option<PhaseStep>,
) -> Rule {
    Rule { when, then, answer }
}

/// The rules of a phase.
#[derive(Clone, Copy, Debug)]
pub struct PhaseRules {
    /// The phase, and that its VM is off or on where that is not usual.
    pub name: &'static str,
    pub rules: &'static [Rule],
    /// What is done where no rule answers.
    pub otherwise: &'static str,
    last: fn(PhaseContext<'_>) -> PhaseStep,
    /// The deadline of all rules of the phase: after it a wait or an effect parks the episode, and the effect is still retried. Where
    /// there is none, single rules may have deadlines.
    overdue: Option<fn(PhaseContext<'_>) -> Deadline>,
}

impl PhaseRules {
    /// The step of the phase, and [`Rule::when`] of the rule that decided.
    pub(super) fn step(&self, context: PhaseContext<'_>) -> (PhaseStep, &'static str) {
        let answer = |rule: &Rule| Some(((rule.answer)(context)?, rule.when));
        let decided = self.rules.iter().find_map(answer);
        let (step, when) = decided.unwrap_or_else(|| ((self.last)(context), OTHERWISE));
        match self.overdue {
            Some(at) => (context.unless_overdue(at(context), step), when),
            None => (step, when),
        }
    }

    pub(super) fn of(phase: &Phase, is_on: bool) -> &'static Self {
        match (phase, is_on) {
            (Phase::Queued, true) => &QUEUED,
            (Phase::Queued, false) => &QUEUED_AND_OFF,
            (Phase::Draining, true) => &DRAINING,
            (Phase::Drained, true) => &DRAINED,
            (Phase::Drained, false) => &DRAINED_AND_OFF,
            (Phase::ShuttingDown(_), true) => &SHUTTING_DOWN,
            (Phase::Draining | Phase::ShuttingDown(_) | Phase::Rejoining, false) => &WENT_OFF,
            (Phase::Relocating { .. } | Phase::AwaitingHost | Phase::PoweringOn { .. }, true) => {
                &FOUND_RUNNING
            }
            (Phase::Relocating { .. }, false) => &RELOCATING,
            (Phase::AwaitingHost, false) => &AWAITING_HOST,
            (Phase::PoweringOn { .. }, false) => &POWERING_ON,
            (Phase::Rejoining, true) => &REJOINING,
            (Phase::Parked { .. }, _) => &PARKED_TWICE,
        }
    }
}

/// When the last rule of a phase decides.
pub const OTHERWISE: &str = "otherwise";

/// The phases, as `docs/reference/phases.md` lists them.
pub const PHASES: &[&PhaseRules] = &[
    &QUEUED,
    &QUEUED_AND_OFF,
    &DRAINING,
    &DRAINED,
    &DRAINED_AND_OFF,
    &SHUTTING_DOWN,
    &WENT_OFF,
    &RELOCATING,
    &AWAITING_HOST,
    &POWERING_ON,
    &FOUND_RUNNING,
    &REJOINING,
];

const NOT_ASKED_DOWN: Rule = rule(
    "neither the host nor a request asks for the node to be down or drained, or the state of the host is not known",
    "the episode ends, or the node rejoins first; a host whose state is not known is waited for, and so is a maintenance that failed and may be \
     tried again",
    |it| it.unless_asked_down(),
);
const GIVEN_UP: Rule = rule(
    "no host takes the VM that is to be relocated",
    "the request ends as failed",
    |it| it.given_up(),
);
const DEAD: Rule = rule(
    "the Node is not Ready, and another Node has its VM",
    "it is parked: the pods of the machine may be on the other Node",
    |it| it.park_if_dead(),
);
const UNCORDONED: Rule = rule(
    "the Node was uncordoned",
    "it is cordoned and drained again; the second time, it is parked",
    |it| it.unless_cordoned(),
);
const QUESTION: Rule = rule(
    "the VM has a question",
    "a person has to answer it in vCenter",
    |it| it.await_answer(),
);

const QUEUED: PhaseRules = PhaseRules {
    name: "Queued",
    rules: &[
        NOT_ASKED_DOWN,
        rule(
            "it is queued for a request, its host enters maintenance mode, and approvals are required",
            "the episode ends: the maintenance of the host needs an approval of its own",
            |it| it.end_request_when_host_enters(),
        ),
        GIVEN_UP,
        rule(
            "vCenter can move the VM by vMotion",
            "it gets the time for that",
            |it| it.await_vmotion(),
        ),
        rule(
            "a person has to approve the drain",
            "the approval is waited for",
            |it| it.await_approval(),
        ),
        rule(
            "the VM is to be relocated, and no host is known that takes it",
            "the hosts are surveyed",
            |it| it.find_host_when_admitted(),
        ),
    ],
    otherwise: "the node is cordoned and drained when it has a slot",
    last: |it| it.drain_when_admitted(it.episode.clone()),
    overdue: None,
};

const QUEUED_AND_OFF: PhaseRules = PhaseRules {
    name: "Queued, VM off",
    rules: &[rule(
        "Haulout or vCenter has powered the VM off",
        "a host is chosen for it, or waited for",
        |it| it.powered_off_in_queue(),
    )],
    otherwise: "a person has powered the VM off: the episode ends, and the VM stays off",
    last: |it| it.end(None),
    overdue: None,
};

const DRAINING: PhaseRules = PhaseRules {
    name: "Draining",
    rules: &[
        NOT_ASKED_DOWN,
        GIVEN_UP,
        DEAD,
        UNCORDONED,
        rule(
            "hooks hold the first eviction",
            "their removal is waited for",
            |it| it.hold_first_eviction(),
        ),
        rule(
            "the settings or the request have changed the drain timeout",
            "that is recorded; a shorter time counts from now",
            |it| it.follow_drain_limit(),
        ),
        rule(
            "a list of the pods shows none that blocks",
            "a node that is only to be drained becomes Drained; otherwise a host is chosen first where the VM is to be relocated, guards \
             are set on its Machine, hooks for the power-off are waited for, and the VM is shut down",
            |it| it.drained_now(),
        ),
        // This rule answers until the deadline, and after it until there was one round, because the pods that are left behind have to
        // be named. The next rule relies on that, and checks no deadline.
        rule("pods are left, and there is time", "they are evicted", |it| {
            it.evict_in_time()
        }),
        rule(
            "the time of the drain is over, and the action for that is power-off",
            "the VM is shut down with the pods that are left; they are evicted while something else holds the shutdown",
            |it| it.drain_timed_out(),
        ),
    ],
    otherwise: "pods are evicted without a limit: the action is hold",
    last: |it| it.evict_without_limit(),
    overdue: None,
};

const DRAINED: PhaseRules = PhaseRules {
    name: "Drained",
    rules: &[
        NOT_ASKED_DOWN,
        UNCORDONED,
        rule(
            "the host or a request asks for the VM to be off",
            "the node is drained again when it has a slot",
            |it| it.drain_for_shutdown(),
        ),
    ],
    otherwise: "new pods are evicted until the request is deleted",
    last: |it| it.keep_drained(),
    overdue: None,
};

const DRAINED_AND_OFF: PhaseRules = PhaseRules {
    name: "Drained, VM off",
    rules: &[rule(
        "a request wants the node drained and no more",
        "a person has powered the VM off, and it stays off until the request is deleted",
        |it| it.leave_off_while_drained(),
    )],
    otherwise: "a host is chosen for the VM, or waited for",
    last: |it| it.powered_off(),
    overdue: None,
};

const SHUTTING_DOWN: PhaseRules = PhaseRules {
    name: "ShuttingDown",
    rules: &[
        rule(
            "a request wants the node drained and no more",
            "it is kept drained; a node whose guest may have been asked to shut down rejoins first",
            |it| it.drained_only(),
        ),
        NOT_ASKED_DOWN,
        // Another phase would not know of a request that is not recorded yet.
        rule(
            "the request to the guest is not recorded yet",
            "it is recorded",
            |it| it.record_unrecorded_request(),
        ),
        DEAD,
        rule(
            "the guest has rebooted, or the cordon was removed or replaced",
            "the node is drained again; the second time that the cordon was removed, it is parked",
            |it| it.drain_again(),
        ),
        QUESTION,
        // It answers from then on: the rules below are asked only before the guest was.
        rule(
            "the guest was asked",
            "it has GUEST_SHUTDOWN_TIMEOUT_SECONDS; then its power is cut, if a new list still shows no pod that blocks",
            |it| it.await_guest(),
        ),
        rule(
            "another Node with the VM was registered a moment ago",
            "Haulout waits to see whether this Node stays Ready",
            |it| it.until_ready_counts(),
        ),
        rule(
            "vCenter is moving the VM by vMotion",
            "it gets the time for that",
            |it| it.await_running_vmotion(),
        ),
        rule(
            "volumes are attached",
            "their detachment is waited for, for VOLUME_DETACH_TIMEOUT_SECONDS",
            |it| it.await_volumes(),
        ),
    ],
    otherwise: "the guest is asked to shut down; without VMware Tools its power is cut",
    last: |it| it.ask_guest(),
    overdue: Some(|it| it.shutdown_overdue()),
};

const WENT_OFF: PhaseRules = PhaseRules {
    name: "Draining, ShuttingDown or Rejoining, VM off",
    rules: &[],
    otherwise: "a host is chosen for the VM, or waited for",
    last: |it| it.powered_off(),
    overdue: None,
};

const RELOCATING: PhaseRules = PhaseRules {
    name: "Relocating",
    rules: &[rule("the VM is on the chosen host", "it is powered on", |it| {
        it.relocated()
    })],
    otherwise: "the VM is relocated; if that is not needed any more or was refused for good, a host is chosen again",
    last: |it| it.relocate(),
    overdue: Some(|it| it.phase_deadline(it.policy.relocate_timeout)),
};

const AWAITING_HOST: PhaseRules = PhaseRules {
    name: "AwaitingHost",
    rules: &[
        rule("a request keeps the VM off", "its deletion is waited for", |it| {
            it.kept_off()
        }),
        rule(
            "a maintenance that failed may be tried again",
            "that is waited for, for MAINTENANCE_RETRY_GRACE_SECONDS",
            |it| it.await_maintenance_retry(),
        ),
        rule("the VM has gone off again", "its next power-on waits", |it| {
            it.power_on_pause()
        }),
        rule(
            "a host takes the VM",
            "the VM is powered on there, or placed by DRS, or relocated first",
            |it| it.leave_for_a_host(),
        ),
        rule("a survey of the other hosts is due", "they are surveyed", |it| {
            it.survey_when_due()
        }),
    ],
    otherwise: "the VM waits for its own host; a power-on that was refused is tried again where the VM is",
    last: |it| it.await_a_host(),
    overdue: None,
};

const POWERING_ON: PhaseRules = PhaseRules {
    name: "PoweringOn",
    rules: &[
        rule(
            "the host takes no VM any more, or a request asks for something else",
            "a host is chosen again",
            |it| it.unless_placeable(),
        ),
        rule(
            "the power-on was refused for good, or DRS placed it elsewhere",
            "a host is chosen again",
            |it| it.after_refusal(),
        ),
        QUESTION,
        rule(
            "devices at fixed addresses are those of another host",
            "they are changed to those of this host",
            |it| it.reconfigure_before_power_on(),
        ),
    ],
    otherwise: "the VM is powered on; a refusal that may pass is retried",
    last: |it| it.power_on(),
    overdue: None,
};

const FOUND_RUNNING: PhaseRules = PhaseRules {
    name: "Relocating, AwaitingHost or PoweringOn, VM on",
    rules: &[],
    otherwise: "the node rejoins where its VM runs",
    last: |it| it.found_running(),
    overdue: None,
};

const REJOINING: PhaseRules = PhaseRules {
    name: "Rejoining",
    rules: &[
        rule(
            "its host enters maintenance mode, or a request asks for more than was done",
            "the node is drained again when it has a slot",
            |it| {
                let has_to_leave = has_to_leave_again(it.episode, it.vm, it.seen.request.as_ref());
                has_to_leave.then(|| it.leave_again())
            },
        ),
        rule(
            "its host is not known to be out of maintenance mode, and vCenter does not move the VM",
            "that is waited for",
            |it| it.unless_out(),
        ),
        rule(
            "a person has powered on a VM that a request keeps off",
            "it is parked: Haulout does not power off a VM that a person powered on",
            |it| it.powered_on_against_request(),
        ),
        rule(
            "a shutdown or power-off that was requested may still take effect",
            "that is waited for",
            |it| it.pending_power_off(),
        ),
        rule(
            "the guest was restarted while nobody looked",
            "that is recorded: it counts as a power cycle",
            |it| it.record_restart(),
        ),
        rule(
            "the Node still shows the GPU counts of the boot before the power-off",
            "they are set to 0",
            |it| it.clear_gpus_in_time(),
        ),
        rule(
            "the node is not back: its Node is not Ready, reports the old boot, or lacks GPUs",
            "that is waited for; it is overdue after POWER_ON_TIMEOUT_SECONDS",
            |it| it.await_node(),
        ),
        rule("a request wants the node drained", "it is kept drained", |it| {
            it.back_to_drained()
        }),
        rule("a person has accepted fewer GPUs", "that is recorded", |it| {
            it.record_accepted_gpus()
        }),
        rule(
            "GPU_RESOURCES does not match a resource any more that the node had",
            "that is recorded",
            |it| it.record_unmatched_gpus(),
        ),
        rule("hooks hold the uncordon", "their removal is waited for", |it| {
            it.hold_uncordon()
        }),
    ],
    otherwise: "guards are removed, the node is uncordoned if the cordon is Haulout's and it is not to stay cordoned, and the episode ends",
    last: |it| it.end_in_time(),
    overdue: None,
};

/// Only for an invalid record: a parked phase that resumes a parked phase.
const PARKED_TWICE: PhaseRules = PhaseRules {
    name: "Parked in a parked phase",
    rules: &[],
    otherwise: "it is parked",
    last: |it| it.parked_twice(),
    overdue: None,
};
