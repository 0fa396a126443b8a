//! Decodes a folder of recorded replies of a vCenter, one body in each `.xml` file, and says what could be read of each.
//!
//! `make recordings DIR=folder`. The exit code is 1 if something could not be read that should be.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the table is what the program is for"
)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use haulout_vsphere::fuzz::recording;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: recordings FOLDER");
        return ExitCode::from(2);
    };
    match files(Path::new(&folder)) {
        Ok(files) if files.is_empty() => {
            eprintln!("{} has no .xml files", folder.display());
            ExitCode::from(2)
        }
        Ok(files) => show(&files),
        Err(error) => {
            eprintln!("{}: {error}", folder.display());
            ExitCode::from(2)
        }
    }
}

fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new("xml")) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn show(files: &[PathBuf]) -> ExitCode {
    let mut rows = vec![["FILE", "WHAT", "READ"].map(str::to_owned)];
    let (mut unread, mut failed) = (Vec::new(), 0);
    for file in files {
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let reply = match std::fs::read(file) {
            Ok(body) => recording(&body),
            Err(error) => {
                unread.push(format!("{name}: {error}"));
                failed += 1;
                continue;
            }
        };
        failed += usize::from(!reply.unread.is_empty());
        unread.extend(reply.unread.iter().map(|line| format!("{name}: {line}")));
        rows.push([name, reply.what, reply.read]);
    }
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let (first, second) = (width(0), width(1));
    for [file, what, read] in &rows {
        println!("{}", format!("{file:first$}  {what:second$}  {read}").trim_end());
    }
    if unread.is_empty() {
        println!("\n{} files, all read", files.len());
        return ExitCode::SUCCESS;
    }
    println!("\nNOT READ");
    for line in unread {
        println!("{line}");
    }
    println!("\n{failed} of {} files could not be read as a whole", files.len());
    ExitCode::from(1)
}
