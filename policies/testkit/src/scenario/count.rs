//! Numbers that a scenario may leave open.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// An expected number of events, or any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Exactly(usize),
    Any,
}

impl Default for Count {
    fn default() -> Self {
        Self::Exactly(0)
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

struct CountVisitor;

impl Visitor<'_> for CountVisitor {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or \"any\"")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Count, E> {
        let wrong = |_negative| E::custom(format!("{number} is no number of events"));
        usize::try_from(number).map(Count::Exactly).map_err(wrong)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Count, E> {
        match text {
            "any" => Ok(Count::Any),
            _ => Err(E::custom(format!("`{text}`: write a number, or \"any\""))),
        }
    }
}
