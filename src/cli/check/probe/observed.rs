//! What a probe saw, without names.

use crate::vsphere::client::{Error, TransportError};
use crate::vsphere::fault::FaultKind;
use crate::vsphere::updates::probe::{
    InventoryTraits, ListedTask, LongPoll, ProductInfo, ResultSizes, WatchedPushes,
};

/// Characters of the name of a fault that are kept. The longest of the API have fifty.
const FAULT_NAME_MAX: usize = 64;

/// Everything that was seen.
#[derive(Debug, Default)]
pub(super) struct Observations {
    pub(super) product: ProbeReading<ProductInfo>,
    pub(super) results: ProbeReading<ResultSizes>,
    /// `None` if vCenter has no task history.
    pub(super) tasks: ProbeReading<Option<Vec<ListedTask>>>,
    pub(super) traits: ProbeReading<InventoryTraits>,
    /// `event.maxAge`; `None` if there is no such setting.
    pub(super) event_age: ProbeReading<Option<String>>,
    pub(super) watch: ProbeReading<WatchedPushes>,
    /// Each longer than the one before, up to the first that failed.
    pub(super) polls: ProbeReading<Vec<LongPoll>>,
}

/// One thing that was looked for.
#[derive(Debug, Default)]
pub(super) enum ProbeReading<T> {
    /// Nobody wanted to wait for it.
    #[default]
    Skipped,
    /// It could not be read, for this reason.
    Unreadable(String),
    Got(T),
}

impl<T> ProbeReading<T> {
    pub(super) fn of(answer: Result<T, Error>) -> Self {
        match answer {
            Ok(value) => Self::Got(value),
            Err(error) => Self::Unreadable(without_names(&error)),
        }
    }
}

/// The class of an error. Its texts may name hosts and addresses.
fn without_names(error: &Error) -> String {
    match error {
        Error::Transport { source, .. } => match source {
            TransportError::Connection(_) => "the connection failed".to_owned(),
            TransportError::Deadline(limit) => format!("no answer within {} s", limit.as_secs()),
            TransportError::Status(status) => format!("HTTP status {status}"),
            TransportError::TooLarge(limit) => format!("an answer of more than {} MiB", limit >> 20),
        },
        Error::NotSent { source, .. } => without_names(source),
        Error::Reply { .. } => "an answer that cannot be understood".to_owned(),
        Error::Refused { source, .. } => format!("refused with {}", fault_name(&source.kind)),
        Error::Login { .. } => "no session".to_owned(),
    }
}

/// The type of a fault. An unknown one comes from vCenter, so only the letters of a name are left of it.
pub(super) fn fault_name(kind: &FaultKind) -> String {
    let FaultKind::Other(name) = kind else {
        return format!("{kind:?}");
    };
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.take(FAULT_NAME_MAX).collect()
}
