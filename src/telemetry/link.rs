//! Links to traces, from `TRACE_UI_URL_TEMPLATE`.

use crate::config::{Config, TRACE_ID};
use crate::maintenance::episode::Episode;

/// Creates the link to the trace of an episode, if configured.
#[derive(Clone, Debug, Default)]
pub struct Links(Option<String>);

impl Links {
    pub fn new(config: &Config) -> Self {
        Self(config.trace_ui_url_template.clone())
    }

    /// The link to the trace of `episode`.
    pub fn to(&self, episode: &Episode) -> Option<String> {
        let template = self.0.as_ref()?;
        Some(template.replace(TRACE_ID, episode.trace_id()))
    }

    /// The link to the trace of `episode`, or its id, by which a tracing UI can find it.
    pub(super) fn or_id(&self, episode: &Episode) -> String {
        self.to(episode).unwrap_or_else(|| episode.id.to_string())
    }

    #[cfg(test)]
    pub(super) fn by(template: &str) -> Self {
        Self(Some(template.to_owned()))
    }
}
