//! Several update sets and re-reads, one after the other, through the property cache.

use std::collections::{BTreeMap, BTreeSet};

use crate::moref::Moref;
use crate::property::{Change, ObjectProperties, read_page, read_update_set};
use crate::soap::{SoapAnswer, read_answer};
use crate::update::VsphereUpdate;
use crate::updates::property_cache::PropertyCache;

/// Separates the replies in the input of [`stream`]. XML does not allow it.
pub const RECORD_SEPARATOR: u8 = 0x1e;

enum StreamStep {
    /// A reply to the long poll.
    Poll {
        changes: Vec<Change>,
        truncated: bool,
    },
    /// A re-read begins; replies to the long poll overtake it.
    RereadBegins,
    RereadEnds(Vec<ObjectProperties>),
}

/// Applies replies of the stream, which [`RECORD_SEPARATOR`] separates. An empty one is the beginning of a re-read.
///
/// # Panics
/// If an update is sent twice, is about a VM that is not ours, or leads to another state than all replies at once; or if the
/// cache grows by more than was reported.
pub fn stream(replies: &[u8]) {
    let steps: Vec<StreamStep> = replies
        .split(|byte| *byte == RECORD_SEPARATOR)
        .filter_map(read_step)
        .collect();
    let morefs: BTreeSet<Moref> = steps.iter().flat_map(reported).collect();
    // Some are not ours, and some are not awaited.
    let is_chosen = |value: &str| !value.ends_with(['9', '8']);
    let ours: BTreeSet<_> = morefs
        .iter()
        .filter_map(Moref::vm)
        .filter(|vm| is_chosen(vm.as_str()))
        .collect();
    let awaited: BTreeSet<_> = morefs
        .iter()
        .filter_map(Moref::task)
        .filter(|task| is_chosen(task.as_str()))
        .collect();
    let mut caches = [
        PropertyCache::new(Some("haulout")),
        PropertyCache::new(Some("haulout")),
    ];
    for cache in &mut caches {
        cache.set_ours(ours.clone());
        cache.set_awaited(awaited.clone());
    }
    let [stepwise, at_once] = &mut caches;
    let mut state = ReportedState::default();
    for step in &steps {
        apply(stepwise, step);
        apply(at_once, step);
        state.apply(stepwise.take_updates());
        assert!(stepwise.take_updates().is_empty(), "an update is sent once");
        // Pages of the task history have tasks that are no objects of the reply.
        let listed = steps.iter().map(tasks_in_pages).sum::<usize>();
        assert!(
            stepwise.size() <= morefs.len() + listed,
            "{} of {}",
            stepwise.size(),
            morefs.len()
        );
    }
    let mut whole = ReportedState::default();
    whole.apply(at_once.take_updates());
    assert_eq!(
        state.objects, whole.objects,
        "the same, however often it is asked for updates"
    );
    let others: Vec<&Moref> = state
        .objects
        .keys()
        .filter(|of| of.vm().is_some_and(|vm| !ours.contains(&vm)))
        .collect();
    assert!(others.is_empty(), "{others:?} are not ours");
}

fn read_step(reply: &[u8]) -> Option<StreamStep> {
    if reply.is_empty() {
        return Some(StreamStep::RereadBegins);
    }
    if let Ok(SoapAnswer::Returned(Some(set))) = read_answer("WaitForUpdatesEx", reply, read_update_set) {
        return Some(StreamStep::Poll {
            changes: set.changes,
            truncated: set.truncated,
        });
    }
    match read_answer("RetrievePropertiesEx", reply, read_page) {
        Ok(SoapAnswer::Returned(page)) => Some(StreamStep::RereadEnds(page.objects)),
        Ok(SoapAnswer::Fault { .. }) | Err(_) => None,
    }
}

fn objects(step: &StreamStep) -> Vec<&ObjectProperties> {
    match step {
        StreamStep::Poll { changes, .. } => changes
            .iter()
            .filter_map(|change| match change {
                Change::Upsert(object) => Some(object),
                Change::Gone(_) => None,
            })
            .collect(),
        StreamStep::RereadBegins => Vec::new(),
        StreamStep::RereadEnds(objects) => objects.iter().collect(),
    }
}

/// The objects that a step names.
fn reported(step: &StreamStep) -> Vec<Moref> {
    objects(step)
        .into_iter()
        .map(|object| object.moref.clone())
        .collect()
}

fn tasks_in_pages(step: &StreamStep) -> usize {
    let pages = objects(step).into_iter();
    pages
        .filter_map(|object| object.get("latestPage")?.tasks())
        .map(<[_]>::len)
        .sum()
}

fn apply(cache: &mut PropertyCache, step: &StreamStep) {
    match step {
        StreamStep::Poll { changes, truncated } => {
            cache.apply(changes.clone());
            if !truncated {
                cache.poll_caught_up();
            }
        }
        StreamStep::RereadBegins => cache.begin_reread(),
        StreamStep::RereadEnds(objects) => {
            let tasks = objects.iter().filter(|object| object.moref.task().is_some());
            let tasks: Vec<ObjectProperties> = tasks.cloned().collect();
            cache.merge_reread(objects);
            let to_read = cache.take_tasks_to_read();
            let wanted = &to_read.awaited | &to_read.claimed;
            let is_wanted =
                |object: &ObjectProperties| object.moref.task().is_some_and(|task| wanted.contains(&task));
            let found: Vec<ObjectProperties> = tasks.into_iter().filter(is_wanted).collect();
            cache.apply_tasks_read(&found);
            let found: BTreeSet<_> = found.iter().filter_map(|object| object.moref.task()).collect();
            cache.tasks_not_found(to_read.awaited.difference(&found).cloned().collect());
        }
    }
}

/// What a reader of the updates knows of hosts, clusters and VMs. Ended tasks are forgotten without an update.
#[derive(Debug, Default)]
struct ReportedState {
    objects: BTreeMap<Moref, VsphereUpdate>,
}

impl ReportedState {
    fn apply(&mut self, updates: Vec<VsphereUpdate>) {
        for update in updates {
            let (of, is_there) = match &update {
                VsphereUpdate::Host(host) => (Moref::from(&host.moref), true),
                VsphereUpdate::HostGone(host) => (Moref::from(host), false),
                VsphereUpdate::Vm(vm) => (Moref::from(&vm.moref), true),
                VsphereUpdate::VmGone(vm) => (Moref::from(vm), false),
                VsphereUpdate::Compute(compute) => {
                    (Moref::new("ComputeResource", compute.moref.shared()), true)
                }
                VsphereUpdate::ComputeGone(compute) => {
                    (Moref::new("ComputeResource", compute.shared()), false)
                }
                VsphereUpdate::Reset
                | VsphereUpdate::Task(_)
                | VsphereUpdate::TaskGone(_)
                | VsphereUpdate::Found { .. }
                | VsphereUpdate::OutOfScope { .. }
                | VsphereUpdate::EvacuationPolicies { .. }
                | VsphereUpdate::Settled
                | VsphereUpdate::Lost { .. } => continue,
            };
            if is_there {
                let before = self.objects.insert(of, update.clone());
                assert!(before.as_ref() != Some(&update), "sent twice: {update:?}");
            } else {
                let before = self.objects.remove(&of);
                assert!(before.is_some(), "gone, and was not there: {update:?}");
            }
        }
    }
}
