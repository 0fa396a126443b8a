use super::super::placement::RejectionReason;
use super::*;

fn hosts(numbers: std::ops::RangeInclusive<u32>, why: &RejectionReason) -> Vec<RejectedHost> {
    numbers
        .map(|number| RejectedHost {
            host: format!("esx-{number}"),
            why: why.clone(),
        })
        .collect()
}

fn exit(refused: Vec<RejectedHost>) -> String {
    WaitingOn::HostExit {
        host: "esx-1".to_owned(),
        state: "in maintenance mode",
        refused,
    }
    .to_string()
}

fn turn(ahead: &[&str], position: usize) -> String {
    WaitingOn::Slot {
        ahead: ahead.iter().map(|name| NodeName::new(*name)).collect(),
        position,
        limit: SlotLimit::ConcurrentDrains(1),
    }
    .to_string()
}

#[test]
fn wait_among_96_hosts_is_one_sentence() {
    let mut refused = hosts(2..=94, &RejectionReason::State("in maintenance mode"));
    refused.extend(hosts(95..=96, &RejectionReason::DevicesTaken));
    assert_eq!(
        exit(refused),
        "host esx-1, which is in maintenance mode, to be back in service; elsewhere: esx-2 is in maintenance mode \
         (esx-3, esx-4, esx-5, 89 more likewise), esx-95 has no matching device free (esx-96 likewise)"
    );
}

#[test]
fn each_reason_is_shown_once() {
    let mut refused = hosts(2..=2, &RejectionReason::DevicesTaken);
    refused.extend(hosts(
        3..=3,
        &RejectionReason::Datastores(vec!["ds-local-0".into()]),
    ));
    refused.extend(hosts(4..=4, &RejectionReason::DevicesTaken));
    assert_eq!(
        exit(refused),
        "host esx-1, which is in maintenance mode, to be back in service; elsewhere: esx-2 has no matching device free \
         (esx-4 likewise), esx-3 does not see datastore ds-local-0 of the VM's files"
    );
    // Different messages of vCenter are different reasons.
    let refusal = |message: &str| RejectionReason::RefusedByVcenter(message.to_owned());
    let refused = [
        hosts(2..=2, &refusal("no memory")),
        hosts(3..=3, &refusal("no disk")),
    ]
    .concat();
    assert_eq!(
        exit(refused),
        "host esx-1, which is in maintenance mode, to be back in service; elsewhere: esx-2 was refused by vCenter: no memory, \
         esx-3 was refused by vCenter: no disk"
    );
}

#[test]
fn slot_wait_names_three_nodes_and_counts_the_rest() {
    assert_eq!(
        turn(&["gpu-7"], 1),
        "a slot: at most 1 drained at once, and gpu-7 comes first"
    );
    assert_eq!(
        turn(&["gpu-1", "gpu-2", "gpu-3"], 2),
        "a slot, as number 2 in the queue: at most 1 drained at once, and gpu-1, gpu-2, gpu-3 come first"
    );
    let fleet: Vec<String> = (1..=200).map(|number| format!("gpu-{number}")).collect();
    let fleet: Vec<&str> = fleet.iter().map(String::as_str).collect();
    assert_eq!(
        turn(&fleet, 200),
        "a slot, as number 200 in the queue: at most 1 drained at once, and gpu-1, gpu-2, gpu-3, 197 more come first"
    );
}
