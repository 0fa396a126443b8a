//! The standard variables of an OTLP exporter. They are read here, and not by the exporter's own crate, so that what it would ignore
//! is refused or told.

use std::collections::HashMap;
use std::time::Duration;

use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use reqwest::Url;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tracing::warn;

use super::without_password;
use crate::misconfigured::Misconfigured;

/// The path for traces below the address of all signals.
const TRACES_PATH: &str = "/v1/traces";

/// Where spans go, and how.
pub(super) struct OtlpSettings {
    pub(super) endpoint: OtlpVariable,
    pub(super) url: Url,
    pub(super) protocol: OtlpProtocol,
    pub(super) timeout: Option<Duration>,
    pub(super) headers: HashMap<String, String>,
    authority: Option<Vec<u8>>,
    identity: Option<ClientIdentity>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtlpProtocol {
    Grpc,
    HttpProtobuf,
}

/// A variable that is set.
pub(super) struct OtlpVariable {
    pub(super) name: &'static str,
    value: String,
}

/// The certificate by which the collector knows this client, and its key.
struct ClientIdentity {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl OtlpVariable {
    /// That this value cannot be used.
    pub(super) fn wrong(&self, why: impl std::fmt::Display) -> Misconfigured {
        Misconfigured::new(
            self.name,
            &without_password(&self.value),
            without_password(&why.to_string()),
        )
    }

    fn file(&self) -> Result<Vec<u8>, Misconfigured> {
        std::fs::read(&self.value).map_err(|error| self.wrong(error))
    }
}

impl OtlpSettings {
    /// Reads the variables; `None` without an endpoint, or if traces are disabled.
    ///
    /// # Errors
    /// For a value that cannot be used.
    pub(super) fn read(read: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Misconfigured> {
        let set = |name: &'static str| {
            let value = read(name)?.trim().to_owned();
            (!value.is_empty()).then_some(OtlpVariable { name, value })
        };
        // Variables for traces take precedence over those for all signals.
        let either = |[specific, general]: [&'static str; 2]| set(specific).or_else(|| set(general));
        let endpoint = either([
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ]);
        let Some(endpoint) = endpoint else { return Ok(None) };
        let is_true =
            |variable: Option<OtlpVariable>| variable.is_some_and(|it| it.value.eq_ignore_ascii_case("true"));
        if is_true(set("OTEL_SDK_DISABLED")) {
            return Ok(None);
        }
        if is_off(set("OTEL_TRACES_EXPORTER"))? {
            return Ok(None);
        }
        let protocol = either([
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ]);
        let protocol = protocol_of(protocol)?;
        let is_insecure = is_true(either([
            "OTEL_EXPORTER_OTLP_TRACES_INSECURE",
            "OTEL_EXPORTER_OTLP_INSECURE",
        ]));
        let timeout = either(["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"]);
        let headers = either(["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"]);
        let compression = either([
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
            "OTEL_EXPORTER_OTLP_COMPRESSION",
        ]);
        if let Some(variable) = compression.filter(|it| !it.value.eq_ignore_ascii_case("none")) {
            let OtlpVariable { name, value } = variable;
            warn!("{name}={value:?} is not supported: spans are sent without compression");
        }
        let authority = either([
            "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
        ]);
        let certificate = either([
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
        ]);
        let key = either([
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
            "OTEL_EXPORTER_OTLP_CLIENT_KEY",
        ]);
        Ok(Some(Self {
            url: url_of(&endpoint, protocol, is_insecure)?,
            endpoint,
            protocol,
            timeout: timeout.as_ref().map(milliseconds).transpose()?,
            headers: headers.as_ref().map(pairs).transpose()?.unwrap_or_default(),
            authority: authority.as_ref().map(certificates).transpose()?,
            identity: identity(certificate, key)?,
        }))
    }

    /// TLS for gRPC, with the system's roots and the configured one; `None` without TLS.
    pub(super) fn grpc_tls(&self) -> Option<ClientTlsConfig> {
        if self.url.scheme() != "https" {
            return None;
        }
        let mut tls = ClientTlsConfig::new().with_enabled_roots();
        if let Some(pem) = &self.authority {
            tls = tls.ca_certificate(Certificate::from_pem(pem));
        }
        if let Some(ClientIdentity { certificate, key }) = &self.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        Some(tls)
    }

    /// TLS for HTTP, with the system's roots and the configured one. reqwest's own setup fails on a system without roots, even for an
    /// endpoint without TLS.
    pub(super) fn http_tls(&self) -> anyhow::Result<rustls::ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let authority = self.authority.iter();
        for certificate in authority.flat_map(|pem| CertificateDer::pem_slice_iter(pem)) {
            roots.add(certificate?)?;
        }
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let Some(ClientIdentity { certificate, key }) = &self.identity else {
            return Ok(tls.with_no_client_auth());
        };
        let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>()?;
        Ok(tls.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key)?)?)
    }
}

fn is_off(exporter: Option<OtlpVariable>) -> Result<bool, Misconfigured> {
    let Some(variable) = exporter else {
        return Ok(false);
    };
    match variable.value.as_str() {
        "otlp" => Ok(false),
        "none" => Ok(true),
        _ => Err(variable.wrong("otlp or none is expected")),
    }
}

/// HTTP with protobuf, unless set otherwise.
fn protocol_of(variable: Option<OtlpVariable>) -> Result<OtlpProtocol, Misconfigured> {
    let Some(variable) = variable else {
        return Ok(OtlpProtocol::HttpProtobuf);
    };
    match variable.value.as_str() {
        "http/protobuf" => Ok(OtlpProtocol::HttpProtobuf),
        "grpc" => Ok(OtlpProtocol::Grpc),
        _ => Err(variable.wrong("grpc or http/protobuf is expected")),
    }
}

/// The address of the requests. gRPC needs no scheme, and has no path; the path for traces is added to an address for all signals.
fn url_of(endpoint: &OtlpVariable, protocol: OtlpProtocol, is_insecure: bool) -> Result<Url, Misconfigured> {
    let expected = match protocol {
        OtlpProtocol::Grpc => "host:port or an http or https URL is expected",
        OtlpProtocol::HttpProtobuf => "an http or https URL is expected, such as http://collector:4318",
    };
    let text = endpoint.value.as_str();
    let text = match (protocol, text.contains("://")) {
        (OtlpProtocol::Grpc, false) if is_insecure => format!("http://{text}"),
        (OtlpProtocol::Grpc, false) => format!("https://{text}"),
        (OtlpProtocol::Grpc | OtlpProtocol::HttpProtobuf, _) => text.to_owned(),
    };
    let mut url = Url::parse(&text).map_err(|error| endpoint.wrong(format!("{expected} ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(endpoint.wrong(expected));
    }
    if protocol == OtlpProtocol::HttpProtobuf && endpoint.name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
        let path = format!("{}{TRACES_PATH}", url.path().trim_end_matches('/'));
        url.set_path(&path);
    }
    Ok(url)
}

fn milliseconds(variable: &OtlpVariable) -> Result<Duration, Misconfigured> {
    let number = variable.value.parse::<u64>().ok().filter(|number| *number > 0);
    let expected = "a whole number of milliseconds from 1 on is expected";
    number
        .map(Duration::from_millis)
        .ok_or_else(|| variable.wrong(expected))
}

/// The pairs of a list such as `name=value,name=value`, whose values are percent-encoded.
fn pairs(variable: &OtlpVariable) -> Result<HashMap<String, String>, Misconfigured> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_encoding::percent_decode_str(value.trim())
            .decode_utf8()
            .ok()?;
        http::HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        http::HeaderValue::from_str(&value).ok()?;
        Some((name.trim().to_owned(), value.into_owned()))
    };
    let words = variable.value.split(',').map(str::trim);
    let pairs: Option<_> = words.filter(|word| !word.is_empty()).map(pair).collect();
    // The value may be a secret.
    let expected = "headers as name=value are expected, with commas between them";
    pairs.ok_or_else(|| Misconfigured::new(variable.name, "***", expected))
}

/// A PEM file with at least one certificate.
fn certificates(variable: &OtlpVariable) -> Result<Vec<u8>, Misconfigured> {
    let pem = variable.file()?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| variable.wrong(error))?;
        roots.add(certificate).map_err(|error| variable.wrong(error))?;
    }
    if roots.is_empty() {
        return Err(variable.wrong("it holds no PEM certificate"));
    }
    Ok(pem)
}

fn identity(
    certificate: Option<OtlpVariable>,
    key: Option<OtlpVariable>,
) -> Result<Option<ClientIdentity>, Misconfigured> {
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => {
            let (chain, secret) = (certificates(&certificate)?, key.file()?);
            // It may be quoted by an error of the parser, which is therefore left out.
            let unusable = |_| key.wrong("it holds no PEM private key");
            let read = PrivateKeyDer::from_pem_slice(&secret).map_err(unusable)?;
            rustls::crypto::ring::sign::any_supported_type(&read).map_err(|_| {
                key.wrong(
                    "its key is of no supported type: RSA of 2048 to 8192 bits, P-256, P-384 or Ed25519",
                )
            })?;
            Ok(Some(ClientIdentity {
                certificate: chain,
                key: secret,
            }))
        }
        (Some(alone), None) => Err(alone.wrong("it needs the key: OTEL_EXPORTER_OTLP_CLIENT_KEY is not set")),
        (None, Some(alone)) => {
            Err(alone.wrong("it needs the certificate: OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE is not set"))
        }
    }
}
