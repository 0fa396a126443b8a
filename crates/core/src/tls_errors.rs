//! What is said of a certificate that TLS refuses for its type.

/// What the TLS library verifies: the algorithms of ring.
pub const SUPPORTED: &str = "supported are keys of RSA (2048 to 8192 bits), ECDSA (P-256, P-384) and Ed25519, and signatures with SHA-256, SHA-384 or SHA-512";

/// The variants of the library's error that name a signature of an unsupported type, with lists of object identifiers as bytes.
const UNSUPPORTED: &str = "UnsupportedSignatureAlgorithm";

/// The alert of a server that has no certificate of a type that the client supports. It has other reasons, too.
const PERHAPS_UNSUPPORTED: &str = "HandshakeFailure";

/// The error of a signature by another CA of the same name, and of one by a key that is too short.
const WRONG_SIGNATURE: &str = "BadSignature";

/// The text of an error, with what is supported if it is about that.
pub fn explained(text: &str) -> String {
    if let Some((before, _)) = text.split_once(UNSUPPORTED) {
        format!("{before}its key or signature is of an unsupported type; {SUPPORTED}")
    } else if text.contains(PERHAPS_UNSUPPORTED) {
        format!("{text}; its certificate may be of an unsupported type: {SUPPORTED}")
    } else if text.contains(WRONG_SIGNATURE) {
        format!(
            "{text}; it is signed by another CA of the same name, as after the CA was made anew, or is of an unsupported type: {SUPPORTED}"
        )
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
        let signed = explained("invalid peer certificate: BadSignature");
        assert!(signed.contains("another CA of the same name"), "{signed}");
        assert!(signed.ends_with(SUPPORTED), "{signed}");
        let other = "invalid peer certificate: UnknownIssuer";
        assert_eq!(explained(other), other);
    }
}
