//! The devices that drivers of Dynamic Resource Allocation publish for a Node.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// A ResourceSlice of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    /// `spec.driver`.
    pub driver: String,
    /// `metadata.creationTimestamp`, on the kube-apiserver's clock.
    pub created_at: Timestamp,
    /// Its devices, without those that no pod may use.
    pub devices: u64,
}

/// The number of devices by driver. With `after`, only slices that were created later count.
///
/// A kubelet deletes all ResourceSlices of its Node when it starts (`pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go`,
/// `NewDRAPluginManager`), so a slice that was created after a power cycle shows that the driver runs on this boot. One from before
/// may be left of a kubelet that has not started yet.
pub fn counts(slices: &[DeviceSlice], after: Option<Timestamp>) -> BTreeMap<String, u64> {
    let current = slices
        .iter()
        .filter(|slice| after.is_none_or(|after| slice.created_at > after));
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for slice in current.filter(|slice| slice.devices > 0) {
        let count = counts.entry(slice.driver.clone()).or_default();
        *count = count.saturating_add(slice.devices);
    }
    counts
}

/// When the newest slice was created.
pub fn newest(slices: &[DeviceSlice]) -> Option<Timestamp> {
    slices.iter().map(|slice| slice.created_at).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(driver: &str, second: i64, devices: u64) -> DeviceSlice {
        DeviceSlice {
            driver: driver.to_owned(),
            created_at: Timestamp::from_second(second).unwrap(),
            devices,
        }
    }

    #[test]
    fn devices_are_counted_by_driver_from_slices_of_this_boot() {
        let slices = [
            slice("a", 1, 4),
            slice("a", 5, 2),
            slice("b", 5, 0),
            slice("b", 7, u64::MAX),
        ];
        let counted = |after: Option<i64>| {
            let counts = counts(
                &slices,
                after.map(|second| Timestamp::from_second(second).unwrap()),
            );
            ["a", "b"].map(|driver| counts.get(driver).copied())
        };
        assert_eq!(counted(None), [Some(6), Some(u64::MAX)]);
        assert_eq!(counted(Some(1)), [Some(2), Some(u64::MAX)]);
        assert_eq!(counted(Some(5)), [None, Some(u64::MAX)]);
        assert_eq!(counted(Some(7)), [None, None]);
        assert_eq!(newest(&slices), Some(Timestamp::from_second(7).unwrap()));
    }
}
