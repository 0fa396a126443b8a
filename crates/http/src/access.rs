//! Who may read the status page: clients that ask for it by a permitted name, with the token if one is configured.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header, uri::Authority};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tracing::warn;

/// The length of a token in characters. A shorter one could be guessed.
const TOKEN_LENGTHS: std::ops::RangeInclusive<usize> = 16..=4096;

/// The permitted names, and the file with the token.
#[derive(Clone, Debug, Default)]
pub struct PageAccess {
    /// In lower case, besides the names that only a cluster can resolve.
    pub names: BTreeSet<String>,
    pub token_file: Option<PathBuf>,
}

/// Answers a request that is not permitted.
pub(super) async fn check(State(access): State<Arc<PageAccess>>, request: Request, next: Next) -> Response {
    if !access.permits_name(&request) {
        let reason = "this page is not served by this name: set STATUS_HOSTS to the name that you use\n";
        return (StatusCode::MISDIRECTED_REQUEST, reason).into_response();
    }
    let Some(file) = &access.token_file else {
        return next.run(request).await;
    };
    match token(file).await {
        Ok(token) if sent(request.headers()).is_some_and(|sent| is_equal(&sent, &token)) => {
            next.run(request).await
        }
        Ok(_) => {
            // The browser asks for a user and a password.
            let challenge = [(
                header::WWW_AUTHENTICATE,
                "Basic realm=\"Haulout\", charset=\"UTF-8\"",
            )];
            let reason = "a token is needed: send it as Bearer token, or as password of any user\n";
            (StatusCode::UNAUTHORIZED, challenge, reason).into_response()
        }
        Err(why) => {
            warn!(
                "the status page is not served: STATUS_TOKEN_FILE={}: {why}",
                file.display()
            );
            let reason = "the token of this page cannot be read; the log has the reason\n";
            (StatusCode::SERVICE_UNAVAILABLE, reason).into_response()
        }
    }
}

impl PageAccess {
    /// Whether no other site can have led a browser to this name. A request without a name is from no browser.
    fn permits_name(&self, request: &Request) -> bool {
        let sent = request.headers().get(header::HOST);
        let name = match (request.uri().authority(), sent) {
            (Some(authority), _) => authority.clone(),
            (None, Some(host)) => match Authority::try_from(host.as_bytes()) {
                Ok(authority) => authority,
                Err(_) => return false,
            },
            (None, None) => return true,
        };
        let name = name.host().trim_end_matches('.').to_ascii_lowercase();
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        // No site of the Internet has such a name.
        let is_local = !name.contains('.')
            || [".localhost", ".svc", ".svc.cluster.local"]
                .iter()
                .any(|end| name.ends_with(end));
        is_address || is_local || self.names.contains(&name)
    }
}

/// Reads the token at each request, so that a rotated Secret needs no restart.
async fn token(file: &Path) -> Result<SecretString, String> {
    let mut text = String::new();
    let opened = tokio::fs::File::open(file)
        .await
        .map_err(|error| error.to_string())?;
    let limit = u64::try_from(*TOKEN_LENGTHS.end()).unwrap_or(u64::MAX) + 2;
    opened
        .take(limit)
        .read_to_string(&mut text)
        .await
        .map_err(|error| error.to_string())?;
    let token = text.trim();
    if TOKEN_LENGTHS.contains(&token.len()) {
        Ok(SecretString::from(token))
    } else {
        let (least, most) = (TOKEN_LENGTHS.start(), TOKEN_LENGTHS.end());
        Err(format!("a token of {least} to {most} characters is expected"))
    }
}

/// The token that the client sent.
fn sent(headers: &HeaderMap) -> Option<SecretString> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, credentials) = text.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(SecretString::from(credentials.trim()));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(credentials.trim()).ok()?).ok()?;
    Some(SecretString::from(decoded.split_once(':')?.1))
}

/// Compares digests, so that the time of the comparison tells nothing about the token.
fn is_equal(a: &SecretString, b: &SecretString) -> bool {
    let digest = |text: &SecretString| Sha256::digest(text.expose_secret());
    digest(a) == digest(b)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use tower::ServiceExt as _;

    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    async fn asks(access: PageAccess, headers: &[(header::HeaderName, &str)]) -> Response {
        let router = Router::new()
            .route("/", get(async || "names of nodes"))
            .layer(from_fn_with_state(Arc::new(access), check));
        let mut request = Request::get("/");
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        router
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn page_is_refused_under_a_name_that_another_site_can_have() {
        let access = PageAccess {
            names: BTreeSet::from(["haulout.example.com".to_owned()]),
            token_file: None,
        };
        let code = async |host: &str| asks(access.clone(), &[(header::HOST, host)]).await.status();
        for host in [
            "127.0.0.1:8082",
            "[::1]:8082",
            "localhost:8082",
            "haulout-status",
            "haulout-status.haulout.svc",
            "haulout-status.haulout.svc.cluster.local:80",
            "Haulout.example.com",
            "haulout.example.com.:443",
        ] {
            assert_eq!(code(host).await, StatusCode::OK, "{host}");
        }
        for host in [
            "attacker.example",
            "x.svc.attacker.example",
            "127.0.0.1.attacker.example",
            "example.com",
            "a b",
            "",
        ] {
            assert_eq!(code(host).await, StatusCode::MISDIRECTED_REQUEST, "{host:?}");
        }
        assert_eq!(asks(access, &[]).await.status(), StatusCode::OK, "HTTP/1.0");
    }

    #[tokio::test]
    async fn page_with_a_token_is_read_with_this_token_only() {
        let file = std::env::temp_dir().join(format!("haulout-status-token-{}", std::process::id()));
        let access = PageAccess {
            names: BTreeSet::new(),
            token_file: Some(file.clone()),
        };
        let code = async |sent: &str| {
            asks(access.clone(), &[(header::AUTHORIZATION, sent)])
                .await
                .status()
        };
        assert_eq!(code("Bearer x").await, StatusCode::SERVICE_UNAVAILABLE, "no file");
        std::fs::write(&file, "short\n").unwrap();
        assert_eq!(code("Bearer short").await, StatusCode::SERVICE_UNAVAILABLE);
        std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
        let basic = |password: &str| format!("Basic {}", STANDARD.encode(format!("me:{password}")));
        assert_eq!(code(&format!("Bearer {TOKEN}")).await, StatusCode::OK);
        assert_eq!(code(&basic(TOKEN)).await, StatusCode::OK);
        for wrong in [
            "",
            TOKEN,
            "Bearer ",
            "Bearer 0123456789abcdeF",
            "Basic !",
            "Negotiate 0123456789abcdef",
            &basic(""),
            &basic("0123456789abcde"),
        ] {
            assert_eq!(code(wrong).await, StatusCode::UNAUTHORIZED, "{wrong}");
        }
        let refused = asks(access, &[]).await;
        assert!(refused.headers().contains_key(header::WWW_AUTHENTICATE));
        std::fs::remove_file(&file).unwrap();
    }
}
