//! Times between the file and the host's clock, and lists that may be a single item.

use std::fmt;
use std::marker::PhantomData;

use pointsman_core::Micros;
use pointsman_notation::Time;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use toml::Spanned;

use super::Name;

/// A written duration in the host's unit.
pub(crate) fn micros(time: Time) -> Micros {
    Micros(time.as_micros())
}

/// A time of the host's clock, as it is printed.
pub(crate) fn shown(at: Micros) -> Time {
    Time::from_micros(at.0)
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
