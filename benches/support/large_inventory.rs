//! An inventory of many hosts: each of our nodes runs on its own host, and the other hosts have no VM of ours.

use haulout::inventory::{Fact, Inventory};
use haulout::maintenance::clock::Now;
use haulout::vsphere::update::VsphereUpdate;
use haulout_core::fixtures::{host, synced, trio};

/// Fills `inventory` with `hosts` hosts, and with `ours` nodes and their VMs.
pub fn fill(inventory: &mut Inventory, hosts: usize, ours: usize, now: Now) {
    let all = (0..hosts).map(|n| Fact::Vsphere(VsphereUpdate::Host(host(n).into())));
    inventory.advance(synced(all.chain((0..ours).flat_map(trio))), now);
}
