//! The calls of a probe.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::read::{self, BINDINGS, DEVICES, InstanceIds, LISTED_TASKS};
use super::{InventoryTraits, ListedTask, LongPoll, PollEnd, ProductInfo, ResultSizes};
use crate::call::SoapCall;
use crate::client::{Error, TransportError, Vcenter};
use crate::fault::FaultKind;
use crate::moref::Moref;
use crate::property::{self, PropertySpec, TraversalStep};
use crate::reading::PAGE;
use crate::reading::container_view;
use crate::session::Session;
use crate::soap;
use crate::task;
use crate::updates::history::create_history;
use crate::updates::subscription::SessionObjects;
use crate::xml::Element;
use crate::xml::write::XmlWriter;
use haulout_core::ids::HostRef;

/// Tasks whose results are read, each by a call of its own, so that a large result costs only itself.
const RESULTS_MAX: usize = 200;
/// Hosts whose VMs are read: one cluster, as for a survey.
const HOSTS_MAX: usize = 96;

impl Vcenter {
    /// Reads the versions.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn product(&self) -> Result<ProductInfo, Error> {
        let session = self.sessions.get().await?;
        let instance = Moref::new("ServiceInstance", "ServiceInstance");
        let call = SoapCall::to("RetrieveServiceContent", &instance);
        let negotiated = session.soap_action.rsplit('/').next().unwrap_or_default();
        let negotiated = read::version(negotiated);
        let read = |response: &Element<'_>| Ok(read::product(response, negotiated));
        self.call_in(&session, &call, read).await
    }

    /// Reads the size of the result of each recent task, one after the other.
    ///
    /// # Errors
    /// Those of a read, except for those of one result.
    pub async fn task_results(&self) -> Result<ResultSizes, Error> {
        let session = self.sessions.get().await?;
        let objects = SessionObjects::new(self, &session);
        let sizes = self.sizes_of_results(&objects).await;
        objects.destroy_all().await;
        sizes
    }

    async fn sizes_of_results(&self, objects: &SessionObjects) -> Result<ResultSizes, Error> {
        let session = &objects.session;
        let hosts = container_view(&session.content, "HostSystem");
        let hosts = objects.create(hosts, "DestroyView").await?;
        let of_host = [TraversalStep::new("HostSystem", "recentTask", [])];
        let mut spec = PropertySpec::default()
            .read("Task", &["info.state"])
            .through(&hosts, [TraversalStep::over("ContainerView", "view", of_host)]);
        if let Some(manager) = &session.content.task_manager {
            spec = spec.through(manager, [TraversalStep::new("TaskManager", "recentTask", [])]);
        }
        let read = self.retrieve_in(session, spec, PAGE).await?;
        let ended = read
            .iter()
            .filter(|task| task.text("info.state") == Some("success"));
        let ended: BTreeSet<&Moref> = ended.map(|task| &task.moref).collect();
        let mut sizes = ResultSizes {
            left_out: ended.len().saturating_sub(RESULTS_MAX),
            ..ResultSizes::default()
        };
        for task in ended.into_iter().take(RESULTS_MAX) {
            let (size, is_beyond) = match self.size_of_result(session, task).await {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(Error::Transport {
                    source: TransportError::TooLarge(limit),
                    ..
                }) => (limit, true),
                Err(error) => return Err(error),
            };
            sizes.tasks += 1;
            sizes.with_result += usize::from(size > 0);
            sizes.beyond_limit += usize::from(is_beyond);
            sizes.largest = sizes.largest.max(size);
        }
        Ok(sizes)
    }

    /// See [`read::result_size`].
    async fn size_of_result(&self, session: &Session, task: &Moref) -> Result<Option<(usize, bool)>, Error> {
        let spec = PropertySpec::default().read("Task", &[task::RESULT]).of(task, []);
        let call = SoapCall::to("RetrievePropertiesEx", &session.content.property_collector)
            .with(spec.render("specSet"))
            .with(XmlWriter::new("options"));
        self.call_in(session, &call, |response| Ok(read::result_size(response)))
            .await
    }

    /// Reads the newest tasks of the vCenter. `None` if it provides no task history.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn listed_tasks(&self) -> Result<Option<Vec<ListedTask>>, Error> {
        let session = self.sessions.get().await?;
        let objects = SessionObjects::new(self, &session);
        let tasks = self.newest_tasks(&objects).await;
        objects.destroy_all().await;
        tasks
    }

    async fn newest_tasks(&self, objects: &SessionObjects) -> Result<Option<Vec<ListedTask>>, Error> {
        let Some(history) = create_history(objects, LISTED_TASKS).await? else {
            return Ok(None);
        };
        let spec = PropertySpec::default()
            .read("TaskHistoryCollector", &["latestPage"])
            .of(&history, []);
        let session = &objects.session;
        let call = SoapCall::to("RetrievePropertiesEx", &session.content.property_collector)
            .with(spec.render("specSet"))
            .with(XmlWriter::new("options"));
        self.call_in(session, &call, |response| Ok(read::listed_tasks(response)))
            .await
            .map(Some)
    }

    /// Reads how VMs and devices of `hosts` appear.
    ///
    /// # Errors
    /// Those of a read.
    pub async fn inventory_traits(&self, hosts: &BTreeSet<HostRef>) -> Result<InventoryTraits, Error> {
        let mut spec = PropertySpec::default()
            .read(
                "HostSystem",
                &[
                    BINDINGS,
                    "summary.config.product.version",
                    "summary.config.product.build",
                    "vm",
                ],
            )
            .read(
                "VirtualMachine",
                &[
                    "config.uuid",
                    DEVICES,
                    "runtime.connectionState",
                    "runtime.powerState",
                ],
            );
        for host in hosts.iter().take(HOSTS_MAX) {
            spec = spec.of(&host.into(), [TraversalStep::new("HostSystem", "vm", [])]);
        }
        let mut traits = InventoryTraits {
            hosts_left_out: hosts.len().saturating_sub(HOSTS_MAX),
            ..InventoryTraits::default()
        };
        if hosts.is_empty() {
            return Ok(traits);
        }
        let session = self.sessions.get().await?;
        let ids = Mutex::new(InstanceIds::default());
        let read = |response: &Element<'_>| {
            ids.lock().unwrap_or_else(PoisonError::into_inner).take(response);
            property::read_page(response)
        };
        let read = self.retrieve_pages_by(&session, spec, PAGE, &read).await?;
        let ids = ids.into_inner().unwrap_or_else(PoisonError::into_inner);
        traits.bindings = ids.all;
        traits.bindings_with_address = ids.with_address;
        traits.binding_forms = ids.forms;
        traits.unreadable_vms = read.unreadable.len();
        traits.vms = read.unreadable.len();
        traits.count(&read.objects);
        Ok(traits)
    }

    /// The setting `key` of vCenter (`OptionManager.QueryOptions`); `None` if there is no such setting.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn setting(&self, key: &str) -> Result<Option<String>, Error> {
        let session = self.sessions.get().await?;
        let Some(manager) = &session.content.setting else {
            return Ok(None);
        };
        let call = SoapCall::to("QueryOptions", manager).with(XmlWriter::text("name", key));
        let read = |response: &Element<'_>| {
            let mut all = response.children_named("returnval");
            let found = all.find(|option| option.text_of("key") == Some(key));
            Ok(found
                .and_then(|option| option.text_of("value"))
                .map(read::version))
        };
        match self.call_in(&session, &call, read).await {
            Err(Error::Refused { source, .. }) if is_no_such_name(&source.kind) => Ok(None),
            answer => answer,
        }
    }

    /// Waits for changes of an object that does not change, for `wait`.
    ///
    /// # Errors
    /// If the poll cannot begin.
    pub async fn try_long_poll(&self, wait: Duration) -> Result<LongPoll, Error> {
        let session = self.sessions.get().await?;
        let objects = SessionObjects::new(self, &session);
        let poll = self.poll_quiet_object(&objects, wait).await;
        objects.destroy_all().await;
        poll
    }

    async fn poll_quiet_object(&self, objects: &SessionObjects, wait: Duration) -> Result<LongPoll, Error> {
        let session = &objects.session;
        let content = &session.content;
        let collector = SoapCall::to("CreatePropertyCollector", &content.property_collector);
        let collector = objects.create(collector, "DestroyPropertyCollector").await?;
        let spec = PropertySpec::default()
            .read("Folder", &["name"])
            .of(&content.root_folder, []);
        let filter = SoapCall::to("CreateFilter", &collector)
            .with(spec.render("spec"))
            .with(XmlWriter::text("partialUpdates", "false"));
        self.call_in(session, &filter, soap::nothing).await?;
        let poll = |version: &str, wait: Duration| {
            let wait = XmlWriter::text("maxWaitSeconds", wait.as_secs().to_string());
            SoapCall::to("WaitForUpdatesEx", &collector)
                .with(XmlWriter::text("version", version))
                .with(XmlWriter::new("options").with(wait))
                .long_poll()
        };
        let first = poll("", Duration::from_secs(1));
        let first = self.call_in(session, &first, property::read_update_set).await?;
        let version = first.map(|set| set.version).unwrap_or_default();
        let deadline = wait + self.settings.call_deadline;
        let began = Instant::now();
        let answer = self
            .call_within(
                session,
                &poll(&version, wait),
                deadline,
                property::read_update_set,
            )
            .await;
        Ok(LongPoll {
            asked: wait,
            took: began.elapsed(),
            end: poll_end(&answer.map(drop)),
        })
    }
}

/// `QueryOptions` refuses an unknown key with `InvalidName` (govmomi v0.56.0 `simulator/option_manager.go`; API).
fn is_no_such_name(kind: &FaultKind) -> bool {
    *kind == FaultKind::Other("InvalidName".to_owned())
}

fn poll_end(answer: &Result<(), Error>) -> PollEnd {
    match answer {
        Ok(()) => PollEnd::Answered,
        Err(Error::Transport { source, .. }) => match source {
            TransportError::Connection(_) => PollEnd::Closed,
            TransportError::Deadline(_) => PollEnd::Silent,
            TransportError::Status(status) => PollEnd::Status(*status),
            TransportError::TooLarge(_) => PollEnd::Refused,
        },
        Err(Error::Reply { .. } | Error::NotSent { .. } | Error::Refused { .. } | Error::Login { .. }) => {
            PollEnd::Refused
        }
    }
}
