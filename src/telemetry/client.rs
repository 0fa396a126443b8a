//! The client for the receivers of notifications and for Alertmanager.

/// With the CAs of the system, or those of the file that `SSL_CERT_FILE` names. A redirect could send a secret elsewhere.
///
/// # Errors
/// If the CAs cannot be read.
pub fn client() -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .build()
}
