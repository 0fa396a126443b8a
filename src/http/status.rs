//! The status page: one look at hosts, nodes and episodes for people, and the same as JSON. It only reads.
//!
//! What it knows ([`known`]) becomes plain data ([`view`]), which is either JSON or, with its picture ([`picture`]), a page
//! ([`pages`]); [`serve`] answers with it. Only the first of them is ever locked, and only the last waits for anybody.

mod page_state;
mod pages;
mod serve;
mod timeline_picture;
pub mod view;
mod words;

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

/// Room for the listeners, and for half as many who ask meanwhile.
const LIMITS: Limits = Limits {
    connections: serve::LISTENERS + serve::LISTENERS / 2,
    head: Duration::from_secs(2),
    stream: serve::LISTENING_MAX,
};

/// How many ended episodes are looked through for a page. At the default history that is all of fifty nodes.
const HISTORY: usize = 1000;

/// What is configured of the page.
#[derive(Clone, Debug)]
pub struct About {
    /// Everything is decided, and nothing done.
    pub is_dry_run: bool,
    /// The addresses of traces.
    pub links: Links,
}

/// Looks on, and answers with what it saw.
#[derive(Debug)]
pub struct StatusPage {
    about: About,
    /// Where ended episodes are known; `None` where no NodeMaintenance is kept.
    objects: Option<Arc<StatusReconciler>>,
    clock: fn() -> Timestamp,
    known: Mutex<PageState>,
    /// Counts the changes.
    changes: watch::Sender<u64>,
    /// The latest overview: whoever asks in the same second about the same picture gets the same bytes.
    drawn: Mutex<Option<RenderedPage>>,
    /// The same as JSON.
    drawn_json: Mutex<Option<RenderedPage>>,
}

#[derive(Debug)]
struct RenderedPage {
    of: (u64, i64),
    page: Bytes,
}

/// The bytes that were drawn of `of`, or new ones by `draw`.
fn cached<E>(
    drawn: &Mutex<Option<RenderedPage>>,
    of: (u64, i64),
    draw: impl FnOnce() -> Result<String, E>,
) -> Result<Bytes, E> {
    let mut drawn = drawn.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(drawn) = drawn.as_ref().filter(|drawn| drawn.of == of) {
        return Ok(drawn.page.clone());
    }
    let page = Bytes::from(draw()?);
    *drawn = Some(RenderedPage {
        of,
        page: page.clone(),
    });
    Ok(page)
}

impl StatusPage {
    /// A page that knows nothing yet. Ended episodes are read from `objects`.
    pub fn new(about: About, objects: Option<Arc<StatusReconciler>>, clock: fn() -> Timestamp) -> Self {
        Self {
            about,
            objects,
            clock,
            known: Mutex::default(),
            changes: watch::Sender::new(0),
            drawn: Mutex::default(),
            drawn_json: Mutex::default(),
        }
    }

    /// Takes how nodes stand, and the hosts of which something was told with it.
    pub fn show(&self, statuses: &NodeStatuses, hosts: BTreeMap<HostRef, (String, HostState)>) {
        let now = (self.clock)();
        let is_changed = {
            let mut known = self.known();
            let are_nodes_changed = known.show(statuses, now);
            known.show_changes(hosts, now) || are_nodes_changed
        };
        self.tell_if(is_changed);
    }

    /// Takes the hosts that carry our VMs or could, each with name and state.
    pub fn show_hosts(&self, hosts: BTreeMap<HostRef, (String, HostState)>) {
        let is_changed = self.known().show_hosts(hosts, (self.clock)());
        self.tell_if(is_changed);
    }

    /// Takes whether vCenter is heard, or why not.
    pub fn vcenter(&self, heard: Result<(), String>) {
        let is_changed = page_state::set(&mut self.known().vcenter, heard.err());
        self.tell_if(is_changed);
    }

    /// Takes whether Kubernetes is heard, or why not.
    pub fn kubernetes(&self, heard: Result<(), String>) {
        let is_changed = page_state::set(&mut self.known().kubernetes, heard.err());
        self.tell_if(is_changed);
    }

    /// Takes which replica acts. Until it is told otherwise, this one does.
    pub fn leadership(&self, leadership: PageLeadership) {
        let is_changed = page_state::set(&mut self.known().leadership, leadership);
        self.tell_if(is_changed);
    }

    /// The overview.
    pub(crate) fn overview(&self) -> Overview {
        let history = self.history(|_| true);
        let now = (self.clock)();
        view::overview(&self.known(), &history, &self.about, now)
    }

    /// What is known of one node, if anything is.
    pub(crate) fn node(&self, name: &NodeName) -> Option<NodePage> {
        let history = self.history(|object| object.node == *name);
        let now = (self.clock)();
        view::node(&self.known(), &history, &self.about, name, now)
    }

    /// What is known of one episode, if anything is.
    pub(crate) fn episode(&self, id: &str) -> Option<EpisodePage> {
        let history = self.history(|object| object.status.episode.as_deref() == Some(id));
        let now = (self.clock)();
        view::episode(&self.known(), &history, &self.about, id, now)
    }

    /// The overview as a page. A hundred people who look at one picture cost one page.
    fn overview_page(&self) -> Result<Bytes, askama::Error> {
        cached(&self.drawn, self.drawn_of(), || pages::overview(&self.overview()))
    }

    /// The overview as JSON, likewise.
    fn overview_json(&self) -> serde_json::Result<Bytes> {
        cached(&self.drawn_json, self.drawn_of(), || {
            serde_json::to_string(&self.overview())
        })
    }

    /// What an overview is about: the changes so far, and the second.
    fn drawn_of(&self) -> (u64, i64) {
        (*self.changes.borrow(), (self.clock)().as_second())
    }

    /// The objects of episodes that are wanted, the newest first.
    fn history(&self, is_wanted: impl Fn(&NodeMaintenanceFacts) -> bool) -> Vec<NodeMaintenanceFacts> {
        let is_episode = |object: &NodeMaintenanceFacts| match object.role {
            NodeMaintenanceRole::Episode { .. } => is_wanted(object),
            NodeMaintenanceRole::Request(_) => false,
        };
        let objects = self.objects.as_ref();
        objects.map_or_else(Vec::new, |objects| objects.newest(HISTORY, is_episode))
    }

    fn tell_if(&self, is_changed: bool) {
        if is_changed {
            self.changes
                .send_modify(|revision| *revision = revision.wrapping_add(1));
        }
    }

    fn known(&self) -> MutexGuard<'_, PageState> {
        // Every change of it is whole, whatever panicked meanwhile.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for StatusPage {
    fn observe(&self, node: &NodeName, told: NodeEvent<'_>) {
        let now = (self.clock)();
        let is_changed = self.known().told(node, told, now);
        self.tell_if(is_changed);
    }
}

/// Takes the port for the status page.
///
/// # Errors
/// For a port that is taken by somebody else, or an address that is not this machine's.
pub async fn server(
    setting: &'static str,
    address: SocketAddr,
    status: Arc<StatusPage>,
) -> Result<HttpServer, NoPort> {
    bind("the status page", setting, address, serve::router(status), LIMITS).await
}

#[cfg(test)]
mod tests;
