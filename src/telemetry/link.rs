//! Where a trace is looked at: the one place that makes addresses out of `TRACE_UI_URL_TEMPLATE`.

use crate::config::{Config, TRACE_ID};
use crate::maintenance::episode::Episode;

/// Turns an episode into the address of its trace, where the configuration tells how.
#[derive(Clone, Debug, Default)]
pub struct Links(Option<String>);

impl Links {
    /// The links that `config` asks for.
    pub fn new(config: &Config) -> Self {
        Self(config.trace_ui_url_template.clone())
    }

    /// The address of the trace of `episode`.
    pub fn to(&self, episode: &Episode) -> Option<String> {
        let template = self.0.as_ref()?;
        Some(template.replace(TRACE_ID, episode.trace_id()))
    }

    /// The address of the trace of `episode`, or else its id, which every tracing UI finds it by.
    pub(super) fn or_id(&self, episode: &Episode) -> String {
        self.to(episode).unwrap_or_else(|| episode.id.to_string())
    }

    #[cfg(test)]
    pub(super) fn by(template: &str) -> Self {
        Self(Some(template.to_owned()))
    }
}
