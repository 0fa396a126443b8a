//! The window in which a request may begin: days, hours and a time zone.
//!
//! A window is open while a clock in its time zone shows one of its hours. Where that clock is set forward over the whole window, it
//! does not open on that day; where it is set back into the window, it opens twice.

use std::fmt;
use std::str::FromStr;

use jiff::civil::{DateTime, Time, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan as _};
use thiserror::Error;

/// The names of the days, from Monday.
pub const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The time zone of a window that names none.
pub const UTC: &str = "UTC";

/// How many days are searched for the next opening: a window of one day that is skipped by daylight saving time opens 14 days
/// after the one before.
const SEARCHED_DAYS: i64 = 15;

/// The maximum number of characters of an invalid value that are shown.
const SHOWN_CHARS: usize = 64;

/// The days and hours in which a request may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The days on which it opens, from Monday.
    days: [bool; 7],
    start: Time,
    /// Before `start`, or equal to it: on the next day.
    end: Time,
    zone: TimeZone,
}

/// What is wrong with a window.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WindowError {
    /// A day has another name.
    #[error("\"{0}\" is not a day: Mon, Tue, Wed, Thu, Fri, Sat or Sun is expected")]
    Day(String),
    /// A time has another form.
    #[error("\"{0}\" is not a time: HH:MM is expected, from 00:00 to 23:59")]
    Time(String),
    /// The time zone is unknown.
    #[error("\"{0}\" is not a time zone that Haulout knows: an IANA name is expected, such as Europe/Berlin")]
    TimeZone(String),
    /// A text is not a window.
    #[error(
        "\"{0}\" is not a window: [DAYS] HH:MM-HH:MM [TIME ZONE] is expected, such as Mon-Fri 22:00-04:00 Europe/Berlin"
    )]
    Form(String),
}

impl Window {
    /// The window with these days, times and time zone. No day means every day.
    ///
    /// # Errors
    /// For a value that is invalid or unknown.
    pub fn new<Day: AsRef<str>>(
        days: &[Day],
        start: &str,
        end: &str,
        time_zone: &str,
    ) -> Result<Self, WindowError> {
        let mut selected = [days.is_empty(); 7];
        for day in days {
            let number = number_of(day.as_ref())?;
            if let Some(day) = selected.get_mut(number) {
                *day = true;
            }
        }
        // The database is compiled in, so no file is read.
        let zone = TimeZone::get(time_zone).ok().filter(|zone| !zone.is_unknown());
        let zone = zone.ok_or_else(|| WindowError::TimeZone(shown(time_zone)))?;
        Ok(Self {
            days: selected,
            start: time(start)?,
            end: time(end)?,
            zone,
        })
    }

    /// The names of its days; none for every day.
    pub fn days(&self) -> Vec<&'static str> {
        if self.is_daily() {
            return Vec::new();
        }
        let selected = DAYS.iter().zip(self.days).filter(|(_, selected)| *selected);
        selected.map(|(name, _)| *name).collect()
    }

    /// When it opens, as `HH:MM`.
    pub fn start(&self) -> String {
        self.start.strftime("%H:%M").to_string()
    }

    /// When it closes, as `HH:MM`.
    pub fn end(&self) -> String {
        self.end.strftime("%H:%M").to_string()
    }

    pub fn time_zone(&self) -> &str {
        self.zone.iana_name().unwrap_or(UTC)
    }

    pub fn is_open(&self, at: Timestamp) -> bool {
        let shown = self.zone.to_datetime(at);
        let is_after_start = shown.time() >= self.start;
        let is_before_end = shown.time() < self.end;
        let today = shown.date().weekday();
        if self.start < self.end {
            self.has(today) && is_after_start && is_before_end
        } else {
            self.has(today) && is_after_start || self.has(today.previous()) && is_before_end
        }
    }

    /// When it is open at `from` or next; at the end of time where that is beyond the calendar.
    pub fn open_at(&self, from: Timestamp) -> Timestamp {
        self.first(from, true).unwrap_or(Timestamp::MAX)
    }

    /// When it is closed at `from` or next; `None` if it is always open.
    pub fn closed_at(&self, from: Timestamp) -> Option<Timestamp> {
        self.first(from, false)
    }

    /// The first time at or after `from` at which it is open, or closed.
    fn first(&self, from: Timestamp, open: bool) -> Option<Timestamp> {
        if self.is_open(from) == open {
            return Some(from);
        }
        let first_day = self.zone.to_datetime(from).date();
        let edge = if open { self.start } else { self.end };
        let edges = (0..=SEARCHED_DAYS)
            .filter_map(|day| first_day.checked_add(day.days()).ok())
            .flat_map(|day| self.times_of(day.to_datetime(edge)));
        // A clock that is set may show an hour of the window, or no longer.
        let until = from
            .checked_add((SEARCHED_DAYS * 24).hours())
            .unwrap_or(Timestamp::MAX);
        let clock_changes = self.zone.following(from).map(|change| change.timestamp());
        let candidates = edges.chain(clock_changes.take_while(|at| *at <= until));
        candidates
            .filter(|at| *at >= from && self.is_open(*at) == open)
            .min()
    }

    /// The times at which the clock shows `shown`: none where it is set forward over it, and two where it is set back.
    fn times_of(&self, shown: DateTime) -> impl Iterator<Item = Timestamp> + use<> {
        let offsets = match self.zone.to_ambiguous_timestamp(shown).offset() {
            AmbiguousOffset::Unambiguous { offset } => [Some(offset), None],
            AmbiguousOffset::Gap { .. } => [None, None],
            AmbiguousOffset::Fold { before, after } => [Some(before), Some(after)],
        };
        let offsets = offsets.into_iter().flatten();
        offsets.filter_map(move |offset| offset.to_timestamp(shown).ok())
    }

    fn has(&self, day: Weekday) -> bool {
        let number = usize::try_from(day.to_monday_zero_offset()).unwrap_or(0);
        self.days.get(number).copied().unwrap_or(false)
    }

    fn is_daily(&self) -> bool {
        self.days.iter().all(|selected| *selected)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.days();
        if !days.is_empty() {
            write!(f, "{} ", days.join(","))?;
        }
        write!(f, "{}-{} {}", self.start(), self.end(), self.time_zone())
    }
}

impl FromStr for Window {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        let form = || WindowError::Form(shown(text));
        let mut words = text.split_whitespace().peekable();
        let is_days = words
            .peek()
            .is_some_and(|word| word.starts_with(|first: char| first.is_ascii_alphabetic()));
        let days = match words.next_if(|_| is_days) {
            Some(days) => listed_days(days)?,
            None => Vec::new(),
        };
        let (start, end) = words
            .next()
            .and_then(|hours| hours.split_once('-'))
            .ok_or_else(form)?;
        let zone = words.next().unwrap_or(UTC);
        if words.next().is_some() {
            return Err(form());
        }
        Self::new(&days, start, end, zone)
    }
}

/// The days of a list such as `Mon-Thu,Sat`. A range may pass the end of the week.
fn listed_days(list: &str) -> Result<Vec<&'static str>, WindowError> {
    let mut days = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number_of(first)?, number_of(last)?);
        let count = (last + DAYS.len() - first) % DAYS.len() + 1;
        days.extend(DAYS.iter().cycle().skip(first).take(count));
    }
    Ok(days)
}

fn number_of(day: &str) -> Result<usize, WindowError> {
    let number = DAYS.iter().position(|name| name.eq_ignore_ascii_case(day));
    number.ok_or_else(|| WindowError::Day(shown(day)))
}

fn time(text: &str) -> Result<Time, WindowError> {
    let digits = |digits: &str| match digits.as_bytes() {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => i8::try_from((tens - b'0') * 10 + (ones - b'0')).ok(),
        _ => None,
    };
    let read = || {
        let (hour, minute) = text.split_once(':')?;
        Time::new(digits(hour)?, digits(minute)?, 0, 0).ok()
    };
    read().ok_or_else(|| WindowError::Time(shown(text)))
}

/// An invalid value as it may be displayed. It may come from an object of another user.
fn shown(text: &str) -> String {
    let is_plain = |c: char| c != '"' && (' '..='~').contains(&c);
    let shown = text.chars().take(SHOWN_CHARS);
    shown.map(|c| if is_plain(c) { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests;
