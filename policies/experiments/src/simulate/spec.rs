//! Values of the command line that have parts: `poisson:rate=20,requests=5000`.
//!
//! The parts are read as the keys of a TOML file are, so that a mistake is told in the same words.

use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Result, ensure};
use pointsman_notation::TomlText;
use serde::de::DeserializeOwned;

/// Splits a value at the first colon: a name, and its parts.
pub(super) fn named(text: &str) -> (&str, &str) {
    text.split_once(':').unwrap_or((text, ""))
}

/// Splits a value into a path and its parts, which follow after `mark`. A whole value that is there is a path, whatever
/// is in its name.
pub(super) fn path(text: &str, mark: char) -> (&str, &str) {
    if Path::new(text).exists() {
        return (text, "");
    }
    text.split_once(mark).unwrap_or((text, ""))
}

/// Checks numbers, each called by its key, against what they may be.
///
/// # Errors
/// Names the first that is beyond that, infinite or no number.
pub(super) fn within(numbers: &[(&str, f64, RangeInclusive<f64>)]) -> Result<()> {
    for (key, number, range) in numbers {
        let (least, most) = (range.start(), range.end());
        let bounds = if most.is_finite() {
            format!("from {least} to {most}")
        } else {
            format!("at least {least}")
        };
        ensure!(
            number.is_finite() && range.contains(number),
            "{key} must be {bounds}, not {number}"
        );
    }
    Ok(())
}

/// The numbers from that one on.
pub(super) fn at_least(least: f64) -> RangeInclusive<f64> {
    least..=f64::INFINITY
}

/// Checks a number that is a rate or a factor: beyond a million, or a millionth, there is no end of a run.
///
/// # Errors
/// If it is not within that, or no number.
pub(super) fn factor(key: &str, number: f64) -> Result<f64> {
    within(&[(key, number, 1e-6..=1e6)])?;
    Ok(number)
}

/// Reads parts, written `key=value,key=value`. Errors call them `what`.
///
/// # Errors
/// If a part is none, or has a value that cannot be.
pub(super) fn parse<T: DeserializeOwned>(what: &str, parts: &str) -> Result<T> {
    Ok(TomlText::new(Path::new(what), toml_of(parts)).parse()?)
}

/// Parts as TOML: each on a line, and what is no value of TOML in quotes.
pub(super) fn toml_of(parts: &str) -> String {
    let line = |part: &str| match part.split_once('=') {
        Some((key, value)) => format!("{} = {}\n", key.trim(), value_of(value.trim())),
        None => format!("{}\n", part.trim()),
    };
    split(parts).into_iter().map(line).collect()
}

fn value_of(text: &str) -> String {
    if toml::from_str::<toml::Table>(&format!("x = {text}")).is_ok() {
        return text.to_owned();
    }
    toml::Value::String(text.to_owned()).to_string()
}

/// The parts between commas, but for those within brackets.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut from) = (0_u32, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use pointsman_notation::Time;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Parts {
        rate: f64,
        every: Option<Time>,
        list: Option<Vec<u32>>,
    }

    #[test]
    fn parts_are_keys_of_a_table_and_times_need_no_quotes() {
        let (name, parts) = named("poisson:rate=2.5, every=1.5s,list=[1,2]");
        assert_eq!(name, "poisson");
        let parts: Parts = parse(name, parts).unwrap();
        assert_eq!((parts.rate, parts.list), (2.5, Some(vec![1, 2])));
        assert_eq!(parts.every, Some(Time::from_millis(1500)));
        assert_eq!(named("agents"), ("agents", ""));
    }

    #[test]
    fn a_mistake_is_told_as_in_a_file() {
        let said = |parts: &str| parse::<Parts>("poisson", parts).unwrap_err().to_string();
        assert_eq!(
            said("rat=2"),
            "poisson:1:1: unknown key `rat`; did you mean `rate`?"
        );
        assert!(
            said("rate=1,every=5").starts_with("poisson:2:9: "),
            "{}",
            said("rate=1,every=5")
        );
    }
}
