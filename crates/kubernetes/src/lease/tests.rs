use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::election::EPOCHS_BEGIN;
use super::*;
use crate::fence::{FenceClosed, WriteKind};
use crate::keys::LOGIN_REFUSED;
use crate::lease::stand_in::Store;
use crate::stand_in::RequestLog;

const PUT: &str = "PUT /apis/coordination.k8s.io/v1/namespaces/ops/leases/haulout";
const POST: &str = "POST /apis/coordination.k8s.io/v1/namespaces/ops/leases";

const FAST: Timing = Timing {
    lease: Duration::from_millis(600),
    renew_deadline: Duration::from_millis(400),
    retry: Duration::from_millis(40),
    yield_after: Duration::from_millis(300),
};

/// With a Lease of more than the second for which a released one lasts.
const SLOW: Timing = Timing {
    lease: Duration::from_millis(1_500),
    ..FAST
};

fn settings(identity: &str, timing: Timing) -> Settings {
    Settings {
        namespace: "ops".to_owned(),
        name: "haulout".to_owned(),
        identity: identity.to_owned(),
        timing,
        clock: now,
    }
}

/// A Lease that its last holder has released, so that the next one may act at once.
fn released() -> Store {
    let store = Store::of("haulout");
    store.put(json!({
        "metadata": {"name": "haulout", "namespace": "ops", "resourceVersion": "0"},
        "spec": {
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "leaseTransitions": 4,
            "renewTime": "1970-01-01T00:00:00.000000Z",
        },
    }));
    store
}

/// What the clock says, in seconds since the first epoch.
const SECONDS: i64 = 7_000;

fn now() -> Timestamp {
    Timestamp::from_second(EPOCHS_BEGIN + SECONDS).unwrap()
}

struct Running {
    tasks: tokio::task::JoinSet<()>,
    fence: WriteFence,
    status: watch::Receiver<ElectionStatus>,
    stop: CancellationToken,
    can_work: watch::Sender<bool>,
    login: watch::Sender<LoginNote>,
    log: RequestLog,
}

fn candidate(store: &Store, identity: &str) -> Running {
    candidate_by(store, identity, FAST)
}

fn candidate_by(store: &Store, identity: &str, timing: Timing) -> Running {
    let (client, log) = store.client();
    let fence = WriteFence::for_replica(crate::fence::now);
    let (sender, status) = watch::channel(ElectionStatus::default());
    let (can_work, works) = watch::channel(true);
    let (login, note) = watch::channel(LoginNote::Keep);
    let stop = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(run(
        client,
        settings(identity, timing),
        fence.clone(),
        Abilities {
            can_work: works,
            login: note,
        },
        sender,
        stop.clone(),
    ));
    Running {
        tasks,
        fence,
        status,
        stop,
        can_work,
        login,
        log,
    }
}

impl Running {
    async fn leads(&mut self) -> HeldLeadership {
        let led = self.status.wait_for(|status| status.leadership.is_some());
        let status = tokio::time::timeout(Duration::from_secs(20), led).await;
        status.unwrap().unwrap().leadership.unwrap()
    }

    async fn ended(&mut self) {
        let ended = tokio::time::timeout(Duration::from_secs(20), self.tasks.join_next()).await;
        ended.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn of_two_candidates_one_leads_and_the_other_says_who() {
    let store = Store::of("haulout");
    let (mut a, mut b) = (candidate(&store, "a"), candidate(&store, "b"));
    let first = tokio::select! {
        biased;
        lead = a.leads() => lead,
        lead = b.leads() => lead,
    };
    assert_eq!(first.epoch, 7_000, "counted from the clock");
    let holder = store.lease()["spec"]["holderIdentity"].clone();
    let other = if holder == "a" { &mut b } else { &mut a };
    let seen = other.status.wait_for(|status| status.leader.is_some());
    let seen = tokio::time::timeout(Duration::from_secs(20), seen).await.unwrap();
    assert_eq!(json!(seen.unwrap().leader), holder);
    assert_eq!(
        other.fence.permit(WriteKind::Record).unwrap_err(),
        FenceClosed::Standby
    );
}

#[tokio::test]
async fn a_released_lease_is_taken_at_once_and_effects_begin_at_once() {
    let store = released();
    let mut first = candidate_by(&store, "first", SLOW);
    first.leads().await;
    let mut second = candidate_by(&store, "second", SLOW);
    first.stop.cancel();
    first.ended().await;
    let leadership = second.leads().await;
    assert_eq!((leadership.epoch, leadership.quarantine), (6, Duration::ZERO));
    assert!(second.fence.permit(WriteKind::Effect).is_ok());
}

#[tokio::test]
async fn a_lease_is_not_released_while_something_is_under_way() {
    let store = released();
    let mut first = candidate_by(&store, "first", SLOW);
    first.leads().await;
    let _out = first.fence.permit(WriteKind::Effect).unwrap();
    first.stop.cancel();
    first.ended().await;
    assert_eq!(store.lease()["spec"]["holderIdentity"], "first");
}

#[tokio::test]
async fn lease_is_not_released_while_an_earlier_leader_may_act() {
    let store = Store::of("haulout");
    let mut first = candidate_by(&store, "first", SLOW);
    assert!(first.leads().await.quarantine > Duration::ZERO);
    first.stop.cancel();
    first.ended().await;
    assert_eq!(store.lease()["spec"]["holderIdentity"], "first");
}

#[tokio::test]
async fn leader_that_cannot_renew_exits_and_is_followed_after_a_quarantine() {
    let store = Store::of("haulout");
    let mut first = candidate(&store, "first");
    first.leads().await;
    store.silence(true);
    first.ended().await;
    assert_eq!(
        first.fence.permit(WriteKind::Record).unwrap_err(),
        FenceClosed::Closed
    );
    store.silence(false);
    let mut second = candidate(&store, "second");
    let leadership = second.leads().await;
    assert_eq!(leadership.epoch, 7_001);
    assert!(leadership.quarantine > Duration::ZERO);
    assert!(second.fence.permit(WriteKind::Record).is_ok());
    assert_eq!(
        second.fence.permit(WriteKind::Effect).unwrap_err(),
        FenceClosed::Quarantine
    );
}

#[tokio::test]
async fn a_forged_holder_deposes_a_leader_at_its_next_renewal() {
    let store = Store::of("haulout");
    let mut first = candidate(&store, "first");
    first.leads().await;
    let mut forged = store.lease();
    forged["spec"]["holderIdentity"] = json!("forged");
    forged["metadata"]["resourceVersion"] = json!("forged");
    store.put(forged);
    first.ended().await;
    assert_eq!(
        first.fence.permit(WriteKind::Record).unwrap_err(),
        FenceClosed::Closed
    );
}

#[tokio::test]
async fn what_others_keep_on_the_lease_is_written_back() {
    let store = Store::of("haulout");
    store.put(json!({
        "metadata": {"name": "haulout", "namespace": "ops", "resourceVersion": "0", "labels": {"helm": "yes"}},
        "spec": {},
    }));
    let mut first = candidate(&store, "first");
    let leadership = first.leads().await;
    assert_eq!(store.lease()["metadata"]["labels"], json!({"helm": "yes"}));
    assert_eq!(leadership.epoch, 7_000);
    let puts = first.log.lines().iter().filter(|line| *line == PUT).count();
    assert!(puts >= 1 && !first.log.lines().contains(&POST.to_owned()));
}

impl Running {
    /// Waits until the status is as `is` wants it.
    async fn until(&mut self, is: impl Fn(&ElectionStatus) -> bool) -> ElectionStatus {
        let reached = self.status.wait_for(|status| is(status));
        let status = tokio::time::timeout(Duration::from_secs(20), reached).await;
        status.unwrap().unwrap().clone()
    }

    async fn yields(&mut self, yields: bool) {
        self.until(|status| {
            status
                .leadership
                .is_some_and(|leadership| leadership.yields == yields)
        })
        .await;
    }
}

async fn until(is: impl Fn() -> bool) {
    let waiting = async {
        while !is() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .unwrap();
}

fn annotation(store: &Store) -> Value {
    store.lease()["metadata"]["annotations"][YIELDS].clone()
}

#[tokio::test]
async fn leader_that_cannot_work_yields_and_begins_nothing() {
    let store = Store::of("haulout");
    store.put(json!({
        "metadata": {"name": "haulout", "namespace": "ops", "resourceVersion": "0", "annotations": {"of": "somebody"}},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": "1970-01-01T00:00:00.000000Z"},
    }));
    let mut leader = candidate_by(&store, "leader", SLOW);
    leader.leads().await;
    assert!(leader.fence.permit(WriteKind::Effect).is_ok());
    leader.can_work.send_replace(false);
    leader.yields(true).await;
    assert_eq!(annotation(&store), "true");
    for kind in [WriteKind::Record, WriteKind::Effect] {
        assert_eq!(leader.fence.permit(kind).unwrap_err(), FenceClosed::Yielding);
    }
    let renewals = leader.log.count();
    store.silence(true);
    leader.can_work.send_replace(true);
    until(|| leader.log.count() > renewals).await;
    assert_eq!(
        leader.fence.permit(WriteKind::Effect).unwrap_err(),
        FenceClosed::Yielding,
        "that it can work again is not written yet"
    );
    store.silence(false);
    leader.yields(false).await;
    assert_eq!(annotation(&store), Value::Null);
    assert_eq!(store.lease()["metadata"]["annotations"]["of"], "somebody");
    assert!(leader.fence.permit(WriteKind::Effect).is_ok());
}

#[tokio::test]
async fn a_lease_that_is_released_says_no_more_that_its_holder_yields() {
    let store = released();
    let mut leader = candidate_by(&store, "leader", SLOW);
    leader.leads().await;
    leader.can_work.send_replace(false);
    leader.yields(true).await;
    leader.stop.cancel();
    leader.ended().await;
    assert_eq!(store.lease()["spec"]["holderIdentity"], "");
    assert_eq!(annotation(&store), Value::Null);
}

#[tokio::test]
async fn fence_is_paused_before_the_lease_yields() {
    let store = Store::of("haulout");
    let mut leader = candidate(&store, "leader");
    leader.leads().await;
    let (fence, sent) = (leader.fence.clone(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&sent);
    store.on_write(move |lease| {
        if lease["metadata"]["annotations"][YIELDS] == "true" {
            seen.lock().unwrap().push(fence.permit(WriteKind::Record).err());
        }
    });
    leader.can_work.send_replace(false);
    leader.yields(true).await;
    let sent = sent.lock().unwrap().clone();
    assert!(!sent.is_empty());
    assert!(
        sent.iter().all(|shut| *shut == Some(FenceClosed::Yielding)),
        "{sent:?}"
    );
}

#[tokio::test]
async fn a_standby_that_can_work_follows_a_leader_that_cannot() {
    let store = Store::of("haulout");
    let mut first = candidate(&store, "first");
    let led = first.leads().await;
    let mut second = candidate(&store, "second");
    second.can_work.send_replace(false);
    second.until(|status| status.leader.is_some()).await;
    first.can_work.send_replace(false);
    first.yields(true).await;
    let looks = second.log.count();
    until(|| second.log.count() >= looks + 3).await;
    assert_eq!(
        store.lease()["spec"]["holderIdentity"],
        "first",
        "nobody can work"
    );
    second.can_work.send_replace(true);
    let leadership = second.leads().await;
    assert_eq!(leadership.epoch, led.epoch + 1);
    assert!(leadership.quarantine > FAST.lease - FAST.retry, "{leadership:?}");
    assert_eq!(annotation(&store), Value::Null);
    first.ended().await;
    assert_eq!(
        first.fence.permit(WriteKind::Record).unwrap_err(),
        FenceClosed::Closed
    );
}

#[tokio::test]
async fn a_lease_deleted_under_a_leader_gives_the_next_one_another_epoch() {
    let store = Store::of("haulout");
    store.put(json!({
        "metadata": {"name": "haulout", "namespace": "ops", "resourceVersion": "0"},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": "1970-01-01T00:00:00.000000Z"},
    }));
    let mut first = candidate_by(&store, "first", SLOW);
    assert_eq!(first.leads().await.epoch, 1);
    drop(first);
    store.delete();
    let mut second = candidate(&store, "second");
    assert_eq!(second.leads().await.epoch, 7_000);
}

#[test]
fn an_epoch_fits_the_api_whatever_the_clock_says() {
    let at = |second| new_epoch(Timestamp::from_second(second).unwrap());
    assert_eq!(at(EPOCHS_BEGIN + 5), 5);
    assert_eq!(at(0), 2);
    assert_eq!(at(EPOCHS_BEGIN), 2);
    assert_eq!(at(200_000_000_000), election::TRANSITIONS_MAX);
}

#[tokio::test]
async fn a_term_counts_from_the_sending_of_its_renewal() {
    let timing = Timing {
        lease: Duration::from_secs(3),
        renew_deadline: Duration::from_secs(2),
        retry: Duration::from_millis(600),
        yield_after: Duration::from_secs(60),
    };
    let store = Store::of("haulout");
    let written = Arc::new(Mutex::new(None));
    let at = Arc::clone(&written);
    store.on_write(move |_| {
        at.lock().unwrap().get_or_insert_with(Instant::now);
    });
    store.slow_writes(Duration::from_millis(900));
    let mut leader = candidate_by(&store, "leader", timing);
    leader.leads().await;
    store.silence(true);
    leader.ended().await;
    let led = written.lock().unwrap().unwrap().elapsed();
    assert!(
        led < Duration::from_millis(2_500),
        "it led for {led:?} after the last renewal it sent, not for 2 s"
    );
}

fn refused(user: &str) -> LoginNote {
    LoginNote::Write(RefusedLogin {
        at: now(),
        user: user.to_owned(),
    })
}

fn note(store: &Store) -> Value {
    store.lease()["metadata"]["annotations"][LOGIN_REFUSED].clone()
}

#[tokio::test]
async fn refused_login_is_on_the_lease_until_a_login_succeeds() {
    let store = Store::of("haulout");
    let mut leader = candidate_by(&store, "leader", SLOW);
    leader.leads().await;
    let mut standby = candidate_by(&store, "standby", SLOW);
    standby.until(|status| status.leader.is_some()).await;
    leader.login.send_replace(refused("svc"));
    let status = standby.until(|status| status.refused.is_some()).await;
    assert_eq!(LoginNote::Write(status.refused.unwrap()), refused("svc"));
    leader.login.send_replace(LoginNote::Remove);
    standby.until(|status| status.refused.is_none()).await;
    assert_eq!(note(&store), Value::Null);
}

#[tokio::test]
async fn refused_login_is_written_at_once_and_not_with_the_next_renewal() {
    let timing = Timing {
        lease: Duration::from_secs(60),
        renew_deadline: Duration::from_secs(40),
        retry: Duration::from_secs(12),
        ..FAST
    };
    let store = Store::of("haulout");
    let mut leader = candidate_by(&store, "leader", timing);
    leader.leads().await;
    let sent = Instant::now();
    leader.login.send_replace(refused("svc"));
    until(|| note(&store).is_string()).await;
    assert!(sent.elapsed() < timing.retry / 2, "{:?}", sent.elapsed());
}

#[tokio::test]
async fn note_of_a_refused_login_outlives_its_writer() {
    let store = released();
    let mut first = candidate_by(&store, "first", SLOW);
    first.leads().await;
    first.login.send_replace(refused("svc"));
    first.stop.cancel();
    first.ended().await;
    assert!(note(&store).is_string(), "{}", store.lease());

    let mut second = candidate_by(&store, "second", SLOW);
    second.leads().await;
    let status = second.status.borrow().clone();
    assert_eq!(LoginNote::Write(status.refused.unwrap()), refused("svc"));
    assert!(note(&store).is_string(), "it has not logged in yet");
}
