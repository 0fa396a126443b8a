//! Reads the command line, and tells all settings that are wrong at once, where clap stops at the first.

use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::fmt;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command};
use thiserror::Error;

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ConfigError {
    /// Everything that is wrong with it; never empty.
    pub wrong: Vec<WrongSetting>,
}

/// One setting that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongSetting {
    /// Its name in the environment.
    pub name: String,
    /// What was given; `None` if nothing was.
    pub value: Option<String>,
    /// What would be right.
    pub expected: String,
}

impl WrongSetting {
    pub(super) fn new(name: &str, value: &str, expected: String) -> Self {
        Self {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            expected,
        }
    }

    pub(super) fn missing(name: &str, expected: String) -> Self {
        Self {
            name: name.to_owned(),
            value: None,
            expected,
        }
    }

    /// What `error` says of a setting of `command`; `None` for any other error.
    fn of(command: &Command, error: &clap::Error) -> Option<Self> {
        let text = |kind| {
            let value = error.get(kind)?;
            if let ContextValue::String(text) = value {
                Some(text.as_str())
            } else {
                None
            }
        };
        let shown = text(ContextKind::InvalidArg)?;
        let flag = shown.split([' ', '=', '[']).next()?;
        let name = flag.trim_start_matches('-').to_uppercase().replace('-', "_");
        let mut settings = command.get_subcommands().flat_map(Command::get_arguments);
        settings.find(|arg| is_named(arg, &name))?;
        let expected = match (error.kind(), error.get(ContextKind::ValidValue)) {
            (ErrorKind::ValueValidation, _) => error.source()?.to_string(),
            (ErrorKind::InvalidValue, Some(ContextValue::Strings(values))) if !values.is_empty() => {
                format!("{} is expected", values.join(" or "))
            }
            _ => return None,
        };
        Some(Self::new(&name, text(ContextKind::InvalidValue)?, expected))
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

impl fmt::Display for WrongSetting {
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

/// Reads `words` by `command`. Settings that are wrong are listed, and left at their defaults.
///
/// A setting that is set to nothing counts as not set, because charts like to render such variables.
///
/// # Errors
/// For a command line that is wrong in anything but the value of a setting.
pub fn read(command: &Command, words: Vec<OsString>) -> Result<(ArgMatches, Vec<WrongSetting>), clap::Error> {
    let mut words = words;
    words.retain(|word| !word.to_str().is_some_and(is_empty_flag));
    let mut command = without_variables(command.clone(), |_, value| {
        value.to_string_lossy().trim().is_empty()
    });
    let mut wrong: Vec<WrongSetting> = Vec::new();
    loop {
        let error = match command.clone().try_get_matches_from(&words) {
            Ok(matches) => return Ok((matches, wrong)),
            Err(error) => error,
        };
        let next =
            WrongSetting::of(&command, &error).filter(|next| wrong.iter().all(|it| it.name != next.name));
        let Some(next) = next else { return Err(error) };
        command = without_variables(command, |name, _| name == next.name.as_str());
        remove_flag(&mut words, &flag(&next.name));
        wrong.push(next);
    }
}

/// The same command, which does not see the variables that `is_hidden` picks by name and value.
fn without_variables(command: Command, is_hidden: impl Fn(&OsStr, &OsStr) -> bool) -> Command {
    command.mut_subcommands(|subcommand| {
        subcommand.mut_args(|arg| {
            let hides = |name: &OsStr| std::env::var_os(name).is_some_and(|value| is_hidden(name, &value));
            if arg.get_env().is_some_and(hides) {
                arg.env(clap::builder::Resettable::Reset)
            } else {
                arg
            }
        })
    })
}

/// Removes a flag and its value, which stands behind `=` or in the next word.
fn remove_flag(words: &mut Vec<OsString>, flag: &str) {
    let with_value = format!("{flag}=");
    words.retain(|word| !word.to_string_lossy().starts_with(&with_value));
    if let Some(at) = words.iter().position(|word| word == flag) {
        words.drain(at..words.len().min(at + 2));
    }
}

fn is_empty_flag(word: &str) -> bool {
    word.split_once('=')
        .is_some_and(|(flag, value)| flag.starts_with("--") && value.trim().is_empty())
}

fn is_named(arg: &Arg, name: &str) -> bool {
    arg.get_env().is_some_and(|variable| variable == name)
}

/// The flag of a setting.
pub(super) fn flag(name: &str) -> String {
    format!("--{}", name.to_lowercase().replace('_', "-"))
}
