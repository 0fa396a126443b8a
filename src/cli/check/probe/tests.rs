use std::collections::BTreeSet;
use std::time::Duration;

use super::answers::{Finding, ProbeAnswer, findings};
use super::observed::{Observations, ProbeReading};
use super::report::{self, ProbeReport};
use super::steps;
use crate::cli::probes::{ALL, Means};
use crate::vsphere::fault::FaultKind;
use crate::vsphere::updates::probe::{
    InventoryTraits, ListedTask, LongPoll, PollEnd, ProductInfo, PushTally, ResultSizes, TaskOrigin,
    WatchedPushes,
};

fn answer(seen: &Observations, id: &str) -> (ProbeAnswer, String) {
    let finding = findings(seen)
        .into_iter()
        .find(|finding| finding.id == id)
        .unwrap();
    (finding.answer, finding.observed)
}

fn task(id: &str, origin: TaskOrigin) -> ListedTask {
    ListedTask {
        description_id: id.to_owned(),
        origin,
        has_parent: false,
        is_cancelable: true,
        failed_with: None,
    }
}

fn with_tasks(tasks: &[ListedTask]) -> Observations {
    Observations {
        tasks: ProbeReading::Got(Some(tasks.to_vec())),
        ..Observations::default()
    }
}

#[test]
fn each_probe_has_its_own_id_and_one_row() {
    let ids: BTreeSet<&str> = ALL.iter().map(|probe| probe.id).collect();
    assert_eq!(ids.len(), ALL.len());
    let answered: Vec<&str> = findings(&Observations::default())
        .iter()
        .map(|it| it.id)
        .collect();
    let expected = ALL.iter().filter(|probe| probe.means != Means::Change);
    assert_eq!(answered, expected.map(|probe| probe.id).collect::<Vec<_>>());
}

#[test]
fn nothing_is_seen_where_nothing_was_looked_for() {
    for finding in findings(&Observations::default()) {
        assert_eq!(
            (finding.answer, &*finding.observed),
            (ProbeAnswer::NotSeen, "left out")
        );
    }
    let denied = Observations {
        results: ProbeReading::Unreadable("refused with NoPermission".to_owned()),
        ..Observations::default()
    };
    let expected = (
        ProbeAnswer::NotSeen,
        "not read: refused with NoPermission".to_owned(),
    );
    assert_eq!(answer(&denied, "task-results"), expected);
}

#[test]
fn versions_are_reported_with_what_was_negotiated() {
    let product = ProductInfo {
        negotiated: "8.0.3.0".to_owned(),
        api_version: "9.0.0.0".to_owned(),
        version: "9.0.0".to_owned(),
        build: "1".to_owned(),
        product_line: "vpx".to_owned(),
    };
    let seen = Observations {
        product: ProbeReading::Got(product),
        ..Observations::default()
    };
    let (answer, observed) = answer(&seen, "api-version");
    assert_eq!(answer, ProbeAnswer::No);
    for words in ["negotiated 8.0.3.0", "API 9.0.0.0", "build 1", "vpx"] {
        assert!(observed.contains(words), "{observed}");
    }
}

#[test]
fn push_is_answered_by_whether_anything_was_missed() {
    for (tally, expected) in [
        (PushTally { pushed: 2, missed: 0 }, ProbeAnswer::Yes),
        (PushTally { pushed: 1, missed: 1 }, ProbeAnswer::No),
        (PushTally { pushed: 0, missed: 0 }, ProbeAnswer::NotSeen),
    ] {
        let seen = Observations {
            watch: ProbeReading::Got(WatchedPushes {
                history_end: tally,
                ..WatchedPushes::default()
            }),
            ..Observations::default()
        };
        assert_eq!(answer(&seen, "history-end-push").0, expected, "{tally:?}");
        assert_eq!(answer(&seen, "recent-task-push").0, ProbeAnswer::NotSeen);
    }
}

#[test]
fn listed_tasks_answer_for_their_kind_only() {
    let exit = "HostSystem.exitMaintenanceMode";
    let enter = "HostSystem.enterMaintenanceMode";
    let nothing = with_tasks(&[task("VirtualMachine.powerOn", TaskOrigin::System)]);
    for id in [
        "exit-reason",
        "maintenance-task-shape",
        "maintenance-timeout",
        "vmotion-task",
    ] {
        assert_eq!(answer(&nothing, id).0, ProbeAnswer::NotSeen, "{id}");
    }
    let by_user = with_tasks(&[task(exit, TaskOrigin::User), task(enter, TaskOrigin::User)]);
    assert_eq!(answer(&by_user, "exit-reason").0, ProbeAnswer::No);
    assert_eq!(answer(&by_user, "maintenance-task-shape").0, ProbeAnswer::No);
    let by_vcenter = with_tasks(&[
        task(exit, TaskOrigin::System),
        ListedTask {
            has_parent: true,
            failed_with: Some(FaultKind::Timedout),
            ..task(enter, TaskOrigin::User)
        },
        task("Drm.ExecuteVMotionLRO", TaskOrigin::System),
    ]);
    for id in [
        "exit-reason",
        "maintenance-task-shape",
        "maintenance-timeout",
        "vmotion-task",
    ] {
        assert_eq!(answer(&by_vcenter, id).0, ProbeAnswer::Yes, "{id}");
    }
    let otherwise = with_tasks(&[task("VirtualMachine.migrate", TaskOrigin::System)]);
    assert_eq!(answer(&otherwise, "vmotion-task").0, ProbeAnswer::No);
    let without = Observations {
        tasks: ProbeReading::Got(None),
        ..Observations::default()
    };
    assert_eq!(answer(&without, "exit-reason").1, "vCenter has no task history");
}

#[test]
fn sizes_of_results_are_reported() {
    let sizes = ResultSizes {
        tasks: 7,
        with_result: 3,
        largest: 2_000_000,
        beyond_limit: 1,
        left_out: 0,
    };
    let seen = Observations {
        results: ProbeReading::Got(sizes),
        ..Observations::default()
    };
    let (answer, observed) = answer(&seen, "task-results");
    assert_eq!(answer, ProbeAnswer::Yes);
    assert!(
        observed.contains("3 of 7") && observed.contains("2000000 bytes"),
        "{observed}"
    );
}

#[test]
fn long_poll_that_was_cut_or_shortened_is_no() {
    let poll = |asked, took, end| LongPoll {
        asked: Duration::from_secs(asked),
        took: Duration::from_secs(took),
        end,
    };
    for (last, expected) in [
        (poll(30, 30, PollEnd::Answered), ProbeAnswer::Yes),
        (poll(30, 12, PollEnd::Answered), ProbeAnswer::No),
        (poll(30, 20, PollEnd::Closed), ProbeAnswer::No),
        (poll(30, 30, PollEnd::Status(504)), ProbeAnswer::No),
    ] {
        let seen = Observations {
            polls: ProbeReading::Got(vec![poll(10, 10, PollEnd::Answered), last]),
            ..Observations::default()
        };
        let (answer, observed) = answer(&seen, "long-poll");
        assert_eq!(answer, expected, "{last:?}");
        assert!(
            observed.starts_with("10 s: answered after 10 s; 30 s: "),
            "{observed}"
        );
    }
}

#[test]
fn inventory_answers_where_there_is_something_to_see() {
    let none = Observations {
        traits: ProbeReading::Got(InventoryTraits::default()),
        ..Observations::default()
    };
    let ids = [
        "binding-format",
        "binding-static",
        "binding-dynamic",
        "unreadable-vms",
    ];
    for id in ids.into_iter().chain(["inaccessible-config", "build-order"]) {
        assert_eq!(answer(&none, id).0, ProbeAnswer::NotSeen, "{id}");
    }
    let some = Observations {
        traits: ProbeReading::Got(InventoryTraits {
            hosts: 3,
            vms: 9,
            unreadable_vms: 2,
            inaccessible_vms: 1,
            bindings: 2,
            bindings_with_address: 1,
            binding_forms: ["hhhh:hh:hh.h".to_owned()].into(),
            static_vms: 1,
            dynamic_vms: 1,
            dynamic_vms_bound: 1,
            builds: [(vec![8, 0, 2], 9), (vec![8, 0, 3], 7)].into(),
            ..InventoryTraits::default()
        }),
        ..Observations::default()
    };
    let answers = ids.map(|id| answer(&some, id).0);
    let (yes, no) = (ProbeAnswer::Yes, ProbeAnswer::No);
    assert_eq!(answers, [no, no, yes, no]);
    assert_eq!(answer(&some, "inaccessible-config").0, yes);
    assert_eq!(answer(&some, "build-order").0, no);
}

#[test]
fn steps_of_the_long_polls_end_with_the_longest() {
    let seconds = |longest| {
        steps(Duration::from_secs(longest))
            .iter()
            .map(Duration::as_secs)
            .collect::<Vec<_>>()
    };
    assert_eq!(seconds(120), [10, 30, 60, 120]);
    assert_eq!(seconds(100), [10, 30, 60, 100]);
    assert_eq!(seconds(1), [1]);
    assert_eq!(seconds(600), [10, 30, 60, 120, 300, 600]);
}

#[test]
fn report_is_json_or_markdown_by_the_name_of_its_file() {
    let finding = Finding {
        id: "long-poll",
        question: "a | b?",
        answer: ProbeAnswer::NotSeen,
        observed: "left out".to_owned(),
    };
    let report = ProbeReport::new(vec![finding]);
    let json: serde_json::Value =
        serde_json::from_str(&report::text(&report, "x.json".as_ref()).unwrap()).unwrap();
    assert_eq!(json["answers"][0]["answer"], "not seen");
    assert_eq!(json["needsAChange"][0], "relocate-static");
    let markdown = report::text(&report, "x.md".as_ref()).unwrap();
    assert!(
        markdown.contains("| `long-poll` | a \\| b? | not seen | left out |"),
        "{markdown}"
    );
}
