//! What follows from what was seen. Pure.

use serde::Serialize;

use super::observed::{Observations, ProbeReading, fault_name};
use crate::cli::probes::{ALL, Means, Probe, ReadProbe, WatchProbe};
use crate::vsphere::fault::FaultKind;
use crate::vsphere::updates::probe::{
    InventoryTraits, ListedTask, LongPoll, PollEnd, ProductInfo, PushTally, ResultSizes, TaskOrigin,
    WatchedPushes,
};

/// The answer to one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum ProbeAnswer {
    #[serde(rename = "yes")]
    Yes,
    #[serde(rename = "no")]
    No,
    #[serde(rename = "not seen")]
    NotSeen,
}

/// An answer, with what it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) id: &'static str,
    pub(super) question: &'static str,
    pub(super) answer: ProbeAnswer,
    pub(super) observed: String,
}

/// Answer and observation.
type Seen = (ProbeAnswer, String);

const ENTER: &str = "HostSystem.enterMaintenanceMode";
const EXIT: &str = "HostSystem.exitMaintenanceMode";
const DRS_VMOTION: &str = "Drm.ExecuteVMotionLRO";
const MIGRATIONS: [&str; 2] = ["VirtualMachine.migrate", "VirtualMachine.relocate"];

impl ProbeAnswer {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::NotSeen => "not seen",
        }
    }

    fn of(is_so: bool) -> Self {
        if is_so { Self::Yes } else { Self::No }
    }
}

/// The answers, in the order of the list. Questions that only a change can answer are left out.
pub(super) fn findings(seen: &Observations) -> Vec<Finding> {
    let finding = |probe: &Probe| {
        let (answer, observed) = match probe.means {
            Means::Reading(by) => read(by, seen),
            Means::Watch(by) => from(&seen.watch, |watch| watched(by, watch)),
            Means::Polls => from(&seen.polls, |polls| long_polls(polls)),
            Means::Change => return None,
        };
        Some(Finding {
            id: probe.id,
            question: probe.question,
            answer,
            observed,
        })
    };
    ALL.iter().filter_map(finding).collect()
}

fn not_seen(observed: impl Into<String>) -> Seen {
    (ProbeAnswer::NotSeen, observed.into())
}

fn from<T>(observed: &ProbeReading<T>, answer: impl Fn(&T) -> Seen) -> Seen {
    match observed {
        ProbeReading::Skipped => not_seen("left out"),
        ProbeReading::Unreadable(why) => not_seen(format!("not read: {why}")),
        ProbeReading::Got(value) => answer(value),
    }
}

fn read(by: ReadProbe, seen: &Observations) -> Seen {
    let tasks = |answer: fn(&[ListedTask]) -> Seen| {
        from(&seen.tasks, |tasks| match tasks {
            Some(tasks) => answer(tasks),
            None => not_seen("vCenter has no task history"),
        })
    };
    let traits = |answer: fn(&InventoryTraits) -> Seen| from(&seen.traits, answer);
    match by {
        ReadProbe::ApiVersion => from(&seen.product, api_version),
        ReadProbe::TaskResults => from(&seen.results, task_results),
        ReadProbe::MaintenanceTaskShape => tasks(task_shape),
        ReadProbe::MaintenanceTimeout => tasks(timeouts),
        ReadProbe::ExitReason => tasks(exit_reason),
        ReadProbe::VmotionTask => tasks(vmotions),
        ReadProbe::BindingFormat => traits(binding_format),
        ReadProbe::BindingStatic => {
            traits(|seen| bound(seen.static_vms_bound, seen.static_vms, "at a fixed address"))
        }
        ReadProbe::BindingDynamic => {
            traits(|seen| bound(seen.dynamic_vms_bound, seen.dynamic_vms, "chosen at power-on"))
        }
        ReadProbe::UnreadableVms => traits(unreadable),
        ReadProbe::InaccessibleConfig => traits(inaccessible),
        ReadProbe::BuildOrder => traits(build_order),
        ReadProbe::EventAge => from(&seen.event_age, event_age),
    }
}

fn api_version(product: &ProductInfo) -> Seen {
    let ProductInfo {
        negotiated,
        api_version,
        version,
        build,
        product_line,
    } = product;
    let observed = format!(
        "negotiated {negotiated}; the server has API {api_version}, version {version}, build {build}, product line {product_line}"
    );
    (ProbeAnswer::of(negotiated == api_version), observed)
}

fn task_results(sizes: &ResultSizes) -> Seen {
    let ResultSizes {
        tasks,
        with_result,
        largest,
        beyond_limit,
        left_out,
    } = sizes;
    if *tasks == 0 {
        return not_seen("no recent task ended with success");
    }
    let observed = format!(
        "{with_result} of {tasks} recent tasks have a result; the largest has {largest} bytes; {beyond_limit} are beyond a limit; {left_out} \
         tasks were left out"
    );
    (ProbeAnswer::of(*beyond_limit > 0), observed)
}

/// How many of `tasks` are of this kind, and how many of these `is` so.
fn counted(tasks: &[ListedTask], id: &str, is: impl Fn(&ListedTask) -> bool) -> (usize, usize) {
    let of_kind = || tasks.iter().filter(|task| task.description_id == id);
    (of_kind().count(), of_kind().filter(|task| is(task)).count())
}

/// `yes` if some of the tasks are so, `no` if there are such tasks and none is so.
fn some_of((all, so): (usize, usize), what: &str, observed: String) -> Seen {
    if all == 0 {
        return not_seen(format!("no {what} task is listed"));
    }
    (ProbeAnswer::of(so > 0), observed)
}

fn task_shape(tasks: &[ListedTask]) -> Seen {
    let is_foreign = |task: &ListedTask| task.has_parent || task.origin != TaskOrigin::User;
    let (all, foreign) = counted(tasks, ENTER, is_foreign);
    let (_, with_parent) = counted(tasks, ENTER, |task| task.has_parent);
    let (_, cancelable) = counted(tasks, ENTER, |task| task.is_cancelable);
    let origins: Vec<String> = [
        (TaskOrigin::User, "a user"),
        (TaskOrigin::System, "the system"),
        (TaskOrigin::Schedule, "a schedule"),
        (TaskOrigin::Alarm, "an alarm"),
        (TaskOrigin::Unknown, "an unknown origin"),
    ]
    .into_iter()
    .map(|(origin, words)| (counted(tasks, ENTER, |task| task.origin == origin).1, words))
    .filter(|(count, _)| *count > 0)
    .map(|(count, words)| format!("{count} by {words}"))
    .collect();
    let observed = format!(
        "of {all} tasks: {}; {with_parent} with a parent; {cancelable} cancelable",
        origins.join(", ")
    );
    some_of((all, foreign), "Enter Maintenance Mode", observed)
}

fn timeouts(tasks: &[ListedTask]) -> Seen {
    let counts = counted(tasks, ENTER, |task| task.failed_with == Some(FaultKind::Timedout));
    let enters = tasks.iter().filter(|task| task.description_id == ENTER);
    let mut faults: Vec<String> = enters
        .filter_map(|task| task.failed_with.as_ref())
        .map(fault_name)
        .collect();
    faults.sort();
    let all = faults.len();
    faults.dedup();
    let (tasks, timeouts) = counts;
    let faults = match faults.is_empty() {
        true => String::new(),
        false => format!(" ({})", faults.join(", ")),
    };
    let observed = format!("of {tasks} tasks {all} failed{faults}, {timeouts} of them with Timedout");
    some_of(counts, "Enter Maintenance Mode", observed)
}

fn exit_reason(tasks: &[ListedTask]) -> Seen {
    let counts = counted(tasks, EXIT, |task| task.origin != TaskOrigin::User);
    let observed = format!("{} of {} tasks were not begun by a user", counts.1, counts.0);
    some_of(counts, "Exit Maintenance Mode", observed)
}

fn vmotions(tasks: &[ListedTask]) -> Seen {
    let (by_drs, _) = counted(tasks, DRS_VMOTION, |_| true);
    let counts = MIGRATIONS.map(|id| counted(tasks, id, |task| task.origin == TaskOrigin::System));
    let by_system: usize = counts.iter().map(|(_, by_system)| by_system).sum();
    let observed = format!("{by_drs} tasks {DRS_VMOTION}, {by_system} other migrations by the system");
    match (by_drs, by_system) {
        (0, 0) => not_seen("no vMotion by DRS is listed"),
        _ => (ProbeAnswer::of(by_system == 0), observed),
    }
}

fn binding_format(seen: &InventoryTraits) -> Seen {
    if seen.bindings == 0 {
        return not_seen(format!("no binding on {} hosts", seen.hosts));
    }
    let forms: Vec<&str> = seen.binding_forms.iter().map(String::as_str).collect();
    let observed = format!(
        "{} of {} ids have one address; forms: {}",
        seen.bindings_with_address,
        seen.bindings,
        forms.join(", ")
    );
    (
        ProbeAnswer::of(seen.bindings_with_address == seen.bindings),
        observed,
    )
}

fn bound(bound: usize, all: usize, what: &str) -> Seen {
    if all == 0 {
        return not_seen(format!(
            "no running VM with a device {what} is on a host with bindings"
        ));
    }
    let observed = format!("{bound} of {all} VMs are in a binding");
    (ProbeAnswer::of(bound == all), observed)
}

fn unreadable(seen: &InventoryTraits) -> Seen {
    if seen.vms == 0 {
        return not_seen(format!("no VM on {} hosts", seen.hosts));
    }
    let observed = format!(
        "{} of {} VMs on {} hosts cannot be read; {} hosts were left out",
        seen.unreadable_vms, seen.vms, seen.hosts, seen.hosts_left_out
    );
    (ProbeAnswer::of(seen.unreadable_vms == 0), observed)
}

fn inaccessible(seen: &InventoryTraits) -> Seen {
    if seen.inaccessible_vms == 0 {
        return not_seen(format!("none of {} VMs is inaccessible", seen.vms));
    }
    let observed = format!(
        "{} of {} inaccessible VMs have a config",
        seen.inaccessible_with_config, seen.inaccessible_vms
    );
    (ProbeAnswer::of(seen.inaccessible_with_config == 0), observed)
}

fn build_order(seen: &InventoryTraits) -> Seen {
    let builds: Vec<&(Vec<u32>, u64)> = seen.builds.iter().collect();
    let Some((first, last)) = builds.first().zip(builds.last()) else {
        return not_seen("no host has a version and a build");
    };
    if first.0 == last.0 {
        return not_seen(format!(
            "all hosts have one version, with {} builds",
            builds.len()
        ));
    }
    // Sorted by version and then by build.
    let is_ordered = builds.windows(2).all(|pair| match pair {
        [earlier, later] => earlier.1 <= later.1,
        _ => true,
    });
    let observed = format!("{} pairs of version and build", builds.len());
    (ProbeAnswer::of(is_ordered), observed)
}

fn event_age(days: &Option<String>) -> Seen {
    match days {
        Some(days) => (ProbeAnswer::of(days == "30"), format!("event.maxAge is {days}")),
        None => not_seen("there is no setting event.maxAge"),
    }
}

fn watched(by: WatchProbe, watch: &WatchedPushes) -> Seen {
    match by {
        WatchProbe::RecentTaskPush => tally(watch.recent_task, "tasks that began"),
        WatchProbe::TaskEndPush => tally(watch.task_end, "tasks that ended"),
        WatchProbe::HistoryBeginPush => tally(watch.history_begin, "tasks that began"),
        WatchProbe::HistoryEndPush => tally(watch.history_end, "listed tasks that ended"),
        WatchProbe::MaintenanceModePush => tally(watch.mode, "changes"),
        WatchProbe::MaintenanceWithoutTask => {
            let entered = watch.mode.pushed + watch.mode.missed;
            match watch.entered_without_task {
                0 if entered == 0 => not_seen("no host changed its mode"),
                0 => not_seen(format!("each of {entered} changes had its task")),
                count => (ProbeAnswer::Yes, format!("{count} hosts")),
            }
        }
    }
}

fn tally(tally: PushTally, what: &str) -> Seen {
    let PushTally { pushed, missed } = tally;
    match pushed + missed {
        0 => not_seen("nothing of it happened during the watch"),
        all => (
            ProbeAnswer::of(missed == 0),
            format!("{pushed} of {all} {what} were pushed"),
        ),
    }
}

fn long_polls(polls: &[LongPoll]) -> Seen {
    let Some(last) = polls.last() else {
        return not_seen("no long poll ended");
    };
    let each = |poll: &LongPoll| {
        let (asked, took) = (poll.asked.as_secs(), poll.took.as_secs_f64());
        let end = match poll.end {
            PollEnd::Answered => "answered".to_owned(),
            PollEnd::Closed => "the connection was closed".to_owned(),
            PollEnd::Silent => "no answer".to_owned(),
            PollEnd::Status(status) => format!("HTTP status {status}"),
            PollEnd::Refused => "refused".to_owned(),
        };
        format!("{asked} s: {end} after {took:.0} s")
    };
    let observed: Vec<String> = polls.iter().map(each).collect();
    // vCenter counts whole seconds.
    let is_whole = last.took.as_secs() + 1 >= last.asked.as_secs();
    let is_so = last.end == PollEnd::Answered && is_whole;
    (ProbeAnswer::of(is_so), observed.join("; "))
}
