//! Links to traces, from `TRACE_UI_URL_TEMPLATE`.

use haulout_core::maintenance::episode::Episode;
use haulout_core::status::trace_url;

/// Creates the link to the trace of an episode, if configured.
#[derive(Clone, Debug, Default)]
pub struct Links(Option<String>);

impl Links {
    pub fn new(template: Option<String>) -> Self {
        Self(template)
    }

    /// The link to the trace of `episode`.
    pub fn to(&self, episode: &Episode) -> Option<String> {
        Some(trace_url(self.0.as_ref()?, episode.trace_id()))
    }

    /// The link to the trace of `episode`, or its id, by which a tracing UI can find it.
    pub(super) fn or_id(&self, episode: &Episode) -> String {
        self.to(episode).unwrap_or_else(|| episode.id.to_string())
    }
}
