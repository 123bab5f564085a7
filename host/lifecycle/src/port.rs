//! The reconciler's way to the policies in force, which the driver owns.

use pointsman_interface::Micros;
use pointsman_interface::Needs;
use pointsman_policy::{Briefing, Commit, CommitError, Committed, Snapshot};

use super::report::ReloadStep;

/// The host of the policies, as the reconciler sees it. Each question waits for its answer.
pub trait PolicyPort {
    /// The state of a policy in force, for its successor; absent: there is none.
    fn handover(&self, policy: u32) -> Option<Snapshot>;

    /// The rows that a policy with these needs must be told before it takes over.
    ///
    /// # Errors
    /// If the host has ended.
    fn brief(&self, needs: Needs) -> Result<Briefing, HostEnded>;

    /// Changes the policies in force, all or nothing. An empty commit only returns the policies in
    /// force.
    ///
    /// # Errors
    /// If the host has ended. A commit that the host refuses has changed nothing.
    fn commit(&self, commit: Commit) -> Result<Result<Committed, CommitError>, HostEnded>;

    /// Counts a plan that became a commit, which held the host up for `pause`.
    fn count_committed(&self, pause: Micros);

    /// Counts a version that was refused at `step`.
    fn count_refused(&self, step: ReloadStep);
}

/// The error of a host that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host has ended")]
pub struct HostEnded;
