//! An expected cost: a number, a comparison with another executor, or no place at all.

use std::cmp::Ordering;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// The expected cost of a request on an executor, as the policy explains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    Exactly(i64),
    /// More, less or as much as on the executor of this name.
    Than(Ordering, String),
    /// The executor cannot take the request.
    NoPlace,
}

// === impl Cost ===

impl Cost {
    fn parse(text: &str) -> Option<Self> {
        if text == "no place" {
            return Some(Self::NoPlace);
        }
        let (sign, name) = text.split_once(' ')?;
        let ordering = match sign {
            "<" => Ordering::Less,
            "=" => Ordering::Equal,
            ">" => Ordering::Greater,
            _ => return None,
        };
        Some(Self::Than(ordering, name.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CostVisitor)
    }
}

struct CostVisitor;

impl Visitor<'_> for CostVisitor {
    type Value = Cost;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, \"< EXECUTOR\", \"= EXECUTOR\", \"> EXECUTOR\" or \"no place\"")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Cost, E> {
        Ok(Cost::Exactly(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cost, E> {
        Cost::parse(text).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
    }
}
