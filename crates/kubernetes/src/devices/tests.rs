use serde_json::json;

use super::*;

const DRIVER: &str = "gpu.nvidia.com";

fn index() -> SliceIndex {
    SliceIndex::new(GpuResources::parse("nvidia.com/*,gpu.nvidia.com").unwrap())
}

/// The slice `name` of gpu-1, with a device for each of `taints`.
fn slice(name: &str, driver: &str, pool: (&str, i64), taints: &[Option<&str>]) -> ResourceSlice {
    let device = |(index, effect): (usize, &Option<&str>)| {
        let taints = effect.map(|effect| json!([{"key": "unhealthy", "effect": effect}]));
        json!({"name": format!("gpu-{index}"), "taints": taints.unwrap_or_else(|| json!([]))})
    };
    let devices: Vec<_> = taints.iter().enumerate().map(device).collect();
    serde_json::from_value(json!({
        "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "driver": driver, "nodeName": "gpu-1", "devices": devices,
            "pool": {"name": pool.0, "generation": pool.1, "resourceSliceCount": 1},
        },
    }))
    .unwrap()
}

fn counts(index: &SliceIndex) -> Vec<u64> {
    let slices = index.slices_of(&NodeName::new("gpu-1"));
    slices.iter().map(|slice| slice.devices).collect()
}

#[test]
fn slices_of_drivers_in_gpu_resources_are_counted() {
    let mut index = index();
    let ours = slice("a", DRIVER, ("gpu-1", 1), &[None, None]);
    assert_eq!(index.seen(&ours), Some(NodeName::new("gpu-1")));
    let network = slice("b", "dra.net", ("gpu-1", 1), &[None]);
    assert_eq!(index.seen(&network), None);
    let mut shared = slice("c", DRIVER, ("fabric", 1), &[None]);
    (shared.spec.node_name, shared.spec.all_nodes) = (None, Some(true));
    assert_eq!(index.seen(&shared), None);
    assert_eq!(counts(&index), [2]);
    assert_eq!(index.remove("b"), None);
    assert_eq!(index.remove("a"), Some(NodeName::new("gpu-1")));
    assert_eq!(index.nodes().count(), 0);
}

#[test]
fn unhealthy_devices_are_not_counted() {
    let mut index = index();
    let taints = [None, Some("NoSchedule"), Some("NoExecute"), Some("None")];
    index.seen(&slice("a", DRIVER, ("gpu-1", 1), &taints));
    assert_eq!(counts(&index), [2]);
}

#[test]
fn only_the_newest_generation_of_a_pool_is_counted() {
    let mut index = index();
    index.seen(&slice("old", DRIVER, ("gpu-1", 1), &[None; 8]));
    index.seen(&slice("new", DRIVER, ("gpu-1", 2), &[None; 7]));
    index.seen(&slice("other", DRIVER, ("other", 1), &[None]));
    assert_eq!(counts(&index), [7, 1]);
    index.remove("new");
    assert_eq!(counts(&index), [8, 1]);
}

#[test]
fn slice_that_a_new_list_lacks_is_gone() {
    let mut index = index();
    let (first, second) = (
        slice("a", DRIVER, ("gpu-1", 1), &[None]),
        slice("b", DRIVER, ("more", 1), &[None, None]),
    );
    index.list_begins();
    index.seen(&first);
    index.seen(&second);
    assert_eq!(index.listed(), BTreeSet::new());
    index.list_begins();
    index.seen(&second);
    assert_eq!(
        counts(&index),
        [1, 2],
        "the earlier list counts until the next is complete"
    );
    assert_eq!(index.listed(), BTreeSet::from([NodeName::new("gpu-1")]));
    assert_eq!(counts(&index), [2]);
}

#[test]
fn slices_of_a_node_are_limited() {
    let mut index = index();
    for number in 0..2 * PER_NODE_MAX {
        index.seen(&slice(
            &format!("s{number}"),
            DRIVER,
            (&format!("p{number}"), 1),
            &[None],
        ));
    }
    assert_eq!(counts(&index).len(), PER_NODE_MAX);
    assert_eq!(index.slices.len(), PER_NODE_MAX);
}
