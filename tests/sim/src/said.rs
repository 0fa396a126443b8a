//! What all runs together say: the text of log lines and of writes to Kubernetes, each once, without numbers. It is compared before and
//! after a change of the program that is to say the same.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

/// The lines, shared by all runs.
#[derive(Clone, Debug, Default)]
pub struct Said {
    lines: Arc<Mutex<BTreeSet<String>>>,
}

impl Said {
    /// The lines so far, in order.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().cloned().collect()
    }

    fn add(&self, line: &str) {
        let line = without_numbers(line);
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.insert(line);
    }

    /// Adds the texts of a write to Kubernetes.
    pub(crate) fn write(&self, what: &str, body: &Value) {
        match body {
            Value::String(text) => match serde_json::from_str::<Value>(text) {
                // A record.
                Ok(inside @ Value::Object(_)) => self.write(&format!("{what} as JSON"), &inside),
                Ok(_) | Err(_) => self.add(&format!("{what}: {text}")),
            },
            Value::Array(all) => all.iter().for_each(|it| self.write(what, it)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    self.write(&format!("{what} {name}"), value);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => self.add(&format!("{what}: {body}")),
        }
    }
}

impl<'a> MakeWriter<'a> for Said {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LogLine {
            said: self,
            line: Vec::new(),
        }
    }
}

/// A line of the log, which is added when it is whole.
#[derive(Debug)]
pub struct LogLine<'a> {
    said: &'a Said,
    line: Vec<u8>,
}

impl Write for LogLine<'_> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine<'_> {
    fn drop(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        self.said.add(&format!("log {}", line.trim_end()));
    }
}

/// Words with a digit become `#`: times, durations, names of nodes and hosts, ids.
fn without_numbers(line: &str) -> String {
    let has_digit = |word: &str| word.bytes().any(|byte| byte.is_ascii_digit());
    let words = line.split_inclusive([' ', '"', ',', '/', '=', ':', '(', ')']);
    let mut text = String::new();
    for word in words {
        let name = word.trim_end_matches([' ', '"', ',', '/', '=', ':', '(', ')']);
        match has_digit(name) {
            true => text.push('#'),
            false => text.push_str(name),
        }
        text.push_str(&word[name.len()..]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_left_out() {
        let said = Said::default();
        for node in ["gpu-1", "gpu-22"] {
            said.write(
                "POST events",
                &serde_json::json!({"note": format!("{node} is off after 3m2s")}),
            );
        }
        assert_eq!(said.lines(), ["POST events note: # is off after #"]);
    }
}
