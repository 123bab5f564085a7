//! Times as they are written, `250ms`, and lists that may be a single item.

use std::fmt;
use std::marker::PhantomData;

use pointsman_core::Micros;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use toml::Spanned;

use super::Name;

/// A time or duration: a number, with decimals or without, and `us`, `ms`, `s` or `min`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) Micros);

/// Units by suffix, the longer of two with one ending first.
const UNITS: [(&str, u64); 4] = [
    ("min", 60_000_000),
    ("us", 1),
    ("ms", 1000),
    ("s", 1_000_000),
];

fn parse(text: &str) -> Option<Micros> {
    let (number, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) {
        return None;
    }
    let scale = 10_u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let part = decimals.parse::<u64>().ok()?.checked_mul(unit)?;
    if part % scale != 0 {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    whole.checked_add(part / scale).map(Micros)
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).map(Self).ok_or_else(|| {
            D::Error::custom(format!(
                "`{text}` is no time: write a number of whole microseconds with a unit, \
                 as in `250ms`, `1.5s`, `40us` or `2min`"
            ))
        })
    }
}

/// Seconds, with as many decimals as there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seconds(pub(crate) Micros);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0.0 / 1_000_000, self.0.0 % 1_000_000);
        if part == 0 {
            return write!(f, "{whole}s");
        }
        let decimals = format!("{part:06}");
        write!(f, "{whole}.{}s", decimals.trim_end_matches('0'))
    }
}

/// One name, or a list of them.
#[derive(Clone, Debug)]
pub(crate) struct Names(pub(crate) Vec<Name>);

enum OneOrMore {
    One(String),
    More(Vec<Name>),
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Spanned::<OneOrMore>::deserialize(deserializer)?;
        let span = names.span();
        Ok(Self(match names.into_inner() {
            OneOrMore::One(name) => vec![Spanned::new(span, name)],
            OneOrMore::More(names) => names,
        }))
    }
}

impl<'de> Deserialize<'de> for OneOrMore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NamesVisitor)
    }
}

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = OneOrMore;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name or a list of names")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(OneOrMore::One(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, names: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(names)).map(OneOrMore::More)
    }
}

/// One table, or a list of them.
#[derive(Clone, Debug)]
pub(crate) struct Many<T>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ManyVisitor(PhantomData))
    }
}

struct ManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ManyVisitor<T> {
    type Value = Many<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table or a list of tables")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|item| Many(vec![item]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(items)).map(Many)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_microseconds_with_a_unit() {
        let good = [
            ("0s", 0),
            ("40us", 40),
            ("250ms", 250_000),
            ("1.5s", 1_500_000),
            ("29.999999s", 29_999_999),
            ("2min", 120_000_000),
        ];
        for (text, micros) in good {
            assert_eq!(parse(text), Some(Micros(micros)), "{text}");
        }
        for text in [
            "", "5", "s", "-1s", "1.s", ".5s", "0.5us", "1e3s", "5 s", "1h",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_shown_in_seconds() {
        let shown = [0, 1_500_000, 29_999_999, 40].map(|at| Seconds(Micros(at)).to_string());
        assert_eq!(shown, ["0s", "1.5s", "29.999999s", "0.00004s"]);
    }
}
