//! A line of the log about a node: whoever writes one names the same fields, so that one search finds an episode whole.

/// Writes a line with tracing's macro of that level: what it is about are a node's name and what stands on the Node,
/// then come fields of its own and its words.
macro_rules! line {
    ($level:ident, $node:expr, $record:expr, $($words:tt)+) => {{
        let episode = $record.episode();
        tracing::$level!(
            node = %$node,
            host = episode.map(|episode| &*episode.host.name),
            episode = episode.map(|episode| episode.id.as_str()),
            phase = $record.phase_name(),
            trace_id = episode.map(|episode| episode.trace_id()),
            $($words)+
        )
    }};
}

pub(crate) use line;
