//! Logins that vCenter refused or did not answer: which credentials are held back, and until when.

use std::time::Duration;

use parking_lot::Mutex;
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

/// The first pauses after a refusal of credentials that vCenter has accepted before, or after a login without an answer. A
/// vCenter that starts may answer `InvalidLogin` to a correct password. A login without an answer may have been a failed one.
/// With these and a hold of 180 s, at most 3 attempts fall within 3 minutes; by default vCenter locks an account after 5.
const FIRST_HOLDS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(30)];

/// The latest refusal, and what vCenter accepted last.
#[derive(Default)]
pub(super) struct Refusals(Mutex<LoginHistory>);

#[derive(Default)]
struct LoginHistory {
    held: Option<HeldCredentials>,
    /// The credentials that vCenter accepted last.
    accepted: Option<[u8; 32]>,
    /// How many logins failed since, each of which had one of [`FIRST_HOLDS`] or comes after these.
    failed_since: usize,
}

struct HeldCredentials {
    digest: [u8; 32],
    until: Instant,
    why: HoldReason,
}

#[derive(Clone)]
enum HoldReason {
    Refused(Fault),
    /// Another process received the refusal.
    RefusedElsewhere,
    Unanswered,
}

impl Refusals {
    /// Fails while these credentials are held back.
    pub(super) fn check(&self, credentials: &Credentials) -> Result<(), LoginError> {
        let history = self.0.lock();
        let held = history.held.as_ref();
        let Some(held) = held.filter(|it| it.digest == digest(credentials)) else {
            return Ok(());
        };
        let again_in = held.until.saturating_duration_since(Instant::now());
        if again_in.is_zero() {
            return Ok(());
        }
        Err(match held.why.clone() {
            HoldReason::Refused(source) => LoginError::Credentials { again_in, source },
            HoldReason::RefusedElsewhere => LoginError::RefusedElsewhere { again_in },
            HoldReason::Unanswered => LoginError::Unanswered { again_in },
        })
    }

    /// Holds back these credentials for `hold`, or for less if vCenter has accepted them before.
    pub(super) fn refused(&self, credentials: &Credentials, source: Fault, hold: Duration) -> LoginError {
        let hold = self.0.lock().hold(digest(credentials), &source, hold);
        self.set(credentials, hold, HoldReason::Refused(source.clone()));
        LoginError::Credentials {
            again_in: hold,
            source,
        }
    }

    /// Holds back the current credentials of `user`, which vCenter refused to another process.
    pub(super) fn refused_elsewhere(&self, credentials: &Credentials, user: &str, hold: Duration) {
        if for_people(&credentials.user) == user {
            self.set(credentials, hold, HoldReason::RefusedElsewhere);
        }
    }

    /// Holds back these credentials after a login without an answer, for `hold` or less.
    pub(super) fn unanswered(&self, credentials: &Credentials, hold: Duration) {
        let hold = self.0.lock().next_hold(hold);
        self.set(credentials, hold, HoldReason::Unanswered);
    }

    /// Records that vCenter accepted these credentials.
    pub(super) fn accepted(&self, credentials: &Credentials) {
        *self.0.lock() = LoginHistory {
            accepted: Some(digest(credentials)),
            ..LoginHistory::default()
        };
    }

    /// Clears a recorded refusal.
    pub(super) fn clear(&self) {
        self.0.lock().held = None;
    }

    fn set(&self, credentials: &Credentials, hold: Duration, why: HoldReason) {
        self.0.lock().held = Some(HeldCredentials {
            digest: digest(credentials),
            until: Instant::now() + hold,
            why,
        });
    }
}

impl LoginHistory {
    /// How long to hold back these credentials, at most `longest`. Counts the refusal.
    fn hold(&mut self, refused: [u8; 32], fault: &Fault, longest: Duration) -> Duration {
        if fault.kind != FaultKind::InvalidLogin || self.accepted != Some(refused) {
            return longest;
        }
        self.next_hold(longest)
    }

    fn next_hold(&mut self, longest: Duration) -> Duration {
        let hold = FIRST_HOLDS.get(self.failed_since).copied();
        self.failed_since = self.failed_since.saturating_add(1);
        hold.unwrap_or(longest).min(longest)
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
        Fault::new(FaultKind::InvalidLogin, "no")
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

    /// The holds of four refusals in a row.
    async fn holds(refusals: &Refusals, credentials: &Credentials, fault: Fault) -> [u64; 4] {
        let mut holds = [0; 4];
        for hold in &mut holds {
            let LoginError::Credentials { again_in, .. } = refusals.refused(credentials, fault.clone(), HOLD)
            else {
                panic!("the login was refused by vCenter");
            };
            *hold = again_in.as_secs();
            assert!(refusals.check(credentials).is_err());
            tokio::time::advance(again_in).await;
            assert!(refusals.check(credentials).is_ok());
        }
        holds
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_that_were_accepted_are_tried_again_soon() {
        let refusals = Refusals::default();
        let ours = credentials("a", "right");
        assert_eq!(holds(&refusals, &ours, fault()).await, [180; 4], "never accepted");
        refusals.accepted(&ours);
        assert_eq!(holds(&refusals, &ours, fault()).await, [10, 30, 180, 180]);
        refusals.accepted(&ours);
        assert_eq!(holds(&refusals, &ours, fault()).await, [10, 30, 180, 180]);
        refusals.accepted(&ours);
        let other = credentials("a", "changed");
        assert_eq!(holds(&refusals, &other, fault()).await, [180; 4]);
        let denied = Fault::new(FaultKind::NoPermission, "no");
        assert_eq!(holds(&refusals, &ours, denied).await, [180; 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn logins_without_an_answer_count_like_refused_ones() {
        let refusals = Refusals::default();
        let (ours, other) = (credentials("a", "right"), credentials("a", "changed"));
        for hold in [10, 30, 180, 180] {
            refusals.unanswered(&ours, HOLD);
            let Err(LoginError::Unanswered { again_in }) = refusals.check(&ours) else {
                panic!("they are held");
            };
            assert_eq!(again_in.as_secs(), hold);
            assert!(refusals.check(&other).is_ok());
        }
        refusals.accepted(&ours);
        assert!(refusals.check(&ours).is_ok());
        refusals.unanswered(&ours, HOLD);
        assert_eq!(holds(&refusals, &ours, fault()).await, [30, 180, 180, 180]);
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_of_another_process_is_held_in_full() {
        let refusals = Refusals::default();
        let ours = credentials("a", "right");
        refusals.accepted(&ours);
        refusals.refused_elsewhere(&ours, "a", HOLD);
        assert!(matches!(
            refusals.check(&ours),
            Err(LoginError::RefusedElsewhere { again_in: HOLD })
        ));
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
