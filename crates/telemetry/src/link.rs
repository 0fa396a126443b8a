//! Links to traces, from `TRACE_UI_URL_TEMPLATE`.

use haulout_core::maintenance::episode::Episode;
use haulout_core::status::story::{Beat, Told};
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

    /// What `beat` tells, with the link to the trace of its episode where that belongs to it; without a template with the id of the
    /// trace, by which a tracing UI can find it.
    pub(super) fn note(&self, beat: &Beat<'_>, told: &Told) -> String {
        let sentence = told.sentence.clone();
        let Some(episode) = beat.episode().filter(|_| told.names_trace) else {
            return sentence;
        };
        let trace = self.to(episode).unwrap_or_else(|| episode.id.to_string());
        format!("{sentence}; trace {trace}")
    }
}
