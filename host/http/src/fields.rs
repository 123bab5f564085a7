//! The fields of a request's body: each is taken by the code that understands it, beside which its
//! schema stands.
//!
//! A body is checked to be JSON, and the text of each of its fields is noted; a value is made of a
//! field that is taken. A field that nobody takes costs a few words, whatever it holds
//! (`tests::fields_that_nobody_takes_are_not_made_into_values`).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use schemars::Schema;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::error::{ApiError, quoted};

/// The most fields of an object.
const FIELDS_MAX: usize = 1024;

/// Named values, as their JSON texts in the body; `null` is as good as absent.
#[derive(Clone, Debug)]
pub struct Fields<'b> {
    values: BTreeMap<String, &'b RawValue>,
    /// Makes the name that a field has in errors.
    named: fn(&str) -> String,
}

/// The fields of an object, up to the most that are taken.
struct Noted<'b> {
    values: BTreeMap<String, &'b RawValue>,
    surplus: usize,
}

// === impl Fields ===

impl<'b> Fields<'b> {
    /// No fields.
    #[must_use]
    pub fn none(named: fn(&str) -> String) -> Self {
        let values = BTreeMap::new();
        Self { values, named }
    }

    /// The fields of a body, which has to be a JSON object.
    ///
    /// # Errors
    /// If it is none, or has too many fields.
    pub fn parse(body: &'b [u8]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(body).map_err(|error| {
            ApiError::Body(format!("is not UTF-8 at byte {}", error.valid_up_to()))
        })?;
        if text.trim_ascii_start().starts_with('{') {
            return Self::noted(text, str::to_owned);
        }
        let found = described(parsed(text)?);
        let message = format!("has to be a JSON object, not {found}");
        Err(ApiError::Body(message))
    }

    /// The fields of an object; absent: `value` is none. `named` makes their names in errors.
    ///
    /// # Errors
    /// If the object has too many fields.
    pub fn of(value: &'b RawValue, named: fn(&str) -> String) -> Result<Option<Self>, ApiError> {
        if !value.get().starts_with('{') {
            return Ok(None);
        }
        Self::noted(value.get(), named).map(Some)
    }

    /// The fields of the object that `json` is.
    fn noted(json: &'b str, named: fn(&str) -> String) -> Result<Self, ApiError> {
        let Noted { values, surplus } = parsed(json)?;
        if surplus > 0 {
            let message = format!("has an object with more than {FIELDS_MAX} fields");
            return Err(ApiError::Body(message));
        }
        Ok(Self { values, named })
    }

    /// True if `name` has a value other than `null`.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The value of `name`, which stays; absent: there is none, or `null`.
    pub fn get(&self, name: &str) -> Option<&'b RawValue> {
        let value = self.values.get(name).copied();
        value.filter(|value| !is_null(value))
    }

    /// Takes the value of `name`; absent: there is none, or `null`.
    pub fn take(&mut self, name: &str) -> Option<&'b RawValue> {
        self.values.remove(name).filter(|value| !is_null(value))
    }

    /// Takes the value of `name`, which has to be there and be `wanted`.
    ///
    /// # Errors
    /// If it is not there, or something else.
    pub fn require<T: DeserializeOwned>(
        &mut self,
        name: &'static str,
        wanted: &str,
    ) -> Result<T, ApiError> {
        let value = self.take_as(name, wanted, |_| true)?;
        value.ok_or(ApiError::Missing(name))
    }

    /// Takes the value of `name`, which has to be `wanted`: of the type `T`, and such that it
    /// `fits`.
    ///
    /// # Errors
    /// If it is something else.
    pub fn take_as<T: DeserializeOwned>(
        &mut self,
        name: &str,
        wanted: &str,
        fits: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match read_whole(value).filter(fits) {
            Some(taken) => Ok(Some(taken)),
            None => Err(mismatch((self.named)(name), wanted, value)),
        }
    }

    /// Takes the value of `name`, which has to be an integer within `range`.
    ///
    /// # Errors
    /// If it is something else.
    pub fn take_integer(
        &mut self,
        name: &str,
        range: &RangeInclusive<u32>,
    ) -> Result<Option<u32>, ApiError> {
        let wanted = format!("an integer from {} to {}", range.start(), range.end());
        self.take_as(name, &wanted, |number| range.contains(number))
    }

    /// Refuses a name that was not taken. There are the names `known`.
    ///
    /// # Errors
    /// The first name that was not taken.
    pub fn none_left(&self, known: &[&str]) -> Result<(), ApiError> {
        let Some(unknown) = self.left().next() else {
            return Ok(());
        };
        let (unknown, known) = (quoted(unknown), known.join(", "));
        let message = format!("there is no `{unknown}`; there are: {known}");
        Err(ApiError::field(unknown, message))
    }

    /// The names that were not taken, in order.
    pub fn left(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }
}

// === impl Noted ===

impl<'de> Deserialize<'de> for Noted<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Noting;
        impl<'de> Visitor<'de> for Noting {
            type Value = Noted<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Noted<'de>, A::Error> {
                let (mut values, mut surplus) = (BTreeMap::new(), 0);
                while let Some(name) = map.next_key::<String>()? {
                    if values.len() < FIELDS_MAX || values.contains_key(&name) {
                        values.insert(name, map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                        surplus += 1;
                    }
                }
                Ok(Noted { values, surplus })
            }
        }
        deserializer.deserialize_map(Noting)
    }
}

// === Values ===

fn parsed<'b, T: Deserialize<'b>>(text: &'b str) -> Result<T, ApiError> {
    let parsed = serde_json::from_str(text);
    parsed.map_err(|error| ApiError::Body(format!("is not JSON: {error}")))
}

/// The value as a `T`, if it is one.
pub fn read<'b, T: Deserialize<'b>>(value: &'b RawValue) -> Option<T> {
    serde_json::from_str(value.get()).ok()
}

/// The value as a `T`, if it is one. A number without a fraction is an integer however it is written,
/// as it is in JSON Schema.
pub fn read_whole<T: DeserializeOwned>(value: &RawValue) -> Option<T> {
    read(value).or_else(|| serde_json::from_str(&whole(value.get())?).ok())
}

/// The digits of a number without a fraction that a float has exactly.
fn whole(json: &str) -> Option<String> {
    let is_number = json.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    let number: f64 = is_number.then(|| json.parse().ok()).flatten()?;
    let is_exact = number.fract() == 0.0 && number.abs() <= 2_f64.powi(53);
    // No integer is written `-0`.
    is_exact.then(|| format!("{:.0}", number + 0.0))
}

fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

/// The error of a parameter that is not `wanted`.
pub fn mismatch(param: String, wanted: &str, value: &RawValue) -> ApiError {
    unlike(param, wanted, &described(value))
}

/// The error of a parameter that is not `wanted`, but the text `found`.
pub fn mismatched_text(param: String, wanted: &str, found: &str) -> ApiError {
    unlike(param, wanted, &described_text(found))
}

fn unlike(param: String, wanted: &str, found: &str) -> ApiError {
    let message = format!("`{param}` has to be {wanted}, not {found}");
    ApiError::field(param, message)
}

fn described(value: &RawValue) -> String {
    let json = value.get();
    if json.starts_with('{') {
        "an object".to_owned()
    } else if let Some(items) = json.strip_prefix('[') {
        let is_empty = items.trim_start().starts_with(']');
        if is_empty { "an empty list" } else { "a list" }.to_owned()
    } else if json.starts_with('"') {
        let text: Option<String> = read(value);
        described_text(text.as_deref().unwrap_or(json))
    } else {
        quoted(json)
    }
}

fn described_text(text: &str) -> String {
    format!("the text `{}`", quoted(text))
}

// === Schemas ===

/// Fields with their schemas.
pub type Properties = Vec<(&'static str, Value)>;

/// The schema of the values that [`Fields::take_integer`] takes.
pub fn integer(description: &str, range: &RangeInclusive<u32>) -> Value {
    json!({
        "description": description,
        "type": "integer", "minimum": range.start(), "maximum": range.end(),
    })
}

/// The schema of an object with these fields; those not `required` may also be `null`, which
/// [`Fields`] takes for absent.
pub fn object(required: &[&str], properties: Properties) -> Schema {
    let properties = properties.into_iter().map(|(name, schema)| {
        let schema = if required.contains(&name) {
            schema
        } else {
            nullable(schema)
        };
        (name.to_owned(), schema)
    });
    let properties: Map<_, _> = properties.collect();
    let schema = json!({"type": "object", "required": required, "properties": properties});
    Schema::try_from(schema).expect("an object is a schema")
}

/// The schema of an object with these fields, in which other fields are refused.
pub fn closed_object(required: &[&str], properties: Properties) -> Schema {
    let mut schema = object(required, properties);
    schema.insert("additionalProperties".to_owned(), false.into());
    schema
}

/// The schema of values of `schema` and `null`.
fn nullable(mut schema: Value) -> Value {
    if schema.get("$ref").is_some() {
        return json!({"anyOf": [schema, {"type": "null"}]});
    }
    if let Some(Value::String(kind)) = schema.get("type")
        && kind != "null"
    {
        schema["type"] = json!([kind, "null"]);
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.push(Value::Null);
    }
    if let Some(Value::Array(schemas)) = schema.get_mut("anyOf") {
        schemas.push(json!({"type": "null"}));
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_nobody_takes_are_not_made_into_values() {
        // No value could be made of these: they are nested deeper than any parser of values goes,
        // and a number is larger than any.
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let body = format!(r#"{{"deep": {deep}, "large": 1e999, "model": "demo"}}"#);
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        assert_eq!(fields.require("model", "a text"), Ok("demo".to_owned()));
        assert_eq!(fields.left().collect::<Vec<_>>(), ["deep", "large"]);
        // Each is a piece of the body, and no copy.
        let text = fields.take("deep").unwrap().get();
        assert!(body.as_bytes().as_ptr_range().contains(&text.as_ptr()));
        let bad = r#"{"deep": [[1, }"#;
        assert!(Fields::parse(bad.as_bytes()).is_err());
    }

    #[test]
    fn an_object_has_no_more_fields_than_are_noted() {
        let object = |fields: usize| {
            let fields = (0..fields).map(|n| format!("\"f{n}\": 1"));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        };
        let full = object(FIELDS_MAX);
        let fields = Fields::parse(full.as_bytes()).unwrap();
        assert_eq!(fields.left().count(), FIELDS_MAX);
        let error = Fields::parse(object(FIELDS_MAX + 1).as_bytes()).err();
        assert_eq!(
            error.map(|error| error.to_string()).as_deref(),
            Some("the body has an object with more than 1024 fields")
        );
    }

    #[test]
    fn the_last_of_two_fields_of_one_name_counts() {
        let mut fields = Fields::parse(br#"{"n": 1, "n": 2}"#).unwrap();
        assert_eq!(fields.require("n", "an integer"), Ok(2));
    }

    #[test]
    fn a_number_without_a_fraction_is_an_integer_however_it_is_written() {
        let read = |json: &str| read_whole::<u32>(parsed(json).unwrap());
        for (json, number) in [("400", 400), ("400.0", 400), ("4e2", 400), ("-0.0", 0)] {
            assert_eq!(read(json), Some(number), "{json}");
        }
        for json in [
            "400.5",
            "-1.0",
            "1e300",
            "1e999",
            "\"400.0\"",
            "true",
            "[1.0]",
        ] {
            assert_eq!(read(json), None, "{json}");
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_shown() {
        for (json, shown) in [
            ("null", "null"),
            ("true", "true"),
            ("-1.5", "-1.5"),
            (r#""a\nb""#, "the text `a?b`"),
            (r#""\ud800""#, r#"the text `"\ud800"`"#),
            ("[ ]", "an empty list"),
            ("[1]", "a list"),
            ("{}", "an object"),
        ] {
            assert_eq!(described(parsed(json).unwrap()), shown);
        }
    }
}
