use serde_json::json;

use super::*;
use crate::cluster::lease::stand_in::Store;
use crate::cluster::stand_in::Log;
use crate::gate::{Errand, Shut};

const PUT: &str = "PUT /apis/coordination.k8s.io/v1/namespaces/ops/leases/haulout";
const POST: &str = "POST /apis/coordination.k8s.io/v1/namespaces/ops/leases";

fn settings(identity: &str) -> Settings {
    Settings {
        namespace: "ops".to_owned(),
        name: "haulout".to_owned(),
        identity: identity.to_owned(),
        timing: Timing {
            lease: Duration::from_millis(600),
            renew_deadline: Duration::from_millis(400),
            retry: Duration::from_millis(40),
        },
        clock: || Timestamp::UNIX_EPOCH,
    }
}

struct Running {
    tasks: tokio::task::JoinSet<()>,
    gate: Gate,
    standing: watch::Receiver<Standing>,
    stop: CancellationToken,
    log: Log,
}

fn candidate(store: &Store, identity: &str) -> Running {
    let (client, log) = store.client();
    let gate = Gate::of_a_replica();
    let (sender, standing) = watch::channel(Standing::default());
    let stop = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(run(
        client,
        settings(identity),
        gate.clone(),
        sender,
        stop.clone(),
    ));
    Running {
        tasks,
        gate,
        standing,
        stop,
        log,
    }
}

impl Running {
    async fn leads(&mut self) -> Lead {
        let led = self.standing.wait_for(|standing| standing.lead.is_some());
        let standing = tokio::time::timeout(Duration::from_secs(20), led).await;
        standing.unwrap().unwrap().lead.unwrap()
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
    assert_eq!(first.epoch, 1);
    let holder = store.lease()["spec"]["holderIdentity"].clone();
    let other = if holder == "a" { &mut b } else { &mut a };
    let heard = other.standing.wait_for(|standing| standing.leader.is_some());
    let heard = tokio::time::timeout(Duration::from_secs(20), heard)
        .await
        .unwrap();
    assert_eq!(json!(heard.unwrap().leader), holder);
    assert_eq!(other.gate.pass(Errand::Record).unwrap_err(), Shut::Standby);
}

#[tokio::test]
async fn a_released_lease_is_taken_at_once_and_effects_begin_at_once() {
    let store = Store::of("haulout");
    let mut first = candidate(&store, "first");
    first.leads().await;
    let mut second = candidate(&store, "second");
    first.gate.close();
    first.stop.cancel();
    first.ended().await;
    let lead = second.leads().await;
    assert_eq!((lead.epoch, lead.quarantine), (2, Duration::ZERO));
    assert!(second.gate.pass(Errand::Effect).is_ok());
}

#[tokio::test]
async fn a_lease_is_not_released_while_something_is_under_way() {
    let store = Store::of("haulout");
    // So that effects may begin at once.
    store.put(json!({
        "metadata": {"name": "haulout", "namespace": "ops", "resourceVersion": "0"},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": "1970-01-01T00:00:00.000000Z"},
    }));
    let mut first = candidate(&store, "first");
    first.leads().await;
    let _out = first.gate.pass(Errand::Effect).unwrap();
    first.stop.cancel();
    first.ended().await;
    assert_eq!(store.lease()["spec"]["holderIdentity"], "first");
}

#[tokio::test]
async fn a_leader_that_cannot_renew_shuts_its_gate_and_ends_and_is_followed_after_a_quarantine() {
    let store = Store::of("haulout");
    let mut first = candidate(&store, "first");
    first.leads().await;
    store.silence(true);
    first.ended().await;
    assert_eq!(first.gate.pass(Errand::Record).unwrap_err(), Shut::Closed);
    store.silence(false);
    let mut second = candidate(&store, "second");
    let lead = second.leads().await;
    assert_eq!(lead.epoch, 2);
    assert!(lead.quarantine > Duration::ZERO);
    assert!(second.gate.pass(Errand::Record).is_ok());
    assert_eq!(second.gate.pass(Errand::Effect).unwrap_err(), Shut::Quarantine);
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
    assert_eq!(first.gate.pass(Errand::Record).unwrap_err(), Shut::Closed);
}

#[tokio::test]
async fn what_others_keep_on_the_lease_is_written_back() {
    let store = Store::of("haulout");
    store.put(json!({
        "metadata": {"name": "haulout", "namespace": "ops", "resourceVersion": "0", "labels": {"helm": "yes"}},
        "spec": {},
    }));
    let mut first = candidate(&store, "first");
    let lead = first.leads().await;
    assert_eq!(store.lease()["metadata"]["labels"], json!({"helm": "yes"}));
    assert_eq!(lead.epoch, 1);
    let puts = first.log.lines().iter().filter(|line| *line == PUT).count();
    assert!(puts >= 1 && !first.log.lines().contains(&POST.to_owned()));
}
