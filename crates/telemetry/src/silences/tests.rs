use std::sync::{Arc, Mutex};

use haulout_core::fixtures::{self, at, name};
use jiff::SignedDuration;

use super::plan::SilenceStatus;
use super::*;
use crate::silences::matchers::LabelMatcher;
use haulout_core::maintenance::episode::Phase;
use haulout_core::maintenance::observed::HostState;
use haulout_core::status::NodeStatus;

const LASTS: i64 = 1800;

fn rules() -> SilenceRules {
    let matchers: crate::silences::matchers::LabelMatchers = r#"cluster="east""#.parse().unwrap();
    SilenceRules {
        created_by: "Haulout ns/haulout".to_owned(),
        node_label: "node".to_owned(),
        matchers: matchers.0,
        lasts: Duration::from_secs(1800),
    }
}

fn episode(id: &str) -> SilentEpisode {
    SilentEpisode {
        id: EpisodeId::new(id),
        host: "esx1".to_owned(),
    }
}

fn nodes(of_one: Option<SilentEpisode>) -> SilentNodes {
    [(name(1), of_one), (name(2), None)].into()
}

/// What Alertmanager 0.25 does, as far as Haulout relies on it.
#[derive(Clone, Debug, Default)]
struct StandIn {
    silences: Vec<FoundSilence>,
    made: usize,
}

impl StandIn {
    fn post(&mut self, posted: &PostedSilence, now: Timestamp) {
        assert!(posted.ends_at > now, "it refuses an end in the past");
        let before = self
            .silences
            .iter_mut()
            .find(|it| Some(&it.id) == posted.id.as_ref());
        if let Some(before) = before.filter(|it| {
            it.matchers == posted.matchers && it.starts_at == posted.starts_at && it.status.state == "active"
        }) {
            before.ends_at = posted.ends_at;
            before.comment.clone_from(&posted.comment);
            return;
        }
        assert_eq!(posted.id, None, "a renewal would be another silence");
        self.made += 1;
        self.silences.push(FoundSilence {
            id: format!("0000-{}", self.made),
            status: state("active"),
            matchers: posted.matchers.clone(),
            starts_at: posted.starts_at.max(now),
            ends_at: posted.ends_at,
            created_by: posted.created_by.clone(),
            comment: posted.comment.clone(),
        });
    }

    fn end(&mut self, id: &str, now: Timestamp) {
        let ended = self.silences.iter_mut().find(|it| it.id == id).unwrap();
        assert_eq!(ended.status.state, "active", "{id} is ended once");
        (ended.ends_at, ended.status) = (now + SignedDuration::from_millis(123), state("expired"));
    }

    fn pass(&mut self, now: Timestamp) {
        for silence in self.silences.iter_mut().filter(|it| it.ends_at <= now) {
            silence.status = state("expired");
        }
    }

    /// Looks once, and returns how many were made or renewed, and how many were ended.
    fn reconcile(&mut self, nodes: &SilentNodes, now: Timestamp) -> (usize, usize) {
        self.pass(now);
        let calls = rules().calls(nodes, &self.silences, now);
        let mut counts = (0, 0);
        for call in calls {
            match call {
                SilenceCall::Post(posted) => {
                    self.post(&posted, now);
                    counts.0 += 1;
                }
                SilenceCall::Delete { id, .. } => {
                    self.end(&id, now);
                    counts.1 += 1;
                }
            }
        }
        counts
    }

    fn active(&self) -> Vec<&FoundSilence> {
        self.silences
            .iter()
            .filter(|it| it.status.state == "active")
            .collect()
    }
}

fn state(state: &str) -> SilenceStatus {
    SilenceStatus {
        state: state.to_owned(),
    }
}

/// A silence as Haulout makes it.
fn of_ours(id: &str, node: usize, of: &str, ends: Timestamp) -> FoundSilence {
    let all: SilentNodes = [(name(node), Some(episode(of)))].into();
    let calls = rules().calls(&all, &[], at(0));
    let Some(SilenceCall::Post(posted)) = calls.into_iter().next() else {
        panic!("a silence is made");
    };
    FoundSilence {
        id: id.to_owned(),
        status: state("active"),
        matchers: posted.matchers,
        starts_at: at(0),
        ends_at: ends,
        created_by: posted.created_by,
        comment: posted.comment,
    }
}

#[test]
fn silence_lasts_as_long_as_its_episode() {
    let mut alertmanager = StandIn::default();
    let mut now = at(0);
    assert_eq!(alertmanager.reconcile(&nodes(None), now), (0, 0));
    assert_eq!(alertmanager.reconcile(&nodes(Some(episode("e1"))), now), (1, 0));
    let made = alertmanager.active()[0].clone();
    assert_eq!(
        made.matchers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            r#"node="gpu-1""#,
            r#"alertname!~"Haulout.*""#,
            r#"cluster="east""#
        ]
    );
    assert_eq!(made.comment, "Maintenance of node gpu-1 on host esx1, episode e1");
    for _ in 0..50 {
        now += SignedDuration::from_secs(LASTS / 3);
        assert_eq!(
            alertmanager.reconcile(&nodes(Some(episode("e1"))), now),
            (1, 0),
            "it is renewed"
        );
        assert_eq!(
            alertmanager.reconcile(&nodes(Some(episode("e1"))), now),
            (0, 0),
            "once"
        );
        assert_eq!(alertmanager.active().len(), 1);
        assert_eq!(alertmanager.active()[0].id, made.id, "it stays the same silence");
    }
    // An end in the same second.
    assert_eq!(alertmanager.reconcile(&nodes(None), now), (0, 1));
    assert_eq!(alertmanager.active().len(), 0);
    assert_eq!(alertmanager.reconcile(&nodes(None), now), (0, 0));
}

#[test]
fn silences_follow_the_episodes_whatever_alertmanager_has() {
    let (long, short) = (at(LASTS), at(300));
    let hand = at(5) + SignedDuration::from_millis(7);
    let over = |silence: FoundSilence| FoundSilence {
        status: state("expired"),
        ..silence
    };
    let of_others = [
        FoundSilence {
            created_by: "a person".to_owned(),
            ..of_ours("person", 1, "e1", long)
        },
        FoundSilence {
            created_by: "Haulout other/haulout".to_owned(),
            ..of_ours("release", 1, "e1", long)
        },
        FoundSilence {
            matchers: of_ours("", 1, "e1", long).matchers[..2].to_vec(),
            ..of_ours("cluster", 1, "e1", long)
        },
        of_ours("elsewhere", 7, "e1", long),
        FoundSilence {
            id: "../alerts".to_owned(),
            ..of_ours("", 1, "e1", long)
        },
    ];
    // What it may have of ours, and whether a person has ended it for e1.
    let cases = [
        (Vec::new(), false),
        (vec![of_ours("a", 1, "e1", long)], false),
        (vec![of_ours("a", 1, "e1", short)], false),
        (vec![of_ours("a", 1, "e0", long)], false),
        (
            vec![of_ours("a", 1, "e1", long), of_ours("b", 1, "e1", short)],
            false,
        ),
        (
            vec![of_ours("a", 1, "e0", long), of_ours("b", 1, "e1", short)],
            false,
        ),
        (vec![over(of_ours("a", 1, "e1", at(9)))], false),
        (vec![over(of_ours("a", 1, "e1", hand))], true),
        (vec![over(of_ours("a", 1, "e0", hand))], false),
        (
            vec![over(of_ours("a", 1, "e1", hand)), of_ours("b", 1, "e1", long)],
            false,
        ),
        (vec![of_ours("a", 2, "e1", long)], false),
    ];
    for (ours, is_ended_by_hand) in cases {
        for wanted in [None, Some("e1"), Some("e2")] {
            let mut alertmanager = StandIn {
                silences: ours.iter().chain(&of_others).cloned().collect(),
                made: 0,
            };
            let what = format!(
                "{wanted:?} with {:?}",
                ours.iter().map(|it| &it.comment).collect::<Vec<_>>()
            );
            let wanted = wanted.map(episode);
            alertmanager.reconcile(&nodes(wanted.clone()), at(10));
            let others = |it: &&FoundSilence| !of_others.contains(it);
            let active: Vec<&FoundSilence> = alertmanager.active().into_iter().filter(others).collect();
            let is_silent = wanted
                .as_ref()
                .is_some_and(|it| !(is_ended_by_hand && it.id.as_str() == "e1"));
            assert_eq!(active.len(), usize::from(is_silent), "{what}: {active:?}");
            for silence in active {
                let id = wanted.as_ref().unwrap().id.as_str();
                assert!(
                    silence.comment.ends_with(&format!("episode {id}")),
                    "{what}: {silence:?}"
                );
                assert!(
                    silence.ends_at >= at(LASTS - LASTS / 3),
                    "{what}: it is renewed in time"
                );
            }
            for silence in &of_others {
                assert!(
                    alertmanager.silences.contains(silence),
                    "{what}: {silence:?} is of others"
                );
            }
            assert_eq!(
                alertmanager.reconcile(&nodes(wanted), at(10)),
                (0, 0),
                "{what}: nothing is left to do"
            );
        }
    }
}

#[test]
fn queued_node_keeps_its_alerts() {
    for (phase, is_silent) in [
        (Phase::Queued, false),
        (Phase::Draining, true),
        (Phase::AwaitingHost, true),
        (Phase::Rejoining, true),
    ] {
        let record = Record::Episode(Arc::new(fixtures::episode(phase, 1)));
        assert_eq!(silent(&record).is_some(), is_silent, "{record:?}");
    }
    assert_eq!(silent(&Record::InService), None);
}

fn statuses(record: &Record) -> NodeStatuses {
    let snapshot = fixtures::snapshot(record.clone(), HostState::InService);
    [(name(1), Arc::new(NodeStatus::of(&snapshot)))].into()
}

#[test]
fn nothing_is_known_before_the_first_complete_set() {
    let board = SilenceBoard::default();
    let is_known = || board.0.borrow().is_some();
    board.update_statuses(&statuses(&Record::InService), false);
    assert!(!is_known());
    board.update_statuses(&statuses(&Record::InService), true);
    assert!(is_known());
    let mut changes = board.0.subscribe();
    changes.mark_unchanged();
    board.update_statuses(&statuses(&Record::InService), false);
    assert!(!changes.has_changed().unwrap(), "the same");
    let away = Record::Episode(Arc::new(fixtures::episode(Phase::Draining, 1)));
    board.update_statuses(&statuses(&away), false);
    assert!(changes.has_changed().unwrap());
}

#[test]
fn silence_of_a_record_that_cannot_be_read_is_left_alone() {
    let board = SilenceBoard::default();
    let unreadable = Record::Unreadable {
        why: "a defect".to_owned(),
    };
    board.update_statuses(&statuses(&unreadable), true);
    assert_eq!(*board.0.borrow(), Some(SilentNodes::new()));
}

/// Fails as often as it is told, and keeps when it was asked.
#[derive(Clone, Debug, Default)]
struct Failing {
    failures: Arc<Mutex<usize>>,
    asked: Arc<Mutex<Vec<tokio::time::Instant>>>,
}

impl AlertmanagerApi for Failing {
    async fn silences(&self) -> Result<Vec<FoundSilence>, AlertmanagerError> {
        self.asked.lock().unwrap().push(tokio::time::Instant::now());
        let mut left = self.failures.lock().unwrap();
        if *left == 0 {
            return Ok(Vec::new());
        }
        *left -= 1;
        Err(AlertmanagerError::Connection("refused".to_owned()))
    }

    async fn post(&self, _: &PostedSilence) -> Result<(), AlertmanagerError> {
        Ok(())
    }

    async fn delete(&self, _: &str) -> Result<(), AlertmanagerError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn failure_is_retried_with_growing_pauses_and_counted() {
    let (api, board, stop) = (
        Failing::default(),
        SilenceBoard::default(),
        CancellationToken::new(),
    );
    *api.failures.lock().unwrap() = 9;
    let failed = Counter::default();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(run(
        api.clone(),
        rules(),
        board.clone(),
        || at(0),
        failed.clone(),
        stop.clone(),
    ));
    board.0.send_replace(Some(nodes(Some(episode("e1")))));
    sleep(Duration::from_secs(1000)).await;
    let asked = api.asked.lock().unwrap().clone();
    let pauses: Vec<u64> = asked.windows(2).map(|two| (two[1] - two[0]).as_secs()).collect();
    assert_eq!(pauses[..10], [1, 2, 4, 8, 16, 32, 60, 60, 60, 600]);
    assert_eq!(failed.get(), 9);
    // Without a silence there is nothing to renew.
    board.0.send_replace(Some(nodes(None)));
    sleep(Duration::from_secs(10)).await;
    let count = api.asked.lock().unwrap().len();
    sleep(Duration::from_secs(10_000)).await;
    assert_eq!(api.asked.lock().unwrap().len(), count);
    stop.cancel();
    tasks.join_next().await.unwrap().unwrap();
}

#[test]
fn answer_of_alertmanager_is_read() {
    // Of Alertmanager 0.25, shortened; and of one before 0.22.
    let text = r#"[
        {"id":"8e9d3c1e-5c2b-4f3a-9d55-0a5b6f7c8d9e","status":{"state":"active"},"updatedAt":"2026-11-26T03:24:00.000Z",
         "comment":"c","createdBy":"Haulout ns/haulout","endsAt":"2026-11-26T03:54:00.000Z",
         "matchers":[{"isEqual":false,"isRegex":true,"name":"alertname","value":"Haulout.*"}],"startsAt":"2026-11-26T03:24:00.123Z"}]"#;
    let found: Vec<FoundSilence> = serde_json::from_str(text).unwrap();
    assert_eq!(found[0].matchers[0].to_string(), r#"alertname!~"Haulout.*""#);
    let old: LabelMatcher = serde_json::from_str(r#"{"isRegex":false,"name":"a","value":"b"}"#).unwrap();
    assert!(old.is_equal);
}
