//! Forecasts of a request's route, with the reasons: throw-away copies of policies are asked, so
//! that nothing changes.
//!
//! # Invariants
//! 1. Neither the machine nor a policy in force is changed (`tests`, at the crate's root).

use std::collections::BTreeMap;

use pointsman_core::rows::NameKind;
use pointsman_core::{
    ExecutorId, LabelId, Micros, ModelId, Moment, NewRequest, PlacedIn, Probe, RefusalCause,
    TenantId, routing,
};
use pointsman_policy::Candidate;

use super::Driver;
use super::decisions::Trace;
use super::message::{Hints, TicketId};
use super::operator::{
    EXECUTORS_SHOWN, Explained, ForecastAuthor, ForecastOutcome, NoTenant, RouteCandidate,
    RouteForecast, RouteQuery, Traces,
};

/// The ids of the things that a request names.
pub(super) struct Referents {
    pub(super) tenant: TenantId,
    pub(super) model: Option<ModelId>,
    pub(super) labels: Vec<LabelId>,
}

/// A verdict with its author.
struct Authored {
    by: ForecastAuthor,
    verdict: routing::Choice,
}

impl Driver {
    /// A request in the form that the machine takes.
    pub(super) fn described(
        &self,
        now: Micros,
        hints: Hints,
        referents: Referents,
        (prompt_tokens, output_tokens_max): (u32, u32),
    ) -> NewRequest {
        let allowed = hints.allowed.map(|names| {
            let ids = names.iter().filter_map(|name| self.names.get(name));
            ids.copied().collect()
        });
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
            ..NewRequest::new(referents.tenant, prompt_tokens, output_tokens_max)
        }
    }

    /// The route of `query` if it were the next to be routed.
    pub(super) fn forecast(
        &self,
        now: Micros,
        query: &RouteQuery,
    ) -> Result<RouteForecast, NoTenant> {
        let id = |kind, name: &str| self.machine.id_of(kind, name);
        let tenant = id(NameKind::Tenant, &query.tenant);
        let labels = query.hints.labels.iter();
        let referents = Referents {
            tenant: TenantId(tenant.ok_or_else(|| NoTenant(query.tenant.clone()))?),
            model: id(NameKind::Model, &query.model).map(ModelId),
            // A label that nobody has used is one that no policy knows.
            labels: labels
                .filter_map(|label| self.labels.known.get(label).copied())
                .collect(),
        };
        let tokens = (query.prompt_tokens, query.output_tokens_max);
        let new = self.described(now, query.hints.clone(), referents, tokens);
        let probe = self.machine.probe(now, new);
        let authored = self.verdict(now, &probe);
        let words = self.words(now, &probe);
        let candidates = probe.executors.iter().take(EXECUTORS_SHOWN);
        let candidate = |(executor, interlock): &(ExecutorId, Result<PlacedIn, RefusalCause>)| {
            let mut words = words.iter().flatten();
            RouteCandidate {
                executor: self.name_of(NameKind::Executor, executor.0),
                interlock: interlock.map(place).map_err(|cause| cause.to_string()),
                words: words.find(|words| words.executor == *executor).cloned(),
            }
        };
        let named = match &authored.verdict {
            routing::Choice::Place(executors) => executors.as_slice(),
            routing::Choice::Hold(_) | routing::Choice::GiveUp => &[],
        };
        let named = named.iter().take(EXECUTORS_SHOWN);
        Ok(RouteForecast {
            outcome: self.forecast_outcome(&probe, &authored.verdict),
            by: authored.by,
            named: named
                .map(|executor| self.name_of(NameKind::Executor, executor.0))
                .collect(),
            candidates: candidates.map(candidate).collect(),
            executors_total: probe.executors.len(),
            unexplained: words.err(),
        })
    }

    fn moment(&self, now: Micros) -> Moment {
        Moment {
            now,
            round: self.machine.round(),
        }
    }

    /// The verdict of the policy that routes, or of the built-in rule.
    fn verdict(&self, now: Micros, probe: &Probe) -> Authored {
        let (at, view) = (self.moment(now), self.machine.view());
        let rehearsed = self
            .policies
            .dry_run(&view, at, &probe.request, &probe.cached);
        let built_in = |by| Authored {
            by,
            verdict: routing::Choice::Place(
                probe
                    .executors
                    .iter()
                    .map(|(executor, _)| *executor)
                    .collect(),
            ),
        };
        let Some(rehearsal) = rehearsed else {
            return built_in(ForecastAuthor::BuiltIn);
        };
        let number = rehearsal.policy;
        match rehearsal.verdict {
            Err(fault) => built_in(ForecastAuthor::Faulted {
                policy: self.policy_name(number),
                detail: fault.to_string(),
            }),
            Ok(verdict) => {
                let reason = self.policies.reason(number, verdict.reason);
                Authored {
                    by: ForecastAuthor::Policy {
                        name: self.policy_name(number),
                        number,
                        reason: reason.unwrap_or_default().to_owned(),
                    },
                    verdict: verdict.choice,
                }
            }
        }
    }

    /// The result of a verdict: the interlock takes the first executor that can take the request.
    fn forecast_outcome(&self, probe: &Probe, verdict: &routing::Choice) -> ForecastOutcome {
        let takes = |executor: &&ExecutorId| {
            let mut asked = probe.executors.iter();
            asked.any(|(id, interlock)| id == *executor && interlock.is_ok())
        };
        match verdict {
            routing::Choice::Place(executors) => match executors.iter().find(takes) {
                Some(executor) => {
                    ForecastOutcome::Place(self.name_of(NameKind::Executor, executor.0))
                }
                None => ForecastOutcome::Wait,
            },
            routing::Choice::Hold(until) => ForecastOutcome::Hold(*until),
            routing::Choice::GiveUp => ForecastOutcome::GiveUp,
        }
    }

    /// The words of the policy that routes on each executor, or the reason why there are none.
    fn words(&self, now: Micros, probe: &Probe) -> Result<Vec<Candidate>, String> {
        let (at, view) = (self.moment(now), self.machine.view());
        let explained = self
            .policies
            .explain(&view, at, &probe.request, &probe.cached);
        match explained {
            Ok(explanation) => Ok(explanation.candidates),
            Err(error) => Err(error.to_string()),
        }
    }

    fn policy_name(&self, number: u32) -> String {
        self.policies.name(number).unwrap_or_default().to_owned()
    }

    /// The decisions about the request of `ticket`, and the words on it as things are now.
    pub(super) fn explained(&self, now: Micros, ticket: TicketId) -> Option<Explained> {
        let trace = self.decisions.of(ticket)?.clone();
        let candidates = match &trace.row {
            Some(row) => {
                let (at, view) = (self.moment(now), self.machine.view());
                let explained = self.policies.explain(&view, at, row, &trace.cached(row.id));
                explained.map_err(|error| error.to_string())
            }
            None => Err("it allows too many executors to be remembered whole".to_owned()),
        };
        let by = candidates.as_ref().ok();
        Some(Explained {
            by: by.map(|explanation| self.policy_name(explanation.policy)),
            candidates: candidates.map(|explanation| {
                let candidates = explanation.candidates.into_iter().take(EXECUTORS_SHOWN);
                candidates
                    .map(|said| (self.name_of(NameKind::Executor, said.executor.0), said))
                    .collect()
            }),
            traces: self.named(vec![trace]),
        })
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
