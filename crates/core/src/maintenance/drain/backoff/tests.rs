use super::*;
use crate::fixtures::drain_report;
use crate::maintenance::drain::TerminatingPod;

const RETRY: Duration = Duration::from_secs(5);

fn at(millis: u64) -> Monotonic {
    Monotonic::since_boot(Duration::from_secs(100)).after(Duration::from_millis(millis))
}

fn held(name: &str, budget: &str) -> PendingEviction {
    PendingEviction {
        name: name.to_owned(),
        why: PendingReason::Budget {
            names: vec![budget.to_owned()],
            message: String::new(),
        },
    }
}

fn refused(name: &str) -> PendingEviction {
    PendingEviction {
        name: name.to_owned(),
        why: PendingReason::Refused {
            message: String::new(),
        },
    }
}

fn leaving(name: &str) -> PendingEviction {
    PendingEviction {
        name: name.to_owned(),
        why: PendingReason::Leaving,
    }
}

/// A round at `millis` that left these pods, after the round `before`.
fn round(
    millis: u64,
    left: &[PendingEviction],
    deferred: &[&str],
    before: Option<&DrainReport>,
) -> DrainReport {
    let deferred = deferred.iter().map(|name| (*name).to_owned()).collect();
    let mut report = DrainReport {
        backoff: EvictionBackoff::of_round(BTreeMap::new(), deferred),
        ..drain_report(at(millis), left.to_vec())
    };
    report.follow(before, |_, _| false);
    report
}

fn pause(report: &DrainReport, pod: usize) -> Duration {
    let due = report.retry_at(&report.left[pod], RETRY);
    due.unwrap().since(report.listed_at)
}

#[test]
fn blocked_budget_is_asked_after_a_pause_that_doubles() {
    let mut report = round(0, &[held("ml/a", "b")], &[], None);
    let mut millis = 0;
    for expected in [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000] {
        let paused = pause(&report, 0);
        assert_eq!(paused, Duration::from_millis(expected));
        millis += expected;
        let early = report.deferred(at(millis - 1), RETRY);
        assert_eq!(early.keys().collect::<Vec<_>>(), ["ml/a"]);
        assert!(report.deferred(at(millis), RETRY).is_empty());
        report = round(millis, &[held("ml/a", "b")], &[], Some(&report));
    }
}

#[test]
fn budget_that_let_a_pod_go_is_asked_soon_again() {
    let mut report = round(0, &[held("ml/a", "b"), held("ml/c", "b")], &[], None);
    for millis in 1..6 {
        report = round(millis, &report.left.clone(), &[], Some(&report));
    }
    assert_eq!(pause(&report, 0), Duration::from_millis(1600));
    let fewer = [held("ml/a", "b"), leaving("ml/c")];
    let report = round(7, &fewer, &[], Some(&report));
    assert_eq!(pause(&report, 0), BUDGET_RETRY_MIN);
    assert_eq!(report.retry_at(&report.left[1], RETRY), None);
}

#[test]
fn budgets_of_one_drain_are_backed_off_each_for_itself() {
    let pods = [held("ml/a", "b"), held("shop/a", "b"), held("ml/c", "other")];
    let mut report = round(0, &pods, &[], None);
    // Later rounds request only the first eviction.
    for millis in [50, 150] {
        report = round(millis, &pods, &["shop/a", "ml/c"], Some(&report));
    }
    let due = |pod: &PendingEviction| report.retry_at(pod, RETRY).unwrap();
    assert_eq!(pods.each_ref().map(due), [at(350), at(50), at(50)]);
    let deferred = report.deferred(at(200), RETRY);
    assert_eq!(
        deferred,
        BTreeMap::from([("ml/a".to_owned(), pods[0].why.clone())])
    );
}

#[test]
fn watched_budget_is_asked_when_it_allows() {
    let pods = [held("ml/a", "b")];
    let mut report = round(0, &pods, &[], None);
    report.follow(None, |namespace, name| (namespace, name) == ("ml", "b"));
    assert_eq!(
        pause(&report, 0),
        RETRY,
        "no eviction is requested while the watch shows that it blocks"
    );
    assert!(!report.backoff.budget_changed("ml", "other", false, true));
    assert!(!report.backoff.budget_changed("shop", "b", false, true));
    assert_eq!(pause(&report, 0), RETRY);
    assert!(report.backoff.budget_changed("ml", "b", false, true));
    assert_eq!(pause(&report, 0), BUDGET_RETRY_MIN);
    assert!(report.backoff.budget_changed("ml", "b", true, false));
    assert_eq!(
        pause(&report, 0),
        BUDGET_RETRY_MIN,
        "it allowed one, so one is requested"
    );
    // It allowed one during the next round, which was too late for that.
    let mut late = round(60, &pods, &[], Some(&report));
    assert_eq!(pause(&late, 0), BUDGET_RETRY_MIN);
    late.backoff.budget_changed("ml", "b", true, false);
    assert_eq!(pause(&late, 0), RETRY);
    late.backoff.budget_changed("ml", "b", false, false);
    assert_eq!(pause(&late, 0), BUDGET_RETRY_MIN, "its watch broke");
}

#[test]
fn pod_is_deferred_until_retry_after_has_passed() {
    let pods = [held("ml/a", "b"), refused("ml/c"), refused("ml/d")];
    let mut report = round(0, &pods, &[], None);
    report.backoff.retry_at =
        BTreeMap::from([("ml/a".to_owned(), at(10_000)), ("ml/c".to_owned(), at(7_000))]);
    let due = |report: &DrainReport| pods.each_ref().map(|pod| report.retry_at(pod, RETRY).unwrap());
    assert_eq!(due(&report), [at(10_000), at(7_000), at(5_000)]);
    let names = |report: &DrainReport, millis| {
        let deferred = report.deferred(at(millis), RETRY);
        deferred.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(names(&report, 1_000), ["ml/a", "ml/c"]);
    // Neither rounds for other reasons nor a budget that allows change the time.
    let mut later = round(6_000, &pods, &["ml/a", "ml/c"], Some(&report));
    later.backoff.budget_changed("ml", "b", false, true);
    assert_eq!(due(&later), [at(10_000), at(7_000), at(11_000)]);
    assert_eq!(names(&later, 6_999), ["ml/a", "ml/c"]);
    assert_eq!(names(&later, 7_000), ["ml/a"]);
    assert!(names(&later, 10_000).is_empty());
    // A requested eviction has a new reply.
    let asked = round(10_000, &pods, &[], Some(&later));
    assert_eq!(due(&asked), [at(10_050), at(15_000), at(15_000)]);
}

#[test]
fn budget_without_a_name_is_backed_off_too() {
    let nameless = PendingEviction {
        name: "ml/a".to_owned(),
        why: PendingReason::Budget {
            names: Vec::new(),
            message: String::new(),
        },
    };
    let mut report = round(0, std::slice::from_ref(&nameless), &[], None);
    report = round(50, std::slice::from_ref(&nameless), &[], Some(&report));
    assert_eq!(pause(&report, 0), Duration::from_millis(100));
    report.follow(None, |_, _| true);
    assert_eq!(pause(&report, 0), BUDGET_RETRY_MIN, "it cannot be watched");
}

#[test]
fn drain_is_held_while_a_budget_blocks_one_of_its_pods() {
    let is_held = |left| crate::fixtures::drain_report(at(0), left).is_held();
    assert!(!is_held(vec![]));
    assert!(!is_held(vec![refused("ml/a"), leaving("ml/b")]));
    assert!(is_held(vec![refused("ml/a"), held("ml/b", "train")]));
}

#[test]
fn pod_terminates_since_it_was_first_seen_to_and_not_its_successor() {
    let terminating = |millis: u64, uid: &str, before: Option<&DrainReport>| {
        let pod = TerminatingPod {
            uid: uid.to_owned(),
            since: at(millis),
            grace: Duration::from_secs(30),
        };
        let mut report = drain_report(at(millis), vec![leaving("ml/a")]);
        report.terminating.insert("ml/a".to_owned(), pod);
        report.follow(before, |_, _| false);
        report
    };
    let since = |report: &DrainReport| report.terminating["ml/a"].since;
    let first = terminating(0, "uid-1", None);
    let second = terminating(1_000, "uid-1", Some(&first));
    assert_eq!(since(&second), at(0));
    let third = terminating(2_000, "uid-1", Some(&second));
    assert_eq!(since(&third), at(0));
    assert_eq!(since(&terminating(3_000, "uid-2", Some(&third))), at(3_000));
}
