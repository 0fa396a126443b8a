//! Which certificates are accepted, by the verifier itself and with certificates made for each test.

use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

use super::*;

/// Within the validity of a certificate, unless a test says otherwise.
fn now() -> UnixTime {
    // 2026-06-01
    UnixTime::since_unix_epoch(Duration::from_secs(1_780_272_000))
}

type Ca = (CertificateDer<'static>, Issuer<'static, KeyPair>);

fn ca() -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "VMCA");
    let key = KeyPair::generate().unwrap();
    let root = params.self_signed(&key).unwrap().der().clone();
    (root, Issuer::new(params, key))
}

/// A certificate for `vc.example.com`, valid until the end of `year`.
fn leaf(year: i32) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["vc.example.com".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(year, 12, 31);
    params
}

fn issued(params: &CertificateParams, (_, issuer): &Ca) -> CertificateDer<'static> {
    let key = KeyPair::generate().unwrap();
    params.signed_by(&key, issuer).unwrap().der().clone()
}

fn self_signed(params: &CertificateParams) -> CertificateDer<'static> {
    let key = KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap().der().clone()
}

/// A verifier that trusts this bundle alone.
fn bundle(bundle: &[&CertificateDer<'static>]) -> CertificateVerifier {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in bundle {
        roots.add((*certificate).clone()).unwrap();
    }
    let bundle = bundle.iter().map(|it| (*it).clone()).collect();
    CertificateVerifier {
        issuers: Some(Issuers::new(roots, bundle, &provider).unwrap()),
        thumbprint: None,
        provider,
    }
}

fn verify(
    verifier: &CertificateVerifier,
    certificate: &CertificateDer<'_>,
    name: &str,
) -> Result<(), String> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let verified = verifier.verify_server_cert(certificate, &[], &name, &[], now());
    verified.map(|_| ()).map_err(|error| error.to_string())
}

const VC: &str = "vc.example.com";

#[test]
fn leaf_in_the_bundle_is_accepted_without_its_ca() {
    let leaf_of_ca = issued(&leaf(2030), &ca());
    assert_eq!(verify(&bundle(&[&leaf_of_ca]), &leaf_of_ca, VC), Ok(()));
    // Beside another CA of the same name, such as the one before it was made anew.
    let (before, _) = ca();
    assert_eq!(verify(&bundle(&[&before, &leaf_of_ca]), &leaf_of_ca, VC), Ok(()));
}

#[test]
fn self_signed_certificate_in_the_bundle_is_accepted() {
    let mut params = leaf(2030);
    let plain = self_signed(&params);
    assert_eq!(verify(&bundle(&[&plain]), &plain, VC), Ok(()));
    // The form that openssl makes by default.
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let like_a_ca = self_signed(&params);
    assert_eq!(verify(&bundle(&[&like_a_ca]), &like_a_ca, VC), Ok(()));
}

#[test]
fn another_leaf_of_the_same_ca_is_refused() {
    let ca = ca();
    let (ours, other) = (issued(&leaf(2030), &ca), issued(&leaf(2030), &ca));
    let error = verify(&bundle(&[&ours]), &other, VC).unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");
}

#[test]
fn leaf_in_the_bundle_has_to_name_the_vcenter_and_be_valid() {
    let ours = issued(&leaf(2030), &ca());
    let error = verify(&bundle(&[&ours]), &ours, "other.example.com").unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
    let expired = issued(&leaf(2025), &ca());
    let error = verify(&bundle(&[&expired]), &expired, VC).unwrap_err();
    assert!(error.contains("expired"), "{error}");
    let mut params = leaf(2025);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let expired = self_signed(&params);
    let error = verify(&bundle(&[&expired]), &expired, VC).unwrap_err();
    assert!(error.contains("expired"), "{error}");
}

#[test]
fn certificate_of_a_trusted_ca_is_accepted() {
    let ca = ca();
    let ours = issued(&leaf(2030), &ca);
    assert_eq!(verify(&bundle(&[&ca.0]), &ours, VC), Ok(()));
}

#[test]
fn thumbprint_has_to_match_in_addition() {
    let ca = ca();
    let (ours, other) = (issued(&leaf(2030), &ca), issued(&leaf(2030), &ca));
    let mut verifier = bundle(&[&ca.0]);
    verifier.thumbprint = Some(Thumbprint::of(&ours));
    assert_eq!(verify(&verifier, &ours, VC), Ok(()));
    let error = verify(&verifier, &other, VC).unwrap_err();
    let presented = Thumbprint::of(&other).to_string();
    assert!(error.contains(&presented), "{error}");

    // It does not replace the check of the chain.
    let foreign = issued(&leaf(2030), &self::ca());
    verifier.thumbprint = Some(Thumbprint::of(&foreign));
    assert!(verify(&verifier, &foreign, VC).is_err());
}

#[test]
fn without_verification_the_thumbprint_alone_has_to_match() {
    let (ours, other) = (issued(&leaf(2025), &ca()), issued(&leaf(2030), &ca()));
    let mut verifier = CertificateVerifier {
        provider: Arc::new(rustls::crypto::ring::default_provider()),
        issuers: None,
        thumbprint: None,
    };
    assert_eq!(verify(&verifier, &other, "any.example.com"), Ok(()));
    verifier.thumbprint = Some(Thumbprint::of(&ours));
    assert_eq!(verify(&verifier, &ours, "any.example.com"), Ok(()));
    assert!(verify(&verifier, &other, VC).is_err());
}
