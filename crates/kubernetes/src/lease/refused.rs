//! The note on the Lease that vCenter refused a login: the time and the user. Nothing in it is derived from a password.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use crate::answer;
use crate::keys::LOGIN_REFUSED;

/// The longest note that is read: a time and the longest user name that is written.
const CHARS_MAX: usize = 1_100;

/// A login that vCenter refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedLogin {
    /// When, on the clock of the replica that was refused.
    pub at: Timestamp,
    /// The user of the refused credentials.
    pub user: String,
}

/// The note that a leader writes with its next renewal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoginNote {
    /// The leader has no result of its own yet, so the existing note stays.
    #[default]
    Keep,
    /// The leader has logged in.
    Remove,
    Write(RefusedLogin),
}

impl LoginNote {
    /// Updates `annotations`.
    pub(super) fn write(&self, annotations: &mut BTreeMap<String, String>) {
        match self {
            Self::Keep => {}
            Self::Remove => drop(annotations.remove(LOGIN_REFUSED)),
            Self::Write(refused) => drop(annotations.insert(LOGIN_REFUSED.to_owned(), refused.write())),
        }
    }
}

impl RefusedLogin {
    /// Reads the note on `lease`; `None` if there is none or it is malformed.
    pub(super) fn read(lease: &Lease) -> Option<Self> {
        let note = lease.metadata.annotations.as_ref()?.get(LOGIN_REFUSED)?;
        if note.chars().nth(CHARS_MAX).is_some() {
            return None;
        }
        let (at, user) = note.split_once(' ')?;
        let at = at.parse().ok()?;
        let user = answer::plain(user);
        Some(Self { at, user })
    }

    fn write(&self) -> String {
        format!("{} {}", self.at, self.user)
    }

    /// The time since the refusal. A time in the future, after a clock was set back, counts as `now`.
    pub fn ago(&self, now: Timestamp) -> Duration {
        let ago = now.duration_since(self.at);
        ago.try_into().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(note: &str) -> Lease {
        let mut lease = Lease::default();
        lease.metadata.annotations = Some(BTreeMap::from([(LOGIN_REFUSED.to_owned(), note.to_owned())]));
        lease
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn note_is_read_as_it_was_written() {
        for user in ["svc@vsphere.local", "DOMAIN\\some one", ""] {
            let user = user.to_owned();
            let refused = RefusedLogin { at: at(7), user };
            assert_eq!(RefusedLogin::read(&lease(&refused.write())), Some(refused));
        }
    }

    #[test]
    fn malformed_note_counts_as_none() {
        let long = format!("2026-11-23T00:00:00Z {}", "a".repeat(CHARS_MAX));
        for note in ["", "yesterday someone", "2026-11-23T00:00:00Z", "1 2", &long] {
            assert_eq!(RefusedLogin::read(&lease(note)), None, "{note}");
        }
        assert_eq!(RefusedLogin::read(&Lease::default()), None);
    }

    #[test]
    fn time_in_the_future_counts_as_now() {
        let user = String::new();
        let refused = RefusedLogin { at: at(100), user };
        assert_eq!(refused.ago(at(130)), Duration::from_secs(30));
        assert_eq!(refused.ago(at(99)), Duration::ZERO);
        assert_eq!(refused.ago(Timestamp::MIN), Duration::ZERO);
    }
}
