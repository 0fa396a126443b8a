//! The permission to make a call that changes something.

/// Its holder has checked the leadership.
pub trait WritePermit: Sync {
    /// The epoch of the leadership; 0 without leader election.
    fn epoch(&self) -> u64;
}
