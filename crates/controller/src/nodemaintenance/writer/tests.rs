use haulout_kubernetes::stand_in::{refusal, server};
use serde_json::{Value, json};

use super::*;
use crate::board::NodeBoard;
use crate::nodemaintenance::due_write::status_of;
use crate::nodemaintenance::kind::NodeMaintenanceStatus;
use crate::nodemaintenance::stored;
use haulout_kubernetes::update::NodeMaintenanceRole;

/// What the write of `wanted` to a new object demands of the object, in the metadata of its patch.
async fn demands(wanted: NodeMaintenanceStatus) -> Value {
    let role = NodeMaintenanceRole::Episode { record: None };
    let object = stored::created("gpu1-0", "gpu1", jiff::Timestamp::UNIX_EPOCH, role);
    let (client, log) = server(|_| refusal(409, "Conflict", "the object has been modified", Value::Null));
    let permit = WriteFence::without_election().permit(WriteKind::Record).unwrap();
    let clock = || jiff::Timestamp::UNIX_EPOCH;
    let objects = StatusReconciler::new("gpu=true".to_owned(), None, 2, NodeBoard::new(clock), clock);
    let (out, _updates) = mpsc::channel(1);
    let write = status_of(&object, &wanted).unwrap();
    let written = perform(&permit, &client, &objects, &out, write).await;
    assert!(matches!(written, Err(WriteError::Refused { .. })), "{written:?}");
    log.all()[0].body["metadata"].clone()
}

#[tokio::test]
async fn late_write_does_not_replace_a_newer_record() {
    let record = NodeMaintenanceStatus {
        record: Some("{}".to_owned()),
        ..NodeMaintenanceStatus::default()
    };
    assert_eq!(demands(record).await, json!({ "resourceVersion": "1" }));
    let progress = NodeMaintenanceStatus {
        state: Some("Draining".to_owned()),
        ..NodeMaintenanceStatus::default()
    };
    assert_eq!(demands(progress).await, json!({ "uid": "uid-of-gpu1-0" }));
}

fn refused(name: &str) -> WriteError {
    WriteError::Refused {
        name: name.to_owned(),
        message: "refused by admission".to_owned(),
    }
}

fn unreachable(name: &str) -> WriteError {
    WriteError::Unreachable {
        name: name.to_owned(),
        message: "no answer within 10 s".to_owned(),
    }
}

/// Tries to write five objects, with this answer to each; gives the names that were tried, and how the pass went.
fn tried(
    memory: &mut RefusedWrites,
    answer: impl Fn(&str) -> Option<Result<(), WriteError>>,
) -> (String, Pass) {
    let (mut tried, mut pass) = (String::new(), Pass::default());
    for name in ["a", "b", "c", "d", "e"] {
        tried.push_str(name);
        if pass.add_result(name.to_owned(), answer(name), memory).is_break() {
            break;
        }
    }
    (tried, pass)
}

#[tokio::test(start_paused = true)]
async fn a_refused_object_delays_no_other() {
    let mut memory = RefusedWrites::default();
    let (names, pass) = tried(&mut memory, |name| {
        Some(if name == "a" { Err(refused("a")) } else { Ok(()) })
    });
    assert_eq!(names, "abcde");
    assert_eq!((pass.refused, pass.is_cut_short), (1, false));
    let now = Instant::now();
    assert!(memory.is_held("a", now) && !memory.is_held("b", now));
}

#[tokio::test(start_paused = true)]
async fn a_kube_apiserver_that_does_not_answer_is_not_asked_about_every_object() {
    let mut memory = RefusedWrites::default();
    let (names, pass) = tried(&mut memory, |name| Some(Err(unreachable(name))));
    assert_eq!(names, "abc");
    assert_eq!((pass.refused, pass.is_cut_short), (3, true));
    let (names, pass) = tried(&mut memory, |name| {
        Some(if name == "b" {
            Ok(())
        } else {
            Err(unreachable(name))
        })
    });
    assert_eq!(names, "abcde", "one that was answered shows that it is there");
    assert_eq!((pass.refused, pass.is_cut_short), (4, true));
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_may_not_write_tries_nothing_more() {
    let mut memory = RefusedWrites::default();
    let (names, pass) = tried(&mut memory, |_| None);
    assert_eq!(names, "a");
    assert_eq!((pass.refused, pass.is_cut_short), (0, true));
}
