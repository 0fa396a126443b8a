//! Refused logins: which credentials are held back, and until when.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::endpoint::Credentials;
use crate::error::LoginError;
use crate::fault::{Fault, FaultKind};
use crate::text::for_people;

/// Whether to hold back the credentials after this fault: another try could lock the account, or cannot
/// succeed.
pub(super) fn is_refusal(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::InvalidLogin | FaultKind::NoPermission)
}

/// The latest refusal.
#[derive(Default)]
pub(super) struct Refusals(Mutex<Option<RefusedCredentials>>);

struct RefusedCredentials {
    digest: [u8; 32],
    until: Instant,
    /// The fault; `None` if another process received it.
    fault: Option<Fault>,
}

impl Refusals {
    /// Fails while these credentials are held back.
    pub(super) fn check(&self, credentials: &Credentials) -> Result<(), LoginError> {
        let refused = self.lock();
        let Some(refused) = refused.as_ref().filter(|it| it.digest == digest(credentials)) else {
            return Ok(());
        };
        let again_in = refused.until.saturating_duration_since(Instant::now());
        if again_in.is_zero() {
            return Ok(());
        }
        Err(match refused.fault.clone() {
            Some(source) => LoginError::Credentials { again_in, source },
            None => LoginError::RefusedElsewhere { again_in },
        })
    }

    /// Holds back these credentials for `hold`.
    pub(super) fn refused(&self, credentials: &Credentials, source: Fault, hold: Duration) -> LoginError {
        self.set(credentials, hold, Some(source.clone()));
        LoginError::Credentials {
            again_in: hold,
            source,
        }
    }

    /// Holds back the current credentials of `user`, which vCenter refused to another process.
    pub(super) fn refused_elsewhere(&self, credentials: &Credentials, user: &str, hold: Duration) {
        if for_people(&credentials.user) == user {
            self.set(credentials, hold, None);
        }
    }

    pub(super) fn clear(&self) {
        *self.lock() = None;
    }

    fn set(&self, credentials: &Credentials, hold: Duration, fault: Option<Fault>) {
        *self.lock() = Some(RefusedCredentials {
            digest: digest(credentials),
            until: Instant::now() + hold,
            fault,
        });
    }

    fn lock(&self) -> MutexGuard<'_, Option<RefusedCredentials>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A digest of the credentials. It stays in this process.
fn digest(credentials: &Credentials) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(credentials.user.len().to_be_bytes());
    hash.update(credentials.user.as_bytes());
    hash.update(credentials.password.expose_secret().as_bytes());
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_secs(180);

    fn credentials(user: &str, password: &str) -> Credentials {
        Credentials {
            user: user.to_owned(),
            password: password.to_owned().into(),
        }
    }

    fn fault() -> Fault {
        Fault {
            kind: FaultKind::InvalidLogin,
            message: "no".to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_credentials_are_held_until_the_time_is_over_or_they_change() {
        let refusals = Refusals::default();
        let wrong = credentials("a", "wrong");
        assert!(refusals.check(&wrong).is_ok());
        drop(refusals.refused(&wrong, fault(), HOLD));
        assert!(matches!(
            refusals.check(&wrong),
            Err(LoginError::Credentials { again_in: HOLD, .. })
        ));
        assert!(refusals.check(&credentials("a", "other")).is_ok());
        assert!(refusals.check(&credentials("b", "wrong")).is_ok());
        tokio::time::advance(HOLD).await;
        assert!(refusals.check(&wrong).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_of_another_process_holds_the_same_user_until_a_change() {
        let refusals = Refusals::default();
        let ours = credentials("a", "as it was");
        refusals.refused_elsewhere(&ours, "b", HOLD);
        assert!(refusals.check(&ours).is_ok(), "another user's");
        refusals.refused_elsewhere(&ours, "a", HOLD);
        assert!(matches!(
            refusals.check(&ours),
            Err(LoginError::RefusedElsewhere { again_in: HOLD })
        ));
        assert!(refusals.check(&credentials("a", "changed since")).is_ok());
        refusals.clear();
        assert!(refusals.check(&ours).is_ok());
    }
}
