//! The certificate of both simulated peers. It is its own authority, and lives as long as the demo.

use std::sync::Arc;

use anyhow::Context as _;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;

/// A certificate for loopback.
pub(crate) struct Certificate {
    pub(crate) pem: String,
    pub(crate) acceptor: TlsAcceptor,
}

impl Certificate {
    pub(crate) fn create() -> anyhow::Result<Self> {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["127.0.0.1".to_owned()]).context("making a certificate")?;
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("choosing versions of TLS")?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .context("using the certificate")?;
        Ok(Self {
            pem: cert.pem(),
            acceptor: TlsAcceptor::from(Arc::new(config)),
        })
    }
}
