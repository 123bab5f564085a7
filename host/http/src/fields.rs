//! The fields of a request's body: each is taken by the code that understands it, beside which its
//! schema stands.

use schemars::Schema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::error::{ApiError, quoted};

/// Named values; `null` is as good as absent.
#[derive(Debug)]
pub(super) struct Fields {
    values: Map<String, Value>,
    /// Makes the name that a field has in errors.
    named: fn(&str) -> String,
}

// === impl Fields ===

impl Fields {
    pub(super) fn new(values: Map<String, Value>, named: fn(&str) -> String) -> Self {
        Self { values, named }
    }

    /// The fields of a body, which has to be a JSON object.
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(body).map_err(|error| {
            ApiError::Body(format!("is not UTF-8 at byte {}", error.valid_up_to()))
        })?;
        let value = serde_json::from_str(text)
            .map_err(|error| ApiError::Body(format!("is not JSON: {error}")))?;
        match value {
            Value::Object(values) => Ok(Self::new(values, str::to_owned)),
            other @ (Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)) => Err(ApiError::Body(format!(
                "has to be a JSON object, not {}",
                described(&other)
            ))),
        }
    }

    /// True if `name` has a value other than `null`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes the value of `name`; absent: there is none, or `null`.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.values.remove(name).filter(|value| !value.is_null())
    }

    /// Takes the value of `name`, which has to be there and be `wanted`.
    pub(super) fn require<T: DeserializeOwned>(
        &mut self,
        name: &'static str,
        wanted: &str,
    ) -> Result<T, ApiError> {
        let value = self.take_as(name, wanted, |_| true)?;
        value.ok_or(ApiError::Missing(name))
    }

    /// Takes the value of `name`, which has to be `wanted`: of the type `T`, and such that it
    /// `fits`.
    pub(super) fn take_as<T: DeserializeOwned>(
        &mut self,
        name: &str,
        wanted: &str,
        fits: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match T::deserialize(&value).ok().filter(fits) {
            Some(taken) => Ok(Some(taken)),
            None => Err(mismatch((self.named)(name), wanted, &value)),
        }
    }

    /// The names that were not taken, in order.
    pub(super) fn left(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }
}

/// The error of a parameter that is not `wanted`.
pub(super) fn mismatch(param: String, wanted: &str, value: &Value) -> ApiError {
    let message = format!("`{param}` has to be {wanted}, not {}", described(value));
    ApiError::field(param, message)
}

fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => quoted(&value.to_string()),
        Value::String(text) => format!("the text `{}`", quoted(text)),
        Value::Array(list) if list.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

// === Schemas ===

/// Fields with their schemas.
pub(super) type Properties = Vec<(&'static str, Value)>;

/// The schema of an object with these fields; those not `required` may also be `null`, which
/// [`Fields`] takes for absent.
pub(super) fn object(required: &[&str], properties: Properties) -> Schema {
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
pub(super) fn closed_object(required: &[&str], properties: Properties) -> Schema {
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
