//! The descriptions in `chart/values.schema.json`: those of `chart/values.yaml`, from which `chart/README.md` is made as well, and what
//! `chart/files/removed-values.yaml` says of values that are gone.

use serde_json::{Value, json};

use crate::helm::{chart, read, refusal};

/// If set, the file is written in place of being compared.
const WRITE: &str = "HAULOUT_WRITE_REFERENCE";

/// Each value with the comment above it, which begins with `# --`.
fn described(values: &str) -> Vec<(Vec<String>, String)> {
    let (mut all, mut path, mut text) = (Vec::new(), Vec::<String>::new(), None::<String>);
    for line in values.lines() {
        let trimmed = line.trim();
        if let Some(begin) = trimmed.strip_prefix("# -- ") {
            text = Some(begin.to_owned());
        } else if let (Some(more), Some(text)) = (trimmed.strip_prefix("# "), &mut text) {
            text.push(' ');
            text.push_str(more);
        } else {
            let key = trimmed.split(':').next().filter(|key| {
                !key.is_empty() && trimmed.contains(':') && key.chars().all(char::is_alphanumeric)
            });
            if let Some(key) = key {
                path.truncate((line.len() - line.trim_start().len()) / 2);
                path.push(key.to_owned());
                all.extend(text.take().map(|text| (path.clone(), text)));
            }
            text = None;
        }
    }
    all
}

/// The values that are gone, each with its text.
pub fn removed() -> Vec<(String, String)> {
    let texts: std::collections::BTreeMap<String, String> =
        serde_saphyr::from_str(&read("chart/files/removed-values.yaml")).unwrap();
    texts.into_iter().collect()
}

fn describe(schema: &mut Value, path: &[String], text: &str) {
    let mut at = schema;
    for key in path {
        at = &mut at["properties"][key];
    }
    // A value that is gone has no type, so that the chart itself refuses it, with this text.
    if at.is_null() {
        *at = json!({});
    }
    at["description"] = json!(text);
}

/// The schema without descriptions, and without the values that only have one.
fn strip(schema: &mut Value) {
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("description");
        if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
            properties.values_mut().for_each(strip);
            properties.retain(|_, schema| schema.as_object().is_none_or(|it| !it.is_empty()));
        }
    }
}

#[test]
fn schema_has_the_descriptions_of_the_values() {
    let committed = read("chart/values.schema.json");
    let mut schema: Value = serde_json::from_str(&committed).unwrap();
    strip(&mut schema);
    let values = described(&read("chart/values.yaml"));
    assert!(values.len() > 150, "{} values are described", values.len());
    for (path, text) in &values {
        describe(&mut schema, path, text);
    }
    for (path, text) in removed() {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        describe(&mut schema, &path, &format!("Gone: {text}"));
    }
    let fence = "Of the Python controller's chart; has no effect.";
    describe(&mut schema, &["fence".to_owned()], fence);
    let made = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(chart().join("values.schema.json"), made).unwrap();
    } else {
        assert!(
            made == committed,
            "chart/values.schema.json is not current: run `make chart`"
        );
    }
}

#[test]
fn value_that_is_gone_is_refused_with_what_to_do() {
    for (path, text) in removed() {
        let message = refusal(&["vcenter.existingSecret=x", &format!("{path}=false")]);
        let expected = format!("the value {path} is gone: {text}");
        assert!(message.contains(&expected), "{message}");
    }
}
