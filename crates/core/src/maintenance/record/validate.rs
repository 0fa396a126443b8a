//! Validates a record. It is untrusted input: a kubelet may write its own Node, and people edit annotations.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::ids::{NAME_BYTES_MAX, is_name, is_object_name, is_traceparent_of};
use crate::maintenance::clock::{Elapsed, Timer};
use crate::maintenance::episode::{
    DrainLimit, Episode, FinishedPhase, HostIdentity, InFlight, Incident, MAX_FINISHED, MAX_INCIDENTS,
    MAX_REFUSALS, PhaseHistory,
};
use crate::maintenance::placement::MAX_STATIC_DEVICES;
use crate::maintenance::request_identity::RequestIdentity;
use crate::maintenance::volumes::MAX_VOLUMES;

/// The longest text that is kept, in characters.
const MAX_TEXT: usize = 4096;

/// The valid range of times, the years 2000 to 2200, in seconds of the Unix epoch. Durations are added to them without overflow.
const YEARS: (i64, i64) = (946_684_800, 7_258_118_400);

/// The longest valid duration: ten years.
const MAX_ELAPSED: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The maximum number of GPU resources of a Node; MIG profiles have one each.
const MAX_RESOURCES: usize = 64;

/// The highest valid revision and epoch, so that counting up from it cannot overflow.
const MAX_COUNT: u64 = 1 << 53;

/// Cuts long texts and replaces control characters, because texts are shown on terminals.
pub(super) fn clean(value: &mut Value) {
    match value {
        Value::String(text) => {
            if text.chars().any(char::is_control) || text.len() > MAX_TEXT {
                let cleaned = text.chars().take(MAX_TEXT);
                *text = cleaned.map(|c| if c.is_control() { ' ' } else { c }).collect();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(clean),
        Value::Object(fields) => fields.values_mut().for_each(clean),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Checks the values of an episode.
pub(super) fn check(episode: &Episode) -> Result<(), String> {
    let hosts = [
        Some(&episode.host),
        episode.moved_to.as_ref(),
        episode.phase.target(),
    ];
    for host in hosts.into_iter().flatten() {
        host_is_sound(host)?;
    }
    if !is_traceparent_of(&episode.traceparent, &episode.id) {
        return Err(format!("the traceparent is not of the episode {}", episode.id));
    }
    if episode.release.len() > 2 * NAME_BYTES_MAX {
        return Err("the release is no name of a release".to_owned());
    }
    let mut requests = [&episode.trigger.request, &episode.power_off_request]
        .into_iter()
        .flatten();
    if !requests.all(names_an_object) {
        return Err("a request has a name that no object has".to_owned());
    }
    for (what, at) in times(episode) {
        time_is_sound(what, at)?;
    }
    for (what, elapsed) in spans(episode) {
        if elapsed.span() > MAX_ELAPSED {
            return Err(format!("{what} has lasted for more than ten years"));
        }
    }
    let names_resource = |name: &String| name.len() <= 2 * NAME_BYTES_MAX;
    if episode.gpus_before.len() > MAX_RESOURCES || !episode.gpus_before.keys().all(names_resource) {
        return Err("there are more GPU resources than any Node has, or longer names".to_owned());
    }
    if episode.unmatched_gpus.len() > MAX_RESOURCES || !episode.unmatched_gpus.iter().all(names_resource) {
        return Err("it names more GPU resources than any Node has, or longer names".to_owned());
    }
    if episode.refusals.len() > MAX_REFUSALS {
        return Err(format!("more than {MAX_REFUSALS} hosts have refused the VM"));
    }
    let volumes = episode.volumes.as_ref();
    if volumes.is_some_and(|volumes| volumes.left.len() > MAX_VOLUMES) {
        return Err(format!("more than {MAX_VOLUMES} volumes were left"));
    }
    let mut devices = episode.home_devices.iter();
    if devices.len() > MAX_STATIC_DEVICES || !devices.all(|device| is_name(&device.address)) {
        return Err("it has more devices than a VM has, or no addresses of devices".to_owned());
    }
    if !episode.machine_guards.is_sound() {
        return Err("it has guards on more objects than a node has, or on invalid names".to_owned());
    }
    if episode.revision > MAX_COUNT || episode.epoch > MAX_COUNT {
        return Err("it was written more often than can be".to_owned());
    }
    Ok(())
}

fn names_an_object(request: &RequestIdentity) -> bool {
    let namespace = request
        .foreign
        .as_ref()
        .and_then(|origin| origin.namespace.as_ref());
    let mut names = [Some(&request.name), namespace].into_iter().flatten();
    names.all(|name| is_object_name(name))
}

/// Whether a history is valid.
pub(super) fn is_history(history: &PhaseHistory) -> bool {
    let is_time = |at: Timestamp| time_is_sound("", at).is_ok();
    let is_finished = |it: &FinishedPhase| {
        is_name(&it.host)
            && it.phase.target().is_none_or(|to| host_is_sound(to).is_ok())
            && [it.since, it.until].into_iter().all(is_time)
    };
    let is_incident = |it: &Incident| match it {
        Incident::Restarted { at } | Incident::LeaderChanged { at, .. } => is_time(*at),
    };
    history.finished.len() <= MAX_FINISHED
        && history.incidents.len() <= MAX_INCIDENTS
        && history.finished.iter().all(is_finished)
        && history.incidents.iter().all(is_incident)
        && history.writer.is_none_or(is_time)
}

pub(super) fn time_is_sound(what: &str, at: Timestamp) -> Result<(), String> {
    if !(YEARS.0..YEARS.1).contains(&at.as_second()) {
        return Err(format!(
            "the time {what} is {at}, which is not between 2000 and 2200"
        ));
    }
    Ok(())
}

pub(super) fn host_is_sound(host: &HostIdentity) -> Result<(), String> {
    if host.name.is_empty() || !is_name(&host.name) {
        return Err("a host has a name that no host has".to_owned());
    }
    Ok(())
}

fn timers(in_flight: &InFlight) -> impl Iterator<Item = &Timer> {
    [in_flight.guest_shutdown.as_ref(), in_flight.power_off.as_ref()]
        .into_iter()
        .flatten()
}

fn times(episode: &Episode) -> Vec<(&'static str, Timestamp)> {
    let resumed = episode
        .phase
        .parked()
        .map(|(_, since)| ("of the phase to resume", since));
    let own = [
        ("of the click", episode.trigger.clicked_at),
        ("of the beginning", episode.begun_at),
        ("of the phase", episode.since),
    ];
    own.into_iter()
        .chain(resumed)
        .chain(requested(&episode.in_flight))
        .chain(episode.held.map(|held| ("of a hook", held.timer.since)))
        .chain(episode.slices_before.map(|at| ("of a ResourceSlice", at)))
        .collect()
}

pub(super) fn requested(in_flight: &InFlight) -> impl Iterator<Item = (&'static str, Timestamp)> {
    timers(in_flight)
        .map(|timer| timer.since)
        .chain(in_flight.earlier_guest_shutdown)
        .map(|at| ("of a request to vCenter", at))
}

fn spans(episode: &Episode) -> Vec<(&'static str, Elapsed)> {
    let limit = match episode.drain_limit {
        Some(DrainLimit::After(limit)) => limit,
        Some(DrainLimit::Hold) | None => Elapsed::ZERO,
    };
    let own = [
        ("the phase", episode.elapsed),
        ("the drain", episode.drained_for),
        ("the limit of the drain", limit),
        ("the drain timeout", episode.drain_timeout),
        ("the drain until its limit", episode.limited_from),
        ("the time of the guest", episode.guest_timeout),
    ];
    let requested = timers(&episode.in_flight).map(|timer| ("a request to vCenter", timer.elapsed));
    let held = episode.held.map(|held| ("a hook", held.timer.elapsed));
    let volumes = episode.volumes.as_ref();
    let volumes = volumes.map(|volumes| ("the wait for volumes", volumes.waited));
    own.into_iter()
        .chain(requested)
        .chain(held)
        .chain(volumes)
        .collect()
}
