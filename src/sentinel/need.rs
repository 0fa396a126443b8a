//! Finds out whether the node has to be rebooted: by a file, a command, or an annotation of its Node.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::decide::RebootNeed;
use crate::ids::BootId;
use crate::keys::REBOOT_REQUIRED;
use crate::kubernetes::answer::plain;

/// The file may be on a file system that does not answer.
const FILE_DEADLINE: Duration = Duration::from_secs(10);

/// The longest run of the command.
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);

/// The length of the command's standard error that is logged.
const ERROR_BYTES_MAX: usize = 300;

/// The length of the annotation's value that is shown.
const VALUE_CHARS_MAX: usize = 64;

/// One need of several: one that requires a reboot is enough, and without one, an unknown one counts.
pub(super) fn all(needs: impl IntoIterator<Item = RebootNeed>) -> RebootNeed {
    let (mut reasons, mut unknown) = (Vec::new(), Vec::new());
    for need in needs {
        match need {
            RebootNeed::Required(reason) => reasons.push(reason),
            RebootNeed::Unknown(why) => unknown.push(why),
            RebootNeed::NotRequired => {}
        }
    }
    match (reasons.is_empty(), unknown.is_empty()) {
        (false, _) => RebootNeed::Required(reasons.join(", and ")),
        (true, false) => RebootNeed::Unknown(unknown.join("; ")),
        (true, true) => RebootNeed::NotRequired,
    }
}

/// A file that exists requires a reboot. A symbolic link is not followed, because its target may be outside of the container.
pub(super) async fn by_file(path: &Path) -> RebootNeed {
    let shown = path.display().to_string();
    let looked_up = path.to_owned();
    let look = tokio::task::spawn_blocking(move || looked_up.symlink_metadata().map(|_| ()));
    match timeout(FILE_DEADLINE, look).await {
        Ok(Ok(Ok(()))) => RebootNeed::Required(format!("{shown} exists")),
        Ok(Ok(Err(error))) if error.kind() == ErrorKind::NotFound => RebootNeed::NotRequired,
        Ok(Ok(Err(error))) => RebootNeed::Unknown(format!("{shown}: {error}")),
        Ok(Err(error)) => RebootNeed::Unknown(format!("{shown}: {error}")),
        Err(_elapsed) => {
            RebootNeed::Unknown(format!("{shown}: no answer within {} s", FILE_DEADLINE.as_secs()))
        }
    }
}

/// A command with exit code 0 requires a reboot, and with exit code 1 it does not. Any other end is unknown: a program that is
/// missing must not cause reboots.
pub(super) async fn by_command(command: &[String]) -> RebootNeed {
    by_command_within(command, COMMAND_DEADLINE).await
}

async fn by_command_within(command: &[String], deadline: Duration) -> RebootNeed {
    let Some((program, arguments)) = command.split_first() else {
        return RebootNeed::NotRequired;
    };
    let spawned = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let run = async { end_of(spawned?).await };
    let end = match timeout(deadline, run).await {
        Ok(Ok((Some(0), _))) => return RebootNeed::Required(format!("{program} has exit code 0")),
        Ok(Ok((Some(1), _))) => return RebootNeed::NotRequired,
        Ok(Ok((Some(code), error))) => format!("exit code {code}: {}", plain(&error)),
        Ok(Ok((None, _))) => "it was ended by a signal".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_elapsed) => format!("it did not end within {} s", deadline.as_secs_f32()),
    };
    RebootNeed::Unknown(format!("the command {program}: {end}"))
}

/// The exit code, and the beginning of the standard error. The rest is read too, or the command would wait for ever.
async fn end_of(mut child: Child) -> std::io::Result<(Option<i32>, String)> {
    let mut kept = Vec::new();
    if let Some(mut error) = child.stderr.take() {
        let mut buffer = [0; 4096];
        loop {
            let read = error.read(&mut buffer).await?;
            let chunk = buffer.get(..read).unwrap_or_default();
            if chunk.is_empty() {
                break;
            }
            let room = ERROR_BYTES_MAX.saturating_sub(kept.len()).min(chunk.len());
            kept.extend_from_slice(chunk.get(..room).unwrap_or_default());
        }
    }
    let status = child.wait().await?;
    Ok((status.code(), String::from_utf8_lossy(&kept).into_owned()))
}

/// The annotation requires a reboot, unless it is for another boot.
pub(super) fn by_annotation(annotations: Option<&BTreeMap<String, String>>, boot: &BootId) -> RebootNeed {
    let value = annotations.and_then(|all| all.get(REBOOT_REQUIRED));
    match value.map(|value| value.trim()) {
        None | Some("false") => RebootNeed::NotRequired,
        Some(value) if is_boot_id(value) && value != boot.as_str() => RebootNeed::NotRequired,
        Some(value) => {
            let value: String = value.chars().take(VALUE_CHARS_MAX).collect();
            RebootNeed::Required(format!(
                "the Node has the annotation {REBOOT_REQUIRED}={}",
                plain(&value)
            ))
        }
    }
}

/// Whether it has the form of a boot id: a UUID in lower case.
fn is_boot_id(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    let is_digit = |c: char| c == '-' || matches!(c, '0'..='9' | 'a'..='f');
    lengths == [8, 4, 4, 4, 12] && text.chars().all(is_digit)
}

#[cfg(test)]
mod tests;
