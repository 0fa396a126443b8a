//! The door: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser as _;
use haulout::app;
use haulout::cli::{Cli, Command};
use haulout::config::{self, Config};
use haulout::telemetry;

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Version => {
            #[expect(clippy::print_stdout, reason = "this is what was asked for")]
            {
                println!("haulout {}", env!("CARGO_PKG_VERSION"));
            }
            ExitCode::SUCCESS
        }
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
    // Every TLS client in the process uses ring; without a default one, a client that is built without naming a
    // provider panics.
    let _ = rustls::crypto::ring::default_provider().install_default();
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
        Err(error) if error.is::<app::Misconfigured>() => complain(&format!("{error:#}"), config::EXIT_CODE),
        Err(error) => complain(&format!("{error:#}"), 1),
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
