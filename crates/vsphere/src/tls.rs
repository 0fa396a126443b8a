//! TLS with ring: which certificates of a vCenter are accepted.
//!
//! A certificate is accepted if it is valid, names the vCenter, and is issued by a trusted CA or is itself in the
//! configured bundle. A configured thumbprint has to match in addition. Without verification it is all that has to.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
};

use super::endpoint::{Thumbprint, Trust};
use super::error::ConnectError;

#[cfg(test)]
mod tests;

/// Content of the CA file, if one is configured.
pub(super) fn read_ca(trust: &Trust) -> Result<Option<Vec<u8>>, ConnectError> {
    match trust {
        Trust::CaBundle(path) => match std::fs::read(path) {
            Ok(content) => Ok(Some(content)),
            Err(source) => Err(ConnectError::CaFile {
                path: path.clone(),
                source,
            }),
        },
        Trust::SystemRoots | Trust::Nothing => Ok(None),
    }
}

/// The TLS configuration; `ca` is the content of the CA file.
pub(super) fn config(
    trust: &Trust,
    thumbprint: Option<Thumbprint>,
    ca: Option<&[u8]>,
) -> Result<ClientConfig, ConnectError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let issuers = match trust {
        Trust::Nothing => None,
        Trust::SystemRoots => Some(Issuers::new(system_roots(), Vec::new(), &provider)?),
        Trust::CaBundle(path) => {
            let mut roots = system_roots();
            let bundle = add_ca(&mut roots, path, ca.unwrap_or_default())?;
            Some(Issuers::new(roots, bundle, &provider)?)
        }
    };
    let verifier = CertificateVerifier {
        provider: provider.clone(),
        issuers,
        thumbprint,
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ConnectError::Tls)?;
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

/// Skips roots that cannot be parsed: some distributions ship such roots.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let loaded = rustls_native_certs::load_native_certs();
    for error in &loaded.errors {
        tracing::debug!(%error, "a source of system CA certificates cannot be read");
    }
    roots.add_parsable_certificates(loaded.certs);
    roots
}

/// Returns the certificates of a configured CA bundle. Every one must be usable.
fn add_ca(
    roots: &mut RootCertStore,
    path: &Path,
    content: &[u8],
) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let unusable = |why: String| ConnectError::CaContent {
        path: path.to_owned(),
        why,
    };
    let mut bundle = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(content) {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots
            .add(certificate.clone())
            .map_err(|error| unusable(error.to_string()))?;
        bundle.push(certificate);
    }
    if bundle.is_empty() {
        return Err(unusable("it holds no PEM certificate".to_owned()));
    }
    Ok(bundle)
}

/// What a certificate is verified against.
#[derive(Debug)]
struct Issuers {
    chain: Arc<WebPkiServerVerifier>,
    /// The certificates of the bundle. An end-entity certificate among them is accepted as it is: webpki takes none
    /// for its own issuer.
    bundle: Vec<CertificateDer<'static>>,
}

impl Issuers {
    fn new(
        roots: RootCertStore,
        bundle: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, ConnectError> {
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
        let chain = chain.map_err(|_| ConnectError::NoRoots)?;
        Ok(Self { chain, bundle })
    }

    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let verified = self
            .chain
            .verify_server_cert(end_entity, intermediates, name, &[], now);
        match verified {
            Err(error) if self.bundle.contains(end_entity) && is_about_the_issuer(&error) => {
                rustls::client::verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)
            }
            verified => verified.map(|_| ()),
        }
    }
}

/// Whether only the issuer is at fault: none is known, one of the same name has another key, or the certificate is one of a
/// CA (which has no code of its own). webpki checks the validity first.
fn is_about_the_issuer(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature | CertificateError::Other(_)
        )
    )
}

/// Verifies the certificate of a vCenter. Handshake signatures are verified in any case.
#[derive(Debug)]
struct CertificateVerifier {
    provider: Arc<CryptoProvider>,
    /// `None` without verification.
    issuers: Option<Issuers>,
    thumbprint: Option<Thumbprint>,
}

/// A certificate with another thumbprint than the configured one.
#[derive(thiserror::Error)]
#[error("its SHA-256 thumbprint is {presented}, not that of VCENTER_THUMBPRINT")]
struct ThumbprintMismatch {
    presented: Thumbprint,
}

/// rustls prints the `Debug` form of an error that is not its own.
impl std::fmt::Debug for ThumbprintMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let presented = Thumbprint::of(end_entity);
        if self.thumbprint.is_some_and(|expected| expected != presented) {
            let error = OtherError(Arc::new(ThumbprintMismatch { presented }));
            return Err(CertificateError::Other(error).into());
        }
        if let Some(issuers) = &self.issuers {
            issuers.verify(end_entity, intermediates, name, now)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
