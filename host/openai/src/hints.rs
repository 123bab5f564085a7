//! Hints: the wishes of clients about scheduling, in headers or in the body.
//!
//! [`HINTS`] has them all. A hint given in both places has to be the same in both. A misspelt hint
//! is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderMap;
use http::header::HeaderValue;
use pointsman_driver::catalog::ExecutorEntry;
use pointsman_driver::message::Hints;
use pointsman_events::rows::{ExecutorKind, RequestClass};
use pointsman_events::{Micros, SessionKey};
use pointsman_http::error::{ApiError, quoted};
use pointsman_http::fields::{Fields, closed_object, mismatch, mismatched_text};
use pointsman_http::openapi::named;
use pointsman_http::{Claims, HEAD_START_MAX};
use pointsman_notation::nearest;
use schemars::{Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

/// A hint that clients may give.
#[derive(Clone, Copy)]
struct Hint {
    /// The hint's field in the body. The header has dashes for the underscores.
    name: &'static str,
    form: Form,
    about: &'static str,
    schema: fn() -> Value,
}

/// The way in which a header writes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Text as it is.
    Text,
    /// A number, `true` or `false`.
    Json,
    /// A list, written `a,b`.
    List,
    /// Keys with values, written `k=v,k=v`.
    Pairs,
}

static HINTS: [Hint; 12] = [
    Hint {
        name: "session",
        form: Form::Text,
        about: "Requests of one session are related. At most 256 characters.",
        schema: || json!({"type": "string", "minLength": 1, "maxLength": SESSION_CHARS_MAX}),
    },
    Hint {
        name: "priority",
        form: Form::Json,
        about: "Larger is more urgent; at most `hints.priority-max` (by default 100) either way, and at \
                most what key and tenant may claim.",
        schema: || json!({"type": "integer", "minimum": i32::MIN, "maximum": i32::MAX}),
    },
    Hint {
        name: "class",
        form: Form::Text,
        about: "By default the most urgent one that the tenant may claim.",
        schema: || json!({"type": "string", "enum": CLASSES.map(RequestClass::as_str)}),
    },
    Hint {
        name: "deadline_ms",
        form: Form::Json,
        about: "After so many milliseconds the answer is of no use.",
        schema: || json!({"type": "integer", "minimum": 1, "maximum": DEADLINE_MS_MAX}),
    },
    Hint {
        name: "expected_tokens",
        form: Form::Json,
        about: "Likely length of the answer, in tokens.",
        schema: || json!({"type": "integer", "minimum": 1, "maximum": u32::MAX}),
    },
    Hint {
        name: "labels",
        form: Form::Pairs,
        about: "Labels by key; the configuration's `hints.label-keys` has the keys there are.",
        schema: || {
            let text = json!({"type": "string", "minLength": 1, "maxLength": LABEL_CHARS_MAX});
            json!({"type": "object", "additionalProperties": text, "maxProperties": LABELS_MAX})
        },
    },
    Hint {
        name: "executors",
        form: Form::List,
        about: "Names of the only executors allowed.",
        schema: || json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
    },
    Hint {
        name: "device",
        form: Form::Text,
        about: "Name of the only device allowed.",
        schema: || json!({"type": "string", "minLength": 1}),
    },
    Hint {
        name: "kind",
        form: Form::Text,
        about: "The only kind of executors allowed: `cpu` forces a request to the processors.",
        schema: || json!({"type": "string", "enum": KINDS.map(|(name, _)| name)}),
    },
    Hint {
        name: "may_wait",
        form: Form::Json,
        about: "`false`: rather refuse the request than let it wait outside the queue.",
        schema: || json!({"type": "boolean"}),
    },
    Hint {
        name: "head_start_ms",
        form: Form::Json,
        about: "Waiting time granted in advance, in milliseconds.",
        schema: || json!({"type": "integer", "minimum": 0, "maximum": HEAD_START_MS_MAX}),
    },
    Hint {
        name: "group",
        form: Form::Json,
        about: "Number of a topology group.",
        schema: || json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
    },
];

const CLASSES: [RequestClass; 2] = [RequestClass::LatencyCritical, RequestClass::Throughput];

const KINDS: [(&str, ExecutorKind); 4] = [
    ("cpu", ExecutorKind::Cpu),
    ("cuda", ExecutorKind::Cuda),
    ("remote", ExecutorKind::Remote),
    ("simulated", ExecutorKind::Simulated),
];

/// The field of a body that holds hints.
pub(super) const BODY_FIELD: &str = "pointsman";

const HEADER: &str = "x-pointsman-";

/// The most bytes of hints in a body: as many as headers have.
const BYTES_MAX: usize = 64 << 10;
const SESSION_CHARS_MAX: usize = 256;
const LABELS_MAX: usize = 16;
const LABEL_CHARS_MAX: usize = 64;
const DEADLINE_MS_MAX: u64 = 24 * 3600 * 1000;
const HEAD_START_MS_MAX: u64 = HEAD_START_MAX.as_secs() * 1000;

/// The bounds of hints on this server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    /// The lowest priority.
    pub(super) priority_min: i32,
    /// The priority of requests that claim none.
    pub(super) priority: i32,
    /// The most urgency that the client may claim.
    pub(super) claims: Claims,
    pub(super) label_keys: &'a [String],
    pub(super) executors: &'a [ExecutorEntry],
    /// The name of the model that is asked for; absent: none is.
    pub(super) model: Option<&'a str>,
    /// The client's tenant. Sessions of different tenants are different.
    pub(super) tenant: &'a str,
}

/// The hints of a request, by the place they are in.
struct Given<'b> {
    body: Fields<'b>,
    headers: Fields<'b>,
}

/// The schema of the body's field [`BODY_FIELD`].
pub(super) fn body_schema(schemas: &mut SchemaGenerator) -> Schema {
    let properties = HINTS.iter().map(|hint| {
        let mut schema = (hint.schema)();
        schema["description"] = hint.about.into();
        (hint.name, schema)
    });
    named(schemas, "Hints", closed_object(&[], properties.collect()))
}

/// The headers, by name, as parameters of the document.
pub(super) fn header_parameters() -> Vec<(String, Value)> {
    let parameters = HINTS.iter().map(|hint| {
        let name = in_header(hint.name);
        let parameter = json!({
            "name": name,
            "in": "header",
            "description": hint.about,
            "style": "simple",
            "explode": hint.form == Form::Pairs,
            "schema": (hint.schema)(),
        });
        (name, parameter)
    });
    parameters.collect()
}

/// Reads the hints of a request: `pointsman` is the body's field [`BODY_FIELD`].
pub(super) fn parse(
    headers: &HeaderMap,
    pointsman: Option<&RawValue>,
    rules: Rules<'_>,
) -> Result<Hints, ApiError> {
    let headers = of_headers(headers)?;
    let headers = Fields::of(&headers, in_header)?;
    let mut given = Given {
        body: of_body(pointsman)?,
        headers: headers.expect("an object was written"),
    };
    let session = given.take(
        "session",
        "a text of 1 to 256 characters",
        |text: &String| (1..=SESSION_CHARS_MAX).contains(&text.chars().count()),
    )?;
    let claims = rules.claims;
    let priorities = rules.priority_min..=claims.priority_max;
    let wanted = format!(
        "an integer from {} to {}",
        priorities.start(),
        priorities.end()
    );
    let priority = given.take("priority", &wanted, |p: &i32| priorities.contains(p))?;
    let hints = Hints {
        session: session.map(|session| session_key(rules.tenant, &session)),
        conversation: Vec::new(),
        follows: None,
        follows_own: None,
        priority: priority.unwrap_or(rules.priority.min(claims.priority_max)),
        class: given.class(claims.class_max)?,
        head_start: given
            .millis("head_start_ms", 0, millis(claims.head_start_max))?
            .unwrap_or(Micros(0)),
        deadline: given.millis("deadline_ms", 1, DEADLINE_MS_MAX)?,
        output_tokens_expected: given
            .take("expected_tokens", "an integer of at least 1", |n| *n >= 1)?,
        labels: given.labels(rules.label_keys)?,
        allowed: given.allowed(rules)?,
        unless_followed: None,
        group: given.take("group", "an integer of at least 0", |_| true)?,
        may_wait: given
            .take("may_wait", "true or false", |_| true)?
            .unwrap_or(true),
    };
    Ok(hints)
}

fn of_body(pointsman: Option<&RawValue>) -> Result<Fields<'_>, ApiError> {
    let Some(given) = pointsman else {
        return Ok(Fields::none(in_body));
    };
    let wrong = |wanted| mismatch(BODY_FIELD.to_owned(), wanted, given);
    if given.get().len() > BYTES_MAX {
        return Err(wrong("an object of at most 64 KiB"));
    }
    let fields = Fields::of(given, in_body)?;
    let fields = fields.ok_or_else(|| wrong("an object"))?;
    for name in fields.left() {
        known(name, in_body)?;
    }
    Ok(fields)
}

/// The hints of headers, as a body would write them.
fn of_headers(headers: &HeaderMap) -> Result<Box<RawValue>, ApiError> {
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
    Ok(to_raw_value(&values).expect("values with text keys can be written as JSON"))
}

fn in_body(hint: &str) -> String {
    format!("{BODY_FIELD}.{hint}")
}

fn in_header(hint: &str) -> String {
    format!("{HEADER}{}", hint.replace('_', "-"))
}

/// The form of the hint `name` in a header, if there is such a hint; `written` makes the name that
/// the client would write.
fn known(name: &str, written: fn(&str) -> String) -> Result<Form, ApiError> {
    let hint = HINTS.iter().find(|hint| hint.name == name);
    hint.map(|hint| hint.form).ok_or_else(|| {
        let names = HINTS.map(|hint| hint.name);
        let known = match nearest(name, names) {
            Some(meant) => format!("did you mean `{}`?", written(meant)),
            None => format!("there are: {}", names.map(written).join(", ")),
        };
        let name = quoted(&written(name));
        let message = format!("there is no hint `{name}`; {known}");
        ApiError::field(name, message)
    })
}

/// A duration in whole milliseconds.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The key of a session: the first eight bytes of a SHA-256. The same text of the same tenant gives
/// the same key, in every process and version.
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
    /// The value of a header, as a body would write it.
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
            // Any other text is refused later, as text.
            Form::Json => Ok(text.parse().unwrap_or_else(|_| Value::from(text))),
            Form::List => Ok(items().collect()),
            Form::Pairs => items()
                .map(|item| match item.split_once('=') {
                    Some((key, value)) => Ok((key.to_owned(), Value::from(value))),
                    None => Err(mismatched_text(
                        header.to_owned(),
                        "`key=value,key=value`",
                        text,
                    )),
                })
                .collect::<Result<Map<_, _>, _>>()
                .map(Value::Object),
        }
    }
}

// === impl Given ===

impl Given<'_> {
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

    /// The class, at most `max`, which is also the one that a request without a claim has.
    fn class(&mut self, max: RequestClass) -> Result<RequestClass, ApiError> {
        let open = CLASSES.into_iter().filter(|class| *class <= max);
        let names: Vec<String> = open.map(|class| format!("`{}`", class.as_str())).collect();
        let wanted = names.join(" or ");
        let named = |name: &str| CLASSES.into_iter().find(|class| class.as_str() == name);
        let class = self.take("class", &wanted, |name: &String| {
            named(name).is_some_and(|class| class <= max)
        })?;
        let class = class.and_then(|name| named(&name));
        Ok(class.unwrap_or(max))
    }

    fn millis(&mut self, name: &str, min: u64, max: u64) -> Result<Option<Micros>, ApiError> {
        let wanted = format!("an integer of milliseconds from {min} to {max}");
        let millis = self.take(name, &wanted, |millis| (min..=max).contains(millis))?;
        Ok(millis.map(|millis: u64| Micros(millis * 1000)))
    }

    fn labels(&mut self, keys: &[String]) -> Result<Vec<String>, ApiError> {
        let wanted = format!(
            "up to {LABELS_MAX} keys, each with a text of 1 to {LABEL_CHARS_MAX} characters"
        );
        let labels = self.take("labels", &wanted, |labels: &BTreeMap<String, String>| {
            let fits = |value: &String| (1..=LABEL_CHARS_MAX).contains(&value.chars().count());
            labels.len() <= LABELS_MAX && labels.values().all(fits)
        })?;
        let labels = labels.unwrap_or_default();
        if let Some(key) = labels.keys().find(|key| !keys.contains(key)) {
            let key = quoted(key);
            let keys = keys.iter().map(String::as_str).collect();
            return Err(unknown("labels", "label key", &key, keys));
        }
        Ok(labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect())
    }

    /// Names of the only executors allowed: those that are named, on the device, of the kind and
    /// that serve the model. Absent: no hint is about executors.
    fn allowed(&mut self, rules: Rules<'_>) -> Result<Option<Vec<String>>, ApiError> {
        let known = rules.executors;
        let names = self.executors(known)?;
        let device = self.device(known)?;
        let kind = self.kind(known)?;
        if names.is_none() && device.is_none() && kind.is_none() {
            return Ok(None);
        }
        let is_named = |name: &String| names.as_ref().is_none_or(|names| names.contains(name));
        let executors = known.iter().filter(|executor| {
            is_named(&executor.name)
                && device.as_ref().is_none_or(|name| executor.device == *name)
                && kind.is_none_or(|kind| executor.kind == kind)
        });
        let serves = |executor: &ExecutorEntry| {
            let mut models = executor.models.iter();
            rules.model.is_none_or(|model| models.any(|it| it == model))
        };
        let allowed: Vec<&ExecutorEntry> = executors.collect();
        let mut serving = allowed.iter().filter(|executor| serves(executor));
        match (allowed.is_empty(), serving.next()) {
            (true, _) => Err(nowhere("no executor is all that the hints say".to_owned())),
            (false, None) => {
                let model = quoted(rules.model.unwrap_or_default());
                let names: Vec<&str> = allowed.iter().map(|it| &*it.name).collect();
                let names = names.join(", ");
                Err(nowhere(format!(
                    "no executor that the hints allow serves the model `{model}`; they allow: {names}"
                )))
            }
            (false, Some(_)) => {
                let mut names: Vec<String> = allowed.iter().map(|it| it.name.clone()).collect();
                names.sort();
                Ok(Some(names))
            }
        }
    }

    fn executors(&mut self, known: &[ExecutorEntry]) -> Result<Option<Vec<String>>, ApiError> {
        let names = self.take(
            "executors",
            "a list of at least one name",
            |names: &Vec<String>| !names.is_empty(),
        )?;
        let mut given = names.iter().flatten();
        let is_known = |name: &String| known.iter().any(|executor| executor.name == *name);
        if let Some(name) = given.find(|name| !is_known(name)) {
            let known = known.iter().map(|executor| &*executor.name).collect();
            return Err(unknown("executors", "executor", &quoted(name), known));
        }
        Ok(names)
    }

    fn device(&mut self, known: &[ExecutorEntry]) -> Result<Option<String>, ApiError> {
        let device = self.take("device", "the name of a device", |_: &String| true)?;
        let Some(name) = &device else { return Ok(None) };
        if !known.iter().any(|executor| executor.device == *name) {
            let mut devices: Vec<&str> = known.iter().map(|executor| &*executor.device).collect();
            devices.sort_unstable();
            devices.dedup();
            let what = "device with an executor";
            return Err(unknown("device", what, &quoted(name), devices));
        }
        Ok(device)
    }

    fn kind(&mut self, known: &[ExecutorEntry]) -> Result<Option<ExecutorKind>, ApiError> {
        let named = |name: &str| KINDS.into_iter().find(|(known, _)| *known == name);
        let wanted = "`cpu`, `cuda`, `remote` or `simulated`";
        let kind = self.take("kind", wanted, |name: &String| named(name).is_some())?;
        let Some((name, kind)) = kind.and_then(|name| named(&name)) else {
            return Ok(None);
        };
        let has = |kind| known.iter().any(|executor| executor.kind == kind);
        if !has(kind) {
            let there = KINDS.into_iter().filter(|(_, kind)| has(*kind));
            let there = there.map(|(name, _)| name).collect();
            return Err(unknown("kind", "executor of the kind", name, there));
        }
        Ok(Some(kind))
    }
}

/// The error of hints that leave no executor.
fn nowhere(message: String) -> ApiError {
    ApiError::field(BODY_FIELD, message)
}

fn unknown(hint: &str, what: &str, name: &str, known: Vec<&str>) -> ApiError {
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
