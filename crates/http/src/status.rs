//! The status page: hosts, nodes and episodes as HTML and JSON, read-only.
//!
//! [`page_state`] holds the state behind a lock. [`view`] makes plain data of it, which is serialized
//! as JSON or rendered by [`pages`] with [`timeline_picture`]. [`serve`] has the HTTP handlers.
//! [`answer`] answers what a maintenance would do, for `kubectl haulout`.

mod answer;
mod page_state;
mod pages;
mod serve;
mod timeline_picture;
pub mod view;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::access::PageAccess;
use super::connections::Limits;
use super::{HttpServer, NoPort, bind};
use crate::plan::planner::Planner;
use haulout_controller::board::NodeBoard;
use haulout_controller::nodemaintenance::objects::StatusReconciler;
use haulout_controller::observer::{ConnectionState, Observer, WatchedApi};
use haulout_core::ids::{HostRef, NodeName};
use haulout_core::inventory::Inventory;
use haulout_core::maintenance::observed::HostState;
use haulout_core::status::NodeStatuses;
use haulout_core::status::story::Beat;
use haulout_kubernetes::lease::ElectionStatus;
use haulout_kubernetes::update::{NodeMaintenanceFacts, NodeMaintenanceRole};
use haulout_telemetry::link::Links;
use page_state::{PageLeadership, PageState};
use view::{EpisodePage, HostPage, ListFilter, MaintainablePage, NodePage, Overview, View};

/// Connections for the event streams, and half as many for requests.
const LIMITS: Limits = Limits {
    connections: serve::MAX_STREAMS + serve::MAX_STREAMS / 2,
    head: Duration::from_secs(2),
    stream: serve::STREAM_LIFETIME,
};

/// How many ended episodes a page considers: with the default history, those of fifty nodes.
const HISTORY: usize = 1000;

#[derive(Clone, Debug)]
pub struct PageSettings {
    pub is_dry_run: bool,
    /// The address of the kube-apiserver.
    pub cluster: String,
    /// The address of vCenter.
    pub vcenter: String,
    pub links: Links,
}

/// The state and content of the status page.
#[derive(Debug)]
pub struct StatusPage {
    settings: PageSettings,
    /// The source of ended episodes; `None` without NodeMaintenance objects.
    objects: Option<Arc<StatusReconciler>>,
    board: NodeBoard,
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
        let mut cached = self.0.lock();
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
        board: NodeBoard,
        clock: fn() -> Timestamp,
    ) -> Self {
        Self {
            settings,
            objects,
            board,
            clock,
            state: Mutex::default(),
            changes: watch::Sender::new(0),
            html: PageCache::default(),
            json: PageCache::default(),
        }
    }

    /// Sets the hosts to show, with name and state: those that have our VMs or could.
    fn show_hosts(&self, hosts: BTreeMap<HostRef, (String, HostState)>) {
        self.update(|state, now| state.show_hosts(hosts, now));
    }

    /// Sets which replica acts; at first this one.
    fn leadership(&self, leadership: PageLeadership) {
        self.update(|state, _| page_state::set(&mut state.leadership, leadership));
    }

    /// Notes that vCenter answered, which changes no page by itself.
    pub fn vcenter_answered(&self) {
        self.state.lock().vcenter_answered = Some((self.clock)());
    }

    pub(crate) fn overview(&self, filter: &ListFilter) -> Overview {
        self.view(|_| true, |view| view.overview(filter))
    }

    pub(crate) fn maintainable(&self, filter: &ListFilter) -> MaintainablePage {
        self.view(|_| false, |view| view.maintainable(filter))
    }

    pub(crate) fn host(&self, name: &str) -> Option<HostPage> {
        let is_wanted = |object: &NodeMaintenanceFacts| object.status.host.as_deref() == Some(name);
        self.view(is_wanted, |view| view.host(name))
    }

    pub(crate) fn node(&self, name: &NodeName) -> Option<NodePage> {
        self.view(|object| object.node == *name, |view| view.node(name))
    }

    pub(crate) fn episode(&self, id: &str) -> Option<EpisodePage> {
        let is_wanted = |object: &NodeMaintenanceFacts| object.status.episode.as_deref() == Some(id);
        self.view(is_wanted, |view| view.episode(id))
    }

    /// The overview as HTML. Without a filter it is cached.
    fn overview_page(&self, filter: &ListFilter) -> Result<Bytes, askama::Error> {
        let render = || pages::overview(&self.overview(filter));
        if *filter != ListFilter::default() {
            return render().map(Bytes::from);
        }
        self.html.get(self.cache_key(), render)
    }

    /// The overview as JSON. Without a filter it is cached.
    fn overview_json(&self, filter: &ListFilter) -> serde_json::Result<Bytes> {
        let render = || serde_json::to_string(&self.overview(filter));
        if *filter != ListFilter::default() {
            return render().map(Bytes::from);
        }
        self.json.get(self.cache_key(), render)
    }

    /// The key of the cache: the revision, and the second.
    fn cache_key(&self) -> (u64, i64) {
        (*self.changes.borrow(), (self.clock)().as_second())
    }

    /// Makes a page, with the NodeMaintenance objects of the episodes that are open or `wanted`. On a standby, those of open ones say which
    /// nodes wait for a person.
    fn view<Page>(
        &self,
        is_wanted: impl Fn(&NodeMaintenanceFacts) -> bool,
        page: impl FnOnce(View<'_>) -> Page,
    ) -> Page {
        let is_episode = |object: &NodeMaintenanceFacts| match object.role {
            NodeMaintenanceRole::Episode { .. } => object.status.ended_at.is_none() || is_wanted(object),
            NodeMaintenanceRole::Request(_) | NodeMaintenanceRole::Foreign(_) => false,
        };
        let objects = self.objects.as_ref();
        let history = objects.map_or_else(Vec::new, |objects| objects.newest(HISTORY, is_episode));
        page(View {
            state: &self.state.lock(),
            board: &self.board.lock(),
            history: &history,
            settings: &self.settings,
            now: (self.clock)(),
        })
    }

    /// The board of all nodes may have changed.
    fn show_board(&self) {
        let revision = self.board.lock().revision();
        self.update(|state, _| page_state::set(&mut state.board, revision));
    }

    /// Changes the state; `change` returns whether the page changes.
    fn update(&self, change: impl FnOnce(&mut PageState, Timestamp) -> bool) {
        let is_changed = change(&mut self.state.lock(), (self.clock)());
        if is_changed {
            self.changes
                .send_modify(|revision| *revision = revision.wrapping_add(1));
        }
    }
}

impl Observer for StatusPage {
    fn observe(&self, _node: &NodeName, _beat: &Beat<'_>) {
        self.show_board();
    }

    fn election(&self, _lease: &str, status: &ElectionStatus) {
        self.leadership(match &status.leadership {
            Some(_) => PageLeadership::Leads,
            None => PageLeadership::StandsBy {
                leader: status.leader.clone(),
            },
        });
    }

    fn connection(&self, api: WatchedApi, connection: ConnectionState<'_>) {
        let why = connection.synced().err().map(str::to_owned);
        self.update(|state, _| {
            let shown = match api {
                WatchedApi::Vcenter => &mut state.vcenter,
                WatchedApi::Kubernetes => &mut state.kubernetes,
            };
            page_state::set(shown, why)
        });
    }

    fn built(&self, _statuses: &NodeStatuses) {
        self.show_board();
    }

    fn built_by_leader(&self, _statuses: &Arc<NodeStatuses>, inventory: &Inventory) {
        self.show_hosts(inventory.hosts_of_ours());
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
    planner: Arc<Planner>,
    access: PageAccess,
) -> Result<HttpServer, NoPort> {
    let router = serve::router(status, planner, access);
    bind("the status page", setting, address, router, LIMITS).await
}

#[cfg(test)]
mod tests;
