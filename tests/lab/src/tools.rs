//! Optional tools of the machine: how they are found, and how a test is skipped without one.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;

/// The file that lists skipped tests with reasons; `make test` prints it at its end.
const SKIPPED: &str = "HAULOUT_SKIPPED";

/// The file that lists how long scenarios took; `make test` prints the slowest ones.
const TEST_TIMES: &str = "HAULOUT_TEST_TIMES";

/// A tool that the lab does not build itself.
#[derive(Debug, Clone)]
pub enum Tool {
    At(PathBuf),
    /// It is missing, with the reason.
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

/// Whether this is a CI run: `CI` is set, and not to `false`.
pub fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|ci| !ci.is_empty() && ci != "false")
}

/// Skips `test`, or a part of it, and records that.
///
/// # Errors If `CI` is set, where a skipped test would not be noticed.
pub fn skip(test: &str, missing: &str) -> anyhow::Result<()> {
    if is_ci() {
        bail!("{missing}; with CI set, no test is skipped");
    }
    record_skip(test, missing);
    Ok(())
}

/// Records that `test`, or a part of it, is skipped even if `CI` is set, because another run covers it.
pub fn record_skip(test: &str, why: &str) {
    say(&format!("{test} is skipped: {why}"));
    append(SKIPPED, &format!("{test}: {why}\n"));
}

/// Records how long `test` took.
pub fn record_time(test: &str, duration: Duration) {
    append(TEST_TIMES, &format!("{:6.1} {test}\n", duration.as_secs_f64()));
}

/// Appends a line to the file that a variable names, if it is set.
fn append(variable: &str, line: &str) {
    let Some(path) = std::env::var_os(variable) else {
        return;
    };
    // One write per line, so that lines of concurrent tests are not mixed.
    let file = std::fs::File::options().create(true).append(true).open(&path);
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
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
