//! The task history: the newest tasks of the vCenter, a second signal beside the hosts' own lists of tasks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

use super::subscription::Subscription;
use crate::call::SoapCall;
use crate::error::{Error, TransportError};
use crate::moref::Moref;
use crate::property::{PropertySpec, UpdateSet};
use crate::soap;
use crate::xml::write::XmlWriter;

/// Tasks on the history's page: some 100 KiB. It is sent whole whenever any task of the vCenter begins or ends. A task is pushed
/// off it unseen only where a hundred more begin between two looks, a second apart; it is then found in `recentTask`, of
/// which the history is the second teller, or by the re-read.
const HISTORY_PAGE: u32 = 100;
/// How long a page of the history waits after it was read. A maintenance task is told by both polls at once. Whether hosts push
/// their tasks is seen only where the host's own answer is taken first.
const HISTORY_WAITS: Duration = Duration::from_millis(10);
/// The pause before a history is made again whose page could not be read: the page is large or broken because of tasks that stay on
/// it for a while, and each try may cost 32 MiB.
const AGAIN: Duration = Duration::from_secs(300);
/// The API version that can leave the results out of a history's tasks (`TaskManager.CreateCollectorWithInfoFilterForTasks`).
const LEAVES_RESULTS_OUT: &[u32] = &[8, 0, 3, 0];

/// A task history in the session of a feed, where vCenter lets us have one. It has a collector with a poll of its own, because
/// one collector answers only when all its filters are calculated, and a history is slow to calculate.
pub(super) struct TaskHistory {
    feed: Arc<Subscription>,
    /// Made by the first poll; `None` where vCenter has none for us.
    made: OnceCell<Option<HistoryCollector>>,
}

struct HistoryCollector {
    history: Moref,
    collector: Moref,
}

impl TaskHistory {
    pub(super) fn of(feed: &Arc<Subscription>) -> Self {
        Self {
            feed: feed.clone(),
            made: OnceCell::new(),
        }
    }

    /// The next page; `None` when nothing happened for the length of the long poll. Without a history it never ends.
    pub(super) async fn wait(&self, version: &str) -> Result<Option<UpdateSet>, Error> {
        let Some(made) = self.made.get_or_try_init(|| self.watch()).await? else {
            return std::future::pending().await;
        };
        let page = self.feed.poll(&made.collector, version).await;
        tokio::time::sleep(HISTORY_WAITS).await;
        page
    }

    /// Destroys it, and waits until another one may be made in its place.
    pub(super) async fn give_up(&self) {
        if let Some(Some(made)) = self.made.get() {
            self.feed.remains().unmake(&made.collector).await;
            self.feed.remains().unmake(&made.history).await;
        }
        tokio::time::sleep(AGAIN).await;
    }

    async fn watch(&self) -> Result<Option<HistoryCollector>, Error> {
        let made = self.make().await;
        Ok(self.feed.optional("the task history", made)?.flatten())
    }

    async fn make(&self) -> Result<Option<HistoryCollector>, Error> {
        let feed = &self.feed;
        let content = &feed.session.content;
        let Some(tasks) = &content.task_manager else {
            return Ok(None);
        };
        let history = self.make_collector(tasks).await?;
        let size = SoapCall::to("SetCollectorPageSize", &history)
            .with(XmlWriter::text("maxCount", HISTORY_PAGE.to_string()));
        feed.vcenter()
            .call_in(&feed.session, &size, soap::nothing)
            .await?;
        let spec = PropertySpec::default()
            .read("TaskHistoryCollector", &["latestPage"])
            .of(&history, Vec::new());
        let collector = SoapCall::to("CreatePropertyCollector", &content.property_collector);
        let collector = feed.remains().make(collector, "DestroyPropertyCollector").await?;
        feed.filter(&collector, spec).await?;
        Ok(Some(HistoryCollector { history, collector }))
    }

    /// Of all tasks of the inventory, without their results where vCenter can leave them out: they are of any size.
    async fn make_collector(&self, tasks: &Moref) -> Result<Moref, Error> {
        let (feed, destroy) = (&self.feed, "DestroyCollector");
        let entity = XmlWriter::new("entity")
            .with(XmlWriter::moref("entity", &feed.session.content.root_folder))
            .with(XmlWriter::text("recursion", "all"));
        let filter = XmlWriter::new("filter").with(entity);
        if feed.session.speaks(LEAVES_RESULTS_OUT) {
            let no_results = XmlWriter::new("filterTaskResults").with(XmlWriter::text("removeAll", "true"));
            let call = SoapCall::to("CreateCollectorWithInfoFilterForTasks", tasks)
                .with(filter.clone())
                .with(XmlWriter::new("infoFilter").with(no_results));
            match feed.remains().make(call, destroy).await {
                Err(Error::Refused { source, .. }) if feed.is_alive() => {
                    tracing::debug!(fault = %source, "no task history without results; one with them is taken");
                }
                made => return made,
            }
        }
        let call = SoapCall::to("CreateCollectorForTasks", tasks).with(filter);
        feed.remains().make(call, destroy).await
    }
}

/// Whether an answer about the history says nothing against the connection and the session: it came whole, or is larger than any
/// that is read.
pub(super) fn costs_the_history_alone(error: &Error) -> bool {
    match error {
        Error::Reply { .. }
        | Error::Transport {
            source: TransportError::TooLarge(_),
            ..
        } => true,
        Error::Transport { .. } | Error::Refused { .. } | Error::Login { .. } => false,
    }
}
