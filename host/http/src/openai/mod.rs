//! OpenAI's chat completions and completions: a request understood, submitted, and answered.
//!
//! A field that would change an answer and is not built is refused by name (`params`); all other
//! unknown fields are ignored, as clients of OpenAI's API expect.
//!
//! # Invariants
//! 1. Prompt and output bound of a submitted job fit the model's context
//!    (`tests::a_request_that_does_not_fit_the_context_is_refused`).
//! 2. A client is told status and headers only when its answer begins or has failed
//!    (`a_failure_before_the_first_text_has_its_status`, in `host/server/tests/http`).

mod chat;
mod completions;
mod document;
mod envelope;
mod inflow;
pub(super) mod models;
mod params;
mod prefix;
mod prompt;
mod sse;
mod target;

use std::sync::Arc;

use http_body_util::Either;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use pointsman_core::PromptBlocks;
use pointsman_core::rows::ExecutorKind;
use pointsman_driver::catalog::{Catalog, ExecutorEntry};
use pointsman_driver::clock::unix_seconds;
use pointsman_driver::message::{Hints, Submission, SubmitError, TicketId};
use pointsman_driver::operator::{RequestSize, RouteQuery};
use pointsman_executor::job::Job;
use pointsman_executor::prompt::GenerationDefaults;

use super::App;
use super::answer::{JSON, Reply, reply};
use super::error::ApiError;
use super::fields::Fields;
use super::hints::{self, BODY_FIELD, Rules};
use super::rights::{Holder, Rights};
use super::router::Call;
use super::settings::Claims;
use document::{ChatAnswer, TextAnswer};
use envelope::Envelope;
use inflow::{Inflow, Part, WholeText};
use params::{Params, Transfer, UsageChunk};
use prompt::Prompt;
use sse::Pace;
use target::Target;

pub(super) use document::{chat_body, route_query_schema, text_body};
pub(super) use sse::EventStream;

/// The two kinds of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// The sender of a request, with the request's headers.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) holder: Arc<Holder>,
    pub(super) headers: HeaderMap,
}

/// A request that was understood.
struct Understood {
    kind: CompletionKind,
    submission: Submission,
    transfer: Transfer,
}

/// The part of an answer that has come when there is something to send.
enum Begun {
    Whole(WholeText),
    Stream(Part, UsageChunk),
}

/// The most tokens of a completion whose client names no bound: OpenAI's number.
const COMPLETION_TOKENS: u32 = 16;

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// Answers a chat.
///
/// # Cancellation
/// The request is cancelled wherever it is.
pub(super) async fn chat(call: Call<'_>) -> Result<ChatAnswer, ApiError> {
    complete(call, CompletionKind::Chat).await.map(ChatAnswer)
}

/// Answers a completion.
///
/// # Cancellation
/// The request is cancelled wherever it is.
pub(super) async fn text(call: Call<'_>) -> Result<TextAnswer, ApiError> {
    complete(call, CompletionKind::Text).await.map(TextAnswer)
}

async fn complete(call: Call<'_>, kind: CompletionKind) -> Result<Reply, ApiError> {
    let app = call.app;
    app.check_serving()?;
    let caller = Caller {
        holder: Arc::clone(call.holder),
        headers: call.request.headers().clone(),
    };
    let body = call.body().await?;
    app.check_hands()?;
    let arrived = app.clock.now();
    let reader = Arc::clone(app);
    let understood = move |body: &[u8]| understand(&reader, kind, caller, body);
    let understood = app.turns.read(body, understood).await?;
    let transfer = understood.transfer;
    let (mut envelope, mut inflow) = submit(app, understood)?;
    let begun = match transfer {
        Transfer::Whole => inflow.all().await.map(Begun::Whole),
        Transfer::Streamed(usage) => inflow.first().await.map(|part| Begun::Stream(part, usage)),
    };
    if let Some(model) = inflow.model() {
        model.clone_into(&mut envelope.model);
    }
    let placed = inflow.headers();
    let mut reply = match begun {
        Ok(Begun::Whole(answer)) => reply(
            StatusCode::OK,
            JSON,
            envelope.whole(&answer, inflow.tokens()),
        ),
        Ok(Begun::Stream(part, usage)) => {
            let labels = (inflow.model(), inflow.executor());
            let (model, executor) = (labels.0.unwrap_or(""), labels.1.unwrap_or(""));
            let metrics = app.watched.metrics.stream(model, executor);
            let pace = Pace::new(app.clock, arrived, metrics);
            let events = EventStream::new(envelope, usage, part, inflow, pace);
            let mut reply = Response::new(Either::Right(events));
            let headers = reply.headers_mut();
            headers.insert(header::CONTENT_TYPE, EVENT_STREAM);
            headers.insert(header::CACHE_CONTROL, NO_CACHE);
            reply
        }
        Err(error) => error.into_reply(),
    };
    reply.headers_mut().extend(placed);
    Ok(reply)
}

/// Hands a request to the driver.
fn submit(app: &App, understood: Understood) -> Result<(Envelope, Inflow), ApiError> {
    let Understood {
        kind, submission, ..
    } = understood;
    // The host may have begun to drain while the body came or was read.
    app.check_serving()?;
    let model = submission.model.clone().unwrap_or_default();
    let prompt_tokens = submission.job.prompt.len();
    let submitted = app.driver.submit(submission);
    let (ticket, deliveries) = submitted.map_err(|error| match error {
        SubmitError::Full => ApiError::HandsFull {
            retry_after: app.settings.retry_after_secs,
        },
        SubmitError::Closed => ApiError::draining(),
    })?;
    let prefix = match kind {
        CompletionKind::Chat => "chatcmpl",
        CompletionKind::Text => "cmpl",
    };
    let envelope = Envelope {
        kind,
        id: format!("{prefix}-{:016x}{:08x}", app.origin, ticket.id().0),
        created: unix_seconds(),
        model,
        prompt_tokens,
    };
    Ok((envelope, Inflow::new(ticket, deliveries)))
}

/// Understands a request, down to the tokens of its prompt: slow where the prompt is long.
fn understand(
    app: &App,
    kind: CompletionKind,
    caller: Caller,
    body: &[u8],
) -> Result<Understood, ApiError> {
    let catalog = caller.holder.view(app.catalog());
    let mut fields = Fields::parse(body)?;
    let target = Target::take(&mut fields, &catalog, app.settings.unnamed_model)?;
    let model = &*target.model;
    let hinted = (&caller.headers, rules(app, &target, caller.holder.rights()));
    let (hints, params, prompt) = read(&mut fields, kind, model.text.defaults(), hinted)?;
    note_ignored(&fields);
    let prompt = prompt.into_tokens(model)?;
    let bound = output_bound(kind, model.context_tokens, prompt.len(), params.tokens_max)?;
    let prompt_blocks = prompt_blocks(app, &catalog, (caller.tenant(), &model.name), &prompt);
    let job = Job {
        prompt,
        output_tokens_max: bound,
        sampling: params.sampling,
        stop: params.stop,
        ignore_eos: params.ignore_eos,
    };
    Ok(Understood {
        kind,
        submission: Submission {
            model: target.name.clone(),
            tenant: caller.tenant().to_owned(),
            job: Arc::new(job),
            prompt_blocks,
            hints: target.narrow(hints),
        },
        transfer: params.transfer,
    })
}

/// Logs how many fields are ignored. Their names are the client's text, which no log shows.
fn note_ignored(fields: &Fields<'_>) {
    let ignored = fields.left().count();
    if ignored > 0 {
        tracing::debug!(fields = ignored, "fields of a request are ignored");
    }
}

/// Understands a question about a route: the body of a completion of either kind, or one with
/// `prompt_tokens`, the length of a prompt, in the place of the prompt.
///
/// # Errors
/// If a field or a header cannot be used, or the request does not fit the model's context.
pub(super) fn route_query(
    app: &App,
    caller: Caller,
    mut fields: Fields<'_>,
) -> Result<RouteQuery, ApiError> {
    let catalog = caller.holder.view(app.catalog());
    let target = Target::take(&mut fields, &catalog, app.settings.unnamed_model)?;
    let model = &*target.model;
    let rules = rules(app, &target, caller.holder.rights());
    let hints = hints::parse(&caller.headers, fields.take(BODY_FIELD), rules)?;
    let wanted = "an integer of at least 1";
    let length = fields.take_as("prompt_tokens", wanted, |tokens: &u32| *tokens > 0)?;
    let params = Params::take(&mut fields, model.text.defaults())?;
    let chats = fields.has("messages");
    let kind = if chats {
        CompletionKind::Chat
    } else {
        CompletionKind::Text
    };
    let (prompt_tokens, prompt_blocks) = match length {
        Some(length) => (length as usize, PromptBlocks::default()),
        None => {
            let tokens = prompt(&mut fields, kind)?.into_tokens(model)?;
            let blocks = prompt_blocks(app, &catalog, (caller.tenant(), &model.name), &tokens);
            (tokens.len(), blocks)
        }
    };
    let output_tokens_max =
        output_bound(kind, model.context_tokens, prompt_tokens, params.tokens_max)?;
    Ok(RouteQuery {
        model: target.name.clone(),
        tenant: caller.tenant().to_owned(),
        size: RequestSize {
            prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
            prompt_blocks,
            output_tokens_max,
        },
        hints: target.narrow(hints),
    })
}

/// The full blocks of a tenant's prompt for a model, as far as it may share them.
fn prompt_blocks(
    app: &App,
    catalog: &Catalog,
    (tenant, model): (&str, &str),
    prompt: &[u32],
) -> PromptBlocks {
    let tokens_per_block = catalog.tokens_per_block(model);
    prefix::blocks(
        prompt,
        tokens_per_block,
        (app.settings.prefix_cache, tenant),
    )
}

/// The rules for hints of a request with these rights.
fn rules<'a>(app: &'a App, target: &'a Target<'_>, rights: &'a Rights) -> Rules<'a> {
    Rules {
        priority_min: -app.settings.priority_max,
        priority: rights.priority,
        claims: app.settings.claims_of(rights),
        label_keys: &app.settings.label_keys,
        executors: &target.executors,
        model: target.name.as_deref(),
        tenant: &rights.tenant,
    }
}

/// Reads all fields of a body but the model's name.
fn read(
    fields: &mut Fields<'_>,
    kind: CompletionKind,
    defaults: &GenerationDefaults,
    (headers, rules): (&HeaderMap, Rules<'_>),
) -> Result<(Hints, Params, Prompt), ApiError> {
    params::refuse_unbuilt(fields)?;
    let hints = hints::parse(headers, fields.take(BODY_FIELD), rules)?;
    let params = Params::take(fields, defaults)?;
    let prompt = prompt(fields, kind)?;
    Ok((hints, params, prompt))
}

fn prompt(fields: &mut Fields<'_>, kind: CompletionKind) -> Result<Prompt, ApiError> {
    match kind {
        CompletionKind::Chat => chat::messages(fields).map(Prompt::Chat),
        CompletionKind::Text => completions::prompt(fields),
    }
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
    let defaults = GenerationDefaults {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
    };
    let parsed = Fields::parse(body).and_then(|mut fields| {
        let _model: String = fields.require("model", "a text")?;
        read(&mut fields, kind, &defaults, (&HeaderMap::new(), rules))
    });
    parsed.map(drop).map_err(|error| error.to_string())
}

/// The request's number in an id of a completion or in the header `x-pointsman-request`; absent:
/// the text is neither, or comes from another process.
pub(crate) fn ticket_of(app: &App, id: &str) -> Option<TicketId> {
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

/// The bound on generated tokens.
fn output_bound(
    kind: CompletionKind,
    context_tokens: u32,
    prompt_tokens: usize,
    asked: Option<u32>,
) -> Result<u32, ApiError> {
    let taken = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
    let left = context_tokens.saturating_sub(taken);
    let (param, unasked) = match kind {
        CompletionKind::Chat => ("messages", left),
        CompletionKind::Text => ("prompt", COMPLETION_TOKENS.min(left)),
    };
    let output_tokens = asked.unwrap_or(unasked).max(1);
    if output_tokens > left {
        return Err(ApiError::ContextExceeded {
            param,
            context_tokens,
            prompt_tokens,
            output_tokens,
        });
    }
    Ok(output_tokens)
}

// === impl Caller ===

impl Caller {
    pub(super) fn tenant(&self) -> &str {
        &self.holder.rights().tenant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_does_not_fit_the_context_is_refused() {
        for (kind, prompt, asked, bound) in [
            (CompletionKind::Chat, 10, None, Some(90)),
            (CompletionKind::Chat, 10, Some(90), Some(90)),
            (CompletionKind::Chat, 10, Some(91), None),
            (CompletionKind::Chat, 99, None, Some(1)),
            (CompletionKind::Chat, 100, None, None),
            (CompletionKind::Chat, usize::MAX, Some(1), None),
            (CompletionKind::Text, 10, None, Some(16)),
            (CompletionKind::Text, 90, None, Some(10)),
            (CompletionKind::Text, 100, None, None),
        ] {
            let got = output_bound(kind, 100, prompt, asked).ok();
            assert_eq!(got, bound, "{kind:?} {prompt} {asked:?}");
        }
    }
}
