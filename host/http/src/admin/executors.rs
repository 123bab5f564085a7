//! Executors: their list, the addition of another one, the removal of one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pointsman_core::rows::{ExecutorKind, Health};
use pointsman_driver::catalog::Catalog;
use pointsman_driver::fleet::{AddError, Addition};
use pointsman_driver::message::Load;
use pointsman_driver::operator::{
    ChangeRefused, DeviceRow, ExecutorChange, ExecutorRow, Fate, Operator, Overview,
};
use pointsman_driver::provider::{EXECUTOR_QUEUE_MAX, ExecutorTerms, SLOTS_MAX, WEIGHTS};
use pointsman_executor::stats::EngineStats;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Value, json};

use super::super::App;
use super::super::answer::Json;
use super::super::error::{ApiError, quoted};
use super::super::fields::{Fields, closed_object};
use super::super::openapi::named;
use super::super::router::Call;
use super::in_time;

/// The executors, the first 1000 in attach order, and the devices.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExecutorList {
    executors: Vec<Executor>,
    executors_total: usize,
    devices: Vec<Device>,
    load: HostLoad,
}

/// An executor.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Executor {
    name: String,
    /// `cuda`, `cpu`, `remote` or `simulated`.
    kind: &'static str,
    device: String,
    /// Models it serves; null: any.
    models: Option<Vec<String>>,
    /// `up`, `degraded`, `draining` or `down`.
    health: &'static str,
    /// The operator's order that it follows, `drain` or `remove`; null: none.
    order: Option<&'static str>,
    /// The topology group, which requests can ask for.
    group: u32,
    /// Relative share of the device's tokens.
    share_weight: u32,
    /// True if a sequence may be taken off it for a more urgent one.
    preemptible: bool,
    slots_used: u32,
    slots_total: u32,
    #[serde(flatten)]
    queue: ExecutorQueue,
    kv_blocks_used: u64,
    /// Prompt tokens that it has yet to compute.
    prefill_tokens_pending: u64,
    /// Tokens per step that it was last allotted.
    tokens_per_step_max: Option<u32>,
    /// Requests placed there so far.
    placed_total: u64,
    /// Usual time to the first token.
    ttft_micros: Option<u64>,
    /// Usual time between two tokens.
    itl_micros: Option<u64>,
    /// Counters of its engine; null: that runs elsewhere.
    engine: Option<EngineCounters>,
}

/// The queue of an executor.
#[derive(Serialize, JsonSchema)]
struct ExecutorQueue {
    /// Requests in its own queue.
    queued: u32,
    /// Requests of each class that may wait there.
    queue_max: u32,
    /// True if that queue is filled to 80 %, for either class.
    saturated: bool,
}

/// Counters of an engine.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct EngineCounters {
    steps: u64,
    prefill_tokens: u64,
    generated_tokens: u64,
    losses: u64,
}

/// A device with its KV blocks.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Device {
    name: String,
    block_bytes: u64,
    blocks_total: u32,
    /// Blocks that hold nothing.
    blocks_free: u32,
    /// Blocks that are free on demand and hold a prefix.
    blocks_cached: u32,
}

/// The requests and resources in use.
#[derive(Serialize, JsonSchema)]
pub(crate) struct HostLoad {
    /// Requests without an outcome.
    live: usize,
    queued: usize,
    /// Requests that wait outside the queue.
    parked: usize,
    slots_used: u32,
    slots_total: u32,
    blocks_used: u64,
    /// Executors that take something new.
    executors_up: u32,
}

/// The key of an executor's share of its device's tokens.
const SHARE_WEIGHT: &str = "share-weight";

/// The most bytes of a name.
const NAME_BYTES_MAX: usize = 128;

pub(crate) async fn list(call: Call<'_>) -> Result<Json<ExecutorList>, ApiError> {
    let overview = in_time(call.app.driver.operate(Operator::Overview)).await?;
    Ok(Json(ExecutorList::new(&call.app.catalog(), &overview)))
}

pub(crate) async fn add(call: Call<'_>) -> Result<Json<Executor>, ApiError> {
    let app = call.app;
    let addition = addition(Fields::parse(&call.body().await?)?)?;
    app.check_serving()?;
    match app.fleet.clone().add(addition).await {
        Ok(row) => Ok(answer(app, &row)),
        Err(error @ AddError::Load(_)) => Err(ApiError::field("path", error.to_string())),
        Err(error @ (AddError::OtherModel(_) | AddError::Refused(_))) => {
            Err(ApiError::Conflict(error.to_string()))
        }
        Err(AddError::Ended) => Err(ApiError::draining()),
    }
}

pub(crate) async fn one(call: Call<'_>) -> Result<Json<Executor>, ApiError> {
    let (app, name) = (call.app, call.parameter);
    let overview = in_time(app.driver.operate(Operator::Overview)).await?;
    let mut rows = overview.executors.iter();
    match rows.find(|row| row.name == name) {
        Some(row) => Ok(answer(app, row)),
        None => Err(ApiError::Absent(format!(
            "there is no executor `{}`; GET /admin/executors lists them",
            quoted(&name)
        ))),
    }
}

pub(crate) async fn drain(call: Call<'_>) -> Result<Json<Executor>, ApiError> {
    change(call, ExecutorChange::Drain).await
}

pub(crate) async fn resume(call: Call<'_>) -> Result<Json<Executor>, ApiError> {
    change(call, ExecutorChange::Resume).await
}

/// Begins the removal of an executor. The removal goes on after the answer.
pub(crate) async fn remove(call: Call<'_>) -> Result<Json<Executor>, ApiError> {
    change(call, ExecutorChange::Remove).await
}

/// Gives an executor another share of its device's tokens.
pub(crate) async fn share_weight(call: Call<'_>) -> Result<Json<Executor>, ApiError> {
    let (app, name) = (Arc::clone(call.app), call.parameter.clone());
    let body = call.body().await?;
    let mut fields = Fields::parse(&body)?;
    let weight = weight(&mut fields)?.ok_or(ApiError::Missing(SHARE_WEIGHT))?;
    fields.none_left(&[SHARE_WEIGHT])?;
    changed(&app, &name, ExecutorChange::ShareWeight(weight)).await
}

/// The schema of the body of [`share_weight`].
pub(crate) fn share_weight_schema(schemas: &mut SchemaGenerator) -> Schema {
    let properties = vec![(SHARE_WEIGHT, weight_schema())];
    let body = closed_object(&[SHARE_WEIGHT], properties);
    named(schemas, "ShareWeightRequest", body)
}

async fn change(call: Call<'_>, change: ExecutorChange) -> Result<Json<Executor>, ApiError> {
    changed(call.app, &call.parameter, change).await
}

async fn changed(
    app: &App,
    name: &str,
    change: ExecutorChange,
) -> Result<Json<Executor>, ApiError> {
    match in_time(app.fleet.change(name, change)).await? {
        Ok(row) => Ok(answer(app, &row)),
        Err(error @ ChangeRefused::Unknown { .. }) => Err(ApiError::Absent(error.to_string())),
        Err(error @ (ChangeRefused::Leaves(_) | ChangeRefused::Ended(_))) => {
            Err(ApiError::Conflict(error.to_string()))
        }
    }
}

fn answer(app: &App, row: &ExecutorRow) -> Json<Executor> {
    let catalog = app.catalog();
    Json(Executor::new(row, catalog.engine(&row.name)))
}

/// The schema of [`addition`].
pub(crate) fn addition_schema(schemas: &mut SchemaGenerator) -> Schema {
    let name = |description: &str| {
        json!({
            "description": description,
            "type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX,
        })
    };
    let path = "The absolute path of a Hugging Face folder. By default the model of that name that is \
                served already, or the embedded one.";
    let properties = vec![
        ("name", name("The name clients use for the model.")),
        ("path", json!({"type": "string", "description": path})),
        (
            "slots",
            json!({
                "description": "Sequences at once; by default 8.",
                "type": "integer", "minimum": 1, "maximum": SLOTS_MAX,
            }),
        ),
        (SHARE_WEIGHT, weight_schema()),
        (
            "group",
            json!({
                "description": "The topology group, which requests can ask for; by default 0.",
                "type": "integer", "minimum": 0, "maximum": u32::MAX,
            }),
        ),
        (
            "queue",
            json!({
                "description": "Requests of each class that may be placed there and wait for a \
                                slot; by default 0.",
                "type": "integer", "minimum": 0, "maximum": EXECUTOR_QUEUE_MAX,
            }),
        ),
        (
            "preemptible",
            json!({
                "description": "Whether a sequence may be taken off it for a more urgent one; by \
                                default true.",
                "type": "boolean",
            }),
        ),
        (
            "executor",
            name("The executor's name; by default its device's and its model's."),
        ),
    ];
    named(
        schemas,
        "ExecutorRequest",
        closed_object(&["name"], properties),
    )
}

/// Reads the table `[[models]]` of the configuration as JSON, with a name for the executor.
fn addition(mut fields: Fields<'_>) -> Result<Addition, ApiError> {
    let model: String = fields.require("name", "the name of a model")?;
    let model = plain("name", model)?;
    let folder: Option<String> = fields.take_as("path", "an absolute path", |path: &String| {
        Path::new(path).is_absolute()
    })?;
    let executor: Option<String> = fields.take_as("executor", "a name", |_| true)?;
    let executor = executor.map(|name| plain("executor", name)).transpose()?;
    let terms = terms(&mut fields)?;
    fields.none_left(&[
        "name",
        "path",
        "slots",
        SHARE_WEIGHT,
        "group",
        "queue",
        "preemptible",
        "executor",
    ])?;
    Ok(Addition {
        model,
        folder: folder.map(PathBuf::from),
        executor,
        terms,
    })
}

fn terms(fields: &mut Fields<'_>) -> Result<ExecutorTerms, ApiError> {
    let default = ExecutorTerms::default();
    let slots = format!("an integer from 1 to {SLOTS_MAX}");
    let slots = fields.take_as("slots", &slots, |slots| (1..=SLOTS_MAX).contains(slots))?;
    let weight = weight(fields)?;
    let group = fields.take_as("group", "an integer from 0 to 4294967295", |_: &u32| true)?;
    let queue = format!("an integer from 0 to {EXECUTOR_QUEUE_MAX}");
    let queue = fields.take_as("queue", &queue, |queue| *queue <= EXECUTOR_QUEUE_MAX)?;
    let preemptible = fields.take_as("preemptible", "true or false", |_: &bool| true)?;
    Ok(ExecutorTerms {
        slots: slots.unwrap_or(default.slots),
        share_weight: weight.unwrap_or(default.share_weight),
        group: group.unwrap_or(default.group),
        queue: queue.unwrap_or(default.queue),
        preemptible: preemptible.unwrap_or(default.preemptible),
    })
}

fn weight(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    let wanted = format!("an integer from {} to {}", WEIGHTS.start(), WEIGHTS.end());
    fields.take_as(SHARE_WEIGHT, &wanted, |weight| WEIGHTS.contains(weight))
}

fn weight_schema() -> Value {
    let (lightest, heaviest) = WEIGHTS.into_inner();
    json!({
        "description": "Relative share of the tokens of a step; by default 1.",
        "type": "integer", "minimum": lightest, "maximum": heaviest,
    })
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

// === impl ExecutorList ===

impl ExecutorList {
    pub(crate) fn new(catalog: &Catalog, overview: &Overview) -> Self {
        let executors = overview.executors.iter();
        let executors = executors.map(|row| Executor::new(row, catalog.engine(&row.name)));
        Self {
            executors: executors.collect(),
            executors_total: overview.executors_total,
            devices: overview.devices.iter().map(Device::from).collect(),
            load: HostLoad::from(&overview.load),
        }
    }
}

// === impl Executor ===

impl Executor {
    fn new(row: &ExecutorRow, engine: Option<&EngineStats>) -> Self {
        let load = &row.load;
        Self {
            name: row.name.clone(),
            kind: kind(row.kind),
            device: row.device.clone(),
            models: row.models.clone(),
            health: health(load.health),
            order: order(row.fate),
            group: row.group,
            share_weight: row.share_weight,
            preemptible: row.preemptible,
            slots_used: load.slots_used,
            slots_total: row.slots_total,
            queue: ExecutorQueue {
                queued: load.queued_critical.saturating_add(load.queued_throughput),
                queue_max: row.queue_max,
                saturated: load.saturated,
            },
            kv_blocks_used: load.blocks_used,
            prefill_tokens_pending: load.prefill_tokens_pending,
            tokens_per_step_max: row.tokens_max,
            placed_total: load.placed_total,
            ttft_micros: load.ttft_micros,
            itl_micros: load.itl_micros,
            engine: engine.map(|engine| EngineCounters {
                steps: engine.steps.get(),
                prefill_tokens: engine.prefill_tokens.get(),
                generated_tokens: engine.generated_tokens.get(),
                losses: engine.losses.get(),
            }),
        }
    }
}

fn kind(kind: ExecutorKind) -> &'static str {
    match kind {
        ExecutorKind::Cuda => "cuda",
        ExecutorKind::Cpu => "cpu",
        ExecutorKind::Remote => "remote",
        ExecutorKind::Simulated => "simulated",
    }
}

fn health(health: Health) -> &'static str {
    match health {
        Health::Up => "up",
        Health::Degraded => "degraded",
        Health::Draining => "draining",
        Health::Down => "down",
    }
}

fn order(fate: Fate) -> Option<&'static str> {
    match fate {
        Fate::Stays => None,
        Fate::Drains => Some("drain"),
        Fate::Leaves => Some("remove"),
    }
}

// === impl Device ===

impl From<&DeviceRow> for Device {
    fn from(row: &DeviceRow) -> Self {
        Self {
            name: row.name.clone(),
            block_bytes: row.block_bytes,
            blocks_total: row.blocks_total,
            blocks_free: row.blocks_free,
            blocks_cached: row.blocks_cached,
        }
    }
}

// === impl HostLoad ===

impl From<&Load> for HostLoad {
    fn from(load: &Load) -> Self {
        Self {
            live: load.live,
            queued: load.queued,
            parked: load.parked,
            slots_used: load.slots_used,
            slots_total: load.slots_total,
            blocks_used: load.blocks_used,
            executors_up: load.executors_up,
        }
    }
}
