//! Validates label selectors, so that a mistake is reported at start and not by the first request.

use crate::ids::is_object_name;

/// The spaces of Kubernetes' own parser. It refuses all others, such as a no-break space from a document.
const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];

/// Whether `text` is a Kubernetes label selector: requirements joined by commas, each of the forms
/// `key`, `!key`, `key=value`, `key==value`, `key!=value`, `key in (a,b)`, `key notin (a,b)`.
pub(super) fn is_selector(text: &str) -> bool {
    let mut rest = text.trim_matches(SPACES);
    if rest.is_empty() {
        return false;
    }
    loop {
        let Some(after) = after_requirement(rest) else {
            return false;
        };
        match after.strip_prefix(',') {
            Some(more) => rest = more.trim_start_matches(SPACES),
            None => return after.is_empty(),
        }
    }
}

/// The rest after the first requirement; `None` if there is none.
fn after_requirement(text: &str) -> Option<&str> {
    if let Some(key) = text.strip_prefix('!') {
        return after_key(key.trim_start_matches(SPACES));
    }
    let rest = after_key(text)?;
    if let Some(set) = ["in", "notin"].iter().find_map(|word| {
        rest.strip_prefix(word)?
            .trim_start_matches(SPACES)
            .strip_prefix('(')
    }) {
        let (values, rest) = set.split_once(')')?;
        let is_set = values
            .split(',')
            .all(|value| is_value(value.trim_matches(SPACES)));
        return is_set.then(|| rest.trim_start_matches(SPACES));
    }
    match ["==", "!=", "="].iter().find_map(|sign| rest.strip_prefix(sign)) {
        Some(value) => {
            let (value, rest) = value.split_at(value.find(',').unwrap_or(value.len()));
            is_value(value.trim_matches(SPACES)).then_some(rest)
        }
        None => Some(rest),
    }
}

/// The rest after the label key, without spaces.
fn after_key(text: &str) -> Option<&str> {
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let (key, rest) = text.split_at(text.find(|c| !is_of_key(c)).unwrap_or(text.len()));
    let (is_prefix_right, name) = match key.split_once('/') {
        Some((prefix, name)) => (is_object_name(prefix), name),
        None => (true, key),
    };
    let is_name = !name.is_empty() && !name.contains('/') && is_value(name);
    (is_prefix_right && is_name).then(|| rest.trim_start_matches(SPACES))
}

/// Whether `text` is a label value, which may be empty.
fn is_value(text: &str) -> bool {
    text.is_empty()
        || text.len() <= 63
            && is_edged_by_alphanumerics(text)
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn is_edged_by_alphanumerics(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_selector_is_accepted() {
        for text in [
            "gpu",
            "!gpu",
            "intel.feature.node.kubernetes.io/gpu=true",
            "gpu==true",
            "gpu!=false",
            "gpu=",
            "gpu in (a,b)",
            "gpu notin ( a, b )",
            "gpu in(a)",
            "nvidia.com/gpu.present=true, !maintenance ,zone in (a,b),x",
            "inside=yes",
            "in in (in)",
        ] {
            assert!(is_selector(text), "{text}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused() {
        for text in [
            "",
            ",",
            "a,",
            "=true",
            "gpu=a=b",
            "gpu=a b",
            "gpu in a",
            "gpu in (a",
            "gpu in (a) b",
            "a/b/c=d",
            "-gpu=true",
            "gpu=-x",
            "UPPER.example/gpu=true",
            "gpu=true;rm",
            "gpu=\u{e9}",
            "gpu=\u{a0}true",
            "gpu,\u{b}!spare",
            "gpu in (a,\u{2003}b)",
        ] {
            assert!(!is_selector(text), "{text}");
        }
    }
}
