//! The client for the receivers of notifications, for Alertmanager, and for a status page.

/// With the CAs of the system, or those of the file that `SSL_CERT_FILE` names.
///
/// # Errors
/// If the CAs cannot be read.
pub fn client() -> reqwest::Result<reqwest::Client> {
    builder().build()
}

/// As [`client`], for more settings. A redirect could send a secret elsewhere.
pub fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder().redirect(reqwest::redirect::Policy::none())
}
