//! The names by which operators know policies: those of their files, without the ending.

/// The most bytes of a policy's name, which ends up in labels, headers and log lines.
const NAME_BYTES_MAX: usize = 64;

/// The names that [`is_policy_name`] takes, in words.
pub const POLICY_NAME: &str =
    "a policy's name has at most 64 letters, digits, '-', '_' and '.', and does not begin with '.'";

/// True for a text that can be the name of a policy's file.
#[must_use]
pub fn is_policy_name(text: &str) -> bool {
    let fits = (1..=NAME_BYTES_MAX).contains(&text.len());
    fits && is_of_name_letters(text) && !text.starts_with('.')
}

/// True for a text that has no other characters than such names.
pub(crate) fn is_of_name_letters(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.bytes().all(allowed)
}
