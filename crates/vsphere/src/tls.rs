//! TLS with ring: system roots, an added CA bundle, or no verification.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::endpoint::Trust;
use super::error::ConnectError;

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
pub(super) fn config(trust: &Trust, ca: Option<&[u8]>) -> Result<ClientConfig, ConnectError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(ConnectError::Tls)?;
    let roots = match trust {
        Trust::Nothing => {
            return Ok(builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
                .with_no_client_auth());
        }
        Trust::SystemRoots => system_roots(),
        Trust::CaBundle(path) => {
            let mut roots = system_roots();
            add_ca(&mut roots, path, ca.unwrap_or_default())?;
            roots
        }
    };
    if roots.is_empty() {
        return Err(ConnectError::NoRoots);
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
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

/// Every certificate of a configured CA bundle must be usable.
fn add_ca(roots: &mut RootCertStore, path: &Path, content: &[u8]) -> Result<(), ConnectError> {
    let unusable = |why: String| ConnectError::CaContent {
        path: path.to_owned(),
        why,
    };
    let mut count = 0_usize;
    for certificate in CertificateDer::pem_slice_iter(content) {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| unusable(error.to_string()))?;
        count += 1;
    }
    if count == 0 {
        return Err(unusable("it holds no PEM certificate".to_owned()));
    }
    Ok(())
}

/// Accepts every certificate. Handshake signatures are still verified.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
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
            &self.0.signature_verification_algorithms,
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
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
