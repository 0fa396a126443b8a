//! What a session holds for the stream: a collector of our own, two views, the filters over them, a task history.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;

use crate::call::SoapCall;
use crate::client::{Error, Vcenter};
use crate::moref::Moref;
use crate::property::{self, EVACUATION, PropertySpec, TraversalStep, UpdateSet};
use crate::reading::{BoundedRead, MAX_OBJECTS};
use crate::session::Session;
use crate::soap::{self, ReplyError};
use crate::task;
use crate::xml::write::XmlWriter;
use haulout_core::ids::TaskRef;

/// Tearing down is a courtesy to vCenter, which would otherwise keep the objects until the session idles out.
const TEAR_DOWN: Duration = Duration::from_secs(5);
/// Object updates per set: what a vCenter sends at the most, whatever is asked for. A set of so many hosts with all their
/// PCI devices stays well under the parser's limits.
const SET: u32 = 100;
/// Most parts of one set: hosts, VMs and tasks of the largest vCenter are some hundred parts of [`SET`] objects.
const SETS: usize = 1_000;
/// Objects per page of what is read again. It is a few small properties of each, so all hosts of the largest vCenter, the
/// VMs of ours on them and their tasks go into one call.
const AGAIN: u32 = 10_000;

/// Read of every host when it appears; what changes during its life is small.
const HOST: &[&str] = &[
    "name",
    "parent",
    "runtime.connectionState",
    "runtime.inMaintenanceMode",
    "runtime.inQuarantineMode",
    "recentTask",
    "datastore",
];
/// Read of the hosts that could take a VM of ours. It is most of a host's bytes, and of no use on any other.
const DEVICES: &[&str] = &["config.pciPassthruInfo", "hardware.pciDevice"];
const VM: &[&str] = &[
    "name",
    "config.uuid",
    "config.template",
    "config.hardware.device",
    "runtime.powerState",
    "runtime.host",
    "runtime.question",
    "guest.toolsRunningStatus",
    "datastore",
    "recentTask",
];
/// What is read again although nothing was pushed, because the API allows `recentTask` not to be pushed.
const HOST_AGAIN: &[&str] = &[
    "runtime.connectionState",
    "runtime.inMaintenanceMode",
    "runtime.inQuarantineMode",
    "recentTask",
];
const VM_AGAIN: &[&str] = &["runtime.powerState", "runtime.host", "recentTask"];

/// The stream's objects in one session.
pub(super) struct Subscription {
    vcenter: Vcenter,
    pub(super) session: Arc<Session>,
    collector: Moref,
    hosts: Moref,
    /// What is followed one by one: our VMs, the tasks that are awaited, and the hosts that could take a VM of ours. With its
    /// filter it is made when there is something to follow: a poll that waits hears of a filter that is made
    /// meanwhile (vSphere Web Services SDK Programming Guide, "Property Filters").
    list: OnceCell<Moref>,
    remains: SessionObjects,
}

/// What was made in a session and has to be destroyed in it, oldest first, each with the method that destroys it. Clones
/// are of the same things.
#[derive(Clone)]
pub(super) struct SessionObjects {
    vcenter: Vcenter,
    session: Arc<Session>,
    made: Arc<Mutex<Vec<(&'static str, Moref)>>>,
}

impl SessionObjects {
    pub(super) fn new(vcenter: &Vcenter, session: &Arc<Session>) -> Self {
        Self {
            vcenter: vcenter.clone(),
            session: session.clone(),
            made: Arc::default(),
        }
    }

    /// Destroys all, newest first, where the session still lives; with the session they are gone anyway.
    pub(super) async fn clear(self) {
        let generation = self.session.generation;
        let lives = |vcenter: &Vcenter| {
            vcenter
                .sessions
                .live()
                .is_some_and(|live| live.generation == generation)
        };
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        let work = async {
            for (method, moref) in made.iter().rev() {
                if !lives(&self.vcenter) {
                    return;
                }
                if *method == "DestroyPropertyCollector" {
                    let cancel = SoapCall::to("CancelWaitForUpdates", moref);
                    self.attempt(&cancel).await;
                }
                self.attempt(&SoapCall::to(method, moref)).await;
            }
        };
        if tokio::time::timeout(TEAR_DOWN, work).await.is_err() {
            tracing::debug!(
                generation,
                "vCenter did not answer in time while the stream was torn down"
            );
        }
    }

    /// Destroys one of what was made, before all the others are.
    pub(super) async fn unmake(&self, moref: &Moref) {
        let method = {
            let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            let at = made.iter().position(|(_, it)| it == moref);
            at.map(|at| made.remove(at).0)
        };
        if let Some(method) = method {
            self.attempt(&SoapCall::to(method, moref)).await;
        }
    }

    async fn attempt(&self, call: &SoapCall) {
        let call_within = self
            .vcenter
            .call_within(&self.session, call, TEAR_DOWN, soap::nothing);
        if let Err(error) = call_within.await {
            tracing::debug!(method = call.method, error = %error.chain(), "not torn down");
        }
    }

    pub(super) async fn make(&self, call: SoapCall, destroy: &'static str) -> Result<Moref, Error> {
        let moref = self
            .vcenter
            .call_in(&self.session, &call, soap::returned_moref)
            .await?;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.push((destroy, moref.clone()));
        Ok(moref)
    }
}

impl Subscription {
    /// How vCenter calls the user of the session.
    pub(super) fn user(&self) -> Option<&str> {
        self.session.user.as_deref()
    }

    /// Makes the view of hosts, the collector, and the filter over the one in the other. What was made is in `remains`, also
    /// where it fails midway.
    pub(super) async fn build(remains: &SessionObjects) -> Result<Self, Error> {
        let (vcenter, session) = (remains.vcenter.clone(), remains.session.clone());
        let content = &session.content;
        let hosts = SoapCall::to("CreateContainerView", &content.view_manager)
            .with(XmlWriter::moref("container", &content.root_folder))
            .with(XmlWriter::text("type", "HostSystem"))
            .with(XmlWriter::text("recursive", "true"));
        let hosts = remains.make(hosts, "DestroyView").await?;
        let collector = SoapCall::to("CreatePropertyCollector", &content.property_collector);
        let collector = remains.make(collector, "DestroyPropertyCollector").await?;
        let feed = Self {
            vcenter,
            session: session.clone(),
            collector,
            hosts,
            list: OnceCell::new(),
            remains: remains.clone(),
        };
        feed.filter(&feed.collector, feed.host_spec()).await?;
        Ok(feed)
    }

    /// The next set of hosts, our VMs, and the tasks of both; `None` when nothing happened for the length of the long poll.
    pub(super) async fn wait(&self, version: &str) -> Result<Option<UpdateSet>, Error> {
        self.poll(&self.collector, version).await
    }

    /// Asks one of the collectors for what comes after a version of it.
    pub(super) async fn poll(&self, collector: &Moref, version: &str) -> Result<Option<UpdateSet>, Error> {
        let settings = &self.vcenter.settings;
        let options = XmlWriter::new("options")
            .with(XmlWriter::text(
                "maxWaitSeconds",
                settings.long_poll.as_secs().max(1).to_string(),
            ))
            .with(XmlWriter::text("maxObjectUpdates", SET.to_string()));
        let call = SoapCall::to("WaitForUpdatesEx", collector)
            .with(XmlWriter::text("version", version))
            .with(options)
            .long_poll();
        // The server may answer late by as much as its calculation takes, as it may with every other call.
        let deadline = settings.long_poll + settings.call_deadline;
        let read = property::read_update_set;
        let set = self
            .vcenter
            .call_within(&self.session, &call, deadline, read)
            .await?;
        let changes = || set.iter().flat_map(|set| &set.changes);
        let objects = changes().map_while(|change| match change {
            property::Change::Upsert(object) => Some(object),
            property::Change::Gone(_) => None,
        });
        let lost = changes().find_map(|change| match change {
            property::Change::Gone(moref) if moref.is_of_session() => Some(moref),
            property::Change::Gone(_) | property::Change::Upsert(_) => None,
        });
        let dead = match lost {
            Some(lost) => Some(format!(
                "{} {lost} of our session does not exist any more",
                lost.kind
            )),
            None => property::is_of_dead_session(objects).then(|| property::WITHHELD.to_owned()),
        };
        if let Some(why) = dead {
            self.vcenter.sessions.give_up(self.session.generation);
            return Err(call.dead_session(&why));
        }
        Ok(set)
    }

    /// Refuses to follow a set of so many parts, or more objects than a vCenter holds: what is told is kept.
    pub(super) fn unless_endless(&self, sets: usize, objects: usize) -> Result<(), Error> {
        let call = SoapCall::to("WaitForUpdatesEx", &self.collector);
        endless(sets, objects).map_err(|source| call.unreadable(source))
    }

    /// Changes what the list holds. Gives those of `add` that do not exist.
    pub(super) async fn change(
        &self,
        add: impl Iterator<Item = &Moref> + Send,
        remove: impl Iterator<Item = &Moref> + Send,
    ) -> Result<BTreeSet<Moref>, Error> {
        let list = self.list.get_or_try_init(|| self.make_list()).await?;
        let mut call = SoapCall::to("ModifyListView", list);
        for moref in add {
            call = call.with(XmlWriter::moref("add", moref));
        }
        for moref in remove {
            call = call.with(XmlWriter::moref("remove", moref));
        }
        let unresolved = self.vcenter.call_in(&self.session, &call, soap::returned_morefs);
        Ok(unresolved.await?.into_iter().collect())
    }

    /// Reads hosts, our VMs and their tasks once more, all pages. Where hosts are known and none is read, the view through which
    /// they were read is gone, and with it the session: a missing object is left out of what is read, without a fault.
    pub(super) async fn read_again(&self, knows_hosts: bool) -> Result<BoundedRead, Error> {
        let host = TraversalStep::new("HostSystem", "recentTask", Vec::new());
        let vm = TraversalStep::new("VirtualMachine", "recentTask", Vec::new());
        let mut spec = PropertySpec::default()
            .read("HostSystem", HOST_AGAIN)
            .read("VirtualMachine", VM_AGAIN)
            .read("Task", task::PATHS)
            .through(
                &self.hosts,
                vec![TraversalStep::new("ContainerView", "view", vec![host])],
            );
        if let Some(list) = self.list.get() {
            spec = spec.through(list, vec![TraversalStep::new("ListView", "view", vec![vm])]);
        }
        let read = self.vcenter.retrieve_pages(&self.session, spec, AGAIN).await?;
        if knows_hosts && !read.objects.iter().any(|object| object.moref.host().is_some()) {
            self.vcenter.sessions.give_up(self.session.generation);
            let call = SoapCall::to("RetrievePropertiesEx", &self.hosts);
            return Err(call.dead_session("none of the hosts stands in our view any more"));
        }
        Ok(read)
    }

    /// Reads tasks of ours by themselves, with their results.
    pub(super) async fn look_at(&self, tasks: &BTreeSet<TaskRef>) -> Result<BoundedRead, Error> {
        let mut spec = PropertySpec::default().read("Task", &[task::PATHS, &[task::RESULT]].concat());
        for task in tasks {
            spec = spec.of(&task.into(), Vec::new());
        }
        self.vcenter.retrieve_pages(&self.session, spec, AGAIN).await
    }

    /// What was made in the session, to which more may be added.
    pub(super) fn remains(&self) -> &SessionObjects {
        &self.remains
    }

    /// Whether there is a session: one that was found gone is given up.
    pub(super) fn is_alive(&self) -> bool {
        self.vcenter.sessions.live().is_some()
    }

    /// The client, for reads in the feed's session.
    pub(super) fn vcenter(&self) -> &Vcenter {
        &self.vcenter
    }

    /// All hosts and their tasks.
    fn host_spec(&self) -> PropertySpec {
        let of_host = vec![TraversalStep::new("HostSystem", "recentTask", Vec::new())];
        PropertySpec::default()
            .read("HostSystem", HOST)
            .read("Task", task::PATHS)
            .through(
                &self.hosts,
                vec![TraversalStep::new("ContainerView", "view", of_host)],
            )
    }

    /// What is in the list, of VMs these properties, their tasks too, and their clusters: whether DRS places a VM is told with
    /// the host that it stands on.
    fn list_spec(list: &Moref, vm: &[&str]) -> PropertySpec {
        let to_cluster = vec![TraversalStep::new("HostSystem", "parent", Vec::new())];
        let of_member = vec![
            TraversalStep::new("VirtualMachine", "recentTask", Vec::new()),
            TraversalStep::over("VirtualMachine", "runtime.host", to_cluster),
        ];
        PropertySpec::default()
            .read("VirtualMachine", vm)
            .read("Task", task::PATHS)
            .read("HostSystem", DEVICES)
            // `configuration.drsConfig` is deprecated, and a path below `configurationEx` is not valid on its declared type.
            .read("ComputeResource", &["name", "configurationEx"])
            .through(list, vec![TraversalStep::new("ListView", "view", of_member)])
    }

    async fn make_list(&self) -> Result<Moref, Error> {
        let list = SoapCall::to("CreateListView", &self.session.content.view_manager);
        let list = self.remains.make(list, "DestroyView").await?;
        let marked: Vec<&str> = VM.iter().copied().chain([EVACUATION]).collect();
        let all = self
            .filter(&self.collector, Self::list_spec(&list, &marked))
            .await;
        let what = "the mark of VMs that vCenter evacuates by power-off";
        if self.optional(what, all)?.is_none() {
            self.filter(&self.collector, Self::list_spec(&list, VM)).await?;
        }
        Ok(list)
    }

    pub(super) async fn filter(&self, collector: &Moref, spec: PropertySpec) -> Result<(), Error> {
        let call = SoapCall::to("CreateFilter", collector)
            .with(spec.render("spec"))
            .with(XmlWriter::text("partialUpdates", "false"));
        self.vcenter.call_in(&self.session, &call, soap::nothing).await
    }

    /// A refusal of something that the stream can do without is told and passed over.
    pub(super) fn optional<T>(
        &self,
        what: &'static str,
        result: Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        match result {
            Ok(made) => Ok(Some(made)),
            Err(Error::Refused { source, .. }) if self.is_alive() => {
                tracing::info!(what, fault = %source, "vCenter does not provide it; the stream goes on without");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether a set ends in time: by its parts so far, and the objects that it told or that are known all in all.
fn endless(sets: usize, objects: usize) -> Result<(), ReplyError> {
    let (what, limit) = if sets > SETS {
        ("parts of one set", SETS)
    } else if objects > MAX_OBJECTS {
        ("objects", MAX_OBJECTS)
    } else {
        return Ok(());
    };
    Err(ReplyError::Endless { what, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_without_an_end_is_given_up() {
        assert_eq!(endless(SETS, MAX_OBJECTS), Ok(()));
        for (sets, objects, what) in [(SETS + 1, 0, "parts of one set"), (1, MAX_OBJECTS + 1, "objects")] {
            let error = endless(sets, objects).unwrap_err();
            assert!(error.to_string().ends_with(what), "{error}");
        }
    }
}
