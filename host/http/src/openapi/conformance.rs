//! Checks of answers and bodies against the document, for tests.
//!
//! Knows the keywords of JSON Schema that the document has, and panics at any other.

use hyper::Method;
use serde_json::{Map, Value};

use super::DOCUMENT;
use crate::routes::Resource;

/// The server reads numbers with 32 bits.
const ROUNDING: f64 = 1e-6;

/// Checks an answer to `method` of `path`: the document has its status, and a schema that fits.
///
/// # Errors
/// The first thing that does not fit.
pub fn check_answer(
    (method, path): (&str, &str),
    status: u16,
    content_type: &str,
    body: &[u8],
) -> Result<(), String> {
    let text = String::from_utf8_lossy(body);
    let Some(operation) = operation(method, path) else {
        // 404 and 405 are answers of no operation.
        return check(&error_schema(), &parsed(&text)?);
    };
    let response = &operation["responses"][status.to_string()];
    let media_type = content_type.split(';').next().unwrap_or_default();
    let mut contents = resolved(response)["content"]
        .as_object()
        .into_iter()
        .flatten();
    let content = contents.find(|(known, _)| known.split(';').next() == Some(media_type));
    let (_, content) = content.ok_or_else(|| format!("no {status} {content_type}"))?;
    let schema = &content["schema"];
    match media_type {
        "application/json" => check(schema, &parsed(&text)?),
        "text/event-stream" => {
            let mut data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            data.try_for_each(|data| match data {
                "[DONE]" => Ok(()),
                data => check(schema, &parsed(data)?),
            })
        }
        _ => check(schema, &Value::from(text)),
    }
}

/// Checks a body that `method` of `path` has accepted.
///
/// # Errors
/// The first thing that does not fit.
pub fn check_body((method, path): (&str, &str), body: &Value) -> Result<(), String> {
    let operation = operation(method, path).ok_or("no such operation")?;
    match &operation["requestBody"]["content"]["application/json"]["schema"] {
        Value::Null => Ok(()),
        schema => check(schema, body),
    }
}

/// The operation that answers a request, if one does.
fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next()?;
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    let resource = Resource::find(path).ok()?;
    let route = resource.route(&method).ok()?;
    let method = route.method.as_str().to_lowercase();
    Some(&DOCUMENT["paths"][route.path][method])
}

fn error_schema() -> Value {
    Value::from_iter([("$ref", "#/components/schemas/Error")])
}

fn parsed(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("no JSON: {error}: {text}"))
}

/// The part of the document that `part` is or refers to.
fn resolved(part: &Value) -> &Value {
    match part.get("$ref").and_then(Value::as_str) {
        None => part,
        Some(target) => {
            let target = DOCUMENT.pointer(target.trim_start_matches('#'));
            target.expect("every reference leads somewhere")
        }
    }
}

/// Checks `value` against `schema`.
fn check(schema: &Value, value: &Value) -> Result<(), String> {
    let Some(keywords) = schema.as_object() else {
        return Ok(());
    };
    for (keyword, wanted) in keywords {
        let fits = match keyword.as_str() {
            "description" | "title" | "format" | "default" => true,
            "$ref" => {
                check(resolved(schema), value)?;
                true
            }
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|wanted| is_of_type(wanted, value)),
                wanted => is_of_type(wanted, value),
            },
            "const" => is_same(wanted, value),
            "enum" => list(wanted).any(|wanted| is_same(wanted, value)),
            "anyOf" => list(wanted).any(|schema| check(schema, value).is_ok()),
            "oneOf" => {
                list(wanted)
                    .filter(|schema| check(schema, value).is_ok())
                    .count()
                    == 1
            }
            "minimum" => value
                .as_f64()
                .is_none_or(|value| value >= number(wanted) - ROUNDING),
            "maximum" => value
                .as_f64()
                .is_none_or(|value| value <= number(wanted) + ROUNDING),
            "exclusiveMinimum" => value.as_f64().is_none_or(|value| value > number(wanted)),
            "minLength" => value
                .as_str()
                .is_none_or(|text| text.chars().count() >= size(wanted)),
            "maxLength" => value
                .as_str()
                .is_none_or(|text| text.chars().count() <= size(wanted)),
            "minItems" => value
                .as_array()
                .is_none_or(|items| items.len() >= size(wanted)),
            "maxItems" => value
                .as_array()
                .is_none_or(|items| items.len() <= size(wanted)),
            "maxProperties" => value
                .as_object()
                .is_none_or(|map| map.len() <= size(wanted)),
            "required" => value.as_object().is_none_or(|map| has_all(map, wanted)),
            "items" => {
                list(value).try_for_each(|item| check(wanted, item))?;
                true
            }
            "properties" => {
                let values = value.as_object().into_iter().flatten();
                let known =
                    values.filter_map(|(name, value)| Some((name, wanted.get(name)?, value)));
                for (name, schema, value) in known {
                    check(schema, value).map_err(|why| format!("{name}: {why}"))?;
                }
                true
            }
            "additionalProperties" => {
                let values = value.as_object().into_iter().flatten();
                let mut others =
                    values.filter(|(name, _)| schema["properties"].get(name).is_none());
                others
                    .all(|(_, value)| *wanted != Value::Bool(false) && check(wanted, value).is_ok())
            }
            unknown => panic!("the keyword {unknown} is not known here"),
        };
        if !fits {
            return Err(format!("{value} does not fit {keyword}: {wanted}"));
        }
    }
    Ok(())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn number(wanted: &Value) -> f64 {
    wanted.as_f64().expect("a bound is a number")
}

fn size(wanted: &Value) -> usize {
    let size = wanted.as_u64().and_then(|size| usize::try_from(size).ok());
    size.expect("a bound is a size")
}

fn has_all(map: &Map<String, Value>, names: &Value) -> bool {
    list(names).all(|name| name.as_str().is_some_and(|name| map.contains_key(name)))
}

/// Compares values; 0.0 is 0.
fn is_same(wanted: &Value, value: &Value) -> bool {
    wanted == value || wanted.is_number() && wanted.as_f64() == value.as_f64()
}

fn is_of_type(wanted: &Value, value: &Value) -> bool {
    match wanted.as_str().expect("a type is a name") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        unknown => panic!("the type {unknown} is not known here"),
    }
}
