//! `SILENCE_MATCHERS`: matchers of labels, in the syntax of Alertmanager.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The most matchers of a setting, and the longest value of one. A silence is sent often.
const MATCHERS_MAX: usize = 20;
const VALUE_CHARS_MAX: usize = 1_000;

/// The operators. A longer one comes before its own beginning.
const OPERATORS: [(&str, bool, bool); 4] = [
    ("=~", true, true),
    ("!~", false, true),
    ("!=", false, false),
    ("=", true, false),
];

/// A condition on a label, as Alertmanager's API has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelMatcher {
    pub name: String,
    pub value: String,
    pub is_regex: bool,
    /// Alertmanager before 0.22 has no negative matchers, and omits it.
    #[serde(default = "is_equal_by_default")]
    pub is_equal: bool,
}

/// A list of matchers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelMatchers(pub Vec<LabelMatcher>);

fn is_equal_by_default() -> bool {
    true
}

impl LabelMatcher {
    /// Takes the first matcher of `text`, and returns the rest.
    fn take(text: &str) -> Option<(Self, &str)> {
        let end = text.find(|c: char| !is_of_name(c))?;
        let (name, rest) = text.split_at(end);
        let name = label_name(name).ok()?;
        let rest = rest.trim_start();
        let (operator, is_equal, is_regex) = OPERATORS.iter().find(|(it, ..)| rest.starts_with(it))?;
        let rest = rest.strip_prefix(operator)?.trim_start().strip_prefix('"')?;
        let mut value = String::new();
        let mut chars = rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    let matcher = Self {
                        name,
                        value,
                        is_regex: *is_regex,
                        is_equal: *is_equal,
                    };
                    return Some((matcher, rest.get(at + 1..)?));
                }
                '\\' => value.push(chars.next()?.1),
                _ => value.push(c),
            }
            if value.len() > VALUE_CHARS_MAX {
                return None;
            }
        }
        None
    }
}

impl fmt::Display for LabelMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_own = |(_, is_equal, is_regex): &&(&str, bool, bool)| {
            (*is_equal, *is_regex) == (self.is_equal, self.is_regex)
        };
        let operator = OPERATORS.iter().find(is_own).map_or("=", |(it, ..)| it);
        let value = self.value.replace('\\', "\\\\").replace('"', "\\\"");
        write!(f, "{}{operator}\"{value}\"", self.name)
    }
}

impl FromStr for LabelMatchers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            "a list of matchers is expected, such as cluster=\"east\",severity!=\"critical\", with =, !=, =~ or !~ and a value in quotes"
                .to_owned()
        };
        let mut matchers = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            if !matchers.is_empty() {
                rest = rest.strip_prefix(',').ok_or_else(expected)?.trim_start();
            }
            let (matcher, after) = LabelMatcher::take(rest).ok_or_else(expected)?;
            matchers.push(matcher);
            rest = after.trim_start();
            if matchers.len() > MATCHERS_MAX {
                return Err(format!("at most {MATCHERS_MAX} matchers are expected"));
            }
        }
        Ok(Self(matchers))
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The name of a label in Prometheus.
pub fn label_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    let is_name = !name.is_empty()
        && name.len() <= VALUE_CHARS_MAX
        && name.chars().all(is_of_name)
        && !name.starts_with(|c: char| c.is_ascii_digit());
    let expected = "a label name of letters, digits and underscores is expected, such as node";
    is_name
        .then(|| name.to_owned())
        .ok_or_else(|| expected.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matchers_are_read_as_alertmanager_writes_them() {
        let text = r#" cluster = "a,\"b\"" , severity!="critical",alertname=~"Kube.*|Node.*",pod!~"x\\d""#;
        let read: LabelMatchers = text.parse().unwrap();
        let written: Vec<String> = read.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            written,
            [
                r#"cluster="a,\"b\"""#,
                r#"severity!="critical""#,
                r#"alertname=~"Kube.*|Node.*""#,
                r#"pod!~"x\\d""#,
            ]
        );
        assert_eq!(written.join(",").parse::<LabelMatchers>().unwrap(), read);
        assert_eq!("".parse::<LabelMatchers>().unwrap(), LabelMatchers::default());
    }

    #[test]
    fn anything_else_is_refused() {
        let long = format!("a=\"{}\"", "x".repeat(VALUE_CHARS_MAX + 1));
        let many = vec!["a=\"b\""; MATCHERS_MAX + 1].join(",");
        for text in [
            "cluster",
            "cluster=",
            "cluster=east",
            "cluster=\"east",
            "cluster=\"east\\",
            "cluster==\"east\"",
            "=\"east\"",
            "1cluster=\"east\"",
            "cluster=\"a\" severity=\"b\"",
            "cluster=\"a\",",
            ",cluster=\"a\"",
            "clu-ster=\"a\"",
            &long,
            &many,
        ] {
            assert!(text.parse::<LabelMatchers>().is_err(), "{text}");
        }
    }
}
