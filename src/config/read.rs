//! Parses the command line, and reports all wrong settings at once, while clap stops at the first.

use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::fmt;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command};
use thiserror::Error;

/// An invalid configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ConfigError {
    /// All problems; never empty.
    pub problems: Vec<WrongSetting>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongSetting {
    /// The name in the environment.
    pub name: String,
    /// The value; `None` if it is missing.
    pub value: Option<String>,
    /// The valid range.
    pub expected: String,
}

impl WrongSetting {
    pub(super) fn new(name: &str, value: &str, expected: String) -> Self {
        Self {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            // It may quote another setting.
            expected: expected.replace(char::is_control, " "),
        }
    }

    pub(super) fn missing(name: &str, expected: String) -> Self {
        Self {
            name: name.to_owned(),
            value: None,
            expected,
        }
    }

    /// The problem that `error` reports about a setting of `command`; `None` for other errors.
    fn of(command: &Command, error: &clap::Error) -> Option<Self> {
        let text = |kind| {
            let value = error.get(kind)?;
            if let ContextValue::String(text) = value {
                Some(text.as_str())
            } else {
                None
            }
        };
        let redacted = text(ContextKind::InvalidArg)?;
        let flag = redacted.split([' ', '=', '[']).next()?;
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
        for problems in &self.problems {
            write!(f, "\n  {problems}")?;
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

/// Parses `args` with `command`. Wrong settings are returned, and keep their defaults.
///
/// An empty value counts as unset, because charts often render such variables.
///
/// # Errors
/// For any error other than the value of a setting.
pub fn read_arguments(
    command: &Command,
    args: Vec<OsString>,
) -> Result<(ArgMatches, Vec<WrongSetting>), clap::Error> {
    let mut args = args;
    args.retain(|word| !word.to_str().is_some_and(is_empty_flag));
    let mut command = without_variables(command.clone(), |_, value| {
        value.to_string_lossy().trim().is_empty()
    });
    let mut problems: Vec<WrongSetting> = Vec::new();
    loop {
        let error = match command.clone().try_get_matches_from(&args) {
            Ok(matches) => return Ok((matches, problems)),
            Err(error) => error,
        };
        let next =
            WrongSetting::of(&command, &error).filter(|next| problems.iter().all(|it| it.name != next.name));
        let Some(next) = next else { return Err(error) };
        command = without_variables(command, |name, _| name == next.name.as_str());
        remove_flag(&mut args, &flag(&next.name));
        problems.push(next);
    }
}

/// The same command without the variables that `is_hidden` selects by name and value.
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

/// Removes a flag and its value, after `=` or in the next argument.
fn remove_flag(args: &mut Vec<OsString>, flag: &str) {
    let with_value = format!("{flag}=");
    args.retain(|word| !word.to_string_lossy().starts_with(&with_value));
    if let Some(at) = args.iter().position(|word| word == flag) {
        args.drain(at..args.len().min(at + 2));
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
