use super::*;

const DAY: Duration = Duration::from_secs(86_400);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_795_000_000 + seconds).unwrap()
}

fn node() -> NodeName {
    NodeName::new("gpu-1")
}

fn boot(number: usize) -> BootId {
    BootId::new(format!("boot-{number}"))
}

fn request(name: &str, is_ours: bool, progress: RequestProgress) -> KnownRequest {
    KnownRequest {
        id: StoredRequestId {
            name: name.to_owned(),
            uid: RequestUid::new(format!("uid-of-{name}")),
            version: "7".to_owned(),
        },
        is_ours,
        progress,
    }
}

/// The request of this boot, of another boot, or of a person.
fn own(progress: RequestProgress) -> KnownRequest {
    request(&request_name(&node(), &boot(2)), true, progress)
}

fn earlier(progress: RequestProgress) -> KnownRequest {
    request(&request_name(&node(), &boot(1)), true, progress)
}

fn by_hand(progress: RequestProgress) -> KnownRequest {
    request("by-hand", false, progress)
}

fn facts(need: RebootNeed, requests: Vec<KnownRequest>) -> RebootFacts {
    RebootFacts {
        now: at(0),
        node: node(),
        boot: boot(2),
        need,
        requests,
    }
}

const PROGRESS: [Option<RequestProgress>; 5] = [
    None,
    Some(RequestProgress::NotBegun),
    Some(RequestProgress::Begun),
    Some(ENDED),
    Some(FAILED),
];

const ENDED: RequestProgress = RequestProgress::Ended {
    at: Timestamp::UNIX_EPOCH,
    succeeded: true,
};

const FAILED: RequestProgress = RequestProgress::Ended {
    at: Timestamp::UNIX_EPOCH,
    succeeded: false,
};

fn is_open(progress: RequestProgress) -> bool {
    !matches!(progress, RequestProgress::Ended { .. })
}

/// All combinations of a need and of requests of this boot, of an earlier boot and of a person.
#[test]
fn each_combination_has_the_step_that_the_rules_give() {
    let needs = [
        RebootNeed::Required("why".to_owned()),
        RebootNeed::NotRequired,
        RebootNeed::Unknown("why".to_owned()),
    ];
    let mut asked = 0;
    for need in &needs {
        for (now, before, other) in PROGRESS
            .iter()
            .flat_map(|now| PROGRESS.iter().map(move |before| (now, before)))
            .flat_map(|(now, before)| PROGRESS.iter().map(move |other| (now, before, other)))
        {
            let requests = [now.map(own), before.map(earlier), other.map(by_hand)];
            let facts = facts(need.clone(), requests.into_iter().flatten().collect());
            let (step, note) = decide(&facts, DAY);
            let case = format!("{need:?} {now:?} {before:?} {other:?}: {step:?} {note:?}");
            let is_begun = [now, before].contains(&&Some(RequestProgress::Begun));
            match step {
                SentinelStep::Ask { name, .. } => {
                    asked += 1;
                    assert_eq!(name, own(ENDED).id.name, "{case}");
                    assert!(matches!(need, RebootNeed::Required(_)), "{case}");
                    assert!(now.is_none() && !before.is_some_and(is_open), "{case}");
                    assert!(!other.is_some_and(is_open), "{case}");
                }
                SentinelStep::Delete(id) => {
                    assert!(!is_begun, "{case}");
                    let deleted = facts.requests.iter().find(|it| it.id == id).unwrap();
                    assert!(deleted.is_ours, "{case}");
                    if deleted.id.name == own(ENDED).id.name {
                        assert_eq!(deleted.progress, RequestProgress::NotBegun, "{case}");
                        let gives_way = other.is_some_and(is_open);
                        let is_required = matches!(need, RebootNeed::Required(_));
                        assert!(
                            *need == RebootNeed::NotRequired || gives_way && is_required,
                            "{case}"
                        );
                    }
                }
                SentinelStep::Rest => {
                    assert!(is_begun || *before != Some(RequestProgress::NotBegun), "{case}");
                    let is_withdrawn =
                        *need == RebootNeed::NotRequired && *now == Some(RequestProgress::NotBegun);
                    assert!(is_begun || !is_withdrawn, "{case}");
                }
            }
        }
    }
    // Without any request; and beside an ended one of an earlier boot, of a person, or both. A failed one of an earlier boot
    // is deleted first.
    assert_eq!(asked, 6);
}

#[test]
fn request_is_asked_for_once_for_each_boot() {
    let names = [1, 2].map(|number| request_name(&node(), &boot(number)));
    assert_ne!(names[0], names[1]);
    assert_ne!(names[0], request_name(&NodeName::new("gpu-2"), &boot(1)));
    assert_eq!(names[0], request_name(&node(), &boot(1)));
    assert!(names[0].starts_with("gpu-1-reboot-"), "{names:?}");
    let long = NodeName::new("n".repeat(231) + "." + &"m".repeat(21));
    let name = request_name(&long, &boot(1));
    assert!(
        crate::ids::is_object_name(&name) && name.len() <= NAME_BYTES_MAX,
        "{name}"
    );
}

#[test]
fn reason_that_a_reboot_does_not_remove_is_asked_for_after_the_pause() {
    let required = || RebootNeed::Required("why".to_owned());
    let ended = |seconds, succeeded| RequestProgress::Ended {
        at: at(seconds),
        succeeded,
    };
    for (progress, is_asked) in [
        (ended(-86_399, true), false),
        (ended(-86_400, true), true),
        // The clock of the controller may be ahead.
        (ended(3_600, true), false),
    ] {
        let (step, note) = decide(&facts(required(), vec![earlier(progress)]), DAY);
        assert_eq!(
            matches!(step, SentinelStep::Ask { .. }),
            is_asked,
            "{progress:?}: {note:?}"
        );
        assert_eq!(note.needs_person, !is_asked, "{note:?}");
    }
    // Of several reboots, the last one counts.
    let older = request("gpu-1-reboot-0", true, ended(-100_000, true));
    let both = vec![older.clone(), earlier(ended(-10, true))];
    let (step, _) = decide(&facts(required(), both), DAY);
    assert_eq!(step, SentinelStep::Delete(older.id));
}

#[test]
fn latest_reboot_is_remembered_and_others_are_deleted() {
    let ended = |name: &str, seconds, succeeded| {
        let progress = RequestProgress::Ended {
            at: at(seconds),
            succeeded,
        };
        request(name, true, progress)
    };
    let mut requests = vec![
        ended("a", -300, true),
        ended("b", -100, true),
        ended("c", -200, true),
        ended("d", -50, false),
        by_hand(ENDED),
        own(FAILED),
    ];
    let mut deleted = Vec::new();
    while let (SentinelStep::Delete(id), _) = decide(&facts(RebootNeed::NotRequired, requests.clone()), DAY) {
        requests.retain(|it| it.id != id);
        deleted.push(id.name);
    }
    assert_eq!(deleted, ["a", "c", "d"]);
}

#[test]
fn each_rule_says_what_it_does_in_one_sentence() {
    let required = || RebootNeed::Required("/var/run/reboot-required exists".to_owned());
    let unknown = RebootNeed::Unknown("x".to_owned());
    let recent = RequestProgress::Ended {
        at: at(-86_390),
        succeeded: true,
    };
    for (facts, needs_person, says) in [
        (
            facts(RebootNeed::NotRequired, vec![]),
            false,
            "no reboot is required",
        ),
        (
            facts(unknown, vec![]),
            true,
            "it is unknown whether a reboot is required",
        ),
        (
            facts(required(), vec![]),
            false,
            "a reboot is required: /var/run/reboot-required exists; creating NodeMaintenance gpu-1-reboot-",
        ),
        (
            facts(required(), vec![own(RequestProgress::NotBegun)]),
            false,
            "asks for it and has not begun",
        ),
        (
            facts(required(), vec![own(RequestProgress::Begun)]),
            false,
            "is under way",
        ),
        (
            facts(required(), vec![own(ENDED)]),
            false,
            "has not reported its new boot",
        ),
        (facts(required(), vec![own(FAILED)]), true, "has not succeeded"),
        (
            facts(required(), vec![earlier(recent)]),
            true,
            "is not asked for before 2026-11-18T11:06:50Z",
        ),
        (
            facts(required(), vec![by_hand(RequestProgress::Begun)]),
            false,
            "when NodeMaintenance by-hand, which is not from a sentinel, is over",
        ),
        (
            facts(RebootNeed::NotRequired, vec![own(RequestProgress::NotBegun)]),
            false,
            ": no reboot is required any more",
        ),
        (
            facts(RebootNeed::NotRequired, vec![earlier(FAILED)]),
            false,
            "is not the latest",
        ),
    ] {
        let (_, note) = decide(&facts, DAY);
        assert!(note.text.contains(says), "{says}: {note:?}");
        assert_eq!(note.needs_person, needs_person, "{note:?}");
    }
}
