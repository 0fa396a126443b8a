//! The objects of the stream in a session: a collector, two views with filters, a task history.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::properties::{COMPUTE, DATASTORE, HOST, ReadBy, VM, paths};
use crate::call::SoapCall;
use crate::client::{Error, Vcenter};
use crate::moref::Moref;
use crate::property::{self, PropertySpec, TraversalStep, UpdateSet};
use crate::reading::{BoundedRead, MAX_OBJECTS, container_view};
use crate::session::Session;
use crate::soap::{self, ReplyError};
use crate::task;
use crate::xml::Element;
use crate::xml::write::XmlWriter;
use haulout_core::ids::{TaskRef, VmRef};

#[cfg(test)]
mod tests;

/// Limit for the cleanup; otherwise vCenter keeps the objects until the session times out.
const CLEANUP_DEADLINE: Duration = Duration::from_secs(5);
/// Parts per set: the largest vCenter has some hundred parts of 100 objects.
const MAX_PARTS: usize = 1_000;
/// Objects per page of a re-read. It reads few small properties, so one call returns all hosts of the
/// largest vCenter, our VMs, and their tasks.
const REREAD_PAGE: u32 = 10_000;

/// The API version that has [`PARTIAL_MAINTENANCE`](property::PARTIAL_MAINTENANCE).
const KNOWS_PARTIAL_MAINTENANCE: &[u32] = &[8, 0, 3];
/// What every vCenter knows.
const KNOWN: &[ReadBy] = &[ReadBy::Filter, ReadBy::FilterAndReread];
const ALL: &[ReadBy] = &[ReadBy::Filter, ReadBy::FilterAndReread, ReadBy::IfKnown];

/// What is known before a re-read.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownBefore {
    /// Whether any host is known.
    pub(super) has_hosts: bool,
    /// Our VMs that vCenter has not reported.
    pub(super) unreported: BTreeSet<VmRef>,
}

/// The property filters of the stream in one session.
pub(super) struct Subscription {
    pub(super) objects: SessionObjects,
    collector: Moref,
    hosts: Moref,
    /// The list view of our VMs, awaited tasks, and hosts that could take one of our VMs. It is created
    /// with its filter when needed; a waiting poll includes filters that are created meanwhile (vSphere
    /// Web Services SDK Programming Guide, "Property Filters").
    list: OnceCell<Moref>,
}

/// Objects that were created in a session, oldest first, each with the method that destroys it. Clones
/// share the list.
#[derive(Clone)]
pub(super) struct SessionObjects {
    pub(super) vcenter: Vcenter,
    pub(super) session: Arc<Session>,
    created: Arc<Mutex<Vec<(&'static str, Moref)>>>,
}

impl SessionObjects {
    pub(super) fn new(vcenter: &Vcenter, session: &Arc<Session>) -> Self {
        Self {
            vcenter: vcenter.clone(),
            session: session.clone(),
            created: Arc::default(),
        }
    }

    /// Destroys all objects, newest first, if the session is alive; a dead session has none.
    pub(super) async fn destroy_all(self) {
        let generation = self.session.generation;
        let lives = |vcenter: &Vcenter| {
            vcenter
                .sessions
                .live()
                .is_some_and(|live| live.generation == generation)
        };
        let created = std::mem::take(&mut *self.created.lock());
        let work = async {
            for (method, moref) in created.iter().rev() {
                if !lives(&self.vcenter) {
                    return;
                }
                if *method == "DestroyPropertyCollector" {
                    let cancel = SoapCall::to("CancelWaitForUpdates", moref);
                    self.call_best_effort(&cancel).await;
                }
                self.call_best_effort(&SoapCall::to(method, moref)).await;
            }
        };
        if tokio::time::timeout(CLEANUP_DEADLINE, work).await.is_err() {
            tracing::debug!(
                generation,
                "vCenter did not answer in time while the objects of the stream were destroyed"
            );
        }
    }

    /// Destroys one object early.
    pub(super) async fn destroy(&self, moref: &Moref) {
        let method = {
            let mut created = self.created.lock();
            let at = created.iter().position(|(_, it)| it == moref);
            at.map(|at| created.remove(at).0)
        };
        if let Some(method) = method {
            self.call_best_effort(&SoapCall::to(method, moref)).await;
        }
    }

    async fn call_best_effort(&self, call: &SoapCall) {
        let call_within = self
            .vcenter
            .call_within(&self.session, call, CLEANUP_DEADLINE, soap::nothing);
        if let Err(error) = call_within.await {
            tracing::debug!(method = call.method, error = %error.chain(), "an object of the stream was not destroyed");
        }
    }

    pub(super) async fn create(&self, call: SoapCall, destroy: &'static str) -> Result<Moref, Error> {
        let moref = self
            .vcenter
            .call_in(&self.session, &call, soap::returned_moref)
            .await?;
        let mut created = self.created.lock();
        created.push((destroy, moref.clone()));
        Ok(moref)
    }
}

impl Subscription {
    /// Makes one call in the session of the stream.
    pub(super) async fn call<T>(
        &self,
        call: &SoapCall,
        read: impl FnOnce(&Element<'_>) -> Result<T, ReplyError>,
    ) -> Result<T, Error> {
        self.objects
            .vcenter
            .call_in(&self.objects.session, call, read)
            .await
    }

    /// Creates the view of hosts, the collector, and its filter. `objects` has what was created, even
    /// after an error.
    pub(super) async fn build(objects: &SessionObjects) -> Result<Self, Error> {
        let content = &objects.session.content;
        let hosts = container_view(content, "HostSystem");
        let hosts = objects.create(hosts, "DestroyView").await?;
        let collector = SoapCall::to("CreatePropertyCollector", &content.property_collector);
        let collector = objects.create(collector, "DestroyPropertyCollector").await?;
        let subscription = Self {
            objects: objects.clone(),
            collector,
            hosts,
            list: OnceCell::new(),
        };
        subscription.follow_hosts().await?;
        Ok(subscription)
    }

    /// Creates the filter of all hosts.
    async fn follow_hosts(&self) -> Result<(), Error> {
        if self.objects.session.speaks(KNOWS_PARTIAL_MAINTENANCE) {
            let what = "the partial maintenance modes of hosts";
            if self
                .optional_filter(what, self.host_spec(&paths(HOST, ALL)))
                .await?
            {
                return Ok(());
            }
        }
        self.filter(&self.collector, self.host_spec(&paths(HOST, KNOWN)))
            .await
    }

    /// The next set of hosts, VMs and tasks; `None` if nothing changed during the long poll.
    pub(super) async fn wait(&self, version: &str) -> Result<Option<UpdateSet>, Error> {
        let began = Instant::now();
        let set = self.poll(&self.collector, version).await;
        let poll_wait = &self.objects.vcenter.poll_wait;
        if set.as_ref().is_err_and(Error::is_too_large) {
            poll_wait.was_too_large();
        } else {
            let is_cut = matches!(&set, Err(Error::Transport { .. }));
            poll_wait.ended(began.elapsed(), is_cut);
        }
        set
    }

    /// Waits for changes of one of the collectors after `version`.
    pub(super) async fn poll(&self, collector: &Moref, version: &str) -> Result<Option<UpdateSet>, Error> {
        let SessionObjects { vcenter, session, .. } = &self.objects;
        let wait = vcenter.poll_wait.get();
        let options = XmlWriter::new("options")
            .with(XmlWriter::text(
                "maxWaitSeconds",
                wait.as_secs().max(1).to_string(),
            ))
            .with(XmlWriter::text(
                "maxObjectUpdates",
                vcenter.poll_wait.objects().to_string(),
            ));
        let call = SoapCall::to("WaitForUpdatesEx", collector)
            .with(XmlWriter::text("version", version))
            .with(options)
            .long_poll();
        // The server may take as long to calculate the reply as for any other call.
        let deadline = wait + vcenter.settings.call_deadline;
        let read = property::read_update_set;
        let set = vcenter.call_within(session, &call, deadline, read).await?;
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
            vcenter.sessions.drop_session(session.generation);
            return Err(call.dead_session(&why));
        }
        Ok(set)
    }

    /// Fails for a set with too many parts, or more objects than a vCenter holds: all of them are
    /// cached.
    pub(super) fn check_limits(&self, sets: usize, objects: usize) -> Result<(), Error> {
        let call = SoapCall::to("WaitForUpdatesEx", &self.collector);
        ReplyError::check_limit("parts of one set", sets, MAX_PARTS)
            .and_then(|()| ReplyError::check_limit("objects", objects, MAX_OBJECTS))
            .map_err(|source| call.unreadable(source))
    }

    /// Changes the list. Returns the objects of `add` that do not exist.
    pub(super) async fn modify_list(
        &self,
        add: impl Iterator<Item = &Moref> + Send,
        remove: impl Iterator<Item = &Moref> + Send,
    ) -> Result<BTreeSet<Moref>, Error> {
        let list = self.list.get_or_try_init(|| self.create_list()).await?;
        let mut call = SoapCall::to("ModifyListView", list);
        for moref in add {
            call = call.with(XmlWriter::moref("add", moref));
        }
        for moref in remove {
            call = call.with(XmlWriter::moref("remove", moref));
        }
        let unresolved = self.call(&call, soap::returned_morefs).await?;
        Ok(unresolved.into_iter().collect())
    }

    /// Reads hosts, our VMs and their tasks again, and the whole of VMs that vCenter should have pushed
    /// and has not. If hosts are known and none is returned, the view is gone, and so is the session: a
    /// missing object is omitted without a fault.
    pub(super) async fn reread(&self, known: &KnownBefore) -> Result<BoundedRead, Error> {
        let SessionObjects { vcenter, session, .. } = &self.objects;
        let host = TraversalStep::new("HostSystem", "recentTask", []);
        let vm = TraversalStep::new("VirtualMachine", "recentTask", []);
        let mut spec = PropertySpec::default()
            .read_properties("HostSystem", &paths(HOST, &[ReadBy::FilterAndReread]))
            .read_properties("VirtualMachine", &paths(VM, &[ReadBy::FilterAndReread]))
            .read_properties("Task", task::PATHS)
            .select_beyond(
                &self.hosts,
                [TraversalStep::new("ContainerView", "view", vec![host])],
            );
        if let Some(list) = self.list.get() {
            spec = spec.select_beyond(list, [TraversalStep::new("ListView", "view", vec![vm])]);
        }
        let mut read = vcenter.retrieve_pages(session, spec, REREAD_PAGE).await?;
        if !known.unreported.is_empty() {
            let whole = PropertySpec::default().read_properties("VirtualMachine", &paths(VM, KNOWN));
            let whole = known
                .unreported
                .iter()
                .fold(whole, |spec, vm| spec.select_object(&vm.into(), []));
            let whole = vcenter.retrieve_pages(session, whole, REREAD_PAGE).await?;
            read.objects.extend(whole.objects);
            read.unreadable.extend(whole.unreadable);
        }
        if known.has_hosts && !read.objects.iter().any(|object| object.moref.host().is_some()) {
            vcenter.sessions.drop_session(session.generation);
            let call = SoapCall::to("RetrievePropertiesEx", &self.hosts);
            return Err(call.dead_session("our view has no hosts any more"));
        }
        Ok(read)
    }

    /// Reads `paths` of tasks individually.
    pub(super) async fn read_tasks(
        &self,
        tasks: &BTreeSet<TaskRef>,
        paths: &[&str],
    ) -> Result<BoundedRead, Error> {
        let mut spec = PropertySpec::default().read_properties("Task", paths);
        for task in tasks {
            spec = spec.select_object(&task.into(), []);
        }
        self.objects
            .vcenter
            .retrieve_pages(&self.objects.session, spec, REREAD_PAGE)
            .await
    }

    /// All hosts, with these `properties`, and their tasks.
    fn host_spec(&self, properties: &[&str]) -> PropertySpec {
        let of_host = [TraversalStep::new("HostSystem", "recentTask", [])];
        PropertySpec::default()
            .read_properties("HostSystem", properties)
            .read_properties("Task", task::PATHS)
            .select_beyond(
                &self.hosts,
                [TraversalStep::new("ContainerView", "view", of_host)],
            )
    }

    /// The filter of the list: `vm` of VMs, their tasks, the names of their networks, their
    /// datastores, and their clusters.
    /// Whether DRS places a VM is reported with the host of the VM.
    fn list_spec(list: &Moref, vm: &[&str]) -> PropertySpec {
        let to_cluster = [TraversalStep::new("HostSystem", "parent", [])];
        let of_member = [
            TraversalStep::new("VirtualMachine", "recentTask", []),
            TraversalStep::new("VirtualMachine", "network", []),
            TraversalStep::new("VirtualMachine", "datastore", []),
            TraversalStep::through("VirtualMachine", "runtime.host", to_cluster),
        ];
        PropertySpec::default()
            .read_properties("VirtualMachine", vm)
            .read_properties("Task", task::PATHS)
            .read_properties("HostSystem", &paths(HOST, &[ReadBy::DeviceFilter]))
            .read_properties("Network", &["name"])
            .read_properties("Datastore", &paths(DATASTORE, KNOWN))
            .read_properties("ComputeResource", &paths(COMPUTE, KNOWN))
            .select_beyond(list, [TraversalStep::new("ListView", "view", of_member)])
    }

    async fn create_list(&self) -> Result<Moref, Error> {
        let list = SoapCall::to("CreateListView", &self.objects.session.content.view_manager);
        let list = self.objects.create(list, "DestroyView").await?;
        let spec = Self::list_spec(&list, &paths(VM, ALL));
        let what = "the property of VMs that vCenter powers off for maintenance";
        if !self.optional_filter(what, spec).await? {
            self.filter(&self.collector, Self::list_spec(&list, &paths(VM, KNOWN)))
                .await?;
        }
        Ok(list)
    }

    /// Creates a filter with optional properties. Returns whether vCenter knows them.
    async fn optional_filter(&self, what: &'static str, spec: PropertySpec) -> Result<bool, Error> {
        let mut created = self.filter(&self.collector, spec.clone()).await;
        // They would be missing until the session ends. A fault that lasts also refuses the filter without them.
        if created.as_ref().is_err_and(Error::is_refused_for_now) {
            created = self.filter(&self.collector, spec).await;
        }
        Ok(self.allow_refusal(what, created)?.is_some())
    }

    pub(super) async fn filter(&self, collector: &Moref, spec: PropertySpec) -> Result<(), Error> {
        let call = SoapCall::to("CreateFilter", collector)
            .with(spec.render("spec"))
            .with(XmlWriter::text("partialUpdates", "false"));
        self.call(&call, soap::nothing).await
    }

    /// Logs the refusal of an optional feature and continues without it.
    pub(super) fn allow_refusal<T>(
        &self,
        what: &'static str,
        result: Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        match result {
            Ok(created) => Ok(Some(created)),
            Err(Error::Refused { source, .. }) if self.objects.vcenter.sessions.live().is_some() => {
                tracing::info!(what, fault = %source, "vCenter does not provide an optional feature; the stream continues without it");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
