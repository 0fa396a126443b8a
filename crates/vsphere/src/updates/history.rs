//! The task history: the newest tasks of the vCenter, as a second source beside the task lists of the
//! hosts.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::subscription::Subscription;
use crate::call::SoapCall;
use crate::error::{Error, TransportError};
use crate::moref::Moref;
use crate::property::{PropertySpec, UpdateSet};
use crate::soap;
use crate::xml::write::XmlWriter;

/// Tasks on a page, some 100 KiB. The page is sent whole whenever any task of the vCenter begins or
/// ends. A task is missed only if a hundred more begin within a second; `recentTask` or the re-read
/// still finds it.
const PAGE_SIZE: u32 = 100;
/// Delay of a page after it was read. Both polls report a maintenance task at the same time, and only
/// if the host's own reply is applied first is it known that hosts push their tasks.
const PAGE_DELAY: Duration = Duration::from_millis(10);
/// Pause before a history whose page could not be read is created again. The tasks that make the page
/// large or broken stay on it for a while, and each attempt may read 32 MiB.
const RECREATE_PAUSE: Duration = Duration::from_secs(300);
/// The API version with `TaskManager.CreateCollectorWithInfoFilterForTasks`, which omits task results.
const OMITS_RESULTS: &[u32] = &[8, 0, 3, 0];

/// A task history, if vCenter provides one. It has its own collector and poll: a collector replies only
/// when all its filters are calculated, and a history is slow to calculate.
pub(super) struct TaskHistory {
    subscription: Arc<Subscription>,
    /// Created by the first poll; `None` if vCenter provides no history.
    created: OnceCell<Option<HistoryCollector>>,
}

struct HistoryCollector {
    history: Moref,
    collector: Moref,
}

impl TaskHistory {
    pub(super) fn of(subscription: &Arc<Subscription>) -> Self {
        Self {
            subscription: subscription.clone(),
            created: OnceCell::new(),
        }
    }

    /// The next page; `None` if nothing changed during the long poll. Without a history it never
    /// completes.
    pub(super) async fn wait(&self, version: &str) -> Result<Option<UpdateSet>, Error> {
        let Some(created) = self.created.get_or_try_init(|| self.watch()).await? else {
            return std::future::pending().await;
        };
        let began = Instant::now();
        let page = self.subscription.poll(&created.collector, version).await;
        let took = began.elapsed();
        tokio::time::sleep(PAGE_DELAY).await;
        // A page that is slow, large or refused says nothing of a proxy. Noted after the delay: a restart of vCenter, which cuts both
        // polls, has ended this one by then, and counts once.
        let is_cut = page
            .as_ref()
            .is_err_and(|error| matches!(error, Error::Transport { .. }) && !affects_history_only(error));
        if page.is_ok() || is_cut {
            self.subscription.objects.vcenter.poll_wait.ended(took, is_cut);
        }
        page
    }

    /// Destroys the history, and waits before another one may be created.
    pub(super) async fn destroy_and_pause(&self) {
        if let Some(Some(created)) = self.created.get() {
            let objects = &self.subscription.objects;
            objects.destroy(&created.collector).await;
            objects.destroy(&created.history).await;
        }
        tokio::time::sleep(RECREATE_PAUSE).await;
    }

    async fn watch(&self) -> Result<Option<HistoryCollector>, Error> {
        let created = self.create().await;
        match created {
            Err(error) if error.is_refused_for_now() => Err(error),
            created => Ok(self
                .subscription
                .allow_refusal("the task history", created)?
                .flatten()),
        }
    }

    async fn create(&self) -> Result<Option<HistoryCollector>, Error> {
        let subscription = &self.subscription;
        let objects = &subscription.objects;
        let Some(history) = create_history(subscription).await? else {
            return Ok(None);
        };
        let spec = PropertySpec::default()
            .read_properties("TaskHistoryCollector", &["latestPage"])
            .select_object(&history, []);
        let content = &objects.session.content;
        let collector = SoapCall::to("CreatePropertyCollector", &content.property_collector);
        let collector = objects.create(collector, "DestroyPropertyCollector").await?;
        subscription.filter(&collector, spec).await?;
        Ok(Some(HistoryCollector { history, collector }))
    }
}

/// A history of all tasks of the inventory, without their results if possible: results can be of any size. `None` if vCenter
/// provides no history.
async fn create_history(subscription: &Subscription) -> Result<Option<Moref>, Error> {
    let objects = &subscription.objects;
    let session = &objects.session;
    let Some(tasks) = &session.content.task_manager else {
        return Ok(None);
    };
    let entity = XmlWriter::new("entity")
        .with(XmlWriter::moref("entity", &session.content.root_folder))
        .with(XmlWriter::text("recursion", "all"));
    let filter = XmlWriter::new("filter").with(entity);
    let destroy = "DestroyCollector";
    let mut history = None;
    if session.speaks(OMITS_RESULTS) {
        let no_results = XmlWriter::new("filterTaskResults").with(XmlWriter::text("removeAll", "true"));
        let call = SoapCall::to("CreateCollectorWithInfoFilterForTasks", tasks)
            .with(filter.clone())
            .with(XmlWriter::new("infoFilter").with(no_results));
        let created = objects.create(call, destroy).await;
        history = subscription.allow_refusal("a task history without results", created)?;
    }
    let history = match history {
        Some(history) => history,
        None => {
            let call = SoapCall::to("CreateCollectorForTasks", tasks).with(filter);
            objects.create(call, destroy).await?
        }
    };
    let size = SoapCall::to("SetCollectorPageSize", &history)
        .with(XmlWriter::text("maxCount", PAGE_SIZE.to_string()));
    subscription.call(&size, soap::nothing).await?;
    Ok(Some(history))
}

/// Whether an error affects only the history: the reply was complete, or too large, or vCenter is slow to read its tasks, or refuses
/// to for now.
pub(super) fn affects_history_only(error: &Error) -> bool {
    matches!(
        error,
        Error::Reply { .. }
            | Error::Transport {
                source: TransportError::TooLarge(_) | TransportError::Deadline(_),
                ..
            }
    ) || error.is_refused_for_now()
}
