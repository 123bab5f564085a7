//! The least scenario of a policy that routes.

/// A scenario in which a policy finds one slot and one request, and places that.
pub(crate) fn one_is_placed(policy: &str) -> String {
    format!(
        "title = 'one is placed'
[policy.{policy}]
[[executor]]
name = 'gpu'
slots = 1
[[step]]
arrive = {{ name = 'one' }}
expect.placed = {{ one = 'gpu' }}
"
    )
}
