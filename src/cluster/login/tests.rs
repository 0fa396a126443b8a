use jiff::Timestamp;

use super::*;
use crate::cluster::lease::election::Timing;
use crate::cluster::lease::stand_in::Store;

const HOLD: Duration = Duration::from_secs(180);

fn turn(holder: &str, lasts: Duration, renewed: &str) -> Option<Seen> {
    Some(Seen {
        holder: holder.to_owned(),
        transitions: 0,
        duration: lasts,
        renewed: Some(renewed.to_owned()),
        version: renewed.to_owned(),
        yields: false,
    })
}

#[test]
fn a_refusal_is_waited_for_by_all_others_and_counts_from_when_they_saw_it() {
    let began = Instant::now();
    let mut known = Known::default();
    assert_eq!(known.whose("b", began), Whose::Free, "nobody has tried");
    known.read(turn("a", HOLD, "1"), began);
    let left = |known: &Known, after| match known.whose("b", began + after) {
        Whose::Taken { left, .. } => left,
        Whose::Free => Duration::ZERO,
    };
    assert_eq!(left(&known, Duration::ZERO), HOLD);
    assert_eq!(
        known.whose("a", began),
        Whose::Free,
        "who was refused knows better"
    );
    known.read(turn("a", HOLD, "1"), began + Duration::from_secs(170));
    assert_eq!(left(&known, Duration::from_secs(179)), Duration::from_secs(1));
    assert_eq!(known.whose("b", began + HOLD), Whose::Free);

    // Refused once more in the meantime: it counts anew.
    known.read(turn("a", HOLD, "2"), began + Duration::from_secs(175));
    assert_eq!(left(&known, HOLD), Duration::from_secs(175));
    known.read(turn("", RELEASED, "3"), began + HOLD);
    assert_eq!(known.whose("b", began + HOLD), Whose::Free, "it was given back");
}

#[test]
fn nobody_can_lock_all_others_out_for_years() {
    let began = Instant::now();
    let mut known = Known::default();
    known.read(turn("x", Duration::from_secs(1 << 30), "1"), began);
    assert!(matches!(known.whose("b", began), Whose::Taken { .. }));
    assert_eq!(known.whose("b", began + FOREIGN_LEASE_MAX), Whose::Free);
}

fn store() -> Store {
    Store::of("haulout-login")
}

fn turns(store: &Store, identity: &str) -> Turns {
    let election = Settings {
        namespace: "ops".to_owned(),
        name: "haulout".to_owned(),
        identity: identity.to_owned(),
        timing: Timing {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
            yield_after: Duration::ZERO,
        },
        clock: || Timestamp::UNIX_EPOCH,
    };
    let (client, _) = store.client();
    Turns::beside(client, &election)
}

const LOGIN: Duration = Duration::from_secs(35);

#[tokio::test(start_paused = true)]
async fn of_two_that_come_together_one_logs_in_after_the_other() {
    let store = store();
    let (a, b) = (turns(&store, "a"), turns(&store, "b"));
    let logged_in = Mutex::new(0);
    let log_in = async |turns: &Turns| {
        turns.take(LOGIN).await.unwrap();
        *logged_in.lock().unwrap() += 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let at_once = *logged_in.lock().unwrap();
        turns.end(None).await;
        at_once
    };
    let (one, other) = tokio::join!(log_in(&a), log_in(&b));
    assert_eq!(one.min(other), 1, "both logged in at once");
    assert_eq!(one.max(other), 2);
}

#[tokio::test(start_paused = true)]
async fn after_a_refusal_all_others_wait_and_then_come_first() {
    let store = store();
    let (a, b) = (turns(&store, "a"), turns(&store, "b"));
    a.take(LOGIN).await.unwrap();
    a.end(Some(HOLD)).await;
    let began = Instant::now();
    let waited = loop {
        match b.take(LOGIN).await {
            Ok(()) => break began.elapsed(),
            Err(NotYet::Taken { holder, .. }) => assert_eq!(holder, "a"),
            Err(NotYet::OutOfReach { said, .. }) => panic!("{said}"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    assert!(
        waited >= HOLD && waited < HOLD + Duration::from_secs(2),
        "{waited:?}"
    );
    let said = a.take(LOGIN).await.unwrap_err().to_string();
    assert!(said.starts_with("b has the turn to log in"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn whoever_dies_while_it_logs_in_is_waited_for_no_longer_than_a_login_takes() {
    let store = store();
    turns(&store, "a").take(LOGIN).await.unwrap();
    let (b, began) = (turns(&store, "b"), Instant::now());
    while b.take(LOGIN).await.is_err() {}
    let waited = began.elapsed();
    assert!(
        waited >= LOGIN && waited < LOGIN + Duration::from_secs(2),
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn where_nobody_says_whose_turn_it_is_nobody_logs_in() {
    let store = store();
    let a = turns(&store, "a");
    a.take(LOGIN).await.unwrap();
    store.silence(true);
    // It gives up telling, and runs out.
    a.end(None).await;
    let said = turns(&store, "b").take(LOGIN).await.unwrap_err().to_string();
    assert!(said.starts_with("the Lease haulout-login"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_lasts_longer_than_a_login_is_refused_without_a_wait() {
    let store = store();
    let a = turns(&store, "a");
    a.take(LOGIN).await.unwrap();
    a.end(Some(HOLD)).await;
    let began = Instant::now();
    assert!(turns(&store, "b").take(LOGIN).await.is_err());
    assert!(began.elapsed() < LOOK, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_given_back_is_free_at_once() {
    let store = store();
    let (a, b) = (turns(&store, "a"), turns(&store, "b"));
    a.take(LOGIN).await.unwrap();
    a.end(None).await;
    assert_eq!(store.lease()["spec"]["holderIdentity"], "");
    let began = Instant::now();
    b.take(LOGIN).await.unwrap();
    assert!(began.elapsed() < LOOK, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_ran_out_does_not_end_that_of_its_successor() {
    let store = store();
    let (a, b) = (turns(&store, "a"), turns(&store, "b"));
    a.take(LOGIN).await.unwrap();
    while b.take(LOGIN).await.is_err() {}
    a.end(None).await;
    assert_eq!(store.lease()["spec"]["holderIdentity"], "b");
    a.end(Some(HOLD)).await;
    assert_eq!(store.lease()["spec"]["holderIdentity"], "b");
}

#[tokio::test(start_paused = true)]
async fn the_hold_after_a_refusal_is_written_again_where_no_answer_comes() {
    let store = store();
    let a = turns(&store, "a");
    a.take(LOGIN).await.unwrap();
    store.silence(true);
    let back = async {
        // Within the second of the tries.
        tokio::time::sleep(CALL_DEADLINE + CALL_DEADLINE / 2).await;
        store.silence(false);
    };
    tokio::join!(a.end(Some(HOLD)), back);
    assert_eq!(store.lease()["spec"]["leaseDurationSeconds"], HOLD.as_secs());
}
