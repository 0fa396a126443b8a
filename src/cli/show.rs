//! Results as JSON and YAML.

use serde::Serialize;

use super::Format;

/// `value` in a machine-readable format; `None` for other formats.
pub(super) fn for_programs(format: Format, value: &impl Serialize) -> anyhow::Result<Option<String>> {
    match format {
        Format::Json => Ok(Some(json(value)?)),
        Format::Yaml => Ok(Some(serde_saphyr::to_string(value)?)),
        Format::Table | Format::Wide | Format::Name => Ok(None),
    }
}

/// `value` as indented JSON.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)?)
}

/// A list in kubectl's format, with `.items[]`.
#[derive(Debug, Serialize)]
pub(super) struct Items<'a, T> {
    pub(super) items: &'a [T],
}
