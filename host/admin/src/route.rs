//! The forecast of a request's route, and its reasons. Nothing is changed by asking.

use std::sync::Arc;

use http::HeaderMap;
use pointsman_driver::operator::{
    ForecastAuthor, ForecastDraft, ForecastOutcome, NoTenant, Operator, RouteCandidate,
    RouteForecast, RouteQuery,
};
use pointsman_http::answer::Json;
use pointsman_http::error::ApiError;
use pointsman_http::fields::Fields;
use pointsman_http::openapi::named;
use pointsman_http::{AccessRules, App, Call, DEFAULT_TENANT, KeyHolder, RequestBody, Rights};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::json;

use super::{Desk, finished};
use pointsman_openai::{Caller, route_query, route_query_schema};

/// The route that a request would take now.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Forecast {
    /// `place`, `wait`, `hold` or `give-up`.
    would: &'static str,
    /// The executor that would take the request.
    executor: Option<String>,
    /// The time at which the policy would be asked again at the latest.
    until_micros: Option<u64>,
    by: Author,
    /// The executors that the answer names, in its order.
    executors_named: Vec<String>,
    /// The executors in attach order, at most 1000.
    candidates: Vec<Candidate>,
    executors_total: usize,
    /// The reason why the policy says nothing about the candidates.
    unexplained: Option<String>,
    request: ForecastRequest,
}

/// The author of a forecast.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Author {
    /// Null: the machine's built-in rule.
    policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
    reason: String,
    /// The failure of the policy that was asked first.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Candidate {
    executor: String,
    takes_it_now: bool,
    /// The interlock's reason to take or refuse the request.
    interlock: String,
    /// Blocks that its sequences would hold with this one. What they would share counts once.
    kv_blocks_used: u64,
    /// Prompt tokens that it would have yet to compute with this one, without those cached.
    prefill_tokens_pending: u64,
    /// The policy's words; null: it says nothing about this executor.
    eligible: Option<bool>,
    /// Smaller is better; comparable within one answer only.
    cost: Option<i64>,
    note: Option<String>,
}

/// The request as it was understood.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ForecastRequest {
    /// Null: any.
    model: Option<String>,
    tenant: String,
    prompt_tokens: u32,
    output_tokens_max: u32,
}

pub(crate) async fn forecast(desk: Arc<Desk>, call: Call<'_>) -> Result<Json<Forecast>, ApiError> {
    let (app, rules) = (call.app, Arc::clone(call.rules));
    let headers = call.request.headers().clone();
    let body = call.body().await?;
    let reader = Arc::clone(app);
    let query = move |body: RequestBody| query(&reader, (rules, headers), &body);
    let query = app.read_in_turn(body, query).await?;
    let question = Box::new(query.clone());
    let asked = app
        .driver
        .operate(|answer| Operator::Route(question, answer));
    let finish = |draft: Result<ForecastDraft, NoTenant>| draft.map(ForecastDraft::finish);
    let forecast = finished(&desk, asked, finish).await?;
    let forecast = forecast.map_err(|error| ApiError::field("tenant", error.to_string()))?;
    Ok(Json(Forecast::new(query, forecast)))
}

/// Understands the question: slow where it has a long prompt.
fn query(
    app: &App,
    (rules, headers): (Arc<AccessRules>, HeaderMap),
    body: &[u8],
) -> Result<RouteQuery, ApiError> {
    let mut fields = Fields::parse(body)?;
    let tenant: Option<String> = fields.take_as("tenant", "the name of a tenant", |_| true)?;
    let tenant = tenant.unwrap_or_else(|| DEFAULT_TENANT.to_owned());
    let holder = Arc::new(KeyHolder::new(Rights::of_tenant(&tenant)));
    let caller = Caller {
        rules,
        holder,
        headers,
    };
    route_query(app, caller, fields)
}

pub(crate) fn body_schema(schemas: &mut SchemaGenerator) -> Schema {
    let about = format!("The tenant that would ask; by default `{DEFAULT_TENANT}`.");
    let tenant = vec![("tenant", json!({"type": "string", "description": about}))];
    let body = route_query_schema(schemas, tenant);
    named(schemas, "RouteRequest", body)
}

impl Forecast {
    fn new(query: RouteQuery, forecast: RouteForecast) -> Self {
        let (would, executor, until) = match forecast.outcome {
            ForecastOutcome::Place(executor) => ("place", Some(executor), None),
            ForecastOutcome::Wait => ("wait", None, None),
            ForecastOutcome::Hold(until) => ("hold", None, until),
            ForecastOutcome::GiveUp => ("give-up", None, None),
        };
        Self {
            would,
            executor,
            until_micros: until.map(|until| until.0),
            by: forecast.by.into(),
            executors_named: forecast.named,
            candidates: forecast
                .candidates
                .into_iter()
                .map(Candidate::from)
                .collect(),
            executors_total: forecast.executors_total,
            unexplained: forecast.unexplained,
            request: ForecastRequest {
                model: query.model,
                tenant: query.tenant,
                prompt_tokens: query.size.prompt_tokens,
                output_tokens_max: query.size.output_tokens_max,
            },
        }
    }
}

impl From<ForecastAuthor> for Author {
    fn from(author: ForecastAuthor) -> Self {
        match author {
            ForecastAuthor::BuiltIn => Self {
                policy: None,
                number: None,
                reason: "no policy routes: the first executor with room".to_owned(),
                fault: None,
            },
            ForecastAuthor::Faulted { policy, detail } => Self {
                policy: None,
                number: None,
                reason: format!("policy {policy} failed: the first executor with room"),
                fault: Some(detail),
            },
            ForecastAuthor::Policy {
                name,
                number,
                reason,
            } => Self {
                policy: Some(name),
                number: Some(number),
                reason,
                fault: None,
            },
        }
    }
}

impl From<RouteCandidate> for Candidate {
    fn from(candidate: RouteCandidate) -> Self {
        let (takes_it_now, interlock) = match candidate.interlock {
            Ok(why) => (true, why.to_owned()),
            Err(why) => (false, why),
        };
        let words = candidate.words;
        Self {
            executor: candidate.executor,
            takes_it_now,
            interlock,
            kv_blocks_used: candidate.load.blocks_used,
            prefill_tokens_pending: candidate.load.prefill_tokens_pending,
            eligible: words.as_ref().map(|words| words.eligible),
            cost: words.as_ref().map(|words| words.cost),
            note: words.map(|words| words.note),
        }
    }
}
