//! The topology groups that serve a model: found once for all requests that differ in nothing but their size.
//!
//! A longer request fits into the devices of fewer executors. So of each group and model the longest request is kept for
//! which an executor was found, and the shortest for which none was: all that are no longer than the one, or no shorter than
//! the other, need no look at executors.

use std::collections::BTreeMap;

use crate::case::Case;

/// Groups and models, with the requests for which the group has an executor that may take them once there is room.
///
/// It follows from the rows, so a policy clears it at every `observe`.
///
/// ```
/// use pointsman_sdk::{Case, KnownGroups};
///
/// fn serves(groups: &mut KnownGroups, case: &Case<'_>, group: u32) -> bool {
///     groups.serves(case, group, || {
///         let mut executors = case.fleet.mirror.executors();
///         executors.any(|it| it.info.group == group && case.check_lasting(&it).is_ok())
///     })
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct KnownGroups(BTreeMap<(u32, Option<u32>), Served>);

/// The lengths of requests for one model that a group serves, in tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    /// The longest that it is known to serve; absent: none.
    longest: Option<u64>,
    /// The shortest that it is known not to serve; absent: none.
    too_long: Option<u64>,
}

// === impl KnownGroups ===

impl KnownGroups {
    /// Forgets what was found.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns whether a group has an executor which may take the request once there is room. `find` looks for one, where
    /// that is not known of requests like this.
    pub fn serves(&mut self, case: &Case<'_>, group: u32, find: impl FnOnce() -> bool) -> bool {
        let request = case.request;
        if request.allowed.is_some() || request.failed_on.is_some() {
            return find();
        }
        let tokens = case.tokens_bound();
        let known = self.0.entry((group, request.model)).or_default();
        if known.longest.is_some_and(|longest| tokens <= longest) {
            return true;
        }
        if known.too_long.is_some_and(|too_long| tokens >= too_long) {
            return false;
        }
        let found = find();
        let bound = if found {
            &mut known.longest
        } else {
            &mut known.too_long
        };
        *bound = Some(tokens);
        found
    }
}
