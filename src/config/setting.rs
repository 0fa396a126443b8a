//! How one setting is read, and what is said of one that is wrong.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// What the program exits with when its configuration is wrong: the same as clap's for a wrong command line.
pub const EXIT_CODE: u8 = 2;

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ConfigError {
    /// Everything that is wrong with it, in the order of the settings; never empty.
    pub wrong: Vec<Wrong>,
}

/// One setting that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Its name in the environment.
    pub name: &'static str,
    /// What was given; `None` if nothing was.
    pub value: Option<String>,
    /// What would be right.
    pub expected: String,
}

impl ConfigError {
    /// One setting that another part of the program has found to be wrong.
    pub fn of(name: &'static str, value: &str, expected: impl Into<String>) -> Self {
        Self {
            wrong: vec![Wrong {
                name,
                value: Some(value.to_owned()),
                expected: expected.into(),
            }],
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration cannot be used:")?;
        for wrong in &self.wrong {
            write!(f, "\n  {wrong}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            value,
            expected,
        } = self;
        let flag = flag(name);
        match value {
            Some(value) => write!(f, "{name} ({flag}) is {value:?}: {expected}"),
            None => write!(f, "{name} ({flag}) is not set: {expected}"),
        }
    }
}

/// The flag of a setting.
pub(super) fn flag(name: &str) -> String {
    format!("--{}", name.to_lowercase().replace('_', "-"))
}

/// What was found to be wrong so far.
#[derive(Debug, Default)]
pub(super) struct Found(Vec<Wrong>);

impl Found {
    pub(super) fn wrong(&mut self, name: &'static str, value: &str, expected: String) {
        self.0.push(Wrong {
            name,
            value: Some(value.to_owned()),
            expected,
        });
    }

    pub(super) fn missing(&mut self, name: &'static str, expected: String) {
        self.0.push(Wrong {
            name,
            value: None,
            expected,
        });
    }

    /// `value`, if nothing was wrong on the way to it.
    pub(super) fn into_result<T>(self, value: T) -> Result<T, ConfigError> {
        if self.0.is_empty() {
            Ok(value)
        } else {
            Err(ConfigError { wrong: self.0 })
        }
    }
}

/// A period in whole seconds, at least one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seconds {
    name: &'static str,
    default: u64,
    max: u64,
}

/// A period in seconds that may have a fraction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fraction {
    name: &'static str,
    default: Duration,
    min: Duration,
    max: Duration,
}

/// A number of things.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    name: &'static str,
    things: &'static str,
    min: u32,
    max: u32,
}

/// One of a few words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<T: 'static> {
    name: &'static str,
    words: &'static [(&'static str, T)],
}

impl Seconds {
    pub(super) const fn new(name: &'static str, default: u64, max: u64) -> Self {
        Self { name, default, max }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    /// The default and the range, as the help states them.
    #[cfg(test)]
    pub(super) fn range(&self) -> String {
        format!("[default: {}; 1 to {}]", self.default, self.max)
    }

    pub(super) fn read(&self, text: Option<String>, found: &mut Found) -> Duration {
        let Some(text) = given(text) else {
            return Duration::from_secs(self.default);
        };
        let seconds = text
            .parse()
            .ok()
            .filter(|seconds| (1..=self.max).contains(seconds));
        if seconds.is_none() {
            found.wrong(
                self.name,
                &text,
                format!("a whole number of seconds from 1 to {} is expected", self.max),
            );
        }
        Duration::from_secs(seconds.unwrap_or(self.default))
    }
}

impl Fraction {
    /// All three in milliseconds.
    pub(super) const fn new(name: &'static str, default: u64, min: u64, max: u64) -> Self {
        Self {
            name,
            default: Duration::from_millis(default),
            min: Duration::from_millis(min),
            max: Duration::from_millis(max),
        }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    /// The default and the range, as the help states them.
    #[cfg(test)]
    pub(super) fn range(&self) -> String {
        let Self {
            default, min, max, ..
        } = self;
        let [default, min, max] = [default, min, max].map(Duration::as_secs_f64);
        format!("[default: {default}; {min} to {max}]")
    }

    pub(super) fn read(&self, text: Option<String>, found: &mut Found) -> Duration {
        let Some(text) = given(text) else {
            return self.default;
        };
        let seconds = text
            .parse::<f64>()
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .filter(|seconds| (self.min..=self.max).contains(seconds));
        if seconds.is_none() {
            let [min, max] = [self.min, self.max].map(|end| end.as_secs_f64());
            found.wrong(self.name, &text, format!("{min} to {max} seconds are expected"));
        }
        seconds.unwrap_or(self.default)
    }
}

impl Range {
    pub(super) const fn new(name: &'static str, things: &'static str, min: u32, max: u32) -> Self {
        Self {
            name,
            things,
            min,
            max,
        }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn read(&self, text: Option<String>, default: u32, found: &mut Found) -> u32 {
        let Some(text) = given(text) else {
            return default;
        };
        let number = text
            .parse()
            .ok()
            .filter(|number| (self.min..=self.max).contains(number));
        if number.is_none() {
            let Self { things, min, max, .. } = self;
            found.wrong(self.name, &text, format!("{min} to {max} {things} are expected"));
        }
        number.unwrap_or(default)
    }
}

impl<T: Copy + PartialEq> Choice<T> {
    pub(super) const fn new(name: &'static str, words: &'static [(&'static str, T)]) -> Self {
        Self { name, words }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn read(&self, text: Option<String>, default: T, found: &mut Found) -> T {
        let Some(text) = given(text) else {
            return default;
        };
        let chosen = self
            .words
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(&text));
        if chosen.is_none() {
            let words: Vec<_> = self.words.iter().map(|(word, _)| *word).collect();
            found.wrong(self.name, &text, format!("{} is expected", words.join(" or ")));
        }
        chosen.map_or(default, |(_, value)| *value)
    }

    /// The word for `value`.
    pub(super) fn word(&self, value: T) -> String {
        self.words
            .iter()
            .find(|(_, candidate)| *candidate == value)
            .map_or_else(String::new, |(word, _)| (*word).to_owned())
    }
}

/// Yes or no, in the words that charts, shells and people use.
pub(super) fn boolean(name: &'static str, text: Option<String>, default: bool, found: &mut Found) -> bool {
    let Some(text) = given(text) else {
        return default;
    };
    match text.to_lowercase().as_str() {
        "true" | "1" | "yes" => true,
        "false" | "0" | "no" => false,
        _ => {
            found.wrong(
                name,
                &text,
                "true or false is expected (or 1, 0, yes, no)".to_owned(),
            );
            default
        }
    }
}

/// What was given, without the spaces and line ends around it; nothing, if that leaves nothing.
pub(super) fn given(text: Option<String>) -> Option<String> {
    text.map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
}
