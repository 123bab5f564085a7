//! Names that operators give: of models, devices, executors, tenants and label keys.

/// The most characters of a name.
pub const NAME_CHARS_MAX: usize = 128;

/// The names that [`is_name`] takes, in words.
pub const NAME: &str = "a name of 1 to 128 characters, without control characters and outer spaces";

/// The same as a regular expression, for schemas.
pub const NAME_PATTERN: &str =
    r"^[^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?$";

/// True for a text that is fit for a name.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_plain = !text.chars().any(char::is_control) && text.trim() == text;
    is_plain && (1..=NAME_CHARS_MAX).contains(&text.chars().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_plain_text() {
        let long = "ä".repeat(NAME_CHARS_MAX);
        for name in ["a", "org/model 1", "größe", &long] {
            assert!(is_name(name), "{name:?}");
        }
        let longer = "a".repeat(NAME_CHARS_MAX + 1);
        for text in ["", " a", "a\n", "a\tb", "\u{85}", &longer] {
            assert!(!is_name(text), "{text:?}");
        }
        assert!(NAME.contains(&NAME_CHARS_MAX.to_string()));
    }
}
