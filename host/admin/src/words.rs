//! What is told for people, in one form wherever it is told.

use pointsman_executor::delivery::BUILT_IN;

/// The author of a decision with the reason: `memory-aware: least load`.
pub(crate) fn author(policy: &str, reason: &str) -> String {
    match (policy, reason) {
        (BUILT_IN, _) => "the built-in rule".to_owned(),
        (policy, "") => policy.to_owned(),
        (policy, reason) => format!("{policy}: {reason}"),
    }
}
