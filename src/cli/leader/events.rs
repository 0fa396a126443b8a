//! Reads the events of an answer, with limits on their size and on the time between them.
//!
//! The format is that of server-sent events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>), of which the leader
//! uses the fields `event` and `data`, one line each.

use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::{Instant, timeout_at};

use crate::plan::{ANSWER_EVENT, ERROR_EVENT, PROGRESS_EVENT};

/// The longest answer: a plan of a hundred hosts with all their pods is some megabytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The longest text of a refusal that is read.
const TEXT_BYTES_MAX: usize = 16 * 1024;

/// The leader sends something every five seconds.
const SILENCE: Duration = Duration::from_secs(30);

/// One event of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnswerEvent {
    Progress(String),
    /// The answer, as JSON.
    Answer(Vec<u8>),
    Failed(String),
}

/// Reads events from the body of a response.
pub(super) struct EventReader {
    response: reqwest::Response,
    lines: Lines,
    heard: Instant,
}

impl EventReader {
    pub(super) fn new(response: reqwest::Response) -> Self {
        Self {
            response,
            lines: Lines::default(),
            heard: Instant::now(),
        }
    }

    /// The next event. Nothing is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> anyhow::Result<AnswerEvent> {
        loop {
            while let Some(line) = self.lines.next() {
                if let Some(event) = self.lines.event(&line)? {
                    return Ok(event);
                }
            }
            let chunk = timeout_at(self.heard + SILENCE, self.response.chunk()).await;
            let Ok(chunk) = chunk else {
                bail!("nothing was sent for {} s", SILENCE.as_secs());
            };
            let Some(chunk) = chunk? else {
                bail!("the connection ended before the answer");
            };
            self.heard = Instant::now();
            self.lines.add(&chunk)?;
        }
    }
}

/// The lines that have arrived.
#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    /// There is no line end before this byte.
    searched: usize,
    /// The name of the event whose data is awaited.
    name: String,
}

impl Lines {
    fn add(&mut self, chunk: &[u8]) -> anyhow::Result<()> {
        if self.bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
            bail!("the answer has more than {ANSWER_BYTES_MAX} bytes");
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }

    /// The next complete line, without its end.
    fn next(&mut self) -> Option<Vec<u8>> {
        let rest = self.bytes.get(self.searched..).unwrap_or_default();
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return None;
        };
        let mut line: Vec<u8> = self.bytes.drain(..=self.searched + end).collect();
        self.searched = 0;
        line.pop();
        Some(line)
    }

    /// The event that `line` completes, if it does. Comments and unknown fields and events are ignored.
    fn event(&mut self, line: &[u8]) -> anyhow::Result<Option<AnswerEvent>> {
        if let Some(name) = field(line, b"event:") {
            self.name = String::from_utf8_lossy(name).into_owned();
        }
        let Some(data) = field(line, b"data:") else {
            return Ok(None);
        };
        let text = || serde_json::from_slice::<String>(data).context("a text is expected in an event");
        Ok(match self.name.as_str() {
            PROGRESS_EVENT => Some(AnswerEvent::Progress(text()?)),
            ANSWER_EVENT => Some(AnswerEvent::Answer(data.to_vec())),
            ERROR_EVENT => Some(AnswerEvent::Failed(text()?)),
            _ => None,
        })
    }
}

/// The value of a field.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = line.strip_prefix(name)?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

/// The text of a refusal, as far as it is read.
pub(super) async fn short_text(mut response: reqwest::Response) -> String {
    let mut text = Vec::new();
    let until = Instant::now() + SILENCE;
    while let Ok(Ok(Some(chunk))) = timeout_at(until, response.chunk()).await {
        text.extend_from_slice(&chunk);
        if text.len() > TEXT_BYTES_MAX {
            text.truncate(TEXT_BYTES_MAX);
            break;
        }
    }
    String::from_utf8_lossy(&text).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events in these chunks.
    fn read(chunks: &[&str]) -> anyhow::Result<Vec<AnswerEvent>> {
        let mut lines = Lines::default();
        let mut events = Vec::new();
        for chunk in chunks {
            lines.add(chunk.as_bytes())?;
            while let Some(line) = lines.next() {
                events.extend(lines.event(&line)?);
            }
        }
        Ok(events)
    }

    #[test]
    fn events_are_read_however_they_are_cut() {
        let whole = "event: progress\ndata: \"1 of 2\\r\\n\"\n\n:\n\nevent:answer\ndata:{\"a\":1}\n\n";
        let expected = [
            AnswerEvent::Progress("1 of 2\r\n".to_owned()),
            AnswerEvent::Answer(b"{\"a\":1}".to_vec()),
        ];
        for cut in 0..whole.len() {
            let (first, second) = whole.split_at(cut);
            assert_eq!(read(&[first, second]).unwrap(), expected, "{cut}");
        }
        let failed = read(&["event: error\ndata: \"why\"\n\n"]).unwrap();
        assert_eq!(failed, [AnswerEvent::Failed("why".to_owned())]);
    }

    #[test]
    fn unknown_events_are_ignored_and_wrong_ones_refused() {
        assert_eq!(read(&["id: 1\nevent: later\ndata: x\n\ndata\n"]).unwrap(), []);
        assert!(read(&["event: error\ndata: no JSON\n\n"]).is_err());
        let mut lines = Lines {
            bytes: vec![b'x'; ANSWER_BYTES_MAX],
            ..Lines::default()
        };
        assert!(lines.add(b"x").is_err());
    }
}
