//! OpenAI's chat completions and completions: a request understood, submitted, and answered.
//!
//! What would change an answer and is not built is refused by name (`params`); what would not is
//! ignored, as clients of OpenAI's API expect.
//!
//! # Invariants
//! 1. Prompt and output bound of a submitted job fit the model's context
//!    (`tests::what_does_not_fit_the_context_is_refused`).
//! 2. A client is told status and headers only when its answer begins or has failed
//!    (`a_failure_before_the_first_text_has_its_status`, in `tests/http`).

mod chat;
mod completions;
mod envelope;
mod inflow;
mod params;
mod prompt;
mod sse;

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Response};
use pointsman_engine::text::GenerationDefaults;
use pointsman_executor::job::Job;

use super::catalog::{Catalog, ModelEntry};
use super::error::{ApiError, quoted};
use super::fields::Fields;
use super::hints::{self, BODY_FIELD, Rules};
use super::{App, JSON, Reply};
use crate::clock::unix_seconds;
use crate::config::HintsConfig;
use crate::driver::message::{Hints, Submission, SubmitError, TicketId};
use crate::driver::operator::Prospect;
use envelope::Envelope;
use inflow::{Answer, Inflow, Said};
use params::{Params, Transfer, UsageChunk};
use prompt::Prompt;
use sse::Pace;

pub(super) use sse::Events;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// Who asks, and what its headers say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker<'a> {
    pub(super) tenant: &'a str,
    pub(super) headers: &'a HeaderMap,
}

/// A request understood.
struct Asked<'a> {
    kind: Kind,
    model: &'a ModelEntry,
    prompt: Prompt,
    params: Params,
    hints: Hints,
}

/// What has come when there is something to send.
enum Begun {
    Whole(Answer),
    Stream(Said, UsageChunk),
}

/// Tokens of a completion whose client names no bound: OpenAI's number.
const COMPLETION_TOKENS: u32 = 16;

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// Answers a completion.
///
/// # Cancellation
/// The request is cancelled wherever it is.
pub(super) async fn complete(
    app: &App,
    kind: Kind,
    asker: Asker<'_>,
    body: Bytes,
) -> Result<Reply, ApiError> {
    let arrived = app.clock.now();
    let catalog = app.catalog();
    let asked = Asked::understand(app, &catalog, kind, (asker, &body))?;
    drop(body);
    let transfer = asked.params.transfer;
    let (envelope, mut inflow) = submit(app, asker.tenant, asked).await?;
    let begun = match transfer {
        Transfer::Whole => inflow.all().await.map(Begun::Whole),
        Transfer::Streamed(usage) => inflow.first().await.map(|said| Begun::Stream(said, usage)),
    };
    let told = inflow.headers();
    let mut reply = match begun {
        Ok(Begun::Whole(answer)) => {
            let json = envelope.whole(&answer, inflow.tokens());
            sent(JSON, Either::Left(Full::new(json.into())))
        }
        Ok(Begun::Stream(said, usage)) => {
            let pace = Pace::new(app.clock, arrived, Arc::clone(&app.watched.metrics));
            let events = Events::new(envelope, usage, said, inflow, pace);
            let mut reply = sent(EVENT_STREAM, Either::Right(events));
            reply.headers_mut().insert(header::CACHE_CONTROL, NO_CACHE);
            reply
        }
        Err(error) => error.into_reply(),
    };
    reply.headers_mut().extend(told);
    Ok(reply)
}

/// Hands a request to the driver.
async fn submit(app: &App, tenant: &str, asked: Asked<'_>) -> Result<(Envelope, Inflow), ApiError> {
    let Asked {
        kind,
        model,
        prompt,
        params,
        hints,
    } = asked;
    let prompt = prompt.into_tokens(model, &app.tokenising).await?;
    let prompt_tokens = prompt.len();
    let bound = output_bound(kind, model.context_tokens, prompt_tokens, params.tokens_max)?;
    // The host may have begun to drain while the body came or was tokenised.
    app.check_serving()?;
    let submission = Submission {
        model: model.name.clone(),
        tenant: tenant.to_owned(),
        job: Arc::new(Job {
            prompt,
            output_tokens_max: bound,
            sampling: params.sampling,
            stop: params.stop,
            ignore_eos: params.ignore_eos,
        }),
        hints,
    };
    let submitted = app.driver.submit(submission);
    let (ticket, deliveries) = submitted.map_err(|error| match error {
        SubmitError::Full => ApiError::HandsFull {
            retry_after: app.retry_after,
        },
        SubmitError::Closed => ApiError::draining(),
    })?;
    let prefix = match kind {
        Kind::Chat => "chatcmpl",
        Kind::Text => "cmpl",
    };
    let envelope = Envelope {
        kind,
        id: format!("{prefix}-{:016x}{:08x}", app.origin, ticket.id().0),
        created: unix_seconds(),
        model: model.name.clone(),
        prompt_tokens,
    };
    Ok((envelope, Inflow::new(ticket, deliveries)))
}

/// A request that nobody makes, of `asker`, in the body of either kind; or with `prompt_tokens`, the
/// length of a prompt, in the place of one.
///
/// # Errors
/// As for a request that is made.
pub(super) async fn prospect(
    app: &App,
    asker: Asker<'_>,
    mut fields: Fields,
) -> Result<Prospect, ApiError> {
    let catalog = app.catalog();
    let name: String = fields.require("model", "a text")?;
    let model = catalog.model(&name)?;
    let hints = hints(app, &catalog, asker, &mut fields)?;
    let wanted = "an integer of at least 1";
    let length = fields.take_as("prompt_tokens", wanted, |tokens: &u32| *tokens > 0)?;
    let params = Params::take(&mut fields, model.text.defaults())?;
    let chats = fields.has("messages");
    let kind = if chats { Kind::Chat } else { Kind::Text };
    let prompt_tokens = match length {
        Some(length) => length as usize,
        None if chats => {
            let prompt = Prompt::Chat(chat::messages(&mut fields)?);
            prompt.into_tokens(model, &app.tokenising).await?.len()
        }
        None => {
            let prompt = completions::prompt(&mut fields)?;
            prompt.into_tokens(model, &app.tokenising).await?.len()
        }
    };
    let bound = output_bound(kind, model.context_tokens, prompt_tokens, params.tokens_max)?;
    Ok(Prospect {
        model: model.name.clone(),
        tenant: asker.tenant.to_owned(),
        prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
        output_tokens_max: bound,
        hints,
    })
}

fn hints(
    app: &App,
    catalog: &Catalog,
    asker: Asker<'_>,
    fields: &mut Fields,
) -> Result<Hints, ApiError> {
    let rules = rules(app, catalog, asker);
    hints::parse(asker.headers, fields.take(BODY_FIELD), rules)
}

fn rules<'a>(app: &'a App, catalog: &'a Catalog, asker: Asker<'a>) -> Rules<'a> {
    Rules {
        priority_max: app.hints.priority_max,
        label_keys: &app.hints.label_keys,
        executors: &catalog.executors,
        tenant: asker.tenant,
    }
}

/// What the fields of a body say beside the model's name.
fn read(
    fields: &mut Fields,
    kind: Kind,
    defaults: &GenerationDefaults,
    (headers, rules): (&HeaderMap, Rules<'_>),
) -> Result<(Hints, Params, Prompt), ApiError> {
    params::refuse_unbuilt(fields)?;
    let hints = hints::parse(headers, fields.take(BODY_FIELD), rules)?;
    let params = Params::take(fields, defaults)?;
    let prompt = match kind {
        Kind::Chat => Prompt::Chat(chat::messages(fields)?),
        Kind::Text => completions::prompt(fields)?,
    };
    Ok((hints, params, prompt))
}

/// Reads a body as a server reads it that has an executor `cpu`, knows the label `team` and serves
/// a model of whatever name; for `crate::fuzz`. An error is what its client is told.
pub(crate) fn try_body(kind: Kind, body: &[u8]) -> Result<(), String> {
    let rules = Rules {
        priority_max: HintsConfig::default().priority_max,
        label_keys: &["team".to_owned()],
        executors: &["cpu".to_owned()],
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

/// The number in an id that a client was given: of a completion, or that of the header
/// `x-pointsman-request`. Absent: it is neither, or another process gave it.
pub(in crate::http) fn ticket_of(app: &App, id: &str) -> Option<TicketId> {
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

/// How many tokens may be generated.
fn output_bound(
    kind: Kind,
    context_tokens: u32,
    prompt_tokens: usize,
    asked: Option<u32>,
) -> Result<u32, ApiError> {
    let taken = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
    let left = context_tokens.saturating_sub(taken);
    let (param, unasked) = match kind {
        Kind::Chat => ("messages", left),
        Kind::Text => ("prompt", COMPLETION_TOKENS.min(left)),
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

fn sent(content_type: HeaderValue, body: Either<Full<Bytes>, Events>) -> Reply {
    let mut reply = Response::new(body);
    reply
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    reply
}

// === impl Asked ===

impl<'a> Asked<'a> {
    fn understand(
        app: &App,
        catalog: &'a Catalog,
        kind: Kind,
        (asker, body): (Asker<'_>, &[u8]),
    ) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let name: String = fields.require("model", "a text")?;
        let model = catalog.model(&name)?;
        let said = (asker.headers, rules(app, catalog, asker));
        let (hints, params, prompt) = read(&mut fields, kind, model.text.defaults(), said)?;
        let ignored: Vec<String> = fields.left().map(quoted).collect();
        if !ignored.is_empty() {
            tracing::debug!(
                fields = ignored.join(" "),
                "fields of a request are ignored"
            );
        }
        Ok(Self {
            kind,
            model,
            prompt,
            params,
            hints,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_the_context_is_refused() {
        for (kind, prompt, asked, bound) in [
            (Kind::Chat, 10, None, Some(90)),
            (Kind::Chat, 10, Some(90), Some(90)),
            (Kind::Chat, 10, Some(91), None),
            (Kind::Chat, 99, None, Some(1)),
            (Kind::Chat, 100, None, None),
            (Kind::Chat, usize::MAX, Some(1), None),
            (Kind::Text, 10, None, Some(16)),
            (Kind::Text, 90, None, Some(10)),
            (Kind::Text, 100, None, None),
        ] {
            let got = output_bound(kind, 100, prompt, asked).ok();
            assert_eq!(got, bound, "{kind:?} {prompt} {asked:?}");
        }
    }
}
