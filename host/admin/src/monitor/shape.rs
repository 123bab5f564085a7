//! The numbers of the monitor as JSON: activity, sessions, models, and the queue with the reasons for
//! which each request waits.

use pointsman_core::{Micros, Obstacle, WaitReason};
use pointsman_driver::activity::{
    MinuteSample, RECENT_MINUTES, RecentTimes, SessionHits, TimeSummary, Totals,
};
use pointsman_driver::operator::{
    ExecutorRow, ModelRow, MonitorReport, WaitingRow, WatchedExecutor, WatchedModel,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::words::author;

/// The activity of the host, and what waits.
#[derive(Serialize, JsonSchema)]
pub(super) struct ActivityData {
    totals: TotalsData,
    sessions: SessionsData,
    /// Waits for a place that ended in the last hour; null: none did.
    queue_wait: Option<TimesData>,
    recent: RecentData,
    /// The first 100 requests of the queue, then of those outside it, each in order of arrival.
    queue: Vec<WaitingData>,
    /// The activity of the executors, in the order of `executors`.
    activity: Vec<ExecutorActivityData>,
    models: Vec<ModelData>,
    /// The minutes of the last hour in which something happened, the oldest first.
    minutes: Vec<MinuteData>,
}

/// Numbers since the start.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct TotalsData {
    arrived: u64,
    finished: u64,
    refused: u64,
    cancelled: u64,
    expired: u64,
    failed: u64,
    /// Tokens of prompts, computed or cached.
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
}

/// Sessions that an executor has served.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct SessionsData {
    /// Sessions that are remembered.
    tracked: usize,
    #[serde(flatten)]
    hits: HitsData,
}

/// Requests of sessions: where they were expected, and elsewhere.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct HitsData {
    session_hits: u64,
    session_misses: u64,
    /// The part of hits, in thousandths; null: there was neither.
    session_hit_permille: Option<u64>,
}

/// Times. The percentiles are by nearest rank: of all times, or of an even sample of at least 128 a minute.
#[derive(Serialize, JsonSchema)]
struct TimesData {
    count: u64,
    mean_micros: u64,
    p10_micros: u64,
    p50_micros: u64,
    p90_micros: u64,
    p95_micros: u64,
}

/// Times of the newest minutes.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct RecentData {
    /// The number of the minutes, of which the last has only begun.
    minutes: u64,
    /// Waits for a place that ended; null: none did.
    queue_wait: Option<TimesData>,
    /// Times from arrivals to first tokens; null: none came.
    first_token: Option<TimesData>,
}

/// A request that waits.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct WaitingData {
    /// The number in its answer's header `x-pointsman-request`, known to `/admin/decisions`.
    request: u64,
    tenant: String,
    /// The model that it asks for; null: any.
    model: Option<String>,
    /// `latency-critical` or `throughput`.
    class: &'static str,
    priority: i32,
    age_micros: u64,
    prompt_tokens: u32,
    output_tokens_max: u32,
    /// True outside the queue.
    parked: bool,
    why: WhyData,
}

/// The reason for which a request waits.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct WhyData {
    /// `new`, `parked`, `held`, `reserved`, `turn` or `blocked`.
    kind: &'static str,
    /// The reason in words.
    text: String,
    /// The end of a hold, on the host's clock; null: it has none.
    until_micros: Option<u64>,
    /// The executor where room is being made; null: none is.
    executor: Option<String>,
    /// The obstacles in the way, the easiest to overcome first.
    obstacles: Vec<ObstacleData>,
    /// The policy that parked or held it; null: none did.
    policy: Option<String>,
    decision: Option<String>,
}

/// An obstacle to a placement.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ObstacleData {
    obstacle: &'static str,
    /// The number of executors where it is the one that counts.
    executors: u32,
}

/// The activity on an executor.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ExecutorActivityData {
    executor: String,
    /// Requests that it served to their end.
    served: u64,
    /// The part of all served requests, in thousandths; null: none was served.
    share_permille: Option<u64>,
    /// The part of its slots' time in the last hour in which sequences ran, in thousandths.
    utilisation_permille: Option<u64>,
    /// The mean time there of the requests that it served in the last hour.
    mean_micros: Option<u64>,
    #[serde(flatten)]
    sessions: HitsData,
    /// The time since its last news; null: there was none.
    last_report_age_micros: Option<u64>,
}

/// A model and its requests.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ModelData {
    model: String,
    running_max: Option<u32>,
    running: u32,
    waiting: u32,
    /// Requests that asked for it since the start.
    requests: u64,
    prompt_tokens: u64,
    output_tokens: u64,
    /// Sessions that are remembered.
    sessions: usize,
}

/// A minute of the host.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct MinuteData {
    from_micros: u64,
    arrived: u64,
    finished: u64,
    /// Requests that were refused, ran out of time or failed.
    unserved: u64,
    prompt_tokens: u64,
    output_tokens: u64,
    queued_max: u64,
    running_max: u64,
    /// Waits for a place that ended; null: none did.
    queue_wait: Option<TimesData>,
    /// Times from arrivals to first tokens; null: none came.
    first_token: Option<TimesData>,
}

// === impl ActivityData ===

impl ActivityData {
    pub(super) fn new(report: &MonitorReport) -> Self {
        let (overview, activity) = (&report.overview, &report.activity);
        let now = overview.at;
        let executors = overview.executors.iter().zip(&report.executors);
        let models = overview.models.iter().zip(&report.models);
        Self {
            totals: TotalsData::from(&activity.totals),
            sessions: SessionsData {
                tracked: report.sessions,
                hits: activity.totals.sessions.into(),
            },
            queue_wait: activity.waits.map(TimesData::from),
            recent: RecentData::from(activity.recent),
            queue: report
                .waiting
                .iter()
                .map(|row| WaitingData::new(row, now))
                .collect(),
            activity: executors
                .map(|(row, watched)| ExecutorActivityData::new(row, watched, now))
                .collect(),
            models: models
                .map(|(row, watched)| ModelData::new(row, watched))
                .collect(),
            minutes: activity.minutes.iter().map(MinuteData::from).collect(),
        }
    }
}

impl From<&Totals> for TotalsData {
    fn from(totals: &Totals) -> Self {
        Self {
            arrived: totals.arrived,
            finished: totals.finished,
            refused: totals.refused,
            cancelled: totals.cancelled,
            expired: totals.expired,
            failed: totals.failed,
            prompt_tokens: totals.prompt_tokens,
            cached_tokens: totals.cached_tokens,
            output_tokens: totals.output_tokens,
        }
    }
}

impl From<SessionHits> for HitsData {
    fn from(of: SessionHits) -> Self {
        let all = of.hits.saturating_add(of.misses);
        Self {
            session_hits: of.hits,
            session_misses: of.misses,
            session_hit_permille: of.hits.saturating_mul(1000).checked_div(all),
        }
    }
}

impl From<TimeSummary> for TimesData {
    fn from(times: TimeSummary) -> Self {
        Self {
            count: times.count,
            mean_micros: times.mean_micros,
            p10_micros: times.p10_micros,
            p50_micros: times.p50_micros,
            p90_micros: times.p90_micros,
            p95_micros: times.p95_micros,
        }
    }
}

impl From<RecentTimes> for RecentData {
    fn from(recent: RecentTimes) -> Self {
        Self {
            minutes: RECENT_MINUTES,
            queue_wait: recent.waits.map(TimesData::from),
            first_token: recent.first_tokens.map(TimesData::from),
        }
    }
}

impl From<&MinuteSample> for MinuteData {
    fn from(minute: &MinuteSample) -> Self {
        let numbers = minute.numbers;
        Self {
            from_micros: minute.from.0,
            arrived: numbers.arrived,
            finished: numbers.finished,
            unserved: numbers.unserved,
            prompt_tokens: numbers.prompt_tokens,
            output_tokens: numbers.output_tokens,
            queued_max: numbers.queued_max,
            running_max: numbers.running_max,
            queue_wait: minute.waits.map(TimesData::from),
            first_token: minute.first_tokens.map(TimesData::from),
        }
    }
}

impl ExecutorActivityData {
    fn new(row: &ExecutorRow, watched: &WatchedExecutor, now: Micros) -> Self {
        let activity = watched.activity;
        Self {
            executor: row.name.clone(),
            served: activity.served,
            share_permille: activity.share_permille,
            utilisation_permille: activity.utilisation_permille,
            mean_micros: activity.mean_micros,
            sessions: activity.sessions.into(),
            last_report_age_micros: watched.last_report.map(|at| now.since(at).0),
        }
    }
}

impl ModelData {
    fn new(row: &ModelRow, watched: &WatchedModel) -> Self {
        Self {
            model: row.name.clone(),
            running_max: row.running_max,
            running: row.running,
            waiting: row.waiting,
            requests: watched.activity.requests,
            prompt_tokens: watched.activity.prompt_tokens,
            output_tokens: watched.activity.output_tokens,
            sessions: watched.sessions,
        }
    }
}

// === impl WaitingData ===

impl WaitingData {
    fn new(row: &WaitingRow, now: Micros) -> Self {
        Self {
            request: row.ticket.0,
            tenant: row.tenant.clone(),
            model: row.model.clone(),
            class: row.class.as_str(),
            priority: row.priority,
            age_micros: now.since(row.arrived).0,
            prompt_tokens: row.prompt_tokens,
            output_tokens_max: row.output_tokens_max,
            parked: row.reason == WaitReason::Parked,
            why: WhyData::new(row),
        }
    }
}

impl WhyData {
    fn new(row: &WaitingRow) -> Self {
        let by = row.delayed_by.as_ref();
        let policy = by.map(|by| by.policy.clone());
        let said = by.map(|by| author(&by.policy, &by.reason));
        let mut until_micros = None;
        let mut obstacles = Vec::new();
        let (kind, text) = match &row.reason {
            WaitReason::Arrived => ("new", "admission is asked next".to_owned()),
            WaitReason::Parked => {
                let by = said.map_or(String::new(), |said| format!(", parked by {said}"));
                ("parked", format!("the queue is full{by}"))
            }
            WaitReason::Reserved(_) => {
                let on = row.executor.as_deref().unwrap_or_default();
                ("reserved", format!("others give way to it on {on}"))
            }
            WaitReason::Held(until) => {
                until_micros = Some(until.0);
                ("held", format!("held by {}", said.unwrap_or_default()))
            }
            WaitReason::Turn => {
                let text = said.map_or("others come first".to_owned(), |said| {
                    format!("left without a place by {said}")
                });
                ("turn", text)
            }
            WaitReason::Blocked(found) => {
                obstacles.extend(found.iter().map(|(obstacle, executors)| ObstacleData {
                    obstacle: name(*obstacle),
                    executors: *executors,
                }));
                ("blocked", blocked(found.iter()))
            }
        };
        Self {
            kind,
            text,
            until_micros,
            executor: row.executor.clone(),
            obstacles,
            policy,
            decision: by.map(|by| by.decision.clone()),
        }
    }
}

/// The obstacles on executors, in words.
fn blocked<'a>(obstacles: impl Iterator<Item = (&'a Obstacle, &'a u32)>) -> String {
    let words = obstacles.map(|(obstacle, executors)| {
        let plural = if *executors == 1 { "" } else { "s" };
        format!("{} ({executors} executor{plural})", words(*obstacle))
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() {
        return "there is no executor".to_owned();
    }
    words.join(", ")
}

fn name(obstacle: Obstacle) -> &'static str {
    match obstacle {
        Obstacle::NoBlocks => "no-blocks",
        Obstacle::RunningMax => "running-max",
        Obstacle::ModelsMax => "models-max",
        Obstacle::NoSlot => "no-slot",
        Obstacle::Unavailable => "unavailable",
        Obstacle::NeverFits => "never-fits",
        Obstacle::FailedBefore => "failed-before",
        Obstacle::NotAllowed => "not-allowed",
        Obstacle::NotServed => "not-served",
    }
}

fn words(obstacle: Obstacle) -> &'static str {
    match obstacle {
        Obstacle::NoBlocks => "too few KV blocks are free",
        Obstacle::RunningMax => "as many of its model run as may",
        Obstacle::ModelsMax => "other models take the places for models",
        Obstacle::NoSlot => "all slots are taken",
        Obstacle::Unavailable => "takes nothing new",
        Obstacle::NeverFits => "has fewer KV blocks than it may need",
        Obstacle::FailedBefore => "has failed it before",
        Obstacle::NotAllowed => "is not allowed for it",
        Obstacle::NotServed => "does not serve its model",
    }
}
