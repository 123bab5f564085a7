//! The body of the order to add an executor: the tables `[[models]]` and `[[executors]]` of the
//! configuration as JSON.

use std::path::{Path, PathBuf};

use pointsman_core::Micros;
use pointsman_driver::fleet::{AddedModels, Addition};
use pointsman_driver::provider::{
    EXECUTOR_QUEUE_MAX, ExecutorConfig, ExecutorTerms, ModelSource, RUNNING, SLOTS_MAX,
    UNLOAD_DELAY_MAX, WEIGHTS,
};
use schemars::{Schema, SchemaGenerator};
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::fields::{Fields, Properties, closed_object};
use super::super::openapi::named;
use super::backend::{self, Backend, URL, backend};

/// The key of an executor's share of its device's tokens.
pub(super) const SHARE_WEIGHT: &str = "share-weight";
const MODELS_MAX: &str = "models-max";
const UNLOAD_DELAY: &str = "model-unload-delay-ms";

/// The most bytes of a name.
const NAME_BYTES_MAX: usize = 128;
/// The most models of an executor.
pub(super) const MODELS: usize = 64;

/// The schema of [`addition`].
pub(crate) fn addition_schema(schemas: &mut SchemaGenerator) -> Schema {
    let all = [properties(), terms_properties(), backend::own_properties()];
    named(schemas, "ExecutorRequest", closed_object(&[], all.concat()))
}

fn properties() -> Properties {
    let name = |description: &str| {
        json!({
            "description": description,
            "type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX,
        })
    };
    let path = "The absolute path of a Hugging Face folder. By default the model of that name that is \
                served already, or the embedded one.";
    let models = json!({
        "description": "In place of `name`: the models that it serves, all of them served already. \
                        `executor` names it.",
        "type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MODELS,
    });
    vec![
        ("name", name("The name clients use for the model.")),
        ("path", json!({"type": "string", "description": path})),
        ("models", models),
        (
            "device",
            name("The name of its device; by default the first."),
        ),
        (
            "executor",
            name("The executor's name; by default its device's and its model's."),
        ),
    ]
}

/// The schemas of the terms on which an executor takes requests.
pub(super) fn terms_properties() -> Properties {
    let number = |description: &str, min: u32, max: u32| {
        json!({
            "description": description,
            "type": "integer", "minimum": min, "maximum": max,
        })
    };
    let preemptible = json!({
        "description": "Whether a sequence may be taken off it for a more urgent one; by default \
                        true.",
        "type": "boolean",
    });
    let queue =
        "Requests of each class that may be placed there and wait for a slot; by default 0.";
    let models_max =
        "Distinct models of which sequences may be there at once; by default unlimited.";
    let delay =
        "Milliseconds for which a model stays loaded after its last sequence; by default 0.";
    let group = "The topology group, which requests can ask for; by default 0.";
    let slots = "Sequences at once; by default 8, or as many as a server elsewhere says.";
    let (fewest, most) = RUNNING.into_inner();
    vec![
        ("slots", number(slots, 1, SLOTS_MAX)),
        (SHARE_WEIGHT, weight_schema()),
        ("group", number(group, 0, u32::MAX)),
        ("queue", number(queue, 0, EXECUTOR_QUEUE_MAX)),
        ("preemptible", preemptible),
        (MODELS_MAX, number(models_max, fewest, most)),
        (UNLOAD_DELAY, number(delay, 0, unload_delay_max_ms())),
    ]
}

/// An executor to add.
pub(super) enum Added {
    Engine(Addition),
    Server(Box<Backend>),
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
    let executor = take_name(&mut fields, "executor")?;
    let device = take_name(&mut fields, "device")?;
    let terms = terms(&mut fields)?;
    let all = [properties(), terms_properties()];
    let known: Vec<&str> = all.iter().flatten().map(|(name, _)| *name).collect();
    fields.none_left(&known)?;
    if matches!(models, AddedModels::Served) && executor.is_none() {
        return Err(ApiError::Missing("executor"));
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
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort();
        sorted.dedup();
        (1..=MODELS).contains(&names.len()) && sorted.len() == names.len()
    })?;
    let Some(models) = models else {
        let name: String = fields.require("name", "the name of a model")?;
        let folder: Option<String> =
            fields.take_as("path", "an absolute path", |path: &String| {
                Path::new(path).is_absolute()
            })?;
        let folder = folder.map(PathBuf::from);
        let source = folder.map_or(ModelSource::Embedded, ModelSource::Folder);
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

pub(super) fn terms(fields: &mut Fields<'_>) -> Result<ExecutorTerms, ApiError> {
    let default = ExecutorTerms::default();
    let mut number = |name: &str, min: u32, max: u32| {
        let wanted = format!("an integer from {min} to {max}");
        fields.take_as(name, &wanted, |number| (min..=max).contains(number))
    };
    let (fewest, most) = RUNNING.into_inner();
    let slots = number("slots", 1, SLOTS_MAX)?;
    let group = number("group", 0, u32::MAX)?;
    let queue = number("queue", 0, EXECUTOR_QUEUE_MAX)?;
    let models_max = number(MODELS_MAX, fewest, most)?;
    let delay = number(UNLOAD_DELAY, 0, unload_delay_max_ms())?;
    let weight = weight(fields)?;
    let preemptible = fields.take_as("preemptible", "true or false", |_: &bool| true)?;
    Ok(ExecutorTerms {
        slots: slots.unwrap_or(default.slots),
        share_weight: weight.unwrap_or(default.share_weight),
        group: group.unwrap_or(default.group),
        queue: queue.unwrap_or(default.queue),
        preemptible: preemptible.unwrap_or(default.preemptible),
        models_max,
        model_unload_delay: delay.map_or(default.model_unload_delay, |delay| {
            Micros(u64::from(delay) * 1000)
        }),
    })
}

fn unload_delay_max_ms() -> u32 {
    u32::try_from(UNLOAD_DELAY_MAX.0 / 1000).unwrap_or(u32::MAX)
}

/// Takes the share of an executor, if it is there.
pub(super) fn weight(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    let wanted = format!("an integer from {} to {}", WEIGHTS.start(), WEIGHTS.end());
    fields.take_as(SHARE_WEIGHT, &wanted, |weight| WEIGHTS.contains(weight))
}

pub(super) fn weight_schema() -> Value {
    let (lightest, heaviest) = WEIGHTS.into_inner();
    json!({
        "description": "Relative share of the tokens of a step; by default 1.",
        "type": "integer", "minimum": lightest, "maximum": heaviest,
    })
}

pub(super) fn take_name(
    fields: &mut Fields<'_>,
    param: &'static str,
) -> Result<Option<String>, ApiError> {
    let name: Option<String> = fields.take_as(param, "a name", |_| true)?;
    name.map(|name| plain(param, name)).transpose()
}

fn plain(param: &'static str, name: String) -> Result<String, ApiError> {
    let is_plain = !name.chars().any(char::is_control) && name.trim() == name;
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !is_plain {
        let message = format!(
            "`{param}` has to be a name of 1 to {NAME_BYTES_MAX} bytes, without control characters \
             and outer spaces"
        );
        return Err(ApiError::field(param, message));
    }
    Ok(name)
}
