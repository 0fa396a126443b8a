//! The status page: hosts, nodes and episodes as HTML and JSON, read-only.
//!
//! [`page_state`] holds the state behind a lock. [`view`] makes plain data of it, which is serialized
//! as JSON or rendered by [`pages`] with [`timeline_picture`]. [`serve`] has the HTTP handlers.

mod page_state;
mod pages;
mod serve;
mod timeline_picture;
pub mod view;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use jiff::Timestamp;
use tokio::sync::watch;

use super::connections::Limits;
use super::{HttpServer, NoPort, bind};
use crate::ids::{HostRef, NodeName};
use crate::kubernetes::update::{NodeMaintenanceFacts, NodeMaintenanceRole};
use crate::maintenance::observed::HostState;
use crate::nodemaintenance::objects::StatusReconciler;
use crate::status::NodeStatuses;
use crate::status::observer::{NodeEvent, Observer};
use crate::telemetry::link::Links;
use page_state::PageState;
use view::{EpisodePage, NodePage, Overview, PageLeadership};

/// Connections for the event streams, and half as many for requests.
const LIMITS: Limits = Limits {
    connections: serve::MAX_STREAMS + serve::MAX_STREAMS / 2,
    head: Duration::from_secs(2),
    stream: serve::STREAM_LIFETIME,
};

/// How many ended episodes a page considers: with the default history, those of fifty nodes.
const HISTORY: usize = 1000;

/// Settings of the page.
#[derive(Clone, Debug)]
pub struct PageSettings {
    /// Dry run.
    pub is_dry_run: bool,
    pub links: Links,
}

/// The state and content of the status page.
#[derive(Debug)]
pub struct StatusPage {
    settings: PageSettings,
    /// The source of ended episodes; `None` without NodeMaintenance objects.
    objects: Option<Arc<StatusReconciler>>,
    clock: fn() -> Timestamp,
    state: Mutex<PageState>,
    /// Revision of the state.
    changes: watch::Sender<u64>,
    html: PageCache,
    json: PageCache,
}

/// A rendered page, for requests of the same revision and second.
#[derive(Debug, Default)]
struct PageCache(Mutex<Option<((u64, i64), Bytes)>>);

impl PageCache {
    /// The page of `key`; renders it if it is another one.
    fn get<E>(&self, key: (u64, i64), render: impl FnOnce() -> Result<String, E>) -> Result<Bytes, E> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, page)) = cached.as_ref().filter(|(of, _)| *of == key) {
            return Ok(page.clone());
        }
        let page = Bytes::from(render()?);
        *cached = Some((key, page.clone()));
        Ok(page)
    }
}

impl StatusPage {
    pub fn new(
        settings: PageSettings,
        objects: Option<Arc<StatusReconciler>>,
        clock: fn() -> Timestamp,
    ) -> Self {
        Self {
            settings,
            objects,
            clock,
            state: Mutex::default(),
            changes: watch::Sender::new(0),
            html: PageCache::default(),
            json: PageCache::default(),
        }
    }

    /// Updates the status of nodes and hosts.
    pub fn show(&self, statuses: &NodeStatuses, hosts: BTreeMap<HostRef, (String, HostState)>) {
        let now = (self.clock)();
        let is_changed = {
            let mut state = self.state();
            let are_nodes_changed = state.show(statuses, now);
            state.show_changes(hosts, now) || are_nodes_changed
        };
        self.notify_if(is_changed);
    }

    /// Sets the hosts to show, with name and state: those that have our VMs or could.
    pub fn show_hosts(&self, hosts: BTreeMap<HostRef, (String, HostState)>) {
        let is_changed = self.state().show_hosts(hosts, (self.clock)());
        self.notify_if(is_changed);
    }

    /// Sets the sync state of vCenter, or why it is not synced.
    pub fn vcenter(&self, sync: Result<(), String>) {
        let is_changed = page_state::set(&mut self.state().vcenter, sync.err());
        self.notify_if(is_changed);
    }

    /// Sets the sync state of Kubernetes, or why it is not synced.
    pub fn kubernetes(&self, sync: Result<(), String>) {
        let is_changed = page_state::set(&mut self.state().kubernetes, sync.err());
        self.notify_if(is_changed);
    }

    /// Sets which replica acts; at first this one.
    pub fn leadership(&self, leadership: PageLeadership) {
        let is_changed = page_state::set(&mut self.state().leadership, leadership);
        self.notify_if(is_changed);
    }

    pub(crate) fn overview(&self) -> Overview {
        let history = self.history(|_| true);
        let now = (self.clock)();
        view::overview(&self.state(), &history, &self.settings, now)
    }

    pub(crate) fn node(&self, name: &NodeName) -> Option<NodePage> {
        let history = self.history(|object| object.node == *name);
        let now = (self.clock)();
        view::node(&self.state(), &history, &self.settings, name, now)
    }

    pub(crate) fn episode(&self, id: &str) -> Option<EpisodePage> {
        let history = self.history(|object| object.status.episode.as_deref() == Some(id));
        let now = (self.clock)();
        view::episode(&self.state(), &history, &self.settings, id, now)
    }

    /// The overview as HTML, cached.
    fn overview_page(&self) -> Result<Bytes, askama::Error> {
        self.html
            .get(self.cache_key(), || pages::overview(&self.overview()))
    }

    /// The overview as JSON, cached.
    fn overview_json(&self) -> serde_json::Result<Bytes> {
        self.json
            .get(self.cache_key(), || serde_json::to_string(&self.overview()))
    }

    /// The key of the cache: the revision, and the second.
    fn cache_key(&self) -> (u64, i64) {
        (*self.changes.borrow(), (self.clock)().as_second())
    }

    /// The NodeMaintenance objects of matching episodes, newest first.
    fn history(&self, is_wanted: impl Fn(&NodeMaintenanceFacts) -> bool) -> Vec<NodeMaintenanceFacts> {
        let is_episode = |object: &NodeMaintenanceFacts| match object.role {
            NodeMaintenanceRole::Episode { .. } => is_wanted(object),
            NodeMaintenanceRole::Request(_) => false,
        };
        let objects = self.objects.as_ref();
        objects.map_or_else(Vec::new, |objects| objects.newest(HISTORY, is_episode))
    }

    fn notify_if(&self, is_changed: bool) {
        if is_changed {
            self.changes
                .send_modify(|revision| *revision = revision.wrapping_add(1));
        }
    }

    fn state(&self) -> MutexGuard<'_, PageState> {
        // Ignores poisoning: each change is a single assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for StatusPage {
    fn observe(&self, node: &NodeName, event: NodeEvent<'_>) {
        let now = (self.clock)();
        let is_changed = self.state().event(node, event, now);
        self.notify_if(is_changed);
    }
}

/// Binds the port of the status page.
///
/// # Errors
/// If the port is in use, or the address is not local.
pub async fn server(
    setting: &'static str,
    address: SocketAddr,
    status: Arc<StatusPage>,
) -> Result<HttpServer, NoPort> {
    bind("the status page", setting, address, serve::router(status), LIMITS).await
}

#[cfg(test)]
mod tests;
