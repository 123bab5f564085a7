//! The decisions about requests: the questions, the answers and their authors, and the results.

mod shape;

use pointsman_core::rows::{Cached, Request, RequestClass};
use pointsman_core::{
    EvictHow, ExecutorId, ExpiredWhy, FailedWhy, Outcome, PlacedIn, RefusedWhy, RequeuedWhy,
    admission,
};
use serde_json::{Value, json};

use super::super::App;
use super::super::answer::Json;
use super::super::error::{ApiError, quoted};
use super::super::openai::ticket_of;
use super::super::router::Call;
use super::in_time;
use crate::driver::decisions::{By, Case, Heard, Step, Verdict, What};
use crate::driver::operator::{Cases, Explained, Operator};
use shape::{
    AnswerFault, Asked, CachedOn, CachedPrompt, Decider, DecisionList, DecisionStep, Decisions,
    Ending, Event, ExplainedCandidate, ExplainedDecisions, Explanation, GivenAnswer, RequestRow,
};

/// Requests that are shown where the query does not say how many, and at most.
const LAST: usize = 20;
const LAST_MAX: usize = 1000;

pub(in crate::http) async fn list(call: Call<'_>) -> Result<Json<DecisionList>, ApiError> {
    let last = last(call.request.uri().query())?;
    let driver = &call.app.driver;
    let cases = in_time(driver.operate(|answer| Operator::Decisions(last, answer))).await?;
    let names = Names(&cases);
    let decisions = cases.list.iter().map(|case| names.decisions(case));
    Ok(Json(DecisionList {
        decisions: decisions.collect(),
    }))
}

/// The schema of the query's `last`.
pub(in crate::http) fn last_schema() -> Value {
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

pub(in crate::http) async fn one(call: Call<'_>) -> Result<Json<ExplainedDecisions>, ApiError> {
    let (app, id) = (call.app, &*call.parameter);
    let ticket = ticket_of(app, id).ok_or_else(|| absent(app, id))?;
    let driver = &app.driver;
    let explained = in_time(driver.operate(|answer| Operator::Decision(ticket, answer))).await?;
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
    let decisions = Names(&explained.cases).decisions(explained.cases.list.first()?);
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

/// Knows the names of executors.
struct Names<'a>(&'a Cases);

impl Names<'_> {
    fn executor(&self, executor: ExecutorId) -> String {
        self.0.names.get(&executor).cloned().unwrap_or_default()
    }

    fn decisions(&self, case: &Case) -> Decisions {
        Decisions {
            id: case.ticket.0,
            request: case.request.0,
            tenant: case.tenant.clone(),
            model: case.model.clone(),
            asked: case.row.as_deref().map(request_row),
            steps: case.steps.iter().map(|step| self.step(step)).collect(),
            steps_forgotten: case.forgotten,
            outcome: case.outcome.map(ending),
        }
    }

    fn step(&self, step: &Step) -> DecisionStep {
        DecisionStep {
            event: self.event(&step.what),
            at_micros: step.at.0,
            round: step.round.to_string(),
            times: (step.times > 1).then_some(step.times),
        }
    }

    fn event(&self, what: &What) -> Event {
        match what {
            What::Asked(heard) => Event::Asked(Box::new(self.asked(heard))),
            What::Admitted(by) => Event::Admitted(decider(by)),
            What::Parked(by) => Event::Parked(decider(by)),
            What::Unparked => Event::Unparked,
            What::TurnedAway(by) => Event::TurnedAway(decider(by)),
            What::Held(until, by) => Event::Held {
                decider: decider(by),
                until_micros: until.map(|until| until.0),
            },
            What::Placed(executor, into, by) => Event::Placed {
                decider: decider(by),
                into: match into {
                    PlacedIn::Slot => "slot",
                    PlacedIn::Queue => "queue",
                },
                executor: self.executor(*executor),
            },
            What::Refused(hook, executor, cause, by) => Event::Refused {
                hook: hook.as_str(),
                why: cause.to_string(),
                by: by.name().to_owned(),
                executor: executor.map(|executor| self.executor(executor)),
            },
            What::Struck(hook) => Event::Struck {
                hook: hook.as_str(),
            },
            What::Started(executor) => Event::Started {
                executor: self.executor(*executor),
            },
            What::Evicted(executor, needy, how, by) => Event::Evicted {
                decider: decider(by),
                how: match how {
                    EvictHow::Recompute => "recompute",
                    EvictHow::Swap => "swap",
                },
                for_request: needy.0,
                executor: self.executor(*executor),
            },
            What::Requeued(why) => Event::Requeued {
                why: match why {
                    RequeuedWhy::Evicted => "evicted",
                    RequeuedWhy::Failed => "its executor failed it",
                    RequeuedWhy::Lost => "its executor died",
                },
            },
            What::Ended(end) => Event::Ended {
                outcome: ending(*end),
            },
        }
    }

    fn asked(&self, heard: &Heard) -> Asked {
        let faults = heard.faults.iter().map(|(policy, kind)| AnswerFault {
            policy_number: *policy,
            kind: format!("{kind:?}").to_lowercase(),
        });
        Asked {
            hook: heard.hook.as_str(),
            requests_asked_about: heard.together,
            cached: heard.cached.as_ref().map(|cached| self.cached(cached)),
            answer: heard.answer.as_ref().map(|answer| self.answer(answer)),
            decider: decider(&heard.by),
            policy_number: heard.by.author.as_ref().map(|words| words.number),
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

    fn answer(&self, verdict: &Verdict) -> GivenAnswer {
        match verdict {
            Verdict::Admission(admission::Choice::Admit) => GivenAnswer::Admit,
            Verdict::Admission(admission::Choice::Park) => GivenAnswer::Park,
            Verdict::Admission(admission::Choice::Shed(seconds)) => GivenAnswer::Shed {
                retry_after_s: *seconds,
            },
            Verdict::Admission(admission::Choice::Displace(request)) => {
                GivenAnswer::Displace { request: request.0 }
            }
            Verdict::Place(executors, of) => GivenAnswer::Place {
                executors: executors.iter().map(|id| self.executor(*id)).collect(),
                named: *of,
            },
            Verdict::Hold(until) => GivenAnswer::Hold {
                until_micros: until.map(|until| until.0),
            },
            Verdict::GiveUp => GivenAnswer::GiveUp,
            Verdict::Evict(victims) => GivenAnswer::Evict { victims: *victims },
        }
    }
}

fn request_row(row: &Request) -> RequestRow {
    RequestRow {
        arrived_micros: row.arrived.0,
        class: match row.class {
            RequestClass::LatencyCritical => "latency-critical",
            RequestClass::Throughput => "throughput",
        },
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

fn decider(by: &By) -> Decider {
    Decider {
        by: by.name().to_owned(),
        reason: by.why().to_owned(),
    }
}

fn ending(outcome: Outcome) -> Ending {
    let (how, why) = match outcome {
        Outcome::Finished { output_tokens } => {
            return Ending {
                how: "finished",
                why: None,
                output_tokens: Some(output_tokens),
            };
        }
        Outcome::Cancelled => ("cancelled", "its client left, or the host shut down"),
        Outcome::Refused(RefusedWhy::NoRoom { .. }) => ("refused", "no room"),
        Outcome::Refused(RefusedWhy::Displaced { .. }) => ("refused", "displaced"),
        Outcome::Refused(RefusedWhy::Closed { .. }) => ("refused", "admission is closed"),
        Outcome::Refused(RefusedWhy::GaveUp) => ("refused", "routing gave it up"),
        Outcome::Refused(RefusedWhy::NeverFits { .. }) => ("refused", "it can never fit"),
        Outcome::Expired(ExpiredWhy::Deadline) => ("expired", "its deadline passed"),
        Outcome::Expired(ExpiredWhy::Wait) => ("expired", "it waited for core.wait-max"),
        Outcome::Failed(FailedWhy::NotRetryable) => ("failed", "the executor could not go on"),
        Outcome::Failed(FailedWhy::Lost) => ("failed", "the executor died after the first text"),
        Outcome::Failed(FailedWhy::AttemptsMax) => ("failed", "every attempt failed"),
        Outcome::Failed(FailedWhy::NowhereLeft) => ("failed", "every executor has failed it"),
    };
    Ending {
        how,
        why: Some(why),
        output_tokens: None,
    }
}
