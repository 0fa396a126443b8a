//! Who answers to a key: by UUID through the search index, by name through one reading of all names.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use super::subscription::Subscription;
use crate::call::SoapCall;
use crate::error::Error;
use crate::moref::Moref;
use crate::property::{PropertySpec, TraversalStep};
use crate::soap;
use crate::text::unescaped;
use crate::update::VmKey;
use crate::xml::write::XmlWriter;
use haulout_core::ids::{VmRef, VmUuid};

/// Searches at once: enough to hide the round trip, few enough to leave vCenter's connections to others.
const AT_ONCE: usize = 4;

/// Which VMs answer to each of `keys`, as of this moment.
pub(super) async fn find(
    feed: &Subscription,
    keys: &BTreeSet<VmKey>,
) -> Result<BTreeMap<VmKey, BTreeSet<VmRef>>, Error> {
    let mut uuids = Vec::new();
    let mut names = BTreeSet::new();
    for key in keys {
        match key {
            VmKey::Uuid(uuid) => uuids.push(*uuid),
            VmKey::Name(name) => {
                names.insert(name.clone());
            }
        }
    }
    let searches = uuids.into_iter().map(|uuid| by_uuid(feed, uuid));
    let mut found: BTreeMap<_, _> = stream::iter(searches)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    if !names.is_empty() {
        found.extend(by_name(feed, names).await?);
    }
    Ok(found)
}

/// A guest reads its UUID in one byte order or the other, so both are searched. `FindAllByUuid`, not `FindByUuid`, which
/// hides clones.
async fn by_uuid(feed: &Subscription, uuid: VmUuid) -> Result<(VmKey, BTreeSet<VmRef>), Error> {
    let mut vms = BTreeSet::new();
    for order in BTreeSet::from([uuid, uuid.swapped()]) {
        let call = SoapCall::to("FindAllByUuid", &feed.session.content.search_index)
            .with(XmlWriter::text("uuid", order.to_string()))
            .with(XmlWriter::text("vmSearch", "true"))
            .with(XmlWriter::text("instanceUuid", "false"));
        let found = feed
            .vcenter()
            .call_in(&feed.session, &call, soap::returned_morefs);
        vms.extend(found.await?.iter().filter_map(Moref::vm));
    }
    Ok((VmKey::Uuid(uuid), vms))
}

/// The search index knows no inventory names, so all are read once, through a view that lives only for that.
async fn by_name(
    feed: &Subscription,
    names: BTreeSet<String>,
) -> Result<BTreeMap<VmKey, BTreeSet<VmRef>>, Error> {
    let content = &feed.session.content;
    let create = SoapCall::to("CreateContainerView", &content.view_manager)
        .with(XmlWriter::moref("container", &content.root_folder))
        .with(XmlWriter::text("type", "VirtualMachine"))
        .with(XmlWriter::text("recursive", "true"));
    let view = feed
        .vcenter()
        .call_in(&feed.session, &create, soap::returned_moref)
        .await?;
    let spec = PropertySpec::default().read("VirtualMachine", &["name"]).through(
        &view,
        vec![TraversalStep::new("ContainerView", "view", Vec::new())],
    );
    let objects = feed.vcenter().retrieve_in(&feed.session, spec).await;
    let destroy = SoapCall::to("DestroyView", &view);
    feed.vcenter()
        .call_in(&feed.session, &destroy, soap::nothing)
        .await?;
    let mut found: BTreeMap<_, _> = names
        .iter()
        .map(|name| (VmKey::Name(name.clone()), BTreeSet::new()))
        .collect();
    for object in objects? {
        let (Some(vm), Some(raw)) = (object.moref.vm(), object.text("name")) else {
            continue;
        };
        if let Some(vms) = found.get_mut(&VmKey::Name(unescaped(raw))) {
            vms.insert(vm);
        }
    }
    Ok(found)
}
