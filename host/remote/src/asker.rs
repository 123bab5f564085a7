//! The questions to a server, and the reading of its answers.
//!
//! One round of questions asks for health, for the models, and for capacity and load where the software
//! tells them. Which paths that are is the software's: a table, here.
//!
//! A question must not disturb: llama.cpp's `/slots` wakes a server that sleeps, so it is asked only
//! while requests of ours run there.
//!
//! # Silence
//! A server is silent at once where no connection to it can be made. One whose answer is late may be at work: it is
//! asked again, stays as it was meanwhile, and is silent when [`LATE_MAX`] answers in a row were late. If requests of ours
//! run there when the last of them is late, it is busy and not silent: they have times of their own, after which they
//! fail. Busy or silent, it counts as not heard. One that this machine has no file or memory left to ask stays as it was.

mod headcount;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use pointsman_events::{Availability, KvReport};
use pointsman_executor::handle::FoundModel;
use pointsman_executor::server::{MetricNames, ServerConfig, ServerLoad, ServerSoftware};
use serde_json::Value;

use crate::client::{CallError, ServerClient, json_of};
use crate::findings::Findings;
use crate::residency::{Loaded, Orders, has_failed};
use crate::router::{self, RouterSlots, is_router};
use crate::sequence::is_failure;

use headcount::{FoundCapacity, Headcount};

/// The longest time for an answer. A connection is given up before that, so that a server that is not there is told
/// from one that is late.
pub(crate) const PATIENCE: Duration = Duration::from_secs(6);
/// The late answers in a row that are waited for.
pub(crate) const LATE_MAX: u32 = 3;
/// The path at which a server lists its models.
const MODELS_PATH: &str = "/v1/models";
/// The path of metrics where no other is told.
const METRICS_PATH: &str = "/metrics";
/// The most models of a server that are listed.
const MODELS_MAX: usize = 1024;

/// The findings of one round of questions, or the reason why the server was not heard.
pub(crate) type Asked = Result<Findings, CallError>;

/// The questions to one server.
#[derive(Debug)]
pub(crate) struct Asker {
    client: ServerClient,
    /// The software; absent: it is found out.
    software: Option<ServerSoftware>,
    /// The names of its models; empty: they are found out.
    models: Vec<String>,
    /// The names of metrics in the place of the software's own.
    metrics: MetricNames,
    /// True once the server did not tell what is loaded.
    hides_loaded: bool,
    /// The slots of a router's models.
    router: RouterSlots,
    /// The capacity of a server that does not tell it.
    found: FoundCapacity,
    /// The blocks that its metrics told last.
    blocks: LastBlocks,
}

/// Requests of ours at a server, for questions that disturb one that has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ours {
    pub(crate) count: u32,
    /// The models that they are for, as far as they name one.
    pub(crate) models: BTreeSet<String>,
}

/// The KV blocks of a server in its last answer with metrics, which count while few answers are missing: with them goes
/// most of what the server is assumed to have cached.
#[derive(Debug, Default)]
struct LastBlocks {
    load: ServerLoad,
    /// The rounds in a row since then that had no such answer.
    missing: u32,
}

/// The part of an answer that says how much a server takes.
struct Room {
    load: ServerLoad,
    /// The most models that it has loaded at once; absent: it does not say, or sets no bound.
    models_max: Option<u32>,
}

/// The samples of metrics in Prometheus' text form, by name.
#[derive(Debug, Default, PartialEq)]
struct Samples(BTreeMap<String, MetricSamples>);

/// The samples of one metric: one, or one for each engine of a server.
#[derive(Debug, Default, PartialEq)]
struct MetricSamples {
    sum: f64,
    count: u32,
    /// The labels of the last one.
    labels: BTreeMap<String, String>,
}

// === impl Asker ===

impl Asker {
    pub(crate) fn new(client: ServerClient, server: &ServerConfig) -> Self {
        Self {
            client,
            software: server.software,
            models: server.models.clone(),
            metrics: server.metrics.clone(),
            hides_loaded: false,
            router: RouterSlots::default(),
            found: FoundCapacity::default(),
            blocks: LastBlocks::default(),
        }
    }

    /// Asks everything.
    ///
    /// # Errors
    /// If the server is not heard.
    pub(crate) async fn ask(&mut self, ours: &Ours) -> Asked {
        let client = &self.client;
        let (status, body) = match patiently(|| client.get(MODELS_PATH, PATIENCE)).await {
            Ok(answer) => answer,
            Err(error) => {
                self.hides_loaded = false;
                return Err(error);
            }
        };
        if let Some(why) = self.unlisted(status) {
            return Ok(Findings::busy(why));
        }
        let list = json_of(status, &body);
        let models = list.as_ref().and_then(models_in);
        self.software = self.software.or_else(|| software_of(list.as_ref()?));
        if let Some(why) = self.health().await? {
            return Ok(Findings::busy(why));
        }
        let Room { load, models_max } = self.room(ours, list.as_ref()).await;
        let loaded = self
            .loaded(list, models.as_deref().unwrap_or_default())
            .await;
        Ok(Findings {
            availability: Availability::Open,
            why: String::new(),
            software: self.software,
            models: models.map(Arc::from),
            loaded,
            models_max,
            load,
        })
    }

    /// The reason why a server takes nothing that answers with this status when it is asked for its models; absent: it
    /// does. One whose models are named need not list any.
    fn unlisted(&self, status: StatusCode) -> Option<String> {
        let hint = match status {
            _ if status.is_success() => return None,
            _ if is_failure(status) || status == StatusCode::TOO_MANY_REQUESTS => "",
            _ if !self.models.is_empty() => return None,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                ": its `key` is missing, or is not the right one"
            }
            StatusCode::NOT_FOUND => {
                ": the path in its `url` is wrong, or its `models` have to be named"
            }
            _ => ": its `models` have to be named",
        };
        Some(format!("{MODELS_PATH} answers {status}{hint}"))
    }

    /// The models that are loaded; absent: the server does not tell. vLLM does so in its development mode alone:
    /// if it does not, it is not asked again until it was away.
    async fn loaded(&mut self, list: Option<Value>, models: &[FoundModel]) -> Option<Loaded> {
        let orders = Orders::of(self.software?)?;
        let told = match orders {
            Orders::LlamaCpp => list,
            Orders::Vllm if self.hides_loaded => None,
            Orders::Ollama | Orders::Vllm => self.json(orders.look_path()).await,
        };
        let names: Vec<&str> = models.iter().map(|model| &*model.name).collect();
        let loaded = told.and_then(|told| orders.loaded_in(&told, &names));
        self.hides_loaded = loaded.is_none();
        loaded
    }

    /// The reason why the server takes nothing; absent: it does.
    async fn health(&self) -> Result<Option<String>, CallError> {
        let path = match self.software {
            Some(ServerSoftware::Vllm | ServerSoftware::Sglang | ServerSoftware::LlamaCpp) => {
                "/health"
            }
            Some(ServerSoftware::Ollama) => "/api/version",
            // Its list of models has come.
            Some(ServerSoftware::OpenAi) | None => return Ok(None),
        };
        let client = &self.client;
        let (status, _) = patiently(|| client.get(path, PATIENCE)).await?;
        // A path that is not there tells nothing.
        let is_busy = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        Ok(is_busy.then(|| format!("{path} answers {status}")))
    }

    /// Capacity and load, as far as they are told. `list` is the answer with the models.
    async fn room(&mut self, ours: &Ours, list: Option<&Value>) -> Room {
        let software = self.software.unwrap_or(ServerSoftware::OpenAi);
        let mut models_max = None;
        let told = match software {
            ServerSoftware::Sglang => {
                let info = self.json("/server_info").await;
                let loads = self.json("/v1/loads").await;
                sglang_load(info.as_ref(), loads.as_ref())
            }
            ServerSoftware::LlamaCpp => {
                let props = self.json("/props").await;
                if let (Some(props), Some(list)) = (&props, list)
                    && is_router(props)
                {
                    models_max = router::models_max(props);
                    let asked = (props, list);
                    self.router.ask(&self.client, asked, &ours.models).await
                } else {
                    let slots = match ours.count {
                        0 => None,
                        1.. => self.json("/slots").await,
                    };
                    llama_load(props.as_ref(), slots.as_ref())
                }
            }
            ServerSoftware::Vllm | ServerSoftware::Ollama | ServerSoftware::OpenAi => {
                ServerLoad::default()
            }
        };
        let (measured, counted) = self.measured(software).await;
        let found = self.found.note(counted, ours.count);
        let usual = usual_capacity(software);
        let assumed = ServerLoad {
            capacity: Some(found.map_or(usual, |found| found.min(usual))),
            ..ServerLoad::default()
        };
        Room {
            load: measured.or(told).or(assumed),
            models_max,
        }
    }

    /// The load and the requests in the metrics that have names, an operator's before those of the software. Where no answer
    /// comes, the blocks are those of the last one, unless [`LATE_MAX`] rounds in a row had none.
    async fn measured(&mut self, software: ServerSoftware) -> (ServerLoad, Option<Headcount>) {
        let names = self.metrics.clone().or(software.metric_names());
        if !names.has_any() {
            return (ServerLoad::default(), None);
        }
        let path = names.path.as_deref().unwrap_or(METRICS_PATH);
        match self.client.get(path, PATIENCE).await {
            Ok((StatusCode::OK, body)) => {
                let samples = Samples::parse(&String::from_utf8_lossy(&body));
                let load = load_of(&samples, &names);
                self.blocks.told(load);
                (load, counted_in(&samples, &names))
            }
            Ok(_) | Err(_) => (self.blocks.missed(), None),
        }
    }

    /// The JSON at a path; absent: there is none now.
    async fn json(&self, path: &str) -> Option<Value> {
        self.client.json(path, PATIENCE).await.ok()?
    }
}

// === Silence ===

/// Asks a question that every server answers until an answer is not late, or too many were.
async fn patiently<T, A>(mut ask: impl FnMut() -> A) -> Result<T, CallError>
where
    A: Future<Output = Result<T, CallError>>,
{
    for _ in 1..LATE_MAX {
        let answer = ask().await;
        if !matches!(answer, Err(CallError::Timeout(_))) {
            return answer;
        }
    }
    ask().await
}

/// The availability of a server that was asked in vain, at which so many requests of ours run; absent: that says nothing
/// of the server.
pub(crate) fn unheard(error: &CallError, ours: usize) -> Option<Availability> {
    match error {
        CallError::NoMeans(_) => None,
        CallError::Timeout(_) if ours > 0 => Some(Availability::Busy),
        CallError::Timeout(_)
        | CallError::Unreachable(_)
        | CallError::Connection(_)
        | CallError::Answer { .. }
        | CallError::Path(_) => Some(Availability::Silent),
    }
}

// === What servers are ===

/// The software of the models in the answer of `/v1/models`, by the first owner that says so: others may be
/// people's, as with models of Ollama that are not in its library. Absent: there are no models.
fn software_of(answer: &Value) -> Option<ServerSoftware> {
    let list = answer.get("data")?.as_array()?;
    let mut owners = list
        .iter()
        .filter_map(|model| model.get("owned_by")?.as_str());
    let known = owners.find_map(|owner| match owner {
        "vllm" => Some(ServerSoftware::Vllm),
        "sglang" => Some(ServerSoftware::Sglang),
        "llamacpp" => Some(ServerSoftware::LlamaCpp),
        "library" => Some(ServerSoftware::Ollama),
        _ => None,
    });
    let found = known.unwrap_or(ServerSoftware::OpenAi);
    (!list.is_empty()).then_some(found)
}

/// The requests that a server of this software runs at once where it does not tell, and was not found to run fewer:
/// vLLM's, SGLang's and Ollama's defaults, and a number for others.
fn usual_capacity(software: ServerSoftware) -> u32 {
    match software {
        ServerSoftware::Vllm | ServerSoftware::Sglang => 256,
        ServerSoftware::LlamaCpp => 1,
        ServerSoftware::Ollama => 4,
        ServerSoftware::OpenAi => 64,
    }
}

// === Answers ===

/// The models in the answer of `/v1/models`.
fn models_in(answer: &Value) -> Option<Vec<FoundModel>> {
    let list = answer.get("data")?.as_array()?;
    let models = list
        .iter()
        .filter(|model| !has_failed(model))
        .take(MODELS_MAX);
    let models = models.filter_map(|model| {
        let context = ["max_model_len", "context_length"].iter();
        let mut context = context.filter_map(|name| model.get(name)?.as_u64());
        let meta = model
            .get("meta")
            .and_then(|meta| meta.get("n_ctx")?.as_u64());
        Some(FoundModel {
            name: model.get("id")?.as_str()?.to_owned(),
            context_tokens: context
                .next()
                .or(meta)
                .and_then(|it| u32::try_from(it).ok()),
        })
    });
    Some(models.collect())
}

/// SGLang's capacity and load.
fn sglang_load(info: Option<&Value>, loads: Option<&Value>) -> ServerLoad {
    let told = |name| sum(loads, name);
    let total = told("max_total_num_tokens").or_else(|| sum(info, "max_total_num_tokens"));
    let page = first(info, "page_size").and_then(|page| u32::try_from(page).ok());
    let tokens_per_block = page.filter(|page| *page > 0);
    let running = told("num_running_reqs");
    ServerLoad {
        capacity: told("max_running_requests")
            .or_else(|| sum(info, "max_running_requests"))
            .and_then(saturated),
        present: running
            .map(|running| running + told("num_waiting_reqs").unwrap_or(0))
            .and_then(saturated),
        tokens_per_block,
        kv: total
            .zip(told("num_used_tokens"))
            .and_then(|(total, used)| {
                let page = u64::from(tokens_per_block.unwrap_or(1));
                kv_report(total / page, used.div_ceil(page))
            }),
    }
}

/// llama.cpp's capacity and load.
fn llama_load(props: Option<&Value>, slots: Option<&Value>) -> ServerLoad {
    ServerLoad {
        capacity: props.and_then(total_slots),
        present: slots.and_then(is_processing),
        ..ServerLoad::default()
    }
}

/// The number of slots in llama.cpp's `/props`.
pub(crate) fn total_slots(props: &Value) -> Option<u32> {
    let slots = first(Some(props), "total_slots").and_then(saturated);
    slots.filter(|slots| *slots > 0)
}

/// The number of slots in llama.cpp's `/slots` that are at work.
pub(crate) fn is_processing(slots: &Value) -> Option<u32> {
    let is_busy = |slot: &&Value| slot.get("is_processing") == Some(&Value::Bool(true));
    let busy = slots.as_array()?.iter().filter(is_busy).count();
    Some(u32::try_from(busy).unwrap_or(u32::MAX))
}

/// The load in the metrics of these names.
fn load_of(samples: &Samples, names: &MetricNames) -> ServerLoad {
    let label = |name: &str| {
        let info = samples.named(names.kv_info.as_ref())?;
        let value: u32 = info.labels.get(name)?.parse().ok()?;
        (value > 0).then_some(value)
    };
    // Of all engines together, each of which tells the share of its own that is in use.
    let blocks_total = label("num_gpu_blocks");
    let usage = samples.named(names.kv_usage.as_ref());
    let usage = usage.map(MetricSamples::mean);
    ServerLoad {
        capacity: None,
        present: counted_in(samples, names).map(Headcount::all),
        tokens_per_block: label("block_size"),
        kv: blocks_total.zip(usage).and_then(|(total, usage)| {
            let used = whole(f64::from(total) * usage.clamp(0.0, 1.0));
            kv_report(u64::from(total), u64::from(used))
        }),
    }
}

/// The requests in the metrics of these names; absent: those that run are not told.
fn counted_in(samples: &Samples, names: &MetricNames) -> Option<Headcount> {
    Some(Headcount {
        running: samples.count(names.running.as_ref())?,
        waiting: samples.count(names.waiting.as_ref()).unwrap_or(0),
    })
}

/// The report of a pool of so many blocks.
fn kv_report(total: u64, used: u64) -> Option<KvReport> {
    let total = u32::try_from(total).ok()?;
    ServerLoad::kv_report(total, u32::try_from(used).unwrap_or(u32::MAX))
}

/// The whole part of a number, within the range of counts.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is clamped; what is no number is 0"
)]
fn whole(number: f64) -> u32 {
    number.clamp(0.0, f64::from(u32::MAX)) as u32
}

fn saturated(count: u64) -> Option<u32> {
    Some(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The first number called `name` in a JSON value, wherever it is.
fn first(value: Option<&Value>, name: &str) -> Option<u64> {
    numbers(value?, name).first().copied()
}

/// The sum of the numbers called `name` in a JSON value, one for each rank of a server.
fn sum(value: Option<&Value>, name: &str) -> Option<u64> {
    let found = numbers(value?, name);
    (!found.is_empty()).then(|| found.iter().sum())
}

fn numbers(value: &Value, name: &str) -> Vec<u64> {
    match value {
        Value::Object(fields) => {
            if let Some(number) = fields.get(name).and_then(Value::as_u64) {
                return vec![number];
            }
            fields
                .values()
                .flat_map(|inner| numbers(inner, name))
                .collect()
        }
        Value::Array(items) => items
            .iter()
            .flat_map(|inner| numbers(inner, name))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

// === impl LastBlocks ===

impl LastBlocks {
    /// Keeps the blocks of an answer. The requests in it have others in their place by the next round.
    fn told(&mut self, load: ServerLoad) {
        let load = ServerLoad {
            present: None,
            ..load
        };
        *self = Self { load, missing: 0 };
    }

    /// The load that counts after a round without an answer.
    fn missed(&mut self) -> ServerLoad {
        self.missing = self.missing.saturating_add(1);
        if self.missing >= LATE_MAX {
            self.load = ServerLoad::default();
        }
        self.load
    }
}

// === impl Samples ===

impl Samples {
    /// Reads Prometheus' text form. A line that is none is left out.
    fn parse(text: &str) -> Self {
        let mut samples = Self::default();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for (name, labels, value) in lines.filter_map(sample) {
            let metric = samples.0.entry(name.to_owned()).or_default();
            metric.sum += value;
            metric.count = metric.count.saturating_add(1);
            metric.labels = labels;
        }
        samples
    }

    /// The samples of the metric of this name; absent: it is not there, or has none.
    fn named(&self, name: Option<&String>) -> Option<&MetricSamples> {
        self.0.get(name?)
    }

    /// A gauge that counts, of all engines together; absent: it is not there.
    fn count(&self, name: Option<&String>) -> Option<u32> {
        Some(whole(self.named(name)?.sum))
    }
}

// === impl MetricSamples ===

impl MetricSamples {
    /// A gauge that tells a share of something that each engine has.
    fn mean(&self) -> f64 {
        self.sum / f64::from(self.count)
    }
}

/// Name, labels and value of a line.
fn sample(line: &str) -> Option<(&str, BTreeMap<String, String>, f64)> {
    let (head, rest) = match line.split_once('{') {
        Some((name, rest)) => {
            let (labels, value) = rest.rsplit_once('}')?;
            ((name, labels), value)
        }
        None => {
            let (name, value) = line.split_once(' ')?;
            ((name, ""), value)
        }
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    let labels = head.1.split("\",").filter_map(|label| {
        let (name, value) = label.split_once("=\"")?;
        Some((
            name.trim().to_owned(),
            value.trim_end_matches('"').to_owned(),
        ))
    });
    Some((head.0.trim(), labels.collect(), value))
}

/// The models that an operator has named, in the place of those that are found, which tell their contexts.
pub(crate) fn named(models: &[String], found: &[FoundModel]) -> Arc<[FoundModel]> {
    let models = models.iter().map(|name| FoundModel {
        name: name.clone(),
        context_tokens: found
            .iter()
            .find(|it| it.name == *name)
            .and_then(|it| it.context_tokens),
    });
    models.collect()
}

#[cfg(test)]
mod tests;
