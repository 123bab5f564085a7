//! What clients may say about scheduling, in headers or in the body.
//!
//! | body, in `"pointsman": {}` | header | value |
//! |---|---|---|
//! | `session` | `x-pointsman-session` | text of 1 to 256 bytes; requests of one session are related |
//! | `priority` | `x-pointsman-priority` | larger is more urgent; up to `priority-max` either way |
//! | `class` | `x-pointsman-class` | `latency-critical` (default) or `throughput` |
//! | `deadline_ms` | `x-pointsman-deadline-ms` | after so many milliseconds the answer is of no use |
//! | `expected_tokens` | `x-pointsman-expected-tokens` | likely length of the answer |
//! | `labels` | `x-pointsman-labels` | `{"k": "v"}`, in the header `k=v,k=v`; keys from `label-keys` |
//! | `executors` | `x-pointsman-executors` | names of the only ones allowed; in the header `a,b` |
//! | `may_wait` | `x-pointsman-may-wait` | `false`: rather refuse it than let it wait outside the queue |
//! | `head_start_ms` | `x-pointsman-head-start-ms` | waiting time granted in advance, up to a minute |
//! | `group` | `x-pointsman-group` | number of a topology group |
//!
//! A hint given in both places has to be the same in both. One that is misspelt is refused.

use std::collections::BTreeMap;

use hyper::HeaderMap;
use hyper::header::HeaderValue;
use pointsman_core::rows::RequestClass;
use pointsman_core::{Micros, SessionKey};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::error::{ApiError, quoted};
use super::fields::{Fields, mismatch};
use crate::config::nearest::nearest;
use crate::driver::message::Hints;

/// Body field and what its header's text stands for.
const HINTS: [(&str, Form); 10] = [
    ("session", Form::Text),
    ("priority", Form::Json),
    ("class", Form::Text),
    ("deadline_ms", Form::Json),
    ("expected_tokens", Form::Json),
    ("labels", Form::Pairs),
    ("executors", Form::List),
    ("may_wait", Form::Json),
    ("head_start_ms", Form::Json),
    ("group", Form::Json),
];

/// The field of a body that holds hints.
pub(super) const BODY_FIELD: &str = "pointsman";

const HEADER: &str = "x-pointsman-";

const SESSION_BYTES_MAX: usize = 256;
const LABELS_MAX: usize = 16;
const LABEL_BYTES_MAX: usize = 64;
const DEADLINE_MS_MAX: u64 = 24 * 3600 * 1000;
const HEAD_START_MS_MAX: u64 = 60_000;

/// How a header writes a value.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// As it is.
    Text,
    /// A number, `true` or `false`.
    Json,
    /// `a,b`.
    List,
    /// `k=v,k=v`.
    Pairs,
}

/// What hints may say here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    pub(super) priority_max: i32,
    pub(super) label_keys: &'a [String],
    pub(super) executors: &'a [String],
    /// Sessions of different tenants are different.
    pub(super) tenant: &'a str,
}

/// Where hints are given.
struct Given {
    body: Fields,
    headers: Fields,
}

/// The hints of a request, of whose body `pointsman` is a field.
pub(super) fn parse(
    headers: &HeaderMap,
    pointsman: Option<Value>,
    rules: Rules<'_>,
) -> Result<Hints, ApiError> {
    let mut given = Given {
        body: of_body(pointsman)?,
        headers: of_headers(headers)?,
    };
    let session = given.take("session", "a text of 1 to 256 bytes", |text: &String| {
        (1..=SESSION_BYTES_MAX).contains(&text.len())
    })?;
    let max = rules.priority_max;
    let wanted = format!("an integer from -{max} to {max}");
    let priority = given.take("priority", &wanted, |p: &i32| {
        p.unsigned_abs() <= max.unsigned_abs()
    })?;
    let hints = Hints {
        session: session.map(|session| session_key(rules.tenant, &session)),
        priority: priority.unwrap_or(0),
        class: given.class()?,
        head_start: given
            .millis("head_start_ms", 0, HEAD_START_MS_MAX)?
            .unwrap_or(Micros(0)),
        deadline: given.millis("deadline_ms", 1, DEADLINE_MS_MAX)?,
        output_tokens_expected: given
            .take("expected_tokens", "an integer of at least 1", |n| *n >= 1)?,
        labels: given.labels(rules.label_keys)?,
        allowed: given.executors(rules.executors)?,
        group: given.take("group", "an integer of at least 0", |_| true)?,
        may_wait: given
            .take("may_wait", "true or false", |_| true)?
            .unwrap_or(true),
    };
    Ok(hints)
}

fn of_body(pointsman: Option<Value>) -> Result<Fields, ApiError> {
    let values = match pointsman {
        None => Map::new(),
        Some(Value::Object(values)) => values,
        Some(
            other @ (Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)),
        ) => return Err(mismatch(BODY_FIELD.to_owned(), "an object", &other)),
    };
    for name in values.keys() {
        known(name, in_body)?;
    }
    Ok(Fields::new(values, in_body))
}

fn of_headers(headers: &HeaderMap) -> Result<Fields, ApiError> {
    let mut values = Map::new();
    for (header, value) in headers {
        let Some(name) = header.as_str().strip_prefix(HEADER) else {
            continue;
        };
        let name = name.replace('-', "_");
        let form = known(&name, in_header)?;
        let value = form.read(header.as_str(), value)?;
        if values.insert(name, value).is_some() {
            let message = format!("the header `{header}` is given twice");
            return Err(ApiError::field(header.as_str(), message));
        }
    }
    Ok(Fields::new(values, in_header))
}

fn in_body(hint: &str) -> String {
    format!("{BODY_FIELD}.{hint}")
}

fn in_header(hint: &str) -> String {
    format!("{HEADER}{}", hint.replace('_', "-"))
}

/// What the hint `name` looks like in a header, if there is such a hint; `said` is how its client
/// says it.
fn known(name: &str, said: fn(&str) -> String) -> Result<Form, ApiError> {
    let hint = HINTS.iter().find(|(known, _)| *known == name);
    hint.map(|(_, form)| *form).ok_or_else(|| {
        let names = HINTS.map(|(name, _)| name);
        let known = match nearest(name, &names) {
            Some(meant) => format!("did you mean `{}`?", said(meant)),
            None => format!("there are: {}", names.map(said).join(", ")),
        };
        let name = quoted(&said(name));
        let message = format!("there is no hint `{name}`; {known}");
        ApiError::field(name, message)
    })
}

/// The same text of the same tenant gives the same key, in every process and version: the first
/// eight bytes of a SHA-256.
fn session_key(tenant: &str, session: &str) -> SessionKey {
    let mut hash = Sha256::new();
    for part in ["pointsman-session", tenant, session] {
        hash.update(part);
        hash.update([0]);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let (first, _) = digest.split_first_chunk().expect("32 bytes begin with 8");
    SessionKey(u64::from_be_bytes(*first))
}

// === impl Form ===

impl Form {
    /// What a header says, as the body would have said it.
    fn read(self, header: &str, value: &HeaderValue) -> Result<Value, ApiError> {
        let text = value.to_str().map_err(|_not_ascii| {
            ApiError::field(header, format!("the header `{header}` is not ASCII"))
        })?;
        let text = text.trim();
        let items = || {
            text.split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
        };
        match self {
            Form::Text => Ok(Value::from(text)),
            // Whatever else it is will be refused as such.
            Form::Json => Ok(text.parse().unwrap_or_else(|_| Value::from(text))),
            Form::List => Ok(items().collect()),
            Form::Pairs => items()
                .map(|item| match item.split_once('=') {
                    Some((key, value)) => Ok((key.to_owned(), Value::from(value))),
                    None => Err(mismatch(
                        header.to_owned(),
                        "`key=value,key=value`",
                        &Value::from(text),
                    )),
                })
                .collect::<Result<Map<_, _>, _>>()
                .map(Value::Object),
        }
    }
}

// === impl Given ===

impl Given {
    fn take<T: DeserializeOwned + PartialEq>(
        &mut self,
        name: &str,
        wanted: &str,
        fits: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, ApiError> {
        let body = self.body.take_as(name, wanted, &fits)?;
        let header = self.headers.take_as(name, wanted, &fits)?;
        match (body, header) {
            (Some(body), Some(header)) if body != header => Err(ApiError::field(
                in_body(name),
                format!("the hint `{name}` differs between header and body"),
            )),
            (body, header) => Ok(body.or(header)),
        }
    }
}

impl Given {
    fn class(&mut self) -> Result<RequestClass, ApiError> {
        let named = |name: &str| match name {
            "latency-critical" => Some(RequestClass::LatencyCritical),
            "throughput" => Some(RequestClass::Throughput),
            _ => None,
        };
        let wanted = "`latency-critical` or `throughput`";
        let class = self.take("class", wanted, |name: &String| named(name).is_some())?;
        let class = class.and_then(|name| named(&name));
        Ok(class.unwrap_or(RequestClass::LatencyCritical))
    }

    fn millis(&mut self, name: &str, min: u64, max: u64) -> Result<Option<Micros>, ApiError> {
        let wanted = format!("an integer of milliseconds from {min} to {max}");
        let millis = self.take(name, &wanted, |millis| (min..=max).contains(millis))?;
        Ok(millis.map(|millis: u64| Micros(millis * 1000)))
    }

    fn labels(&mut self, keys: &[String]) -> Result<Vec<String>, ApiError> {
        let wanted =
            format!("up to {LABELS_MAX} keys, each with a text of 1 to {LABEL_BYTES_MAX} bytes");
        let labels = self.take("labels", &wanted, |labels: &BTreeMap<String, String>| {
            let fits = |value: &String| (1..=LABEL_BYTES_MAX).contains(&value.len());
            labels.len() <= LABELS_MAX && labels.values().all(fits)
        })?;
        let labels = labels.unwrap_or_default();
        if let Some(key) = labels.keys().find(|key| !keys.contains(key)) {
            let key = quoted(key);
            return Err(unknown("labels", "label key", &key, keys));
        }
        Ok(labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect())
    }

    fn executors(&mut self, known: &[String]) -> Result<Option<Vec<String>>, ApiError> {
        let names = self.take(
            "executors",
            "a list of at least one name",
            |names: &Vec<String>| !names.is_empty(),
        )?;
        let Some(mut names) = names else {
            return Ok(None);
        };
        if let Some(name) = names.iter().find(|name| !known.contains(name)) {
            return Err(unknown("executors", "executor", &quoted(name), known));
        }
        names.sort();
        names.dedup();
        Ok(Some(names))
    }
}

fn unknown(hint: &str, what: &str, name: &str, known: &[String]) -> ApiError {
    let known = if known.is_empty() {
        "there are none".to_owned()
    } else {
        format!("there are: {}", known.join(", "))
    };
    ApiError::field(
        in_body(hint),
        format!("there is no {what} `{name}`; {known}"),
    )
}

#[cfg(test)]
mod tests;
