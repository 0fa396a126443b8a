//! Address of vCenter, credentials, and trust.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest as _, Sha256};

use super::error::LoginError;

/// The address of vCenter's SOAP service.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    url: reqwest::Url,
}

/// Why an address is rejected. Its text is not repeated where it may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the vCenter address {0}")]
pub struct EndpointError(String);

/// What an address may look like.
const FORMS: &str = "give a name, name:port, or https://name/sdk";

impl Endpoint {
    /// Reads `name`, `name:port`, `https://name[:port][/sdk]`, or `http://` with a loopback address.
    ///
    /// # Errors
    /// For anything else: http to another machine, user-info, a query, a fragment, another path.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(EndpointError(format!("is empty: {FORMS}")));
        }
        let url_text = if text.contains("://") {
            text.to_owned()
        } else {
            format!("https://{text}")
        };
        let malformed = |why: &dyn fmt::Display| EndpointError(format!("cannot be read ({why}): {FORMS}"));
        let extra = |what| EndpointError(format!("contains {what}, which does not belong into it"));
        let mut url = reqwest::Url::parse(&url_text).map_err(|error| malformed(&error))?;
        for (present, what) in [
            (
                !url.username().is_empty() || url.password().is_some(),
                "a user or password",
            ),
            (url.query().is_some(), "a query"),
            (url.fragment().is_some(), "a fragment"),
        ] {
            if present {
                return Err(extra(what));
            }
        }
        let host = url.host_str().unwrap_or_default();
        if host.is_empty() {
            return Err(malformed(&"it names no host"));
        }
        match url.scheme() {
            "https" => {}
            "http" if is_loopback(host) => {}
            scheme => {
                let what = format!("has the scheme {scheme}: only https carries a password");
                return Err(EndpointError(what));
            }
        }
        match url.path().trim_end_matches('/') {
            "" | "/sdk" | "/sdk/vimService" => url.set_path("/sdk"),
            _ => return Err(extra("a path other than /sdk")),
        }
        Ok(Self { url })
    }

    pub(super) fn sdk(&self) -> reqwest::Url {
        self.url.clone()
    }

    /// The address of a REST call; each segment of its path is escaped.
    pub(super) fn rest(&self, path: &[&str]) -> reqwest::Url {
        let mut url = self.url.clone();
        url.set_path("");
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.clear().extend(path);
        }
        url
    }

    /// The document with the API versions of the server.
    pub(super) fn versions(&self) -> reqwest::Url {
        let mut url = self.url.clone();
        url.set_path("/sdk/vimServiceVersions.xml");
        url
    }
}

/// Accepts addresses only, because a resolver decides what `localhost` is.
fn is_loopback(host: &str) -> bool {
    host.trim_matches(['[', ']'])
        .parse::<IpAddr>()
        .is_ok_and(|address| address.is_loopback())
}

impl Endpoint {
    /// Host name or address, without the port.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Host name, and the port if it is not 443.
    pub fn name(&self) -> String {
        let host = self.host();
        match self.url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Source of user and password.
#[derive(Clone, Debug)]
pub struct CredentialSource {
    /// The user, `name@domain` or `DOMAIN\name`.
    pub user: CredentialPart,
    pub password: CredentialPart,
}

#[derive(Clone, Debug)]
pub enum CredentialPart {
    /// A fixed value.
    Given(SecretString),
    /// A file. It is read for each login, so a rotated secret needs no restart.
    File(PathBuf),
}

pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: SecretString,
}

impl CredentialSource {
    /// Reads both parts. Line ends at the end are ignored, because tools that write a Secret or a variable may add one.
    pub(super) fn read(&self) -> Result<Credentials, LoginError> {
        let user = self.user.read("user name")?.expose_secret().to_owned();
        let password = self.password.read("password")?;
        Ok(Credentials { user, password })
    }
}

impl CredentialPart {
    fn read(&self, what: &'static str) -> Result<SecretString, LoginError> {
        let text = match self {
            Self::Given(secret) => secret.expose_secret().to_owned(),
            Self::File(path) => read_file(path)?,
        };
        let secret = without_line_ends(text);
        if secret.expose_secret().is_empty() {
            return Err(LoginError::Blank { what });
        }
        Ok(secret)
    }
}

fn read_file(path: &Path) -> Result<String, LoginError> {
    std::fs::read_to_string(path).map_err(|source| LoginError::File {
        path: path.to_owned(),
        source,
    })
}

fn without_line_ends(mut text: String) -> SecretString {
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    text.into()
}

/// Which certificates are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The system's trust roots.
    SystemRoots,
    /// The system's trust roots and this PEM file, which may hold the certificate of vCenter itself. The file is read
    /// for each login.
    CaBundle(PathBuf),
    /// Any certificate (`VCENTER_TLS_VERIFY=false`). Without a thumbprint, anyone on the network path can read the password.
    Nothing,
}

/// The SHA-256 digest of a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Thumbprint([u8; 32]);

impl Thumbprint {
    /// Reads 64 hexadecimal digits, with or without colons between pairs of them.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let pairs: Vec<&str> = match text.contains(':') {
            true => text.split(':').collect(),
            false => (0..text.len())
                .step_by(2)
                .map(|at| text.get(at..at + 2))
                .collect::<Option<_>>()?,
        };
        let read = |pair: &&str| {
            let is_pair = pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_pair.then(|| u8::from_str_radix(pair, 16).ok()).flatten()
        };
        let bytes: Vec<u8> = pairs.iter().map(read).collect::<Option<_>>()?;
        Some(Self(bytes.try_into().ok()?))
    }

    /// The thumbprint of a certificate in DER.
    pub(super) fn of(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Thumbprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.0.iter().map(|byte| format!("{byte:02X}")).collect();
        f.write_str(&pairs.join(":"))
    }
}

impl fmt::Debug for Thumbprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_in_every_form_people_write() {
        for (text, url) in [
            ("vc.example.com", "https://vc.example.com/sdk"),
            (" vc.example.com:8443 ", "https://vc.example.com:8443/sdk"),
            ("https://vc.example.com", "https://vc.example.com/sdk"),
            ("https://vc.example.com/sdk/", "https://vc.example.com/sdk"),
            ("http://127.0.0.1:1234/sdk", "http://127.0.0.1:1234/sdk"),
            ("http://[::1]:1234", "http://[::1]:1234/sdk"),
            ("10.0.0.1", "https://10.0.0.1/sdk"),
            ("10.0.0.1:8443", "https://10.0.0.1:8443/sdk"),
            ("[fd00::1]", "https://[fd00::1]/sdk"),
            ("[fd00::1]:8443", "https://[fd00::1]:8443/sdk"),
            ("https://[fd00::1]:8443/sdk", "https://[fd00::1]:8443/sdk"),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), url, "{text}");
        }
    }

    #[test]
    fn line_end_after_a_credential_does_not_count() {
        let path = std::env::temp_dir().join(format!("haulout-credential-{}", std::process::id()));
        for (text, meant) in [
            ("secret", Some("secret")),
            ("secret\n", Some("secret")),
            ("secret\r\n", Some("secret")),
            ("secret\r", Some("secret")),
            (" se\ncret \n", Some(" se\ncret ")),
            ("\n", None),
        ] {
            std::fs::write(&path, text).unwrap();
            for part in [
                CredentialPart::Given(text.to_owned().into()),
                CredentialPart::File(path.clone()),
            ] {
                let read = part.read("password").ok();
                let read = read.as_ref().map(ExposeSecret::expose_secret);
                assert_eq!(read, meant, "{part:?} {text:?}");
            }
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn thumbprint_is_read_with_and_without_colons() {
        let thumbprint = Thumbprint::of(b"certificate");
        let shown = thumbprint.to_string();
        assert_eq!(shown.len(), 95);
        for text in [
            shown.clone(),
            shown.replace(':', ""),
            format!(" {} ", shown.to_lowercase()),
        ] {
            assert_eq!(Thumbprint::parse(&text), Some(thumbprint), "{text}");
        }
        for text in [
            "",
            ":",
            &shown[..shown.len() - 1],
            &shown[3..],
            &shown[..59],
            &shown.replace(':', "-"),
            &format!("{shown}:00"),
            &shown.replacen(&shown[..2], "+1", 1),
            &shown.replacen(&shown[..2], "\u{e9}", 1),
            &shown.replace(':', "").replacen(&shown[..2], "\u{e9}a", 1),
        ] {
            assert_eq!(Thumbprint::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_address_that_would_leak_is_refused_and_not_repeated() {
        for text in [
            "",
            "http://vc.example.com/sdk",
            "http://localhost/sdk",
            "http://127.0.0.1.example.com/sdk",
            "ftp://vc/sdk",
            "https://u:hunter2@vc/sdk",
            "u:hunter2@vc",
            "https://vc/sdk?hunter2",
            "https://vc/sdk#hunter2",
            "https://vc/ui/hunter2",
            "https://",
            "a b",
            // An IPv6 address needs brackets.
            "fd00::1",
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
