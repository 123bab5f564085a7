//! Embeddings: a request that engines of this host answer, or that is passed on to a server elsewhere.
//!
//! Each input is a request of its own, with a prompt and nothing to generate. Embeddings of one model come from the
//! engines of this host where one of them serves it, and else from servers elsewhere: numbers of two kinds of
//! servers cannot be compared (ADR 0039).
//!
//! # Bounds
//! | bound | number | beyond |
//! |---|---|---|
//! | inputs of a request | 2048, OpenAI's number | 400 |
//! | requests of its inputs in hand at once | 64, and no more than the server has room for beside others | the rest wait here |

mod document;

use std::collections::VecDeque;
use std::sync::Arc;

use http::StatusCode;
use pointsman_driver::catalog::ExecutorEntry;
use pointsman_driver::message::{Hints, Submission};
use pointsman_driver::quota::QuotaHold;
use pointsman_events::Micros;
use pointsman_executor::job::Job;
use pointsman_http::answer::{HttpReply, JSON, reply};
use pointsman_http::error::{ApiError, quoted};
use pointsman_http::fields::Fields;
use pointsman_http::{App, Call, RequestBody, trace};

use super::asked::asked;
use super::completions::prompts_of;
use super::inflow::Inflow;
use super::params::{self, Unbuilt};
use super::passing::Passage;
use super::prompt::PromptReader;
use super::target::Target;
use super::understand::prompt_blocks;
use super::{Caller, CompletionKind, elsewhere, hand_over, pace, read_call};
use crate::hints::{self, BODY_FIELD};

pub(crate) use document::{EmbeddingAnswer, body_schema};
use document::{EmbeddingList, Numbers};

/// The field with what is to be embedded.
const INPUT: &str = "input";
/// The most inputs of a request.
const INPUTS_MAX: usize = 2048;
/// The most requests of one answer in hand at once.
const IN_HAND_MAX: usize = 64;

/// Fields that would change the answer if they were built, each with the JSON values that change nothing: OpenAI's,
/// then those that vLLM adds.
const UNBUILT: Unbuilt = &[
    ("dimensions", &[]),
    ("messages", &[]),
    ("truncate_prompt_tokens", &[]),
    ("add_special_tokens", &["true"]),
    ("normalize", &["true"]),
    ("use_activation", &["true"]),
    ("embed_dtype", &[r#""float32""#]),
];

/// A request for embeddings that was understood.
enum Understood {
    Here(Inputs),
    Elsewhere(Box<Submission>),
}

/// The inputs of a request that engines of this host answer.
struct Inputs {
    /// A request for each, never none.
    submissions: Vec<Submission>,
    encoding: Encoding,
}

/// The way in which numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// A list of numbers.
    Float,
    /// Their bytes, the lowest first, in base64.
    Base64,
}

/// The sender of a request and its way.
struct Origin<'a> {
    caller: &'a Caller,
    passage: &'a Passage,
}

/// Embeds texts.
///
/// # Cancellation
/// The requests are cancelled wherever they are.
pub(crate) async fn embed(call: Call<'_>) -> Result<EmbeddingAnswer, ApiError> {
    let (app, holder) = (call.app, call.holder);
    let (understood, arrived) = read_call(call, CompletionKind::Text, understand).await?;
    let reply = match understood {
        Understood::Here(inputs) => answer(app, inputs, arrived).await?,
        Understood::Elsewhere(submission) => {
            elsewhere::pass_on((app, holder), *submission, arrived).await?
        }
    };
    Ok(EmbeddingAnswer(reply))
}

// === Understanding ===

fn understand(
    app: &App,
    kind: CompletionKind,
    (caller, passage): (Caller, Passage),
    body: RequestBody,
) -> Result<Understood, ApiError> {
    let origin = Origin {
        caller: &caller,
        passage: &passage,
    };
    if let Some(inputs) = understand_here(app, &origin, body.as_ref())? {
        return Ok(Understood::Here(inputs));
    }
    let passed = elsewhere::understand(app, kind, (caller, passage), body)?;
    Ok(Understood::Elsewhere(Box::new(passed)))
}

/// Understands a request that engines of this host answer; absent: it is for servers elsewhere.
fn understand_here(
    app: &App,
    origin: &Origin<'_>,
    body: &[u8],
) -> Result<Option<Inputs>, ApiError> {
    let caller = origin.caller;
    let catalog = caller.holder.view(app.catalog());
    let has_servers = catalog.executors.iter().any(ExecutorEntry::is_remote);
    if has_servers && catalog.executors.iter().all(ExecutorEntry::is_remote) {
        return Ok(None);
    }
    let mut fields = match Fields::parse(body) {
        Ok(fields) if fields.has("model") || !has_servers => fields,
        Err(error) if !has_servers => return Err(error),
        // They know what is no object here, and which model is meant.
        Ok(_) | Err(_) => return Ok(None),
    };
    let target = Target::take(&mut fields, &catalog, app.settings.unnamed_model)?;
    if target.model.text.is_none() {
        return Ok(None);
    }
    let hinted = fields.take(BODY_FIELD);
    let hints = hints::parse(&caller.headers, hinted, caller.hint_rules(&target))?;
    let hints = target.narrow(hints);
    let Some(hints) = kept_here(&target, hints)? else {
        return Ok(None);
    };
    let Some(reader) = PromptReader::of(&target, hints.allowed.as_deref()) else {
        return Ok(None);
    };
    let asked = asked(&fields);
    let (inputs, encoding) = read(&mut fields, reader)?;
    let trace = Some(Box::new(trace::origin(
        origin.passage.operation(),
        &caller.headers,
        asked,
    )));
    let model = &target.model.name;
    let submissions = inputs.into_iter().map(|input| Submission {
        model: target.name.clone(),
        tenant: caller.tenant().to_owned(),
        prompt_blocks: prompt_blocks(app, &catalog, (caller.tenant(), model), &input),
        hints: target.fit(input.len() as u64, || false, hints.clone()),
        job: Arc::new(Job::new(input, 0)),
        trace: trace.clone(),
    });
    Ok(Some(Inputs {
        submissions: submissions.collect(),
        encoding,
    }))
}

/// The hints of a request that is kept to the engines that may answer it; absent: only servers elsewhere may.
fn kept_here(target: &Target<'_>, hints: Hints) -> Result<Option<Hints>, ApiError> {
    let engines = target.engines(hints.allowed.as_deref());
    let remotes = target.remotes(hints.allowed.as_deref());
    match (engines.is_empty(), remotes.is_empty()) {
        (false, true) => Ok(Some(hints)),
        (false, false) => Ok(Some(Hints {
            allowed: Some(engines),
            ..hints
        })),
        (true, false) => Ok(None),
        (true, true) => Err(ApiError::Absent(format!(
            "no executor that this request may use serves `{}`",
            quoted(&target.model.name)
        ))),
    }
}

/// Reads the inputs down to their tokens, and the encoding.
fn read(
    fields: &mut Fields<'_>,
    reader: PromptReader<'_>,
) -> Result<(Vec<Vec<u32>>, Encoding), ApiError> {
    let prompts = prompts_of(fields, INPUT, INPUTS_MAX)?;
    let encoding = Encoding::take(fields)?;
    params::refuse(fields, UNBUILT)?;
    let inputs = prompts.into_iter().map(|prompt| {
        let tokens = prompt.into_tokens_of(INPUT, reader)?;
        if tokens.len() > reader.context_tokens as usize {
            return Err(ApiError::PromptTooLong {
                param: INPUT,
                context_tokens: reader.context_tokens,
                tokens_min: tokens.len(),
            });
        }
        Ok(tokens)
    });
    Ok((inputs.collect::<Result<_, _>>()?, encoding))
}

// === Answering ===

async fn answer(app: &App, inputs: Inputs, arrived: Micros) -> Result<HttpReply, ApiError> {
    let Inputs {
        submissions,
        encoding,
    } = inputs;
    let asked = submissions.first().and_then(|it| it.model.clone());
    let prompts = submissions.iter().map(|it| it.job.prompt.len());
    let tokens = prompts.sum();
    // Once: a drain that begins later leaves none of the inputs out.
    app.check_serving()?;
    let quota = app.take_quota(&submissions, 1..=submissions.len().min(IN_HAND_MAX))?;
    let at_once = quota.as_ref().map(QuotaHold::at_once);
    let in_hand_max = at_once.and_then(|it| usize::try_from(it).ok());
    let in_hand_max = in_hand_max.unwrap_or(IN_HAND_MAX);
    let mut waiting = VecDeque::from(submissions);
    let (mut in_hand, mut embeddings) = (VecDeque::new(), Vec::new());
    let mut first: Option<Inflow> = None;
    loop {
        while in_hand.len() < in_hand_max
            && let Some(next) = waiting.front()
        {
            let quota = quota.as_ref().map(QuotaHold::share);
            match hand_over(app, next.clone(), (quota, None)) {
                Ok((_, inflow)) => in_hand.push_back(inflow),
                // The place of one of those in hand will do.
                Err(ApiError::HandsFull { .. }) if !in_hand.is_empty() => break,
                // Others were quicker to take it.
                Err(ApiError::HandsFull { .. }) if first.is_some() => {
                    app.driver.room().await;
                    continue;
                }
                Err(error) => return Err(error),
            }
            waiting.pop_front();
        }
        let Some(mut inflow): Option<Inflow> = in_hand.pop_front() else {
            break;
        };
        match inflow.embedding().await {
            Ok(numbers) => embeddings.push(numbers),
            Err(error) => {
                let mut reply = error.into_reply();
                reply.headers_mut().extend(inflow.headers());
                return Ok(reply);
            }
        }
        if first.is_none() {
            pace(app, &inflow, arrived).first(app.watched.clock.now());
            first = Some(inflow);
        }
    }
    let first = first.ok_or(ApiError::Internal)?;
    let model = first.model().map(str::to_owned).or(asked);
    let numbers = embeddings
        .iter()
        .map(|numbers| Numbers::new(numbers, encoding));
    let list = EmbeddingList::new(numbers.collect(), &model.unwrap_or_default(), tokens).json();
    let mut reply = reply(StatusCode::OK, JSON, list);
    reply.headers_mut().extend(first.headers());
    Ok(reply)
}

// === impl Encoding ===

impl Encoding {
    const FLOAT: &'static str = "float";
    const BASE64: &'static str = "base64";

    fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let wanted = "`float` or `base64`";
        let named = |name: &String| [Self::FLOAT, Self::BASE64].contains(&name.as_str());
        let name: Option<String> = fields.take_as("encoding_format", wanted, named)?;
        Ok(match name.as_deref() {
            Some(Self::BASE64) => Self::Base64,
            Some(_) | None => Self::Float,
        })
    }
}
