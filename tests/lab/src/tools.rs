//! Tools that the machine may have or lack: how they are found, and what a test does without one.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::bail;

/// Names the file that collects which tests were skipped and why; `make test` prints it at its end.
const SKIPPED: &str = "HAULOUT_SKIPPED";

/// A tool that the lab does not build itself.
#[derive(Debug, Clone)]
pub enum Tool {
    /// Its path.
    At(PathBuf),
    /// It cannot be had on this machine: why.
    Missing(String),
}

/// The first of these programs that is on `PATH`.
pub fn on_path(programs: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    programs
        .iter()
        .flat_map(|program| folders.iter().map(move |folder| folder.join(program)))
        .find(|program| program.is_file())
}

/// Whether this is a continuous-integration run: `CI` is set, and not to `false`.
pub fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|ci| !ci.is_empty() && ci != "false")
}

/// Skips `test`, or the part of it that needs what is missing, and records that.
///
/// # Errors
/// Where `CI` is set: nobody would notice a test that is skipped there.
pub fn skip(test: &str, missing: &str) -> anyhow::Result<()> {
    if is_ci() {
        bail!("{missing}; with CI set, no test is skipped");
    }
    record_skip(test, missing);
    Ok(())
}

/// Records that `test`, or a part of it, is skipped here although `CI` may be set, because another run covers it.
pub fn record_skip(test: &str, why: &str) {
    say(&format!("{test} is skipped: {why}"));
    let Some(path) = std::env::var_os(SKIPPED) else {
        return;
    };
    // One write of one line, so that lines of tests that run side by side stay whole.
    let file = std::fs::File::options().create(true).append(true).open(&path);
    if let Err(error) = file.and_then(|mut file| file.write_all(format!("{test}: {why}\n").as_bytes())) {
        say(&format!("{} cannot be written: {error}", path.display()));
    }
}

#[expect(
    clippy::print_stderr,
    reason = "a test that does not run has to say so where no log is set up"
)]
fn say(line: &str) {
    eprintln!("lab: {line}");
}

#[cfg(test)]
mod tests {
    use super::on_path;

    #[test]
    fn the_first_program_that_is_on_path_is_found() {
        let found = on_path(&["haulout-no-such-program", "sh"]).unwrap();
        assert!(found.ends_with("sh"), "{found:?}");
        assert_eq!(on_path(&["haulout-no-such-program"]), None);
    }
}
