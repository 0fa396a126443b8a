//! The door: arguments in, exit code out.

use std::process::ExitCode;

use haulout::app;
use haulout::cli::{self, Cli, Command, Verb};
use haulout::config::{self, Config, ConfigError};
use haulout::telemetry;

fn main() -> ExitCode {
    match Cli::read(std::env::args_os()).command {
        Command::Verb(verb) => perform(*verb),
        Command::Run(args) => match Config::from_args(*args) {
            Ok(config) => run(config),
            Err(error) => complain(&error.to_string(), config::EXIT_CODE),
        },
    }
}

fn run(config: Config) -> ExitCode {
    let level = match telemetry::log::start(&config) {
        Ok(level) => level,
        Err(error) => {
            let words = format!("LOG_LEVEL={:?}: {error}", config.log_level);
            return complain(&words, config::EXIT_CODE);
        }
    };
    install_crypto();
    // Two workers: the streams and the hub go on while an actor parses a large answer. One more thread costs 0.15 MiB.
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

/// A verb of a person at a prompt: one thread is enough, and nothing is logged.
fn perform(verb: Verb) -> ExitCode {
    install_crypto();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start the runtime: {error}"), 1),
    };
    match runtime.block_on(cli::perform(verb)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => complain(&format!("{error:#}"), code(&error)),
    }
}

/// Every TLS client in the process uses ring; without a default one, a client that is built without naming a provider
/// panics.
fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A wrong setting has an exit code of its own.
fn code(error: &anyhow::Error) -> u8 {
    if error.is::<app::Misconfigured>() || error.is::<ConfigError>() {
        config::EXIT_CODE
    } else {
        1
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the last words of a program that ends go where its user looks"
)]
fn complain(words: &str, code: u8) -> ExitCode {
    eprintln!("haulout: {words}");
    ExitCode::from(code)
}
