//! Entry point: arguments to exit code.

use std::io;
use std::process::ExitCode;

use haulout::app;
use haulout::cli::{self, ArgsError, Cli, Command, StdoutClosed, Subcommand};
use haulout::config::{self, Config};
use haulout::sentinel::SentinelArgs;
use haulout::telemetry;

fn main() -> ExitCode {
    // First, because the arguments may contain the password.
    let sealed = seal_memory();
    install_crypto();
    match cli::completion::answer(std::env::args_os()) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return complain(&format!("{error:#}"), 1),
    }
    match Cli::read(std::env::args_os()).map(|cli| cli.command) {
        Ok(Command::Subcommand(subcommand)) => perform(*subcommand),
        // The clock of a leader, and the protection of the password in memory, are Linux's.
        Ok(Command::Run(_) | Command::Sentinel(_)) if !cfg!(target_os = "linux") => {
            complain("this subcommand runs on Linux only", 1)
        }
        Ok(Command::Run(config)) => run(*config, sealed),
        Ok(Command::Sentinel(args)) => watch_for_reboots(*args),
        Err(ArgsError::CommandLine(error)) => error.exit(),
        Err(ArgsError::Settings(error)) => complain(&error.to_string(), config::EXIT_CODE),
    }
}

fn run(config: Config, sealed: io::Result<()>) -> ExitCode {
    let level_file = config.log_level_file.clone();
    let level = match telemetry::log::start(&config.log_level, config.log_format, level_file) {
        Ok(level) => level,
        Err(error) => {
            let text = format!("LOG_LEVEL={:?}: {error}", config.log_level);
            return complain(&text, config::EXIT_CODE);
        }
    };
    if let Err(error) = sealed {
        tracing::warn!(%error, "core dumps could not be disabled: a crash may write the password to disk");
    }
    // Two workers: streams and event loop continue while an actor parses a large reply. A thread costs
    // 0.15 MiB.
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start the runtime: {error}"), 1),
    };
    match runtime.block_on(app::run(config, level)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&format!("{error:#}"), code(&error)),
    }
}

/// Runs a sentinel: one thread is enough.
fn watch_for_reboots(args: SentinelArgs) -> ExitCode {
    if let Err(error) = telemetry::log::start(&args.log_level, args.log_format, None) {
        let text = format!("LOG_LEVEL={:?}: {error}", args.log_level);
        return complain(&text, config::EXIT_CODE);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start the runtime: {error}"), 1),
    };
    let ended = runtime.block_on(app::run_sentinel(args));
    // Without waiting for a file system that does not answer.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&format!("{error:#}"), code(&error)),
    }
}

/// Runs a subcommand: one thread is enough, and nothing is logged.
fn perform(subcommand: Subcommand) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start the runtime: {error}"), 1),
    };
    match runtime.block_on(cli::perform(subcommand)) {
        Ok(code) => ExitCode::from(code),
        Err(error) if error.is::<StdoutClosed>() => ExitCode::SUCCESS,
        Err(error) => complain(&format!("{error:#}"), code(&error)),
    }
}

/// All TLS clients use ring; a client without a default provider panics.
fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A wrong setting has its own exit code.
fn code(error: &anyhow::Error) -> u8 {
    if error.is::<telemetry::misconfigured::Misconfigured>() {
        config::EXIT_CODE
    } else {
        1
    }
}

/// Keeps the password out of core dumps and, except for root, out of reach of other processes.
///
/// The limit of 0 prevents core files. It does not apply if `core_pattern` names a program (core(5)),
/// as on Ubuntu and with systemd; a process that is not dumpable gives that program nothing.
#[cfg(target_os = "linux")]
fn seal_memory() -> io::Result<()> {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

    let nothing = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, nothing)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// Elsewhere only the command line runs.
#[cfg(not(target_os = "linux"))]
fn seal_memory() -> io::Result<()> {
    Ok(())
}

#[expect(
    clippy::print_stderr,
    reason = "the last words of a program that ends go where its user looks"
)]
fn complain(text: &str, code: u8) -> ExitCode {
    eprintln!("haulout: {text}");
    ExitCode::from(code)
}
