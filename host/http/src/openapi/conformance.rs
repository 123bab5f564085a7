//! Checks of a table, and of answers and bodies against its document, for tests.
//!
//! Knows the keywords of JSON Schema that the document has, and panics at any other.

use std::collections::BTreeSet;

use hyper::Method;
use pointsman_driver::spans::Operation;
use serde_json::{Map, Value};

use super::{OTHERS, make};
use crate::routes::{Route, RouteBody, RouteTable};

/// The difference that two equal numbers may have: the server reads numbers with 32 bits.
const ROUNDING: f64 = 1e-6;

/// A table of routes with its document.
#[derive(Debug)]
pub struct Conformance {
    table: RouteTable,
    document: Value,
}

// === impl Conformance ===

impl Conformance {
    /// The checks of this table.
    #[must_use]
    pub fn of(table: RouteTable) -> Self {
        Self {
            document: make(&table),
            table,
        }
    }

    /// Checks the table: the rows of each path stand together, have one label and different methods, each
    /// name is there once, and the document has every row, and every part that it refers to.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check_table(&self) -> Result<(), String> {
        let mut seen_paths = BTreeSet::new();
        let mut names = BTreeSet::new();
        for rows in self.table.paths() {
            let path = rows[0].path;
            if !seen_paths.insert(path) {
                return Err(format!("rows of {path} stand apart"));
            }
            let methods: BTreeSet<&str> = rows.iter().map(|route| route.method.as_str()).collect();
            if methods.len() != rows.len() {
                return Err(format!("{path} has a method twice"));
            }
            if rows.iter().any(|route| route.label != rows[0].label) {
                return Err(format!("{path} has two labels"));
            }
            if let Some(route) = rows.iter().find(|route| !names.insert(route.name)) {
                return Err(format!("{} is there twice", route.name));
            }
            if let Some(route) = rows.iter().find(|route| !self.describes(route)) {
                return Err(format!("{} of {path} is not described", route.method));
            }
        }
        self.check_references(&self.document)
    }

    /// True if a row is described, in itself and in the document.
    fn describes(&self, route: &Route) -> bool {
        let method = route.method.as_str().to_lowercase();
        let operation = &self.document["paths"][route.path][&method];
        let has_body = operation["requestBody"].is_object();
        let responses = operation["responses"].as_object();
        !route.summary.is_empty()
            && !route.name.is_empty()
            && operation["operationId"] == route.name
            && has_body != matches!(route.body, RouteBody::None)
            && responses.is_some_and(|it| !it.is_empty())
    }

    /// Checks that every reference in `value` leads somewhere.
    fn check_references(&self, value: &Value) -> Result<(), String> {
        if let Some(target) = value.get("$ref").and_then(Value::as_str) {
            let pointer = target.trim_start_matches('#');
            if self.document.pointer(pointer).is_none() {
                return Err(format!("{target} leads nowhere"));
            }
        }
        let items = value.as_array().into_iter().flatten();
        let fields = value.as_object().into_iter().flat_map(Map::values);
        let mut inner = items.chain(fields);
        inner.try_for_each(|inner| self.check_references(inner))
    }

    /// The operation that a request for `path` is in a trace; absent: the path is not there.
    #[must_use]
    pub fn operation_in_trace(&self, path: &str) -> Option<Operation> {
        let resource = self.table.find(path).ok()?;
        Some(resource.operation())
    }

    /// Checks an answer to `method` of `path`: the document has its status, and a schema that fits.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check_answer(
        &self,
        (method, path): (&str, &str),
        status: u16,
        content_type: &str,
        body: &[u8],
    ) -> Result<(), String> {
        let text = String::from_utf8_lossy(body);
        let Some(operation) = self.operation(method, path) else {
            // 404 and 405 are answers of no operation.
            return self.check(&error_schema(), &parsed(&text)?);
        };
        let response = &operation["responses"][status.to_string()];
        let media_type = content_type.split(';').next().unwrap_or_default();
        let mut contents = self.resolved(response)["content"]
            .as_object()
            .into_iter()
            .flatten();
        let content = contents.find(|(known, _)| known.split(';').next() == Some(media_type));
        let (_, content) = content.ok_or_else(|| format!("no {status} {content_type}"))?;
        let schema = own(&content["schema"]);
        match media_type {
            "application/json" => self.check(schema, &parsed(&text)?),
            "text/event-stream" => {
                let mut data = text.lines().filter_map(|line| line.strip_prefix("data: "));
                data.try_for_each(|data| match data {
                    "[DONE]" => Ok(()),
                    data => self.check(schema, &parsed(data)?),
                })
            }
            _ => self.check(schema, &Value::from(text)),
        }
    }

    /// Checks a body that `method` of `path` has accepted.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check_body(&self, (method, path): (&str, &str), body: &Value) -> Result<(), String> {
        let operation = self.operation(method, path).ok_or("no such operation")?;
        // An operation without a body has no schema: null has no keywords.
        self.check(
            &operation["requestBody"]["content"]["application/json"]["schema"],
            body,
        )
    }

    /// The operation that answers a request, if one does.
    fn operation(&self, method: &str, path: &str) -> Option<&Value> {
        let path = path.split('?').next()?;
        let method = Method::from_bytes(method.as_bytes()).ok()?;
        let resource = self.table.find(path).ok()?;
        let route = resource.route(&method).ok()?;
        let method = route.method.as_str().to_lowercase();
        Some(&self.document["paths"][route.path][method])
    }

    /// The part of the document that `part` is or refers to.
    fn resolved<'v>(&'v self, part: &'v Value) -> &'v Value {
        match part.get("$ref").and_then(Value::as_str) {
            None => part,
            Some(target) => {
                let target = self.document.pointer(target.trim_start_matches('#'));
                target.expect("every reference leads somewhere")
            }
        }
    }

    /// Checks `value` against `schema`.
    fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let keywords = schema.as_object().into_iter().flatten();
        for (keyword, wanted) in keywords {
            let fits = match keyword.as_str() {
                "$ref" => self.check(self.resolved(schema), value).map(|()| true)?,
                "items" => list(value)
                    .try_for_each(|item| self.check(wanted, item))
                    .map(|()| true)?,
                "properties" => self.check_properties(wanted, value).map(|()| true)?,
                "additionalProperties" => {
                    let known = &schema["properties"];
                    let mut others = fields(value).filter(|(name, _)| known.get(name).is_none());
                    let fits =
                        |value| *wanted != Value::Bool(false) && self.check(wanted, value).is_ok();
                    others.all(|(_, value)| fits(value))
                }
                _ => self.fits(keyword, wanted, value),
            };
            if !fits {
                return Err(format!("{value} does not fit {keyword}: {wanted}"));
            }
        }
        Ok(())
    }

    fn check_properties(&self, wanted: &Value, value: &Value) -> Result<(), String> {
        let known =
            fields(value).filter_map(|(name, value)| Some((name, wanted.get(name)?, value)));
        for (name, schema, value) in known {
            self.check(schema, value)
                .map_err(|why| format!("{name}: {why}"))?;
        }
        Ok(())
    }

    /// Compares `value` with one keyword of a schema.
    fn fits(&self, keyword: &str, wanted: &Value, value: &Value) -> bool {
        let (given, text) = (value.as_f64(), value.as_str());
        let (items, object) = (value.as_array(), value.as_object());
        let characters = text.map(|text| text.chars().count());
        match keyword {
            "description" | "title" | "format" | "default" => true,
            // What breaks a pattern is refused by the code beside it.
            "pattern" => true,
            "type" if wanted.is_array() => list(wanted).any(|wanted| is_of_type(wanted, value)),
            "type" => is_of_type(wanted, value),
            "const" => is_same(wanted, value),
            "enum" => list(wanted).any(|wanted| is_same(wanted, value)),
            "anyOf" => list(wanted).any(|schema| self.check(schema, value).is_ok()),
            "oneOf" => {
                let fitting = list(wanted).filter(|schema| self.check(schema, value).is_ok());
                fitting.count() == 1
            }
            "minimum" => given.is_none_or(|given| given >= number(wanted) - ROUNDING),
            "maximum" => given.is_none_or(|given| given <= number(wanted) + ROUNDING),
            "exclusiveMinimum" => given.is_none_or(|given| given > number(wanted)),
            "minLength" => characters.is_none_or(|characters| characters >= size(wanted)),
            "maxLength" => characters.is_none_or(|characters| characters <= size(wanted)),
            "minItems" => items.is_none_or(|items| items.len() >= size(wanted)),
            "maxItems" => items.is_none_or(|items| items.len() <= size(wanted)),
            "maxProperties" => object.is_none_or(|object| object.len() <= size(wanted)),
            "propertyNames" => {
                let named = |name: &String| self.check(wanted, &Value::from(name.as_str())).is_ok();
                object.is_none_or(|object| object.keys().all(named))
            }
            "uniqueItems" => items.is_none_or(|items| {
                let texts: BTreeSet<String> = items.iter().map(Value::to_string).collect();
                texts.len() == items.len()
            }),
            "required" => object.is_none_or(|object| has_all(object, wanted)),
            "dependentRequired" => object.is_none_or(|object| {
                let mut needs = fields(wanted).filter(|(name, _)| object.contains_key(*name));
                needs.all(|(_, needed)| has_all(object, needed))
            }),
            unknown => panic!("the keyword {unknown} is not known here"),
        }
    }
}

/// The schema of the server's own answers, of one that may also be another server's.
fn own(schema: &Value) -> &Value {
    match schema.pointer("/anyOf/1/description") {
        Some(description) if description == OTHERS => &schema["anyOf"][0],
        _ => schema,
    }
}

fn error_schema() -> Value {
    Value::from_iter([("$ref", "#/components/schemas/Error")])
}

fn parsed(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("no JSON: {error}: {text}"))
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
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
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        unknown => panic!("the type {unknown} is not known here"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::server_routes;

    /// The problem of a table that these rows come after.
    fn said(rows: Vec<Route>) -> Result<(), String> {
        let unknown = server_routes().swap_remove(0);
        let rows = server_routes().into_iter().chain(rows);
        Conformance::of(RouteTable::new(rows, unknown)).check_table()
    }

    #[test]
    fn a_table_that_is_not_consistent_is_refused() {
        assert_eq!(said(Vec::new()), Ok(()));
        let again = || server_routes().swap_remove(0);
        assert_eq!(
            said(vec![again()]),
            Err("rows of /live stand apart".to_owned())
        );
        let ready = || server_routes().swap_remove(2);
        let document = server_routes().swap_remove(4);
        let apart = Err("/openapi.json has a method twice".to_owned());
        assert_eq!(said(vec![document]), apart);
        let elsewhere = |route: Route| Route {
            path: "/x",
            ..route
        };
        let twice = Err("checkReadiness is there twice".to_owned());
        assert_eq!(said(vec![elsewhere(ready())]), twice);
        let bare = elsewhere(ready()).named("x", "x").about("", "");
        let told = Err("GET of /x is not described".to_owned());
        assert_eq!(said(vec![bare]), told);
    }
}
