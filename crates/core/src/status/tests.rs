use std::collections::BTreeSet;
use std::fmt::{Debug, Display};
use std::str::FromStr;

use super::*;
use crate::ids::{HostRef, RequestUid, VmRef};
use crate::maintenance::clock::Now;
use crate::maintenance::episode::{Episode, HostMark, Phase, Trigger};
use crate::maintenance::observed::{HostState, VmFacts};
use crate::maintenance::request::{Action, RequestMark};
use crate::maintenance::waiting::ParkReason;
use crate::named::UnknownName;

/// Each name is there once, and reads back as its variant.
fn are_names<Kind>(all: &[Kind])
where
    Kind: Copy + Debug + Display + PartialEq + FromStr<Err = UnknownName>,
{
    let names: BTreeSet<String> = all.iter().map(ToString::to_string).collect();
    assert_eq!(names.len(), all.len(), "{all:?}");
    for kind in all {
        assert_eq!(kind.to_string().parse(), Ok(*kind));
        assert_eq!(
            format!("{kind:?}").parse(),
            Ok(*kind),
            "its CamelCase name is read too"
        );
    }
    let unknown = "no such".parse::<Kind>().unwrap_err();
    assert_eq!(unknown.to_string(), "\"no such\" is no such name");
}

#[test]
fn names_are_unique_and_read_back() {
    are_names(PhaseKind::ALL);
    are_names(TriggerKind::ALL);
    are_names(WaitKind::ALL);
    are_names(HostKind::ALL);
    are_names(PodState::ALL);
    are_names(Outcome::ALL);
    are_names(EffectKind::ALL);
}

fn seen(host: HostState) -> Observed {
    let vm = VmFacts {
        on: Some(HostRef::new("host-1")),
        on_name: "esx1".to_owned(),
        host,
        ..VmFacts::unread(VmRef::new("vm-1"))
    };
    Observed::of(None, VmSeen::Found(vm), Now::at(Timestamp::UNIX_EPOCH, 0))
}

fn status(record: Record, seen: Observed) -> NodeStatus {
    NodeStatus::of(&Sight { record, seen })
}

#[test]
fn a_node_is_at_rest_only_while_nothing_is_asked_of_it() {
    let is_at_rest = |seen| status(Record::InService, seen).is_at_rest;
    assert!(is_at_rest(seen(HostState::InService)));
    assert!(is_at_rest(seen(HostState::Unreachable)));
    let request = Request {
        mark: RequestMark {
            name: "drain-1".to_owned(),
            uid: RequestUid::new("uid-1"),
        },
        asked_at: Timestamp::UNIX_EPOCH,
        action: Action::Drain,
        drain_timeout: None,
        drain_timeout_action: None,
        guest_shutdown_timeout: None,
    };
    assert!(!is_at_rest(Observed {
        request: Some(request),
        ..seen(HostState::InService)
    }));
    assert!(!is_at_rest(Observed {
        hearing: Hearing::NoVcenter { why: String::new() },
        ..seen(HostState::InService)
    }));
    assert!(!is_at_rest(Observed {
        vm: VmSeen::NoUuid,
        ..seen(HostState::InService)
    }));
}

#[test]
fn a_parked_node_shows_the_phase_that_it_resumes() {
    let trigger = Trigger {
        task: None,
        clicked_at: Timestamp::UNIX_EPOCH,
        user: None,
        detection: None,
        request: None,
        stray_of: None,
    };
    let host = HostMark {
        moref: None,
        name: "esx1".into(),
    };
    let phase = Phase::Parked {
        reason: ParkReason::VmMissing,
        resume: Box::new(Phase::AwaitingHost),
        resume_since: Timestamp::UNIX_EPOCH,
    };
    let episode = Episode::new(NodeUid::new("uid-1"), trigger, host, phase, Timestamp::UNIX_EPOCH);
    let parked = status(Record::Episode(Arc::new(episode)), seen(HostState::InMaintenance));
    assert_eq!(
        (parked.phase, parked.at_work),
        (PhaseKind::Parked, PhaseKind::AwaitingHost)
    );
    assert!(parked.at_work.vm_is_off());
    assert_eq!(parked.host(), Some(("esx1", HostKind::InMaintenance)));
}
