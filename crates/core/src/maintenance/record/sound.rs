//! What a record must be to be taken for one of ours. A kubelet may write its own Node, and people edit annotations: a record is
//! input, and is checked like any other.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::ids::{NAME_BYTES_MAX, is_name, is_object_name, is_traceparent_of};
use crate::maintenance::clock::{Elapsed, Timer};
use crate::maintenance::episode::{Episode, HostMark, MAX_REFUSALS};

/// The longest text that is kept, in characters. Ours are cut at a few hundred.
const MAX_TEXT: usize = 4096;

/// The years between which all times lie, in seconds of the Unix epoch: 2000 and 2200. Time is added to them, and a time near the
/// end of what can be told would be shown wrong.
const YEARS: (i64, i64) = (946_684_800, 7_258_118_400);

/// The longest that anything lasts: ten years.
const MAX_ELAPSED: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The most GPU resources that a Node has. There are a few, and some with MIG profiles.
const MAX_RESOURCES: usize = 64;

/// The highest number of writes and of leaderships that is believed: neither can be reached, and both are counted up from here.
const MAX_COUNT: u64 = 1 << 53;

/// Cuts long texts and takes control characters out of all of them: they end up on terminals.
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

/// Says what is wrong with an episode that reads well.
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
    let requests = [episode.trigger.request.as_ref(), episode.kept_off_by.as_ref()];
    for request in requests.into_iter().flatten() {
        if !is_object_name(&request.name) {
            return Err("a request has a name that no object has".to_owned());
        }
    }
    for (what, at) in times(episode) {
        if !(YEARS.0..YEARS.1).contains(&at.as_second()) {
            return Err(format!(
                "the time {what} is {at}, which is not between 2000 and 2200"
            ));
        }
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
    if episode.refusals.len() > MAX_REFUSALS {
        return Err(format!("more than {MAX_REFUSALS} hosts have refused the VM"));
    }
    if episode.revision > MAX_COUNT || episode.epoch > MAX_COUNT {
        return Err("it was written more often than can be".to_owned());
    }
    Ok(())
}

fn host_is_sound(host: &HostMark) -> Result<(), String> {
    if host.name.is_empty() || !is_name(&host.name) {
        return Err("a host has a name that no host has".to_owned());
    }
    Ok(())
}

fn timers(episode: &Episode) -> impl Iterator<Item = &Timer> {
    let in_flight = &episode.in_flight;
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
    let requested = timers(episode).map(|timer| ("of a request to vCenter", timer.since));
    let earlier = episode.in_flight.earlier_guest_shutdown;
    let earlier = earlier.map(|at| ("of a request to vCenter", at));
    own.into_iter()
        .chain(resumed)
        .chain(requested)
        .chain(earlier)
        .collect()
}

fn spans(episode: &Episode) -> Vec<(&'static str, Elapsed)> {
    let own = [("the phase", episode.elapsed), ("the drain", episode.drained_for)];
    let requested = timers(episode).map(|timer| ("a request to vCenter", timer.elapsed));
    own.into_iter().chain(requested).collect()
}
