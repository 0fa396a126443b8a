//! What is said of a certificate that TLS refuses for its type.

/// What the TLS library verifies: the algorithms of ring.
pub const SUPPORTED: &str = "supported are keys of RSA (2048 to 8192 bits), ECDSA (P-256, P-384) and Ed25519, and signatures with SHA-256, SHA-384 or SHA-512";

/// The variants of the library's error that name a signature of an unsupported type, with lists of object identifiers as bytes.
const UNSUPPORTED: &str = "UnsupportedSignatureAlgorithm";

/// The alert of a server that has no certificate of a type that the client supports, and the error of a signature by a key that is too
/// short. Both have other reasons, too.
const PERHAPS_UNSUPPORTED: [&str; 2] = ["HandshakeFailure", "BadSignature"];

/// The text of an error, with what is supported if it is about that.
pub fn explained(text: &str) -> String {
    if let Some((before, _)) = text.split_once(UNSUPPORTED) {
        format!("{before}its key or signature is of an unsupported type; {SUPPORTED}")
    } else if PERHAPS_UNSUPPORTED.iter().any(|word| text.contains(word)) {
        format!("{text}; its certificate may be of an unsupported type: {SUPPORTED}")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_type_is_explained_and_other_errors_are_kept() {
        let unsupported =
            "no connection: invalid peer certificate: UnsupportedSignatureAlgorithmContext { ids: [6, 9] }";
        let shown = explained(unsupported);
        assert!(
            shown.starts_with("no connection: invalid peer certificate: its key or signature is"),
            "{shown}"
        );
        assert!(shown.ends_with(SUPPORTED) && !shown.contains("[6"), "{shown}");
        let refused = explained("received fatal alert: HandshakeFailure");
        assert!(refused.ends_with(SUPPORTED), "{refused}");
        let other = "invalid peer certificate: UnknownIssuer";
        assert_eq!(explained(other), other);
    }
}
