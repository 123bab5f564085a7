//! Executors: their list, the addition of another one, the removal of one.

use std::sync::Arc;

use pointsman_driver::catalog::Catalog;
use pointsman_driver::fleet::{AddError, Fleet};
use pointsman_driver::message::{ByClass, Load};
use pointsman_driver::operator::{
    ChangeRefused, ExecutorChange, ExecutorRow, Fate, Operator, Overview, PresentModel,
};
use pointsman_executor::stats::EngineStats;
use pointsman_http::answer::Json;
use pointsman_http::error::{ApiError, quoted};
use pointsman_http::fields::{Fields, closed_object};
use pointsman_http::openapi::named;
use pointsman_http::{App, Call};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use tokio::task;

use super::addition::{Added, SHARE_WEIGHT, added, weight, weight_schema};
use super::backend::CA_FILE;
use super::devices::DeviceShape;
use super::kept::KeptExecutors;
use super::{Desk, in_time};

/// The executors, the first 1000 in attach order, and the devices.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExecutorList {
    executors: Vec<ExecutorShape>,
    executors_total: usize,
    devices: Vec<DeviceShape>,
    load: HostLoad,
}

/// An executor.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Executor")]
pub(crate) struct ExecutorShape {
    name: String,
    /// `cuda`, `cpu`, `remote` or `simulated`.
    kind: &'static str,
    device: String,
    /// Models it serves; null: any.
    models: Option<Vec<String>>,
    /// `up`, `degraded`, `draining` or `down`.
    health: &'static str,
    /// The order that it follows, `drain` or `remove`, of an operator or of the configuration; null: none.
    order: Option<&'static str>,
    /// The topology group, which requests can ask for.
    group: u32,
    /// Relative share of the device's tokens.
    share_weight: u32,
    /// True if a sequence may be taken off it for a more urgent one.
    preemptible: bool,
    /// Distinct models of which sequences may be there at once; null: unlimited.
    models_max: Option<u32>,
    /// The models that are there: with sequences, kept loaded, or loaded by the word of a server elsewhere.
    models_present: Vec<Present>,
    slots_used: u32,
    slots_total: u32,
    #[serde(flatten)]
    queue: ExecutorQueue,
    /// Blocks that its sequences hold, each once however many share it.
    kv_blocks_used: u64,
    /// Prompt tokens that it has yet to compute.
    prefill_tokens_pending: u64,
    /// Tokens per step that it was last allotted.
    tokens_per_step_max: Option<u32>,
    /// Tokens of its steps since its device's tokens were last allotted.
    tokens_since_allotment: u64,
    /// Requests placed there so far.
    placed_total: u64,
    /// Usual time to the first token.
    ttft_micros: Option<u64>,
    /// Usual time between two tokens.
    itl_micros: Option<u64>,
    /// Counters of its engine, or of what went through to a server elsewhere.
    engine: Option<EngineCounters>,
}

/// The queue of an executor.
#[derive(Serialize, JsonSchema)]
struct ExecutorQueue {
    /// Requests in its own queue.
    queued: u32,
    queued_by_class: QueuedByClass,
    /// Requests of each class that may wait there.
    queue_max: u32,
    /// True if that queue is filled to 80 %, for either class, or a server elsewhere has no room.
    saturated: bool,
}

/// Requests in a queue, by class.
#[derive(Serialize, JsonSchema)]
struct QueuedByClass {
    #[serde(rename = "latency-critical")]
    latency_critical: u64,
    throughput: u64,
}

/// A model on an executor.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Present {
    model: String,
    /// Sequences of the model, queued ones too.
    sequences: u32,
    /// The time, on the host's clock, until which it is kept loaded without a sequence; null: it has
    /// sequences.
    warm_until_micros: Option<u64>,
    /// True if a server elsewhere tells that it is loaded, whoever had it loaded; null: it does not tell.
    loaded: Option<bool>,
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

/// The requests and resources in use.
#[derive(Serialize, JsonSchema)]
pub(crate) struct HostLoad {
    /// Requests without an outcome.
    live: usize,
    queued: usize,
    queued_by_class: QueuedByClass,
    /// Requests that wait outside the queue.
    parked: usize,
    parked_by_class: QueuedByClass,
    slots_used: u32,
    slots_total: u32,
    /// Null, as the next two: no device tells of its blocks.
    blocks_used: Option<u64>,
    blocks_cached: Option<u64>,
    blocks_total: Option<u64>,
    /// Of the devices that tell how large a block is; null, as the next: there are none.
    kv_bytes_used: Option<u64>,
    kv_bytes_total: Option<u64>,
    /// Executors that take something new.
    executors_up: u32,
}

pub(crate) async fn list(call: Call<'_>) -> Result<Json<ExecutorList>, ApiError> {
    let overview = in_time(call.app.driver.operate(Operator::Overview)).await?;
    Ok(Json(ExecutorList::new(&call.app.catalog(), &overview)))
}

/// Adds an executor, and keeps it for the next start.
///
/// # Cancellation
/// An addition that has begun goes on.
pub(crate) async fn add(desk: Arc<Desk>, call: Call<'_>) -> Result<Json<ExecutorShape>, ApiError> {
    let app = call.app;
    let body = call.body().await?;
    let added = added(Fields::parse(&body)?)?;
    app.check_serving()?;
    let fleet = Arc::clone(&app.fleet);
    let adding = task::spawn(async move { desk.kept.add(&fleet, added, &body).await });
    match adding.await.unwrap_or(Err(AddError::Ended)) {
        Ok(row) => Ok(answer(app, &row)),
        Err(error @ AddError::Load(_)) => Err(ApiError::field("path", error.to_string())),
        Err(error @ AddError::NotServed { .. }) => {
            Err(ApiError::field("models", error.to_string()))
        }
        Err(error @ AddError::NoCertificates(_)) => {
            Err(ApiError::field(CA_FILE, error.to_string()))
        }
        Err(error @ AddError::NoDevice(_)) => Err(ApiError::field("device", error.to_string())),
        Err(error @ (AddError::OtherModel(_) | AddError::Refused(_))) => {
            Err(ApiError::Conflict(error.to_string()))
        }
        Err(AddError::Ended) => Err(ApiError::draining()),
    }
}

pub(crate) async fn one(call: Call<'_>) -> Result<Json<ExecutorShape>, ApiError> {
    let (app, name) = (call.app, call.parameter);
    let question = |answer| Operator::Executor(name.clone(), answer);
    match in_time(app.driver.operate(question)).await? {
        Some(row) => Ok(answer(app, &row)),
        None => Err(ApiError::Absent(format!(
            "there is no executor `{}`; GET /admin/executors lists them",
            quoted(&name)
        ))),
    }
}

pub(crate) async fn drain(
    desk: Arc<Desk>,
    call: Call<'_>,
) -> Result<Json<ExecutorShape>, ApiError> {
    changed((&desk, call.app), &call.parameter, ExecutorChange::Drain).await
}

pub(crate) async fn resume(
    desk: Arc<Desk>,
    call: Call<'_>,
) -> Result<Json<ExecutorShape>, ApiError> {
    changed((&desk, call.app), &call.parameter, ExecutorChange::Resume).await
}

/// Begins the removal of an executor, which no start adds again. The removal goes on after the answer.
pub(crate) async fn remove(
    desk: Arc<Desk>,
    call: Call<'_>,
) -> Result<Json<ExecutorShape>, ApiError> {
    let (app, name) = (call.app, call.parameter);
    let removed = changed((&desk, app), &name, ExecutorChange::Remove).await;
    match removed {
        Err(ApiError::Absent(message)) if desk.kept.forget(&name).await => Err(ApiError::Absent(
            format!("{message}; the next start would have tried it again, and does not now"),
        )),
        removed => removed,
    }
}

/// Adds an executor to a fleet.
pub(super) async fn attach(fleet: &Arc<Fleet>, added: Added) -> Result<ExecutorRow, AddError> {
    let fleet = Arc::clone(fleet);
    match added {
        Added::Engine(addition) => fleet.add(addition).await,
        Added::Server(backend) => {
            let (server, terms) = *backend;
            fleet.connect(server, terms).await
        }
    }
}

/// Gives an executor another share of its device's tokens.
pub(crate) async fn share_weight(
    desk: Arc<Desk>,
    call: Call<'_>,
) -> Result<Json<ExecutorShape>, ApiError> {
    let (app, name) = (Arc::clone(call.app), call.parameter.clone());
    let body = call.body().await?;
    let mut fields = Fields::parse(&body)?;
    let weight = weight(&mut fields)?.ok_or(ApiError::Missing(SHARE_WEIGHT))?;
    fields.none_left(&[SHARE_WEIGHT])?;
    let change = ExecutorChange::ShareWeight(weight);
    changed((&desk, &app), &name, change).await
}

/// The schema of the body of [`share_weight`].
pub(crate) fn share_weight_schema(schemas: &mut SchemaGenerator) -> Schema {
    let properties = vec![(SHARE_WEIGHT, weight_schema())];
    let body = closed_object(&[SHARE_WEIGHT], properties);
    named(schemas, "ShareWeightRequest", body)
}

/// Changes an executor, and what is kept of it.
///
/// # Cancellation
/// A change that has begun goes on.
pub(super) async fn changed(
    (desk, app): (&Desk, &App),
    name: &str,
    change: ExecutorChange,
) -> Result<Json<ExecutorShape>, ApiError> {
    let (fleet, kept) = (Arc::clone(&app.fleet), Arc::clone(&desk.kept));
    let changing = task::spawn(carry_out((fleet, kept), name.to_owned(), change));
    match in_time(async { changing.await.ok().flatten() }).await? {
        Ok(row) => Ok(answer(app, &row)),
        Err(error @ ChangeRefused::Unknown { .. }) => Err(ApiError::Absent(error.to_string())),
        Err(
            error @ (ChangeRefused::Leaves(_)
            | ChangeRefused::Withdrawn(_)
            | ChangeRefused::Ended(_)
            | ChangeRefused::OwnEngine(_)
            | ChangeRefused::NoServer(_)),
        ) => Err(ApiError::Conflict(error.to_string())),
    }
}

/// Carries out the change of an executor here and in what is kept; absent: the driver has ended.
async fn carry_out(
    (fleet, kept): (Arc<Fleet>, Arc<KeptExecutors>),
    name: String,
    change: ExecutorChange,
) -> Option<Result<ExecutorRow, ChangeRefused>> {
    let changed = fleet.change(&name, change).await?;
    if changed.is_ok() {
        match change {
            ExecutorChange::Remove => {
                kept.forget(&name).await;
            }
            ExecutorChange::ShareWeight(weight) => {
                kept.set(&name, (SHARE_WEIGHT, weight.into())).await;
            }
            ExecutorChange::Drain | ExecutorChange::Resume | ExecutorChange::Load(_) => {}
        }
    }
    Some(changed)
}

fn answer(app: &App, row: &ExecutorRow) -> Json<ExecutorShape> {
    let catalog = app.catalog();
    Json(ExecutorShape::new(row, catalog.engine(&row.name)))
}

// === impl ExecutorList ===

impl ExecutorList {
    pub(crate) fn new(catalog: &Catalog, overview: &Overview) -> Self {
        let executors = overview.executors.iter();
        let executors = executors.map(|row| ExecutorShape::new(row, catalog.engine(&row.name)));
        Self {
            executors: executors.collect(),
            executors_total: overview.executors_total,
            devices: overview.devices.iter().map(DeviceShape::from).collect(),
            load: HostLoad::from(&overview.load),
        }
    }
}

// === impl ExecutorShape ===

impl ExecutorShape {
    fn new(row: &ExecutorRow, engine: Option<&EngineStats>) -> Self {
        let load = &row.load;
        Self {
            name: row.name.clone(),
            kind: row.kind.as_str(),
            device: row.device.clone(),
            models: row.models.clone(),
            health: load.health.as_str(),
            order: order(row.fate),
            group: row.group,
            share_weight: row.share_weight,
            preemptible: row.preemptible,
            models_max: row.models_max,
            models_present: row.present.iter().map(Present::from).collect(),
            slots_used: load.slots_used,
            slots_total: row.slots_total,
            queue: ExecutorQueue {
                queued: load.queued_critical.saturating_add(load.queued_throughput),
                queued_by_class: QueuedByClass {
                    latency_critical: load.queued_critical.into(),
                    throughput: load.queued_throughput.into(),
                },
                queue_max: row.queue_max,
                saturated: load.saturated,
            },
            kv_blocks_used: load.blocks_used,
            prefill_tokens_pending: load.prefill_tokens_pending,
            tokens_per_step_max: row.tokens_max,
            tokens_since_allotment: row.tokens_used,
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

fn order(fate: Fate) -> Option<&'static str> {
    match fate {
        Fate::Stays => None,
        Fate::Drains => Some("drain"),
        Fate::Leaves => Some("remove"),
    }
}

// === impl Present ===

impl From<&PresentModel> for Present {
    fn from(present: &PresentModel) -> Self {
        Self {
            model: present.model.clone(),
            sequences: present.sequences,
            warm_until_micros: present.warm_until.map(|until| until.0),
            loaded: present.loaded,
        }
    }
}

// === impl QueuedByClass ===

impl From<ByClass> for QueuedByClass {
    fn from(of: ByClass) -> Self {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        Self {
            latency_critical: count(of.latency_critical),
            throughput: count(of.throughput),
        }
    }
}

// === impl HostLoad ===

impl From<&Load> for HostLoad {
    fn from(load: &Load) -> Self {
        let blocks = |count| (load.blocks_total > 0).then_some(count);
        let bytes = |count| (load.kv_bytes_total > 0).then_some(count);
        Self {
            live: load.live,
            queued: load.queued,
            queued_by_class: load.queued_by_class.into(),
            parked: load.parked,
            parked_by_class: load.parked_by_class.into(),
            slots_used: load.slots_used,
            slots_total: load.slots_total,
            blocks_used: blocks(load.blocks_used),
            blocks_cached: blocks(load.blocks_cached),
            blocks_total: blocks(load.blocks_total),
            kv_bytes_used: bytes(load.kv_bytes_used),
            kv_bytes_total: bytes(load.kv_bytes_total),
            executors_up: load.executors_up,
        }
    }
}
