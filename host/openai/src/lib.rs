//! OpenAI's chat completions and completions: a request understood, submitted, and answered.
//!
//! A field that would change an answer and is not built is refused by name (`params`), unless a server
//! elsewhere may know it; all other unknown fields are ignored, as clients of OpenAI's API expect.
//! A request that goes to a server elsewhere is passed on as it came, and so is the response.
//!
//! # Bounds
//! Those of `pointsman-http`, and:
//!
//! | bound | default | beyond |
//! |---|---|---|
//! | bytes of hints in a body | 64 KiB | 400 |
//! | a prompt, in bytes: the longest token's for each token of the context | | 400 |
//!
//! # Invariants
//! 1. Prompt and output bound of a job for engines fit the longest context of those that may serve it
//!    (`understand::tests::a_request_that_does_not_fit_the_context_is_refused`).
//! 2. A client is told status and headers only when its answer begins or has failed
//!    (`a_failure_before_the_first_text_has_its_status`, in `host/server/tests/http`).

#![forbid(unsafe_code)]

mod answer_names;
mod asked;
mod chat;
mod completions;
mod conversation;
mod document;
mod elsewhere;
mod embeddings;
mod envelope;
mod form;
mod hints;
mod inflow;
mod logprobs;
mod messages;
mod models;
mod multipart;
mod params;
mod passed_prompt;
mod passing;
mod prefix;
mod prompt;
mod relay;
mod routes;
mod sampling;
mod sse;
mod target;
mod tools;
mod understand;

use std::slice;
use std::sync::Arc;

use http::header::{self, HeaderValue};
use http::{HeaderMap, StatusCode};
use pointsman_driver::catalog::ExecutorEntry;
use pointsman_driver::clock::unix_seconds;
use pointsman_driver::message::{Submission, SubmitError, TicketId};
use pointsman_driver::quota::QuotaHold;
use pointsman_events::Micros;
use pointsman_events::rows::ExecutorKind;
use pointsman_executor::prompt::GenerationDefaults;
use pointsman_executor::relay::RelayedResponse;
use pointsman_http::answer::{HttpReply, JSON, reply, streamed};
use pointsman_http::error::ApiError;
use pointsman_http::fields::Fields;
use pointsman_http::{AccessRules, App, Call, Claims, KeyHolder, RequestBody};

use answer_names::UnnamedAnswer;
use document::{ChatAnswer, TextAnswer};
use envelope::Envelope;
use hints::{BODY_FIELD, Rules};
use inflow::{Inflow, Inflows, Part, WholeText};
use params::{Transfer, UsageChunk};
use passing::Passage;
use relay::EventForm;
use sse::{EventStream, Pace};
use target::Target;
use tools::{CallParser, CallReading};
use understand::{Understood, understand};

pub use document::route_query_schema;
pub use routes::{hinted, passed_on, routes};
pub use understand::route_query;

/// The two kinds of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// The sender of a request, with the rules and headers of the request.
#[derive(Debug)]
pub struct Caller {
    /// The rules that the request goes by.
    pub rules: Arc<AccessRules>,
    /// The holder of the key.
    pub holder: Arc<KeyHolder>,
    /// The headers of the request.
    pub headers: HeaderMap,
}

/// A function that understands a body, by its sender and the way that the request takes.
type Understand<T> =
    fn(&App, CompletionKind, (Caller, Passage), RequestBody) -> Result<T, ApiError>;

/// The part of an answer that has come when there is something to send.
enum Begun {
    /// The whole texts, and the time at which the first of them began.
    Whole(Vec<WholeText>, Micros),
    Stream(Part, UsageChunk),
    /// The response of another server.
    Relayed(RelayedResponse),
}

/// The most tokens of a completion whose client names no bound: OpenAI's number.
const COMPLETION_TOKENS: u32 = 16;

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// Answers a chat.
///
/// # Cancellation
/// The request is cancelled wherever it is.
async fn chat(call: Call<'_>) -> Result<ChatAnswer, ApiError> {
    complete(call, CompletionKind::Chat).await.map(ChatAnswer)
}

/// Answers a completion.
///
/// # Cancellation
/// The request is cancelled wherever it is.
async fn text(call: Call<'_>) -> Result<TextAnswer, ApiError> {
    complete(call, CompletionKind::Text).await.map(TextAnswer)
}

async fn complete(call: Call<'_>, kind: CompletionKind) -> Result<HttpReply, ApiError> {
    let app = call.app;
    let (understood, arrived) = read_call(call, kind, understand).await?;
    let Understood {
        submissions,
        of_prompt,
        transfer,
        calls,
    } = understood;
    let prompts = submissions.iter().step_by(of_prompt);
    let mut envelope = Envelope {
        kind,
        id: String::new(),
        created: unix_seconds(),
        model: String::new(),
        prompt_tokens: prompts.map(|it| it.job.prompt.len()).sum(),
    };
    let asked = submissions.first().and_then(|it| it.model.clone());
    let (ticket, inflows) = submit_all(app, submissions, calls.as_ref())?;
    envelope.id = format!("{}-{:016x}{:08x}", kind.prefix(), app.origin, ticket.0);
    let mut inflows = Inflows::new(inflows, of_prompt);
    let begun = begin(app, &mut inflows, transfer).await;
    let first = inflows.choice(0);
    let answering = first.model().map(str::to_owned);
    envelope.model = answering.or(asked).unwrap_or_default();
    let placed = first.headers();
    let pace = pace(app, first, arrived);
    let mut reply = match begun {
        Ok(Begun::Whole(answers, first_at)) => {
            pace.first(first_at);
            let whole = envelope.whole(&answers, inflows.tokens());
            reply(StatusCode::OK, JSON, whole)
        }
        Ok(Begun::Stream(part, usage)) => {
            let events = EventStream::new(envelope, usage, part, inflows, pace);
            let mut reply = streamed(events);
            let headers = reply.headers_mut();
            headers.insert(header::CONTENT_TYPE, EVENT_STREAM);
            headers.insert(header::CACHE_CONTROL, NO_CACHE);
            reply
        }
        Ok(Begun::Relayed(relayed)) => {
            let watched = (pace, None);
            relay(relayed, inflows.only(), watched, EventForm::Unnamed)
        }
        Err(error) => error.into_reply(),
    };
    reply.headers_mut().extend(placed);
    Ok(reply)
}

/// Understands a request of this kind, by `understand`, once its body is there. Returns the time of that,
/// too.
async fn read_call<T: Send + 'static>(
    call: Call<'_>,
    kind: CompletionKind,
    understand: Understand<T>,
) -> Result<(T, Micros), ApiError> {
    let app = call.app;
    app.check_serving()?;
    let caller = Caller {
        rules: Arc::clone(call.rules),
        holder: Arc::clone(call.holder),
        headers: call.request.headers().clone(),
    };
    let passage = Passage::of(&call.request, call.operation);
    let body = call.body().await?;
    app.check_hands()?;
    app.check_limits(caller.tenant())?;
    let arrived = app.watched.clock.now();
    let reader = Arc::clone(app);
    let understood = move |body: RequestBody| understand(&reader, kind, (caller, passage), body);
    Ok((app.read_in_turn(body, understood).await?, arrived))
}

/// Waits for the part of an answer with which its response can begin.
async fn begin(app: &App, inflows: &mut Inflows, transfer: Transfer) -> Result<Begun, ApiError> {
    let first = inflows.choice(0).first().await?;
    let first_at = app.watched.clock.now();
    match (first, transfer) {
        (Part::Relayed(relayed), _) => Ok(Begun::Relayed(relayed)),
        (Part::Embedding(_), _) => Err(inflow::mixed()),
        (part, Transfer::Whole) => {
            let answers = inflows.all(part).await?;
            Ok(Begun::Whole(answers, first_at))
        }
        (part, Transfer::Streamed(usage)) => Ok(Begun::Stream(part, usage)),
    }
}

/// The measure of the times at which the parts of an answer are written.
fn pace(app: &App, inflow: &Inflow, arrived: Micros) -> Pace {
    let (model, executor) = (inflow.model(), inflow.executor());
    let labels = (model.unwrap_or(""), executor.unwrap_or(""));
    let metrics = app.metrics.stream(labels.0, labels.1);
    Pace::new(app.watched.clock, arrived, metrics)
}

/// The response of another server, as a client gets it.
fn relay(
    relayed: RelayedResponse,
    inflow: Inflow,
    watched: (Pace, Option<UnnamedAnswer>),
    events: EventForm,
) -> HttpReply {
    let (status, headers, body) = relay::begin(relayed, inflow, watched, events);
    let mut reply = streamed(body);
    *reply.status_mut() = status;
    *reply.headers_mut() = headers;
    reply
}

/// Hands the requests for the choices of an answer to the driver, at least one. Returns the first one's
/// ticket. Where one is not taken, the others are cancelled. Calls of tools are read out of them by `calls`.
fn submit_all(
    app: &App,
    submissions: Vec<Submission>,
    calls: Option<&CallReading>,
) -> Result<(TicketId, Vec<Inflow>), ApiError> {
    // The host may have begun to drain while the body came or was read.
    app.check_serving()?;
    let quota = app.take_quota(&submissions, submissions.len()..=submissions.len())?;
    let submitted = submissions.into_iter().map(|it| {
        let quota = quota.as_ref().map(QuotaHold::share);
        hand_over(app, it, (quota, calls.map(CallReading::parser)))
    });
    let submitted = submitted.collect::<Result<Vec<_>, _>>()?;
    let ticket = submitted.first().map(|(ticket, _)| *ticket);
    let ticket = ticket.ok_or(ApiError::Internal)?;
    let inflows = submitted.into_iter().map(|(_, inflow)| inflow);
    Ok((ticket, inflows.collect()))
}

/// Hands a request to the driver, if the limits of its tenant allow it.
fn submit(app: &App, submission: Submission) -> Result<(TicketId, Inflow), ApiError> {
    // The host may have begun to drain while the body came or was read.
    app.check_serving()?;
    let quota = app.take_quota(slice::from_ref(&submission), 1..=1)?;
    hand_over(app, submission, (quota, None))
}

/// Hands a request to the driver that holds what it needs. A host that drains takes it: it may be part of a call that
/// is in hand.
fn hand_over(
    app: &App,
    submission: Submission,
    (quota, calls): (Option<QuotaHold>, Option<CallParser>),
) -> Result<(TicketId, Inflow), ApiError> {
    let submitted = app.driver.submit(submission, quota);
    let (ticket, deliveries) = submitted.map_err(|error| match error {
        SubmitError::Full => ApiError::HandsFull {
            retry_after: app.settings.retry_after_secs,
        },
        SubmitError::Closed => ApiError::draining(),
    })?;
    Ok((ticket.id(), Inflow::new(ticket, deliveries, calls)))
}

/// Reads a body as a server reads it that has an executor `cpu`, knows the label `team` and serves
/// models of every name; for fuzzing.
///
/// # Errors
/// The text that a client gets.
pub fn try_body(kind: CompletionKind, body: &[u8]) -> Result<(), String> {
    let rules = Rules {
        priority_min: -100,
        priority: 0,
        claims: Claims {
            priority_max: 100,
            ..Claims::default()
        },
        label_keys: &["team".to_owned()],
        executors: &[ExecutorEntry {
            name: "cpu".to_owned(),
            device: "cpu0".to_owned(),
            kind: ExecutorKind::Cpu,
            models: Vec::new(),
            tokens_per_block: None,
        }],
        model: None,
        tenant: "default",
    };
    let parsed = Fields::parse(body).and_then(|mut fields| {
        let _model: String = fields.require("model", "a text")?;
        let hinted = fields.take(BODY_FIELD);
        hints::parse(&HeaderMap::new(), hinted, rules)?;
        understand::read(&mut fields, kind, &GenerationDefaults::NEUTRAL)
    });
    parsed.map(drop).map_err(|error| error.to_string())
}

/// The request's number in an id of a completion or in the header `x-pointsman-request`; absent:
/// the text is neither, or comes from another process.
#[must_use]
pub fn ticket_of(app: &App, id: &str) -> Option<TicketId> {
    let completion = ["chatcmpl-", "cmpl-"]
        .into_iter()
        .find_map(|prefix| id.strip_prefix(prefix));
    let Some(rest) = completion else {
        return id.parse().ok().map(TicketId);
    };
    let (origin, ticket) = rest.split_at_checked(16)?;
    let origin = u64::from_str_radix(origin, 16).ok()?;
    let ticket = u64::from_str_radix(ticket, 16).ok()?;
    (origin == app.origin).then_some(TicketId(ticket))
}

// === impl Caller ===

impl Caller {
    fn tenant(&self) -> &str {
        &self.holder.rights().tenant
    }

    /// The rules for hints of a request for that target.
    fn hint_rules<'a>(&'a self, target: &'a Target<'_>) -> Rules<'a> {
        let rights = self.holder.rights();
        Rules {
            priority_min: -self.rules.priority_max,
            priority: rights.priority,
            claims: self.rules.claims_of(rights),
            label_keys: &self.rules.label_keys,
            executors: &target.executors,
            model: target.name.as_deref(),
            tenant: &rights.tenant,
        }
    }
}

// === impl CompletionKind ===

impl CompletionKind {
    /// The beginning of the ids of such completions.
    fn prefix(self) -> &'static str {
        match self {
            CompletionKind::Chat => "chatcmpl",
            CompletionKind::Text => "cmpl",
        }
    }
}
