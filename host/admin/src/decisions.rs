//! The decisions about requests: the questions, the answers and their authors, and the results.

mod answer;
mod shape;
mod words;

use std::sync::Arc;

use pointsman_core::rows::{Cached, Request};
use pointsman_core::{EvictHow, ExecutorId, ExpiredWhy, Outcome, PlacedIn, RefusedWhy};
use pointsman_driver::decisions::{DecidedBy, Trace, TraceEvent, TraceStep, TracedQuestion};
use pointsman_driver::operator::{Explained, ExplainedDraft, Operator, Traces};
use pointsman_http::answer::Json;
use pointsman_http::error::{ApiError, quoted};
use pointsman_http::{App, Call};
use serde_json::{Value, json};

use super::{Desk, finished, in_time};
use answer::GivenAnswer;
use pointsman_openai::ticket_of;
use shape::{
    AnswerFault, Asked, CachedOn, CachedPrompt, Decider, DecisionList, DecisionStep, Decisions,
    ExplainedCandidate, ExplainedDecisions, Explanation, OutcomeShape, RequestRow, StepEvent,
};

/// The number of requests shown where the query names none. A query may name up to [`LAST_MAX`].
const LAST: usize = 20;
const LAST_MAX: usize = 1000;

pub(crate) async fn list(call: Call<'_>) -> Result<Json<DecisionList>, ApiError> {
    let last = last(call.request.uri().query())?;
    let driver = &call.app.driver;
    let traces = in_time(driver.operate(|answer| Operator::Decisions(last, answer))).await?;
    let names = Names(&traces);
    let decisions = traces.list.iter().map(|trace| names.decisions(trace));
    Ok(Json(DecisionList {
        decisions: decisions.collect(),
    }))
}

/// The schema of the query's `last`.
pub(crate) fn last_schema() -> Value {
    json!({"type": "integer", "minimum": 1, "maximum": LAST_MAX, "default": LAST})
}

fn last(query: Option<&str>) -> Result<usize, ApiError> {
    let wrong = || {
        let message = format!("`last` has to be an integer from 1 to {LAST_MAX}");
        ApiError::field("last", message)
    };
    match query.filter(|query| !query.is_empty()) {
        None => Ok(LAST),
        Some(query) => {
            let last = query
                .strip_prefix("last=")
                .and_then(|last| last.parse().ok());
            let last = last.filter(|last| (1..=LAST_MAX).contains(last));
            last.ok_or_else(wrong)
        }
    }
}

pub(crate) async fn one(
    desk: Arc<Desk>,
    call: Call<'_>,
) -> Result<Json<ExplainedDecisions>, ApiError> {
    let (app, id) = (call.app, &*call.parameter);
    let ticket = ticket_of(app, id).ok_or_else(|| absent(app, id))?;
    let asked = app
        .driver
        .operate(|answer| Operator::Decision(ticket, answer));
    let finish = |draft: Option<ExplainedDraft>| draft.map(ExplainedDraft::finish);
    let explained = finished(&desk, asked, finish).await?;
    let decisions = explained.as_ref().and_then(explained_decisions);
    decisions.map(Json).ok_or_else(|| absent(app, id))
}

fn absent(app: &App, id: &str) -> ApiError {
    ApiError::Absent(format!(
        "nothing is remembered of `{}`: give the id of a completion or what its header \
         x-pointsman-request says; the newest {} requests of this process are remembered \
         (admin.decisions-max)",
        quoted(id),
        app.settings.decisions_max
    ))
}

fn explained_decisions(explained: &Explained) -> Option<ExplainedDecisions> {
    let decisions = Names(&explained.traces).decisions(explained.traces.list.first()?);
    let explanation = match &explained.candidates {
        Ok(candidates) => {
            let candidates = candidates
                .iter()
                .map(|(executor, words)| ExplainedCandidate {
                    executor: executor.clone(),
                    eligible: words.eligible,
                    cost: words.cost,
                    note: words.note.clone(),
                });
            Explanation {
                by: explained.by.clone(),
                as_of: "now",
                candidates: Some(candidates.collect()),
                why_not: None,
            }
        }
        Err(why) => Explanation {
            by: None,
            as_of: "now",
            candidates: None,
            why_not: Some(why.clone()),
        },
    };
    Some(ExplainedDecisions {
        decisions,
        explanation,
    })
}

/// The traces, which have the names of executors.
struct Names<'a>(&'a Traces);

impl Names<'_> {
    fn executor(&self, executor: ExecutorId) -> String {
        self.0.names.get(&executor).cloned().unwrap_or_default()
    }

    fn decisions(&self, trace: &Trace) -> Decisions {
        Decisions {
            id: trace.ticket.0,
            request: trace.request.0,
            tenant: trace.tenant.clone(),
            model: trace.model.clone(),
            asked: trace.row.as_deref().ok().map(request_row),
            steps: trace.steps.iter().map(|step| self.step(step)).collect(),
            steps_forgotten: trace.forgotten,
            outcome: trace.outcome.map(ending),
        }
    }

    fn step(&self, step: &TraceStep) -> DecisionStep {
        let event = self.event(&step.event);
        DecisionStep {
            told: words::step(&event),
            event,
            at_micros: step.at.0,
            round: step.round.to_string(),
            times: (step.times > 1).then_some(step.times),
        }
    }

    fn event(&self, event: &TraceEvent) -> StepEvent {
        match event {
            TraceEvent::Asked(question) => StepEvent::Asked(Box::new(self.asked(question))),
            TraceEvent::Admitted(by) => StepEvent::Admitted(decider(by)),
            TraceEvent::Parked(by) => StepEvent::Parked(decider(by)),
            TraceEvent::Unparked => StepEvent::Unparked,
            TraceEvent::TurnedAway(by) => StepEvent::TurnedAway(decider(by)),
            TraceEvent::Held(until, by) => StepEvent::Held {
                decider: decider(by),
                until_micros: until.map(|until| until.0),
            },
            TraceEvent::Placed(executor, into, by) => StepEvent::Placed {
                decider: decider(by),
                into: match into {
                    PlacedIn::Slot => "slot",
                    PlacedIn::Queue => "queue",
                },
                executor: self.executor(*executor),
            },
            TraceEvent::Refused(hook, executor, cause, by) => StepEvent::Refused {
                hook: hook.as_str(),
                why: cause.to_string(),
                by: by.name().to_owned(),
                executor: executor.map(|executor| self.executor(executor)),
            },
            TraceEvent::Struck(hook) => StepEvent::Struck {
                hook: hook.as_str(),
            },
            TraceEvent::Started(executor) => StepEvent::Started {
                executor: self.executor(*executor),
            },
            TraceEvent::Evicted(eviction, by) => StepEvent::Evicted {
                decider: decider(by),
                how: match eviction.how {
                    EvictHow::Recompute => "recompute",
                    EvictHow::Swap => "swap",
                },
                for_request: eviction.needy.0,
                executor: self.executor(eviction.executor),
                kv_blocks_freed: eviction.blocks,
            },
            TraceEvent::Requeued(why) => StepEvent::Requeued {
                why: why.in_words(),
            },
            TraceEvent::Ended(end) => StepEvent::Ended {
                outcome: ending(*end),
            },
        }
    }

    fn asked(&self, question: &TracedQuestion) -> Asked {
        let answer = question.answer.as_ref();
        let answer = answer.map(|answer| GivenAnswer::of(answer, |id| self.executor(id)));
        let faults = question.faults.iter().map(|(policy, kind)| AnswerFault {
            policy_number: *policy,
            kind: kind.as_str().to_owned(),
        });
        Asked {
            hook: question.hook.as_str(),
            requests_asked_about: question.together,
            cached: question.cached.as_ref().map(|cached| self.cached(cached)),
            answer,
            decider: decider(&question.by),
            policy_number: question.by.author.as_ref().map(|words| words.number),
            faults: faults.collect(),
        }
    }

    fn cached(&self, cached: &Cached) -> CachedPrompt {
        let overlaps = cached.overlaps.iter().map(|overlap| CachedOn {
            executor: self.executor(overlap.executor),
            device_tokens: overlap.device_tokens,
            host_tokens: overlap.host_tokens,
            disk_tokens: overlap.disk_tokens,
        });
        CachedPrompt {
            overlaps: overlaps.collect(),
            shared_tokens: cached.shared_tokens,
        }
    }
}

fn request_row(row: &Request) -> RequestRow {
    RequestRow {
        arrived_micros: row.arrived.0,
        class: row.class.as_str(),
        priority: row.priority,
        prompt_tokens: row.prompt_tokens,
        output_tokens_max: row.output_tokens_max,
        output_tokens_expected: row.output_tokens_expected,
        deadline_micros: row.deadline.map(|at| at.0),
        may_wait: row.may_wait,
        head_start_micros: row.head_start.0,
        group: row.group,
        session: row.session.map(|session| session.0.to_string()),
        executors_allowed: row.allowed.as_ref().map(Vec::len),
    }
}

fn decider(by: &DecidedBy) -> Decider {
    Decider {
        by: by.name().to_owned(),
        reason: by.why().to_owned(),
    }
}

fn ending(outcome: Outcome) -> OutcomeShape {
    let (how, why) = match outcome {
        Outcome::Finished { output_tokens } => {
            return OutcomeShape::new("finished", None, Some(output_tokens));
        }
        Outcome::Cancelled => ("cancelled", "its client left, or the host shut down"),
        Outcome::Refused(RefusedWhy::NoRoom { .. }) => ("refused", "no room"),
        Outcome::Refused(RefusedWhy::Displaced { .. }) => ("refused", "displaced"),
        Outcome::Refused(RefusedWhy::Closed { .. }) => ("refused", "admission is closed"),
        Outcome::Refused(RefusedWhy::GaveUp) => ("refused", "routing gave it up"),
        Outcome::Refused(RefusedWhy::NeverFits { .. }) => ("refused", "it can never fit"),
        Outcome::Refused(RefusedWhy::Unserved { .. }) => ("refused", "no executor served it"),
        Outcome::Expired(ExpiredWhy::Deadline) => ("expired", "its deadline passed"),
        Outcome::Expired(ExpiredWhy::Wait) => ("expired", "it waited for core.wait-max"),
        Outcome::Failed(why) => ("failed", why.in_words()),
    };
    OutcomeShape::new(how, Some(why), None)
}

// === impl OutcomeShape ===

impl OutcomeShape {
    fn new(how: &'static str, why: Option<&'static str>, output_tokens: Option<u32>) -> Self {
        Self {
            how,
            why,
            output_tokens,
            told: words::end(how, why, output_tokens),
        }
    }
}
