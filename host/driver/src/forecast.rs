//! Forecasts of a request's route, with the reasons: throw-away copies of policies are asked, so
//! that nothing changes.
//!
//! The driver makes a draft, which has all that the copies need, and whoever asked finishes it on a
//! thread that no decision waits for.
//!
//! # Invariants
//! 1. Neither the machine nor a policy in force is changed (`tests`, at the crate's root).

use std::collections::BTreeMap;
use std::sync::Arc;

use pointsman_component::Candidate;
use pointsman_core::rows::{self, Health, NameKind};
use pointsman_core::{
    ExecutorId, LabelId, Micros, ModelId, Moment, NewRequest, PlacedIn, Probe, ProbedExecutor,
    TenantId, routing,
};
use pointsman_policy::{ExplainError, Rehearsal};

use super::Driver;
use super::decisions::{NoRow, Trace};
use super::message::{Hints, TicketId};
use super::operator::{
    EXECUTORS_SHOWN, Explained, ForecastAuthor, ForecastOutcome, NoTenant, RequestSize,
    RouteCandidate, RouteForecast, RouteQuery, Traces,
};

/// The ids of the things that a request names.
pub(super) struct Referents {
    pub(super) tenant: TenantId,
    pub(super) model: Option<ModelId>,
    pub(super) labels: Vec<LabelId>,
}

/// Names of all executors.
type Names = BTreeMap<ExecutorId, String>;

/// A forecast whose copies of policies have not been asked yet.
#[derive(Debug)]
pub struct ForecastDraft {
    probe: Probe,
    /// The policy that routes; absent: none does.
    rehearsal: Option<Rehearsal>,
    names: Names,
}

/// Decisions about a request whose explanation has not been asked for yet.
#[derive(Debug)]
pub struct ExplainedDraft {
    traces: Traces,
    /// The request with the part of its prompt that was cached, or the reason why it is not remembered.
    about: Result<(Arc<rows::Request>, rows::Cached), NoRow>,
    rehearsal: Option<Rehearsal>,
    names: Names,
}

/// A verdict with its author.
struct Authored {
    by: ForecastAuthor,
    verdict: routing::Choice,
}

impl Driver {
    /// The executors of these names, as far as there are any.
    pub(super) fn executors_named(&self, names: &[String]) -> Vec<ExecutorId> {
        let ids = names.iter().filter_map(|name| self.names.get(name));
        ids.copied().collect()
    }

    /// A request in the form that the machine takes.
    pub(super) fn described(
        &self,
        now: Micros,
        hints: Hints,
        referents: Referents,
        size: RequestSize,
    ) -> NewRequest {
        let allowed = hints.allowed.map(|names| self.executors_named(&names));
        let stays = |executor: &ExecutorId| {
            let load = self.machine.executor_load(*executor);
            // One that drains takes nothing more, and may be on its way out.
            load.is_some_and(|load| load.health != Health::Draining)
        };
        let is_allowed =
            |executor: &ExecutorId| allowed.as_ref().is_none_or(|it| it.contains(executor));
        let served_by = |session| self.sessions.executor(now, session);
        let conversation = hints.conversation.iter().rev();
        let in_conversation = || match hints.session {
            Some(session) => served_by(session),
            None => conversation.copied().find_map(served_by),
        };
        // Nobody else has the answer that it goes on from.
        let named = hints.follows.and_then(served_by).filter(is_allowed);
        let own = hints.follows_own.and_then(served_by);
        let followed = own.or(named).filter(stays);
        let preferred = followed.or_else(in_conversation);
        let followed = followed.map(|executor| vec![executor]);
        let unless_followed = hints.unless_followed;
        let unless_followed = unless_followed.map(|names| self.executors_named(&names));
        let allowed = followed.or(unless_followed).or(allowed);
        NewRequest {
            model: referents.model,
            session: hints.session,
            class: hints.class,
            priority: hints.priority,
            head_start: hints.head_start,
            labels: referents.labels,
            deadline: hints.deadline.map(|after| now.after(after)),
            may_wait: hints.may_wait,
            output_tokens_expected: hints.output_tokens_expected,
            group: hints.group,
            allowed,
            preferred,
            prompt_blocks: size.prompt_blocks,
            ..NewRequest::new(referents.tenant, size.prompt_tokens, size.output_tokens_max)
        }
    }

    /// The route of `query` if it were the next to be routed.
    pub(super) fn forecast(
        &self,
        now: Micros,
        query: &RouteQuery,
    ) -> Result<ForecastDraft, NoTenant> {
        let id = |kind, name: &str| self.machine.id_of(kind, name);
        let tenant = id(NameKind::Tenant, &query.tenant);
        let labels = query.hints.labels.iter();
        let referents = Referents {
            tenant: TenantId(tenant.ok_or_else(|| NoTenant(query.tenant.clone()))?),
            model: query
                .model
                .as_deref()
                .and_then(|model| id(NameKind::Model, model).map(ModelId)),
            // A label that nobody has used is one that no policy knows.
            labels: labels
                .filter_map(|label| self.labels.known.get(label).copied())
                .collect(),
        };
        let new = self.described(now, query.hints.clone(), referents, query.size.clone());
        let probe = self.machine.probe(now, new);
        Ok(ForecastDraft {
            rehearsal: self.rehearsal(now, &probe.request),
            probe,
            names: self.executor_names(),
        })
    }

    /// The decisions about the request of `ticket`, to be explained as things are now.
    pub(super) fn explained(&self, now: Micros, ticket: TicketId) -> Option<ExplainedDraft> {
        let trace = self.decisions.of(ticket)?.clone();
        let row = trace.row.clone();
        // Nothing is copied for a policy that has no words.
        let explained = row.as_ref().ok();
        let explained = explained.filter(|row| self.policies.explains(&self.machine.view(), row));
        let rehearsal = explained.and_then(|row| self.rehearsal(now, row));
        let names = rehearsal.as_ref().map(|_| self.executor_names());
        Some(ExplainedDraft {
            rehearsal,
            about: row.map(|row| (Arc::clone(&row), trace.cached(row.id))),
            traces: self.named(vec![trace]),
            names: names.unwrap_or_default(),
        })
    }

    fn rehearsal(&self, now: Micros, request: &rows::Request) -> Option<Rehearsal> {
        let at = Moment {
            now,
            round: self.machine.round(),
        };
        self.policies.rehearse(&self.machine.view(), at, request)
    }

    fn executor_names(&self) -> Names {
        let name = |id: ExecutorId| (id, self.name_of(NameKind::Executor, id.0));
        self.machine.executor_ids().map(name).collect()
    }

    /// The traces in `list`, with the names of the executors in them.
    pub(super) fn named(&self, list: Vec<Trace>) -> Traces {
        let mut names = BTreeMap::new();
        for executor in list.iter().flat_map(Trace::executors) {
            names
                .entry(executor)
                .or_insert_with(|| self.name_of(NameKind::Executor, executor.0));
        }
        Traces { list, names }
    }
}

fn place(into: PlacedIn) -> &'static str {
    match into {
        PlacedIn::Slot => "a slot is free",
        PlacedIn::Queue => "its queue has room",
    }
}

// === impl ForecastDraft ===

impl ForecastDraft {
    /// Asks copies of the policy that routes. Slow: each is told everything.
    #[must_use]
    pub fn finish(self) -> RouteForecast {
        let authored = self.verdict();
        let probe = &self.probe;
        let words = words(self.rehearsal.as_ref(), &probe.request, &probe.cached);
        let candidates = probe.executors.iter().take(EXECUTORS_SHOWN);
        let candidate = |probed: &ProbedExecutor| {
            let mut words = words.iter().flatten();
            RouteCandidate {
                executor: name(&self.names, probed.id),
                interlock: probed.verdict.map(place).map_err(|cause| cause.to_string()),
                load: probed.load,
                words: words.find(|words| words.executor == probed.id).cloned(),
            }
        };
        let named = match &authored.verdict {
            routing::Choice::Place(executors) => executors.as_slice(),
            routing::Choice::Hold(_) | routing::Choice::GiveUp => &[],
        };
        let named = named.iter().take(EXECUTORS_SHOWN);
        RouteForecast {
            outcome: self.outcome(&authored.verdict),
            by: authored.by,
            named: named.map(|executor| name(&self.names, *executor)).collect(),
            candidates: candidates.map(candidate).collect(),
            executors_total: probe.executors.len(),
            unexplained: words.err(),
        }
    }

    /// The verdict of the policy that routes, or of the built-in rule.
    fn verdict(&self) -> Authored {
        let built_in = |by| {
            let executors = self.probe.executors.iter();
            let verdict = routing::Choice::Place(executors.map(|it| it.id).collect());
            Authored { by, verdict }
        };
        let Some(rehearsal) = &self.rehearsal else {
            return built_in(ForecastAuthor::BuiltIn);
        };
        match rehearsal.route(&self.probe.request, &self.probe.cached) {
            Err(fault) => built_in(ForecastAuthor::Faulted {
                policy: rehearsal.name().to_owned(),
                detail: fault.to_string(),
            }),
            Ok(verdict) => Authored {
                by: ForecastAuthor::Policy {
                    name: rehearsal.name().to_owned(),
                    number: rehearsal.policy(),
                    reason: rehearsal
                        .reason(verdict.reason)
                        .unwrap_or_default()
                        .to_owned(),
                },
                verdict: verdict.choice,
            },
        }
    }

    /// The result of a verdict: the interlock takes the first executor that can take the request.
    fn outcome(&self, verdict: &routing::Choice) -> ForecastOutcome {
        let takes = |executor: &&ExecutorId| {
            let mut asked = self.probe.executors.iter();
            asked.any(|it| it.id == **executor && it.verdict.is_ok())
        };
        match verdict {
            routing::Choice::Place(executors) => match executors.iter().find(takes) {
                Some(executor) => ForecastOutcome::Place(name(&self.names, *executor)),
                None => ForecastOutcome::Wait,
            },
            routing::Choice::Hold(until) => ForecastOutcome::Hold(*until),
            routing::Choice::GiveUp => ForecastOutcome::GiveUp,
        }
    }
}

// === impl ExplainedDraft ===

impl ExplainedDraft {
    /// Asks a copy of the policy that routes. Slow: it is told everything.
    #[must_use]
    pub fn finish(self) -> Explained {
        let candidates = match &self.about {
            Ok((request, cached)) => words(self.rehearsal.as_ref(), request, cached),
            Err(why) => Err(why.to_string()),
        };
        let by = self.rehearsal.filter(|_| candidates.is_ok());
        let named = |said: Candidate| (name(&self.names, said.executor), said);
        Explained {
            by: by.map(|rehearsal| rehearsal.name().to_owned()),
            candidates: candidates.map(|candidates| {
                let candidates = candidates.into_iter().take(EXECUTORS_SHOWN);
                candidates.map(named).collect()
            }),
            traces: self.traces,
        }
    }
}

/// The words of the policy that routes on each executor, or the reason why there are none.
fn words(
    rehearsal: Option<&Rehearsal>,
    request: &rows::Request,
    cached: &rows::Cached,
) -> Result<Vec<Candidate>, String> {
    let explained = rehearsal
        .ok_or(ExplainError::NotExported)
        .and_then(|rehearsal| rehearsal.explain(request, cached));
    explained.map_err(|error| error.to_string())
}

fn name(names: &Names, executor: ExecutorId) -> String {
    names.get(&executor).cloned().unwrap_or_default()
}
