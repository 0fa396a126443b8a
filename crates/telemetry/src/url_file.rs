//! Addresses of receivers, read from files: they may be secrets.

use std::path::Path;

/// The longest address, and the limit of the file.
const URL_BYTES_MAX: u64 = 4096;

/// The address in `file`. It is read for each request, because a Secret may be renewed.
///
/// # Errors
/// Why there is no http or https address in it. The address is not part of it.
pub(super) async fn read_url(file: &Path) -> Result<reqwest::Url, String> {
    let metadata = tokio::fs::metadata(file)
        .await
        .map_err(|error| error.to_string())?;
    if metadata.len() > URL_BYTES_MAX {
        return Err(format!("it has more than {URL_BYTES_MAX} bytes"));
    }
    let text = tokio::fs::read_to_string(file)
        .await
        .map_err(|error| error.to_string())?;
    let url = reqwest::Url::parse(text.trim()).map_err(|error| error.to_string())?;
    if matches!(url.scheme(), "http" | "https") {
        Ok(url)
    } else {
        Err(format!("its scheme is {}", url.scheme()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn address_of_another_scheme_is_refused_without_being_shown() {
        let path = std::env::temp_dir().join(format!("haulout-url-file-{}", std::process::id()));
        for (text, is_taken) in [
            ("https://hooks.example/secret\n", true),
            ("http://192.0.2.1/secret\r\n", true),
            ("http://192.0.2.1:9093", true),
            ("http://[2001:db8::1]:9093/secret", true),
            ("https://[2001:db8::1]/secret", true),
            ("http://2001:db8::1/secret", false),
            ("file:///etc/passwd", false),
            ("hooks.example/secret", false),
        ] {
            tokio::fs::write(&path, text).await.unwrap();
            match read_url(&path).await {
                Ok(_) => assert!(is_taken, "{text}"),
                Err(error) => assert!(!is_taken && !error.contains("secret"), "{error}"),
            }
        }
        tokio::fs::remove_file(&path).await.unwrap();
    }
}
