//! Log lines about a node: all have the same fields, so that one search finds a whole episode.

/// Logs with tracing's macro of that level: fields for the node and its record, then further fields and
/// the message. The id of the episode is its trace id, under the name by which tools link a log to traces.
#[macro_export]
macro_rules! log_node {
    ($level:ident, $node:expr, $record:expr, $($message:tt)+) => {{
        let episode = $record.episode();
        tracing::$level!(
            node = %$node,
            host = episode.map(|episode| &*episode.host.name),
            phase = $record.phase_name(),
            trace_id = episode.map(|episode| episode.trace_id()),
            $($message)+
        )
    }};
}
