//! Texts from strangers, made safe for every place where they may be shown.
//!
//! A policy's name, reason, refusal or line may end up in a log, on a terminal, in a header, on a
//! page or in a metric. Each of these places escapes what is special to it. Here every text is cut
//! and rid of what is no text: control characters, among them the escapes of terminals, and the
//! invisible characters that change the direction of writing.
//!
//! # Invariants
//! 1. A text from a guest has at most the allowed number of bytes, and no more memory than that
//!    (`tests`).

use std::fmt::{self, Write as _};

/// The character in the place of one that is not shown.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// `text` on one line, in at most `bytes_max` bytes. A character that is not shown is replaced.
#[must_use]
pub fn line(text: &str, bytes_max: usize) -> String {
    shown(text, bytes_max, |c| !is_hidden(c))
}

/// `text` with its lines and tabs, in at most `bytes_max` bytes. A character that is not shown is
/// replaced.
#[must_use]
pub fn paragraph(text: &str, bytes_max: usize) -> String {
    shown(text, bytes_max, |c| {
        matches!(c, '\n' | '\t') || !is_hidden(c)
    })
}

/// True if `text` is one line without hidden characters.
#[must_use]
pub fn is_line(text: &str) -> bool {
    !text.chars().any(is_hidden)
}

/// Writes `value` to a text of at most `bytes_max` bytes; the rest is never made.
#[must_use]
pub fn formatted(value: fmt::Arguments<'_>, bytes_max: usize) -> String {
    let mut bounded = Bounded {
        text: String::new(),
        bytes_max,
    };
    // An error means that it is full.
    bounded.write_fmt(value).unwrap_or_default();
    paragraph(&bounded.text, bytes_max)
}

fn shown(text: &str, bytes_max: usize, is_shown: impl Fn(char) -> bool) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let c = if is_shown(c) { c } else { REPLACEMENT };
        if out.len() + c.len_utf8() > bytes_max {
            break;
        }
        out.push(c);
    }
    out.shrink_to_fit();
    out
}

/// True for control characters and for those that change the direction of writing.
fn is_hidden(c: char) -> bool {
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}');
    c.is_control()
        || turns
        || ('\u{202a}'..='\u{202e}').contains(&c)
        || ('\u{2066}'..='\u{2069}').contains(&c)
        || matches!(c, '\u{2028}' | '\u{2029}')
}

/// A text that refuses more once it is full.
struct Bounded {
    text: String,
    bytes_max: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = self.bytes_max - self.text.len();
        let fits = more.floor_char_boundary(room);
        self.text.push_str(&more[..fits]);
        if fits < more.len() {
            return Err(fmt::Error);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_a_character_and_keeps_no_more_memory() {
        let long = "\u{e4}".repeat(1000);
        let cut = line(&long, 7);
        assert_eq!(cut, "\u{e4}\u{e4}\u{e4}");
        assert!(cut.capacity() < 16);
        assert_eq!(line("short", 7), "short");
    }

    #[test]
    fn escapes_of_terminals_and_turns_of_writing_are_not_shown() {
        assert_eq!(
            line("a\u{1b}[31mb\r\n", 99),
            "a\u{fffd}[31mb\u{fffd}\u{fffd}"
        );
        assert_eq!(paragraph("a\n\tb\u{9b}1m", 99), "a\n\tb\u{fffd}1m");
        assert_eq!(line("evil\u{202e}msaw", 99), "evil\u{fffd}msaw");
        assert!(is_line("d\u{e9}j\u{e0} vu \u{1f600}"));
        assert!(!is_line("two\nlines"));
    }

    /// Counts how often it is asked for more.
    struct Endless<'a>(&'a std::cell::Cell<u32>);

    impl fmt::Display for Endless<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            loop {
                self.0.set(self.0.get() + 1);
                f.write_str("0123456789")?;
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_never_made() {
        let asked = std::cell::Cell::new(0);
        let text = formatted(format_args!("{}", Endless(&asked)), 25);
        assert_eq!(text, "0123456789012345678901234");
        assert_eq!(asked.get(), 3);
    }
}
