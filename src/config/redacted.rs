//! Values of settings without secrets.

/// The value of a setting without secrets.
pub(super) fn redacted(name: &str, value: String) -> String {
    match name {
        "VCENTER_PASSWORD" if !value.is_empty() => "***".to_owned(),
        "VCENTER_HOST" => without_password(&value),
        _ => value,
    }
}

/// A host without credentials from the URL.
pub fn without_password(host: &str) -> String {
    match host.rsplit_once('@') {
        Some((_, host)) => format!("***@{host}"),
        None => host.to_owned(),
    }
}
