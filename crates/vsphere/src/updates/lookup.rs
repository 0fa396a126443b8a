//! Finds VMs by key: by UUID in the search index, by name in a list of all names.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use super::subscription::{SessionObjects, Subscription};
use crate::call::SoapCall;
use crate::error::Error;
use crate::moref::Moref;
use crate::property::{PropertySpec, TraversalStep};
use crate::reading::PAGE;
use crate::reading::container_view;
use crate::scope::VmScope;
use crate::soap;
use crate::text::unescaped;
use crate::update::VmKey;
use crate::xml::write::XmlWriter;
use haulout_core::ids::{VmRef, VmUuid};

/// Concurrent searches: enough to hide the round trip, few enough for vCenter's connection limit.
const CONCURRENT_SEARCHES: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Found {
    /// The VMs in scope that match each key.
    pub(super) vms: BTreeMap<VmKey, BTreeSet<VmRef>>,
    /// The keys that match a VM outside the scope.
    pub(super) outside: BTreeSet<VmKey>,
}

/// The VMs that match each of `keys`, those of `kept_off` also outside the scope.
pub(super) async fn find(
    subscription: &Subscription,
    keys: &BTreeSet<VmKey>,
    kept_off: &BTreeSet<VmRef>,
) -> Result<Found, Error> {
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
    let searches = uuids.into_iter().map(|uuid| by_uuid(subscription, uuid));
    let mut vms_by_key: BTreeMap<_, _> = stream::iter(searches)
        .buffer_unordered(CONCURRENT_SEARCHES)
        .try_collect()
        .await?;
    if !names.is_empty() {
        vms_by_key.extend(by_name(subscription, names).await?);
    }
    in_scope(subscription, vms_by_key, kept_off).await
}

/// Removes the VMs that are not in scope.
async fn in_scope(
    subscription: &Subscription,
    mut vms: BTreeMap<VmKey, BTreeSet<VmRef>>,
    kept_off: &BTreeSet<VmRef>,
) -> Result<Found, Error> {
    let all: BTreeSet<VmRef> = vms.values().flatten().cloned().collect();
    let SessionObjects { vcenter, session, .. } = &subscription.objects;
    let scope = &vcenter.settings.scope;
    let mut outside = BTreeSet::new();
    if !scope.is_everything() && !all.is_empty() {
        let read = vcenter.retrieve_in(session, VmScope::spec(&all), PAGE).await?;
        let inside = scope.contains(&all, &read);
        for (key, vms) in &mut vms {
            let before = vms.len();
            vms.retain(|vm| inside.contains(vm) || kept_off.contains(vm));
            if vms.len() < before {
                outside.insert(key.clone());
            }
        }
    }
    Ok(Found { vms, outside })
}

/// A guest reads its UUID in one of two byte orders, so both are searched. `FindByUuid` would hide
/// clones.
async fn by_uuid(subscription: &Subscription, uuid: VmUuid) -> Result<(VmKey, BTreeSet<VmRef>), Error> {
    let index = &subscription.objects.session.content.search_index;
    let mut vms = BTreeSet::new();
    for order in BTreeSet::from([uuid, uuid.swapped()]) {
        let call = SoapCall::to("FindAllByUuid", index)
            .with(XmlWriter::text("uuid", order.to_string()))
            .with(XmlWriter::text("vmSearch", "true"))
            .with(XmlWriter::text("instanceUuid", "false"));
        let matches = subscription.call(&call, soap::returned_morefs).await?;
        vms.extend(matches.iter().filter_map(Moref::vm));
    }
    Ok((VmKey::Uuid(uuid), vms))
}

/// The search index has no inventory names, so all names are read through a temporary view.
async fn by_name(
    subscription: &Subscription,
    names: BTreeSet<String>,
) -> Result<BTreeMap<VmKey, BTreeSet<VmRef>>, Error> {
    let SessionObjects { vcenter, session, .. } = &subscription.objects;
    let create = container_view(&session.content, "VirtualMachine");
    let view = subscription.call(&create, soap::returned_moref).await?;
    let spec = PropertySpec::default()
        .read_properties("VirtualMachine", &["name"])
        .select_beyond(&view, [TraversalStep::new("ContainerView", "view", [])]);
    let objects = vcenter.retrieve_in(session, spec, PAGE).await;
    let destroy = SoapCall::to("DestroyView", &view);
    subscription.call(&destroy, soap::nothing).await?;
    let mut vms_by_key: BTreeMap<_, _> = names
        .iter()
        .map(|name| (VmKey::Name(name.clone()), BTreeSet::new()))
        .collect();
    for object in objects? {
        let (Some(vm), Some(raw)) = (object.moref.vm(), object.text("name")) else {
            continue;
        };
        if let Some(vms) = vms_by_key.get_mut(&VmKey::Name(unescaped(raw))) {
            vms.insert(vm);
        }
    }
    Ok(vms_by_key)
}
