//! Value parsers for clap. Each returns the value, or what is expected.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use secrecy::SecretString;

use super::{Limit, VmotionGrace, selector};
use crate::ids::{NAME_BYTES_MAX, is_object_name};
use crate::maintenance::policy::NotPermitted;
use crate::status::TRACE_ID;

/// Limit of a release name, which is part of each record. Namespace and name of a Lease are shorter.
const RELEASE_CHARS_MAX: usize = 400;

pub(super) fn text(text: &str) -> Result<String, Infallible> {
    Ok(text.trim().to_owned())
}

pub(super) fn path(text: &str) -> Result<PathBuf, Infallible> {
    Ok(PathBuf::from(text.trim()))
}

/// A secret, hidden from `Debug`. Spaces may be part of it.
pub(super) fn secret(text: &str) -> Result<SecretString, Infallible> {
    Ok(SecretString::from(text))
}

/// A number from `min` to `max`.
fn within<T: FromStr + PartialOrd>(text: &str, min: T, max: T) -> Option<T> {
    let number = text.trim().parse().ok();
    number.filter(|number| (min..=max).contains(number))
}

/// A duration in whole seconds.
fn seconds_from(min: u64, max: u64) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let expected = || format!("a whole number of seconds from {min} to {max} is expected");
        within(text, min, max)
            .map(Duration::from_secs)
            .ok_or_else(expected)
    }
}

/// A duration in whole seconds, at least one.
pub(crate) fn seconds(max: u64) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    seconds_from(1, max)
}

/// A duration in whole seconds, which may be zero.
pub(super) fn seconds_or_none(max: u64) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    seconds_from(0, max)
}

pub(super) fn fraction(min: f64, max: f64) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let expected = || format!("{min} to {max} seconds are expected");
        within(text, min, max)
            .map(Duration::from_secs_f64)
            .ok_or_else(expected)
    }
}

pub(super) fn count(
    things: &'static str,
    min: u32,
    max: u32,
) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| within(text, min, max).ok_or_else(|| format!("{min} to {max} {things} are expected"))
}

/// A boolean in the spellings of charts, shells and people.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text.trim().to_lowercase().as_str() {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err("true or false is expected (or 1, 0, yes, no)".to_owned()),
    }
}

pub(super) fn max_unavailable(text: &str) -> Result<Limit, String> {
    let expected = "1 to 10000 or 1% to 100% is expected, or unlimited";
    text.trim().parse().map_err(|_| expected.to_owned())
}

/// One of the values of an enum, by its name. The case counts only for an argument without `ignore_case`.
pub(super) fn one_of<T: Copy + Send + Sync>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(all.iter().map(|value| name(*value)));
    names.try_map(move |given| {
        let named = |value: &&T| name(**value).eq_ignore_ascii_case(&given);
        all.iter().find(named).copied().ok_or(NotPermitted)
    })
}

pub(super) fn vmotion_grace(text: &str) -> Result<VmotionGrace, String> {
    if text.trim().eq_ignore_ascii_case("unlimited") {
        return Ok(VmotionGrace::Unlimited);
    }
    let limit = seconds_or_none(VmotionGrace::LONGEST.as_secs())(text);
    limit
        .map(VmotionGrace::Limited)
        .map_err(|expected| format!("{expected}, or unlimited"))
}

pub(crate) fn node_label(text: &str) -> Result<String, String> {
    let label = text.trim();
    if selector::is_selector(label) {
        Ok(label.to_owned())
    } else {
        Err(
            "a label selector is expected, such as key=value, key, !key or key in (a,b), joined by commas"
                .to_owned(),
        )
    }
}

pub(crate) fn label_key(text: &str) -> Result<String, String> {
    let key = text.trim();
    // A key alone is a selector, too.
    let is_key = selector::is_selector(key) && !key.contains(['=', '!', ',', ' ', '(']);
    let expected = "the key of a label is expected, such as topology.kubernetes.io/rack";
    is_key.then(|| key.to_owned()).ok_or_else(|| expected.to_owned())
}

/// The name of a Kubernetes object.
pub(crate) fn object_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    let expected = || {
        format!("a name of 1 to {NAME_BYTES_MAX} lower-case letters, digits, hyphens and dots is expected")
    };
    is_object_name(name).then(|| name.to_owned()).ok_or_else(expected)
}

/// A release name as in records: built from namespace and name of the Lease.
pub(crate) fn release(text: &str) -> Result<String, String> {
    let name = text.trim();
    if name.split('/').all(is_object_name) && name.len() <= RELEASE_CHARS_MAX {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "names of lower-case letters, digits, hyphens and dots are expected, with slashes between them, in at most \
             {RELEASE_CHARS_MAX} characters"
        ))
    }
}

pub(super) fn trace_ui(text: &str) -> Result<String, String> {
    let template = text.trim();
    let is_address = template.starts_with("https://") || template.starts_with("http://");
    if is_address && template.contains(TRACE_ID) {
        Ok(template.to_owned())
    } else {
        Err(format!(
            "an http or https address with {TRACE_ID} in it is expected"
        ))
    }
}
