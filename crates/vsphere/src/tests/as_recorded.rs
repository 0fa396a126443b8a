//! Captures of what public recordings of vCenter 5.5 to 9.0.1 show and the lab's vCenter does not send by itself.

use std::collections::BTreeSet;

use super::captures::capture;
use crate::fault::FaultKind;
use crate::fuzz::recording;
use crate::property::{Change, Page, UpdateSet, is_of_dead_session, read_page, read_update_set};
use crate::session::{choose_version, read_content};
use crate::soap::{self, SoapAnswer, read_answer};
use crate::task;
use crate::updates::property_cache::PropertyCache;
use haulout_core::ids::VmRef;

fn set(bytes: &[u8]) -> UpdateSet {
    match read_answer("WaitForUpdatesEx", bytes, read_update_set).unwrap() {
        SoapAnswer::Returned(set) => set.unwrap(),
        SoapAnswer::Fault { fault, .. } => panic!("{fault}"),
    }
}

fn page(bytes: &[u8]) -> Page {
    match read_answer("RetrievePropertiesEx", bytes, read_page).unwrap() {
        SoapAnswer::Returned(page) => page,
        SoapAnswer::Fault { fault, .. } => panic!("{fault}"),
    }
}

#[test]
fn version_that_is_not_dotted_is_passed_over() {
    assert_eq!(choose_version(capture!("versions-undotted")).unwrap(), "8.0.1.0");
}

#[test]
fn set_in_parts_is_complete_with_the_last_one() {
    let parts = [
        capture!("parts-first"),
        capture!("parts-second"),
        capture!("parts-last"),
    ]
    .map(set);
    let about = parts.iter().map(|part| (part.version.as_str(), part.truncated));
    assert_eq!(
        about.collect::<Vec<_>>(),
        [("0_1", true), ("0_2", true), ("1", false)]
    );
    let mut cache = PropertyCache::default();
    let count = parts.iter().map(|part| part.changes.len()).sum::<usize>();
    for part in parts {
        cache.apply(part.changes);
    }
    assert_eq!(
        (cache.take_updates().len(), count),
        (5, 5),
        "no object is in two parts"
    );
}

#[test]
fn withheld_task_names_privilege_and_object() {
    let set = set(capture!("task-withheld"));
    let [Change::Upsert(withheld)] = set.changes.as_slice() else {
        panic!("{:?}", set.changes);
    };
    let fault = task::withheld(withheld).unwrap();
    assert_eq!(fault.kind, FaultKind::NoPermission);
    assert_eq!(fault.message, "[privilege System.Read] [on group-d1]");
}

#[test]
fn rows_of_tasks_that_never_end_start_nothing() {
    let mut cache = PropertyCache::default();
    cache.set_ours([VmRef::new("vm-21")].into());
    cache.apply(set(capture!("parts-first")).changes);
    cache.take_updates();
    for _ in 0..2 {
        cache.apply(set(capture!("history-stale")).changes);
        assert_eq!(cache.take_updates(), []);
        assert_eq!(cache.followed().count(), 0);
    }
    let claimed: BTreeSet<String> = cache
        .take_tasks_to_read()
        .claimed
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(claimed, ["task-412", "task-413"].map(str::to_owned).into());
}

#[test]
fn type_of_a_fault_may_have_a_prefix_and_a_fault_may_have_none() {
    for (bytes, kind) in [
        (capture!("fault-with-prefix"), FaultKind::InvalidArgument),
        (
            capture!("fault-without-detail"),
            FaultKind::Other("without a type".to_owned()),
        ),
    ] {
        let Ok(SoapAnswer::Fault { fault, .. }) = read_answer("Login", bytes, soap::nothing) else {
            panic!("no fault");
        };
        assert_eq!(fault.kind, kind, "{fault}");
    }
}

/// `SessionManager.defaultLocale` is readable without a session; Haulout reads no such property in its stream.
#[test]
fn dead_session_shows_by_the_objects_that_are_read() {
    let mut objects = page(capture!("dead-session-partly")).objects;
    assert!(!is_of_dead_session(&objects));
    objects.retain(|object| object.moref.host().is_some());
    assert!(is_of_dead_session(&objects));
}

#[test]
fn reply_outside_of_vim25_is_refused() {
    let answer = read_answer(
        "RetrieveServiceContent",
        capture!("service-content-vim2"),
        read_content,
    );
    let error = answer.unwrap_err().to_string();
    assert!(error.contains("urn:vim25"), "{error}");
}

/// `make recordings` says of each capture what was read of it.
#[test]
fn recording_is_read_as_a_whole_or_says_what_is_missing() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto-notes/captures");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let reply = recording(&std::fs::read(&path).unwrap());
        assert_eq!(reply.unread, [""; 0], "{}: {reply:?}", path.display());
        assert!(
            !reply.what.is_empty() && !reply.read.is_empty(),
            "{}",
            path.display()
        );
    }
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let parts = text(capture!("parts-first"));
    let page = text(capture!("history-stale"));
    for (case, body, unread) in [
        ("cut", &parts[..parts.len() - 40], "in the middle"),
        ("no XML", "Service Unavailable", ""),
        (
            "no version",
            &parts.replace("<version>0_1</version>", ""),
            "UpdateSet.version",
        ),
        (
            "a kind that is not known",
            &parts.replacen("enter", "arrive", 1),
            "ObjectUpdate.kind",
        ),
        (
            "a row without a state",
            &page.replacen("<state>queued</state>", "", 1),
            "TaskInfo.state",
        ),
        (
            "a long value",
            &parts.replacen("esx-11", &"x".repeat(3 << 19), 1),
            "host-11 name",
        ),
    ] {
        let reply = recording(body.as_bytes());
        assert!(
            reply.unread.iter().any(|line| line.contains(unread)),
            "{case}: {reply:?}"
        );
    }
    let refused = recording(capture!("service-content-vim2"));
    assert_eq!(refused.unread, [""; 0], "no request of ours has such a reply");
    assert!(refused.read.contains("refused"), "{refused:?}");
}
