//! A completion understood: down to the tokens of its prompt, for engines of this host, or only as far
//! as decisions need, for servers elsewhere.
//!
//! A model may be served by both. A request that an engine can serve may go to either, but for one with several
//! answers, each of which is a request of its own here: that is the engines'. One that asks for something that engines
//! do not build, or is too long for them, goes to the servers, where there are any that serve its model.

use std::cell::LazyCell;
use std::sync::Arc;

use pointsman_driver::catalog::Catalog;
use pointsman_driver::message::{Hints, Submission};
use pointsman_driver::operator::{RequestSize, RouteQuery};
use pointsman_events::{PromptBlocks, SessionKey};
use pointsman_executor::job::Job;
use pointsman_executor::prompt::GenerationDefaults;
use pointsman_http::error::{ApiError, quoted};
use pointsman_http::fields::Fields;
use pointsman_http::{App, RequestBody, trace};

use super::asked::asked;
use super::conversation::beginnings;
use super::params::{self, Params, Transfer};
use super::passed_prompt::PassedPrompt;
use super::passing::{self, Passage};
use super::prompt::{Conversation, Prompt, PromptReader};
use super::target::Target;
use super::tools::{self, AskedTools, CallReading};
use super::{COMPLETION_TOKENS, Caller, CompletionKind, completions, messages, prefix};
use crate::hints::{self, BODY_FIELD};

/// A request that was understood.
pub(super) struct Understood {
    /// A request for each choice of the answer, never none: those of the first prompt, then of the next.
    pub(super) submissions: Vec<Submission>,
    /// Choices of each prompt.
    pub(super) of_prompt: usize,
    /// The way in which an engine's answer is sent.
    pub(super) transfer: Transfer,
    /// The way in which calls of tools are read out of an engine's answer; absent: it has none.
    pub(super) calls: Option<CallReading>,
}

/// A request as it was read: the parameters, the tools, and one prompt at least.
#[derive(Debug)]
pub(super) struct ReadRequest {
    pub(super) params: Params,
    pub(super) tools: AskedTools,
    pub(super) prompts: Vec<Prompt>,
}

/// A request as engines of this host would serve it.
struct Local {
    /// The work for each choice, never none.
    works: Vec<(Job, PromptBlocks)>,
    /// Choices of each prompt.
    of_prompt: usize,
    transfer: Transfer,
    calls: Option<CallReading>,
}

/// The most choices of an answer, of all prompts together.
const CHOICES_MAX: usize = 64;

/// Understands a request: slow where the prompt is long.
pub(super) fn understand(
    app: &App,
    kind: CompletionKind,
    (caller, passage): (Caller, Passage),
    body: RequestBody,
) -> Result<Understood, ApiError> {
    let catalog = caller.holder.view(app.catalog());
    let mut fields = Fields::parse(&body)?;
    let target = Target::take(&mut fields, &catalog, app.settings.unnamed_model)?;
    let hinted = fields.take(BODY_FIELD);
    let hints = hints::parse(&caller.headers, hinted, caller.hint_rules(&target))?;
    let hints = target.narrow(hints);
    let allowed = hints.allowed.as_deref();
    let remotes = target.remotes(allowed);
    let of = (&target, &*catalog, caller.tenant());
    let read = read_locally(app, kind, of, (allowed, fields.clone()));
    let passed = LazyCell::new(|| PassedPrompt::of(&fields));
    let (mut local, hints) = match read {
        Ok(local)
            if local.works.len() == 1
                || remotes.is_empty()
                || !target.engines(allowed).is_empty() =>
        {
            let hints = kept_here(&target, local.works.len(), hints);
            (local, hints)
        }
        Err(error) if remotes.is_empty() => return Err(error),
        Ok(_) | Err(_) => {
            let sharing = (app.settings.prefix_cache, caller.tenant());
            let local = Local::none(kind, &fields, passed.blocks(sharing));
            (local, target.keep_to(&remotes, hints))
        }
    };
    let (mut hints, prompt_tokens) = fitted(&target, &local.works, (&fields, &passed), hints);
    let trace = Some(Box::new(trace::origin(
        passage.operation(),
        &caller.headers,
        asked(&fields),
    )));
    if let ([(job, _)], false) = (&mut *local.works, remotes.is_empty()) {
        hints.conversation = conversation(&fields, &hints, (caller.tenant(), &target));
        let place = passing::place(&body, hinted);
        let body = passing::without(body, place);
        let about = (target.name.as_deref(), prompt_tokens, target.rooms(&hints));
        let call = passage.call(&caller.headers, body, about);
        job.call = Some(Arc::new(call));
    }
    let submissions = local
        .works
        .into_iter()
        .map(|(job, prompt_blocks)| Submission {
            model: target.name.clone(),
            tenant: caller.tenant().to_owned(),
            job: Arc::new(job),
            prompt_blocks,
            hints: hints.clone(),
            trace: trace.clone(),
        });
    Ok(Understood {
        submissions: submissions.collect(),
        of_prompt: local.of_prompt,
        transfer: local.transfer,
        calls: local.calls,
    })
}

/// The hints with which a request goes where the context has room, and the tokens of its longest prompt.
fn fitted<'b>(
    target: &Target<'_>,
    works: &[(Job, PromptBlocks)],
    (fields, passed): (
        &Fields<'b>,
        &LazyCell<PassedPrompt<'b>, impl FnOnce() -> PassedPrompt<'b>>,
    ),
    hints: Hints,
) -> (Hints, u32) {
    match works.iter().map(|(job, _)| job.prompt.len()).max() {
        None | Some(0) => {
            let tokens = passed.tokens();
            let measure = (tokens, || passed.is_measured());
            (passing::fit(target, measure, fields, hints), tokens)
        }
        Some(read_here) => {
            let tokens = u32::try_from(read_here).unwrap_or(u32::MAX);
            let needed = passing::context_tokens(tokens, fields);
            (target.fit(needed, || false, hints), tokens)
        }
    }
}

/// The keys of the beginnings of a conversation that is in no session.
fn conversation(
    fields: &Fields<'_>,
    hints: &Hints,
    (tenant, target): (&str, &Target<'_>),
) -> Vec<SessionKey> {
    match hints.session {
        Some(_) => Vec::new(),
        None => beginnings(fields, (tenant, target.name.as_deref())),
    }
}

/// Reads a request for an engine, down to its tokens.
fn read_locally(
    app: &App,
    kind: CompletionKind,
    (target, catalog, tenant): (&Target<'_>, &Catalog, &str),
    (allowed, mut fields): (Option<&[String]>, Fields<'_>),
) -> Result<Local, ApiError> {
    let model = &target.model.name;
    let reader = PromptReader::of(target, allowed).ok_or_else(|| no_engine(model))?;
    let ReadRequest {
        params,
        tools,
        prompts,
    } = read(&mut fields, kind, reader.text.defaults())?;
    note_ignored(&fields);
    let tools = tools.called_by(reader.text);
    let calls = tools.reading(reader.text)?;
    let form = tools.form(params.form.as_ref())?.or(params.form);
    if let Some(form) = &form {
        tools.check(form, reader.text)?;
    }
    let shown_tokens = calls
        .as_ref()
        .map_or(&[][..], |_| reader.text.call_tokens());
    let of_prompt = params.choices as usize;
    if prompts.len() * of_prompt > CHOICES_MAX {
        return Err(too_many(prompts.len(), of_prompt));
    }
    let mut works = Vec::with_capacity(prompts.len() * of_prompt);
    for prompt in prompts {
        let answer_start = prompt.answer_start();
        let prompt = prompt.into_tokens(reader)?;
        let tokens = (prompt.len(), params.tokens_max);
        let output_tokens_max = output_bound(kind, reader.context_tokens, tokens)?;
        let prompt_blocks = prompt_blocks(app, catalog, (tenant, model), &prompt);
        let job = Job {
            prompt,
            answer_start,
            output_tokens_max,
            answers: 1,
            sampling: params.sampling.clone(),
            stop: params.stop.clone(),
            ignore_eos: params.ignore_eos,
            logprobs: params.logprobs,
            form: form.as_ref().map(|asked| asked.form.clone()),
            shown_tokens: shown_tokens.to_vec(),
            call: None,
        };
        // Each choice has a seed of its own; the first one that of the request.
        works.extend((0..u64::from(params.choices)).map(|choice| {
            let mut job = job.clone();
            job.sampling.seed = job.sampling.seed.wrapping_add(choice);
            (job, prompt_blocks.clone())
        }));
    }
    Ok(Local {
        works,
        of_prompt,
        transfer: params.transfer,
        calls,
    })
}

/// The refusal of more choices than one answer may have.
fn too_many(prompts: usize, of_prompt: usize) -> ApiError {
    let (param, what) = match prompts {
        1 => ("n", format!("{of_prompt} choices")),
        _ => (
            "prompt",
            format!("{prompts} prompts with {of_prompt} choices each"),
        ),
    };
    let message = format!("`{param}`: {what} are more than the {CHOICES_MAX} of one answer");
    ApiError::field(param, message)
}

/// The refusal of a question that needs the tokens of a prompt.
fn no_engine(model: &str) -> ApiError {
    let message = format!(
        "`{}` is served elsewhere only, and its prompts are not tokenised here; give the length of a \
         prompt as `prompt_tokens`",
        quoted(model)
    );
    ApiError::field("model", message)
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
pub fn route_query(
    app: &App,
    caller: Caller,
    mut fields: Fields<'_>,
) -> Result<RouteQuery, ApiError> {
    let catalog = caller.holder.view(app.catalog());
    let target = Target::take(&mut fields, &catalog, app.settings.unnamed_model)?;
    let rules = caller.hint_rules(&target);
    let hints = hints::parse(&caller.headers, fields.take(BODY_FIELD), rules)?;
    let hints = target.narrow(hints);
    let asked = fields.clone();
    let of = (&target, &*catalog, caller.tenant());
    let (size, hints) = route_size(app, of, &mut fields, hints)?;
    let measure = (size.prompt_tokens, || {
        PassedPrompt::of(&asked).is_measured()
    });
    let hints = passing::fit(&target, measure, &asked, hints);
    Ok(RouteQuery {
        model: target.name.clone(),
        tenant: caller.tenant().to_owned(),
        size,
        hints,
    })
}

/// The hints of a request with so many choices, of all prompts together: engines make several where they may, since another server
/// would make them itself, of one request.
fn kept_here(target: &Target<'_>, choices: usize, hints: Hints) -> Hints {
    let allowed = hints.allowed.as_deref();
    let engines = target.engines(allowed);
    let has_both = !engines.is_empty() && !target.remotes(allowed).is_empty();
    let allowed = match choices > 1 && has_both {
        true => Some(engines),
        false => hints.allowed,
    };
    Hints { allowed, ..hints }
}

/// The size of the request in a question about a route, and the hints with which it goes where it can be served.
fn route_size(
    app: &App,
    of: (&Target<'_>, &Catalog, &str),
    fields: &mut Fields<'_>,
    hints: Hints,
) -> Result<(RequestSize, Hints), ApiError> {
    let wanted = "an integer of at least 1";
    let length = fields.take_as("prompt_tokens", wanted, |tokens: &u32| *tokens > 0)?;
    let kind = if fields.has("messages") {
        CompletionKind::Chat
    } else {
        CompletionKind::Text
    };
    let (target, _, tenant) = of;
    let allowed = hints.allowed.as_deref();
    let remotes = target.remotes(allowed);
    let reader = PromptReader::of(target, allowed);
    let size = reader.map(|it| local_size(app, of, (kind, it), (length, fields.clone())));
    match size {
        Some(Ok((size, choices))) => return Ok((size, kept_here(target, choices, hints))),
        Some(Err(error)) if remotes.is_empty() => return Err(error),
        Some(Err(_)) | None => {}
    }
    let (prompt_tokens, prompt_blocks) = match length {
        Some(length) => (length, PromptBlocks::default()),
        None => {
            let passed = PassedPrompt::of(fields);
            let blocks = passed.blocks((app.settings.prefix_cache, tenant));
            (passed.tokens(), blocks)
        }
    };
    let size = RequestSize {
        prompt_tokens,
        prompt_blocks,
        output_tokens_max: passing::output_tokens(kind, fields),
    };
    Ok((size, target.keep_to(&remotes, hints)))
}

/// The size of the same request as an engine reads it, and its choices, of all prompts together.
fn local_size(
    app: &App,
    (target, catalog, tenant): (&Target<'_>, &Catalog, &str),
    (kind, reader): (CompletionKind, PromptReader<'_>),
    (length, mut fields): (Option<u32>, Fields<'_>),
) -> Result<(RequestSize, usize), ApiError> {
    let params = Params::take(&mut fields, kind, reader.text.defaults())?;
    let mut choices = params.choices as usize;
    let (prompt_tokens, prompt_blocks) = match length {
        Some(length) => (length as usize, PromptBlocks::default()),
        None => {
            let tools = asked_tools(&mut fields, kind)?;
            // Refused as the request would be.
            tools.form(params.form.as_ref())?;
            let mut prompts = prompts(&mut fields, kind, &tools)?;
            choices *= prompts.len();
            let tokens = prompts.swap_remove(0).into_tokens(reader)?;
            let of = (tenant, &*target.model.name);
            let blocks = prompt_blocks(app, catalog, of, &tokens);
            (tokens.len(), blocks)
        }
    };
    let tokens = (prompt_tokens, params.tokens_max);
    let size = RequestSize {
        prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
        prompt_blocks,
        output_tokens_max: output_bound(kind, reader.context_tokens, tokens)?,
    };
    Ok((size, choices))
}

/// The full blocks of a tenant's prompt for a model, as far as it may share them.
pub(super) fn prompt_blocks(
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

/// Reads all fields of a body but the model's name and the hints.
pub(super) fn read(
    fields: &mut Fields<'_>,
    kind: CompletionKind,
    defaults: &GenerationDefaults,
) -> Result<ReadRequest, ApiError> {
    params::refuse_unbuilt(fields, kind)?;
    let params = Params::take(fields, kind, defaults)?;
    let tools = asked_tools(fields, kind)?;
    Ok(ReadRequest {
        prompts: prompts(fields, kind, &tools)?,
        params,
        tools,
    })
}

/// The tools of a request, which only chats have.
fn asked_tools(fields: &mut Fields<'_>, kind: CompletionKind) -> Result<AskedTools, ApiError> {
    let asked = tools::take(fields)?;
    if kind == CompletionKind::Text && !asked.told().is_empty() {
        let message = "`tools` is for chats; use /v1/chat/completions";
        return Err(ApiError::field("tools", message));
    }
    Ok(asked)
}

fn prompts(
    fields: &mut Fields<'_>,
    kind: CompletionKind,
    tools: &AskedTools,
) -> Result<Vec<Prompt>, ApiError> {
    match kind {
        CompletionKind::Chat => Ok(vec![Prompt::Chat(Conversation {
            messages: messages::messages(fields)?,
            tools: tools.told().to_vec(),
        })]),
        CompletionKind::Text => completions::prompts(fields),
    }
}

/// The bound on the tokens that are generated after a prompt of so many tokens, if so many are asked
/// for.
fn output_bound(
    kind: CompletionKind,
    context_tokens: u32,
    (prompt_tokens, asked): (usize, Option<u32>),
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

// === impl Local ===

impl Local {
    /// A request that no engine reads.
    fn none(kind: CompletionKind, fields: &Fields<'_>, prompt_blocks: PromptBlocks) -> Self {
        let job = passing::job(kind, fields);
        Self {
            works: vec![(job, prompt_blocks)],
            of_prompt: 1,
            transfer: Transfer::Whole,
            calls: None,
        }
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
            let got = output_bound(kind, 100, (prompt, asked)).ok();
            assert_eq!(got, bound, "{kind:?} {prompt} {asked:?}");
        }
    }
}
