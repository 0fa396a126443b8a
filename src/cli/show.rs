//! Results as JSON and YAML.

use serde::Serialize;

use super::Format;

/// `value` for programs; `None` where a person is to read it.
pub(super) fn for_programs(format: Format, value: &impl Serialize) -> anyhow::Result<Option<String>> {
    match format {
        Format::Json => Ok(Some(json(value)?)),
        Format::Yaml => Ok(Some(serde_saphyr::to_string(value)?)),
        Format::Table | Format::Wide | Format::Name => Ok(None),
    }
}

/// `value` as JSON that people can read as well.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)?)
}

/// Many, in the form of kubectl's lists, so that `.items[]` works in every script.
#[derive(Debug, Serialize)]
pub(super) struct Items<'a, T> {
    pub(super) items: &'a [T],
}
