//! The keeper's way to the policies in force: the driver, which owns them.

use pointsman_core::rows::FeedKinds;
use pointsman_policy::{Briefing, Snapshot};

use crate::driver::message::{Commit, CommitError, Committed, DriverHandle};

/// What the keeper asks of the host. Each call waits for its answer.
pub trait PolicyPort {
    /// The state of a policy in force, for its successor; absent: it has none.
    fn handover(&self, policy: u32) -> Option<Snapshot>;

    /// What a policy that wants `kinds` must be told to take over; absent: the host has ended.
    fn brief(&self, kinds: FeedKinds) -> Option<Briefing>;

    /// Puts policies in force, all or none. An empty commit changes nothing and says what is.
    ///
    /// # Errors
    /// If the host refuses one, or has ended; nothing has changed then.
    fn commit(&self, commit: Commit) -> Result<Committed, CommitError>;
}

impl PolicyPort for DriverHandle {
    fn handover(&self, policy: u32) -> Option<Snapshot> {
        DriverHandle::handover(self, policy)
    }

    fn brief(&self, kinds: FeedKinds) -> Option<Briefing> {
        DriverHandle::brief(self, kinds)
    }

    fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        DriverHandle::commit(self, commit)
    }
}
