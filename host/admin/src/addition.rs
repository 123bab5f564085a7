//! The body of the order to add an executor: the tables `[[models]]` and `[[executors]]` of the
//! configuration as JSON.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use pointsman_core::Micros;
use pointsman_driver::fleet::{AddedModels, Addition};
use pointsman_driver::provider::{
    EXECUTOR_QUEUE_MAX, ExecutorConfig, ExecutorTerms, ModelSource, RUNNING, SLOTS_MAX,
    UNLOAD_DELAY_MAX_MS, WEIGHTS,
};
use pointsman_http::error::ApiError;
use pointsman_http::fields::{Fields, Properties, closed_object, integer};
use pointsman_http::openapi::named;
use pointsman_notation::{NAME, NAME_CHARS_MAX, NAME_PATTERN, is_name};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::backend::{self, Backend, URL, backend};

/// The key of an executor's share of its device's tokens.
pub(super) const SHARE_WEIGHT: &str = "share-weight";
/// The field with the executor's name.
pub(super) const EXECUTOR: &str = "executor";
pub(super) const SLOTS: &str = "slots";
const MODELS_MAX: &str = "models-max";
const UNLOAD_DELAY: &str = "model-unload-delay-ms";

pub(super) const SLOTS_RANGE: RangeInclusive<u32> = 1..=SLOTS_MAX;
const GROUPS: RangeInclusive<u32> = 0..=u32::MAX;
const QUEUES: RangeInclusive<u32> = 0..=EXECUTOR_QUEUE_MAX;
const UNLOAD_DELAYS_MS: RangeInclusive<u32> = 0..=UNLOAD_DELAY_MAX_MS;

/// The most models of an executor.
pub(super) const MODELS: usize = 64;

/// The schema of [`addition`].
pub(crate) fn addition_schema(schemas: &mut SchemaGenerator) -> Schema {
    let form = |required: &[&str], own: Properties| {
        let properties = [own, vec![executor_property()], terms_properties()].concat();
        closed_object(required, properties)
    };
    let one = form(&["name"], [one_model(), vec![device_property()]].concat());
    let several = [vec![models_property(1)], vec![device_property()]].concat();
    let several = form(&["models", EXECUTOR], several);
    let elsewhere = [backend::own_properties(), vec![models_property(0)]].concat();
    let elsewhere = form(&[URL], elsewhere);
    let schema = json_schema!({
        "description": "An engine with one model, one with several, or a server elsewhere.",
        "anyOf": [one, several, elsewhere],
    });
    named(schemas, "ExecutorRequest", schema)
}

/// The fields of an engine with one model.
fn one_model() -> Properties {
    let path = "The absolute path of a Hugging Face folder or a GGUF file. By default the model of that \
                name that is served already, or the embedded one.";
    vec![
        ("name", name_schema("The name clients use for the model.")),
        (
            "path",
            json!({"type": "string", "description": path, "pattern": "^/"}),
        ),
    ]
}

fn models_property(fewest: usize) -> (&'static str, Value) {
    let schema = json!({
        "description": "The models it serves. Those of an engine are all served already.",
        "type": "array", "items": {"type": "string"}, "uniqueItems": true,
        "minItems": fewest, "maxItems": MODELS,
    });
    ("models", schema)
}

fn device_property() -> (&'static str, Value) {
    let about = "The name of its device; by default the first.";
    ("device", name_schema(about))
}

fn executor_property() -> (&'static str, Value) {
    let about = "The executor's name; by default its device's and its model's, or its address.";
    (EXECUTOR, name_schema(about))
}

fn name_schema(description: &str) -> Value {
    json!({
        "description": description,
        "type": "string", "minLength": 1, "maxLength": NAME_CHARS_MAX, "pattern": NAME_PATTERN,
    })
}

/// The schemas of the terms on which an executor takes requests.
pub(super) fn terms_properties() -> Properties {
    let preemptible = json!({
        "description": "Whether a sequence may be taken off it for a more urgent one; by default \
                        true.",
        "type": "boolean",
    });
    let queue =
        "Requests of each class that may be placed there and wait for a slot; by default 0.";
    let models_max =
        "Distinct models of which sequences may be there at once; by default unlimited.";
    let delay = "Milliseconds for which a model stays loaded after its last sequence; by default 3000 where \
                 `models-max` is given, and otherwise 0.";
    let group = "The topology group, which requests can ask for; by default 0.";
    let slots = "Sequences at once; by default 8, or as many as a server elsewhere says.";
    vec![
        (SLOTS, integer(slots, &SLOTS_RANGE)),
        (SHARE_WEIGHT, weight_schema()),
        ("group", integer(group, &GROUPS)),
        ("queue", integer(queue, &QUEUES)),
        ("preemptible", preemptible),
        (MODELS_MAX, integer(models_max, &RUNNING)),
        (UNLOAD_DELAY, integer(delay, &UNLOAD_DELAYS_MS)),
    ]
}

/// An executor to add.
pub(super) enum Added {
    Engine(Addition),
    Server(Box<Backend>),
}

/// True if the body of an order names `model` as the one that it loads.
pub(super) fn loads(order: &Map<String, Value>, model: &str) -> bool {
    order.get("name").and_then(Value::as_str) == Some(model)
}

/// Says in the body of an order that names `model` alone which one is meant: that of the order that loaded it, or
/// without such an order one that is served already.
pub(super) fn specify(
    order: &mut Map<String, Value>,
    model: &str,
    loader: Option<&Map<String, Value>>,
) {
    match loader {
        Some(loader) => {
            let path = loader.get("path").cloned();
            order.extend(path.map(|path| ("path".to_owned(), path)));
        }
        None => {
            order.remove("name");
            order.insert("models".to_owned(), json!([model]));
        }
    }
}

/// Reads the executor to add.
pub(super) fn added(fields: Fields<'_>) -> Result<Added, ApiError> {
    if fields.has(URL) {
        return Ok(Added::Server(Box::new(backend(fields)?)));
    }
    addition(fields).map(Added::Engine)
}

fn addition(mut fields: Fields<'_>) -> Result<Addition, ApiError> {
    let (names, models) = models(&mut fields)?;
    let executor = take_name(&mut fields, EXECUTOR)?;
    let device = take_name(&mut fields, "device")?;
    let terms = terms(&mut fields)?;
    let own = [
        one_model(),
        vec![models_property(1), device_property(), executor_property()],
    ];
    let all = [own.concat(), terms_properties()];
    let known: Vec<&str> = all.iter().flatten().map(|(name, _)| *name).collect();
    fields.none_left(&known)?;
    if matches!(models, AddedModels::Served) && executor.is_none() {
        return Err(ApiError::Missing(EXECUTOR));
    }
    Ok(Addition {
        models,
        executor: ExecutorConfig {
            name: executor,
            models: names,
            device,
            terms,
        },
    })
}

/// The models of an executor: one by `name`, or some by `models`.
fn models(fields: &mut Fields<'_>) -> Result<(Vec<String>, AddedModels), ApiError> {
    let wanted = format!("a list of 1 to {MODELS} names, each once");
    let models = fields.take_as("models", &wanted, |names: &Vec<String>| {
        (1..=MODELS).contains(&names.len()) && each_once(names)
    })?;
    let Some(models) = models else {
        let name: String = fields.require("name", "the name of a model")?;
        let folder: Option<String> =
            fields.take_as("path", "an absolute path", |path: &String| {
                Path::new(path).is_absolute()
            })?;
        let folder = folder.map(PathBuf::from);
        let source = folder.map_or(ModelSource::Embedded, ModelSource::Path);
        return Ok((vec![plain("name", name)?], AddedModels::Loaded(source)));
    };
    for other in ["name", "path"] {
        if fields.has(other) {
            let message = format!("`{other}` and `models` exclude each other");
            return Err(ApiError::field(other, message));
        }
    }
    Ok((models, AddedModels::Served))
}

/// True if no name is there twice.
pub(super) fn each_once(names: &[String]) -> bool {
    let different: BTreeSet<&String> = names.iter().collect();
    different.len() == names.len()
}

pub(super) fn terms(fields: &mut Fields<'_>) -> Result<ExecutorTerms, ApiError> {
    let default = ExecutorTerms::default();
    let slots = fields.take_integer(SLOTS, &SLOTS_RANGE)?;
    let group = fields.take_integer("group", &GROUPS)?;
    let queue = fields.take_integer("queue", &QUEUES)?;
    let models_max = fields.take_integer(MODELS_MAX, &RUNNING)?;
    let delay = fields.take_integer(UNLOAD_DELAY, &UNLOAD_DELAYS_MS)?;
    let delay = delay.map(|delay| Micros(u64::from(delay) * 1000));
    let weight = weight(fields)?;
    let preemptible = fields.take_as("preemptible", "true or false", |_: &bool| true)?;
    Ok(ExecutorTerms {
        slots: slots.unwrap_or(default.slots),
        share_weight: weight.unwrap_or(default.share_weight),
        group: group.unwrap_or(default.group),
        queue: queue.unwrap_or(default.queue),
        preemptible: preemptible.unwrap_or(default.preemptible),
        models_max,
        model_unload_delay: ExecutorTerms::unload_delay(delay, models_max),
    })
}

/// Takes the share of an executor, if it is there.
pub(super) fn weight(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    fields.take_integer(SHARE_WEIGHT, &WEIGHTS)
}

pub(super) fn weight_schema() -> Value {
    let about = "Relative share of the tokens of a step; by default 1.";
    integer(about, &WEIGHTS)
}

pub(super) fn take_name(
    fields: &mut Fields<'_>,
    param: &'static str,
) -> Result<Option<String>, ApiError> {
    let name: Option<String> = fields.take_as(param, "a name", |_| true)?;
    name.map(|name| plain(param, name)).transpose()
}

fn plain(param: &'static str, name: String) -> Result<String, ApiError> {
    if is_name(&name) {
        return Ok(name);
    }
    let message = format!("`{param}` has to be {NAME}");
    Err(ApiError::field(param, message))
}

// === impl Added ===

impl Added {
    /// The model of an engine that names it without a path; absent: it has a path, or names several, or is elsewhere.
    pub(super) fn named_alone(&self) -> Option<&str> {
        match self {
            Added::Engine(Addition {
                models: AddedModels::Loaded(ModelSource::Embedded),
                executor,
            }) => executor.models.first().map(String::as_str),
            Added::Engine(_) | Added::Server(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_stays_loaded_by_default_only_where_others_could_displace_it() {
        for (body, micros) in [
            ("{}", 0),
            (r#"{"models-max": 1}"#, 3_000_000),
            (r#"{"models-max": 1, "model-unload-delay-ms": 0}"#, 0),
            (r#"{"model-unload-delay-ms": 5}"#, 5000),
        ] {
            let terms = terms(&mut Fields::parse(body.as_bytes()).unwrap()).unwrap();
            assert_eq!(terms.model_unload_delay, Micros(micros), "{body}");
        }
    }
}
