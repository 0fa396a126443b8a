//! A subscription without a server.

use super::*;
use crate::settings::Settings;

impl Subscription {
    /// A subscription in a session of `user` that no server knows.
    pub(in crate::updates) fn unconnected(user: Option<&str>) -> Arc<Self> {
        let vcenter = Vcenter::new(Settings::unconnected()).unwrap();
        let session = Session::unconnected(&vcenter.settings, user);
        Arc::new(Self {
            objects: SessionObjects::new(&vcenter, &session),
            collector: Moref::new("PropertyCollector", "session[1]pc-1"),
            hosts: Moref::new("ContainerView", "session[1]hosts-1"),
            list: OnceCell::new(),
        })
    }
}
