//! How requests were decided: what was asked, what was answered by whom, what was made of it.

use hyper::StatusCode;
use pointsman_core::rows::RequestClass;
use pointsman_core::{
    EvictHow, ExecutorId, ExpiredWhy, FailedWhy, Outcome, PlacedIn, RefusedWhy, RequeuedWhy,
    admission,
};
use serde_json::{Map, Value, json};

use super::super::error::{ApiError, quoted};
use super::super::openai::ticket_of;
use super::super::router::json as reply;
use super::super::{App, Reply};
use super::in_time;
use crate::driver::decisions::{By, Case, Heard, Step, Verdict, What};
use crate::driver::operator::{Cases, Explained, Operator};

/// Requests that are shown where nobody says how many, and at most.
const LAST: usize = 20;
const LAST_MAX: usize = 1000;

pub(super) async fn newest(app: &App, query: Option<&str>) -> Result<Reply, ApiError> {
    let last = last(query)?;
    let cases = app
        .driver
        .operate(|answer| Operator::Decisions(last, answer));
    let cases = in_time(cases).await?;
    let names = Names(&cases);
    let decisions = cases.list.iter().map(|case| names.case(case));
    Ok(reply(
        StatusCode::OK,
        &json!({"decisions": decisions.collect::<Value>()}),
    ))
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

pub(super) async fn one(app: &App, id: &str) -> Result<Reply, ApiError> {
    let absent = || {
        ApiError::Absent(format!(
            "nothing is remembered of `{}`: give the id of a completion or what its header \
             x-pointsman-request says; the newest {} requests of this process are remembered \
             (admin.decisions-max)",
            quoted(id),
            app.decisions_max
        ))
    };
    let ticket = ticket_of(app, id).ok_or_else(absent)?;
    let explained = app
        .driver
        .operate(|answer| Operator::Decision(ticket, answer));
    let explained = in_time(explained).await?.ok_or_else(absent)?;
    Ok(reply(StatusCode::OK, &shown(&explained)))
}

/// One case alone, with what the policy that routes now would say to it.
fn shown(explained: &Explained) -> Value {
    let names = Names(&explained.cases);
    let case = explained.cases.list.first().map(|case| names.case(case));
    let mut shown = case.unwrap_or(Value::Null);
    let candidates = match &explained.candidates {
        Ok(candidates) => {
            let list = candidates.iter().map(|(executor, said)| {
                json!({
                    "executor": executor,
                    "eligible": said.eligible,
                    "cost": said.cost,
                    "note": said.note,
                })
            });
            json!({"by": explained.by, "as_of": "now", "candidates": list.collect::<Value>()})
        }
        Err(why) => json!({"by": null, "as_of": "now", "candidates": null, "why_not": why}),
    };
    if let Some(shown) = shown.as_object_mut() {
        shown.insert("explanation".to_owned(), candidates);
    }
    shown
}

/// Knows what executors are called.
struct Names<'a>(&'a Cases);

impl Names<'_> {
    fn executor(&self, executor: ExecutorId) -> &str {
        self.0.names.get(&executor).map_or("", String::as_str)
    }

    fn case(&self, case: &Case) -> Value {
        let row = case.row.as_ref();
        json!({
            "id": case.ticket.0,
            "request": case.request.0,
            "tenant": case.tenant,
            "model": case.model,
            "asked": row.map(|row| json!({
                "arrived_micros": row.arrived.0,
                "class": class(row.class),
                "priority": row.priority,
                "prompt_tokens": row.prompt_tokens,
                "output_tokens_max": row.output_tokens_max,
                "output_tokens_expected": row.output_tokens_expected,
                "deadline_micros": row.deadline.map(|at| at.0),
                "may_wait": row.may_wait,
                "head_start_micros": row.head_start.0,
                "group": row.group,
                "session": row.session.map(|session| session.0.to_string()),
                "executors_allowed": row.allowed.as_ref().map(Vec::len),
            })),
            "steps": case.steps.iter().map(|step| self.step(step)).collect::<Value>(),
            "steps_forgotten": case.forgotten,
            "outcome": case.outcome.map(outcome),
        })
    }

    fn step(&self, step: &Step) -> Value {
        let mut shown = match self.what(&step.what) {
            Value::Object(shown) => shown,
            other @ (Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)) => Map::from_iter([("what".to_owned(), other)]),
        };
        shown.insert("at_micros".to_owned(), step.at.0.into());
        shown.insert("round".to_owned(), step.round.to_string().into());
        if step.times > 1 {
            shown.insert("times".to_owned(), step.times.into());
        }
        shown.into()
    }

    fn what(&self, what: &What) -> Value {
        match what {
            What::Asked(heard) => self.heard(heard),
            What::Admitted(by) => decided("admitted", by),
            What::Parked(by) => decided("parked", by),
            What::Unparked => json!("unparked"),
            What::TurnedAway(by) => decided("turned-away", by),
            What::Held(until, by) => with(
                decided("held", by),
                "until_micros",
                json!(until.map(|until| until.0)),
            ),
            What::Placed(executor, into, by) => {
                let into = match into {
                    PlacedIn::Slot => "slot",
                    PlacedIn::Queue => "queue",
                };
                let placed = with(decided("placed", by), "into", json!(into));
                with(placed, "executor", json!(self.executor(*executor)))
            }
            What::Refused(hook, executor, cause, by) => {
                let refused = json!({
                    "what": "refused by the interlock",
                    "hook": hook.as_str(),
                    "why": cause.to_string(),
                    "by": by.name(),
                });
                let executor = executor.map(|executor| self.executor(executor));
                with(refused, "executor", json!(executor))
            }
            What::Struck(hook) => json!({
                "what": "a liveness bound ran out, the built-in rule stepped in",
                "hook": hook.as_str(),
            }),
            What::Started(executor) => {
                json!({"what": "started", "executor": self.executor(*executor)})
            }
            What::Evicted(executor, needy, how, by) => {
                let how = match how {
                    EvictHow::Recompute => "recompute",
                    EvictHow::Swap => "swap",
                };
                let evicted = with(decided("evicted", by), "how", json!(how));
                let evicted = with(evicted, "for_request", json!(needy.0));
                with(evicted, "executor", json!(self.executor(*executor)))
            }
            What::Requeued(why) => {
                let why = match why {
                    RequeuedWhy::Evicted => "evicted",
                    RequeuedWhy::Failed => "its executor failed it",
                    RequeuedWhy::Lost => "its executor died",
                };
                json!({"what": "waits again", "why": why})
            }
            What::Ended(end) => json!({"what": "ended", "outcome": outcome(*end)}),
        }
    }

    fn heard(&self, heard: &Heard) -> Value {
        let cached = heard.cached.as_ref().map(|cached| {
            let overlaps = cached.overlaps.iter().map(|overlap| {
                json!({
                    "executor": self.executor(overlap.executor),
                    "device_tokens": overlap.device_tokens,
                    "host_tokens": overlap.host_tokens,
                    "disk_tokens": overlap.disk_tokens,
                })
            });
            json!({"overlaps": overlaps.collect::<Value>(), "shared_tokens": cached.shared_tokens})
        });
        let faults = heard.faults.iter();
        let faults = faults.map(|(policy, kind)| {
            json!({"policy_number": policy, "kind": format!("{kind:?}").to_lowercase()})
        });
        json!({
            "what": "asked",
            "hook": heard.hook.as_str(),
            "requests_asked_about": heard.together,
            "cached": cached,
            "answer": heard.answer.as_ref().map(|answer| self.verdict(answer)),
            "by": heard.by.name(),
            "policy_number": heard.by.author.as_ref().map(|words| words.number),
            "reason": heard.by.why(),
            "faults": faults.collect::<Value>(),
        })
    }

    fn verdict(&self, verdict: &Verdict) -> Value {
        match verdict {
            Verdict::Admission(admission::Choice::Admit) => json!("admit"),
            Verdict::Admission(admission::Choice::Park) => json!("park"),
            Verdict::Admission(admission::Choice::Shed(seconds)) => {
                json!({"shed": {"retry_after_s": seconds}})
            }
            Verdict::Admission(admission::Choice::Displace(request)) => {
                json!({"displace": {"request": request.0}})
            }
            Verdict::Place(named, of) => {
                let named = named.iter().map(|executor| self.executor(*executor));
                json!({"place": {"executors": named.collect::<Value>(), "named": of}})
            }
            Verdict::Hold(until) => json!({"hold": {"until_micros": until.map(|until| until.0)}}),
            Verdict::GiveUp => json!("give-up"),
            Verdict::Evict(victims) => json!({"evict": {"victims": victims}}),
        }
    }
}

fn decided(what: &str, by: &By) -> Value {
    json!({"what": what, "by": by.name(), "reason": by.why()})
}

fn with(mut value: Value, key: &str, field: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.insert(key.to_owned(), field);
    }
    value
}

fn class(class: RequestClass) -> &'static str {
    match class {
        RequestClass::LatencyCritical => "latency-critical",
        RequestClass::Throughput => "throughput",
    }
}

fn outcome(outcome: Outcome) -> Value {
    let (how, why) = match outcome {
        Outcome::Finished { output_tokens } => {
            return json!({"how": "finished", "output_tokens": output_tokens});
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
    json!({"how": how, "why": why})
}
