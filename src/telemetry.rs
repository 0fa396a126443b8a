//! What Haulout tells of itself: at present the log.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::config::{Config, LogFormat};

/// Libraries that report each failed connection by themselves: our own code tells the same once, with what follows from
/// it. Quieter unless the level names them.
const QUIET: &str = "kube_client=off,hyper_util=warn,hyper=warn,h2=warn,tower=warn,rustls=warn,reqwest=warn";

/// Starts logging to stdout.
///
/// # Errors
/// For a `LOG_LEVEL` that is no filter.
pub fn start_logging(config: &Config) -> Result<(), ParseError> {
    let filter = EnvFilter::try_new(format!("{QUIET},{}", config.log_level))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    match config.log_format {
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).init(),
        // Colours are for terminals: in a file or a log collector they are noise.
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stdout());
            log.with_ansi(colours).with_target(false).init();
        }
    }
    Ok(())
}
