//! Paths that only servers elsewhere answer: responses, reranking and more, and paths that
//! nobody here knows.
//!
//! Of a body that is a JSON object the model, hints and sizes are read, if they are there; of a form with files, the
//! model. Any other body goes through unread, to any server.

use std::sync::Arc;

use http::StatusCode;
use pointsman_driver::catalog::{Catalog, ExecutorEntry};
use pointsman_driver::message::Submission;
use pointsman_events::{Micros, Outcome, RefusedWhy, SessionKey};
use pointsman_executor::relay::path_and_query;
use pointsman_http::answer::{HttpAnswer, HttpReply, JSON, Responses};
use pointsman_http::error::{ApiError, quoted};
use pointsman_http::fields::Fields;
use pointsman_http::{App, Call, KeyHolder, RequestBody, UsableModels, trace};
use schemars::{Schema, SchemaGenerator, json_schema};

use super::answer_names::{self, UnnamedAnswer};
use super::asked::asked;
use super::conversation::beginnings_elsewhere;
use super::document::placed_response;
use super::inflow::{Part, mixed};
use super::passed_prompt::{PassedPrompt, tokens_of_file};
use super::passing::{self, Passage};
use super::relay::EventForm;
use super::target::{self, Target};
use super::{Caller, CompletionKind, EVENT_STREAM, multipart, pace, read_call, relay, submit};
use crate::hints::{self, BODY_FIELD};

/// The response of a server elsewhere.
pub(crate) struct Elsewhere(HttpReply);

/// The schema of a body that goes through as it is.
pub(crate) fn body_schema(schemas: &mut SchemaGenerator) -> Schema {
    let hints = hints::body_schema(schemas).to_value();
    json_schema!({
        "description": "Passed on as it is, but for the hints.",
        "type": "object",
        "properties": {"model": {"type": "string"}, BODY_FIELD: hints},
    })
}

/// Passes a request on whose answer is long, as that of a conversation is.
///
/// # Cancellation
/// The request is cancelled wherever it is.
pub(crate) async fn answers(call: Call<'_>) -> Result<Elsewhere, ApiError> {
    pass(call, CompletionKind::Chat).await
}

/// Passes a request on whose answer is short: numbers, or a few tokens.
///
/// # Cancellation
/// The request is cancelled wherever it is.
pub(crate) async fn numbers(call: Call<'_>) -> Result<Elsewhere, ApiError> {
    pass(call, CompletionKind::Text).await
}

async fn pass(call: Call<'_>, kind: CompletionKind) -> Result<Elsewhere, ApiError> {
    let (app, holder) = (call.app, call.holder);
    let (submission, arrived) = read_call(call, kind, understand).await?;
    let reply = pass_on((app, holder), submission, arrived).await;
    reply.map(Elsewhere)
}

/// Passes a request on that was understood.
pub(super) async fn pass_on(
    (app, holder): (&App, &Arc<KeyHolder>),
    submission: Submission,
    arrived: Micros,
) -> Result<HttpReply, ApiError> {
    let path = submission.job.call.as_ref().map(|call| &*call.path);
    let path = path.map(|path| path_and_query(path).0);
    let is_named = path.is_some_and(answer_names::are_named);
    let events = path.map_or(EventForm::Unnamed, EventForm::of);
    let hints = &submission.hints;
    // The servers alone could have it whose id is known, and the driver knows the ids.
    let is_own_alone =
        hints.follows_own.is_some() && hints.allowed.as_ref().is_some_and(Vec::is_empty);
    let missing = is_own_alone.then(|| unanswered(path.unwrap_or_default(), None));
    let (_, mut inflow) = submit(app, submission)?;
    let first = inflow.first().await;
    let placed = inflow.headers();
    let mut reply = match first {
        Ok(Part::Relayed(relayed)) => {
            let pace = pace(app, &inflow, arrived);
            let executor = inflow.executor().filter(|_| is_named);
            let unnamed = executor.map(|it| UnnamedAnswer::new(app.driver.clone(), holder, it));
            relay(relayed, inflow, (pace, unnamed), events)
        }
        Ok(Part::More(_) | Part::Embedding(_) | Part::End(_)) => return Err(mixed()),
        Err(error) => match missing.filter(|_| is_unserved(&error)) {
            Some(missing) => return Err(missing),
            None => error.into_reply(),
        },
    };
    reply.headers_mut().extend(placed);
    Ok(reply)
}

/// Understands a request as far as decisions need.
pub(super) fn understand(
    app: &App,
    kind: CompletionKind,
    (caller, passage): (Caller, Passage),
    body: RequestBody,
) -> Result<Submission, ApiError> {
    let catalog = caller.holder.view(app.catalog());
    let read = Fields::parse(&body).ok();
    let other_tokens = read.is_none().then(|| tokens_of_file(body.len()));
    // What is no object has no fields.
    let mut fields = read.unwrap_or_else(|| Fields::none(str::to_owned));
    let target = target_of(&mut fields, (&caller, &passage), &body, &catalog)?;
    let hinted = fields.take(BODY_FIELD);
    let hints = hints::parse(&caller.headers, hinted, caller.hint_rules(&target))?;
    let asks_alone = matches!(body.trim_ascii(), b"" | b"{}") && hints.allowed.is_none();
    let own = own_answer((&caller, &passage), &catalog).filter(|_| asks_alone);
    let remotes = target.remotes(hints.allowed.as_deref());
    if remotes.is_empty() && own.is_none() {
        return Err(unanswered(passage.path(), target.name.as_deref()));
    }
    let mut hints = target.keep_to(&remotes, hints);
    hints.follows_own = own;
    hints.follows = answer_names::followed(passage.path(), &fields, caller.tenant());
    if kind == CompletionKind::Chat && hints.session.is_none() {
        let of = (caller.tenant(), target.name.as_deref());
        hints.conversation = beginnings_elsewhere(&fields, of);
    }
    let passed = PassedPrompt::of(&fields);
    let prompt_tokens = other_tokens.unwrap_or_else(|| passed.tokens());
    if kind == CompletionKind::Chat {
        let measure = (prompt_tokens, || passed.is_measured());
        hints = passing::fit(&target, measure, &fields, hints);
    }
    let prompt_blocks = passed.blocks((app.settings.prefix_cache, caller.tenant()));
    let trace = Some(Box::new(trace::origin(
        passage.operation(),
        &caller.headers,
        asked(&fields),
    )));
    let mut job = passing::job(kind, &fields);
    if passage.is_look() {
        job.output_tokens_max = 0;
    }
    let place = passing::place(&body, hinted);
    let body = passing::without(body, place);
    let about = (target.name.as_deref(), prompt_tokens, target.rooms(&hints));
    job.call = Some(Arc::new(passage.call(&caller.headers, body, about)));
    Ok(Submission {
        model: target.name.clone(),
        tenant: caller.tenant().to_owned(),
        job: Arc::new(job),
        prompt_blocks,
        hints,
        trace,
    })
}

/// The model of a body: as one of its fields names it, or as a field of a form. A form may be read otherwise elsewhere,
/// of another body nothing is known, and at a path that is not known here the path itself may name another model: a key
/// that may not use all models has less to choose from.
fn target_of<'c>(
    fields: &mut Fields<'_>,
    (caller, passage): (&Caller, &Passage),
    body: &[u8],
    catalog: &'c Catalog,
) -> Result<Target<'c>, ApiError> {
    let named = target::take_name(fields)?;
    let is_certain = named.is_some() && passage.has_model_in_body();
    let name = named.or_else(|| multipart::field(&caller.headers, body, "model"));
    let target = Target::elsewhere(name, catalog)?;
    Ok(match caller.holder.rights().models {
        UsableModels::Listed(_) if !is_certain => target.of_usable(catalog),
        UsableModels::Listed(_) | UsableModels::All => target,
    })
}

/// The key of the answer that a request is about, if that is its client's own and there are servers elsewhere.
fn own_answer((caller, passage): (&Caller, &Passage), catalog: &Catalog) -> Option<SessionKey> {
    let own = answer_names::own(passage.path(), caller.holder.rights());
    own.filter(|_| catalog.executors.iter().any(ExecutorEntry::is_remote))
}

/// True for the end of a request for which no server was there.
fn is_unserved(error: &ApiError) -> bool {
    matches!(error, ApiError::Ended(end) if matches!(end.outcome, Outcome::Refused(RefusedWhy::Unserved { .. })))
}

/// The refusal of a request that only a server elsewhere could answer, and none may.
fn unanswered(path: &str, model: Option<&str>) -> ApiError {
    let path = quoted(path);
    ApiError::Absent(match model {
        Some(model) => format!(
            "{path} is answered by servers elsewhere only, and none that this request may use serves `{}`",
            quoted(model)
        ),
        None => format!(
            "{path} is answered by servers elsewhere only, and there is none that this request may use"
        ),
    })
}

// === impl Elsewhere ===

impl HttpAnswer for Elsewhere {
    fn into_reply(self, _: StatusCode) -> HttpReply {
        self.0
    }

    fn responses(_: StatusCode, _: &mut SchemaGenerator) -> Responses {
        let contents = [(JSON, json_schema!({})), (EVENT_STREAM, json_schema!({}))];
        Responses::from_iter([placed_response(contents)])
    }
}
